// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TRANSFORMER_LAYERS_H_
#define DLIB_RMS_NORM_TRANSFORMER_LAYERS_H_

// The layers of a Llama-style language model that dlib does not have: token ids as input, their
// embedding, causal attention with rotary positions, SwiGLU, and an output tied to the
// embedding. Their contract is in transformer_layers_abstract.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>
#include <dlib/dnn/core.h>
#include <dlib/dnn/layers.h>
#include <dlib/dnn/visitors.h>
#include <dlib/matrix.h>
#include <dlib/threads.h>
#include "transformer_layers_abstract.h"

// The compiler makes a loop once for each of these instruction sets, and the program chooses when
// it starts.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define TRANSFORMER_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRANSFORMER_FOR_EACH_CPU
#endif

namespace transformer
{

    // ----------------------------------------------------------------------------------------

    namespace impl
    {
        inline float exp_of(float x)
        /*!
            ensures
                - returns exp(x) within 2^-22 relatively where abs(x) <= 87, exp(-87) or exp(87) for
                  finite values below and above, and NaN for others. There is no branch in it,
                  so that loops of it become SIMD code.
        !*/
        {
            // The bits of floats of one sign are ordered as they are, and the minimum of two
            // integers is no branch to any compiler.
            const std::uint32_t sign_bit = 0x80000000u;
            const std::int32_t largest = 0x42ae0000; // 87
            std::uint32_t bits;
            std::memcpy(&bits, &x, sizeof(bits));
            const auto size = static_cast<std::int32_t>(bits & ~sign_bit);
            bits = (bits & sign_bit) | static_cast<std::uint32_t>(size < largest ? size : largest);
            const float zero = x - x; // or NaN
            std::memcpy(&x, &bits, sizeof(x));

            // x = n*log(2) + r, abs(r) <= log(2)/2; adding 1.5*2^23 rounds to an integer
            const float round = 0x1.8p23f;
            const float shifted = x * 0x1.715476p0f + round;
            const float n = shifted - round;
            const float r = (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;

            float p = 1.0f / 5040;
            p = p * r + 1.0f / 720;
            p = p * r + 1.0f / 120;
            p = p * r + 1.0f / 24;
            p = p * r + 1.0f / 6;
            p = p * r + 0.5f;
            p = p * r + 1.0f;
            p = p * r + 1.0f;

            bits = (static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) + 127u) << 23;
            float power;
            std::memcpy(&power, &bits, sizeof(power));
            return p * power + zero;
        }

        template <typename F>
        float sum_of(std::size_t size, const F& f)
        /*!
            ensures
                - returns f(0) + ... + f(size-1), added in an order that depends on size alone
        !*/
        {
            const std::size_t width = 16;
            float part[width] = {};
            std::size_t i = 0;
            for (; i + width <= size; i += width)
            {
                for (std::size_t j = 0; j < width; ++j)
                    part[j] += f(i + j);
            }
            for (std::size_t j = 0; i + j < size; ++j)
                part[j] += f(i + j);
            for (std::size_t step = width / 2; step > 0; step /= 2)
            {
                for (std::size_t j = 0; j < step; ++j)
                    part[j] += part[j + step];
            }
            return part[0];
        }

        TRANSFORMER_FOR_EACH_CPU
        inline void swiglu(std::size_t size, const float* gate, const float* up, float* out)
        {
            for (std::size_t i = 0; i < size; ++i)
                out[i] = gate[i] / (1 + exp_of(-gate[i])) * up[i];
        }

        TRANSFORMER_FOR_EACH_CPU
        inline void swiglu_gradient(std::size_t size,
            const float* gate,
            const float* up,
            const float* g,
            float* gate_grad,
            float* up_grad)
        {
            for (std::size_t i = 0; i < size; ++i)
            {
                const float sigmoid = 1 / (1 + exp_of(-gate[i]));
                const float silu = gate[i] * sigmoid;
                gate_grad[i] += g[i] * up[i] * (sigmoid + silu * (1 - sigmoid));
                up_grad[i] += g[i] * silu;
            }
        }

