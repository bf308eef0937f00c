// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_COMMON_CUH_
#define DLIB_RMS_NORM_KERNELS_COMMON_CUH_

// What the CUDA kernels are made of: accesses to memory, quads of values, sums over the threads
// that share a group, and the formula for one value.
//
// Sums are in double: the product of two floats is exact there and cannot overflow. What
// belongs to one value is in float, each operation rounded by itself, in the order of the
// contract.
//
// A store may change what the next load reads, as far as the compiler knows. So a kernel loads
// all that it needs for some quads, then computes, then stores.
//
// The tests compile the kernels for the CPU as well. So global memory is touched through load()
// and store() and their like alone, and shared memory through shared_pointer.

#include "rms_norm_cuda_plan.h"
#include "rms_norm_pass.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

#ifdef __CUDACC__

    // Not through the read-only path: outputs may be inputs.
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

    // For what this kernel does not write. Several threads or several rounds need it.
    template <typename T>
    __device__ __forceinline__ T load_constant(const T* p)
    {
        return __ldg(p);
    }

    template <typename T>
    __device__ __forceinline__ void store(T* p, T value)
    {
        *p = value;
    }

    // As one instruction: else the compiler may take a quad apart.
    __device__ __forceinline__ void store(float4* p, float4 v)
    {
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                     : "memory");
    }

    template <typename T>
    using shared_pointer = T*;

    extern __shared__ double2 rms_norm_shared_memory[];

    template <typename T>
    __device__ __forceinline__ shared_pointer<T> shared_memory()
    {
        return reinterpret_cast<T*>(rms_norm_shared_memory);
    }

    __device__ __forceinline__ shared_pointer<float> shared_floats(shared_pointer<double> p)
    {
        return reinterpret_cast<float*>(p);
    }

    // 1/sqrt(v) with a relative error below 2^-18. Other devices may have other bits.
    __device__ __forceinline__ double approximate_rsqrt(double v)
    {
        double r;
        asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(v));
        return r;
    }

    __device__ __forceinline__ long long bits_of(double v) { return __double_as_longlong(v); }

#endif

    template <bool wanted>
    __device__ __forceinline__ void part_work()
    /*!
        WHAT THIS DOES
            Nothing but to keep the compiler from moving what comes after it to the front. A
            kernel that has nearly all registers full of values needs that, or its addresses and
            intermediate results are spilled.
    !*/
    {
        if (wanted)
            __syncwarp();
    }

    // ----------------------------------------------------------------------------------------
    //                                     quads
    // ----------------------------------------------------------------------------------------

    // A thread has some quads of a row. Quad q begins at p + q*4*width: a distance known at
    // compile time costs no registers for addresses. `left` is how many values there are from p
    // to the end of the row, none if it is negative.

    template <int quads, int width>
    __device__ __forceinline__ int first_of_lane(int lane)
    /*!
        ensures
            - returns where in a row a thread's first quad begins
    !*/
    {
        return lane / width * (quad_size * width * quads) + quad_size * (lane % width);
    }

    enum class cache
    {
        normal,
        streaming,
        constant
    };

    template <cache how, typename T>
    __device__ __forceinline__ T load_as(const T* p)
    {
        return how == cache::streaming ? load_streaming(p)
            : how == cache::constant   ? load_constant(p)
                                       : load(p);
    }

    template <int quads, int width, cache how>
    __device__ __forceinline__ void
    load_quads(const float* p, int left, bool by_quads, float (*v)[quad_size])
    /*!
        ensures
            - #v[q] == the values of quad q, 0 for those that are not there
    !*/
    {
        if (by_quads)
        {
#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
                const int at = q * quad_size * width;
                float4 all = make_float4(0, 0, 0, 0);
                if (at < left)
                    all = load_as<how>(reinterpret_cast<const float4*>(p + at));
                v[q][0] = all.x;
                v[q][1] = all.y;
                v[q][2] = all.z;
                v[q][3] = all.w;
            }
            return;
        }
