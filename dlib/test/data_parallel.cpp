// License: Boost Software License   See LICENSE.txt for the full license.

// Training over MPI: run by tools/test_mpi.sh with one, two and four ranks. What ranks compute
// together is compared with what one computes alone, bit for bit.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/rms_norm.h>
#include "../../examples/data_parallel.h"
#include "test_cases.h"

namespace
{

    using namespace test;
    using namespace dlib;

    // ----------------------------------------------------------------------------------------

    template <typename F>
    std::string message_of(const F& f)
    {
        try
        {
            f();
        }
        catch (error& e)
        {
            return e.what();
        }
        return "";
    }

    void check_message(const std::string& message, const std::vector<std::string>& parts)
    {
        for (const std::string& part : parts)
            DLIB_TEST_MSG(
                message.find(part) != std::string::npos, "'" << part << "' is not in: " << message);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    std::vector<std::vector<T>> random_values(int num_ranks, std::size_t num)
    {
        std::mt19937 rnd(static_cast<unsigned>(num));
        std::normal_distribution<T> gaussian;
        std::vector<std::vector<T>> values(
            static_cast<std::size_t>(num_ranks), std::vector<T>(num));
        for (auto& of_rank : values)
        {
            for (T& value : of_rank)
                value = gaussian(rnd);
        }
        return values;
    }

    // neighbours first, written as the definition says
    template <typename T>
    T sum_of(const std::vector<std::vector<T>>& values,
        std::size_t i,
        std::size_t begin,
        std::size_t end)
    {
        if (end - begin == 1)
            return values[begin][i];
        const std::size_t middle = begin + (end - begin) / 2;
        return sum_of(values, i, begin, middle) + sum_of(values, i, middle, end);
    }

    void sums_have_their_order(const mpi_ranks& ranks)
    {
        const auto size = static_cast<std::size_t>(ranks.size());
        const auto me = static_cast<std::size_t>(ranks.rank());
        std::size_t num_that_show_the_order = 0;
        for (std::size_t num : {0, 1, 2, 3, 5, 8, 4099})
        {
            const auto values = random_values<float>(ranks.size(), num);
            // not too many messages: ranks that share a core take turns
            for (std::size_t most_at_once : {num < 10 ? std::size_t(1) : 700, std::size_t(1000000)})
            {
                auto mine = values[me];
                const std::size_t num_sent = ranks.sum(mine.data(), num, most_at_once);
                for (std::size_t i = 0; i < num; ++i)
                {
                    DLIB_TEST_MSG(mine[i] == sum_of(values, i, 0, size),
                        "value " << i << " of " << num << ", " << most_at_once << " at once");
                    float in_a_row = 0;
                    for (const auto& of_rank : values)
                        in_a_row += of_rank[i];
                    num_that_show_the_order += mine[i] != in_a_row;
                }
                const double expected = 2 * static_cast<double>(num) *
                    (1 - 1 / static_cast<double>(size));
                DLIB_TEST(std::abs(static_cast<double>(num_sent) - expected) <=
                    2 * std::log2(static_cast<double>(size)));
            }
        }
        DLIB_TEST(ranks.size() < 4 || num_that_show_the_order > 100);

        num_that_show_the_order = 0;
        const auto values = random_values<double>(ranks.size(), 100);
        for (std::size_t i = 0; i < 100; ++i)
        {
            const double sum = ranks.sum(values[me][i]);
            DLIB_TEST(sum == sum_of(values, i, 0, size));
            double in_a_row = 0;
            for (const auto& of_rank : values)
                in_a_row += of_rank[i];
            num_that_show_the_order += sum != in_a_row;
        }
        DLIB_TEST(ranks.size() < 4 || num_that_show_the_order > 10);
    }

    void ranks_agree(const mpi_ranks& ranks)
    {
        const bool is_first = ranks.rank() == 0;
        const bool is_last = ranks.rank() + 1 == ranks.size();
        DLIB_TEST(ranks.any(is_first) && ranks.any(is_last) && ranks.any(true));
        DLIB_TEST(!ranks.any(false));

        std::string text(100000, '\0');
        text += "end";
        DLIB_TEST(ranks.of_first(is_first ? text : "") == text);
        DLIB_TEST(ranks.of_first(is_first ? "" : text).empty());
        DLIB_TEST(ranks.of_first(static_cast<long>(ranks.rank()) - 7) == -7);

        DLIB_TEST(message_of([&] { ranks.check_same("x", 0.1); }).empty());
        const auto differ = [&](const auto& first, const auto& others)
        { return message_of([&] { ranks.check_same("what", is_first ? first : others); }); };
        const std::string rank = std::to_string(ranks.rank());
        if (is_first)
        {
            DLIB_TEST(differ(1, 2).empty());
            DLIB_TEST(differ(std::string("1 2"), std::string("1 2 ")).empty());
            DLIB_TEST(differ(0.1, std::nextafter(0.1, 1.0)).empty());
        }
        else
        {
            check_message(differ(1, 2), {"Rank " + rank, "what", "2 and 1"});
            check_message(differ(std::string("1 2"), std::string("1 2 ")), {"what"});
            check_message(differ(0.1, std::nextafter(0.1, 1.0)), {"0.100000000000000", "what"});
        }
    }

    // ----------------------------------------------------------------------------------------
    //                            a net with each of our layers
    // ----------------------------------------------------------------------------------------

    using net_type = loss_multiclass_log<fc<3,
        contrib::rms_norm<fc<8,
            contrib::rms_norm_row<
                relu<contrib::rms_norm_channel<con<4, 3, 3, 1, 1, input<matrix<float>>>>>>>>>>;

    std::string bytes_of(net_type& net)
    {
        net.clean();
        std::ostringstream out;
        serialize(net, out);
        return out.str();
    }

    struct batches
    {
        batches()
        {
            std::mt19937 rnd(1);
            std::normal_distribution<float> gaussian;
            for (unsigned long i = 0; i < 32; ++i)
            {
                matrix<float> m(7, 6);
                for (float& value : m)
                    value = gaussian(rnd) + static_cast<float>(i % 3) * 0.2f;
                samples.push_back(m);
                labels.push_back(i % 3);
            }
        }

        std::vector<matrix<float>> samples;
        std::vector<unsigned long> labels;
    };

    net_type new_net(const batches& data, unsigned seed = 1)
    {
        std::srand(seed); // dlib's layers start their random numbers with std::rand()
        net_type net;
        net(data.samples[0]);
        return net;
    }

    template <typename trainer_type>
    std::vector<double> train(trainer_type& trainer,
        const batches& data,
        int num_steps,
        int part = 0,
        int num_parts = 1)
    {
        const auto size = static_cast<std::ptrdiff_t>(data.samples.size()) / num_parts;
        const auto begin = data.samples.begin() + part * size;
        std::vector<double> losses;
        for (int i = 0; i < num_steps; ++i)
            losses.push_back(trainer.train_one_step(
                begin, begin + size, data.labels.begin() + part * size, 0.02));
        return losses;
    }

    template <typename trainer_type>
    std::string bytes_of_trainer(const trainer_type& trainer)
    {
        std::ostringstream out;
        serialize(trainer, out);
        return out.str();
    }

    void bits_are_those_of_one(const mpi_ranks& ranks)
    {
        const batches data;
        net_type net = new_net(data);
        micro_batch_trainer<net_type> alone(net, adam(), 8, 1);
        const std::vector<double> losses = train(alone, data, 20);
        DLIB_TEST(losses.back() < 0.7 * losses.front());

        for (std::size_t num_threads : {1, 2})
        {
            net_type shared_net = new_net(data);
            data_parallel_trainer<net_type> trainer(shared_net, ranks, adam(), 8, num_threads);
            DLIB_TEST(train(trainer, data, 20, ranks.rank(), ranks.size()) == losses);
            DLIB_TEST(bytes_of(shared_net) == bytes_of(net));
            DLIB_TEST(bytes_of_trainer(trainer) == bytes_of_trainer(alone));
            trainer.check_that_nets_agree();

            const data_parallel_costs& costs = trainer.get_costs();
            DLIB_TEST(costs.num_steps == 20);
            DLIB_TEST((costs.bytes_sent > 0) == (ranks.size() > 1));
        }

        // other micro-batches give other bits: the test would see it
        net_type other_net = new_net(data);
        data_parallel_trainer<net_type> other(other_net, ranks, adam(), 16, 1);
        DLIB_TEST(train(other, data, 20, ranks.rank(), ranks.size()) != losses);
    }

    void trainings_go_on(const mpi_ranks& ranks)
    {
        const batches data;
        net_type net = new_net(data);
        micro_batch_trainer<net_type> alone(net, adam(), 8, 1);
        train(alone, data, 5);
        std::stringstream saved;
        net.clean();
        serialize(net, saved);
        serialize(alone, saved);
        train(alone, data, 5);

        // begun by one, carried on by all, and then by one again
        net_type shared_net = new_net(data, 2);
        data_parallel_trainer<net_type> trainer(shared_net, ranks, adam(), 8, 1);
        deserialize(shared_net, saved);
        deserialize(trainer, saved);
        train(trainer, data, 5, ranks.rank(), ranks.size());
        DLIB_TEST(bytes_of(shared_net) == bytes_of(net));
        const std::vector<double> losses = train(alone, data, 3);

        std::stringstream saved_again;
        serialize(shared_net, saved_again);
        serialize(trainer, saved_again);
        net_type last_net = new_net(data, 3);
        micro_batch_trainer<net_type> last(last_net, adam(), 8, 1);
        deserialize(last_net, saved_again);
        deserialize(last, saved_again);
        DLIB_TEST(train(last, data, 3) == losses);
        DLIB_TEST(bytes_of(last_net) == bytes_of(net));
    }

    // ----------------------------------------------------------------------------------------

    void gradients_that_are_not_finite(const mpi_ranks& ranks)
    {
        batches data;
        net_type net = new_net(data);
        data_parallel_trainer<net_type> trainer(net, ranks, adam(), 8, 1);
        train(trainer, data, 3, ranks.rank(), ranks.size());
        const std::string before = bytes_of(net);
        const std::string trainer_before = bytes_of_trainer(trainer);

        // a single rank sees it, and all have to stop
        data.samples.back()(0) = std::numeric_limits<float>::infinity();
        check_message(message_of([&] { train(trainer, data, 1, ranks.rank(), ranks.size()); }),
            {"gradient of rms_norm_channel,", "layer 5", "not finite"});
        DLIB_TEST(bytes_of(net) == before);
        DLIB_TEST(bytes_of_trainer(trainer) == trainer_before);
    }

    void ranks_that_do_not_fit(const mpi_ranks& ranks)
    {
        const batches data;
        net_type net = new_net(data);
        const auto size = static_cast<std::size_t>(ranks.size());
        if (size > 1)
        {
            check_message(
                message_of([&]
                    { data_parallel_trainer<net_type> trainer(net, ranks, adam(), size / 2, 1); }),
                {std::to_string(size) + " ranks", std::to_string(size / 2) + " micro-batches"});
        }

        net_type other = new_net(data, static_cast<unsigned>(1 + ranks.rank()));
        const std::string message = message_of(
            [&] { data_parallel_trainer<net_type> trainer(other, ranks, adam(), 8, 1); });
        if (ranks.rank() == 0)
            DLIB_TEST(message.empty());
        else
            check_message(message, {"Rank " + std::to_string(ranks.rank()), "parameters"});

        data_parallel_trainer<net_type> trainer(net, ranks, adam(), 8, 1);
        if (ranks.rank() != 0)
            visit_layer_parameters(net, [](tensor& t) { t = 1; });
        const std::string later = message_of([&] { trainer.check_that_nets_agree(); });
        DLIB_TEST(later.empty() == (ranks.rank() == 0));
    }

    // ----------------------------------------------------------------------------------------

    class data_parallel_tester : public tester
    {
    public:
        data_parallel_tester() :
            tester("test_data_parallel", "Training over the ranks of MPI.")
        {
        }

        void perform_test() override
        {
            int argc = 0;
            char** argv = nullptr;
            const mpi_ranks ranks(argc, argv);
            const auto run = [&](const std::string& name, void (*f)(const mpi_ranks&))
            {
                run_case(name + ", rank " + std::to_string(ranks.rank()) + " of " +
                        std::to_string(ranks.size()),
                    [&] { f(ranks); });
            };
            run("sums have their order", sums_have_their_order);
            run("ranks agree", ranks_agree);
            run("bits are those of one", bits_are_those_of_one);
            run("trainings go on", trainings_go_on);
            run("gradients that are not finite", gradients_that_are_not_finite);
            run("ranks that do not fit", ranks_that_do_not_fit);
        }
    } a_data_parallel_tester;

    // ----------------------------------------------------------------------------------------

}
