// License: Boost Software License   See LICENSE.txt for the full license.

// Rows behind pointers, of float and of 16-bit numbers: against PyTorch's numbers, against the
// definition, and the same bits every time.

#include <algorithm>
#include <cfloat>
#include <numeric>
#include <dlib/cuda/rms_norm_plain.h>
#include "reference_file.h"
#include "refusals.h"
#include "rms_norm_row_runs.h"
#include "rms_norm_runs.h"

#ifdef DLIB_RMS_NORM_HAVE_SIMD
#include "instruction_sets.h"
#endif
#ifdef __SSE__
#include <immintrin.h>
#endif

namespace
{

    using namespace test;
    namespace contrib = dlib::contrib;

    const rms_norm_casting all_castings[] = {
        rms_norm_casting::none, rms_norm_casting::llama, rms_norm_casting::gemma};

    template <typename T>
    std::vector<row_backend<T>> row_backends()
    {
        std::vector<row_backend<T>> all = {
            {"cpu", contrib::cpu::rms_normalize, contrib::cpu::rms_normalize_gradient}};
        if (!is_sanitized)
        {
            all.push_back({"plain", contrib::plain::rms_normalize<T>,
                contrib::plain::rms_normalize_gradient<T>});
        }
        return all;
    }

    // ----------------------------------------------------------------------------------------
    //                                     definition
    // ----------------------------------------------------------------------------------------

    const long double u = 0x1p-24L; // relative error of one rounding to float

    template <typename T>
    long double half_unit(long double value)
    /*!
        ensures
            - returns half of the distance of numbers of type T around value
    !*/
    {
        const int digits = std::is_same_v<T, float16> ? 11 : std::is_same_v<T, bfloat16> ? 8 : 24;
        const int smallest = std::is_same_v<T, float16> ? -14 : -126;
        int exponent = smallest;
        if (value != 0)
            exponent = std::max(smallest, std::ilogb(value));
        return std::ldexp(1.0L, exponent - digits);
    }

    template <typename T>
    float rounded(float value)
    {
        return static_cast<float>(T(value));
    }

