// License: Boost Software License   See LICENSE.txt for the full license.

// A pass on the CPU: shares it out as the plan says and adds up what the tasks have summed. The
// arithmetic is in the loops of rms_norm_simd.h.

#include "rms_norm_cpu.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>
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
                    where the plan says so. They are gamma itself where that will do. 16-bit rows
                    always have them: ones where there is no gamma.
            !*/
        public:
            template <template <typename> class pass_type, typename T>
            effective_gains(const pass_type<T>& pass, const rms_norm_cpu_plan& plan) :
                memory(count(pass, plan))
            {
                const auto num_gains = static_cast<size_t>(pass.groups.num_gains);
                const auto run = static_cast<size_t>(pass.groups.gain_run);
                if (num_gains != 0)
                    gains.run = plan.spreads_gains ? 1 : run;
                if (count(pass, plan) != 0)
                {
                    gains.values = memory.get();
                    if (num_gains == 0)
                        std::fill_n(memory.get(), count(pass, plan), 1.0f);
                    else
                        row_loops<T>().add_offset(
                            pass.gamma, offset_of(pass), memory.get(), num_gains);
                    if (plan.spreads_gains)
                        spread(num_gains, run);
                }
                else if constexpr (std::is_same_v<T, float>)
                {
                    gains.values = pass.gamma;
                }
            }

            rms_norm_gains gains;

        private:
            template <template <typename> class pass_type, typename T>
            static size_t count(const pass_type<T>& pass, const rms_norm_cpu_plan& plan)
            /*!
                ensures
                    - returns how many numbers there are, 0 if gamma will do
            !*/
            {
                const bool is_short = sizeof(T) < sizeof(float);
                if (is_short)
                    return whole_steps(static_cast<size_t>(pass.groups.size));
                if (plan.spreads_gains)
                    return static_cast<size_t>(pass.groups.size);
                return pass.gain_offset != 0 ? static_cast<size_t>(pass.groups.num_gains) : 0;
            }

            template <template <typename> class pass_type, typename T>
            static float offset_of(const pass_type<T>& pass)
            {
                // -0 is what changes no number, not even -0.
                const bool is_short = sizeof(T) < sizeof(float);
                return is_short && pass.gain_offset == 0 ? -0.0f : pass.gain_offset;
            }

            void spread(size_t num_gains, size_t copies)
            {
                // From behind, so that no gain is overwritten before it is read.
                for (size_t c = num_gains; c-- > 0;)
                    std::fill_n(memory.get() + c * copies, copies, float(memory.get()[c]));
            }

            scratch<float> memory;
        };

        size_t segment_begin(size_t segment) { return segment * rms_norm_segment; }

        // ----------------------------------------------------------------------------------------

        template <typename T>
        void normalize_in_segments(const rms_norm_forward<T>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan)
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            scratch<double> sums(plan.items);
            for (size_t g = 0; g < static_cast<size_t>(pass.groups.outer); ++g)
            {
                for_each_task(plan.threaded, plan.tasks,
                    [&](size_t t)
                    {
                        for (size_t s = plan.first(t); s < plan.last(t); ++s)
                        {
                            sums.get()[s] = row_loops<T>().sum_squares(
                                pass, g, segment_begin(s), std::min(size, segment_begin(s + 1)));
                        }
                    });
                double sum = 0;
                for (size_t s = 0; s < plan.items; ++s)
                    sum += sums.get()[s];
                pass.scale[g] = scale_of_group(sum, size, pass.eps);
                for_each_task(plan.threaded, plan.tasks,
                    [&](size_t t)
                    {
                        row_loops<T>().write(pass, gains, g, segment_begin(plan.first(t)),
                            std::min(size, segment_begin(plan.last(t))), plan.streams);
                    });
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        void normalize_tiles(const rms_norm_forward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan)
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
    }

    template <typename T>
    void normalize(const rms_norm_forward<T>& pass)
    {
        const rms_norm_cpu_plan plan = plan_rms_normalize(pass.groups);
        const effective_gains gamma(pass, plan);
        const rms_norm_gains& gains = gamma.gains;

        if (plan.way == rms_norm_cpu_plan::rows)
        {
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t) {
                    row_loops<T>().normalize(
                        pass, gains, plan.first(t), plan.last(t), plan.streams);
                });
        }
        else if (plan.way == rms_norm_cpu_plan::tiles)
        {
            if constexpr (std::is_same_v<T, float>)
                normalize_tiles(pass, gains, plan);
        }
        else
        {
            normalize_in_segments(pass, gains, plan);
        }
    }

    template void normalize(const rms_norm_forward<float>&);
    template void normalize(const rms_norm_forward<float16>&);
    template void normalize(const rms_norm_forward<bfloat16>&);

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
            for_each_task(true, plan.tasks,
                [&](size_t t)
                {
                    for (size_t s = plan.first(t); s < plan.last(t); ++s)
                    {
                        const size_t in_run = segment_begin(s % segments);
                        const size_t begin = s / segments * gains.run + in_run;
                        sums[s] = row_loops<float>().sum_products(pass, gains, group, begin,
                            begin + std::min(rms_norm_segment, gains.run - in_run), nullptr);
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

        template <typename T>
        double sum_segments(const rms_norm_backward<T>& pass,
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
                - returns the sum of the products over a group that is cut into segments
        !*/
        {
            const auto size = static_cast<size_t>(pass.groups.size);
            for_each_task(true, plan.tasks,
                [&](size_t t)
                {
                    for (size_t s = plan.first(t); s < plan.last(t); ++s)
                    {
                        sums[s] = row_loops<T>().sum_products(pass, gains, group, segment_begin(s),
                            std::min(size, segment_begin(s + 1)), gain_sums);
                    }
                });
            double total = 0;
            for (size_t s = 0; s < plan.items; ++s)
                total += sums[s];
            return total;
        }

        template <typename T>
        void gradient_in_segments(const rms_norm_backward<T>& pass,
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
                double products = 0;
                if (gains.run == 1)
                    products = sum_segments(pass, gains, sum_plan, g, sums.get(), gain_sums);
                else if constexpr (std::is_same_v<T, float>)
                    products = sum_runs(pass, gains, sum_plan, g, sums.get(), gain_sums);
                const float mean = finish_group(pass, g, products);
                for_each_task(true, plan.tasks,
                    [&](size_t t)
                    {
                        row_loops<T>().write_gradient(pass, gains, g, mean,
                            segment_begin(plan.first(t)),
                            std::min(size, segment_begin(plan.last(t))));
                    });
            }
        }

        template <typename F>
        void gradient_of_tiles(const rms_norm_backward<float>& pass,
            const rms_norm_gains& gains,
            const rms_norm_cpu_plan& plan,
            const F& cleared_sums)
        {
            const size_t pitch = tile_workspace(plan.tile_width);
            scratch<double> workspace(plan.tasks * pitch);
            for_each_task(plan.threaded, plan.tasks,
                [&](size_t t)
                {
                    column_loops().gradient(pass, gains.values, plan, plan.first(t), plan.last(t),
                        workspace.get() + t * pitch, cleared_sums(t));
                });
        }

        template <typename T>
        void add_up_gain_sums(double* sums,
            size_t parts,
            size_t pitch,
            size_t copies,
            size_t num_gains,
            bool threaded,
            T* dgamma)
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
                        row_loops<float>().add(total, total + part * pitch, count * copies);
                    for (size_t c = 0; c < count; ++c)
                    {
                        double sum = total[c * copies];
                        for (size_t i = 1; i < copies; ++i)
                            sum += total[c * copies + i];
                        dgamma[plan.first(t) + c] = T(sum);
                    }
                });
        }
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void normalize_gradient(const rms_norm_backward<T>& pass)
    {
        const rms_norm_cpu_plan plan = plan_rms_normalize_gradient(pass.groups);
        const effective_gains gamma(pass, plan);
        const rms_norm_gains& gains = gamma.gains;

        const bool is_one = pass.groups.num_groups() == 1 && pass.groups.gain_run == 1;
        if constexpr (std::is_same_v<T, float>)
        {
            const bool is_wanted = pass.groups.num_gains == 0 || pass.dgamma != nullptr;
            if (plan.way == rms_norm_cpu_plan::rows && is_one && is_wanted)
            {
                row_loops<T>().gradient_of_one(pass, gains);
                return;
            }
        }

        // Each task adds up its part of the gradients of the gains, then the parts are added.
        const auto size = static_cast<size_t>(pass.groups.size);
        const size_t num_sums = pass.groups.num_gains == 0 ? 0
            : gains.run == 1                               ? size
                                                           : size / gains.run;
        const size_t pitch = (sizeof(T) < sizeof(float) ? 2 : 1) * whole_steps(num_sums);
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
                    row_loops<T>().gradient(
                        pass, gains, plan.first(t), plan.last(t), cleared_sums(t));
                });
        }
        else if (plan.way == rms_norm_cpu_plan::tiles)
        {
            if constexpr (std::is_same_v<T, float>)
                gradient_of_tiles(pass, gains, plan, cleared_sums);
        }
        else
        {
            gradient_in_segments(pass, gains, plan, cleared_sums(0));
        }

        const auto add_up = [&](auto* dgamma)
        {
            const auto num_gains = static_cast<size_t>(pass.groups.num_gains);
            if (dgamma != nullptr)
            {
                add_up_gain_sums(sums.get(), parts, pitch, num_sums / num_gains, num_gains,
                    plan.threaded, dgamma);
            }
        };
        add_up(pass.dgamma);
        add_up(pass.dgamma_float);
    }

    template void normalize_gradient(const rms_norm_backward<float>&);
    template void normalize_gradient(const rms_norm_backward<float16>&);
    template void normalize_gradient(const rms_norm_backward<bfloat16>&);

    // ----------------------------------------------------------------------------------------

    const char* rms_norm_instruction_set() { return row_loops<float>().instruction_set; }

    // ----------------------------------------------------------------------------------------

}
