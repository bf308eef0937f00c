// License: Boost Software License   See LICENSE.txt for the full license.

// A pass on the current CUDA device: the plan for that device, dlib's scratch memory, the launch.

#include "rms_norm_cuda.h"

#include <map>
#include <sstream>
#include <cuda_runtime_api.h>
#include <dlib/cuda/cuda_data_ptr.h>
#include <dlib/cuda/cuda_errors.h>
#include "rms_norm_launch.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        void check(cudaError_t error, const char* call)
        {
            if (error == cudaSuccess)
                return;
            std::ostringstream sout;
            sout << "Error while calling " << call << ". code: " << static_cast<int>(error)
                 << ", reason: " << cudaGetErrorString(error);
            throw cuda_error(sout.str());
        }

        struct known_device
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    What this thread knows of a device that it has used.
            !*/
            cuda::rms_norm_device properties;

            // dlib's scratch buffer of this thread and device. dlib frees it with the last
            // reference to it, and freeing waits for the device. So a reference is held until the
            // thread asks for more or ends.
            ::dlib::cuda::cuda_data_void_ptr workspace;
        };

        known_device& current_device()
        {
            thread_local std::map<int, known_device> devices;
            int id = 0;
            check(cudaGetDevice(&id), "cudaGetDevice()");
            const auto known = devices.find(id);
            if (known != devices.end())
                return known->second;

            known_device device;
            check(cuda::get_rms_norm_device(id, device.properties), "get_rms_norm_device()");
            return devices.emplace(id, device).first->second;
        }

        void* workspace_on(known_device& device, std::size_t bytes)
        {
            if (bytes == 0)
                return nullptr;
            device.workspace = ::dlib::cuda::device_global_buffer(bytes);
            return device.workspace.data();
        }

        const cudaStream_t default_stream = nullptr;
    }

    // ----------------------------------------------------------------------------------------

    void rms_norm_on_device::run(const rms_norm_forward<float>& pass) const
    {
        known_device& device = current_device();
        const auto plan = cuda::plan_rms_normalize(
            pass.groups, cuda::is_aligned(pass), device.properties);
        void* const workspace = workspace_on(device, plan.workspace_bytes);
        check(cuda::launch_rms_normalize(pass, plan, workspace, default_stream),
            "launch_rms_normalize()");
    }

    void rms_norm_on_device::run(const rms_norm_backward<float>& pass) const
    {
        known_device& device = current_device();
        const auto plan = cuda::plan_rms_normalize_gradient(
            pass.groups, cuda::is_aligned(pass), device.properties);
        void* const workspace = workspace_on(device, plan.workspace_bytes);
        check(cuda::launch_rms_normalize_gradient(pass, plan, workspace, default_stream),
            "launch_rms_normalize_gradient()");
    }

    // ----------------------------------------------------------------------------------------

}
