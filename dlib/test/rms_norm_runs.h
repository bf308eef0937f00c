// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_RUNS_H_
#define DLIB_TEST_RMS_NORM_RUNS_H_

// Puts a problem to a backend and looks at all that can be seen from outside: results, memory
// around the results, inputs that must stay as they are, in-place use.

#include <cstring>
#include <iomanip>
#include <limits>
#include <random>
#include "rms_norm_backend.h"
#include "rms_norm_oracle.h"
#include "test_cases.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

    inline bool same_value(float a, float b)
    /*!
        ensures
            - returns whether a and b are equal or both NaN.
    !*/
    {
        return a == b || (std::isnan(a) && std::isnan(b));
    }

    inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
    {
        return a.size() == b.size() &&
            (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    }

    inline std::vector<float> values_of(const dlib::tensor& t)
    {
        return std::vector<float>(t.begin(), t.end());
    }

    inline dlib::contrib::rms_norm_dims shape_of(const dlib::tensor& t)
    {
        return {t.num_samples(), t.k(), t.nr(), t.nc()};
    }

    inline bool have_same_bits(const dlib::tensor& a, const dlib::tensor& b)
    {
        return shape_of(a) == shape_of(b) && same_bits(values_of(a), values_of(b));
    }

    template <typename T>
    std::string saved(const T& item)
    {
        std::ostringstream sout;
        serialize(item, sout);
        return sout.str();
    }

    inline float guard_value()
    /*!
        ensures
            - returns a NaN whose bits no computation makes.
    !*/
    {
        const dlib::uint32 bits = 0x7fc5a5a5;
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }

    const std::size_t guard_size = 16;

    class guarded_tensor
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A tensor in the middle of a larger one, that starts `shift` floats after an
                aligned address and has guard values on both sides.
        !*/
    public:
        guarded_tensor(const dlib::contrib::rms_norm_dims& dims,
            std::size_t shift,
            const std::vector<float>& values) :
            begin(guard_size + shift),
            alias(dims.num_samples, dims.k, dims.nr, dims.nc)
        {
            memory.set_size(static_cast<long long>(begin + alias.size() + guard_size));
            memory = guard_value();
            DLIB_CASSERT(values.size() == alias.size());
            std::copy(values.begin(), values.end(), memory.host() + begin);
        }

        // full of guard values itself
        guarded_tensor(const dlib::contrib::rms_norm_dims& dims, std::size_t shift) :
            guarded_tensor(dims,
                shift,
                std::vector<float>(static_cast<std::size_t>(dims.size()), guard_value()))
        {
        }

        dlib::alias_tensor_instance get() { return alias(memory, begin); }

        std::vector<float> values() const
        {
            const float* const p = memory.host() + begin;
            return std::vector<float>(p, p + alias.size());
        }

        bool guards_are_intact() const
        {
            const float* const p = memory.host();
            for (std::size_t i = 0; i < memory.size(); ++i)
            {
                const bool is_guard = i < begin || i >= begin + alias.size();
                if (is_guard && !same_bits(p[i], guard_value()))
                    return false;
            }
            return true;
        }

    private:
        std::size_t begin;
        dlib::alias_tensor alias;
        dlib::resizable_tensor memory;
    };

    class guarded_output
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A resizable_tensor for an output: it is empty, but owns memory for `size` values
                and guards behind them, all of it filled with guard values.
        !*/
    public:
        explicit guarded_output(std::size_t size_) :
            size(size_)
        {
            tensor.set_size(static_cast<long long>(size + guard_size));
            tensor = guard_value();
            tensor.set_size(0, 0, 0, 0);
        }

        dlib::resizable_tensor& get() { return tensor; }

        bool guards_are_intact() const
        {
            const float* const p = tensor.host();
            for (std::size_t i = size; i < size + guard_size; ++i)
            {
                if (!same_bits(p[i], guard_value()))
                    return false;
            }
            return true;
        }

    private:
        std::size_t size;
        dlib::resizable_tensor tensor;
    };

    // ----------------------------------------------------------------------------------------

    inline dlib::contrib::rms_norm_dims gamma_shape(const rms_norm_problem& p)
    {
        using namespace dlib::contrib;
        if (p.gain == rms_norm_gain::none)
            return {0, 0, 0, 0};
        if (p.axes == rms_norm_axes::row)
            return {1, 1, 1, p.dims.nc};
        if (p.axes == rms_norm_axes::sample && p.gain == rms_norm_gain::per_element)
            return {1, p.dims.k, p.dims.nr, p.dims.nc};
        return {1, p.dims.k, 1, 1};
    }

    inline dlib::contrib::rms_norm_dims scale_shape(const rms_norm_problem& p)
    {
        using namespace dlib::contrib;
        if (p.dims.size() == 0)
            return {0, 0, 0, 0};
        if (p.axes == rms_norm_axes::row)
            return {p.dims.num_samples, p.dims.k, p.dims.nr, 1};
        if (p.axes == rms_norm_axes::channel)
            return {p.dims.num_samples, 1, p.dims.nr, p.dims.nc};
        return {p.dims.num_samples, 1, 1, 1};
    }

    inline std::string describe(const rms_norm_problem& p)
    {
        const char* const axes[] = {"sample", "row", "channel"};
        const char* const gains[] = {"per_channel", "per_element", "none"};
        std::ostringstream sout;
        sout << "axes " << axes[static_cast<int>(p.axes)] << ", gain "
             << gains[static_cast<int>(p.gain)] << ", gain_offset " << p.gain_offset << ", eps "
             << p.eps << ", shape (" << p.dims.num_samples << "," << p.dims.k << "," << p.dims.nr
             << "," << p.dims.nc << ")";
        return sout.str();
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_result
    {
        std::vector<float> dest;
        std::vector<float> scale;
        std::vector<float> src_grad; // as assigned in place
        std::vector<float> gamma_grad;
        std::vector<float> dscale;
    };

    inline bool same_bits(const rms_norm_result& a, const rms_norm_result& b)
    {
        return same_bits(a.dest, b.dest) && same_bits(a.scale, b.scale) &&
            same_bits(a.src_grad, b.src_grad) && same_bits(a.gamma_grad, b.gamma_grad) &&
            same_bits(a.dscale, b.dscale);
    }

    inline void run_forward(const rms_norm_backend& backend,
        const rms_norm_problem& p,
        std::size_t shift,
        rms_norm_result& result)
    {
        guarded_tensor src(p.dims, shift, p.src);
        guarded_tensor gamma(gamma_shape(p), (shift + 1) % 4, p.gamma);
        guarded_output dest(p.src.size());
        guarded_output scale(number_of_groups(p));

        backend.forward(
            p.axes, p.gain_offset, p.eps, dest.get(), scale.get(), src.get(), gamma.get());

        DLIB_TEST_MSG(shape_of(dest.get()) == p.dims, "shape of dest, " << describe(p));
        DLIB_TEST_MSG(shape_of(scale.get()) == scale_shape(p), "shape of scale, " << describe(p));
        DLIB_TEST_MSG(same_bits(src.values(), p.src) && same_bits(gamma.values(), p.gamma),
            "an input changed, " << describe(p));
        DLIB_TEST_MSG(src.guards_are_intact() && gamma.guards_are_intact() &&
                dest.guards_are_intact() && scale.guards_are_intact(),
            "written outside of a tensor, " << describe(p));

        result.dest = values_of(dest.get());
        result.scale = values_of(scale.get());

        // once more with dest being src
        guarded_output both(p.src.size());
        both.get().set_size(p.dims.num_samples, p.dims.k, p.dims.nr, p.dims.nc);
        std::copy(p.src.begin(), p.src.end(), both.get().begin());
        guarded_output scale2(number_of_groups(p));
        backend.forward(
            p.axes, p.gain_offset, p.eps, both.get(), scale2.get(), both.get(), gamma.get());
        DLIB_TEST_MSG(same_bits(values_of(both.get()), result.dest) &&
                same_bits(values_of(scale2.get()), result.scale),
            "in place the numbers are others, " << describe(p));
        DLIB_TEST_MSG(both.guards_are_intact() && scale2.guards_are_intact(),
            "written outside of a tensor, " << describe(p));
    }

    inline void run_gradient(const rms_norm_backend& backend,
        const rms_norm_problem& p,
        std::size_t shift,
        rms_norm_result& result)
    {
        guarded_tensor src(p.dims, shift, p.src);
        guarded_tensor gamma(gamma_shape(p), (shift + 1) % 4, p.gamma);
        guarded_tensor gradient_input(p.dims, (shift + 2) % 4, p.gradient_input);
        guarded_tensor scale(scale_shape(p), (shift + 3) % 4, result.scale);

        // in place: src_grad is gradient_input
        {
            guarded_tensor both(p.dims, (shift + 2) % 4, p.gradient_input);
            guarded_tensor gamma_grad(gamma_shape(p), (shift + 3) % 4);
            guarded_output dscale(number_of_groups(p));
            dlib::alias_tensor_instance out = both.get();
            dlib::alias_tensor_instance gamma_out = gamma_grad.get();
            backend.gradient(p.axes, p.gain_offset, both.get(), scale.get(), src.get(), gamma.get(),
                out, gamma_out, dscale.get());

            DLIB_TEST_MSG(
                shape_of(dscale.get()) == scale_shape(p), "shape of dscale, " << describe(p));
            DLIB_TEST_MSG(both.guards_are_intact() && gamma_grad.guards_are_intact() &&
                    dscale.guards_are_intact(),
                "written outside of a tensor, " << describe(p));
            result.src_grad = both.values();
            result.gamma_grad = gamma_grad.values();
            result.dscale = values_of(dscale.get());
        }

        // apart: the gradient is added to src_grad
        guarded_tensor src_grad(p.dims, shift, p.old_src_grad);
        guarded_tensor gamma_grad(gamma_shape(p), (shift + 3) % 4);
        guarded_output dscale(number_of_groups(p));
        dlib::alias_tensor_instance out = src_grad.get();
        dlib::alias_tensor_instance gamma_out = gamma_grad.get();
        backend.gradient(p.axes, p.gain_offset, gradient_input.get(), scale.get(), src.get(),
            gamma.get(), out, gamma_out, dscale.get());

        DLIB_TEST_MSG(same_bits(src.values(), p.src) && same_bits(gamma.values(), p.gamma) &&
                same_bits(gradient_input.values(), p.gradient_input) &&
                same_bits(scale.values(), result.scale),
            "an input changed, " << describe(p));
        DLIB_TEST_MSG(src.guards_are_intact() && gamma.guards_are_intact() &&
                gradient_input.guards_are_intact() && scale.guards_are_intact() &&
                src_grad.guards_are_intact() && gamma_grad.guards_are_intact() &&
                dscale.guards_are_intact(),
            "written outside of a tensor, " << describe(p));
        DLIB_TEST_MSG(same_bits(gamma_grad.values(), result.gamma_grad) &&
                same_bits(values_of(dscale.get()), result.dscale),
            "in place the numbers are others, " << describe(p));

        const std::vector<float> added = src_grad.values();
        for (std::size_t i = 0; i < added.size(); ++i)
        {
            const float sum = p.old_src_grad[i] + result.src_grad[i];
            if (!same_value(added[i], sum))
            {
                DLIB_TEST_MSG(false,
                    "src_grad[" << i << "] was " << p.old_src_grad[i] << " and is " << added[i]
                                << ", but in place it gets " << result.src_grad[i] << ", "
                                << describe(p));
            }
        }
        increment_test_count();
    }

    inline rms_norm_result
    run(const rms_norm_backend& backend, const rms_norm_problem& p, std::size_t shift = 0)
    /*!
        ensures
            - returns what backend computes for p, in tensors that start `shift` (or a few more,
              modulo 4) floats after an aligned address
            - throws if anything but the outputs changed, or in-place use gives other numbers
    !*/
    {
        rms_norm_result result;
        run_forward(backend, p, shift, result);
        run_gradient(backend, p, shift, result);
        return result;
    }

    // ----------------------------------------------------------------------------------------

    inline void check_numbers(const char* name,
        const std::vector<float>& found,
        const std::vector<number>& exact,
        const rms_norm_problem& p)
    {
        DLIB_TEST_MSG(found.size() == exact.size(),
            name << " has " << found.size() << " values, " << describe(p));
        for (std::size_t i = 0; i < found.size(); ++i)
        {
            const long double value = exact[i].value;
            const bool good = std::isfinite(static_cast<float>(value))
                ? std::abs(found[i] - value) <= exact[i].bound
                : same_value(found[i], static_cast<float>(value));
            if (!good)
            {
                DLIB_TEST_MSG(false,
                    std::setprecision(12)
                        << name << "[" << i << "] is " << found[i] << ", exact is " << value
                        << ", off by " << found[i] - value << ", allowed is " << exact[i].bound
                        << ", " << describe(p));
            }
        }
        increment_test_count();
    }

    inline void check_answer(const rms_norm_result& found,
        const rms_norm_answer& exact,
        const rms_norm_problem& p)
    {
        check_numbers("dest", found.dest, exact.dest, p);
        check_numbers("scale", found.scale, exact.scale, p);
        check_numbers("src_grad", found.src_grad, exact.src_grad, p);
        check_numbers("gamma_grad", found.gamma_grad, exact.gamma_grad, p);
        check_numbers("dscale", found.dscale, exact.dscale, p);
    }

    inline rms_norm_result
    check(const rms_norm_backend& backend, const rms_norm_problem& p, std::size_t shift = 0)
    /*!
        ensures
            - returns run(backend, p, shift) after comparing it with the definition
    !*/
    {
        rms_norm_result result = run(backend, p, shift);
        check_answer(result, exact_rms_norm(p), p);
        return result;
    }

    // ----------------------------------------------------------------------------------------

    struct kind_of_gain
    {
        dlib::contrib::rms_norm_gain gain;
        double offset;
    };

    typedef std::mt19937_64 random_source;

    inline std::vector<float> random_values(random_source& rnd, std::size_t size, double scale = 1)
    {
        std::normal_distribution<float> gaussian;
        std::vector<float> values(size);
        for (float& v : values)
            v = static_cast<float>(scale) * gaussian(rnd);
        return values;
    }

    inline rms_norm_problem random_problem(random_source& rnd,
        dlib::contrib::rms_norm_axes axes,
        dlib::contrib::rms_norm_gain gain,
        const dlib::contrib::rms_norm_dims& dims)
    /*!
        ensures
            - returns a problem with normally distributed values, gamma around 1 among them
    !*/
    {
        rms_norm_problem p;
        p.axes = axes;
        p.gain = gain;
        p.dims = dims;
        p.src = random_values(rnd, static_cast<std::size_t>(dims.size()));
        p.gradient_input = random_values(rnd, p.src.size());
        p.old_src_grad = random_values(rnd, p.src.size());
        p.gamma = random_values(rnd, static_cast<std::size_t>(gamma_shape(p).size()));
        return p;
    }

    // ----------------------------------------------------------------------------------------

    struct subnet_with_output
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                As much of a network as a layer sees of what lies below it.
        !*/
        explicit subnet_with_output(const rms_norm_problem& p)
        {
            output.set_size(p.dims.num_samples, p.dims.k, p.dims.nr, p.dims.nc);
            gradient_input.copy_size(output);
            std::copy(p.src.begin(), p.src.end(), output.begin());
            std::copy(p.old_src_grad.begin(), p.old_src_grad.end(), gradient_input.begin());
        }

        const dlib::tensor& get_output() const { return output; }
        dlib::tensor& get_gradient_input() { return gradient_input; }

        dlib::resizable_tensor output;
        dlib::resizable_tensor gradient_input;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_RMS_NORM_RUNS_H_
