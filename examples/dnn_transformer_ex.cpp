// License: Boost Software License   See LICENSE.txt for the full license.
/*
    This is an example illustrating the use of the RMS normalization layer with the deep
    learning tools from the dlib C++ Library.  It trains a language model of the kind that
    Llama made popular, on a CPU, in minutes.  If you have not trained a network with dlib
    before, read dlib's dnn_introduction_ex.cpp first.

    A language model reads a text from the left and says, for each position, which token comes
    next.  Here a token is a character, and the text is whatever you like (--text FILE).  The
    model is a stack of blocks.  A block has two parts, and both add something to what flows
    through the stack:

        x = x + attention(rms_norm(x))       each token looks at the tokens before it
        x = x + feed_forward(rms_norm(x))    each token thinks about what it has seen

    The RMS normalization in front of each part sees one token at a time.  It makes what the
    part reads of size 1, however much the parts below have added up.  That is why such a stack
    can be trained at all learning rates of practical interest, with no further care.

    Where are the tokens in a dlib tensor?  Each token is a sample of its own: a batch of 16
    pieces of 128 characters is a tensor of (2048, features, 1, 1).  So all the layers that dlib
    has for samples work on single tokens here, contrib::rms_norm among them, and only the
    attention has to know where a piece of text ends.  What dlib lacks is in
    transformer_layers.h.  The network type is in transformer_model.h: read that next, it is short.

    The training can be interrupted by Ctrl-C.  It then saves everything that it takes to go on,
    and --resume goes on as if nothing had happened, to the last bit.

    Started by mpirun, the program trains on several machines, again with the same bits: see
    data_parallel.h.
*/

#include "data_parallel.h"
#include "text_corpus.h"
#include "transformer_model.h"
#include "transformer_training.h"

#include <dlib/cmd_line_parser.h>
#include <dlib/string.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace std;
using namespace dlib;
using namespace transformer;

// ----------------------------------------------------------------------------------------

// What a run was asked to do.  All of it is saved with the network, since a training can only
// go on with what it began with.
struct run_options
{
    long num_blocks = 4;
    long features = 128;
    long num_heads = 4;
    long hidden = 344;
    long context = 128;     // characters in a piece of text
    long batch = 16;        // pieces in a batch
    long micro_batches = 8; // see micro_batch_trainer.h
    double learning_rate = 1.5e-3;
    long seed = 0;
};

// Calls f(name, value) for each of the above.
template <typename options, typename F>
void for_each_option(options& o, const F& f)
{
    f("blocks", o.num_blocks);
    f("features", o.features);
    f("heads", o.num_heads);
    f("hidden", o.hidden);
    f("context", o.context);
    f("batch", o.batch);
    f("micro-batches", o.micro_batches);
    f("learning-rate", o.learning_rate);
    f("seed", o.seed);
}

// A point of the curve that we draw in the end.
struct report
{
    long step;
    double loss;
    double held_out_loss;
};

void serialize(const report& item, ostream& out)
{
    serialize(item.step, out);
    serialize(item.loss, out);
    serialize(item.held_out_loss, out);
}

void deserialize(report& item, istream& in)
{
    deserialize(item.step, in);
    deserialize(item.loss, in);
    deserialize(item.held_out_loss, in);
}

// Where a training stands, apart from the network and its solvers.
struct progress
{
    run_options options;
    string alphabet;
    uint64_t text_hash = 0;
    long step = 0;
    long num_steps = 0; // 0 until it is known
    double seconds = 0;
    dlib::rand rnd;
    double loss_sum = 0; // of the steps since the last report
    long num_losses = 0;
    std::vector<report> reports;
};

void serialize(const progress& item, ostream& out)
{
    for_each_option(item.options, [&](const char*, const auto& value) { serialize(value, out); });
    serialize(item.alphabet, out);
    serialize(item.text_hash, out);
    serialize(item.step, out);
    serialize(item.num_steps, out);
    serialize(item.seconds, out);
    serialize(item.rnd, out);
    serialize(item.loss_sum, out);
    serialize(item.num_losses, out);
    serialize(item.reports, out);
}

