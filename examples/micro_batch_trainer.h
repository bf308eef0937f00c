// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_MICRO_BATCH_TRAINER_H_
#define DLIB_RMS_NORM_MICRO_BATCH_TRAINER_H_

// Trains any dlib net on several threads, with the same bits for any number of them: a batch is
// cut into micro-batches, each is one thread's work from input to gradients, and the gradients
// are added in a fixed order.

#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <dlib/dnn.h>
#include <dlib/threads.h>

#ifdef __GNUC__
extern "C" void openblas_set_num_threads(int) __attribute__((weak));
#endif

// ----------------------------------------------------------------------------------------

inline void use_one_blas_thread()
/*!
    ensures
        - Where the BLAS is OpenBLAS, it computes each product in the thread that asks for it. Its
          bits depend on the number of its threads, and these wait by spinning, which takes
          time from ours. For another BLAS set its environment variable, such as
          MKL_NUM_THREADS=1.
!*/
{
#ifdef __GNUC__
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
#endif
}

// ----------------------------------------------------------------------------------------

template <typename net_type, typename solver_type = dlib::adam>
class micro_batch_trainer
{
    /*!
        WHAT THIS OBJECT REPRESENTS
            One step of training in two halves: compute_gradients() and step(). What a step does
            to the net depends on the batch, the number of micro-batches, the solvers and the
            learning rate, to the last bit, and not on the number of threads.

            Each thread has a copy of the net. The copies are made by the constructor; after that
            only parameters are copied to them. So set up the net, and choose its layers'
            options, before.
    !*/
public:
    explicit micro_batch_trainer(net_type& net_,
        const solver_type& solver = solver_type(),
        std::size_t num_micro_batches_ = 8,
        std::size_t num_threads = dlib::default_thread_pool().num_threads_in_pool(),
        std::size_t num_trainers = 1) :
        net(net_),
        num_micro_batches(num_micro_batches_),
        threads(num_threads > 1 ? num_threads : 0),
        solvers(net_type::num_computational_layers, solver)
    /*!
        requires
            - num_micro_batches is a power of two, and num_trainers divides it.
            - Every layer of net_ that has parameters is set up.
            - net_ lives longer than this object.
        ensures
            - use_one_blas_thread() was called.
            - Each layer has a copy of solver.
            - #this object uses at most num_threads threads (0 counts as 1), including their
              share of BLAS.
            - So many trainers share a batch: this one computes num_micro_batches/num_trainers
              micro-batches. Who calls compute_gradients() gives it their part of the batch, and
              adds up what all trainers have computed before calling step().
    !*/
    {
        DLIB_CASSERT(num_micro_batches > 0 && (num_micro_batches & (num_micro_batches - 1)) == 0,
            "\n\t The number of micro-batches has to be a power of two."
                << "\n\t num_micro_batches: " << num_micro_batches);
        DLIB_CASSERT(num_trainers > 0 && num_micro_batches % num_trainers == 0,
            "\n\t num_trainers:      " << num_trainers
                                       << "\n\t num_micro_batches: " << num_micro_batches);
        use_one_blas_thread();

        net.clean();
        const std::size_t num_copies = std::max<std::size_t>(
            1, std::min(num_micro_batches / num_trainers, num_threads));
        for (std::size_t i = 0; i < num_copies; ++i)
            copies.push_back(std::make_unique<net_type>(net));

        std::size_t size = 0;
        dlib::visit_layer_parameters(net, [&](dlib::tensor& params) { size += params.size(); });
        sums.resize(num_micro_batches / num_trainers);
        for (dlib::resizable_tensor& sum : sums)
            sum.set_size(static_cast<long long>(size));
        losses.resize(sums.size());
    }

    std::size_t get_num_micro_batches() const { return num_micro_batches; }
    std::size_t get_num_threads() const { return copies.size(); }

