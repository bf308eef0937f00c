// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_ORACLE_H_
#define DLIB_TEST_RMS_NORM_ORACLE_H_

// What is right: the formula of RMS normalization in long double, written from the definition
// and from the axes of a tensor, together with how far from it a float result may be.

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <vector>
#include <dlib/cuda/rms_norm_groups.h>

namespace test
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_problem
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The input of a forward and a backward pass. gamma is empty if gain is none.
                old_src_grad is what src_grad holds before the gradient is added to it.
        !*/

        dlib::contrib::rms_norm_axes axes = dlib::contrib::rms_norm_axes::sample;
        dlib::contrib::rms_norm_gain gain = dlib::contrib::rms_norm_gain::per_channel;
        double gain_offset = 0;
        double eps = 1e-5;
        dlib::contrib::rms_norm_dims dims = {0, 0, 0, 0};
        std::vector<float> src;
        std::vector<float> gamma;
        std::vector<float> gradient_input;
        std::vector<float> old_src_grad;
    };

    struct number
    {
        long double value = 0;
        long double bound = 0; // how far a float result may be from value
    };

    struct rms_norm_answer
    {
        std::vector<number> dest;
        std::vector<number> scale;
        std::vector<number> src_grad; // what is added to old_src_grad
        std::vector<number> gamma_grad;
        std::vector<number> dscale;
    };

    // ----------------------------------------------------------------------------------------

    struct rms_norm_place
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Which group the value at (n, k, r, c) belongs to, and which gain.
        !*/
        std::size_t group;
        std::size_t gain;
    };

    inline rms_norm_place
    place_of(const rms_norm_problem& p, long long n, long long k, long long r, long long c)
    {
        using namespace dlib::contrib;
        const rms_norm_dims& d = p.dims;

        long long group = n;
        if (p.axes == rms_norm_axes::row)
            group = (n * d.k + k) * d.nr + r;
        else if (p.axes == rms_norm_axes::channel)
            group = (n * d.nr + r) * d.nc + c;

        long long gain = k;
        if (p.axes == rms_norm_axes::row)
            gain = c;
        else if (p.axes == rms_norm_axes::sample && p.gain == rms_norm_gain::per_element)
            gain = (k * d.nr + r) * d.nc + c;

        return {static_cast<std::size_t>(group), static_cast<std::size_t>(gain)};
    }

    inline std::size_t number_of_groups(const rms_norm_problem& p)
    {
        const dlib::contrib::rms_norm_dims& d = p.dims;
        if (d.size() == 0)
            return 0;
        const rms_norm_place last = place_of(p, d.num_samples - 1, d.k - 1, d.nr - 1, d.nc - 1);
        return last.group + 1;
    }

    template <typename function>
    void for_each_value(const rms_norm_problem& p, const function& f)
    /*!
        ensures
            - calls f(i, place_of(value i)) for all values of p.src in order
    !*/
    {
        std::size_t i = 0;
        for (long long n = 0; n < p.dims.num_samples; ++n)
            for (long long k = 0; k < p.dims.k; ++k)
                for (long long r = 0; r < p.dims.nr; ++r)
                    for (long long c = 0; c < p.dims.nc; ++c)
                        f(i++, place_of(p, n, k, r, c));
    }

    inline std::vector<float> effective_gains(const rms_norm_problem& p)
    {
        std::vector<float> gains = p.gamma;
        for (float& g : gains)
            g = static_cast<float>(p.gain_offset) + g;
        return gains;
    }

    // ----------------------------------------------------------------------------------------

    namespace rounding
    {
        const long double u = 0x1p-24L;        // of a float operation, relatively
        const long double u_double = 0x1p-53L; // of a double operation, relatively

        inline long double denormal(long double value)
        /*!
            ensures
                - returns the absolute error of rounding value to float beyond u*|value|: half
                  the distance of denormal floats, if value (or a float near it) is one.
        !*/
        {
            return std::abs(value) < 2 * static_cast<long double>(FLT_MIN) ? 0x1p-150L : 0;
        }
    }

    inline rms_norm_answer exact_rms_norm(const rms_norm_problem& p)
    /*!
        ensures
            - returns the exact outputs for p, with bounds that hold for every computation that
                - rounds s, x*s, (x*s)*g, m, g*d, (x*s)*m, their difference and its product with
                  s to float, one time each, in that order
                - rounds sums of gamma_grad to float once
                - adds up doubles, in any order

              dest:       the three factors and products give 3*u. The contract is 4*u.
              src_grad:   8*u*s*(|g*d| + |x*s*m|). On the way of |x*s*m| there are 8 roundings:
                          three times s, then x*s, m, their product, the difference, and dx.
              gamma_grad: 2*u*sum(|d*x*s|): s, and the sum.
              dscale:     4*u*|dscale|: three times s, and dscale.

              A sum of n doubles has an error of at most n*u_double*(sum of absolute values).
              Where a result or a factor is denormal its absolute error is propagated. An s that
              is denormal loses more than u relatively, and hands that on to all products.
    !*/
    {
        using rounding::denormal;
        using rounding::u;
        using rounding::u_double;
        using std::abs;

        struct group_sums
        {
            long double squares = 0;
            long double s = 0;
            long double extra = 0; // relative error of s, beyond u
            long double m = 0;
            long double abs_m = 0;    // the mean of absolute values
            long double m_extra = 0;  // absolute error of m, beyond 2*u*|m|
            long double products = 0; // the sum of g*d*x
            long double abs_products = 0;
        };

        const std::size_t num_values = p.src.size();
        const std::size_t num_groups = number_of_groups(p);
        const std::vector<float> gains = effective_gains(p);
        const auto gain_of = [&](const rms_norm_place& at) -> long double
        { return gains.empty() ? 1 : gains[at.gain]; };

        std::vector<group_sums> groups(num_groups);
        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                const long double x = p.src[i];
                groups[at.group].squares += x * x;
            });

        const long double n = num_groups == 0
            ? 0
            : static_cast<long double>(num_values) / static_cast<long double>(num_groups);
        for (group_sums& g : groups)
        {
            g.s = 1 / std::sqrt(g.squares / n + p.eps);
            // the sum, and at most 8 more operations in double
            if (g.s > 0)
                g.extra = (n + 8) * u_double + denormal(g.s) / g.s;
        }

        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                group_sums& g = groups[at.group];
                const long double product = gain_of(at) * p.gradient_input[i] * p.src[i];
                g.products += product;
                g.abs_products += abs(product);
                g.m += product * g.s / n;
                g.abs_m += abs(product) * g.s / n;
            });

        for (group_sums& g : groups)
            g.m_extra = g.extra * abs(g.m) + (n + 8) * u_double * g.abs_m + denormal(g.m);

        rms_norm_answer a;
        a.dest.resize(num_values);
        a.src_grad.resize(num_values);
        a.gamma_grad.resize(p.gamma.size());
        for (const group_sums& g : groups)
        {
            a.scale.push_back({g.s, (u + g.extra) * g.s});
            const long double half_cube = g.s * g.s * g.s / 2;
            const long double dscale = -half_cube * g.products;
            a.dscale.push_back({dscale,
                (4 * u + 3 * g.extra) * abs(dscale) +
                    half_cube * (n + 8) * u_double * g.abs_products + denormal(dscale)});
        }

        const long double terms = p.gamma.empty()
            ? 0
            : static_cast<long double>(num_values) / static_cast<long double>(p.gamma.size());

        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                const group_sums& group = groups[at.group];
                const long double s = group.s;
                const long double m = group.m;
                const long double g = gain_of(at);
                const long double d = p.gradient_input[i];
                const long double xh = p.src[i] * s;
                const long double y = xh * g;

                a.dest[i].value = y;
                a.dest[i].bound = (4 * u + group.extra) * abs(y) + abs(g) * denormal(xh) +
                    denormal(y);

                const long double size = abs(g * d) + abs(xh * m);
                const long double inner = denormal(g * d) + denormal(xh * m) +
                    abs(m) * (abs(xh) * group.extra + denormal(xh)) + abs(xh) * group.m_extra;
                a.src_grad[i].value = s * (g * d - xh * m);
                a.src_grad[i].bound = s * ((8 * u + group.extra) * size + inner) +
                    denormal(a.src_grad[i].value);

                if (!p.gamma.empty())
                {
                    a.gamma_grad[at.gain].value += d * xh;
                    a.gamma_grad[at.gain].bound += abs(d * xh) *
                        (2 * u + group.extra + (terms + 8) * u_double);
                }
            });

        for (number& dg : a.gamma_grad)
            dg.bound += denormal(dg.value);
        return a;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_RMS_NORM_ORACLE_H_