void deserialize(progress& item, istream& in)
{
    for_each_option(item.options, [&](const char*, auto& value) { deserialize(value, in); });
    deserialize(item.alphabet, in);
    deserialize(item.text_hash, in);
    deserialize(item.step, in);
    deserialize(item.num_steps, in);
    deserialize(item.seconds, in);
    deserialize(item.rnd, in);
    deserialize(item.loss_sum, in);
    deserialize(item.num_losses, in);
    deserialize(item.reports, in);
}

// ----------------------------------------------------------------------------------------

// A checkpoint is a tag, a hash of the contents, and the contents.  The hash tells a broken file
// before anything in it is believed.
const string file_tag = "dnn_transformer_ex 1\n";

// Returns the contents of a checkpoint.
string read_checkpoint(const filesystem::path& file)
{
    ifstream in(file, ios::binary);
    if (!in)
        throw error("Can't open " + file.string() + ".");
    string found(file_tag.size(), ' ');
    in.read(&found[0], static_cast<streamsize>(found.size()));
    if (!in || found != file_tag)
        throw error(file.string() + " was not written by this program.");

    uint64_t hash = 0;
    try
    {
        deserialize(hash, in);
    }
    catch (serialization_error&)
    {
        throw error(
            file.string() + " is broken: it ends after " + to_string(file_tag.size()) + " bytes.");
    }
    const string contents((istreambuf_iterator<char>(in)), istreambuf_iterator<char>());
    if (hash_of(contents.data(), contents.size()) != hash)
        throw error(file.string() + " is broken: its contents don't have the hash that it gives.");
    return contents;
}

// A file that is overwritten in place is worth nothing if the machine stops in the middle.  So a
// checkpoint goes to a new file, which takes the old one's name when it is complete.
filesystem::path unfinished(const filesystem::path& file) { return file.string() + ".unfinished"; }

void write_checkpoint(const filesystem::path& file, const string& contents)
{
    ofstream out(unfinished(file), ios::binary);
    out << file_tag;
    serialize(hash_of(contents.data(), contents.size()), out);
    out << contents;
    out.close();
    if (!out)
        throw error("Can't write " + unfinished(file).string() + ".");
    filesystem::rename(unfinished(file), file);
}

// To find out that a file can't be written after a minute of training would be too late.  And
// what somebody else wrote under this name is not ours to overwrite.
void check_that_we_can_save(const filesystem::path& file)
{
    if (filesystem::exists(file))
    {
        ifstream in(file, ios::binary);
        string found(file_tag.size(), ' ');
        in.read(&found[0], static_cast<streamsize>(found.size()));
        if (!in || found != file_tag)
            throw error(file.string() + " exists and was not written by this program.");
    }
    if (!ofstream(unfinished(file), ios::binary))
        throw error("Can't save the network: " + unfinished(file).string() + " can't be written.");
    filesystem::remove(unfinished(file));
}

// ----------------------------------------------------------------------------------------

// Hardly anything is allowed inside a signal handler, least of all writing a file, so it only
// leaves a note for the training loop.  A second Ctrl-C ends the program at once.  (mpirun makes a
// SIGTERM of a Ctrl-C.)
atomic<bool> interrupted{false};
static_assert(atomic<bool>::is_always_lock_free, "else the handler could wait for a lock");

extern "C" void note_interrupt(int number)
{
    interrupted = true;
    signal(number, SIG_DFL);
}

void handle_interrupts(void (*handler)(int))
{
    signal(SIGINT, handler);
    signal(SIGTERM, handler);
}

class stop_watch
{
public:
    double seconds() const
    {
        return chrono::duration<double>(chrono::steady_clock::now() - start).count();
    }

private:
    chrono::steady_clock::time_point start = chrono::steady_clock::now();
};

// ----------------------------------------------------------------------------------------

// What is needed to let a network write.
struct writing_options
{
    string prompt;
    long length;
    double temperature;
    long top_k;
};

