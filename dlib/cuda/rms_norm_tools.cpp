// License: Boost Software License   See LICENSE.txt for the full license.

// The functions on tensors: which device does a pass, and where that device finds a tensor.

#include "rms_norm_tools.h"

#include <dlib/cuda/tensor_tools.h>
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

    void cpu::rms_normalize_gradient(bool add_to,
        rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        normalize_gradient_of_tensors(on_cpu, add_to, axes, gain_offset, gradient_input, scale, src,
            gamma, src_grad, gamma_grad, dscale);
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

    void cuda::rms_normalize_gradient(bool add_to,
        rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        normalize_gradient_of_tensors(rms_norm_on_device(), add_to, axes, gain_offset,
            gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
    }

#endif

    // ----------------------------------------------------------------------------------------

    namespace
    {
        // As dlib's own tt decides. dlib 19.24 can't switch CUDA off at run time.
        bool runs_on_cuda()
        {
#if !defined(DLIB_USE_CUDA)
            return false;
#elif defined(DLIB_RMS_NORM_DLIB_HAS_USE_CUDA)
            return ::dlib::cuda::use_cuda();
#else
            return true;
#endif
        }
    }

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

    void tt::rms_normalize_gradient(bool add_to,
        rms_norm_axes axes,
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
            return cuda::rms_normalize_gradient(add_to, axes, gain_offset, gradient_input, scale,
                src, gamma, src_grad, gamma_grad, dscale);
        }
#endif
        cpu::rms_normalize_gradient(add_to, axes, gain_offset, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

    void tt::rms_normalize_sum(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        resizable_tensor& sum,
        const tensor& src1,
        const tensor& src2,
        const tensor& gamma)
    {
        DLIB_CASSERT(&sum != &dest && &sum != &scale && &sum != &src1 && &sum != &src2,
            "\n\t sum is the same object as another argument.");
        const rms_norm_dims a = dims_of(src1), b = dims_of(src2);
        if (a == b && axes != rms_norm_axes::channel && !runs_on_cuda())
        {
            normalize_sum_of_tensors(
                on_cpu, axes, gain_offset, eps, dest, scale, sum, src1, src2, gamma);
            return;
        }
        set_size(sum, larger_dims(a, b));
        ::dlib::tt::add(sum, src1, src2);
        rms_normalize(axes, gain_offset, eps, dest, scale, sum, gamma);
    }

    // ----------------------------------------------------------------------------------------

}
