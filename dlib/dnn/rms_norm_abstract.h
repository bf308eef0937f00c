// License: Boost Software License   See LICENSE.txt for the full license.
#undef DLIB_DNn_RMS_NORM_ABSTRACT_H_
#ifdef DLIB_DNn_RMS_NORM_ABSTRACT_H_

#include "../cuda/rms_norm_tools_abstract.h"

namespace dlib
{
namespace contrib
{

// ----------------------------------------------------------------------------------------

    const double DEFAULT_RMS_NORM_EPS = 1e-5;

    struct rms_norm_gain_offset
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A gain offset with its name, for the constructor of a layer.
        !*/

        explicit rms_norm_gain_offset(
            double value
        );
        /*!
            ensures
                - #value == value
        !*/

        double value;
    };

    template <rms_norm_axes AXES>
    class rms_norm_over_
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                This is an implementation of the EXAMPLE_COMPUTATIONAL_LAYER_ interface defined
                in dlib/dnn/layers_abstract.h. It is a layer that divides the values of each
                group by their root mean square and multiplies them with a learned gain:

                    output == input/sqrt(mean(input^2) + eps) * (gain_offset + gamma)

                What a group is, is chosen by AXES, see rms_norm_axes. The three choices have
                the names

                    rms_norm_          all values of a sample together, one gain per channel
                    rms_norm_row_      each row by itself, one gain per column. This is the layer
                                       for Transformers on (batch, 1, tokens, features): no token
                                       sees another.
                    rms_norm_channel_  the channels of each pixel, one gain per channel

                See the paper "Root Mean Square Layer Normalization" by Zhang and Sennrich (2019).
                In contrast to layer and batch normalization no mean is removed, so a bias in the
                layer below is not redundant.

                The layer works for any number of samples, and keeps no statistics from training:
                the same input gives the same bits in training and in inference. The shape of
                gamma is fixed by setup(): afterwards inputs can differ in everything but the
                dimensions that gamma has.

                A requirement that is not met throws a dlib::fatal_error (from DLIB_CASSERT, in
                release builds too), and leaves the layer as it was.
        !*/

    public:

        explicit rms_norm_over_(
            double eps = DEFAULT_RMS_NORM_EPS,
            rms_norm_gain gain = rms_norm_gain::per_channel,
            double gain_offset = 0
        );
        /*!
            requires
                - eps is finite, not below the smallest normal float and not above the largest
                - gain_offset is finite as a float
            ensures
                - #get_eps() == eps
                - #get_gain() == gain
                - #get_gain_offset() == gain_offset
                - #get_learning_rate_multiplier()      == 1
                - #get_weight_decay_multiplier()       == 0
                - #get_bias_learning_rate_multiplier() == 1
                - #get_bias_weight_decay_multiplier()  == 1
                - #get_layer_params().size() == 0
        !*/

        explicit rms_norm_over_(
            rms_norm_gain_offset offset,
            double eps = DEFAULT_RMS_NORM_EPS
        );
        /*!
            ensures
                - performs rms_norm_over_(eps, rms_norm_gain::per_channel, offset.value). So the
                  norm of Gemma is rms_norm_row_(rms_norm_gain_offset(1), 1e-6).
        !*/

        double get_eps(
        ) const;
        /*!
            ensures
                - returns the value that is added to the mean of the squares
        !*/

        void set_eps(
            double val
        );
        /*!
            requires
                - val is finite, not below the smallest normal float and not above the largest
            ensures
                - #get_eps() == val
        !*/

        rms_norm_gain get_gain(
        ) const;
        /*!
            ensures
                - returns which values have a gain of their own. With rms_norm_gain::none the
                  layer has no parameters.
        !*/

        void set_gain(
            rms_norm_gain val
        );
        /*!
            requires
                - val == get_gain() or get_layer_params().size() == 0
            ensures
                - #get_gain() == val
        !*/

        double get_gain_offset(
        ) const;
        /*!
            ensures
                - returns the value that is added to gamma to give the gain. With 1, as in Gemma,
                  gamma starts at 0 and weight decay pulls the gain towards 1.
        !*/

