// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CPU_PLAN_H_
#define DLIB_RMS_NORM_CPU_PLAN_H_

// How the CPU shares its work out: block lengths, tile widths, thresholds and the number of
// tasks. Everything here is a function of the sizes alone, because the order in which numbers
// are added follows from it and must not depend on the machine or on its number of threads.

#include <algorithm>
#include <cstddef>
#include "rms_norm_groups.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    // Values of a group (or of a run that shares a gain) that are summed at a time.
    constexpr std::size_t rms_norm_sum_block = 65536;

    // Tensors with fewer values are done by the calling thread: waking another costs more.
    constexpr std::size_t rms_norm_min_threaded_values = 65536;

    // From this size of the output on, what a reader would find in the cache is worth less
    // than what stores past the cache save.
    constexpr std::size_t rms_norm_min_streamed_values = 2 * 1024 * 1024;

    // Rows of a tile must be long for memory to be fast; its sums must not outgrow the L3 cache.
    constexpr std::size_t rms_norm_max_tile_width = 4096;
    constexpr std::size_t rms_norm_min_tile_width = 512;

    // Groups that are too few to share out are themselves cut into blocks.
    constexpr std::size_t rms_norm_few_groups = 16;

    constexpr std::size_t rms_norm_max_tasks = 64;
    constexpr std::size_t rms_norm_max_gradient_tasks = 32;

    // ----------------------------------------------------------------------------------------

    struct rms_norm_cpu_plan
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A way to share the groups of a tensor out to tasks. Task t takes the units
                [t*units_per_task, (t+1)*units_per_task), as far as there are so many.
        !*/

        enum way_type
        {
            groups, // a unit is one contiguous group
            tiles,  // a unit is a tile of interleaved groups
            blocks  // one group after the other; a unit is a block of one group
        };

        way_type way = groups;
        std::size_t tile_width = 0;
        std::size_t units = 0;
        std::size_t units_per_task = 1;

        std::size_t num_tasks() const { return (units + units_per_task - 1) / units_per_task; }
    };

    inline std::size_t rms_norm_blocks(std::size_t size)
    {
        return (size + rms_norm_sum_block - 1) / rms_norm_sum_block;
    }

    inline rms_norm_cpu_plan plan_units(const rms_norm_groups& groups)
    /*!
        ensures
            - returns a plan whose units are chosen and that has one unit per task
    !*/
    {
        const auto size = static_cast<std::size_t>(groups.size);
        const auto stride = static_cast<std::size_t>(groups.stride);
        const auto blocks = static_cast<std::size_t>(groups.blocks);
        rms_norm_cpu_plan plan;
        if (stride > 1)
        {
            const std::size_t narrow = (stride + rms_norm_max_tile_width - 1) /
                rms_norm_max_tile_width;
            const std::size_t wanted = (rms_norm_few_groups + blocks - 1) / blocks;
            const std::size_t tiles = std::max(
                narrow, std::min(wanted, stride / rms_norm_min_tile_width));
            plan.way = rms_norm_cpu_plan::tiles;
            plan.tile_width = ((stride + tiles - 1) / tiles + 15) / 16 * 16;
            plan.units = blocks * ((stride + plan.tile_width - 1) / plan.tile_width);
        }
        else if (blocks < rms_norm_few_groups && size >= 2 * rms_norm_sum_block)
        {
            plan.way = rms_norm_cpu_plan::blocks;
            plan.units = rms_norm_blocks(size);
        }
        else
        {
            plan.way = rms_norm_cpu_plan::groups;
            plan.units = blocks;
        }
        return plan;
    }

    inline std::size_t most_tasks(const rms_norm_cpu_plan& plan, const rms_norm_groups& groups)
    /*!
        ensures
            - returns how many tasks there can be without being too small to be worth a thread's
              while, and without their workspaces taking much more than half of src's memory
    !*/
    {
        const auto values = static_cast<std::size_t>(groups.num_values());
        return values / std::max(rms_norm_min_threaded_values, 4 * 17 * plan.tile_width) + 1;
    }

    inline void share_out(rms_norm_cpu_plan& plan, std::size_t tasks)
    {
        plan.units_per_task = (plan.units + tasks - 1) / tasks;
    }

    inline rms_norm_cpu_plan plan_rms_normalize(const rms_norm_groups& groups)
    /*!
        requires
            - groups.num_values() != 0
        ensures
            - returns how to share the forward pass out
    !*/
    {
        rms_norm_cpu_plan plan = plan_units(groups);
        share_out(plan, std::min(rms_norm_max_tasks, most_tasks(plan, groups)));
        return plan;
    }

    inline bool spreads_gains(const rms_norm_groups& groups)
    /*!
        ensures
            - returns true if each value should have its own copy of its gain, because the runs of
              values that share one are short, and the copies stay in the L2 cache (which runs that
              are shorter than a chunk of 16 values have to do without)
    !*/
    {
        return groups.gain_run > 1 &&
            (groups.gain_run < 16 || (groups.gain_run < 64 && groups.size <= 32768));
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
        rms_norm_cpu_plan plan = plan_units(groups);
        const auto gains = static_cast<std::size_t>(
            spreads_gains(groups) ? groups.size : groups.num_gains);
        if (plan.way != rms_norm_cpu_plan::blocks)
        {
            const auto values = static_cast<std::size_t>(groups.num_values());
            share_out(plan,
                std::min({rms_norm_max_gradient_tasks, most_tasks(plan, groups),
                    values / (32 * std::max<std::size_t>(1, gains)) + 1}));
        }
        return plan;
    }

    inline bool uses_threads(const rms_norm_groups& groups)
    {
        return static_cast<std::size_t>(groups.num_values()) >= rms_norm_min_threaded_values;
    }

    inline bool streams_output(const rms_norm_groups& groups)
    {
        return static_cast<std::size_t>(groups.num_values()) >= rms_norm_min_streamed_values;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CPU_PLAN_H_