        TRANSFORMER_FOR_EACH_CPU
        inline void softmax(std::size_t size, float scale, float* x)
        /*!
            ensures
                - #x[i] == exp(scale*x[i]) / (sum over all j of exp(scale*x[j]))
        !*/
        {
            float largest = x[0];
            for (std::size_t i = 1; i < size; ++i)
                largest = x[i] > largest ? x[i] : largest;
            for (std::size_t i = 0; i < size; ++i)
                x[i] = exp_of((x[i] - largest) * scale);
            const float factor = 1 / sum_of(size, [&](std::size_t i) { return x[i]; });
            for (std::size_t i = 0; i < size; ++i)
                x[i] *= factor;
        }

        TRANSFORMER_FOR_EACH_CPU
        inline void softmax_gradient(std::size_t size, float scale, const float* y, float* d)
        /*!
            requires
                - y is what softmax() made, and d the gradient with respect to it.
            ensures
                - #d is the gradient with respect to the x of softmax().
        !*/
        {
            const float sum = sum_of(size, [&](std::size_t i) { return y[i] * d[i]; });
            for (std::size_t i = 0; i < size; ++i)
                d[i] = y[i] * (d[i] - sum) * scale;
        }

        inline void check_version(const std::string& name, std::istream& in)
        {
            std::string version;
            dlib::deserialize(version, in);
            if (version != name)
                throw dlib::serialization_error("Found version '" + version +
                    "' while deserializing transformer::" + name + ".");
        }

        [[noreturn]] inline void refuse(const std::string& name, const std::string& found)
        {
            throw dlib::serialization_error(
                "Found " + found + " while deserializing transformer::" + name + ".");
        }

        const unsigned long largest_size = 1ul << 24; // every id up to here is a float
        inline bool is_size(unsigned long size) { return 0 < size && size <= largest_size; }
    }

    // ----------------------------------------------------------------------------------------

    class input_tokens
    {
    public:
        typedef unsigned long input_type;

        explicit input_tokens(unsigned long vocabulary_ = 256) { set_vocabulary(vocabulary_); }

        unsigned long get_vocabulary() const { return vocabulary; }
        void set_vocabulary(unsigned long val)
        {
            DLIB_CASSERT(impl::is_size(val),
                "\n\t A vocabulary has 1 to 2^24 tokens.\n\t vocabulary: " << val);
            vocabulary = val;
        }

        template <typename forward_iterator>
        void to_tensor(forward_iterator ibegin,
            forward_iterator iend,
            dlib::resizable_tensor& data) const
        {
            const auto size = std::distance(ibegin, iend);
            DLIB_CASSERT(size > 0, "\n\t There has to be at least one token.");
            for (auto i = ibegin; i != iend; ++i)
                check(*i);

            data.set_size(size, 1, 1, 1);
            float* out = data.host_write_only();
            for (auto i = ibegin; i != iend; ++i)
                *out++ = static_cast<float>(*i);
        }

        friend void serialize(const input_tokens& item, std::ostream& out)
        {
            dlib::serialize(std::string("input_tokens"), out);
            dlib::serialize(item.vocabulary, out);
        }

        friend void deserialize(input_tokens& item, std::istream& in)
        {
            impl::check_version("input_tokens", in);
            unsigned long vocabulary = 0;
            dlib::deserialize(vocabulary, in);
            if (!impl::is_size(vocabulary))
                impl::refuse("input_tokens", "a vocabulary of " + std::to_string(vocabulary));
            item.vocabulary = vocabulary;
        }

        friend std::ostream& operator<<(std::ostream& out, const input_tokens& item)
        {
            return out << "input_tokens (vocabulary=" << item.vocabulary << ")";
        }

        friend void to_xml(const input_tokens& item, std::ostream& out)
        {
            out << "<input_tokens vocabulary='" << item.vocabulary << "'/>\n";
        }

    private:
        template <typename T>
        void check(T id) const
        {
            static_assert(std::is_integral<T>::value, "token ids are integers");
            if (static_cast<std::uint64_t>(id) >= vocabulary) // negative ones are large then
            {
                std::ostringstream sout;
                sout << "The token id " << +id << " is not in the vocabulary of " << vocabulary
                     << " tokens.";
                throw dlib::error(sout.str());
            }
        }

        unsigned long vocabulary;
    };

