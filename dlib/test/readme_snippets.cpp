// License: Boost Software License   See LICENSE.txt for the full license.

// The README's snippets, compiled and run as they stand there. What lies between two lines of
// "// README" below has to be in README.md, line by line.

#include <fstream>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "test_cases.h"

namespace
{

    using namespace test;

    // README
    // fully connected: a normalization behind each layer, all outputs of a sample together
    using mlp = dlib::loss_multiclass_log<dlib::fc<10,
        dlib::relu<dlib::contrib::rms_norm<dlib::fc<64, dlib::input<dlib::matrix<float>>>>>>>;
    // README

    // README
    // convolutional: the channels of each pixel together
    template <typename SUBNET>
    using conv_block =
        dlib::relu<dlib::contrib::rms_norm_channel<dlib::con<16, 3, 3, 1, 1, SUBNET>>>;
    using conv_net = dlib::loss_multiclass_log<dlib::fc<10,
        dlib::avg_pool_everything<conv_block<conv_block<dlib::input<dlib::matrix<float>>>>>>>;
    // README

    // README
    // normalized after the residual addition: add_prev1 and the norm as one layer, with the same bits
    template <typename SUBNET>
    using post_norm_block = dlib::contrib::add_prev1_rms_norm<
        dlib::fc<64, dlib::relu<dlib::fc<64, dlib::tag1<SUBNET>>>>>;
    using post_norm_net = dlib::loss_multiclass_log<
        dlib::fc<10, post_norm_block<dlib::fc<64, dlib::input<dlib::matrix<float>>>>>>;
    // README

    void tokens()
    {
        // README
        // tokens in rows: each by itself, with gains of 1 + gamma as in Gemma
        dlib::resizable_tensor x(8, 1, 128, 64), y, scale, gamma(1, 1, 1, 64);
        x = 2;
        gamma = 0;
        dlib::contrib::tt::rms_normalize(
            dlib::contrib::rms_norm_axes::row, 1 /* gain offset */, 1e-6, y, scale, x, gamma);
        // README
        for (float value : y)
            DLIB_TEST(std::abs(value - 1) < 1e-6);
    }

    template <typename net_type>
    void learns()
    /*!
        ensures
            - checks that the net learns to tell two images.
    !*/
    {
        dlib::matrix<float> bright(6, 6), dark(6, 6);
        dlib::rand rnd;
        for (long i = 0; i < bright.size(); ++i)
        {
            bright(i) = static_cast<float>(rnd.get_random_gaussian());
            dark(i) = static_cast<float>(rnd.get_random_gaussian());
        }
        const std::vector<dlib::matrix<float>> samples = {bright, dark};
        const std::vector<unsigned long> labels = {3, 7};
        net_type net;
        dlib::dnn_trainer<net_type, dlib::adam> trainer(net, dlib::adam());
        trainer.set_learning_rate(0.01);
        for (int i = 0; i < 50; ++i)
            trainer.train_one_step(samples, labels);
        trainer.get_net();
        DLIB_TEST(net(samples) == labels);
    }

    // ----------------------------------------------------------------------------------------

    void short_rows()
    {
        // README
        // h = x + residual, y = norm(h), rounded where Llama rounds
        namespace contrib = dlib::contrib;
        const long long tokens = 8, features = 64;
        std::vector<contrib::bfloat16> x(tokens * features, contrib::bfloat16(1.0f));
        std::vector<contrib::bfloat16> residual = x, y = x;
        std::vector<contrib::bfloat16> weight(features, contrib::bfloat16(0.5f));
        std::vector<float> scale(tokens);
        contrib::rms_norm_forward<contrib::bfloat16> pass;
        pass.groups = contrib::rms_norm_rows(tokens, features, true);
        pass.eps = 1e-6;
        pass.casting = contrib::rms_norm_casting::llama;
        pass.x = x.data();
        pass.gamma = weight.data();
        pass.y = y.data();
        pass.scale = scale.data();
        pass.r = residual.data();
        pass.h = residual.data();
        contrib::cpu::rms_normalize(pass);
        // README
        // each row is of twos, so y is the weight
        for (const contrib::bfloat16& value : y)
            DLIB_TEST(static_cast<float>(value) == 0.5f);
        DLIB_TEST(static_cast<float>(residual[0]) == 2);
    }

    // ----------------------------------------------------------------------------------------

    std::vector<std::string> lines_of(const std::string& path)
    /*!
        ensures
            - returns the lines of the file without the white space that they begin with.
    !*/
    {
        std::ifstream in(path);
        DLIB_TEST_MSG(in, path);
        std::vector<std::string> lines;
        for (std::string line; std::getline(in, line);)
            lines.push_back(line.substr(std::min(line.size(), line.find_first_not_of(' '))));
        return lines;
    }

    void readme_holds_them()
    {
        const std::string folder = DLIB_TEST_DATA_DIR "/..";
        const std::vector<std::string> source = lines_of(folder + "/readme_snippets.cpp");
        const std::vector<std::string> readme = lines_of(folder + "/../../README.md");
        std::size_t num = 0;
        for (auto begin = source.begin();;)
        {
            begin = std::find(begin, source.end(), "// README");
            if (begin == source.end())
                break;
            const auto end = std::find(++begin, source.end(), "// README");
            DLIB_TEST(end != source.end());
            const bool found = std::search(readme.begin(), readme.end(), begin, end) !=
                readme.end();
            DLIB_TEST_MSG(found, "not in README.md: " << *begin);
            begin = end + 1;
            ++num;
        }
        DLIB_TEST(num == 5);
    }

    class readme_tester : public tester
    {
    public:
        readme_tester() :
            tester("test_readme_snippets", "The snippets of README.md.")
        {
        }

        void perform_test() override
        {
            run_case("README: fully connected", learns<mlp>);
            run_case("README: convolutional", learns<conv_net>);
            run_case("README: normalized after the addition", learns<post_norm_net>);
            run_case("README: tokens", tokens);
            run_case("README: rows of 16 bits", short_rows);
            run_case("README: holds them", readme_holds_them);
        }
    } a_readme_tester;

    // ----------------------------------------------------------------------------------------

}
