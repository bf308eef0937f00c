// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_KERNELS_CUH_
#define DLIB_RMS_NORM_KERNELS_CUH_

// Launchers of the CUDA kernels, on raw device pointers. They need the CUDA runtime but not
// dlib. They only put work on the stream, and return what the runtime says about that.

#include <cstddef>
#include <cuda_runtime_api.h>
#include "rms_norm_cuda_plan.h"
#include "rms_norm_groups.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    cudaError_t rms_norm_current_device(rms_norm_device& device);

    // ----------------------------------------------------------------------------------------

    std::size_t rms_normalize_workspace_bytes(const rms_norm_groups& groups,
        const rms_norm_device& device);

    cudaError_t launch_rms_normalize(const rms_norm_groups& groups,
        const rms_norm_device& device,
        double eps,
        float gain_offset,
        const float* src,
        const float* gamma,
        float* dest,
        float* scale,
        void* workspace,
        cudaStream_t stream);
    /*!
        requires
            - dest is src or apart from it; all else is apart from each other
            - gamma may be null if groups.num_gains == 0
            - workspace has rms_normalize_workspace_bytes(groups, device) bytes and begins
    at a multiple of 8 ensures
            - #dest == the normalized values, #scale == one number for each group
    !*/

    // ----------------------------------------------------------------------------------------

    std::size_t rms_normalize_gradient_workspace_bytes(const rms_norm_groups& groups,
        const rms_norm_device& device);

    cudaError_t launch_rms_normalize_gradient(const rms_norm_groups& groups,
        const rms_norm_device& device,
        float gain_offset,
        const float* gradient_input,
        const float* scale,
        const float* src,
        const float* gamma,
        float* src_grad,
        bool add_to_src_grad,
        float* gamma_grad,
        float* dscale,
        void* workspace,
        cudaStream_t stream);
    /*!
        requires
            - if (!add_to_src_grad) then
                - src_grad may be gradient_input
            - all else is apart from each other
            - gamma and gamma_grad may be null if groups.num_gains == 0
            - workspace has rms_normalize_gradient_workspace_bytes(groups, device) bytes and
              begins at a multiple of 8
        ensures
            - the gradient was added to src_grad, or assigned if !add_to_src_grad
            - #gamma_grad == the gradient of gamma
            - #dscale == mean(g*d*xh) of each group
    !*/

    // ----------------------------------------------------------------------------------------
}

#endif // DLIB_RMS_NORM_KERNELS_CUH_
