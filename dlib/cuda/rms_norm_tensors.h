// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TENSORS_H_
#define DLIB_RMS_NORM_TENSORS_H_

// From tensors to a pass: checks, sizes of the outputs, where the memory lies. The CPU, CUDA and
// the kernels that the tests run on the CPU all come through here. They differ in `on`, an
// object with these members:
//
//     const float* address(const tensor& t)     where t lies; null if it is empty
//     const float* read(const tensor& t)        the same, with what was last written to t
//     float* read_and_write(tensor& t)
//     float* write(tensor& t)                   for what will be overwritten wholly
//     void run(const rms_norm_forward<float>&)
//     void run(const rms_norm_backward<float>&)

#include <dlib/cuda/tensor.h>
#include "rms_norm_arguments.h"
#include "rms_norm_pass.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_on_host
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Host memory, and the functions that do a pass there.
        !*/
        void (*forward)(const rms_norm_forward<float>&);
        void (*backward)(const rms_norm_backward<float>&);

        const float* address(const tensor& t) const { return t.host(); }
        const float* read(const tensor& t) const { return t.size() == 0 ? nullptr : t.host(); }
        float* read_and_write(tensor& t) const { return t.size() == 0 ? nullptr : t.host(); }
        float* write(tensor& t) const { return t.size() == 0 ? nullptr : t.host_write_only(); }
        void run(const rms_norm_forward<float>& pass) const { forward(pass); }
        void run(const rms_norm_backward<float>& pass) const { backward(pass); }
    };

    // ----------------------------------------------------------------------------------------

    template <typename device>
    void normalize_tensors(device&& on,
        rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        const auto address = [&on](const tensor& t) { return on.address(t); };
        rms_norm_forward<float> pass;
        const bool in_place = check_rms_normalize(
            axes, gain_offset, eps, dest, scale, src, gamma, address, pass.groups);
        pass.eps = eps;
        pass.gain_offset = static_cast<float>(gain_offset);

        set_size(dest, dims_of(src));
        set_size(scale, rms_norm_scale_dims(axes, dims_of(src)));
        if (pass.groups.num_values() == 0)
            return;

        pass.x = on.read(src);
        pass.gamma = on.read(gamma);
        pass.y = in_place ? on.read_and_write(dest) : on.write(dest);
        pass.scale = on.write(scale);
        on.run(pass);
    }

    // ----------------------------------------------------------------------------------------

    template <typename device>
    void normalize_sum_of_tensors(device&& on,
        rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        resizable_tensor& sum,
        const tensor& src1,
        const tensor& src2,
        const tensor& gamma)
    {
        const auto address = [&on](const tensor& t) { return on.address(t); };
        rms_norm_forward<float> pass;
        check_rms_normalize_sum(
            axes, gain_offset, eps, dest, scale, sum, src1, src2, gamma, address, pass.groups);
        pass.eps = eps;
        pass.gain_offset = static_cast<float>(gain_offset);

        set_size(sum, dims_of(src1));
        set_size(dest, dims_of(src1));
        set_size(scale, rms_norm_scale_dims(axes, dims_of(src1)));
        if (pass.groups.num_values() == 0)
            return;

        pass.x = on.read(src1);
        pass.r = on.read(src2);
        pass.gamma = on.read(gamma);
        pass.h = on.write(sum);
        pass.y = on.write(dest);
        pass.scale = on.write(scale);
        on.run(pass);
    }

    // ----------------------------------------------------------------------------------------

    template <typename device>
    void normalize_gradient_of_tensors(device&& on,
        bool add_to,
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
        const auto address = [&on](const tensor& t) { return on.address(t); };
        rms_norm_backward<float> pass;
        const bool in_place = check_rms_normalize_gradient(axes, gain_offset, gradient_input, scale,
            src, gamma, src_grad, gamma_grad, dscale, address, pass.groups);
        pass.gain_offset = static_cast<float>(gain_offset);
        pass.add = add_to && !in_place;

        set_size(dscale, rms_norm_scale_dims(axes, dims_of(src)));
        if (pass.groups.num_values() == 0)
        {
            gamma_grad = 0;
            return;
        }

        pass.d = on.read(gradient_input);
        pass.x = on.read(src);
        pass.gamma = on.read(gamma);
        pass.scale = on.read(scale);
        pass.dx = pass.add || in_place ? on.read_and_write(src_grad) : on.write(src_grad);
        pass.dgamma = on.write(gamma_grad);
        pass.dscale = on.write(dscale);
        on.run(pass);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_TENSORS_H_
