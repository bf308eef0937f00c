// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_PASS_H_
#define DLIB_RMS_NORM_PASS_H_

// All that one forward or backward pass needs to know: what lies where, and the options. Tensors
// are turned into a pass in one place (rms_norm_tensors.h). Below it the CPU and CUDA are alike:
// a plan, which is a function of the sizes, then loops or kernels. A new option is a field here.
// This file includes nothing but the groups, so that kernels can be compiled without dlib.

#include "rms_norm_groups.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_forward
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                For each group, with g == gain_offset + gamma (1 if gamma is null):
                    scale == s == 1/sqrt(mean(x^2) + eps)
                    y == (x*s)*g

            CONVENTION
                - All pointers are to memory of the device that does the pass.
                - y is x or apart from it; all else is apart.
                - gamma is null if and only if groups.num_gains == 0
        !*/

        rms_norm_groups groups;
        double eps = 0;
        float gain_offset = 0;

        const T* x = nullptr;
        const T* gamma = nullptr;
        T* y = nullptr;
        float* scale = nullptr; // one per group
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_backward
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                For each group, with d the gradient of y, s its scale and m == mean(g*d*(x*s)):
                    dx == s*(g*d - (x*s)*m)                 assigned, or added if add
                    dscale == -0.5 * s^3 * sum(g*d*x)       the derivative by mean(x^2)
                and over all values that share a gain:
                    dgamma == sum(d*x*s)

            CONVENTION
                - All pointers are to memory of the device that does the pass.
                - dx may be d if !add; all else is apart.
                - gamma and dgamma are null if and only if groups.num_gains == 0
        !*/

        rms_norm_groups groups;
        float gain_offset = 0;

        const T* d = nullptr;
        const T* x = nullptr;
        const T* gamma = nullptr;
        const float* scale = nullptr; // one per group, as the forward pass left it
        T* dx = nullptr;
        bool add = false;
        T* dgamma = nullptr;
        float* dscale = nullptr; // one per group
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_PASS_H_
