// License: Boost Software License   See LICENSE.txt for the full license.

// The layers, alone and in nets: what dlib asks of every layer, training, saving, copying,
// printing, and a net that dlib 20 saved. Network types are costly to compile: there are two.

#include <array>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include <dlib/xml_parser.h>
#include "data_file.h"
#include "rms_norm_runs.h"

namespace
{
    // The tag of what lies below in the subnets that dlib's test_layer() makes, and in ours.
    template <typename SUBNET>
    struct below
    {
        static const unsigned long id = 77;
    };

    struct two_inputs : test::subnet_with_output
    {
        two_inputs(const test::rms_norm_problem& p, const test::rms_norm_problem& lower_) :
            subnet_with_output(p),
            lower(lower_)
        {
        }

        subnet_with_output& subnet() { return lower; }
        const subnet_with_output& subnet() const { return lower; }

        subnet_with_output lower;
    };
}

namespace dlib::impl
{
    template <unsigned int i>
    struct layer_helper_match<below, timpl::test_layer_subnet, i>
    {
        using type = timpl::test_layer_subnet;
        static type& layer(type& n) { return n.subnet(); }
    };

    template <unsigned int i>
    struct layer_helper_match<below, const timpl::test_layer_subnet, i>
    {
        using type = const timpl::test_layer_subnet;
        static type& layer(type& n) { return n.subnet(); }
    };

    template <unsigned int i>
    struct layer_helper_match<below, two_inputs, i>
    {
        using type = test::subnet_with_output;
        static type& layer(two_inputs& n) { return n.subnet(); }
    };

    template <unsigned int i>
    struct layer_helper_match<below, const two_inputs, i>
    {
        using type = const test::subnet_with_output;
        static type& layer(const two_inputs& n) { return n.subnet(); }
    };
}

namespace
{

    using namespace test;
    using namespace dlib;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_gain;

    // the net in dlib20_rms_norm_net.dat
    using image_net = loss_multiclass_log<fc<4,
        contrib::rms_norm<htan<fc<16, contrib::rms_norm<input<std::array<matrix<float>, 3>>>>>>>>;

    // every layer of ours, with everything in dlib that nets are made of
    template <typename SUBNET>
    using block = add_prev1<contrib::rms_norm_channel<con<4, 3, 3, 1, 1, tag1<SUBNET>>>>;
    using mixed_net = loss_multiclass_log<fc<3,
        contrib::rms_norm<repeat<2,
            block,
            con<4,
                3,
                3,
                1,
                1,
                add_prev2<contrib::rms_norm_row<skip2<relu<tag2<input<matrix<float>>>>>>>>>>>>;

#ifndef DLIB_RMS_NORM_DLIB_HAS_ITS_OWN
    static_assert(std::is_same<dlib::rms_norm_, contrib::rms_norm_>::value, "exported to dlib");
    static_assert(std::is_same<dlib::rms_norm<relu<input<matrix<float>>>>,
                      contrib::rms_norm<relu<input<matrix<float>>>>>::value,
        "exported to dlib");
#endif

    const std::vector<kind_of_gain> all_gains = {{rms_norm_gain::per_channel, 0},
        {rms_norm_gain::per_element, 0}, {rms_norm_gain::none, 0}, {rms_norm_gain::per_channel, 1},
        {rms_norm_gain::per_element, 1}, {rms_norm_gain::per_channel, -0.3}};

    // ----------------------------------------------------------------------------------------
    //                                   layers by themselves
    // ----------------------------------------------------------------------------------------

    template <typename layer_type>
    void layer_passes_test_layer()
    {
        for (const kind_of_gain& kind : all_gains)
        {
            print_spinner();
            const auto result = test_layer(layer_type(1e-5, kind.gain, kind.offset));
            DLIB_TEST_MSG(result, result);
        }
    }

    template <typename layer_type>
    rms_norm_result run_layer(layer_type& layer, const rms_norm_problem& p)
    {
        rms_norm_result r;
        subnet_with_output sub(p);
        resizable_tensor output, gradient(p.dims.num_samples, p.dims.k, p.dims.nr, p.dims.nc),
            params_grad;
        layer.forward(sub, output);
        r.dest = values_of(output);

        std::copy(p.gradient_input.begin(), p.gradient_input.end(), gradient.begin());
        params_grad.copy_size(layer.get_layer_params());
        params_grad = guard_value();
        sub.gradient_input = 0;
        layer.backward(gradient, sub, params_grad);
        r.src_grad = values_of(sub.gradient_input);
        r.gamma_grad = values_of(params_grad);
        return r;
    }

