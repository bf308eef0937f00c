// License: Boost Software License   See LICENSE.txt for the full license.

// The functions on tensors: which device does a pass, and where that device finds a tensor.

#include "rms_norm_tools.h"

#include <dlib/rms_norm_config.h>
#include "rms_norm_cpu.h"
#ifdef DLIB_USE_CUDA
#include "rms_norm_cuda.h"
#endif
#include "rms_norm_tensors.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        const rms_norm_on_host on_cpu = {cpu::normalize<float>, cpu::normalize_gradient<float>};
    }

    // ----------------------------------------------------------------------------------------

    void cpu::rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        normalize_tensors(on_cpu, axes, gain_offset, eps, dest, scale, src, gamma);
    }

    void cpu::rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        normalize_gradient_of_tensors(on_cpu, axes, gain_offset, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

#ifdef DLIB_USE_CUDA

    void cuda::rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        normalize_tensors(rms_norm_on_device(), axes, gain_offset, eps, dest, scale, src, gamma);
    }

    void cuda::rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        normalize_gradient_of_tensors(rms_norm_on_device(), axes, gain_offset, gradient_input,
            scale, src, gamma, src_grad, gamma_grad, dscale);
    }

    namespace
    {
        // As dlib's own tt decides. dlib 19.24 can't switch CUDA off at run time.
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

    void tt::rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
#ifdef DLIB_USE_CUDA
        if (runs_on_cuda())
            return cuda::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma);
#endif
        cpu::rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma);
    }

    void tt::rms_normalize_gradient(rms_norm_axes axes,
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
            return cuda::rms_normalize_gradient(
                axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
        }
#endif
        cpu::rms_normalize_gradient(
            axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

}