// To make the network write we ask it for the next character, append that to the text, and ask
// again.  We don't always take the character that it thinks most likely, since that soon leads
// in circles, but draw one of the top_k likeliest according to their probabilities.  Raised to
// the power of 1/temperature, with a temperature below 1, the unlikely ones become more so.
template <typename net_type>
void write_text(net_type& net, const progress& state, const writing_options& options)
{
    std::vector<unsigned long> ids;
    for (char c : options.prompt)
    {
        const size_t id = state.alphabet.find(c);
        if (id == string::npos)
            throw error(string("The prompt's character '") + c +
                "' does not occur in the text that the network has learned.");
        ids.push_back(id);
    }

    dlib::rand rnd(state.options.seed);
    const auto context = static_cast<size_t>(state.options.context);
    string text = "[" + options.prompt + "]";
    for (long i = 0; i < options.length; ++i)
    {
        // a text as short as this is one sequence; of a longer one the network sees the end
        const size_t length = min(ids.size(), context);
        set_sequence_length(net, length);
        const tensor& logits = net.subnet()(ids.end() - static_cast<ptrdiff_t>(length), ids.end());
        const size_t size = state.alphabet.size();
        const float* const last = logits.host() + (length - 1) * size;

        std::vector<pair<double, unsigned long>> likely;
        for (size_t id = 0; id < size; ++id)
            likely.emplace_back(last[id], id);
        sort(likely.rbegin(), likely.rend());
        if (options.top_k > 0 && static_cast<size_t>(options.top_k) < size)
            likely.resize(static_cast<size_t>(options.top_k));

        const double highest = likely[0].first;
        double total = 0;
        for (auto& item : likely)
        {
            item.first = exp((item.first - highest) / options.temperature);
            total += item.first;
        }
        double draw = rnd.get_random_double() * total;
        size_t next = 0;
        while (draw >= likely[next].first && next + 1 < likely.size())
            draw -= likely[next++].first;

        ids.push_back(likely[next].second);
        text += state.alphabet[likely[next].second];
    }
    set_sequence_length(net, context);
    cout << wrap_string(text, 4, 4, 78) << endl;
}

// ----------------------------------------------------------------------------------------

// Now the training.  NUM_BLOCKS is part of the network's type, as depth is with dlib.
template <size_t NUM_BLOCKS>
class language_model
{
public:
    using net_type = llama<NUM_BLOCKS>;

    language_model(progress state_, size_t num_threads, const mpi_ranks& ranks_) :
        state(std::move(state_)),
        ranks(ranks_)
    {
        llama_sizes sizes;
        sizes.vocabulary = state.alphabet.size();
        sizes.features = static_cast<unsigned long>(state.options.features);
        sizes.num_heads = static_cast<unsigned long>(state.options.num_heads);
        sizes.hidden = static_cast<unsigned long>(state.options.hidden);
        sizes.max_length = static_cast<unsigned long>(state.options.context);

        // dlib's layers draw their initial weights from generators that are seeded by std::rand()
        srand(static_cast<unsigned>(state.options.seed));
        set_up(net, sizes);
        trainer = make_unique<data_parallel_trainer<net_type>>(net, ranks, adam(0, 0.9f, 0.99f),
            static_cast<size_t>(state.options.micro_batches), num_threads);
    }

    // Takes the network and the solvers from a checkpoint, behind the progress.
    void load(istream& in)
    {
        deserialize(net, in);
        deserialize(*trainer, in);
    }

    void save(const filesystem::path& file)
    {
        if (ranks.rank() != 0)
            return;
        net.clean(); // its last outputs are nothing that we need
        ostringstream out;
        serialize(state, out);
        serialize(net, out);
        serialize(*trainer, out);
        write_checkpoint(file, out.str());
        cout << "Saved after step " << state.step << ": " << filesystem::absolute(file).string()
             << endl;
    }