        void set_gain_offset(
            double val
        );
        /*!
            requires
                - val is finite as a float
            ensures
                - #get_gain_offset() == val
                - get_layer_params() is left as it is. So unless setup() follows, the gain
                  changes by the difference.
        !*/

        double get_learning_rate_multiplier(
        ) const;
        /*!
            ensures
                - returns a multiplier that the learning rate of gamma is multiplied with
        !*/

        double get_weight_decay_multiplier(
        ) const;
        /*!
            ensures
                - returns a multiplier that the weight decay of gamma is multiplied with
        !*/

        void set_learning_rate_multiplier(
            double val
        );
        /*!
            requires
                - val is finite and >= 0
            ensures
                - #get_learning_rate_multiplier() == val
        !*/

        void set_weight_decay_multiplier(
            double val
        );
        /*!
            requires
                - val is finite and >= 0
            ensures
                - #get_weight_decay_multiplier() == val
        !*/

        double get_bias_learning_rate_multiplier(
        ) const;
        double get_bias_weight_decay_multiplier(
        ) const;
        void set_bias_learning_rate_multiplier(
            double val
        );
        void set_bias_weight_decay_multiplier(
            double val
        );
        /*!
            requires
                - val is finite and >= 0
            These four are what every dlib layer has. This one has no bias, so they do nothing but
            keep their value, in saved files too.
        !*/

        template <typename SUBNET>
        void setup(
            const SUBNET& sub
        );
        /*!
            ensures
                - gives gamma the shape that get_gain() asks for with sub.get_output(), see
                  rms_norm_gain
                - sets gamma so that all gains are 1
            throws
                - std::bad_alloc
                    if there is no memory for gamma. The layer is left as it was.
        !*/

        template <typename SUBNET>
        void forward(
            const SUBNET& sub,
            resizable_tensor& output
        );
        /*!
            requires
                - setup() has been called
            ensures
                - performs tt::rms_normalize(AXES, get_gain_offset(), get_eps(), output, scale,
                  sub.get_output(), gamma)
            throws
                - dlib::error
                    if the shape of sub.get_output() asks for another shape of gamma than the
                    layer was set up or loaded with. The message names both. The layer and output
                    are left as they were.
                - std::bad_alloc
                    if memory runs out. Options and gamma are left as they were, and the next call
                    needs nothing cleared.
        !*/

        template <typename SUBNET>
        void backward(
            const tensor& gradient_input,
            SUBNET& sub,
            tensor& params_grad
        );
        /*!
            requires
                - forward(sub, output) was called last
            ensures
                - adds the gradient with respect to sub.get_output() to
                  sub.get_gradient_input() and assigns that with respect to gamma to params_grad,
                  as tt::rms_normalize_gradient() does
        !*/

        dpoint map_input_to_output(
            const dpoint& p
        ) const;
        dpoint map_output_to_input(
            const dpoint& p
        ) const;
        /*!
            ensures
                - returns p
        !*/

        void clean(
        );
        /*!
            ensures
                - frees what forward() keeps for backward()
        !*/

        const tensor& get_layer_params(
        ) const;
        tensor& get_layer_params(
        );
        /*!
            ensures
                - returns gamma. It is empty before setup() and if get_gain() == rms_norm_gain::none.
        !*/
    };

