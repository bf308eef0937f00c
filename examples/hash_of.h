// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_HASH_OF_H_
#define DLIB_RMS_NORM_HASH_OF_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <dlib/general_hash/murmur_hash3.h>

inline std::uint64_t hash_of(const void* bytes, std::size_t size, std::uint64_t start = 0)
{
    const std::size_t piece = 1 << 30; // dlib's function takes an int
    const char* p = static_cast<const char*>(bytes);
    std::uint64_t hash = start;
    while (size > 0)
    {
        const std::size_t num = std::min(piece, size);
        hash = dlib::murmur_hash3_128bit(
            p, static_cast<int>(num), static_cast<dlib::uint32>(hash ^ hash >> 32))
                   .first;
        p += num;
        size -= num;
    }
    return hash;
}

#endif // DLIB_RMS_NORM_HASH_OF_H_
