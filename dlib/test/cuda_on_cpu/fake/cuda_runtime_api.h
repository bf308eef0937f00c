// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_FAKE_CUDA_RUNTIME_API_H_
#define DLIB_TEST_FAKE_CUDA_RUNTIME_API_H_

// Stands in for the CUDA toolkit's header of this name when the kernels are compiled for the
// CPU: the keywords, types and functions that they use, made of cuda_on_cpu.h.

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include "../cuda_on_cpu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

// The same names are in the program a second time when it is built with CUDA.
#define DLIB_TEST_KERNEL_NAMESPACE kernels_on_cpu

// ----------------------------------------------------------------------------------------

enum cudaError_t
{
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorLaunchFailure = 719
};

enum cudaDeviceAttr
{
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

enum cudaFuncAttribute
{
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8
};

struct CUstream_st;
using cudaStream_t = CUstream_st*;

inline const char* cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "no device" : "another error";
}

inline cudaError_t cudaGetDevice(int* device)
{
    const cuda_on_cpu::settings& s = cuda_on_cpu::current_settings();
    if (s.has_no_device)
        return cudaErrorNoDevice;
    *device = s.device;
    return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device)
{
    const cuda_on_cpu::settings& s = cuda_on_cpu::current_settings();
    if (device != s.device)
        return cudaErrorInvalidDevice;
    *value = static_cast<int>(s.shared_bytes_per_block);
    return cudaSuccess;
}

template <typename... parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(parameters...), cudaFuncAttribute, int bytes)
{
    const cuda_on_cpu::settings& s = cuda_on_cpu::current_settings();
    if (bytes < 0 || static_cast<std::size_t>(bytes) > s.shared_bytes_per_block)
        return cudaErrorInvalidValue;
    cuda_on_cpu::allow_shared_bytes(
        reinterpret_cast<const void*>(kernel), static_cast<std::size_t>(bytes));
    return cudaSuccess;
}

struct dim3
{
    dim3(unsigned x_ = 1) :
        x(x_)
    {
    }

    unsigned x;
};

struct cudaLaunchConfig_t
{
    dim3 gridDim;
    dim3 blockDim;
    std::size_t dynamicSmemBytes;
    cudaStream_t stream;
};

template <typename... parameters, typename... arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
    void (*kernel)(parameters...),
    arguments... values)
{
    using context_type = std::pair<void (*)(parameters...), std::tuple<parameters...>>;
    const context_type context(kernel, std::tuple<parameters...>(values...));

    cuda_on_cpu::launch_arguments what;
    what.kernel = reinterpret_cast<const void*>(kernel);
    what.grid = config->gridDim.x;
    what.threads = config->blockDim.x;
    what.shared_bytes = config->dynamicSmemBytes;
    what.stream = config->stream;
    what.context = &context;
    what.run_thread = [](const void* p)
    {
        const context_type& c = *static_cast<const context_type*>(p);
        std::apply(c.first, c.second);
    };
    return static_cast<cudaError_t>(cuda_on_cpu::run(what));
}

// ----------------------------------------------------------------------------------------

inline const cuda_on_cpu::dimension& threadIdx = cuda_on_cpu::thread_index;
inline const cuda_on_cpu::dimension& blockIdx = cuda_on_cpu::block_index;
inline const cuda_on_cpu::dimension& blockDim = cuda_on_cpu::block_size;
inline const cuda_on_cpu::dimension& gridDim = cuda_on_cpu::grid_size;

struct alignas(16) float4
{
    float x, y, z, w;
};

inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }

// ----------------------------------------------------------------------------------------

inline void __syncthreads(cuda_on_cpu::location here = cuda_on_cpu::location::current())
{
    cuda_on_cpu::meet_block(here);
}

inline void __syncwarp(unsigned mask = 0xffffffff,
    cuda_on_cpu::location here = cuda_on_cpu::location::current())
{
    cuda_on_cpu::meet_warp("__syncwarp", mask, threadIdx.x % 32, 0, true, here);
}

