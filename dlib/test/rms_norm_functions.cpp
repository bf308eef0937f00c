// License: Boost Software License   See LICENSE.txt for the full license.

// The two functions of every backend against the definition: known values, the range of
// floats, shapes, order, and the same bits every time.

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <numeric>
#include <utility>
#include "rms_norm_order.h"

#ifdef DLIB_RMS_NORM_HAVE_SIMD
#include "instruction_sets.h"
#endif

namespace
{

    using namespace test;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_dims;
    using dlib::contrib::rms_norm_gain;
    using dlib::contrib::rms_norm_groups;

    const rms_norm_axes all_axes[] = {
        rms_norm_axes::sample, rms_norm_axes::row, rms_norm_axes::channel};

    const double smallest_eps = FLT_MIN;

    // ----------------------------------------------------------------------------------------
    //                                    problems
    // ----------------------------------------------------------------------------------------

    const kind_of_gain all_gains[] = {{rms_norm_gain::per_channel, 0},
        {rms_norm_gain::per_element, 0}, {rms_norm_gain::none, 0}, {rms_norm_gain::per_channel, 1},
        {rms_norm_gain::per_element, -0.3}};

    const kind_of_gain& some_gain(random_source& rnd) { return all_gains[rnd() % 5]; }

    rms_norm_problem random_problem(random_source& rnd,
        rms_norm_axes axes,
        const kind_of_gain& gain,
        const rms_norm_dims& dims)
    {
        rms_norm_problem p = test::random_problem(rnd, axes, gain.gain, dims);
        p.gain_offset = gain.offset;
        return p;
    }

    rms_norm_dims groups_of_size(rms_norm_axes axes, long long count, long long size)
    /*!
        ensures
            - returns a shape with so many groups of this size
    !*/
    {
        if (axes == rms_norm_axes::sample)
            return {count, size, 1, 1};
        if (axes == rms_norm_axes::row)
            return {1, 1, count, size};
        return {1, size, 1, count};
    }

    rms_norm_problem four_values(const std::vector<float>& x,
        const std::vector<float>& gamma,
        const std::vector<float>& d,
        double eps)
    /*!
        ensures
            - returns one sample with one value per channel
    !*/
    {
        rms_norm_problem p;
        p.dims = {1, static_cast<long long>(x.size()), 1, 1};
        p.src = x;
        p.gamma = gamma;
        p.gradient_input = d;
        p.old_src_grad.assign(x.size(), 0);
        p.eps = eps;
        return p;
    }

    rms_norm_problem
    constant_problem(rms_norm_axes axes, const rms_norm_dims& dims, float x, double eps)
    /*!
        ensures
            - returns a problem with x everywhere, and 1 as gamma and gradient
    !*/
    {
        rms_norm_problem p;
        p.axes = axes;
        p.dims = dims;
        p.eps = eps;
        p.src.assign(static_cast<std::size_t>(dims.size()), x);
        p.gradient_input.assign(p.src.size(), 1);
        p.old_src_grad.assign(p.src.size(), 0);
        p.gamma.assign(static_cast<std::size_t>(gamma_shape(p).size()), 1);
        return p;
    }

    void check_known(const char* name,
        const std::vector<float>& found,
        const std::vector<number>& exact,
        const std::vector<double>& known,
        double last_digit)
    /*!
        ensures
            - checks that both the definition and what was found agree with numbers that were
              printed with an error of half of last_digit
    !*/
    {
        DLIB_TEST(found.size() == known.size() && exact.size() == known.size());
        for (std::size_t i = 0; i < known.size(); ++i)
        {
            const long double value = known[i];
            DLIB_TEST_MSG(std::abs(exact[i].value - value) <= last_digit / 2,
                std::setprecision(17) << name << "[" << i << "] should be " << value
                                      << ", the definition gives " << exact[i].value);
            DLIB_TEST_MSG(std::abs(found[i] - value) <= exact[i].bound + last_digit / 2,
                std::setprecision(17)
                    << name << "[" << i << "] should be " << value << ", found " << found[i]);
        }
    }

    void check_all_near(const std::vector<float>& found, double value, double error)
    {
        for (float f : found)
            DLIB_TEST_MSG(std::abs(f - value) <= error,
                std::setprecision(12) << "should be " << value << ", found " << f);
    }

    // ----------------------------------------------------------------------------------------
    //                                  golden values
    // ----------------------------------------------------------------------------------------

    void golden_values(const rms_norm_backend& b)
    {
        rms_norm_problem p = four_values({1, 2, 3, 4}, {1, 2, 3, 4}, {1, 0, 0, 0}, 1e-5);
        rms_norm_answer exact = exact_rms_norm(p);
        rms_norm_result found = check(b, p);
        check_known("scale", found.scale, exact.scale, {0.3651481282381064}, 1e-16);
        check_known("y", found.dest, exact.dest,
            {0.365148128, 1.460592513, 3.286333154, 5.842370052}, 1e-9);
        check_known("dx", found.src_grad, exact.src_grad,
            {0.35297654, -0.024343176, -0.036514764, -0.048686352}, 1e-9);
        check_known("dgamma", found.gamma_grad, exact.gamma_grad, {0.365148128, 0, 0, 0}, 1e-9);

        p.gradient_input = {1, -1, 1, -1};
        exact = exact_rms_norm(p);
        found = check(b, p);
        check_known("dx", found.src_grad, exact.src_grad,
            {0.486864009, -0.486864496, 1.460592026, -0.973728991}, 1e-9);
        check_known("dgamma", found.gamma_grad, exact.gamma_grad,
            {0.365148128, -0.730296256, 1.095444385, -1.460592513}, 1e-9);
    }

    void golden_values_in_place(const rms_norm_backend& b)
    {
        const rms_norm_problem p = four_values({1, 0, 0, 0}, {1, 1, 1, 1}, {1, 0, 0, 0}, 1e-4);
        const rms_norm_answer exact = exact_rms_norm(p);
        const rms_norm_result found = check(b, p);
        check_known("dx[0]", {found.src_grad[0]}, {exact.src_grad[0]}, {0.00079952}, 1e-8);
    }

    // ----------------------------------------------------------------------------------------
    //                                     formula
    // ----------------------------------------------------------------------------------------

    void every_channel_has_its_gamma(const rms_norm_backend& b)
    {
        random_source rnd(1);
        rms_norm_problem p = random_problem(rnd, rms_norm_axes::sample, all_gains[0], {3, 5, 4, 7});
        p.gamma = {1, 2, 3, 4, 5};
        check(b, p);
    }

