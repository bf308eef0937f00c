// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_LONG_ROWS_CUH_
#define DLIB_RMS_NORM_KERNELS_LONG_ROWS_CUH_

// Kernels for contiguous groups that do not fit on one chip's multiprocessor. They are read twice:
// first each part is summed by itself, then the sums of a row become its scale or its mean, then
// the row is read again and written. The last step of the backward pass is gradient_rows.

#include "rms_norm_kernels_common.cuh"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    template <typename F>
    __device__ __forceinline__ void
    sum_parts(const rms_norm_parts& parts, double* sums, const F& add)
    /*!
        requires
            - parts.lanes is 8, 32 or blockDim.x
        ensures
            - #sums[row*parts.count + part] == what add(sum, row, i, left) makes of 0 for all quads
              of the part, of which the first value is the i-th of its row and `left` are left
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % parts.lanes;
        const int slot = static_cast<int>(threadIdx.x) / parts.lanes;
        const int slots = static_cast<int>(blockDim.x) / parts.lanes;
        const long long count = parts.rows * parts.count;

        for (long long first = static_cast<long long>(blockIdx.x) * slots; first < count;
             first += static_cast<long long>(gridDim.x) * slots)
        {
            const long long item = first + slot;
            double sum = 0;
            if (item < count)
            {
                const long long row = item / parts.count;
                const long long begin = (item - row * parts.count) * part_size;
                const int size = parts.length - begin < part_size
                    ? static_cast<int>(parts.length - begin)
                    : static_cast<int>(part_size);
#pragma unroll 4
                for (int i = quad_size * lane; i < size; i += quad_size * parts.lanes)
                    sum = add(sum, row, begin + i, size - i);
            }
            sum = sum_of_row(sum, parts.lanes, shared);
            if (item < count && lane == 0)
                store(sums + item, sum);
            if (parts.lanes > warp_size)
                __syncthreads();
        }
    }

    __global__ void __launch_bounds__(threads_of_parts, 1)
        sum_squares_of_parts(rms_norm_tensor_forward<float> pass,
            rms_norm_forward_plan plan,
            double* workspace)
    {
        sum_parts(plan.parts, workspace,
            [&](double sum, long long row, long long i, int left)
            {
                float x[1][quad_size];
                load_quads<1, 1, cache::normal>(
                    pass.x + row * plan.parts.length + i, left, plan.parts.quads, x);
#pragma unroll
                for (int e = 0; e < quad_size; ++e)
                    sum = add_square(sum, x[0][e]);
                return sum;
            });
    }

    __global__ void __launch_bounds__(threads_of_parts, 1)
        sum_products_of_parts(rms_norm_tensor_backward<float> pass,
            rms_norm_backward_plan plan,
            double* workspace)
    /*!
        WHAT THIS DOES
            If the rows of plan.parts are groups, each product is times its gain. If they are
            runs, finish_means knows the gain.
    !*/
    {
        const bool rows_are_groups = plan.parts.rows == pass.groups.num_groups();
        sum_parts(plan.parts, workspace,
            [&](double sum, long long row, long long i, int left)
            {
                const long long at = row * plan.parts.length + i;
                float x[1][quad_size], d[1][quad_size], g[1][quad_size] = {{1, 1, 1, 1}};
                load_quads<1, 1, cache::normal>(pass.x + at, left, plan.parts.quads, x);
                load_quads<1, 1, cache::normal>(pass.d + at, left, plan.parts.quads, d);
                if (rows_are_groups)
                    load_gains<1, 1>(pass, i, left, plan.parts.quads, g);
#pragma unroll
                for (int e = 0; e < quad_size; ++e)
                    sum = fma(product(d[0][e], x[0][e]), static_cast<double>(g[0][e]), sum);
                return sum;
            });
    }

    // ----------------------------------------------------------------------------------------

    __global__ void __launch_bounds__(threads_of_parts, 1)
        finish_scales(rms_norm_tensor_forward<float> pass,
            rms_norm_forward_plan plan,
            const double* workspace)
    {
        const shared_pointer<double> shared = shared_memory<double>();
        for (long long row = blockIdx.x; row < pass.groups.num_groups(); row += gridDim.x)
        {
            double sum = 0;
            for (long long i = threadIdx.x; i < plan.parts.count; i += blockDim.x)
                sum = __dadd_rn(sum, load(workspace + row * plan.parts.count + i));
            sum = sum_of_row(sum, static_cast<int>(blockDim.x), shared);
            if (threadIdx.x == 0)
                store(pass.scale + row, scale_of(sum, plan.inv_size, pass.eps));
            __syncthreads();
        }
    }

    __global__ void __launch_bounds__(threads_of_parts, 1)
        finish_means(rms_norm_tensor_backward<float> pass,
            rms_norm_backward_plan plan,
            double* workspace)
    /*!
        requires
            - plan.finish_lanes is 1 or 32
        WHAT THIS DOES
            Adds up the parts of each row, or of each run of a row, and from these the mean.
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % plan.finish_lanes;
        const int slot = static_cast<int>(threadIdx.x) / plan.finish_lanes;
        const int slots = static_cast<int>(blockDim.x) / plan.finish_lanes;
        const long long parts = plan.parts.count;
        const bool has_runs = plan.parts.rows != pass.groups.num_groups();
        const long long runs = has_runs ? pass.groups.num_gains : 1;

        for (long long row = blockIdx.x; row < pass.groups.num_groups(); row += gridDim.x)
        {
            double weighted_sum = 0;
            for (long long first = 0; first < runs; first += slots)
            {
                const long long run = first + slot;
                double sum = 0;
                if (run < runs)
                {
                    for (long long i = lane; i < parts; i += plan.finish_lanes)
                        sum = __dadd_rn(sum, load(workspace + (row * runs + run) * parts + i));
                }
                sum = sum_of_lanes(sum, plan.finish_lanes);
                if (run < runs && lane == 0)
                {
                    if (has_runs)
                        store(workspace + plan.run_sums + row * runs + run, sum);
                    const float g = has_runs ? load_gain(pass, run) : 1.0f;
                    weighted_sum = fma(sum, static_cast<double>(g), weighted_sum);
                }
            }
            weighted_sum = sum_of_row(weighted_sum, static_cast<int>(blockDim.x), shared);
            if (threadIdx.x == 0)
            {
                const float s = load_constant(pass.scale + row);
                store(workspace + plan.means + row,
                    static_cast<double>(mean_of(weighted_sum, plan.inv_size, s)));
                store(pass.dscale + row, dscale_of(weighted_sum, s));
            }
            __syncthreads();
        }
    }

    // ----------------------------------------------------------------------------------------

    __global__ void __launch_bounds__(threads_of_parts, 2)
        normalize_parts(rms_norm_tensor_forward<float> pass, rms_norm_forward_plan plan)
    {
        // Of the quads of a part, neighbouring threads take neighbouring ones, 4 at a time.
        const int quads = 4;
        const int width = threads_of_parts;
        const long long size = pass.groups.size;
        const long long count = pass.groups.num_groups() * plan.parts.count;
        for (long long item = blockIdx.x; item < count; item += gridDim.x)
        {
            const long long row = item / plan.parts.count;
            const long long begin = (item - row * plan.parts.count) * part_size;
            const int part = size - begin < part_size ? static_cast<int>(size - begin)
                                                      : static_cast<int>(part_size);
            const float s = load_constant(pass.scale + row);

            for (int i = quad_size * static_cast<int>(threadIdx.x); i < part;
                 i += quads * quad_size * width)
            {
                const long long at = row * size + begin + i;
                float x[quads][quad_size], g[quads][quad_size];
                load_quads<quads, width, cache::streaming>(pass.x + at, part - i, plan.quads, x);
                load_gains<quads, width>(pass, begin + i, part - i, plan.quads, g);
#pragma unroll
                for (int q = 0; q < quads; ++q)
                {
#pragma unroll
                    for (int e = 0; e < quad_size; ++e)
                        x[q][e] = normalized(x[q][e], s, g[q][e]);
                }
                store_quads<quads, width>(pass.y + at, part - i, plan.quads, x);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_KERNELS_LONG_ROWS_CUH_
