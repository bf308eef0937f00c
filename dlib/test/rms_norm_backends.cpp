// License: Boost Software License   See LICENSE.txt for the full license.

// The list of implementations that this program can test.

#include "rms_norm_backend.h"

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
        rms_norm_backend cpu_backend()
        {
            using namespace dlib;
            rms_norm_backend b;
            b.name = "cpu";
            b.forward = [](contrib::rms_norm_axes axes, double gain_offset, double eps,
                            resizable_tensor& dest, resizable_tensor& scale, const tensor& src,
                            const tensor& gamma)
            { contrib::cpu::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma); };
            b.gradient = [](contrib::rms_norm_axes axes, double gain_offset,
                             const tensor& gradient_input, const tensor& scale, const tensor& src,
                             const tensor& gamma, tensor& src_grad, tensor& gamma_grad,
                             resizable_tensor& dscale)
            {
                contrib::cpu::rms_normalize_gradient(axes, gain_offset, gradient_input, scale, src,
                    gamma, src_grad, gamma_grad, dscale);
            };
            return b;
        }

#ifdef DLIB_USE_CUDA
        rms_norm_backend cuda_backend()
        {
            using namespace dlib;
            rms_norm_backend b;
            b.name = "cuda";
            b.forward = [](contrib::rms_norm_axes axes, double gain_offset, double eps,
                            resizable_tensor& dest, resizable_tensor& scale, const tensor& src,
                            const tensor& gamma)
            { contrib::cuda::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma); };
            b.gradient = [](contrib::rms_norm_axes axes, double gain_offset,
                             const tensor& gradient_input, const tensor& scale, const tensor& src,
                             const tensor& gamma, tensor& src_grad, tensor& gamma_grad,
                             resizable_tensor& dscale)
            {
                contrib::cuda::rms_normalize_gradient(axes, gain_offset, gradient_input, scale, src,
                    gamma, src_grad, gamma_grad, dscale);
            };
            return b;
        }

        bool has_cuda_device()
        {
            std::string reason = "there is no device";
            try
            {
                if (dlib::cuda::get_num_devices() > 0)
                    return true;
            }
            catch (dlib::cuda_error& e)
            {
                reason = e.what();
            }
            std::cout << "contrib::cuda is not tested: " << reason << std::endl;
            return false;
        }
#endif

        std::vector<rms_norm_backend> make_backends()
        {
            std::vector<rms_norm_backend> all = {cpu_backend()};
#ifdef DLIB_RMS_NORM_CUDA_ON_CPU
            all.push_back(cuda_on_cpu_backend());
            all.back().name = "cuda_on_cpu";
#endif
#ifdef DLIB_USE_CUDA
            if (has_cuda_device())
                all.push_back(cuda_backend());
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

    // ----------------------------------------------------------------------------------------

}
