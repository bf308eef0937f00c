// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_MPI_RANKS_H_
#define DLIB_RMS_NORM_MPI_RANKS_H_

// The copies of a program that mpirun started, and how they talk. Without MPI
// (DLIB_RMS_NORM_USE_MPI is not defined) there is one.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <dlib/error.h>
#ifdef DLIB_RMS_NORM_USE_MPI
#include <mpi.h>
#endif

// ----------------------------------------------------------------------------------------

class mpi_ranks
{
    /*!
        WHAT THIS OBJECT REPRESENTS
            All ranks of MPI_COMM_WORLD. A program makes one such object, at its begin. A program
            that mpirun did not start has one rank.

            Each function that talks has to be called by every rank, in the same order, and by one
            thread.
    !*/
public:
    mpi_ranks(int& argc, char**& argv)
    {
#ifdef DLIB_RMS_NORM_USE_MPI
        int provided = 0;
        MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
        MPI_Comm here;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
        MPI_Comm_size(here, &num_ranks_here);
        MPI_Comm_free(&here);
#else
        (void)argc;
        (void)argv;
#endif
    }

    ~mpi_ranks()
    {
#ifdef DLIB_RMS_NORM_USE_MPI
        MPI_Finalize();
#endif
    }

    mpi_ranks(const mpi_ranks&) = delete;
    mpi_ranks& operator=(const mpi_ranks&) = delete;

    int rank() const { return my_rank; }
    int size() const { return num_ranks; }
    int size_on_this_machine() const { return num_ranks_here; }

    std::string library() const
    /*!
        ensures
            - returns the name and version of the MPI library.
    !*/
    {
        std::string name = "none";
#ifdef DLIB_RMS_NORM_USE_MPI
        int length = 0;
        name.resize(MPI_MAX_LIBRARY_VERSION_STRING);
        MPI_Get_library_version(&name[0], &length);
        name.resize(static_cast<std::size_t>(length));
#endif
        return name;
    }

    // ------------------------------------------------------------------------------------

