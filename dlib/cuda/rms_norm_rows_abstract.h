// License: Boost Software License   See LICENSE.txt for the full license.
#undef DLIB_RMS_NORM_ROWS_ABSTRACT_H_
#ifdef DLIB_RMS_NORM_ROWS_ABSTRACT_H_

#include "rms_norm_groups.h"

namespace dlib
{
namespace contrib
{

// ----------------------------------------------------------------------------------------

    struct float16
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A number of 16 bits: IEEE 754's binary16, with the bits of __half and _Float16. It
                is only stored: to compute, convert it.

                bfloat16, the upper half of a float, with the bits of __nv_bfloat16, has the same
                members.
        !*/

        float16(
        ) = default;
        /*!
            ensures
                - #bits has an undefined value, as that of a float has
        !*/

        explicit float16(
            float value
        );
        explicit float16(
            double value
        );
        /*!
            ensures
                - #*this is the number that is nearest to value and, if two are, the one whose last
                  bit is 0. A value that is half a step or more beyond the largest number becomes
                  infinity, and NaN stays NaN. The rounding mode of the processor does not matter.
        !*/

        explicit operator float(
        ) const;
        /*!
            ensures
                - returns this number: every one is a float. NaN stays NaN.
        !*/

        std::uint16_t bits;
    };

// ----------------------------------------------------------------------------------------

    enum class rms_norm_casting
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where results are rounded to the type T of the rows, which makes a difference if T
                is float16 or bfloat16. All operations between are in float. Let T(v) be v rounded
                to T, and the other letters as in the functions below.

                    none:   y  == T((x*s)*g)
                            dx == T(s*(g*d - (x*s)*m)),           dgamma == T(sum of d*(x*s))
                    llama:  y  == T(T(x*s)*g)
                            dx == T(s*(T(g*d) - (x*s)*m)),        dgamma == T(sum of T(d*T(x*s)))
                            with m == mean(T(g*d)*(x*s))
                    gemma:  as none. Its model has the gain offset 1, which has to be given too.

                So llama and gemma are what the reference models of these names compute, in both
                directions. none loses the least.
        !*/
        none,
        llama,
        gemma
    };

// ----------------------------------------------------------------------------------------

    rms_norm_groups rms_norm_rows (
        long long rows,
        long long size,
        bool has_gamma
    );
    /*!
        ensures
            - returns what the member `groups` of the structs below has to be for so many rows of so
              many values that have one gain per column or none
    !*/

    template <typename T>
    struct rms_norm_forward
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The arguments of rms_normalize() for rows of type T. The pointers are to memory of
                the device that does the work, and stay the caller's.

                A row stride is the distance between the first values of two neighbouring rows, in
                values. 0 stands for groups.size: rows without gaps.
        !*/

        rms_norm_groups groups;
        double eps = 0;
        float gain_offset = 0;
        rms_norm_casting casting = rms_norm_casting::none;

        const T* x = nullptr;       // the rows
        const T* gamma = nullptr;   // groups.num_gains values
        T* y = nullptr;             // the output
        float* scale = nullptr;     // one number per row
        const T* r = nullptr;       // the residual, if there is one,
        T* h = nullptr;             // and where x + r goes

        long long x_stride = 0;
        long long y_stride = 0;
        long long r_stride = 0;
        long long h_stride = 0;
    };

    template <typename T>
    struct rms_norm_backward
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The arguments of rms_normalize_gradient() for rows of type T.
        !*/

        rms_norm_groups groups;
        float gain_offset = 0;
        rms_norm_casting casting = rms_norm_casting::none;

        const T* d = nullptr;           // the gradient of y
        const T* x = nullptr;           // what was normalized: x or, with a residual, h
        const T* gamma = nullptr;
        const float* scale = nullptr;   // as the forward pass left it
        T* dx = nullptr;                // the gradient of x and, with a residual, of r
        bool add = false;               // add it to what dx holds
        const T* dh = nullptr;          // the gradient of h that comes from elsewhere
        T* dgamma = nullptr;            // the gradient of gamma, rounded to T,
        float* dgamma_float = nullptr;  // or as float
        float* dscale = nullptr;        // the gradient of mean(x^2), one number per row

        long long d_stride = 0;
        long long x_stride = 0;
        long long dx_stride = 0;
        long long dh_stride = 0;
    };