    template <typename T>
    void check_row_result(const row_problem<T>& p, const row_result<T>& found)
    /*!
        ensures
            - checks what the contract says: h and y are what the casting order makes of x and of
              the scale, bit for bit; the scale and the sums of the backward pass are near those of
              long double.

              dx: with the s that was found, x*s, g*d and their product have 4*u, and so has the
              mean with the sums of a few of them; two more for m and its product with x*s, two for
              the difference and dx: less than 16*u*s*(|g*d| + |x*s|*mean|g*d*x*s|).
              dgamma: x*s, its product with d, and sums of 4: less than 8*u*sum|d*x*s|.
    !*/
    {
        const bool is_llama = p.casting == rms_norm_casting::llama;
        const auto size = static_cast<std::size_t>(p.size);
        const auto casted = [&](float v) { return is_llama ? rounded<T>(v) : v; };
        const auto gain = [&](std::size_t c)
        { return p.gamma.empty() ? 1 : p.gain_offset + static_cast<float>(p.gamma[c]); };
        std::vector<long double> shares(size), abs_shares(size);

        for (std::size_t row = 0; row < static_cast<std::size_t>(p.rows); ++row)
        {
            const std::size_t first = row * size;
            std::vector<float> x(size);
            long double squares = 0;
            for (std::size_t c = 0; c < size; ++c)
            {
                x[c] = static_cast<float>(p.x[first + c]);
                if (!p.r.empty())
                {
                    x[c] = rounded<T>(x[c] + static_cast<float>(p.r[first + c]));
                    DLIB_TEST(static_cast<float>(found.h[first + c]) == x[c]);
                }
                squares += static_cast<long double>(x[c]) * x[c];
            }
            const float s = found.scale[row];
            const long double exact = 1 /
                std::sqrt(squares / static_cast<long double>(size) + p.eps);
            const long double scale_error = sizeof(T) == 2 ? 0x1p-22L : 1.01L * u;
            DLIB_TEST_MSG(std::abs(s - exact) <= scale_error * exact,
                "scale " << s << ", exact " << exact << ", row " << row << ", " << describe(p));

            long double sum = 0, abs_sum = 0;
            for (std::size_t c = 0; c < size; ++c)
            {
                const float xs = x[c] * s;
                const float y = casted(xs) * gain(c);
                DLIB_TEST_MSG(static_cast<float>(found.y[first + c]) == rounded<T>(y),
                    "y[" << row << "," << c << "] is " << static_cast<float>(found.y[first + c])
                         << ", should be " << rounded<T>(y) << ", " << describe(p));

                const float d = static_cast<float>(p.d[first + c]);
                const long double gd = is_llama ? casted(gain(c) * d)
                                                : static_cast<long double>(gain(c)) * d;
                const long double share = is_llama ? casted(d * casted(xs))
                                                   : static_cast<long double>(d) * x[c] * s;
                sum += gd * x[c] * s;
                abs_sum += std::abs(gd * x[c] * s);
                shares[c] += share;
                abs_shares[c] += std::abs(share);
            }

            const long double n = static_cast<long double>(size);
            const long double m = sum / n;
            const long double dscale = -0.5L * s * s * sum;
            DLIB_TEST_MSG(!std::isfinite(static_cast<float>(dscale)) ||
                    std::abs(found.dscale[row] - dscale) <= 16 * u * s * s * abs_sum + 0x1p-150L,
                "dscale " << found.dscale[row] << ", should be " << dscale << ", " << describe(p));
            for (std::size_t c = 0; c < size; ++c)
            {
                const long double gd = casted(gain(c) * static_cast<float>(p.d[first + c]));
                const long double xs = static_cast<long double>(x[c]) * s;
                long double dx = s * (gd - xs * m);
                long double error = 16 * u * s * (std::abs(gd) + std::abs(xs) * abs_sum / n) +
                    half_unit<T>(dx);
                if (!p.dh.empty())
                {
                    dx += static_cast<float>(p.dh[first + c]);
                    error += half_unit<T>(std::abs(dx) + error);
                }
                const float dx_found = static_cast<float>(found.dx[first + c]);
                const bool is_beyond = std::isinf(dx_found) &&
                    std::isinf(
                        static_cast<float>(T(static_cast<float>(dx + std::copysign(error, dx)))));
                DLIB_TEST_MSG(is_beyond || std::abs(dx_found - dx) <= 1.001L * error,
                    "dx[" << row << "," << c << "] is " << dx_found << ", should be " << dx
                          << " +- " << error << ", " << describe(p));
            }
        }
        for (std::size_t c = 0; c < p.gamma.size(); ++c)
        {
            const long double error = 8 * u * abs_shares[c];
            const float as_float = found.dgamma_float[c];
            const float as_T = static_cast<float>(found.dgamma[c]);
            DLIB_TEST_MSG(std::abs(as_float - shares[c]) <= error,
                "dgamma[" << c << "] is " << as_float << ", should be " << shares[c] << " +- "
                          << error << ", " << describe(p));
            DLIB_TEST_MSG(std::abs(as_T - shares[c]) <= error + 1.001L * half_unit<T>(shares[c]),
                "dgamma[" << c << "] is " << as_T << ", should be " << shares[c] << " +- " << error
                          << ", " << describe(p));
        }
        increment_test_count();
    }

    template <typename T>
    row_result<T>
    check(const row_backend<T>& b, const row_problem<T>& p, const row_layout& layout = {})
    {
        const row_result<T> found = run(b, p, layout);
        check_row_result(p, found);
        return found;
    }

    // ----------------------------------------------------------------------------------------
    //                                  reference numbers
    // ----------------------------------------------------------------------------------------

    template <typename T>
    int place_in_order(T value)
    /*!
        ensures
            - numbers that follow each other have places that do
    !*/
    {
        return (value.bits & 0x8000) != 0 ? -(value.bits & 0x7fff) : value.bits;
    }

    template <typename T>
    void check_like_pytorch(const std::string& name,
        const std::vector<T>& found,
        const std::vector<T>& expected)
    /*!
        ensures
            - checks that at most 1 in 1000 numbers differs, by one unit in the last place
    !*/
    {
        DLIB_TEST(found.size() == expected.size());
        std::size_t others = 0;
        for (std::size_t i = 0; i < found.size(); ++i)
        {
            const int distance = std::abs(place_in_order(found[i]) - place_in_order(expected[i]));
            DLIB_TEST_MSG(distance <= 1,
                name << "[" << i << "] is " << static_cast<float>(found[i]) << ", PyTorch's is "
                     << static_cast<float>(expected[i]));
            others += distance != 0;
        }
        DLIB_TEST_MSG(others <= (found.size() + 999) / 1000,
            name << " differs from PyTorch's in " << others << " of " << found.size());
    }

