// License: Boost Software License   See LICENSE.txt for the full license.

// RMS normalization on the CPU: checks the arguments and shares the work out to dlib's threads.
// The arithmetic is in rms_norm_cpu_simd.cpp, what is shared out how in rms_norm_cpu_plan.h.

#include "rms_norm_cpu.h"

#include <algorithm>
#include <new>
#include <vector>
#include <dlib/threads.h>
#include <hwy/aligned_allocator.h>
#include "rms_norm_arguments.h"
#include "rms_norm_cpu_plan.h"
#include "rms_norm_cpu_simd.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using std::size_t;

        const auto host_address = [](const tensor& t) { return t.host(); };

        class effective_gains
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The gains as the loops need them: with the offset added, and with a copy
                    for each value where runs are short. It is gamma itself where that will do.
            !*/
        public:
            effective_gains(const rms_norm_groups& groups, double gain_offset, const float* gamma) :
                gains{nullptr, 1}
            {
                if (groups.num_gains == 0)
                    return;
                const bool spread = spreads_gains(groups);
                const size_t run = static_cast<size_t>(groups.gain_run);
                gains = {gamma, spread ? 1 : run};
                if (!spread && gain_offset == 0)
                    return;

                const size_t copies = spread ? run : 1;
                values.reserve(static_cast<size_t>(groups.num_gains) * copies);
                for (long long c = 0; c < groups.num_gains; ++c)
                    values.insert(values.end(), copies, static_cast<float>(gain_offset) + gamma[c]);
                gains.values = values.data();
            }

            rms_norm_gains gains;

        private:
            std::vector<float> values;
        };

        using aligned_doubles = hwy::AlignedFreeUniquePtr<double[]>;

        aligned_doubles allocate_doubles(size_t size)
        {
            aligned_doubles p = hwy::AllocateAligned<double>(size);
            if (!p)
                throw std::bad_alloc();
            return p;
        }

        size_t round_up(size_t size) { return (size + 15) / 16 * 16; }

        template <typename task>
        void for_each_range(bool threaded, const rms_norm_cpu_plan& plan, const task& run)
        /*!
            ensures
                - calls run(t, first, last) for ranges of units [first, last) that together are all
                  units, in any order and at the same time. t is the task that a range begins
                  with; a range is one or more whole tasks.
        !*/
        {
            const auto run_tasks = [&](long begin, long end)
            {
                const auto t = static_cast<size_t>(begin);
                run(t, t * plan.units_per_task,
                    std::min(plan.units, static_cast<size_t>(end) * plan.units_per_task));
            };
            const auto num_tasks = static_cast<long>(plan.num_tasks());
            if (threaded && num_tasks > 1 && default_thread_pool().num_threads_in_pool() > 1)
                parallel_for_blocked(default_thread_pool(), 0, num_tasks, run_tasks, 4);
            else
                run_tasks(0, num_tasks);
        }

        rms_norm_tiles tiles_of(const rms_norm_groups& groups, const rms_norm_cpu_plan& plan)
        {
            return {static_cast<size_t>(groups.size), static_cast<size_t>(groups.stride),
                plan.tile_width};
        }

        size_t block_end(size_t block, size_t size)
        {
            return std::min(size, (block + 1) * rms_norm_sum_block);
        }

        // ----------------------------------------------------------------------------------------

        void normalize_in_blocks(const rms_norm_cpu_plan& plan,
            const float* x,
            float* y,
            float* scale,
            const rms_norm_gains& gains,
            size_t size,
            size_t count,
            double eps,
            bool stream)
        {
            std::vector<double> sums(plan.units);
            for (size_t g = 0; g < count; ++g, x += size, y += size)
            {
                for_each_range(true, plan,
                    [&](size_t, size_t first, size_t last)
                    {
                        for (size_t b = first; b < last; ++b)
                        {
                            const size_t begin = b * rms_norm_sum_block;
                            sums[b] = sum_of_squares(x + begin, block_end(b, size) - begin);
                        }
                    });
                double sum = 0;
                for (double s : sums)
                    sum += s;
                scale[g] = scale_of_group(sum, size, eps);
                for_each_range(true, plan,
                    [&](size_t, size_t first, size_t last)
                    {
                        normalize_part(x, y, scale[g], gains, first * rms_norm_sum_block,
                            block_end(last - 1, size), stream);
                    });
            }
        }

        void normalize(const rms_norm_groups& groups,
            const float* x,
            float* y,
            float* scale,
            const rms_norm_gains& gains,
            double eps)
        {
            const rms_norm_cpu_plan plan = plan_rms_normalize(groups);
            const bool threaded = uses_threads(groups);
            const bool stream = streams_output(groups) && x != y;
            const auto size = static_cast<size_t>(groups.size);

            if (plan.way == rms_norm_cpu_plan::groups)
            {
                for_each_range(threaded, plan,
                    [&](size_t, size_t first, size_t last)
                    {
                        normalize_groups(x + first * size, y + first * size, scale + first, gains,
                            size, last - first, eps, stream);
                    });
            }
            else if (plan.way == rms_norm_cpu_plan::tiles)
            {
                const rms_norm_tiles tiles = tiles_of(groups, plan);
                const size_t pitch = tiles.workspace_size();
                const aligned_doubles workspace = allocate_doubles(plan.num_tasks() * pitch);
                for_each_range(threaded, plan,
                    [&](size_t t, size_t first, size_t last)
                    {
                        normalize_tiles(x, y, scale, gains.values, tiles, first, last, eps, stream,
                            &workspace[t * pitch]);
                    });
            }
            else
            {
                normalize_in_blocks(plan, x, y, scale, gains, size,
                    static_cast<size_t>(groups.blocks), eps, stream);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        const rms_norm_groups groups = check_rms_normalize(
            axes, gain_offset, eps, dest, scale, src, gamma, host_address);

        dest.copy_size(src);
        set_size(scale, rms_norm_scale_dims(axes, dims_of(src)));
        if (groups.num_values() == 0)
            return;

        const effective_gains gamma_plus(groups, gain_offset, gamma.host());
        normalize(groups, src.host(), dest.host(), scale.host(), gamma_plus.gains, eps);
    }

    void rms_normalize(double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma);
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        double sum_runs_of_group(const float* d,
            const float* x,
            float scale,
            const rms_norm_gains& gains,
            size_t size,
            double* gains_grad)
        /*!
            ensures
                - adds to gains_grad
                - returns the sum of d*x*gains
        !*/
        {
            const size_t blocks_per_run = rms_norm_blocks(gains.run);
            const size_t blocks = size / gains.run * blocks_per_run;
            rms_norm_cpu_plan plan;
            plan.way = rms_norm_cpu_plan::blocks;
            plan.units = blocks;
            plan.units_per_task = std::max<size_t>(1, rms_norm_sum_block / gains.run);

            std::vector<double> sums(blocks);
            for_each_range(true, plan,
                [&](size_t, size_t first, size_t last)
                {
                    for (size_t b = first; b < last; ++b)
                    {
                        const size_t in_run = b % blocks_per_run;
                        const size_t begin = b / blocks_per_run * gains.run +
                            in_run * rms_norm_sum_block;
                        const size_t length = std::min(
                            rms_norm_sum_block, gains.run - in_run * rms_norm_sum_block);
                        sums[b] = gradient_sums(
                            d + begin, x + begin, scale, nullptr, nullptr, length);
                    }
                });

            double total = 0;
            for (size_t c = 0; c < size / gains.run; ++c)
            {
                double run_total = 0;
                for (size_t b = 0; b < blocks_per_run; ++b)
                    run_total += sums[c * blocks_per_run + b];
                total += run_total * static_cast<double>(gains.values[c]);
                gains_grad[c] += run_total * static_cast<double>(scale);
            }
            return total;
        }

        double sum_blocks_of_group(const rms_norm_cpu_plan& plan,
            const float* d,
            const float* x,
            float scale,
            const float* gains,
            size_t size,
            double* gains_grad)
        /*!
            ensures
                - adds to gains_grad
                - returns the sum of d*x*gains
        !*/
        {
            std::vector<double> sums(plan.units);
            for_each_range(true, plan,
                [&](size_t, size_t first, size_t last)
                {
                    for (size_t b = first; b < last; ++b)
                    {
                        const size_t begin = b * rms_norm_sum_block;
                        sums[b] = gradient_sums(d + begin, x + begin, scale,
                            gains ? gains + begin : nullptr, gains ? gains_grad + begin : nullptr,
                            block_end(b, size) - begin);
                    }
                });
            double total = 0;
            for (double s : sums)
                total += s;
            return total;
        }

        void gradient_in_blocks(const rms_norm_cpu_plan& plan,
            rms_norm_gradients a,
            const rms_norm_gains& gains,
            size_t size,
            size_t count,
            double* gains_grad)
        {
            for (size_t g = 0; g < count; ++g)
            {
                const double sum = gains.run > 1
                    ? sum_runs_of_group(a.d, a.x, *a.scale, gains, size, gains_grad)
                    : sum_blocks_of_group(plan, a.d, a.x, *a.scale, gains.values, size, gains_grad);
                *a.m = mean_of_group(sum, *a.scale, size);
                for_each_range(true, plan,
                    [&](size_t, size_t first, size_t last) {
                        gradient_part(
                            a, gains, first * rms_norm_sum_block, block_end(last - 1, size));
                    });
                a.d += size;
                a.x += size;
                a.dx += size;
                ++a.scale;
                ++a.m;
            }
        }

        void gradient(const rms_norm_groups& groups,
            const rms_norm_gradients& a,
            const rms_norm_gains& gains,
            float* gamma_grad)
        {
            const rms_norm_cpu_plan plan = plan_rms_normalize_gradient(groups);
            const bool threaded = uses_threads(groups);
            const auto size = static_cast<size_t>(groups.size);
            const size_t num_gains = gains.values == nullptr ? 0 : size / gains.run;

            // Each task adds up its part of the gradients of the gains, then the parts are added.
            const size_t pitch = round_up(num_gains);
            const size_t parts = plan.way == rms_norm_cpu_plan::blocks ? 1 : plan.num_tasks();
            const aligned_doubles partial = allocate_doubles(parts * pitch + 1);
            const auto cleared_sums = [&](size_t first_part, size_t units)
            {
                rms_norm_gain_sums sums{nullptr, pitch, plan.units_per_task};
                if (num_gains != 0)
                {
                    sums.values = &partial[first_part * pitch];
                    const size_t count = (units + plan.units_per_task - 1) / plan.units_per_task;
                    std::fill_n(sums.values, count * pitch, 0.0);
                }
                return sums;
            };

            if (plan.way == rms_norm_cpu_plan::groups)
            {
                for_each_range(threaded, plan,
                    [&](size_t t, size_t first, size_t last)
                    {
                        gradient_groups({a.d + first * size, a.x + first * size, a.scale + first,
                                            a.dx + first * size, a.m + first, a.add},
                            gains, size, last - first, cleared_sums(t, last - first));
                    });
            }
            else if (plan.way == rms_norm_cpu_plan::tiles)
            {
                const rms_norm_tiles tiles = tiles_of(groups, plan);
                const size_t workspace_pitch = tiles.workspace_size();
                const aligned_doubles workspace = allocate_doubles(
                    plan.num_tasks() * workspace_pitch);
                for_each_range(threaded, plan,
                    [&](size_t t, size_t first, size_t last)
                    {
                        gradient_tiles(a, gains.values, tiles, first, last,
                            cleared_sums(t, last - first), &workspace[t * workspace_pitch]);
                    });
            }
            else
            {
                gradient_in_blocks(plan, a, gains, size, static_cast<size_t>(groups.blocks),
                    cleared_sums(0, 1).values);
            }

            if (num_gains == 0)
                return;

            // Where gains were spread, several of them are one.
            const size_t copies = num_gains / static_cast<size_t>(groups.num_gains);
            rms_norm_cpu_plan columns;
            columns.units = static_cast<size_t>(groups.num_gains);
            columns.units_per_task = std::max<size_t>(
                1, rms_norm_min_threaded_values / (parts * copies));
            for_each_range(threaded, columns,
                [&](size_t, size_t first, size_t last)
                {
                    add_partial_sums(partial.get(), parts, pitch, first * copies, last * copies);
                    for (size_t c = first; c < last; ++c)
                    {
                        double sum = partial[c * copies];
                        for (size_t i = 1; i < copies; ++i)
                            sum += partial[c * copies + i];
                        gamma_grad[c] = static_cast<float>(sum);
                    }
                });
        }
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        bool in_place = false;
        const rms_norm_groups groups = check_rms_normalize_gradient(axes, gain_offset,
            gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale, host_address,
            in_place);

        set_size(dscale, rms_norm_scale_dims(axes, dims_of(src)));
        if (groups.num_values() == 0)
        {
            gamma_grad = 0;
            return;
        }

        const effective_gains gamma_plus(groups, gain_offset, gamma.host());
        gradient(groups,
            {gradient_input.host(), src.host(), scale.host(), src_grad.host(), dscale.host(),
                !in_place},
            gamma_plus.gains, gamma_grad.host());
    }

    void rms_normalize_gradient(const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        rms_normalize_gradient(rms_norm_axes::sample, 0, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

}
