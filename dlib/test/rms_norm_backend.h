// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_BACKEND_H_
#define DLIB_TEST_RMS_NORM_BACKEND_H_

// One implementation of the two functions under test. The test bodies take a backend, so
// that the CPU code, the CUDA kernels run on the CPU, and the CUDA kernels on a GPU all go
// through the same cases.

#include <functional>
#include <string>
#include <vector>
#include <dlib/cuda/rms_norm_tools.h>

namespace test
{
    struct rms_norm_backend
    {
        std::string name;

        std::function<void(dlib::contrib::rms_norm_axes axes,
            double gain_offset,
            double eps,
            dlib::resizable_tensor& dest,
            dlib::resizable_tensor& scale,
            const dlib::tensor& src,
            const dlib::tensor& gamma)>
            forward;

        std::function<void(dlib::contrib::rms_norm_axes axes,
            double gain_offset,
            const dlib::tensor& gradient_input,
            const dlib::tensor& scale,
            const dlib::tensor& src,
            const dlib::tensor& gamma,
            dlib::tensor& src_grad,
            dlib::tensor& gamma_grad,
            dlib::resizable_tensor& dscale)>
            gradient;
    };

    std::vector<rms_norm_backend>& rms_norm_backends();
    /*!
        ensures
            - returns every backend of this program. The first one is contrib::cpu.
    !*/
}

#endif // DLIB_TEST_RMS_NORM_BACKEND_H_
