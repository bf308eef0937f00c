// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_EXPORT_H_
#define DLIB_RMS_NORM_EXPORT_H_

// DLIB_RMS_NORM_API marks the functions that a shared library shows. All others are hidden.

#if defined(__GNUC__)
#define DLIB_RMS_NORM_API __attribute__((visibility("default")))
#else
#define DLIB_RMS_NORM_API
#endif

#endif // DLIB_RMS_NORM_EXPORT_H_
