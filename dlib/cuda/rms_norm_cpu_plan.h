// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CPU_PLAN_H_
#define DLIB_RMS_NORM_CPU_PLAN_H_

// How the CPU shares a pass out: a function of the sizes alone, because the order in which numbers
// are added follows from it and must not depend on the machine or on its number of threads.

#include <algorithm>
#include <cstddef>
#include "rms_norm_groups.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    // Values of a group (or of a run) are summed a segment at a time, in so many lanes.
    constexpr std::size_t rms_norm_segment = 65536;
    constexpr std::size_t rms_norm_lanes = 16;

    // Rows of 16-bit values are summed so many at a time.
    constexpr std::size_t rms_norm_step = 64;

    // A task does so many values at least, where there are so many.
    constexpr std::size_t rms_norm_task_values = 65536;

    // Passes over fewer values are over before another thread has woken up.
    constexpr std::size_t rms_norm_min_threaded_values = 6 * rms_norm_task_values;

    // From this size of the output on, what a reader would find in the cache is worth less
    // than what stores past the cache save.
    constexpr std::size_t rms_norm_min_streamed_values = 2 * 1024 * 1024;

    // Rows of a tile must be long for memory to be fast; its sums must not outgrow the L3 cache.
    constexpr std::size_t rms_norm_max_tile_width = 4096;
    constexpr std::size_t rms_norm_min_tile_width = 512;

    // Groups that are too few to share out are themselves cut into segments.
    constexpr std::size_t rms_norm_few_groups = 16;

    constexpr std::size_t rms_norm_max_tasks = 64;
    constexpr std::size_t rms_norm_max_gradient_tasks = 32;

    // ----------------------------------------------------------------------------------------

    constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

    constexpr std::size_t whole_lanes(std::size_t count)
    {
        return divide_up(count, rms_norm_lanes) * rms_norm_lanes;
    }

    constexpr std::size_t whole_steps(std::size_t count)
    {
        return divide_up(count, rms_norm_step) * rms_norm_step;
    }

    constexpr std::size_t tile_workspace(std::size_t width)
    /*!
        ensures
            - returns how many doubles a tile of interleaved groups needs: for each group the lanes
              of its sum and the sum
    !*/
    {
        return (rms_norm_lanes + 1) * whole_lanes(width);
    }

    struct rms_norm_tile
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                `width` neighbouring interleaved groups: columns of an array whose rows are
                groups.stride values apart.
        !*/
        std::size_t first; // index of its first value
        std::size_t group; // number of its first group
        std::size_t width;
    };

    // ----------------------------------------------------------------------------------------

    struct rms_norm_cpu_plan
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A way to share a pass out to tasks. Task t takes the items [first(t), last(t)).
        !*/

        enum way_type
        {
            rows,    // an item is one contiguous group
            tiles,   // an item is a tile of interleaved groups
            segments // one contiguous group after the other; an item is a segment of it
        };

        way_type way = rows;
        std::size_t items = 0;
        std::size_t items_per_task = 1;
        std::size_t tasks = 0;
        std::size_t tile_width = 0;
        bool threaded = false;
        bool streams = false;       // the output goes past the caches
        bool spreads_gains = false; // each value of a group gets its own copy of its gain

        std::size_t first(std::size_t task) const { return task * items_per_task; }
        std::size_t last(std::size_t task) const
        {
            return std::min(items, (task + 1) * items_per_task);
        }

        rms_norm_tile tile(const rms_norm_groups& groups, std::size_t item) const
        {
            const auto stride = static_cast<std::size_t>(groups.stride);
            const std::size_t per_outer = divide_up(stride, tile_width);
            const std::size_t outer = item / per_outer;
            const std::size_t column = item % per_outer * tile_width;
            return {outer * static_cast<std::size_t>(groups.size) * stride + column,
                outer * stride + column, std::min(tile_width, stride - column)};
        }
    };

    // ----------------------------------------------------------------------------------------

    inline rms_norm_cpu_plan plan_items(const rms_norm_groups& groups)
    /*!
        ensures
            - returns a plan that says all but how many items make a task
    !*/
    {
        const auto size = static_cast<std::size_t>(groups.size);
        const auto stride = static_cast<std::size_t>(groups.stride);
        const auto outer = static_cast<std::size_t>(groups.outer);
        const auto values = static_cast<std::size_t>(groups.num_values());
        rms_norm_cpu_plan plan;
        if (stride > 1)
        {
            const std::size_t narrow = divide_up(stride, rms_norm_max_tile_width);
            const std::size_t wanted = divide_up(rms_norm_few_groups, outer);
            const std::size_t tiles = std::max(
                narrow, std::min(wanted, stride / rms_norm_min_tile_width));
            plan.way = rms_norm_cpu_plan::tiles;
            plan.tile_width = whole_lanes(divide_up(stride, tiles));
            plan.items = outer * divide_up(stride, plan.tile_width);
        }
        else if (outer < rms_norm_few_groups && size >= 2 * rms_norm_segment)
        {
            plan.way = rms_norm_cpu_plan::segments;
            plan.items = divide_up(size, rms_norm_segment);
        }
        else
        {
            plan.way = rms_norm_cpu_plan::rows;
            plan.items = outer;
        }
        plan.threaded = values >= rms_norm_min_threaded_values;
        plan.streams = values >= rms_norm_min_streamed_values;
        // Runs that are shorter than the lanes can't be loaded at once; copies for longer ones
        // pay while they stay in the L2 cache.
        plan.spreads_gains = groups.gain_run > 1 &&
            (groups.gain_run < static_cast<long long>(rms_norm_lanes) ||
                (groups.gain_run < 64 && groups.size <= 32768));
        return plan;
    }

    inline void share_out(rms_norm_cpu_plan& plan, std::size_t most_tasks)
    {
        // Most small passes are one task, and for them a division counts.
        plan.items_per_task = most_tasks == 1 ? plan.items : divide_up(plan.items, most_tasks);
        plan.tasks = most_tasks == 1 ? 1 : divide_up(plan.items, plan.items_per_task);
    }

    inline std::size_t most_tasks(const rms_norm_cpu_plan& plan, const rms_norm_groups& groups)
    /*!
        ensures
            - returns how many tasks there can be without being too small to be worth a thread's
              while, and without their workspaces taking much more than half of the tensor's memory
    !*/
    {
        const auto values = static_cast<std::size_t>(groups.num_values());
        if (values < rms_norm_task_values)
            return 1;
        return values / std::max(rms_norm_task_values, 4 * tile_workspace(plan.tile_width)) + 1;
    }

    inline rms_norm_cpu_plan plan_rms_normalize(const rms_norm_groups& groups)
    /*!
        requires
            - groups.num_values() != 0
        ensures
            - returns how to share the forward pass out
    !*/
    {
        rms_norm_cpu_plan plan = plan_items(groups);
        share_out(plan, std::min(rms_norm_max_tasks, most_tasks(plan, groups)));
        return plan;
    }

    inline rms_norm_cpu_plan plan_rms_normalize_gradient(const rms_norm_groups& groups)
    /*!
        requires
            - groups.num_values() != 0
        ensures
            - returns how to share the backward pass out. Each task has its own sums for the
              gradients of the gains, so there are few enough tasks for these to be small
              beside the tensors.
    !*/
    {
        rms_norm_cpu_plan plan = plan_items(groups);
        std::size_t tasks = plan.items;
        if (plan.way != rms_norm_cpu_plan::segments)
        {
            tasks = std::min(rms_norm_max_gradient_tasks, most_tasks(plan, groups));
            const auto gains = static_cast<std::size_t>(
                plan.spreads_gains ? groups.size : groups.num_gains);
            if (tasks > 1 && gains != 0)
            {
                const auto values = static_cast<std::size_t>(groups.num_values());
                tasks = std::min(tasks, values / (32 * gains) + 1);
            }
        }
        share_out(plan, tasks);
        return plan;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CPU_PLAN_H_
