// License: Boost Software License   See LICENSE.txt for the full license.

// How the CPU shares its work out, tested as what it is: functions of the sizes. And that a
// group which is cut into blocks because it is alone gives the bits of one that is not.

#include <algorithm>
#include <vector>
#include <dlib/cuda/rms_norm_cpu_plan.h>
#include <dlib/cuda/rms_norm_tools.h>
#include <dlib/rand.h>
#include "test_cases.h"

namespace
{
    using namespace test;
    using namespace dlib::contrib;
    using namespace dlib::contrib::cpu;

    // ----------------------------------------------------------------------------------------

    rms_norm_groups groups_of(long long blocks, long long size, long long stride, long long run)
    {
        rms_norm_groups g;
        g.outer = blocks;
        g.size = size;
        g.stride = stride;
        g.gain_run = run;
        g.num_gains = size / run;
        return g;
    }

    std::vector<rms_norm_groups> many_groups()
    {
        std::vector<rms_norm_groups> all;
        const auto few = static_cast<long long>(rms_norm_few_groups);
        const auto block = static_cast<long long>(rms_norm_segment);
        for (long long blocks : {1LL, 2LL, few - 1, few, few + 1, 1000LL, 65537LL})
        {
            for (long long size : {1LL, 3LL, 64LL, 4096LL, block - 1, block, block + 1,
                     2 * block - 1, 2 * block, 2 * block + 1, 100000000LL})
            {
                for (long long stride : {1LL, 2LL, 49LL, 511LL, 512LL, 4096LL, 4097LL, 50176LL})
                    all.push_back(groups_of(blocks, size, stride, 1));
                if (size % 64 == 0)
                    all.push_back(groups_of(blocks, size, 1, 64));
            }
        }
        return all;
    }

    void check_that_items_are_shared_out(const rms_norm_cpu_plan& plan, std::size_t most_tasks)
    {
        DLIB_TEST(plan.items > 0);
        DLIB_TEST(plan.items_per_task > 0);
        if (plan.way != rms_norm_cpu_plan::segments)
            DLIB_TEST(plan.tasks <= most_tasks);
        // The last task has something to do, and nothing is left after it.
        DLIB_TEST((plan.tasks - 1) * plan.items_per_task < plan.items);
        DLIB_TEST(plan.tasks * plan.items_per_task >= plan.items);
    }

    void check_that_items_cover_all(const rms_norm_cpu_plan& plan, const rms_norm_groups& groups)
    {
        const auto size = static_cast<std::size_t>(groups.size);
        const auto stride = static_cast<std::size_t>(groups.stride);
        const auto blocks = static_cast<std::size_t>(groups.outer);
        if (plan.way == rms_norm_cpu_plan::tiles)
        {
            DLIB_TEST(stride > 1);
            DLIB_TEST(plan.tile_width > 0 && plan.tile_width % 16 == 0);
            DLIB_TEST(plan.items % blocks == 0);
            const std::size_t tiles = plan.items / blocks;
            DLIB_TEST((tiles - 1) * plan.tile_width < stride);
            DLIB_TEST(tiles * plan.tile_width >= stride);
        }
        else if (plan.way == rms_norm_cpu_plan::segments)
        {
            DLIB_TEST(stride == 1 && blocks < rms_norm_few_groups);
            DLIB_TEST((plan.items - 1) * rms_norm_segment < size);
            DLIB_TEST(plan.items * rms_norm_segment >= size);
        }
        else
        {
            DLIB_TEST(stride == 1 && plan.items == blocks);
        }
    }

    void every_item_is_in_one_task()
    {
        for (const rms_norm_groups& groups : many_groups())
        {
            const rms_norm_cpu_plan forward = plan_rms_normalize(groups);
            const rms_norm_cpu_plan backward = plan_rms_normalize_gradient(groups);
            check_that_items_are_shared_out(forward, rms_norm_max_tasks);
            check_that_items_are_shared_out(backward, rms_norm_max_gradient_tasks);
            check_that_items_cover_all(forward, groups);
            check_that_items_cover_all(backward, groups);
        }
    }

    void sums_of_gains_are_small_beside_the_tensors()
    {
        for (const rms_norm_groups& groups : many_groups())
        {
            const rms_norm_cpu_plan plan = plan_rms_normalize_gradient(groups);
            if (plan.way == rms_norm_cpu_plan::segments || plan.tasks == 1)
                continue;
            const auto partial = plan.tasks * static_cast<std::size_t>(groups.num_gains);
            DLIB_TEST(partial * sizeof(double) <=
                static_cast<std::size_t>(groups.num_values()) * sizeof(float) / 2);
        }
    }

    void few_long_groups_are_cut()
    {
        const auto few = static_cast<long long>(rms_norm_few_groups);
        const auto block = static_cast<long long>(rms_norm_segment);
        const auto way = [](long long count, long long size)
        { return plan_rms_normalize(groups_of(count, size, 1, 1)).way; };
        DLIB_TEST(way(few - 1, 2 * block) == rms_norm_cpu_plan::segments);
        DLIB_TEST(way(few, 2 * block) == rms_norm_cpu_plan::rows);
        DLIB_TEST(way(few - 1, 2 * block - 1) == rms_norm_cpu_plan::rows);
    }

