// License: Boost Software License   See LICENSE.txt for the full license.

// The Transformer of the examples: its layers, a Llama compared step for step with one that other
// software computed, and what users of such a net rely on.

#include <cstdio>
#include <fstream>
#include <iomanip>
#include <random>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "../../examples/micro_batch_trainer.h"
#include "../../examples/text_corpus.h"
#include "../../examples/transformer_model.h"
#include "child_process.h"
#include "test_cases.h"

namespace
{

    using namespace test;
    using namespace dlib;
    using namespace transformer;

    const logger dlog("test.transformer");

    const std::size_t num_blocks = 2;
    using net_type = llama<num_blocks>;

    const std::string reference_path = std::string(DLIB_TEST_DATA_DIR) + "/mini_llama.safetensors";

    // ----------------------------------------------------------------------------------------
    //                              step for step with a reference
    // ----------------------------------------------------------------------------------------

    struct reference
    {
        safetensors file = safetensors(reference_path);
        llama_sizes sizes;
        unsigned long batch;
        unsigned long time;
        std::vector<std::vector<unsigned long>> inputs;
        std::vector<std::vector<unsigned long>> targets;

        reference()
        {
            const auto size = [&](const char* name) { return std::stoul(file.metadata(name)); };
            sizes.vocabulary = size("vocab");
            sizes.features = size("dim");
            sizes.num_heads = size("heads");
            sizes.hidden = size("hidden");
            sizes.max_length = time = size("time");
            sizes.eps = std::stod(file.metadata("eps"));
            sizes.theta = std::stod(file.metadata("theta"));
            batch = size("batch");
            DLIB_TEST(size("layers") == num_blocks);

            const auto data = file.numbers<std::int32_t>("data");
            const std::size_t row = time + 1;
            for (std::size_t b = 0; b < data.size() / (batch * row); ++b)
            {
                inputs.emplace_back();
                targets.emplace_back();
                for (std::size_t i = 0; i < batch * row; ++i)
                {
                    const auto id = static_cast<unsigned long>(data[b * batch * row + i]);
                    if (i % row != time)
                        inputs.back().push_back(id);
                    if (i % row != 0)
                        targets.back().push_back(id);
                }
            }
            DLIB_TEST(inputs.size() == 4 && inputs[0].size() == batch * time);
        }

        net_type net() const
        {
            net_type net;
            set_up(net, sizes);
            load_llama(net, num_blocks, file, "weight.");
            return net;
        }
    };

    template <typename at_function>
    void check_close(const std::string& name,
        const std::vector<double>& exact,
        const at_function& at,
        double bound)
    /*!
        ensures
            - checks that at(i) is within bound of exact[i], relative to the largest value of
              exact.
    !*/
    {
        double largest = 0, worst = 0;
        for (double value : exact)
            largest = std::max(largest, std::abs(value));
        for (std::size_t i = 0; i < exact.size(); ++i)
        {
            const double off = std::abs(at(i) - exact[i]);
            worst = off <= worst ? worst : off; // NaN gets through
        }
        dlog << LINFO << name << ": off by " << worst / largest << " of the largest value";
        DLIB_TEST_MSG(!exact.empty() && worst <= bound * largest,
            name << " is off by " << worst << ", largest value " << largest);
    }

    void check_close(const reference& r, const std::string& name, const tensor& found)
    {
        const auto exact = r.file.numbers<double>(name);
        DLIB_TEST_MSG(found.size() == exact.size(), name << ": " << found.size() << " values");
        const float* const values = found.host();
        check_close(
            name, exact, [&](std::size_t i) { return values[i]; }, 1e-5);
    }

    void traces_agree()
    {
        const reference r;
        net_type net = r.net();
        const tensor& logits = net.subnet()(r.inputs[0].begin(), r.inputs[0].end());
        check_close(r, "logits", logits);

        std::size_t norms = 0, blocks = 0, traces = 0;
        visit_layers(net,
            [&](auto& layer)
            {
                if constexpr (is_add_layer<decltype(layer)>::value)
                {
                    using type = std::decay_t<decltype(layer.layer_details())>;
                    const std::string block = "trace.block";
                    if constexpr (std::is_same<type, contrib::rms_norm_>::value)
                    {
                        if (norms > 0)
                            check_close(r,
                                block + std::to_string(num_blocks - (norms + 1) / 2) +
                                    (norms % 2 ? ".ffn_norm.out" : ".attention_norm.out"),
                                layer.get_output());
                        traces += norms > 0;
                        ++norms;
                    }
                    else if constexpr (std::is_same<type, add_prev_<tag2>>::value)
                    {
                        check_close(r, block + std::to_string(num_blocks - ++blocks) + ".out",
                            layer.get_output());
                        ++traces;
                    }
                }
            });
        DLIB_TEST(traces == r.file.names("trace.").size() && traces == 6);
    }