    // Trains until minutes have passed or num_steps are done, whichever was asked for.  Returns
    // false if somebody pressed Ctrl-C.
    bool train(const text_corpus& text,
        double minutes,
        double seconds_between_checkpoints,
        const filesystem::path& file)
    {
        const double seconds_before = state.seconds;
        const stop_watch watch;
        const long first_step = state.step;
        double last_save = 0;
        std::vector<double> step_times;
        cout << "Training on " << ranks.size() << (ranks.size() == 1 ? " rank" : " ranks")
             << ", threads in each: " << trainer->get_num_threads() << endl;

        while (state.num_steps == 0 || state.step < state.num_steps)
        {
            const token_batch batch = random_batch(state.rnd, text.training,
                static_cast<size_t>(state.options.batch),
                static_cast<size_t>(state.options.context), static_cast<size_t>(ranks.rank()),
                static_cast<size_t>(ranks.size()));
            const double rate = learning_rate_at(
                state.step, state.num_steps, state.options.learning_rate);
            const double before_step = watch.seconds();
            try
            {
                state.loss_sum += trainer->train_one_step(
                    batch.inputs.begin(), batch.inputs.end(), batch.targets.begin(), rate);
            }
            catch (exception& e)
            {
                throw error("In step " + to_string(state.step + 1) + ": " + e.what());
            }
            ++state.num_losses;
            ++state.step;
            state.seconds = seconds_before + watch.seconds();
            step_times.push_back(watch.seconds() - before_step);

            // The learning rate of a step depends on how many there will be.  Once the warm-up is
            // over, whose rates don't, we know how long a step takes.
            if (state.num_steps == 0 && state.step == num_warm_up_steps)
            {
                state.num_steps = ranks.of_first(
                    max(state.step + 1, static_cast<long>(60 * minutes / median(step_times))));
                cout << "There is time for " << state.num_steps << " steps: --steps "
                     << state.num_steps << " will do exactly the same again." << endl;
            }

            const long interval = max(1L, state.num_steps / 30);
            const bool is_last = state.step == state.num_steps;
            if (state.num_steps != 0 && (state.step % interval == 0 || is_last))
            {
                const double held_out = held_out_loss(text, 16);
                const double loss = state.loss_sum / static_cast<double>(state.num_losses);
                state.reports.push_back({state.step, loss, held_out});
                state.loss_sum = 0;
                state.num_losses = 0;
                print_progress(static_cast<double>(state.step - first_step) / watch.seconds());
                trainer->check_that_nets_agree();
            }

            // all ranks stop after the same step
            const bool stops = ranks.any(interrupted);
            if (stops || is_last || watch.seconds() - last_save > seconds_between_checkpoints)
            {
                save(file);
                last_save = watch.seconds();
            }
            if (stops)
                return false;
        }
        if (!step_times.empty())
            print_speed(median(step_times));
        return true;
    }

    double held_out_loss(const text_corpus& text, size_t most_pieces)
    {
        return loss_on(net, text.held_out, most_pieces, static_cast<size_t>(state.options.context));
    }

    void write(const writing_options& options) { write_text(net, state, options); }

    const progress& get_progress() const { return state; }

private:
    static double median(std::vector<double> values)
    {
        const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
        nth_element(values.begin(), middle, values.end());
        return *middle;
    }

    // What a step costs, for tools/scaling_mpi.sh too.
    void print_speed(double step_time)
    {
        const auto tokens = static_cast<double>(state.options.batch * state.options.context);
        const data_parallel_costs& costs = trainer->get_costs();
        const auto per_step = [&](double cost)
        { return cost / static_cast<double>(costs.num_steps); };
        cout << fixed << setprecision(2) << "A step takes " << step_time * 1e3 << " ms on "
             << ranks.size() << (ranks.size() == 1 ? " rank: " : " ranks: ") << setprecision(0)
             << tokens / step_time << " tokens/s";
        if (ranks.size() > 1)
        {
            cout << setprecision(2) << "; in it, " << per_step(costs.seconds_waiting) * 1e3
                 << " ms of waiting for other ranks, and " << per_step(costs.seconds_adding) * 1e3
                 << " ms of adding gradients over ranks, "
                 << per_step(static_cast<double>(costs.bytes_sent)) / 1e6 << " MB sent";
        }
        cout << ".\nThe net's hash: " << hex << hash_of_net(net) << dec << endl;
    }