    void central_differences_agree(const rms_norm_backend& b)
    /*!
        ensures
            - checks the gradients against differences of f = sum(d*dest) in long double. With
              the step h that of x is off by h*h/6 times a third derivative of f, which is at
              most 36/n*s^3*sum(|g*d|). Here n >= 3; 15 instead of 12 covers the s between the
              two points. f is linear in gamma, but the gain is rounded to float.
    !*/
    {
        random_source rnd(2);
        for (rms_norm_axes axes : all_axes)
        {
            for (const kind_of_gain& gain : all_gains)
            {
                rms_norm_problem p = random_problem(rnd, axes, gain, {2, 3, 2, 4});
                const rms_norm_result found = check(b, p);
                const rms_norm_answer exact = exact_rms_norm(p);

                const auto f = [](const rms_norm_problem& q)
                {
                    const rms_norm_answer a = exact_rms_norm(q);
                    long double sum = 0;
                    for (std::size_t i = 0; i < a.dest.size(); ++i)
                        sum += q.gradient_input[i] * a.dest[i].value;
                    return sum;
                };
                const long double largest_gain = 8;
                long double largest_scale = 0, sum_of_gd = 0, sum_of_dxs = 0;
                for (const number& s : exact.scale)
                    largest_scale = std::max(largest_scale, s.value);
                for (std::size_t i = 0; i < p.src.size(); ++i)
                {
                    const long double d = std::abs(p.gradient_input[i]);
                    sum_of_gd += d * largest_gain;
                    sum_of_dxs += d * std::abs(p.src[i]) * largest_scale;
                }
                for (float g : effective_gains(p))
                    DLIB_TEST(std::abs(g) < largest_gain);

                const auto derivative = [&](float& variable, float step, long double& h)
                {
                    // the step is what really lies between the two floats
                    const float old = variable;
                    variable = old + step;
                    const long double above = f(p), above_at = variable;
                    variable = old - step;
                    const long double below = f(p), below_at = variable;
                    variable = old;
                    h = (above_at - below_at) / 2;
                    return (above - below) / (above_at - below_at);
                };

                for (std::size_t i = 0; i < p.src.size(); ++i)
                {
                    long double h = 0;
                    const long double df = derivative(p.src[i], 0x1p-12f, h);
                    const long double error = h * h * 15 / 6 * sum_of_gd *
                        std::pow(largest_scale, 3.0L);
                    DLIB_TEST_MSG(
                        std::abs(found.src_grad[i] - df) <= exact.src_grad[i].bound + error,
                        "dx[" << i << "] is " << found.src_grad[i] << ", differences give " << df
                              << ", allowed is " << exact.src_grad[i].bound << " + " << error
                              << ", " << describe(p));
                }
                for (std::size_t i = 0; i < p.gamma.size(); ++i)
                {
                    long double h = 0;
                    const long double df = derivative(p.gamma[i], 1, h);
                    const long double error = largest_gain * rounding::u / h * sum_of_dxs;
                    DLIB_TEST_MSG(
                        std::abs(found.gamma_grad[i] - df) <= exact.gamma_grad[i].bound + error,
                        "dgamma[" << i << "] is " << found.gamma_grad[i] << ", differences give "
                                  << df << ", allowed is " << exact.gamma_grad[i].bound << " + "
                                  << error << ", " << describe(p));
                }
            }
        }
    }

    void eps_is_inside_of_the_root(const rms_norm_backend& b)
    {
        for (rms_norm_axes axes : all_axes)
        {
            const rms_norm_result r = check(b, constant_problem(axes, {2, 3, 4, 5}, 1e-3f, 1e-5));
            // 0x1p-24: 1e-3 itself is rounded to float
            check_all_near(r.dest, 0.301511345, (4 + 1) * 0x1p-24 * 0.3015 + 0.5e-9);
        }
    }

    void no_mean_is_removed(const rms_norm_backend& b)
    {
        for (rms_norm_axes axes : all_axes)
        {
            const rms_norm_result r = check(b, constant_problem(axes, {2, 3, 4, 5}, 3, 1e-5));
            check_all_near(r.dest, 0.999999444, 4 * 0x1p-24 + 0.5e-9);

            // one value per group: y is the sign of x, so dx is 0 up to rounding of 1 - 1
            rms_norm_problem p = constant_problem(
                axes, groups_of_size(axes, 7, 1), 3, smallest_eps);
            const rms_norm_result one = check(b, p);
            check_all_near(one.dest, 1, 4 * 0x1p-24);
            check_all_near(one.src_grad, 0, 8 * 0x1p-24 * 2 / 3.);
        }
    }

    void eps_is_the_given_one_on_every_path(const rms_norm_backend& b)
    {
        for (rms_norm_axes axes : all_axes)
        {
            for (long long size : {1, 4, 33, 64, 257, 1025, 4097, 16384, 20001, 70000})
            {
                const rms_norm_result r = check(
                    b, constant_problem(axes, groups_of_size(axes, 2, size), 1, 1));
                check_all_near(r.dest, 0.707106781, 4 * 0x1p-24 + 0.5e-9);
            }
        }
    }

    void offset_is_in_both_directions(const rms_norm_backend& b)
    {
        random_source rnd(3);
        for (rms_norm_axes axes : all_axes)
        {
            for (rms_norm_gain gain : {rms_norm_gain::per_channel, rms_norm_gain::per_element})
            {
                rms_norm_problem p = random_problem(rnd, axes, {gain, 1}, {3, 4, 5, 6});
                std::fill(p.gamma.begin(), p.gamma.end(), 0.0f);
                rms_norm_problem q = p;
                q.gain_offset = 0;
                std::fill(q.gamma.begin(), q.gamma.end(), 1.0f);
                DLIB_TEST_MSG(same_bits(check(b, p), check(b, q)), describe(p));
            }
        }
    }

    void rows_are_normalized_each_by_itself(const rms_norm_backend& b)
    {
        rms_norm_problem p = constant_problem(rms_norm_axes::row, {1, 1, 2, 4}, 1, 1e-5);
        std::fill(p.src.begin() + 4, p.src.end(), 10.0f);
        check_all_near(check(b, p).dest, 1, 1e-5);

        p.axes = rms_norm_axes::sample;
        p.gamma = {1};
        const rms_norm_result r = check(b, p);
        check_all_near({r.dest.begin(), r.dest.begin() + 4}, 0.140719495, 4 * 0x1p-24 + 0.5e-9);
    }

