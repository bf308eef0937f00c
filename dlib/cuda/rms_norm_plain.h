// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_PLAIN_H_
#define DLIB_RMS_NORM_PLAIN_H_

// RMS normalization as plain loops. This is the specification: what the fast code computes, in
// the order of roundings that the contract promises. (Sums are in double, and their order is up
// to the code.) Tests run it through their cases, and the benchmark compares with it. Compilers
// must not fuse products into sums: -ffp-contract=off, where the processor could.

#include <cmath>
#include <vector>
#include "rms_norm_pass.h"

namespace dlib::contrib::plain
{

    // ----------------------------------------------------------------------------------------

    template <typename F>
    void for_each_value(const rms_norm_groups& groups, long long group, const F& f)
    /*!
        ensures
            - calls f(i, c) for the values of a group in order: x[i] has the gain gamma[c]
    !*/
    {
        long long i = groups.first(group);
        if (groups.stride == 1 && groups.gain_run == 1)
        {
            for (long long c = 0; c < groups.size; ++c)
                f(i + c, c);
            return;
        }
        for (long long c = 0; c < groups.size / groups.gain_run; ++c)
        {
            for (long long k = 0; k < groups.gain_run; ++k, i += groups.stride)
                f(i, c);
        }
    }

    struct gain_of
    {
        float operator()(long long c) const { return gamma ? offset + gamma[c] : 1; }

        float offset;
        const float* gamma;
    };

    // ----------------------------------------------------------------------------------------

    inline void rms_normalize(const rms_norm_forward<float>& pass)
    {
        const rms_norm_groups groups = pass.groups;
        const gain_of g = {pass.gain_offset, pass.gamma};
        const float* const x = pass.x;
        float* const y = pass.y;

        for (long long group = 0; group < groups.num_groups(); ++group)
        {
            double sum = 0;
            for_each_value(groups, group,
                [&sum, x](long long i, long long) { sum += static_cast<double>(x[i]) * x[i]; });
            const double mean = sum / static_cast<double>(groups.size);
            const float s = static_cast<float>(1 / std::sqrt(mean + pass.eps));

            pass.scale[group] = s;
            for_each_value(
                groups, group, [=](long long i, long long c) { y[i] = (x[i] * s) * g(c); });
        }
    }

    // ----------------------------------------------------------------------------------------

    inline void rms_normalize_gradient(const rms_norm_backward<float>& pass)
    {
        const rms_norm_groups groups = pass.groups;
        const gain_of g = {pass.gain_offset, pass.gamma};
        const float* const d = pass.d;
        const float* const x = pass.x;
        float* const dx = pass.dx;
        std::vector<double> gain_sums(static_cast<std::size_t>(groups.num_gains));
        double* const dgamma = pass.gamma ? gain_sums.data() : nullptr;

        for (long long group = 0; group < groups.num_groups(); ++group)
        {
            const float s = pass.scale[group];
            double sum = 0;
            for_each_value(groups, group,
                [&sum, d, x, g, s, dgamma](long long i, long long c)
                {
                    const double product = static_cast<double>(d[i]) * x[i];
                    sum += product * g(c);
                    if (dgamma)
                        dgamma[c] += product * s;
                });
            const float m = static_cast<float>(s * sum / static_cast<double>(groups.size));

            pass.dscale[group] = static_cast<float>(-0.5 * std::pow(double(s), 3) * sum);
            for_each_value(groups, group,
                [=, add = pass.add](long long i, long long c)
                {
                    const float gradient = s * (g(c) * d[i] - (x[i] * s) * m);
                    dx[i] = add ? dx[i] + gradient : gradient;
                });
        }
        for (long long c = 0; c < groups.num_gains; ++c)
            pass.dgamma[c] = static_cast<float>(dgamma[c]);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_PLAIN_H_
