// License: Boost Software License   See LICENSE.txt for the full license.

// RMS normalization on the CPU, as plain loops: the definition, made runnable. Sums are in
// double, everything that belongs to one element is in float, in the order of the contract.

#include "rms_norm_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>
#include "rms_norm_arguments.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        const auto host_address = [](const tensor& t) { return t.host(); };

        std::vector<float>
        effective_gains(const rms_norm_groups& groups, double gain_offset, const float* gamma)
        /*!
            ensures
                - returns one gain per run of gain_run values of a group
        !*/
        {
            if (groups.num_gains == 0)
                return std::vector<float>(static_cast<std::size_t>(groups.size), 1.0f);
            std::vector<float> gains(gamma, gamma + groups.num_gains);
            for (float& g : gains)
                g = static_cast<float>(gain_offset) + g;
            return gains;
        }
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize(rms_norm_axes axes,
        double gain_offset,
        double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        const rms_norm_groups groups = check_rms_normalize(
            axes, gain_offset, eps, dest, scale, src, gamma, host_address);

        dest.copy_size(src);
        set_size(scale, rms_norm_scale_dims(axes, dims_of(src)));

        const std::vector<float> gains = effective_gains(groups, gain_offset, gamma.host());
        const float* const x = src.host();
        float* const y = dest.host();
        float* const s = scale.host();

        for (long long g = 0; g < groups.num_groups(); ++g)
        {
            const long long first = groups.first(g);

            double sum = 0;
            for (long long i = 0; i < groups.size; ++i)
            {
                const double value = x[first + i * groups.stride];
                sum += value * value;
            }
            s[g] = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(groups.size) + eps));

            for (long long i = 0; i < groups.size; ++i)
            {
                const long long at = first + i * groups.stride;
                y[at] = (x[at] * s[g]) * gains[static_cast<std::size_t>(i / groups.gain_run)];
            }
        }
    }

    void rms_normalize(double eps,
        resizable_tensor& dest,
        resizable_tensor& scale,
        const tensor& src,
        const tensor& gamma)
    {
        rms_normalize(rms_norm_axes::sample, 0, eps, dest, scale, src, gamma);
    }

    // ----------------------------------------------------------------------------------------

    void rms_normalize_gradient(rms_norm_axes axes,
        double gain_offset,
        const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        bool in_place = false;
        const rms_norm_groups groups = check_rms_normalize_gradient(axes, gain_offset,
            gradient_input, scale, src, gamma, src_grad, gamma_grad, dscale, host_address,
            in_place);

        set_size(dscale, rms_norm_scale_dims(axes, dims_of(src)));

        const std::vector<float> gains = effective_gains(groups, gain_offset, gamma.host());
        std::vector<double> gains_grad(gains.size(), 0.0);
        const float* const d = gradient_input.host();
        const float* const x = src.host();
        const float* const s = scale.host();
        float* const dx = src_grad.host();
        float* const m = dscale.host();

        for (long long g = 0; g < groups.num_groups(); ++g)
        {
            const long long first = groups.first(g);

            double sum = 0;
            for (long long i = 0; i < groups.size; ++i)
            {
                const long long at = first + i * groups.stride;
                const auto gain = static_cast<std::size_t>(i / groups.gain_run);
                const double dot = static_cast<double>(d[at]) * static_cast<double>(x[at]);
                sum += dot * static_cast<double>(gains[gain]);
                gains_grad[gain] += dot * static_cast<double>(s[g]);
            }
            m[g] = static_cast<float>(
                static_cast<double>(s[g]) * sum / static_cast<double>(groups.size));

            for (long long i = 0; i < groups.size; ++i)
            {
                const long long at = first + i * groups.stride;
                const float gain = gains[static_cast<std::size_t>(i / groups.gain_run)];
                const float grad = s[g] * (gain * d[at] - (x[at] * s[g]) * m[g]);
                dx[at] = in_place ? grad : dx[at] + grad;
            }
        }

        if (groups.num_gains != 0)
        {
            std::transform(gains_grad.begin(), gains_grad.end(), gamma_grad.host(),
                [](double value) { return static_cast<float>(value); });
        }
    }

    void rms_normalize_gradient(const tensor& gradient_input,
        const tensor& scale,
        const tensor& src,
        const tensor& gamma,
        tensor& src_grad,
        tensor& gamma_grad,
        resizable_tensor& dscale)
    {
        rms_normalize_gradient(rms_norm_axes::sample, 0, gradient_input, scale, src, gamma,
            src_grad, gamma_grad, dscale);
    }

    // ----------------------------------------------------------------------------------------

}
