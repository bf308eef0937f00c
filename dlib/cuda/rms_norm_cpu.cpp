// License: Boost Software License   See LICENSE.txt for the full license.

// A pass on the CPU: shares it out as the plan says and adds up what the tasks have summed. The
// arithmetic is in the loops of rms_norm_simd.h.

#include "rms_norm_cpu.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <hwy/aligned_allocator.h>
#include "rms_norm_cpu_plan.h"
#include "rms_norm_simd.h"
#include "rms_norm_threads.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using std::size_t;

        template <typename T>
        class scratch
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    Memory for `size` values, aligned to cache lines. A little of it is on the
                    stack: asking for memory takes longer than a small pass.
            !*/
        public:
            explicit scratch(size_t size)
            {
                if (size * sizeof(T) <= sizeof(few))
                {
                    values = reinterpret_cast<T*>(few);
                    return;
                }
                many = hwy::AllocateAligned<T>(size);
                if (!many)
                    throw std::bad_alloc();
                values = many.get();
            }
            scratch(const scratch&) = delete;
            scratch& operator=(const scratch&) = delete;

            T* get() { return values; }

        private:
            T* values;
            hwy::AlignedFreeUniquePtr<T[]> many;
            alignas(64) unsigned char few[4096];
        };

        class effective_gains
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The gains with the offset added, and with a copy for each value of a group
                    where the plan says so. They are gamma itself where that will do.
            !*/
        public:
            template <typename pass_type>
            effective_gains(const pass_type& pass, const rms_norm_cpu_plan& plan) :
                memory(is_gamma(pass, plan) ? 0 : count(pass, plan))
            {
                if (pass.groups.num_gains == 0)
                    return;
                const auto run = static_cast<size_t>(pass.groups.gain_run);
                gains.run = plan.spreads_gains ? 1 : run;
                gains.values = pass.gamma;
                if (is_gamma(pass, plan))
                    return;

                const size_t copies = plan.spreads_gains ? run : 1;
                float* to = memory.get();
                for (long long c = 0; c < pass.groups.num_gains; ++c, to += copies)
                    std::fill_n(to, copies, pass.gain_offset + pass.gamma[c]);
                gains.values = memory.get();
            }

            rms_norm_gains gains;

        private:
            template <typename pass_type>
            static bool is_gamma(const pass_type& pass, const rms_norm_cpu_plan& plan)
            {
                return pass.groups.num_gains == 0 || (!plan.spreads_gains && pass.gain_offset == 0);
            }

            template <typename pass_type>
            static size_t count(const pass_type& pass, const rms_norm_cpu_plan& plan)
            {
                return static_cast<size_t>(
                    plan.spreads_gains ? pass.groups.size : pass.groups.num_gains);
            }

            scratch<float> memory;
        };

        size_t segment_begin(size_t segment) { return segment * rms_norm_segment; }

        // ----------------------------------------------------------------------------------------

        void normalize_in_segments(const rms_norm_forward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan)
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            scratch<double> sums(plan.items);
            for (size_t g = 0; g < static_cast<size_t>(pass.groups.outer); ++g)
            {
                const float* const x = pass.x + g * size;
                for_each_task(plan.threaded, plan.tasks,
                    [&](size_t t)
                    {
                        for (size_t s = plan.first(t); s < plan.last(t); ++s)
                        {
                            const size_t begin = segment_begin(s);
                            sums.get()[s] = row_loops().sum_squares(
                                x + begin, std::min(size - begin, rms_norm_segment));
                        }
                    });
                double sum = 0;
                for (size_t s = 0; s < plan.items; ++s)
                    sum += sums.get()[s];
                pass.scale[g] = scale_of_group(sum, size, pass.eps);
                for_each_task(plan.threaded, plan.tasks,
                    [&](size_t t)
                    {
                        row_loops().write(pass, gains, g, segment_begin(plan.first(t)),
                            std::min(size, segment_begin(plan.last(t))), plan.streams);
                    });
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize(const rms_norm_forward<float>& pass)
    {
        const rms_norm_cpu_plan plan = plan_rms_normalize(pass.groups);
        const effective_gains gamma(pass, plan);
        const rms_norm_gains& gains = gamma.gains;

        if (plan.way == rms_norm_cpu_plan::rows)
        {
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t)
                { row_loops().normalize(pass, gains, plan.first(t), plan.last(t), plan.streams); });
        }
        else if (plan.way == rms_norm_cpu_plan::tiles)
        {
            const size_t pitch = tile_workspace(plan.tile_width);
            scratch<double> workspace(plan.tasks * pitch);
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t)
                {
                    column_loops().normalize(pass, gains.values, plan, plan.first(t), plan.last(t),
                        workspace.get() + t * pitch);
                });
        }
        else
        {
            normalize_in_segments(pass, gains, plan);
        }
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        rms_norm_cpu_plan plan_segments_of_runs(const rms_norm_gains& gains, size_t size)
        {
            rms_norm_cpu_plan plan;
            plan.items = size / gains.run * divide_up(gains.run, rms_norm_segment);
            share_out(plan, divide_up(size, rms_norm_segment));
            return plan;
        }

        double sum_runs(const rms_norm_backward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan,
            size_t group,
            double* sums,
            double* gain_sums)
        /*!
            requires
                - plan == plan_segments_of_runs(gains, the size of a group)
                - sums has room for plan.items values
            ensures
                - adds to gain_sums
                - returns the sum of d*x*gains over a group that is cut into segments of its runs
        !*/
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            const size_t runs = size / gains.run;
            const size_t segments = plan.items / runs; // of a run
            const float* const d = pass.d + group * size;
            const float* const x = pass.x + group * size;
            for_each_task(true, plan.tasks,
                [&](size_t t)
                {
                    for (size_t s = plan.first(t); s < plan.last(t); ++s)
                    {
                        const size_t in_run = segment_begin(s % segments);
                        const size_t begin = s / segments * gains.run + in_run;
                        sums[s] = row_loops().sum_products(d + begin, x + begin, nullptr, 0,
                            std::min(rms_norm_segment, gains.run - in_run), nullptr);
                    }
                });

            double total = 0;
            for (size_t c = 0; c < runs; ++c)
            {
                double run_total = 0;
                for (size_t s = 0; s < segments; ++s)
                    run_total += sums[c * segments + s];
                total += run_total * static_cast<double>(gains.values[c]);
                gain_sums[c] += run_total * static_cast<double>(pass.scale[group]);
            }
            return total;
        }

        double sum_segments(const rms_norm_backward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan,
            size_t group,
            double* sums,
            double* gain_sums)
        /*!
            requires
                - sums has room for plan.items values
            ensures
                - adds to gain_sums
                - returns the sum of d*x*gains over a group that is cut into segments
        !*/
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            for_each_task(true, plan.tasks,
                [&](size_t t)
                {
                    for (size_t s = plan.first(t); s < plan.last(t); ++s)
                    {
                        const size_t begin = segment_begin(s);
                        sums[s] = row_loops().sum_products(pass.d + group * size + begin,
                            pass.x + group * size + begin,
                            gains.values ? gains.values + begin : nullptr, pass.scale[group],
                            std::min(size - begin, rms_norm_segment),
                            gain_sums ? gain_sums + begin : nullptr);
                    }
                });
            double total = 0;
            for (size_t s = 0; s < plan.items; ++s)
                total += sums[s];
            return total;
        }

        void gradient_in_segments(const rms_norm_backward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan,
            double* gain_sums)
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            const rms_norm_cpu_plan sum_plan = gains.run > 1 ? plan_segments_of_runs(gains, size)
                                                             : plan;
            scratch<double> sums(sum_plan.items);
            for (size_t g = 0; g < static_cast<size_t>(pass.groups.outer); ++g)
            {
                const double products = gains.run > 1
                    ? sum_runs(pass, gains, sum_plan, g, sums.get(), gain_sums)
                    : sum_segments(pass, gains, sum_plan, g, sums.get(), gain_sums);
                const float mean = mean_of_group(products, pass.scale[g], size);
                pass.dscale[g] = dscale_of_group(products, pass.scale[g]);
                for_each_task(true, plan.tasks,
                    [&](size_t t)
                    {
                        row_loops().write_gradient(pass, gains, g, mean,
                            segment_begin(plan.first(t)),
                            std::min(size, segment_begin(plan.last(t))));
                    });
            }
        }

        void add_up_gain_sums(double* sums,
            size_t parts,
            size_t pitch,
            size_t copies,
            size_t num_gains,
            bool threaded,
            float* dgamma)
        /*!
            ensures
                - #dgamma == the sum over the parts, each `pitch` values after the one before, and
                  over the copies of each gain
        !*/
        {
            rms_norm_cpu_plan plan;
            plan.items = num_gains;
            share_out(plan, divide_up(parts * copies * num_gains, rms_norm_task_values));
            for_each_task(threaded, plan.tasks,
                [&](size_t t)
                {
                    double* const total = sums + plan.first(t) * copies;
                    const size_t count = plan.last(t) - plan.first(t);
                    for (size_t part = 1; part < parts; ++part)
                        row_loops().add(total, total + part * pitch, count * copies);
                    for (size_t c = 0; c < count; ++c)
                    {
                        double sum = total[c * copies];
                        for (size_t i = 1; i < copies; ++i)
                            sum += total[c * copies + i];
                        dgamma[plan.first(t) + c] = static_cast<float>(sum);
                    }
                });
        }
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(const rms_norm_backward<float>& pass)
    {
        const rms_norm_cpu_plan plan = plan_rms_normalize_gradient(pass.groups);
        const effective_gains gamma(pass, plan);
        const rms_norm_gains& gains = gamma.gains;

        const bool is_one = pass.groups.num_groups() == 1 && pass.groups.gain_run == 1;
        if (plan.way == rms_norm_cpu_plan::rows && is_one)
        {
            row_loops().gradient_of_one(pass, gains);
            return;
        }

        // Each task adds up its part of the gradients of the gains, then the parts are added.
        const auto size = static_cast<size_t>(pass.groups.size);
        const size_t num_sums = gains.values == nullptr ? 0
            : gains.run == 1                            ? size
                                                        : size / gains.run;
        const size_t pitch = whole_lanes(num_sums);
        const size_t parts = plan.way == rms_norm_cpu_plan::segments ? 1 : plan.tasks;
        scratch<double> sums(parts * pitch);
        const auto cleared_sums = [&](size_t part) -> double*
        {
            if (num_sums == 0)
                return nullptr;
            std::fill_n(sums.get() + part * pitch, pitch, 0.0);
            return sums.get() + part * pitch;
        };

        if (plan.way == rms_norm_cpu_plan::rows)
        {
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t) {
                    row_loops().gradient(pass, gains, plan.first(t), plan.last(t), cleared_sums(t));
                });
        }
        else if (plan.way == rms_norm_cpu_plan::tiles)
        {
            const size_t workspace_pitch = tile_workspace(plan.tile_width);
            scratch<double> workspace(plan.tasks * workspace_pitch);
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t)
                {
                    column_loops().gradient(pass, gains.values, plan, plan.first(t), plan.last(t),
                        workspace.get() + t * workspace_pitch, cleared_sums(t));
                });
        }
        else
        {
            gradient_in_segments(pass, gains, plan, cleared_sums(0));
        }

        if (num_sums != 0)
        {
            const auto num_gains = static_cast<size_t>(pass.groups.num_gains);
            add_up_gain_sums(sums.get(), parts, pitch, num_sums / num_gains, num_gains,
                plan.threaded, pass.dgamma);
        }
    }

    // ----------------------------------------------------------------------------------------

    const char* rms_norm_instruction_set() { return row_loops().instruction_set; }

    // ----------------------------------------------------------------------------------------

}