// ----------------------------------------------------------------------------------------

namespace cpu
{
    /*!
        Let u == 2^-24, the relative error of one rounding to float, and let "half a unit" be half of
        the distance of two neighbouring numbers of type T. The bounds hold where no result in float
        leaves the range of normal floats.

        The results are the same bits however many threads compute them, whatever rows lie around
        a row, wherever the rows lie in memory, in place or not, with every instruction set of x86.
        If T is float they are those of the functions on tensors (rms_norm_tools_abstract.h) with
        row axes. With a residual they are those of an addition before and after.
    !*/

    template <typename T>
    void rms_normalize (
        const rms_norm_forward<T>& pass
    );
    /*!
        requires
            - T is float, float16 or bfloat16
            - pass.groups == rms_norm_rows(rows, size, has_gamma) for some rows >= 0, size >= 0
            - pass.eps is finite and not below the smallest normal float (about 1.18e-38), and
              not above the largest float
            - pass.gain_offset is finite, and pass.casting is one of the enumerators
            - pass.r and pass.h are both null or both not, and if there are no gains then pass.gamma
              is null
            - if (rows*size != 0) then
                - x, y and scale are not null. If there are gains, then neither is gamma.
                - all addresses are multiples of the size of the type they point to
                - every row stride is 0 or at least size, and no array ends beyond the end of memory
                - y can be x, and h can be r, with the same stride. Apart from that no value of y,
                  h and scale lies in another argument. Rows may lie between the rows of another
                  argument.
        ensures
            - if (r is not null) then
                - #h == T(x + r), as one addition of floats, and below x stands for it
            - For each row let
                - s == 1/sqrt(mean(x^2) + eps)
                - g == gain_offset + gamma, as one addition of floats (gamma if gain_offset == 0).
                  If there are no gains then g == 1.
              Then
                - #scale holds s, with a relative error of at most u or, if T is not float, 4*u
                - #y == (x*s)*g with the s that is in #scale, rounded as pass.casting says. With
                  casting none or gemma it is within half a unit and 4*u*|x*s*g| of the exact value.
            - Nothing overflows for any finite x. A value that is infinite or NaN makes its own row
              NaN (0 for the finite values beside an infinite one) and changes no other row.
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too), before any output is
              touched, if one of the requirements is not met. The message names the values.
    !*/

    template <typename T>
    void rms_normalize_gradient (
        const rms_norm_backward<T>& pass
    );
    /*!
        requires
            - T is float, float16 or bfloat16
            - pass.groups, gain_offset, casting, gamma and scale are what rms_normalize() had, and
              has left in scale
            - pass.x is what was normalized: if there was a residual, then h
            - pass.add and pass.dh are not both set
            - pass.dgamma and pass.dgamma_float are not both set, and neither is if there are no
              gains. Each of them, dh and dscale can be null: what is null is left out.
            - if (rows*size != 0) then
                - d, x, scale and dx are not null
                - addresses and row strides are as for rms_normalize()
                - if (!add) then dx can be d, with the same stride. dx can be dh. Apart from that no
                  value of dx, dgamma, dgamma_float and dscale lies in another argument.
        ensures
            - For each row let s be as it stands in scale, g as in rms_normalize(), and
                - m == mean(g*d*(x*s))
                - v == s*(g*d - (x*s)*m), rounded as pass.casting says
              Then
                - if (add) then #dx == T(dx + v)
                - else if (dh is not null) then #dx == T(dh + v)
                - else #dx == v
            - #dgamma or #dgamma_float is the sum of d*(x*s), rounded as pass.casting says, over the
              rows; 0 if there are no values.
            - #dscale == -0.5*s^2*(sum of g*d*(x*s))
            - If T is float then the errors are those of the functions on tensors. Else, with the
              roundings to T that pass.casting asks for taken as exact,
                - the error of v is at most half a unit and 16*u*s*(|g*d| + |x*s|*mean|g*d*(x*s)|)
                - that of dgamma half a unit, and 8*u*(sum of |d*(x*s)|). dgamma_float has only the
                  latter.
                - that of dscale 16*u*s^2*(sum of |g*d*(x*s)|)
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too), before any output is
              touched, if one of the requirements is not met. The message names the values.
    !*/
}

// ----------------------------------------------------------------------------------------

}
}

#endif // DLIB_RMS_NORM_ROWS_ABSTRACT_H_
