// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_FLOAT16_H_
#define DLIB_RMS_NORM_FLOAT16_H_

// Numbers of 16 bits: float16 (IEEE 754 binary16; the bits of __half and _Float16) and bfloat16
// (the upper half of a float; the bits of __nv_bfloat16). They are only stored: to compute, convert
// them. The conversions use integers, so they are the same on every processor and in every rounding
// mode. This file includes nothing of dlib, so that kernels can be compiled without it.

#include <cstdint>
#include <cstring>
#include "rms_norm_groups.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    namespace float16_impl
    {
        DLIB_RMS_NORM_HOST_DEVICE inline std::uint32_t bits_of(float value)
        {
            std::uint32_t bits;
            std::memcpy(&bits, &value, sizeof(bits));
            return bits;
        }

        DLIB_RMS_NORM_HOST_DEVICE inline float float_of(std::uint32_t bits)
        {
            float value;
            std::memcpy(&value, &bits, sizeof(value));
            return value;
        }

        DLIB_RMS_NORM_HOST_DEVICE inline float round_to_odd(double value)
        /*!
            ensures
                - returns value, or if it is no float the one of its neighbours whose last bit is
                  set. That one can be rounded again, to a shorter type, as value would be.
        !*/
        {
            const float nearest = static_cast<float>(value);
            const double found = static_cast<double>(nearest);
            if (found == value)
                return nearest;
            const bool is_larger = value < 0 ? found < value : found > value;
            return float_of((bits_of(nearest) - (is_larger ? 1u : 0u)) | 1u);
        }

        DLIB_RMS_NORM_HOST_DEVICE inline std::uint32_t to_float16(std::uint32_t f)
        {
            const std::uint32_t sign = (f >> 16) & 0x8000u;
            const std::uint32_t a = f & 0x7fffffffu;
            if (a > 0x7f800000u) // NaN
                return sign | 0x7e00u | ((a >> 13) & 0x1ffu);
            if (a >= 0x47800000u) // 2^16
                return sign | 0x7c00u;
            if (a >= 0x38800000u) // 2^-14, the smallest normal float16
                return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
            if (a < 0x33000000u) // 2^-25, half of the smallest float16
                return sign;
            const std::uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
            const std::uint32_t shift = 126u - (a >> 23);
            const std::uint32_t units = mantissa >> shift; // of 2^-24
            const std::uint32_t half = 1u << (shift - 1);
            const std::uint32_t rest = mantissa - (units << shift);
            return sign | (units + (rest + (units & 1u) > half ? 1u : 0u));
        }

        DLIB_RMS_NORM_HOST_DEVICE inline std::uint32_t from_float16(std::uint32_t h)
        {
            const std::uint32_t sign = (h & 0x8000u) << 16;
            const std::uint32_t a = h & 0x7fffu;
            if (a > 0x7c00u) // NaN
                return sign | 0x7fc00000u | (a << 13);
            if (a == 0x7c00u) // infinity
                return sign | 0x7f800000u;
            if (a >= 0x400u) // normal
                return sign | ((a << 13) + 0x38000000u);
            return sign | bits_of(static_cast<float>(a) * 0x1p-24f);
        }

        DLIB_RMS_NORM_HOST_DEVICE inline std::uint32_t to_bfloat16(std::uint32_t f)
        {
            if ((f & 0x7fffffffu) > 0x7f800000u) // NaN
                return (f >> 16) | 0x40u;
            return (f + 0x7fffu + ((f >> 16) & 1u)) >> 16;
        }
    }

    // ----------------------------------------------------------------------------------------

    struct float16
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A number of 1 bit of sign, 5 bits of exponent and 10 bits of mantissa. Conversions
                to it round to the nearest, and half-way to the even one. NaN stays NaN.
        !*/
        float16() = default;

        DLIB_RMS_NORM_HOST_DEVICE explicit float16(float value) :
            bits(static_cast<std::uint16_t>(float16_impl::to_float16(float16_impl::bits_of(value))))
        {
        }

        DLIB_RMS_NORM_HOST_DEVICE explicit float16(double value) :
            float16(float16_impl::round_to_odd(value))
        {
        }

        DLIB_RMS_NORM_HOST_DEVICE explicit operator float() const
        {
            return float16_impl::float_of(float16_impl::from_float16(bits));
        }

        std::uint16_t bits;
    };

    struct bfloat16
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A number of 1 bit of sign, 8 bits of exponent and 7 bits of mantissa. Conversions
                to it round to the nearest, and half-way to the even one. NaN stays NaN.
        !*/
        bfloat16() = default;

        DLIB_RMS_NORM_HOST_DEVICE explicit bfloat16(float value) :
            bits(
                static_cast<std::uint16_t>(float16_impl::to_bfloat16(float16_impl::bits_of(value))))
        {
        }

        DLIB_RMS_NORM_HOST_DEVICE explicit bfloat16(double value) :
            bfloat16(float16_impl::round_to_odd(value))
        {
        }

        DLIB_RMS_NORM_HOST_DEVICE explicit operator float() const
        {
            return float16_impl::float_of(static_cast<std::uint32_t>(bits) << 16);
        }

        std::uint16_t bits;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_FLOAT16_H_
