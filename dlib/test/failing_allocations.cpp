// License: Boost Software License   See LICENSE.txt for the full license.

// A source of its own: g++ warns where it can look into the two halves of operator new and
// delete.

#include "failing_allocations.h"

#include <cstdlib>
#include <new>

namespace test
{
    std::atomic<long> allocations_before_failure{-1};

#ifdef __SANITIZE_ADDRESS__
    bool allocations_can_fail() { return false; }
#else
    bool allocations_can_fail() { return true; }
#endif
}

#ifndef __SANITIZE_ADDRESS__

void* operator new(std::size_t size)
{
    using test::allocations_before_failure;
    if (allocations_before_failure >= 0 && allocations_before_failure-- == 0)
        throw std::bad_alloc();
    if (void* const p = std::malloc(size == 0 ? 1 : size))
        return p;
    throw std::bad_alloc();
}

void operator delete(void* p) noexcept { std::free(p); }

void operator delete(void* p, std::size_t) noexcept { std::free(p); }

#endif
