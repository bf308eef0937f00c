// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_ARGUMENTS_H_
#define DLIB_RMS_NORM_ARGUMENTS_H_

// The requires clauses of rms_norm_tools_abstract.h as code, shared by the CPU and the CUDA
// functions. A broken clause fails a DLIB_CASSERT that names every value it compared, before
// any output is touched.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <dlib/assert.h>
#include <dlib/cuda/tensor.h>
#include "rms_norm_groups.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    inline rms_norm_dims dims_of(const tensor& t)
    {
        return {t.num_samples(), t.k(), t.nr(), t.nc()};
    }

    inline std::string to_string(const rms_norm_dims& d)
    {
        std::ostringstream sout;
        sout << "(" << d.num_samples << "," << d.k << "," << d.nr << "," << d.nc << ")";
        return sout.str();
    }

    inline const char* to_string(rms_norm_axes axes)
    {
        switch (axes)
        {
        case rms_norm_axes::sample: return "sample";
        case rms_norm_axes::row: return "row";
        case rms_norm_axes::channel: return "channel";
        }
        return "unknown";
    }

    inline const char* to_string(rms_norm_gain gain)
    {
        switch (gain)
        {
        case rms_norm_gain::per_channel: return "per_channel";
        case rms_norm_gain::per_element: return "per_element";
        case rms_norm_gain::none: return "none";
        }
        return "unknown";
    }

    // ----------------------------------------------------------------------------------------

    // By its bits: with -ffast-math a compiler takes every float for finite.
    inline bool is_finite_number(double value)
    {
        const std::uint64_t exponent = 0x7ff0000000000000;
        std::uint64_t bits = 0;
        static_assert(sizeof(bits) == sizeof(value), "double is IEEE 754 binary64");
        std::memcpy(&bits, &value, sizeof(bits));
        return (bits & exponent) != exponent;
    }

    inline bool is_valid_rms_norm_eps(double eps)
    {
        return is_finite_number(eps) && eps >= FLT_MIN && eps <= FLT_MAX;
    }

    inline bool is_valid_rms_norm_gain_offset(double gain_offset)
    {
        return is_finite_number(gain_offset) && std::abs(gain_offset) <= FLT_MAX;
    }

    inline bool is_valid_rms_norm_multiplier(double multiplier)
    {
        return is_finite_number(multiplier) && multiplier >= 0;
    }

    inline void check_rms_norm_eps(double eps)
    {
        DLIB_CASSERT(is_valid_rms_norm_eps(eps),
            "\n\t eps has to be a positive, normal float.\n\t eps: " << eps);
    }

    inline void check_rms_norm_gain_offset(double gain_offset)
    {
        DLIB_CASSERT(is_valid_rms_norm_gain_offset(gain_offset),
            "\n\t The gain offset has to be a finite float.\n\t gain_offset: " << gain_offset);
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_buffer
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where an argument lies in the memory of the device that will use it.
        !*/
        const char* name;
        const float* data;
        std::size_t size;

        bool overlaps(const rms_norm_buffer& b) const
        {
            const auto begin = reinterpret_cast<std::uintptr_t>(data);
            const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
            return size != 0 && b.size != 0 && begin < b_begin + b.size * sizeof(float) &&
                b_begin < begin + size * sizeof(float);
        }

        bool is_same_as(const rms_norm_buffer& b) const { return data == b.data && size == b.size; }
    };

    inline void refuse_overlap(const rms_norm_buffer& output, const rms_norm_buffer& other)
    {
        DLIB_CASSERT(!output.overlaps(other),
            "\n\t The memory of " << output.name << " overlaps that of " << other.name << "."
                                  << "\n\t " << output.name << ": " << output.size
                                  << " floats from " << output.data << "\n\t " << other.name << ": "
                                  << other.size << " floats from " << other.data);
    }

    template <typename... buffers>
    void check_output_is_apart(const rms_norm_buffer& output, const buffers&... others)
    {
        // The message is made elsewhere: for one row of 64 values the checks count.
        if ((output.overlaps(others) || ...))
            (refuse_overlap(output, others), ...);
    }

    inline void check_rms_norm_gamma(rms_norm_axes axes,
        double gain_offset,
        const tensor& src,
        const tensor& gamma,
        rms_norm_groups& groups)
    {
        DLIB_CASSERT(make_rms_norm_groups(axes, dims_of(src), dims_of(gamma), groups),
            "\n\t The shape of gamma does not fit src."
                << "\n\t axes:        " << to_string(axes)
                << "\n\t src shape:   " << to_string(dims_of(src))
                << "\n\t gamma shape: " << to_string(dims_of(gamma)) << "\n\t it can be    "
                << to_string(rms_norm_gamma_dims(axes, rms_norm_gain::per_channel, dims_of(src)))
                << " or "
                << to_string(rms_norm_gamma_dims(axes, rms_norm_gain::per_element, dims_of(src)))
                << " or empty");
        check_rms_norm_gain_offset(gain_offset);
    }

    // ----------------------------------------------------------------------------------------

    template <typename address_of>
    bool check_rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        const tensor& dest,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        const address_of& address,
        rms_norm_groups& groups)
    /*!
        requires
            - address(t) == where the tensor t lies in the memory of the device that will be used
        ensures
            - checks what rms_normalize() requires
            - returns whether dest is the memory of src
            - #groups == the groups of src
    !*/
    {
        check_rms_norm_eps(eps);
        check_rms_norm_gamma(axes, gain_offset, src, gamma, groups);

        const rms_norm_buffer to = {"dest", address(dest), dest.size()};
        const rms_norm_buffer stats = {"scale", address(scale), scale.size()};
        const rms_norm_buffer from = {"src", address(src), src.size()};
        const rms_norm_buffer gain = {"gamma", address(gamma), gamma.size()};

        DLIB_CASSERT(&dest != &scale, "\n\t dest and scale are the same object.");
        const bool in_place = to.is_same_as(from);
        if (!in_place)
            check_output_is_apart(to, from);
        check_output_is_apart(to, gain);
        check_output_is_apart(stats, to, from, gain);

        return in_place;
    }

    template <typename address_of>
    void check_rms_normalize_sum(rms_norm_axes axes,
        double gain_offset,
        double eps,
        const tensor& dest,
        const tensor& scale,
        const tensor& sum,
        const tensor& src1,
        const tensor& src2,
        const tensor& gamma,
        const address_of& address,
        rms_norm_groups& groups)
    /*!
        requires
            - address(t) == where the tensor t lies in the memory of the device that will be used
            - src1 and src2 have the same shape
        ensures
            - checks what rms_normalize_sum() requires
            - #groups == the groups of the sum
    !*/
    {
        check_rms_normalize(axes, gain_offset, eps, dest, scale, src1, gamma, address, groups);

        const rms_norm_buffer to = {"dest", address(dest), dest.size()};
        const rms_norm_buffer stats = {"scale", address(scale), scale.size()};
        const rms_norm_buffer h = {"sum", address(sum), sum.size()};
        const rms_norm_buffer x = {"src1", address(src1), src1.size()};
        const rms_norm_buffer r = {"src2", address(src2), src2.size()};
        const rms_norm_buffer gain = {"gamma", address(gamma), gamma.size()};
        check_output_is_apart(to, x, r);
        check_output_is_apart(h, to, stats, x, r, gain);
        check_output_is_apart(stats, r);
    }

    template <typename address_of>
    bool check_rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        const tensor& src_grad,
        const tensor& gamma_grad,
        const tensor& dscale,
        const address_of& address,
        rms_norm_groups& groups)
    /*!
        requires
            - address(t) == where the tensor t lies in the memory of the device that will be used
        ensures
            - checks what rms_normalize_gradient() requires
            - returns whether src_grad is the memory of gradient_input
            - #groups == the groups of src
    !*/
    {
        check_rms_norm_gamma(axes, gain_offset, src, gamma, groups);
        DLIB_CASSERT(dims_of(gradient_input) == dims_of(src) && dims_of(src_grad) == dims_of(src),
            "\n\t gradient_input, src and src_grad have to have the same shape."
                << "\n\t gradient_input shape: " << to_string(dims_of(gradient_input))
                << "\n\t src shape:            " << to_string(dims_of(src))
                << "\n\t src_grad shape:       " << to_string(dims_of(src_grad)));
        DLIB_CASSERT(static_cast<long long>(scale.size()) == groups.num_groups(),
            "\n\t scale has to hold one number per group of src."
                << "\n\t axes:         " << to_string(axes) << "\n\t src shape:    "
                << to_string(dims_of(src)) << "\n\t groups:       " << groups.num_groups()
                << "\n\t scale.size(): " << scale.size());
        DLIB_CASSERT(dims_of(gamma_grad) == dims_of(gamma) || gamma_grad.size() + gamma.size() == 0,
            "\n\t gamma and gamma_grad have to have the same shape."
                << "\n\t gamma shape:      " << to_string(dims_of(gamma))
                << "\n\t gamma_grad shape: " << to_string(dims_of(gamma_grad)));

        const rms_norm_buffer d = {
            "gradient_input", address(gradient_input), gradient_input.size()};
        const rms_norm_buffer stats = {"scale", address(scale), scale.size()};
        const rms_norm_buffer from = {"src", address(src), src.size()};
        const rms_norm_buffer gain = {"gamma", address(gamma), gamma.size()};
        const rms_norm_buffer dx = {"src_grad", address(src_grad), src_grad.size()};
        const rms_norm_buffer dgain = {"gamma_grad", address(gamma_grad), gamma_grad.size()};
        const rms_norm_buffer dstats = {"dscale", address(dscale), dscale.size()};

        const bool in_place = dx.is_same_as(d);
        if (!in_place)
            check_output_is_apart(dx, d);
        check_output_is_apart(dx, stats, from, gain);
        check_output_is_apart(dgain, d, stats, from, gain, dx);
        check_output_is_apart(dstats, d, stats, from, gain, dx, dgain);

        return in_place;
    }

    // ----------------------------------------------------------------------------------------

    inline void set_size(resizable_tensor& t, const rms_norm_dims& d)
    /*!
        ensures
            - gives t the shape d
            - if (there is no memory for it) then
                - throws what dlib throws, and #t is empty. (dlib alone leaves t with a size that
                  it has no memory for.)
    !*/
    {
        try
        {
            t.set_size(d.num_samples, d.k, d.nr, d.nc);
        }
        catch (...)
        {
            t.clear();
            throw;
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_ARGUMENTS_H_