    // ----------------------------------------------------------------------------------------

    class embedding_
    {
    public:
        explicit embedding_(unsigned long vocabulary_ = 256, unsigned long features_ = 128) :
            learning_rate_multiplier(1),
            weight_decay_multiplier(1)
        {
            set_size(vocabulary_, features_);
        }

        unsigned long get_vocabulary() const { return vocabulary; }
        unsigned long get_features() const { return features; }
        void set_size(unsigned long vocabulary_, unsigned long features_)
        {
            DLIB_CASSERT(impl::is_size(vocabulary_) && impl::is_size(features_),
                "\n\t An embedding has 1 to 2^24 tokens and features.\n\t vocabulary: "
                    << vocabulary_ << "\n\t features:   " << features_);
            DLIB_CASSERT(params.size() == 0,
                "\n\t The size can't be changed once the layer has parameters.");
            vocabulary = vocabulary_;
            features = features_;
        }

        double get_learning_rate_multiplier() const { return learning_rate_multiplier; }
        double get_weight_decay_multiplier() const { return weight_decay_multiplier; }
        void set_learning_rate_multiplier(double val) { learning_rate_multiplier = val; }
        void set_weight_decay_multiplier(double val) { weight_decay_multiplier = val; }

        template <typename SUBNET>
        void setup(const SUBNET&)
        {
            params.set_size(static_cast<long long>(vocabulary), static_cast<long long>(features));
            dlib::rand rnd(std::rand());
            for (float& value : params)
                value = static_cast<float>(0.02 * rnd.get_random_gaussian());
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, dlib::resizable_tensor& output)
        {
            const dlib::tensor& ids = sub.get_output();
            check(ids);

            const auto n = static_cast<std::size_t>(ids.num_samples());
            output.set_size(ids.num_samples(), static_cast<long long>(features), 1, 1);
            const float* const id = ids.host();
            const float* const table = params.host();
            float* const out = output.host_write_only();
            for (std::size_t i = 0; i < n; ++i)
                std::copy_n(table + static_cast<std::size_t>(id[i]) * features, features,
                    out + i * features);
        }

        template <typename SUBNET>
        void backward(const dlib::tensor& gradient_input, SUBNET& sub, dlib::tensor& params_grad)
        {
            if (tied_gradient_is_new)
                std::copy(tied_gradient.begin(), tied_gradient.end(), params_grad.begin());
            else
                params_grad = 0;
            tied_gradient_is_new = false;

            const dlib::tensor& ids = sub.get_output();
            const auto n = static_cast<std::size_t>(ids.num_samples());
            const float* const id = ids.host();
            const float* g = gradient_input.host();
            float* const table = params_grad.host();
            for (std::size_t i = 0; i < n; ++i, g += features)
            {
                float* const row = table + static_cast<std::size_t>(id[i]) * features;
                for (std::size_t c = 0; c < features; ++c)
                    row[c] += g[c];
            }
        }

        // Of what lies below it a dlib layer gets a const view, hence const and mutable.
        dlib::resizable_tensor& get_tied_gradient() const
        {
            tied_gradient_is_new = true;
            tied_gradient.copy_size(params);
            return tied_gradient;
        }

        void clean()
        {
            tied_gradient.clear();
            tied_gradient_is_new = false;
        }

        const dlib::tensor& get_layer_params() const { return params; }
        dlib::tensor& get_layer_params() { return params; }

        friend void serialize(const embedding_& item, std::ostream& out)
        {
            dlib::serialize(std::string("embedding_"), out);
            dlib::serialize(item.vocabulary, out);
            dlib::serialize(item.features, out);
            serialize(item.params, out);
            dlib::serialize(item.learning_rate_multiplier, out);
            dlib::serialize(item.weight_decay_multiplier, out);
        }

