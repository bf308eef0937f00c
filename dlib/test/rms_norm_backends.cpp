// License: Boost Software License   See LICENSE.txt for the full license.

// The list of implementations that this program can test.

#include "rms_norm_backend.h"

#include <dlib/cuda/rms_norm_plain.h>
#include "test_cases.h"

#ifdef DLIB_RMS_NORM_CUDA_ON_CPU
#include "cuda_on_cpu/cuda_on_cpu_backend.h"
#endif

#ifdef DLIB_USE_CUDA
#include <iostream>
#include <dlib/cuda/cuda_dlib.h>
#endif

namespace test
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using namespace dlib;

        rms_norm_backend fast_backend(const char* name,
            rms_normalize_function* forward,
            rms_normalize_gradient_function* gradient)
        {
            rms_norm_backend b;
            b.name = name;
            b.forward = forward;
            b.gradient = gradient;
            b.is_fast = true;
            return b;
        }

        rms_norm_backend plain_backend()
        {
            rms_norm_backend b = backend_on("plain",
                []()
                {
                    return contrib::rms_norm_on_host{
                        contrib::plain::rms_normalize, contrib::plain::rms_normalize_gradient};
                });
            b.is_fast = true;
            return b;
        }

#ifdef DLIB_USE_CUDA
        bool has_cuda_device()
        {
            std::string reason = "there is no device";
            try
            {
                if (cuda::get_num_devices() > 0)
                    return true;
            }
            catch (cuda_error& e)
            {
                reason = e.what();
            }
            std::cout << "contrib::cuda is not tested: " << reason << std::endl;
            return false;
        }
#endif

        std::vector<rms_norm_backend> make_backends()
        {
            std::vector<rms_norm_backend> all = {fast_backend(
                "cpu", contrib::cpu::rms_normalize, contrib::cpu::rms_normalize_gradient)};
            all[0].uses_thread_pool = true;
            all[0].uses_simd = true;
            // Sanitizers see the kernels in --rms_norm_kernels, where they take less time, and
            // nothing new in plain loops.
            if (!is_sanitized)
            {
                all.push_back(plain_backend());
#ifdef DLIB_RMS_NORM_CUDA_ON_CPU
                all.push_back(cuda_on_cpu_backend());
#endif
            }
#ifdef DLIB_USE_CUDA
            if (has_cuda_device())
            {
                all.push_back(fast_backend(
                    "cuda", contrib::cuda::rms_normalize, contrib::cuda::rms_normalize_gradient));
                all.back().works_after_fork = false;
            }
#endif
            return all;
        }
    }

    // ----------------------------------------------------------------------------------------

    std::vector<rms_norm_backend>& rms_norm_backends()
    {
        static std::vector<rms_norm_backend> all = make_backends();
        return all;
    }

    void run_cases(const rms_norm_backend& b, std::initializer_list<backend_case> cases)
    {
        for (const backend_case& c : cases)
            run_case(b.name + ": " + c.first, [&]() { c.second(b); });
    }

    // ----------------------------------------------------------------------------------------

}