    void gradients_agree()
    {
        const reference r;
        net_type net = r.net();
        const double loss = net.compute_parameter_gradients(
            r.inputs[0].begin(), r.inputs[0].end(), r.targets[0].begin());
        const double exact_loss = r.file.numbers<double>("loss").at(0);
        DLIB_TEST_MSG(std::abs(loss - exact_loss) <= 1e-5 * exact_loss,
            "loss " << loss << " instead of " << exact_loss);

        const auto weights = llama_weights(net, num_blocks);
        for (const llama_weight& w : weights)
        {
            const std::string name = "grad." + w.name;
            std::vector<double> found(w.params->size() + 1);
            const auto exact = r.file.numbers<double>(name);
            const float* const values = w.gradient->host();
            w.for_each([&](std::size_t to, std::size_t from) { found.at(to) = values[from]; });
            check_close(
                name, exact, [&](std::size_t i) { return found[i]; }, 1e-5);
        }
        DLIB_TEST(weights.size() == r.file.names("grad.").size());
    }

    void curve_agrees(std::size_t num_micro_batches)
    {
        const reference r;
        net_type net = r.net();
        const auto curve = r.file.numbers<double>("curve");
        const double rate = std::stod(r.file.metadata("lr"));
        const float momentum = std::stof(r.file.metadata("momentum"));
        micro_batch_trainer<net_type, sgd> trainer(net, sgd(0, momentum), num_micro_batches);

        double worst = 0;
        for (std::size_t step = 0; step < curve.size(); ++step)
        {
            const auto& input = r.inputs[step % r.inputs.size()];
            const auto& target = r.targets[step % r.targets.size()];
            const double loss = trainer.train_one_step(
                input.begin(), input.end(), target.begin(), rate);
            const double off = std::abs(loss - curve[step]) / curve[step];
            DLIB_TEST_MSG(
                off <= 1e-4, "step " << step << ": loss " << loss << " instead of " << curve[step]);
            worst = std::max(worst, off);
        }
        DLIB_TEST(curve.size() == 200);
        dlog << LINFO << "curve with " << num_micro_batches << " micro-batches: off by " << worst;
    }

    // ----------------------------------------------------------------------------------------
    //                                   the layers by themselves
    // ----------------------------------------------------------------------------------------

    typedef std::mt19937_64 random_source;

    struct subnet_of_values
    {
        subnet_of_values(long long samples, long long k, random_source& rnd)
        {
            output.set_size(samples, k);
            gradient.copy_size(output);
            gradient = 0.5f; // to be added to
            std::normal_distribution<float> gaussian;
            for (float& value : output)
                value = gaussian(rnd);
        }

        const tensor& get_output() const { return output; }
        tensor& get_gradient_input() { return gradient; }

        resizable_tensor output;
        resizable_tensor gradient;
    };

    template <typename F>
    std::string message_of(const F& f)
    /*!
        ensures
            - returns the message of the dlib::error that f throws.
    !*/
    {
        try
        {
            f();
        }
        catch (error& e)
        {
            return e.what();
        }
        return "no error";
    }

    template <typename F>
    void check_message(const F& f, const std::vector<std::string>& parts)
    {
        const std::string message = message_of(f);
        for (const std::string& part : parts)
            DLIB_TEST_MSG(
                message.find(part) != std::string::npos, "'" << part << "' is not in: " << message);
    }

    void exp_is_close()
    {
        using transformer::impl::exp_of;
        for (int i = -87 * 4096; i <= 87 * 4096; ++i)
        {
            const float x = static_cast<float>(i) / 4096 + static_cast<float>(i % 3) * 1e-5f;
            if (std::abs(x) > 87)
                continue;
            const double exact = std::exp(static_cast<double>(x));
            if (std::abs(exp_of(x) - exact) > exact * 0x1p-22)
                DLIB_TEST_MSG(false, "exp(" << x << ") is " << exp_of(x));
        }
        const float highest = std::numeric_limits<float>::max();
        for (float x : {87.1f, 89.0f, 1e30f, highest})
        {
            DLIB_TEST(exp_of(x) == exp_of(87));
            DLIB_TEST(exp_of(-x) == exp_of(-87));
        }
        DLIB_TEST(exp_of(0) == 1 && exp_of(-0.0f) == 1);
        const float infinity = std::numeric_limits<float>::infinity();
        for (float x : {infinity, -infinity, std::nanf(""), -std::nanf("")})
            DLIB_TEST(std::isnan(exp_of(x)));
    }

    struct attention_problem
    {
        std::size_t sequences, length, heads, size;
        std::vector<double> x, g;

        std::size_t features() const { return heads * size; }

        double rotated(std::size_t token, std::size_t first, std::size_t i) const
        /*!
            ensures
                - returns value i of the query or key that begins at column `first`.
        !*/
        {
            const double angle = static_cast<double>(token % length) *
                std::pow(500.0, -static_cast<double>(i / 2 * 2) / static_cast<double>(size));
            const double* const p = &x[token * 3 * features() + first];
            return i % 2 == 0 ? p[i] * std::cos(angle) - p[i + 1] * std::sin(angle)
                              : p[i] * std::cos(angle) + p[i - 1] * std::sin(angle);
        }

