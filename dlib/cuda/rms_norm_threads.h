// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_THREADS_H_
#define DLIB_RMS_NORM_THREADS_H_

// Runs tasks on dlib's default thread pool, whose size DLIB_NUM_THREADS sets. The calling thread
// takes part: a thread of the pool takes a while to wake up, and until then the caller works.

#include <cstddef>

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    void run_rms_norm_tasks(std::size_t count,
        void (*run)(const void* context, std::size_t task),
        const void* context);

    template <typename F>
    void for_each_task(bool threaded, std::size_t count, const F& f)
    /*!
        requires
            - f(t) throws nothing
        ensures
            - calls f(t) for t in [0, count). If threaded, then several at the same time and in
              any order, each in the caller's floating-point environment.
            - It may be called from any number of threads at once and from tasks of the pool. In a
              forked child the pool may have no threads, so there the caller does all the work.
    !*/
    {
        if (!threaded || count <= 1)
        {
            for (std::size_t t = 0; t < count; ++t)
                f(t);
            return;
        }
        run_rms_norm_tasks(
            count, [](const void* context, std::size_t t) { (*static_cast<const F*>(context))(t); },
            &f);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_THREADS_H_
