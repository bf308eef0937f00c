// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_H_
#define DLIB_RMS_NORM_H_

// RMS normalization for dlib: the one header to include.
//
// Everything is in dlib::contrib. Where dlib has no RMS normalization of its own the names are
// exported to dlib as well, so that code written for a dlib that has one compiles unchanged.

#include <dlib/rms_norm_config.h>
#include "cuda/rms_norm_rows.h"
#include "cuda/rms_norm_tools.h"
#include "dnn/rms_norm.h"

#ifndef DLIB_RMS_NORM_DLIB_HAS_ITS_OWN

namespace dlib
{
    using contrib::DEFAULT_RMS_NORM_EPS;
    using contrib::rms_norm;
    using contrib::rms_norm_;

    namespace cpu
    {
        using contrib::cpu::rms_normalize;
        using contrib::cpu::rms_normalize_gradient;
    }

#ifdef DLIB_USE_CUDA
    namespace cuda
    {
        using contrib::cuda::rms_normalize;
        using contrib::cuda::rms_normalize_gradient;
    }
#endif

    namespace tt
    {
        using contrib::tt::rms_normalize;
        using contrib::tt::rms_normalize_gradient;
    }
}

#endif

#endif // DLIB_RMS_NORM_H_
