// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_CUDA_ON_CPU_BACKEND_H_
#define DLIB_TEST_CUDA_ON_CPU_BACKEND_H_

// The CUDA kernels as an implementation that the general tests can be run on.

#include "../rms_norm_backend.h"

namespace test
{
    rms_norm_backend cuda_on_cpu_backend();
    /*!
        ensures
            - returns the kernels' own source, run on the CPU. Arguments are checked as they are
              for CUDA; each call may use exactly the memory of its arguments and a workspace of
              exactly the size asked for; outputs and workspace are full of NaN before.
            - Prints the seed that the order of blocks and threads depends on.
            - The functions throw cuda_on_cpu::fault if a kernel does what it must not do.
    !*/
}

#endif // DLIB_TEST_CUDA_ON_CPU_BACKEND_H_