    template <typename T>
    void check_nearer_than_pytorch(const std::string& name,
        const std::vector<T>& found,
        const std::vector<T>& theirs,
        const std::vector<double>& exact)
    /*!
        ensures
            - checks that the mean and the largest error are not above those of PyTorch
    !*/
    {
        DLIB_TEST(found.size() == exact.size() && theirs.size() == exact.size());
        double sum = 0, their_sum = 0, largest = 0, their_largest = 0;
        for (std::size_t i = 0; i < exact.size(); ++i)
        {
            const double error = std::abs(static_cast<float>(found[i]) - exact[i]);
            const double theirs_is = std::abs(static_cast<float>(theirs[i]) - exact[i]);
            sum += error;
            their_sum += theirs_is;
            largest = std::max(largest, error);
            their_largest = std::max(their_largest, theirs_is);
        }
        DLIB_TEST_MSG(sum <= their_sum && largest <= their_largest,
            name << ": errors of " << sum << " in all and up to " << largest << ", PyTorch's "
                 << their_sum << " and " << their_largest);
    }

    template <typename T>
    void check_reference_rows(const row_backend<T>& b,
        rms_norm_casting casting,
        const std::string& file_name)
    {
        const reference_file file(file_name);
        DLIB_TEST(!file.shapes().empty());
        for (const std::string& name : file.shapes())
        {
            const std::vector<long long> shape = file.shape(name + ".x");
            row_problem<T> p;
            p.rows = shape.at(0);
            p.size = shape.at(1);
            p.casting = casting;
            p.eps = file.metadata("eps");
            p.gain_offset = static_cast<float>(file.metadata("offset"));
            p.x = file.numbers<T>(name + ".x");
            p.gamma = file.numbers<T>(name + ".weight");
            p.d = file.numbers<T>(name + ".dy");
            const row_result<T> found = check(b, p, {1, 1});

            const struct
            {
                std::string name;
                const std::vector<T>& numbers;
            } all[] = {{".y", found.y}, {".dx", found.dx}, {".dweight", found.dgamma}};
            for (const auto& a : all)
            {
                const std::string where = file_name + " " + name + a.name;
                const auto theirs = file.numbers<T>(name + a.name);
                const auto exact = file.numbers<double>(name + ".exact" + a.name);
                // dx of a row of one value is all cancellation
                if (casting == rms_norm_casting::none)
                    check_nearer_than_pytorch(where, a.numbers, theirs, exact);
                else if (a.name != ".dx" || p.size > 1)
                    check_like_pytorch(where, a.numbers, theirs);
            }
            if (casting != rms_norm_casting::none)
                continue;
            const auto exact = file.numbers<double>(name + ".exact.y");
            for (std::size_t i = 0; i < exact.size(); ++i)
            {
                const long double error = std::abs(
                    static_cast<float>(found.y[i]) - static_cast<long double>(exact[i]));
                DLIB_TEST_MSG(error <= half_unit<T>(exact[i]) + 0x1p-22L * std::abs(exact[i]),
                    file_name << " " << name << ".y[" << i << "] is off by " << error);
            }
        }
    }

