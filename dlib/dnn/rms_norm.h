// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_DNn_RMS_NORM_H_
#define DLIB_DNn_RMS_NORM_H_

// The layers: rms_norm_, rms_norm_row_ and rms_norm_channel_ are one class with three choices
// of what is normalized together. Their contract is in rms_norm_abstract.h.

#include <iostream>
#include <string>
#include <utility>
#include <dlib/dnn/core.h>
#include <dlib/dnn/layers.h>
#include "rms_norm_abstract.h"
#include "rms_norm_file.h"
#include "../cuda/rms_norm_arguments.h"
#include "../cuda/rms_norm_tools.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    const double DEFAULT_RMS_NORM_EPS = 1e-5;

    // dlib's visitors call these functions from dlib::impl, where others of the same name hide
    // them: they find them here, in the namespace of the layers.
    using ::dlib::disable_bias;
    using ::dlib::get_bias_learning_rate_multiplier;
    using ::dlib::get_bias_weight_decay_multiplier;
    using ::dlib::get_learning_rate_multiplier;
    using ::dlib::get_weight_decay_multiplier;
    using ::dlib::set_bias_learning_rate_multiplier;
    using ::dlib::set_bias_weight_decay_multiplier;
    using ::dlib::set_learning_rate_multiplier;
    using ::dlib::set_weight_decay_multiplier;

    // ----------------------------------------------------------------------------------------

    namespace impl
    {
        template <typename layer_type>
        void check_rms_norm_gain(const layer_type& l, rms_norm_gain val)
        {
            DLIB_CASSERT(val == l.get_gain() || l.get_layer_params().size() == 0,
                "\n\t The kind of gain can't be changed once the layer has parameters."
                    << "\n\t it is:      " << to_string(l.get_gain()) << "\n\t parameters: "
                    << l.get_layer_params().size() << "\n\t requested:  " << to_string(val));
        }

        inline double checked_rms_norm_multiplier(double val, const char* what)
        {
            DLIB_CASSERT(is_valid_rms_norm_multiplier(val),
                "\n\t A multiplier has to be finite and not negative.\n\t " << what << ": " << val);
            return val;
        }
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_gain_offset
    {
        explicit rms_norm_gain_offset(double value_) :
            value(value_)
        {
        }

        double value;
    };

    template <rms_norm_axes AXES>
    class rms_norm_over_
    {
    public:
        explicit rms_norm_over_(double eps_ = DEFAULT_RMS_NORM_EPS,
            rms_norm_gain gain_ = rms_norm_gain::per_channel,
            double gain_offset_ = 0) :
            learning_rate_multiplier(1),
            weight_decay_multiplier(0),
            bias_learning_rate_multiplier(1),
            bias_weight_decay_multiplier(1),
            gain(gain_)
        {
            set_eps(eps_);
            set_gain_offset(gain_offset_);
        }

        explicit rms_norm_over_(rms_norm_gain_offset offset, double eps_ = DEFAULT_RMS_NORM_EPS) :
            rms_norm_over_(eps_, rms_norm_gain::per_channel, offset.value)
        {
        }

        double get_eps() const { return eps; }
        void set_eps(double val)
        {
            check_rms_norm_eps(val);
            eps = val;
        }

        rms_norm_gain get_gain() const { return gain; }
        void set_gain(rms_norm_gain val)
        {
            impl::check_rms_norm_gain(*this, val);
            gain = val;
        }

        double get_gain_offset() const { return gain_offset; }
        void set_gain_offset(double val)
        {
            check_rms_norm_gain_offset(val);
            gain_offset = val;
        }

        double get_learning_rate_multiplier() const { return learning_rate_multiplier; }
        double get_weight_decay_multiplier() const { return weight_decay_multiplier; }
        void set_learning_rate_multiplier(double val)
        {
            learning_rate_multiplier = impl::checked_rms_norm_multiplier(
                val, "learning_rate_multiplier");
        }
        void set_weight_decay_multiplier(double val)
        {
            weight_decay_multiplier = impl::checked_rms_norm_multiplier(
                val, "weight_decay_multiplier");
        }

        double get_bias_learning_rate_multiplier() const { return bias_learning_rate_multiplier; }
        double get_bias_weight_decay_multiplier() const { return bias_weight_decay_multiplier; }
        void set_bias_learning_rate_multiplier(double val)
        {
            bias_learning_rate_multiplier = impl::checked_rms_norm_multiplier(
                val, "bias_learning_rate_multiplier");
        }
        void set_bias_weight_decay_multiplier(double val)
        {
            bias_weight_decay_multiplier = impl::checked_rms_norm_multiplier(
                val, "bias_weight_decay_multiplier");
        }

        inline dpoint map_input_to_output(const dpoint& p) const { return p; }
        inline dpoint map_output_to_input(const dpoint& p) const { return p; }

        template <typename SUBNET>
        void setup(const SUBNET& sub)
        {
            make_gamma(dims_of(sub.get_output()));
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, resizable_tensor& output)
        {
            const tensor& input = sub.get_output();
            check_gamma_fits(dims_of(input));
            auto g = gamma(params, 0);
            tt::rms_normalize(AXES, gain_offset, eps, output, scale, input, g);
        }

        template <typename SUBNET>
        void backward(const tensor& gradient_input, SUBNET& sub, tensor& params_grad)
        {
            auto g = gamma(params, 0);
            auto g_grad = gamma(params_grad, 0);
            tt::rms_normalize_gradient(AXES, gain_offset, gradient_input, scale, sub.get_output(),
                g, sub.get_gradient_input(), g_grad, dscale);
        }

        void clean()
        {
            scale.clear();
            dscale.clear();
        }

        const tensor& get_layer_params() const { return params; }
        tensor& get_layer_params() { return params; }

        friend void serialize(const rms_norm_over_& item, std::ostream& out)
        {
            const bool has_only_dlib_20_options = AXES == rms_norm_axes::sample &&
                item.gain == rms_norm_gain::per_channel && item.gain_offset == 0;

            if (has_only_dlib_20_options)
            {
                serialize(std::string("rms_norm_"), out);
            }
            else
            {
                serialize(options_tag(), out);
                serialize(static_cast<int>(item.gain), out);
                serialize(item.gain_offset, out);
            }
            serialize(item.params, out);
            serialize(item.gamma, out);
            serialize(item.learning_rate_multiplier, out);
            serialize(item.weight_decay_multiplier, out);
            serialize(item.bias_learning_rate_multiplier, out);
            serialize(item.bias_weight_decay_multiplier, out);
            serialize(item.eps, out);
        }

        friend void deserialize(rms_norm_over_& item, std::istream& in)
        {
            rms_norm_file file(class_name(), in);
            rms_norm_over_ temp;

            const std::string tag = file.read_tag();
            if (tag == options_tag())
            {
                temp.gain = file.read_gain();
                temp.gain_offset = file.read_gain_offset();
            }
            else if (AXES != rms_norm_axes::sample || tag != "rms_norm_")
            {
                file.refuse("unexpected version '" + printable(tag) + "'");
            }
            file.read_params(AXES, temp.gain, temp.params, temp.gamma);
            temp.learning_rate_multiplier = file.read_multiplier("learning_rate_multiplier");
            temp.weight_decay_multiplier = file.read_multiplier("weight_decay_multiplier");
            temp.bias_learning_rate_multiplier = file.read_multiplier(
                "bias_learning_rate_multiplier");
            temp.bias_weight_decay_multiplier = file.read_multiplier(
                "bias_weight_decay_multiplier");
            temp.eps = file.read_eps();

            item = std::move(temp);
        }

        friend std::ostream& operator<<(std::ostream& out, const rms_norm_over_& item)
        {
            out << name();
            out << " (eps=" << item.eps;
            if (item.gain != rms_norm_gain::per_channel)
                out << ", gain=" << to_string(item.gain);
            if (item.gain_offset != 0)
                out << ", gain_offset=" << item.gain_offset;
            out << ")";
            out << " learning_rate_mult=" << item.learning_rate_multiplier;
            out << " weight_decay_mult=" << item.weight_decay_multiplier;
            out << " bias_learning_rate_mult=" << item.bias_learning_rate_multiplier;
            out << " bias_weight_decay_mult=" << item.bias_weight_decay_multiplier;
            return out;
        }

        friend void to_xml(const rms_norm_over_& item, std::ostream& out)
        {
            out << "<" << name();
            out << " eps='" << item.eps << "'";
            if (item.gain != rms_norm_gain::per_channel)
                out << " gain='" << to_string(item.gain) << "'";
            if (item.gain_offset != 0)
                out << " gain_offset='" << item.gain_offset << "'";
            out << " learning_rate_mult='" << item.learning_rate_multiplier << "'";
            out << " weight_decay_mult='" << item.weight_decay_multiplier << "'";
            out << " bias_learning_rate_mult='" << item.bias_learning_rate_multiplier << "'";
            out << " bias_weight_decay_mult='" << item.bias_weight_decay_multiplier << "'";
            out << ">\n";
            if (item.params.size() != 0)
                out << mat(item.params);
            out << "</" << name() << ">\n";
        }

    protected:
        static std::string name()
        {
            switch (AXES)
            {
            case rms_norm_axes::sample: return "rms_norm";
            case rms_norm_axes::row: return "rms_norm_row";
            case rms_norm_axes::channel: return "rms_norm_channel";
            }
            return "";
        }

        static std::string class_name() { return name() + "_"; }

        static std::string options_tag() { return class_name() + "with_options"; }

        rms_norm_dims gamma_dims() const
        {
            return {gamma.num_samples(), gamma.k(), gamma.nr(), gamma.nc()};
        }

        void make_gamma(const rms_norm_dims& input)
        {
            const rms_norm_dims d = rms_norm_gamma_dims(AXES, gain, input);
            resizable_tensor new_params;
            set_size(new_params, {d.size(), 1, 1, 1});
            new_params = static_cast<float>(1 - gain_offset);
            params.swap(new_params);
            gamma = alias_tensor(d.num_samples, d.k, d.nr, d.nc);
        }

        void check_gamma_fits(const rms_norm_dims& input) const
        {
            const rms_norm_dims wanted = rms_norm_gamma_dims(AXES, gain, input);
            if (gamma_dims() != wanted)
            {
                throw error(class_name() + ": an input of shape " + to_string(input) +
                    " needs a gamma of shape " + to_string(wanted) +
                    ", but the layer has one of shape " + to_string(gamma_dims()) + ".");
            }
        }

        resizable_tensor params;
        alias_tensor gamma;
        resizable_tensor scale;
        resizable_tensor dscale;
        double learning_rate_multiplier;
        double weight_decay_multiplier;
        double bias_learning_rate_multiplier;
        double bias_weight_decay_multiplier;
        rms_norm_gain gain;
        double gain_offset;
        double eps;
    };

    // ----------------------------------------------------------------------------------------

    using rms_norm_ = rms_norm_over_<rms_norm_axes::sample>;
    using rms_norm_row_ = rms_norm_over_<rms_norm_axes::row>;
    using rms_norm_channel_ = rms_norm_over_<rms_norm_axes::channel>;

    template <typename SUBNET>
    using rms_norm = add_layer<rms_norm_, SUBNET>;

    template <typename SUBNET>
    using rms_norm_row = add_layer<rms_norm_row_, SUBNET>;

    template <typename SUBNET>
    using rms_norm_channel = add_layer<rms_norm_channel_, SUBNET>;

    // ----------------------------------------------------------------------------------------

    template <template <typename> class TAG, rms_norm_axes AXES>
    class add_prev_rms_norm_over_ : public rms_norm_over_<AXES>
    {
        using base = rms_norm_over_<AXES>;

    public:
        const static unsigned long id = tag_id<TAG>::id;

        using base::base;

        template <typename SUBNET>
        void setup(const SUBNET& sub)
        {
            this->make_gamma(dims_of_sum(sub));
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, resizable_tensor& output)
        {
            this->check_gamma_fits(dims_of_sum(sub));
            auto g = this->gamma(this->params, 0);
            tt::rms_normalize_sum(AXES, this->gain_offset, this->eps, output, this->scale, sum,
                sub.get_output(), layer<TAG>(sub).get_output(), g);
        }

        template <typename SUBNET>
        void backward(const tensor& gradient_input, SUBNET& sub, tensor& params_grad)
        {
            auto g = this->gamma(this->params, 0);
            auto g_grad = this->gamma(params_grad, 0);
            sum_grad.copy_size(sum);
            tt::rms_normalize_gradient(false, AXES, this->gain_offset, gradient_input, this->scale,
                sum, g, sum_grad, g_grad, this->dscale);
            tensor& grad = sub.get_gradient_input();
            ::dlib::tt::add(grad, grad, sum_grad);
            tensor& tagged_grad = layer<TAG>(sub).get_gradient_input();
            ::dlib::tt::add(tagged_grad, tagged_grad, sum_grad);
        }

        void clean()
        {
            base::clean();
            sum.clear();
            sum_grad.clear();
        }

        friend void serialize(const add_prev_rms_norm_over_& item, std::ostream& out)
        {
            serialize(std::string("add_prev_rms_norm_"), out);
            serialize(static_cast<const base&>(item), out);
        }

        friend void deserialize(add_prev_rms_norm_over_& item, std::istream& in)
        {
            {
                rms_norm_file file("add_prev_" + base::class_name(), in);
                const std::string tag = file.read_tag();
                if (tag != "add_prev_rms_norm_")
                    file.refuse("unexpected version '" + printable(tag) + "'");
            }
            add_prev_rms_norm_over_ temp;
            deserialize(static_cast<base&>(temp), in);
            item = std::move(temp);
        }

        friend std::ostream& operator<<(std::ostream& out, const add_prev_rms_norm_over_& item)
        {
            return out << "add_prev" << id << "_" << static_cast<const base&>(item);
        }

        friend void to_xml(const add_prev_rms_norm_over_& item, std::ostream& out)
        {
            out << "<add_prev_rms_norm tag='" << id << "'>\n";
            to_xml(static_cast<const base&>(item), out);
            out << "</add_prev_rms_norm>\n";
        }

    private:
        template <typename SUBNET>
        static rms_norm_dims dims_of_sum(const SUBNET& sub)
        {
            return larger_dims(dims_of(sub.get_output()), dims_of(layer<TAG>(sub).get_output()));
        }

        resizable_tensor sum;
        resizable_tensor sum_grad;
    };

    // ----------------------------------------------------------------------------------------

    template <template <typename> class TAG>
    using add_prev_rms_norm_ = add_prev_rms_norm_over_<TAG, rms_norm_axes::sample>;
    template <template <typename> class TAG>
    using add_prev_rms_norm_row_ = add_prev_rms_norm_over_<TAG, rms_norm_axes::row>;
    template <template <typename> class TAG>
    using add_prev_rms_norm_channel_ = add_prev_rms_norm_over_<TAG, rms_norm_axes::channel>;

    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm = add_layer<add_prev_rms_norm_<TAG>, SUBNET>;
    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm_row = add_layer<add_prev_rms_norm_row_<TAG>, SUBNET>;
    template <template <typename> class TAG, typename SUBNET>
    using add_prev_rms_norm_channel = add_layer<add_prev_rms_norm_channel_<TAG>, SUBNET>;

    template <typename SUBNET>
    using add_prev1_rms_norm = add_prev_rms_norm<tag1, SUBNET>;
    template <typename SUBNET>
    using add_prev2_rms_norm = add_prev_rms_norm<tag2, SUBNET>;
    template <typename SUBNET>
    using add_prev3_rms_norm = add_prev_rms_norm<tag3, SUBNET>;
    template <typename SUBNET>
    using add_prev4_rms_norm = add_prev_rms_norm<tag4, SUBNET>;
    template <typename SUBNET>
    using add_prev5_rms_norm = add_prev_rms_norm<tag5, SUBNET>;

    // ----------------------------------------------------------------------------------------

    namespace impl
    {
        template <typename function>
        struct visitor_rms_norm
        {
            function f;

            template <rms_norm_axes AXES>
            void operator()(rms_norm_over_<AXES>& l) const
            {
                f(l);
            }
        };

        template <size_t begin, size_t end, typename net_type, typename function>
        void visit_rms_norms_range(net_type& net, function f)
        {
            visit_computational_layers_range<begin, end>(net, visitor_rms_norm<function>{f});
        }
    }

    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_eps_range(net_type& net, double eps)
    {
        check_rms_norm_eps(eps);
        impl::visit_rms_norms_range<begin, end>(net, [&](auto& l) { l.set_eps(eps); });
    }

    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_gain_range(net_type& net, rms_norm_gain gain)
    {
        impl::visit_rms_norms_range<begin, end>(
            net, [&](auto& l) { impl::check_rms_norm_gain(l, gain); });
        impl::visit_rms_norms_range<begin, end>(net, [&](auto& l) { l.set_gain(gain); });
    }

    template <size_t begin, size_t end, typename net_type>
    void set_rms_norm_gain_offset_range(net_type& net, double gain_offset)
    {
        check_rms_norm_gain_offset(gain_offset);
        impl::visit_rms_norms_range<begin, end>(
            net, [&](auto& l) { l.set_gain_offset(gain_offset); });
    }

    template <typename net_type>
    void set_all_rms_norm_eps(net_type& net, double eps)
    {
        set_rms_norm_eps_range<0, net_type::num_layers>(net, eps);
    }

    template <typename net_type>
    void set_all_rms_norm_gain(net_type& net, rms_norm_gain gain)
    {
        set_rms_norm_gain_range<0, net_type::num_layers>(net, gain);
    }

    template <typename net_type>
    void set_all_rms_norm_gain_offset(net_type& net, double gain_offset)
    {
        set_rms_norm_gain_offset_range<0, net_type::num_layers>(net, gain_offset);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_DNn_RMS_NORM_H_
