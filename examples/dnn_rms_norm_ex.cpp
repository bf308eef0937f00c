// License: Boost Software License   See LICENSE.txt for the full license.
/*
    This is an example illustrating the use of the RMS normalization layer with the deep
    learning tools from the dlib C++ Library.  If you have not trained a network with dlib
    before, read dlib's dnn_introduction_ex.cpp first: what that example explains is used
    here without a word.

    What does the layer do?  It looks at the values that a layer puts out for one sample and
    divides them all by their root mean square, so that they are of size 1 whatever went in.
    Then it multiplies each by a gain that is learned:

        y = x / sqrt(mean(x^2) + eps) * gamma

    Why would you want that?  In a deep network every layer multiplies the size of what goes
    through it by some factor.  Twenty factors of 0.7 make 0.0008, and twenty of 1.4 make 837.
    Neither is a size at which learning works well, and both change while the network learns,
    so that a layer is forever adapting to the layers below it.  With a normalization after
    each layer the factors no longer multiply.  Unlike batch normalization the result for a
    sample does not depend on the other samples, so training and use are the same computation.
    And unlike layer normalization no mean is subtracted, which is less work.  Because of that
    last point the bias of the layer below keeps its meaning, so we leave it switched on.

    To see it happen we train a network to read.  It is shown a window of 16 characters from
    some English text, and is to say which character comes next.  The network is a stack of
    twelve blocks, each a fully connected layer, a normalization and a rectifier, with nothing
    that leads around them.  We train it twice:

        - once as it is, and
        - once with the normalizations taken out.

    Both trainings start from the same random weights, see the same windows in the same order,
    take the same number of steps and use the same learning rates.  Then both networks are
    asked about text that neither was trained on.  That is all that is compared.  It does not
    show that no way exists to train the second network better: a more careful initialization,
    skip connections or more patience may well do that.  It shows what this layer, with no
    other change, is worth.

    The text is whatever you like (--text FILE).  By default it is the licences that a Debian
    system keeps in /usr/share/common-licenses.  These quote each other a lot, so some of the
    text that is held out also occurs in what the networks are trained on.  Both networks
    benefit from that in the same way.

    Finally, the trained network is saved, loaded into a new object, and made to write.  Press
    Ctrl-C at any time during the training: what was learned so far is saved before the program
    ends.
*/

#include <dlib/dnn.h>
#include <dlib/cmd_line_parser.h>
#include <dlib/rms_norm.h>
#include <dlib/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <set>
#include <string>
#include <vector>

using namespace std;
using namespace dlib;

// ----------------------------------------------------------------------------------------

// First the network.  Here is its definition, with a hole where the normalization goes.  The
// template argument NORM says what to put there.
//
// The network takes a matrix with a column for each character of the window.  All of a column
// is 0, except for a single 1 in the row that stands for the character.  Its output is one
// number for each character of the alphabet: how strongly it believes that this one comes
// next.  How large the alphabet is depends on the text, so the 256 below is only the upper
// bound, and is replaced as soon as we know better.
template <template <typename> class NORM>
struct character_net
{
    template <typename SUBNET>
    using block = relu<NORM<fc<128, SUBNET>>>;

    using type = loss_multiclass_log<fc<256, repeat<11, block, block<input<matrix<float>>>>>>;
};

// Now we fill the hole.  contrib::rms_norm makes the network we want, and a template that
// gives back just what it gets makes the same network without the normalization.
template <typename SUBNET>
using no_norm = SUBNET;

using net_type = character_net<contrib::rms_norm>::type;
using plain_net_type = character_net<no_norm>::type;

const long window_size = 16;
const long batch_size = 128;

// ----------------------------------------------------------------------------------------

// Next the text.  We want to learn words, not where lines break or how titles are centered, so
// any run of white space is read as one blank.  Inside this program a character is its place
// in the alphabet, which is the sorted list of all characters that occur in the text.  A
// character is one byte: what UTF-8 writes with several bytes the network has to spell.
using symbols = std::vector<unsigned char>;

struct corpus
{
    string alphabet;
    symbols training;
    symbols held_out;
};

