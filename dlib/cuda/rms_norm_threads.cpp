// License: Boost Software License   See LICENSE.txt for the full license.

// One helper in the pool per further thread. Caller and helpers draw tasks from one counter, and
// the caller waits for the tasks that were drawn, not for the helpers: one that comes late finds
// nothing left to draw.

#include "rms_norm_threads.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <dlib/threads.h>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        using std::size_t;

        class job
        {
        public:
            job(size_t count_, void (*run_)(const void*, size_t), const void* context_) :
                count(count_),
                run(run_),
                context(context_)
            {
                std::fegetenv(&environment);
            }

            void work()
            {
                for (size_t t = next++; t < count; t = next++)
                {
                    run(context, t);
                    if (++done == count)
                    {
                        // The lock is for a caller that is just about to sleep.
                        const std::lock_guard<std::mutex> lock(m);
                        all_done.notify_one();
                    }
                }
            }

            void help()
            {
                if (next >= count)
                    return;
                std::fenv_t own;
                std::fegetenv(&own);
                std::fesetenv(&environment);
                work();
                std::fesetenv(&own);
            }

            void wait()
            {
                // What is left takes about as long as one task: sleeping rarely pays.
                for (int i = 0; i < 4000; ++i)
                {
                    if (done == count)
                        return;
#if defined(__x86_64__) || defined(__i386__)
                    __builtin_ia32_pause();
#endif
                }
                std::unique_lock<std::mutex> lock(m);
                all_done.wait(lock, [this] { return done == count; });
            }

        private:
            const size_t count;
            void (*const run)(const void*, size_t);
            const void* const context;
            std::fenv_t environment;
            std::atomic<size_t> next{0};
            std::atomic<size_t> done{0};
            std::mutex m;
            std::condition_variable all_done;
        };

        // ----------------------------------------------------------------------------------------

        std::atomic<bool> pool_is_gone{false};

#ifndef _WIN32
        const int registered = pthread_atfork(nullptr, nullptr, [] { pool_is_gone = true; });
#endif

        size_t threads_of_pool()
        {
            static const size_t threads = []
            { return std::max<size_t>(1, default_thread_pool().num_threads_in_pool()); }();
            return pool_is_gone ? 1 : threads;
        }

        // Helpers that are in the pool, all callers' together.
        std::atomic<size_t> helpers{0};

        size_t reserve_helpers(size_t wanted)
        /*!
            ensures
                - adds to helpers as many as may be put into the pool now, and returns how many
                  that are. It is one less than the pool has threads, at most: the pool makes a
                  caller wait that brings more.
        !*/
        {
            const size_t most = threads_of_pool() - 1;
            size_t now = helpers;
            size_t reserved = 0;
            do
                reserved = std::min(wanted, most - std::min(most, now));
            while (!helpers.compare_exchange_weak(now, now + reserved));
            return reserved;
        }
    }

    // ----------------------------------------------------------------------------------------

    void run_rms_norm_tasks(size_t count, void (*run)(const void*, size_t), const void* context)
    {
        std::shared_ptr<job> shared;
        size_t to_add = reserve_helpers(count - 1);
        std::exception_ptr error;
        try
        {
            if (to_add != 0)
                shared = std::make_shared<job>(count, run, context);
            for (; to_add != 0; --to_add)
            {
                // The pool keeps the function after it has run.
                default_thread_pool().add_task_by_value(
                    [shared]
                    {
                        shared->help();
                        --helpers;
                    });
            }
        }
        catch (std::bad_alloc&)
        {
            // Then with fewer helpers, or none.
        }
        catch (...)
        {
            // The pool throws what some other task of it has thrown.
            error = std::current_exception();
        }
        helpers -= to_add;

        if (shared)
        {
            shared->work();
            shared->wait();
        }
        else
        {
            for (size_t t = 0; t < count; ++t)
                run(context, t);
        }
        if (error)
            std::rethrow_exception(error);
    }

    // ----------------------------------------------------------------------------------------

}