namespace cuda_on_cpu
{
    template <typename T>
    T exchange(const char* what, unsigned mask, T value, unsigned source_lane, location here)
    {
        static_assert(sizeof(T) <= sizeof(std::uint64_t), "one register or two");
        std::uint64_t bits = 0;
        std::memcpy(&bits, &value, sizeof(T));
        bits = meet_warp(what, mask, source_lane, bits, false, here);
        std::memcpy(&value, &bits, sizeof(T));
        return value;
    }
}

template <typename T>
T __shfl_sync(unsigned mask,
    T value,
    int source_lane,
    cuda_on_cpu::location here = cuda_on_cpu::location::current())
{
    return cuda_on_cpu::exchange(
        "__shfl_sync", mask, value, static_cast<unsigned>(source_lane) % 32, here);
}

template <typename T>
T __shfl_xor_sync(unsigned mask,
    T value,
    int lane_mask,
    cuda_on_cpu::location here = cuda_on_cpu::location::current())
{
    const unsigned source_lane = threadIdx.x % 32 ^ static_cast<unsigned>(lane_mask) % 32;
    return cuda_on_cpu::exchange("__shfl_xor_sync", mask, value, source_lane, here);
}

// ----------------------------------------------------------------------------------------

namespace dlib
{
    namespace contrib
    {
        namespace DLIB_TEST_KERNEL_NAMESPACE
        {
            // What T* is with CUDA. There is no other way to shared memory.
            template <typename T>
            class shared_pointer
            {
                static_assert(sizeof(T) % 4 == 0, "words are watched");

                struct index
                {
                    index(std::ptrdiff_t i_,
                        cuda_on_cpu::location here_ = cuda_on_cpu::location::current()) :
                        i(i_),
                        here(here_)
                    {
                    }

                    std::ptrdiff_t i;
                    cuda_on_cpu::location here;
                };

                struct reference
                {
                    template <typename U, typename = std::enable_if_t<std::is_same<U, T>::value>>
                    operator U() const
                    {
                        cuda_on_cpu::check_shared_read(p, sizeof(T), here);
                        return *p;
                    }

                    void operator=(T value) const
                    {
                        cuda_on_cpu::check_shared_write(p, sizeof(T), here);
                        *p = value;
                    }

                    void operator=(const reference& b) const { *this = static_cast<T>(b); }

                    T* p;
                    cuda_on_cpu::location here;
                };

            public:
                explicit shared_pointer(void* p_) :
                    p(static_cast<T*>(p_))
                {
                }

                shared_pointer operator+(std::ptrdiff_t i) const { return shared_pointer(p + i); }
                reference operator[](index at) const { return {p + at.i, at.here}; }

                template <typename U>
                shared_pointer<U> as() const
                {
                    return shared_pointer<U>(p);
                }

            private:
                T* p;
            };

            template <typename T>
            shared_pointer<T> shared_memory()
            {
                return shared_pointer<T>(cuda_on_cpu::shared_memory());
            }

            inline shared_pointer<float> shared_floats(shared_pointer<double> p)
            {
                return p.as<float>();
            }

            template <typename T>
            T load(const T* p, cuda_on_cpu::location here = cuda_on_cpu::location::current())
            {
                cuda_on_cpu::check_read(p, sizeof(T), alignof(T), here);
                return *p;
            }

            template <typename T>
            T load_streaming(const T* p,
                cuda_on_cpu::location here = cuda_on_cpu::location::current())
            {
                return load(p, here);
            }

            template <typename T>
            void store(T* p, T value, cuda_on_cpu::location here = cuda_on_cpu::location::current())
            {
                cuda_on_cpu::check_write(p, sizeof(T), alignof(T), here);
                *p = value;
            }

            template <typename T>
            T load_constant(const T* p,
                cuda_on_cpu::location here = cuda_on_cpu::location::current())
            {
                cuda_on_cpu::check_constant_read(p, sizeof(T), alignof(T), here);
                return *p;
            }

            inline double approximate_rsqrt(double v)
            {
                return cuda_on_cpu::random_factor() / std::sqrt(v);
            }

            inline long long bits_of(double v)
            {
                long long bits = 0;
                std::memcpy(&bits, &v, sizeof(v));
                return bits;
            }
        }
    }
}

#endif // DLIB_TEST_FAKE_CUDA_RUNTIME_API_H_
