// License: Boost Software License   See LICENSE.txt for the full license.

// What loops over contiguous groups have in common for every element type: all of the forward pass,
// and the parts of the backward pass that do not sum. To read memory only once and to keep it busy
// all the time, a loop that writes one group also sums the next one: the group that is written was
// summed a moment ago and is still in the cache.

#if defined(DLIB_RMS_NORM_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#undef DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#else
#define DLIB_RMS_NORM_SIMD_ROWS_INL_H_
#endif

#include <cfloat>
#include "rms_norm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{

    // ----------------------------------------------------------------------------------------

    template <typename T>
    constexpr bool is_short = sizeof(T) < sizeof(float);

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

    template <class values>
    struct input_rows;

    template <typename T>
    struct input_rows<only_x<T>>
    {
        HWY_INLINE explicit input_rows(const rms_norm_forward<T>& p) :
            x(p.x, p.groups, p.x_stride)
        {
        }
        HWY_INLINE only_x<T> operator[](size_t group) const { return {x[group]}; }

        rows<const T> x;
    };

    template <typename T>
    struct input_rows<x_plus_r<T>>
    {
        HWY_INLINE explicit input_rows(const rms_norm_forward<T>& p) :
            x(p.x, p.groups, p.x_stride),
            r(p.r, p.groups, p.r_stride),
            h(p.h, p.groups, p.h_stride)
        {
        }
        HWY_INLINE x_plus_r<T> operator[](size_t group) const
        {
            return {x[group], r[group], h[group]};
        }

        rows<const T> x;
        rows<const T> r;
        rows<T> h;
    };

    // ----------------------------------------------------------------------------------------

    // Calls f with what a pass needs of its values, gains and casting, as types.

    template <typename T, class F>
    HWY_INLINE void with_values(const rms_norm_forward<T>& p, const F& f)
    {
        if (p.r == nullptr)
            f(input_rows<only_x<T>>(p));
        else
            f(input_rows<x_plus_r<T>>(p));
    }

    template <typename T, class F>
    HWY_INLINE void with_gains_of(const rms_norm_gains& gains, const F& f)
    {
        if constexpr (is_short<T>)
            f([&](size_t, size_t) HWY_ATTR { return array{gains.values}; });
        else
            with_gains(gains, f);
    }

    template <typename T, class F>
    HWY_INLINE void with_casting(rms_norm_casting casting, const F& f)
    {
        if constexpr (is_short<T>)
            with_bool(casting == rms_norm_casting::llama, f);
        else
            f(std::false_type());
    }

    // ----------------------------------------------------------------------------------------
    //                                       forward
    // ----------------------------------------------------------------------------------------

    template <class values>
    struct squares
    {
        using T = typename values::type;

        HWY_INLINE squares(const values& x_, size_t size_, double eps_) :
            x(x_),
            chunks(size_ / chunk),
            begin(x_),
            size(size_),
            eps(eps_)
        {
        }

        HWY_INLINE void step()
        {
            if (chunks < step_chunks)
                return;
            HWY_UNROLL(4)
            for (size_t k = 0; k < step_chunks; ++k)
            {
                if (k * chunk % line<T> == 0)
                    x.prefetch(distance_ahead<T> + k * chunk);
                if constexpr (!is_short<T>)
                    lanes.add_squares(x, k * chunk);
            }
            if constexpr (is_short<T>)
                lanes.add_squares_in_float(x, 0);
            x = x.from(step_chunks * chunk);
            chunks -= step_chunks;
        }

        HWY_INLINE double finish()
        {
            // Apart, where the code for a few values is long: it must not be in every loop.
            if constexpr (is_short<T>)
                return finish_apart(*this);
            else
                return finish_here();
        }

    private:
        static HWY_NOINLINE double finish_apart(squares s) { return s.finish_here(); }

        HWY_INLINE double finish_here()
        {
            while (chunks >= step_chunks)
                step();
            finish_in_double();
            const double total = lanes.total();
            if constexpr (std::is_same_v<T, bfloat16>)
            {
                if (!is_right(total))
                    return in_double();
            }
            return total;
        }

        HWY_INLINE void finish_in_double()
        {
            for (; chunks != 0; --chunks)
            {
                lanes.add_squares(x, 0);
                x = x.from(chunk);
            }
            if (size % chunk != 0)
                lanes.add_squares(last_values<values>(x, size % chunk).get(), 0);
        }

        HWY_INLINE bool is_right(double total) const
        /*!
            ensures
                - returns false if squares of bfloat16 may have left the range of floats: above, or
                  below by so many that they count beside eps. (What is lost is at most 2^-126 per
                  value, which is what a processor that flushes denormals loses.)
        !*/
        {
            const double small = 0x1p-100;
            return total <= DBL_MAX && (eps >= small || total >= static_cast<double>(size) * small);
        }

        double in_double() const
        {
            squares again(begin, size, eps);
            again.finish_in_double();
            return again.lanes.total();
        }

        values x;
        size_t chunks;
        values begin;
        size_t size;
        double eps;
        sum_lanes lanes;
    };

    template <class values>
    double sum_squares_of_group(const values& x, size_t size, double eps)
    {
        double sum = 0;
        for (size_t b = 0; b < size; b += rms_norm_segment)
            sum += squares<values>(x.from(b), std::min(rms_norm_segment, size - b), eps).finish();
        return sum;
    }

    template <typename T>
    double sum_squares(const rms_norm_forward<T>& p, size_t group, size_t begin, size_t end)
    {
        double sum = 0;
        with_values(p,
            [&](const auto& x) HWY_ATTR
            { sum = sum_squares_of_group(x[group].from(begin), end - begin, p.eps); });
        return sum;
    }

    template <bool stream, class formula, typename T, class values>
    HWY_INLINE double
    write_and_sum(formula& f, const T* y, size_t begin, size_t end, squares<values> next)
    {
        size_t i = begin;
        if constexpr (stream)
        {
            i = next_line(y, begin, end);
            write_few(f, begin, i);
        }
        for (; i + step_chunks * chunk <= end; i += step_chunks * chunk)
        {
            next.step();
            HWY_UNROLL(4)
            for (size_t k = 0; k < step_chunks; ++k)
                write_chunk<stream>(f, i + k * chunk);
        }
        for (; i + chunk <= end; i += chunk)
            write_chunk<stream>(f, i);
        write_few(f, i, end);
        return next.finish();
    }

    // The same, but one function for all who call it with these types.
    template <bool stream, class formula, typename T, class values>
    HWY_NOINLINE double
    write_and_sum_apart(formula f, T* y, size_t begin, size_t end, squares<values> next)
    {
        return write_and_sum<stream>(f, y, begin, end, next);
    }

    // A short group is over before its neighbour's sum has come out of the pipeline: many of
    // them are summed, then written.
    constexpr size_t short_size = 512;
    constexpr size_t panel_size = 1024;
    constexpr size_t panel_groups = 32;

    template <bool stream, bool llama, typename T, class inputs, class make_gains>
    void normalize_short_groups(const rms_norm_forward<T>& p,
        const inputs& x,
        const make_gains& gains,
        size_t first,
        size_t last)
    {
        using values = decltype(x[0]);
        const auto size = static_cast<size_t>(p.groups.size);
        const rows<T> y(p.y, p.groups, p.y_stride);
        const size_t groups = std::max<size_t>(1, std::min(panel_groups, panel_size / size));
        double sums[panel_groups];
        for (size_t g = first; g < last; g += groups)
        {
            const size_t n = std::min(groups, last - g);
            for (size_t j = 0; j < n; ++j)
                sums[j] = squares<values>(x[g + j], size, p.eps).finish();
            for (size_t j = 0; j < n; ++j)
                p.scale[g + j] = scale_of_group(sums[j], size, p.eps);
            for (size_t j = 0; j < n; ++j)
            {
                output<values, single, decltype(gains(0, size)), llama> f{
                    x[g + j], y[g + j], {p.scale[g + j]}, gains(0, size)};
                const values next = x[std::min(g + j + groups, last - 1)];
                if constexpr (is_short<T>)
                {
                    write_and_sum_apart<stream>(f, f.y, 0, size, squares<values>(next, 0, 0));
                }
                else
                {
                    write_values<stream>(
                        f, f.y, 0, size, [&](size_t i) HWY_ATTR { next.prefetch(i); });
                }
            }
        }
    }

    template <bool stream, bool llama, typename T, class inputs, class make_gains>
    void normalize_long_groups(const rms_norm_forward<T>& p,
        const inputs& x,
        const make_gains& gains,
        size_t first,
        size_t last)
    {
        using values = decltype(x[0]);
        const auto size = static_cast<size_t>(p.groups.size);
        const rows<T> y(p.y, p.groups, p.y_stride);
        double sum = sum_squares_of_group(x[first], size, p.eps);
        for (size_t g = first; g < last; ++g)
        {
            p.scale[g] = scale_of_group(sum, size, p.eps);
            sum = 0;
            const bool has_next = g + 1 < last;
            const values next_x = x[has_next ? g + 1 : g];
            for (size_t b = 0; b < size; b += rms_norm_segment)
            {
                const size_t end = std::min(size, b + rms_norm_segment);
                output<values, single, decltype(gains(b, size)), llama> f{
                    x[g], y[g], {p.scale[g]}, gains(b, size)};
                const squares<values> next(next_x.from(b), has_next ? end - b : 0, p.eps);
                if constexpr (is_short<T>)
                    sum += write_and_sum_apart<stream>(f, f.y, b, end, next);
                else
                    sum += write_and_sum<stream>(f, f.y, b, end, next);
            }
        }
    }

    template <typename T>
    bool can_stream(const rms_norm_forward<T>& p)
    /*!
        ensures
            - returns whether the lines of h, if there is one, begin where those of y do. Two
              streams of 16-bit values, stored in parts of lines, are many times slower than
              stores to the cache.
    !*/
    {
        const rows<T> y(p.y, p.groups, p.y_stride), h(p.h, p.groups, p.h_stride);
        const auto distance = reinterpret_cast<std::uintptr_t>(p.h) -
            reinterpret_cast<std::uintptr_t>(p.y);
        return p.h == nullptr ||
            (!is_short<T> && distance % 64 == 0 && (h.stride - y.stride) * sizeof(T) % 64 == 0);
    }

    // Calls f with all that a forward pass can be, as types.
    template <typename T, class F>
    HWY_INLINE void
    with_variant(const rms_norm_forward<T>& p, const rms_norm_gains& gains, bool stream, const F& f)
    {
        stream = stream && can_stream(p);
        with_bool(stream,
            [&](auto streams) HWY_ATTR
            {
                with_casting<T>(p.casting,
                    [&](auto llama) HWY_ATTR
                    {
                        with_values(p,
                            [&](const auto& x) HWY_ATTR
                            {
                                with_gains_of<T>(gains,
                                    [&](const auto& make_gains) HWY_ATTR
                                    { f(streams, llama, x, make_gains); });
                            });
                    });
            });
        if (stream)
            hwy::FlushStream();
    }

    template <typename T>
    void normalize(const rms_norm_forward<T>& p,
        const rms_norm_gains& gains,
        size_t first,
        size_t last,
        bool stream)
    {
        with_variant(p, gains, stream,
            [&](auto streams, auto llama, const auto& x, const auto& make_gains) HWY_ATTR
            {
                if (static_cast<size_t>(p.groups.size) < short_size)
                    normalize_short_groups<streams, llama>(p, x, make_gains, first, last);
                else
                    normalize_long_groups<streams, llama>(p, x, make_gains, first, last);
            });
    }

    template <typename T>
    void write(const rms_norm_forward<T>& p,
        const rms_norm_gains& gains,
        size_t group,
        size_t begin,
        size_t end,
        bool stream)
    {
        T* const y = rows<T>(p.y, p.groups, p.y_stride)[group];
        with_variant(p, gains, stream,
            [&](auto streams, auto llama, const auto& x, const auto& make_gains) HWY_ATTR
            {
                output<decltype(x[0]), single, decltype(make_gains(begin, end)), llama> f{
                    x[group], y, {p.scale[group]}, make_gains(begin, end)};
                if constexpr (is_short<T>)
                {
                    write_and_sum_apart<streams>(
                        f, y, begin, end, squares<decltype(x[0])>(x[group], 0, 0));
                }
                else
                {
                    write_values<streams>(f, y, begin, end,
                        [&](size_t at) HWY_ATTR { f.x.prefetch(at + distance_ahead<T>); });
                }
            });
    }

    // ----------------------------------------------------------------------------------------
    //                                       backward
    // ----------------------------------------------------------------------------------------

    // A backward pass takes its streams in turns, so many values at a time (measured). While it sums
    // a piece it asks for memory, of the next one mostly, for the writing too.
    constexpr size_t piece = num_floats >= 16 ? 512 : 128;

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

    template <typename T>
    void add_offset(const T* gamma, float offset, float* gains, size_t size)
    {
        const auto add = [&](auto d, size_t i) HWY_ATTR
        {
            const auto g = load(d, gamma + i);
            hn::StoreU(hn::Add(hn::Set(d, offset), g), d, gains + i);
        };
        size_t i = 0;
        for (; i + num_floats <= size; i += num_floats)
            add(floats(), i);
        for (; i < size; ++i)
            add(one_float(), i);
    }

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