// Reads a file and refuses what can't be a text, before a minute is spent on learning it.
string read_text(const filesystem::path& file)
{
    if (filesystem::is_directory(file))
        throw error(file.string() + " is a directory, not a text file.");
    ifstream in(file, ios::binary);
    if (!in)
        throw error("Can't open " + file.string() + ".");

    string text;
    std::vector<char> piece(1 << 16);
    while (in.read(piece.data(), static_cast<streamsize>(piece.size())) || in.gcount() > 0)
    {
        const auto end = piece.begin() + in.gcount();
        for (auto c = piece.begin(); c != end; ++c)
        {
            const bool is_white_space = '\t' <= *c && *c <= '\r';
            const bool is_control = (0 <= *c && *c < ' ') || *c == 127;
            if (is_control && !is_white_space)
            {
                throw error(file.string() + " is not a text file: it has a byte of value " +
                    to_string(static_cast<int>(*c)) + " in it.");
            }

            if (!is_white_space && *c != ' ')
                text += *c;
            else if (text.empty() || text.back() != ' ')
                text += ' ';
        }
    }
    if (in.bad())
        throw error("Can't read " + file.string() + ".");
    if (text.empty())
        throw error(file.string() + " is empty.");
    return text;
}

// The licences have several names each, such as GPL and GPL-3.  Each file is to be read once,
// and always in the same order.
std::set<filesystem::path> find_licences()
{
    const filesystem::path folder = "/usr/share/common-licenses";
    std::set<filesystem::path> files;
    if (filesystem::is_directory(folder))
    {
        for (const auto& entry : filesystem::directory_iterator(folder))
        {
            if (entry.is_regular_file())
                files.insert(filesystem::canonical(entry.path()));
        }
    }
    if (files.empty())
        throw error("There are no texts in " + folder.string() + ".  Name one with --text FILE.");
    return files;
}

// The last tenth of each file is held out: it is never trained on.
corpus make_corpus(const std::set<filesystem::path>& files)
{
    string training, held_out;
    for (const auto& file : files)
    {
        const string text = read_text(file);
        const size_t cut = text.size() - text.size() / 10;
        training.append(text, 0, cut);
        held_out.append(text, cut, string::npos);
    }

    const size_t least_to_hold_out = 100;
    const size_t size = training.size() + held_out.size();
    if (held_out.size() < least_to_hold_out)
    {
        throw error("The text is too short: it has " + to_string(size) + " characters, and " +
            to_string(10 * least_to_hold_out) + " is the least that can be learned from.");
    }

    corpus result;
    std::set<char> characters(training.begin(), training.end());
    characters.insert(held_out.begin(), held_out.end());
    result.alphabet.assign(characters.begin(), characters.end());

    const auto to_symbols = [&](const string& text)
    {
        symbols s;
        s.reserve(text.size());
        for (char c : text)
            s.push_back(static_cast<unsigned char>(result.alphabet.find(c)));
        return s;
    };
    result.training = to_symbols(training);
    result.held_out = to_symbols(held_out);

    cout << size << " characters of text from " << files.size()
         << (files.size() == 1 ? " file" : " files") << ", " << characters.size()
         << " different ones.\n"
         << training.size() << " to train on, " << held_out.size() << " held out." << endl;
    return result;
}

// ----------------------------------------------------------------------------------------

// These two make what the network wants to be given: windows of text as matrices, and beside
// each one the character that follows it.
matrix<float> make_window(const unsigned char* first, size_t alphabet_size)
{
    matrix<float> window = zeros_matrix<float>(static_cast<long>(alphabet_size), window_size);
    for (long i = 0; i < window_size; ++i)
        window(first[i], i) = 1;
    return window;
}

struct mini_batch
{
    std::vector<matrix<float>> windows;
    std::vector<unsigned long> next;

    void add(const symbols& text, size_t pos, size_t alphabet_size)
    {
        windows.push_back(make_window(&text[pos], alphabet_size));
        next.push_back(text[pos + window_size]);
    }
};

// ----------------------------------------------------------------------------------------

// When someone presses Ctrl-C we want to save the network before we leave.  Hardly anything
// is allowed inside a signal handler, least of all writing a file, so it only leaves a note
// for the training loop.  A second Ctrl-C then finds no handler, and ends the program at once.
atomic<bool> interrupted{false};
static_assert(atomic<bool>::is_always_lock_free, "else the handler could wait for a lock");

extern "C" void note_interrupt(int)
{
    interrupted = true;
    signal(SIGINT, SIG_DFL);
}

// ----------------------------------------------------------------------------------------

// The learning rate rises for the first twentieth of the training and then falls along half a
// wave of a cosine.  dlib's trainer can choose learning rates by itself, by watching the loss,
// but then our two networks would be trained with different ones.  Which rate suits which
// network best you can find out with --learning-rate.
matrix<double> make_learning_rates(double highest, long steps)
{
    const double warm_up = 0.05 * static_cast<double>(steps);
    matrix<double> rates(steps, 1);
    for (long i = 0; i < steps; ++i)
    {
        const double step = static_cast<double>(i) + 1;
        const double wave = 0.5 + 0.5 * cos(pi * step / static_cast<double>(steps));
        rates(i) = highest * min(1.0, step / warm_up) * (0.01 + 0.99 * wave);
    }
    return rates;
}

