// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_BACKEND_H_
#define DLIB_TEST_RMS_NORM_BACKEND_H_

// One implementation of the two functions under test. The test bodies take a backend, so
// that the CPU code, the plain loops, the CUDA kernels run on the CPU, and the CUDA kernels on
// a GPU all go through the same cases.

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>
#include <dlib/cuda/rms_norm_tensors.h>
#include <dlib/cuda/rms_norm_tools.h>

namespace test
{

    // ----------------------------------------------------------------------------------------

    using rms_normalize_function = void(dlib::contrib::rms_norm_axes axes,
        double gain_offset,
        double eps,
        dlib::resizable_tensor& dest,
        dlib::resizable_tensor& scale,
        const dlib::tensor& src,
        const dlib::tensor& gamma);

    using rms_normalize_gradient_function = void(dlib::contrib::rms_norm_axes axes,
        double gain_offset,
        const dlib::tensor& gradient_input,
        const dlib::tensor& scale,
        const dlib::tensor& src,
        const dlib::tensor& gamma,
        dlib::tensor& src_grad,
        dlib::tensor& gamma_grad,
        dlib::resizable_tensor& dscale);

    struct rms_norm_backend
    {
        std::string name;
        std::function<rms_normalize_function> forward;
        std::function<rms_normalize_gradient_function> gradient;

        // does millions of values in a second: others get small problems, none beyond 32 bits
        bool is_fast = false;
        // runs on dlib's default thread pool
        bool uses_thread_pool = false;
        // chooses an instruction set as Highway does
        bool uses_simd = false;
        // can be called in a forked child: others are not tested for what they refuse
        bool works_after_fork = true;
    };

    template <typename device_maker>
    rms_norm_backend backend_on(const char* name, const device_maker& make_device)
    /*!
        requires
            - make_device() returns an object that rms_norm_tensors.h can work on
    !*/
    {
        rms_norm_backend b;
        b.name = name;
        b.forward = [=](auto&&... arguments) { normalize_tensors(make_device(), arguments...); };
        b.gradient = [=](auto&&... arguments)
        { normalize_gradient_of_tensors(make_device(), true, arguments...); };
        return b;
    }

    std::vector<rms_norm_backend>& rms_norm_backends();
    /*!
        ensures
            - returns every backend of this program. The first one is contrib::cpu.
    !*/

    using backend_case = std::pair<const char*, void (*)(const rms_norm_backend&)>;

    void run_cases(const rms_norm_backend& b, std::initializer_list<backend_case> cases);
    /*!
        ensures
            - runs each case, {name, function}, on b. NAMED_CASE(function) makes one.
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_RMS_NORM_BACKEND_H_