        friend void deserialize(embedding_& item, std::istream& in)
        {
            impl::check_version("embedding_", in);
            embedding_ temp;
            dlib::deserialize(temp.vocabulary, in);
            dlib::deserialize(temp.features, in);
            if (!impl::is_size(temp.vocabulary) || !impl::is_size(temp.features))
                impl::refuse("embedding_", temp.size_text());
            deserialize(temp.params, in);
            const bool fits = temp.params.size() == 0 ||
                (temp.params.num_samples() == static_cast<long long>(temp.vocabulary) &&
                    temp.params.k() == static_cast<long long>(temp.features) &&
                    temp.params.nr() == 1 && temp.params.nc() == 1);
            if (!fits)
                impl::refuse("embedding_",
                    temp.size_text() + " with " + std::to_string(temp.params.size()) +
                        " parameters");
            dlib::deserialize(temp.learning_rate_multiplier, in);
            dlib::deserialize(temp.weight_decay_multiplier, in);
            item = std::move(temp);
        }

        friend std::ostream& operator<<(std::ostream& out, const embedding_& item)
        {
            return out << "embedding (vocabulary=" << item.vocabulary
                       << ", features=" << item.features
                       << ") learning_rate_mult=" << item.learning_rate_multiplier
                       << " weight_decay_mult=" << item.weight_decay_multiplier;
        }

        friend void to_xml(const embedding_& item, std::ostream& out)
        {
            out << "<embedding vocabulary='" << item.vocabulary << "' features='" << item.features
                << "' learning_rate_mult='" << item.learning_rate_multiplier
                << "' weight_decay_mult='" << item.weight_decay_multiplier << "'>\n";
            if (item.params.size() != 0)
                out << dlib::mat(item.params);
            out << "</embedding>\n";
        }

    private:
        std::string size_text() const
        {
            return "an embedding of " + std::to_string(vocabulary) + " tokens and " +
                std::to_string(features) + " features";
        }

        void check(const dlib::tensor& ids) const
        {
            const auto n = static_cast<std::size_t>(ids.num_samples());
            const float* const id = ids.host();
            for (std::size_t i = 0; i < n; ++i)
            {
                const bool is_id = ids.size() == n && 0 <= id[i] &&
                    id[i] < static_cast<float>(vocabulary) && id[i] == std::floor(id[i]);
                if (!is_id)
                {
                    std::ostringstream sout;
                    sout << "embedding_: an input of shape (" << n << "," << ids.k() << ","
                         << ids.nr() << "," << ids.nc() << ") with " << id[i]
                         << " in it is not a list of token ids below " << vocabulary << ".";
                    throw dlib::error(sout.str());
                }
            }
        }

        unsigned long vocabulary;
        unsigned long features;
        dlib::resizable_tensor params;
        mutable dlib::resizable_tensor tied_gradient;
        mutable bool tied_gradient_is_new = false;
        double learning_rate_multiplier;
        double weight_decay_multiplier;
    };

    template <typename SUBNET>
    using embedding = dlib::add_layer<embedding_, SUBNET>;

    // ----------------------------------------------------------------------------------------

    class tied_output_
    {
    public:
        template <typename SUBNET>
        void setup(const SUBNET&)
        {
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, dlib::resizable_tensor& output)
        {
            const dlib::tensor& x = sub.get_output();
            const dlib::tensor& table = embedding_below(sub).get_layer_params();
            const long long features = x.k() * x.nr() * x.nc();
            if (features != table.k())
            {
                throw dlib::error("tied_output_: an input of " + std::to_string(features) +
                    " features does not fit an embedding of " + std::to_string(table.k()) +
                    " features.");
            }
            output.set_size(x.num_samples(), table.num_samples(), 1, 1);
            dlib::tt::gemm(0, output, 1, x, false, table, true);
        }

        template <typename SUBNET>
        void backward(const dlib::tensor& gradient_input, SUBNET& sub, dlib::tensor&)
        {
            const embedding_& below = embedding_below(sub);
            dlib::tt::gemm(
                0, below.get_tied_gradient(), 1, gradient_input, true, sub.get_output(), false);
            dlib::tt::gemm(1, sub.get_gradient_input(), 1, gradient_input, false,
                below.get_layer_params(), false);
        }

        const dlib::tensor& get_layer_params() const { return params; }
        dlib::tensor& get_layer_params() { return params; }

        friend void serialize(const tied_output_&, std::ostream& out)
        {
            dlib::serialize(std::string("tied_output_"), out);
        }

        friend void deserialize(tied_output_&, std::istream& in)
        {
            impl::check_version("tied_output_", in);
        }

