// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_ROW_RUNS_H_
#define DLIB_TEST_RMS_NORM_ROW_RUNS_H_

// Puts rows behind pointers to an implementation, and looks at all that can be seen from outside:
// results, gaps and memory around the rows, inputs that must stay as they are, in-place use.

#include <cmath>
#include <cstring>
#include <random>
#include <sstream>
#include <vector>
#include <dlib/cuda/rms_norm_rows.h>
#include "test_cases.h"

namespace test
{

    using dlib::contrib::bfloat16;
    using dlib::contrib::float16;
    using dlib::contrib::rms_norm_backward;
    using dlib::contrib::rms_norm_casting;
    using dlib::contrib::rms_norm_forward;

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct row_backend
    {
        const char* name;
        void (*forward)(const rms_norm_forward<T>&);
        void (*gradient)(const rms_norm_backward<T>&);
    };

    template <typename T>
    struct row_problem
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The input of a forward and a backward pass. r and dh are empty if there is no
                residual, gamma is empty if there are no gains.
        !*/
        long long rows = 0;
        long long size = 0;
        rms_norm_casting casting = rms_norm_casting::none;
        float gain_offset = 0;
        double eps = 1e-6;
        std::vector<T> x, r, gamma, d, dh;
    };

    template <typename T>
    struct row_result
    {
        std::vector<T> y, h, dx, dgamma;
        std::vector<float> scale, dgamma_float, dscale;
    };

    struct row_layout
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                How much longer than a row the distance between rows is, and at which value after
                an aligned address an argument starts: other numbers for each argument.
        !*/
        long long gap = 0;
        long long shift = 0;
    };

    template <typename T>
    std::string describe(const row_problem<T>& p)
    {
        std::ostringstream sout;
        sout << p.rows << " rows of " << p.size << " values of " << sizeof(T) << " bytes, casting "
             << static_cast<int>(p.casting) << ", offset " << p.gain_offset << ", eps " << p.eps
             << (p.gamma.empty() ? ", no gains" : "") << (p.r.empty() ? "" : ", residual");
        return sout.str();
    }

    template <typename T>
    bool same_bytes(const std::vector<T>& a, const std::vector<T>& b)
    {
        return a.size() == b.size() &&
            (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
    }

    template <typename T>
    bool same_bytes(const row_result<T>& a, const row_result<T>& b)
    {
        return same_bytes(a.y, b.y) && same_bytes(a.h, b.h) && same_bytes(a.dx, b.dx) &&
            same_bytes(a.dgamma, b.dgamma) && same_bytes(a.scale, b.scale) &&
            same_bytes(a.dgamma_float, b.dgamma_float) && same_bytes(a.dscale, b.dscale);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    class row_buffer
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Rows with gaps. Gaps, what lies before and behind, and rows without values hold
                bits that no computation makes.
        !*/
    public:
        row_buffer(long long rows_, long long size_, const row_layout& layout, long long number) :
            rows(rows_),
            size(size_),
            stride(size_ + layout.gap * number),
            memory(static_cast<std::size_t>(rows_ * stride + 2 * margin)),
            first(margin + layout.shift * number % 32)
        {
            std::memset(static_cast<void*>(memory.data()), 0xa5, memory.size() * sizeof(T));
        }

        row_buffer(const std::vector<T>& values,
            long long rows_,
            long long size_,
            const row_layout& layout,
            long long number) :
            row_buffer(rows_, size_, layout, number)
        {
            DLIB_TEST(static_cast<long long>(values.size()) == rows * size);
            for (long long row = 0; row < rows; ++row)
                std::copy_n(values.data() + row * size, size, get() + row * stride);
        }

        T* get() { return memory.data() + first; }
        long long get_stride() const { return stride; }

        std::vector<T> values() const
        {
            std::vector<T> all;
            for (long long row = 0; row < rows; ++row)
            {
                const auto begin = memory.begin() + first + row * stride;
                all.insert(all.end(), begin, begin + size);
            }
            return all;
        }

        bool gaps_are_intact() const
        {
            std::vector<T> before = memory;
            for (long long row = 0; row < rows; ++row)
            {
                std::memset(static_cast<void*>(before.data() + first + row * stride), 0xa5,
                    static_cast<std::size_t>(size) * sizeof(T));
            }
            const auto* const bytes = reinterpret_cast<const unsigned char*>(before.data());
            for (std::size_t i = 0; i < before.size() * sizeof(T); ++i)
            {
                if (bytes[i] != 0xa5)
                    return false;
            }
            return true;
        }

    private:
        static constexpr long long margin = 64;

        long long rows;
        long long size;
        long long stride;
        std::vector<T> memory;
        long long first;
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    row_result<T>
    run(const row_backend<T>& b, const row_problem<T>& p, const row_layout& layout = {})
    /*!
        ensures
            - returns what b computes for p
            - throws if anything but the outputs changed, or in-place use gives other bits
    !*/
    {
        const bool has_gains = !p.gamma.empty(), has_r = !p.r.empty();
        const auto groups = dlib::contrib::rms_norm_rows(p.rows, p.size, has_gains);
        const long long num_gains = groups.num_gains;
        using rows = row_buffer<T>;
        const auto all_good = [&](std::initializer_list<const rows*> all)
        {
            for (const rows* a : all)
                DLIB_TEST_MSG(a->gaps_are_intact(), "written outside of the rows, " << describe(p));
        };

        rows x(p.x, p.rows, p.size, layout, 1), y(p.rows, p.size, layout, 2);
        rows r(has_r ? p.r : p.x, p.rows, p.size, layout, 3), h(p.rows, p.size, layout, 5);
        rows gamma(p.gamma, 1, num_gains, layout, 7);
        row_buffer<float> scale(1, p.rows, layout, 1);
        rms_norm_forward<T> f;
        f.groups = groups;
        f.eps = p.eps;
        f.gain_offset = p.gain_offset;
        f.casting = p.casting;
        f.x = x.get();
        f.gamma = has_gains ? gamma.get() : nullptr;
        f.y = y.get();
        f.scale = scale.get();
        f.r = has_r ? r.get() : nullptr;
        f.h = has_r ? h.get() : nullptr;
        f.x_stride = x.get_stride();
        f.y_stride = y.get_stride();
        f.r_stride = r.get_stride();
        f.h_stride = h.get_stride();
        b.forward(f);
        all_good({&x, &y, &r, &h, &gamma});

        row_result<T> result;
        result.y = y.values();
        result.h = has_r ? h.values() : std::vector<T>();
        result.scale = scale.values();
        DLIB_TEST_MSG(scale.gaps_are_intact(), describe(p));
        DLIB_TEST_MSG(same_bytes(x.values(), p.x) && same_bytes(gamma.values(), p.gamma) &&
                same_bytes(r.values(), has_r ? p.r : p.x),
            "an input changed, " << describe(p));

        // y in place of x, and h of r
        f.y = x.get();
        f.y_stride = f.x_stride;
        f.h = has_r ? r.get() : nullptr;
        f.h_stride = f.r_stride;
        b.forward(f);
        all_good({&x, &r});
        DLIB_TEST_MSG(same_bytes(x.values(), result.y) &&
                (!has_r || same_bytes(r.values(), result.h)) &&
                same_bytes(scale.values(), result.scale),
            "in place the numbers are others, " << describe(p));

        rows input(has_r ? result.h : p.x, p.rows, p.size, layout, 1);
        rows d(p.d, p.rows, p.size, layout, 2), dx(p.rows, p.size, layout, 3);
        rows dh(has_r ? p.dh : p.d, p.rows, p.size, layout, 5), dgamma(1, num_gains, layout, 3);
        row_buffer<float> dgamma_float(1, num_gains, layout, 1), dscale(1, p.rows, layout, 2);
        rms_norm_backward<T> g;
        g.groups = groups;
        g.gain_offset = p.gain_offset;
        g.casting = p.casting;
        g.d = d.get();
        g.x = input.get();
        g.gamma = f.gamma;
        g.scale = scale.get();
        g.dx = dx.get();
        g.dh = has_r ? dh.get() : nullptr;
        g.dgamma = has_gains ? dgamma.get() : nullptr;
        g.d_stride = d.get_stride();
        g.x_stride = input.get_stride();
        g.dx_stride = dx.get_stride();
        g.dh_stride = dh.get_stride();
        b.gradient(g);
        all_good({&input, &d, &dx, &dh, &gamma, &dgamma});
        result.dx = dx.values();
        result.dgamma = dgamma.values();
        DLIB_TEST_MSG(same_bytes(d.values(), p.d) && same_bytes(gamma.values(), p.gamma) &&
                same_bytes(input.values(), has_r ? result.h : p.x) &&
                same_bytes(dh.values(), has_r ? p.dh : p.d) &&
                same_bytes(scale.values(), result.scale),
            "an input changed, " << describe(p));

        // dx in place of dh, or added to what it holds; dgamma in float; dscale
        rms_norm_backward<T> again = g;
        again.dgamma = nullptr;
        again.dgamma_float = has_gains ? dgamma_float.get() : nullptr;
        again.dscale = dscale.get();
        if (has_r)
        {
            again.dx = dh.get();
            again.dx_stride = again.dh_stride;
            b.gradient(again);
            DLIB_TEST_MSG(same_bytes(dh.values(), result.dx), "dx in place of dh, " << describe(p));
            rows old(p.dh, p.rows, p.size, layout, 3);
            again.dx = old.get();
            again.dx_stride = old.get_stride();
            again.dh = nullptr;
            again.add = true;
            b.gradient(again);
            DLIB_TEST_MSG(same_bytes(old.values(), result.dx), "dx added to, " << describe(p));
            all_good({&dh, &old});
        }
        else
        {
            b.gradient(again);
            DLIB_TEST_MSG(same_bytes(dx.values(), result.dx), describe(p));
        }
        result.dgamma_float = dgamma_float.values();
        result.dscale = dscale.values();
        DLIB_TEST_MSG(dgamma_float.gaps_are_intact() && dscale.gaps_are_intact(), describe(p));

        // dx in place of d, no gradient of gamma
        rows same_dh(has_r ? p.dh : p.d, p.rows, p.size, layout, 5);
        g.dh = has_r ? same_dh.get() : nullptr;
        g.dx = d.get();
        g.dx_stride = g.d_stride;
        g.dgamma = nullptr;
        b.gradient(g);
        all_good({&d});
        DLIB_TEST_MSG(same_bytes(d.values(), result.dx), "dx in place of d, " << describe(p));
        return result;
    }

    // ----------------------------------------------------------------------------------------

    typedef std::mt19937_64 random_rows;

    template <typename T>
    std::vector<T> random_numbers(random_rows& rnd, long long count, float scale = 1)
    {
        std::normal_distribution<float> gaussian;
        std::vector<T> values(static_cast<std::size_t>(count));
        for (T& v : values)
            v = T(scale * gaussian(rnd));
        return values;
    }

    template <typename T>
    row_problem<T> random_row_problem(random_rows& rnd,
        long long rows,
        long long size,
        rms_norm_casting casting = rms_norm_casting::none,
        bool has_gains = true,
        bool has_residual = false)
    {
        row_problem<T> p;
        p.rows = rows;
        p.size = size;
        p.casting = casting;
        p.gain_offset = casting == rms_norm_casting::gemma ? 1.0f : 0.0f;
        p.x = random_numbers<T>(rnd, rows * size);
        p.d = random_numbers<T>(rnd, rows * size);
        if (has_gains)
            p.gamma = random_numbers<T>(rnd, size);
        if (has_residual)
        {
            p.r = random_numbers<T>(rnd, rows * size);
            p.dh = random_numbers<T>(rnd, rows * size);
        }
        return p;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_RMS_NORM_ROW_RUNS_H_
