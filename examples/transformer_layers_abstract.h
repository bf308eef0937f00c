// License: Boost Software License   See LICENSE.txt for the full license.
#undef DLIB_RMS_NORM_TRANSFORMER_LAYERS_ABSTRACT_H_
#ifdef DLIB_RMS_NORM_TRANSFORMER_LAYERS_ABSTRACT_H_

#include <dlib/dnn/layers_abstract.h>

namespace transformer
{

    /*
        A token is a sample. Between these layers travel tensors of shape
        (sequences*length, features, 1, 1): the tokens of the first sequence, then those of the
        second, and so on. So dlib's own layers (fc_no_bias, add_prev, loss_multiclass_log) work
        on each token by itself, and so does contrib::rms_norm with one gain per feature.

        The model is that of Touvron et al., "LLaMA: Open and Efficient Foundation Language
        Models", 2023.

        On a dlib with CUDA these layers work through the tensors' host memory. The products of
        tied_output_ and all layers of dlib run on the device.

        What every layer below has in common:
            - Where an input does not fit, forward() throws dlib::error and names both sizes.
              The next, fitting input works as before.
            - deserialize() throws dlib::serialization_error if what it finds is not such a
              layer, and the layer is as it was.
            - Outputs and gradients have the same bits every time and for any number of dlib's
              threads. Where dlib uses a BLAS with threads of its own, the bits may depend on
              their number: see use_one_blas_thread() in micro_batch_trainer.h.
            - It implements the EXAMPLE_COMPUTATIONAL_LAYER_ interface of dlib/dnn/layers_abstract.h
              (input_tokens: EXAMPLE_INPUT_LAYER), can be printed, serialized and given to
              net_to_xml().
    */

// ----------------------------------------------------------------------------------------

    class input_tokens
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The input layer of a net that reads tokens. A token is an id, that is, an
                integer of 0 up to the size of the vocabulary.
        !*/
    public:

        typedef unsigned long input_type;

        explicit input_tokens(
            unsigned long vocabulary = 256
        );
        /*!
            requires
                - 0 < vocabulary <= 2^24
            ensures
                - #get_vocabulary() == vocabulary
        !*/

        unsigned long get_vocabulary(
        ) const;
        /*!
            ensures
                - returns the number of different tokens.
        !*/

        void set_vocabulary(
            unsigned long vocabulary
        );
        /*!
            requires
                - 0 < vocabulary <= 2^24
            ensures
                - #get_vocabulary() == vocabulary
        !*/

        template <typename forward_iterator>
        void to_tensor(
            forward_iterator ibegin,
            forward_iterator iend,
            resizable_tensor& data
        ) const;
        /*!
            requires
                - [ibegin, iend) is a range of integers of any type.
                - std::distance(ibegin, iend) > 0
            ensures
                - #data has the shape (std::distance(ibegin, iend), 1, 1, 1) and holds the ids.
            throws
                - dlib::error
                    An id is negative or not below get_vocabulary(). The message names both,
                    and data is unchanged.
        !*/
    };

// ----------------------------------------------------------------------------------------

    class embedding_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A table with a row of features for each token of a vocabulary. The output for a
                token is its row:

                    input (n, 1, 1, 1)  ->  output (n, get_features(), 1, 1)
                    output[i][c] == get_layer_params()[input[i]][c]

                It belongs directly onto input_tokens: no gradient of the ids is computed.
                A tied_output_ further up the net uses the same table.
        !*/
    public:

        explicit embedding_(
            unsigned long vocabulary = 256,
            unsigned long features = 128
        );
        /*!
            requires
                - 0 < vocabulary <= 2^24, 0 < features <= 2^24
            ensures
                - #get_vocabulary() == vocabulary
                - #get_features() == features
                - #get_learning_rate_multiplier() == 1
                - #get_weight_decay_multiplier() == 1
        !*/

        unsigned long get_vocabulary() const;
        unsigned long get_features() const;
        double get_learning_rate_multiplier() const;
        double get_weight_decay_multiplier() const;
        void set_learning_rate_multiplier(double val);
        void set_weight_decay_multiplier(double val);

        void set_size(
            unsigned long vocabulary,
            unsigned long features
        );
        /*!
            requires
                - 0 < vocabulary <= 2^24, 0 < features <= 2^24
                - get_layer_params().size() == 0, that is, the layer is not set up.
            ensures
                - #get_vocabulary() == vocabulary
                - #get_features() == features
        !*/

        template <typename SUBNET> void setup(const SUBNET& sub);
        /*!
            ensures
                - #get_layer_params() has the shape (get_vocabulary(), get_features(), 1, 1) and
                  normally distributed values of standard deviation 0.02, drawn from a generator
                  that is seeded with std::rand().
        !*/

        template <typename SUBNET> void forward(const SUBNET& sub, resizable_tensor& output);
        /*!
            throws
                - dlib::error
                    sub.get_output() has another shape than (n, 1, 1, 1), or a value that is
                    not an integer in [0, get_vocabulary()).
        !*/

        template <typename SUBNET>
        void backward(const tensor& gradient_input, SUBNET& sub, tensor& params_grad);
        /*!
            ensures
                - #params_grad[id] == the sum of gradient_input[i] over all i with input[i] == id,
                  plus what a tied_output_ left in get_tied_gradient() since the last call.
        !*/

        resizable_tensor& get_tied_gradient(
        ) const;
        /*!
            ensures
                - returns a tensor of the table's shape that the next backward() adds to
                  #params_grad. The caller has to assign all of it.
        !*/
    };

    template <typename SUBNET>
    using embedding = add_layer<embedding_, SUBNET>;

