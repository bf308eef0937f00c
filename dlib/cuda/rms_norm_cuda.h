// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CUDA_H_
#define DLIB_RMS_NORM_CUDA_H_

// A pass on the current CUDA device, and where that device finds a tensor. Everything runs on the
// default stream, as all of dlib's kernels do, because that is what dlib's tensors and its scratch
// buffer are synchronized with.

#include <dlib/cuda/tensor.h>
#include "rms_norm_pass.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_on_device
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Device memory, and the functions that do a pass there (see rms_norm_tensors.h).
                They throw dlib::cuda_error.
        !*/

        const float* address(const tensor& t) const { return t.size() == 0 ? nullptr : t.device(); }
        const float* read(const tensor& t) const { return address(t); }
        float* read_and_write(tensor& t) const { return t.size() == 0 ? nullptr : t.device(); }
        float* write(tensor& t) const { return t.size() == 0 ? nullptr : t.device_write_only(); }
        void run(const rms_norm_forward<float>& pass) const;
        void run(const rms_norm_backward<float>& pass) const;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CUDA_H_