    template <typename layer_type>
    void layer_agrees_with_definition(rms_norm_axes axes)
    /*!
        ensures
            - checks outputs and gradients with random gamma and offset. (test_layer() has
              gains of 1 only.)
    !*/
    {
        random_source rnd(1);
        for (const kind_of_gain& kind : all_gains)
        {
            rms_norm_problem p = random_problem(rnd, axes, kind.gain, {3, 4, 5, 6});
            p.gain_offset = kind.offset;
            p.eps = 1e-3;

            layer_type layer(p.eps, kind.gain, kind.offset);
            layer.setup(subnet_with_output(p));
            DLIB_TEST(layer.get_layer_params().size() == p.gamma.size());
            // offset, gamma and their sum are rounded to float
            const double error = 0x1p-24 * (std::abs(kind.offset) + std::abs(1 - kind.offset) + 1);
            for (float gamma : layer.get_layer_params())
                DLIB_TEST(std::abs(kind.offset + gamma - 1) <=
                    (kind.offset == 0 || kind.offset == 1 ? 0 : error));

            std::copy(p.gamma.begin(), p.gamma.end(), layer.get_layer_params().begin());
            const rms_norm_answer exact = exact_rms_norm(p);
            const rms_norm_result found = run_layer(layer, p);
            check_numbers("output", found.dest, exact.dest, p);
            check_numbers("data gradient", found.src_grad, exact.src_grad, p);
            check_numbers("gamma gradient", found.gamma_grad, exact.gamma_grad, p);

            // options that can change at any time
            p.eps = 0.5;
            p.gain_offset = 0.75;
            layer.set_eps(p.eps);
            layer.set_gain_offset(p.gain_offset);
            check_numbers("output", run_layer(layer, p).dest, exact_rms_norm(p).dest, p);
        }
    }

    template <template <template <typename> class> class layer_type, typename norm_type>
    void layer_is_an_addition_and_a_norm(rms_norm_axes axes)
    /*!
        ensures
            - compares the bits of everything with those of add_prev_ and the norm, for inputs of
              one shape, and of different shapes, which dlib takes as padded with zeros
    !*/
    {
        random_source rnd(11);
        using dims = contrib::rms_norm_dims;
        for (const kind_of_gain& kind : all_gains)
        {
            for (const auto& [first, second] : {std::pair<dims, dims>{{3, 4, 5, 6}, {3, 4, 5, 6}},
                     {{2, 3, 1, 700}, {2, 3, 1, 700}}, {{40, 33, 9, 8}, {40, 33, 9, 8}},
                     {{3, 2, 5, 6}, {2, 4, 3, 7}}})
            {
                two_inputs sub(random_problem(rnd, axes, kind.gain, first),
                    random_problem(rnd, axes, kind.gain, second));
                two_inputs expected_sub = sub;

                add_prev_<below> add;
                norm_type norm(1e-3, kind.gain, kind.offset);
                subnet_with_output sum(random_problem(rnd, axes, kind.gain, first));
                add.forward(expected_sub, sum.output);
                norm.setup(sum);
                random_problem(rnd, axes, kind.gain, first);
                const std::vector<float> gamma = random_values(rnd, norm.get_layer_params().size());
                std::copy(gamma.begin(), gamma.end(), norm.get_layer_params().begin());
                resizable_tensor expected, expected_gamma_grad;
                norm.forward(sum, expected);
                resizable_tensor gradient;
                gradient.copy_size(expected);
                const std::vector<float> d = random_values(rnd, gradient.size());
                std::copy(d.begin(), d.end(), gradient.begin());
                expected_gamma_grad.copy_size(norm.get_layer_params());
                sum.gradient_input.copy_size(sum.output);
                sum.gradient_input = 0;
                norm.backward(gradient, sum, expected_gamma_grad);
                resizable_tensor none;
                add.backward(sum.gradient_input, expected_sub, none);

                layer_type<below> layer(1e-3, kind.gain, kind.offset);
                layer.setup(sub);
                DLIB_TEST(layer.get_layer_params().size() == gamma.size());
                std::copy(gamma.begin(), gamma.end(), layer.get_layer_params().begin());
                resizable_tensor found, gamma_grad;
                for (int times = 0; times < 2; ++times)
                    layer.forward(sub, found);
                gamma_grad.copy_size(layer.get_layer_params());
                layer.backward(gradient, sub, gamma_grad);
                DLIB_TEST(have_same_bits(found, expected));
                DLIB_TEST(have_same_bits(gamma_grad, expected_gamma_grad));
                DLIB_TEST(have_same_bits(sub.gradient_input, expected_sub.gradient_input));
                DLIB_TEST(
                    have_same_bits(sub.lower.gradient_input, expected_sub.lower.gradient_input));
            }
        }
    }

