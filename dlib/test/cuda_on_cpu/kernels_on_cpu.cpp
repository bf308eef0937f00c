// License: Boost Software License   See LICENSE.txt for the full license.

// The source of the CUDA kernels and launchers, compiled for the CPU.

#include "kernels_on_cpu.h"

#define cuda DLIB_TEST_KERNEL_NAMESPACE
#include "../../cuda/rms_norm_launch.cu"
#undef cuda