// ----------------------------------------------------------------------------------------

    template <rms_norm_axes AXES>
    void serialize(const rms_norm_over_<AXES>& item, std::ostream& out);
    /*!
        ensures
            - saves everything but what forward() keeps for backward()
            - if (AXES == sample && item.get_gain() == per_channel && item.get_gain_offset() == 0) then
                - writes, byte for byte, what dlib 20 writes for its rms_norm_
    !*/

    template <rms_norm_axes AXES>
    void deserialize(rms_norm_over_<AXES>& item, std::istream& in);
    /*!
        ensures
            - restores what serialize() saved. The files of dlib 20's rms_norm_ can be read with
              AXES == sample.
        throws
            - serialization_error
                if in does not hold such a layer, is cut short, or holds values that a layer can't
                have (an eps that set_eps() refuses, a shape of gamma that get_gain() does not
                ask for). The message names what was found, bytes that can't be printed as \x and
                two digits, and item is left as it was. It is this exception for a stream with
                exceptions switched on, too.

        Only this layer is left as it was. The layers of dlib around it in a broken net file can
        have been read already, so load a file that may be broken into a new net.
    !*/

    template <rms_norm_axes AXES>
    std::ostream& operator<<(std::ostream& out, const rms_norm_over_<AXES>& item);
    /*!
        ensures
            - prints the name of the layer and its options
    !*/

    template <rms_norm_axes AXES>
    void to_xml(const rms_norm_over_<AXES>& item, std::ostream& out);
    /*!
        ensures
            - writes the layer as an XML element, with its options and gamma
    !*/

// ----------------------------------------------------------------------------------------

    using rms_norm_         = rms_norm_over_<rms_norm_axes::sample>;
    using rms_norm_row_     = rms_norm_over_<rms_norm_axes::row>;
    using rms_norm_channel_ = rms_norm_over_<rms_norm_axes::channel>;

    template <typename SUBNET>
    using rms_norm = add_layer<rms_norm_, SUBNET>;

    template <typename SUBNET>
    using rms_norm_row = add_layer<rms_norm_row_, SUBNET>;

    template <typename SUBNET>
    using rms_norm_channel = add_layer<rms_norm_channel_, SUBNET>;

// ----------------------------------------------------------------------------------------

    template <
        template <typename> class TAG,
        rms_norm_axes AXES
        >
    class add_prev_rms_norm_over_ : public rms_norm_over_<AXES>
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                This is dlib's add_prev_<TAG> with an RMS norm above it, as one layer:

                    sum    == sub.get_output() + layer<TAG>(sub).get_output()
                    output == sum/sqrt(mean(sum^2) + eps) * (gain_offset + gamma)

                It is for nets that normalize after the residual addition. Outputs and gradients
                have the bits of the two layers that it replaces, and inputs of different shapes
                are added as add_prev_ does it, padded with zeros. It takes less time and as much
                memory. Options, parameters and errors are those of rms_norm_over_.

                    add_prev_rms_norm_<TAG>, add_prev_rms_norm_row_<TAG> and
                    add_prev_rms_norm_channel_<TAG> have the axes of rms_norm_, rms_norm_row_ and
                    rms_norm_channel_.
        !*/

    public:

        const static unsigned long id = tag_id<TAG>::id;

        // constructors and members as in rms_norm_over_<AXES>

        template <typename SUBNET>
        void setup(
            const SUBNET& sub
        );
        /*!
            ensures
                - the same as rms_norm_over_<AXES>::setup(), for the shape of sum
        !*/

        template <typename SUBNET>
        void forward(
            const SUBNET& sub,
            resizable_tensor& output
        );
        /*!
            requires
                - setup() has been called
            ensures
                - performs tt::rms_normalize_sum(AXES, get_gain_offset(), get_eps(), output, scale,
                  sum, sub.get_output(), layer<TAG>(sub).get_output(), gamma)
            throws
                - dlib::error
                    if the shape of sum asks for another shape of gamma than the layer was set up
                    or loaded with. The message names both. The layer and output are left as they
                    were.
        !*/

        template <typename SUBNET>
        void backward(
            const tensor& gradient_input,
            SUBNET& sub,
            tensor& params_grad
        );
        /*!
            requires
                - forward(sub, output) was called last
            ensures
                - adds the gradient with respect to sum to sub.get_gradient_input() and to
                  layer<TAG>(sub).get_gradient_input(), and assigns that with respect to gamma to
                  params_grad
        !*/
    };

    template <template <typename> class TAG, rms_norm_axes AXES>
    void serialize(const add_prev_rms_norm_over_<TAG, AXES>& item, std::ostream& out);

    template <template <typename> class TAG, rms_norm_axes AXES>
    void deserialize(add_prev_rms_norm_over_<TAG, AXES>& item, std::istream& in);
    /*!
        As for rms_norm_over_. A file does not tell the tag, as with add_prev_.
    !*/

    template <template <typename> class TAG>
    using add_prev_rms_norm_         = add_prev_rms_norm_over_<TAG, rms_norm_axes::sample>;
    template <template <typename> class TAG>
    using add_prev_rms_norm_row_     = add_prev_rms_norm_over_<TAG, rms_norm_axes::row>;
    template <template <typename> class TAG>
    using add_prev_rms_norm_channel_ = add_prev_rms_norm_over_<TAG, rms_norm_axes::channel>;

    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm         = add_layer<add_prev_rms_norm_<TAG>, SUBNET>;
    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm_row     = add_layer<add_prev_rms_norm_row_<TAG>, SUBNET>;
    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm_channel = add_layer<add_prev_rms_norm_channel_<TAG>, SUBNET>;

    // add_prev1_rms_norm to add_prev5_rms_norm are those of tag1 to tag5, with sample axes.
    template <typename SUBNET>
    using add_prev1_rms_norm        = add_prev_rms_norm<tag1, SUBNET>;

