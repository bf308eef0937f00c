// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TRANSFORMER_MODEL_H_
#define DLIB_RMS_NORM_TRANSFORMER_MODEL_H_

// A Llama-style language model as a dlib net: its type, its sizes, and its weights under the names
// that Llama's files give them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "safetensors.h"
#include "transformer_layers.h"

namespace transformer
{

    // ----------------------------------------------------------------------------------------

    // How wide a fully connected layer is depends on sizes that are known when the program runs.
    // Until then its number of outputs says which of Llama's matrices it is.
    enum fc_role : unsigned long
    {
        fc_wqkv = 1, // query, key and value side by side
        fc_wo,       // what the heads found
        fc_w1w3,     // the gate and what it lets through, side by side
        fc_w2
    };

    // NORM normalizes each token before the attention and before the feed-forward part.
    template <template <typename> class NORM, typename SUBNET>
    using attention_part = dlib::add_prev1<
        dlib::fc_no_bias<fc_wo, attention<dlib::fc_no_bias<fc_wqkv, NORM<dlib::tag1<SUBNET>>>>>>;

    template <template <typename> class NORM, typename SUBNET>
    using feed_forward_part = dlib::add_prev2<
        dlib::fc_no_bias<fc_w2, swiglu<dlib::fc_no_bias<fc_w1w3, NORM<dlib::tag2<SUBNET>>>>>>;

    template <template <typename> class NORM>
    struct block_with
    {
        template <typename SUBNET>
        using type = feed_forward_part<NORM, attention_part<NORM, SUBNET>>;
    };

    template <std::size_t num_blocks, template <typename> class NORM = dlib::contrib::rms_norm>
    using llama = dlib::loss_multiclass_log<tied_output<
        NORM<dlib::repeat<num_blocks, block_with<NORM>::template type, embedding<input_tokens>>>>>;

    // ----------------------------------------------------------------------------------------

    struct llama_sizes
    {
        unsigned long vocabulary = 256;
        unsigned long features = 128;
        unsigned long num_heads = 4;
        unsigned long hidden = 344;
        unsigned long max_length = 128;
        double eps = 1e-5;
        double theta = 10000;
    };

    template <typename net_type>
    void set_up(net_type& net, const llama_sizes& sizes)
    /*!
        requires
            - net is a llama that has no parameters yet.
            - sizes.features is a multiple of 2*sizes.num_heads.
            - the sizes are what the layers' contracts require.
        ensures
            - net has these sizes and initial weights, drawn from generators that are seeded with
              std::rand(): the same after the same std::srand().
            - The sequence length is sizes.max_length.
    !*/
    {
        using namespace dlib;
        DLIB_CASSERT(sizes.num_heads > 0 && sizes.features > 0 && sizes.hidden > 0 &&
                sizes.features % (2 * sizes.num_heads) == 0,
            "\n\t The features have to be shared by the heads, in pairs."
                << "\n\t features:  " << sizes.features << "\n\t num_heads: " << sizes.num_heads
                << "\n\t hidden:    " << sizes.hidden);

        input_layer(net).set_vocabulary(sizes.vocabulary);
        visit_computational_layers(net,
            [&](auto& layer)
            {
                using type = std::decay_t<decltype(layer)>;
                if constexpr (std::is_same<type, fc_<fc_wqkv, FC_NO_BIAS>>::value)
                    layer.set_num_outputs(static_cast<long>(3 * sizes.features));
                else if constexpr (std::is_same<type, fc_<fc_w1w3, FC_NO_BIAS>>::value)
                    layer.set_num_outputs(static_cast<long>(2 * sizes.hidden));
                else if constexpr (std::is_same<type, fc_<fc_wo, FC_NO_BIAS>>::value ||
                    std::is_same<type, fc_<fc_w2, FC_NO_BIAS>>::value)
                    layer.set_num_outputs(static_cast<long>(sizes.features));
                else if constexpr (std::is_same<type, attention_>::value)
                    layer.set_heads(sizes.num_heads, sizes.max_length, sizes.theta);
                else if constexpr (std::is_same<type, embedding_>::value)
                    layer.set_size(sizes.vocabulary, sizes.features);
                else if constexpr (std::is_same<type, contrib::rms_norm_>::value)
                    layer.set_eps(sizes.eps);
            });

        // dlib's layers get their parameters when they see their first input
        const unsigned long token = 0;
        set_sequence_length(net, 1);
        net.subnet()(&token, &token + 1);
        net.clean();
        set_sequence_length(net, sizes.max_length);
    }

    // ----------------------------------------------------------------------------------------

    struct llama_weight
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                One array of a Llama, and where it lies in a net. Llama's files hold a matrix as
                (outputs, inputs). dlib multiplies from the other side, and some of the matrices
                lie side by side.
        !*/
        std::string name;
        std::vector<std::size_t> shape;
        dlib::tensor* params;
        dlib::tensor* gradient;
        bool is_transposed;
        std::size_t first_column; // in params
        std::size_t num_columns;  // of params

