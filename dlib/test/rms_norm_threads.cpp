// License: Boost Software License   See LICENSE.txt for the full license.

// How the CPU uses dlib's thread pool. The pool's size is fixed when a program starts, so most
// cases are in testers that this one runs in new processes with several DLIB_NUM_THREADS.

#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <dlib/cuda/rms_norm_threads.h>
#include <dlib/threads.h>
#include "child_process.h"
#include "rms_norm_order.h"

#ifndef __aarch64__
#include <immintrin.h>
#endif

namespace
{
    using namespace test;
    using dlib::contrib::cpu::for_each_task;

    using clock_type = std::chrono::steady_clock;
    const std::chrono::seconds patience(20);

    // ----------------------------------------------------------------------------------------

    std::size_t num_threads()
    /*!
        ensures
            - returns how many threads for_each_task() has: the caller and the pool's, but one
    !*/
    {
        return std::max(1ul, dlib::default_thread_pool().num_threads_in_pool());
    }

    class meeting
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A place where threads wait until so many of them are there, or a second is over.
        !*/
    public:
        explicit meeting(std::size_t size_) :
            size(size_)
        {
        }

        void come()
        {
            std::unique_lock<std::mutex> lock(m);
            threads.insert(std::this_thread::get_id());
            all_are_here.notify_all();
            all_are_here.wait_until(lock, end, [this]() { return threads.size() >= size; });
        }

        std::size_t num_threads() const { return threads.size(); }

