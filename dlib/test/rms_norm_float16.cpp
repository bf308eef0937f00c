// License: Boost Software License   See LICENSE.txt for the full license.

// float16 and bfloat16: every number of 16 bits, in both directions, against a table that is made
// from the definition; by the conversions of rms_norm_float16.h, and by those of the loops, which
// are compiled here once more for every instruction set.

#include <dlib/cuda/rms_norm_simd_targets.h>
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/test/rms_norm_float16.cpp"
#include <hwy/foreach_target.h>
#include <dlib/cuda/rms_norm_simd_float16-inl.h>

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{
    namespace
    {
        template <typename T>
        void convert(const T* shorts_, float* out_floats, const float* in, T* out)
        /*!
            ensures
                - converts 64 numbers in each direction, as they are in memory: into the order of a
                  pair and back
        !*/
        {
            const auto in_order = [](pair v, float* to) HWY_ATTR
            {
                if constexpr (is_even_and_odd<T>)
                    hn::StoreInterleaved2(v.a, v.b, floats(), to);
                else
                    store(v, to);
            };
            for (size_t i = 0; i < 64; i += pair_size)
            {
                in_order(load(shorts_ + i), out_floats + i);
                pair v = load(in + i);
                if constexpr (is_even_and_odd<T>)
                    hn::LoadInterleaved2(floats(), in + i, v.a, v.b);
                float stored[pair_size], back[pair_size], there[pair_size];
                in_order(store(v, out + i), stored);
                in_order(rounded<T>(v), back);
                in_order(load(out + i), there);
                // rounding, and what a store returns, is the same as storing and loading
                if (std::memcmp(back, there, sizeof(back)) != 0 ||
                    std::memcmp(stored, there, sizeof(back)) != 0)
                    out[i] = T(static_cast<float>(out[i]) + 1);
            }
        }
    }

    void convert_float16(const float16* a, float* b, const float* c, float16* d)
    {
        convert(a, b, c, d);
    }

    void convert_bfloat16(const bfloat16* a, float* b, const float* c, bfloat16* d)
    {
        convert(a, b, c, d);
    }
}
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cmath>
#include <limits>
#include <random>
#include <vector>
#include "instruction_sets.h"
#include "test_cases.h"

namespace dlib::contrib::cpu
{
    HWY_EXPORT(convert_float16);
    HWY_EXPORT(convert_bfloat16);

    template <typename T>
    void convert_64(const T* a, float* b, const float* c, T* d)
    {
        if constexpr (std::is_same_v<T, float16>)
            HWY_DYNAMIC_DISPATCH(convert_float16)(a, b, c, d);
        else
            HWY_DYNAMIC_DISPATCH(convert_bfloat16)(a, b, c, d);
    }
}

namespace
{

    using namespace test;
    using dlib::contrib::bfloat16;
    using dlib::contrib::float16;

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct format;

    template <>
    struct format<float16>
    {
        static constexpr int mantissa_bits = 10;
        static constexpr int bias = 15;
        static constexpr int largest_exponent = 31;
    };

    template <>
    struct format<bfloat16>
    {
        static constexpr int mantissa_bits = 7;
        static constexpr int bias = 127;
        static constexpr int largest_exponent = 255;
    };

    template <typename T>
    T with_bits(unsigned bits)
    {
        T value;
        value.bits = static_cast<std::uint16_t>(bits);
        return value;
    }

    template <typename T>
    double value_of(unsigned bits)
    /*!
        ensures
            - returns what the definition of the format says
    !*/
    {
        using f = format<T>;
        const int mantissa = static_cast<int>(bits & ((1u << f::mantissa_bits) - 1));
        const int exponent = static_cast<int>((bits & 0x7fff) >> f::mantissa_bits);
        double value = 0;
        if (exponent == f::largest_exponent)
            value = mantissa == 0 ? HUGE_VAL : std::nan("");
        else if (exponent == 0)
            value = std::ldexp(mantissa, 1 - f::bias - f::mantissa_bits);
        else
            value = std::ldexp(
                mantissa + (1 << f::mantissa_bits), exponent - f::bias - f::mantissa_bits);
        return (bits & 0x8000) != 0 ? -value : value;
    }

    template <typename T>
    unsigned nearest_bits(double value)
    /*!
        requires
            - value is not NaN
        ensures
            - returns the bits of the nearest number, of the even one of two. What is half a step
              or more above the largest number is infinity.
    !*/
    {
        using f = format<T>;
        const double a = std::abs(value);
        const unsigned infinity = static_cast<unsigned>(f::largest_exponent) << f::mantissa_bits;
        unsigned low = 0, high = infinity;
        const auto number = [&](unsigned bits) {
            return bits == infinity ? std::ldexp(1.0, f::largest_exponent - f::bias)
                                    : value_of<T>(bits);
        };
        while (high - low > 1)
        {
            const unsigned middle = (low + high) / 2;
            (number(middle) <= a ? low : high) = middle;
        }
        const double below = a - number(low), above = number(high) - a;
        const bool up = above < below || (above == below && high % 2 == 0);
        return (up ? high : low) | (std::signbit(value) ? 0x8000u : 0u);
    }

    float float_with_bits(std::uint32_t bits)
    {
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }

    template <typename T>
    std::vector<float> floats_around()
    /*!
        ensures
            - returns floats at, half-way between and around all numbers of type T, NaNs with every
              kind of payload, and random ones
    !*/
    {
        std::vector<float> all;
        for (std::uint32_t upper = 0; upper < 65536; ++upper)
        {
            for (std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u,
                     0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu})
                all.push_back(float_with_bits(upper << 16 | lower));
        }
        for (unsigned bits = 0; bits + 1 < 65536; ++bits)
        {
            const double a = value_of<T>(bits), b = value_of<T>(bits + 1);
            if (!std::isfinite(a) || !std::isfinite(b))
                continue;
            const float middle = static_cast<float>((a + b) / 2);
            for (float v : {static_cast<float>(a), middle, std::nextafter(middle, HUGE_VALF),
                     std::nextafter(middle, -HUGE_VALF)})
                all.push_back(v);
        }
        std::mt19937 rnd(1);
        for (int i = 0; i < 100000; ++i)
            all.push_back(float_with_bits(static_cast<std::uint32_t>(rnd())));
        all.resize(all.size() / 64 * 64);
        return all;
    }

    template <typename T>
    void check_short(double value, T found, const char* how)
    {
        const bool good = std::isnan(value) ? std::isnan(value_of<T>(found.bits))
                                            : found.bits == nearest_bits<T>(value);
        DLIB_TEST_MSG(
            good, how << ": " << std::hexfloat << value << " becomes " << value_of<T>(found.bits));
    }

    template <typename T>
    void check_float(unsigned bits, float found, const char* how)
    {
        const double value = value_of<T>(bits);
        const bool good = std::isnan(value)
            ? std::isnan(found)
            : found == value && std::signbit(found) == std::signbit(value);
        DLIB_TEST_MSG(good, how << ": " << std::hexfloat << value << " becomes " << found);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void all_numbers_of_16_bits()
    {
        static_assert(sizeof(T) == 2 && alignof(T) == 2 && std::is_trivially_copyable_v<T> &&
            std::is_standard_layout_v<T> && std::is_trivially_default_constructible_v<T>);
        static_assert(!std::is_convertible_v<T, float> && !std::is_convertible_v<float, T>);
        for (unsigned bits = 0; bits < 65536; ++bits)
        {
            const T value = with_bits<T>(bits);
            check_float<T>(bits, static_cast<float>(value), "to float");
            const T back(static_cast<float>(value));
            DLIB_TEST(std::isnan(value_of<T>(bits)) || back.bits == bits);
        }
        for (float value : floats_around<T>())
            check_short(static_cast<double>(value), T(value), "from float");
    }

    template <typename T>
    void doubles_are_rounded_once()
    {
        std::mt19937_64 rnd(2);
        for (unsigned bits = 0; bits + 1 < 65536; ++bits)
        {
            const double a = value_of<T>(bits), b = value_of<T>(bits + 1);
            if (!std::isfinite(a) || !std::isfinite(b))
                continue;
            // These are half-way when they have been rounded to float.
            const double middle = (a + b) / 2;
            for (double v :
                {a, middle, std::nextafter(middle, HUGE_VAL), std::nextafter(middle, -HUGE_VAL),
                    middle * (1 + 0x1p-40), middle * (1 - 0x1p-40)})
                check_short(v, T(v), "from double");
        }
        for (double v : {0.0, -0.0, 1e300, -1e300, 1e-300, -1e-300, HUGE_VAL, -HUGE_VAL,
                 std::nan(""), static_cast<double>(std::numeric_limits<float>::max())})
            check_short(v, T(v), "from double");
        for (int i = 0; i < 100000; ++i)
        {
            const double v = std::ldexp(
                static_cast<double>(rnd()), static_cast<int>(rnd() % 100) - 110);
            check_short(v, T(v), "from double");
        }
    }

    template <typename T>
    void loops_convert_like_this()
    {
        std::vector<float> numbers = floats_around<T>();
        if (std::is_same_v<T, bfloat16>)
        {
            // The only NaNs in the loops come from numbers of 16 bits, or are the processor's own.
            for (float& value : numbers)
            {
                if (std::isnan(value))
                    value = static_cast<float>(T(value));
            }
        }
        for_each_instruction_set(
            [&](const char* name)
            {
                for (std::size_t i = 0; i < numbers.size(); i += 64)
                {
                    alignas(64) T shorts[64], found[64];
                    alignas(64) float found_floats[64];
                    for (std::size_t k = 0; k < 64; ++k)
                        shorts[k] = with_bits<T>(static_cast<unsigned>(i + k) & 0xffff);
                    dlib::contrib::cpu::convert_64(shorts, found_floats, &numbers[i], found);
                    for (std::size_t k = 0; k < 64; ++k)
                    {
                        if (i < 65536)
                            check_float<T>(shorts[k].bits, found_floats[k], name);
                        // those of the header have been compared with the definition
                        const T expected(numbers[i + k]);
                        if (found[k].bits != expected.bits)
                            check_short(static_cast<double>(numbers[i + k]), found[k], name);
                    }
                }
            });
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_float16_tester : public tester
    {
    public:
        rms_norm_float16_tester() :
            tester("rms_norm_float16", "Run tests on the conversions of 16-bit numbers.")
        {
        }

        void perform_test() override
        {
            RUN_CASE(all_numbers_of_16_bits<float16>());
            RUN_CASE(all_numbers_of_16_bits<bfloat16>());
            RUN_CASE(doubles_are_rounded_once<float16>());
            RUN_CASE(doubles_are_rounded_once<bfloat16>());
            RUN_CASE(loops_convert_like_this<float16>());
            RUN_CASE(loops_convert_like_this<bfloat16>());
        }
    } a_rms_norm_float16_tester;

    // ----------------------------------------------------------------------------------------

}

#endif // HWY_ONCE
