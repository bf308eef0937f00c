// License: Boost Software License   See LICENSE.txt for the full license.
/*
    This is an example illustrating the use of the RMS normalization layers with the deep
    learning tools from the dlib C++ Library.  It is a tour that takes some seconds.  If you
    have not trained a network with dlib before, read dlib's dnn_introduction_ex.cpp first.

    What do the layers do?  They look at some values that belong together, a group, and divide
    them by their root mean square, so that they are of size 1 whatever went in.  Then they
    multiply each by a gain that is learned:

        y = x / sqrt(mean(x^2) + eps) * gamma

    There are three of them.  They differ in what a group is:

        contrib::rms_norm          all values of a sample, one gain per channel
        contrib::rms_norm_row      each row by itself, one gain per column
        contrib::rms_norm_channel  the channels of each pixel, one gain per channel

    A whole language model with the first of them is trained in dnn_transformer_ex.cpp.
*/

#include <dlib/dnn.h>
#include <dlib/rms_norm.h>

#include <array>
#include <cmath>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using namespace std;
using namespace dlib;

// ----------------------------------------------------------------------------------------

// In a network of fully connected layers, a normalization goes behind each of them.  The size
// of what flows through the network is then the same everywhere, however deep it is.
template <typename SUBNET>
using block = relu<contrib::rms_norm<fc<32, SUBNET>>>;

using mlp = loss_multiclass_log<fc<2, repeat<7, block, block<input<matrix<float>>>>>>;

// In a convolutional network each pixel is normalized by itself: what is bright in one corner
// of an image does not make another corner darker.
using conv_net = loss_multiclass_log<fc<2,
    avg_pool_everything<
        relu<contrib::rms_norm_channel<con<8, 3, 3, 1, 1, input<matrix<float>>>>>>>>;

// ----------------------------------------------------------------------------------------

// Trains for some steps and returns the share of the samples that the network gets right.
template <typename net_type>
double train(net_type& net,
    const std::vector<matrix<float>>& samples,
    const std::vector<unsigned long>& labels)
{
    dnn_trainer<net_type, adam> trainer(net, adam(0, 0.9f, 0.99f));
    trainer.set_learning_rate(0.003);
    for (int step = 0; step < 200; ++step)
        trainer.train_one_step(samples, labels);
    trainer.get_net();

    const std::vector<unsigned long> found = net(samples);
    double num_right = 0;
    for (size_t i = 0; i < labels.size(); ++i)
        num_right += found[i] == labels[i];
    return num_right / static_cast<double>(labels.size());
}

void fully_connected()
{
    // Points, and whether they lie in a ring.
    dlib::rand rnd;
    std::vector<matrix<float>> samples;
    std::vector<unsigned long> labels;
    for (int i = 0; i < 256; ++i)
    {
        matrix<float> point(2, 1);
        point = static_cast<float>(rnd.get_random_gaussian()),
        static_cast<float>(rnd.get_random_gaussian());
        samples.push_back(point);
        labels.push_back(length(point) > 0.7 && length(point) < 1.5);
    }

    mlp net;
    cout << "A network of 8 blocks learns a ring: " << 100 * train(net, samples, labels)
         << " % right." << endl;

    // The options of a layer can be set at any time, for all layers by a visitor.  A visitor that
    // takes a contrib::rms_norm_ is called for these only.
    visit_computational_layers(net, [](contrib::rms_norm_& layer) { layer.set_eps(1e-6); });
    cout << "One of its layers is now: " << layer<3>(net).layer_details() << endl;

    // Saving and loading work as with every other layer, and give the same bits.
    ostringstream out;
    net.clean();
    serialize(net, out);
    istringstream in(out.str());
    mlp loaded;
    deserialize(loaded, in);
    const matrix<float> a = mat(net.subnet()(samples[0]));
    const matrix<float> b = mat(loaded.subnet()(samples[0]));
    cout << "Saved and loaded, its outputs are " << (a == b ? "the same." : "others!") << endl;
}

void convolutional()
{
    // Stripes, and whether they run from left to right.
    dlib::rand rnd;
    std::vector<matrix<float>> samples;
    std::vector<unsigned long> labels;
    for (int i = 0; i < 128; ++i)
    {
        const bool is_horizontal = rnd.get_random_double() < 0.5;
        const auto brightness = static_cast<float>(exp(3 * rnd.get_random_gaussian()));
        matrix<float> image(8, 8);
        for (long r = 0; r < 8; ++r)
        {
            for (long c = 0; c < 8; ++c)
                image(r, c) = brightness * static_cast<float>((is_horizontal ? r : c) % 2);
        }
        samples.push_back(image);
        labels.push_back(is_horizontal);
    }

    conv_net net;
    cout << "\nA convolutional network learns stripes, of any brightness: "
         << 100 * train(net, samples, labels) << " % right." << endl;
}

// ----------------------------------------------------------------------------------------

// Transformers keep tokens in rows: (batch, 1, tokens, features).  The functions that the layers
// call can be called directly, too.
void tokens()
{
    resizable_tensor x(1, 1, 3, 4), gamma(1, 1, 1, 4), y, scale;
    gamma = 1;
    for (size_t i = 0; i < x.size(); ++i)
        x.host()[i] = static_cast<float>(i + 1);
    contrib::tt::rms_normalize(contrib::rms_norm_axes::row, 0, 1e-5, y, scale, x, gamma);
    cout << "\nThree tokens of four features, each normalized by itself:\n"
         << reshape(mat(y), 3, 4);

    // With row axes no token sees another.  With sample axes, which dlib 20's layer has, it does.
    resizable_tensor one_gain(1, 1, 1, 1), before, after;
    one_gain = 1;
    const auto first_value = [&](bool by_row)
    {
        if (by_row)
            contrib::tt::rms_normalize(contrib::rms_norm_axes::row, 0, 1e-5, y, scale, x, gamma);
        else
            contrib::tt::rms_normalize(
                contrib::rms_norm_axes::sample, 0, 1e-5, y, scale, x, one_gain);
        return y.host()[0];
    };
    const float row_before = first_value(true), sample_before = first_value(false);
    x.host()[11] = 100;
    cout << "The last token changes, and the first one's first value goes\n  from " << row_before
         << " to " << first_value(true) << " with contrib::rms_norm_row,\n  from " << sample_before
         << " to " << first_value(false) << " with contrib::rms_norm." << endl;

    // Options are given to the constructor: eps, the kind of gain, and an offset to the gain. This
    // is the layer as Gemma has it, with gains of 1 + gamma and a gamma that starts at 0.
    const contrib::rms_norm_row_ gemma(1e-6, contrib::rms_norm_gain::per_channel, 1);
    cout << "As in Gemma: " << gemma << endl;
}

// ----------------------------------------------------------------------------------------

// Networks that dlib 20 saved with its own rms_norm are loaded with ours, without any change.
void load_from_dlib_20(const string& file)
{
    using saved_net = loss_multiclass_log<fc<4,
        contrib::rms_norm<htan<fc<16, contrib::rms_norm<input<std::array<matrix<float>, 3>>>>>>>>;
    saved_net net;
    deserialize(file) >> net;
    cout << "\nA network that dlib 20 saved:\n" << net << endl;
}

int main(int argc, char** argv)
try
{
    cout.precision(4);
    fully_connected();
    convolutional();
    tokens();
    if (argc > 1)
        load_from_dlib_20(argv[1]);
    else
        cout << "\nGive me dlib/test/data/dlib20_rms_norm_net.dat, and I load what dlib 20 saved."
             << endl;
    return 0;
}
catch (exception& e)
{
    cerr << e.what() << endl;
    return 1;
}