    void thresholds_are_where_they_are_said_to_be()
    {
        const auto plan = [](long long size, long long stride, long long run)
        { return plan_rms_normalize(groups_of(1, size, stride, run)); };
        DLIB_TEST(!plan(65535, 1, 1).threaded);
        DLIB_TEST(plan(65536, 1, 1).threaded);
        DLIB_TEST(!plan(5, 13107, 1).threaded);
        const auto streamed = static_cast<long long>(rms_norm_min_streamed_values);
        DLIB_TEST(!plan(streamed - 1, 1, 1).streams);
        DLIB_TEST(plan(streamed, 1, 1).streams);
        DLIB_TEST(!plan(15, 1, 1).spreads_gains);
        DLIB_TEST(plan(30, 1, 15).spreads_gains);
        DLIB_TEST(!plan(3136, 1, 3136).spreads_gains);
    }

    // ----------------------------------------------------------------------------------------

    void fill(dlib::tensor& t, dlib::rand& rnd)
    {
        for (float& value : t)
            value = static_cast<float>(rnd.get_random_gaussian());
    }

    void check_group_alone_and_among(rms_norm_axes axes, const rms_norm_dims& one)
    /*!
        ensures
            - checks that the last of rms_norm_few_groups groups gives the bits that it gives
              alone. Gamma's gradient is that of a d which is 0 in the other groups.
    !*/
    {
        const auto count = static_cast<long long>(rms_norm_few_groups);
        dlib::rand rnd(1);
        const rms_norm_dims g = rms_norm_gamma_dims(axes, rms_norm_gain::per_channel, one);
        dlib::resizable_tensor x(one.num_samples, one.k, one.nr, one.nc), d, dx, gamma, dg;
        d.copy_size(x);
        dx.copy_size(x);
        gamma.set_size(g.num_samples, g.k, g.nr, g.nc);
        dg.copy_size(gamma);
        fill(x, rnd);
        fill(d, rnd);
        fill(gamma, rnd);
        dx = 0;

        dlib::resizable_tensor y, s, m;
        cpu::rms_normalize(axes, 0.5, 1e-5, y, s, x, gamma);
        cpu::rms_normalize_gradient(axes, 0.5, d, s, x, gamma, dx, dg, m);

        dlib::resizable_tensor xs(count, one.k, one.nr, one.nc), ds, dxs, dgs, ys, ss, ms;
        ds.copy_size(xs);
        dxs.copy_size(xs);
        dgs.copy_size(gamma);
        fill(xs, rnd);
        ds = 0;
        dxs = 0;
        const std::size_t last = xs.size() - x.size();
        std::copy(x.begin(), x.end(), xs.host() + last);
        std::copy(d.begin(), d.end(), ds.host() + last);
        cpu::rms_normalize(axes, 0.5, 1e-5, ys, ss, xs, gamma);
        cpu::rms_normalize_gradient(axes, 0.5, ds, ss, xs, gamma, dxs, dgs, ms);

        DLIB_TEST(std::equal(y.begin(), y.end(), ys.host() + last));
        DLIB_TEST(std::equal(s.begin(), s.end(), ss.host() + ss.size() - s.size()));
        DLIB_TEST(std::equal(m.begin(), m.end(), ms.host() + ms.size() - m.size()));
        DLIB_TEST(std::equal(dx.begin(), dx.end(), dxs.host() + last));
        DLIB_TEST(std::equal(dg.begin(), dg.end(), dgs.begin()));
    }

    void cut_groups_give_the_bits_of_whole_ones()
    {
        check_group_alone_and_among(rms_norm_axes::row, {1, 1, 1, 131072});
        check_group_alone_and_among(rms_norm_axes::row, {1, 1, 1, 150001});
        check_group_alone_and_among(rms_norm_axes::sample, {1, 2, 1, 70001});
        check_group_alone_and_among(rms_norm_axes::sample, {1, 2689, 7, 7});
        check_group_alone_and_among(rms_norm_axes::sample, {1, 45000, 1, 3});
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_cpu_plan_tester : public tester
    {
    public:
        rms_norm_cpu_plan_tester() :
            tester("rms_norm_cpu_plan", "Run tests on how the CPU shares RMS normalization out.")
        {
        }

        void perform_test() override
        {
            run_case("every_item_is_in_one_task", every_item_is_in_one_task);
            run_case("sums_of_gains_are_small_beside_the_tensors",
                sums_of_gains_are_small_beside_the_tensors);
            run_case("few_long_groups_are_cut", few_long_groups_are_cut);
            run_case("thresholds_are_where_they_are_said_to_be",
                thresholds_are_where_they_are_said_to_be);
            run_case(
                "cut_groups_give_the_bits_of_whole_ones", cut_groups_give_the_bits_of_whole_ones);
        }
    } a_rms_norm_cpu_plan_tester;
}