struct training_options
{
    long steps;
    double learning_rate;
    int seed;
};

// Trains a network and reports how it goes.  Returns the number of steps that were taken,
// which is less than the number asked for only if someone pressed Ctrl-C.
template <typename NET>
long train(NET& net, const corpus& text, const training_options& options)
{
    const long steps = options.steps;

    // The alphabet's size is known now, so it replaces the number of outputs.
    layer<1>(net).layer_details().set_num_outputs(static_cast<long>(text.alphabet.size()));

    // dlib draws the initial weights with std::rand(), and we draw the windows from a generator
    // of our own.  The normalization draws nothing.  So the same seed gives both networks the
    // same weights and the same windows.
    srand(static_cast<unsigned>(options.seed));
    dlib::rand rnd(options.seed);

    dnn_trainer<NET, adam> trainer(net, adam(0, 0.9f, 0.99f));
    trainer.set_learning_rate_schedule(make_learning_rates(options.learning_rate, steps));

    const auto start = chrono::steady_clock::now();
    const long report_interval = max(1L, steps / 10);
    long step = 0;
    do
    {
        mini_batch batch;
        const size_t num_windows = text.training.size() - window_size;
        for (long i = 0; i < batch_size; ++i)
        {
            const size_t pos = rnd.get_random_64bit_number() % num_windows;
            batch.add(text.training, pos, text.alphabet.size());
        }

        // This only hands the batch to the trainer's thread, which works on it while we
        // prepare the next.
        trainer.train_one_step(batch.windows, batch.next);
        ++step;

        if (step % report_interval == 0 || step == steps)
        {
            const double loss = trainer.get_average_loss();
            trainer.clear_average_loss();
            const chrono::duration<double> time = chrono::steady_clock::now() - start;
            const double steps_per_second = static_cast<double>(step) / time.count();
            cout << "  step " << setw(6) << step << " of " << steps << fixed << setprecision(3)
                 << "   loss " << loss << setprecision(0) << "   " << setw(6)
                 << steps_per_second * batch_size << " characters/s   " << setw(3)
                 << static_cast<double>(steps - step) / steps_per_second << " s left" << endl;
        }
    } while (step < steps && !interrupted);

    // This waits for the trainer's thread, and throws if something went wrong there.
    trainer.get_net();
    return step;
}

// ----------------------------------------------------------------------------------------

// How well does a network know text that it was not trained on?  The loss is the mean of
// -log(p), where p is the probability that it gave to the character that really came next.
// If the held out text is long then windows spread evenly over it are enough.
template <typename NET>
double held_out_loss(NET& net, const corpus& text)
{
    const size_t num_windows = text.held_out.size() - window_size;
    const size_t num_used = min<size_t>(num_windows, 25000);
    const size_t most_at_once = 256;

    double sum = 0;
    for (size_t done = 0; done < num_used;)
    {
        mini_batch batch;
        for (; done < num_used && batch.next.size() < most_at_once; ++done)
            batch.add(text.held_out, done * num_windows / num_used, text.alphabet.size());
        const double loss = net.compute_loss(
            batch.windows.begin(), batch.windows.end(), batch.next.begin());
        sum += loss * static_cast<double>(batch.next.size());
    }
    return sum / static_cast<double>(num_used);
}

// To have something to compare with, this is the loss of a reader who pays no attention to the
// window and only knows how often each character occurs.
double letter_frequency_loss(const corpus& text)
{
    std::vector<double> count(text.alphabet.size(), 1);
    for (auto c : text.training)
        ++count[c];
    const double total = static_cast<double>(text.training.size() + text.alphabet.size());

    double sum = 0;
    for (auto c : text.held_out)
        sum -= log(count[c] / total);
    return sum / static_cast<double>(text.held_out.size());
}

void print_loss(const string& what, double loss)
{
    cout << "  " << left << setw(28) << what << right << fixed << setprecision(3) << setw(8) << loss
         << " nats" << setw(8) << loss / log(2.0) << " bits" << endl;
}

// ----------------------------------------------------------------------------------------

// The beginning of the held out text, from its first whole word on.
symbols first_words(const corpus& text)
{
    auto first = text.held_out.begin();
    const auto last_chance = text.held_out.end() - window_size;
    while (first + 1 < last_chance && text.alphabet[*first] != ' ')
        ++first;
    return symbols(first + 1, first + 1 + window_size);
}

