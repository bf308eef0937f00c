// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_FAILING_ALLOCATIONS_H_
#define DLIB_TEST_FAILING_ALLOCATIONS_H_

// An operator new that fails when it is told to. It is the one of the whole program.

#include <atomic>

namespace test
{
    // If it is 0 or more, so many allocations succeed, the next one fails, and those after it
    // succeed again.
    extern std::atomic<long> allocations_before_failure;

    bool allocations_can_fail();
    /*!
        ensures
            - returns false if this program has another operator new, that of AddressSanitizer
    !*/
}

#endif // DLIB_TEST_FAILING_ALLOCATIONS_H_
