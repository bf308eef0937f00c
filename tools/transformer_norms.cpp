// License: Boost Software License   See LICENSE.txt for the full license.

// Trains the Transformer of the example with one normalization or another, for compare_norms.sh,
// and measures what the time of a step goes into.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>
#include <dlib/cmd_line_parser.h>
#include <dlib/cuda/rms_norm_plain.h>
#include "../examples/micro_batch_trainer.h"
#include "../examples/text_corpus.h"
#include "../examples/transformer_model.h"
#include "../examples/transformer_training.h"

using namespace dlib;
using namespace transformer;

namespace
{

    const std::size_t num_blocks = 4;
    const std::size_t num_sequences = 16;

    // ----------------------------------------------------------------------------------------

    class textbook_layer_norm_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Layer normalization, with a gain and a bias per feature. dlib 19.24 has a layer
                for it, but not its gradient: what it computes is off by several percent.
        !*/
    public:
        template <typename SUBNET>
        void setup(const SUBNET& sub)
        {
            params.set_size(2, sub.get_output().k());
            params = 0;
            std::fill_n(params.host(), params.k(), 1.0f);
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, resizable_tensor& output)
        {
            const tensor& x = sub.get_output();
            output.copy_size(x);
            mean.resize(static_cast<std::size_t>(x.num_samples()));
            scale.resize(mean.size());
            const auto size = static_cast<std::size_t>(x.k());
            const float* in = x.host();
            const float* const g = params.host();
            float* out = output.host();
            for (std::size_t n = 0; n < mean.size(); ++n, in += size, out += size)
            {
                float sum = 0, squares = 0;
                for (std::size_t i = 0; i < size; ++i)
                    sum += in[i];
                const float m = mean[n] = sum / static_cast<float>(size);
                for (std::size_t i = 0; i < size; ++i)
                    squares += (in[i] - m) * (in[i] - m);
                const float s = scale[n] = 1 /
                    std::sqrt(squares / static_cast<float>(size) + 1e-5f);
                for (std::size_t i = 0; i < size; ++i)
                    out[i] = (in[i] - m) * s * g[i] + g[size + i];
            }
        }

        template <typename SUBNET>
        void backward(const tensor& gradient_input, SUBNET& sub, tensor& params_grad)
        {
            const auto size = static_cast<std::size_t>(params.k());
            const float* x = sub.get_output().host();
            const float* d = gradient_input.host();
            const float* const g = params.host();
            float* dx = sub.get_gradient_input().host();
            params_grad = 0;
            float* const dg = params_grad.host();
            for (std::size_t n = 0; n < mean.size(); ++n, x += size, d += size, dx += size)
            {
                const float m = mean[n], s = scale[n];
                float sum = 0, dot = 0;
                for (std::size_t i = 0; i < size; ++i)
                {
                    const float xh = (x[i] - m) * s;
                    sum += g[i] * d[i];
                    dot += g[i] * d[i] * xh;
                    dg[i] += d[i] * xh;
                    dg[size + i] += d[i];
                }
                sum /= static_cast<float>(size);
                dot /= static_cast<float>(size);
                for (std::size_t i = 0; i < size; ++i)
                    dx[i] += s * (g[i] * d[i] - sum - (x[i] - m) * s * dot);
            }
        }

        const tensor& get_layer_params() const { return params; }
        tensor& get_layer_params() { return params; }