    void earlier_tokens_do_not_see_the_last_one(const rms_norm_backend& b)
    {
        random_source rnd(4);
        rms_norm_problem p = random_problem(rnd, rms_norm_axes::row, all_gains[0], {2, 1, 9, 37});
        const rms_norm_result before = check(b, p);
        const std::size_t earlier = 8 * 37, all = 9 * 37;
        for (std::size_t i = earlier; i < all; ++i)
            p.src[i] = 100 * p.src[i] - 1;
        const rms_norm_result after = check(b, p);

        for (std::size_t i = 0; i < p.src.size(); ++i)
        {
            const bool of_the_last_token = i >= earlier && i < all;
            DLIB_TEST(same_bits(before.dest[i], after.dest[i]) == !of_the_last_token);
        }
    }

    void scale_is_one_over_the_rms(const rms_norm_backend& b)
    {
        random_source rnd(5);
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = random_problem(rnd, axes, all_gains[0], {5, 6, 7, 8});
            const rms_norm_result r = check(b, p);
            std::vector<double> squares(r.scale.size());
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                { squares[at.group] += static_cast<double>(p.src[i]) * p.src[i]; });
            const double n = static_cast<double>(p.src.size() / squares.size());
            for (std::size_t g = 0; g < squares.size(); ++g)
                DLIB_TEST(
                    std::abs(r.scale[g] * std::sqrt(squares[g] / n + p.eps) - 1) <= FLT_EPSILON);
        }
    }

    void roundings_come_in_the_promised_order(const rms_norm_backend& b)
    /*!
        ensures
            - checks that dest == (x*scale)*g and dx == scale*(g*d - (x*scale)*m), each
              operation rounded to float, with m == mean(g*d*x)*scale rounded to float. volatile
              keeps this compiler from fusing any two.
    !*/
    {
        random_source rnd(6);
        for (rms_norm_axes axes : all_axes)
        {
            for (const kind_of_gain& gain : all_gains)
            {
                const rms_norm_problem p = random_problem(rnd, axes, gain, {6, 7, 9, 11});
                const rms_norm_result r = check(b, p);
                const std::vector<float> gains = effective_gains(p);
                const auto gain_of = [&](const rms_norm_place& at)
                { return gains.empty() ? 1 : gains[at.gain]; };

                std::vector<long double> products(r.scale.size());
                for_each_value(p,
                    [&](std::size_t i, const rms_norm_place& at) {
                        products[at.group] += static_cast<long double>(gain_of(at)) *
                            p.gradient_input[i] * p.src[i];
                    });
                const auto size = static_cast<long double>(p.src.size() / r.scale.size());

                bool good = true;
                for_each_value(p,
                    [&](std::size_t i, const rms_norm_place& at)
                    {
                        const float g = gain_of(at);
                        const auto m = static_cast<float>(
                            products[at.group] * r.scale[at.group] / size);
                        volatile float xh = p.src[i] * r.scale[at.group];
                        volatile float y = xh * g;
                        volatile float gd = g * p.gradient_input[i];
                        volatile float xhm = xh * m;
                        volatile float difference = gd - xhm;
                        volatile float dx = r.scale[at.group] * difference;
                        good = good && y == r.dest[i] && dx == r.src_grad[i];
                    });
                DLIB_TEST_MSG(good, describe(p));
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                      range
    // ----------------------------------------------------------------------------------------

    void squares_do_not_overflow(const rms_norm_backend& b)
    {
        std::vector<float> x;
        for (int i = 0; i < 8; ++i)
            x.push_back(i % 2 == 0 ? 1e20f : -1e20f);
        rms_norm_problem p = four_values(x, std::vector<float>(8, 1), x, 1e-5);
        std::fill(p.gradient_input.begin(), p.gradient_input.end(), 0.5f);
        const rms_norm_result r = check(b, p);
        for (std::size_t i = 0; i < x.size(); ++i)
            DLIB_TEST(std::abs(r.dest[i] - (i % 2 == 0 ? 1 : -1)) <= 4 * 0x1p-24);

        // the largest floats, where even s is denormal
        for (float largest : {FLT_MAX, 0x1p126f, 0x1p127f})
        {
            std::fill(p.src.begin(), p.src.end(), largest);
            check(b, p);
        }
    }

    void cube_of_s_does_not_underflow(const rms_norm_backend& b)
    {
        const rms_norm_result r = check(
            b, four_values({1e15f, 2e15f, 3e15f, 4e15f}, {1, 1, 1, 1}, {1, 2, 3, 4}, 1e-5));
        check_all_near(r.src_grad, 0, 1e-20);
    }

    void zeros_give_zeros(const rms_norm_backend& b)
    {
        random_source rnd(7);
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = random_problem(rnd, axes, all_gains[0], {2, 3, 5, 7});
            std::fill(p.src.begin(), p.src.end(), 0.0f);
            const rms_norm_result r = check(b, p);
            check_all_near(r.dest, 0, 0);
            check_all_near(r.gamma_grad, 0, 0);
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    const double dx = 316.227766 * p.gamma[at.gain] * p.gradient_input[i];
                    DLIB_TEST(std::abs(r.src_grad[i] - dx) <=
                        std::abs(dx) * (8 * 0x1p-24 + 0.5e-6 / 316));
                });
        }
    }

    void groups_of_one_value(const rms_norm_backend& b)
    {
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = constant_problem(axes, groups_of_size(axes, 3, 1), 0, 1e-5);
            p.src = {1e-3f, -5, 0};
            const rms_norm_result r = check(b, p);
            // the known values are for 1e-3 itself, not for the float next to it
            check_known(
                "y", r.dest, exact_rms_norm(p).dest, {0.301511345, -0.9999998, 0}, 2 * 0x1p-24);
        }
    }

    void check_one_bad_group(const rms_norm_backend& b,
        const rms_norm_problem& p,
        const rms_norm_result& before,
        std::size_t where)
    /*!
        requires
            - before == the result for p without the bad number at `where`
    !*/
    {
        const rms_norm_result after = check(b, p);
        std::size_t bad_group = 0;
        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                if (i == where)
                    bad_group = at.group;
            });
        for_each_value(p,
            [&](std::size_t i, const rms_norm_place& at)
            {
                if (at.group == bad_group)
                {
                    DLIB_TEST(!std::isfinite(after.src_grad[i]));
                    DLIB_TEST(!std::isnan(p.src[where]) || std::isnan(after.dest[i]));
                }
                else
                {
                    DLIB_TEST(same_bits(after.dest[i], before.dest[i]));
                    DLIB_TEST(same_bits(after.src_grad[i], before.src_grad[i]));
                }
            });
    }

    void bad_numbers_stay_in_their_group(const rms_norm_backend& b)
    {
        random_source rnd(8);
        const float inf = std::numeric_limits<float>::infinity();
        const float nan = std::numeric_limits<float>::quiet_NaN();

        for (rms_norm_axes axes : all_axes)
        {
            const rms_norm_problem good = random_problem(rnd, axes, some_gain(rnd), {3, 4, 5, 6});
            const rms_norm_result before = check(b, good);

            for (float bad : {inf, -inf, nan})
            {
                for (std::size_t where : {std::size_t(0), good.src.size() / 2, good.src.size() - 1})
                {
                    rms_norm_problem p = good;
                    p.src[where] = bad;
                    check_one_bad_group(b, p, before, where);
                    p = good;
                    p.gradient_input[where] = bad;
                    check_one_bad_group(b, p, before, where);
                }
            }
        }
    }

    void smallest_eps_with_tiny_values(const rms_norm_backend& b)
    {
        random_source rnd(9);
        for (rms_norm_axes axes : all_axes)
        {
            for (double size : {1e-15, 1e-19, 1e-25, 1e-38, 1e-42, 1e-45})
            {
                rms_norm_problem p = random_problem(rnd, axes, some_gain(rnd), {2, 5, 3, 9});
                p.eps = 1.2e-38;
                p.src = random_values(rnd, p.src.size(), size);
                // dx is about 1e19 times this
                p.gradient_input = random_values(rnd, p.src.size(), 1e-3);
                check(b, p);
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                      shapes
    // ----------------------------------------------------------------------------------------

    long long most_values(const rms_norm_backend& b)
    /*!
        ensures
            - returns how many values the largest problems should have. Threads that are run
              one after another take a thousand times as long as real ones, and sanitizers take
              their time too.
    !*/
    {
        return b.is_fast && !is_sanitized ? 2000000 : 150000;
    }

    rms_norm_dims shrunk(rms_norm_dims d, long long most)
    /*!
        ensures
            - returns d with samples, then channels, taken away until it has at most `most` values
    !*/
    {
        while (d.size() > most)
        {
            long long& larger = d.num_samples > 1 ? d.num_samples : d.k;
            larger = (larger + 1) / 2;
        }
        return d;
    }

    std::vector<long long> group_sizes()
    {
        std::vector<long long> sizes(67);
        std::iota(sizes.begin(), sizes.end(), 1);
        for (long long size : {127, 128, 129, 255, 256, 257, 258, 259, 260, 320, 511, 512, 513, 767,
                 768, 769, 896, 960, 1023, 1024, 1025, 2560, 2880, 3584, 4097, 5120, 7168, 12288,
                 16384, 65535, 65536, 65537, 262145})
            sizes.push_back(size);
        return sizes;
    }

    void all_group_sizes(const rms_norm_backend& b)
    {
        random_source rnd(10);
        for (rms_norm_axes axes : all_axes)
        {
            for (long long size : group_sizes())
            {
                const long long count = size > 20000 ? 1 + static_cast<long long>(rnd() % 2) : 3;
                const rms_norm_dims dims = groups_of_size(axes, count, size);
                const long long most = most_values(b);
                if (dims.size() <= most)
                    check(b, random_problem(rnd, axes, some_gain(rnd), dims), rnd() % 4);
                else
                    check(b,
                        random_problem(rnd, axes, some_gain(rnd),
                            groups_of_size(axes, 1, std::min(size, most))));
            }
        }
    }

    void all_group_counts(const rms_norm_backend& b)
    {
        random_source rnd(11);
        for (rms_norm_axes axes : all_axes)
        {
            for (long long count : {1, 2, 3, 17, 255, 256, 257, 1000, 65535, 65536, 65537})
            {
                const long long size = count < 2000 ? 1 + static_cast<long long>(rnd() % 40)
                                                    : 1 + count % 2;
                check(b,
                    random_problem(rnd, axes, some_gain(rnd), groups_of_size(axes, count, size)),
                    rnd() % 4);
            }
        }
    }

    void all_image_sizes(const rms_norm_backend& b)
    {
        random_source rnd(12);
        const std::pair<long long, long long> images[] = {
            {1, 1}, {1, 3}, {3, 1}, {1, 5}, {5, 1}, {1, 7}, {7, 1}, {7, 7}};
        for (rms_norm_axes axes : all_axes)
        {
            for (const auto& image : images)
            {
                for (const kind_of_gain& gain : all_gains)
                    check(b, random_problem(rnd, axes, gain, {3, 6, image.first, image.second}),
                        rnd() % 4);
            }
        }
    }

    void shapes_of_real_nets(const rms_norm_backend& b)
    {
        random_source rnd(13);
        const rms_norm_dims shapes[] = {{1, 1, 1, 1000000}, {1, 1000000, 1, 1}, {1, 1000, 40, 25},
            {2, 3, 224, 224}, {64, 768, 4, 4}, {2, 512, 8, 8}};
        for (rms_norm_axes axes : all_axes)
        {
            for (const rms_norm_dims& shape : shapes)
            {
                // one column of a million rows, or the reverse
                const rms_norm_dims dims = shape.k > 1
                    ? shrunk(shape, most_values(b))
                    : rms_norm_dims{1, 1, 1, std::min(shape.nc, most_values(b))};
                check(b, random_problem(rnd, axes, some_gain(rnd), dims));
            }
        }
    }

    void empty_tensors(const rms_norm_backend& b)
    {
        random_source rnd(14);
        for (rms_norm_axes axes : all_axes)
        {
            for (const kind_of_gain& gain : all_gains)
            {
                const rms_norm_result r = check(b, random_problem(rnd, axes, gain, {0, 3, 4, 5}));
                check_all_near(r.gamma_grad, 0, 0);
                check(b, random_problem(rnd, axes, gain, {0, 0, 0, 0}));
            }
        }
    }

    void every_alignment_gives_the_same_bits(const rms_norm_backend& b)
    {
        random_source rnd(15);
        for (rms_norm_axes axes : all_axes)
        {
            for (const rms_norm_dims& dims : {rms_norm_dims{3, 4, 5, 8}, rms_norm_dims{2, 8, 8, 33},
                     rms_norm_dims{2, 67, 1, 515}})
            {
                for (const kind_of_gain& gain : all_gains)
                {
                    const rms_norm_problem p = random_problem(rnd, axes, gain, dims);
                    const rms_norm_result aligned = check(b, p, 0);
                    for (std::size_t shift = 1; shift < 4; ++shift)
                        DLIB_TEST_MSG(same_bits(check(b, p, shift), aligned),
                            "shift " << shift << ", " << describe(p));
                }
            }
        }
    }

    void groups_of_very_unlike_size(const rms_norm_backend& b)
    {
        random_source rnd(16);
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = random_problem(
                rnd, axes, some_gain(rnd), groups_of_size(axes, 19, 41));
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                { p.src[i] *= static_cast<float>(std::pow(10, at.group)); });
            check(b, p);
        }
    }

    void check_groups_against_offsets(rms_norm_axes axes,
        const rms_norm_dims& d,
        long long n,
        long long k,
        long long r,
        long long c)
    /*!
        ensures
            - checks that the group and the index within it of the value at (n, k, r, c) lead to
              where a row-major tensor has that value
    !*/
    {
        rms_norm_groups groups;
        DLIB_TEST(make_rms_norm_groups(axes, d, {0, 0, 0, 0}, groups));

        long long group = n, index = (k * d.nr + r) * d.nc + c;
        if (axes == rms_norm_axes::row)
        {
            group = (n * d.k + k) * d.nr + r;
            index = c;
        }
        else if (axes == rms_norm_axes::channel)
        {
            group = (n * d.nr + r) * d.nc + c;
            index = k;
        }
        DLIB_TEST(groups.num_values() == d.size());
        DLIB_TEST(0 <= group && group < groups.num_groups());
        DLIB_TEST(0 <= index && index < groups.size);
        DLIB_TEST(
            groups.first(group) + index * groups.stride == ((n * d.k + k) * d.nr + r) * d.nc + c);
    }

    void indices_beyond_32_bits()
    {
        const rms_norm_dims shapes[] = {{70000, 3, 50000, 7}, {2, 70000, 1, 70000},
            {1, 1, 70000, 70000}, {3, 2, 60000, 60000}, {1, 5000000000, 1, 1},
            {5000000000, 1, 1, 2}};
        for (const rms_norm_dims& d : shapes)
        {
            for (rms_norm_axes axes : all_axes)
            {
                check_groups_against_offsets(
                    axes, d, d.num_samples - 1, d.k - 1, d.nr - 1, d.nc - 1);
                check_groups_against_offsets(
                    axes, d, d.num_samples / 2, d.k / 3, d.nr / 2, d.nc / 3);
                check_groups_against_offsets(axes, d, 0, d.k - 1, 0, d.nc - 1);
                check_groups_against_offsets(axes, d, d.num_samples - 1, 0, d.nr - 1, 0);
            }
        }
    }

    long long available_memory_in_bytes()
    {
        std::ifstream fin("/proc/meminfo");
        std::string name;
        while (fin >> name)
        {
            long long kilobytes = 0;
            if (name == "MemAvailable:" && fin >> kilobytes)
                return kilobytes * 1024;
        }
        return 0;
    }

    void
    more_than_2_31_values(const rms_norm_backend& b, rms_norm_axes axes, const rms_norm_dims& dims)
    /*!
        ensures
            - runs forward and backward with ones in the first and the last group and zeros in
              between, in place to save memory
    !*/
    {
        rms_norm_problem p;
        p.axes = axes;
        p.dims = dims;
        const rms_norm_dims gamma_dims = gamma_shape(p);
        p.gamma.assign(static_cast<std::size_t>(gamma_dims.size()), 1);
        guarded_tensor gamma(gamma_dims, 0, p.gamma);
        guarded_tensor gamma_grad(gamma_dims, 0);
        dlib::alias_tensor_instance gamma_out = gamma_grad.get();
        dlib::resizable_tensor src(dims.num_samples, dims.k, dims.nr, dims.nc);
        dlib::resizable_tensor scale, dscale;

        rms_norm_groups groups;
        DLIB_TEST(make_rms_norm_groups(axes, dims, gamma_dims, groups));
        DLIB_TEST(groups.num_values() > 1LL << 31);
        const long long count_of_ones = groups.size * std::min(2LL, groups.num_groups());

        const auto fill_with_ones = [&](dlib::tensor& t)
        {
            t = 0;
            float* const values = t.host();
            for (long long g : {0LL, groups.num_groups() - 1})
            {
                for (long long i = 0; i < groups.size; ++i)
                    values[groups.first(g) + i * groups.stride] = 1;
            }
        };
        const auto check_ones_became = [&](const dlib::tensor& t, double value, double error)
        {
            const auto zeros = static_cast<long long>(std::count(t.begin(), t.end(), 0.0f));
            DLIB_TEST_MSG(zeros == groups.num_values() - count_of_ones, zeros << " zeros");
            const float* const values = t.host();
            for (long long g : {0LL, groups.num_groups() - 1})
            {
                for (long long i = 0; i < groups.size; ++i)
                {
                    const float found = values[groups.first(g) + i * groups.stride];
                    if (!(std::abs(found - value) <= error))
                        DLIB_TEST_MSG(false, "value " << i << " of group " << g << " is " << found);
                }
            }
        };

        fill_with_ones(src);
        b.forward(axes, 0, 1, src, scale, src, gamma.get());
        check_ones_became(src, 0.707106781, 4 * 0x1p-24 + 0.5e-9);
        DLIB_TEST(static_cast<long long>(scale.size()) == groups.num_groups());
        for (std::size_t i : {std::size_t(0), scale.size() - 1})
            DLIB_TEST(std::abs(scale.host()[i] - 0.707106781) <= 0x1p-24 + 0.5e-9);

        // with x = d = 1: dx = s*(1 - s*s) and s = sqrt(1/2)
        dlib::resizable_tensor gradient(dims.num_samples, dims.k, dims.nr, dims.nc);
        fill_with_ones(src);
        fill_with_ones(gradient);
        b.gradient(axes, 0, gradient, scale, src, gamma.get(), gradient, gamma_out, dscale);
        check_ones_became(gradient, 0.353553391, 8 * 0x1p-24 * 0.7072 * 1.5 + 0.5e-9);

        const double dg = 0.707106781 * static_cast<double>(count_of_ones) /
            static_cast<double>(p.gamma.size());
        for (float found : gamma_grad.values())
            DLIB_TEST(std::abs(found - dg) <= dg * (2 * 0x1p-24 + 0.5e-9 / 0.7071));
    }

    void sizes_beyond_32_bits(const rms_norm_backend& b)
    {
        const std::string name = b.name + ": sizes_beyond_32_bits";
        const long long needed = 20LL << 30;
        const long long there = available_memory_in_bytes();
        if (!b.is_fast)
            return;
        if (!std::getenv("RMS_NORM_BIG_TESTS"))
        {
            skip_case(name, "takes minutes and 20 GiB of memory, set RMS_NORM_BIG_TESTS to run it");
            return;
        }
        if (there < needed)
        {
            skip_case(name, "needs 20 GiB of memory, there are " + std::to_string(there >> 30));
            return;
        }
        run_case(name + ", many groups",
            [&]() {
                more_than_2_31_values(b, rms_norm_axes::row, {1, 1, (1LL << 31) / 2048 + 1, 2048});
            });
        run_case(name + ", one group",
            [&]() {
                more_than_2_31_values(b, rms_norm_axes::sample, {1, 1, 1, (1LL << 31) + 7});
            });
        run_case(name + ", channels",
            [&]() {
                more_than_2_31_values(
                    b, rms_norm_axes::channel, {1, 1LL << 16, 1, (1LL << 15) + 5});
            });
    }

    void fuzz(const rms_norm_backend& b)
    {
        const char* const given = std::getenv("RMS_NORM_SEED");
        const unsigned long long first_seed = given ? std::strtoull(given, nullptr, 10)
                                                    : std::random_device()();
        const int rounds = given ? 1 : 300;
        const long long most = b.is_fast ? 20000 : 2000;

        for (int round = 0; round < rounds; ++round)
        {
            const unsigned long long seed = first_seed + static_cast<unsigned long long>(round);
            random_source rnd(seed);
            const auto power = [&](int low, int high)
            { return std::pow(10.0, std::uniform_real_distribution<double>(low, high)(rnd)); };
            const auto dimension = [&](double largest)
            {
                // small ones as often as large ones
                return static_cast<long long>(
                    std::pow(largest, std::uniform_real_distribution<double>(0, 1)(rnd)));
            };

            rms_norm_dims dims;
            do
            {
                dims = {dimension(100), dimension(600), dimension(100), dimension(3000)};
            } while (dims.size() > most);

            rms_norm_problem p = random_problem(rnd, all_axes[rnd() % 3], some_gain(rnd), dims);
            p.eps = rnd() % 4 == 0 ? smallest_eps : power(-12, 0);
            // s is at most 1e19, so that nothing in the range below overflows
            std::vector<float> sizes(number_of_groups(p));
            for (float& size : sizes)
                size = rnd() % 8 == 0 ? 0 : static_cast<float>(power(-20, 18));
            const auto d_size = static_cast<float>(power(-15, 6));
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    const float spike = rnd() % 100 == 0 ? 1000.0f : 1.0f;
                    p.src[i] *= sizes[at.group] * spike;
                    p.gradient_input[i] *= d_size;
                });

            try
            {
                check(b, p, rnd() % 4);
            }
            catch (std::exception& e)
            {
                throw dlib::error(std::string(e.what()) +
                    "\nto repeat it: RMS_NORM_SEED=" + std::to_string(seed));
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                   order and state
    // ----------------------------------------------------------------------------------------

    void the_last_group_alone_gives_gamma_grad(const rms_norm_backend& b)
    {
        random_source rnd(17);
        for (rms_norm_axes axes : all_axes)
        {
            for (long long count : {1, 2, 17, 255, 256, 257, 1000})
            {
                rms_norm_problem p = random_problem(
                    rnd, axes, all_gains[0], groups_of_size(axes, count, 45));
                const auto last = static_cast<std::size_t>(count - 1);
                for_each_value(p,
                    [&](std::size_t i, const rms_norm_place& at)
                    {
                        if (at.group != last)
                            p.gradient_input[i] = 0;
                    });
                const rms_norm_result r = check(b, p);
                for_each_value(p,
                    [&](std::size_t i, const rms_norm_place& at)
                    {
                        if (at.group != last)
                            return;
                        const double dg = static_cast<double>(p.gradient_input[i]) * p.src[i] *
                            r.scale[last];
                        DLIB_TEST_MSG(
                            std::abs(r.gamma_grad[at.gain] - dg) <= 0x1p-24 * std::abs(dg),
                            "gamma_grad[" << at.gain << "] is " << r.gamma_grad[at.gain]
                                          << ", should be " << dg << ", " << describe(p));
                    });
            }
        }
    }

    void forward_twice_changes_nothing(const rms_norm_backend& b)
    {
        random_source rnd(18);
        for (rms_norm_axes axes : all_axes)
        {
            const rms_norm_problem p = random_problem(rnd, axes, some_gain(rnd), {4, 5, 6, 7});
            rms_norm_result once, twice;
            run_forward(b, p, 0, once);
            run_gradient(b, p, 0, once);
            run_forward(b, p, 0, twice);
            run_forward(b, p, 0, twice);
            run_gradient(b, p, 0, twice);
            DLIB_TEST_MSG(same_bits(once, twice), describe(p));

            // outputs that have sizes and values from another problem
            const rms_norm_problem q = random_problem(rnd, axes, some_gain(rnd), {7, 3, 6, 9});
            dlib::resizable_tensor dest, scale, dscale;
            for (const rms_norm_problem* now : {&q, &p})
            {
                guarded_tensor src(now->dims, 0, now->src);
                guarded_tensor gamma(gamma_shape(*now), 0, now->gamma);
                guarded_tensor gradient(now->dims, 0, now->gradient_input);
                guarded_tensor gamma_grad(gamma_shape(*now), 0);
                dlib::alias_tensor_instance out = gradient.get();
                dlib::alias_tensor_instance gamma_out = gamma_grad.get();
                b.forward(
                    now->axes, now->gain_offset, now->eps, dest, scale, src.get(), gamma.get());
                b.gradient(now->axes, now->gain_offset, out, scale, src.get(), gamma.get(), out,
                    gamma_out, dscale);
                const rms_norm_result reused = {values_of(dest), values_of(scale),
                    gradient.values(), gamma_grad.values(), values_of(dscale)};
                check_answer(reused, exact_rms_norm(*now), *now);
            }
        }
    }

    void dest_can_have_the_memory_of_src(const rms_norm_backend& b)
    {
        random_source rnd(29);
        for (rms_norm_axes axes : all_axes)
        {
            const rms_norm_problem p = random_problem(rnd, axes, some_gain(rnd), {3, 5, 4, 7});
            const rms_norm_result expected = check(b, p);

            dlib::resizable_tensor dest(p.dims.num_samples, p.dims.k, p.dims.nr, p.dims.nc);
            std::copy(p.src.begin(), p.src.end(), dest.begin());
            const dlib::alias_tensor all(p.dims.num_samples, p.dims.k, p.dims.nr, p.dims.nc);
            dlib::alias_tensor_instance src = all(dest, 0);
            guarded_tensor gamma(gamma_shape(p), 0, p.gamma);
            dlib::resizable_tensor scale;
            b.forward(axes, p.gain_offset, p.eps, dest, scale, src, gamma.get());
            DLIB_TEST_MSG(same_bits(values_of(dest), expected.dest), describe(p));
        }
    }

    void twenty_runs_give_the_same_bits(const rms_norm_backend& b)
    {
        random_source rnd(19);
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = random_problem(rnd, axes, all_gains[0],
                b.is_fast ? rms_norm_dims{6, 64, 7, 97} : rms_norm_dims{3, 16, 4, 33});
            make_sums_cancel(rnd, p);
            const rms_norm_result first = check(b, p);
            for (int i = 1; i < 20; ++i)
                DLIB_TEST_MSG(same_bits(run(b, p), first), describe(p));
        }
    }

    void a_group_does_not_see_its_neighbours(const rms_norm_backend& b)
    {
        random_source rnd(20);
        for (rms_norm_axes axes : all_axes)
        {
            for (long long size : {13, 300})
            {
                const rms_norm_problem alone = random_problem(
                    rnd, axes, all_gains[0], groups_of_size(axes, 1, size));
                for (long long count : {2, 3, 255, 256, 257, 1024, 65536})
                {
                    if (count * size <= most_values(b))
                        check_group_among_others(b, rnd, alone, count);
                }
            }
        }
    }

    void forward_here_and_backward_there(const rms_norm_backend& here,
        const rms_norm_backend& there)
    {
        random_source rnd(21);
        for (rms_norm_axes axes : all_axes)
        {
            for (const kind_of_gain& gain : all_gains)
            {
                const rms_norm_problem p = random_problem(rnd, axes, gain, {3, 9, 5, 34});
                rms_norm_result result;
                run_forward(here, p, 0, result);
                run_gradient(there, p, 0, result);
                check_answer(result, exact_rms_norm(p), p);
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                                   error over many
    // ----------------------------------------------------------------------------------------

    void means_of_squares_from_1e_minus_30_to_1e30(const rms_norm_backend& b)
    {
        random_source rnd(22);
        const long long count = b.is_fast ? 100000 : 20000;
        for (double eps : {smallest_eps, 1e-5})
        {
            for (rms_norm_axes axes : {rms_norm_axes::row, rms_norm_axes::channel})
            {
                rms_norm_problem p = random_problem(
                    rnd, axes, all_gains[0], groups_of_size(axes, count, 3));
                p.eps = eps;
                p.gradient_input = random_values(rnd, p.src.size(), 1e-10);
                for_each_value(p,
                    [&](std::size_t i, const rms_norm_place& at)
                    {
                        const double part = static_cast<double>(at.group) /
                            static_cast<double>(count - 1);
                        p.src[i] *= static_cast<float>(std::pow(10, -15 + 30 * part));
                    });
                check(b, p);
            }
        }
    }

    void spikes(const rms_norm_backend& b)
    {
        random_source rnd(23);
        for (rms_norm_axes axes : all_axes)
        {
            for (double size : {1e-6, 1e-2, 1.0, 1e3, 1e8})
            {
                for (float spike : {1e2f, 1e4f, 1e10f})
                {
                    rms_norm_problem p = random_problem(
                        rnd, axes, some_gain(rnd), groups_of_size(axes, 4, 1500));
                    p.src = random_values(rnd, p.src.size(), size);
                    for (int i = 0; i < 5; ++i)
                    {
                        p.src[rnd() % p.src.size()] *= spike;
                        p.gradient_input[rnd() % p.src.size()] *= spike;
                    }
                    check(b, p);
                }
            }
        }
    }

    void gradients_that_cancel(const rms_norm_backend& b)
    /*!
        ensures
            - checks d that is proportional to x/g, where g*d and x*s*m cancel, and d that is
              orthogonal to it, where m does
    !*/
    {
        random_source rnd(24);
        for (rms_norm_axes axes : all_axes)
        {
            rms_norm_problem p = random_problem(
                rnd, axes, all_gains[0], groups_of_size(axes, 5, 600));
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                { p.gradient_input[i] = p.src[i] / p.gamma[at.gain]; });
            check(b, p);

            std::vector<long double> sums(number_of_groups(p));
            std::vector<std::size_t> last(sums.size());
            p.gradient_input = random_values(rnd, p.src.size());
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    sums[at.group] += static_cast<long double>(p.gamma[at.gain]) *
                        p.gradient_input[i] * p.src[i];
                    last[at.group] = i;
                });
            for_each_value(p,
                [&](std::size_t i, const rms_norm_place& at)
                {
                    if (i == last[at.group])
                        p.gradient_input[i] -= static_cast<float>(
                            sums[at.group] / p.gamma[at.gain] / p.src[i]);
                });
            check(b, p);
        }
    }

    void no_common_error_of_a_row(const rms_norm_backend& b)
    {
        random_source rnd(25);
        for (int scale = -10; scale <= 10; scale += 2)
        {
            rms_norm_problem p = random_problem(
                rnd, rms_norm_axes::row, all_gains[0], {1, 1, 4, 4096});
            p.src = random_values(rnd, p.src.size(), std::pow(10, scale));
            const rms_norm_result r = run(b, p);
            const rms_norm_answer exact = exact_rms_norm(p);
            for (std::size_t row = 0; row < 4; ++row)
            {
                long double sum = 0;
                for (std::size_t i = 4096 * row; i < 4096 * (row + 1); ++i)
                    sum += r.dest[i] / exact.dest[i].value - 1;
                DLIB_TEST_MSG(std::abs(sum / 4096) < 1e-7,
                    "row " << row << ": " << sum / 4096 << ", " << describe(p));
            }
        }
    }

    void chain_of_64_stays_close(const rms_norm_backend& b)
    /*!
        ensures
            - checks h = h + norm(h), 64 times, against the same in long double. The norm has the
              Lipschitz constant s*max|g|, so an error e of h grows to at most (1 + s*max|g|)*e,
              and a step adds 4*u*|y| and the rounding of the sum, u*|h|.
    !*/
    {
        random_source rnd(26);
        rms_norm_problem p = random_problem(rnd, rms_norm_axes::row, all_gains[0], {1, 1, 1, 512});
        p.src = random_values(rnd, p.src.size(), 8);
        std::vector<long double> h(p.src.begin(), p.src.end());
        long double bound = 0;

        const auto length = [](const std::vector<long double>& v)
        { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0L)); };

        for (int step = 0; step < 64; ++step)
        {
            p.gamma = random_values(rnd, p.gamma.size(), 1 / 24.);
            long double largest_gain = 0;
            for (float g : p.gamma)
                largest_gain = std::max(largest_gain, std::abs(static_cast<long double>(g)));

            rms_norm_result r;
            run_forward(b, p, 0, r);
            for (std::size_t i = 0; i < p.src.size(); ++i)
                p.src[i] += r.dest[i];

            const long double s = 1 / std::sqrt(length(h) * length(h) / 512 + p.eps);
            std::vector<long double> y(h.size());
            for (std::size_t i = 0; i < h.size(); ++i)
            {
                y[i] = h[i] * s * p.gamma[i];
                h[i] += y[i];
            }
            // 1.01: s between h and its float version, and terms of second order
            bound = (1 + 1.01L * s * largest_gain) * bound +
                1.01L * rounding::u * (4 * length(y) + length(h));

            std::vector<long double> error(h.size());
            for (std::size_t i = 0; i < h.size(); ++i)
                error[i] = p.src[i] - h[i];
            DLIB_TEST_MSG(
                length(error) <= bound, "step " << step << ": " << length(error) << " > " << bound);
        }
    }

    // ----------------------------------------------------------------------------------------
    //                       the same bits from every instruction set
    // ----------------------------------------------------------------------------------------