        friend std::ostream& operator<<(std::ostream& out, const tied_output_&)
        {
            return out << "tied_output";
        }

        friend void to_xml(const tied_output_&, std::ostream& out) { out << "<tied_output/>\n"; }

    private:
        template <typename NET>
        static const embedding_& embedding_below(const NET& net)
        {
            if constexpr (std::is_same<typename NET::layer_details_type, embedding_>::value)
                return net.layer_details();
            else
                return embedding_below(net.subnet());
        }

        dlib::resizable_tensor params; // stays empty: they are the embedding's
    };

    template <typename SUBNET>
    using tied_output = dlib::add_layer<tied_output_, SUBNET>;

    // ----------------------------------------------------------------------------------------

    class attention_
    {
    public:
        explicit attention_(unsigned long num_heads_ = 4,
            unsigned long max_length_ = 128,
            double theta_ = 10000) :
            length(max_length_)
        {
            set_heads(num_heads_, max_length_, theta_);
        }

        unsigned long get_num_heads() const { return num_heads; }
        unsigned long get_max_length() const { return max_length; }
        double get_theta() const { return theta; }
        void set_heads(unsigned long num_heads_, unsigned long max_length_, double theta_ = 10000)
        {
            DLIB_CASSERT(impl::is_size(num_heads_) && impl::is_size(max_length_) && theta_ > 1 &&
                    std::isfinite(theta_),
                "\n\t Invalid attention.\n\t num_heads:  " << num_heads_
                                                           << "\n\t max_length: " << max_length_
                                                           << "\n\t theta:      " << theta_);
            num_heads = num_heads_;
            max_length = max_length_;
            theta = theta_;
            length = max_length;
            table_size = 0;
        }

        unsigned long get_sequence_length() const { return length; }
        void set_sequence_length(unsigned long val)
        {
            DLIB_CASSERT(0 < val && val <= max_length,
                "\n\t A sequence has 1 to max_length tokens.\n\t sequence length: "
                    << val << "\n\t max_length:      " << max_length);
            length = val;
        }

        template <typename SUBNET>
        void setup(const SUBNET&)
        {
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, dlib::resizable_tensor& output)
        {
            const dlib::tensor& x = sub.get_output();
            const sizes s = check(x);
            fill_table(s.size);

            output.set_size(x.num_samples(), static_cast<long long>(s.features), 1, 1);
            rotated.set_size(x.num_samples(), static_cast<long long>(2 * s.features), 1, 1);
            weights.set_size(static_cast<long long>(s.sequences * num_heads),
                static_cast<long long>(length), static_cast<long long>(length), 1);

            const float* const in = x.host();
            float* const qk = rotated.host_write_only();
            float* const w = weights.host_write_only();
            float* const out = output.host_write_only();
            for_each_head(s,
                [&](std::size_t sequence, std::size_t head)
                {
                    const std::size_t row = sequence * length;
                    const std::size_t column = head * s.size;
                    const float* const qkv = in + row * 3 * s.features + column;
                    float* const q = qk + row * 2 * s.features + column;
                    rotate(qkv, 3 * s.features, q, 2 * s.features, s.size);
                    rotate(
                        qkv + s.features, 3 * s.features, q + s.features, 2 * s.features, s.size);
                    attend(s, q, q + s.features, qkv + 2 * s.features,
                        w + (sequence * num_heads + head) * length * length,
                        out + row * s.features + column);
                });
        }

        template <typename SUBNET>
        void backward(const dlib::tensor& gradient_input, SUBNET& sub, dlib::tensor&)
        {
            const dlib::tensor& x = sub.get_output();
            const sizes s = check(x);
            dlib::tensor& x_grad = sub.get_gradient_input();

            const float* const in = x.host();
            const float* const qk = rotated.host();
            const float* const w = weights.host();
            const float* const g = gradient_input.host();
            float* const in_grad = x_grad.host();
            for_each_head(s,
                [&](std::size_t sequence, std::size_t head)
                {
                    const std::size_t row = sequence * length;
                    const std::size_t column = head * s.size;
                    const float* const q = qk + row * 2 * s.features + column;
                    attend_gradient(s, q, q + s.features,
                        in + row * 3 * s.features + column + 2 * s.features,
                        w + (sequence * num_heads + head) * length * length,
                        g + row * s.features + column, in_grad + row * 3 * s.features + column);
                });
        }

