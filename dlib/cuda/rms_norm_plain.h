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
    void for_each_value(const rms_norm_groups& groups, const F& f)
    /*!
        ensures
            - calls f(i, c) for the values of a group in order: the one at i, counted from the
              first, has the gain gamma[c]
    !*/
    {
        if (groups.stride == 1 && groups.gain_run == 1)
        {
            for (long long i = 0; i < groups.size; ++i)
                f(i, i);
            return;
        }
        long long i = 0;
        for (long long c = 0; c < groups.size / groups.gain_run; ++c)
        {
            for (long long k = 0; k < groups.gain_run; ++k, i += groups.stride)
                f(i, c);
        }
    }

    template <typename T>
    struct gain_of
    {
        float operator()(long long c) const
        {
            const float g = gamma ? static_cast<float>(gamma[c]) : 1;
            return gamma && offset != 0 ? offset + g : g;
        }

        float offset;
        const T* gamma;
    };

    template <typename T>
    float rounded(float value, bool rounds = true)
    {
        return rounds ? static_cast<float>(T(value)) : value;
    }

    template <typename T>
    bool is_llama(rms_norm_casting casting)
    {
        return casting == rms_norm_casting::llama && sizeof(T) < sizeof(float);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void rms_normalize(const rms_norm_forward<T>& pass)
    {
        const rms_norm_groups groups = pass.groups;
        const gain_of<T> g = {pass.gain_offset, pass.gamma};
        const bool llama = is_llama<T>(pass.casting);

        for (long long group = 0; group < groups.num_groups(); ++group)
        {
            const T* x = pass.x + groups.first(group, pass.x_stride);
            T* const y = pass.y + groups.first(group, pass.y_stride);
            if (pass.r)
            {
                const T* const r = pass.r + groups.first(group, pass.r_stride);
                T* const h = pass.h + groups.first(group, pass.h_stride);
                for_each_value(groups,
                    [=](long long i, long long)
                    { h[i] = T(static_cast<float>(x[i]) + static_cast<float>(r[i])); });
                x = h;
            }

            double sum = 0;
            for_each_value(groups,
                [&sum, x](long long i, long long)
                {
                    const float value = static_cast<float>(x[i]);
                    sum += static_cast<double>(value) * value;
                });
            const double mean = sum / static_cast<double>(groups.size);
            const float s = static_cast<float>(1 / std::sqrt(mean + pass.eps));

            pass.scale[group] = s;
            for_each_value(groups,
                [=](long long i, long long c)
                { y[i] = T(rounded<T>(static_cast<float>(x[i]) * s, llama) * g(c)); });
        }
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void rms_normalize_gradient(const rms_norm_backward<T>& pass)
    {
        const rms_norm_groups groups = pass.groups;
        const gain_of<T> g = {pass.gain_offset, pass.gamma};
        const bool llama = is_llama<T>(pass.casting);
        std::vector<double> gain_sums(static_cast<std::size_t>(groups.num_gains));
        double* const dgamma = pass.gamma ? gain_sums.data() : nullptr;

        for (long long group = 0; group < groups.num_groups(); ++group)
        {
            const T* const d = pass.d + groups.first(group, pass.d_stride);
            const T* const x = pass.x + groups.first(group, pass.x_stride);
            T* const dx = pass.dx + groups.first(group, pass.dx_stride);
            const T* const old = pass.add ? dx
                : pass.dh                 ? pass.dh + groups.first(group, pass.dh_stride)
                                          : nullptr;
            const float s = pass.scale[group];
            double sum = 0;
            for_each_value(groups,
                [&sum, d, x, g, s, llama, dgamma](long long i, long long c)
                {
                    const float di = static_cast<float>(d[i]), xi = static_cast<float>(x[i]);
                    const double gd = llama ? rounded<T>(g(c) * di)
                                            : static_cast<double>(g(c)) * di;
                    sum += gd * xi;
                    if (dgamma)
                    {
                        dgamma[c] += llama ? rounded<T>(di * rounded<T>(xi * s))
                                           : static_cast<double>(di) * xi * s;
                    }
                });
            const float m = static_cast<float>(s * sum / static_cast<double>(groups.size));

            if (pass.dscale)
                pass.dscale[group] = static_cast<float>(-0.5 * std::pow(double(s), 3) * sum);
            for_each_value(groups,
                [=](long long i, long long c)
                {
                    const float gd = rounded<T>(g(c) * static_cast<float>(d[i]), llama);
                    const T gradient = T(s * (gd - (static_cast<float>(x[i]) * s) * m));
                    dx[i] = old ? T(static_cast<float>(old[i]) + static_cast<float>(gradient))
                                : gradient;
                });
        }
        for (long long c = 0; c < groups.num_gains; ++c)
        {
            if (pass.dgamma)
                pass.dgamma[c] = T(dgamma[c]);
            if (pass.dgamma_float)
                pass.dgamma_float[c] = static_cast<float>(dgamma[c]);
        }
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_PLAIN_H_
