// License: Boost Software License   See LICENSE.txt for the full license.

// Picks the device, as dlib's tt does: CUDA if dlib was built with it (and, where dlib can
// switch it off at run time, if it is on), else the CPU.

#include "rms_norm_tools.h"

#include <dlib/rms_norm_config.h>

namespace dlib::contrib::tt
{

    // ----------------------------------------------------------------------------------------

#ifdef DLIB_USE_CUDA
    namespace
    {
        bool runs_on_cuda()
        {
#ifdef DLIB_RMS_NORM_DLIB_HAS_USE_CUDA
            return ::dlib::cuda::use_cuda();
#else
            return true;
#endif
        }
    }
#endif

    // ----------------------------------------------------------------------------------------

    void rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
#ifdef DLIB_USE_CUDA
        if (runs_on_cuda())
        {
            cuda::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma);
            return;
        }
#endif
        cpu::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma);
    }

    void rms_normalize(double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma);
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
#ifdef DLIB_USE_CUDA
        if (runs_on_cuda())
        {
            cuda::rms_normalize_gradient(
                axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
            return;
        }
#endif
        cpu::rms_normalize_gradient(
            axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
    }

    void rms_normalize_gradient(const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        rms_normalize_gradient(rms_norm_axes::sample, 0, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

}