    void print_progress(double steps_per_second) const
    {
        const report& r = state.reports.back();
        const auto tokens = static_cast<double>(state.options.batch * state.options.context);
        cout << "step " << setw(6) << r.step << " of " << state.num_steps << fixed
             << setprecision(3) << "   loss " << r.loss << "   held out " << r.held_out_loss
             << setprecision(0) << "   " << setw(6) << steps_per_second * tokens << " tokens/s   "
             << setw(4) << static_cast<double>(state.num_steps - r.step) / steps_per_second
             << " s left" << endl;
    }

    progress state;
    const mpi_ranks& ranks;
    net_type net;
    unique_ptr<data_parallel_trainer<net_type>> trainer;
};

// ----------------------------------------------------------------------------------------

// The points of the curve, for a plotting program to draw.
void write_curve(const filesystem::path& file, const std::vector<report>& reports)
{
    ofstream out(file);
    out << "# step  loss  held-out loss\n";
    for (const report& r : reports)
        out << r.step << "\t" << r.loss << "\t" << r.held_out_loss << "\n";
    out.close();
    if (!out)
        throw error("Can't write " + file.string() + ".");
}

// Is the network any better than counting?
void print_comparison(double held_out_loss, const text_corpus& text)
{
    const size_t longest = 5;
    const std::vector<double> counting = losses_of_counting(text, longest);
    cout << "\nLoss per character of the held-out text:\n" << fixed << setprecision(3);
    for (size_t i = 1; i <= longest; ++i)
    {
        cout << "  counting what follows " << i << (i == 1 ? " character   " : " characters  ")
             << counting[i] << " nats" << endl;
    }
    cout << "  this network                      " << held_out_loss << " nats" << endl;
}

// ----------------------------------------------------------------------------------------

struct job
{
    filesystem::path file;
    double minutes;
    double seconds_between_checkpoints;
    size_t num_threads;
    bool has_prompt;
    writing_options writing;
};

template <size_t NUM_BLOCKS>
int train_and_write(const progress& start,
    istream* saved,
    const text_corpus& text,
    job what,
    const mpi_ranks& ranks)
{
    language_model<NUM_BLOCKS> model(start, what.num_threads, ranks);
    if (saved)
        model.load(*saved);

    handle_interrupts(note_interrupt);
    const bool is_done = model.train(
        text, what.minutes, what.seconds_between_checkpoints, what.file);
    if (ranks.rank() != 0)
        return is_done ? 0 : 128 + SIGINT;
    write_curve(what.file.string() + ".curve", model.get_progress().reports);
    if (!is_done)
    {
        cout << "Interrupted.  To go on, give the same options and --resume." << endl;
        return 128 + SIGINT;
    }
    handle_interrupts(SIG_DFL);

    const size_t most_pieces = 4096;
    print_comparison(model.held_out_loss(text, most_pieces), text);

    if (!what.has_prompt)
    {
        // some whole words of the held-out text
        const size_t size = min<size_t>(30, text.held_out.size());
        for (size_t i = 0; i < size; ++i)
            what.writing.prompt += text.alphabet[text.held_out[i]];
        what.writing.prompt.resize(what.writing.prompt.rfind(' ') + 1);
        if (what.writing.prompt.empty())
            what.writing.prompt = text.alphabet[text.held_out[0]];
    }
    cout << "\nThe network writes, going on from the words in brackets:\n" << endl;
    model.write(what.writing);
    return 0;
}

template <size_t NUM_BLOCKS>
int load_and_write(const progress& start, istream& saved, const job& what, const mpi_ranks& ranks)
{
    language_model<NUM_BLOCKS> model(start, what.num_threads, ranks);
    model.load(saved);
    model.write(what.writing);
    return 0;
}

// Depth is part of a network's type, so there is code for some depths only.
template <typename F>
int with_depth(long num_blocks, const F& f)
{
    switch (num_blocks)
    {
    case 2: return f(integral_constant<size_t, 2>());
    case 4: return f(integral_constant<size_t, 4>());
    case 8: return f(integral_constant<size_t, 8>());
    }
    throw error("The number of blocks can be 2, 4 or 8, and not " + to_string(num_blocks) + ".");
}