    template <typename layer_type, typename norm_type>
    void sum_layer_is_saved()
    {
        layer_type layer(0.25, rms_norm_gain::per_element, 1);
        layer.set_learning_rate_multiplier(3);
        random_source rnd(12);
        const rms_norm_problem p = random_problem(
            rnd, rms_norm_axes::row, rms_norm_gain::none, {2, 3, 4, 5});
        const two_inputs sub(p, p);
        layer.setup(sub);
        layer.get_layer_params() = 0.5;
        std::ostringstream out;
        serialize(layer, out);

        layer_type loaded;
        std::istringstream in(out.str());
        deserialize(loaded, in);
        DLIB_TEST(loaded.get_eps() == 0.25 && loaded.get_gain() == rms_norm_gain::per_element &&
            loaded.get_gain_offset() == 1 && loaded.get_learning_rate_multiplier() == 3);
        resizable_tensor a, b;
        layer.forward(sub, a);
        loaded.forward(sub, b);
        DLIB_TEST(have_same_bits(a, b));

        const auto refuses = [&](const std::string& bytes)
        {
            std::istringstream broken(bytes);
            bool refused = false;
            try
            {
                deserialize(loaded, broken);
            }
            catch (serialization_error&)
            {
                refused = true;
            }
            DLIB_TEST_MSG(refused, bytes.size());
            DLIB_TEST(loaded.get_eps() == 0.25 &&
                loaded.get_layer_params().size() == layer.get_layer_params().size());
        };
        for (std::size_t size = 0; size < out.str().size(); ++size)
            refuses(out.str().substr(0, size));
        std::ostringstream other;
        serialize(std::string("add_prev_"), other);
        serialize(static_cast<const norm_type&>(layer), other);
        refuses(other.str());

        std::ostringstream printed, xml;
        printed << layer;
        to_xml(layer, xml);
        DLIB_TEST_MSG(printed.str().find("add_prev77_rms_norm") == 0 &&
                printed.str().find("eps=0.25") != std::string::npos,
            printed.str());
        DLIB_TEST_MSG(xml.str().find("<add_prev_rms_norm tag='77'>") == 0 &&
                xml.str().find("</add_prev_rms_norm>") != std::string::npos,
            xml.str());
    }

    template <typename layer_type>
    void sum_layer_needs_a_gamma_that_fits()
    {
        random_source rnd(13);
        const auto problem = [&](const contrib::rms_norm_dims& dims)
        { return random_problem(rnd, rms_norm_axes::row, rms_norm_gain::none, dims); };
        layer_type layer;
        layer.setup(two_inputs(problem({2, 3, 4, 5}), problem({2, 3, 4, 5})));
        resizable_tensor output;
        std::string message;
        try
        {
            layer.forward(two_inputs(problem({2, 3, 4, 5}), problem({2, 6, 4, 6})), output);
        }
        catch (dlib::error& e)
        {
            message = e.what();
        }
        DLIB_TEST_MSG(message.find("(2,6,4,6)") != std::string::npos, message);
        DLIB_TEST(output.size() == 0);
    }

    template <typename layer_type>
    void layer_options()
    {
        layer_type layer;
        DLIB_TEST(layer.get_eps() == 1e-5);
        DLIB_TEST(layer.get_eps() == contrib::DEFAULT_RMS_NORM_EPS);
        DLIB_TEST(layer.get_gain() == rms_norm_gain::per_channel);
        DLIB_TEST(layer.get_gain_offset() == 0);
        DLIB_TEST(layer.get_learning_rate_multiplier() == 1);
        DLIB_TEST(layer.get_weight_decay_multiplier() == 0);
        DLIB_TEST(layer.get_bias_learning_rate_multiplier() == 1);
        DLIB_TEST(layer.get_bias_weight_decay_multiplier() == 1);
        DLIB_TEST(layer.get_layer_params().size() == 0);
        DLIB_TEST(layer.map_input_to_output(dpoint(3, 4)) == dpoint(3, 4));
        DLIB_TEST(layer.map_output_to_input(dpoint(3, 4)) == dpoint(3, 4));

        layer.set_eps(0.25);
        layer.set_gain(rms_norm_gain::none);
        layer.set_gain_offset(1);
        layer.set_learning_rate_multiplier(2);
        layer.set_weight_decay_multiplier(3);
        layer.set_bias_learning_rate_multiplier(4);
        layer.set_bias_weight_decay_multiplier(5);
        DLIB_TEST(layer.get_eps() == 0.25);
        DLIB_TEST(layer.get_gain() == rms_norm_gain::none);
        DLIB_TEST(layer.get_gain_offset() == 1);
        DLIB_TEST(layer.get_learning_rate_multiplier() == 2);
        DLIB_TEST(layer.get_weight_decay_multiplier() == 3);
        DLIB_TEST(layer.get_bias_learning_rate_multiplier() == 4);
        DLIB_TEST(layer.get_bias_weight_decay_multiplier() == 5);

        std::ostringstream sout;
        sout << layer;
        for (const char* word : {"eps=0.25", "none", "gain_offset=1", "learning_rate_mult=2",
                 "weight_decay_mult=3", "bias_learning_rate_mult=4", "bias_weight_decay_mult=5"})
            DLIB_TEST_MSG(sout.str().find(word) != std::string::npos,
                word << " is missing in " << sout.str());
    }

