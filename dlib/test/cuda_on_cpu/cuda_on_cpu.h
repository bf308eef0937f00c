// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_CUDA_ON_CPU_H_
#define DLIB_TEST_CUDA_ON_CPU_H_

// Runs CUDA kernels on the CPU to find the faults that a GPU hides: a block's threads are
// fibers that run in random order between rendezvous, blocks run in random order, shared
// memory starts as NaN, every access to global memory is checked and counted, and every access to
// shared memory is checked. What the kernels see of it is in fake/cuda_runtime_api.h; this is what
// tests see, and below it what the two share.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace cuda_on_cpu
{

    // ----------------------------------------------------------------------------------------

    class fault : public std::runtime_error
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Something a kernel did that it must not do. The text tells what, the kernel, its
                block and thread, the line, and the seed that repeats it.
        !*/
    public:
        using std::runtime_error::runtime_error;
    };

    // ----------------------------------------------------------------------------------------

    struct settings
    {
        // The only device there is, and what it says about itself. Launches are checked against
        // that.
        int device = 0;
        std::size_t shared_bytes_per_block = 227 * 1024;

        // There is no device at all.
        bool has_no_device = false;

        // Which launch from now on fails instead of running: 1 is the next, 0 none.
        unsigned failing_launch = 0;

        // Look for blocks of one launch that touch each other's memory, and for threads of one
        // block that do so in shared memory with no rendezvous in between.
        bool check_races = true;

        // Fill launches().
        bool record_launches = false;

        // Fill global_buffer::sectors(). Slow.
        bool count_sectors = false;

        // For grids too large to be run: which blocks of a kernel of this name run. All of them
        // if it returns none.
        std::function<std::vector<long long>(const std::string& kernel)> choose_blocks;
    };

    settings& current_settings();

    class scoped_settings
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Puts the settings back to what they were.
        !*/
    public:
        scoped_settings() :
            before(current_settings())
        {
        }
        ~scoped_settings() { current_settings() = before; }
        scoped_settings(const scoped_settings&) = delete;
        scoped_settings& operator=(const scoped_settings&) = delete;

    private:
        settings before;
    };

    std::uint64_t seed();
    void set_seed(std::uint64_t value);
    /*!
        ensures
            - #seed() == value
            - The order of everything that is launched from now on depends on value alone.
            - At the start of the program seed() is the environment variable CUDA_ON_CPU_SEED or,
              if there is none, a random number.
    !*/

    // ----------------------------------------------------------------------------------------

    struct launch_record
    {
        std::string kernel;
        unsigned grid;
        unsigned threads;
        std::size_t shared_bytes;
        const void* stream;
    };

    std::vector<launch_record>& launches();
    /*!
        ensures
            - returns what was launched since the last launches().clear(), while
              current_settings().record_launches was true.
    !*/

    // ----------------------------------------------------------------------------------------

    enum class access
    {
        read_only,
        read_write
    };

    class global_buffer
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A stretch of memory that kernels may use as global memory while this object
                lives. If there is any such object, kernels may use nothing else.
        !*/
    public:
        global_buffer(std::string name, const void* begin, std::size_t bytes, access allowed);
        ~global_buffer();
        global_buffer(const global_buffer&) = delete;
        global_buffer& operator=(const global_buffer&) = delete;

        std::uint64_t bytes_read() const;
        std::uint64_t bytes_written() const;

        // How many sectors of 32 bytes warps asked for, if current_settings().count_sectors: one
        // instruction of a warp asks for each sector once.
        std::uint64_t sectors() const;

    private:
        void* entry;
    };

    class sparse_memory
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Zeros of any number of bytes, of which only the touched pages take memory: for
                indexes too large for the memory that there is.
        !*/
    public:
        explicit sparse_memory(std::size_t bytes);
        ~sparse_memory();
        sparse_memory(const sparse_memory&) = delete;
        sparse_memory& operator=(const sparse_memory&) = delete;

        void* get() const { return memory; }
        std::size_t size() const { return bytes; }
        void fill_with_zeros();

    private:
        void* memory;
        std::size_t bytes;
    };

    // ----------------------------------------------------------------------------------------
    //                        what fake/cuda_runtime_api.h needs
    // ----------------------------------------------------------------------------------------

    struct location
    {
        const char* file;
        int line;

        static constexpr location current(const char* file = __builtin_FILE(),
            int line = __builtin_LINE())
        {
            return {file, line};
        }
    };

    struct dimension
    {
        unsigned x = 0;
    };

    extern dimension thread_index;
    extern dimension block_index;
    extern dimension block_size;
    extern dimension grid_size;

    struct launch_arguments
    {
        const void* kernel;
        unsigned grid;
        unsigned threads;
        std::size_t shared_bytes;
        const void* stream;
        void (*run_thread)(const void* context);
        const void* context;
    };

    int run(const launch_arguments& launch);
    /*!
        ensures
            - runs every thread of the grid, then returns 0, or cudaErrorLaunchFailure if this
              launch is to fail
        throws
            - fault
    !*/

    void allow_shared_bytes(const void* kernel, std::size_t bytes);
    /*!
        ensures
            - launches of this kernel can have more shared memory than others
    !*/

    void* shared_memory();

    void check_shared_read(const void* p, std::size_t bytes, location here);
    void check_shared_write(const void* p, std::size_t bytes, location here);
    /*!
        requires
            - bytes is a multiple of 4
        ensures
            - fails if another thread of the block has touched these bytes, one of the two writes,
              and neither a __syncthreads() nor a __syncwarp() of all lanes of their common warp
              came in between. Other warp operations order the threads but not their memory.
    !*/

    double random_factor();
    /*!
        ensures
            - returns a number from 1 - 2^-18 to 1 + 2^-18
    !*/

    void check_read(const void* p, std::size_t bytes, std::size_t alignment, location here);
    void
    check_constant_read(const void* p, std::size_t bytes, std::size_t alignment, location here);
    void check_write(const void* p, std::size_t bytes, std::size_t alignment, location here);

    void meet_block(location here);

    std::uint64_t meet_warp(const char* what,
        unsigned mask,
        unsigned source_lane,
        std::uint64_t value,
        bool orders_memory,
        location here);
    /*!
        ensures
            - returns the value that lane source_lane of this warp brought, when every lane in
              mask has come.
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_CUDA_ON_CPU_H_
