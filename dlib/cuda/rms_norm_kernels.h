// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_H_
#define DLIB_RMS_NORM_KERNELS_H_

// The CUDA kernels of RMS normalization. They know groups, not tensors. Which of them runs, on
// what grid, is in rms_norm_cuda_plan.h.
//
// Sums are in double: the product of two floats is exact there and cannot overflow. What
// belongs to one element is in float, each operation rounded by itself, in the order of the
// contract.
//
// The tests compile this file for the CPU as well. So global memory is touched through load()
// and store() alone, and shared memory comes from shared_memory().

#include "rms_norm_cuda_plan.h"
#include "rms_norm_groups.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

#ifdef __CUDACC__

    // Plain loads, not through the read-only path: dest may be src.
    template <typename T>
    __device__ __forceinline__ T load(const T* p)
    {
        return *p;
    }

    // For what nobody will need in the cache again.
    template <typename T>
    __device__ __forceinline__ T load_streaming(const T* p)
    {
        return __ldcs(p);
    }

    template <typename T>
    __device__ __forceinline__ void store(T* p, T value)
    {
        *p = value;
    }

    extern __shared__ double2 rms_norm_shared_memory[];

    template <typename T>
    __device__ __forceinline__ T* shared_memory()
    {
        return reinterpret_cast<T*>(rms_norm_shared_memory);
    }