    template <typename layer_type>
    void layer_refuses_other_shapes(rms_norm_axes axes,
        const contrib::rms_norm_dims& fitting,
        const contrib::rms_norm_dims& other,
        const std::string& gamma,
        const std::string& wanted_gamma)
    {
        random_source rnd(2);
        const rms_norm_problem p = random_problem(rnd, axes, rms_norm_gain::per_channel, fitting);
        const subnet_with_output sub(p);
        layer_type layer;
        layer.setup(sub);
        const rms_norm_result before = run_layer(layer, p);

        resizable_tensor output(1, 2, 3, 4);
        output = 7;
        const resizable_tensor old_output = output;
        std::string message;
        try
        {
            layer.forward(
                subnet_with_output(random_problem(rnd, axes, rms_norm_gain::per_channel, other)),
                output);
        }
        catch (fatal_error&)
        {
            DLIB_TEST_MSG(false, "a wrong input is not a fatal error");
        }
        catch (dlib::error& e)
        {
            message = e.what();
        }
        for (const std::string& word : {gamma, wanted_gamma})
            DLIB_TEST_MSG(
                message.find(word) != std::string::npos, word << " is missing in: " << message);
        DLIB_TEST(have_same_bits(output, old_output));
        DLIB_TEST(same_bits(run_layer(layer, p), before));

        // other sizes that do not concern gamma are fine
        rms_norm_problem more = random_problem(rnd, axes, rms_norm_gain::per_channel,
            {fitting.num_samples + 3, fitting.k, fitting.nr, fitting.nc});
        std::fill(more.gamma.begin(), more.gamma.end(), 1.0f);
        check_numbers("output", run_layer(layer, more).dest, exact_rms_norm(more).dest, more);
    }