        std::vector<double> output() const
        {
            const std::size_t f = features();
            std::vector<double> out(sequences * length * f);
            for (std::size_t token = 0; token < sequences * length; ++token)
            {
                for (std::size_t h = 0; h < heads; ++h)
                {
                    double sum = 0;
                    std::vector<double> mix(size);
                    for (std::size_t other = token / length * length; other <= token; ++other)
                    {
                        double product = 0;
                        for (std::size_t i = 0; i < size; ++i)
                            product += rotated(token, h * size, i) *
                                rotated(other, f + h * size, i);
                        const double w = std::exp(product / std::sqrt(static_cast<double>(size)));
                        sum += w;
                        for (std::size_t i = 0; i < size; ++i)
                            mix[i] += w * x[other * 3 * f + 2 * f + h * size + i];
                    }
                    for (std::size_t i = 0; i < size; ++i)
                        out[token * f + h * size + i] = mix[i] / sum;
                }
            }
            return out;
        }

        double result() const
        {
            const std::vector<double> out = output();
            double sum = 0;
            for (std::size_t i = 0; i < out.size(); ++i)
                sum += g[i] * out[i];
            return sum;
        }
    };

    void attention_agrees_with_definition()
    {
        random_source rnd(1);
        const std::size_t shapes[][4] = {{1, 1, 1, 2}, {3, 2, 2, 4}, {2, 63, 1, 6}, {2, 64, 3, 2},
            {1, 65, 2, 4}, {2, 130, 2, 2}};
        attention_ layer(1, 200, 500); // one object for all
        for (const auto& shape : shapes)
        {
            print_spinner();
            attention_problem p = {shape[0], shape[1], shape[2], shape[3], {}, {}};
            layer.set_heads(p.heads, 200, 500);
            layer.set_sequence_length(p.length);
            const auto samples = static_cast<long long>(p.sequences * p.length);
            subnet_of_values sub(samples, static_cast<long long>(3 * p.features()), rnd);
            p.x.assign(sub.output.begin(), sub.output.end());

            resizable_tensor output, gradient(samples, static_cast<long long>(p.features()));
            std::normal_distribution<float> gaussian;
            for (float& value : gradient)
                value = gaussian(rnd);
            p.g.assign(gradient.begin(), gradient.end());
            layer.setup(sub);
            layer.forward(sub, output);
            resizable_tensor no_params;
            layer.backward(gradient, sub, no_params);

            const float* const out = output.host();
            check_close(
                "output", p.output(), [&](std::size_t i) { return out[i]; }, 1e-5);

            // the gradient of some inputs, by central differences in double
            std::vector<double> exact, found;
            const std::size_t step = std::max<std::size_t>(1, p.x.size() / 60);
            for (std::size_t i = 0; i < p.x.size(); i += step)
            {
                const double value = p.x[i], h = 1e-5;
                p.x[i] = value + h;
                const double above = p.result();
                p.x[i] = value - h;
                exact.push_back((above - p.result()) / (2 * h));
                p.x[i] = value;
                found.push_back(sub.gradient.host()[i] - 0.5);
            }
            check_close(
                "gradient", exact, [&](std::size_t i) { return found[i]; }, 1e-5);
        }
    }

    void embedding_and_output_agree_with_definition()
    {
        random_source rnd(6);
        std::normal_distribution<float> gaussian;
        const std::size_t vocabulary = 5, features = 3;
        const std::vector<unsigned long> ids = {4, 0, 4, 2};

        tied_output<embedding<input_tokens>> net;
        input_layer(net).set_vocabulary(vocabulary);
        embedding_& e = net.subnet().layer_details();
        e.set_size(vocabulary, features);
        resizable_tensor x, gradient(4, vocabulary);
        for (float& value : gradient)
            value = gaussian(rnd);
        net.to_tensor(ids.begin(), ids.end(), x);
        net.forward(x);
        for (float& value : e.get_layer_params())
            value = gaussian(rnd);

        // the logits, weighted with the gradient, as a function of the table
        std::vector<double> table(e.get_layer_params().begin(), e.get_layer_params().end());
        const auto result = [&]
        {
            double sum = 0;
            for (std::size_t i = 0; i < ids.size() * vocabulary; ++i)
            {
                for (std::size_t c = 0; c < features; ++c)
                    sum += gradient.host()[i] * table[ids[i / vocabulary] * features + c] *
                        table[i % vocabulary * features + c];
            }
            return sum;
        };
        std::vector<double> exact;
        for (double& value : table)
        {
            const double before = value, h = 1e-3; // the result is quadratic
            value = before + h;
            const double above = result();
            value = before - h;
            exact.push_back((above - result()) / (2 * h));
            value = before;
        }

        double sum = 0;
        const tensor& logits = net.forward(x);
        for (std::size_t i = 0; i < gradient.size(); ++i)
            sum += static_cast<double>(logits.host()[i]) * gradient.host()[i];
        DLIB_TEST(logits.num_samples() == 4 && logits.k() == 5);
        DLIB_TEST(std::abs(sum - result()) < 1e-5);
        for (int time = 0; time < 2; ++time)
        {
            net.back_propagate_error(x, gradient);
            const float* const found = net.subnet().get_parameter_gradient().host();
            check_close(
                "gradient of the table", exact, [&](std::size_t i) { return found[i]; }, 1e-6);
        }

        // by itself the embedding adds nothing that is older
        subnet_of_values sub(2, 1, rnd);
        sub.output = 3;
        resizable_tensor ones(2, features), found(vocabulary, features);
        ones = 1;
        e.backward(ones, sub, found);
        for (std::size_t i = 0; i < found.size(); ++i)
            DLIB_TEST(found.host()[i] == (i / features == 3 ? 2 : 0));
    }