#endif

    // ----------------------------------------------------------------------------------------

    struct normalize_arguments
    {
        rms_norm_groups groups;
        double eps;
        double inv_size;
        float gain_offset;
        const float* src;
        const float* gamma; // null if there is no gain
        float* dest;
        float* scale;
    };

    struct gradient_arguments
    {
        rms_norm_groups groups;
        double inv_size;
        float gain_offset;
        const float* gradient_input;
        const float* scale;
        const float* src;
        const float* gamma; // null if there is no gain
        float* src_grad;
        bool add; // to src_grad
        float* dscale;
    };

    template <bool wanted>
    __device__ __forceinline__ void part_work()
    /*!
        WHAT THIS DOES
            Nothing but to keep the compiler from moving what comes after it to the front. A
            kernel that has nearly all registers full of values needs that, or its addresses
    and intermediate results are spilled.
    !*/
    {
        if (wanted)
            __syncwarp();
    }

    // ----------------------------------------------------------------------------------------
    //                             units of 4 values
    // ----------------------------------------------------------------------------------------

    template <bool vectors, typename index>
    __device__ __forceinline__ void load_unit(const float* p, index i, index end, float (&v)[4])
    /*!
        ensures
            - #v == the values i to i+3 of p, 0 for those not before end
    !*/
    {
        if (vectors)
        {
            float4 all = make_float4(0, 0, 0, 0);
            if (i < end)
                all = load(reinterpret_cast<const float4*>(p + i));
            v[0] = all.x;
            v[1] = all.y;
            v[2] = all.z;
            v[3] = all.w;
        }
        else
        {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                v[e] = i + e < end ? load(p + i + e) : 0.0f;
        }
    }

    template <bool vectors, typename index>
    __device__ __forceinline__ void
    load_unit_streaming(const float* p, index i, index end, float (&v)[4])
    {
        if (vectors)
        {
            float4 all = make_float4(0, 0, 0, 0);
            if (i < end)
                all = load_streaming(reinterpret_cast<const float4*>(p + i));
            v[0] = all.x;
            v[1] = all.y;
            v[2] = all.z;
            v[3] = all.w;
        }
        else
        {
            // The neighbouring threads' values share cache lines with these: keep them.
            load_unit<false>(p, i, end, v);
        }
    }

    template <bool vectors, typename index>
    __device__ __forceinline__ void store_unit(float* p, index i, index end, const float (&v)[4])
    {
        if (vectors)
        {
            if (i < end)
                store(reinterpret_cast<float4*>(p + i), make_float4(v[0], v[1], v[2], v[3]));
        }
        else
        {
#pragma unroll
            for (int e = 0; e < 4; ++e)
            {
                if (i + e < end)
                    store(p + i + e, v[e]);
            }
        }
    }

    template <bool vectors, bool runs, typename index>
    __device__ __forceinline__ void load_gains(const float* gamma,
        float gain_offset,
        long long gain_run,
        long long begin,
        index i,
        index left,
        float (&g)[4])
    /*!
        requires
            - runs == (gain_run > 1)
        ensures
            - #g == the gains of the values begin+i to begin+i+3 of a group. Of these there
    are left-i.
    !*/
    {
        if (gamma == nullptr)
        {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                g[e] = 1;
            return;
        }

        if (!runs)
        {
            load_unit<vectors>(gamma + begin, i, left, g);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                g[e] = __fadd_rn(gain_offset, g[e]);
            return;
        }

        const long long at = begin + i;
        long long run = 0;
        // A division of 64-bit numbers takes several times as long.
        if (((at | gain_run) >> 32) == 0)
            run = static_cast<unsigned>(at) / static_cast<unsigned>(gain_run);
        else
            run = at / gain_run;
        long long run_left = (run + 1) * gain_run - at;
        float gain = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e)
        {
            if (run_left == 0)
            {
                ++run;
                run_left = gain_run;
            }
            if (i + e < left && (e == 0 || run_left == gain_run))
                gain = __fadd_rn(gain_offset, load(gamma + run));
            g[e] = gain;
            --run_left;
        }
    }

    // ----------------------------------------------------------------------------------------
    //                       sums over the threads of a row
    // ----------------------------------------------------------------------------------------

    __device__ __forceinline__ double sum_of_lanes(double v, int lanes)
    /*!
        requires
            - lanes is 1, 8 or at least 32, and all threads of the warp are here
        ensures
            - returns the sum of v over aligned bunches of lanes threads, of at most 32
    !*/
    {
        if (lanes >= 32)
        {
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 16));
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 8));
        }
        if (lanes >= 8)
        {
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 4));
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 2));
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 1));
        }
        return v;
    }

    __device__ __forceinline__ double sum_of_row(double v, int lanes, double* shared)
    /*!
        requires
            - lanes is 1, 8, 32 or blockDim.x, and all threads of the block are here
            - shared has room for 32 doubles
        ensures
            - returns the sum of v over the lanes of this row to the first of them. Before
    shared is used again the block has to be synchronized.
    !*/
    {
        v = sum_of_lanes(v, lanes);
        if (lanes > 32)
        {
            const int warp = static_cast<int>(threadIdx.x) / 32;
            const int lane = static_cast<int>(threadIdx.x) % 32;
            if (lane == 0)
                shared[warp] = v;
            __syncthreads();
            if (warp == 0)
            {
                v = lane < lanes / 32 ? shared[lane] : 0;
                v = sum_of_lanes(v, 32);
            }
        }
        return v;
    }

    template <typename F>
    __device__ __forceinline__ float
    reduce_row(double v, int lanes, double* shared, const F& finish)
    /*!
        requires
            - lanes is 8, 32 or blockDim.x, and all threads of the block are here
            - shared has room for reduction_doubles
        ensures
            - returns finish(the sum of v over the lanes of this row) to all of them
    !*/
    {
        v = sum_of_row(v, lanes, shared);
        if (lanes <= 32)
            return finish(v);

        // One thread finishes: a square root in double is slow on most GPUs.
        float* const result = reinterpret_cast<float*>(shared + reduction_doubles - 1);
        if (threadIdx.x == 0)
            *result = finish(v);
        __syncthreads();
        return *result;
    }

    template <typename F>
    __device__ __forceinline__ float reduce_column(double v, double* shared, const F& finish)
    /*!
        requires
            - each warp holds other values of the same 32 groups, one group to a lane, and
    all threads of the block are here
            - shared has room for blockDim.x + 32 doubles
        ensures
            - returns finish(the sum of v over the warps) to all threads of the group
    !*/
    {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        shared[threadIdx.x] = v;
        __syncthreads();
        float* const results = reinterpret_cast<float*>(shared + blockDim.x);
        if (threadIdx.x < 32)
        {
            double sum = 0;
            for (int i = lane; i < static_cast<int>(blockDim.x); i += 32)
                sum = __dadd_rn(sum, shared[i]);
            results[lane] = finish(sum);
        }
        __syncthreads();
        return results[lane];
    }

    // ----------------------------------------------------------------------------------------
    //                           the formula, per element
    // ----------------------------------------------------------------------------------------

    __device__ __forceinline__ double add_square(double sum, float v)
    {
        return fma(static_cast<double>(v), static_cast<double>(v), sum);
    }

    __device__ __forceinline__ float scale_of(double sum, double inv_size, double eps)
    {
        return static_cast<float>(__ddiv_rn(1, __dsqrt_rn(fma(sum, inv_size, eps))));
    }

    __device__ __forceinline__ float normalized(float x, float s, float g)
    {
        return __fmul_rn(__fmul_rn(x, s), g);
    }

    __device__ __forceinline__ double product(float d, float x)
    {
        return __dmul_rn(static_cast<double>(d), static_cast<double>(x));
    }

    __device__ __forceinline__ float mean_of(double sum, double inv_size, float s)
    {
        return static_cast<float>(__dmul_rn(__dmul_rn(static_cast<double>(s), sum), inv_size));
    }

    __device__ __forceinline__ float gradient_of(float d, float x, float s, float g, float m)
    {
        return __fmul_rn(s, __fsub_rn(__fmul_rn(g, d), __fmul_rn(__fmul_rn(x, s), m)));
    }

    // ----------------------------------------------------------------------------------------
    //                                 forward
    // ----------------------------------------------------------------------------------------

    template <int units, int width>
    __device__ __forceinline__ int first_of_lane(int lane)
    /*!
        ensures
            - returns where in a row a thread's first unit begins. Unit u begins u*4*width
    values later: a distance known at compile time costs no registers for addresses.
    !*/
    {
        return lane / width * (4 * width * units) + 4 * (lane % width);
    }

    template <int units, int width, bool vectors, bool runs>
    __global__ void __launch_bounds__(512, units == 16 ? 1 : 2)
        normalize_rows(normalize_arguments a, int lanes)
    /*!
        requires
            - width is 8 or 32
            - lanes == width, or lanes == blockDim.x and width == 32
            - 4*units*lanes >= groups.size
        WHAT THIS DOES
            Each row is read once and stays in the registers of its threads.
    !*/
    {
        double* const shared = shared_memory<double>();
        const int size = static_cast<int>(a.groups.size);
        const long long rows = a.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % lanes;
        const int slot = static_cast<int>(threadIdx.x) / lanes;
        const int slots = static_cast<int>(blockDim.x) / lanes;
        const int begin = first_of_lane<units, width>(lane);

        for (long long first = static_cast<long long>(blockIdx.x) * slots; first < rows;
             first += static_cast<long long>(gridDim.x) * slots)
        {
            const long long row = first + slot;
            const int left = row < rows ? size - begin : 0;
            const long long offset = row < rows ? row * size + begin : 0;

            float x[units][4];
#pragma unroll
            for (int u = 0; u < units; ++u)
                load_unit<vectors>(a.src + offset, u * 4 * width, left, x[u]);

            double sum = 0;
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    sum = add_square(sum, x[u][e]);
            }
            const float s = reduce_row(sum, lanes, shared,
                [&](double total) { return scale_of(total, a.inv_size, a.eps); });
            if (row < rows && lane == 0)
                store(a.scale + row, s);

#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                float g[4];
                load_gains<vectors, runs>(
                    a.gamma, a.gain_offset, a.groups.gain_run, begin, u * 4 * width, left, g);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    x[u][e] = normalized(x[u][e], s, g[e]);
                store_unit<vectors>(a.dest + offset, u * 4 * width, left, x[u]);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    enum class part_sum
    {
        squares,          // of src
        products,         // of src and gradient_input
        weighted_products // the same times the gain
    };

    template <part_sum kind, bool vectors>
    __global__ void __launch_bounds__(256, 1) sum_parts(const float* x_begin,
        const float* d_begin,
        const float* gamma,
        float gain_offset,
        long long rows,
        long long length,
        long long parts,
        int lanes,
        double* sums)
    /*!
        requires
            - lanes is 8, 32 or blockDim.x
        WHAT THIS DOES
            Cuts each row of length values into parts and adds each up:
            #sums[row*parts + part]. A gain belongs to a place in the row.
    !*/
    {
        double* const shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % lanes;
        const int slot = static_cast<int>(threadIdx.x) / lanes;
        const int slots = static_cast<int>(blockDim.x) / lanes;
        const long long count = rows * parts;

        for (long long first = static_cast<long long>(blockIdx.x) * slots; first < count;
             first += static_cast<long long>(gridDim.x) * slots)
        {
            const long long item = first + slot;
            double sum = 0;
            if (item < count)
            {
                const long long row = item / parts;
                const long long begin = (item - row * parts) * part_size;
                const long long end = begin + part_size < length ? begin + part_size : length;
                const float* const xs = x_begin + row * length;
                const float* const ds = d_begin + row * length;

#pragma unroll 4
                for (long long i = begin + 4 * lane; i < end; i += 4 * lanes)
                {
                    float x[4], d[4], g[4];
                    load_unit<vectors>(xs, i, end, x);
                    if (kind != part_sum::squares)
                        load_unit<vectors>(ds, i, end, d);
                    if (kind == part_sum::weighted_products)
                        load_gains<vectors, false>(gamma, gain_offset, 1, 0LL, i, end, g);
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                    {
                        if (kind == part_sum::squares)
                            sum = add_square(sum, x[e]);
                        else if (kind == part_sum::products)
                            sum = __dadd_rn(sum, product(d[e], x[e]));
                        else
                            sum = fma(product(d[e], x[e]), static_cast<double>(g[e]), sum);
                    }
                }
            }
            sum = sum_of_row(sum, lanes, shared);
            if (item < count && lane == 0)
                store(sums + item, sum);
            if (lanes > 32)
                __syncthreads();
        }
    }

    static __global__ void __launch_bounds__(256, 1)
        finish_scales(normalize_arguments a, long long parts, const double* sums)
    {
        double* const shared = shared_memory<double>();
        for (long long row = blockIdx.x; row < a.groups.num_groups(); row += gridDim.x)
        {
            double sum = 0;
            for (long long i = threadIdx.x; i < parts; i += blockDim.x)
                sum = __dadd_rn(sum, load(sums + row * parts + i));
            sum = sum_of_row(sum, static_cast<int>(blockDim.x), shared);
            if (threadIdx.x == 0)
                store(a.scale + row, scale_of(sum, a.inv_size, a.eps));
            __syncthreads();
        }
    }

    template <bool vectors, bool runs>
    __global__ void __launch_bounds__(256, 1)
        normalize_parts(normalize_arguments a, long long parts)
    {
        const long long size = a.groups.size;
        const long long count = a.groups.num_groups() * parts;
        for (long long item = blockIdx.x; item < count; item += gridDim.x)
        {
            const long long row = item / parts;
            const long long begin = (item - row * parts) * part_size;
            const long long end = begin + part_size < size ? begin + part_size : size;
            const float s = load(a.scale + row);

#pragma unroll 4
            for (long long i = begin + 4 * static_cast<int>(threadIdx.x); i < end;
                 i += 4 * static_cast<int>(blockDim.x))
            {
                float x[4], g[4];
                load_unit_streaming<vectors>(a.src + row * size, i, end, x);
                load_gains<vectors, runs>(
                    a.gamma, a.gain_offset, a.groups.gain_run, 0LL, i, end, g);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    x[e] = normalized(x[e], s, g[e]);
                store_unit<vectors>(a.dest + row * size, i, end, x);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    __device__ __forceinline__ float
    load_gain(const float* gamma, float gain_offset, long long begin, long long i)
    {
        return gamma == nullptr ? 1.0f : __fadd_rn(gain_offset, load(gamma + begin + i));
    }

    template <int values>
    __global__ void __launch_bounds__(values == 8 ? 512 : 1024, 1)
        normalize_columns(normalize_arguments a)
    /*!
        requires
            - values*(blockDim.x/32) >= groups.size
        WHAT THIS DOES
            The lanes of a warp take neighbouring groups, so that they read neighbouring
            memory; the warps of a block share out the values of these groups.
    !*/
    {
        double* const shared = shared_memory<double>();
        const int size = static_cast<int>(a.groups.size);
        const long long num_groups = a.groups.num_groups();
        const long long stride = a.groups.stride;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int begin = static_cast<int>(threadIdx.x) / 32 * values;

        for (long long first = 32 * static_cast<long long>(blockIdx.x); first < num_groups;
             first += 32 * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const bool inside = group < num_groups;
            const int left = inside ? size - begin : 0;
            const long long offset = inside ? a.groups.first(group) + begin * stride : 0;

            float x[values];
            const float* from = a.src + offset;
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

            const float s = reduce_column(
                sum, shared, [&](double total) { return scale_of(total, a.inv_size, a.eps); });
            if (inside && threadIdx.x < 32)
                store(a.scale + group, s);

            float* to = a.dest + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                if (v < left)
                    store(to, normalized(x[v], s, load_gain(a.gamma, a.gain_offset, begin, v)));
                to += stride;
            }
        }
    }

    static __global__ void __launch_bounds__(512, 1) normalize_long_columns(normalize_arguments a)
    {
        double* const shared = shared_memory<double>();
        const long long num_groups = a.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int warps = static_cast<int>(blockDim.x) / 32;

        for (long long first = 32 * static_cast<long long>(blockIdx.x); first < num_groups;
             first += 32 * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const long long end = group < num_groups ? a.groups.size : 0;
            const long long offset = end != 0 ? a.groups.first(group) : 0;

            double sum = 0;
#pragma unroll 8
            for (long long i = warp; i < end; i += warps)
                sum = add_square(sum, load(a.src + offset + i * a.groups.stride));

            const float s = reduce_column(
                sum, shared, [&](double total) { return scale_of(total, a.inv_size, a.eps); });
            if (end != 0 && warp == 0)
                store(a.scale + group, s);

#pragma unroll 8
            for (long long i = warp; i < end; i += warps)
            {
                const long long at = offset + i * a.groups.stride;
                const float g = load_gain(a.gamma, a.gain_offset, 0, i);
                store(a.dest + at, normalized(load_streaming(a.src + at), s, g));
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                 backward
    // ----------------------------------------------------------------------------------------

    template <int count, bool in_shared>
    class gain_sums
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The sums of gamma's gradient that one thread holds, in registers or in its
        own places of shared memory, which nobody else touches.
        !*/
    public:
        __device__ __forceinline__ explicit gain_sums(double* shared) :
            memory(shared + threadIdx.x / 32 * (32 * count) + threadIdx.x % 32)
        {
#pragma unroll
            for (int i = 0; i < count; ++i)
            {
                if (in_shared)
                    memory[32 * i] = 0;
                else
                    registers[in_shared ? 0 : i] = 0;
            }
        }

        __device__ __forceinline__ double get(int i) const
        {
            return in_shared ? memory[32 * i] : registers[in_shared ? 0 : i];
        }

        __device__ __forceinline__ void add(int i, double v)
        {
            if (in_shared)
                memory[32 * i] = __dadd_rn(memory[32 * i], v);
            else
                registers[in_shared ? 0 : i] = __dadd_rn(registers[in_shared ? 0 : i], v);
        }

    private:
        double* memory;
        double registers[in_shared ? 1 : count];
    };

    template <int units, int width, bool in_shared, bool vectors, bool runs, bool known>
    __global__ void __launch_bounds__(in_shared ? 512 : 256, in_shared ? 1 : 2)
        gradient_rows(gradient_arguments a,
            int lanes,
            long long passes_per_slice,
            long long chunks,
            double* gain_parts)
    /*!
        requires
            - width is 8 or 32
            - lanes == width, or lanes == blockDim.x and width == 32
            - if (known) then
                - lanes == blockDim.x and chunks*4*units*lanes >= groups.size
                - dscale holds the means
            - else
                - 4*units*lanes >= groups.size and chunks == 1
        WHAT THIS DOES
            A block walks down the rows of a slice, with src and gradient_input in
    registers, and adds up gamma's gradient on the way: #gain_parts[slice*groups.size + i],
    unless gain_parts is null.
    !*/
    {
        double* const shared = shared_memory<double>();
        double* const shared_sums = shared + reduction_doubles;
        gain_sums<4 * units, in_shared> sums(shared_sums);

        const bool one_row = known || in_shared;
        const long long rows = a.groups.num_groups();
        const int lane = one_row ? static_cast<int>(threadIdx.x)
                                 : static_cast<int>(threadIdx.x) % lanes;
        const int slot = one_row ? 0 : static_cast<int>(threadIdx.x) / lanes;
        const int slots = one_row ? 1 : static_cast<int>(blockDim.x) / lanes;
        const int capacity = 4 * units * lanes;
        const int begin = first_of_lane<units, width>(lane);

        const long long slice = known ? blockIdx.x / chunks : blockIdx.x;
        const long long column = known ? (blockIdx.x - slice * chunks) * capacity : 0;
        const int size = a.groups.size - column < capacity
            ? static_cast<int>(a.groups.size - column)
            : capacity;
        const long long first_row = slice * passes_per_slice * slots;
        const long long rows_end = first_row + passes_per_slice * slots < rows
            ? first_row + passes_per_slice * slots
            : rows;

        for (long long row = first_row + slot; row - slot < rows_end; row += slots)
        {
            const bool inside = one_row || row < rows_end;
            const int left = inside ? size - begin : 0;
            const long long offset = inside ? row * a.groups.size + column + begin : 0;

            float x[units][4], d[units][4];
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                load_unit_streaming<vectors>(a.src + offset, u * 4 * width, left, x[u]);
                load_unit_streaming<vectors>(a.gradient_input + offset, u * 4 * width, left, d[u]);
                if (u % 4 == 3)
                    part_work<in_shared>();
            }
            const float s = inside ? load(a.scale + row) : 0.0f;
            float dx[units][4];
            if (!in_shared && a.add)
            {
#pragma unroll
                for (int u = 0; u < units; ++u)
                    load_unit<vectors>(a.src_grad + offset, u * 4 * width, left, dx[u]);
            }

            double sum = 0;
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                float g[4];
                if (!known)
                {
                    load_gains<vectors, runs>(
                        a.gamma, a.gain_offset, a.groups.gain_run, begin, u * 4 * width, left, g);
                }
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    const double t = product(d[u][e], x[u][e]);
                    if (!known)
                        sum = fma(t, static_cast<double>(g[e]), sum);
                    if (!runs)
                    {
                        sums.add(4 * u + e, __dmul_rn(t, static_cast<double>(s)));
                    }
                }
                part_work<in_shared>();
            }

            float m = 0;
            if (known)
            {
                m = inside ? load(a.dscale + row) : 0.0f;
            }
            else
            {
                m = reduce_row(sum, lanes, shared,
                    [&](double total) { return mean_of(total, a.inv_size, s); });
                if (inside && lane == 0)
                    store(a.dscale + row, m);
            }

#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                float g[4];
                load_gains<vectors, runs>(a.gamma, a.gain_offset, a.groups.gain_run, column + begin,
                    u * 4 * width, left, g);
                if (in_shared && a.add)
                    load_unit<vectors>(a.src_grad + offset, u * 4 * width, left, dx[u]);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    const float value = gradient_of(d[u][e], x[u][e], s, g[e], m);
                    dx[u][e] = a.add ? __fadd_rn(dx[u][e], value) : value;
                }
                store_unit<vectors>(a.src_grad + offset, u * 4 * width, left, dx[u]);
            }
        }

        if (runs || gain_parts == nullptr)
            return;

        double* const out = gain_parts + slice * a.groups.size + column;
        if (one_row || slots == 1)
        {
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    const int i = begin + u * 4 * width + e;
                    if (i < size)
                        store(out + i, sums.get(4 * u + e));
                }
            }
        }
        else
        {
// The rows that were side by side in this block.
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    shared_sums[slot * capacity + begin + u * 4 * width + e] = sums.get(4 * u + e);
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

    template <bool vectors>
    __global__ void __launch_bounds__(512, 1)
        gradient_run_rows(gradient_arguments a, int lanes_of_run, double* run_sums)
    /*!
        requires
            - lanes_of_run is 8 or 32
            - 16*blockDim.x >= groups.size
        WHAT THIS DOES
            One block takes a row with src and gradient_input in registers. Their products
    go through shared memory, because a run's values are not one thread's:
            #run_sums[row*groups.num_gains + run]
    !*/
    {
        const int units = 4;
        double* const shared = shared_memory<double>();
        double* const products = shared + reduction_doubles;
        const int size = static_cast<int>(a.groups.size);
        const int runs = static_cast<int>(a.groups.num_gains);
        const int run_length = static_cast<int>(a.groups.gain_run);
        const int begin = first_of_lane<units, 32>(static_cast<int>(threadIdx.x));
        const int left = size - begin;
        const int lane = static_cast<int>(threadIdx.x) % lanes_of_run;
        const int slot = static_cast<int>(threadIdx.x) / lanes_of_run;
        const int slots = static_cast<int>(blockDim.x) / lanes_of_run;

        for (long long row = blockIdx.x; row < a.groups.num_groups(); row += gridDim.x)
        {
            const long long offset = row * size + begin;
            float x[units][4], d[units][4];
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                load_unit_streaming<vectors>(a.src + offset, u * 4 * 32, left, x[u]);
                load_unit_streaming<vectors>(a.gradient_input + offset, u * 4 * 32, left, d[u]);
            }
            const float s = load(a.scale + row);

#pragma unroll
            for (int u = 0; u < units; ++u)
            {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    if (u * 4 * 32 + e < left)
                        products[begin + u * 4 * 32 + e] = product(d[u][e], x[u][e]);
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
                    for (int i = lane; i < run_length; i += lanes_of_run)
                        sum = __dadd_rn(sum, products[run * run_length + i]);
                }
                sum = sum_of_lanes(sum, lanes_of_run);
                if (run < runs && lane == 0)
                {
                    store(run_sums + row * runs + run, sum);
                    const float g = load_gain(a.gamma, a.gain_offset, 0, run);
                    weighted_sum = fma(sum, static_cast<double>(g), weighted_sum);
                }
            }
            const float m = reduce_row(weighted_sum, static_cast<int>(blockDim.x), shared,
                [&](double total) { return mean_of(total, a.inv_size, s); });
            if (threadIdx.x == 0)
                store(a.dscale + row, m);

#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                float g[4], dx[4];
                load_gains<vectors, true>(
                    a.gamma, a.gain_offset, run_length, begin, u * 4 * 32, left, g);
                if (a.add)
                    load_unit<vectors>(a.src_grad + offset, u * 4 * 32, left, dx);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                {
                    const float value = gradient_of(d[u][e], x[u][e], s, g[e], m);
                    dx[e] = a.add ? __fadd_rn(dx[e], value) : value;
                }
                store_unit<vectors>(a.src_grad + offset, u * 4 * 32, left, dx);
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    static __global__ void __launch_bounds__(256, 1) finish_means(gradient_arguments a,
        long long runs,
        const float* gamma,
        long long parts,
        int lanes,
        const double* sums,
        double* run_sums)
    /*!
        requires
            - lanes is 1 or 32
        WHAT THIS DOES
            Adds up the parts of each run of a row,
            #run_sums[row*runs + run] unless that is null, and from these the mean of the
    row.
    !*/
    {
        double* const shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % lanes;
        const int slot = static_cast<int>(threadIdx.x) / lanes;
        const int slots = static_cast<int>(blockDim.x) / lanes;

        for (long long row = blockIdx.x; row < a.groups.num_groups(); row += gridDim.x)
        {
            double weighted_sum = 0;
            for (long long first = 0; first < runs; first += slots)
            {
                const long long run = first + slot;
                double sum = 0;
                if (run < runs)
                {
                    for (long long i = lane; i < parts; i += lanes)
                        sum = __dadd_rn(sum, load(sums + (row * runs + run) * parts + i));
                }
                sum = sum_of_lanes(sum, lanes);
                if (run < runs && lane == 0)
                {
                    if (run_sums != nullptr)
                        store(run_sums + row * runs + run, sum);
                    const float g = load_gain(gamma, a.gain_offset, 0, run);
                    weighted_sum = fma(sum, static_cast<double>(g), weighted_sum);
                }
            }
            weighted_sum = sum_of_row(weighted_sum, static_cast<int>(blockDim.x), shared);
            if (threadIdx.x == 0)
                store(a.dscale + row, mean_of(weighted_sum, a.inv_size, load(a.scale + row)));
            __syncthreads();
        }
    }

    // ----------------------------------------------------------------------------------------

    static __global__ void __launch_bounds__(512, 1) find_column_means(gradient_arguments a)
    {
        double* const shared = shared_memory<double>();
        const long long num_groups = a.groups.num_groups();
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int warps = static_cast<int>(blockDim.x) / 32;

        for (long long first = 32 * static_cast<long long>(blockIdx.x); first < num_groups;
             first += 32 * static_cast<long long>(gridDim.x))
        {
            const long long group = first + lane;
            const long long end = group < num_groups ? a.groups.size : 0;
            const long long offset = end != 0 ? a.groups.first(group) : 0;
            const float s = end != 0 ? load(a.scale + group) : 0.0f;

            double sum = 0;
#pragma unroll 4
            for (long long i = warp; i < end; i += warps)
            {
                const long long at = offset + i * a.groups.stride;
                const float g = load_gain(a.gamma, a.gain_offset, 0, i);
                sum = fma(product(load(a.gradient_input + at), load(a.src + at)),
                    static_cast<double>(g), sum);
            }
            const float m = reduce_column(
                sum, shared, [&](double total) { return mean_of(total, a.inv_size, s); });
            if (end != 0 && warp == 0)
                store(a.dscale + group, m);
        }
    }

    template <int values, bool in_shared, bool known>
    __global__ void __launch_bounds__(512, 1) gradient_columns(gradient_arguments a,
        long long passes_per_slice,
        long long chunks,
        double* gain_parts)
    /*!
        requires
            - if (known) then
                - chunks*values*(blockDim.x/32) >= groups.size
                - dscale holds the means
            - else
                - values*(blockDim.x/32) >= groups.size and chunks == 1
        WHAT THIS DOES
            As gradient_rows, with the threads placed as in normalize_columns.
    !*/
    {
        double* const shared = shared_memory<double>();
        gain_sums<values, in_shared> sums(shared + blockDim.x + 32);

        const long long num_groups = a.groups.num_groups();
        const long long stride = a.groups.stride;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int capacity = values * static_cast<int>(blockDim.x / 32);
        const long long slice = known ? blockIdx.x / chunks : blockIdx.x;
        const long long begin = (known ? (blockIdx.x - slice * chunks) * capacity : 0) +
            static_cast<int>(threadIdx.x) / 32 * values;
        const int size = a.groups.size - begin < values ? static_cast<int>(a.groups.size - begin)
                                                        : values;
        const long long first_group = slice * passes_per_slice * 32;
        const long long groups_end = first_group + passes_per_slice * 32 < num_groups
            ? first_group + passes_per_slice * 32
            : num_groups;

        // Where the group begins, and which of its block's groups it is. A division for
        // every group would take too long.
        long long offset = a.groups.first(first_group + lane) + begin * stride;
        long long place = (first_group + lane) % stride;
        const int place_step = static_cast<int>(32 % stride);
        const long long offset_step = 32 / stride * a.groups.size * stride + place_step;

        for (long long group = first_group + lane; group - lane < groups_end; group += 32)
        {
            const bool inside = group < groups_end;
            const int left = inside ? size : 0;

            float x[values], d[values];
            const float* x_from = a.src + offset;
            const float* d_from = a.gradient_input + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                x[v] = v < left ? load_streaming(x_from) : 0.0f;
                d[v] = v < left ? load_streaming(d_from) : 0.0f;
                x_from += stride;
                d_from += stride;
                if (v % 16 == 15)
                    part_work<in_shared>();
            }
            const float s = inside ? load(a.scale + group) : 0.0f;

            double sum = 0;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                if (v < left)
                {
                    const double t = product(d[v], x[v]);
                    if (!known)
                    {
                        const float g = load_gain(a.gamma, a.gain_offset, begin, v);
                        sum = fma(t, static_cast<double>(g), sum);
                    }
                    sums.add(v, __dmul_rn(t, static_cast<double>(s)));
                }
                if (v % 8 == 7)
                    part_work<in_shared>();
            }

            float m = 0;
            if (known)
            {
                m = inside ? load(a.dscale + group) : 0.0f;
            }
            else
            {
                m = reduce_column(
                    sum, shared, [&](double total) { return mean_of(total, a.inv_size, s); });
                if (inside && threadIdx.x < 32)
                    store(a.dscale + group, m);
            }

            float* to = a.src_grad + offset;
#pragma unroll
            for (int v = 0; v < values; ++v)
            {
                if (v < left)
                {
                    const float g = load_gain(a.gamma, a.gain_offset, begin, v);
                    const float value = gradient_of(d[v], x[v], s, g, m);
                    store(to, a.add ? __fadd_rn(load(to), value) : value);
                }
                to += stride;
            }

            offset += offset_step;
            place += place_step;
            if (place >= stride)
            {
                place -= stride;
                offset += (a.groups.size - 1) * stride;
            }
        }

        if (gain_parts == nullptr)
            return;