// ----------------------------------------------------------------------------------------

// Options given together with --resume have to be what the training began with.
void check_that_options_agree(const command_line_parser& parser,
    const run_options& given,
    const progress& saved)
{
    std::vector<pair<string, string>> values;
    for_each_option(saved.options,
        [&](const char* name, const auto& value)
        { values.emplace_back(name, cast_to_string(value)); });
    auto expected = values.begin();
    for_each_option(given,
        [&](const char* name, const auto& value)
        {
            if (parser.option(name) && cast_to_string(value) != expected->second)
            {
                throw error("The training in that file was begun with --" + string(name) + " " +
                    expected->second + ", and can't go on with " + cast_to_string(value) + ".");
            }
            ++expected;
        });
}

// What ranks were asked to do has to be the same, before they do anything together.  The number of
// micro-batches, the libraries and the network are data_parallel_trainer's to check.
void check_that_ranks_agree(const mpi_ranks& ranks,
    const command_line_parser& parser,
    const run_options& options)
{
    for (const char* name : {"resume", "generate", "minutes", "steps"})
    {
        const auto& option = parser.option(name);
        ranks.check_same(string("--") + name,
            option && option.number_of_arguments() == 1 ? option.argument()
                : option                                ? "given"
                                                        : "not given");
    }
    for_each_option(options,
        [&](const char* name, const auto& value) { ranks.check_same(string("--") + name, value); });
}

