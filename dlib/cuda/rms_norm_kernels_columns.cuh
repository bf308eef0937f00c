// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_COLUMNS_CUH_
#define DLIB_RMS_NORM_KERNELS_COLUMNS_CUH_

// Kernels for interleaved groups. The lanes of a warp take 32 neighbouring groups, so that they
// read neighbouring memory; the warps of a block share out the values of these groups. Groups too
// long for one block are read twice.

#include "rms_norm_kernels_common.cuh"
#include "rms_norm_kernels_gains.cuh"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    // How many values a thread loads before it stores the first.
    constexpr int column_step = 8;

    template <typename pass_type>
    __device__ __forceinline__ float gain_of_lane(const pass_type& pass, long long begin)
    /*!
        ensures
            - returns the gain of value begin + lane of every group, if there is such a value. The
              warp's threads need the gains of 32 values at most, all the same ones, so each keeps
              one for all.
    !*/
    {
        const long long i = begin + static_cast<int>(threadIdx.x) % warp_size;
        return i < pass.groups.size ? load_gain(pass, i) : 0.0f;
    }

    __device__ __forceinline__ float gain_of_value(float gain_of_this_lane, int v)
    {
        return __shfl_sync(0xffffffff, gain_of_this_lane, v);
    }

    template <int values>
    __global__ void __launch_bounds__(values == 8 ? 512 : 1024, 1)
        normalize_columns(rms_norm_tensor_forward<float> pass, rms_norm_forward_plan plan)
    /*!
        requires
            - values*(blockDim.x/32) >= groups.size
        WHAT THIS DOES
            Each group is read once and stays in the registers of its threads.
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const int size = static_cast<int>(pass.groups.size);
        const long long num_groups = pass.groups.num_groups();
        const long long stride = pass.groups.stride;
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const int begin = static_cast<int>(threadIdx.x) / warp_size * values;
        const float gains = gain_of_lane(pass, begin);

        for (long long first = warp_size * static_cast<long long>(blockIdx.x); first < num_groups;
             first += warp_size * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const bool inside = group < num_groups;
            const int left = inside ? size - begin : 0;
            const long long offset = inside ? pass.groups.first(group) + begin * stride : 0;

            float x[values];
            const float* from = pass.x + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                x[v] = v < left ? load(from) : 0.0f;
                from += stride;
            }
            double sum = 0;
#pragma unroll
            for (int v = 0; v < values; ++v)
                sum = add_square(sum, x[v]);

            const float s = reduce_column(sum, shared,
                [&](double total) { return scale_of(total, plan.inv_size, pass.eps); });
            if (inside && threadIdx.x < warp_size)
                store(pass.scale + group, s);

            float* to = pass.y + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                const float g = gain_of_value(gains, v);
                if (v < left)
                    store(to, normalized(x[v], s, g));
                to += stride;
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    __global__ void __launch_bounds__(threads_of_long_columns, 1)
        normalize_long_columns(rms_norm_tensor_forward<float> pass, rms_norm_forward_plan plan)
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const long long num_groups = pass.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const int warp = static_cast<int>(threadIdx.x) / warp_size;
        const int warps = static_cast<int>(blockDim.x) / warp_size;
        const long long step = warps * pass.groups.stride;

        for (long long first = warp_size * static_cast<long long>(blockIdx.x); first < num_groups;
             first += warp_size * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const long long end = group < num_groups ? pass.groups.size : 0;
            const long long offset = end != 0 ? pass.groups.first(group) + warp * pass.groups.stride
                                              : 0;

            double sum = 0;
            const float* from = pass.x + offset;
#pragma unroll 8
            for (long long i = warp; i < end; i += warps)
            {
                sum = add_square(sum, load(from));
                from += step;
            }

            const float s = reduce_column(sum, shared,
                [&](double total) { return scale_of(total, plan.inv_size, pass.eps); });
            if (end != 0 && warp == 0)
                store(pass.scale + group, s);

            from = pass.x + offset;
            float* to = pass.y + offset;
            for (long long i = warp; i < end; i += column_step * warps)
            {
                float x[column_step], g[column_step];
#pragma unroll
                for (int v = 0; v < column_step; ++v)
                {
                    const bool is_there = i + v * warps < end;
                    x[v] = is_there ? load_streaming(from) : 0.0f;
                    g[v] = is_there ? load_gain(pass, i + v * warps) : 0.0f;
                    from += step;
                }
#pragma unroll
                for (int v = 0; v < column_step; ++v)
                {
                    if (i + v * warps < end)
                        store(to, normalized(x[v], s, g[v]));
                    to += step;
                }
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    __global__ void __launch_bounds__(threads_of_long_columns, 1)
        find_column_means(rms_norm_tensor_backward<float> pass,
            rms_norm_backward_plan plan,
            double* workspace)
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const long long num_groups = pass.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const int warp = static_cast<int>(threadIdx.x) / warp_size;
        const int warps = static_cast<int>(blockDim.x) / warp_size;

        for (long long first = warp_size * static_cast<long long>(blockIdx.x); first < num_groups;
             first += warp_size * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const long long end = group < num_groups ? pass.groups.size : 0;
            const long long offset = end != 0 ? pass.groups.first(group) : 0;
            const float s = end != 0 ? load_constant(pass.scale + group) : 0.0f;

            double sum = 0;
#pragma unroll 4
            for (long long i = warp; i < end; i += warps)
            {
                const long long at = offset + i * pass.groups.stride;
                sum = fma(product(load(pass.d + at), load(pass.x + at)),
                    static_cast<double>(load_gain(pass, i)), sum);
            }
            reduce_column(sum, shared,
                [&](double total)
                {
                    const float m = mean_of(total, plan.inv_size, s);
                    if (end != 0)
                    {
                        store(workspace + plan.means + group, static_cast<double>(m));
                        store(pass.dscale + group, dscale_of(total, s));
                    }
                    return m;
                });
        }
    }

    // ----------------------------------------------------------------------------------------

    template <int values, bool in_shared, bool known>
    __global__ void __launch_bounds__(512, 1) gradient_columns(rms_norm_tensor_backward<float> pass,
        rms_norm_backward_plan plan,
        double* workspace)
    /*!
        requires
            - if (known) then
                - plan.strips*values*(blockDim.x/32) >= groups.size
                - workspace + plan.means holds the means
            - else
                - values*(blockDim.x/32) >= groups.size and plan.strips == 1
        WHAT THIS DOES
            As gradient_rows.
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        gain_sums<values, in_shared> sums(shared + blockDim.x + warp_size);
        const bool has_sums = pass.groups.num_gains != 0;

        const long long num_groups = pass.groups.num_groups();
        const long long stride = pass.groups.stride;
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const int capacity = values * static_cast<int>(blockDim.x / warp_size);
        const long long slice = known ? blockIdx.x / plan.strips : blockIdx.x;
        const long long begin = (known ? (blockIdx.x - slice * plan.strips) * capacity : 0) +
            static_cast<int>(threadIdx.x) / warp_size * values;
        const int size = pass.groups.size - begin < values
            ? static_cast<int>(pass.groups.size - begin)
            : values;
        const long long first_group = slice * plan.slices.rounds_per_slice * warp_size;
        const long long slice_end = first_group + plan.slices.rounds_per_slice * warp_size;
        const long long groups_end = slice_end < num_groups ? slice_end : num_groups;

        const float gains = gain_of_lane(pass, begin);

        // Where the group begins, and which of the `stride` interleaved ones it is. A division for
        // every group would take too long.
        long long offset = pass.groups.first(first_group + lane) + begin * stride;
        long long place = (first_group + lane) % stride;
        const int place_step = static_cast<int>(warp_size % stride);
        const long long offset_step = warp_size / stride * pass.groups.size * stride + place_step;

        for (long long group = first_group + lane; group - lane < groups_end; group += warp_size)
        {
            const bool inside = group < groups_end;
            const int left = inside ? size : 0;

            float x[values], d[values];
            const float* x_from = pass.x + offset;
            const float* d_from = pass.d + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                x[v] = v < left ? load_streaming(x_from) : 0.0f;
                d[v] = v < left ? load_streaming(d_from) : 0.0f;
                x_from += stride;
                d_from += stride;
                if (v % 16 == 15)
                    part_work<(values > 8)>();
            }
            const float s = inside ? load_constant(pass.scale + group) : 0.0f;

            double sum = 0;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                const float g = known ? 0.0f : gain_of_value(gains, v);
                if (v < left)
                {
                    const double t = product(d[v], x[v]);
                    if (!known)
                        sum = fma(t, static_cast<double>(g), sum);
                    if (has_sums)
                        sums.add(v, __dmul_rn(t, static_cast<double>(s)));
                }
                if (v % 8 == 7)
                    part_work<in_shared>();
            }

            float m = 0;
            if (known)
            {
                m = inside ? static_cast<float>(load_constant(workspace + plan.means + group))
                           : 0.0f;
            }
            else
            {
                m = reduce_column(sum, shared,
                    [&](double total)
                    {
                        if (inside)
                            store(pass.dscale + group, dscale_of(total, s));
                        return mean_of(total, plan.inv_size, s);
                    });
            }

            float* to = pass.dx + offset;
#pragma unroll
            for (int first_value = 0; first_value < values; first_value += column_step)
            {
                float old[column_step];
                const float* from = to;
#pragma unroll
                for (int i = 0; i < column_step; ++i)
                {
                    old[i] = pass.add && first_value + i < left ? load(from) : 0.0f;
                    from += stride;
                }
#pragma unroll
                for (int i = 0; i < column_step; ++i)
                {
                    const int v = first_value + i;
                    const float value = gradient_of(d[v], x[v], s, gain_of_value(gains, v), m);
                    if (v < left)
                        store(to, pass.add ? __fadd_rn(old[i], value) : value);
                    to += stride;
                }
                part_work<in_shared>();
            }

            offset += offset_step;
            place += place_step;
            if (place >= stride)
            {
                place -= stride;
                offset += (pass.groups.size - 1) * stride;
            }
        }

        if (!has_sums)
            return;
        double* const out = workspace + plan.gain_sums + slice * pass.groups.size + begin;
#pragma unroll
        for (int v = 0; v < values; ++v)
        {
            const double sum = sum_of_lanes(sums.get(v), warp_size);
            if (v < size && lane == 0)
                store(out + v, sum);
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_KERNELS_COLUMNS_CUH_