#pragma unroll
        for (int v = 0; v < values; ++v)
        {
            const double sum = sum_of_lanes(sums.get(v), 32);
            if (v < size && lane == 0)
                store(gain_parts + slice * a.groups.size + begin + v, sum);
        }
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    __global__ void __launch_bounds__(512, 1) sum_gain_parts(const double* parts,
        const float* weights,
        long long rows,
        long long rows_per_slice,
        long long slices,
        long long size,
        T* sums)
    /*!
        WHAT THIS DOES
            Adds up the rows of each slice, each times its weight if there are weights:
            #sums[slice*size + i]
    !*/
    {
        double* const shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int warps = static_cast<int>(blockDim.x) / 32;
        const long long tiles = (size + 31) / 32;

        for (long long item = blockIdx.x; item < slices * tiles; item += gridDim.x)
        {
            const long long slice = item / tiles;
            const long long i = (item - slice * tiles) * 32 + lane;
            const long long first = slice * rows_per_slice;
            const long long end = first + rows_per_slice < rows ? first + rows_per_slice : rows;

            double sum = 0;
            if (i < size)
            {
#pragma unroll 4
                for (long long row = first + warp; row < end; row += warps)
                {
                    double value = load(parts + row * size + i);
                    if (weights != nullptr)
                        value = __dmul_rn(value, static_cast<double>(load(weights + row)));
                    sum = __dadd_rn(sum, value);
                }
            }
            shared[threadIdx.x] = sum;
            __syncthreads();
            if (warp == 0 && i < size)
            {
                double total = 0;
                for (int j = lane; j < static_cast<int>(blockDim.x); j += 32)
                    total = __dadd_rn(total, shared[j]);
                store(sums + slice * size + i, static_cast<T>(total));
            }
            __syncthreads();
        }
    }

    // ----------------------------------------------------------------------------------------
}

#endif // DLIB_RMS_NORM_KERNELS_H_