int run(int argc, char** argv, const mpi_ranks& ranks)
{
    if (ranks.rank() != 0)
        cout.setstate(ios::failbit); // rank 0 reports

    run_options options;
    command_line_parser parser;
    parser.add_option("h", "Print this help.");
    parser.add_option("text", "Learn from this file instead of Debian's licence texts.", 1);
    parser.add_option("file",
        "Save the network and where the training stands in this file (default: "
        "dnn_transformer_ex.dat).",
        1);
    parser.add_option("resume", "Go on with the training in that file.");
    parser.add_option("generate", "Train nothing: let the network in that file write.");
    parser.add_option("minutes", "Train for about so long (default: 2.8).", 1);
    parser.add_option("steps", "Train for so many steps instead.", 1);
    parser.add_option("save-every", "Save after so many seconds (default: 60).", 1);
    parser.add_option("threads",
        "Use so many threads in each rank (default: all there are). They change no bit.", 1);
    parser.add_option("prompt", "Let the network go on from these words.", 1);
    parser.add_option("length", "Let it write so many characters (default: 500).", 1);
    parser.add_option("temperature", "Below 1 it writes more carefully (default: 0.7).", 1);
    parser.add_option("top-k", "Draw from so many likeliest characters (default: 40).", 1);
    for_each_option(options,
        [&](const char* name, auto value)
        {
            parser.add_option(name,
                "Of the network or its training (default: " + cast_to_string(value) + ").", 1);
        });
    parser.parse(argc, argv);
    if (parser.option("h"))
    {
        cout << "Usage: dnn_transformer_ex [options]\n";
        parser.print_options();
        return 0;
    }

    const char* once[] = {"text", "file", "resume", "generate", "minutes", "steps", "save-every",
        "threads", "prompt", "length", "temperature", "top-k"};
    parser.check_one_time_options(once);
    for_each_option(options,
        [&](const char* name, const auto&)
        {
            const char* one[] = {name};
            parser.check_one_time_options(one);
        });
    parser.check_incompatible_options("resume", "generate");
    parser.check_incompatible_options("minutes", "steps");
    for (const char* about_training : {"text", "minutes", "steps", "save-every"})
        parser.check_incompatible_options("generate", about_training);
    parser.check_incompatible_options("resume", "steps");
    parser.check_incompatible_options("resume", "minutes");
    parser.check_option_arg_range("minutes", 0.1, 10000.0);
    parser.check_option_arg_range("steps", 1L, 100000000L);
    parser.check_option_arg_range("save-every", 0.0, 1e9);
    parser.check_option_arg_range("threads", 1L, 1024L);
    parser.check_option_arg_range("length", 0L, 1000000L);
    parser.check_option_arg_range("temperature", 0.01, 100.0);
    parser.check_option_arg_range("top-k", 1L, 256L);
    parser.check_option_arg_range("learning-rate", 1e-9, 1e30);
    parser.check_option_arg_range("seed", 0L, 1000000000L);
    for (const char* size : {"features", "heads", "hidden", "context", "batch", "micro-batches"})
        parser.check_option_arg_range(size, 1L, 65536L);
    if (parser.number_of_arguments() != 0)
        throw error("What is " + parser[0] + " for?  See -h for what this program understands.");

    for_each_option(
        options, [&](const char* name, auto& value) { value = get_option(parser, name, value); });
    if (options.features % (2 * options.num_heads) != 0)
        throw error("The number of features has to be a multiple of twice the number of heads.");
    const long m = options.micro_batches;
    if ((m & (m - 1)) != 0 || options.batch % m != 0)
        throw error("The number of micro-batches has to be a power of two that divides the batch.");
    check_that_ranks_agree(ranks, parser, options);

    job what;
    what.file = get_option(parser, "file", "dnn_transformer_ex.dat");
    what.minutes = get_option(parser, "minutes", 2.8);
    what.seconds_between_checkpoints = get_option(parser, "save-every", 60.0);
    what.num_threads = get_option(parser, "threads",
        max<size_t>(1,
            default_thread_pool().num_threads_in_pool() /
                static_cast<size_t>(ranks.size_on_this_machine())));
    what.has_prompt = parser.option("prompt");
    what.writing.prompt = get_option(parser, "prompt", "The ");
    what.writing.length = get_option(parser, "length", 500L);
    what.writing.temperature = get_option(parser, "temperature", 0.7);
    what.writing.top_k = get_option(parser, "top-k", 40L);
    if (what.has_prompt && what.writing.prompt.empty())
        throw error("The prompt needs at least one character.");

    progress state;
    unique_ptr<istringstream> saved;
    if (parser.option("resume") || parser.option("generate"))
    {
        saved = make_unique<istringstream>(
            ranks.of_first(ranks.rank() == 0 ? read_checkpoint(what.file) : ""));
        deserialize(state, *saved);
        check_that_options_agree(parser, options, state);
    }
    if (parser.option("generate"))
    {
        return with_depth(state.options.num_blocks,
            [&](auto depth) { return load_and_write<depth.value>(state, *saved, what, ranks); });
    }

    // The text.  Each held-out piece has a context and one more character.
    if (!saved)
        state.options = options;
    const text_corpus text = read_corpus(parser.option("text")
            ? std::set<filesystem::path>{string(parser.option("text").argument())}
            : find_licences(),
        static_cast<size_t>(state.options.context) + 1);
    cout << text.training.size() << " characters to train on, " << text.held_out.size()
         << " held out, " << text.alphabet.size() << " different ones." << endl;
    ranks.check_same("the hash of the text", hash_of(text));

    if (saved)
    {
        if (state.text_hash != hash_of(text) || state.alphabet != text.alphabet)
            throw error("The training in " + what.file.string() + " was begun with another text.");
        cout << "Going on after step " << state.step << "." << endl;
    }
    else
    {
        state.alphabet = text.alphabet;
        state.text_hash = hash_of(text);
        state.num_steps = get_option(parser, "steps", 0L);
        state.rnd.set_seed(cast_to_string(options.seed));
        if (ranks.rank() == 0)
            check_that_we_can_save(what.file);
    }
    what.writing.prompt = what.has_prompt ? what.writing.prompt : "";
    return with_depth(state.options.num_blocks,
        [&](auto depth)
        { return train_and_write<depth.value>(state, saved.get(), text, what, ranks); });
}

int main(int argc, char** argv)
{
    const mpi_ranks ranks(argc, argv);
    try
    {
        return run(argc, argv, ranks);
    }
    catch (exception& e)
    {
        return ranks.fail(e.what());
    }
}