    private:
        resizable_tensor params;
        std::vector<float> mean;
        std::vector<float> scale;
    };

    std::ostream& operator<<(std::ostream& out, const textbook_layer_norm_&)
    {
        return out << "textbook_layer_norm";
    }

    template <typename SUBNET>
    using textbook_layer_norm = add_layer<textbook_layer_norm_, SUBNET>;

    template <typename SUBNET>
    using no_norm = SUBNET;

    // ----------------------------------------------------------------------------------------

    template <template <typename> class NORM>
    void train(const text_corpus& text, double rate, long seed, long num_steps)
    /*!
        ensures
            - trains and prints step, loss and held-out loss. A training that has left the finite
              numbers ends there.
    !*/
    {
        llama_sizes sizes;
        sizes.vocabulary = text.alphabet.size();
        std::srand(static_cast<unsigned>(seed));
        llama<num_blocks, NORM> net;
        set_up(net, sizes);
        micro_batch_trainer<llama<num_blocks, NORM>> trainer(net, adam(0, 0.9f, 0.99f));

        dlib::rand rnd(seed);
        double sum = 0;
        const long interval = std::max(1L, num_steps / 20);
        for (long step = 0; step < num_steps; ++step)
        {
            const token_batch batch = random_batch(
                rnd, text.training, num_sequences, sizes.max_length);
            try
            {
                sum += trainer.train_one_step(batch.inputs.begin(), batch.inputs.end(),
                    batch.targets.begin(), learning_rate_at(step, num_steps, rate));
            }
            catch (error& e)
            {
                std::cout << "# step " << step + 1 << ": " << e.what() << std::endl;
                return;
            }
            if ((step + 1) % interval == 0)
            {
                const double held_out = loss_on(net, text.held_out, 128, sizes.max_length);
                std::cout << step + 1 << "\t" << sum / static_cast<double>(interval) << "\t"
                          << held_out << std::endl;
                sum = 0;
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    template <typename F>
    double median_time(const F& f)
    /*!
        ensures
            - returns how many microseconds f takes.
    !*/
    {
        std::vector<double> times;
        for (int i = 0; i < 40; ++i)
        {
            const auto start = std::chrono::steady_clock::now();
            f();
            const std::chrono::duration<double, std::micro> time =
                std::chrono::steady_clock::now() - start;
            times.push_back(time.count());
        }
        std::nth_element(times.begin(), times.begin() + 20, times.end());
        return times[20];
    }

    struct subnet_of_values
    {
        subnet_of_values(long long samples, long long k)
        {
            output.set_size(samples, k);
            gradient.copy_size(output);
            gradient = 0;
            tt::tensor_rand rnd;
            rnd.fill_gaussian(output);
        }

        const tensor& get_output() const { return output; }
        tensor& get_gradient_input() { return gradient; }

        resizable_tensor output;
        resizable_tensor gradient;
    };

    template <typename layer_type>
    double time_of(layer_type layer, long long samples, long long k)
    {
        subnet_of_values sub(samples, k);
        resizable_tensor output, gradient, params_grad;
        layer.setup(sub);
        layer.forward(sub, output);
        gradient = output;
        params_grad.copy_size(layer.get_layer_params());
        return median_time(
            [&]
            {
                layer.forward(sub, output);
                layer.backward(gradient, sub, params_grad);
            });
    }

    double time_of_plain_loops(long rows, long size)
    {
        const auto groups = contrib::rms_norm_rows(rows, size, true);
        subnet_of_values sub(rows, size);
        resizable_tensor output(rows, size), scale(rows), gamma(size), gamma_grad(size);
        gamma = 1;
        contrib::rms_norm_forward<float> forward;
        contrib::rms_norm_backward<float> backward;
        forward.groups = backward.groups = groups;
        forward.eps = 1e-5;
        forward.x = backward.x = sub.output.host();
        forward.gamma = backward.gamma = gamma.host();
        forward.y = output.host();
        backward.scale = forward.scale = scale.host();
        backward.d = output.host();
        backward.dx = sub.gradient.host();
        backward.add = true;
        backward.dgamma = gamma_grad.host();
        return median_time(
            [&]
            {
                contrib::plain::rms_normalize(forward);
                contrib::plain::rms_normalize_gradient(backward);
            });
    }

    template <template <typename> class NORM>
    double time_of_net(unsigned long vocabulary, const token_batch& batch)
    {
        llama_sizes sizes;
        sizes.vocabulary = vocabulary;
        llama<num_blocks, NORM> net;
        set_up(net, sizes);
        return median_time(
            [&]
            {
                net.compute_parameter_gradients(
                    batch.inputs.begin(), batch.inputs.end(), batch.targets.begin());
            });
    }

    void print_shares()
    /*!
        ensures
            - prints what the time from a micro-batch to its gradients goes into: parts of the net,
              measured by themselves, one thread.
    !*/
    {
        use_one_blas_thread();
        const llama_sizes sizes;
        const unsigned long vocabulary = 145;
        const auto d = static_cast<long>(sizes.features);
        const auto hidden = static_cast<long>(sizes.hidden);
        const long n = 2 * static_cast<long>(sizes.max_length); // two sequences
        std::vector<unsigned long> text;
        for (unsigned long i = 0; i < 1000; ++i)
            text.push_back(i * i % vocabulary);
        dlib::rand rnd(0);
        const token_batch batch = random_batch(rnd, text, 2, sizes.max_length);

        const auto fc_time = [&](long in, long out)
        {
            fc_<1, FC_NO_BIAS> layer;
            layer.set_num_outputs(out);
            return time_of(layer, n, in);
        };
        const auto blocks = static_cast<double>(num_blocks);
        const double products = blocks *
                (fc_time(d, 3 * d) + fc_time(d, d) + fc_time(d, 2 * hidden) + fc_time(hidden, d)) +
            fc_time(d, static_cast<long>(vocabulary));
        const double attention = blocks * time_of(attention_(), n, 3 * d);
        const double gate = blocks * time_of(swiglu_(), n, 2 * hidden);
        const double num_norms = 2 * blocks + 1;
        const double norms = num_norms * time_of(contrib::rms_norm_(), n, d);
        const double plain = num_norms * time_of_plain_loops(n, d);
        const double layer = num_norms * time_of(layer_norm_(), n, d);
        const double net = time_of_net<contrib::rms_norm>(vocabulary, batch);
        const double rest = net - products - attention - gate - norms;

        std::printf(
            "From %ld tokens to gradients, one thread: %.0f microseconds, of them\n", n, net);
        const auto print = [&](const char* name, double time)
        { std::printf("  %-40s %5.1f %%\n", name, 100 * time / net); };
        print("products", products);
        print("attention", attention);
        print("SwiGLU", gate);
        print("RMS norm", norms);
        print("the rest", rest);
        std::printf("In place of our RMS norm, as shares of the same time:\n");
        print("RMS norm in plain loops", plain);
        print("dlib's layer_norm", layer);
    }

    // ----------------------------------------------------------------------------------------

}

int main(int argc, char** argv)
try
{
    command_line_parser parser;
    parser.add_option("norm", "Train with rms, layer or none.", 1);
    parser.add_option("text", "Learn from this file.", 1);
    parser.add_option("learning-rate", "The highest (default: 0.0015).", 1);
    parser.add_option("seed", "Of all random numbers (default: 0).", 1);
    parser.add_option("steps", "Train for so many steps (default: 600).", 1);
    parser.add_option("shares", "Print what the time of a step goes into.");
    parser.parse(argc, argv);
    parser.check_option_arg_range("steps", 1L, 100000000L);
    parser.check_option_arg_range("learning-rate", 1e-9, 100.0);

    if (parser.option("shares"))
    {
        print_shares();
        return 0;
    }
    if (!parser.option("norm") || !parser.option("text"))
        throw error("Give --shares, or --norm and --text.");

    const text_corpus text = read_corpus({std::string(parser.option("text").argument())}, 129);
    const std::string norm = parser.option("norm").argument();
    const double rate = get_option(parser, "learning-rate", 1.5e-3);
    const long seed = get_option(parser, "seed", 0L);
    const long steps = get_option(parser, "steps", 600L);
    if (norm == "rms")
        train<contrib::rms_norm>(text, rate, seed, steps);
    else if (norm == "layer")
        train<textbook_layer_norm>(text, rate, seed, steps);
    else if (norm == "none")
        train<no_norm>(text, rate, seed, steps);
    else
        throw error("There is no normalization '" + norm + "'.");
    return 0;
}
catch (std::exception& e)
{
    std::cerr << e.what() << std::endl;
    return 1;
}
