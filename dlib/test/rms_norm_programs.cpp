// License: Boost Software License   See LICENSE.txt for the full license.

// What programs do with the layers: every function of dlib that takes a net, our own visitors,
// the choice between sample and row axes, and gradients at the end of float's range.

#include <cmath>
#include <iostream>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "child_process.h"
#include "rms_norm_runs.h"

namespace
{

    using namespace test;
    using namespace dlib;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_gain;

    // Each of the layers, in a repeat<> too, below bn_ and layer_norm_ (which switch the bias of
    // their input off) and above an fc_ with a bias.
    template <typename SUBNET>
    using block = relu<contrib::rms_norm_channel<SUBNET>>;
    using net_type = loss_multiclass_log<fc<3,
        contrib::rms_norm<fc<5,
            bn_con<contrib::rms_norm_channel<tag1<repeat<2,
                block,
                layer_norm<contrib::rms_norm_row<con<2, 3, 3, 1, 1, input<matrix<float>>>>>>>>>>>>>;
    using image_net = contrib::rms_norm<
        contrib::rms_norm_row<contrib::rms_norm_channel<con<2, 3, 3, 2, 2, input<matrix<float>>>>>>;

    const int num_norms = 5;

    template <typename function>
    struct each_norm
    {
        function f;

        template <rms_norm_axes AXES>
        void operator()(size_t i, contrib::rms_norm_over_<AXES>& l) const
        {
            f(i, l);
        }
    };

    template <typename net, typename function>
    void for_each_norm(net& n, function f)
    {
        visit_computational_layers(n, each_norm<function>{f});
    }

    template <typename net, typename function>
    int count_norms(net& n, function is_right)
    {
        int count = 0;
        for_each_norm(n, [&](size_t i, auto& l) { count += is_right(i, l); });
        return count;
    }

    matrix<float> random_image(long nr, long nc) { return matrix_cast<float>(randm(nr, nc)); }

    net_type trained_net()
    {
        net_type net;
        std::vector<matrix<float>> samples = {random_image(4, 6), random_image(4, 6)};
        std::vector<unsigned long> labels = {0, 2};
        dnn_trainer<net_type> trainer(net);
        trainer.train_one_step(samples, labels);
        trainer.get_net();
        return net;
    }

    // ----------------------------------------------------------------------------------------

    void multipliers_of_a_whole_net()
    {
        net_type net;
        DLIB_TEST(count_norms(net, [](size_t, auto&) { return true; }) == num_norms);

        set_all_learning_rate_multipliers(net, 0.5);
        DLIB_TEST(count_norms(net,
                      [](size_t, auto& l)
                      { return l.get_learning_rate_multiplier() == 0.5; }) == num_norms);

        // layers 2 and 5 are norms: those of index 2 to 4 leave the second one alone
        set_learning_rate_multipliers_range<2, 5>(net, 0.25);
        DLIB_TEST(layer<2>(net).layer_details().get_learning_rate_multiplier() == 0.25);
        DLIB_TEST(layer<5>(net).layer_details().get_learning_rate_multiplier() == 0.5);
    }

    template <typename layer_type>
    void multipliers_of_a_layer()
    {
        layer_type l;
        dlib::set_learning_rate_multiplier(l, 2);
        dlib::set_weight_decay_multiplier(l, 3);
        dlib::set_bias_learning_rate_multiplier(l, 4);
        dlib::set_bias_weight_decay_multiplier(l, 5);
        DLIB_TEST(dlib::get_learning_rate_multiplier(l) == 2);
        DLIB_TEST(dlib::get_weight_decay_multiplier(l) == 3);
        DLIB_TEST(dlib::get_bias_learning_rate_multiplier(l) == 4);
        DLIB_TEST(dlib::get_bias_weight_decay_multiplier(l) == 5);

        // by argument-dependent look-up, as dlib's own code calls them
        set_learning_rate_multiplier(l, 6);
        DLIB_TEST(get_learning_rate_multiplier(l) == 6);
        dlib::disable_bias(l); // there is none
        dlib::call_clean_method_if_exists(l);
    }

    void biases_below_a_norm()
    {
        net_type net = trained_net();
        set_all_bn_running_stats_window_sizes(net, 7);
        DLIB_TEST(layer<4>(net).layer_details().get_running_stats_window_size() == 7);

        disable_duplicative_biases(net);
        // An RMS norm removes no mean, so the bias of the fc_ below it counts,
        DLIB_TEST(get_bias_learning_rate_multiplier(layer<3>(net).layer_details()) == 1);
        const std::vector<float> old_params = values_of(
            layer<3>(net).layer_details().get_layer_params());
        DLIB_TEST(old_params.size() == 5 * 2 * 4 * 6 + 5);
        // and bn_ and layer_norm_ treat a norm below them as any layer without a bias.
        DLIB_TEST(get_bias_learning_rate_multiplier(layer<5>(net).layer_details()) == 0);
        matrix<float> image = random_image(4, 6);
        net(image);
    }

