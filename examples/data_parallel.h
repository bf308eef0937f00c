// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_DATA_PARALLEL_H_
#define DLIB_RMS_NORM_DATA_PARALLEL_H_

// Trains any dlib net on several machines, with the same bits for any number of them: each rank of
// MPI computes the gradients of its share of a batch, they are added up in a fixed order, and every
// rank takes the same step.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <dlib/dnn.h>
#include <dlib/revision.h>
#include "hash_of.h"
#include "micro_batch_trainer.h"
#include "mpi_ranks.h"

#ifdef __GNUC__
extern "C" char* openblas_get_config() __attribute__((weak));
extern "C" char* openblas_get_corename() __attribute__((weak));
#endif

// ----------------------------------------------------------------------------------------

inline std::string blas_library()
/*!
    ensures
        - returns what OpenBLAS says about itself and the processor, or "another" for another BLAS.
!*/
{
#ifdef __GNUC__
    if (openblas_get_config && openblas_get_corename)
        return std::string(openblas_get_config()) + " on " + openblas_get_corename();
#endif
    return "another";
}

template <typename net_type>
std::uint64_t hash_of_net(net_type& net)
/*!
    ensures
        - returns a hash of the parameters of net.
!*/
{
    std::uint64_t hash = 0;
    dlib::visit_layer_parameters(
        net, [&](dlib::tensor& t) { hash = hash_of(t.host(), t.size() * sizeof(float), hash); });
    return hash;
}

// ----------------------------------------------------------------------------------------

struct data_parallel_costs
{
    /*!
        WHAT THIS OBJECT REPRESENTS
            What a rank's steps so far have cost besides computing.
    !*/
    std::size_t num_steps = 0;
    std::size_t bytes_sent = 0;
    double seconds_waiting = 0; // for the slowest rank
    double seconds_adding = 0;  // gradients, sending and receiving them
};

// ----------------------------------------------------------------------------------------

template <typename net_type, typename solver_type = dlib::adam>
class data_parallel_trainer : public micro_batch_trainer<net_type, solver_type>
{
    /*!
        WHAT THIS OBJECT REPRESENTS
            A micro_batch_trainer whose micro-batches are shared by the ranks of MPI. What a step
            does to the net, and what is saved, are the same bits as those of a single
            micro_batch_trainer, for any number of ranks and threads.

            compute_gradients() and train_one_step() take this rank's share of a batch: part rank()
            of size() equal ones, as large on every rank, and a positive multiple of
            get_num_micro_batches()/size(). What they give is that of the whole batch.

            Every rank makes such an object, and calls each function that talks
            (compute_gradients(), train_one_step(), check_that_nets_agree()) as often as the others.
            A rank that leaves one of them by an exception has to call mpi_ranks::fail(), since the
            others wait for it.

            The layers may not remember anything but their parameters: each rank has its own
            dropout_ and its own running averages of bn_.
    !*/
    typedef micro_batch_trainer<net_type, solver_type> base;

public:
    data_parallel_trainer(net_type& net_,
        const mpi_ranks& ranks_,
        const solver_type& solver = solver_type(),
        std::size_t num_micro_batches = 8,
        std::size_t num_threads = dlib::default_thread_pool().num_threads_in_pool()) :
        base(net_, solver, num_micro_batches, num_threads, share_of(ranks_, num_micro_batches)),
        net(net_),
        ranks(ranks_)
    /*!
        requires
            - the same as micro_batch_trainer
            - ranks_ lives longer than this object.
        ensures
            - num_threads is meant for this rank.
        throws
            - dlib::error
                ranks_.size() does not divide the number of micro-batches, or the ranks have
                different nets or libraries. The message says what differs.
    !*/
    {
        check_that_nets_agree();
    }

    void check_that_nets_agree()
    /*!
        throws
            - dlib::error
                The net of this rank has other parameters than that of rank 0.
    !*/
    {
        ranks.check_same("the number of parameters", this->get_gradients().size());
        ranks.check_same("the hash of all parameters", hash_of_net(net));
    }

    const data_parallel_costs& get_costs() const { return costs; }

private:
    typedef std::chrono::steady_clock clock;

    double add_up(double loss, dlib::tensor& gradients) override
    {
        float* const values = gradients.host();
        const auto begin = clock::now();
        const double sum = ranks.sum(loss); // no rank has it before all have a loss
        const auto middle = clock::now();
        const std::size_t num_sent = ranks.sum(values, gradients.size());
        const auto end = clock::now();

        ++costs.num_steps;
        costs.bytes_sent += num_sent * sizeof(float);
        costs.seconds_waiting += std::chrono::duration<double>(middle - begin).count();
        costs.seconds_adding += std::chrono::duration<double>(end - middle).count();
        return sum;
    }

    // Returns how many ranks share the micro-batches. Checked before anything is computed: what
    // gives other bits, or lays out the gradients differently.
    static std::size_t share_of(const mpi_ranks& ranks, std::size_t num_micro_batches)
    {
        ranks.check_same("the version of dlib",
            std::to_string(DLIB_MAJOR_VERSION) + "." + std::to_string(DLIB_MINOR_VERSION) + "." +
                std::to_string(DLIB_PATCH_VERSION));
        ranks.check_same("the BLAS", blas_library());
        ranks.check_same("the MPI library", ranks.library());
        ranks.check_same("the number of micro-batches", num_micro_batches);
        const auto size = static_cast<std::size_t>(ranks.size());
        if (num_micro_batches % size != 0)
        {
            throw dlib::error(std::to_string(size) + " ranks can't share " +
                std::to_string(num_micro_batches) +
                " micro-batches. The number of ranks has to divide that of micro-batches.");
        }
        return size;
    }

    net_type& net;
    const mpi_ranks& ranks;
    data_parallel_costs costs;
};

#endif // DLIB_RMS_NORM_DATA_PARALLEL_H_