    void swiglu_agrees_with_definition()
    {
        const auto result = test_layer(swiglu_());
        DLIB_TEST_MSG(result, result);

        random_source rnd(2);
        swiglu_ layer;
        subnet_of_values sub(5, 2 * 37, rnd);
        sub.output.host()[3] = -200; // exp(200) is no float
        sub.output.host()[4] = 200;
        resizable_tensor output;
        layer.forward(sub, output);
        std::vector<double> exact;
        for (std::size_t i = 0; i < 5 * 37; ++i)
        {
            const float* const row = sub.output.host() + i / 37 * 74 + i % 37;
            exact.push_back(row[0] / (1 + std::exp(-static_cast<double>(row[0]))) * row[37]);
        }
        const float* const out = output.host();
        check_close(
            "output", exact, [&](std::size_t i) { return out[i]; }, 1e-6);
    }

    void misfits_are_refused()
    {
        random_source rnd(3);
        resizable_tensor output;

        attention_ a(2, 8);
        a.set_sequence_length(4);
        subnet_of_values fits(8, 12, rnd), tokens(7, 12, rnd), features(8, 16, rnd);
        check_message([&] { a.forward(tokens, output); }, {"7", "12", "4"});
        check_message([&] { a.forward(features, output); }, {"8", "16", "2 heads"});
        a.forward(fits, output);
        DLIB_TEST(output.num_samples() == 8 && output.k() == 4);

        swiglu_ s;
        subnet_of_values odd(2, 5, rnd);
        check_message([&] { s.forward(odd, output); }, {"5"});

        // ids of any integer type
        input_tokens input(100);
        resizable_tensor data;
        const std::vector<int> good = {0, 99, 5};
        input.to_tensor(good.begin(), good.end(), data);
        const auto unchanged = [&]
        {
            return data.size() == 3 && data.num_samples() == 3 && data.host()[0] == 0 &&
                data.host()[1] == 99 && data.host()[2] == 5;
        };
        DLIB_TEST(unchanged());
        const std::vector<int> too_large = {7, 100}, negative = {7, -3};
        const std::vector<unsigned char> bytes = {7, 200};
        const std::vector<unsigned long long> huge = {1, (1ull << 40) + 5};
        check_message([&] { input.to_tensor(too_large.begin(), too_large.end(), data); },
            {" 100 ", "vocabulary of 100"});
        check_message(
            [&] { input.to_tensor(negative.begin(), negative.end(), data); }, {"-3", "100"});
        check_message([&] { input.to_tensor(bytes.begin(), bytes.end(), data); }, {"200", "100"});
        check_message(
            [&] { input.to_tensor(huge.begin(), huge.end(), data); }, {"1099511627781", "100"});
        DLIB_TEST(unchanged());

        embedding_ e(100, 4);
        subnet_of_values ids(2, 1, rnd);
        e.setup(ids);
        for (float bad : {-1.0f, 100.0f, 0.5f, std::nanf("")})
        {
            ids.output = 3;
            ids.output.host()[1] = bad;
            std::ostringstream text;
            text << bad;
            check_message([&] { e.forward(ids, output); }, {text.str(), "100"});
        }
        ids.output = 3;
        e.forward(ids, output);
        DLIB_TEST(output.num_samples() == 2 && output.k() == 4);

        net_type net = reference().net();
        const std::vector<unsigned long> three = {1, 2, 3};
        check_message([&] { net.subnet()(three.begin(), three.end()); }, {"3 tokens", "16"});
    }

    // ----------------------------------------------------------------------------------------
    //                                 what users rely on
    // ----------------------------------------------------------------------------------------

    std::vector<float> logits_of(net_type& net, const std::vector<unsigned long>& tokens)
    {
        const tensor& out = net.subnet()(tokens.begin(), tokens.end());
        return std::vector<float>(out.begin(), out.end());
    }

    void later_tokens_change_nothing()
    {
        const reference r;
        net_type net = r.net();
        const std::size_t row = r.sizes.vocabulary;
        const std::vector<unsigned long>& tokens = r.inputs[0];
        const std::vector<float> before = logits_of(net, tokens);
        for (std::size_t changed = 0; changed < tokens.size(); ++changed)
        {
            auto other = tokens;
            other[changed] = (other[changed] + 1) % row;
            const std::vector<float> after = logits_of(net, other);
            const std::size_t first = changed / r.time * r.time; // of its sequence
            for (std::size_t t = 0; t < tokens.size(); ++t)
            {
                const bool same = std::equal(
                    &before[t * row], &before[t * row] + row, &after[t * row]);
                const bool may_differ = t >= changed && t < first + r.time;
                DLIB_TEST_MSG(same != may_differ,
                    "token " << changed << " changed, and " << t << (same ? " did not" : " did"));
            }
        }
    }

