// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_GAINS_CUH_
#define DLIB_RMS_NORM_KERNELS_GAINS_CUH_

// Gamma's gradient: the sums that a thread keeps while it walks over groups, and the kernel that
// adds up what the blocks have left.

#include "rms_norm_kernels_common.cuh"

namespace dlib::contrib::cuda
{

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
        __device__ __forceinline__ explicit gain_sums(shared_pointer<double> shared) :
            memory(shared + threadIdx.x / warp_size * (warp_size * count) + threadIdx.x % warp_size)
        {
#pragma unroll
            for (int i = 0; i < count; ++i)
            {
                if (in_shared)
                    memory[warp_size * i] = 0;
                else
                    registers[in_shared ? 0 : i] = 0;
            }
        }

        __device__ __forceinline__ double get(int i) const
        {
            return in_shared ? memory[warp_size * i] : registers[in_shared ? 0 : i];
        }

        __device__ __forceinline__ void add(int i, double v)
        {
            if (in_shared)
                memory[warp_size * i] = __dadd_rn(memory[warp_size * i], v);
            else
                registers[in_shared ? 0 : i] = __dadd_rn(registers[in_shared ? 0 : i], v);
        }

    private:
        shared_pointer<double> memory;
        double registers[in_shared ? 1 : count];
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    __global__ void __launch_bounds__(threads_of_gain_sums, 1)
        sum_rows_of_slices(const double* rows,
            const float* weights,
            long long num_rows,
            rms_norm_slices slices,
            long long size,
            T* sums)
    /*!
        WHAT THIS DOES
            Adds up the rows of each slice, each times its weight if there are weights:
            #sums[slice*size + i]
    !*/
    {
        const shared_pointer<double> shared = shared_memory<double>();
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const int warp = static_cast<int>(threadIdx.x) / warp_size;
        const int warps = static_cast<int>(blockDim.x) / warp_size;
        const long long tiles = (size + warp_size - 1) / warp_size;

        for (long long item = blockIdx.x; item < slices.count * tiles; item += gridDim.x)
        {
            const long long slice = item / tiles;
            const long long i = (item - slice * tiles) * warp_size + lane;
            const long long first = slice * slices.rounds_per_slice;
            const long long end = first + slices.rounds_per_slice < num_rows
                ? first + slices.rounds_per_slice
                : num_rows;

            double sum = 0;
            if (i < size)
            {
#pragma unroll 4
                for (long long row = first + warp; row < end; row += warps)
                {
                    double value = load(rows + row * size + i);
                    if (weights != nullptr)
                        value = __dmul_rn(value, static_cast<double>(load_constant(weights + row)));
                    sum = __dadd_rn(sum, value);
                }
            }
            shared[threadIdx.x] = sum;
            __syncthreads();
            if (warp == 0 && i < size)
            {
                double total = 0;
                for (int j = lane; j < static_cast<int>(blockDim.x); j += warp_size)
                    total = __dadd_rn(total, shared[j]);
                store(sums + slice * size + i, static_cast<T>(total));
            }
            __syncthreads();
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_KERNELS_GAINS_CUH_
