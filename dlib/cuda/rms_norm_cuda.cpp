// License: Boost Software License   See LICENSE.txt for the full license.

// RMS normalization on tensors with CUDA: checks the arguments, then hands pointers to the
// launchers. Everything runs on the default stream, as all of dlib's kernels do, because that
// is what dlib's tensors and its scratch buffer are synchronized with.

#include "rms_norm_cuda.h"

#ifdef DLIB_USE_CUDA

#include <map>
#include <sstream>
#include <cuda_runtime_api.h>
#include <dlib/cuda/cuda_data_ptr.h>
#include <dlib/cuda/cuda_errors.h>
#include "rms_norm_arguments.h"
#include "rms_norm_kernels.cuh"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        const auto device_address = [](const tensor& t)
        { return t.size() == 0 ? nullptr : t.device(); };

        void check(cudaError_t error, const char* call)
        {
            if (error == cudaSuccess)
                return;
            std::ostringstream sout;
            sout << "Error while calling " << call << ". code: " << static_cast<int>(error)
                 << ", reason: " << cudaGetErrorString(error);
            throw cuda_error(sout.str());
        }

        rms_norm_device current_device()
        {
            rms_norm_device device;
            check(rms_norm_current_device(device), "rms_norm_current_device()");
            return device;
        }

        void* workspace_of(std::size_t bytes)
        /*!
            ensures
                - returns dlib's scratch buffer of this thread and device, with room for bytes
                - dlib frees that buffer with the last reference to it, and freeing waits for the
                  device. So a reference is held until the thread asks for more or ends.
        !*/
        {
            if (bytes == 0)
                return nullptr;
            thread_local std::map<int, ::dlib::cuda::cuda_data_void_ptr> held;
            int device_id = 0;
            check(cudaGetDevice(&device_id), "cudaGetDevice()");
            ::dlib::cuda::cuda_data_void_ptr& buffer = held[device_id];
            buffer = ::dlib::cuda::device_global_buffer(bytes);
            return buffer.data();
        }

        const cudaStream_t default_stream = nullptr;
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        const rms_norm_groups groups = check_rms_normalize(
            axes, gain_offset, eps, dest, scale, src, gamma, device_address);

        dest.copy_size(src);
        set_size(scale, rms_norm_scale_dims(axes, dims_of(src)));
        if (groups.num_values() == 0)
            return;

        const rms_norm_device device = current_device();
        void* const workspace = workspace_of(rms_normalize_workspace_bytes(groups, device));
        // src comes first: device_write_only() forgets what the host wrote, and dest may be
        // src.
        const float* const from = src.device();
        float* const to = dest.device_write_only();
        check(launch_rms_normalize(groups, device, eps, static_cast<float>(gain_offset), from,
                  device_address(gamma), to, scale.device_write_only(), workspace, default_stream),
            "launch_rms_normalize()");
    }

    void rms_normalize(double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma);
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        bool in_place = false;
        const rms_norm_groups groups = check_rms_normalize_gradient(axes, gain_offset,
            gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale, device_address,
            in_place);

        set_size(dscale, rms_norm_scale_dims(axes, dims_of(src)));
        if (groups.num_values() == 0)
        {
            gamma_grad = 0;
            return;
        }

        const rms_norm_device device = current_device();
        void* const workspace = workspace_of(
            rms_normalize_gradient_workspace_bytes(groups, device));
        float* const gain_grad = gamma_grad.size() == 0 ? nullptr : gamma_grad.device_write_only();
        check(launch_rms_normalize_gradient(groups, device, static_cast<float>(gain_offset),
                  gradient_input.device(), scale.device(), src.device(), device_address(gamma),
                  src_grad.device(), !in_place, gain_grad, dscale.device_write_only(), workspace,
                  default_stream),
            "launch_rms_normalize_gradient()");
    }

    void rms_normalize_gradient(const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        rms_normalize_gradient(rms_norm_axes::sample, 0, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------
}

#endif // DLIB_USE_CUDA