    private:
        const std::size_t size;
        const clock_type::time_point end = clock_type::now() + std::chrono::seconds(1);
        std::mutex m;
        std::condition_variable all_are_here;
        std::set<std::thread::id> threads;
    };

    template <typename F>
    std::size_t run_on_all_threads(const F& f)
    /*!
        ensures
            - calls f() in tasks of for_each_task(), and returns how many threads have run them
              when they wait for each other. A thread that comes too late for one call can be
              missing in the next one too, so there are several tries.
    !*/
    {
        for (const auto end = clock_type::now() + patience;;)
        {
            meeting all(num_threads());
            for_each_task(true, 4 * num_threads(),
                [&](std::size_t)
                {
                    all.come();
                    f();
                });
            if (all.num_threads() >= num_threads() || clock_type::now() > end)
                return all.num_threads();
        }
    }

    std::size_t threads_that_work()
    {
        return run_on_all_threads([]() {});
    }

    class task_counter
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How often each of some tasks was run.
        !*/
    public:
        explicit task_counter(std::size_t size) :
            counts(size)
        {
        }

        void run(bool threaded = true)
        {
            for_each_task(threaded, counts.size(), [this](std::size_t t) { ++counts[t]; });
        }

        void check(int expected) const
        {
            for (const std::atomic<int>& count : counts)
                DLIB_TEST_MSG(count == expected, count << " is not " << expected);
        }

    private:
        std::vector<std::atomic<int>> counts;
    };

    // ----------------------------------------------------------------------------------------

    void all_threads_work() { DLIB_TEST(threads_that_work() == num_threads()); }

    void every_task_runs_once()
    {
        for (std::size_t size : {0, 1, 2, 3, 16, 17, 1000})
        {
            for (bool threaded : {false, true})
            {
                for (int round = 1; round <= 20; ++round)
                {
                    task_counter tasks(size);
                    tasks.run(threaded);
                    tasks.check(1);
                }
            }
        }
    }

    void tasks_of_the_pool_have_tasks()
    {
        task_counter inner(30);
        dlib::parallel_for(dlib::default_thread_pool(), 0, 50, [&](long) { inner.run(); });
        inner.check(50);
        for_each_task(true, 50, [&](std::size_t) { inner.run(); });
        inner.check(100);
    }

    void many_threads_call_at_once()
    {
        std::vector<std::thread> callers;
        std::atomic<int> good{0};
        for (int i = 0; i < 8; ++i)
        {
            callers.emplace_back(
                [&]()
                {
                    task_counter tasks(20);
                    for (int round = 1; round <= 200; ++round)
                        tasks.run();
                    tasks.check(200);
                    ++good;
                });
        }
        for (std::thread& caller : callers)
            caller.join();
        DLIB_TEST(good == 8);
    }

    void a_task_of_the_pool_throws()
    /*!
        ensures
            - checks that an exception of some task of the user's own, which the pool throws when
              it gets the next one, arrives, and leaves no work undone
    !*/
    {
        dlib::thread_pool& pool = dlib::default_thread_pool();
        for (int round = 0; round < 20 && num_threads() > 1; ++round)
        {
            pool.add_task_by_value([]() { throw std::runtime_error("of the user"); });
            bool has_arrived = false;
            for (const auto end = clock_type::now() + patience; !has_arrived;)
            {
                DLIB_TEST(clock_type::now() < end);
                task_counter tasks(10);
                try
                {
                    tasks.run();
                }
                catch (std::runtime_error& e)
                {
                    has_arrived = std::string(e.what()) == "of the user";
                }
                tasks.check(1);
            }
            DLIB_TEST(threads_that_work() == num_threads());
        }
    }

    // ----------------------------------------------------------------------------------------

    // A floating-point environment that a caller sets after the pool's threads have started.
    struct late_environment
    {
        explicit late_environment(const std::string& name)
        {
            std::fegetenv(&old);
            if (name == "upward")
                std::fesetround(FE_UPWARD);
            if (name == "flush")
                make_denormals_zero();
        }

        ~late_environment() { std::fesetenv(&old); }

        static std::vector<std::string> names() { return {"upward", "flush"}; }

        static bool is_here(const std::string& name)
        {
            volatile float tiny = 1e-40f, large = 1;
            if (name == "upward")
                return large + tiny > 1;
            return tiny * large == 0 && large - tiny == 1;
        }

        static void make_denormals_zero()
        {
#if defined(__aarch64__)
            std::uint64_t fpcr;
            asm volatile("mrs %0, fpcr" : "=r"(fpcr));
            asm volatile("msr fpcr, %0" : : "r"(fpcr | 1 << 24)); // FZ
#else
            _mm_setcsr(_mm_getcsr() | 0x8040); // FTZ and DAZ
#endif
        }

        std::fenv_t old;
    };

    void tasks_have_the_environment_of_the_caller()
    {
        DLIB_TEST(threads_that_work() == num_threads());
        for (const std::string& name : late_environment::names())
        {
            std::atomic<int> missing{0}, left{0};
            {
                const late_environment environment(name);
                DLIB_TEST(late_environment::is_here(name));
                DLIB_TEST(run_on_all_threads([&]()
                              { missing += !late_environment::is_here(name); }) == num_threads());
                DLIB_TEST(late_environment::is_here(name));
            }
            DLIB_TEST_MSG(missing == 0, name << " was missing in " << missing << " tasks");

            // and the threads of the pool have got their own back
            meeting others(num_threads());
            dlib::parallel_for(dlib::default_thread_pool(), 0, 4 * static_cast<long>(num_threads()),
                [&](long)
                {
                    others.come();
                    left += late_environment::is_here(name);
                });
            DLIB_TEST_MSG(left == 0, name << " was left in " << left << " tasks");
        }
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_tasks_tester : public tester
    {
    public:
        rms_norm_tasks_tester() :
            tester("rms_norm_tasks",
                "Run tests on how the CPU uses so many threads. rms_norm_threads runs it with "
                "several DLIB_NUM_THREADS.",
                1)
        {
        }

        void perform_test(const std::string& expected) override
        {
            DLIB_TEST(std::to_string(num_threads()) == expected);
            RUN_CASE(all_threads_work());
            RUN_CASE(every_task_runs_once());
            RUN_CASE(tasks_of_the_pool_have_tasks());
            RUN_CASE(many_threads_call_at_once());
            RUN_CASE(a_task_of_the_pool_throws());
            RUN_CASE(tasks_have_the_environment_of_the_caller());
        }
    } a_rms_norm_tasks_tester;

    void tasks_are_right_with_every_number_of_threads()
    {
        for (int n : {0, 1, 2, 3, 16})
            run_again(n, "rms_norm_tasks " + std::to_string(std::max(1, n)));
    }

    // ----------------------------------------------------------------------------------------

    std::vector<rms_norm_problem> denormal_problems()
    {
        random_source rnd(1);
        std::vector<rms_norm_problem> all;
        for (long long rows : {64, 8192})
        {
            all.push_back(random_problem(rnd, dlib::contrib::rms_norm_axes::row,
                dlib::contrib::rms_norm_gain::per_channel, {1, 1, rows, 64}));
            all.back().src = random_values(rnd, all.back().src.size(), 1e-40);
        }
        return all;
    }

    class print_hash_tester : public tester
    {
    public:
        print_hash_tester() :
            tester("print_rms_norm_hash",
                "Print how many threads work and hashes of what the backend of this name computes. "
                "rms_norm_threads runs it with several DLIB_NUM_THREADS.",
                1)
        {
        }

        void perform_test(const std::string& name) override
        {
            for (const rms_norm_backend& b : rms_norm_backends())
            {
                if (b.name == name)
                    print(b);
            }
        }

    private:
        static void print(const rms_norm_backend& b)
        {
            std::cout << "\nthreads " << threads_that_work() << "\nhash "
                      << hash_of(b, problems_that_show_the_order(), true);
            for (const std::string& environment : late_environment::names())
            {
                const std::vector<rms_norm_problem> problems = denormal_problems();
                const std::uint64_t before = hash_of(b, problems, false);
                const late_environment late(environment);
                const std::uint64_t hash = hash_of(b, problems, false);
                DLIB_TEST_MSG(hash != before, environment << " changes nothing");
                std::cout << "\n" << environment << " " << hash;
            }
            std::cout << std::endl;
        }
    } a_print_hash_tester;

    void every_number_of_threads_gives_the_same_bits(const rms_norm_backend& b)
    {
        const auto output = [&](int n)
        {
            const std::string text = run_again(n, "print_rms_norm_hash " + b.name);
            const std::string threads = "\nthreads " + std::to_string(std::max(1, n)) + "\n";
            const std::size_t at = text.find(threads);
            DLIB_TEST_MSG(at != std::string::npos, n << " threads: " << text);
            return text.substr(at + threads.size());
        };
        const std::string expected = output(1);
        DLIB_TEST(expected.compare(0, 5, "hash ") == 0);
        for (int n : {0, 2, 3, 4, 16})
        {
            const std::string found = output(n);
            DLIB_TEST_MSG(found == expected, n << " threads: " << found << " 1: " << expected);
        }
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_threads_tester : public tester
    {
    public:
        rms_norm_threads_tester() :
            tester("rms_norm_threads", "Run tests on RMS normalization with several threads.")
        {
        }

        void perform_test() override
        {
            RUN_CASE(tasks_are_right_with_every_number_of_threads());
            for (const rms_norm_backend& b : rms_norm_backends())
            {
                if (b.uses_thread_pool)
                    run_cases(b, {NAMED_CASE(every_number_of_threads_gives_the_same_bits)});
            }
        }
    } a_rms_norm_threads_tester;

    // ----------------------------------------------------------------------------------------

}