        void clean()
        {
            rotated.clear();
            weights.clear();
        }

        const dlib::tensor& get_layer_params() const { return params; }
        dlib::tensor& get_layer_params() { return params; }

        friend void serialize(const attention_& item, std::ostream& out)
        {
            dlib::serialize(std::string("attention_"), out);
            dlib::serialize(item.num_heads, out);
            dlib::serialize(item.max_length, out);
            dlib::serialize(item.length, out);
            dlib::serialize(item.theta, out);
        }

        friend void deserialize(attention_& item, std::istream& in)
        {
            impl::check_version("attention_", in);
            unsigned long num_heads = 0, max_length = 0, length = 0;
            double theta = 0;
            dlib::deserialize(num_heads, in);
            dlib::deserialize(max_length, in);
            dlib::deserialize(length, in);
            dlib::deserialize(theta, in);
            const bool fits = impl::is_size(num_heads) && impl::is_size(max_length) && 0 < length &&
                length <= max_length && theta > 1 && std::isfinite(theta);
            if (!fits)
            {
                std::ostringstream sout;
                sout << "num_heads " << num_heads << ", max_length " << max_length
                     << ", sequence length " << length << ", theta " << theta;
                impl::refuse("attention_", sout.str());
            }
            item = attention_(num_heads, max_length, theta);
            item.length = length;
        }

        friend std::ostream& operator<<(std::ostream& out, const attention_& item)
        {
            return out << "attention (num_heads=" << item.num_heads
                       << ", max_length=" << item.max_length << ", sequence_length=" << item.length
                       << ", theta=" << item.theta << ")";
        }

        friend void to_xml(const attention_& item, std::ostream& out)
        {
            out << "<attention num_heads='" << item.num_heads << "' max_length='" << item.max_length
                << "' sequence_length='" << item.length << "' theta='" << item.theta << "'/>\n";
        }

    private:
        struct sizes
        {
            std::size_t sequences;
            std::size_t features; // of all heads
            std::size_t size;     // of one head
        };

        sizes check(const dlib::tensor& x) const
        {
            const long long features = x.k() * x.nr() * x.nc();
            if (features % static_cast<long long>(3 * 2 * num_heads) != 0 ||
                x.num_samples() % static_cast<long long>(length) != 0)
            {
                throw dlib::error("attention_: an input of " + std::to_string(x.num_samples()) +
                    " tokens with " + std::to_string(features) +
                    " features does not fit sequences of " + std::to_string(length) +
                    " tokens with query, key and value for " + std::to_string(num_heads) +
                    " heads of an even size.");
            }
            sizes s;
            s.sequences = static_cast<std::size_t>(x.num_samples()) / length;
            s.features = static_cast<std::size_t>(features) / 3;
            s.size = s.features / num_heads;
            return s;
        }

        template <typename F>
        void for_each_head(const sizes& s, const F& f) const
        {
            const std::size_t num = s.sequences * num_heads;
            const auto f_of = [&](long i) {
                f(static_cast<std::size_t>(i) / num_heads, static_cast<std::size_t>(i) % num_heads);
            };

            // below this many products waking threads costs more than it gives
            const std::size_t least_for_threads = std::size_t(1) << 24;
            if (num * length * length * s.size < least_for_threads)
            {
                for (std::size_t i = 0; i < num; ++i)
                    f_of(static_cast<long>(i));
            }
            else
            {
                dlib::parallel_for(0, static_cast<long>(num), f_of, 4);
            }
        }