    void any_length_gives_the_same()
    {
        const reference r;
        net_type net = r.net();
        const std::vector<float> all = logits_of(net, r.inputs[0]);
        const std::vector<double> exact(all.begin(), all.end());
        for (unsigned long length : {1, 5, 15})
        {
            set_sequence_length(net, length);
            const std::vector<unsigned long> part(
                r.inputs[0].begin(), r.inputs[0].begin() + static_cast<std::ptrdiff_t>(length));
            const std::vector<float> found = logits_of(net, part);
            check_close(
                "logits of " + std::to_string(length) + " tokens",
                std::vector<double>(
                    exact.begin(), exact.begin() + static_cast<std::ptrdiff_t>(found.size())),
                [&](std::size_t i) { return found[i]; }, 1e-6);
        }
    }

    std::string bytes_of(net_type& net)
    {
        net.clean();
        std::ostringstream out;
        serialize(net, out);
        return out.str();
    }

    class run_of_steps
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A training of the reference's net with Adam, and all losses so far.
        !*/
    public:
        explicit run_of_steps(std::size_t num_threads) :
            net(r.net()),
            trainer(net, adam(0, 0.9f, 0.99f), 4, num_threads)
        {
        }

        void train(std::size_t begin, std::size_t end)
        {
            for (std::size_t step = begin; step < end; ++step)
            {
                const auto& in = r.inputs[step % 4];
                losses.push_back(trainer.train_one_step(in.begin(), in.end(),
                    r.targets[step % 4].begin(), 1e-2 / static_cast<double>(1 + step)));
            }
        }

