// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_DEVICE_ON_CPU_H_
#define DLIB_TEST_DEVICE_ON_CPU_H_

// A pass on the current device, as rms_norm_cuda.h has it: its own source, compiled for the CPU.

#include "../../cuda/rms_norm_pass.h"

namespace test
{
    void run_on_device(const dlib::contrib::rms_norm_forward<float>& pass);
    void run_on_device(const dlib::contrib::rms_norm_backward<float>& pass);
    /*!
        ensures
            - The workspace is full of NaN before and can be seen by kernels of this call alone.
        throws
            - dlib::cuda_error
    !*/
}

#endif // DLIB_TEST_DEVICE_ON_CPU_H_