    bool any(bool value) const
    /*!
        ensures
            - returns whether value is true on some rank.
    !*/
    {
        int result = value;
#ifdef DLIB_RMS_NORM_USE_MPI
        MPI_Allreduce(MPI_IN_PLACE, &result, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
#endif
        return result != 0;
    }

    std::string of_first(std::string value) const
    /*!
        ensures
            - returns the value of rank 0.
    !*/
    {
#ifdef DLIB_RMS_NORM_USE_MPI
        unsigned long long length = value.size();
        MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
        value.resize(length);
        const std::size_t most = 1 << 30; // MPI counts in int
        for (std::size_t i = 0; i < value.size(); i += most)
            MPI_Bcast(&value[i], static_cast<int>(std::min(most, value.size() - i)), MPI_CHAR, 0,
                MPI_COMM_WORLD);
#endif
        return value;
    }

    long of_first(long value) const { return std::stol(of_first(std::to_string(value))); }

    template <typename T>
    void check_same(const std::string& name, const T& value) const
    /*!
        requires
            - value can be written to a stream.
        throws
            - dlib::error
                This rank has another value than rank 0. The message names both.
    !*/
    {
        std::ostringstream out;
        out << std::setprecision(std::numeric_limits<double>::max_digits10) << value;
        const std::string expected = of_first(out.str());
        if (out.str() != expected)
        {
            throw dlib::error("Rank " + std::to_string(my_rank) + " and rank 0 differ in " + name +
                ": " + out.str() + " and " + expected + ".");
        }
    }

    double sum(double value) const
    /*!
        requires
            - size() is a power of two.
        ensures
            - returns the sum of all values. Those of neighbours are added first, then sums of two,
              then sums of four, and so on.
    !*/
    {
        std::vector<double> values(static_cast<std::size_t>(num_ranks), value);
#ifdef DLIB_RMS_NORM_USE_MPI
        MPI_Allgather(&value, 1, MPI_DOUBLE, values.data(), 1, MPI_DOUBLE, MPI_COMM_WORLD);
#endif
        for (std::size_t step = 1; step < values.size(); step *= 2)
        {
            for (std::size_t i = 0; i < values.size(); i += 2 * step)
                values[i] += values[i + step];
        }
        return values[0];
    }

    std::size_t sum(float* values, std::size_t num, std::size_t most_at_once = 1 << 18) const
    /*!
        requires
            - size() is a power of two.
            - num and most_at_once > 0 are the same on every rank.
        ensures
            - Adds up the values of all ranks, in the order of the other sum(). So every rank gets
              the same bits, which are those of this order, however the ranks are spread.
            - returns how many values this rank has sent: 2 * num * (1 - 1/size()), give or take
              one in each of the 2 * log2(size()) rounds.

            The rounds are recursive halving and doubling. In the first, neighbours exchange halves,
            and each adds up one. In the next, ranks at distance two exchange halves of that, and so
            on, until each rank has its share of the sum. Then the same way back. What travels far is
            therefore the least.
    !*/
    {
        std::vector<range> kept = {{0, num}};
        std::vector<float> buffer(num_ranks > 1 ? std::min(most_at_once, num) : 0);
        std::size_t num_sent = 0;
        int distance = 1;
        for (; distance < num_ranks; distance *= 2)
        {
            range mine, others;
            halve(kept.back(), distance, mine, others);
            num_sent += others.size();
            for (std::size_t done = 0; done < std::max(mine.size(), others.size());
                 done += most_at_once)
            {
                const range in = mine.piece(done, most_at_once);
                exchange(my_rank ^ distance, values, others.piece(done, most_at_once),
                    buffer.data(), in.size());
                for (std::size_t i = 0; i < in.size(); ++i)
                    values[in.begin + i] += buffer[i];
            }
            kept.push_back(mine);
        }
        while (distance > 1)
        {
            distance /= 2;
            kept.pop_back();
            range mine, others;
            halve(kept.back(), distance, mine, others);
            num_sent += mine.size();
            for (std::size_t done = 0; done < std::max(mine.size(), others.size());
                 done += most_at_once)
            {
                const range in = others.piece(done, most_at_once);
                exchange(my_rank ^ distance, values, mine.piece(done, most_at_once),
                    values + in.begin, in.size());
            }
        }
        return num_sent;
    }

    // ------------------------------------------------------------------------------------

    int fail(const std::string& why) const
    /*!
        ensures
            - prints why, with the rank and its machine, and ends all ranks. With one rank:
              returns 1, for main() to return.
            - may be called by a single rank.
    !*/
    {
        if (num_ranks == 1)
        {
            std::cerr << why << std::endl;
            return 1;
        }
#ifdef DLIB_RMS_NORM_USE_MPI
        char machine[MPI_MAX_PROCESSOR_NAME] = "";
        int length = 0;
        MPI_Get_processor_name(machine, &length);
        std::ostringstream out; // one piece, so that ranks don't write into each other's lines
        out << "Rank " << my_rank << " of " << num_ranks << " on " << machine << ": " << why
            << "\n";
        std::cerr << out.str() << std::flush;
        MPI_Abort(MPI_COMM_WORLD, 1);
#endif
        std::abort();
    }

private:
    struct range
    {
        std::size_t begin = 0;
        std::size_t end = 0;

        std::size_t size() const { return end - begin; }
        range piece(std::size_t first, std::size_t most) const
        {
            const std::size_t b = std::min(end, begin + first);
            return {b, std::min(end, b + most)};
        }
    };

    // The lower of two ranks adds up the lower half.
    void halve(const range& whole, int distance, range& mine, range& others) const
    {
        const std::size_t middle = whole.begin + whole.size() / 2;
        mine = {whole.begin, middle};
        others = {middle, whole.end};
        if ((my_rank & distance) != 0)
            std::swap(mine, others);
    }

    void exchange(int partner,
        const float* values,
        const range& out,
        float* in,
        std::size_t num_in) const
    {
#ifdef DLIB_RMS_NORM_USE_MPI
        MPI_Sendrecv(values + out.begin, static_cast<int>(out.size()), MPI_FLOAT, partner, 0, in,
            static_cast<int>(num_in), MPI_FLOAT, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#else
        (void)partner, (void)values, (void)out, (void)in, (void)num_in;
#endif
    }

    int my_rank = 0;
    int num_ranks = 1;
    int num_ranks_here = 1;
};

#endif // DLIB_RMS_NORM_MPI_RANKS_H_
