// License: Boost Software License   See LICENSE.txt for the full license.

// The Transformer of the examples: its layers, a Llama compared step for step with one that other
// software computed, and what users of such a net rely on.

#include <array>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <unistd.h>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "../../examples/micro_batch_trainer.h"
#include "../../examples/transformer_model.h"
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
        }
    } a_transformer_tester;

    // ----------------------------------------------------------------------------------------

}
