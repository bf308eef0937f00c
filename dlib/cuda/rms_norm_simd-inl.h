// License: Boost Software License   See LICENSE.txt for the full license.

// The toolbox of the loops: sums in lanes, operands, formulas, and how an array is walked through.
// Compiled once per instruction set in each source that includes it, as Highway's -inl.h files are.

#if defined(DLIB_RMS_NORM_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLIB_RMS_NORM_SIMD_INL_H_
#undef DLIB_RMS_NORM_SIMD_INL_H_
#else
#define DLIB_RMS_NORM_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <hwy/highway.h>
#include <hwy/cache_control.h>
#include "rms_norm_simd.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{

    namespace hn = hwy::HWY_NAMESPACE;
    using std::size_t;

    using doubles = hn::ScalableTag<double>;
    using floats = hn::ScalableTag<float>;
    using half_floats = hn::Rebind<float, doubles>;
    using few_floats = hn::CappedTag<float, 4>;
    using one_float = hn::CappedTag<float, 1>;
    using vec = hn::Vec<doubles>;

    // What goes into the lanes of a sum at once. What is stored past the caches fills whole lines.
    constexpr size_t chunk = rms_norm_lanes;
    template <typename T>
    constexpr size_t line = 64 / sizeof(T);
    static_assert(line<float> % chunk == 0);

    constexpr size_t num_doubles = hn::MaxLanes(doubles());
    constexpr size_t num_floats = hn::MaxLanes(floats());
    constexpr size_t num_few_floats = hn::MaxLanes(few_floats());
    constexpr size_t vecs = chunk / num_doubles;

    // How far ahead, in values, a loop asks for memory: the processor's own prefetching stops at
    // page borders.
    template <typename T>
    constexpr size_t distance_ahead = (sizeof(T) < sizeof(float) ? 6144 : 3072) / sizeof(T);
    constexpr size_t prefetch_distance = distance_ahead<float>;

    // ----------------------------------------------------------------------------------------

    template <class F>
    HWY_INLINE void with_bool(bool value, const F& f)
    /*!
        ensures
            - calls f with value as a type
    !*/
    {
        if (value)
            f(std::true_type());
        else
            f(std::false_type());
    }

    // ----------------------------------------------------------------------------------------

    template <bool stream, class D>
    HWY_INLINE void store(hn::Vec<D> v, D d, float* p)
    {
        if constexpr (stream)
            hn::Stream(v, d, p);
        else
            hn::StoreU(v, d, p);
    }

    HWY_INLINE vec load_as_double(const float* p)
    {
        return hn::PromoteTo(doubles(), hn::LoadU(half_floats(), p));
    }

    template <class F>
    HWY_INLINE void for_each_half(hn::Vec<floats> v, const F& f)
    /*!
        ensures
            - calls f(i, w) for the vectors w that hold v as doubles, from v[i] on
    !*/
    {
#if HWY_TARGET == HWY_SCALAR
        f(size_t(0), hn::PromoteTo(doubles(), v));
#else
        f(size_t(0), hn::PromoteTo(doubles(), hn::LowerHalf(half_floats(), v)));
        f(num_doubles, hn::PromoteTo(doubles(), hn::UpperHalf(half_floats(), v)));
#endif
    }

    // An address a little past the end of an array does no harm.
    template <typename T>
    HWY_INLINE void prefetch_at(const T* p, size_t i)
    {
        hwy::Prefetch(
            reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(p) + i * sizeof(T)));
    }

    HWY_INLINE void copy_less_than_chunk(const float* from, size_t count, float* to)
    {
        if (count & 8)
        {
            std::memcpy(to, from, 8 * sizeof(float));
            from += 8;
            to += 8;
        }
        if (count & 4)
        {
            std::memcpy(to, from, 4 * sizeof(float));
            from += 4;
            to += 4;
        }
        if (count & 2)
        {
            std::memcpy(to, from, 2 * sizeof(float));
            from += 2;
            to += 2;
        }
        if (count & 1)
            *to = *from;
    }

    struct padded
    {
        // The last values of a group, followed by zeros, which add nothing to a sum.
        HWY_INLINE padded(const float* from, size_t count)
        {
            for (size_t k = 0; k < chunk; k += num_floats)
                hn::Store(hn::Zero(floats()), floats(), values + k);
            copy_less_than_chunk(from, count, values);
        }

        alignas(64) float values[chunk];
    };

    // ----------------------------------------------------------------------------------------

    // The values of a group, when they are summed: x, or x + r, which then goes to h.

    struct only_x
    {
        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return hn::LoadU(d, x + i);
        }

        HWY_INLINE void prefetch(size_t i) const { prefetch_at(x, i); }

        HWY_INLINE only_x from(size_t i) const { return {x + i}; }

        HWY_INLINE padded last(size_t count) const { return padded(x, count); }

        const float* x;
    };

    struct x_plus_r
    {
        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            const auto v = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, r + i));
            hn::StoreU(v, d, h + i);
            return v;
        }

        HWY_INLINE void prefetch(size_t i) const
        {
            prefetch_at(x, i);
            prefetch_at(r, i);
        }

        HWY_INLINE x_plus_r from(size_t i) const { return {x + i, r + i, h + i}; }

        HWY_INLINE padded last(size_t count) const
        {
            for (size_t i = 0; i < count; ++i)
                h[i] = x[i] + r[i];
            return padded(h, count);
        }

        const float* x;
        const float* r;
        float* h;
    };

    // ----------------------------------------------------------------------------------------

    template <size_t lanes>
    struct lane_sums
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The partial sums of a segment.
        !*/
        static constexpr size_t vectors = lanes / num_doubles;

        HWY_INLINE lane_sums()
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vectors; ++k)
                v[k] = hn::Zero(doubles());
        }

        template <class values>
        HWY_INLINE void add_squares(const values& x, size_t i)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vectors; ++k)
            {
                const vec a = hn::PromoteTo(doubles(), x.get(half_floats(), i + k * num_doubles));
                v[k] = hn::MulAdd(a, a, v[k]);
            }
        }

        HWY_INLINE void add_products(const float* d, const float* x)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vectors; ++k)
            {
                v[k] = hn::MulAdd(
                    load_as_double(d + k * num_doubles), load_as_double(x + k * num_doubles), v[k]);
            }
        }

        HWY_INLINE double total() const
        {
            vec a[vectors];
            HWY_UNROLL(16)
            for (size_t k = 0; k < vectors; ++k)
                a[k] = v[k];
            HWY_UNROLL(4)
            for (size_t half = vectors / 2; half >= 1; half /= 2)
            {
                HWY_UNROLL(8)
                for (size_t k = 0; k < half; ++k)
                    a[k] = hn::Add(a[k], a[k + half]);
            }

            alignas(64) double b[num_doubles];
            hn::Store(a[0], doubles(), b);
            HWY_UNROLL(4)
            for (size_t half = num_doubles / 2; half >= 1; half /= 2)
            {
                HWY_UNROLL(8)
                for (size_t k = 0; k < half; ++k)
                    b[k] += b[k + half];
            }
            return b[0];
        }

        vec v[vectors];
    };

    using sum_lanes = lane_sums<chunk>;

    // ----------------------------------------------------------------------------------------

    // Operands of the formulas below: one number for all values, one per value, or one per
    // run of values. fetch(i) is called before get(d, i), for growing i.

    struct nothing
    {
        static constexpr bool exists = false;
    };

    struct single
    {
        static constexpr bool exists = true;

        HWY_INLINE void fetch(size_t) {}

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t) const
        {
            return hn::Set(d, value);
        }

        float value;
    };

    struct array
    {
        static constexpr bool exists = true;

        HWY_INLINE void fetch(size_t) {}

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return hn::LoadU(d, values + i);
        }

        const float* values;
    };

    struct runs
    {
        static constexpr bool exists = true;

        HWY_INLINE runs(const float* values_, size_t run_, size_t begin, size_t end_) :
            value(values_ + begin / run_),
            run(run_),
            run_end(begin / run_ * run_ + run_),
            end(end_)
        {
            spread();
        }

        HWY_INLINE void spread()
        {
            const auto a = hn::Set(floats(), value[0]);
            const auto b = hn::Set(floats(), run_end < end ? value[1] : value[0]);
            for (size_t k = 0; k < chunk; k += num_floats)
            {
                hn::Store(a, floats(), both + k);
                hn::Store(b, floats(), both + chunk + k);
            }
        }

        HWY_INLINE void fetch(size_t i)
        {
            if (i >= run_end)
            {
                ++value;
                run_end += run;
                spread();
            }
            at = i;
            from = i + chunk > run_end ? both + (i + chunk - run_end) : both;
        }

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return hn::LoadU(d, from + (i - at));
        }

        const float* value;
        size_t run;
        size_t run_end;
        size_t end;
        size_t at = 0;
        const float* from = both;
        alignas(64) float both[2 * chunk]; // this run's and the next one's: a chunk meets two runs
    };

    template <class F>
    HWY_INLINE void with_gains(const rms_norm_gains& gains, const F& f)
    /*!
        ensures
            - calls f with a function that returns the gains of the values [begin, end) of a group
              as an operand: nothing, array or runs
    !*/
    {
        if (gains.values == nullptr)
            f([](size_t, size_t) HWY_ATTR { return nothing(); });
        else if (gains.run == 1)
            f([&](size_t, size_t) HWY_ATTR { return array{gains.values}; });
        else
            f([&](size_t begin, size_t end) HWY_ATTR
                { return runs(gains.values, gains.run, begin, end); });
    }

    // ----------------------------------------------------------------------------------------

    template <class scales, class gains>
    struct output
    {
        HWY_INLINE void fetch(size_t i)
        {
            if constexpr (gains::exists)
                g.fetch(i);
        }

        template <bool stream, class D>
        HWY_INLINE void write(D d, size_t i) const
        {
            auto v = hn::Mul(hn::LoadU(d, x + i), s.get(d, i));
            if constexpr (gains::exists)
                v = hn::Mul(v, g.get(d, i));
            store<stream>(v, d, y + i);
        }

        const float* x;
        float* y;
        scales s;
        gains g;
    };

    // dx
    template <bool add, class scales, class gains>
    struct input_gradient
    {
        HWY_INLINE void fetch(size_t i)
        {
            if constexpr (gains::exists)
                g.fetch(i);
        }

        template <bool, class D>
        HWY_INLINE void write(D dd, size_t i) const
        {
            auto gd = hn::LoadU(dd, d + i);
            if constexpr (gains::exists)
                gd = hn::Mul(g.get(dd, i), gd);
            const auto scale = s.get(dd, i);
            const auto xhm = hn::Mul(hn::Mul(hn::LoadU(dd, x + i), scale), m.get(dd, i));
            auto v = hn::Mul(scale, hn::Sub(gd, xhm));
            if constexpr (add)
                v = hn::Add(hn::LoadU(dd, old + i), v);
            store<false>(v, dd, dx + i);
        }

        const float* d;
        const float* x;
        const float* old; // what v is added to
        float* dx;
        scales s;
        scales m;
        gains g;
    };

    // ----------------------------------------------------------------------------------------

    template <class formula>
    HWY_INLINE void write_few(formula& f, size_t i, size_t end)
    {
        for (; i + num_few_floats <= end; i += num_few_floats)
        {
            f.fetch(i);
            f.template write<false>(few_floats(), i);
        }
        for (; i < end; ++i)
        {
            f.fetch(i);
            f.template write<false>(one_float(), i);
        }
    }

    template <bool stream, class formula>
    HWY_INLINE void write_chunk(formula& f, size_t i)
    {
        f.fetch(i);
        HWY_UNROLL(16)
        for (size_t k = 0; k < chunk; k += num_floats)
            f.template write<stream>(floats(), i + k);
    }

    // Streaming stores are for whole cache lines; a line that two groups share is left to
    // the cache.
    template <typename T>
    HWY_INLINE size_t next_line(const T* y, size_t begin, size_t end)
    {
        const size_t past = reinterpret_cast<std::uintptr_t>(y + begin) / sizeof(T) % line<T>;
        return past == 0 ? begin : std::min(end, begin + line<T> - past);
    }

    template <bool stream, class formula, class F>
    HWY_INLINE void
    write_values(formula& f, const float* y, size_t begin, size_t end, const F& ahead)
    /*!
        ensures
            - writes the values [begin, end). Before each chunk at i, ahead(i) may ask for memory.
    !*/
    {
        size_t i = begin;
        if constexpr (stream)
        {
            i = next_line(y, begin, end);
            write_few(f, begin, i);
        }
        for (; i + chunk <= end; i += chunk)
        {
            ahead(i);
            write_chunk<stream>(f, i);
        }
        write_few(f, i, end);
    }

    // ----------------------------------------------------------------------------------------

}
HWY_AFTER_NAMESPACE();

#endif // DLIB_RMS_NORM_SIMD_INL_H_