    void functions_of_dlib_20()
    /*!
        ensures
            - checks that the functions with five and seven arguments are those with sample
              axes and no offset, in tt and in cpu, with known values
    !*/
    {
        rms_norm_problem p;
        p.dims = {1, 4, 1, 1};
        p.src = p.gamma = {1, 2, 3, 4};
        p.gradient_input = {1, -1, 1, -1};
        p.old_src_grad.assign(4, 0);
        const rms_norm_answer exact = exact_rms_norm(p);
        const double known[] = {0.365148128, 1.460592513, 3.286333154, 5.842370052};
        const double known_dx[] = {0.486864009, -0.486864496, 1.460592026, -0.973728991};
        const double known_dgamma[] = {0.365148128, -0.730296256, 1.095444385, -1.460592513};

        subnet_with_output sub(p);
        resizable_tensor gamma(1, 4), gradient(1, 4), gamma_grad(1, 4), dest, scale, dscale;
        std::copy(p.gamma.begin(), p.gamma.end(), gamma.begin());
        std::copy(p.gradient_input.begin(), p.gradient_input.end(), gradient.begin());

        for (bool on_cpu : {false, true})
        {
            sub.gradient_input = 0;
            gamma_grad = guard_value();
            if (on_cpu)
            {
                contrib::cpu::rms_normalize(1e-5, dest, scale, sub.output, gamma);
                contrib::cpu::rms_normalize_gradient(
                    gradient, scale, sub.output, gamma, sub.gradient_input, gamma_grad, dscale);
            }
            else
            {
                contrib::tt::rms_normalize(1e-5, dest, scale, sub.output, gamma);
                contrib::tt::rms_normalize_gradient(
                    gradient, scale, sub.output, gamma, sub.gradient_input, gamma_grad, dscale);
            }
            const rms_norm_result found = {values_of(dest), values_of(scale),
                values_of(sub.gradient_input), values_of(gamma_grad), values_of(dscale)};
            check_answer(found, exact, p);
            for (std::size_t i = 0; i < 4; ++i)
            {
                DLIB_TEST(std::abs(found.dest[i] - known[i]) <= exact.dest[i].bound + 0.5e-9);
                DLIB_TEST(
                    std::abs(found.src_grad[i] - known_dx[i]) <= exact.src_grad[i].bound + 0.5e-9);
                DLIB_TEST(std::abs(found.gamma_grad[i] - known_dgamma[i]) <=
                    exact.gamma_grad[i].bound + 0.5e-9);
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                        nets
    // ----------------------------------------------------------------------------------------

    template <typename net_type>
    net_type loaded(const std::string& bytes)
    {
        std::istringstream sin(bytes);
        net_type net;
        deserialize(net, sin);
        return net;
    }

    resizable_tensor read_tensor(std::istream& in, const std::string& expected_name)
    {
        std::string name;
        long long n = 0, k = 0, nr = 0, nc = 0;
        in >> name >> n >> k >> nr >> nc;
        DLIB_TEST(in && name == expected_name);
        resizable_tensor t(n, k, nr, nc);
        for (float& v : t)
            in >> v;
        DLIB_TEST(bool(in));
        return t;
    }

    template <typename net_type>
    resizable_tensor last_output(net_type& net, const resizable_tensor& x)
    {
        return net.subnet().forward(x);
    }

    template <typename net_type>
    void train(net_type& net,
        const resizable_tensor& x,
        const std::vector<unsigned long>& labels,
        int steps,
        std::vector<double>* losses = nullptr)
    {
        std::vector<sgd> solvers(net_type::num_computational_layers, sgd(0.0005f, 0.9f));
        for (int i = 0; i < steps; ++i)
        {
            const double loss = net.compute_parameter_gradients(x, labels.begin());
            if (losses)
                losses->push_back(loss);
            net.update_parameters(solvers, 0.05);
        }
    }

    resizable_tensor
    random_images(random_source& rnd, long long n, long long k, long long nr, long long nc)
    {
        resizable_tensor x(n, k, nr, nc);
        const std::vector<float> values = random_values(rnd, x.size());
        std::copy(values.begin(), values.end(), x.begin());
        return x;
    }

    void tell_input_layer(image_net& net)
    /*!
        ensures
            - makes net ready for forward(), which takes tensors: dlib wants to have seen a call
              of to_tensor() before.
    !*/
    {
        const std::array<matrix<float>, 3> image = {
            zeros_matrix<float>(4, 5), zeros_matrix<float>(4, 5), zeros_matrix<float>(4, 5)};
        resizable_tensor unused;
        net.to_tensor(&image, &image + 1, unused);
    }

    void tell_input_layer(mixed_net& net)
    {
        const matrix<float> image = zeros_matrix<float>(5, 7);
        resizable_tensor unused;
        net.to_tensor(&image, &image + 1, unused);
    }

    std::vector<unsigned long>
    random_labels(random_source& rnd, std::size_t size, unsigned long num_labels)
    {
        std::vector<unsigned long> labels(size);
        for (unsigned long& label : labels)
            label = rnd() % num_labels;
        return labels;
    }

    // ----------------------------------------------------------------------------------------

    double largest(const tensor& t) { return max(abs(mat(t))); }

    double largest_row_sum(const tensor& fc_params, long num_inputs)
    /*!
        ensures
            - returns how much an fc layer can enlarge the largest number of its input
    !*/
    {
        // weights are (inputs, outputs), then one row of biases
        const long num_outputs = static_cast<long>(fc_params.size()) / (num_inputs + 1);
        const matrix<float> weights = abs(mat(fc_params, num_inputs + 1, num_outputs));
        return max(sum_rows(weights));
    }

    void net_of_dlib_20_gives_its_outputs()
    /*!
        ensures
            - checks the outputs that dlib 20 got, in float throughout. Their error is followed
              from layer to layer as the largest one of a value: a sum of n float products has
              at most n*u of the sum of absolute values, in any order.
    !*/
    {
        std::istringstream sin(read_data_file("dlib20_rms_norm_net.txt"));
        const resizable_tensor x = read_tensor(sin, "input");
        const resizable_tensor expected = read_tensor(sin, "output");
        auto net = loaded<image_net>(read_data_file("dlib20_rms_norm_net.dat"));
        const resizable_tensor found = last_output(net, x);
        DLIB_TEST(shape_of(found) == shape_of(expected));

        const double u = 0x1p-24;
        const double n1 = 90, n2 = 16;
        const tensor& y1 = layer<5>(net).get_output();
        const tensor& y2 = layer<2>(net).get_output();
        const double fc1 = largest_row_sum(layer<4>(net).layer_details().get_layer_params(), 90);
        const double fc2 = largest_row_sum(layer<1>(net).layer_details().get_layer_params(), 16);
        const double gamma2 = largest(layer<2>(net).layer_details().get_layer_params());
        double s2 = 0;
        for (long long n = 0; n < x.num_samples(); ++n)
            s2 = std::max(s2,
                1 /
                    std::sqrt(
                        sum(squared(rowm(mat(layer<3>(net).get_output()), static_cast<long>(n)))) /
                            n2 +
                        1e-5));

        // the root halves the error of the sum
        double error = (n1 / 2 + 8) * u * largest(y1);
        error = fc1 * (error + (n1 + 2) * u * std::max(1.0, largest(y1)));
        error += 4 * u;
        error = gamma2 * s2 * (1 + std::sqrt(n2)) * error + (n2 / 2 + 8) * u * largest(y2);
        error = fc2 * (error + (n2 + 2) * u * std::max(1.0, largest(y2)));

        const double difference = largest(resizable_tensor(mat(found) - mat(expected)));
        DLIB_TEST_MSG(difference <= error, difference << " > " << error);
    }

    void net_of_dlib_20_is_saved_byte_for_byte()
    {
        const std::string bytes = read_data_file("dlib20_rms_norm_net.dat");
        const auto net = loaded<image_net>(bytes);
        DLIB_TEST(saved(net) == bytes);
        const auto copy = net;
        DLIB_TEST(saved(copy) == bytes);
    }

    void cut_net_files()
    {
        const std::string bytes = read_data_file("dlib20_rms_norm_net.dat");
        for (std::size_t size = 0; size < bytes.size(); ++size)
        {
            bool refused = false;
            try
            {
                loaded<image_net>(bytes.substr(0, size));
            }
            catch (serialization_error&)
            {
                refused = true;
            }
            DLIB_TEST_MSG(refused, "the first " << size << " bytes");
        }
    }

    void layers_below_learn()
    {
        random_source rnd(3);
        const resizable_tensor x = random_images(rnd, 20, 3, 4, 5);
        const std::vector<unsigned long> labels = random_labels(rnd, 20, 4);

        for (double multiplier : {1.0, 0.0})
        {
            image_net net;
            tell_input_layer(net);
            layer<2>(net).layer_details().set_learning_rate_multiplier(multiplier);
            last_output(net, x);
            const resizable_tensor first_fc = layer<4>(net).layer_details().get_layer_params();
            const resizable_tensor gamma = layer<2>(net).layer_details().get_layer_params();

            std::vector<double> losses;
            train(net, x, labels, 50, &losses);
            DLIB_TEST(!have_same_bits(layer<4>(net).layer_details().get_layer_params(), first_fc));
            DLIB_TEST(have_same_bits(layer<2>(net).layer_details().get_layer_params(), gamma) ==
                (multiplier == 0));
            // random labels of 20 samples: log(4) at the start, and to be learned by heart
            DLIB_TEST_MSG(
                losses.back() < losses.front() / 2, losses.front() << " -> " << losses.back());
        }
    }

    template <typename net_type>
    void trains_on_after_loading(net_type& net,
        const resizable_tensor& x,
        const std::vector<unsigned long>& labels)
    {
        train(net, x, labels, 5);
        net_type copy = loaded<net_type>(saved(net));
        DLIB_TEST(saved(copy) == saved(net));
        DLIB_TEST(have_same_bits(last_output(copy, x), last_output(net, x)));

        train(net, x, labels, 5);
        train(copy, x, labels, 5);
        net.clean();
        copy.clean();
        DLIB_TEST(saved(copy) == saved(net));
        DLIB_TEST(have_same_bits(last_output(copy, x), last_output(net, x)));
    }

    template <typename net_type>
    void copies_moves_and_cleans(net_type& net, const resizable_tensor& x)
    {
        const resizable_tensor expected = last_output(net, x);

        net_type copy(net);
        DLIB_TEST(have_same_bits(last_output(copy, x), expected));
        net_type moved(std::move(copy));
        DLIB_TEST(have_same_bits(last_output(moved, x), expected));
        copy = net;
        DLIB_TEST(have_same_bits(last_output(copy, x), expected));
        moved = std::move(copy);
        DLIB_TEST(have_same_bits(last_output(moved, x), expected));

        net.clean();
        DLIB_TEST(have_same_bits(last_output(net, x), expected));
    }

    void training_and_inference_agree(mixed_net& net,
        const resizable_tensor& x,
        const std::vector<unsigned long>& labels)
    {
        const resizable_tensor inference = last_output(net, x);
        net.compute_parameter_gradients(x, labels.begin());
        DLIB_TEST(have_same_bits(net.subnet().get_output(), inference));
        net.compute_loss(x, labels.begin());
        DLIB_TEST(have_same_bits(net.subnet().get_output(), inference));
    }

    struct layer_recorder
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A visitor of layers that collects the positions and parameters of ours.
        !*/
        std::vector<std::size_t>& positions;
        std::vector<std::vector<float>>& gammas;

        template <typename T>
        void operator()(std::size_t, T&) const
        {
        }

        template <rms_norm_axes AXES, typename SUBNET, typename E>
        void operator()(std::size_t position,
            add_layer<contrib::rms_norm_over_<AXES>, SUBNET, E>& l) const
        {
            positions.push_back(position);
            gammas.push_back(values_of(l.layer_details().get_layer_params()));
        }
    };

    std::vector<std::vector<float>> gammas_of(mixed_net& net)
    {
        std::vector<std::size_t> positions;
        std::vector<std::vector<float>> gammas;
        visit_layers(net, layer_recorder{positions, gammas});
        return gammas;
    }

    std::vector<std::size_t> positions_of_norms(mixed_net& net)
    {
        std::vector<std::size_t> positions;
        std::vector<std::vector<float>> gammas;
        visit_layers(net, layer_recorder{positions, gammas});
        return positions;
    }

    void every_gamma_of_a_net_learns(mixed_net& net,
        const resizable_tensor& x,
        const std::vector<unsigned long>& labels)
    {
        const auto before = gammas_of(net);
        train(net, x, labels, 1);
        const auto after = gammas_of(net);
        DLIB_TEST(before.size() == 4 && after.size() == 4);
        for (std::size_t i = 0; i < before.size(); ++i)
        {
            DLIB_TEST(before[i].size() == after[i].size());
            for (std::size_t j = 0; j < before[i].size(); ++j)
                DLIB_TEST_MSG(before[i][j] != after[i][j], "layer " << i << ", gamma " << j);
        }
    }

    void sum_net_trains_and_is_saved()
    {
        using sum_net = loss_multiclass_log<fc<3,
            contrib::add_prev1_rms_norm<
                con<4, 3, 3, 1, 1, tag1<relu<con<4, 3, 3, 1, 1, input<matrix<float>>>>>>>>>;
        random_source rnd(14);
        std::vector<matrix<float>> images;
        for (int i = 0; i < 6; ++i)
            images.push_back(matrix_cast<float>(gaussian_randm(5, 7, i)));
        const std::vector<unsigned long> labels = random_labels(rnd, images.size(), 3);
        sum_net net;
        contrib::set_all_rms_norm_eps(net, 0.01);
        set_all_learning_rate_multipliers(net, 0.5);
        resizable_tensor x;
        net.to_tensor(images.begin(), images.end(), x);
        std::vector<double> losses;
        train(net, x, labels, 30, &losses);
        DLIB_TEST_MSG(losses.back() < 0.7 * losses.front(), losses.back());
        DLIB_TEST(layer<2>(net).layer_details().get_eps() == 0.01);
        DLIB_TEST(layer<2>(net).layer_details().get_learning_rate_multiplier() == 0.5);

        std::stringstream file;
        serialize(net, file);
        sum_net loaded;
        deserialize(loaded, file);
        DLIB_TEST(have_same_bits(last_output(loaded, x), last_output(net, x)));
        net.clean();
        DLIB_TEST(have_same_bits(last_output(loaded, x), last_output(net, x)));
    }

    class xml_names : public document_handler
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The names of all elements of an XML document, in order.
        !*/
    public:
        std::vector<std::string> names;

        void start_document() override {}
        void end_document() override {}
        void
        start_element(const unsigned long, const std::string& name, const attribute_list&) override
        {
            names.push_back(name);
        }
        void end_element(const unsigned long, const std::string&) override {}
        void characters(const std::string&) override {}
        void
        processing_instruction(const unsigned long, const std::string&, const std::string&) override
        {
        }
    };

    class xml_errors : public error_handler
    {
    public:
        void error(const unsigned long line) override { throw_at(line); }
        void fatal_error(const unsigned long line) override { throw_at(line); }

    private:
        static void throw_at(unsigned long line)
        {
            throw dlib::error("broken XML in line " + std::to_string(line));
        }
    };

    void prints_itself(mixed_net& net)
    {
        std::ostringstream printed, xml, dot;
        printed << net;
        for (const char* name : {"rms_norm (", "rms_norm_row (", "rms_norm_channel ("})
            DLIB_TEST_MSG(printed.str().find(name) != std::string::npos,
                name << " is missing in " << printed.str());

        net_to_xml(net, xml);
        std::istringstream xml_in(xml.str());
        xml_names elements;
        xml_errors errors;
        parse_xml(xml_in, elements, errors);
        const auto& names = elements.names;
        DLIB_TEST(std::count(names.begin(), names.end(), "rms_norm") == 1);
        DLIB_TEST(std::count(names.begin(), names.end(), "rms_norm_row") == 1);
        DLIB_TEST(std::count(names.begin(), names.end(), "rms_norm_channel") == 2);

        // dlib draws a layer that it does not know as a node without name
        net_to_dot(net, dot);
        const std::vector<std::size_t> positions = positions_of_norms(net);
        DLIB_TEST(positions.size() == 4);
        for (std::size_t position : positions)
        {
            const std::string i = std::to_string(position);
            DLIB_TEST_MSG(dot.str().find("\n" + i + " [") != std::string::npos,
                "no node " << i << " in " << dot.str());
            DLIB_TEST_MSG(dot.str().find("-> " + i + "\n") != std::string::npos,
                "no edge to " << i << " in " << dot.str());
        }
    }

    void biases_below_stay(mixed_net net)
    {
        disable_duplicative_biases(net);
        std::vector<bool> disabled;
        visit_computational_layers(net,
            [&](auto& l)
            {
                using layer_type = std::remove_reference_t<decltype(l)>;
                if constexpr (std::is_same<layer_type, con_<4, 3, 3, 1, 1, 1, 1>>::value)
                    disabled.push_back(l.bias_is_disabled());
            });
        DLIB_TEST(disabled == std::vector<bool>(3, false));
    }

    void a_wrong_input_does_not_harm_a_net(mixed_net& net, const resizable_tensor& x)
    {
        random_source rnd(4);
        const resizable_tensor expected = last_output(net, x);
        const resizable_tensor wider = random_images(rnd, 2, 1, x.nr(), x.nc() + 1);
        std::string message;
        try
        {
            last_output(net, wider);
        }
        catch (dlib::error& e)
        {
            message = e.what();
        }
        for (const std::string& word : {"(1,1,1," + std::to_string(x.nc()) + ")",
                 "(1,1,1," + std::to_string(x.nc() + 1) + ")"})
            DLIB_TEST_MSG(
                message.find(word) != std::string::npos, word << " is missing in: " << message);
        DLIB_TEST(have_same_bits(last_output(net, x), expected));
    }

    // ----------------------------------------------------------------------------------------

    class dnn_tester : public tester
    {
    public:
        dnn_tester() :
            tester("test_dnn", "Run tests on the RMS normalization layers, alone and in nets.")
        {
        }

        void perform_test() override
        {
            layers();
            nets();
        }

    private:
        static void layers()
        {
            RUN_CASE(functions_of_dlib_20());
            const auto sample = rms_norm_axes::sample;
            const auto row = rms_norm_axes::row;
            const auto channel = rms_norm_axes::channel;

            RUN_CASE(layer_passes_test_layer<contrib::rms_norm_>());
            RUN_CASE(layer_passes_test_layer<contrib::rms_norm_row_>());
            RUN_CASE(layer_passes_test_layer<contrib::rms_norm_channel_>());

            RUN_CASE(layer_agrees_with_definition<contrib::rms_norm_>(sample));
            RUN_CASE(layer_agrees_with_definition<contrib::rms_norm_row_>(row));
            RUN_CASE(layer_agrees_with_definition<contrib::rms_norm_channel_>(channel));

            RUN_CASE(layer_options<contrib::rms_norm_>());
            RUN_CASE(layer_options<contrib::rms_norm_row_>());
            RUN_CASE(layer_options<contrib::rms_norm_channel_>());

            RUN_CASE(layer_refuses_other_shapes<contrib::rms_norm_>(
                sample, {2, 3, 4, 5}, {2, 4, 4, 5}, "(1,3,1,1)", "(1,4,1,1)"));
            RUN_CASE(layer_refuses_other_shapes<contrib::rms_norm_row_>(
                row, {2, 3, 4, 5}, {2, 3, 5, 4}, "(1,1,1,5)", "(1,1,1,4)"));
            RUN_CASE(layer_refuses_other_shapes<contrib::rms_norm_channel_>(
                channel, {2, 3, 4, 5}, {2, 1, 4, 5}, "(1,3,1,1)", "(1,1,1,1)"));

            using contrib::add_prev_rms_norm_, contrib::add_prev_rms_norm_row_,
                contrib::add_prev_rms_norm_channel_;
            RUN_CASE(layer_passes_test_layer<add_prev_rms_norm_<below>>());
            RUN_CASE(layer_passes_test_layer<add_prev_rms_norm_row_<below>>());
            RUN_CASE(layer_passes_test_layer<add_prev_rms_norm_channel_<below>>());
            RUN_CASE(
                layer_is_an_addition_and_a_norm<add_prev_rms_norm_, contrib::rms_norm_>(sample));
            RUN_CASE(
                layer_is_an_addition_and_a_norm<add_prev_rms_norm_row_, contrib::rms_norm_row_>(
                    row));
            RUN_CASE(layer_is_an_addition_and_a_norm<add_prev_rms_norm_channel_,
                contrib::rms_norm_channel_>(channel));
            RUN_CASE(sum_layer_is_saved<add_prev_rms_norm_<below>, contrib::rms_norm_>());
            RUN_CASE(sum_layer_is_saved<add_prev_rms_norm_row_<below>, contrib::rms_norm_row_>());
            RUN_CASE(sum_layer_is_saved<add_prev_rms_norm_channel_<below>,
                contrib::rms_norm_channel_>());
            RUN_CASE(sum_layer_needs_a_gamma_that_fits<add_prev_rms_norm_<below>>());
            RUN_CASE(sum_layer_needs_a_gamma_that_fits<add_prev_rms_norm_row_<below>>());
            RUN_CASE(sum_layer_needs_a_gamma_that_fits<add_prev_rms_norm_channel_<below>>());
        }

        static void nets()
        {
            RUN_CASE(net_of_dlib_20_gives_its_outputs());
            RUN_CASE(net_of_dlib_20_is_saved_byte_for_byte());
            RUN_CASE(cut_net_files());
            RUN_CASE(layers_below_learn());
            RUN_CASE(sum_net_trains_and_is_saved());

            random_source rnd(5);
            const resizable_tensor images = random_images(rnd, 8, 3, 4, 5);
            const resizable_tensor x = random_images(rnd, 6, 1, 5, 7);
            const std::vector<unsigned long> labels = random_labels(rnd, 8, 3);
            image_net first;
            mixed_net second;
            tell_input_layer(first);
            tell_input_layer(second);
            RUN_CASE(trains_on_after_loading(first, images, labels));
            RUN_CASE(copies_moves_and_cleans(first, images));
            RUN_CASE(trains_on_after_loading(second, x, labels));
            RUN_CASE(copies_moves_and_cleans(second, x));
            RUN_CASE(training_and_inference_agree(second, x, labels));
            RUN_CASE(every_gamma_of_a_net_learns(second, x, labels));
            RUN_CASE(prints_itself(second));
            RUN_CASE(biases_below_stay(second));
            RUN_CASE(a_wrong_input_does_not_harm_a_net(second, x));
        }
    } a_dnn_tester;

    // ----------------------------------------------------------------------------------------

}
