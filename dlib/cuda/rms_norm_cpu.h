// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CPU_H_
#define DLIB_RMS_NORM_CPU_H_

// A pass on the CPU, for those who have checked it. T is float, float16 or bfloat16.

#include "rms_norm_float16.h"
#include "rms_norm_pass.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void normalize(const rms_norm_forward<T>& pass);

    template <typename T>
    void normalize_gradient(const rms_norm_backward<T>& pass);

    const char* rms_norm_instruction_set();
    /*!
        ensures
            - returns the name of the instruction set that these functions use on this machine
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CPU_H_
