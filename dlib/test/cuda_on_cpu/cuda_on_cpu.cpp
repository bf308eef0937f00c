// License: Boost Software License   See LICENSE.txt for the full license.

// The engine of cuda_on_cpu.h: fibers, rendezvous, checks of memory accesses.

#include "cuda_on_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <sstream>
#include <tuple>

#include <boost/context/detail/fcontext.hpp>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu
{

    dimension thread_index;
    dimension block_index;
    dimension block_size;
    dimension grid_size;

    namespace
    {
        constexpr unsigned warp_size = 32;
        constexpr unsigned max_threads = 1024;
        constexpr unsigned max_grid = 0x7fffffff;
        constexpr std::size_t shared_bytes_of_all = 48 * 1024;
        constexpr int launch_failure = 719;

        // ----------------------------------------------------------------------------------------
        //                                      memory
        // ----------------------------------------------------------------------------------------

        // A NaN as float and as double, and a senseless index.
        constexpr std::uint32_t uninitialized = 0xfff4dead;
        constexpr std::uint32_t guard_word = 0xfff5feed;

        // Who touched four bytes of global memory in this launch: the number of a block (from 1),
        // 0 for none, or many.
        constexpr std::uint32_t many = 0xffffffff;

        struct touched
        {
            std::uint32_t writer;
            std::uint32_t reader;
        };

        struct buffer_entry
        {
            std::string name;
            std::uintptr_t begin;
            std::uintptr_t end;
            access allowed;
            std::uint64_t bytes_read = 0;
            std::uint64_t bytes_written = 0;
            std::uint64_t sectors = 0;
            std::unique_ptr<sparse_memory> history;

            touched* at(std::uintptr_t p)
            {
                return static_cast<touched*>(history->get()) + (p - begin) / sizeof(std::uint32_t);
            }
        };

        std::vector<std::unique_ptr<buffer_entry>> buffers;

        // Which thread touched four bytes of shared memory, and when. Time is the number of
        // rendezvous that came before.
        struct shared_access
        {
            std::uint64_t time;
            std::uint16_t warp;
            std::uint16_t lane; // or many_lanes of this warp
            int line;
        };

        constexpr std::uint16_t many_lanes = warp_size;

        struct shared_word
        {
            shared_access writer;
            shared_access reader;
            shared_access reader_of_another_warp; // the last one
        };

        class shared_space
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The dynamic shared memory of the block that runs, and who touched it.
            !*/
        public:
            void* get() { return lines.data(); }

            void start_block(std::size_t bytes_)
            {
                bytes = bytes_;
                lines.resize(bytes / sizeof(line) + 1);
                history.resize(bytes / sizeof(std::uint32_t) + 1);
                for (line& l : lines)
                    std::fill_n(l.words, 32, uninitialized);
            }

            std::size_t size() const { return bytes; }

            std::size_t offset_of(const void* p) const
            {
                return reinterpret_cast<std::uintptr_t>(p) -
                    reinterpret_cast<std::uintptr_t>(lines.data());
            }

            shared_word& at(std::size_t offset) { return history[offset / sizeof(std::uint32_t)]; }

        private:
            struct alignas(128) line
            {
                std::uint32_t words[32];
            };

            std::size_t bytes = 0;
            std::vector<line> lines;
            std::vector<shared_word> history;
        };

        // ----------------------------------------------------------------------------------------
        //                                  threads and blocks
        // ----------------------------------------------------------------------------------------

        namespace context = boost::context::detail;

        constexpr std::size_t page_bytes = 4096;
        constexpr std::size_t stack_bytes = 16 * page_bytes;

        enum class thread_state
        {
            ready,
            at_barrier,
            at_warp_operation,
            exited
        };

        struct fiber
        {
            context::fcontext_t context = nullptr;
            const void* stack = nullptr;
            std::size_t stack_bytes = 0;
            void* fake_stack = nullptr; // AddressSanitizer's
        };

        struct gpu_thread
        {
            fiber self;
            unsigned index;
            thread_state state;
            location where;

            // what it brought to a warp operation, and what it gets there
            const char* operation;
            unsigned mask;
            unsigned source_lane;
            std::uint64_t value;
            std::uint64_t result;
        };

        // One access of a thread, for the count of sectors: the n-th access at a line by the lanes
        // of a warp is one instruction.
        struct sector_access
        {
            buffer_entry* buffer;
            unsigned warp;
            int line;
            unsigned ordinal;
            std::uintptr_t sector;

            bool operator<(const sector_access& b) const
            {
                return std::tie(buffer, warp, line, ordinal, sector) <
                    std::tie(b.buffer, b.warp, b.line, b.ordinal, b.sector);
            }
            bool operator==(const sector_access& b) const { return !(*this < b) && !(b < *this); }
        };

        struct engine
        {
            std::mutex one_launch_at_a_time;
            settings options;
            std::vector<launch_record> launches;
            std::uint64_t seed = 0;
            std::uint64_t random_state = 0;
            unsigned long num_launches = 0;

            launch_arguments launch;
            std::vector<unsigned> order; // the blocks, as they run
            std::uint32_t block = 0;     // 1 + position in order of the block that runs
            shared_space shared;

            std::vector<gpu_thread> threads;
            std::vector<unsigned> ready;
            bool warps_run_ahead = false;
            std::vector<unsigned> warps;
            unsigned at_barrier = 0;
            std::uint64_t time = 1;          // how many rendezvous there were, in all launches
            std::uint64_t block_met = 0;     // when the block had its last
            std::uint64_t warp_met[32] = {}; // when each warp had its last
            gpu_thread* current = nullptr;
            std::string failure;
            char* stacks = nullptr;

            fiber caller; // of launch()

            std::vector<sector_access> sectors;
            std::map<std::tuple<const buffer_entry*, unsigned, int>, unsigned> accesses_at_line;
            std::map<const void*, std::size_t> shared_bytes_of; // by kernel

            engine()
            {
                const char* from_outside = std::getenv("CUDA_ON_CPU_SEED");
                if (from_outside != nullptr)
                    seed = std::strtoull(from_outside, nullptr, 10);
                else
                    seed = std::random_device()();
            }
        } gpu;

        unsigned random_below(std::size_t n)
        {
            // splitmix64
            std::uint64_t z = gpu.random_state += 0x9e3779b97f4a7c15;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
            z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
            z ^= z >> 31;
            return static_cast<unsigned>(((z >> 32) * n) >> 32);
        }

        std::string name_of_kernel()
        {
            Dl_info info;
            if (dladdr(gpu.launch.kernel, &info) == 0 || info.dli_saddr != gpu.launch.kernel)
                return "(a kernel without a name)";
            int status = 0;
            const std::unique_ptr<char, void (*)(void*)> name(
                abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
            return status == 0 ? name.get() : info.dli_sname;
        }

        std::string to_string(const location& l)
        {
            const char* slash = std::strrchr(l.file, '/');
            return std::string(slash ? slash + 1 : l.file) + ":" + std::to_string(l.line);
        }

        bool same(const location& a, const location& b)
        {
            return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
        }

        std::string block_name(std::uint32_t number)
        {
            if (number == many)
                return "more than one block";
            return "block " + std::to_string(gpu.order[number - 1]);
        }

        std::string describe(const std::string& what, const std::string& who)
        {
            std::ostringstream sout;
            sout << "In kernel " << name_of_kernel() << ", " << who << ":\n"
                 << what << "\n"
                 << "grid " << gpu.launch.grid << ", " << gpu.launch.threads << " threads, "
                 << gpu.launch.shared_bytes << " bytes of shared memory, launch number "
                 << gpu.num_launches << " since seed " << gpu.seed
                 << " (CUDA_ON_CPU_SEED=" << gpu.seed << " repeats it)";
            return sout.str();
        }

        // ----------------------------------------------------------------------------------------

        void arrived(fiber& self, const context::transfer_t& transfer)
        {
            fiber& before = *static_cast<fiber*>(transfer.data);
            before.context = transfer.fctx;
#ifdef __SANITIZE_ADDRESS__
            __sanitizer_finish_switch_fiber(self.fake_stack, &before.stack, &before.stack_bytes);
#else
            static_cast<void>(self);
#endif
        }

        void switch_fibers(fiber& from, fiber& to)
        {
#ifdef __SANITIZE_ADDRESS__
            __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
            arrived(from, context::jump_fcontext(to.context, &from));
        }

        void run_others(fiber& self)
        /*!
            ensures
                - Goes on with some thread that is ready, or with the caller of launch() if there is
                  none. Returns when it is the turn of self again.
        !*/
        {
            if (gpu.ready.empty() || !gpu.failure.empty())
            {
                switch_fibers(self, gpu.caller);
                return;
            }
            if (!gpu.warps_run_ahead)
                std::swap(gpu.ready[random_below(gpu.ready.size())], gpu.ready.back());
            gpu.current = &gpu.threads[gpu.ready.back()];
            gpu.ready.pop_back();
            thread_index.x = gpu.current->index;
            if (&gpu.current->self != &self)
                switch_fibers(self, gpu.current->self);
        }

        void wait(thread_state state)
        {
            gpu_thread& self = *gpu.current;
            self.state = state;
            run_others(self.self);
        }

        struct failure_of_thread
        {
            std::string what;
        };

        [[noreturn]] void fail(std::string what, const location& here)
        {
            gpu.current->where = here;
            throw failure_of_thread{std::move(what)};
        }

        void run_forever(context::transfer_t from)
        {
            arrived(gpu.current->self, from);
            for (;;)
            {
                try
                {
                    gpu.launch.run_thread(gpu.launch.context);
                }
                catch (failure_of_thread& failure)
                {
                    gpu.failure = std::move(failure.what);
                }
                wait(thread_state::exited);
            }
        }

        void make_threads()
        {
            constexpr std::size_t stride = stack_bytes + page_bytes;
            if (gpu.stacks == nullptr)
            {
                void* p = mmap(nullptr, max_threads * stride, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                if (p == MAP_FAILED)
                    throw std::bad_alloc();
                gpu.stacks = static_cast<char*>(p);
            }
            gpu.threads.resize(max_threads);
            for (unsigned i = 0; i < gpu.threads.size(); ++i)
            {
                gpu_thread& t = gpu.threads[i];
                char* guard = gpu.stacks + i * stride;
                char* stack = guard + page_bytes;
                mprotect(guard, page_bytes, PROT_NONE);
#ifdef __SANITIZE_ADDRESS__
                // after a fault there may be the remains of calls that never returned
                __asan_unpoison_memory_region(stack, stack_bytes);
#endif
                // Stacks that all started at the same place in a page would share a few cache
                // lines.
                const std::size_t shift = i % 32 * 64;
                t.index = i;
                t.self.context = context::make_fcontext(
                    stack + stack_bytes - shift, stack_bytes - shift, run_forever);
                t.self.stack = stack;
                t.self.stack_bytes = stack_bytes;
                t.self.fake_stack = nullptr;
            }
        }

        template <typename iterator>
        void shuffle(iterator begin, iterator end)
        {
            for (auto n = static_cast<std::size_t>(end - begin); n > 1; --n, ++begin)
                std::iter_swap(begin, begin + static_cast<std::ptrdiff_t>(random_below(n)));
        }

        void make_ready(unsigned first, unsigned mask)
        /*!
            ensures
                - The lanes in mask of the warp that begins with thread first are ready, on top of
                  those that are so already.
        !*/
        {
            const auto before = static_cast<std::ptrdiff_t>(gpu.ready.size());
            for (unsigned i = 0; i < warp_size; ++i)
            {
                if ((mask >> i & 1) == 1 && first + i < block_size.x)
                {
                    gpu.threads[first + i].state = thread_state::ready;
                    gpu.ready.push_back(first + i);
                }
            }
            shuffle(gpu.ready.begin() + before, gpu.ready.end());
        }

        void make_all_ready()
        {
            gpu.warps.clear();
            for (unsigned first = 0; first < block_size.x; first += warp_size)
                gpu.warps.push_back(first);
            shuffle(gpu.warps.begin(), gpu.warps.end());
            for (const unsigned first : gpu.warps)
                make_ready(first, 0xffffffff);
        }

        std::string describe_threads(const std::string& what_happened)
        {
            std::ostringstream out;
            out << what_happened;
            const unsigned n = block_size.x;
            const auto text = [](const gpu_thread& t)
            {
                std::ostringstream sout;
                if (t.state == thread_state::exited)
                    sout << "exited";
                else if (t.state == thread_state::at_barrier)
                    sout << "at __syncthreads, " << to_string(t.where);
                else
                    sout << "at " << t.operation << " with mask " << std::hex << t.mask << ", "
                         << to_string(t.where);
                return sout.str();
            };
            for (unsigned i = 0; i < n;)
            {
                const std::string what = text(gpu.threads[i]);
                unsigned end = i + 1;
                while (end < n && text(gpu.threads[end]) == what)
                    ++end;
                out << "\n  threads " << i << " to " << end - 1 << ": " << what;
                i = end;
            }
            return out.str();
        }

        void count_sectors()
        {
            std::sort(gpu.sectors.begin(), gpu.sectors.end());
            const auto end = std::unique(gpu.sectors.begin(), gpu.sectors.end());
            for (auto i = gpu.sectors.begin(); i != end; ++i)
                ++i->buffer->sectors;
            gpu.sectors.clear();
            gpu.accesses_at_line.clear();
        }

        void run_block()
        {
            gpu.shared.start_block(gpu.launch.shared_bytes);
            gpu.block_met = ++gpu.time;
            gpu.at_barrier = 0;
            gpu.ready.clear();
            // Where all threads take steps at random no warp gets far ahead of another. So every
            // other block runs one warp as far as it gets, then the next.
            gpu.warps_run_ahead = random_below(2) == 0;
            make_all_ready();
            run_others(gpu.caller);

            const std::string who = block_name(gpu.block);
            if (!gpu.failure.empty())
            {
                std::string what;
                what.swap(gpu.failure);
                throw fault(describe(what,
                    who + ", thread " + std::to_string(gpu.current->index) + ", " +
                        to_string(gpu.current->where)));
            }
            const auto has_exited = [](const gpu_thread& t)
            { return t.state == thread_state::exited; };
            if (!std::all_of(gpu.threads.begin(), gpu.threads.begin() + block_size.x, has_exited))
            {
                throw fault(
                    describe(describe_threads("Threads wait for others that never come."), who));
            }
        }

        void check_limits(const launch_arguments& launch)
        {
            const auto check =
                [](const char* what, long long value, long long least, long long most)
            {
                if (value < least || value > most)
                    throw fault(describe(std::string(what) + " is " + std::to_string(value) +
                            ", it can be " + std::to_string(least) + " to " + std::to_string(most) +
                            ".",
                        "launch"));
            };
            check("The number of threads in a block", launch.threads, 1, max_threads);
            check("The number of blocks", launch.grid, 1, max_grid);
            const auto allowed = gpu.shared_bytes_of.find(launch.kernel);
            const std::size_t most = allowed == gpu.shared_bytes_of.end() ? shared_bytes_of_all
                                                                          : allowed->second;
            check("The number of bytes of shared memory",
                static_cast<long long>(launch.shared_bytes), 0,
                static_cast<long long>(std::min(most, gpu.options.shared_bytes_per_block)));
        }

        void choose_blocks()
        {
            gpu.order.clear();
            std::vector<long long> chosen;
            if (gpu.options.choose_blocks)
                chosen = gpu.options.choose_blocks(name_of_kernel());
            for (const long long b : chosen)
            {
                if (b < gpu.launch.grid)
                    gpu.order.push_back(static_cast<unsigned>(b));
            }
            std::sort(gpu.order.begin(), gpu.order.end());
            gpu.order.erase(std::unique(gpu.order.begin(), gpu.order.end()), gpu.order.end());
            if (chosen.empty())
            {
                for (unsigned i = 0; i < gpu.launch.grid; ++i)
                    gpu.order.push_back(i);
            }
            shuffle(gpu.order.begin(), gpu.order.end());
        }

        // ----------------------------------------------------------------------------------------

        [[noreturn]] void
        fail_outside(std::uintptr_t p, std::size_t bytes, const char* what, location here)
        {
            std::ostringstream sout;
            sout << what << " of " << bytes << " bytes outside of every buffer.";
            for (const auto& b : buffers)
            {
                sout << "\n  " << b->name << " has " << b->end - b->begin
                     << " bytes, the access is at " << static_cast<long long>(p - b->begin);
            }
            fail(sout.str(), here);
        }

        buffer_entry&
        find_buffer(std::uintptr_t p, std::size_t bytes, const char* what, location here)
        {
            for (const auto& b : buffers)
            {
                if (b->begin <= p && p + bytes <= b->end)
                    return *b;
            }
            fail_outside(p, bytes, what, here);
        }

        [[noreturn]] void fail_race(const buffer_entry& b,
            std::uintptr_t p,
            const char* what,
            const char* by_other,
            std::uint32_t other,
            location here)
        {
            fail("Race between blocks: " + std::string(what) + " at byte " +
                    std::to_string(p - b.begin) + " of " + b.name + ", which " + block_name(other) +
                    " " + by_other + " in the same launch.",
                here);
        }

        [[noreturn]] void fail_misaligned(std::uintptr_t p,
            std::size_t bytes,
            std::size_t alignment,
            const char* what,
            location here)
        {
            fail("Misaligned " + std::string(what) + " of " + std::to_string(bytes) +
                    " bytes: the address is " + std::to_string(p % alignment) +
                    " above a multiple of " + std::to_string(alignment) + ".",
                here);
        }

        void note_sectors(buffer_entry& b, std::uintptr_t p, std::size_t bytes, location here)
        {
            const unsigned n = gpu.accesses_at_line[{&b, gpu.current->index, here.line}]++;
            for (std::uintptr_t sector = p / 32; sector <= (p + bytes - 1) / 32; ++sector)
                gpu.sectors.push_back({&b, gpu.current->index / warp_size, here.line, n, sector});
        }
    }

    // ----------------------------------------------------------------------------------------

    settings& current_settings() { return gpu.options; }

    std::uint64_t seed() { return gpu.seed; }

    void set_seed(std::uint64_t value)
    {
        gpu.seed = value;
        gpu.num_launches = 0;
    }

    std::vector<launch_record>& launches() { return gpu.launches; }

    // ----------------------------------------------------------------------------------------

    sparse_memory::sparse_memory(std::size_t bytes_) :
        bytes((bytes_ + page_bytes) / page_bytes * page_bytes)
    {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            throw std::bad_alloc();
    }

    sparse_memory::~sparse_memory() { munmap(memory, bytes); }

    void sparse_memory::fill_with_zeros()
    {
        // Where there are few pages it is cheaper to keep them.
        if (bytes <= 64 * page_bytes)
            std::memset(memory, 0, bytes);
        else
            madvise(memory, bytes, MADV_DONTNEED);
    }

    // ----------------------------------------------------------------------------------------

    global_buffer::global_buffer(std::string name,
        const void* begin,
        std::size_t bytes,
        access allowed)
    {
        auto b = std::make_unique<buffer_entry>();
        b->name = std::move(name);
        b->begin = reinterpret_cast<std::uintptr_t>(begin);
        b->end = b->begin + bytes;
        b->allowed = allowed;
        b->history = std::make_unique<sparse_memory>(
            bytes / sizeof(std::uint32_t) * sizeof(touched));
        entry = b.get();
        buffers.push_back(std::move(b));
    }

    global_buffer::~global_buffer()
    {
        buffers.erase(std::find_if(buffers.begin(), buffers.end(),
            [this](const std::unique_ptr<buffer_entry>& b) { return b.get() == entry; }));
    }

    std::uint64_t global_buffer::bytes_read() const
    {
        return static_cast<const buffer_entry*>(entry)->bytes_read;
    }

    std::uint64_t global_buffer::bytes_written() const
    {
        return static_cast<const buffer_entry*>(entry)->bytes_written;
    }

    std::uint64_t global_buffer::sectors() const
    {
        return static_cast<const buffer_entry*>(entry)->sectors;
    }

    // ----------------------------------------------------------------------------------------

    int run(const launch_arguments& launch)
    {
        const std::lock_guard<std::mutex> lock(gpu.one_launch_at_a_time);
        gpu.launch = launch;
        gpu.random_state = gpu.seed + (gpu.num_launches++ << 32);
        check_limits(launch);
        if (gpu.options.failing_launch != 0 && --gpu.options.failing_launch == 0)
            return launch_failure;

        choose_blocks();
        grid_size.x = launch.grid;
        block_size.x = launch.threads;
        if (gpu.options.check_races)
        {
            for (const auto& b : buffers)
                b->history->fill_with_zeros();
        }
        if (gpu.threads.empty())
            make_threads();

        try
        {
            for (gpu.block = 1; gpu.block <= gpu.order.size(); ++gpu.block)
            {
                block_index.x = gpu.order[gpu.block - 1];
                run_block();
                count_sectors();
            }
        }
        catch (const fault&)
        {
            // The fibers stand in the middle of the kernel: start again with new ones.
            gpu.sectors.clear();
            gpu.accesses_at_line.clear();
            make_threads();
            throw;
        }

        if (gpu.options.record_launches)
        {
            gpu.launches.push_back(
                {name_of_kernel(), grid_size.x, block_size.x, launch.shared_bytes, launch.stream});
        }
        return 0;
    }

    // ----------------------------------------------------------------------------------------

    void allow_shared_bytes(const void* kernel, std::size_t bytes)
    {
        gpu.shared_bytes_of[kernel] = bytes;
    }

    void* shared_memory() { return gpu.shared.get(); }

    namespace
    {
        bool is_before(const shared_access& a, const shared_access& b)
        /*!
            ensures
                - returns whether b, by the thread that runs, can rely on a
        !*/
        {
            if (a.time < gpu.block_met)
                return true;
            return a.warp == b.warp && (a.lane == b.lane || a.time < gpu.warp_met[a.warp]);
        }

        void check_shared(const void* p, std::size_t bytes, bool writes, location here)
        {
            const std::string what = writes ? "write" : "read";
            const std::size_t offset = gpu.shared.offset_of(p);
            if (offset >= gpu.shared.size() || gpu.shared.size() - offset < bytes)
                fail(what + " outside of shared memory.", here);
            if (offset % bytes != 0)
                fail("Misaligned " + what + " in shared memory.", here);
            if (!gpu.options.check_races)
                return;

            const unsigned thread = gpu.current->index;
            const shared_access now = {gpu.time, static_cast<std::uint16_t>(thread / warp_size),
                static_cast<std::uint16_t>(thread % warp_size), here.line};
            const auto check_against = [&](const shared_access& other, const char* by_other)
            {
                if (is_before(other, now))
                    return;
                fail("Race between threads: " + what + " at byte " + std::to_string(offset) +
                        " of shared memory, which " +
                        (other.lane == many_lanes
                                ? "threads of warp " + std::to_string(other.warp)
                                : "thread " + std::to_string(warp_size * other.warp + other.lane)) +
                        " " + by_other + " in line " + std::to_string(other.line) +
                        " with no rendezvous in between.",
                    here);
            };
            for (std::size_t i = 0; i < bytes; i += sizeof(std::uint32_t))
            {
                shared_word& word = gpu.shared.at(offset + i);
                check_against(word.writer, "wrote");
                if (writes)
                {
                    check_against(word.reader, "read");
                    check_against(word.reader_of_another_warp, "read");
                    word.writer = now;
                    continue;
                }
                const bool is_of_warp = word.reader.warp == now.warp;
                const bool is_one_of_many = is_of_warp && !is_before(word.reader, now);
                if (!is_of_warp)
                    word.reader_of_another_warp = word.reader;
                word.reader = now;
                if (is_one_of_many)
                    word.reader.lane = many_lanes;
            }
        }
    }

    void check_shared_read(const void* p, std::size_t bytes, location here)
    {
        check_shared(p, bytes, false, here);
    }

    void check_shared_write(const void* p, std::size_t bytes, location here)
    {
        check_shared(p, bytes, true, here);
    }

    double random_factor()
    {
        const double steps = 1000;
        const double step = random_below(static_cast<std::size_t>(2 * steps) + 1) - steps;
        return 1 + step / steps / (1 << 18);
    }

    namespace
    {
        void check_any_read(const void* address,
            std::size_t bytes,
            std::size_t alignment,
            location here,
            bool is_constant)
        {
            const auto p = reinterpret_cast<std::uintptr_t>(address);
            if ((p & (alignment - 1)) != 0)
                fail_misaligned(p, bytes, alignment, "read", here);
            if (buffers.empty())
                return;

            buffer_entry& b = find_buffer(p, bytes, "Read", here);
            b.bytes_read += bytes;
            if (gpu.options.count_sectors)
                note_sectors(b, p, bytes, here);
            if (!gpu.options.check_races)
                return;
            for (std::size_t i = 0; i < bytes; i += sizeof(std::uint32_t))
            {
                touched& t = *b.at(p + i);
                if (t.writer != 0 && (is_constant || t.writer != gpu.block))
                {
                    fail_race(b, p + i, is_constant ? "read as a constant" : "read", "wrote",
                        t.writer, here);
                }
                // A constant counts as read by many, so that no block can write it.
                const bool is_first = t.reader == 0 || t.reader == gpu.block;
                t.reader = is_first && !is_constant ? gpu.block : many;
            }
        }
    }

    void check_read(const void* p, std::size_t bytes, std::size_t alignment, location here)
    {
        check_any_read(p, bytes, alignment, here, false);
    }

    void check_constant_read(const void* p, std::size_t bytes, std::size_t alignment, location here)
    {
        check_any_read(p, bytes, alignment, here, true);
    }

    void check_write(const void* address, std::size_t bytes, std::size_t alignment, location here)
    {
        const auto p = reinterpret_cast<std::uintptr_t>(address);
        if ((p & (alignment - 1)) != 0)
            fail_misaligned(p, bytes, alignment, "write", here);
        if (buffers.empty())
            return;

        buffer_entry& b = find_buffer(p, bytes, "Write", here);
        if (b.allowed == access::read_only)
            fail("Write to " + b.name + ", which is only to be read.", here);
        b.bytes_written += bytes;
        if (gpu.options.count_sectors)
            note_sectors(b, p, bytes, here);
        if (!gpu.options.check_races)
            return;
        for (std::size_t i = 0; i < bytes; i += sizeof(std::uint32_t))
        {
            touched& t = *b.at(p + i);
            if (t.writer != 0 && t.writer != gpu.block)
                fail_race(b, p + i, "write", "wrote", t.writer, here);
            if (t.reader != 0 && t.reader != gpu.block)
                fail_race(b, p + i, "write", "read", t.reader, here);
            t.writer = gpu.block;
        }
    }

    // ----------------------------------------------------------------------------------------

    void meet_block(location here)
    {
        gpu_thread& self = *gpu.current;
        self.where = here;
        if (++gpu.at_barrier < block_size.x)
        {
            wait(thread_state::at_barrier);
            return;
        }

        gpu.at_barrier = 0;
        gpu.block_met = ++gpu.time;
        self.state = thread_state::at_barrier;
        for (unsigned i = 0; i < block_size.x; ++i)
        {
            if (!same(gpu.threads[i].where, here))
            {
                fail(describe_threads("Threads of one block meet at different barriers."), here);
            }
        }
        make_all_ready();
        run_others(self.self);
    }

    std::uint64_t meet_warp(const char* what,
        unsigned mask,
        unsigned source_lane,
        std::uint64_t value,
        bool orders_memory,
        location here)
    {
        gpu_thread& self = *gpu.current;
        const unsigned lane = self.index % warp_size;
        if ((mask >> lane & 1) == 0)
            fail(std::string(what) + ": the mask lacks the lane that calls it.", here);
        if ((mask >> source_lane & 1) == 0)
        {
            fail(std::string(what) + ": lane " + std::to_string(lane) + " reads from lane " +
                    std::to_string(source_lane) + ", which is not in the mask.",
                here);
        }
        self.where = here;
        self.operation = what;
        self.mask = mask;
        self.source_lane = source_lane;
        self.value = value;
        self.state = thread_state::at_warp_operation;

        gpu_thread* warp = &gpu.threads[self.index - lane];
        const unsigned num_lanes = std::min(warp_size, block_size.x - (self.index - lane));
        bool all_are_here = true;
        for (unsigned i = 0; i < warp_size && all_are_here; ++i)
        {
            if ((mask >> i & 1) == 1)
                all_are_here = i < num_lanes && warp[i].state == thread_state::at_warp_operation;
        }
        if (!all_are_here)
        {
            run_others(self.self);
            return self.result;
        }

        for (unsigned i = 0; i < num_lanes; ++i)
        {
            if ((mask >> i & 1) == 0)
                continue;
            if (warp[i].mask != mask || !same(warp[i].where, here))
            {
                fail(describe_threads(
                         "Lanes of one warp meet with different masks or at different places."),
                    here);
            }
            warp[i].result = warp[warp[i].source_lane].value;
        }
        if (orders_memory && mask == 0xffffffff >> (warp_size - num_lanes))
            gpu.warp_met[self.index / warp_size] = ++gpu.time;
        make_ready(self.index - lane, mask);
        run_others(self.self);
        return self.result;
    }

    // ----------------------------------------------------------------------------------------

}
