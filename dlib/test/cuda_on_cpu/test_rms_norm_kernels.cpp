// License: Boost Software License   See LICENSE.txt for the full license.

// What can be tested of the CUDA kernels and no other implementation: the choice of a kernel,
// each kernel around the sizes where that choice changes, how often memory is read, offsets
// beyond 32 bits, errors of the runtime. Runs on the CPU.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../rms_norm_runs.h"
#include "device_on_cpu.h"
#include "kernels_on_cpu.h"

namespace
{
    using namespace test;
    using namespace dlib::contrib;
    using namespace cuda_on_cpu;
    using kernels::rms_norm_backward_plan;
    using kernels::rms_norm_device;
    using kernels::rms_norm_forward_plan;
    using kernels::rms_norm_kernel;
    using kernels::rms_norm_launch;

    const float nan_value = std::numeric_limits<float>::quiet_NaN();

    // ----------------------------------------------------------------------------------------
    //                                  running kernels
    // ----------------------------------------------------------------------------------------

    struct traffic
    {
        std::uint64_t read = 0;
        std::uint64_t written = 0;
        std::uint64_t sectors = 0;
    };

    traffic counts_of(const std::unique_ptr<global_buffer>& b)
    {
        return b ? traffic{b->bytes_read(), b->bytes_written(), b->sectors()} : traffic();
    }

    // The least and the most shared memory that a block of a GPU can have.
    const std::size_t least_shared_bytes = 48 * 1024;
    const std::size_t most_shared_bytes = 227 * 1024;

    rms_norm_device device_with(std::size_t shared_bytes)
    {
        rms_norm_device device;
        device.shared_bytes_per_block = shared_bytes;
        return device;
    }

    class device_floats
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Global memory for some floats that begins `shift` floats after a sector.
        !*/
    public:
        device_floats(const char* name,
            const std::vector<float>& values,
            std::size_t shift,
            access allowed) :
            size(values.size()),
            memory((values.size() + shift) / 8 + 1),
            begin(memory[0].values + shift)
        {
            std::copy(values.begin(), values.end(), begin);
            if (size != 0)
            {
                visible = std::make_unique<global_buffer>(
                    name, begin, size * sizeof(float), allowed);
            }
        }

        float* get() { return size == 0 ? nullptr : begin; }
        std::vector<float> values() const { return std::vector<float>(begin, begin + size); }
        traffic counts() const { return counts_of(visible); }

    private:
        struct alignas(32) sector
        {
            float values[8];
        };

