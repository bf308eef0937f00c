// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TOOLS_H_
#define DLIB_RMS_NORM_TOOLS_H_

// RMS normalization of tensors on the CPU (contrib::cpu), with CUDA if dlib was built with it
// (contrib::cuda), and on the device that dlib uses (contrib::tt), which the layers call.

#include <dlib/cuda/tensor.h>
#include "rms_norm_tools_abstract.h"
#include "rms_norm_groups.h"
#include "../rms_norm_export.h"

namespace dlib::contrib::cpu
{
#include "rms_norm_functions.h"
}

#ifdef DLIB_USE_CUDA
namespace dlib::contrib::cuda
{
#include "rms_norm_functions.h"
}
#endif

namespace dlib::contrib::tt
{
#include "rms_norm_functions.h"

    DLIB_RMS_NORM_API void rms_normalize_sum(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        resizable_tensor& sum,
        const tensor& src1,
        const tensor& src2,
        const tensor& gamma);
}

#endif // DLIB_RMS_NORM_TOOLS_H_
