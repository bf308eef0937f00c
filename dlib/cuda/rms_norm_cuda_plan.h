// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CUDA_PLAN_H_
#define DLIB_RMS_NORM_CUDA_PLAN_H_

// Which CUDA kernels run for which sizes, with which grids and how much memory: all of it, so that
// the launchers decide nothing. Pure functions without CUDA, so that every threshold can be tested
// on its own.
//
// A kernel's words:
//     block, warp   CUDA's
//     lanes         the threads of a block that share a row
//     quad          4 neighbouring values of a row, which one thread reads at once
//     round         the groups that a block handles at the same time
//     slice         the groups of some rounds, which one block handles after each other while it
//                   adds up gamma's gradient
//     part          a piece of a long row, which is summed by itself
//     strip         neighbouring values of a long group, of which one block has the gradient
//     run           values of a group that share a gain (rms_norm_groups.h)
//
// What a group's result depends on - how many threads share it, where it is cut - follows from
// the size of the group, and the order in which gamma's gradient is summed from the shape; both
// also from how much shared memory the device gives to a block. So neither neighbours nor
// alignment ever change a bit, nor does another device of the same kind.

#include <cstddef>
#include <cstdint>
#include "rms_norm_pass.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_device
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                What plans need to know of the device. The number of multiprocessors is not
                among it: results are the same on a larger device.
        !*/
        std::size_t shared_bytes_per_block = 48 * 1024;
        long long max_grid = 2147483647;
    };

    struct rms_norm_launch
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The blocks of one kernel. It is not launched if there are none.
        !*/
        long long grid = 0;
        int threads = 0; // of a block
        std::size_t shared_bytes = 0;
    };

    // ----------------------------------------------------------------------------------------

    constexpr int warp_size = 32;
    constexpr int quad_size = 4;

    // Doubles of shared memory in which the warps of a block add up one sum: a sum per warp
    // and the result.
    constexpr int row_sum_doubles = 33;

    // The same for 32 interleaved groups at once: a sum per thread and 32 results.
    constexpr std::size_t column_sum_bytes(int threads)
    {
        return (static_cast<std::size_t>(threads) + warp_size) * sizeof(double);
    }

    // Sums of gamma's gradient, so many for each thread of a block.
    constexpr std::size_t bytes_of_sums(long long threads, long long values)
    {
        return static_cast<std::size_t>(threads * values) * sizeof(double);
    }

    constexpr int threads_of_rows = 128; // of a block that takes several rows
    constexpr int threads_of_parts = 256;
    constexpr long long part_size = 8192;
    constexpr int threads_of_long_columns = 512;
    constexpr int threads_of_gain_sums = 512;

    constexpr long long max_row_in_block = 32768; // forward
    constexpr long long max_column_in_block = 1024;
    constexpr long long max_gradient_row_in_registers = 4096;
    constexpr long long max_gradient_row_in_block = 16384;
    constexpr long long max_gradient_run_row_in_block = 8192;
    constexpr long long max_gradient_column_in_registers = 256;
    constexpr long long max_gradient_column_in_block = 512;

    // ----------------------------------------------------------------------------------------

    inline long long divide_up(long long a, long long b) { return (a + b - 1) / b; }

    inline int lanes_of_row(long long size, int values)
    /*!
        ensures
            - returns how many threads share a row if each keeps so many values: few of them for
              short rows, because each has its share in the sums over lanes and in the scale.
    !*/
    {
        for (const int lanes : {8, 16, warp_size})
        {
            if (size <= lanes * values)
                return lanes;
        }
        return static_cast<int>(warp_size * divide_up(size, warp_size * values));
    }

    constexpr int threads_for_lanes(int lanes)
    {
        return lanes > warp_size ? lanes : threads_of_rows;
    }

    inline rms_norm_launch
    make_launch(long long blocks, int threads, std::size_t shared_bytes, const rms_norm_device& d)
    {
        return {blocks < d.max_grid ? blocks : d.max_grid, threads, shared_bytes};
    }

    inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

    inline bool has_aligned_gains(const rms_norm_groups& groups, const void* gamma)
    {
        return groups.num_gains == 0 || groups.gain_run > 1 || is_aligned(gamma);
    }

    template <typename T>
    bool is_aligned(const rms_norm_forward<T>& pass)
    /*!
        ensures
            - returns whether rows of whole quads can be read and written by quads
    !*/
    {
        return is_aligned(pass.x) && is_aligned(pass.y) &&
            has_aligned_gains(pass.groups, pass.gamma);
    }

    template <typename T>
    bool is_aligned(const rms_norm_backward<T>& pass)
    {
        return is_aligned(pass.d) && is_aligned(pass.x) && is_aligned(pass.dx) &&
            has_aligned_gains(pass.groups, pass.gamma);
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_parts
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How long rows, or the runs of a long row, are cut into parts: `lanes` threads add
                one up.
        !*/
        long long rows = 0;
        long long length = 0; // of a row
        long long count = 0;  // of parts in a row
        int lanes = 0;
        bool quads = false; // whether they are read by quads
    };

    inline rms_norm_parts make_rms_norm_parts(long long rows, long long length, bool quads)
    {
        rms_norm_parts parts;
        parts.rows = rows;
        parts.length = length;
        parts.count = divide_up(length, part_size);
        parts.lanes = length <= 64 ? 8 : length <= 1024 ? 32 : threads_of_parts;
        parts.quads = quads;
        return parts;
    }

    inline rms_norm_launch make_launch_of_parts(const rms_norm_parts& parts,
        const rms_norm_device& device)
    {
        return make_launch(divide_up(parts.rows * parts.count, threads_of_parts / parts.lanes),
            threads_of_parts, row_sum_doubles * sizeof(double), device);
    }

    // ----------------------------------------------------------------------------------------

    enum class rms_norm_kernel
    {
        nothing,       // there are no values
        rows,          // contiguous groups that stay on chip between their sum and what needs it
        long_rows,     // contiguous groups that are read twice, several blocks to a group
        run_rows,      // backward: contiguous groups with runs of values that share a gain, on chip
        long_run_rows, // backward: the same, read twice
        columns,       // interleaved groups that stay on chip
        long_columns   // interleaved groups that are read twice
    };

    struct rms_norm_forward_plan
    {
        rms_norm_kernel kernel = rms_norm_kernel::nothing;
        double inv_size = 0; // 1/groups.size
        bool quads = false;  // whether rows are read and written by quads
        int values = 0;      // of a group that a thread keeps
        int lanes = 0;       // of a row

        rms_norm_parts parts; // of long rows
        rms_norm_launch sum_parts;
        rms_norm_launch finish;
        rms_norm_launch normalize;

        // The sums of parts are the whole workspace.
        std::size_t workspace_bytes = 0;
    };

    inline rms_norm_forward_plan
    plan_rms_normalize(const rms_norm_groups& groups, bool aligned, const rms_norm_device& device)
    /*!
        requires
            - aligned == is_aligned(the pass)
    !*/
    {
        rms_norm_forward_plan plan;
        if (groups.num_values() == 0)
            return plan;

        const long long size = groups.size;
        const long long num_groups = groups.num_groups();
        plan.inv_size = 1 / static_cast<double>(size);
        if (groups.interleaved)
        {
            const bool fits = size <= max_column_in_block;
            plan.kernel = fits ? rms_norm_kernel::columns : rms_norm_kernel::long_columns;
            plan.values = size <= 128 ? 8 : 32;
            const int threads = fits ? static_cast<int>(warp_size * divide_up(size, plan.values))
                                     : threads_of_long_columns;
            plan.normalize = make_launch(
                divide_up(num_groups, warp_size), threads, column_sum_bytes(threads), device);
            return plan;
        }

        plan.quads = aligned && size % quad_size == 0;
        if (size > max_row_in_block)
        {
            plan.kernel = rms_norm_kernel::long_rows;
            plan.parts = make_rms_norm_parts(num_groups, size, plan.quads);
            plan.sum_parts = make_launch_of_parts(plan.parts, device);
            plan.finish = make_launch(
                num_groups, threads_of_parts, row_sum_doubles * sizeof(double), device);
            plan.normalize = make_launch(
                num_groups * plan.parts.count, threads_of_parts, 0, device);
            plan.workspace_bytes = static_cast<std::size_t>(num_groups * plan.parts.count) *
                sizeof(double);
            return plan;
        }

        plan.kernel = rms_norm_kernel::rows;
        plan.values = size <= 8192 ? 16 : 64;
        plan.lanes = lanes_of_row(size, plan.values);
        const int threads = threads_for_lanes(plan.lanes);
        plan.normalize = make_launch(divide_up(num_groups, threads / plan.lanes), threads,
            row_sum_doubles * sizeof(double), device);
        return plan;
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_slices
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How rounds of groups are shared out to blocks that each add up gamma's gradient.
        !*/
        long long rounds_per_slice = 0;
        long long count = 0;
    };

    inline rms_norm_slices
    make_rms_norm_slices(long long rounds, long long strips, bool wide = false)
    /*!
        ensures
            - returns enough slices to keep any GPU busy if each comes in `strips` blocks, but
              slices of some length where that is possible, because each of them costs a row of
              double sums: with 8 rounds in a slice, an eighth of what the gradient reads and
              writes. Half as many do if one block alone fills a multiprocessor (wide).
    !*/
    {
        rms_norm_slices slices;
        if (rounds == 0)
            return slices;
        long long blocks = rounds / 8 < 1024 ? rounds / 8 : 1024;
        if (wide)
            blocks /= 2;
        if (blocks < 128)
            blocks = 128;
        const long long count = divide_up(blocks, strips);
        slices.rounds_per_slice = divide_up(rounds, count);
        slices.count = divide_up(rounds, slices.rounds_per_slice);
        return slices;
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_backward_plan
    {
        rms_norm_kernel kernel = rms_norm_kernel::nothing;
        double inv_size = 0;         // 1/groups.size
        bool quads = false;          // whether rows are read and written by quads
        int values = 0;              // of a group that a thread keeps
        bool sums_in_shared = false; // gamma's gradient does not fit into registers
        int lanes = 0;               // of a row; of a run in run_rows
        long long strips = 1;        // of a group once its mean is known
        rms_norm_slices slices;

        rms_norm_parts parts;       // of long rows, or of the runs of long rows
        int finish_lanes = 0;       // threads that add up the parts of a row, or of a run
        rms_norm_launch find_means; // sums of parts, or the means of long columns
        rms_norm_launch finish;
        rms_norm_launch gradient;

        // Sums of the runs of each group become gamma's gradient in two steps: the groups of a
        // slice, then the slices. Otherwise the slices of the gradient are all.
        rms_norm_slices run_slices;
        rms_norm_launch sum_runs;
        rms_norm_launch sum_slices;

        // Where things begin in the workspace, in doubles. The sums of parts are at its beginning.
        long long means = 0; // of groups that are read twice
        long long run_sums = 0;
        long long gain_sums = 0; // of slices
        std::size_t workspace_bytes = 0;
    };

    inline rms_norm_backward_plan plan_rms_normalize_gradient(const rms_norm_groups& groups,
        bool aligned,
        const rms_norm_device& device)
    /*!
        requires
            - aligned == is_aligned(the pass)
    !*/
    {
        rms_norm_backward_plan plan;
        if (groups.num_values() == 0)
            return plan;

        const long long size = groups.size;
        const long long num_groups = groups.num_groups();
        const bool has_runs = groups.num_gains != 0 && groups.gain_run > 1;
        plan.inv_size = 1 / static_cast<double>(size);
        plan.quads = !groups.interleaved && aligned && size % quad_size == 0;

        // A kernel that keeps groups on chip, if they fit.
        int threads = 0;
        std::size_t shared_bytes = 0;
        long long groups_per_round = 1;
        bool fits = false;
        if (groups.interleaved)
        {
            plan.kernel = rms_norm_kernel::columns;
            plan.sums_in_shared = size > max_gradient_column_in_registers;
            plan.values = size <= 128 ? 8 : plan.sums_in_shared ? 32 : 16;
            fits = size <= max_gradient_column_in_block;
            threads = static_cast<int>(warp_size * divide_up(size, plan.values));
            shared_bytes = column_sum_bytes(threads);
            if (plan.sums_in_shared)
                shared_bytes += bytes_of_sums(threads, plan.values);
            groups_per_round = warp_size;
        }
        else if (has_runs)
        {
            plan.kernel = rms_norm_kernel::run_rows;
            plan.values = 16;
            plan.lanes = groups.gain_run <= 64 ? 8 : 32;
            fits = size <= max_gradient_run_row_in_block;
            threads = static_cast<int>(warp_size * divide_up(size, warp_size * plan.values));
            shared_bytes = (row_sum_doubles + static_cast<std::size_t>(size)) * sizeof(double);
        }
        else
        {
            plan.kernel = rms_norm_kernel::rows;
            plan.sums_in_shared = size > max_gradient_row_in_registers;
            plan.values = plan.sums_in_shared ? 32 : 16;
            fits = size <= max_gradient_row_in_block;
            plan.lanes = lanes_of_row(size, plan.values);
            threads = threads_for_lanes(plan.lanes);
            groups_per_round = threads / plan.lanes;
            shared_bytes = row_sum_doubles * sizeof(double);
            if (plan.sums_in_shared || groups_per_round > 1)
                shared_bytes += bytes_of_sums(threads, plan.values);
        }

        long long doubles = 0;
        if (fits && shared_bytes <= device.shared_bytes_per_block)
        {
            if (has_runs)
            {
                plan.gradient = make_launch(num_groups, threads, shared_bytes, device);
            }
            else
            {
                plan.slices = make_rms_norm_slices(divide_up(num_groups, groups_per_round), 1,
                    !groups.interleaved && plan.sums_in_shared);
                plan.gradient = {plan.slices.count, threads, shared_bytes};
            }
        }
        else
        {
            // Others are read twice: for their means, and for the gradient strip by strip.
            plan.values = 8;
            plan.sums_in_shared = false;
            if (groups.interleaved)
            {
                plan.kernel = rms_norm_kernel::long_columns;
                threads = threads_of_long_columns;
                shared_bytes = column_sum_bytes(threads);
                plan.strips = divide_up(size, plan.values * (threads / warp_size));
                plan.find_means = make_launch(
                    divide_up(num_groups, warp_size), threads, shared_bytes, device);
            }
            else
            {
                plan.kernel = has_runs ? rms_norm_kernel::long_run_rows
                                       : rms_norm_kernel::long_rows;
                threads = threads_of_parts;
                shared_bytes = row_sum_doubles * sizeof(double);
                plan.lanes = threads;
                plan.strips = divide_up(size, plan.values * threads);
                plan.parts = has_runs
                    ? make_rms_norm_parts(num_groups * groups.num_gains, groups.gain_run,
                          plan.quads && groups.gain_run % quad_size == 0)
                    : make_rms_norm_parts(num_groups, size, plan.quads);
                plan.find_means = make_launch_of_parts(plan.parts, device);
                plan.finish = make_launch(num_groups, threads, shared_bytes, device);
                plan.finish_lanes = plan.parts.count == 1 ? 1 : warp_size;
                doubles += plan.parts.rows * plan.parts.count;
            }
            plan.slices = make_rms_norm_slices(
                divide_up(num_groups, groups_per_round), plan.strips);
            plan.gradient = {plan.slices.count * plan.strips, threads, shared_bytes};
            plan.means = doubles;
            doubles += num_groups;
        }

        if (groups.num_gains != 0)
        {
            const long long tiles = divide_up(groups.num_gains, warp_size);
            const std::size_t sum_bytes = threads_of_gain_sums * sizeof(double);
            long long num_slices = plan.slices.count;
            if (has_runs)
            {
                plan.run_sums = doubles;
                doubles += num_groups * groups.num_gains;
                plan.run_slices = make_rms_norm_slices(num_groups, 1);
                num_slices = plan.run_slices.count;
                plan.sum_runs = make_launch(
                    num_slices * tiles, threads_of_gain_sums, sum_bytes, device);
            }
            plan.gain_sums = doubles;
            doubles += num_slices * groups.num_gains;
            plan.sum_slices = make_launch(tiles, threads_of_gain_sums, sum_bytes, device);
        }
        plan.workspace_bytes = static_cast<std::size_t>(doubles) * sizeof(double);
        return plan;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CUDA_PLAN_H_
