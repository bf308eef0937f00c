// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_ROWS_CUH_
#define DLIB_RMS_NORM_KERNELS_ROWS_CUH_

// Kernels for contiguous groups that stay on chip, from the sum over a row to what needs it. And
// the gradient of rows whose means are known (rms_norm_kernels_long_rows.cuh), which walks down
// the rows in the same way.

#include "rms_norm_kernels_common.cuh"
#include "rms_norm_kernels_gains.cuh"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    template <int quads, int width>
    __global__ void __launch_bounds__(512, quads == 16 ? 1 : 2)
        normalize_rows(rms_norm_tensor_forward<float> pass, rms_norm_forward_plan plan)
    /*!
        requires
            - width is 8, 16 or 32
            - plan.lanes == width, or plan.lanes == blockDim.x and width == 32
            - 4*quads*plan.lanes >= groups.size
        WHAT THIS DOES
            Each row is read once and stays in the registers of its threads.
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const int size = static_cast<int>(pass.groups.size);
        const long long rows = pass.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % plan.lanes;
        const int slot = static_cast<int>(threadIdx.x) / plan.lanes;
        const int slots = static_cast<int>(blockDim.x) / plan.lanes;
        const int begin = first_of_lane<quads, width>(lane);

        for (long long first = static_cast<long long>(blockIdx.x) * slots; first < rows;
             first += static_cast<long long>(gridDim.x) * slots)
        {
            const long long row = first + slot;
            const int left = row < rows ? size - begin : 0;
            const long long offset = row < rows ? row * size + begin : 0;

            float x[quads][quad_size];
            load_quads<quads, width, cache::normal>(pass.x + offset, left, plan.quads, x);

            double sum = 0;
#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
                if (q * quad_size * width < left)
                {
#pragma unroll
                    for (int e = 0; e < quad_size; ++e)
                        sum = add_square(sum, x[q][e]);
                }
            }
            const float s = reduce_row(sum, plan.lanes, shared,
                [&](double total) { return scale_of(total, plan.inv_size, pass.eps); });
            if (row < rows && lane == 0)
                store(pass.scale + row, s);

#pragma unroll
            for (int q = 0; q < quads; q += 4)
            {
                const int at = q * quad_size * width;
                float g[4][quad_size];
                load_gains<4, width>(pass, begin + at, left - at, plan.quads, g);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
#pragma unroll
                    for (int e = 0; e < quad_size; ++e)
                        x[q + i][e] = normalized(x[q + i][e], s, g[i][e]);
                }
                store_quads<4, width>(pass.y + offset + at, left - at, plan.quads, x + q);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    template <int quads, int width>
    __device__ __forceinline__ void write_gradient(const rms_norm_tensor_backward<float>& pass,
        float* dx,
        int left,
        bool by_quads,
        const float (*d)[quad_size],
        const float (*x)[quad_size],
        const float (*g)[quad_size],
        float s,
        float m)
    /*!
        ensures
            - writes the gradient of these quads to dx, or adds it if pass.add
    !*/
    {
        float value[quads][quad_size];
        if (pass.add)
            load_quads<quads, width, cache::normal>(dx, left, by_quads, value);
#pragma unroll
        for (int q = 0; q < quads; ++q)
        {
#pragma unroll
            for (int e = 0; e < quad_size; ++e)
            {
                const float v = gradient_of(d[q][e], x[q][e], s, g[q][e], m);
                value[q][e] = pass.add ? __fadd_rn(value[q][e], v) : v;
            }
        }
        store_quads<quads, width>(dx, left, by_quads, value);
    }

    template <int quads, int width, bool in_shared, bool known>
    __global__ void __launch_bounds__(in_shared ? 512 : 256, in_shared ? 1 : 2)
        gradient_rows(rms_norm_tensor_backward<float> pass,
            rms_norm_backward_plan plan,
            double* workspace)
    /*!
        requires
            - width is 8, 16 or 32
            - plan.lanes == width, or plan.lanes == blockDim.x and width == 32
            - if (known) then
                - plan.lanes == blockDim.x and plan.strips*4*quads*plan.lanes >= groups.size
                - workspace + plan.means holds the means
            - else
                - 4*quads*plan.lanes >= groups.size and plan.strips == 1
        WHAT THIS DOES
            A block walks down the rows of a slice, with x and d in registers. On the way it adds
            up gamma's gradient, if each gain belongs to one value of a row:
            #workspace[plan.gain_sums + slice*groups.size + i]
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const shared_pointer<double> shared_sums = shared + row_sum_doubles;
        gain_sums<quad_size * quads, in_shared> sums(shared_sums);
        const bool has_sums = pass.groups.num_gains != 0 && pass.groups.gain_run == 1;

        const bool one_row = known || in_shared;
        const long long rows = pass.groups.num_groups();
        const int lane = one_row ? static_cast<int>(threadIdx.x)
                                 : static_cast<int>(threadIdx.x) % plan.lanes;
        const int slot = one_row ? 0 : static_cast<int>(threadIdx.x) / plan.lanes;
        const int slots = one_row ? 1 : static_cast<int>(blockDim.x) / plan.lanes;
        const int capacity = quad_size * quads * plan.lanes;
        const int begin = first_of_lane<quads, width>(lane);

        const long long slice = known ? blockIdx.x / plan.strips : blockIdx.x;
        const long long column = known ? (blockIdx.x - slice * plan.strips) * capacity : 0;
        const int size = pass.groups.size - column < capacity
            ? static_cast<int>(pass.groups.size - column)
            : capacity;
        const long long first_row = slice * plan.slices.rounds_per_slice * slots;
        const long long rows_end = first_row + plan.slices.rounds_per_slice * slots < rows
            ? first_row + plan.slices.rounds_per_slice * slots
            : rows;

        // All rows share the gains.
        float gains[in_shared ? 1 : quads][quad_size];
        if (!in_shared)
            load_gains<in_shared ? 1 : quads, width>(
                pass, column + begin, size - begin, plan.quads, gains);

        for (long long row = first_row + slot; row - slot < rows_end; row += slots)
        {
            const bool inside = one_row || row < rows_end;
            const int left = inside ? size - begin : 0;
            const long long offset = inside ? row * pass.groups.size + column + begin : 0;

            float x[quads][quad_size], d[quads][quad_size];
            load_quads<quads, width, cache::streaming>(pass.x + offset, left, plan.quads, x);
            load_quads<quads, width, cache::streaming>(pass.d + offset, left, plan.quads, d);
            const float s = inside ? load_constant(pass.scale + row) : 0.0f;
            part_work<in_shared>();

            double sum = 0;
#pragma unroll
            for (int q = 0; q < quads; q += 2)
            {
                const int at = q * quad_size * width;
                float g[2][quad_size];
                if (in_shared)
                    load_gains<2, width>(pass, begin + at, left - at, plan.quads, g);
#pragma unroll
                for (int i = 0; i < 2; ++i)
                {
                    if (at + i * quad_size * width >= left)
                        continue;
#pragma unroll
                    for (int e = 0; e < quad_size; ++e)
                    {
                        const double t = product(d[q + i][e], x[q + i][e]);
                        const float gain = in_shared ? g[i][e] : gains[in_shared ? 0 : q + i][e];
                        if (!known)
                            sum = fma(t, static_cast<double>(gain), sum);
                        if (has_sums)
                        {
                            sums.add(quad_size * (q + i) + e, __dmul_rn(t, static_cast<double>(s)));
                        }
                    }
                }
                part_work<in_shared>();
            }

            float m = 0;
            if (known)
            {
                m = inside ? static_cast<float>(load_constant(workspace + plan.means + row)) : 0.0f;
            }
            else
            {
                m = reduce_row(sum, plan.lanes, shared,
                    [&](double total)
                    {
                        if (inside && lane == 0)
                            store(pass.dscale + row, dscale_of(total, s));
                        return mean_of(total, plan.inv_size, s);
                    });
            }

            const int step = in_shared ? 4 : quads;
#pragma unroll
            for (int q = 0; q < quads; q += step)
            {
                const int at = q * quad_size * width;
                float g[step][quad_size];
                if (in_shared)
                    load_gains<step, width>(pass, begin + at, left - at, plan.quads, g);
                write_gradient<step, width>(pass, pass.dx + offset + at, left - at, plan.quads,
                    d + q, x + q, in_shared ? g : gains, s, m);
                part_work<in_shared>();
            }
        }

        if (!has_sums)
            return;

        double* const out = workspace + plan.gain_sums + slice * pass.groups.size + column;
        if (one_row || slots == 1)
        {
#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
#pragma unroll
                for (int e = 0; e < quad_size; ++e)
                {
                    const int i = begin + q * quad_size * width + e;
                    if (i < size)
                        store(out + i, sums.get(quad_size * q + e));
                }
            }
        }
        else
        {
            // The rows that were side by side in this block.
#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
#pragma unroll
                for (int e = 0; e < quad_size; ++e)
                {
                    shared_sums[slot * capacity + begin + q * quad_size * width + e] = sums.get(
                        quad_size * q + e);
                }
            }
            __syncthreads();
            for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x))
            {
                double sum = 0;
                for (int j = 0; j < slots; ++j)
                    sum = __dadd_rn(sum, shared_sums[j * capacity + i]);
                store(out + i, sum);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    __global__ void __launch_bounds__(512, 1)
        gradient_run_rows(rms_norm_tensor_backward<float> pass,
            rms_norm_backward_plan plan,
            double* workspace)
    /*!
        requires
            - plan.lanes is 8 or 32: the threads that share a run
            - 16*blockDim.x >= groups.size
        WHAT THIS DOES
            One block takes a row with x and d in registers. Their products go through shared
            memory, because a run's values are not one thread's:
            #workspace[plan.run_sums + row*groups.num_gains + run]
    !*/
    {
        const int quads = 4;
        const int width = warp_size;
        const shared_pointer<double> shared = shared_memory<double>();
        const shared_pointer<double> products = shared + row_sum_doubles;
        const int size = static_cast<int>(pass.groups.size);
        const int runs = static_cast<int>(pass.groups.num_gains);
        const int run_length = static_cast<int>(pass.groups.gain_run);
        const int begin = first_of_lane<quads, width>(static_cast<int>(threadIdx.x));
        const int left = size - begin;
        const int lane = static_cast<int>(threadIdx.x) % plan.lanes;
        const int slot = static_cast<int>(threadIdx.x) / plan.lanes;
        const int slots = static_cast<int>(blockDim.x) / plan.lanes;

        for (long long row = blockIdx.x; row < pass.groups.num_groups(); row += gridDim.x)
        {
            const long long offset = row * size + begin;
            float x[quads][quad_size], d[quads][quad_size];
            load_quads<quads, width, cache::streaming>(pass.x + offset, left, plan.quads, x);
            load_quads<quads, width, cache::streaming>(pass.d + offset, left, plan.quads, d);
            const float s = load_constant(pass.scale + row);

#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
#pragma unroll
                for (int e = 0; e < quad_size; ++e)
                {
                    const int at = q * quad_size * width + e;
                    if (at < left)
                        products[begin + at] = product(d[q][e], x[q][e]);
                }
            }
            __syncthreads();

            double weighted_sum = 0;
            for (int first = 0; first < runs; first += slots)
            {
                const int run = first + slot;
                double sum = 0;
                if (run < runs)
                {
                    for (int i = lane; i < run_length; i += plan.lanes)
                        sum = __dadd_rn(sum, products[run * run_length + i]);
                }
                sum = sum_of_lanes(sum, plan.lanes);
                if (run < runs && lane == 0)
                {
                    store(workspace + plan.run_sums + row * runs + run, sum);
                    const double g = static_cast<double>(load_gain(pass, run));
                    weighted_sum = fma(sum, g, weighted_sum);
                }
            }
            const float m = reduce_row(weighted_sum, static_cast<int>(blockDim.x), shared,
                [&](double total)
                {
                    if (threadIdx.x == 0)
                        store(pass.dscale + row, dscale_of(total, s));
                    return mean_of(total, plan.inv_size, s);
                });

            float g[quads][quad_size];
            load_gains<quads, width>(pass, begin, left, plan.quads, g);
            write_gradient<quads, width>(pass, pass.dx + offset, left, plan.quads, d, x, g, s, m);

            // A block of one warp has only met at shuffles since it read the products.
            __syncwarp();
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_KERNELS_ROWS_CUH_
