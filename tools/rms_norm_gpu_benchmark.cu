// License: Boost Software License   See LICENSE.txt for the full license.

// How fast the CUDA kernels are, as a share of the bandwidth that copying memory on the same
// device reaches. Needs the launchers alone, no dlib:
//
//     nvcc -std=c++17 -O3 --fmad=false -arch=native -I. tools/rms_norm_gpu_benchmark.cu
//         dlib/cuda/rms_norm_launch.cu -o rms_norm_gpu_benchmark
//
// With --small it runs every kernel once instead, also for compute-sanitizer to watch, and compares
// the numbers with those of plain loops. With --large it runs them on tensors and on a group of more
// than 2^31 values and compares what comes out with the same rows taken alone.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <cuda_runtime.h>
#include "dlib/cuda/rms_norm_launch.h"
#include "dlib/cuda/rms_norm_plain.h"

using namespace dlib::contrib;
using namespace dlib::contrib::cuda;

namespace
{

    // ----------------------------------------------------------------------------------------

    void check(cudaError_t error, const char* what)
    {
        if (error == cudaSuccess)
            return;
        std::fprintf(stderr, "rms_norm_gpu_benchmark: %s: %s\n", what, cudaGetErrorString(error));
        std::exit(1);
    }

    template <typename T>
    class device_array
    {
    public:
        explicit device_array(std::size_t n)
        {
            // Not cleared: initcheck is to see what is read before it is written.
            check(cudaMalloc(&memory, std::max<std::size_t>(n, 1) * sizeof(T)), "cudaMalloc");
        }
        ~device_array() { cudaFree(memory); }
        device_array(const device_array&) = delete;
        device_array& operator=(const device_array&) = delete;

        T* get() const { return memory; }

    private:
        T* memory = nullptr;
    };

    // ----------------------------------------------------------------------------------------