    template <typename data_iterator, typename label_iterator>
    double compute_gradients(data_iterator dbegin, data_iterator dend, label_iterator lbegin)
    /*!
        requires
            - [dbegin, dend) are inputs of the net, and lbegin is the first of as many labels. Both
              are random access iterators.
            - std::distance(dbegin, dend) is a positive multiple of the number of micro-batches
              that this trainer computes.
        ensures
            - Micro-batch i is the i-th of as many equal shares of the range.
            - #get_gradients() is the sum over the micro-batches of what
              compute_parameter_gradients() of the net gives for each: neighbours are added first,
              then sums of two, then sums of four, and so on. So a machine that computes an
              aligned half of the micro-batches computes one of the two last terms.
            - returns the sum of the micro-batches' losses, added in the same order. Where the
              loss is a mean, as in dlib's losses, divide by their number to get the mean over
              all.
            - The net is not changed. An exception of the net or its input comes out of here.
    !*/
    {
        const auto size = std::distance(dbegin, dend);
        const auto num = static_cast<decltype(size)>(sums.size());
        DLIB_CASSERT(size > 0 && size % num == 0,
            "\n\t The batch has to be a multiple of the number of micro-batches."
                << "\n\t batch size:        " << size << "\n\t num_micro_batches: " << num);

        const auto share = size / num;
        in_parallel(copies.size(),
            [&](std::size_t t)
            {
                net_type& copy = *copies[t];
                copy_parameters(copy);
                for (std::size_t i = t; i < sums.size(); i += copies.size())
                {
                    const auto first = static_cast<decltype(size)>(i) * share;
                    losses[i] = copy.compute_parameter_gradients(
                        dbegin + first, dbegin + first + share, lbegin + first);
                    float* out = sums[i].host_write_only();
                    dlib::visit_layer_parameter_gradients(
                        copy, [&](dlib::tensor& g) { out = std::copy(g.begin(), g.end(), out); });
                }
            });

        for (std::size_t step = 1; step < losses.size(); step *= 2)
        {
            for (std::size_t i = 0; i < losses.size(); i += 2 * step)
                losses[i] += losses[i + step];
        }
        std::vector<float*> values;
        for (dlib::resizable_tensor& sum : sums)
            values.push_back(sum.host());
        const std::size_t num_values = sums[0].size();
        in_parallel(copies.size(),
            [&](std::size_t t) {
                add_sums(
                    values, num_values * t / copies.size(), num_values * (t + 1) / copies.size());
            });
        return add_up(losses[0], sums[0]);
    }

    virtual ~micro_batch_trainer() = default;

    // All gradients in one tensor, in the order of dlib::visit_layer_parameter_gradients().
    const dlib::tensor& get_gradients() const { return sums[0]; }
    dlib::tensor& get_gradients() { return sums[0]; }

    void step(double learning_rate, double factor)
    /*!
        ensures
            - Multiplies get_gradients() by factor and lets the solvers change the net's
              parameters by it.
        throws
            - dlib::error
                A gradient is not finite. The message names the layer, and neither the net nor
                the solvers are changed.
    !*/
    {
        using namespace dlib;
        struct update
        {
            std::size_t layer;
            std::size_t begin; // in the sum
            alias_tensor shape;
            std::function<void(const tensor&)> apply;
        };

        std::vector<update> updates;
        std::size_t begin = 0;
        std::size_t index = 0;
        visit_computational_layers(net,
            [&](auto& layer)
            {
                tensor& params = layer.get_layer_params();
                solver_type& solver = solvers[index];
                if (params.size() != 0)
                {
                    updates.push_back({index, begin,
                        alias_tensor(params.num_samples(), params.k(), params.nr(), params.nc()),
                        [&layer, &params, &solver, learning_rate](const tensor& gradient)
                        {
                            if (dlib::get_learning_rate_multiplier(layer) != 0)
                                tt::add(params, params,
                                    solver(static_cast<float>(learning_rate), layer, gradient));
                        }});
                }
                begin += params.size();
                ++index;
            });

        tensor& sum = sums[0];
        std::vector<int> is_finite(updates.size());
        float* const values = sum.host();
        in_parallel(updates.size(),
            [&](std::size_t i)
            {
                const update& u = updates[i];
                is_finite[i] = multiply(
                    values + u.begin, u.shape.size(), static_cast<float>(factor));
            });
        for (std::size_t i = 0; i < updates.size(); ++i)
        {
            if (!is_finite[i])
                throw error("The gradient of " + name_of_layer(updates[i].layer) +
                    ", counted from the output, is not finite.");
        }

        in_parallel(updates.size(),
            [&](std::size_t i)
            {
                const update& u = updates[i];
                u.apply(u.shape(sum, u.begin));
            });
    }