    void functions_on_images()
    {
        image_net net;
        resizable_tensor x;
        const matrix<float> image = random_image(8, 12);
        net.to_tensor(&image, &image + 1, x);
        net.forward(x);
        const std::vector<float> before = values_of(net.get_output());

        // the convolution maps, the norms leave a point where it is
        const dpoint p(4, 6);
        DLIB_TEST(input_tensor_to_output_tensor(net, p) ==
            input_tensor_to_output_tensor(net.subnet().subnet().subnet(), p));
        DLIB_TEST(output_tensor_to_input_tensor(net, p) ==
            output_tensor_to_input_tensor(net.subnet().subnet().subnet(), p));
        DLIB_TEST(input_tensor_to_output_tensor(net, p) != p);

        fuse_layers(net);
        net.forward(x);
        DLIB_TEST(same_bits(values_of(net.get_output()), before));

        // con: 3*3*2 filters and 2 biases; gains: 2 channels, columns, 2 channels
        DLIB_TEST(count_parameters(net) == 20 + 2 + static_cast<size_t>(net.get_output().nc()) + 2);
    }

    void functions_that_visit()
    {
        net_type net = trained_net();
        const net_type& const_net = net;

        std::ostringstream xml, dot;
        net_to_xml(net, xml);
        net_to_dot(net, dot);
        for (const char* name : {"<rms_norm ", "<rms_norm_row ", "<rms_norm_channel "})
            DLIB_TEST_MSG(xml.str().find(name) != std::string::npos, name);
        DLIB_TEST(!dot.str().empty());

        size_t parameters = 0, gradients = 0, layers = 0;
        visit_layer_parameters(net, [&](size_t, tensor& t) { parameters += t.size(); });
        DLIB_TEST(parameters == count_parameters(const_net));
        visit_layer_parameter_gradients(net, [&](size_t, tensor& t) { gradients += t.size(); });
        DLIB_TEST(gradients == parameters);

        const auto count = [&](auto&) { ++layers; };
        visit_layers(net, count);
        DLIB_TEST(layers == net_type::num_layers);
        visit_layers_backwards(net, count);
        visit_layers_range<0, net_type::num_layers>(net, count);
        visit_layers_backwards_range<0, net_type::num_layers>(net, count);
        DLIB_TEST(layers == 4 * net_type::num_layers);

        layers = 0;
        visit_computational_layers(net, count);
        const size_t computational = layers;
        layers = 0;
        visit_computational_layers_range<0, net_type::num_layers>(net, count);
        DLIB_TEST(layers == computational && computational > 10);
        layers = 0;
        visit_layers_until_tag<1>(net, count);
        DLIB_TEST(layers == 7);
        set_dnn_prefer_smallest_algorithms();
        set_dnn_prefer_fastest_algorithms();
    }

    // ----------------------------------------------------------------------------------------

    void options_of_a_whole_net()
    {
        net_type net;
        contrib::set_all_rms_norm_eps(net, 0.25);
        contrib::set_all_rms_norm_gain(net, rms_norm_gain::none);
        set_all_rms_norm_gain_offset(net, 1); // found without contrib::
        DLIB_TEST(count_norms(net,
                      [](size_t, auto& l)
                      {
                          return l.get_eps() == 0.25 && l.get_gain() == rms_norm_gain::none &&
                              l.get_gain_offset() == 1;
                      }) == num_norms);

        contrib::set_rms_norm_eps_range<0, 5>(net, 0.5);
        contrib::set_rms_norm_gain_range<0, 5>(net, rms_norm_gain::per_channel);
        contrib::set_rms_norm_gain_offset_range<0, 5>(net, 2);
        DLIB_TEST(count_norms(net,
                      [](size_t, auto& l)
                      {
                          return l.get_eps() == 0.5 && l.get_gain() == rms_norm_gain::per_channel &&
                              l.get_gain_offset() == 2;
                      }) == 1);
        DLIB_TEST(layer<2>(net).layer_details().get_eps() == 0.5);
        DLIB_TEST(layer<5>(net).layer_details().get_eps() == 0.25);
    }

    void wrong_options_of_a_whole_net()
    {
        // the layers nearest to the input have parameters, the topmost has none
        net_type net = trained_net();
        layer<2>(net).layer_details() = contrib::rms_norm_();
        const auto refuses = [&](const std::function<void(net_type&)>& set, const std::string& word)
        {
            const std::string result = in_child_process(
                [&]() -> std::string
                {
                    std::ostringstream before, after;
                    serialize(net, before);
                    try
                    {
                        set(net);
                        return "it was not refused";
                    }
                    catch (fatal_error& e)
                    {
                        serialize(net, after);
                        if (before.str() != after.str())
                            return "a layer was changed";
                        return std::string(e.what()).find(word) == std::string::npos ? e.what()
                                                                                     : "";
                    }
                });
            DLIB_TEST_MSG(result.empty(), word << ": " << result);
        };
        refuses([](net_type& n) { contrib::set_all_rms_norm_eps(n, 0); }, "eps: 0");
        refuses([](net_type& n) { contrib::set_all_rms_norm_gain_offset(n, 1e39); }, "1e+39");
        refuses(
            [](net_type& n) { contrib::set_all_rms_norm_gain(n, rms_norm_gain::none); }, "none");
        refuses([](net_type& n) { set_all_learning_rate_multipliers(n, -1); },
            "learning_rate_multiplier >= 0");
    }

