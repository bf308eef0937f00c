// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_LAUNCH_H_
#define DLIB_RMS_NORM_LAUNCH_H_

// From a pass and its plan to launched CUDA kernels. They need the CUDA runtime but not dlib. They
// only put work on the stream, and return what the runtime says about that.

#include <cuda_runtime_api.h>
#include "rms_norm_cuda_plan.h"
#include "rms_norm_pass.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    cudaError_t get_rms_norm_device(int id, rms_norm_device& device);
    /*!
        ensures
            - #device == what plans need to know of the device with this number
    !*/

    // ----------------------------------------------------------------------------------------

    cudaError_t launch_rms_normalize(const rms_norm_forward<float>& pass,
        const rms_norm_forward_plan& plan,
        void* workspace,
        cudaStream_t stream);

    cudaError_t launch_rms_normalize_gradient(const rms_norm_backward<float>& pass,
        const rms_norm_backward_plan& plan,
        void* workspace,
        cudaStream_t stream);
    /*!
        requires
            - all pointers are to memory of the current device
            - plan was made for the pass, and for this device or one with less shared memory
            - workspace has plan.workspace_bytes bytes and begins at a multiple of 8. It is apart
              from what the pass points to.
        ensures
            - does what rms_norm_forward or rms_norm_backward says, when the stream gets to it
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_LAUNCH_H_
