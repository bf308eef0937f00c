// License: Boost Software License   See LICENSE.txt for the full license.

// Tensors come to the launchers as they do with CUDA, through rms_norm_tensors.h and
// rms_norm_cuda.cpp.

#include "cuda_on_cpu_backend.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>

#include "cuda_on_cpu.h"
#include "device_on_cpu.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using namespace dlib::contrib;
        using cuda_on_cpu::access;
        using cuda_on_cpu::global_buffer;

        class simulated_device
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The device of one call: its kernels may use the memory that they were given
                    and no other.
            !*/
        public:
            const float* address(const dlib::tensor& t) const { return t.host(); }

            const float* read(const dlib::tensor& t)
            {
                return add(t.host(), t.size(), access::read_only);
            }

            float* read_and_write(dlib::tensor& t)
            {
                // It may be an input too.
                const auto is_same = [&](const entry& e) { return e.begin == t.host(); };
                buffers.erase(
                    std::remove_if(buffers.begin(), buffers.end(), is_same), buffers.end());
                return add(t.host(), t.size(), access::read_write);
            }

            float* write(dlib::tensor& t)
            {
                std::fill(t.begin(), t.end(), std::numeric_limits<float>::quiet_NaN());
                return add(t.host(), t.size(), access::read_write);
            }

            void run(const rms_norm_forward<float>& pass) { run_on_device(pass); }
            void run(const rms_norm_backward<float>& pass) { run_on_device(pass); }

        private:
            struct entry
            {
                const void* begin;
                std::unique_ptr<global_buffer> buffer;
            };

            template <typename T>
            T* add(T* begin, std::size_t size, access allowed)
            {
                if (size == 0)
                    return nullptr;
                const std::string name = "buffer " + std::to_string(buffers.size());
                buffers.push_back({begin,
                    std::make_unique<global_buffer>(name, begin, size * sizeof(T), allowed)});
                return begin;
            }

            std::vector<entry> buffers;
        };
    }

    // ----------------------------------------------------------------------------------------

    rms_norm_backend cuda_on_cpu_backend()
    {
        std::cerr << "CUDA kernels run on the CPU in an order that CUDA_ON_CPU_SEED="
                  << cuda_on_cpu::seed() << " repeats." << std::endl;
        return backend_on("cuda_on_cpu", []() { return simulated_device(); });
    }

    // ----------------------------------------------------------------------------------------

}