        const reference r;
        net_type net;
        micro_batch_trainer<net_type> trainer;
        std::vector<double> losses;
    };

    void threads_change_no_bit()
    {
        run_of_steps one(1);
        DLIB_TEST(one.trainer.get_num_threads() == 1);
        one.train(0, 40);
        DLIB_TEST(one.losses.back() < one.losses.front());
        const std::string bytes = bytes_of(one.net);
        for (std::size_t num : {2, 3, 4})
        {
            run_of_steps many(num);
            DLIB_TEST(many.trainer.get_num_threads() == num);
            many.train(0, 40);
            DLIB_TEST_MSG(many.losses == one.losses, num << " threads, losses");
            DLIB_TEST_MSG(bytes_of(many.net) == bytes, num << " threads, net");
        }
    }

    void going_on_equals_not_having_stopped()
    {
        run_of_steps whole(2);
        whole.train(0, 20);

        std::ostringstream saved;
        {
            run_of_steps first(2);
            first.train(0, 9);
            first.net.clean();
            serialize(first.net, saved);
            serialize(first.trainer, saved);
        }
        std::istringstream in(saved.str());
        run_of_steps second(1);
        deserialize(second.net, in);
        deserialize(second.trainer, in);
        second.train(9, 20);
        DLIB_TEST(std::equal(second.losses.begin(), second.losses.end(), whole.losses.begin() + 9));
        DLIB_TEST(bytes_of(second.net) == bytes_of(whole.net));

        // the embedding's table is saved once: no more bytes than all parameters, and some
        std::size_t num = 0;
        visit_layer_parameters(whole.net, [&](tensor& t) { num += t.size(); });
        DLIB_TEST(bytes_of(whole.net).size() < num * sizeof(float) + 6000);
        DLIB_TEST(num == 58848 / sizeof(float));
    }

    void trainer_keeps_its_contract()
    {
        run_of_steps run(2);
        const reference& r = run.r;
        const auto& in = r.inputs[0];

        // its sums are the gradients of the whole batch
        net_type plain = r.net();
        const double loss = plain.compute_parameter_gradients(
            in.begin(), in.end(), r.targets[0].begin());
        const double sum = run.trainer.compute_gradients(
            in.begin(), in.end(), r.targets[0].begin());
        DLIB_TEST(std::abs(sum / 4 - loss) <= 1e-6 * loss);
        std::vector<double> exact;
        visit_layer_parameter_gradients(
            plain, [&](tensor& t) { exact.insert(exact.end(), t.begin(), t.end()); });
        const tensor& sums = run.trainer.get_gradients();
        DLIB_TEST(sums.size() == exact.size());
        check_close(
            "sums", exact, [&](std::size_t i) { return sums.host()[i] / 4.0; }, 1e-5);

        // neighbours first: the first half of the batch is one of the two last terms
        micro_batch_trainer<net_type> half(run.net, adam(), 2, 1);
        const auto middle = in.begin() + static_cast<std::ptrdiff_t>(in.size() / 2);
        const auto target = r.targets[0].begin();
        const double first_loss = half.compute_gradients(in.begin(), middle, target);
        std::vector<float> first(half.get_gradients().begin(), half.get_gradients().end());
        const double second_loss = half.compute_gradients(
            middle, in.end(), target + static_cast<std::ptrdiff_t>(in.size() / 2));
        DLIB_TEST(first_loss + second_loss == sum);
        bool same = true;
        for (std::size_t i = 0; i < first.size(); ++i)
            same = same && first[i] + half.get_gradients().host()[i] == sums.host()[i];
        DLIB_TEST(same);

        // gradients that are not finite change nothing
        const std::string net = bytes_of(run.net);
        std::ostringstream solvers, solvers_after;
        serialize(run.trainer, solvers);
        run.trainer.get_gradients().host()[1000] = std::numeric_limits<float>::infinity();
        check_message([&] { run.trainer.step(0.1, 0.25); }, {"layer", "not finite"});
        serialize(run.trainer, solvers_after);
        DLIB_TEST(bytes_of(run.net) == net && solvers.str() == solvers_after.str());

        // what the net throws comes out, from every thread
        auto bad = in;
        bad.back() = r.sizes.vocabulary;
        check_message([&]
            { run.trainer.compute_gradients(bad.begin(), bad.end(), r.targets[0].begin()); },
            {"32"});

        // files of others
        micro_batch_trainer<net_type> other(run.net, adam(), 8, 1);
        std::istringstream of_four(solvers.str()),
            broken(solvers.str().substr(0, solvers.str().size() / 2)), foreign(net);
        check_message([&] { deserialize(other, of_four); }, {"4", "8"});
        for (std::istream* file : {&broken, &foreign})
        {
            bool refused = false;
            try
            {
                deserialize(run.trainer, *file);
            }
            catch (serialization_error&)
            {
                refused = true;
            }
            DLIB_TEST(refused);
        }
        solvers_after.str("");
        serialize(run.trainer, solvers_after);
        DLIB_TEST(solvers.str() == solvers_after.str());
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_of_sequences_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                What rms_norm does in a net whose tokens lie along nr: the same values as a tensor
                of shape (sequences, 1, tokens, features), normalized over all of a sample with
                one gain, the choice of dlib 20's layer.
        !*/
    public:
        template <typename SUBNET>
        void setup(const SUBNET&)
        {
            params.set_size(1, 1, 1, 1);
            params = 1;
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, resizable_tensor& output)
        {
            const long long length = 16;
            const tensor& x = sub.get_output();
            const auto sequences = std::max(1LL, x.num_samples() / length);
            const alias_tensor view(sequences, 1, x.num_samples() / sequences, x.k());
            resizable_tensor scale, result;
            auto in = view(x, 0);
            contrib::tt::rms_normalize(1e-5, result, scale, in, params);
            output.copy_size(x);
            std::copy(result.begin(), result.end(), output.begin());
        }

        template <typename SUBNET>
        void backward(const tensor&, SUBNET&, tensor&)
        {
        }

        const tensor& get_layer_params() const { return params; }
        tensor& get_layer_params() { return params; }

    private:
        resizable_tensor params;
    };

    template <typename SUBNET>
    using rms_norm_of_sequences = add_layer<rms_norm_of_sequences_, SUBNET>;

    void other_axes_would_leak()
    {
        const reference r;
        llama<2, rms_norm_of_sequences> net;
        set_up(net, r.sizes);

        // the reference's weights; its gains of 1 are all that a single gain can be
        net_type source = r.net();
        std::vector<const tensor*> weights;
        visit_layer_parameters(source, [&](tensor& t) { weights.push_back(&t); });
        std::size_t i = 0;
        visit_layer_parameters(net,
            [&](tensor& t)
            {
                if (t.size() == weights[i]->size())
                    std::copy(weights[i]->begin(), weights[i]->end(), t.begin());
                ++i;
            });

        const std::vector<unsigned long> tokens(r.inputs[0].begin(), r.inputs[0].begin() + 16);
        auto other = tokens;
        other.back() = (other.back() + 1) % r.sizes.vocabulary;
        resizable_tensor before = net.subnet()(tokens.begin(), tokens.end());
        const tensor& after = net.subnet()(other.begin(), other.end());
        double change = 0, largest = 0;
        const std::size_t earlier = 15 * r.sizes.vocabulary;
        for (std::size_t j = 0; j < earlier; ++j)
        {
            change = std::max<double>(change, std::abs(before.host()[j] - after.host()[j]));
            largest = std::max<double>(largest, std::abs(before.host()[j]));
        }
        DLIB_TEST(change > 0.001 * largest);
        std::cout << "\nWith tokens along nr and one group per sample, the last token changes "
                     "logits of earlier ones by up to "
                  << std::setprecision(2) << 100 * change / largest << " % of the largest."
                  << std::endl;
    }

    // ----------------------------------------------------------------------------------------

    std::uint64_t hash_of_attention()
    {
        // enough work for threads, of 65 heads
        random_source rnd(5);
        attention_ layer(13, 256);
        subnet_of_values sub(5 * 256, 3 * 13 * 8, rnd);
        resizable_tensor output, no_params;
        layer.forward(sub, output);
        layer.backward(output, sub, no_params);
        std::uint64_t hash = 14695981039346656037u;
        for (const tensor* t : {(const tensor*)&output, (const tensor*)&sub.gradient})
        {
            for (float value : *t)
            {
                std::uint32_t bits;
                std::memcpy(&bits, &value, sizeof(bits));
                hash = (hash ^ bits) * 1099511628211u;
            }
        }
        return hash;
    }

    class print_hash_tester : public tester
    {
    public:
        print_hash_tester() :
            tester("print_transformer_hash",
                "Print a hash of what attention computes, and the number of threads. "
                "test_transformer runs it with several.",
                1)
        {
        }

        void perform_test(const std::string&) override
        {
            std::cout << "\nhash " << hash_of_attention() << " threads "
                      << default_thread_pool().num_threads_in_pool() << std::endl;
        }
    } a_print_hash_tester;

    std::string hash_with_threads(int num_threads)
    {
        std::istringstream in(run_again(num_threads, "print_transformer_hash now"));
        std::string hash;
        int threads = 0;
        for (std::string word; hash.empty() && in >> word;)
        {
            if (word == "hash")
                in >> hash >> word >> threads;
        }
        DLIB_TEST(!hash.empty());
        DLIB_TEST_MSG(threads == num_threads,
            "there were " << threads << " threads instead of " << num_threads);
        return hash;
    }

    void attention_has_the_same_bits_with_threads()
    {
        const std::string expected = hash_with_threads(1);
        for (int num : {2, 3})
            DLIB_TEST_MSG(hash_with_threads(num) == expected, num << " threads");
    }

    // ----------------------------------------------------------------------------------------
    //                                        files
    // ----------------------------------------------------------------------------------------

    std::string read_all(const std::string& path)
    {
        std::ifstream in(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }

    std::string with_header(const std::string& header, const std::string& numbers)
    {
        std::string bytes;
        for (std::size_t i = 0; i < 8; ++i)
            bytes += static_cast<char>(header.size() >> (8 * i) & 255);
        return bytes + header + numbers;
    }

    void broken_safetensors_are_refused()
    {
        const std::string good = read_all(reference_path);
        std::uint64_t length;
        std::memcpy(&length, good.data(), 8);
        const auto size = static_cast<std::size_t>(length);
        const std::string header = good.substr(8, size), numbers = good.substr(8 + size);
        const auto replaced = [&](const std::string& from, const std::string& to)
        {
            std::string text = header;
            const std::size_t pos = text.find(from);
            DLIB_TEST(pos != std::string::npos);
            return with_header(text.replace(pos, from.size(), to), numbers);
        };

        struct bad_file
        {
            std::string bytes;
            std::vector<std::string> message;
        };
        const bad_file files[] = {
            {"", {"0 bytes"}},
            {good.substr(0, 7), {"7 bytes"}},
            {good.substr(0, 100), {"header", "100"}},
            {good.substr(0, good.size() - 1), {"'curve'", "range"}},
            {with_header("[]", ""), {"JSON object"}},
            {with_header("{\"a\":", ""), {"JSON object"}},
            {with_header("{\"a\":{\"dtype\":\"F32\"}}", ""), {"'a'"}},
            {with_header(
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "1234"),
                {"'a'"}},
            {with_header(
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "1234"),
                {"'a'", "4 to 0"}},
            {with_header(
                 "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", "1234"),
                {"'a'", "F31"}},
            {with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
                         "\"data_offsets\":[0,0]}}",
                 ""),
                {"'a'", "shape"}},
            {with_header("{\"__metadata__\":{\"x\":1}}", ""), {"'x'"}},
            {replaced("weight.blocks.1.w3", "weight.blocks.1.w4"), {"'weight.blocks.1.w3'"}},
            {replaced("grad.norm", "weight.extra"), {"'weight.extra'", "not part"}},
            {replaced("[24, 24]", "[12, 48]"), {"'weight.blocks.0.wq'", "(12,48)", "(24,24)"}},
            {replaced("weight.norm\": {\"dtype\": \"F32\"", "weight.norm\": {\"dtype\": \"I32\""),
                {"'weight.norm'", "I32", "F32"}},
        };

        const std::string path = "transformer_test.safetensors";
        net_type net = reference().net();
        const std::string before = bytes_of(net);
        for (const bad_file& file : files)
        {
            std::ofstream(path, std::ios::binary) << file.bytes;
            check_message(
                [&] { load_llama(net, num_blocks, safetensors(path), "weight."); }, file.message);
            check_message(
                [&] { load_llama(net, num_blocks, safetensors(path), "weight."); }, {path});
            DLIB_TEST_MSG(bytes_of(net) == before, "half of the weights were loaded");
        }
        std::remove(path.c_str());
        check_message([&] { safetensors file(path); }, {path, "opened"});
    }

    template <typename layer_type>
    void check_file_and_text(const layer_type& layer, const std::string& name)
    {
        std::ostringstream saved, again, text, xml;
        serialize(layer, saved);
        layer_type loaded;
        std::istringstream in(saved.str());
        deserialize(loaded, in);
        serialize(loaded, again);
        DLIB_TEST_MSG(saved.str() == again.str(), name);

        for (std::size_t size = 0; size < saved.str().size(); ++size)
        {
            std::istringstream cut(saved.str().substr(0, size));
            bool refused = false;
            try
            {
                deserialize(loaded, cut);
            }
            catch (serialization_error&)
            {
                refused = true;
            }
            DLIB_TEST_MSG(refused, name << " of " << size << " bytes");
        }
        std::ostringstream foreign;
        serialize(std::string("fc_3"), foreign);
        std::istringstream foreign_in(foreign.str());
        check_message([&] { deserialize(loaded, foreign_in); }, {"fc_3", name});
        again.str("");
        serialize(loaded, again);
        DLIB_TEST_MSG(saved.str() == again.str(), name << " changed");

        text << layer;
        to_xml(layer, xml);
        DLIB_TEST(text.str().find(name.substr(0, name.find('_', 6))) == 0);
        DLIB_TEST(xml.str().find("<" + name.substr(0, name.find('_', 6))) == 0);
    }

    void layers_can_be_saved_and_printed()
    {
        random_source rnd(4);
        subnet_of_values ids(1, 1, rnd);
        embedding_ e(7, 3);
        e.setup(ids);
        e.set_learning_rate_multiplier(0.5);
        e.set_weight_decay_multiplier(0.25);
        attention_ a(3, 50, 500);
        a.set_sequence_length(20);
        check_file_and_text(input_tokens(9), "input_tokens");
        check_file_and_text(e, "embedding_");
        check_file_and_text(a, "attention_");
        check_file_and_text(swiglu_(), "swiglu_");
        check_file_and_text(tied_output_(), "tied_output_");

        net_type net = reference().net();
        std::ostringstream text, xml;
        text << net;
        net_to_xml(net, xml);
        for (const char* word : {"attention (num_heads=2, max_length=16", "swiglu", "tied_output",
                 "embedding (vocabulary=32, features=24)", "input_tokens (vocabulary=32)"})
            DLIB_TEST_MSG(text.str().find(word) != std::string::npos, word);
        for (const char* word : {"<attention num_heads='2'", "<swiglu/>", "<tied_output/>",
                 "<embedding vocabulary='32' features='24'", "<input_tokens vocabulary='32'"})
            DLIB_TEST_MSG(xml.str().find(word) != std::string::npos, word);
    }

    void counting_agrees_with_definition()
    {
        // training text abab, held out bba: with 0 characters of context every probability is
        // (2 + 2/2)/(4 + 2) = 1/2. After a came b twice, after b came a once:
        // p(b|a) = (2 + 1/2)/3, p(a|b) = (1 + 1/2)/2, p(b|b) = (0 + 1/2)/2
        text_corpus text;
        text.alphabet = "ab";
        text.training = {0, 1, 0, 1};
        text.held_out = {1, 1, 0};
        const std::vector<double> losses = losses_of_counting(text, 1);
        DLIB_TEST(losses.size() == 2);
        DLIB_TEST(std::abs(losses[0] - std::log(2.0)) < 1e-12);
        DLIB_TEST(std::abs(losses[1] + (std::log(0.25) + std::log(0.75)) / 2) < 1e-12);
    }

    void texts_are_checked()
    {
        const std::string path = "transformer_test.txt";
        const auto write = [&](const std::string& text)
        { std::ofstream(path, std::ios::binary) << text; };

        write("ab \n\t c");
        DLIB_TEST(read_text(path) == "ab c");
        write("");
        check_message([&] { read_text(path); }, {path, "empty"});
        write(std::string("a\0b", 3));
        check_message([&] { read_text(path); }, {path, "value 0"});
        write("0123456789abcdefghij");
        const text_corpus text = read_corpus({path}, 2);
        DLIB_TEST(text.training.size() == 18 && text.held_out.size() == 2);
        DLIB_TEST(text.alphabet == "0123456789abcdefghij" && text.held_out[1] == 19);
        check_message([&] { read_corpus({path}, 3); }, {"2 characters", "3"});
        std::remove(path.c_str());
        check_message([&] { read_text(path); }, {path});
        check_message([&] { read_text("."); }, {"directory"});
    }

    // ----------------------------------------------------------------------------------------

    class transformer_tester : public tester
    {
    public:
        transformer_tester() :
            tester("test_transformer", "The layers of the Transformer, and a Llama with them.")
        {
        }

        void perform_test() override
        {
            run_case("transformer: traces and logits of the reference", traces_agree);
            run_case("transformer: gradients of the reference", gradients_agree);
            for (std::size_t num : {1, 4})
                run_case("transformer: 200 steps of the reference, micro-batches: " +
                        std::to_string(num),
                    [=] { curve_agrees(num); });
            run_case("transformer: exp", exp_is_close);
            run_case("transformer: attention", attention_agrees_with_definition);
            run_case("transformer: embedding", embedding_and_output_agree_with_definition);
            run_case("transformer: swiglu", swiglu_agrees_with_definition);
            run_case("transformer: inputs that do not fit", misfits_are_refused);
            run_case("transformer: later tokens change nothing", later_tokens_change_nothing);
            run_case("transformer: other axes would leak", other_axes_would_leak);
            run_case("transformer: sequences of any length", any_length_gives_the_same);
            run_case("transformer: threads change no bit", threads_change_no_bit);
            run_case("transformer: save, load, go on", going_on_equals_not_having_stopped);
            run_case("transformer: the trainer", trainer_keeps_its_contract);
            run_case("transformer: broken safetensors", broken_safetensors_are_refused);
            run_case("transformer: saving and printing", layers_can_be_saved_and_printed);
            run_case("transformer: counting", counting_agrees_with_definition);
            run_case("transformer: texts", texts_are_checked);
#ifdef DLIB_USE_CUDA
            skip_case("transformer: threads of attention", "its products may run on the device");
#else
            run_case("transformer: threads of attention", attention_has_the_same_bits_with_threads);
#endif
        }
    } a_transformer_tester;

    // ----------------------------------------------------------------------------------------

}
