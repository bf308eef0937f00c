// License: Boost Software License   See LICENSE.txt for the full license.
#undef DLIB_RMS_NORM_TOOLS_ABSTRACT_H_
#ifdef DLIB_RMS_NORM_TOOLS_ABSTRACT_H_

#include "rms_norm_groups.h"

namespace dlib
{
namespace contrib
{

// ----------------------------------------------------------------------------------------

    enum class rms_norm_axes
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Which values of a (num_samples, k, nr, nc) tensor are normalized together. Such
                a set is called a group.

                    sample:   all k*nr*nc values of a sample. One gain per channel k.
                    row:      the nc values of one row. One gain per column.
                    channel:  the k values at one (sample, r, c). One gain per channel k.
        !*/
        sample,
        row,
        channel
    };

    enum class rms_norm_gain
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The kinds of gain, and the shape of gamma that each of them asks for:

                    per_channel:  (1,k,1,1) with sample and channel axes, (1,1,1,nc) with row axes
                    per_element:  (1,k,nr,nc) with sample axes; with the others each value of a
                                  group has its own channel or column, so it is per_channel
                    none:         gamma is empty
        !*/
        per_channel,
        per_element,
        none
    };

// ----------------------------------------------------------------------------------------

namespace tt
{
    /*!
        The functions below are also in contrib::cpu and, if dlib was built with CUDA, in
        contrib::cuda. Those in contrib::tt call the one that fits the device dlib uses. All
        have the same contract.

        Let u == 2^-24, the relative error of one rounding to float. The error bounds below hold
        in the range of normal floats. Every product that falls below it has, in place of a
        relative error, an absolute one of up to 2^-150. This includes s where the root mean
        square of a group is above 2^126: its relative error can then be 4*u instead of u.

        The results are the same bits however many threads compute them, whatever groups lie
        around a group, and wherever the tensors lie in memory. The CPU functions give the same
        bits with every instruction set of x86, and the same bits on x86 and on 64-bit ARM (a NaN
        is a NaN there too, but its bits are the processor's). The CUDA functions give the same
        bits on every device that gives as much shared memory to a block.
    !*/

// ----------------------------------------------------------------------------------------

    void rms_normalize(
        rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma
    );
    /*!
        requires
            - eps is finite and not below the smallest normal float (about 1.18e-38), and not
              above the largest float
            - gain_offset is finite as a float
            - gamma is empty or has one of the shapes that rms_norm_gain lists for axes and src
            - dest can be src or have the memory of src. Apart from that dest, scale, src and
              gamma do not overlap in memory.
        ensures
            - have_same_dimensions(#dest, src) == true
            - Let n be the number of values in a group of src, and for each group let
                - x be its values
                - s == 1/sqrt(mean(x^2) + eps)
                - g == gain_offset + gamma, as one addition of floats, for the gamma that belongs
                  to a value: the one of its channel, column or element. If gamma is empty then
                  g == 1.
              Then
                - #dest == (x*s)*g, with an error of at most 4*u*|x*s*g|
                - #scale holds s, with an error of at most u*s
            - #scale has one value per group:
                - if (axes == sample) then it has the shape (src.num_samples(), 1, 1, 1)
                - if (axes == row) then it has the shape (src.num_samples(), src.k(), src.nr(), 1)
                - if (axes == channel) then it has the shape (src.num_samples(), 1, src.nr(), src.nc())
                - if (src.size() == 0) then it is empty
            - The mean is computed in double, so nothing overflows for any finite src. A value of
              src that is infinite or NaN makes its own group NaN (0 for the finite values beside
              an infinite one) and changes no other group.
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too), before any output is
              touched, if one of the requirements is not met. The message names the values.

        The formula is that of "Root Mean Square Layer Normalization" (Zhang and Sennrich, 2019).
        The order of roundings is that of the Llama reference model in float32; with
        gain_offset == 1 it is that of the Gemma reference model.
    !*/

    void rms_normalize(
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma
    );
    /*!
        ensures
            - performs rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma)
    !*/

// ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(
        bool add_to,
        rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale
    );
    /*!
        requires
            - scale is what rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma) computed.
              In particular it has one value per group of src.
            - gain_offset is finite as a float
            - gamma is empty or has one of the shapes that rms_norm_gain lists for axes and src
            - have_same_dimensions(gradient_input, src)
            - have_same_dimensions(src_grad, src)
            - have_same_dimensions(gamma_grad, gamma), or both are empty
            - src_grad can be gradient_input or have the memory of gradient_input. Apart from
              that src_grad, gamma_grad and dscale overlap in memory neither with each other nor
              with another argument.
        ensures
            - Let f(src, gamma) == dot(gradient_input, dest), where dest is the output of
              rms_normalize(axes, gain_offset, eps, dest, scale, src, gamma). For each group let
                - d be its values of gradient_input
                - x, s, g and n be as in rms_normalize(), s as it stands in scale
                - m == mean(g*d*(x*s))
              Then the gradient of f with respect to src is s*(g*d - (x*s)*m), and that with
              respect to gamma is the sum of d*x*s over all values that share a gain.
            - if (!add_to or src_grad is the memory of gradient_input) then
                - assigns the gradient of f with respect to src to #src_grad
            - else
                - adds the gradient of f with respect to src to #src_grad
            - assigns the gradient of f with respect to gamma to #gamma_grad. If src has no
              values then #gamma_grad == 0.
            - The gradient with respect to src has an error of at most
              8*u*s*(|g*d| + |x*s*m|), and that with respect to gamma one of at most
              2*u*(sum of |d*x*s|), both beside the same with the exact s. This holds for every
              input with |g*d|, |m| and |x*s*m| in float's range. Where one of them is beyond it,
              the gradient can be infinite or NaN.
            - #dscale has the shape of the scale that rms_normalize() computes, and holds
              -0.5 * s^3 * (sum of g*d*x), the derivative of f by the mean of x^2, with an error of
              at most 4*u*|#dscale| and what a sum of doubles loses. (It is summed in double and
              rounded once. In dlib 20, too, dscale holds this.)
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too), before any output is
              touched, if one of the requirements is not met. The message names the values.
    !*/

    void rms_normalize_gradient(
        rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale
    );
    /*!
        ensures
            - performs rms_normalize_gradient(true, axes, gain_offset, gradient_input, scale, src,
              gamma, src_grad, gamma_grad, dscale)
    !*/

    void rms_normalize_gradient(
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale
    );
    /*!
        ensures
            - performs rms_normalize_gradient(rms_norm_axes::sample, 0, gradient_input, scale,
              src, gamma, src_grad, gamma_grad, dscale)
    !*/

// ----------------------------------------------------------------------------------------

    void rms_normalize_sum(
        rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        resizable_tensor& sum,
        const tensor& src1,
        const tensor& src2,
        const tensor& gamma
    );
    /*!
        (There is this function in tt only.)
        requires
            - eps, gain_offset and gamma are as in rms_normalize(), for a src of the shape of #sum
            - dest, scale and sum overlap in memory neither with each other nor with another
              argument
        ensures
            - performs
                - tt::add(sum, src1, src2), after giving sum the larger of the two in each of the
                  four dimensions
                - rms_normalize(axes, gain_offset, eps, dest, scale, sum, gamma)
              with the same bits. On the CPU, for sample and row axes and for sources of the same
              shape, memory is gone through once.
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too), before dest and scale are
              touched, if one of the requirements is not met. The message names the values.
    !*/

// ----------------------------------------------------------------------------------------

}
}
}

#endif // DLIB_RMS_NORM_TOOLS_ABSTRACT_H_
