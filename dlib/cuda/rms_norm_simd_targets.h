// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_SIMD_TARGETS_H_
#define DLIB_RMS_NORM_SIMD_TARGETS_H_

// Which of Highway's instruction sets the loops are not compiled for. To be included before
// Highway. "Broken" is what Highway calls such a list; HWY_DISABLED_TARGETS is the user's.
//
// Vectors whose length is known only at run time can't be members or arrays. SSSE3 without SSE4
// is too rare to be worth its compile time. Highway 1.0.3 does not compile where AVX3_DL is the
// best that the compiler may use (-march=sapphirerapids).

#ifndef HWY_BROKEN_TARGETS
#define HWY_BROKEN_TARGETS \
    (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL)
#endif

#endif // DLIB_RMS_NORM_SIMD_TARGETS_H_