    template <typename T>
    void reference_rows(const row_backend<T>& b)
    {
        const std::string type = std::is_same_v<T, float16> ? "f16" : "bf16";
        const char* const names[] = {"none", "llama", "gemma"};
        for (rms_norm_casting casting : all_castings)
        {
            check_reference_rows(b, casting,
                "rms_norm_" + std::string(names[static_cast<int>(casting)]) + "_" + type +
                    ".safetensors");
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                    every shape
    // ----------------------------------------------------------------------------------------

    template <typename T>
    void rows_of_every_shape(const row_backend<T>& b)
    {
        random_rows rnd(1);
        std::vector<long long> sizes(67);
        for (long long i = 0; i < 67; ++i)
            sizes[static_cast<std::size_t>(i)] = i + 1;
        for (long long size : {127, 128, 129, 255, 256, 257, 511, 512, 513, 575, 576, 577, 1000,
                 1023, 1024, 1025, 2560, 4097, 8192})
            sizes.push_back(size);
        const long long counts[] = {1, 2, 3, 4, 5, 9, 17};
        for (long long size : sizes)
        {
            const auto n = rnd();
            const long long rows = size == 64 ? 1000 : counts[n % 7];
            const rms_norm_casting casting = all_castings[n / 7 % 3];
            const bool has_gains = n / 21 % 4 != 0, has_residual = n / 84 % 2 != 0;
            const row_layout layout = {
                static_cast<long long>(n / 168 % 5), static_cast<long long>(n / 840 % 7)};
            row_problem<T> p = random_row_problem<T>(
                rnd, rows, size, casting, has_gains, has_residual);
            if (n / 5880 % 3 == 0)
                p.gain_offset = -0.3f;
            check(b, p, layout);
        }
        // every kind of rows, with whole steps and with a rest
        for (rms_norm_casting casting : all_castings)
        {
            for (bool has_gains : {true, false})
            {
                for (bool has_residual : {true, false})
                {
                    for (long long size : {64, 700})
                    {
                        check(b,
                            random_row_problem<T>(rnd, 6, size, casting, has_gains, has_residual),
                            {3, 1});
                    }
                }
            }
        }
        // cut into segments, more tasks than one, past the caches
        for (const auto& [rows, size] : {std::pair<long long, long long>(1, 65535), {2, 65537},
                 {1, 131072}, {2, 200003}, {300, 1500}, {17, 66001}})
        {
            check(b,
                random_row_problem<T>(rnd, rows, size, all_castings[rows % 3], true, size % 2 == 0),
                {32, 0});
        }
    }

    template <typename T>
    void no_rows(const row_backend<T>& b)
    {
        random_rows rnd(2);
        for (const auto& [rows, size] : {std::pair<long long, long long>(0, 5), {3, 0}, {0, 0}})
        {
            rms_norm_forward<T> f;
            f.groups = contrib::rms_norm_rows(rows, size, true);
            f.eps = 1e-5;
            b.forward(f);
            std::vector<T> dgamma(static_cast<std::size_t>(size), T(7.0f));
            std::vector<float> dgamma_float(static_cast<std::size_t>(size), 7.0f);
            rms_norm_backward<T> g;
            g.groups = f.groups;
            g.dgamma = dgamma.data();
            b.gradient(g);
            g.dgamma = nullptr;
            g.dgamma_float = dgamma_float.data();
            b.gradient(g);
            for (std::size_t i = 0; i < dgamma.size(); ++i)
                DLIB_TEST(static_cast<float>(dgamma[i]) == 0 && dgamma_float[i] == 0);
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                 casts and residuals
    // ----------------------------------------------------------------------------------------

    template <typename T>
    void fused_equals_separate(const row_backend<T>& b)
    {
        random_rows rnd(3);
        for (rms_norm_casting casting : all_castings)
        {
            for (const auto& [rows, size] : {std::pair<long long, long long>(7, 129), {5, 1024},
                     {40, 4096}, {1, 140001}, {1, 64}})
            {
                const row_problem<T> fused = random_row_problem<T>(
                    rnd, rows, size, casting, true, true);
                const row_result<T> at_once = run(b, fused, {size % 3, 1});

                row_problem<T> p = fused;
                for (std::size_t i = 0; i < p.x.size(); ++i)
                    p.x[i] = T(static_cast<float>(p.x[i]) + static_cast<float>(p.r[i]));
                p.r.clear();
                p.dh.clear();
                row_result<T> separate = run(b, p);
                DLIB_TEST_MSG(same_bytes(at_once.h, p.x), describe(p));
                for (std::size_t i = 0; i < p.x.size(); ++i)
                {
                    separate.dx[i] = T(
                        static_cast<float>(separate.dx[i]) + static_cast<float>(fused.dh[i]));
                }
                separate.h = p.x;
                DLIB_TEST_MSG(same_bytes(at_once, separate), describe(fused));
            }
        }
    }

    template <typename T>
    void offset_is_added_in_float(const row_backend<T>& b)
    /*!
        ensures
            - checks 1 + gamma with a gamma that 16 bits can't hold beside the 1
    !*/
    {
        const float small = std::is_same_v<T, float16> ? 0x1p-12f : 0x1p-9f;
        row_problem<T> p;
        p.rows = 1;
        p.size = 400;
        p.casting = rms_norm_casting::gemma;
        p.gain_offset = 1;
        p.gamma.assign(400, T(small));
        p.d.assign(400, T(1.0f));
        for (int i = 0; i < 400; ++i)
            p.x.push_back(T(1 + static_cast<float>(i) / 128));
        const row_result<T> with = check(b, p);
        p.gamma.assign(400, T(0.0f));
        const row_result<T> without = check(b, p);
        DLIB_TEST(!same_bytes(with.y, without.y) && !same_bytes(with.dx, without.dx));
    }

    template <typename T>
    void castings_differ(const row_backend<T>& b)
    {
        random_rows rnd(4);
        row_problem<T> p = random_row_problem<T>(rnd, 9, 300);
        const row_result<T> none = check(b, p);
        p.casting = rms_norm_casting::llama;
        const row_result<T> llama = check(b, p);
        p.casting = rms_norm_casting::gemma;
        const row_result<T> gemma = check(b, p);
        DLIB_TEST(same_bytes(none, gemma));
        DLIB_TEST(same_bytes(none, llama) == (sizeof(T) == sizeof(float)));
    }

    // ----------------------------------------------------------------------------------------
    //                                       range
    // ----------------------------------------------------------------------------------------

    template <typename T>
    void squares_leave_the_range_of_floats(const row_backend<T>& b)
    {
        const bool is_float16 = std::is_same_v<T, float16>;
        std::vector<float> large = {60000, 65504};
        std::vector<float> small = {0x1p-24f, 3e-6f};
        if (!is_float16)
        {
            large = {1e19f, 1e30f, 8e37f};
            small = {1e-19f, 1e-20f, 1e-30f, 1e-38f};
        }
        for (long long size : {3, 64, 100, 5000, 70000})
        {
            for (float value : large)
            {
                row_problem<T> p;
                p.rows = 3;
                p.size = size;
                for (long long i = 0; i < 3 * size; ++i)
                {
                    p.x.push_back(T(i % 2 == 0 ? value : -value));
                    p.d.push_back(T(static_cast<float>(i % 7 - 3)));
                }
                p.gamma.assign(static_cast<std::size_t>(size), T(1.5f));
                const row_result<T> r = check(b, p);
                const float error = sizeof(T) == 2 ? 0 : 4 * 0x1p-23f;
                for (std::size_t i = 0; i < r.y.size(); ++i)
                {
                    const float y = static_cast<float>(r.y[i]);
                    DLIB_TEST(std::abs(y - (i % 2 == 0 ? 1.5f : -1.5f)) <= error);
                }
            }
            for (float value : small)
            {
                for (double eps : {static_cast<double>(FLT_MIN), 1e-30})
                {
                    row_problem<T> p;
                    p.rows = 2;
                    p.size = size;
                    p.eps = eps;
                    p.x.assign(static_cast<std::size_t>(2 * size), T(value));
                    p.d.assign(p.x.size(), T(1.0f));
                    check(b, p);
                }
            }
        }
    }

#ifdef __SSE__
    template <typename T>
    void squares_count_where_denormals_are_zero(const row_backend<T>& b)
    /*!
        The squares of such floats are denormal, and not much smaller than eps.
    !*/
    {
        row_problem<T> p;
        p.rows = 3;
        p.size = 1000;
        p.eps = FLT_MIN;
        p.x.assign(3000, T(0x1p-65f));
        p.d.assign(3000, T(1.0f));
        const unsigned old = _mm_getcsr();
        _mm_setcsr(old | 0x8040); // FTZ and DAZ
        const row_result<T> r = run(b, p);
        _mm_setcsr(old);
        const double exact = 1 / std::sqrt(0x1p-130 + FLT_MIN);
        for (const float s : r.scale)
            DLIB_TEST(std::abs(s - exact) <= 4 * 0x1p-24 * exact);
    }
#endif

    template <typename T>
    void bad_numbers_stay_in_their_row(const row_backend<T>& b)
    {
        random_rows rnd(5);
        for (long long size : {5, 64, 700})
        {
            const row_problem<T> good = random_row_problem<T>(
                rnd, 6, size, rms_norm_casting::llama);
            const row_result<T> before = check(b, good);
            for (float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF})
            {
                row_problem<T> p = good;
                p.x[static_cast<std::size_t>(2 * size + size / 2)] = T(bad);
                const row_result<T> after = run(b, p);
                for (long long i = 0; i < 6 * size; ++i)
                {
                    const auto at = static_cast<std::size_t>(i);
                    if (i / size == 2)
                        DLIB_TEST(std::isnan(static_cast<float>(after.dx[at])));
                    else
                        DLIB_TEST(std::memcmp(&after.y[at], &before.y[at], sizeof(T)) == 0 &&
                            std::memcmp(&after.dx[at], &before.dx[at], sizeof(T)) == 0);
                }
                DLIB_TEST(std::isnan(
                    static_cast<float>(after.y[static_cast<std::size_t>(2 * size + size / 2)])));
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                  views of one buffer
    // ----------------------------------------------------------------------------------------

    template <typename T>
    void queries_and_keys_side_by_side(const row_backend<T>& b)
    /*!
        ensures
            - checks heads of q, k and v in one buffer: q and k are normalized in place, and k into
              the place of v; nothing else changes
    !*/
    {
        random_rows rnd(6);
        const long long tokens = 11, head = 48, all = 3 * head + 5;
        const std::vector<T> before = random_numbers<T>(rnd, tokens * all);
        const std::vector<T> gamma = random_numbers<T>(rnd, head);
        for (const auto& [from, to] : {std::pair<long long, long long>(0, 0), {head, head},
                 {head, 2 * head + 5}, {2 * head, 0}})
        {
            std::vector<T> buffer = before;
            std::vector<float> scale(static_cast<std::size_t>(tokens));
            rms_norm_forward<T> f;
            f.groups = contrib::rms_norm_rows(tokens, head, true);
            f.eps = 1e-6;
            f.x = buffer.data() + from;
            f.y = buffer.data() + to;
            f.gamma = gamma.data();
            f.scale = scale.data();
            f.x_stride = f.y_stride = all;
            b.forward(f);

            row_problem<T> p;
            p.rows = tokens;
            p.size = head;
            p.gamma = gamma;
            std::vector<T> expected = before;
            for (long long row = 0; row < tokens; ++row)
            {
                const auto begin = before.begin() + row * all + from;
                p.x.insert(p.x.end(), begin, begin + head);
            }
            p.d = p.x;
            const row_result<T> alone = run(b, p);
            for (long long row = 0; row < tokens; ++row)
                std::copy_n(alone.y.begin() + row * head, head, expected.begin() + row * all + to);
            DLIB_TEST(same_bytes(buffer, expected));

            // backward: the gradient goes to one column of a buffer, and comes from another
            std::vector<T> gradients = before;
            rms_norm_backward<T> g;
            g.groups = f.groups;
            g.d = gradients.data() + from;
            g.x = p.x.data();
            g.gamma = gamma.data();
            g.scale = scale.data();
            g.dx = gradients.data() + to;
            g.d_stride = g.dx_stride = all;
            b.gradient(g);
            expected = before;
            for (long long row = 0; row < tokens; ++row)
                std::copy_n(alone.dx.begin() + row * head, head, expected.begin() + row * all + to);
            DLIB_TEST(same_bytes(gradients, expected));
        }
    }

    void float_rows_have_the_bits_of_tensors()
    {
        random_source rnd(7);
        const row_backend<float> b = row_backends<float>().front();
        for (const auto& [rows, size] : {std::pair<long long, long long>(1, 1), {9, 17}, {200, 64},
                 {40, 1000}, {600, 4096}, {1, 200001}})
        {
            for (double offset : {0.0, 1.0})
            {
                rms_norm_problem q = random_problem(rnd, contrib::rms_norm_axes::row,
                    size % 2 == 0 ? contrib::rms_norm_gain::none
                                  : contrib::rms_norm_gain::per_channel,
                    {1, 1, rows, size});
                q.gain_offset = offset;
                q.eps = 1e-6;
                const rms_norm_result expected = run(rms_norm_backends().front(), q);

                row_problem<float> p;
                p.rows = rows;
                p.size = size;
                p.gain_offset = static_cast<float>(offset);
                p.x = q.src;
                p.gamma = q.gamma;
                p.d = q.gradient_input;
                for (const row_layout& layout : {row_layout(), row_layout{3, 1}})
                {
                    const row_result<float> found = run(b, p, layout);
                    DLIB_TEST_MSG(same_bytes(found.y, expected.dest) &&
                            same_bytes(found.scale, expected.scale) &&
                            same_bytes(found.dx, expected.src_grad) &&
                            same_bytes(found.dgamma, expected.gamma_grad) &&
                            same_bytes(found.dgamma_float, expected.gamma_grad) &&
                            same_bytes(found.dscale, expected.dscale),
                        describe(p));
                }
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                    the same bits
    // ----------------------------------------------------------------------------------------

    template <typename T>
    void make_row_sums_cancel(random_rows& rnd, row_problem<T>& p)
    /*!
        ensures
            - the sum of g*d*x*s over a row, and that of d*x*s over the rows if their number is
              even, are 0 but for rounding: pairs of values, somewhere in a row, and pairs of rows
              have the same x and gain, and opposite d. Where d is 0, dx shows the mean.
    !*/
    {
        const auto shuffled = [&](long long count)
        {
            std::vector<std::size_t> order(static_cast<std::size_t>(count));
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), rnd);
            return order;
        };
        const auto size = static_cast<std::size_t>(p.size);
        const std::vector<std::size_t> columns = shuffled(p.size), rows = shuffled(p.rows);
        for (std::size_t i = 0; i + 1 < size; i += 2)
            p.gamma[columns[i + 1]] = p.gamma[columns[i]];
        for (std::size_t r = 0; r < rows.size(); ++r)
        {
            for (std::size_t i = 0; i < size; ++i)
            {
                const std::size_t at = rows[r] * size + columns[i];
                const std::size_t partner = r % 2 == 1 ? rows[r - 1] * size + columns[i]
                                                       : rows[r] * size + columns[i - i % 2];
                p.x[at] = p.x[partner];
                if (at != partner)
                    p.d[at] = T(-static_cast<float>(p.d[partner]));
                else if (i + 1 == size || i % 16 == 0)
                    p.d[at] = T(0.0f);
            }
        }
    }

    template <typename T>
    double eps_at_an_edge(const row_backend<T>& b, const row_problem<T>& p)
    /*!
        ensures
            - returns the largest eps with which the scale of the first row is still what it is: so
              eps depends on the last bit of the mean of squares
    !*/
    {
        std::vector<float> scale(1);
        std::vector<T> y(static_cast<std::size_t>(p.size));
        const auto scale_with = [&](std::uint64_t bits)
        {
            rms_norm_forward<T> f;
            f.groups = contrib::rms_norm_rows(1, p.size, false);
            std::memcpy(&f.eps, &bits, sizeof(bits));
            f.x = p.x.data();
            f.y = y.data();
            f.scale = scale.data();
            b.forward(f);
            return scale[0];
        };
        double eps = 0.5;
        std::uint64_t low;
        std::memcpy(&low, &eps, sizeof(low));
        std::uint64_t high = low + (std::uint64_t(1) << 34);
        const float first = scale_with(low);
        DLIB_TEST(scale_with(high) != first);
        while (high - low > 1)
        {
            const std::uint64_t middle = low + (high - low) / 2;
            (scale_with(middle) == first ? low : high) = middle;
        }
        std::memcpy(&eps, &low, sizeof(eps));
        return eps;
    }

    template <typename T>
    std::vector<row_problem<T>> problems_that_show_the_order()
    {
        random_rows rnd(8);
        std::vector<row_problem<T>> all;
        for (const auto& [rows, size] : {std::pair<long long, long long>(4, 40), {9, 64}, {32, 333},
                 {300, 1500}, {1, 200003}, {2, 140000}, {600, 700}, {18, 33000}})
        {
            if (is_sanitized && rows * size > 20000)
                continue;
            for (rms_norm_casting casting : {rms_norm_casting::none, rms_norm_casting::llama})
            {
                all.push_back(
                    random_row_problem<T>(rnd, rows, size, casting, true, all.size() % 4 == 0));
                if (all.back().r.empty())
                    make_row_sums_cancel(rnd, all.back());
            }
        }
        return all;
    }

    template <typename T>
    std::uint64_t hash_of(const row_backend<T>& b, const row_layout& layout)
    {
        std::uint64_t hash = 14695981039346656037u;
        const auto add = [&](const auto& v)
        {
            const auto* const bytes = reinterpret_cast<const unsigned char*>(v.data());
            for (std::size_t i = 0; i < v.size() * sizeof(v[0]); ++i)
                hash = (hash ^ bytes[i]) * 1099511628211u;
        };
        for (const row_problem<T>& p : problems_that_show_the_order<T>())
        {
            const row_result<T> r = run(b, p, layout);
            add(r.y);
            add(r.h);
            add(r.dx);
            add(r.dgamma);
            add(r.scale);
            add(r.dgamma_float);
            add(r.dscale);
            if (!is_sanitized)
                add(std::vector<double>(1, eps_at_an_edge(b, p)));
        }
        return hash;
    }

    template <typename T>
    void rows_give_the_same_bits(const row_backend<T>& b)
    {
        const std::uint64_t expected = hash_of(b, {});
        for (const row_layout& layout :
            {row_layout(), row_layout{0, 1}, row_layout{1, 3}, row_layout{32, 5}})
            DLIB_TEST(hash_of(b, layout) == expected);
    }

    template <typename T>
    void a_row_alone_and_among_others(const row_backend<T>& b)
    {
        random_rows rnd(9);
        for (long long size : {48, 700, 5000, 70001, 140001})
        {
            row_problem<T> alone = random_row_problem<T>(rnd, 1, size, rms_norm_casting::llama);
            make_row_sums_cancel(rnd, alone);
            if (!is_sanitized)
                alone.eps = eps_at_an_edge(b, alone);
            const row_result<T> expected = run(b, alone);
            for (long long rows : {2, 3, 5, 17, 64})
            {
                if (is_sanitized && rows * size > 300000)
                    break;
                row_problem<T> p = random_row_problem<T>(rnd, rows, size, rms_norm_casting::llama);
                p.eps = alone.eps;
                p.gamma = alone.gamma;
                std::fill(p.d.begin(), p.d.end(), T(0.0f));
                const auto where = static_cast<long long>(rnd() % static_cast<std::size_t>(rows));
                std::copy(alone.x.begin(), alone.x.end(), p.x.begin() + where * size);
                std::copy(alone.d.begin(), alone.d.end(), p.d.begin() + where * size);
                const row_result<T> found = run(b, p);
                const auto row = [&](const std::vector<T>& v) {
                    return std::vector<T>(v.begin() + where * size, v.begin() + (where + 1) * size);
                };
                const auto at = static_cast<std::size_t>(where);
                DLIB_TEST_MSG(same_bytes(row(found.y), expected.y) &&
                        same_bytes(row(found.dx), expected.dx) &&
                        same_bits(found.scale[at], expected.scale[0]) &&
                        same_bits(found.dscale[at], expected.dscale[0]) &&
                        same_bytes(found.dgamma_float, expected.dgamma_float),
                    "row " << where << " of " << describe(p));
            }
        }
    }

#ifdef DLIB_RMS_NORM_HAVE_SIMD
    template <typename T>
    void every_instruction_set_gives_these_bits(const row_backend<T>& b)
    {
        const std::uint64_t expected = hash_of(b, {});
        for_each_instruction_set(
            [&](const char* name)
            {
                DLIB_TEST_MSG(hash_of(b, {}) == expected, "with " << name);
                if constexpr (sizeof(T) == 2)
                    reference_rows(b);
                if (!is_sanitized)
                {
                    rows_of_every_shape(b);
                    squares_leave_the_range_of_floats(b);
                }
            });
    }
#endif

    // ----------------------------------------------------------------------------------------

    class print_hash_tester : public tester
    {
    public:
        print_hash_tester() :
            tester("print_rms_norm_rows_hash",
                "Print hashes of what contrib::cpu computes of rows behind pointers. They are the "
                "same for any number of threads.",
                1)
        {
        }

        void perform_test(const std::string&) override
        {
            std::cout << "\nhash " << hash_of(row_backends<float>().front(), {}) << " "
                      << hash_of(row_backends<float16>().front(), {}) << " "
                      << hash_of(row_backends<bfloat16>().front(), {}) << std::endl;
        }

        void perform_test() override {}
    } a_print_hash_tester;

    void every_number_of_threads_gives_these_bits()
    {
        const auto output = [](int n)
        {
            const std::string text = run_again(n, "print_rms_norm_rows_hash now");
            const std::size_t at = text.find("\nhash ");
            DLIB_TEST_MSG(at != std::string::npos, n << " threads: " << text);
            return text.substr(at, text.find('\n', at + 1) - at);
        };
        const std::string expected = output(1);
        for (int n : {2, 3, 16})
            DLIB_TEST_MSG(output(n) == expected, n << " threads");
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_rows_tester : public tester
    {
    public:
        rms_norm_rows_tester() :
            tester("rms_norm_rows",
                "Run tests on RMS normalization of rows behind pointers, of float and 16 bits.")
        {
        }

        void perform_test() override
        {
            run_all<float16>("float16");
            run_all<bfloat16>("bfloat16");
            run_all<float>("float");
            RUN_CASE(float_rows_have_the_bits_of_tensors());
            RUN_CASE(every_number_of_threads_gives_these_bits());
        }

    private:
        template <typename T>
        static void run_all(const std::string& type)
        {
            for (const row_backend<T>& b : row_backends<T>())
            {
                const std::string name = type + " rows, " + b.name + ": ";
                const auto run = [&](const char* what, void (*test)(const row_backend<T>&))
                { run_case(name + what, [&]() { test(b); }); };
                if constexpr (sizeof(T) == 2)
                {
                    run("reference_rows", reference_rows<T>);
                    run("offset_is_added_in_float", offset_is_added_in_float<T>);
                }
                run("rows_of_every_shape", rows_of_every_shape<T>);
                run("fused_equals_separate", fused_equals_separate<T>);
                run("castings_differ", castings_differ<T>);
                run("squares_leave_the_range_of_floats", squares_leave_the_range_of_floats<T>);
#ifdef __SSE__
                if constexpr (!std::is_same_v<T, float16>) // whose squares are large
                {
                    run("squares_count_where_denormals_are_zero",
                        squares_count_where_denormals_are_zero<T>);
                }
#endif
                run("bad_numbers_stay_in_their_row", bad_numbers_stay_in_their_row<T>);
                run("queries_and_keys_side_by_side", queries_and_keys_side_by_side<T>);
                if (b.name != std::string("cpu"))
                    continue;
                run("no_rows", no_rows<T>);
                run("rows_give_the_same_bits", rows_give_the_same_bits<T>);
                run("a_row_alone_and_among_others", a_row_alone_and_among_others<T>);
#ifdef DLIB_RMS_NORM_HAVE_SIMD
                run("every_instruction_set_gives_these_bits",
                    every_instruction_set_gives_these_bits<T>);
#endif
            }
        }
    } a_rms_norm_rows_tester;

    // ----------------------------------------------------------------------------------------

}