    void layer_of_gemma()
    {
        using gemma_net = contrib::rms_norm_row<input<matrix<float>>>;
        gemma_net net(contrib::rms_norm_row_(contrib::rms_norm_gain_offset(1), 1e-6));
        const auto& l = net.layer_details();
        DLIB_TEST(l.get_gain_offset() == 1 && l.get_eps() == 1e-6);
        DLIB_TEST(l.get_gain() == rms_norm_gain::per_channel);

        matrix<float> x = random_image(3, 7);
        net(x);
        DLIB_TEST(values_of(l.get_layer_params()) == std::vector<float>(7, 0.0f));
        DLIB_TEST(contrib::rms_norm_(contrib::rms_norm_gain_offset(1)).get_eps() == 1e-5);
    }

    // ----------------------------------------------------------------------------------------

    float largest_change(const rms_norm_problem& a, const rms_norm_problem& b, std::size_t count)
    /*!
        ensures
            - returns by how much the first count outputs of a and b differ at most
    !*/
    {
        const rms_norm_backend& cpu = rms_norm_backends().front();
        rms_norm_result of_a, of_b;
        run_forward(cpu, a, 0, of_a);
        run_forward(cpu, b, 0, of_b);
        float largest = 0;
        for (std::size_t i = 0; i < count; ++i)
            largest = std::max(largest, std::abs(of_a.dest[i] - of_b.dest[i]));
        return largest;
    }

    void tokens_along_nr()
    /*!
        ensures
            - checks that a later token changes the outputs of earlier ones with sample axes, and
              not with row axes
    !*/
    {
        const long long tokens = 16, features = 64;
        random_source rnd(31);
        for (rms_norm_axes axes : {rms_norm_axes::sample, rms_norm_axes::row})
        {
            rms_norm_problem p = random_problem(
                rnd, axes, rms_norm_gain::none, {1, 1, tokens, features});
            rms_norm_problem changed = p;
            for (auto i = static_cast<std::size_t>((tokens - 1) * features); i < p.src.size(); ++i)
                changed.src[i] *= 10;
            const float change = largest_change(p, changed, p.src.size() - features);
            if (axes == rms_norm_axes::row)
                DLIB_TEST(change == 0);
            else
                DLIB_TEST(change > 0.5f);
            std::cout << "\nThe last of " << tokens << " tokens of (1,1," << tokens << ","
                      << features << ") times 10 changes the outputs of the others by up to "
                      << change << " with " << (axes == rms_norm_axes::row ? "row" : "sample")
                      << " axes" << std::endl;
        }
    }

    void gradient_at_the_end_of_the_range(const rms_norm_backend& b)
    /*!
        ensures
            - checks that the gradient keeps its bound as long as |g*d|, |m| and |x*s*m| are floats
    !*/
    {
        for (const double d : {1e38, 2e38, 2.6e38})
        {
            rms_norm_problem p;
            p.axes = rms_norm_axes::row;
            p.gain = rms_norm_gain::per_channel;
            p.dims = {1, 1, 1, 4};
            p.eps = 1e-5;
            p.src = {100, 200, 300, 0};
            p.gamma = {1, 1, 1, 1};
            const auto f = static_cast<float>(d);
            p.gradient_input = {f, f, f, -f};
            p.old_src_grad = {0, 0, 0, 0};
            rms_norm_result r;
            run_forward(b, p, 0, r);
            run_gradient(b, p, 0, r);
            const rms_norm_answer exact = exact_rms_norm(p);
            check_numbers("data gradient", r.src_grad, exact.src_grad, p);
        }
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_programs_tester : public tester
    {
    public:
        rms_norm_programs_tester() :
            tester("rms_norm_programs", "Run tests on what programs do with the layers.")
        {
        }

        void perform_test() override
        {
            RUN_CASE(multipliers_of_a_whole_net());
            RUN_CASE(multipliers_of_a_layer<contrib::rms_norm_>());
            RUN_CASE(multipliers_of_a_layer<contrib::rms_norm_row_>());
            RUN_CASE(multipliers_of_a_layer<contrib::rms_norm_channel_>());
            RUN_CASE(biases_below_a_norm());
            RUN_CASE(functions_on_images());
            RUN_CASE(functions_that_visit());
            RUN_CASE(options_of_a_whole_net());
            RUN_CASE(wrong_options_of_a_whole_net());
            RUN_CASE(layer_of_gemma());
            RUN_CASE(tokens_along_nr());
            for (const rms_norm_backend& b : rms_norm_backends())
                run_cases(b, {NAMED_CASE(gradient_at_the_end_of_the_range)});
        }
    } a_rms_norm_programs_tester;

    // ----------------------------------------------------------------------------------------

}