#pragma unroll
        for (int q = 0; q < quads; ++q)
        {
#pragma unroll
            for (int e = 0; e < quad_size; ++e)
            {
                const int at = q * quad_size * width + e;
                // Neighbouring threads' values share cache lines with these: keep them.
                v[q][e] = at < left
                    ? load_as < how == cache::streaming ? cache::normal : how > (p + at)
                    : 0.0f;
            }
        }
    }

    template <int quads, int width>
    __device__ __forceinline__ void
    store_quads(float* p, int left, bool by_quads, const float (*v)[quad_size])
    {
        if (by_quads)
        {
#pragma unroll
            for (int q = 0; q < quads; ++q)
            {
                const int at = q * quad_size * width;
                if (at < left)
                    store(reinterpret_cast<float4*>(p + at),
                        make_float4(v[q][0], v[q][1], v[q][2], v[q][3]));
            }
            return;
        }
#pragma unroll
        for (int q = 0; q < quads; ++q)
        {
#pragma unroll
            for (int e = 0; e < quad_size; ++e)
            {
                const int at = q * quad_size * width + e;
                if (at < left)
                    store(p + at, v[q][e]);
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                     gains
    // ----------------------------------------------------------------------------------------

    template <typename pass_type>
    __device__ __forceinline__ float load_gain(const pass_type& pass, long long i)
    {
        return pass.gamma == nullptr ? 1.0f
                                     : __fadd_rn(pass.gain_offset, load_constant(pass.gamma + i));
    }

    template <int quads, int width, typename pass_type>
    __device__ __forceinline__ void
    load_gains_of_runs(const pass_type& pass, long long begin, int left, float (*g)[quad_size])
    {
        const long long gain_run = pass.groups.gain_run;
#pragma unroll
        for (int q = 0; q < quads; ++q)
        {
            const int at = q * quad_size * width;
            const long long i = begin + at;
            long long run = 0;
            // A division of 64-bit numbers takes several times as long.
            if (((i | gain_run) >> 32) == 0)
                run = static_cast<unsigned>(i) / static_cast<unsigned>(gain_run);
            else
                run = i / gain_run;
            long long run_left = (run + 1) * gain_run - i;
            float gain = 0;
#pragma unroll
            for (int e = 0; e < quad_size; ++e)
            {
                if (run_left == 0)
                {
                    ++run;
                    run_left = gain_run;
                }
                if (at + e < left && (e == 0 || run_left == gain_run))
                    gain = load_gain(pass, run);
                g[q][e] = gain;
                --run_left;
            }
        }
    }

    template <int quads, int width, typename pass_type>
    __device__ __forceinline__ void load_gains(const pass_type& pass,
        long long begin,
        int left,
        bool by_quads,
        float (*g)[quad_size])
    /*!
        ensures
            - #g == the gains of quads of which the first begins with value `begin` of its group
    !*/
    {
        if (pass.gamma != nullptr && pass.groups.gain_run > 1)
            return load_gains_of_runs<quads, width>(pass, begin, left, g);

        if (pass.gamma != nullptr)
            load_quads<quads, width, cache::constant>(pass.gamma + begin, left, by_quads, g);
#pragma unroll
        for (int q = 0; q < quads; ++q)
        {
#pragma unroll
            for (int e = 0; e < quad_size; ++e)
                g[q][e] = pass.gamma == nullptr ? 1.0f : __fadd_rn(pass.gain_offset, g[q][e]);
        }
    }

    // ----------------------------------------------------------------------------------------
    //                       sums over the threads of a group
    // ----------------------------------------------------------------------------------------

    __device__ __forceinline__ double sum_of_lanes(double v, int lanes)
    /*!
        requires
            - lanes is 1, 8, 16 or at least 32, and all threads of the warp are here
        ensures
            - returns the sum of v over aligned bunches of lanes threads, of at most 32
    !*/
    {
        if (lanes >= 32)
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 16));
        if (lanes >= 16)
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 8));
        if (lanes >= 8)
        {
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 4));
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 2));
            v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 1));
        }
        return v;
    }

    __device__ __forceinline__ double sum_of_row(double v, int lanes, shared_pointer<double> shared)
    /*!
        requires
            - lanes is 1, 8, 16, 32 or blockDim.x, and all threads of the block are here
            - shared has room for 32 doubles
        ensures
            - returns the sum of v over the lanes of this row to the first of them. Before
              shared is used again the block has to be synchronized.
    !*/
    {
        v = sum_of_lanes(v, lanes);
        if (lanes > warp_size)
        {
            const int warp = static_cast<int>(threadIdx.x) / warp_size;
            const int lane = static_cast<int>(threadIdx.x) % warp_size;
            if (lane == 0)
                shared[warp] = v;
            __syncthreads();
            if (warp == 0)
            {
                v = lane < lanes / warp_size ? shared[lane] : 0.0;
                v = sum_of_lanes(v, warp_size);
            }
        }
        return v;
    }

    template <typename F>
    __device__ __forceinline__ float
    reduce_row(double v, int lanes, shared_pointer<double> shared, const F& finish)
    /*!
        requires
            - lanes is 8, 16, 32 or blockDim.x, and all threads of the block are here
            - shared has room for row_sum_doubles
        ensures
            - returns finish(the sum of v over the lanes of this row) to all of them
    !*/
    {
        v = sum_of_row(v, lanes, shared);
        if (lanes <= warp_size)
            return finish(v);

        const shared_pointer<float> result = shared_floats(shared + (row_sum_doubles - 1));
        if (threadIdx.x == 0)
            result[0] = finish(v);
        __syncthreads();
        return result[0];
    }

    template <typename F>
    __device__ __forceinline__ float
    reduce_column(double v, shared_pointer<double> shared, const F& finish)
    /*!
        requires
            - each warp holds other values of the same 32 groups, one group to a lane, and
              all threads of the block are here
            - shared has room for column_sum_bytes(blockDim.x)
        ensures
            - returns finish(the sum of v over the warps) to all threads of the group
    !*/
    {
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        shared[threadIdx.x] = v;
        __syncthreads();
        const shared_pointer<float> results = shared_floats(shared + blockDim.x);
        if (threadIdx.x < warp_size)
        {
            double sum = 0;
            for (int i = lane; i < static_cast<int>(blockDim.x); i += warp_size)
                sum = __dadd_rn(sum, shared[i]);
            results[lane] = finish(sum);
        }
        __syncthreads();
        return results[lane];
    }

    // ----------------------------------------------------------------------------------------
    //                           the formula
    // ----------------------------------------------------------------------------------------

    __device__ __forceinline__ double add_square(double sum, float x)
    {
        return fma(static_cast<double>(x), static_cast<double>(x), sum);
    }

    __device__ __forceinline__ float scale_of(double sum, double inv_size, double eps)
    /*!
        ensures
            - returns 1/sqrt(sum*inv_size + eps), computed in double and rounded to float
        WHAT THIS DOES
            A square root and a division take about 40 double operations, and many GPUs have few
            units for those. So an approximation is made better by a step of third order, which
            leaves an error of a few units in the last place of a double, as the exact operations
            do. Both round to the same float, except perhaps within 16 such units of the middle
            between two floats, which the last 29 bits tell.
    !*/
    {
        const double v = fma(sum, inv_size, eps);
        const double y = approximate_rsqrt(v);
        const double e = fma(-__dmul_rn(v, y), y, 1.0);
        const double r = fma(fma(e, 0.375, 0.5), __dmul_rn(y, e), y);
        const int from_middle = static_cast<int>(bits_of(r) & 0x1fffffff) - 0x10000000;
        // 0x1p250: floats near its inverse square root are denormal and have fewer bits.
        if (v < 0x1p250 && (from_middle < -16 || from_middle > 16))
            return static_cast<float>(r);
        return static_cast<float>(__drcp_rn(__dsqrt_rn(v)));
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

    __device__ __forceinline__ float dscale_of(double sum, float s)
    {
        const double t = static_cast<double>(s);
        return static_cast<float>(__dmul_rn(-0.5 * __dmul_rn(__dmul_rn(t, t), t), sum));
    }

    __device__ __forceinline__ float gradient_of(float d, float x, float s, float g, float m)
    {
        return __fmul_rn(s, __fsub_rn(__fmul_rn(g, d), __fmul_rn(__fmul_rn(x, s), m)));
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_KERNELS_COMMON_CUH_