// What we save is the network and what it takes to use it: the alphabet, and a few words to
// begin with when it writes.
struct writer
{
    string alphabet;
    symbols opening;
    net_type net;
};

const string file_tag = "dnn_rms_norm_ex 1\n";

void serialize(const writer& item, ostream& out)
{
    out << file_tag;
    serialize(item.alphabet, out);
    serialize(item.opening, out);
    serialize(item.net, out);
}

void deserialize(writer& item, istream& in)
{
    string found(file_tag.size(), ' ');
    in.read(&found[0], static_cast<streamsize>(found.size()));
    if (!in || found != file_tag)
        throw serialization_error("it was not written by this program.");
    deserialize(item.alphabet, in);
    deserialize(item.opening, in);
    deserialize(item.net, in);

    const size_t size = item.alphabet.size();
    bool fits = layer<1>(item.net).layer_details().get_num_outputs() == size &&
        item.opening.size() == static_cast<size_t>(window_size);
    for (auto c : item.opening)
        fits = fits && c < size;
    if (!fits)
        throw serialization_error("its network and its alphabet don't fit each other.");
}

// A file that is overwritten in place is worth nothing if the machine stops in the middle.  So
// the network goes to a new file, which takes the old one's name when it is complete.
filesystem::path unfinished(const filesystem::path& file) { return file.string() + ".unfinished"; }

void save(writer& item, const filesystem::path& file)
{
    // The network still holds its outputs for the last mini-batch.  We don't want these.
    item.net.clean();

    ofstream out(unfinished(file), ios::binary);
    serialize(item, out);
    out.close();
    if (!out)
        throw error("Can't write " + unfinished(file).string() + ".");
    filesystem::rename(unfinished(file), file);
}

// To find out that a file can't be written after the training would be too late.
void check_that_we_can_save(const filesystem::path& file)
{
    if (filesystem::is_directory(file))
        throw error("Can't save the network as " + file.string() + ": that is a directory.");
    if (!ofstream(unfinished(file), ios::binary))
        throw error("Can't save the network: " + unfinished(file).string() + " can't be written.");
    filesystem::remove(unfinished(file));
}

writer load(const filesystem::path& file)
{
    ifstream in(file, ios::binary);
    if (!in)
        throw error("Can't open " + file.string() + ".");
    writer result;
    try
    {
        deserialize(result, in);
    }
    catch (serialization_error& e)
    {
        throw error("Can't load " + file.string() + ": " + e.what());
    }
    return result;
}

// ----------------------------------------------------------------------------------------

// The raw outputs of a network, one for each character of the alphabet.
std::vector<float> outputs_for(net_type& net, const std::vector<matrix<float>>& windows)
{
    resizable_tensor input;
    net.to_tensor(windows.begin(), windows.end(), input);
    const tensor& output = net.subnet().forward(input);
    return std::vector<float>(output.begin(), output.end());
}

// A network that was saved and loaded has to be the same network, to the last bit.
void check_that_outputs_agree(net_type& a, net_type& b, const corpus& text)
{
    mini_batch batch;
    const size_t num_windows = min<size_t>(256, text.held_out.size() - window_size);
    for (size_t pos = 0; pos < num_windows; ++pos)
        batch.add(text.held_out, pos, text.alphabet.size());

    const std::vector<float> of_a = outputs_for(a, batch.windows);
    const std::vector<float> of_b = outputs_for(b, batch.windows);
    if (of_a.size() != of_b.size() ||
        memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(float)) != 0)
        throw error("The loaded network's outputs differ from those of the saved one.");
    cout << "Loaded it into a new object: " << of_a.size()
         << " outputs on held out text agree bit for bit." << endl;
}

// ----------------------------------------------------------------------------------------

// To make the network write we ask it for the next character, add that to the window, and ask
// again.  We don't always take the character that it thinks most likely, since that soon leads
// in circles, but draw one according to the probabilities.  Raised to the power of
// 1/temperature, with a temperature below 1, the unlikely ones become more so.
void write_text(writer& w, size_t num_characters, double temperature, int seed)
{
    dlib::rand rnd(seed);
    symbols window = w.opening;
    string text;
    for (auto c : window)
        text += w.alphabet[c];
    text = "[" + text + "]";

    for (size_t i = 0; i < num_characters; ++i)
    {
        const std::vector<float> output = outputs_for(
            w.net, {make_window(window.data(), w.alphabet.size())});
        const double highest = *max_element(output.begin(), output.end());
        std::vector<double> weight;
        double total = 0;
        for (float value : output)
        {
            weight.push_back(exp((value - highest) / temperature));
            total += weight.back();
        }

        double draw = rnd.get_random_double() * total;
        unsigned char next = 0;
        while (draw >= weight[next] && next + 1u < weight.size())
            draw -= weight[next++];

        text += w.alphabet[next];
        window.erase(window.begin());
        window.push_back(next);
    }
    cout << wrap_string(text, 4, 4, 78) << endl;
}

