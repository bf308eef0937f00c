// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CUDA_H_
#define DLIB_RMS_NORM_CUDA_H_

// RMS normalization with CUDA, if dlib was built with it. The contract of these functions is in
// rms_norm_tools_abstract.h.

#include <dlib/cuda/tensor.h>
#include "rms_norm_groups.h"

#ifdef DLIB_USE_CUDA

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    void rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma);

    void rms_normalize(double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma);

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale);

    void rms_normalize_gradient(const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale);

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_USE_CUDA

#endif // DLIB_RMS_NORM_CUDA_H_
