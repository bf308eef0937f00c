// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CUDA_PLAN_H_
#define DLIB_RMS_NORM_CUDA_PLAN_H_

// Which CUDA kernel runs for which sizes, and on what grid. Pure functions without CUDA, so
// that every threshold can be tested on its own.
//
// What a group's result depends on - how many threads share it, where it is cut - follows from
// the size of the group, and the order in which gamma's gradient is summed from the shape; both
// also from how much shared memory the device gives to a block. So neither neighbours nor
// alignment ever change a bit, nor does another device of the same kind.

#include <cstddef>
#include "rms_norm_groups.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_device
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                What is known of the device. The choice of a kernel looks at the last two.
                That it does not look at the number of multiprocessors keeps results the same
                on a larger device.
        !*/
        int num_multiprocessors = 1;
        std::size_t shared_bytes_per_block = 48 * 1024;
        long long max_grid = 2147483647;
    };

    // ----------------------------------------------------------------------------------------

    // Threads work on units of 4 neighbouring values of a contiguous group.
    constexpr int unit_size = 4;

    // Doubles of shared memory in which the warps of a block add up one sum: a sum per warp
    // and the result.
    constexpr int reduction_doubles = 33;

    constexpr int threads_of_parts = 256;
    constexpr long long part_size = 8192; // values that one block adds up of a long row
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

    inline long long limited_grid(long long blocks, const rms_norm_device& device)
    {
        return blocks < device.max_grid ? blocks : device.max_grid;
    }

    inline bool has_whole_units(const rms_norm_groups& groups)
    {
        return groups.size % unit_size == 0;
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_parts
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How rows too long for one block are cut into parts that are summed
        separately, `lanes` threads to a part.
        !*/
        long long length = 0; // values of a row
        long long count = 0;  // parts of a row
        int lanes = 0;
    };

    inline rms_norm_parts make_rms_norm_parts(long long length)
    {
        rms_norm_parts parts;
        parts.length = length;
        parts.count = divide_up(length, part_size);
        parts.lanes = length <= 64 ? 8 : length <= 1024 ? 32 : threads_of_parts;
        return parts;
    }

    inline long long
    grid_of_parts(long long rows, const rms_norm_parts& parts, const rms_norm_device& device)
    {
        return limited_grid(divide_up(rows * parts.count, threads_of_parts / parts.lanes), device);
    }

    // ----------------------------------------------------------------------------------------

    enum class rms_norm_kernel
    {
        nothing,     // there are no values
        rows,        // contiguous groups that stay on chip between their sum and their scaling
        long_rows,   // contiguous groups that are read twice, several blocks to a group
        columns,     // interleaved groups that stay on chip
        long_columns // interleaved groups that are read twice
    };

    struct rms_norm_forward_plan
    {
        rms_norm_kernel kernel = rms_norm_kernel::nothing;
        bool vectors = false; // 16-byte accesses
        int values = 0;       // of a group that a thread keeps
        int threads = 0;      // of a block
        int lanes = 0;        // threads that share a row
        long long grid = 0;
        std::size_t shared_bytes = 0;
        rms_norm_parts parts; // of long rows
        std::size_t workspace_bytes = 0;
    };

    inline rms_norm_forward_plan
    plan_rms_normalize(const rms_norm_groups& groups, bool aligned, const rms_norm_device& device)
    /*!
        requires
            - aligned == src and dest, and gamma if each value has its own gain, begin at
              multiples of 16 bytes
    !*/
    {
        rms_norm_forward_plan plan;
        if (groups.num_values() == 0)
            return plan;

        const long long size = groups.size;
        if (groups.stride > 1)
        {
            const bool fits = size <= max_column_in_block;
            plan.kernel = fits ? rms_norm_kernel::columns : rms_norm_kernel::long_columns;
            plan.values = size <= 128 ? 8 : 32;
            plan.threads = fits ? static_cast<int>(32 * divide_up(size, plan.values)) : 512;
            plan.grid = limited_grid(divide_up(groups.num_groups(), 32), device);
            plan.shared_bytes = (static_cast<std::size_t>(plan.threads) + 32) * sizeof(double);
            return plan;
        }

        plan.vectors = aligned && has_whole_units(groups);
        if (size > max_row_in_block)
        {
            plan.kernel = rms_norm_kernel::long_rows;
            plan.parts = make_rms_norm_parts(size);
            plan.workspace_bytes = static_cast<std::size_t>(
                                       groups.num_groups() * plan.parts.count) *
                sizeof(double);
            return plan;
        }

        plan.kernel = rms_norm_kernel::rows;
        plan.values = size <= 64 ? 8 : size <= 8192 ? 16 : 64;
        if (size <= 512)
        {
            plan.threads = 128;
            plan.lanes = size <= 128 ? 8 : 32;
        }
        else
        {
            plan.threads = static_cast<int>(32 * divide_up(size, 32 * plan.values));
            plan.lanes = plan.threads;
        }
        plan.grid = limited_grid(divide_up(groups.num_groups(), plan.threads / plan.lanes), device);
        plan.shared_bytes = reduction_doubles * sizeof(double);
        return plan;
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_slices
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How the groups are shared out to blocks that each sum up gamma's gradient
        over `passes_per_slice` passes, one pass being the groups that a block handles at a
                time.
        !*/
        long long passes_per_slice = 0;
        long long count = 0;
    };

    inline rms_norm_slices make_rms_norm_slices(long long passes, long long chunks)
    /*!
        ensures
            - returns enough slices to keep any GPU busy if each comes in `chunks` blocks,
    but slices of some length where that is possible, because each of them costs a row of
              double sums.
    !*/
    {
        rms_norm_slices slices;
        if (passes == 0)
            return slices;
        long long blocks = passes / 8;
        if (blocks < 128)
            blocks = 128;
        if (blocks > 1024)
            blocks = 1024;
        const long long count = divide_up(blocks, chunks);
        slices.passes_per_slice = divide_up(passes, count);
        slices.count = divide_up(passes, slices.passes_per_slice);
        return slices;
    }

    // ----------------------------------------------------------------------------------------

    enum class rms_norm_gradient_kernel
    {
        nothing,
        rows,          // contiguous groups that stay on chip
        long_rows,     // contiguous groups that are read twice
        run_rows,      // contiguous groups with runs of values that share a gain, on chip
        long_run_rows, // the same, read twice
        columns,       // interleaved groups that stay on chip
        long_columns   // interleaved groups that are read twice
    };

    struct rms_norm_gradient_plan
    {
        rms_norm_gradient_kernel kernel = rms_norm_gradient_kernel::nothing;
        bool vectors = false;         // 16-byte accesses
        bool vectors_in_runs = false; // also when each run is read by itself
        int values = 0;               // of a group that a thread keeps
        bool sums_in_shared = false;  // sums of gamma's gradient don't fit into registers
        int threads = 0;
        int lanes = 0;        // threads that share a row, or a run
        long long chunks = 1; // blocks that share a group once its mean is known
        rms_norm_slices slices;
        long long grid = 0;
        std::size_t shared_bytes = 0;
        rms_norm_parts parts;        // of long rows, or of the runs of a row
        rms_norm_slices gain_slices; // of the groups when sums of runs become gamma's gradient

        // Offsets into the workspace, in doubles. The sums of parts are at its beginning.
        long long run_sums = 0;
        long long gain_sums = 0;
        std::size_t workspace_bytes = 0;
    };

    inline void plan_gradient_of_known_means(const rms_norm_groups& groups,
        rms_norm_gradient_plan& plan)
    {
        plan.values = 8;
        if (groups.stride > 1)
        {
            plan.threads = 512;
            plan.chunks = divide_up(groups.size, plan.values * (plan.threads / 32));
            plan.slices = make_rms_norm_slices(divide_up(groups.num_groups(), 32), plan.chunks);
            plan.shared_bytes = (static_cast<std::size_t>(plan.threads) + 32) * sizeof(double);
        }
        else
        {
            plan.threads = 256;
            plan.lanes = plan.threads;
            plan.chunks = divide_up(groups.size, plan.values * plan.threads);
            plan.slices = make_rms_norm_slices(groups.num_groups(), plan.chunks);
            plan.shared_bytes = reduction_doubles * sizeof(double);
        }
        plan.grid = plan.slices.count * plan.chunks;
    }

    inline rms_norm_gradient_plan plan_rms_normalize_gradient(const rms_norm_groups& groups,
        bool aligned,
        const rms_norm_device& device)
    /*!
        requires
            - aligned == gradient_input, src and src_grad, and gamma if each value has its
    own gain, begin at multiples of 16 bytes
    !*/
    {
        rms_norm_gradient_plan plan;
        if (groups.num_values() == 0)
            return plan;

        const long long size = groups.size;
        const long long num_groups = groups.num_groups();
        const bool has_gains = groups.num_gains != 0;
        long long doubles = 0;

        if (groups.stride > 1)
        {
            plan.sums_in_shared = size > max_gradient_column_in_registers;
            plan.values = size <= 128 ? 8 : size <= max_gradient_column_in_registers ? 16 : 32;
            plan.threads = static_cast<int>(32 * divide_up(size, plan.values));
            plan.shared_bytes = (static_cast<std::size_t>(plan.threads) + 32) * sizeof(double);
            if (plan.sums_in_shared)
            {
                plan.shared_bytes += static_cast<std::size_t>(plan.threads) *
                    static_cast<std::size_t>(plan.values) * sizeof(double);
            }
            if (size <= max_gradient_column_in_block &&
                plan.shared_bytes <= device.shared_bytes_per_block)
            {
                plan.kernel = rms_norm_gradient_kernel::columns;
                plan.slices = make_rms_norm_slices(divide_up(num_groups, 32), 1);
                plan.grid = plan.slices.count;
            }
            else
            {
                plan.kernel = rms_norm_gradient_kernel::long_columns;
                plan.sums_in_shared = false;
                plan_gradient_of_known_means(groups, plan);
            }
        }
        else if (has_gains && groups.gain_run > 1)
        {
            plan.vectors = aligned && has_whole_units(groups);
            plan.gain_slices = make_rms_norm_slices(num_groups, 1);
            plan.shared_bytes = (reduction_doubles + static_cast<std::size_t>(size)) *
                sizeof(double);
            if (size <= max_gradient_run_row_in_block &&
                plan.shared_bytes <= device.shared_bytes_per_block)
            {
                plan.kernel = rms_norm_gradient_kernel::run_rows;
                plan.values = 16;
                plan.threads = static_cast<int>(32 * divide_up(size, 32 * plan.values));
                plan.lanes = groups.gain_run <= 64 ? 8 : 32;
                plan.grid = limited_grid(num_groups, device);
            }
            else
            {
                plan.kernel = rms_norm_gradient_kernel::long_run_rows;
                plan.vectors_in_runs = plan.vectors && groups.gain_run % unit_size == 0;
                plan.parts = make_rms_norm_parts(groups.gain_run);
                plan_gradient_of_known_means(groups, plan);
                plan.run_sums = num_groups * groups.num_gains * plan.parts.count;
            }
            plan.gain_sums = plan.run_sums + num_groups * groups.num_gains;
            doubles = plan.gain_sums + plan.gain_slices.count * groups.num_gains;
        }
        else
        {
            plan.vectors = aligned && has_whole_units(groups);
            plan.sums_in_shared = size > max_gradient_row_in_registers;
            plan.values = size <= 64 ? 8 : size <= max_gradient_row_in_registers ? 16 : 32;
            if (size <= 512)
            {
                plan.threads = 128;
                plan.lanes = size <= 128 ? 8 : 32;
            }
            else
            {
                plan.threads = static_cast<int>(32 * divide_up(size, 32 * plan.values));
                plan.lanes = plan.threads;
            }

            std::size_t sums = 0;
            if (plan.sums_in_shared || plan.lanes < plan.threads)
                sums = static_cast<std::size_t>(plan.threads) *
                    static_cast<std::size_t>(plan.values);
            plan.shared_bytes = (reduction_doubles + sums) * sizeof(double);

            if (size <= max_gradient_row_in_block &&
                plan.shared_bytes <= device.shared_bytes_per_block)
            {
                plan.kernel = rms_norm_gradient_kernel::rows;
                plan.slices = make_rms_norm_slices(
                    divide_up(num_groups, plan.threads / plan.lanes), 1);
                plan.grid = plan.slices.count;
            }
            else
            {
                plan.kernel = rms_norm_gradient_kernel::long_rows;
                plan.sums_in_shared = false;
                plan.parts = make_rms_norm_parts(size);
                plan_gradient_of_known_means(groups, plan);
                plan.gain_sums = num_groups * plan.parts.count;
            }
        }

        if (doubles == 0)
            doubles = plan.gain_sums + (has_gains ? plan.slices.count * groups.num_gains : 0);
        plan.workspace_bytes = static_cast<std::size_t>(doubles) * sizeof(double);
        return plan;
    }

    // ----------------------------------------------------------------------------------------
}

#endif // DLIB_RMS_NORM_CUDA_PLAN_H_
