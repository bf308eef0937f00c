// License: Boost Software License   See LICENSE.txt for the full license.

// The functions on tensors. rms_norm_tools.h includes this once in each of contrib::cpu,
// contrib::cuda and contrib::tt, so there is no include guard. Their contract is in
// rms_norm_tools_abstract.h.

DLIB_RMS_NORM_API void rms_normalize(rms_norm_axes axes,
    double gain_offset,
    double eps,
    resizable_tensor& dest,
    resizable_tensor& scale,
    const tensor& src,
    const tensor& gamma);

inline void rms_normalize(double eps,
    resizable_tensor& dest,
    resizable_tensor& scale,
    const tensor& src,
    const tensor& gamma)
{
    rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma);
}

DLIB_RMS_NORM_API void rms_normalize_gradient(bool add_to,
    rms_norm_axes axes,
    double gain_offset,
    const tensor& gradient_input,
    const tensor& scale,
    const tensor& src,
    const tensor& gamma,
    tensor& src_grad,
    tensor& gamma_grad,
    resizable_tensor& dscale);

inline void rms_normalize_gradient(rms_norm_axes axes,
    double gain_offset,
    const tensor& gradient_input,
    const tensor& scale,
    const tensor& src,
    const tensor& gamma,
    tensor& src_grad,
    tensor& gamma_grad,
    resizable_tensor& dscale)
{
    rms_normalize_gradient(
        true, axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
}

inline void rms_normalize_gradient(const tensor& gradient_input,
    const tensor& scale,
    const tensor& src,
    const tensor& gamma,
    tensor& src_grad,
    tensor& gamma_grad,
    resizable_tensor& dscale)
{
    rms_normalize_gradient(
        rms_norm_axes::sample, 0, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
}
