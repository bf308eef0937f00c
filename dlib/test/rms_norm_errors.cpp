// License: Boost Software License   See LICENSE.txt for the full license.

// Broken contracts: each is refused with a dlib::fatal_error whose message names the values,
// and no argument is touched. dlib ends a process that makes a second fatal_error, so every
// case has a child process of its own.

#include <dlib/rms_norm.h>
#include "refusals.h"
#include "rms_norm_runs.h"

namespace
{

    using namespace test;
    using namespace dlib;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_gain;

    // ----------------------------------------------------------------------------------------

    resizable_tensor counting_tensor(long long n, long long k, long long nr, long long nc)
    {
        resizable_tensor t(n, k, nr, nc);
        float value = 0;
        for (float& v : t)
            v = ++value;
        return t;
    }

    alias_tensor_instance
    part_of(tensor& t, std::size_t offset, long long n, long long k, long long nr, long long nc)
    {
        return alias_tensor(n, k, nr, nc)(t, offset);
    }

    struct forward_call
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Arguments of rms_normalize() that are right, for a test to spoil one of them.
                The outputs have sizes and values already.
        !*/
        rms_norm_axes axes = rms_norm_axes::sample;
        double gain_offset = 0;
        double eps = 1e-5;
        resizable_tensor dest = counting_tensor(4, 3, 4, 5);
        resizable_tensor scale = counting_tensor(9, 3, 4, 5);
        resizable_tensor src = counting_tensor(2, 3, 4, 5);
        resizable_tensor gamma = counting_tensor(1, 3, 1, 1);

        void run(const rms_norm_backend& b, const tensor& src_, const tensor& gamma_)
        {
            b.forward(axes, gain_offset, eps, dest, scale, src_, gamma_);
        }

        void run(const rms_norm_backend& b) { run(b, src, gamma); }