// ----------------------------------------------------------------------------------------

    template <typename net_type>
    void set_all_rms_norm_eps(
        net_type& net,
        double eps
    );
    /*!
        requires
            - net_type is an object of type add_layer, add_loss_layer, add_skip_layer, or
              add_tag_layer
            - eps is what set_eps() requires
        ensures
            - calls set_eps(eps) for every rms_norm_, rms_norm_row_ and rms_norm_channel_ of
              contrib in net, in repeat<> too
    !*/

    template <typename net_type>
    void set_all_rms_norm_gain(
        net_type& net,
        rms_norm_gain gain
    );
    /*!
        requires
            - net_type is as in set_all_rms_norm_eps()
            - gain is what set_gain() requires, for each of these layers
        ensures
            - calls set_gain(gain) for each of these layers
        throws
            - fatal_error (from DLIB_CASSERT, in release builds too)
                if one of the layers has parameters and another kind of gain. No layer is changed.
    !*/

    template <typename net_type>
    void set_all_rms_norm_gain_offset(
        net_type& net,
        double gain_offset
    );
    /*!
        requires
            - net_type is as in set_all_rms_norm_eps()
            - gain_offset is what set_gain_offset() requires
        ensures
            - calls set_gain_offset(gain_offset) for each of these layers. So before the first
              training step set_all_rms_norm_gain_offset(net, 1) makes all of them those of Gemma.
    !*/

    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_eps_range(
        net_type& net,
        double eps
    );
    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_gain_range(
        net_type& net,
        rms_norm_gain gain
    );
    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_gain_offset_range(
        net_type& net,
        double gain_offset
    );
    /*!
        requires
            - begin <= end <= net_type::num_layers
            - as the functions above
        ensures
            - do the same for the layers [begin, end) of net only
    !*/

// ----------------------------------------------------------------------------------------

    using ::dlib::disable_bias;
    using ::dlib::get_bias_learning_rate_multiplier;
    using ::dlib::get_bias_weight_decay_multiplier;
    using ::dlib::get_learning_rate_multiplier;
    using ::dlib::get_weight_decay_multiplier;
    using ::dlib::set_bias_learning_rate_multiplier;
    using ::dlib::set_bias_weight_decay_multiplier;
    using ::dlib::set_learning_rate_multiplier;
    using ::dlib::set_weight_decay_multiplier;
    /*!
        Every visitor of dlib (set_all_learning_rate_multipliers() and the others in
        dlib/dnn/visitors.h and dlib/dnn/core.h) works with the layers. dlib finds the functions
        above by argument-dependent look-up, so they are here too.

        disable_duplicative_biases() of dlib 20 switches off the bias below its own rms_norm_. It
        leaves the bias below these layers alone: no mean is removed, so that bias counts.
    !*/

// ----------------------------------------------------------------------------------------

}
}

#endif // DLIB_DNn_RMS_NORM_ABSTRACT_H_