        void fill_table(std::size_t head_size)
        {
            if (table_size == head_size)
                return;
            const std::size_t pairs = head_size / 2;
            cosines.resize(max_length * pairs);
            sines.resize(max_length * pairs);
            for (std::size_t t = 0; t < max_length; ++t)
            {
                for (std::size_t i = 0; i < pairs; ++i)
                {
                    const double angle = static_cast<double>(t) *
                        std::pow(
                            theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
                    cosines[t * pairs + i] = static_cast<float>(std::cos(angle));
                    sines[t * pairs + i] = static_cast<float>(std::sin(angle));
                }
            }
            table_size = head_size;
        }

        void rotate(const float* src,
            std::size_t src_stride,
            float* dest,
            std::size_t dest_stride,
            std::size_t size) const
        {
            const float* c = cosines.data();
            const float* s = sines.data();
            for (std::size_t t = 0; t < length; ++t, src += src_stride, dest += dest_stride)
            {
                for (std::size_t i = 0; i < size; i += 2, ++c, ++s)
                {
                    const float a = src[i], b = src[i + 1];
                    dest[i] = a * *c - b * *s;
                    dest[i + 1] = a * *s + b * *c;
                }
            }
        }

        void add_rotated_back(const float* src,
            float* dest,
            std::size_t dest_stride,
            std::size_t size) const
        {
            const float* c = cosines.data();
            const float* s = sines.data();
            for (std::size_t t = 0; t < length; ++t, src += size, dest += dest_stride)
            {
                for (std::size_t i = 0; i < size; i += 2, ++c, ++s)
                {
                    const float a = src[i], b = src[i + 1];
                    dest[i] += a * *c + b * *s;
                    dest[i + 1] += b * *c - a * *s;
                }
            }
        }

        static auto view(const float* p, std::size_t rows, std::size_t columns, std::size_t stride)
        {
            return dlib::mat(
                p, static_cast<long>(rows), static_cast<long>(columns), static_cast<long>(stride));
        }

        static auto dense(float* p, std::size_t rows, std::size_t columns)
        {
            return dlib::set_ptrm(p, static_cast<long>(rows), static_cast<long>(columns));
        }

        // A block of queries needs no keys behind its last one. The weights of a block are a
        // matrix of its own, at the place of the block's first row.
        template <typename F>
        void for_each_block(const F& f) const
        {
            const std::size_t block = 64;
            for (std::size_t begin = 0; begin < length; begin += block)
            {
                const std::size_t end = std::min<std::size_t>(begin + block, length);
                f(begin, end - begin, end);
            }
        }

        void attend(const sizes& s,
            const float* q,
            const float* k,
            const float* v,
            float* w,
            float* out) const
        {
            const float scale = 1 / std::sqrt(static_cast<float>(s.size));
            std::vector<float> result(length * s.size);
            for_each_block(
                [&](std::size_t begin, std::size_t rows, std::size_t keys)
                {
                    float* const wb = w + begin * length;
                    dense(wb, rows, keys) = view(q + begin * 2 * s.features, rows, s.size,
                                                2 * s.features) *
                        dlib::trans(view(k, keys, s.size, 2 * s.features));
                    for (std::size_t i = 0; i < rows; ++i)
                    {
                        float* const row = wb + i * keys;
                        const std::size_t size = begin + i + 1; // the keys it may look at
                        impl::softmax(size, scale, row);
                        std::fill(row + size, row + keys, 0.0f);
                    }
                    dense(&result[begin * s.size], rows, s.size) = view(wb, rows, keys, keys) *
                        view(v, keys, s.size, 3 * s.features);
                });
            for (std::size_t t = 0; t < length; ++t)
                std::copy_n(&result[t * s.size], s.size, out + t * s.features);
        }

        void attend_gradient(const sizes& s,
            const float* q,
            const float* k,
            const float* v,
            const float* w,
            const float* g,
            float* grad) const
        {
            const float scale = 1 / std::sqrt(static_cast<float>(s.size));
            std::vector<float> space(length * (length + 3 * s.size));
            float* const dw = space.data();
            float* const dq = dw + length * length;
            float* const dk = dq + length * s.size;
            float* const dv = dk + length * s.size;

            for_each_block(
                [&](std::size_t begin, std::size_t rows, std::size_t keys)
                {
                    const auto gb = view(g + begin * s.features, rows, s.size, s.features);
                    const float* const wb = w + begin * length;
                    dense(dw, rows, keys) = gb * dlib::trans(view(v, keys, s.size, 3 * s.features));
                    for (std::size_t i = 0; i < rows; ++i)
                    {
                        float* const row = dw + i * keys;
                        const std::size_t size = begin + i + 1;
                        impl::softmax_gradient(size, scale, wb + i * keys, row);
                        std::fill(row + size, row + keys, 0.0f);
                    }

                    dense(dv, keys, s.size) += dlib::trans(view(wb, rows, keys, keys)) * gb;
                    const auto d = view(dw, rows, keys, keys);
                    dense(dq + begin * s.size, rows, s.size) = d *
                        view(k, keys, s.size, 2 * s.features);
                    dense(dk, keys, s.size) += dlib::trans(d) *
                        view(q + begin * 2 * s.features, rows, s.size, 2 * s.features);
                });

            add_rotated_back(dq, grad, 3 * s.features, s.size);
            add_rotated_back(dk, grad + s.features, 3 * s.features, s.size);
            float* dest = grad + 2 * s.features;
            for (std::size_t t = 0; t < length; ++t, dest += 3 * s.features)
            {
                for (std::size_t i = 0; i < s.size; ++i)
                    dest[i] += dv[t * s.size + i];
            }
        }

        unsigned long num_heads;
        unsigned long max_length;
        unsigned long length;
        double theta;

        std::size_t table_size = 0;
        std::vector<float> cosines;
        std::vector<float> sines;
        dlib::resizable_tensor rotated; // queries and keys
        dlib::resizable_tensor weights;
        dlib::resizable_tensor params; // stays empty
    };