// ----------------------------------------------------------------------------------------

    class tied_output_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The output of a language model that uses the embedding's table once more: the
                logit of a token is the dot product of the features with the token's row.

                    input (n, features, 1, 1)  ->  output (n, vocabulary, 1, 1)
                    output[i][v] == sum over c of input[i][c] * table[v][c]

                It has no parameters of its own. The table is that of the first embedding_ below
                it (a net without one does not compile), is saved there, once, and the gradient of
                this use is added there to the gradient of the other.

                forward() throws dlib::error if the input has another number of features than
                the table.
        !*/
    };

    template <typename SUBNET>
    using tied_output = add_layer<tied_output_, SUBNET>;

// ----------------------------------------------------------------------------------------

    class attention_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Causal self-attention with several heads and rotary positions (Vaswani et al.,
                "Attention Is All You Need", 2017; Su et al., "RoFormer", 2021).

                    input (sequences*T, 3*F, 1, 1)  ->  output (sequences*T, F, 1, 1)
                    where T == get_sequence_length()

                The features of a token are its query, its key and its value, of F features
                each. Head h of H == get_num_heads() is the slice of the S == F/H features
                from h*S on, of all three. For each sequence and each head:

                    q'[t] == rotate(q[t], t)         k'[t] == rotate(k[t], t)
                    w[t]  == softmax over u <= t of dot(q'[t], k'[u])/sqrt(S)
                    output[t] == sum over u <= t of w[t][u] * v[u]

                rotate(x, t) turns each pair (x[2*i], x[2*i+1]) by the angle
                t * theta^(-2*i/S).

                No finite value of a later token has any effect on an earlier one, not even on
                its last bit.

                Between forward() and backward() the layer keeps q', k' and w, that is,
                sequences*T*(2*F + H*T) floats.
        !*/
    public:

        explicit attention_(
            unsigned long num_heads = 4,
            unsigned long max_length = 128,
            double theta = 10000
        );
        /*!
            requires
                - the same as set_heads()
            ensures
                - the same as set_heads()
        !*/

        unsigned long get_num_heads() const;
        unsigned long get_max_length() const;
        double get_theta() const;

        void set_heads(
            unsigned long num_heads,
            unsigned long max_length,
            double theta = 10000
        );
        /*!
            requires
                - 0 < num_heads <= 2^24, 0 < max_length <= 2^24
                - theta is finite and > 1
            ensures
                - #get_num_heads() == num_heads
                - #get_max_length() == max_length
                - #get_theta() == theta
                - #get_sequence_length() == max_length
        !*/

        unsigned long get_sequence_length(
        ) const;
        /*!
            ensures
                - returns how many tokens in a row are one sequence.
        !*/

        void set_sequence_length(
            unsigned long length
        );
        /*!
            requires
                - 0 < length <= get_max_length()
            ensures
                - #get_sequence_length() == length
        !*/

        template <typename SUBNET> void forward(const SUBNET& sub, resizable_tensor& output);
        /*!
            throws
                - dlib::error
                    The number of tokens is not a multiple of get_sequence_length(), or the
                    number of features is not a multiple of 3*get_num_heads()*2.
        !*/
    };

    template <typename SUBNET>
    using attention = add_layer<attention_, SUBNET>;

    template <typename net_type>
    void set_sequence_length(
        net_type& net,
        unsigned long length
    );
    /*!
        requires
            - 0 < length <= get_max_length() of every attention_ in net.
        ensures
            - calls set_sequence_length(length) of every attention_ in net.
    !*/

// ----------------------------------------------------------------------------------------

    class swiglu_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The gated unit of Llama's feed-forward part (Shazeer, "GLU Variants Improve
                Transformer", 2020). The first half of the features are the gate:

                    input (n, 2*F, 1, 1)  ->  output (n, F, 1, 1)
                    output[i][c] == silu(input[i][c]) * input[i][F+c]
                    silu(x) == x/(1 + exp(-x))

                forward() throws dlib::error if the number of features is odd.
        !*/
    };

    template <typename SUBNET>
    using swiglu = add_layer<swiglu_, SUBNET>;

// ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_TRANSFORMER_LAYERS_ABSTRACT_H_
