// License: Boost Software License   See LICENSE.txt for the full license.

// How the CPU shares its work out, tested as what it is: functions of the sizes. And that a
// group which is cut into segments because it is alone gives the bits of one that is not.

#include <set>
#include <vector>
#include <dlib/cuda/rms_norm_cpu_plan.h>
#include "rms_norm_order.h"

namespace
{
    using namespace test;
    using namespace dlib::contrib;
    using namespace dlib::contrib::cpu;

    // ----------------------------------------------------------------------------------------

    rms_norm_groups groups_of(long long outer, long long size, long long stride, long long run)
    {
        rms_norm_groups g;
        g.outer = outer;
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
        const auto segment = static_cast<long long>(rms_norm_segment);
        for (long long outer : {1LL, 2LL, few - 1, few, few + 1, 1000LL, 65537LL})
        {
            for (long long size : {1LL, 3LL, 64LL, 4096LL, segment - 1, segment, segment + 1,
                     2 * segment - 1, 2 * segment, 2 * segment + 1, 100000000LL})
            {
                for (long long stride : {1LL, 2LL, 49LL, 511LL, 512LL, 4096LL, 4097LL, 50176LL})
                    all.push_back(groups_of(outer, size, stride, 1));
                if (size % 64 == 0)
                    all.push_back(groups_of(outer, size, 1, 64));
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
        const auto outer = static_cast<std::size_t>(groups.outer);
        if (plan.way == rms_norm_cpu_plan::tiles)
        {
            DLIB_TEST(stride > 1);
            DLIB_TEST(plan.tile_width > 0 && plan.tile_width % rms_norm_lanes == 0);
            DLIB_TEST(plan.items % outer == 0);
            const std::size_t tiles = plan.items / outer;
            DLIB_TEST((tiles - 1) * plan.tile_width < stride);
            DLIB_TEST(tiles * plan.tile_width >= stride);
        }
        else if (plan.way == rms_norm_cpu_plan::segments)
        {
            DLIB_TEST(stride == 1 && outer < rms_norm_few_groups);
            DLIB_TEST((plan.items - 1) * rms_norm_segment < size);
            DLIB_TEST(plan.items * rms_norm_segment >= size);
        }
        else
        {
            DLIB_TEST(stride == 1 && plan.items == outer);
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

    void scratch_is_small_beside_the_tensors()
    /*!
        ensures
            - checks that what tasks have beyond that of the first is at most half of a tensor, the
              sums of the gains as well as the lanes of tiles
    !*/
    {
        for (const rms_norm_groups& groups : many_groups())
        {
            const std::size_t half = static_cast<std::size_t>(groups.num_values()) * sizeof(float) /
                2;
            const rms_norm_cpu_plan forward = plan_rms_normalize(groups);
            const rms_norm_cpu_plan backward = plan_rms_normalize_gradient(groups);
            for (const rms_norm_cpu_plan& plan : {forward, backward})
            {
                DLIB_TEST(
                    (plan.tasks - 1) * tile_workspace(plan.tile_width) * sizeof(double) <= half);
            }
            if (backward.way != rms_norm_cpu_plan::segments)
            {
                DLIB_TEST((backward.tasks - 1) * static_cast<std::size_t>(groups.num_gains) *
                        sizeof(double) <=
                    half);
            }
        }
    }

    void large_passes_are_shared_out_evenly()
    /*!
        ensures
            - checks that a pass over many values has threads and none of its tasks more than
              an eighth of the items, if each has several and the sums of the gains are not too
              large for that; and that a small pass wakes no thread
    !*/
    {
        for (const rms_norm_groups& groups : many_groups())
        {
            const auto values = static_cast<std::size_t>(groups.num_values());
            for (const rms_norm_cpu_plan& plan :
                {plan_rms_normalize(groups), plan_rms_normalize_gradient(groups)})
            {
                if (values < 16384)
                    DLIB_TEST(!plan.threaded || plan.tasks == 1);
                if (values < (1 << 22))
                    continue;
                DLIB_TEST(plan.threaded);
                const bool has_large_sums = groups.num_gains * 1000 > groups.num_values();
                DLIB_TEST(has_large_sums || plan.items_per_task == 1 ||
                    plan.items_per_task * 8 <= plan.items + 7);
            }
        }
    }

    void problems_that_show_the_order_have_threads()
    /*!
        ensures
            - checks that they are shared out to threads in every way, in both directions
    !*/
    {
        std::set<rms_norm_cpu_plan::way_type> forward, backward;
        for (const rms_norm_problem& p : problems_that_show_the_order())
        {
            rms_norm_groups groups;
            DLIB_TEST(make_rms_norm_groups(p.axes, p.dims, gamma_shape(p), groups));
            const rms_norm_cpu_plan f = plan_rms_normalize(groups);
            const rms_norm_cpu_plan b = plan_rms_normalize_gradient(groups);
            if (f.threaded && f.tasks > 1)
                forward.insert(f.way);
            if (b.threaded && b.tasks > 1)
                backward.insert(b.way);
        }
        DLIB_TEST(forward.size() == 3 && backward.size() == 3);
    }

    // ----------------------------------------------------------------------------------------

    void cut_groups_give_the_bits_of_whole_ones()
    {
        const rms_norm_backend& b = rms_norm_backends().front();
        random_source rnd(1);
        const std::pair<rms_norm_axes, rms_norm_dims> all[] = {
            {rms_norm_axes::row, {1, 1, 1, 131072}}, {rms_norm_axes::row, {1, 1, 1, 150001}},
            {rms_norm_axes::sample, {1, 2, 1, 70001}}, {rms_norm_axes::sample, {1, 2690, 7, 7}},
            {rms_norm_axes::sample, {1, 45000, 1, 3}}};
        for (const auto& [axes, dims] : all)
        {
            rms_norm_problem alone = random_problem(rnd, axes, rms_norm_gain::per_channel, dims);
            alone.gain_offset = 0.5;
            check_group_among_others(b, rnd, alone, rms_norm_few_groups);
            make_sums_cancel(rnd, alone);
            check_group_among_others(b, rnd, alone, rms_norm_few_groups, false);
        }
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
            RUN_CASE(every_item_is_in_one_task());
            RUN_CASE(scratch_is_small_beside_the_tensors());
            RUN_CASE(large_passes_are_shared_out_evenly());
            RUN_CASE(problems_that_show_the_order_have_threads());
            RUN_CASE(cut_groups_give_the_bits_of_whole_ones());
        }
    } a_rms_norm_cpu_plan_tester;
}
