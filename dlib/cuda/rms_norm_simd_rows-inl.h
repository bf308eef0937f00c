// License: Boost Software License   See LICENSE.txt for the full license.

// What the loops over contiguous groups of floats and of 16-bit values share. To read memory only
// once and to keep it busy all the time, such a loop sums one group while it writes the one before:
// that was summed a moment ago and is still in the cache.

#if defined(DLIB_RMS_NORM_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#undef DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#else
#define DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#endif

#include "rms_norm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rows
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where the groups of an argument lie, which may be null.
        !*/
        HWY_INLINE rows(T* first_, const rms_norm_groups& groups, long long row_stride) :
            first(first_),
            stride(static_cast<size_t>(row_stride == 0 ? groups.size : row_stride))
        {
        }

        HWY_INLINE T* operator[](size_t group) const
        {
            return first == nullptr ? nullptr : first + group * stride;
        }

        T* first;
        size_t stride;
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct gradient_rows
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where the groups of a backward pass lie. old is what the gradient is added to.
        !*/
        HWY_INLINE explicit gradient_rows(const rms_norm_backward<T>& p) :
            d(p.d, p.groups, p.d_stride),
            x(p.x, p.groups, p.x_stride),
            old(p.add ? p.dx : p.dh, p.groups, p.add ? p.dx_stride : p.dh_stride),
            dx(p.dx, p.groups, p.dx_stride)
        {
        }

        rows<const T> d;
        rows<const T> x;
        rows<const T> old;
        rows<T> dx;
    };

    template <typename T>
    bool adds(const rms_norm_backward<T>& p)
    {
        return p.add || p.dh != nullptr;
    }

    // ----------------------------------------------------------------------------------------

    inline void add(double* sums, const double* others, size_t size)
    {
        size_t i = 0;
        for (; i + num_doubles <= size; i += num_doubles)
        {
            hn::StoreU(hn::Add(hn::LoadU(doubles(), sums + i), hn::LoadU(doubles(), others + i)),
                doubles(), sums + i);
        }
        for (; i < size; ++i)
            sums[i] += others[i];
    }

    // ----------------------------------------------------------------------------------------

}
HWY_AFTER_NAMESPACE();

#endif // DLIB_RMS_NORM_SIMD_ROWS_INL_H_
