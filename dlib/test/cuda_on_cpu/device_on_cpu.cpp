// License: Boost Software License   See LICENSE.txt for the full license.

// The source of rms_norm_cuda.cpp, compiled for the CPU, and what it needs of a dlib that was built
// with CUDA.

#include "device_on_cpu.h"

#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <vector>
#include <dlib/cuda/cuda_data_ptr.h>
#include <dlib/cuda/cuda_errors.h>
#include <dlib/cuda/tensor.h>
#include "kernels_on_cpu.h"

namespace
{
    std::unique_ptr<cuda_on_cpu::global_buffer> visible_workspace;
}

namespace dlib::DLIB_TEST_KERNEL_NAMESPACE
{
    class cuda_data_void_ptr
    {
    public:
        void* data() { return doubles.data(); }

        std::vector<double> doubles;
    };

    cuda_data_void_ptr device_global_buffer(std::size_t bytes)
    {
        cuda_data_void_ptr buffer;
        buffer.doubles.assign(bytes / sizeof(double), std::numeric_limits<double>::quiet_NaN());
        visible_workspace = std::make_unique<cuda_on_cpu::global_buffer>(
            "workspace", buffer.data(), bytes, cuda_on_cpu::access::read_write);
        return buffer;
    }
}

#define cuda DLIB_TEST_KERNEL_NAMESPACE
#define rms_norm_on_device rms_norm_on_simulated_device
#include "../../cuda/rms_norm_cuda.cpp"
#undef rms_norm_on_device
#undef cuda

namespace test
{
    namespace
    {
        template <typename pass_type>
        void run(const pass_type& pass)
        {
            struct hides_workspace
            {
                ~hides_workspace() { visible_workspace.reset(); }
            } at_the_end;
            dlib::contrib::rms_norm_on_simulated_device().run(pass);
        }
    }

    void run_on_device(const dlib::contrib::rms_norm_forward<float>& pass) { run(pass); }
    void run_on_device(const dlib::contrib::rms_norm_backward<float>& pass) { run(pass); }
}