    template <typename data_iterator, typename label_iterator>
    double train_one_step(data_iterator dbegin,
        data_iterator dend,
        label_iterator lbegin,
        double learning_rate)
    /*!
        requires
            - the same as compute_gradients()
        ensures
            - compute_gradients(), then step() with their mean.
            - returns the mean of the micro-batches' losses.
    !*/
    {
        const double factor = 1 / static_cast<double>(num_micro_batches);
        const double loss = compute_gradients(dbegin, dend, lbegin) * factor;
        step(learning_rate, factor);
        return loss;
    }

    friend void serialize(const micro_batch_trainer& item, std::ostream& out)
    /*!
        ensures
            - saves what a later step needs besides the net: the solvers.
    !*/
    {
        using dlib::serialize;
        serialize(std::string("micro_batch_trainer"), out);
        serialize(static_cast<unsigned long>(item.num_micro_batches), out);
        serialize(item.solvers, out);
    }

    friend void deserialize(micro_batch_trainer& item, std::istream& in)
    /*!
        throws
            - dlib::serialization_error
                The file holds something else, or another number of layers or micro-batches. item
                is as it was.
    !*/
    {
        using dlib::deserialize;
        std::string version;
        deserialize(version, in);
        if (version != "micro_batch_trainer")
            throw dlib::serialization_error("Found '" + version + "' instead of a trainer.");
        unsigned long num = 0;
        std::vector<solver_type> solvers;
        deserialize(num, in);
        deserialize(solvers, in);
        if (num != item.num_micro_batches || solvers.size() != item.solvers.size())
        {
            throw dlib::serialization_error("Found a trainer of " + std::to_string(solvers.size()) +
                " layers and " + std::to_string(num) + " micro-batches instead of " +
                std::to_string(item.solvers.size()) + " and " +
                std::to_string(item.num_micro_batches) + ".");
        }
        item.solvers = std::move(solvers);
    }

protected:
    virtual double add_up(double loss, dlib::tensor& gradients)
    /*!
        ensures
            - Adds to gradients those of other trainers that share the batch, in place.
            - returns loss plus theirs. (Here there are no others.)
    !*/
    {
        static_cast<void>(gradients);
        return loss;
    }

private:
    template <typename F>
    void in_parallel(std::size_t num, const F& f)
    {
        const auto f_of = [&](long i) { f(static_cast<std::size_t>(i)); };
        // as many pieces as there are indices: each is some milliseconds of work
        dlib::parallel_for(threads, 0, static_cast<long>(num), f_of, static_cast<long>(num));
    }

    void copy_parameters(net_type& copy)
    {
        std::vector<dlib::tensor*> from;
        dlib::visit_layer_parameters(net, [&](dlib::tensor& t) { from.push_back(&t); });
        std::size_t i = 0;
        dlib::visit_layer_parameters(copy,
            [&](dlib::tensor& to)
            {
                std::copy(from[i]->begin(), from[i]->end(), to.begin());
                ++i;
            });
    }

    static void add_sums(const std::vector<float*>& values, std::size_t begin, std::size_t end)
    {
        for (std::size_t step = 1; step < values.size(); step *= 2)
        {
            for (std::size_t i = 0; i < values.size(); i += 2 * step)
            {
                float* const a = values[i];
                const float* const b = values[i + step];
                for (std::size_t j = begin; j < end; ++j)
                    a[j] += b[j];
            }
        }
    }

    std::string name_of_layer(std::size_t number)
    {
        std::ostringstream out;
        std::size_t index = 0;
        dlib::visit_computational_layers(net,
            [&](auto& layer)
            {
                if (index++ == number)
                    out << layer;
            });
        // what a layer prints is its name, white space, and its options
        return out.str().substr(0, out.str().find_first_of(" \t")) + ", computational layer " +
            std::to_string(number);
    }

    // returns whether all values are finite
    static bool multiply(float* values, std::size_t size, float factor)
    {
        float zero = 0;
        for (std::size_t i = 0; i < size; ++i)
        {
            values[i] *= factor;
            zero += 0 * values[i];
        }
        return zero == 0;
    }

    net_type& net;
    const std::size_t num_micro_batches;
    dlib::thread_pool threads;
    std::vector<std::unique_ptr<net_type>> copies;
    std::vector<solver_type> solvers;
    std::vector<dlib::resizable_tensor> sums; // the gradients of each micro-batch
    std::vector<double> losses;
};

#endif // DLIB_RMS_NORM_MICRO_BATCH_TRAINER_H_
