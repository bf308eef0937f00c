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
    constexpr size_t distance_ahead = 3072 / sizeof(T);
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

    // Numbers of 16 bits are floats in registers. Highway rounds to them as the processor likes, so
    // they are rounded here, to nearest even; only F16C does that by itself.

    template <class D>
    using shorts = hn::Rebind<uint16_t, D>;
    template <class D>
    using unsigneds = hn::RebindToUnsigned<D>;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
    constexpr bool has_f16c = true;
#else
    constexpr bool has_f16c = false;
#endif

    template <class D>
    HWY_INLINE hn::Vec<D> load(D d, const float* p)
    {
        return hn::LoadU(d, p);
    }

    template <class D>
    HWY_INLINE hn::Vec<D> load(D d, const bfloat16* p)
    {
        const auto bits = hn::PromoteTo(unsigneds<D>(), hn::LoadU(shorts<D>(), &p->bits));
        return hn::BitCast(d, hn::ShiftLeft<16>(bits));
    }

    // What a processor without F16C has to do is too long to be repeated in every loop.
    template <class D>
    HWY_NOINLINE hn::Vec<D> from_float16(D d, hn::Vec<shorts<D>> bits)
    {
        const unsigneds<D> du;
        const hn::RebindToSigned<D> di;
        const auto h = hn::PromoteTo(du, bits);
        const auto a = hn::And(h, hn::Set(du, 0x7fffu));
        const auto shifted = hn::ShiftLeft<13>(a);
        const auto normal = hn::Add(shifted, hn::Set(du, 0x38000000u));
        const auto special = hn::Or(shifted, hn::Set(du, 0x7f800000u));
        const auto quiet = hn::Or(special, hn::Set(du, 0x400000u));
        const auto denormal = hn::BitCast(
            du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, a)), hn::Set(d, 0x1p-24f)));
        const auto below = [&](int32_t limit) HWY_ATTR
        { return hn::RebindMask(du, hn::Lt(hn::BitCast(di, a), hn::Set(di, limit))); };
        auto result = hn::IfThenElse(below(0x7c01), special, quiet);
        result = hn::IfThenElse(below(0x7c00), normal, result);
        result = hn::IfThenElse(below(0x400), denormal, result);
        const auto sign = hn::ShiftLeft<16>(hn::And(h, hn::Set(du, 0x8000u)));
        return hn::BitCast(d, hn::Or(result, sign));
    }

    template <class D>
    HWY_NOINLINE hn::Vec<unsigneds<D>> to_float16(D d, hn::Vec<D> v)
    {
        const unsigneds<D> du;
        const hn::RebindToSigned<D> di;
        const auto f = hn::BitCast(du, v);
        const auto a = hn::And(f, hn::Set(du, 0x7fffffffu));
        const auto is_odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1u));
        const auto normal = hn::ShiftRight<13>(
            hn::Add(hn::Sub(a, hn::Set(du, 0x38000000u)), hn::Add(is_odd, hn::Set(du, 0xfffu))));
        const auto quiet = hn::Or(
            hn::Set(du, 0x7e00u), hn::And(hn::ShiftRight<13>(a), hn::Set(du, 0x1ffu)));
        // The last bit of 0.5 is the smallest float16.
        const auto half = hn::Set(d, 0.5f);
        const auto denormal = hn::Sub(
            hn::BitCast(du, hn::Add(hn::BitCast(d, a), half)), hn::BitCast(du, half));
        const auto below = [&](int32_t limit) HWY_ATTR
        { return hn::RebindMask(du, hn::Lt(hn::BitCast(di, a), hn::Set(di, limit))); };
        auto result = hn::IfThenElse(below(0x7f800001), hn::Set(du, 0x7c00u), quiet);
        result = hn::IfThenElse(below(0x47800000), normal, result);
        result = hn::IfThenElse(below(0x38800000), denormal, result);
        return hn::Or(result, hn::And(hn::ShiftRight<16>(f), hn::Set(du, 0x8000u)));
    }

    template <class D>
    HWY_INLINE hn::Vec<D> load(D d, const float16* p)
    {
        const auto bits = hn::LoadU(shorts<D>(), &p->bits);
        if constexpr (has_f16c)
            return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
        else
            return from_float16(d, bits);
    }

    // Returns the bits of v, rounded to bfloat16, as the lower half of a number of 32 bits.
    template <class D>
    HWY_INLINE hn::Vec<unsigneds<D>> to_bfloat16(D, hn::Vec<D> v)
    {
        const unsigneds<D> du;
        const auto f = hn::BitCast(du, v);
        const auto is_odd = hn::And(hn::ShiftRight<16>(f), hn::Set(du, 1u));
        const auto nearest = hn::Add(f, hn::Add(is_odd, hn::Set(du, 0x7fffu)));
        const auto quiet = hn::Or(f, hn::Set(du, 0x400000u));
        const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
        return hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, nearest));
    }

    template <typename T, class D>
    HWY_INLINE hn::Vec<shorts<D>> shortened(D d, hn::Vec<D> v)
    {
        const hn::RebindToSigned<D> di;
        if constexpr (std::is_same_v<T, bfloat16>)
            return hn::DemoteTo(shorts<D>(), hn::BitCast(di, to_bfloat16(d, v)));
        else if constexpr (has_f16c)
            return hn::BitCast(shorts<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
        else
            return hn::DemoteTo(shorts<D>(), hn::BitCast(di, to_float16(d, v)));
    }

    template <bool stream, class D>
    HWY_INLINE void store(hn::Vec<D> v, D d, float* p)
    {
        if constexpr (stream)
            hn::Stream(v, d, p);
        else
            hn::StoreU(v, d, p);
    }

    template <bool stream, class D, typename T>
    HWY_INLINE void store(hn::Vec<D> v, D d, T* p)
    {
        const shorts<D> ds;
        // Highway's Stream stores 16 bytes at least.
        if constexpr (stream && hn::MaxLanes(ds) >= 8)
            hn::Stream(shortened<T>(d, v), ds, &p->bits);
        else
            hn::StoreU(shortened<T>(d, v), ds, &p->bits);
    }

    // Rounds to T and back.
    template <typename T, class D>
    HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v)
    {
        if constexpr (std::is_same_v<T, float>)
        {
            return v;
        }
        else if constexpr (std::is_same_v<T, bfloat16>)
        {
            return hn::BitCast(d, hn::ShiftLeft<16>(to_bfloat16(d, v)));
        }
        else if constexpr (has_f16c)
        {
            const hn::Rebind<hwy::float16_t, D> d16;
            return hn::PromoteTo(d, hn::DemoteTo(d16, v));
        }
        else
        {
            return from_float16(d, shortened<T>(d, v));
        }
    }

    // ----------------------------------------------------------------------------------------

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

    template <typename T>
    HWY_INLINE void copy_less_than_chunk(const T* from, size_t count, T* to)
    {
        if (count & 8)
        {
            std::memcpy(to, from, 8 * sizeof(T));
            from += 8;
            to += 8;
        }
        if (count & 4)
        {
            std::memcpy(to, from, 4 * sizeof(T));
            from += 4;
            to += 4;
        }
        if (count & 2)
        {
            std::memcpy(to, from, 2 * sizeof(T));
            from += 2;
            to += 2;
        }
        if (count & 1)
            *to = *from;
    }

    template <typename T>
    struct padded
    {
        // The last values of a group, followed by zeros, which add nothing to a sum.
        padded() = default;

        HWY_INLINE padded(const T* from, size_t count) { assign(from, count); }

        HWY_INLINE void assign(const T* from, size_t count)
        {
            const hn::CappedTag<uint16_t, chunk> d;
            for (size_t k = 0; k < sizeof(values) / 2; k += hn::MaxLanes(d))
                hn::StoreU(hn::Zero(d), d, reinterpret_cast<uint16_t*>(values) + k);
            copy_less_than_chunk(from, count, values);
        }

        alignas(64) T values[chunk];
    };

    // ----------------------------------------------------------------------------------------

    // The values of a group.

    template <typename T>
    struct only_x
    {
        using type = T;
        static constexpr bool is_sum = false;

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return load(d, x + i);
        }

        HWY_INLINE void prefetch(size_t i) const { prefetch_at(x, i); }

        HWY_INLINE only_x from(size_t i) const { return {x + i}; }

        const T* x;
    };

    template <typename T>
    struct x_plus_r
    {
        using type = T;
        static constexpr bool is_sum = true;

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return rounded<T>(d, hn::Add(load(d, x + i), load(d, r + i)));
        }

        HWY_INLINE void prefetch(size_t i) const
        {
            prefetch_at(x, i);
            prefetch_at(r, i);
        }

        HWY_INLINE x_plus_r from(size_t i) const { return {x + i, r + i, h + i}; }

        const T* x;
        const T* r;
        T* h;
    };

    // The last values of a group, fewer than a chunk, followed by zeros.

    template <class values>
    struct last_values;

    template <typename T>
    struct last_values<only_x<T>>
    {
        HWY_INLINE last_values(const only_x<T>& v, size_t count) :
            x(v.x, count)
        {
        }
        HWY_INLINE only_x<T> get() const { return {x.values}; }
        padded<T> x;
    };

    template <typename T>
    struct last_values<x_plus_r<T>>
    {
        HWY_INLINE last_values(const x_plus_r<T>& v, size_t count) :
            x(v.x, count),
            r(v.r, count)
        {
        }
        HWY_INLINE x_plus_r<T> get() const { return {x.values, r.values, nullptr}; }
        padded<T> x;
        padded<T> r;
    };

    // ----------------------------------------------------------------------------------------

    // Chunks that are added up in float before they go into the lanes, where values have 16 bits.
    constexpr size_t step_chunks = 4;

    struct sum_lanes
    {
        HWY_INLINE sum_lanes()
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
                v[k] = hn::Zero(doubles());
        }

        template <class values>
        HWY_INLINE void add_squares(const values& x, size_t i)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
            {
                const vec a = hn::PromoteTo(doubles(), x.get(half_floats(), i + k * num_doubles));
                v[k] = hn::MulAdd(a, a, v[k]);
            }
        }

        // Adds to the lanes from `lane` on.
        HWY_INLINE void add(size_t lane, hn::Vec<floats> sums)
        {
            for_each_half(sums,
                [&](size_t i, vec sum) HWY_ATTR
                {
                    vec& to = v[(lane + i) / num_doubles];
                    to = hn::Add(to, sum);
                });
        }

        // step_chunks chunks. Squares of 16-bit values are exact in float.
        template <class values>
        HWY_INLINE void add_squares_in_float(const values& x, size_t i)
        {
            HWY_UNROLL(4)
            for (size_t k = 0; k < chunk; k += num_floats)
            {
                auto a = x.get(floats(), i + k);
                auto sum = hn::Mul(a, a);
                HWY_UNROLL(4)
                for (size_t c = 1; c < step_chunks; ++c)
                {
                    a = x.get(floats(), i + k + c * chunk);
                    sum = hn::Add(sum, hn::Mul(a, a));
                }
                add(k, sum);
            }
        }

        HWY_INLINE void add_products(const float* d, const float* x)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
            {
                v[k] = hn::MulAdd(
                    load_as_double(d + k * num_doubles), load_as_double(x + k * num_doubles), v[k]);
            }
        }

        HWY_INLINE double total() const
        {
            vec a[vecs];
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
                a[k] = v[k];
            HWY_UNROLL(4)
            for (size_t half = vecs / 2; half >= 1; half /= 2)
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

        vec v[vecs];
    };

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

    // y, and h if there is one
    template <class values, class scales, class gains, bool llama = false>
    struct output
    {
        using type = typename values::type;

        HWY_INLINE void fetch(size_t i)
        {
            if constexpr (gains::exists)
                g.fetch(i);
        }

        template <bool stream, class D>
        HWY_INLINE void write(D d, size_t i) const
        {
            auto v = x.get(d, i);
            if constexpr (values::is_sum)
                store<stream>(v, d, x.h + i);
            v = hn::Mul(v, s.get(d, i));
            if constexpr (llama)
                v = rounded<type>(d, v);
            if constexpr (gains::exists)
                v = hn::Mul(v, g.get(d, i));
            store<stream>(v, d, y + i);
        }

        values x;
        type* y;
        scales s;
        gains g;
    };

    // dx
    template <typename T, bool add, class scales, class gains, bool llama = false>
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
            auto gd = load(dd, d + i);
            if constexpr (gains::exists)
                gd = hn::Mul(g.get(dd, i), gd);
            if constexpr (llama)
                gd = rounded<T>(dd, gd);
            const auto scale = s.get(dd, i);
            const auto xhm = hn::Mul(hn::Mul(load(dd, x + i), scale), m.get(dd, i));
            auto v = hn::Mul(scale, hn::Sub(gd, xhm));
            if constexpr (add)
                v = hn::Add(load(dd, old + i), rounded<T>(dd, v));
            store<false>(v, dd, dx + i);
        }

        const T* d;
        const T* x;
        const T* old; // what v is added to
        T* dx;
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

    template <bool stream, class formula, typename T, class F>
    HWY_INLINE void write_values(formula& f, const T* y, size_t begin, size_t end, const F& ahead)
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
