// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_ROWS_H_
#define DLIB_RMS_NORM_ROWS_H_

// RMS normalization of rows behind pointers: of float, float16 or bfloat16, with gaps between rows,
// with the casting order of a model, and with the residual addition before it.

#include "rms_norm_rows_abstract.h"
#include "rms_norm_float16.h"
#include "rms_norm_pass.h"
#include "../rms_norm_export.h"

namespace dlib::contrib
{

    inline rms_norm_groups rms_norm_rows(long long rows, long long size, bool has_gamma)
    {
        rms_norm_groups groups;
        groups.outer = rows;
        groups.size = size;
        groups.num_gains = has_gamma ? size : 0;
        return groups;
    }

    namespace cpu
    {
        DLIB_RMS_NORM_API void rms_normalize(const rms_norm_forward<float>& pass);
        DLIB_RMS_NORM_API void rms_normalize(const rms_norm_forward<float16>& pass);
        DLIB_RMS_NORM_API void rms_normalize(const rms_norm_forward<bfloat16>& pass);

        DLIB_RMS_NORM_API void rms_normalize_gradient(const rms_norm_backward<float>& pass);
        DLIB_RMS_NORM_API void rms_normalize_gradient(const rms_norm_backward<float16>& pass);
        DLIB_RMS_NORM_API void rms_normalize_gradient(const rms_norm_backward<bfloat16>& pass);
    }

}

#endif // DLIB_RMS_NORM_ROWS_H_
