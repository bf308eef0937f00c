// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_RMS_NORM_ORDER_H_
#define DLIB_TEST_RMS_NORM_ORDER_H_

// Data on which another order of adding shows. Floats of sums of doubles hardly ever do: they
// do where a sum cancels, so that its rounding errors are what is left, and where it lies at the
// edge between two floats.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include "rms_norm_runs.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    inline std::vector<std::size_t> random_partners(random_source& rnd, std::size_t size)
    /*!
        ensures
            - returns a vector v with v[v[i]] == i and, if size is even, v[i] != i
    !*/
    {
        std::vector<std::size_t> order(size), partners(size);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rnd);
        std::iota(partners.begin(), partners.end(), 0);
        for (std::size_t i = 0; i + 1 < size; i += 2)
        {
            partners[order[i]] = order[i + 1];
            partners[order[i + 1]] = order[i];
        }
        return partners;
    }

    inline void make_sums_cancel(random_source& rnd, rms_norm_problem& p)
    /*!
        ensures
            - gives pairs of values, somewhere in the same group, and pairs of groups the same x
              and gain and opposite, large d. Then the sum of g*d*x over a group and, if there are
              several groups, that of d*x*s over the values that share a gain are 0, but for
              rounding.
    !*/
    {
        std::vector<std::vector<std::size_t>> places(number_of_groups(p));
        for_each_value(
            p, [&](std::size_t i, const rms_norm_place& at) { places[at.group].push_back(i); });
        const std::size_t size = places[0].size();
        const std::size_t run = p.gamma.empty() ? 1 : size / p.gamma.size();
        const auto partner_of_run = random_partners(rnd, size / run);
        const auto partner_in_run = random_partners(rnd, run);
        const auto partner_of_group = random_partners(rnd, places.size());

        for (std::size_t c = 0; c < p.gamma.size(); ++c)
            p.gamma[partner_of_run[c]] = p.gamma[c];
        const std::vector<float> large = random_values(rnd, p.src.size(), 1e18);
        for (std::size_t g = 0; g < places.size(); ++g)
        {
            for (std::size_t i = 0; i < size; ++i)
            {
                const std::size_t j = partner_of_run[i / run] * run + partner_in_run[i % run];
                const std::size_t other = partner_of_group[g];
                const std::size_t at = places[std::min(g, other)][std::min(i, j)];
                const std::size_t here = places[g][i];
                p.src[here] = p.src[at];
                p.gradient_input[here] = i == j ? 0
                    : (i < j) == (g <= other)   ? large[at]
                                                : -large[at];
            }
        }
    }

    inline double eps_at_an_edge(const rms_norm_backend& b, const rms_norm_problem& p)
    /*!
        ensures
            - returns the largest eps with which the scale of the first group is still a certain
              float: the next eps makes it another one. So eps depends on the last bit of the mean
              of squares.
    !*/
    {
        long double squares = 0;
        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                if (at.group == 0)
                    squares += static_cast<long double>(p.src[i]) * p.src[i];
            });
        const long double mean = squares * static_cast<long double>(number_of_groups(p)) /
            static_cast<long double>(p.src.size());
        const float above = static_cast<float>(1 / std::sqrt(2 * mean));
        const long double edge = (static_cast<long double>(above) + std::nextafter(above, 0.0f)) /
            2;
        const double expected = static_cast<double>(1 / (edge * edge) - mean);

        dlib::resizable_tensor dest, scale;
        guarded_tensor src(p.dims, 0, p.src);
        guarded_tensor gamma(gamma_shape(p), 0, p.gamma);
        const auto eps = [&](int steps)
        {
            std::int64_t bits;
            std::memcpy(&bits, &expected, sizeof(bits));
            bits += steps;
            double moved;
            std::memcpy(&moved, &bits, sizeof(moved));
            return moved;
        };
        const auto is_below_edge = [&](int steps)
        {
            b.forward(p.axes, p.gain_offset, eps(steps), dest, scale, src.get(), gamma.get());
            return scale.host()[0] == above;
        };
        int low = -1;
        int high = 1;
        while (low > -(1 << 14) && !is_below_edge(low))
            low *= 2;
        while (high < 1 << 14 && is_below_edge(high))
            high *= 2;
        DLIB_TEST_MSG(is_below_edge(low) && !is_below_edge(high), "no edge, " << describe(p));
        while (high - low > 1)
        {
            const int middle = low + (high - low) / 2;
            (is_below_edge(middle) ? low : high) = middle;
        }
        return eps(low);
    }

    // ----------------------------------------------------------------------------------------

    inline void check_group_among_others(const rms_norm_backend& b,
        random_source& rnd,
        const rms_norm_problem& alone,
        long long count,
        bool others_have_gradients)
    /*!
        requires
            - alone has one group, and if its axes are channel, then one column
        ensures
            - checks that this group has the same bits somewhere among so many random ones. If
              the others have no gradients then this includes those of gamma.
    !*/
    {
        rms_norm_problem p = random_problem(rnd, alone.axes, alone.gain,
            alone.axes == dlib::contrib::rms_norm_axes::channel
                ? dlib::contrib::rms_norm_dims{1, alone.dims.k, 1, count}
                : dlib::contrib::rms_norm_dims{count, alone.dims.k, alone.dims.nr, alone.dims.nc});
        p.eps = alone.eps;
        p.gain_offset = alone.gain_offset;
        p.gamma = alone.gamma;
        if (!others_have_gradients)
            std::fill(p.gradient_input.begin(), p.gradient_input.end(), 0.0f);
        const std::size_t where = rnd() % static_cast<std::size_t>(count);
        std::vector<std::size_t> places;
        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                if (at.group != where)
                    return;
                p.src[i] = alone.src[places.size()];
                p.gradient_input[i] = alone.gradient_input[places.size()];
                places.push_back(i);
            });
        DLIB_TEST(places.size() == alone.src.size());

        const rms_norm_result expected = run(b, alone);
        const rms_norm_result found = run(b, p);
        bool same = same_bits(found.scale[where], expected.scale[0]) &&
            same_bits(found.dscale[where], expected.dscale[0]) &&
            (others_have_gradients || same_bits(found.gamma_grad, expected.gamma_grad));
        for (std::size_t i = 0; i < places.size(); ++i)
        {
            same = same && same_bits(found.dest[places[i]], expected.dest[i]) &&
                same_bits(found.src_grad[places[i]], expected.src_grad[i]);
        }
        DLIB_TEST_MSG(same, "group " << where << " among " << count << ", " << describe(alone));
    }

    inline void check_group_among_others(const rms_norm_backend& b,
        random_source& rnd,
        const rms_norm_problem& random,
        long long count)
    /*!
        ensures
            - does so with data on which another order shows
    !*/
    {
        rms_norm_problem alone = random;
        make_sums_cancel(rnd, alone);
        if (!is_sanitized)
            alone.eps = eps_at_an_edge(b, alone);
        check_group_among_others(b, rnd, alone, count, true);
        if (is_sanitized)
            return;
        alone.eps = std::nextafter(alone.eps, DBL_MAX);
        check_group_among_others(b, rnd, alone, count, true);
    }

    // ----------------------------------------------------------------------------------------

    inline std::vector<rms_norm_problem> problems_that_show_the_order()
    /*!
        ensures
            - returns problems large enough for several threads, whose sums cancel, and some others
    !*/
    {
        using namespace dlib::contrib;
        random_source rnd(27);
        std::vector<rms_norm_problem> all;
        const rms_norm_gain gains[] = {
            rms_norm_gain::per_channel, rms_norm_gain::per_element, rms_norm_gain::none};
        const rms_norm_dims shapes[] = {{1, 1, 300, 1400}, {9, 32, 40, 40}, {1, 1, 1, 400001},
            {2, 128, 41, 41}, {70, 700, 3, 3}, {1, 400001, 1, 1}, {140000, 3, 1, 1},
            {1, 1, 7, 60000}, {1, 3, 70001, 2}, {5, 3, 2, 1}};
        for (const rms_norm_dims& dims : shapes)
        {
            if (is_sanitized && all.size() >= 18)
                break;
            for (rms_norm_axes axes :
                {rms_norm_axes::sample, rms_norm_axes::row, rms_norm_axes::channel})
            {
                rms_norm_problem p = random_problem(rnd, axes, gains[all.size() / 2 % 3], dims);
                p.gain_offset = all.size() % 4 == 0 ? 0 : -0.3;
                all.push_back(p);
                make_sums_cancel(rnd, p);
                all.push_back(p);
            }
        }
        return all;
    }

    inline std::uint64_t hash_of(const rms_norm_backend& b,
        const std::vector<rms_norm_problem>& problems,
        bool with_edges)
    /*!
        ensures
            - returns a number (FNV-1a) that depends on all bits of what b computes. If with_edges
              then also on the last bits of the means of squares of first groups.
    !*/
    {
        std::uint64_t hash = 14695981039346656037u;
        const auto add = [&](const void* data, std::size_t size)
        {
            const auto* const bytes = static_cast<const unsigned char*>(data);
            for (std::size_t i = 0; i < size; ++i)
                hash = (hash ^ bytes[i]) * 1099511628211u;
        };
        for (const rms_norm_problem& p : problems)
        {
            const rms_norm_result r = run(b, p);
            for (const auto* v : {&r.dest, &r.scale, &r.src_grad, &r.gamma_grad, &r.dscale})
                add(v->data(), v->size() * sizeof(float));
            const double eps = with_edges && !is_sanitized ? eps_at_an_edge(b, p) : 0;
            add(&eps, sizeof(eps));
        }
        return hash;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_RMS_NORM_ORDER_H_
