// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_PASS_H_
#define DLIB_RMS_NORM_PASS_H_

// All that one forward or backward pass needs to know: what lies where, and the options. Tensors
// are turned into a pass in one place (rms_norm_tensors.h); whoever has rows in memory of his own
// fills one in himself (rms_norm_rows.h). Below it the CPU and CUDA are alike: a plan, which is a
// function of the sizes, then loops or kernels. A new option is a field here.
//
// What the kernels for tensors take is a part of a pass: from 128 bytes of arguments on, nvcc uses
// more registers for the same code.
//
// This file includes nothing but the groups, so that kernels can be compiled without dlib.

#include "rms_norm_groups.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    enum class rms_norm_casting
    {
        // Where results are rounded to T, if T is shorter than float. See rms_norm_rows_abstract.h
        none = 0,
        llama = 1,
        gemma = 2
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_tensor_forward
    {
        // As much of a forward pass as a tensor needs.
        rms_norm_groups groups;
        double eps = 0;
        float gain_offset = 0;
        rms_norm_casting casting = rms_norm_casting::none;

        const T* x = nullptr;
        const T* gamma = nullptr;
        T* y = nullptr;
        float* scale = nullptr; // one per group
    };

    template <typename T>
    struct rms_norm_forward : rms_norm_tensor_forward<T>
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                For each group, with g == gain_offset + gamma (1 if gamma is null):
                    if (r) then h == x + r, rounded to T, and h takes the place of x below
                    scale == s == 1/sqrt(mean(x^2) + eps)
                    y == (x*s)*g

            CONVENTION
                - T is float, float16 or bfloat16
                - All pointers are to memory of the device that does the pass.
                - y is x or apart from it, h is r or apart from it; all else is apart.
                - gamma is null if and only if groups.num_gains == 0
                - r and h are both null or both not
                - A row stride is the distance between the first values of neighbouring groups. 0
                  means that they lie as groups says; other values only if groups.stride == 1.
        !*/

        const T* r = nullptr;
        T* h = nullptr;

        long long x_stride = 0;
        long long y_stride = 0;
        long long r_stride = 0;
        long long h_stride = 0;
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_tensor_backward
    {
        // As much of a backward pass as a tensor needs.
        rms_norm_groups groups;
        float gain_offset = 0;
        rms_norm_casting casting = rms_norm_casting::none;

        const T* d = nullptr;
        const T* x = nullptr;
        const T* gamma = nullptr;
        const float* scale = nullptr; // one per group, as the forward pass left it
        T* dx = nullptr;
        bool add = false;
        T* dgamma = nullptr;
        float* dscale = nullptr; // one per group
    };

    template <typename T>
    struct rms_norm_backward : rms_norm_tensor_backward<T>
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                For each group, with d the gradient of y, s its scale and m == mean(g*d*(x*s)):
                    dx == s*(g*d - (x*s)*m)                 assigned, or added if add
                    dscale == -0.5 * s^3 * sum(g*d*x)       the derivative by mean(x^2)
                and over all values that share a gain:
                    dgamma == sum(d*x*s)
                if (dh) then it is added to what is assigned to dx.

            CONVENTION
                - T is float, float16 or bfloat16
                - All pointers are to memory of the device that does the pass.
                - if (!add) then dx may be d, and it may be dh; all else is apart.
                - gamma is null if and only if groups.num_gains == 0. Then dgamma and dgamma_float
                  are null too, else one of them or none is.
                - dscale and dh may be null. if (add) then dh is.
                - Row strides are as in rms_norm_forward.
        !*/

        const T* dh = nullptr;
        float* dgamma_float = nullptr; // dgamma, not rounded to T

        long long d_stride = 0;
        long long x_stride = 0;
        long long dx_stride = 0;
        long long dh_stride = 0;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_PASS_H_
