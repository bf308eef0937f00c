// License: Boost Software License   See LICENSE.txt for the full license.

// Numbers of 16 bits in registers: they are floats there, two vectors of them at a time, which is
// what a vector of numbers of 16 bits holds. Highway rounds to them as the processor likes, so they
// are rounded here, to nearest even; only F16C does that by itself.

#if defined(DLIB_RMS_NORM_SIMD_FLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLIB_RMS_NORM_SIMD_FLOAT16_INL_H_
#undef DLIB_RMS_NORM_SIMD_FLOAT16_INL_H_
#else
#define DLIB_RMS_NORM_SIMD_FLOAT16_INL_H_
#endif

#include "rms_norm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{

    // ----------------------------------------------------------------------------------------

    using float_vec = hn::Vec<floats>;
    using unsigneds = hn::RebindToUnsigned<floats>;
    using bits_vec = hn::Vec<unsigneds>;

    struct pair
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                2*num_floats neighbouring values. Of float16 a holds the first half of them and b
                the second; of bfloat16 a holds the even ones and b the odd ones: this way a float is
                made with one operation.
        !*/
        HWY_INLINE pair() {} // gcc's own constructors are for another instruction set

        HWY_INLINE pair(float_vec a_, float_vec b_) :
            a(a_),
            b(b_)
        {
        }

        float_vec a;
        float_vec b;
    };

    constexpr size_t pair_size = 2 * num_floats;

    template <typename T>
    constexpr bool is_even_and_odd = std::is_same_v<T, bfloat16>;

    HWY_INLINE pair load(const float* p)
    {
        return {hn::LoadU(floats(), p), hn::LoadU(floats(), p + num_floats)};
    }

    HWY_INLINE void store(pair v, float* p)
    {
        hn::StoreU(v.a, floats(), p);
        hn::StoreU(v.b, floats(), p + num_floats);
    }

    HWY_INLINE pair add(pair v, pair w) { return {hn::Add(v.a, w.a), hn::Add(v.b, w.b)}; }
    HWY_INLINE pair sub(pair v, pair w) { return {hn::Sub(v.a, w.a), hn::Sub(v.b, w.b)}; }
    HWY_INLINE pair mul(pair v, pair w) { return {hn::Mul(v.a, w.a), hn::Mul(v.b, w.b)}; }
    HWY_INLINE pair mul(pair v, float_vec w) { return {hn::Mul(v.a, w), hn::Mul(v.b, w)}; }

    // ----------------------------------------------------------------------------------------

    // A pair of bfloat16 is a vector of 32 bits: the even one is the lower half.

    HWY_INLINE pair even_and_odd(bits_vec bits)
    {
        const auto odd = hn::And(bits, hn::Set(unsigneds(), 0xffff0000u));
        return {hn::BitCast(floats(), hn::ShiftLeft<16>(bits)), hn::BitCast(floats(), odd)};
    }

    HWY_INLINE pair load(const bfloat16* p)
    {
#if HWY_TARGET == HWY_SCALAR
        std::uint32_t bits;
        std::memcpy(&bits, p, sizeof(bits));
        return even_and_odd(hn::Set(unsigneds(), bits));
#else
        const hn::Repartition<std::uint16_t, floats> d;
        return even_and_odd(hn::BitCast(unsigneds(), hn::LoadU(d, &p->bits)));
#endif
    }

    HWY_INLINE bits_vec nearest_bfloat16(float_vec v)
    /*!
        requires
            - v is what has been computed of numbers of type bfloat16, or of the processor's own NaN
        ensures
            - returns numbers whose upper halves are v, rounded to bfloat16. NaN needs no care: the
              lower half of such a NaN is 0, so nothing is carried to the upper one.
    !*/
    {
        const unsigneds d;
        const auto f = hn::BitCast(d, v);
        const auto is_odd = hn::And(hn::ShiftRight<16>(f), hn::Set(d, 1u));
        return hn::Add(hn::Add(f, hn::Set(d, 0x7fffu)), is_odd);
    }

    HWY_INLINE pair store(pair v, bfloat16* p)
    /*!
        ensures
            - returns what was stored
    !*/
    {
        const auto even = hn::ShiftRight<16>(nearest_bfloat16(v.a));
        const auto odd = nearest_bfloat16(v.b);
#if HWY_TARGET == HWY_SCALAR
        const auto bits = hn::Or(even, hn::And(odd, hn::Set(unsigneds(), 0xffff0000u)));
        std::memcpy(p, &bits.raw, sizeof(bits.raw));
        return even_and_odd(bits);
#else
        const hn::Repartition<std::uint16_t, floats> d;
        const auto bits = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, even));
        hn::StoreU(bits, d, &p->bits);
        return even_and_odd(hn::BitCast(unsigneds(), bits));
#endif
    }

    HWY_INLINE float_vec rounded(float_vec v, bfloat16)
    {
        const auto bits = hn::And(nearest_bfloat16(v), hn::Set(unsigneds(), 0xffff0000u));
        return hn::BitCast(floats(), bits);
    }

    // ----------------------------------------------------------------------------------------

    using shorts = hn::Rebind<std::uint16_t, floats>;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
    using float16s = hn::Rebind<hwy::float16_t, floats>;

    HWY_INLINE float_vec from_float16(hn::Vec<shorts> bits)
    {
        return hn::PromoteTo(floats(), hn::BitCast(float16s(), bits));
    }

    HWY_INLINE hn::Vec<shorts> to_float16(float_vec v)
    {
        return hn::BitCast(shorts(), hn::DemoteTo(float16s(), v));
    }
#else
    // This is too long to be repeated in every loop.
    inline HWY_NOINLINE float_vec from_float16(hn::Vec<shorts> bits)
    {
        const floats d;
        const unsigneds du;
        const hn::RebindToSigned<floats> di;
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

    inline HWY_NOINLINE hn::Vec<shorts> to_float16(float_vec v)
    {
        const floats d;
        const unsigneds du;
        const hn::RebindToSigned<floats> di;
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
        result = hn::Or(result, hn::And(hn::ShiftRight<16>(f), hn::Set(du, 0x8000u)));
        return hn::DemoteTo(shorts(), hn::BitCast(di, result));
    }
#endif

    HWY_INLINE pair load(const float16* p)
    {
        return {from_float16(hn::LoadU(shorts(), &p->bits)),
            from_float16(hn::LoadU(shorts(), &p[num_floats].bits))};
    }

    HWY_INLINE pair store(pair v, float16* p)
    /*!
        ensures
            - returns what was stored
    !*/
    {
        const auto a = to_float16(v.a);
        const auto b = to_float16(v.b);
        hn::StoreU(a, shorts(), &p->bits);
        hn::StoreU(b, shorts(), &p[num_floats].bits);
        return {from_float16(a), from_float16(b)};
    }

    HWY_INLINE float_vec rounded(float_vec v, float16) { return from_float16(to_float16(v)); }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    HWY_INLINE pair rounded(pair v)
    /*!
        ensures
            - returns v, rounded to T
    !*/
    {
        return {rounded(v.a, T()), rounded(v.b, T())};
    }

    // ----------------------------------------------------------------------------------------

}
HWY_AFTER_NAMESPACE();

#endif // DLIB_RMS_NORM_SIMD_FLOAT16_INL_H_
