// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_KERNELS_ON_CPU_H_
#define DLIB_TEST_KERNELS_ON_CPU_H_

// The launchers of the CUDA kernels and their plans, as compiled for the CPU. They are in a
// namespace of their own, because a program that is built with CUDA has them twice. To that end
// the word cuda is another one while the headers are read, so all that they include comes first.

#include <cstddef>
#include <cuda_runtime_api.h>
#include "../../cuda/rms_norm_pass.h"

#define cuda DLIB_TEST_KERNEL_NAMESPACE
#include "../../cuda/rms_norm_cuda_plan.h"
#include "../../cuda/rms_norm_launch.h"
#undef cuda

namespace kernels = dlib::contrib::DLIB_TEST_KERNEL_NAMESPACE;

#endif // DLIB_TEST_KERNELS_ON_CPU_H_