#ifdef DLIB_RMS_NORM_HAVE_SIMD
    void every_instruction_set_gives_the_same_bits(const rms_norm_backend& b)
    {
        std::vector<rms_norm_problem> problems;
        if (!is_sanitized)
            problems = problems_that_show_the_order();
        std::vector<long long> sizes = {1500, 4099};
        for (long long size = 1; size <= 67; ++size)
            sizes.push_back(size);
        random_source rnd(28);
        for (rms_norm_axes axes : all_axes)
        {
            for (long long size : sizes)
            {
                problems.push_back(
                    random_problem(rnd, axes, all_gains[size % 5], groups_of_size(axes, 3, size)));
                make_sums_cancel(rnd, problems.back());
            }
        }

        const std::uint64_t expected = hash_of(b, problems, true);
        const int num_targets = for_each_instruction_set(
            [&](const char* name)
            {
                DLIB_TEST_MSG(hash_of(b, problems, true) == expected, "with " << name);
                for (std::size_t i = 0; i < problems.size(); i += 7)
                    check(b, problems[i]);
            });
        DLIB_TEST(num_targets > 0);
    }
#endif

    // ----------------------------------------------------------------------------------------

    class rms_norm_formula_tester : public tester
    {
    public:
        rms_norm_formula_tester() :
            tester("rms_norm_formula",
                "Run tests on known values, the formula and the range of floats.")
        {
        }

        void perform_test() override
        {
            for (const rms_norm_backend& b : rms_norm_backends())
            {
                run_cases(b,
                    {NAMED_CASE(golden_values), NAMED_CASE(golden_values_in_place),
                        NAMED_CASE(every_channel_has_its_gamma),
                        NAMED_CASE(central_differences_agree),
                        NAMED_CASE(eps_is_inside_of_the_root), NAMED_CASE(no_mean_is_removed),
                        NAMED_CASE(eps_is_the_given_one_on_every_path),
                        NAMED_CASE(offset_is_in_both_directions),
                        NAMED_CASE(rows_are_normalized_each_by_itself),
                        NAMED_CASE(earlier_tokens_do_not_see_the_last_one),
                        NAMED_CASE(scale_is_one_over_the_rms),
                        NAMED_CASE(roundings_come_in_the_promised_order),
                        NAMED_CASE(squares_do_not_overflow),
                        NAMED_CASE(cube_of_s_does_not_underflow), NAMED_CASE(zeros_give_zeros),
                        NAMED_CASE(groups_of_one_value),
                        NAMED_CASE(bad_numbers_stay_in_their_group),
                        NAMED_CASE(smallest_eps_with_tiny_values)});
            }
        }
    } a_rms_norm_formula_tester;

    class rms_norm_functions_tester : public tester
    {
    public:
        rms_norm_functions_tester() :
            tester("rms_norm_functions",
                "Run tests on rms_normalize() and rms_normalize_gradient().")
        {
        }

        void perform_test() override
        {
            RUN_CASE(indices_beyond_32_bits());
            for (const rms_norm_backend& b : rms_norm_backends())
                test_backend(b);

            for (const rms_norm_backend& here : rms_norm_backends())
            {
                for (const rms_norm_backend& there : rms_norm_backends())
                {
                    if (here.name != there.name)
                    {
                        run_case("forward on " + here.name + " and backward on " + there.name,
                            [&]() { forward_here_and_backward_there(here, there); });
                    }
                }
            }
        }

    private:
        static void test_backend(const rms_norm_backend& b)
        {
            run_cases(b,
                {NAMED_CASE(all_group_sizes), NAMED_CASE(all_group_counts),
                    NAMED_CASE(all_image_sizes), NAMED_CASE(shapes_of_real_nets),
                    NAMED_CASE(empty_tensors), NAMED_CASE(every_alignment_gives_the_same_bits),
                    NAMED_CASE(groups_of_very_unlike_size), NAMED_CASE(fuzz),
                    NAMED_CASE(the_last_group_alone_gives_gamma_grad),
                    NAMED_CASE(forward_twice_changes_nothing),
                    NAMED_CASE(dest_can_have_the_memory_of_src),
                    NAMED_CASE(twenty_runs_give_the_same_bits),
                    NAMED_CASE(a_group_does_not_see_its_neighbours),
                    NAMED_CASE(means_of_squares_from_1e_minus_30_to_1e30), NAMED_CASE(spikes),
                    NAMED_CASE(gradients_that_cancel), NAMED_CASE(no_common_error_of_a_row),
                    NAMED_CASE(chain_of_64_stays_close)});

            sizes_beyond_32_bits(b);

#ifdef DLIB_RMS_NORM_HAVE_SIMD
            if (b.uses_simd)
                run_cases(b, {NAMED_CASE(every_instruction_set_gives_the_same_bits)});
#endif
        }
    } a_rms_norm_functions_tester;

    // ----------------------------------------------------------------------------------------

}
