// License: Boost Software License   See LICENSE.txt for the full license.

// Files: reference numbers that other software computed, layers as dlib 20 saved them, and
// what a layer does with its own files, with broken ones and with those of others.

#include <dlib/dnn/layers.h>
#include <dlib/rms_norm.h>
#include "reference_file.h"
#include "rms_norm_runs.h"

namespace
{

    using namespace test;
    using namespace dlib;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_gain;

    // ----------------------------------------------------------------------------------------
    //                                   reference numbers
    // ----------------------------------------------------------------------------------------

    void replace_values(std::vector<number>& numbers, const std::vector<double>& values)
    {
        DLIB_TEST(numbers.size() == values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            numbers[i].value = values[i];
    }

    void check_reference_file(const rms_norm_backend& b, const std::string& file_name)
    {
        const reference_file file(file_name);
        const std::vector<std::string> shapes = file.shapes();
        DLIB_TEST(!shapes.empty());

        for (const std::string& name : shapes)
        {
            const std::vector<long long> shape = file.shape(name + ".x");
            DLIB_TEST(shape.size() == 2);

            rms_norm_problem p;
            p.axes = rms_norm_axes::row;
            p.eps = file.metadata("eps");
            p.gain_offset = file.metadata("offset");
            p.dims = {1, 1, shape[0], shape[1]};
            p.src = file.numbers<float>(name + ".x");
            p.gamma = file.numbers<float>(name + ".weight");
            p.gradient_input = file.numbers<float>(name + ".dy");
            p.old_src_grad.assign(p.src.size(), 0);
            const rms_norm_result found = run(b, p);

            // The numbers in the file are doubles, from sums of nc terms and less than 16 other
            // operations. It adds offset and weight without rounding the gain to float, which
            // makes g and all that is proportional to it differ by u.
            const long double operations = static_cast<long double>(p.dims.nc + 16);
            const long double gain_error = p.gain_offset == 0 ? 0 : rounding::u;
            const long double file_error = gain_error + operations * rounding::u_double;

            rms_norm_answer exact = exact_rms_norm(p);
            const std::vector<float> gains = effective_gains(p);
            std::vector<long double> abs_m(number_of_groups(p));
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    const long double gdxh = gains[at.gain] * p.gradient_input[i] *
                        (p.src[i] * exact.scale[at.group].value);
                    abs_m[at.group] += std::abs(gdxh) / static_cast<long double>(p.dims.nc);
                });
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    const long double s = exact.scale[at.group].value;
                    const long double xh = p.src[i] * s;
                    const long double gd = static_cast<long double>(gains[at.gain]) *
                        p.gradient_input[i];
                    exact.dest[i].bound += file_error * std::abs(exact.dest[i].value);
                    exact.src_grad[i].bound += file_error * s *
                        (std::abs(gd) + std::abs(xh) * abs_m[at.group]);
                    exact.gamma_grad[at.gain].bound += operations * rounding::u_double *
                        std::abs(p.gradient_input[i] * xh);
                });

            replace_values(exact.dest, file.numbers<double>(name + ".exact.y"));
            replace_values(exact.src_grad, file.numbers<double>(name + ".exact.dx"));
            replace_values(exact.gamma_grad, file.numbers<double>(name + ".exact.dweight"));
            check_answer(found, exact, p);
        }
    }

    void reference_numbers(const rms_norm_backend& b)
    {
        for (const char* kind : {"llama", "gemma", "none"})
            check_reference_file(b, "rms_norm_" + std::string(kind) + "_f32.safetensors");
    }

    // ----------------------------------------------------------------------------------------
    //                                     layer files
    // ----------------------------------------------------------------------------------------

    template <typename layer_type>
    void load(layer_type& layer, const std::string& bytes)
    {
        std::istringstream sin(bytes);
        deserialize(layer, sin);
    }

    template <typename layer_type>
    layer_type trained_layer(rms_norm_axes axes, rms_norm_gain gain, double gain_offset)
    /*!
        ensures
            - returns a layer that differs from a new one in everything
    !*/
    {
        random_source rnd(1);
        layer_type layer(0.5, gain, gain_offset);
        layer.setup(subnet_with_output(random_problem(rnd, axes, gain, {2, 3, 2, 4})));
        const std::vector<float> gamma = random_values(rnd, layer.get_layer_params().size());
        std::copy(gamma.begin(), gamma.end(), layer.get_layer_params().begin());
        layer.set_learning_rate_multiplier(2);
        layer.set_weight_decay_multiplier(3);
        layer.set_bias_learning_rate_multiplier(4);
        layer.set_bias_weight_decay_multiplier(5);
        return layer;
    }

    template <typename layer_type>
    void check_equal(const layer_type& a, const layer_type& b)
    {
        DLIB_TEST(a.get_eps() == b.get_eps());
        DLIB_TEST(a.get_gain() == b.get_gain());
        DLIB_TEST(a.get_gain_offset() == b.get_gain_offset());
        DLIB_TEST(a.get_learning_rate_multiplier() == b.get_learning_rate_multiplier());
        DLIB_TEST(a.get_weight_decay_multiplier() == b.get_weight_decay_multiplier());
        DLIB_TEST(a.get_bias_learning_rate_multiplier() == b.get_bias_learning_rate_multiplier());
        DLIB_TEST(a.get_bias_weight_decay_multiplier() == b.get_bias_weight_decay_multiplier());
        DLIB_TEST(have_same_bits(a.get_layer_params(), b.get_layer_params()));
        DLIB_TEST(saved(a) == saved(b));
    }

    template <typename layer_type>
    void check_refused(const std::string& bytes, const std::string& word)
    /*!
        ensures
            - checks that such a file throws a serialization_error that holds the word, and
              leaves a layer as it was
    !*/
    {
        auto layer = trained_layer<layer_type>(
            rms_norm_axes::row, rms_norm_gain::per_channel, 0.25);
        const auto before = layer;
        std::string message;
        try
        {
            load(layer, bytes);
        }
        catch (serialization_error& e)
        {
            message = e.what();
        }
        DLIB_TEST_MSG(
            !message.empty(), "A file was not refused, its message should hold: " << word);
        DLIB_TEST_MSG(
            message.find(word) != std::string::npos, "'" << word << "' is missing in: " << message);
        check_equal(layer, before);
    }

    struct layer_file
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The fields of a saved layer, for a test to spoil one of them.
        !*/
        std::string tag = "rms_norm_";
        bool has_options = false;
        int gain = 0;
        double gain_offset = 0;
        resizable_tensor params = resizable_tensor(3);
        contrib::rms_norm_dims gamma = {1, 3, 1, 1};
        double multipliers[4] = {1, 0, 1, 1};
        double eps = 1e-5;

        std::string bytes() const
        {
            std::ostringstream sout;
            serialize(tag, sout);
            if (has_options)
            {
                serialize(gain, sout);
                serialize(gain_offset, sout);
            }
            serialize(params, sout);
            serialize(1, sout);
            for (long long dim : {gamma.num_samples, gamma.k, gamma.nr, gamma.nc})
                serialize(dim, sout);
            for (double m : multipliers)
                serialize(m, sout);
            serialize(eps, sout);
            return sout.str();
        }
    };

    std::string tag_of(const std::string& bytes)
    {
        std::istringstream sin(bytes);
        std::string tag;
        deserialize(tag, sin);
        return tag;
    }

    // ----------------------------------------------------------------------------------------

    void layer_of_dlib_20()
    {
        const std::string bytes = read_data_file("dlib20_rms_norm_layer.dat");
        DLIB_TEST(saved(contrib::rms_norm_()) == bytes);

        auto layer = trained_layer<contrib::rms_norm_>(
            rms_norm_axes::sample, rms_norm_gain::per_element, 1);
        load(layer, bytes);
        check_equal(layer, contrib::rms_norm_());
        DLIB_TEST(layer.get_eps() == 1e-5);
        DLIB_TEST(layer.get_layer_params().size() == 0);

        // what dlib 20 writes for a trained one has the same fields
        layer_file file;
        file.params = 0.5;
        file.multipliers[1] = 0.125;
        file.eps = 1e-3;
        load(layer, file.bytes());
        DLIB_TEST(saved(layer) == file.bytes());
        DLIB_TEST(layer.get_eps() == 1e-3);
        DLIB_TEST(layer.get_weight_decay_multiplier() == 0.125);
        DLIB_TEST(values_of(layer.get_layer_params()) == std::vector<float>(3, 0.5f));
    }

    template <typename layer_type>
    void layers_are_saved_and_loaded(rms_norm_axes axes)
    {
        random_source rnd(2);
        for (rms_norm_gain gain :
            {rms_norm_gain::per_channel, rms_norm_gain::per_element, rms_norm_gain::none})
        {
            for (double gain_offset : {0.0, 1.0, -0.3})
            {
                auto layer = trained_layer<layer_type>(axes, gain, gain_offset);
                layer_type loaded;
                load(loaded, saved(layer));
                check_equal(layer, loaded);

                const subnet_with_output sub(random_problem(rnd, axes, gain, {2, 3, 2, 4}));
                resizable_tensor output, loaded_output;
                layer.forward(sub, output);
                loaded.forward(sub, loaded_output);
                DLIB_TEST(have_same_bits(output, loaded_output));

                layer_type never_set_up(1e-3, gain, gain_offset);
                load(loaded, saved(never_set_up));
                check_equal(loaded, never_set_up);
            }
        }
    }

    template <typename layer_type>
    void cut_or_changed_files(rms_norm_axes axes)
    {
        for (rms_norm_gain gain :
            {rms_norm_gain::per_channel, rms_norm_gain::per_element, rms_norm_gain::none})
        {
            const std::string bytes = saved(
                trained_layer<layer_type>(axes, gain, gain == rms_norm_gain::none ? 1 : 0));
            for (std::size_t size = 0; size < bytes.size(); ++size)
                check_refused<layer_type>(bytes.substr(0, size), "");

            // A changed byte is noticed, or makes another layer. It never does anything else.
            for (std::size_t i = 0; i < bytes.size(); ++i)
            {
                for (int flip : {0x01, 0x80, 0xff, 0x14})
                {
                    std::string changed = bytes;
                    changed[i] = static_cast<char>(changed[i] ^ flip);
                    auto layer = trained_layer<layer_type>(axes, rms_norm_gain::per_channel, 0.25);
                    const auto before = layer;
                    try
                    {
                        load(layer, changed);
                    }
                    catch (serialization_error&)
                    {
                        check_equal(layer, before);
                        continue;
                    }
                    layer_type again;
                    load(again, saved(layer));
                    check_equal(again, layer);
                }
            }
        }
    }

    void foreign_files()
    {
        check_refused<contrib::rms_norm_>("", "");
        check_refused<contrib::rms_norm_>("hello, this is not a layer", "");
        check_refused<contrib::rms_norm_>(std::string(1000, '\0'), "");
        check_refused<contrib::rms_norm_>(std::string(1000, '\xff'), "");
        check_refused<contrib::rms_norm_>(saved(layer_norm_()), "layer_norm_");
        check_refused<contrib::rms_norm_>(saved(relu_()), "relu_");

        const std::string sample = saved(contrib::rms_norm_());
        const std::string row = saved(contrib::rms_norm_row_());
        const std::string channel = saved(contrib::rms_norm_channel_());
        check_refused<contrib::rms_norm_>(row, tag_of(row));
        check_refused<contrib::rms_norm_>(channel, tag_of(channel));
        check_refused<contrib::rms_norm_row_>(sample, tag_of(sample));
        check_refused<contrib::rms_norm_row_>(channel, tag_of(channel));
        check_refused<contrib::rms_norm_channel_>(sample, tag_of(sample));
        check_refused<contrib::rms_norm_channel_>(row, tag_of(row));
    }

    void streams_that_throw_by_themselves()
    {
        const std::string bytes = saved(trained_layer<contrib::rms_norm_row_>(
            rms_norm_axes::row, rms_norm_gain::per_channel, 1));
        const auto all = std::ios::badbit | std::ios::failbit | std::ios::eofbit;
        for (std::size_t size = 0; size <= bytes.size(); ++size)
        {
            auto layer = trained_layer<contrib::rms_norm_row_>(
                rms_norm_axes::row, rms_norm_gain::none, 0);
            const auto before = layer;
            std::istringstream sin(bytes.substr(0, size));
            sin.exceptions(all);
            try
            {
                deserialize(layer, sin);
                DLIB_TEST(size == bytes.size() && saved(layer) == bytes);
            }
            catch (serialization_error&)
            {
                DLIB_TEST(size < bytes.size());
                check_equal(layer, before);
            }
            DLIB_TEST(sin.exceptions() == all);
        }
    }

    void files_with_impossible_values()
    {
        const auto refused = [](const std::function<void(layer_file&)>& spoil, const char* word)
        {
            layer_file file;
            file.params = 1;
            load(*std::make_unique<contrib::rms_norm_>(), file.bytes());
            spoil(file);
            check_refused<contrib::rms_norm_>(file.bytes(), word);
        };
        refused([](layer_file& f) { f.tag = "rms_norm_9"; }, "rms_norm_9");
        refused([](layer_file& f) { f.tag = std::string("rms\0norm\n\xff'\\", 12); },
            "unexpected version 'rms\\x00norm\\x0a\\xff'\\x5c'");
        refused([](layer_file& f) { f.multipliers[1] = -0.5; }, "weight_decay_multiplier -0.5");
        refused([](layer_file& f) { f.eps = 0; }, "eps 0");
        refused([](layer_file& f) { f.eps = -1; }, "eps -1");
        refused([](layer_file& f) { f.eps = std::nan(""); }, "eps");
        refused([](layer_file& f) { f.eps = 1e-50; }, "eps 1e-50");
        refused([](layer_file& f) { f.multipliers[0] = INFINITY; }, "learning_rate_multiplier inf");
        refused(
            [](layer_file& f) { f.multipliers[3] = std::nan(""); }, "bias_weight_decay_multiplier");
        refused([](layer_file& f) { f.gamma = {1, 4, 1, 1}; }, "(1,4,1,1)");
        refused([](layer_file& f) { f.gamma = {1, 1, 1, 3}; }, "(1,1,1,3)");
        refused([](layer_file& f) { f.gamma = {3, 1, 1, 1}; }, "(3,1,1,1)");
        refused([](layer_file& f) { f.gamma = {0, 0, 0, 0}; }, "3 parameters");
        refused([](layer_file& f) { f.params.clear(); }, "0 parameters");
        refused([](layer_file& f) { f.gamma = {1, -3, 1, 1}; }, "-3");
        refused(
            [](layer_file& f) {
                f.gamma = {1, 1LL << 62, 1, 1};
            },
            std::to_string(1LL << 62).c_str());

        const std::string tag = tag_of(saved(contrib::rms_norm_(1e-5, rms_norm_gain::per_element)));
        const auto options_refused =
            [&](const std::function<void(layer_file&)>& spoil, const char* word)
        {
            refused(
                [&](layer_file& f)
                {
                    f.tag = tag;
                    f.has_options = true;
                    load(*std::make_unique<contrib::rms_norm_>(), f.bytes());
                    spoil(f);
                },
                word);
        };
        options_refused([](layer_file& f) { f.gain = 3; }, "gain 3");
        options_refused([](layer_file& f) { f.gain = -1; }, "gain -1");
        options_refused([](layer_file& f) { f.gain = 2; }, "(1,3,1,1)");
        options_refused([](layer_file& f) { f.gain_offset = 1e39; }, "gain_offset 1e+39");
        options_refused([](layer_file& f) { f.gain_offset = std::nan(""); }, "gain_offset");
    }

    void file_that_promises_more_than_it_holds()
    /*!
        ensures
            - checks that the size in a file is not allocated before it is read: 2^40 floats
              are announced, 3 are there
    !*/
    {
        std::ostringstream sout;
        serialize(std::string("rms_norm_"), sout);
        serialize(2, sout);
        for (long long dim : {1LL << 20, 1LL << 20, 1LL, 1LL})
            serialize(dim, sout);
        sout << "123456789012";
        check_refused<contrib::rms_norm_>(sout.str(), "1048576");
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_files_tester : public tester
    {
    public:
        rms_norm_files_tester() :
            tester("rms_norm_files",
                "Run tests on reference numbers and on files of RMS normalization layers.")
        {
        }

        void perform_test() override
        {
            for (const rms_norm_backend& b : rms_norm_backends())
                run_cases(b, {NAMED_CASE(reference_numbers)});

            RUN_CASE(layer_of_dlib_20());
            RUN_CASE(layers_are_saved_and_loaded<contrib::rms_norm_>(rms_norm_axes::sample));
            RUN_CASE(layers_are_saved_and_loaded<contrib::rms_norm_row_>(rms_norm_axes::row));
            RUN_CASE(
                layers_are_saved_and_loaded<contrib::rms_norm_channel_>(rms_norm_axes::channel));
            RUN_CASE(cut_or_changed_files<contrib::rms_norm_>(rms_norm_axes::sample));
            RUN_CASE(cut_or_changed_files<contrib::rms_norm_row_>(rms_norm_axes::row));
            RUN_CASE(cut_or_changed_files<contrib::rms_norm_channel_>(rms_norm_axes::channel));
            RUN_CASE(foreign_files());
            RUN_CASE(files_with_impossible_values());
            RUN_CASE(streams_that_throw_by_themselves());
            RUN_CASE(file_that_promises_more_than_it_holds());
        }
    } a_rms_norm_files_tester;

    // ----------------------------------------------------------------------------------------

}