        template <typename F>
        void for_each(const F& f) const
        /*!
            ensures
                - calls f(index in Llama's array, index in params) for all values.
        !*/
        {
            const std::size_t columns = shape.size() == 1 ? 1 : shape[1];
            for (std::size_t r = 0; r < shape[0]; ++r)
            {
                for (std::size_t c = 0; c < columns; ++c)
                    f(r * columns + c,
                        is_transposed ? c * num_columns + first_column + r : r * columns + c);
            }
        }
    };

    template <typename net_type>
    std::vector<llama_weight> llama_weights(net_type& net, std::size_t num_blocks)
    /*!
        requires
            - net is a llama<num_blocks> with rms_norm, and set_up() was called.
        ensures
            - returns all arrays of net, with the names tok_embeddings, norm, and for each block n
              blocks.n.attention_norm, wq, wk, wv, wo, ffn_norm, w1, w3, w2.
    !*/
    {
        using namespace dlib;
        std::vector<llama_weight> result;
        std::size_t norms = 0; // seen so far: one at the end, then two in each block

        const auto add = [&](const std::string& name, auto& layer, std::size_t part,
                             std::size_t parts, bool is_matrix)
        {
            tensor& params = layer.layer_details().get_layer_params();
            llama_weight w;
            w.name = name;
            w.params = &params;
            w.gradient = &layer.get_parameter_gradient();
            w.is_transposed = is_matrix;
            const auto rows = static_cast<std::size_t>(params.num_samples());
            w.num_columns = params.size() / rows;
            const std::size_t width = w.num_columns / parts;
            w.first_column = part * width;
            w.shape = is_matrix ? std::vector<std::size_t>{width, rows}
                                : std::vector<std::size_t>{params.size()};
            result.push_back(w);
        };

        // visited from the output down to the input
        visit_layers(net,
            [&](auto& layer)
            {
                if constexpr (is_add_layer<decltype(layer)>::value)
                {
                    using type = std::decay_t<decltype(layer.layer_details())>;
                    const std::size_t block = num_blocks - (norms + 1) / 2;
                    const std::string prefix = "blocks." + std::to_string(block) + ".";
                    if constexpr (std::is_same<type, contrib::rms_norm_>::value)
                    {
                        const std::string which = norms % 2 ? "ffn_norm" : "attention_norm";
                        add(norms == 0 ? "norm" : prefix + which, layer, 0, 1, false);
                        ++norms;
                    }
                    else if constexpr (std::is_same<type, fc_<fc_w2, FC_NO_BIAS>>::value)
                        add(prefix + "w2", layer, 0, 1, true);
                    else if constexpr (std::is_same<type, fc_<fc_w1w3, FC_NO_BIAS>>::value)
                    {
                        add(prefix + "w1", layer, 0, 2, true);
                        add(prefix + "w3", layer, 1, 2, true);
                    }
                    else if constexpr (std::is_same<type, fc_<fc_wo, FC_NO_BIAS>>::value)
                        add(prefix + "wo", layer, 0, 1, true);
                    else if constexpr (std::is_same<type, fc_<fc_wqkv, FC_NO_BIAS>>::value)
                    {
                        add(prefix + "wq", layer, 0, 3, true);
                        add(prefix + "wk", layer, 1, 3, true);
                        add(prefix + "wv", layer, 2, 3, true);
                    }
                    else if constexpr (std::is_same<type, embedding_>::value)
                    {
                        add("tok_embeddings", layer, 0, 1, false);
                        result.back().shape = {layer.layer_details().get_vocabulary(),
                            layer.layer_details().get_features()};
                    }
                }
            });
        return result;
    }

    // ----------------------------------------------------------------------------------------

    template <typename net_type>
    void load_llama(net_type& net,
        std::size_t num_blocks,
        const safetensors& file,
        const std::string& prefix = "")
    /*!
        requires
            - net is a llama<num_blocks> with rms_norm, and set_up() was called.
        ensures
            - The weights of net are those arrays of file whose names begin with prefix.
        throws
            - dlib::serialization_error
                An array is missing, is not one of a Llama of this size, or has another shape or
                type. The message names it, and net is unchanged.
    !*/
    {
        const auto text = [](const std::vector<std::size_t>& shape)
        {
            std::string result;
            for (std::size_t d : shape)
                result += (result.empty() ? "" : ",") + std::to_string(d);
            return "(" + result + ")";
        };

        const std::vector<llama_weight> weights = llama_weights(net, num_blocks);
        std::vector<std::vector<float>> values;
        for (const llama_weight& w : weights)
        {
            const std::string name = prefix + w.name;
            if (file.shape(name) != w.shape)
                file.refuse("'" + name + "' has the shape " + text(file.shape(name)) +
                    " instead of " + text(w.shape));
            values.push_back(file.numbers<float>(name));
        }
        for (const std::string& name : file.names(prefix))
        {
            bool is_known = false;
            for (const llama_weight& w : weights)
                is_known = is_known || name == prefix + w.name;
            if (!is_known)
                file.refuse("'" + name + "' is not part of this model");
        }

        for (std::size_t i = 0; i < weights.size(); ++i)
        {
            float* const out = weights[i].params->host();
            weights[i].for_each(
                [&](std::size_t from, std::size_t to) { out[to] = values[i][from]; });
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_TRANSFORMER_MODEL_H_