// ----------------------------------------------------------------------------------------

int main(int argc, char** argv)
try
{
    command_line_parser parser;
    parser.add_option("h", "Print this help.");
    parser.add_option("text", "Learn from this file instead of Debian's licence texts.", 1);
    parser.add_option("out", "Save the network in this file (default: dnn_rms_norm_ex.dat).", 1);
    parser.add_option("load", "Train nothing: load the network in this file and let it write.", 1);
    parser.add_option("steps", "Train each network for this many steps (default: 2500).", 1);
    parser.add_option("learning-rate", "The highest learning rate (default: 0.002).", 1);
    parser.add_option("seed", "Start all random numbers from this one (default: 0).", 1);
    parser.parse(argc, argv);

    if (parser.option("h"))
    {
        cout << "Usage: dnn_rms_norm_ex [options]\n";
        parser.print_options();
        return 0;
    }
    const char* once[] = {"text", "out", "load", "steps", "learning-rate", "seed"};
    parser.check_one_time_options(once);
    for (const char* about_training : {"text", "out", "steps", "learning-rate"})
        parser.check_incompatible_options("load", about_training);
    parser.check_option_arg_range("steps", 1L, 10000000L);
    parser.check_option_arg_range("learning-rate", 1e-9, 1.0);
    parser.check_option_arg_range("seed", 0, 1000000000);
    if (parser.number_of_arguments() != 0)
        throw error("What is " + parser[0] + " for?  See -h for what this program understands.");

    training_options options;
    options.steps = get_option(parser, "steps", 2500L);
    options.learning_rate = get_option(parser, "learning-rate", 0.002);
    options.seed = get_option(parser, "seed", 0);
    const size_t num_characters = 600;
    const double temperature = 0.5;

    if (parser.option("load"))
    {
        writer w = load(parser.option("load").argument());
        write_text(w, num_characters, temperature, options.seed);
        return 0;
    }

    // The text, and a place for the result.
    const filesystem::path file = get_option(parser, "out", "dnn_rms_norm_ex.dat");
    const corpus text = make_corpus(parser.option("text")
            ? std::set<filesystem::path>{string(parser.option("text").argument())}
            : find_licences());
    check_that_we_can_save(file);

    // Now the network with RMS normalization learns, and is saved, even if Ctrl-C has stopped
    // it halfway.
    signal(SIGINT, note_interrupt);
    cout << "\nA network of 12 blocks with RMS normalization learns:" << endl;
    writer w;
    w.alphabet = text.alphabet;
    w.opening = first_words(text);
    const long steps_taken = train(w.net, text, options);
    save(w, file);
    cout << "Saved it after " << steps_taken << " steps in " << filesystem::absolute(file).string()
         << endl;

    // From here on that file is complete, so there is nothing left to do for Ctrl-C but leave.
    const int exit_code_for_interrupt = 128 + SIGINT;
    const auto say_goodbye = [&]()
    {
        cout << "Interrupted.  This lets the saved network write:\n  " << argv[0] << " --load "
             << file.string() << endl;
    };
    if (interrupted)
    {
        say_goodbye();
        return exit_code_for_interrupt;
    }

    writer loaded = load(file);
    check_that_outputs_agree(w.net, loaded.net, text);

    // The same once more, without the normalization.
    cout << "\nThe same network without normalization learns the same:" << endl;
    plain_net_type plain_net;
    train(plain_net, text, options);
    if (interrupted)
    {
        say_goodbye();
        return exit_code_for_interrupt;
    }
    signal(SIGINT, SIG_DFL);

    // And this is what it was all about.
    cout << "\nLoss per character of held out text:" << endl;
    print_loss("knowing letter frequencies", letter_frequency_loss(text));
    print_loss("without normalization", held_out_loss(plain_net, text));
    print_loss("with RMS normalization", held_out_loss(w.net, text));

    cout << "\nThe loaded network writes, going on from the words in brackets:\n" << endl;
    write_text(loaded, num_characters, temperature, options.seed);
    return 0;
}
catch (exception& e)
{
    cerr << e.what() << endl;
    return 1;
}