    template <typename SUBNET>
    using attention = dlib::add_layer<attention_, SUBNET>;

    // ----------------------------------------------------------------------------------------

    class swiglu_
    {
    public:
        template <typename SUBNET>
        void setup(const SUBNET&)
        {
        }

        template <typename SUBNET>
        void forward(const SUBNET& sub, dlib::resizable_tensor& output)
        {
            const dlib::tensor& x = sub.get_output();
            const std::size_t size = check(x);
            output.set_size(x.num_samples(), static_cast<long long>(size), 1, 1);

            const float* gate = x.host();
            float* out = output.host_write_only();
            for (long long s = 0; s < x.num_samples(); ++s, gate += 2 * size, out += size)
                impl::swiglu(size, gate, gate + size, out);
        }

        template <typename SUBNET>
        void backward(const dlib::tensor& gradient_input, SUBNET& sub, dlib::tensor&)
        {
            const dlib::tensor& x = sub.get_output();
            const std::size_t size = check(x);

            const float* gate = x.host();
            const float* g = gradient_input.host();
            float* gate_grad = sub.get_gradient_input().host();
            for (long long s = 0; s < x.num_samples();
                 ++s, gate += 2 * size, gate_grad += 2 * size, g += size)
                impl::swiglu_gradient(size, gate, gate + size, g, gate_grad, gate_grad + size);
        }

        const dlib::tensor& get_layer_params() const { return params; }
        dlib::tensor& get_layer_params() { return params; }

        friend void serialize(const swiglu_&, std::ostream& out)
        {
            dlib::serialize(std::string("swiglu_"), out);
        }

        friend void deserialize(swiglu_&, std::istream& in) { impl::check_version("swiglu_", in); }

        friend std::ostream& operator<<(std::ostream& out, const swiglu_&)
        {
            return out << "swiglu";
        }

        friend void to_xml(const swiglu_&, std::ostream& out) { out << "<swiglu/>\n"; }

    private:
        static std::size_t check(const dlib::tensor& x)
        {
            const long long features = x.k() * x.nr() * x.nc();
            if (features % 2 != 0)
                throw dlib::error("swiglu_: an input of " + std::to_string(features) +
                    " features can't be cut in two.");
            return static_cast<std::size_t>(features / 2);
        }

        dlib::resizable_tensor params; // stays empty
    };

    template <typename SUBNET>
    using swiglu = dlib::add_layer<swiglu_, SUBNET>;

    // ----------------------------------------------------------------------------------------

    template <typename net_type>
    void set_sequence_length(net_type& net, unsigned long length)
    {
        dlib::visit_computational_layers(net,
            [&](auto& layer)
            {
                if constexpr (std::is_same<std::decay_t<decltype(layer)>, attention_>::value)
                    layer.set_sequence_length(length);
            });
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_TRANSFORMER_LAYERS_H_
