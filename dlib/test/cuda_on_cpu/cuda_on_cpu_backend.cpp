// License: Boost Software License   See LICENSE.txt for the full license.

// Tensors in, kernels' launchers on raw pointers below.

#include "cuda_on_cpu_backend.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <stdexcept>

#include "../../cuda/rms_norm_arguments.h"
#include "kernels_on_cpu.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using namespace dlib::contrib;
        using cuda_on_cpu::access;
        using cuda_on_cpu::global_buffer;

        const auto host_address = [](const dlib::tensor& t) { return t.host(); };

        class visible_memory
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The buffers that the kernels of one call may use.
            !*/
        public:
            const float* input(const char* name, const dlib::tensor& t)
            {
                return add(name, t.host(), t.size(), access::read_only);
            }

            float* output(const char* name, dlib::tensor& t)
            {
                std::fill(t.begin(), t.end(), std::numeric_limits<float>::quiet_NaN());
                return in_and_output(name, t);
            }

            float* in_and_output(const char* name, dlib::tensor& t)
            {
                add(name, t.host(), t.size(), access::read_write);
                return t.size() == 0 ? nullptr : t.host();
            }

            void* workspace(std::size_t bytes)
            {
                const std::size_t n = (bytes + sizeof(double) - 1) / sizeof(double);
                memory.assign(n, std::numeric_limits<double>::quiet_NaN());
                if (bytes == 0)
                    return nullptr;
                buffers.push_back(std::make_unique<global_buffer>(
                    "workspace", memory.data(), bytes, access::read_write));
                return memory.data();
            }

        private:
            const float* add(const char* name, const float* p, std::size_t size, access allowed)
            {
                if (size == 0)
                    return nullptr;
                buffers.push_back(
                    std::make_unique<global_buffer>(name, p, size * sizeof(float), allowed));
                return p;
            }

            std::vector<std::unique_ptr<global_buffer>> buffers;
            std::vector<double> memory;
        };

        kernels::rms_norm_device current_device()
        {
            kernels::rms_norm_device device;
            if (kernels::rms_norm_current_device(device) != cudaSuccess)
                throw std::runtime_error("rms_norm_current_device() failed");
            return device;
        }

        void check_launch(const char* what, cudaError_t error)
        {
            if (error != cudaSuccess)
            {
                throw std::runtime_error(
                    std::string(what) + " returned error " + std::to_string(error));
            }
        }

        // ----------------------------------------------------------------------------------------

        void forward(rms_norm_axes axes,
            double gain_offset,
            double eps,
            dlib::resizable_tensor& dest,
            dlib::resizable_tensor& scale,
            const dlib::tensor& src,
            const dlib::tensor& gamma)
        {
            const rms_norm_groups groups = check_rms_normalize(
                axes, gain_offset, eps, dest, scale, src, gamma, host_address);
            dest.copy_size(src);
            set_size(scale, rms_norm_scale_dims(axes, dims_of(src)));

            visible_memory memory;
            const bool in_place = dest.host() == src.host();
            float* to = in_place ? memory.in_and_output("dest", dest) : memory.output("dest", dest);
            const float* from = in_place ? to : memory.input("src", src);
            const float* gain = memory.input("gamma", gamma);
            float* stats = memory.output("scale", scale);
            const kernels::rms_norm_device device = current_device();
            void* workspace = memory.workspace(
                kernels::rms_normalize_workspace_bytes(groups, device));
            check_launch("launch_rms_normalize",
                kernels::launch_rms_normalize(groups, device, eps, static_cast<float>(gain_offset),
                    from, gain, to, stats, workspace, nullptr));
        }

        void gradient(rms_norm_axes axes,
            double gain_offset,
            const dlib::tensor& gradient_input,
            const dlib::tensor& scale,
            const dlib::tensor& src,
            const dlib::tensor& gamma,
            dlib::tensor& src_grad,
            dlib::tensor& gamma_grad,
            dlib::resizable_tensor& dscale)
        {
            bool in_place = false;
            const rms_norm_groups groups = check_rms_normalize_gradient(axes, gain_offset,
                gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale, host_address,
                in_place);
            set_size(dscale, rms_norm_scale_dims(axes, dims_of(src)));

            visible_memory memory;
            float* dx = memory.in_and_output("src_grad", src_grad);
            const float* d = in_place ? dx : memory.input("gradient_input", gradient_input);
            const float* stats = memory.input("scale", scale);
            const float* from = memory.input("src", src);
            const float* gain = memory.input("gamma", gamma);
            float* dgain = memory.output("gamma_grad", gamma_grad);
            float* dstats = memory.output("dscale", dscale);
            const kernels::rms_norm_device device = current_device();
            void* workspace = memory.workspace(
                kernels::rms_normalize_gradient_workspace_bytes(groups, device));
            check_launch("launch_rms_normalize_gradient",
                kernels::launch_rms_normalize_gradient(groups, device,
                    static_cast<float>(gain_offset), d, stats, from, gain, dx, !in_place, dgain,
                    dstats, workspace, nullptr));
        }
    }

    // ----------------------------------------------------------------------------------------

    rms_norm_backend cuda_on_cpu_backend()
    {
        std::cerr << "CUDA kernels run on the CPU in an order that CUDA_ON_CPU_SEED="
                  << cuda_on_cpu::seed() << " repeats." << std::endl;
        rms_norm_backend b;
        b.name = "cuda_on_cpu";
        b.forward = forward;
        b.gradient = gradient;
        return b;
    }

    // ----------------------------------------------------------------------------------------

}