    __global__ void fill(float* p, long long n, unsigned seed)
    {
        for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < n;
             i += static_cast<long long>(gridDim.x) * blockDim.x)
        {
            unsigned h = static_cast<unsigned>(i) * 2654435761u + seed;
            h ^= h >> 15;
            h *= 2246822519u;
            h ^= h >> 13;
            p[i] = static_cast<float>(h) * (2.0f / 4294967296.0f) - 1.0f;
        }
    }

    template <typename F>
    float microseconds(const F& work)
    /*!
        ensures
            - returns the median time of one call of work, of 9 runs of some calls each
    !*/
    {
        cudaEvent_t begin, end;
        check(cudaEventCreate(&begin), "cudaEventCreate");
        check(cudaEventCreate(&end), "cudaEventCreate");

        for (int i = 0; i < 3; ++i)
            work();
        check(cudaDeviceSynchronize(), "the first calls");

        std::vector<float> times;
        const int calls = 10;
        for (int run = 0; run < 9; ++run)
        {
            check(cudaEventRecord(begin), "cudaEventRecord");
            for (int i = 0; i < calls; ++i)
                work();
            check(cudaEventRecord(end), "cudaEventRecord");
            check(cudaEventSynchronize(end), "cudaEventSynchronize");
            float ms = 0;
            check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
            times.push_back(1000 * ms / calls);
        }
        check(cudaEventDestroy(begin), "cudaEventDestroy");
        check(cudaEventDestroy(end), "cudaEventDestroy");
        std::nth_element(times.begin(), times.begin() + 4, times.end());
        return times[4];
    }

    // ----------------------------------------------------------------------------------------

    struct shape
    {
        const char* name;
        long long outer;
        long long size;
        long long stride;
        long long gain_run; // 0 for no gain
    };

    class problem
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The arguments of both launchers for one shape. Tensors begin `shift` floats after
                an aligned address.
        !*/
    public:
        explicit problem(const shape& sh, const rms_norm_device& device_, std::size_t shift_ = 0) :
            device(device_),
            groups(make_groups(sh)),
            shift(shift_),
            n(static_cast<std::size_t>(groups.num_values())),
            x(n + shift),
            y(n + shift),
            d(n + shift),
            dx(n + shift),
            gamma(static_cast<std::size_t>(groups.num_gains)),
            dgamma(static_cast<std::size_t>(groups.num_gains)),
            scale(static_cast<std::size_t>(groups.num_groups())),
            dscale(static_cast<std::size_t>(groups.num_groups())),
            forward_plan(plan_rms_normalize(groups, shift == 0, device)),
            backward_plan(plan_rms_normalize_gradient(groups, shift == 0, device)),
            workspace(std::max(forward_plan.workspace_bytes, backward_plan.workspace_bytes))
        {
            fill<<<1024, 256>>>(x.get() + shift, groups.num_values(), 1);
            fill<<<1024, 256>>>(d.get() + shift, groups.num_values(), 2);
            fill<<<1024, 256>>>(dx.get() + shift, groups.num_values(), 3);
            fill<<<16, 256>>>(gamma.get(), groups.num_gains, 4);
            check(cudaGetLastError(), "fill");
        }

        void copy() const
        {
            check(cudaMemcpyAsync(y.get(), x.get(), n * sizeof(float), cudaMemcpyDeviceToDevice),
                "cudaMemcpyAsync");
        }

        rms_norm_forward<float> forward_pass() const
        {
            rms_norm_forward<float> pass;
            pass.groups = groups;
            pass.eps = 1e-5;
            pass.x = x.get() + shift;
            pass.gamma = groups.num_gains == 0 ? nullptr : gamma.get();
            pass.y = y.get() + shift;
            pass.scale = scale.get();
            return pass;
        }

        rms_norm_backward<float> backward_pass() const
        {
            rms_norm_backward<float> pass;
            pass.groups = groups;
            pass.d = d.get() + shift;
            pass.x = x.get() + shift;
            pass.gamma = groups.num_gains == 0 ? nullptr : gamma.get();
            pass.scale = scale.get();
            pass.dx = dx.get() + shift;
            pass.add = true;
            pass.dgamma = groups.num_gains == 0 ? nullptr : dgamma.get();
            pass.dscale = dscale.get();
            return pass;
        }

        void forward() const
        {
            check(launch_rms_normalize(forward_pass(), forward_plan, workspace.get(), nullptr),
                "launch_rms_normalize");
        }

        void backward() const
        {
            check(launch_rms_normalize_gradient(
                      backward_pass(), backward_plan, workspace.get(), nullptr),
                "launch_rms_normalize_gradient");
        }

        const rms_norm_device device;
        const rms_norm_groups groups;
        const std::size_t shift;
        const std::size_t n;
        const device_array<float> x, y, d, dx, gamma, dgamma, scale, dscale;
        const rms_norm_forward_plan forward_plan;
        const rms_norm_backward_plan backward_plan;
        const device_array<char> workspace;

    private:
        static rms_norm_groups make_groups(const shape& sh)
        {
            rms_norm_groups groups;
            groups.outer = sh.outer;
            groups.size = sh.size;
            groups.stride = sh.stride;
            groups.interleaved = sh.stride > 1;
            if (sh.gain_run != 0)
            {
                groups.gain_run = sh.gain_run;
                groups.num_gains = sh.size / sh.gain_run;
            }
            return groups;
        }
    };

    // ----------------------------------------------------------------------------------------

    void measure(const shape& sh, const rms_norm_device& device)
    {
        const problem p(sh, device);
        const float copy = microseconds([&] { p.copy(); });
        const float forward = microseconds([&] { p.forward(); });
        const float backward = microseconds([&] { p.backward(); });

        // Forward moves two tensors, as the copy does; backward reads three and writes one.
        const double copied_bytes = 2.0 * static_cast<double>(p.n) * sizeof(float);
        std::printf("%-8s %9lld x %-9lld %9.1f %7.0f   %9.1f %6.1f%%   %9.1f %6.1f%%\n", sh.name,
            p.groups.num_groups(), sh.size, copy, copied_bytes / copy / 1000, forward,
            100 * copy / forward, backward, 200 * copy / backward);
    }

    void measure_all(const rms_norm_device& device)
    {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
        std::printf("%s, %d multiprocessors, %zu KiB shared memory per block\n", properties.name,
            properties.multiProcessorCount, device.shared_bytes_per_block / 1024);
        std::printf("microseconds, and the share of the bandwidth of a device-to-device copy\n\n");
        std::printf("%-8s %9s   %-9s %9s %7s   %9s %7s   %9s %7s\n", "groups", "number", "of size",
            "copy", "GB/s", "forward", "share", "backward", "share");

        // Rows, 2^28 values: a tensor of 1 GiB is in no cache.
        for (long long size = 256; size <= 262144; size *= 2)
            measure({"row", (1LL << 28) / size, size, 1, 1}, device);
        std::printf("\n");

        // Few rows: the time of the launches counts.
        for (const long long rows : {1, 8, 64, 2048})
            measure({"row", rows, 4096, 1, 1}, device);
        measure({"row", 1, 1 << 20, 1, 1}, device);
        measure({"row", 1, 1 << 27, 1, 1}, device);
        std::printf("\n");

        // Pictures: one gain per channel.
        measure({"sample", 4096, 64 * 49, 1, 49}, device);
        measure({"sample", 128, 64 * 56 * 56, 1, 56 * 56}, device);
        measure({"channel", 128, 64, 56 * 56, 1}, device);
        measure({"channel", 512, 512, 14 * 14, 1}, device);
    }

    // ----------------------------------------------------------------------------------------

    std::vector<float> on_host(const float* from, long long count)
    {
        std::vector<float> out(from == nullptr ? 0 : static_cast<std::size_t>(count));
        if (!out.empty())
        {
            check(cudaMemcpy(out.data(), from, out.size() * sizeof(float), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
        }
        return out;
    }

    long long wrong_numbers(const problem& p)
    /*!
        ensures
            - runs both passes
            - returns how many numbers are further from those of the plain loops than twice the
              error that the contract allows
    !*/
    {
        const rms_norm_groups& groups = p.groups;
        const long long n = groups.num_values();
        rms_norm_forward<float> f = p.forward_pass();
        rms_norm_backward<float> b = p.backward_pass();
        const std::vector<float> x = on_host(f.x, n), d = on_host(b.d, n), old = on_host(b.dx, n);
        const std::vector<float> gamma = on_host(f.gamma, groups.num_gains);
        p.forward();
        p.backward();
        check(cudaDeviceSynchronize(), "the kernels");
        const std::vector<float> y = on_host(f.y, n), dx = on_host(b.dx, n);
        const std::vector<float> scale = on_host(f.scale, groups.num_groups());
        const std::vector<float> dscale = on_host(b.dscale, groups.num_groups());
        const std::vector<float> dgamma = on_host(b.dgamma, groups.num_gains);

        std::vector<float> plain_y(y), plain_dx(old), plain_scale(scale), plain_dscale(dscale);
        std::vector<float> plain_dgamma(dgamma);
        f.x = b.x = x.data();
        f.gamma = b.gamma = gamma.empty() ? nullptr : gamma.data();
        f.y = plain_y.data();
        f.scale = plain_scale.data();
        plain::rms_normalize(f);
        b.d = d.data();
        b.scale = plain_scale.data();
        b.dx = plain_dx.data();
        b.dgamma = dgamma.empty() ? nullptr : plain_dgamma.data();
        b.dscale = plain_dscale.data();
        plain::rms_normalize_gradient(b);

        long long wrong = 0;
        const double u = 0x1p-23;
        const auto compare = [&](double found, double right, double bound)
        { wrong += !(std::abs(found - right) <= bound); };
        std::vector<double> gain_bounds(dgamma.size());
        for (long long group = 0; group < groups.num_groups(); ++group)
        {
            const double s = plain_scale[group];
            const double size = static_cast<double>(groups.size);
            const double m = std::abs(2 * plain_dscale[group] / (s * s * size));
            double size_of_sum = 0;
            plain::for_each_value(groups,
                [&](long long i, long long c)
                {
                    const long long at = groups.first(group) + i;
                    const double g = gamma.empty() ? 1 : gamma[c];
                    const double gd = std::abs(g * d[at]), dxs = std::abs(d[at] * x[at] * s);
                    size_of_sum += gd * std::abs(x[at]);
                    if (!gamma.empty())
                        gain_bounds[c] += 2 * u * dxs;
                    compare(y[at], plain_y[at], 4 * u * std::abs(plain_y[at]));
                    // and the rounding of the sum with what was there
                    compare(dx[at], plain_dx[at],
                        8 * u * s * (gd + std::abs(x[at]) * s * m) + u * std::abs(plain_dx[at]));
                });
            compare(scale[group], s, u * s);
            compare(dscale[group], plain_dscale[group], 4 * u * 0.5 * s * s * s * size_of_sum);
        }
        for (std::size_t c = 0; c < dgamma.size(); ++c)
            compare(dgamma[c], plain_dgamma[c], gain_bounds[c]);
        return wrong;
    }

    bool run_small(const rms_norm_device& device)
    {
        int count = 0;
        bool good = true;
        const auto run = [&](const shape& sh)
        {
            for (const std::size_t shift : {0, 1})
            {
                const problem p(sh, device, shift);
                const long long wrong = wrong_numbers(p);
                if (wrong != 0)
                {
                    std::printf("%s, %lld groups of %lld, shift %d: %lld numbers are WRONG\n",
                        sh.name, p.groups.num_groups(), sh.size, static_cast<int>(shift), wrong);
                }
                good = good && wrong == 0;
                ++count;
            }
        };

        for (const long long size : {1, 63, 64, 100, 128, 200, 300, 512, 1024, 1027, 4096, 4100,
                 8192, 12288, 16384, 20000, 32768, 40000})
        {
            for (const long long rows : {1, 37})
            {
                run({"row", rows, size, 1, 1});
                run({"row without gain", rows, size, 1, 0});
            }
        }
        for (const long long run_length : {2, 49, 64, 1000, 9000})
            run({"sample", 5, 4 * run_length, 1, run_length});
        for (const long long size : {3, 64, 128, 200, 256, 500, 512, 700, 1100})
            run({"channel", 2, size, 49, 1});
        std::printf("%d problems run and compared with plain loops\n", count);
        return good;
    }

    // ----------------------------------------------------------------------------------------

    std::vector<float> tail(const device_array<float>& from, std::size_t size, std::size_t count)
    {
        return on_host(from.get() + (size - count), static_cast<long long>(count));
    }

    bool same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what)
    {
        const bool same = a.size() == b.size() &&
            std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
        std::printf("%-50s %s\n", what, same ? "same bits" : "DIFFERENT");
        return same;
    }

    bool run_large(const rms_norm_device& device)
    {
        const long long size = 4096;
        const long long rows = (1LL << 31) / size + 3;
        const long long few = 3;
        const std::size_t last = static_cast<std::size_t>(few * size);

        std::size_t free_bytes = 0, total_bytes = 0;
        check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
        const std::size_t needed = 5 * sizeof(float) * static_cast<std::size_t>(rows * size);
        if (free_bytes < needed)
        {
            std::printf("skipped: more than 2^31 values take %zu GiB, %zu GiB are free\n",
                needed >> 30, free_bytes >> 30);
            return true;
        }

        bool good = true;
        {
            const problem all({"rows", rows, size, 1, 1}, device);
            const problem alone({"rows", few, size, 1, 1}, device);
            for (const auto& pair : {std::make_pair(&all.x, &alone.x),
                     std::make_pair(&all.d, &alone.d), std::make_pair(&all.dx, &alone.dx)})
            {
                check(cudaMemcpy(pair.second->get(), pair.first->get() + (all.n - last),
                          last * sizeof(float), cudaMemcpyDeviceToDevice),
                    "cudaMemcpy");
            }
            all.forward();
            all.backward();
            alone.forward();
            alone.backward();
            good = same_bits(tail(all.y, all.n, last), tail(alone.y, alone.n, last),
                       "dest, last rows of more than 2^31 values") &&
                good;
            good = same_bits(tail(all.dx, all.n, last), tail(alone.dx, alone.n, last),
                       "src_grad, last rows of more than 2^31 values") &&
                good;
        }
        {
            // One group. Its last values are s*x*g, with the s that was found.
            const problem all({"one row", 1, rows * size, 1, rows * size}, device);
            all.forward();
            all.backward();
            const float s = tail(all.scale, 1, 1)[0];
            const float g = tail(all.gamma, 1, 1)[0];
            std::vector<float> expected = tail(all.x, all.n, last);
            for (float& v : expected)
                v = v * s * g;
            good = same_bits(tail(all.y, all.n, last), expected,
                       "dest, end of one group of more than 2^31 values") &&
                good;
        }
        return good;
    }

    // ----------------------------------------------------------------------------------------

}

int main(int argc, char** argv)
{
    const std::string option = argc > 1 ? argv[1] : "";
    if (argc > 2 || (!option.empty() && option != "--small" && option != "--large"))
    {
        std::fprintf(stderr, "usage: rms_norm_gpu_benchmark [--small | --large]\n");
        return 2;
    }

    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    {
        std::fprintf(stderr, "rms_norm_gpu_benchmark: there is no GPU\n");
        return 1;
    }
    rms_norm_device device;
    check(get_rms_norm_device(0, device), "get_rms_norm_device");

    if (option == "--small")
        return run_small(device) ? 0 : 1;
    else if (option == "--large")
        return run_large(device) ? 0 : 1;
    else
        measure_all(device);
    return 0;
}