        std::size_t size;
        std::vector<sector> memory;
        float* begin;
        std::unique_ptr<global_buffer> visible;
    };

    class device_workspace
    {
    public:
        explicit device_workspace(std::size_t bytes) :
            memory((bytes + sizeof(double) - 1) / sizeof(double), std::nan(""))
        {
            if (bytes != 0)
            {
                visible = std::make_unique<global_buffer>(
                    "workspace", memory.data(), bytes, access::read_write);
            }
        }

        void* get() { return memory.empty() ? nullptr : memory.data(); }
        const std::vector<double>& values() const { return memory; }
        traffic counts() const { return counts_of(visible); }

    private:
        std::vector<double> memory;
        std::unique_ptr<global_buffer> visible;
    };

    struct setup
    {
        rms_norm_device device = device_with(most_shared_bytes);
        cudaStream_t stream = nullptr;
        bool in_place = false;
        // of each array: how many floats it begins after a sector
        std::size_t src = 0;
        std::size_t gamma = 0;
        std::size_t dest = 0;
        std::size_t gradient_input = 0;
        std::size_t src_grad = 0;
    };

    struct run_result
    {
        rms_norm_result numbers;
        std::vector<double> sums; // the workspace
        cudaError_t error = cudaSuccess;
        traffic src, dest, scale, gamma;
        traffic gradient_input, src_grad, gamma_grad, dscale;
        traffic workspace;
    };

    rms_norm_groups groups_of(const rms_norm_problem& p)
    {
        rms_norm_groups groups;
        DLIB_TEST(make_rms_norm_groups(p.axes, p.dims, gamma_shape(p), groups));
        return groups;
    }

    std::vector<float> nans(std::size_t size) { return std::vector<float>(size, nan_value); }

    run_result run_forward(const rms_norm_problem& p, const setup& s)
    {
        const rms_norm_groups groups = groups_of(p);
        device_floats dest(
            "dest", s.in_place ? p.src : nans(p.src.size()), s.dest, access::read_write);
        device_floats src(
            "src", s.in_place ? std::vector<float>() : p.src, s.src, access::read_only);
        device_floats gamma("gamma", p.gamma, s.gamma, access::read_only);
        device_floats scale("scale", nans(number_of_groups(p)), 0, access::read_write);

        rms_norm_forward<float> pass;
        pass.groups = groups;
        pass.eps = p.eps;
        pass.gain_offset = static_cast<float>(p.gain_offset);
        pass.x = s.in_place ? dest.get() : src.get();
        pass.gamma = gamma.get();
        pass.y = dest.get();
        pass.scale = scale.get();
        const auto plan = kernels::plan_rms_normalize(groups, kernels::is_aligned(pass), s.device);
        device_workspace workspace(plan.workspace_bytes);

        run_result r;
        r.error = kernels::launch_rms_normalize(pass, plan, workspace.get(), s.stream);
        r.numbers.dest = dest.values();
        r.numbers.scale = scale.values();
        r.sums = workspace.values();
        r.src = src.counts();
        r.dest = dest.counts();
        r.scale = scale.counts();
        r.gamma = gamma.counts();
        r.workspace = workspace.counts();
        return r;
    }

    run_result
    run_gradient(const rms_norm_problem& p, const std::vector<float>& scale_values, const setup& s)
    /*!
        ensures
            - src_grad of the result is as assigned if s.in_place, else with what it is added to
    !*/
    {
        const rms_norm_groups groups = groups_of(p);
        device_floats src_grad("src_grad", s.in_place ? p.gradient_input : p.old_src_grad,
            s.src_grad, access::read_write);
        device_floats gradient_input("gradient_input",
            s.in_place ? std::vector<float>() : p.gradient_input, s.gradient_input,
            access::read_only);
        device_floats src("src", p.src, s.src, access::read_only);
        device_floats gamma("gamma", p.gamma, s.gamma, access::read_only);
        device_floats scale("scale", scale_values, 0, access::read_only);
        device_floats gamma_grad("gamma_grad", nans(p.gamma.size()), 0, access::read_write);
        device_floats dscale("dscale", nans(scale_values.size()), 0, access::read_write);

        rms_norm_backward<float> pass;
        pass.groups = groups;
        pass.gain_offset = static_cast<float>(p.gain_offset);
        pass.d = s.in_place ? src_grad.get() : gradient_input.get();
        pass.x = src.get();
        pass.gamma = gamma.get();
        pass.scale = scale.get();
        pass.dx = src_grad.get();
        pass.add = !s.in_place;
        pass.dgamma = gamma_grad.get();
        pass.dscale = dscale.get();
        const auto plan = kernels::plan_rms_normalize_gradient(
            groups, kernels::is_aligned(pass), s.device);
        device_workspace workspace(plan.workspace_bytes);

        run_result r;
        r.error = kernels::launch_rms_normalize_gradient(pass, plan, workspace.get(), s.stream);
        r.numbers.src_grad = src_grad.values();
        r.numbers.gamma_grad = gamma_grad.values();
        r.numbers.dscale = dscale.values();
        r.sums = workspace.values();
        r.src = src.counts();
        r.gamma = gamma.counts();
        r.gradient_input = gradient_input.counts();
        r.src_grad = src_grad.counts();
        r.gamma_grad = gamma_grad.counts();
        r.dscale = dscale.counts();
        r.workspace = workspace.counts();
        return r;
    }

    rms_norm_result run_both(const rms_norm_problem& p, setup s)
    /*!
        ensures
            - returns all outputs, those of in-place calls. Checks that other calls give the same.
    !*/
    {
        s.in_place = true;
        rms_norm_result r = run_forward(p, s).numbers;
        const rms_norm_result gradient = run_gradient(p, r.scale, s).numbers;
        r.src_grad = gradient.src_grad;
        r.gamma_grad = gradient.gamma_grad;
        r.dscale = gradient.dscale;

        s.in_place = false;
        rms_norm_result apart = run_forward(p, s).numbers;
        const rms_norm_result added = run_gradient(p, r.scale, s).numbers;
        apart.src_grad = r.src_grad;
        apart.gamma_grad = added.gamma_grad;
        apart.dscale = added.dscale;
        DLIB_TEST_MSG(same_bits(apart, r), "in place the numbers are others, " << describe(p));
        for (std::size_t i = 0; i < p.src.size(); ++i)
        {
            const float sum = p.old_src_grad[i] + r.src_grad[i];
            if (added.src_grad[i] != sum)
            {
                DLIB_TEST_MSG(false,
                    "src_grad[" << i << "] is " << added.src_grad[i] << " instead of " << sum
                                << ", " << describe(p));
            }
        }
        return r;
    }

    // ----------------------------------------------------------------------------------------
    //                                     shapes
    // ----------------------------------------------------------------------------------------

    enum class layout
    {
        plain,      // a contiguous group without gains
        gains,      // a contiguous group, one gain for each value
        runs,       // a contiguous group of 3 runs that share a gain
        short_runs, // a contiguous group of runs of 61 values that share a gain
        columns     // interleaved groups
    };

    const layout all_layouts[] = {layout::plain, layout::gains, layout::runs, layout::columns};

    long long number_of_runs(layout kind, long long size)
    {
        return kind == layout::runs ? 3 : kind == layout::short_runs ? size / 61 : 1;
    }

    rms_norm_groups make_groups(layout kind, long long num_groups, long long size)
    {
        rms_norm_groups g;
        g.outer = num_groups;
        g.size = size;
        if (kind != layout::plain)
            g.num_gains = size;
        if (kind == layout::runs || kind == layout::short_runs)
        {
            g.num_gains = number_of_runs(kind, size);
            g.gain_run = size / g.num_gains;
        }
        if (kind == layout::columns)
        {
            g.stride = num_groups;
            g.interleaved = true;
            g.outer = 1;
        }
        return g;
    }

    bool is_a_shape(layout kind, long long size)
    {
        return kind != layout::runs || (size % 3 == 0 && size > 3);
    }

    rms_norm_problem
    make_problem(random_source& rnd, layout kind, long long num_groups, long long size)
    /*!
        ensures
            - returns a problem such that groups_of() gives make_groups(kind, num_groups, size),
              except that interleaved groups come in several blocks if they can.
    !*/
    {
        rms_norm_axes axes = rms_norm_axes::row;
        rms_norm_gain gain = rms_norm_gain::per_channel;
        rms_norm_dims dims = {num_groups, 1, 1, size};
        if (kind == layout::plain)
        {
            gain = rms_norm_gain::none;
        }
        else if (kind == layout::runs || kind == layout::short_runs)
        {
            const long long runs = number_of_runs(kind, size);
            axes = rms_norm_axes::sample;
            dims = {num_groups, runs, 1, size / runs};
        }
        else if (kind == layout::columns)
        {
            axes = rms_norm_axes::channel;
            dims = num_groups % 2 == 0 ? rms_norm_dims{2, size, 1, num_groups / 2}
                                       : rms_norm_dims{1, size, num_groups, 1};
        }
        rms_norm_problem p = random_problem(rnd, axes, gain, dims);
        p.gain_offset = gain == rms_norm_gain::none ? 0 : 0.5;
        return p;
    }

    template <typename key_of_size>
    std::vector<long long> last_sizes_before_changes(long long limit, const key_of_size& key)
    /*!
        ensures
            - returns all sizes below limit whose next size has another key
    !*/
    {
        std::vector<long long> sizes;
        for (long long size = 1; size < limit; ++size)
        {
            if (key(size) != key(size + 1))
                sizes.push_back(size);
        }
        return sizes;
    }

    // Larger than every size at which the choice of a kernel changes.
    const long long largest_threshold = 70000;

    std::set<long long> sizes_around_thresholds(layout kind, const rms_norm_device& device)
    /*!
        ensures
            - returns one size below, one at and one above each size where another variant of a
              kernel takes over, and the first above it that is a multiple of four.
    !*/
    {
        // Runs change variants with their own length, which is a third of the size.
        const long long unit = kind == layout::runs ? 3 : 1;
        std::set<long long> sizes;
        const auto add = [&](const std::vector<long long>& thresholds)
        {
            for (const long long t : thresholds)
            {
                for (const long long n : {t - 1, t, t + 1, t / 4 * 4 + 4})
                {
                    if (n > 0)
                        sizes.insert(unit * n);
                }
            }
        };
        add(last_sizes_before_changes(largest_threshold / unit,
            [&](long long n)
            {
                const rms_norm_forward_plan p = kernels::plan_rms_normalize(
                    make_groups(kind, 8, unit * n), true, device);
                return std::make_tuple(p.kernel, p.values, std::min(p.lanes, 33), p.parts.lanes);
            }));
        add(last_sizes_before_changes(largest_threshold / unit,
            [&](long long n)
            {
                const rms_norm_backward_plan p = kernels::plan_rms_normalize_gradient(
                    make_groups(kind, 8, unit * n), true, device);
                return std::make_tuple(
                    p.kernel, p.values, std::min(p.lanes, 33), p.parts.lanes, p.sums_in_shared);
            }));
        return sizes;
    }

    long long some_groups(layout kind, long long size)
    {
        if (kind == layout::columns)
            return size <= 300 ? 42 : 34;
        return size <= 600 ? 19 : 2;
    }

    // ----------------------------------------------------------------------------------------
    //                                     plans
    // ----------------------------------------------------------------------------------------

    template <typename plan_type>
    bool is_on_chip(const plan_type& plan)
    {
        return plan.kernel == rms_norm_kernel::rows || plan.kernel == rms_norm_kernel::run_rows ||
            plan.kernel == rms_norm_kernel::columns;
    }

    const rms_norm_launch& main_launch(const rms_norm_forward_plan& plan) { return plan.normalize; }
    const rms_norm_launch& main_launch(const rms_norm_backward_plan& plan) { return plan.gradient; }

    template <typename plan_type>
    long long plan_lanes(const plan_type& plan, const rms_norm_groups& groups)
    /*!
        ensures
            - returns how many threads of a block share one group (or, of run_rows, one run)
    !*/
    {
        return groups.interleaved ? main_launch(plan).threads / 32 : plan.lanes;
    }

    long long groups_per_round(const rms_norm_backward_plan& plan, const rms_norm_groups& groups)
    {
        if (groups.interleaved)
            return 32;
        return plan.kernel == rms_norm_kernel::rows ? plan.gradient.threads / plan.lanes : 1;
    }

    void kernels_change_at_the_named_sizes()
    {
        using namespace kernels;
        const rms_norm_device device = device_with(most_shared_bytes);
        const auto forward = [&](layout kind, long long size)
        { return plan_rms_normalize(make_groups(kind, 8, size), true, device); };
        const auto gradient = [&](layout kind, long long size)
        { return plan_rms_normalize_gradient(make_groups(kind, 8, size), true, device); };

        for (const layout kind : {layout::plain, layout::gains, layout::runs})
        {
            DLIB_TEST(forward(kind, max_row_in_block).kernel == rms_norm_kernel::rows);
            DLIB_TEST(forward(kind, max_row_in_block + 1).kernel == rms_norm_kernel::long_rows);
        }
        DLIB_TEST(forward(layout::columns, max_column_in_block).kernel == rms_norm_kernel::columns);
        DLIB_TEST(forward(layout::columns, max_column_in_block + 1).kernel ==
            rms_norm_kernel::long_columns);

        DLIB_TEST(plan_rms_normalize(make_groups(layout::plain, 0, 5), true, device).kernel ==
            rms_norm_kernel::nothing);
        DLIB_TEST(
            plan_rms_normalize_gradient(make_groups(layout::gains, 0, 5), true, device).kernel ==
            rms_norm_kernel::nothing);
        for (const layout kind : {layout::plain, layout::gains})
        {
            const long long size = max_gradient_row_in_block;
            DLIB_TEST(gradient(kind, size).kernel == rms_norm_kernel::rows);
            DLIB_TEST(gradient(kind, size + 1).kernel == rms_norm_kernel::long_rows);
            DLIB_TEST(!gradient(kind, max_gradient_row_in_registers).sums_in_shared);
            DLIB_TEST(gradient(kind, max_gradient_row_in_registers + 1).sums_in_shared);
        }
        // a multiple of three, as make_groups() wants it
        const long long run_size = max_gradient_run_row_in_block / 3 * 3;
        DLIB_TEST(gradient(layout::runs, run_size).kernel == rms_norm_kernel::run_rows);
        DLIB_TEST(gradient(layout::runs, run_size + 3).kernel == rms_norm_kernel::long_run_rows);
        const long long column = max_gradient_column_in_block;
        DLIB_TEST(gradient(layout::columns, column).kernel == rms_norm_kernel::columns);
        DLIB_TEST(gradient(layout::columns, column + 1).kernel == rms_norm_kernel::long_columns);
        DLIB_TEST(!gradient(layout::columns, max_gradient_column_in_registers).sums_in_shared);
        DLIB_TEST(gradient(layout::columns, max_gradient_column_in_registers + 1).sums_in_shared);

        // What does not fit into the shared memory of a small GPU goes the way of long groups.
        const rms_norm_device small = device_with(least_shared_bytes);
        const rms_norm_groups row = make_groups(layout::gains, 8, 8192);
        DLIB_TEST(plan_rms_normalize_gradient(row, true, device).kernel == rms_norm_kernel::rows);
        DLIB_TEST(
            plan_rms_normalize_gradient(row, true, small).kernel == rms_norm_kernel::long_rows);
    }

    bool is_launch_of(const rms_norm_launch& launch,
        long long blocks,
        int threads,
        const rms_norm_device& device)
    {
        return launch.grid == std::min(blocks, device.max_grid) && launch.threads == threads &&
            launch.shared_bytes <= device.shared_bytes_per_block;
    }

    template <typename plan_type>
    bool has_sound_blocks(const plan_type& plan,
        const rms_norm_groups& groups,
        const rms_norm_device& device)
    {
        const int threads = main_launch(plan).threads;
        return threads > 0 && threads % 32 == 0 &&
            (plan_lanes(plan, groups) == 0 || threads % plan_lanes(plan, groups) == 0) &&
            main_launch(plan).shared_bytes <= device.shared_bytes_per_block;
    }

    bool are_sound(const kernels::rms_norm_parts& parts,
        const rms_norm_launch& launch,
        const rms_norm_device& device)
    {
        const long long blocks = (parts.rows * parts.count + 256 / parts.lanes - 1) /
            (256 / parts.lanes);
        return parts.count * kernels::part_size >= parts.length &&
            (parts.count - 1) * kernels::part_size < parts.length &&
            is_launch_of(launch, blocks, 256, device);
    }

    void check_plan(const rms_norm_forward_plan& plan,
        const rms_norm_groups& g,
        const rms_norm_device& device)
    {
        bool good = has_sound_blocks(plan, g, device);
        if (plan.kernel == rms_norm_kernel::long_rows)
        {
            good = good && plan.parts.length == g.size && plan.parts.rows == g.num_groups() &&
                are_sound(plan.parts, plan.sum_parts, device) &&
                is_launch_of(plan.finish, g.num_groups(), 256, device) &&
                is_launch_of(plan.normalize, g.num_groups() * plan.parts.count, 256, device) &&
                plan.workspace_bytes ==
                    static_cast<std::size_t>(g.num_groups() * plan.parts.count) * sizeof(double);
        }
        else
        {
            const int threads = plan.normalize.threads;
            const long long per_block = g.interleaved ? 32 : threads / plan.lanes;
            good = good && plan.workspace_bytes == 0 && plan.sum_parts.grid == 0 &&
                plan.finish.grid == 0 &&
                is_launch_of(
                    plan.normalize, (g.num_groups() + per_block - 1) / per_block, threads, device);
        }
        if (is_on_chip(plan))
            good = good && plan.values * plan_lanes(plan, g) >= g.size;
        DLIB_TEST_MSG(good,
            "size " << g.size << ", groups " << g.num_groups() << ", kernel "
                    << static_cast<int>(plan.kernel));
    }

    bool are_sound(const kernels::rms_norm_slices& slices, long long rounds)
    /*!
        ensures
            - returns whether the slices cover all rounds, the last one not for nothing, and are
              long where there is enough work, because each costs a row of sums.
    !*/
    {
        const bool cover = slices.count * slices.rounds_per_slice >= rounds &&
            (slices.count - 1) * slices.rounds_per_slice < rounds;
        return cover && (rounds < 1024 || slices.rounds_per_slice >= 8);
    }

    std::size_t workspace_needed(const rms_norm_backward_plan& plan, const rms_norm_groups& g)
    {
        const bool has_runs = g.num_gains != 0 && g.gain_run > 1;
        long long doubles = plan.parts.rows * plan.parts.count;
        if (!is_on_chip(plan))
            doubles += g.num_groups();
        if (has_runs)
            doubles += g.num_groups() * g.num_gains;
        doubles += (has_runs ? plan.run_slices : plan.slices).count * g.num_gains;
        return static_cast<std::size_t>(doubles) * sizeof(double);
    }

    void check_plan(const rms_norm_backward_plan& plan,
        const rms_norm_groups& g,
        const rms_norm_device& device)
    {
        const long long tiles = (g.num_gains + 31) / 32;
        bool good = has_sound_blocks(plan, g, device);
        if (plan.kernel == rms_norm_kernel::run_rows)
        {
            good = good && plan.values * plan.gradient.threads >= g.size;
            good = good && plan.gradient.grid == std::min(g.num_groups(), device.max_grid);
        }
        else
        {
            const long long per_round = groups_per_round(plan, g);
            good = good && plan.strips * plan.values * plan_lanes(plan, g) >= g.size;
            good = good && plan.gradient.grid == plan.slices.count * plan.strips &&
                plan.gradient.grid <= 0x7fffffff;
            const long long rounds = (g.num_groups() + per_round - 1) / per_round;
            good = good && are_sound(plan.slices, rounds);
            // A row of sums for 16 wide rows, which takes a 16th of their traffic.
            if (plan.kernel == rms_norm_kernel::rows && plan.sums_in_shared && rounds >= 2048)
                good = good && plan.slices.rounds_per_slice >= 16;
            if (is_on_chip(plan))
                good = good && plan.strips == 1;
        }
        if (plan.kernel == rms_norm_kernel::long_columns)
            good = good && is_launch_of(plan.find_means, (g.num_groups() + 31) / 32, 512, device);
        else if (!is_on_chip(plan))
            good = good && are_sound(plan.parts, plan.find_means, device) &&
                is_launch_of(plan.finish, g.num_groups(), 256, device);
        if (g.num_gains != 0 && g.gain_run > 1)
            good = good && are_sound(plan.run_slices, g.num_groups()) &&
                is_launch_of(plan.sum_runs, plan.run_slices.count * tiles, 512, device);
        if (g.num_gains != 0)
            good = good && is_launch_of(plan.sum_slices, tiles, 512, device);
        good = good && plan.workspace_bytes == workspace_needed(plan, g);
        DLIB_TEST_MSG(good,
            "size " << g.size << ", groups " << g.num_groups() << ", kernel "
                    << static_cast<int>(plan.kernel));
    }

    auto what_bits_depend_on(const rms_norm_forward_plan& p)
    {
        return std::make_tuple(p.kernel, p.values, p.normalize.threads, p.lanes, p.parts.length,
            p.parts.count, p.parts.lanes);
    }

    auto what_bits_depend_on(const rms_norm_backward_plan& p)
    {
        return std::make_tuple(p.kernel, p.values, p.gradient.threads, p.lanes, p.strips,
            p.parts.length, p.parts.count, p.parts.lanes);
    }

    auto what_gamma_grad_depends_on(const rms_norm_backward_plan& p)
    {
        return std::make_tuple(p.slices.count, p.slices.rounds_per_slice, p.run_slices.count,
            p.run_slices.rounds_per_slice);
    }

    void plans_are_sound_for_every_size(std::size_t shared_bytes)
    {
        const rms_norm_device device = device_with(shared_bytes);
        rms_norm_device other = device;
        other.max_grid = 3;

        std::vector<long long> sizes = {100000, 262145, 1000000, 100000000, 3000000000};
        for (long long size = 1; size <= largest_threshold; size += size < 2000 ? 1 : 7)
            sizes.push_back(size);

        for (const layout kind : all_layouts)
        {
            for (const long long size : sizes)
            {
                if (!is_a_shape(kind, size))
                    continue;
                const rms_norm_groups one = make_groups(kind, 2, size);
                const auto forward = kernels::plan_rms_normalize(one, true, device);
                const auto gradient = kernels::plan_rms_normalize_gradient(one, true, device);
                for (const long long num_groups : {2, 17, 1000, 65537, 100000000})
                {
                    const rms_norm_groups g = make_groups(kind, num_groups, size);
                    const auto f = kernels::plan_rms_normalize(g, true, device);
                    const auto b = kernels::plan_rms_normalize_gradient(g, true, device);
                    check_plan(f, g, device);
                    check_plan(b, g, device);

                    // Not a bit depends on neighbours, alignment or the GPU.
                    const auto f2 = kernels::plan_rms_normalize(g, false, other);
                    const auto b2 = kernels::plan_rms_normalize_gradient(g, false, other);
                    check_plan(f2, g, other);
                    check_plan(b2, g, other);
                    DLIB_TEST(what_bits_depend_on(f) == what_bits_depend_on(forward));
                    DLIB_TEST(what_bits_depend_on(f2) == what_bits_depend_on(forward));
                    DLIB_TEST(what_bits_depend_on(b) == what_bits_depend_on(gradient));
                    DLIB_TEST(what_bits_depend_on(b2) == what_bits_depend_on(gradient));
                    DLIB_TEST(what_gamma_grad_depends_on(b) == what_gamma_grad_depends_on(b2));

                    DLIB_TEST(f.workspace_bytes == f2.workspace_bytes);
                    DLIB_TEST(b.workspace_bytes == b2.workspace_bytes);
                    DLIB_TEST(!f2.quads && !b2.quads && !b2.parts.quads);
                    if (kind != layout::columns)
                        DLIB_TEST(f.quads == (size % 4 == 0) && b.quads == (size % 4 == 0));
                }
            }
        }
    }

    void plans_are_sound_for_every_size()
    {
        plans_are_sound_for_every_size(most_shared_bytes);
        plans_are_sound_for_every_size(least_shared_bytes);
    }

    void device_is_asked()
    {
        const scoped_settings restore;
        current_settings().device = 3;
        current_settings().shared_bytes_per_block = 163 * 1024;
        rms_norm_device device;
        DLIB_TEST(kernels::get_rms_norm_device(3, device) == cudaSuccess);
        DLIB_TEST(device.shared_bytes_per_block == 163 * 1024);
        DLIB_TEST(kernels::get_rms_norm_device(0, device) == cudaErrorInvalidDevice);
    }

    void passes_run_on_the_current_device()
    {
        const scoped_settings restore;
        current_settings().record_launches = true;
        const std::vector<float> row(8192, 1.0f);
        device_floats x("x", row, 0, access::read_only), gamma("gamma", row, 0, access::read_only);
        device_floats out("out", row, 0, access::read_write);
        device_floats dgamma("dgamma", row, 0, access::read_write);
        device_floats scale("scale", {1}, 0, access::read_write);
        device_floats dscale("dscale", {1}, 0, access::read_write);
        rms_norm_forward<float> forward;
        forward.groups = make_groups(layout::plain, 1, 8192);
        forward.x = x.get();
        forward.y = out.get();
        forward.scale = scale.get();
        rms_norm_backward<float> backward;
        backward.groups = make_groups(layout::gains, 1, 8192);
        backward.x = backward.d = x.get();
        backward.gamma = gamma.get();
        backward.scale = scale.get();
        backward.dx = out.get();
        backward.dgamma = dgamma.get();
        backward.dscale = dscale.get();

        // What a block can have of the devices decides whether the row stays in it.
        const auto kernels_on = [&](int device, std::size_t shared_bytes)
        {
            current_settings().device = device;
            current_settings().shared_bytes_per_block = shared_bytes;
            launches().clear();
            run_on_device(forward);
            run_on_device(backward);
            return launches().size();
        };
        for (int repeat = 0; repeat < 2; ++repeat)
        {
            DLIB_TEST(kernels_on(2, most_shared_bytes) == 3);
            DLIB_TEST(kernels_on(1, least_shared_bytes) == 5);
        }
        launches().clear();

        const auto error_of = [](const auto& pass) -> std::string
        {
            try
            {
                run_on_device(pass);
            }
            catch (dlib::cuda_error& e)
            {
                return e.what();
            }
            return "";
        };
        current_settings().failing_launch = 1;
        DLIB_TEST(error_of(forward) ==
            "Error while calling launch_rms_normalize(). code: 719, reason: another error");
        current_settings().failing_launch = 1;
        DLIB_TEST(error_of(backward) ==
            "Error while calling launch_rms_normalize_gradient(). code: 719, reason: another "
            "error");
        current_settings().has_no_device = true;
        const std::string text =
            "Error while calling cudaGetDevice(). code: 100, reason: no device";
        DLIB_TEST(error_of(forward) == text && error_of(backward) == text);
        DLIB_TEST(launches().empty());
    }

    // ----------------------------------------------------------------------------------------
    //                        numbers, traffic and bits of each variant
    // ----------------------------------------------------------------------------------------

    void check_traffic(const rms_norm_problem& p, const setup& s)
    /*!
        ensures
            - checks that groups which stay on chip are read once, others twice, and that
              everything is written once
    !*/
    {
        const rms_norm_groups groups = groups_of(p);
        const std::uint64_t all = 4 * p.src.size();
        const std::uint64_t stats = 4 * number_of_groups(p);

        const rms_norm_forward_plan plan = kernels::plan_rms_normalize(groups, true, s.device);
        const run_result f = run_forward(p, s);
        DLIB_TEST_MSG(f.src.read == (is_on_chip(plan) ? all : 2 * all),
            "src is read " << f.src.read << " bytes of " << all << ", " << describe(p));
        DLIB_TEST_MSG(f.dest.written == all && f.dest.read == 0, describe(p));
        DLIB_TEST_MSG(f.scale.written == stats, describe(p));
        DLIB_TEST_MSG(f.gamma.read <= all, describe(p));
        DLIB_TEST_MSG(
            f.workspace.written == plan.workspace_bytes && f.workspace.read == plan.workspace_bytes,
            describe(p));
        if (is_on_chip(plan))
            DLIB_TEST_MSG(f.scale.read == 0 && plan.workspace_bytes == 0, describe(p));

        const rms_norm_backward_plan gradient = kernels::plan_rms_normalize_gradient(
            groups, true, s.device);
        const std::uint64_t inputs = is_on_chip(gradient) ? all : 2 * all;
        const run_result b = run_gradient(p, f.numbers.scale, s);
        DLIB_TEST_MSG(b.src.read == inputs,
            "src is read " << b.src.read << " bytes of " << all << ", " << describe(p));
        DLIB_TEST_MSG(b.gradient_input.read == inputs,
            "gradient_input is read " << b.gradient_input.read << " bytes of " << all << ", "
                                      << describe(p));
        DLIB_TEST_MSG(b.src_grad.read == all && b.src_grad.written == all, describe(p));
        DLIB_TEST_MSG(b.dscale.written == stats, describe(p));
        DLIB_TEST_MSG(
            b.gamma_grad.written == 4 * p.gamma.size() && b.gamma_grad.read == 0, describe(p));
        // Gains come from the cache, and are needed for the mean and for the gradient.
        DLIB_TEST_MSG(b.gamma.read <= 2 * all, describe(p));
        // Each thread that has values of a group reads the group's mean, the rest is read once.
        const std::uint64_t means = is_on_chip(gradient) ? 0 : 8 * number_of_groups(p);
        const auto readers = static_cast<std::uint64_t>(
            gradient.strips * plan_lanes(gradient, groups));
        DLIB_TEST_MSG(b.workspace.written <= gradient.workspace_bytes &&
                b.workspace.read == b.workspace.written + (readers - 1) * means,
            describe(p));

        // In place nothing is read for being added to.
        setup in_place = s;
        in_place.in_place = true;
        const run_result c = run_gradient(p, f.numbers.scale, in_place);
        DLIB_TEST_MSG(c.src_grad.read == inputs && c.src_grad.written == all, describe(p));
    }

    void check_variant(const rms_norm_problem& p, const setup& s)
    {
        print_spinner();
        const rms_norm_result r = run_both(p, s);
        check_answer(r, exact_rms_norm(p), p);
        check_traffic(p, s);

        // The same without vectors, because of one array or another.
        setup shifted[5] = {s, s, s, s, s};
        shifted[0].src = 1 + p.src.size() % 3;
        shifted[1].gamma = 1;
        shifted[2].dest = 2;
        shifted[3].gradient_input = 3;
        shifted[4].src_grad = 1;
        DLIB_TEST_MSG(same_bits(run_both(p, shifted[0]), r), describe(p));
        if (!is_sanitized)
            DLIB_TEST_MSG(same_bits(run_both(p, shifted[p.src.size() % 5]), r), describe(p));
    }

    void every_variant_around_every_threshold()
    {
        random_source rnd(1);
        const setup s;
        for (const layout kind : all_layouts)
        {
            for (const long long size : sizes_around_thresholds(kind, s.device))
                check_variant(make_problem(rnd, kind, some_groups(kind, size), size), s);
        }
    }

    void rows_of_whole_quads_with_runs_of_others()
    {
        random_source rnd(14);
        for (const long long run : {3, 301, 2101, 9001})
        {
            check_variant(random_problem(rnd, rms_norm_axes::sample, rms_norm_gain::per_channel,
                              {2, 4, 1, run}),
                setup());
        }
    }

    void slices_of_several_rounds_of_columns()
    /*!
        A block goes from one round to the next without a division: by whole samples, where several
        lie in the 32 columns of a warp, and by a part of one.
    !*/
    {
        random_source rnd(15);
        for (const long long area : {1, 7, 20, 31, 33})
        {
            const rms_norm_problem p = random_problem(
                rnd, rms_norm_axes::channel, rms_norm_gain::per_channel, {9000 / area, 5, area, 1});
            const rms_norm_backward_plan plan = plan_rms_normalize_gradient(
                groups_of(p), false, setup().device);
            DLIB_TEST(plan.slices.rounds_per_slice > 1);
            check_variant(p, setup());
        }
    }

    void every_variant_with_little_shared_memory()
    {
        random_source rnd(1);
        const scoped_settings restore;
        current_settings().shared_bytes_per_block = least_shared_bytes;
        setup s;
        s.device = device_with(least_shared_bytes);
        for (const layout kind : all_layouts)
        {
            const std::set<long long> sizes = sizes_around_thresholds(kind, s.device);
            const std::set<long long> done = sizes_around_thresholds(kind, setup().device);
            for (const long long size : sizes)
            {
                if (done.count(size) == 0)
                    check_variant(make_problem(rnd, kind, some_groups(kind, size), size), s);
            }
        }
    }

    void same_bits_in_every_order_on_every_grid()
    {
        const long long sizes[] = {6, 60, 132, 516, 4098, 9000, 33000};
        random_source rnd(2);
        for (const layout kind : all_layouts)
        {
            for (const long long size : sizes)
            {
                print_spinner();
                const long long count = size < 600 ? 70 : 5;
                const rms_norm_problem p = make_problem(rnd, kind, count, size);
                const rms_norm_result r = run_both(p, setup());
                check_answer(r, exact_rms_norm(p), p);

                // Few blocks go over many groups, so that what one round leaves in shared memory
                // meets the next round.
                setup few_blocks;
                for (int repeat = 0; repeat < (size < 600 ? 6 : 2); ++repeat)
                {
                    few_blocks.device.max_grid = 1 + repeat % 3;
                    DLIB_TEST_MSG(same_bits(run_both(p, few_blocks), r), describe(p));
                }
            }
        }
    }

    void one_block_for_rows_of_many_parts()
    /*!
        More parts than a warp has lanes: the second warp has something to add up, and can be
        ahead of the first by a row.
    !*/
    {
        random_source rnd(11);
        const rms_norm_problem p = make_problem(rnd, layout::plain, 4, 32 * kernels::part_size + 4);
        const rms_norm_result r = run_forward(p, setup()).numbers;
        const rms_norm_answer exact = exact_rms_norm(p);
        check_numbers("dest", r.dest, exact.dest, p);
        check_numbers("scale", r.scale, exact.scale, p);

        setup one_block;
        one_block.device.max_grid = 1;
        for (int repeat = 0; repeat < 10; ++repeat)
        {
            print_spinner();
            DLIB_TEST(same_bits(run_forward(p, one_block).numbers, r));
        }
    }

    void blocks_that_go_over_many_groups()
    /*!
        There are so many groups that each slice of gamma's gradient takes three rounds, the last
        slice fewer and the last round not all of its groups.
    !*/
    {
        const std::pair<layout, long long> shapes[] = {{layout::plain, 516}, {layout::gains, 6},
            {layout::gains, 132}, {layout::gains, 516}, {layout::gains, 4100},
            {layout::gains, 8200}, {layout::gains, 16500}, {layout::runs, 6}, {layout::runs, 516},
            {layout::columns, 6}, {layout::columns, 132}, {layout::columns, 300},
            {layout::columns, 520}};
        random_source rnd(9);
        const setup s;
        for (const auto& shape : shapes)
        {
            print_spinner();
            const auto plan_for = [&](const rms_norm_groups& groups)
            { return kernels::plan_rms_normalize_gradient(groups, true, s.device); };
            const rms_norm_groups groups = make_groups(shape.first, 2, shape.second);
            const rms_norm_backward_plan plan = plan_for(groups);
            const long long slices = (128 + plan.strips - 1) / plan.strips;
            const long long count = (2 * slices + 2) * groups_per_round(plan, groups) - 1;
            const rms_norm_problem p = make_problem(rnd, shape.first, count, shape.second);
            const rms_norm_backward_plan q = plan_for(groups_of(p));
            DLIB_TEST(std::max(q.slices.rounds_per_slice, q.run_slices.rounds_per_slice) == 3);

            rms_norm_result r = run_forward(p, s).numbers;
            setup in_place = s;
            in_place.in_place = true;
            const rms_norm_result gradient = run_gradient(p, r.scale, in_place).numbers;
            r.src_grad = gradient.src_grad;
            r.gamma_grad = gradient.gamma_grad;
            r.dscale = gradient.dscale;
            check_answer(r, exact_rms_norm(p), p);
        }
    }

    void scales_near_the_middle_between_floats()
    /*!
        The scale is computed from an approximation, which is made with other bits on every device.
        Where it rounds to another float than the exact operations would tell, the kernel has to
        notice. So here are groups whose scale is as near to such a place as doubles get.
    !*/
    {
        random_source rnd(12);
        rms_norm_problem p = random_problem(
            rnd, rms_norm_axes::row, rms_norm_gain::none, {1000, 1, 1, 4});
        p.gain_offset = 0;
        p.eps = 1.2e-38;
        std::vector<float> expected;
        for (std::size_t group = 0; group < 1000; ++group)
        {
            // Half of them are denormal.
            const float below = std::ldexp(
                1 + static_cast<float>(group) / 1000, group % 2 == 0 ? -127 : -20);
            const float above = std::nextafter(below, 1.0f);
            const double middle = (static_cast<double>(below) + static_cast<double>(above)) / 2;
            double left = 4 / (middle * middle);
            double sum = 0;
            for (std::size_t i = 0; i < 4; ++i)
            {
                float x = static_cast<float>(std::sqrt(left));
                if (std::pow(static_cast<double>(x), 2) > left)
                    x = std::nextafter(x, 0.0f);
                p.src[4 * group + i] = x;
                left -= static_cast<double>(x) * static_cast<double>(x);
                sum = std::fma(static_cast<double>(x), static_cast<double>(x), sum);
            }
            const double scale = 1 / std::sqrt(std::fma(sum, 0.25, p.eps));
            DLIB_TEST(std::abs(scale / middle - 1) < 1e-15);
            expected.push_back(static_cast<float>(scale));
        }
        const std::vector<float> found = run_forward(p, setup()).numbers.scale;
        for (std::size_t group = 0; group < 1000; ++group)
        {
            DLIB_TEST_MSG(same_bits(found[group], expected[group]),
                group << ": " << found[group] << " " << expected[group]);
        }
    }

    // ----------------------------------------------------------------------------------------

    std::vector<std::size_t> in_random_order(random_source& rnd, long long begin, long long end)
    {
        std::vector<std::size_t> order(static_cast<std::size_t>(end - begin));
        std::iota(order.begin(), order.end(), static_cast<std::size_t>(begin));
        std::shuffle(order.begin(), order.end(), rnd);
        return order;
    }

    std::size_t place_of(const rms_norm_problem& p, std::size_t group, std::size_t i)
    {
        const rms_norm_groups g = groups_of(p);
        return static_cast<std::size_t>(
            g.first(static_cast<long long>(group)) + static_cast<long long>(i) * g.stride);
    }

    void copy_group(const rms_norm_problem& from,
        std::size_t group,
        rms_norm_problem& to,
        std::size_t to_group)
    {
        for (std::size_t i = 0; i < static_cast<std::size_t>(groups_of(from).size); ++i)
        {
            const std::size_t a = place_of(from, group, i);
            const std::size_t b = place_of(to, to_group, i);
            to.src[b] = from.src[a];
            to.gradient_input[b] = from.gradient_input[a];
            to.old_src_grad[b] = from.old_src_grad[a];
        }
    }

    rms_norm_problem
    problem_between_floats(random_source& rnd, layout kind, long long num_groups, long long size)
    /*!
        requires
            - size > 4
        ensures
            - returns a problem whose scales are as near to the middle between two floats as doubles
              get: it is the rounding of their sums that decides which of the two they are.
    !*/
    {
        rms_norm_problem p = make_problem(rnd, kind, num_groups, size);
        for (std::size_t group = 0; group < static_cast<std::size_t>(num_groups); ++group)
        {
            const std::vector<std::size_t> order = in_random_order(rnd, 0, size);
            long double sum = 0;
            for (std::size_t i = 4; i < order.size(); ++i)
            {
                const long double x = p.src[place_of(p, group, order[i])];
                sum += x * x;
            }
            const auto n = static_cast<long double>(size);
            const auto scale = static_cast<float>(1 / std::sqrt((sum + 2) / n + p.eps));
            const long double middle = (static_cast<long double>(scale) +
                                           static_cast<long double>(std::nextafter(scale, 0.0f))) /
                2;
            long double left = (1 / (middle * middle) - p.eps) * n - sum;
            for (std::size_t i = 0; i < 4; ++i)
            {
                auto x = static_cast<float>(std::sqrt(left));
                if (static_cast<long double>(x) * x > left)
                    x = std::nextafter(x, 0.0f);
                p.src[place_of(p, group, order[i])] = x;
                left -= static_cast<long double>(x) * x;
            }
        }
        return p;
    }

    rms_norm_problem
    problem_that_cancels(random_source& rnd, layout kind, long long num_groups, long long size)
    /*!
        ensures
            - returns a problem in which nothing but rounding is left of a gradient's sums: the
              values of a run come in pairs with equal x and opposite d of 1e18, and so do the
              groups.
    !*/
    {
        rms_norm_problem p = make_problem(rnd, kind, num_groups, size);
        const rms_norm_groups g = groups_of(p);
        const long long run = g.gain_run > 1 ? g.gain_run : size;
        std::vector<std::vector<std::size_t>> runs;
        for (long long begin = 0; begin < size; begin += run)
            runs.push_back(in_random_order(rnd, begin, begin + run));

        const std::vector<std::size_t> groups = in_random_order(rnd, 0, num_groups);
        for (std::size_t n = 0; n + 1 < groups.size(); n += 2)
        {
            for (const std::vector<std::size_t>& order : runs)
            {
                for (std::size_t i = 0; i + 1 < order.size(); i += 2)
                {
                    const std::size_t a = place_of(p, groups[n], order[i]);
                    const std::size_t b = place_of(p, groups[n], order[i + 1]);
                    p.gradient_input[a] *= 1e18f;
                    p.gradient_input[b] = -p.gradient_input[a];
                    p.src[b] = p.src[a];
                    if (g.num_gains == size)
                        p.gamma[order[i + 1]] = p.gamma[order[i]];
                }
            }
            copy_group(p, groups[n], p, groups[n + 1]);
            for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i)
                p.gradient_input[place_of(p, groups[n + 1], i)] *= -1;
        }
        return p;
    }

    rms_norm_problem with_one_more_group(random_source& rnd, layout kind, const rms_norm_problem& p)
    /*!
        ensures
            - returns p with another group before the first
    !*/
    {
        const std::size_t count = number_of_groups(p);
        rms_norm_problem q = make_problem(
            rnd, kind, static_cast<long long>(count) + 1, groups_of(p).size);
        q.gamma = p.gamma;
        for (std::size_t group = 0; group < count; ++group)
            copy_group(p, group, q, group + 1);
        return q;
    }

    bool have_same_bits(const run_result& a, const run_result& b)
    {
        return same_bits(a.numbers, b.numbers) && a.sums.size() == b.sums.size() &&
            (a.sums.empty() ||
                std::memcmp(a.sums.data(), b.sums.data(), a.sums.size() * sizeof(double)) == 0);
    }

    void sums_are_the_same_to_the_last_bit()
    /*!
        In which order a sum is taken follows from the sizes: not from where the memory begins, nor
        from the grid, nor from what other groups there are.
    !*/
    {
        const std::tuple<layout, long long, long long> shapes[] = {{layout::plain, 100, 40},
            {layout::gains, 100, 2200}, {layout::gains, 200, 1100}, {layout::gains, 300, 540},
            {layout::gains, 516, 270}, {layout::gains, 4100, 6}, {layout::gains, 9000, 6},
            {layout::gains, 33000, 4}, {layout::runs, 60, 270}, {layout::runs, 1500, 20},
            {layout::runs, 9000, 6}, {layout::runs, 33000, 4}, {layout::short_runs, 61 * 167, 4},
            {layout::columns, 20, 8200}, {layout::columns, 200, 80}, {layout::columns, 300, 80},
            {layout::columns, 520, 80}, {layout::columns, 1030, 80}};
        random_source rnd(15);
        std::vector<setup> setups(3);
        for (std::size_t i = 0; i < setups.size(); ++i)
        {
            setup& s = setups[i];
            s.device.max_grid = static_cast<long long>(i) + 1;
            (i == 0 ? s.src : i == 1 ? s.gradient_input : s.gamma) = 1;
            (i == 0 ? s.dest : s.src_grad) = 3;
        }

        for (const auto& shape : shapes)
        {
            print_spinner();
            const layout kind = std::get<0>(shape);
            const long long size = std::get<1>(shape);
            const long long count = std::get<2>(shape);

            const rms_norm_problem p = problem_between_floats(rnd, kind, count, size);
            const run_result f = run_forward(p, setup());
            for (const setup& s : setups)
                DLIB_TEST_MSG(have_same_bits(run_forward(p, s), f), describe(p));
            const rms_norm_problem p2 = with_one_more_group(rnd, kind, p);
            const run_result f2 = run_forward(p2, setup());

            const rms_norm_problem q = problem_that_cancels(rnd, kind, count, size);
            std::vector<float> scale = run_forward(q, setup()).numbers.scale;
            const run_result b = run_gradient(q, scale, setup());
            for (const setup& s : setups)
                DLIB_TEST_MSG(have_same_bits(run_gradient(q, scale, s), b), describe(q));
            scale.insert(scale.begin(), 1.0f);
            const run_result b2 = run_gradient(with_one_more_group(rnd, kind, q), scale, setup());

            for (std::size_t group = 0; group < number_of_groups(p); ++group)
            {
                DLIB_TEST_MSG(
                    same_bits(f.numbers.scale[group], f2.numbers.scale[group + 1]), describe(p));
                DLIB_TEST_MSG(
                    same_bits(b.numbers.dscale[group], b2.numbers.dscale[group + 1]), describe(p));
            }
        }
    }

    void work_goes_to_the_stream()
    {
        random_source rnd(13);
        const scoped_settings restore;
        current_settings().record_launches = true;
        setup s;
        int any = 0;
        s.stream = reinterpret_cast<cudaStream_t>(&any);
        launches().clear();
        for (const layout kind : all_layouts)
        {
            for (const long long size : {6, 40002})
                run_both(make_problem(rnd, kind, 2, size), s);
        }
        DLIB_TEST(launches().size() > 20);
        for (const launch_record& l : launches())
            DLIB_TEST_MSG(l.stream == s.stream, l.kernel);
        launches().clear();
    }

    void sizes_far_from_one()
    /*!
        The cube of s is no float here, nor is the square of a value.
    !*/
    {
        random_source rnd(10);
        for (const layout kind : all_layouts)
        {
            for (const long long size : {6, 600, 5001, 40002})
            {
                for (const double scale : {1e15, 1e25, 1e-15})
                {
                    print_spinner();
                    rms_norm_problem p = make_problem(rnd, kind, 2, size);
                    p.eps = 1e-37;
                    for (float& x : p.src)
                        x *= static_cast<float>(scale);
                    check_answer(run_both(p, setup()), exact_rms_norm(p), p);
                }
            }
        }
    }

    void rows_are_read_and_written_in_whole_sectors()
    {
        const scoped_settings restore;
        current_settings().count_sectors = true;
        random_source rnd(3);
        for (const long long size : {8, 64, 72, 512, 1024, 4096, 40960})
        {
            for (const layout kind : {layout::plain, layout::gains})
            {
                print_spinner();
                const rms_norm_problem p = make_problem(rnd, kind, 3, size);
                const run_result f = run_forward(p, setup());
                const run_result b = run_gradient(p, f.numbers.scale, setup());
                for (const traffic& t : {f.src, f.dest, b.src, b.gradient_input, b.src_grad})
                {
                    DLIB_TEST_MSG(32 * t.sectors == t.read + t.written,
                        t.sectors << " sectors for " << t.read + t.written << " bytes, "
                                  << describe(p));
                }
            }
        }
    }

    void neighbouring_columns_are_read_and_written_together()
    /*!
        The 32 columns of a warp lie in one piece, or in two where a sample ends. A piece of n
        floats lies in at most n/8 + 2 sectors.
    !*/
    {
        const scoped_settings restore;
        current_settings().count_sectors = true;
        random_source rnd(3);
        for (const long long size : {64, 300, 1030})
        {
            for (const long long area : {49, 196})
            {
                print_spinner();
                const rms_norm_problem p = random_problem(
                    rnd, rms_norm_axes::channel, rms_norm_gain::per_channel, {3, size, area, 1});
                const long long pieces = size * ((3 * area + 31) / 32 + 2);
                const auto most = static_cast<std::uint64_t>(3 * size * area / 8 + 2 * pieces);
                const run_result f = run_forward(p, setup());
                const run_result b = run_gradient(p, f.numbers.scale, setup());
                for (const traffic& t : {f.src, f.dest, b.src, b.gradient_input, b.src_grad})
                {
                    const std::uint64_t times = (t.read + t.written) / (4 * p.src.size());
                    DLIB_TEST_MSG(t.sectors <= times * most,
                        t.sectors << " sectors of at most " << times << "*" << most << ", "
                                  << describe(p));
                }
            }
        }
    }

    // ----------------------------------------------------------------------------------------
    //                              offsets beyond 32 bits
    // ----------------------------------------------------------------------------------------

    class far_floats
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Global memory for so many floats, all 0, that takes memory only where it is
                touched.
        !*/
    public:
        far_floats(const char* name, long long size, access allowed) :
            memory(static_cast<std::size_t>(size) * sizeof(float)),
            visible(name, memory.get(), static_cast<std::size_t>(size) * sizeof(float), allowed)
        {
        }

        float* get() { return static_cast<float*>(memory.get()); }
        float& operator[](long long i) { return get()[i]; }

    private:
        sparse_memory memory;
        global_buffer visible;
    };

    struct far_problem
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A small problem whose groups are spread out over a large tensor that is 0
                everywhere else.
        !*/
        rms_norm_problem small;
        rms_norm_groups groups;        // of the large tensor
        std::vector<long long> places; // groups of the large tensor, one per small group

        long long at(std::size_t group, long long i) const
        {
            return groups.first(places[group]) + i * groups.stride;
        }

        std::size_t small_at(std::size_t group, long long i) const
        {
            return static_cast<std::size_t>(groups_of(small).first(static_cast<long long>(group)) +
                i * groups_of(small).stride);
        }

        template <typename function>
        void for_each(const function& f) const
        {
            for (std::size_t group = 0; group < places.size(); ++group)
            {
                for (long long i = 0; i < groups.size; ++i)
                    f(at(group, i), small_at(group, i));
            }
        }
    };

    bool has(const std::string& kernel, const char* part)
    {
        return kernel.find(part) != std::string::npos;
    }

    std::vector<long long> blocks_of_parts(const kernels::rms_norm_parts& parts,
        long long first_row,
        long long num_rows,
        long long parts_per_block)
    {
        std::vector<long long> blocks;
        for (long long i = 0; i < num_rows * parts.count; ++i)
            blocks.push_back((first_row * parts.count + i) / parts_per_block);
        return blocks;
    }

    std::vector<long long> blocks_of_group(const std::string& kernel,
        const rms_norm_forward_plan& plan,
        const rms_norm_groups& g,
        long long group)
    /*!
        ensures
            - returns the blocks of a kernel of this name that work on the group
    !*/
    {
        if (has(kernel, "sum_squares_of_parts"))
            return blocks_of_parts(plan.parts, group, 1, 256 / plan.parts.lanes);
        if (has(kernel, "normalize_parts"))
            return blocks_of_parts(plan.parts, group, 1, 1);
        if (has(kernel, "finish_scales"))
            return {group};
        return {group / (g.interleaved ? 32 : plan.normalize.threads / plan.lanes)};
    }

    std::vector<long long> blocks_of_group(const std::string& kernel,
        const rms_norm_backward_plan& plan,
        const rms_norm_groups& g,
        long long group)
    {
        const long long rows = plan.parts.rows / g.num_groups();
        if (has(kernel, "sum_products_of_parts"))
            return blocks_of_parts(plan.parts, rows * group, rows, 256 / plan.parts.lanes);
        if (has(kernel, "finish_means") || has(kernel, "gradient_run_rows"))
            return {group};
        if (has(kernel, "find_column_means"))
            return {group / 32};

        std::vector<long long> blocks;
        const long long slice = group / groups_per_round(plan, g) / plan.slices.rounds_per_slice;
        for (long long strip = 0; strip < plan.strips; ++strip)
            blocks.push_back(slice * plan.strips + strip);
        return blocks;
    }

    template <typename plan_type>
    std::function<std::vector<long long>(const std::string&)> blocks_of(const far_problem& p,
        const plan_type& plan)
    {
        return [&p, &plan](const std::string& kernel)
        {
            std::vector<long long> chosen;
            if (has(kernel, "sum_rows_of_slices"))
            {
                // All of them, but of very many sums of runs none: it is no block's number.
                if (p.groups.gain_run > 1)
                    chosen.push_back(1LL << 40);
                return chosen;
            }
            for (const long long group : p.places)
            {
                for (const long long b : blocks_of_group(kernel, plan, p.groups, group))
                    chosen.push_back(b);
            }
            return chosen;
        };
    }

    void check_far_forward(const far_problem& p)
    {
        const setup s;
        const run_result right = run_forward(p.small, s);
        const rms_norm_forward_plan plan = kernels::plan_rms_normalize(p.groups, true, s.device);

        const scoped_settings restore;
        current_settings().check_races = false;
        current_settings().choose_blocks = blocks_of(p, plan);

        far_floats src("src", p.groups.num_values(), access::read_only);
        far_floats dest("dest", p.groups.num_values(), access::read_write);
        far_floats scale("scale", p.groups.num_groups(), access::read_write);
        device_floats gamma("gamma", p.small.gamma, 0, access::read_only);
        p.for_each([&](long long at, std::size_t i) { src[at] = p.small.src[i]; });
        far_floats workspace(
            "workspace", static_cast<long long>(plan.workspace_bytes / 4 + 1), access::read_write);
        rms_norm_forward<float> pass;
        pass.groups = p.groups;
        pass.eps = p.small.eps;
        pass.gain_offset = static_cast<float>(p.small.gain_offset);
        pass.x = src.get();
        pass.gamma = gamma.get();
        pass.y = dest.get();
        pass.scale = scale.get();
        DLIB_TEST(
            kernels::launch_rms_normalize(pass, plan, workspace.get(), nullptr) == cudaSuccess);

        for (std::size_t group = 0; group < p.places.size(); ++group)
            DLIB_TEST(same_bits(scale[p.places[group]], right.numbers.scale[group]));
        p.for_each([&](long long at, std::size_t i)
            { DLIB_TEST(same_bits(dest[at], right.numbers.dest[i])); });
    }

    void check_far_gradient(const far_problem& p)
    {
        const setup s;
        const rms_norm_result forward = run_forward(p.small, s).numbers;
        const rms_norm_result right = run_gradient(p.small, forward.scale, s).numbers;
        const rms_norm_backward_plan plan = kernels::plan_rms_normalize_gradient(
            p.groups, true, s.device);

        const scoped_settings restore;
        current_settings().check_races = false;
        current_settings().choose_blocks = blocks_of(p, plan);

        far_floats src("src", p.groups.num_values(), access::read_only);
        far_floats gradient_input("gradient_input", p.groups.num_values(), access::read_only);
        far_floats src_grad("src_grad", p.groups.num_values(), access::read_write);
        far_floats scale("scale", p.groups.num_groups(), access::read_only);
        far_floats dscale("dscale", p.groups.num_groups(), access::read_write);
        far_floats workspace(
            "workspace", static_cast<long long>(plan.workspace_bytes / 4), access::read_write);
        device_floats gamma("gamma", p.small.gamma, 0, access::read_only);
        device_floats gamma_grad("gamma_grad", nans(p.small.gamma.size()), 0, access::read_write);
        p.for_each(
            [&](long long at, std::size_t i)
            {
                src[at] = p.small.src[i];
                gradient_input[at] = p.small.gradient_input[i];
                src_grad[at] = p.small.old_src_grad[i];
            });
        for (std::size_t group = 0; group < p.places.size(); ++group)
            scale[p.places[group]] = forward.scale[group];
        rms_norm_backward<float> pass;
        pass.groups = p.groups;
        pass.gain_offset = static_cast<float>(p.small.gain_offset);
        pass.d = gradient_input.get();
        pass.x = src.get();
        pass.gamma = gamma.get();
        pass.scale = scale.get();
        pass.dx = src_grad.get();
        pass.add = true;
        pass.dgamma = gamma_grad.get();
        pass.dscale = dscale.get();
        DLIB_TEST(kernels::launch_rms_normalize_gradient(pass, plan, workspace.get(), nullptr) ==
            cudaSuccess);

        for (std::size_t group = 0; group < p.places.size(); ++group)
            DLIB_TEST(same_bits(dscale[p.places[group]], right.dscale[group]));
        p.for_each([&](long long at, std::size_t i)
            { DLIB_TEST(same_bits(src_grad[at], right.src_grad[i])); });
        if (p.groups.gain_run == 1)
        {
            // other slices, another order of the sum
            check_numbers(
                "gamma_grad", gamma_grad.values(), exact_rms_norm(p.small).gamma_grad, p.small);
            return;
        }
        const double* const doubles = reinterpret_cast<const double*>(workspace.get());
        for (std::size_t group = 0; group < p.places.size(); ++group)
        {
            for (long long run = 0; run < p.groups.num_gains; ++run)
            {
                long double sum = 0, size_of_sum = 0;
                for (long long i = run * p.groups.gain_run; i < (run + 1) * p.groups.gain_run; ++i)
                {
                    const std::size_t at = p.small_at(group, i);
                    const long double term = static_cast<long double>(p.small.src[at]) *
                        p.small.gradient_input[at];
                    sum += term;
                    size_of_sum += std::abs(term);
                }
                const double found =
                    doubles[plan.run_sums + p.places[group] * p.groups.num_gains + run];
                DLIB_TEST(std::abs(found - sum) <= 1e-12L * size_of_sum);
            }
        }
    }

    const long long two_to_31 = 1LL << 31;

    void rows_beyond_32_bits(layout kind, long long size)
    /*!
        ensures
            - checks the first and the last of so many rows, and those around the values 2^31 and
              2^32
    !*/
    {
        print_spinner();
        random_source rnd(4);
        far_problem p;
        const long long rows = 2 * two_to_31 / size + 3;
        p.groups = make_groups(kind, rows, size);
        p.places = {0, two_to_31 / size, two_to_31 / size + 1, rows - 3, rows - 1};
        p.small = make_problem(rnd, kind, static_cast<long long>(p.places.size()), size);
        check_far_forward(p);

        // fewer: a slice is a long walk
        p.places = {two_to_31 / size + 1, rows - 1};
        p.small = make_problem(rnd, kind, 2, size);
        check_far_gradient(p);
    }

    void more_values_than_32_bits_can_count()
    {
        for (const long long size : {300, 1024, 8192, 40004})
            rows_beyond_32_bits(layout::gains, size);
        for (const long long size : {1500, 8193, 30000})
            rows_beyond_32_bits(layout::runs, size);
    }

    void more_groups_than_32_bits_can_count()
    {
        random_source rnd(5);
        far_problem p;
        p.groups = make_groups(layout::gains, 2 * two_to_31 + 9, 1);
        p.places = {
            0, two_to_31 - 1, two_to_31, 2 * two_to_31 - 1, 2 * two_to_31, 2 * two_to_31 + 8};
        p.small = make_problem(rnd, layout::gains, 6, 1);
        check_far_forward(p);

        // and more sums of runs
        const long long rows = two_to_31 / 3 + 5;
        p.groups = make_groups(layout::runs, rows, 6);
        p.places = {rows / 2, rows - 1};
        p.small = make_problem(rnd, layout::runs, 2, 6);
        check_far_gradient(p);
    }

    void more_sums_of_runs_than_32_bits_can_count()
    /*!
        Runs no more than the blocks that add up the sums of runs of the first and of the last gains
        in the last group.
    !*/
    {
        const long long rows = 69, gains = 1 << 25;
        rms_norm_groups groups;
        groups.outer = rows;
        groups.size = 2 * gains;
        groups.num_gains = gains;
        groups.gain_run = 2;
        const setup s;
        const rms_norm_backward_plan plan = kernels::plan_rms_normalize_gradient(
            groups, true, s.device);
        DLIB_TEST(
            (rows - 1) * gains > two_to_31 && (plan.run_slices.count - 1) * gains > two_to_31);

        const long long tiles = gains / 32;
        const long long last = (plan.run_slices.count - 1) * tiles;
        const scoped_settings restore;
        current_settings().check_races = false;
        current_settings().choose_blocks = [&](const std::string& kernel)
        {
            return has(kernel, "sum_rows_of_slices")
                ? std::vector<long long>{0, tiles - 1, last, last + tiles - 1}
                : std::vector<long long>{1LL << 40}; // no block's number
        };

        far_floats workspace(
            "workspace", static_cast<long long>(plan.workspace_bytes / 4), access::read_write);
        far_floats gamma_grad("gamma_grad", gains, access::read_write);
        device_floats scale("scale", std::vector<float>(rows, 0.5f), 0, access::read_only);
        double* const sums = reinterpret_cast<double*>(workspace.get()) + plan.run_sums +
            (rows - 1) * gains;
        const auto for_each_gain = [&](const std::function<void(long long)>& use)
        {
            for (long long i = 0; i < 32; ++i)
            {
                use(i);
                use(gains - 1 - i);
            }
        };
        for_each_gain([&](long long i) { sums[i] = static_cast<double>(i + 1); });

        rms_norm_backward<float> pass;
        pass.groups = groups;
        pass.scale = scale.get();
        pass.dgamma = gamma_grad.get();
        DLIB_TEST(kernels::launch_rms_normalize_gradient(pass, plan, workspace.get(), nullptr) ==
            cudaSuccess);
        for_each_gain(
            [&](long long i) { DLIB_TEST(gamma_grad[i] == static_cast<float>(i + 1) / 2); });
    }

    void columns_further_apart_than_32_bits_can_count()
    {
        random_source rnd(6);
        for (const long long size : {9, 200, 300, 1030})
        {
            print_spinner();
            far_problem p;
            const long long stride = two_to_31 / (size - 1) + 5;
            p.groups = make_groups(layout::columns, stride, size);
            p.groups.outer = 2;
            p.places = {0, 1, stride - 1, stride, 2 * stride - 2, 2 * stride - 1};
            p.small = make_problem(rnd, layout::columns, 6, size);
            check_far_forward(p);

            p.places = {stride, 2 * stride - 1};
            p.small = make_problem(rnd, layout::columns, 2, size);
            check_far_gradient(p);
        }
    }

    void one_group_longer_than_32_bits_can_count()
    /*!
        The values are zero except in a few windows. So all that matters of the long sums is in the
        blocks at the windows, and in those that add up what the blocks left.
    !*/
    {
        const long long window = 64;
        for (const long long extra : {40, 41})
        {
            print_spinner();
            const long long size = two_to_31 + 5 * kernels::part_size + extra;
            const rms_norm_groups groups = make_groups(layout::gains, 1, size);
            const std::vector<long long> starts = {
                0, 3000000, two_to_31 - window / 2, size - window};

            // The same values and zeros, less of them: sums are the same.
            random_source rnd(7);
            const auto count = static_cast<std::size_t>(window) * starts.size();
            const std::vector<float> x = random_values(rnd, count, 1e4);
            const std::vector<float> d = random_values(rnd, count);
            const std::vector<float> gain = random_values(rnd, count);
            const std::vector<float> old = random_values(rnd, count);

            const setup s;
            const auto f = kernels::plan_rms_normalize(groups, true, s.device);
            const auto b = kernels::plan_rms_normalize_gradient(groups, true, s.device);
            const scoped_settings restore;
            current_settings().check_races = false;
            current_settings().choose_blocks = [&](const std::string& kernel)
            {
                std::vector<long long> blocks;
                if (kernel.find("finish") != std::string::npos)
                    return blocks;
                for (const long long start : starts)
                {
                    for (const long long i : {start, start + window / 2, start + window - 1})
                    {
                        for (const long long per_block : {kernels::part_size,
                                 static_cast<long long>(b.values) * b.gradient.threads, 32LL})
                        {
                            blocks.push_back(i / per_block);
                        }
                    }
                }
                return blocks;
            };

            far_floats src("src", size, access::read_only);
            far_floats gamma("gamma", size, access::read_only);
            far_floats dest("dest", size, access::read_write);
            far_floats gradient_input("gradient_input", size, access::read_only);
            far_floats gamma_grad("gamma_grad", size, access::read_write);
            far_floats workspace("workspace",
                static_cast<long long>(std::max(f.workspace_bytes, b.workspace_bytes) / 4),
                access::read_write);
            device_floats scale("scale", {nan_value}, 0, access::read_write);
            device_floats dscale("dscale", {nan_value}, 0, access::read_write);
            const auto for_each = [&](const std::function<void(long long, std::size_t)>& use)
            {
                for (std::size_t i = 0; i < count; ++i)
                {
                    const auto w = static_cast<std::size_t>(window);
                    use(starts[i / w] + static_cast<long long>(i % w), i);
                }
            };
            for_each(
                [&](long long at, std::size_t i)
                {
                    src[at] = x[i];
                    gradient_input[at] = d[i];
                    gamma[at] = gain[i];
                });

            rms_norm_forward<float> forward;
            forward.groups = groups;
            forward.eps = 1e-5;
            forward.x = src.get();
            forward.gamma = gamma.get();
            forward.y = dest.get();
            forward.scale = scale.get();
            DLIB_TEST(
                kernels::launch_rms_normalize(forward, f, workspace.get(), nullptr) == cudaSuccess);

            const long double u = rounding::u;
            const long double n = static_cast<long double>(size);
            long double squares = 0;
            for (const float v : x)
                squares += static_cast<long double>(v) * v;
            const long double exact_s = 1 / std::sqrt(squares / n + 1e-5);
            const float found_s = scale.values()[0];
            // Zeros add no error, the others and what comes after them as in exact_rms_norm().
            const long double extra_s = static_cast<long double>(count + 8) * rounding::u_double;
            DLIB_TEST(std::abs(found_s - exact_s) <= (u + extra_s) * exact_s);
            for_each(
                [&](long long at, std::size_t i)
                {
                    const float right = (x[i] * found_s) * gain[i];
                    DLIB_TEST_MSG(dest[at] == right, at << ": " << dest[at] << " " << right);
                    dest[at] = old[i];
                });

            rms_norm_backward<float> backward;
            backward.groups = groups;
            backward.d = gradient_input.get();
            backward.x = src.get();
            backward.gamma = gamma.get();
            backward.scale = scale.get();
            backward.dx = dest.get();
            backward.add = true;
            backward.dgamma = gamma_grad.get();
            backward.dscale = dscale.get();
            DLIB_TEST(kernels::launch_rms_normalize_gradient(
                          backward, b, workspace.get(), nullptr) == cudaSuccess);
            long double dot = 0;
            long double size_of_dot = 0;
            for (std::size_t i = 0; i < count; ++i)
            {
                const long double term = static_cast<long double>(gain[i]) * d[i] * x[i] * found_s;
                dot += term;
                size_of_dot += std::abs(term);
            }
            const double* const doubles = reinterpret_cast<const double*>(workspace.get());
            const float found_m = static_cast<float>(doubles[b.means]);
            DLIB_TEST(
                std::abs(found_m - dot / n) <= u * std::abs(dot / n) + extra_s * size_of_dot / n);
            const long double half_s2 = 0.5L * found_s * found_s;
            DLIB_TEST(std::abs(dscale.values()[0] + half_s2 * dot) <=
                half_s2 * (u * std::abs(dot) + extra_s * size_of_dot));
            for_each(
                [&](long long at, std::size_t i)
                {
                    const float dx = found_s * (gain[i] * d[i] - (x[i] * found_s) * found_m);
                    DLIB_TEST_MSG(dest[at] == old[i] + dx, at << ": " << dest[at]);
                    const double dg = static_cast<double>(d[i]) * x[i] *
                        static_cast<double>(found_s);
                    DLIB_TEST_MSG(
                        gamma_grad[at] == static_cast<float>(dg), at << ": " << gamma_grad[at]);
                });
        }
    }

    // ----------------------------------------------------------------------------------------

    void errors_of_the_runtime_are_returned()
    {
        random_source rnd(8);
        const scoped_settings restore;
        current_settings().record_launches = true;
        for (const layout kind : all_layouts)
        {
            for (const long long size : {6, 40002})
            {
                const rms_norm_problem p = make_problem(rnd, kind, 2, size);
                const auto forward = [&]() { return run_forward(p, setup()).error; };
                const std::vector<float> scale = run_forward(p, setup()).numbers.scale;
                const auto gradient = [&]() { return run_gradient(p, scale, setup()).error; };

                const std::function<cudaError_t()> calls[] = {forward, gradient};
                for (const auto& call : calls)
                {
                    launches().clear();
                    DLIB_TEST(call() == cudaSuccess);
                    const std::size_t count = launches().size();
                    DLIB_TEST(count > 0);
                    for (unsigned failing = 1; failing <= count; ++failing)
                    {
                        launches().clear();
                        current_settings().failing_launch = failing;
                        DLIB_TEST(call() == cudaErrorLaunchFailure);
                        // what came before it ran, what comes after it did not
                        DLIB_TEST(launches().size() == failing - 1);
                    }
                }
            }
        }
        launches().clear();
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_kernels_tester : public tester
    {
    public:
        rms_norm_kernels_tester() :
            tester("rms_norm_kernels", "Runs tests on the CUDA kernels, on the CPU.")
        {
        }

        void perform_test() override
        {
            using list_of_cases = std::vector<std::pair<std::string, void (*)()>>;
            const list_of_cases cases = {NAMED_CASE(kernels_change_at_the_named_sizes),
                NAMED_CASE(plans_are_sound_for_every_size), NAMED_CASE(device_is_asked),
                NAMED_CASE(passes_run_on_the_current_device),
                NAMED_CASE(every_variant_around_every_threshold),
                NAMED_CASE(rows_of_whole_quads_with_runs_of_others),
                NAMED_CASE(slices_of_several_rounds_of_columns),
                NAMED_CASE(every_variant_with_little_shared_memory),
                NAMED_CASE(one_block_for_rows_of_many_parts),
                NAMED_CASE(blocks_that_go_over_many_groups), NAMED_CASE(work_goes_to_the_stream),
                NAMED_CASE(errors_of_the_runtime_are_returned)};
            // What these show, sanitizers do not look at.
            const list_of_cases cases_of_bits = {NAMED_CASE(scales_near_the_middle_between_floats),
                NAMED_CASE(sizes_far_from_one), NAMED_CASE(same_bits_in_every_order_on_every_grid),
                NAMED_CASE(sums_are_the_same_to_the_last_bit),
                NAMED_CASE(rows_are_read_and_written_in_whole_sectors),
                NAMED_CASE(neighbouring_columns_are_read_and_written_together)};
            const list_of_cases far_cases = {NAMED_CASE(more_values_than_32_bits_can_count),
                NAMED_CASE(more_groups_than_32_bits_can_count),
                NAMED_CASE(more_sums_of_runs_than_32_bits_can_count),
                NAMED_CASE(columns_further_apart_than_32_bits_can_count),
                NAMED_CASE(one_group_longer_than_32_bits_can_count)};

            for (const auto& c : cases)
                run(c.first, c.second);
            for (const auto& c : cases_of_bits)
            {
                if (!is_sanitized)
                    run(c.first, c.second);
            }
            for (const auto& c : far_cases)
            {
                if (has_addresses_for_far_cases())
                    run(c.first, c.second);
                else
                    skip_case("kernels: " + c.first, "the system gives no 200 GiB of addresses");
            }
        }

    private:
        static void run(const std::string& name, void (*body)())
        {
            run_case("kernels: " + name,
                [&]()
                {
                    // The order of every case depends on the seed alone.
                    set_seed(seed());
                    try
                    {
                        body();
                    }
                    catch (std::exception& e)
                    {
                        throw dlib::error(std::string(e.what()) + "\nCUDA_ON_CPU_SEED=" +
                            std::to_string(seed()) + " repeats the order of blocks and threads");
                    }
                });
        }

        static bool has_addresses_for_far_cases()
        {
            try
            {
                const sparse_memory memory(std::size_t(200) << 30);
                return true;
            }
            catch (std::bad_alloc&)
            {
                return false;
            }
        }
    } a;
}
