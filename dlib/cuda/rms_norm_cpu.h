// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CPU_H_
#define DLIB_RMS_NORM_CPU_H_

// A pass on the CPU.

#include "rms_norm_pass.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    void rms_normalize(const rms_norm_forward<float>& pass);

    void rms_normalize_gradient(const rms_norm_backward<float>& pass);

    const char* rms_norm_instruction_set();
    /*!
        ensures
            - returns the name of the instruction set that these functions use on this machine
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CPU_H_