        bool operator==(const forward_call& c) const
        {
            return have_same_bits(dest, c.dest) && have_same_bits(scale, c.scale) &&
                have_same_bits(src, c.src) && have_same_bits(gamma, c.gamma);
        }
    };

    struct gradient_call
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The same for rms_normalize_gradient().
        !*/
        rms_norm_axes axes = rms_norm_axes::sample;
        double gain_offset = 0;
        resizable_tensor gradient_input = counting_tensor(2, 3, 4, 5);
        resizable_tensor scale = counting_tensor(2, 1, 1, 1);
        resizable_tensor src = counting_tensor(2, 3, 4, 5);
        resizable_tensor gamma = counting_tensor(1, 3, 1, 1);
        resizable_tensor src_grad = counting_tensor(2, 3, 4, 5);
        resizable_tensor gamma_grad = counting_tensor(1, 3, 1, 1);
        resizable_tensor dscale = counting_tensor(9, 3, 4, 5);

        void run(const rms_norm_backend& b)
        {
            b.gradient(
                axes, gain_offset, gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale);
        }

        bool operator==(const gradient_call& c) const
        {
            return have_same_bits(gradient_input, c.gradient_input) &&
                have_same_bits(scale, c.scale) && have_same_bits(src, c.src) &&
                have_same_bits(gamma, c.gamma) && have_same_bits(src_grad, c.src_grad) &&
                have_same_bits(gamma_grad, c.gamma_grad) && have_same_bits(dscale, c.dscale);
        }
    };

    struct sum_call
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The same for rms_normalize_sum(). If shares is set, sum is also that argument.
        !*/
        rms_norm_axes axes = rms_norm_axes::sample;
        double eps = 1e-5;
        resizable_tensor dest = counting_tensor(9, 3, 4, 5);
        resizable_tensor scale = counting_tensor(9, 1, 1, 1);
        resizable_tensor sum = counting_tensor(9, 3, 4, 5);
        resizable_tensor src1 = counting_tensor(2, 3, 4, 5);
        resizable_tensor src2 = counting_tensor(2, 3, 4, 5);
        resizable_tensor gamma = counting_tensor(1, 3, 1, 1);
        resizable_tensor sum_call::*shares = nullptr;

        void run()
        {
            resizable_tensor& to = shares ? this->*shares : sum;
            dlib::contrib::tt::rms_normalize_sum(axes, 0, eps, dest, scale, to, src1, src2, gamma);
        }

        bool operator==(const sum_call& c) const
        {
            return have_same_bits(dest, c.dest) && have_same_bits(scale, c.scale) &&
                have_same_bits(sum, c.sum) && have_same_bits(src1, c.src1) &&
                have_same_bits(src2, c.src2) && have_same_bits(gamma, c.gamma);
        }
    };

    // ----------------------------------------------------------------------------------------

    using test::refused;

    template <typename call_type>
    void refused(const rms_norm_backend& b,
        const std::function<void(call_type&)>& spoil,
        const std::vector<std::string>& words)
    {
        refused<call_type>(
            spoil, [&](call_type& c) { c.run(b); }, words);
    }

    void not_spoiled(forward_call&) {}

    void gradient_not_spoiled(gradient_call&) {}

    // ----------------------------------------------------------------------------------------

    void right_arguments_are_not_refused(const rms_norm_backend& b)
    /*!
        ensures
            - checks that the calls that the other cases spoil are right, else those would
              be refused for another reason
    !*/
    {
        DLIB_TEST(in_child_process(
                      [&]() {
                          return what_happens<forward_call>(
                              not_spoiled, [&](forward_call& c) { c.run(b); }, {});
                      }) == "it was not refused");
        DLIB_TEST(in_child_process(
                      [&]()
                      {
                          return what_happens<gradient_call>(
                              gradient_not_spoiled, [&](gradient_call& c) { c.run(b); }, {});
                      }) == "it was not refused");
    }

    void eps_out_of_range(const rms_norm_backend& b)
    {
        const std::pair<double, const char*> bad[] = {{0, "eps: 0"}, {-1e-5, "eps: -1e-05"},
            {1e-50, "eps: 1e-50"}, {FLT_MIN * 0.99, "eps: 1.16"}, {std::nan(""), "eps: "},
            {-INFINITY, "eps: -inf"}, {INFINITY, "eps: inf"}, {1e39, "eps: 1e+39"}};
        for (const auto& eps : bad)
            refused<forward_call>(b, [&](forward_call& c) { c.eps = eps.first; }, {eps.second});
    }

    void gain_offset_out_of_range(const rms_norm_backend& b)
    {
        const std::pair<double, const char*> bad[] = {{std::nan(""), "gain_offset: "},
            {INFINITY, "gain_offset: inf"}, {-INFINITY, "gain_offset: -inf"},
            {1e39, "gain_offset: 1e+39"}};
        for (const auto& offset : bad)
        {
            refused<forward_call>(
                b, [&](forward_call& c) { c.gain_offset = offset.first; }, {offset.second});
            refused<gradient_call>(
                b, [&](gradient_call& c) { c.gain_offset = offset.first; }, {offset.second});
        }
    }

    void gamma_of_wrong_shape(const rms_norm_backend& b)
    {
        struct wrong_gamma
        {
            rms_norm_axes axes;
            contrib::rms_norm_dims dims;
            const char* in_message;
        };
        const wrong_gamma all[] = {{rms_norm_axes::sample, {1, 4, 1, 1}, "(1,4,1,1)"},
            {rms_norm_axes::sample, {1, 2, 1, 1}, "(1,2,1,1)"},
            {rms_norm_axes::sample, {3, 1, 1, 1}, "(3,1,1,1)"},
            {rms_norm_axes::sample, {1, 1, 1, 1}, "(1,1,1,1)"},
            {rms_norm_axes::sample, {2, 3, 4, 5}, "(2,3,4,5)"},
            {rms_norm_axes::sample, {1, 3, 5, 4}, "(1,3,5,4)"},
            {rms_norm_axes::sample, {1, 1, 1, 5}, "(1,1,1,5)"},
            {rms_norm_axes::row, {1, 3, 1, 1}, "(1,3,1,1)"},
            {rms_norm_axes::row, {1, 1, 1, 4}, "(1,1,1,4)"},
            {rms_norm_axes::row, {1, 5, 1, 1}, "(1,5,1,1)"},
            {rms_norm_axes::row, {1, 3, 4, 5}, "(1,3,4,5)"},
            {rms_norm_axes::channel, {1, 4, 1, 1}, "(1,4,1,1)"},
            {rms_norm_axes::channel, {1, 1, 1, 3}, "(1,1,1,3)"},
            {rms_norm_axes::channel, {1, 3, 4, 5}, "(1,3,4,5)"},
            {rms_norm_axes::channel, {2, 3, 1, 1}, "(2,3,1,1)"}};
        for (const wrong_gamma& wrong : all)
        {
            const contrib::rms_norm_dims& d = wrong.dims;
            const auto gamma = [&]() { return counting_tensor(d.num_samples, d.k, d.nr, d.nc); };
            refused<forward_call>(b,
                [&](forward_call& c)
                {
                    c.axes = wrong.axes;
                    c.gamma = gamma();
                },
                {"gamma shape: " + std::string(wrong.in_message), "src shape:   (2,3,4,5)"});
            refused<gradient_call>(b,
                [&](gradient_call& c)
                {
                    c.axes = wrong.axes;
                    c.gamma = gamma();
                    c.gamma_grad = gamma();
                    if (c.axes == rms_norm_axes::row)
                        c.scale = counting_tensor(2, 3, 4, 1);
                    if (c.axes == rms_norm_axes::channel)
                        c.scale = counting_tensor(2, 1, 4, 5);
                },
                {"gamma shape: " + std::string(wrong.in_message), "src shape:   (2,3,4,5)"});
        }
    }

    void gradient_of_wrong_shape(const rms_norm_backend& b)
    {
        refused<gradient_call>(b,
            [](gradient_call& c) { c.gradient_input = counting_tensor(2, 3, 5, 4); },
            {"gradient_input shape: (2,3,5,4)", "src shape:            (2,3,4,5)"});
        refused<gradient_call>(b,
            [](gradient_call& c) { c.gradient_input = counting_tensor(1, 3, 4, 5); },
            {"gradient_input shape: (1,3,4,5)"});
        refused<gradient_call>(b,
            [](gradient_call& c) { c.src_grad = counting_tensor(2, 3, 4, 6); },
            {"src_grad shape:       (2,3,4,6)"});
        refused<gradient_call>(
            b, [](gradient_call& c) { c.src_grad.clear(); }, {"src_grad shape:       (0,0,0,0)"});
        refused<gradient_call>(b,
            [](gradient_call& c) { c.gamma_grad = counting_tensor(3, 1, 1, 1); },
            {"gamma_grad shape: (3,1,1,1)", "gamma shape:      (1,3,1,1)"});
        refused<gradient_call>(
            b, [](gradient_call& c) { c.gamma_grad.clear(); }, {"gamma_grad shape: (0,0,0,0)"});
        refused<gradient_call>(b, [](gradient_call& c) { c.gamma.clear(); },
            {"gamma_grad shape: (1,3,1,1)", "gamma shape:      (0,0,0,0)"});
    }

    void scale_of_wrong_size(const rms_norm_backend& b)
    {
        for (long long size : {0, 1, 3, 24, 40})
        {
            refused<gradient_call>(b,
                [&](gradient_call& c) { c.scale = counting_tensor(size, 1, 1, 1); },
                {"scale.size(): " + std::to_string(size), "groups:       2"});
        }
        refused<gradient_call>(b,
            [&](gradient_call& c)
            {
                c.axes = rms_norm_axes::channel;
                c.scale = counting_tensor(2, 3, 4, 1);
            },
            {"scale.size(): 24", "groups:       40"});
    }

    void forward_buffers_that_overlap(const rms_norm_backend& b)
    {
        const auto overlap =
            [&](const std::function<void(forward_call&)>& run, const char* one, const char* other)
        {
            refused<forward_call>(not_spoiled, run,
                {"The memory of " + std::string(one) + " overlaps that of " + other});
        };

        // dest has the memory of (4,3,4,5), that is twice that of src
        overlap([&](forward_call& c) { c.run(b, part_of(c.dest, 1, 2, 3, 4, 5), c.gamma); }, "dest",
            "src");
        overlap([&](forward_call& c) { c.run(b, part_of(c.dest, 0, 2, 3, 4, 5), c.gamma); }, "dest",
            "src");
        overlap([&](forward_call& c) { c.run(b, part_of(c.dest, 120, 2, 3, 4, 5), c.gamma); },
            "dest", "src");
        overlap([&](forward_call& c) { c.run(b, c.src, part_of(c.dest, 237, 1, 3, 1, 1)); }, "dest",
            "gamma");
        overlap([&](forward_call& c) { c.run(b, part_of(c.scale, 7, 2, 3, 4, 5), c.gamma); },
            "scale", "src");
        overlap([&](forward_call& c) { c.run(b, c.src, part_of(c.scale, 0, 1, 3, 1, 1)); }, "scale",
            "gamma");
        refused<forward_call>(not_spoiled,
            [&](forward_call& c)
            { b.forward(c.axes, c.gain_offset, c.eps, c.dest, c.dest, c.src, c.gamma); },
            {"dest and scale are the same object"});
    }

    void gradient_buffers_that_overlap(const rms_norm_backend& b)
    /*!
        ensures
            - checks each output with each argument that begins at its second or at its last value
    !*/
    {
        const char* const names[] = {
            "gradient_input", "scale", "src", "gamma", "src_grad", "gamma_grad", "dscale"};
        const std::size_t first_output = 4, dscale = 6;
        for (std::size_t output = first_output; output <= dscale; ++output)
        {
            for (std::size_t inside = 0; inside < output; ++inside)
            {
                for (bool at_the_end : {false, true})
                {
                    const auto run = [&](gradient_call& c)
                    {
                        tensor* const all[] = {&c.gradient_input, &c.scale, &c.src, &c.gamma,
                            &c.src_grad, &c.gamma_grad, &c.dscale};
                        const gradient_call right;
                        const tensor* const shapes[] = {&right.gradient_input, &right.scale,
                            &right.src, &right.gamma, &right.src_grad, &right.gamma_grad};
                        std::vector<alias_tensor_instance> parts;
                        for (std::size_t i = 0; i < dscale; ++i)
                        {
                            const tensor& s = *shapes[i];
                            const std::size_t last = output == dscale ? c.dscale.size() - s.size()
                                                                      : shapes[output]->size() - 1;
                            parts.push_back(part_of(*all[i == inside ? output : i],
                                i != inside      ? 0
                                    : at_the_end ? last
                                                 : 1,
                                s.num_samples(), s.k(), s.nr(), s.nc()));
                        }
                        b.gradient(c.axes, c.gain_offset, parts[0], parts[1], parts[2], parts[3],
                            parts[4], parts[5], c.dscale);
                    };
                    refused<gradient_call>(
                        [](gradient_call& c)
                        {
                            // room for parts that overlap
                            c.src_grad = counting_tensor(4, 3, 4, 5);
                            c.gamma_grad = counting_tensor(4, 3, 4, 5);
                        },
                        run,
                        {"The memory of " + std::string(names[output]) + " overlaps that of " +
                            names[inside]});
                }
            }
        }

        // src_grad that is the memory of gradient_input is right, but not if it is src, too
        refused<gradient_call>(gradient_not_spoiled,
            [&](gradient_call& c)
            {
                b.gradient(c.axes, c.gain_offset, c.src, c.scale, c.src, c.gamma, c.src,
                    c.gamma_grad, c.dscale);
            },
            {"The memory of src_grad overlaps that of src"});
        refused<gradient_call>(gradient_not_spoiled,
            [&](gradient_call& c)
            {
                b.gradient(c.axes, c.gain_offset, c.gradient_input, c.scale, c.src, c.gamma,
                    c.src_grad, c.gamma_grad, c.scale);
            },
            {"scale"});
    }

    // ----------------------------------------------------------------------------------------

    struct layer_call
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A layer with parameters, whose options a test tries to set wrongly.
        !*/
        contrib::rms_norm_ layer;
        bool operator==(const layer_call& c) const { return saved(layer) == saved(c.layer); }
    };

    void layer_options_out_of_range()
    {
        const auto layer_refuses =
            [](const std::function<void(layer_call&)>& set, const std::string& word)
        {
            refused<layer_call>(
                [](layer_call& c)
                {
                    random_source rnd(1);
                    const subnet_with_output sub(random_problem(
                        rnd, rms_norm_axes::sample, c.layer.get_gain(), {2, 3, 4, 5}));
                    c.layer.setup(sub);
                },
                set, {word});
        };
        layer_refuses([](layer_call& c) { c.layer.set_eps(0); }, "eps: 0");
        layer_refuses([](layer_call& c) { c.layer.set_eps(-1); }, "eps: -1");
        layer_refuses([](layer_call& c) { c.layer.set_eps(std::nan("")); }, "eps: ");
        layer_refuses([](layer_call& c) { c.layer.set_eps(1e-50); }, "eps: 1e-50");
        layer_refuses([](layer_call& c) { c.layer.set_gain_offset(INFINITY); }, "gain_offset: inf");
        layer_refuses([](layer_call& c) { c.layer.set_gain(rms_norm_gain::none); }, "none");
        layer_refuses(
            [](layer_call& c) { c.layer.set_gain(rms_norm_gain::per_element); }, "per_element");
        for (const auto& bad :
            {std::make_pair(-1.0, ": -1"), {std::nan(""), ": "}, {INFINITY, ": inf"}})
        {
            const double val = bad.first;
            const auto refuses = [&](const std::function<void(layer_call&)>& set, const char* name)
            { layer_refuses(set, name + std::string(bad.second)); };
            refuses([=](layer_call& c) { c.layer.set_learning_rate_multiplier(val); },
                "\t learning_rate_multiplier");
            refuses([=](layer_call& c) { c.layer.set_weight_decay_multiplier(val); },
                "\t weight_decay_multiplier");
            refuses([=](layer_call& c) { c.layer.set_bias_learning_rate_multiplier(val); },
                "\t bias_learning_rate_multiplier");
            refuses([=](layer_call& c) { c.layer.set_bias_weight_decay_multiplier(val); },
                "\t bias_weight_decay_multiplier");
        }
        layer_refuses([](layer_call&) { contrib::rms_norm_row_ l(0.0); }, "eps: 0");
        layer_refuses([](layer_call&)
            { contrib::rms_norm_row_ l(1e-5, rms_norm_gain::none, 1e39); },
            "gain_offset: 1e+39");
    }

    // ----------------------------------------------------------------------------------------

    void sums_that_are_refused()
    {
        const auto refused_if =
            [](const std::function<void(sum_call&)>& spoil, const std::vector<std::string>& words)
        {
            refused<sum_call>(
                spoil, [](sum_call& c) { c.run(); }, words);
        };
        DLIB_TEST(in_child_process(
                      []() {
                          return what_happens<sum_call>(
                              [](sum_call&) {}, [](sum_call& c) { c.run(); }, {});
                      }) == "it was not refused");
        for (resizable_tensor sum_call::*shared :
            {&sum_call::dest, &sum_call::scale, &sum_call::src1, &sum_call::src2})
            refused_if([=](sum_call& c) { c.shares = shared; }, {"sum is the same object"});
        refused_if([](sum_call& c) { c.eps = 0; }, {"eps: 0"});
        refused_if(
            [](sum_call& c)
            {
                c.gamma.set_size(1, 4, 1, 1);
                c.gamma = 1;
            },
            {"(2,3,4,5)", "(1,4,1,1)"});
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_errors_tester : public tester
    {
    public:
        rms_norm_errors_tester() :
            tester("rms_norm_errors",
                "Run tests on what rms_normalize(), rms_normalize_gradient() and the layers "
                "refuse.")
        {
        }

        void perform_test() override
        {
            for (const rms_norm_backend& b : rms_norm_backends())
            {
                if (b.works_after_fork)
                    run_cases(b,
                        {NAMED_CASE(right_arguments_are_not_refused), NAMED_CASE(eps_out_of_range),
                            NAMED_CASE(gain_offset_out_of_range), NAMED_CASE(gamma_of_wrong_shape),
                            NAMED_CASE(gradient_of_wrong_shape), NAMED_CASE(scale_of_wrong_size),
                            NAMED_CASE(forward_buffers_that_overlap),
                            NAMED_CASE(gradient_buffers_that_overlap)});
                else
                    skip_case(b.name + ": errors",
                        "it does not survive a fork. The checks are the same code as on the CPU.");
            }
            RUN_CASE(layer_options_out_of_range());
            RUN_CASE(sums_that_are_refused());
        }
    } a_rms_norm_errors_tester;

    // ----------------------------------------------------------------------------------------

}
