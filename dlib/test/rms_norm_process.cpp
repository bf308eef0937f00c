// License: Boost Software License   See LICENSE.txt for the full license.

// What a process does around the functions: it forks and runs out of memory.

#include <cstdlib>
#include <new>
#include <sstream>
#include <dlib/dnn.h>
#include <dlib/md5.h>
#include <dlib/rms_norm.h>
#include <dlib/threads.h>
#include "child_process.h"
#include "failing_allocations.h"
#include "rms_norm_runs.h"

namespace
{

    using namespace test;
    using namespace dlib;
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_gain;

    std::string bits_of(const rms_norm_result& r)
    {
        std::string bytes;
        for (const auto* v : {&r.dest, &r.scale, &r.src_grad, &r.gamma_grad, &r.dscale})
            bytes.append(reinterpret_cast<const char*>(v->data()), v->size() * sizeof(float));
        return md5(bytes);
    }

    std::string bits_of(const rms_norm_problem& p)
    {
        rms_norm_result r;
        run_forward(rms_norm_backends().front(), p, 0, r);
        run_gradient(rms_norm_backends().front(), p, 0, r);
        return bits_of(r);
    }

    rms_norm_problem problem_for_threads()
    {
        random_source rnd(41);
        return random_problem(
            rnd, rms_norm_axes::row, rms_norm_gain::per_channel, {64, 1, 1, 4096});
    }

    std::string hex(const std::string& output_of, const std::string& begin)
    /*!
        ensures
            - returns what follows begin in the line of output_of that starts with it
    !*/
    {
        std::istringstream sin(output_of);
        for (std::string line; std::getline(sin, line);)
        {
            if (line.compare(0, begin.size(), begin) == 0)
                return line.substr(begin.size());
        }
        return "";
    }

    // ----------------------------------------------------------------------------------------

    std::string train()
    {
        using net_type = loss_mean_squared<fc<1, contrib::rms_norm_row<input<matrix<float>>>>>;
        std::srand(1); // dlib's fc_ starts its random numbers with std::rand()
        net_type net;
        std::vector<matrix<float>> samples;
        std::vector<float> labels;
        dlib::rand rnd;
        for (int i = 0; i < 64; ++i)
        {
            matrix<float> m(1, 4096);
            for (float& v : m)
                v = rnd.get_random_float() - 0.5f;
            samples.push_back(m);
            labels.push_back(m(0) > 0 ? 1.0f : -1.0f);
        }
        // dlib's trainer has threads of its own, and does not work in a forked child.
        resizable_tensor x;
        net.to_tensor(samples.begin(), samples.end(), x);
        std::vector<sgd> solvers(net_type::num_computational_layers, sgd(0.01f, 0.9f));
        for (int step = 0; step < 3; ++step)
        {
            net.compute_parameter_gradients(x, labels.begin());
            net.update_parameters(solvers, 0.01);
        }
        net.clean();
        std::ostringstream sout;
        serialize(net, sout);
        return md5(sout.str());
    }

    class after_fork_tester : public tester
    {
    public:
        after_fork_tester() :
            tester("print_rms_norm_fork",
                "Fork before and after the thread pool has been used, and compare the bits in the "
                "child. rms_norm_process runs it with several numbers of threads.")
        {
        }

        void perform_test() override
        {
            const rms_norm_problem p = problem_for_threads();

            // The pool's threads are there, but not from a call of ours. The second child is
            // forked when ours have used them.
            parallel_for(0, 1000, [](long) {});
            const std::string first = in_child_process([&]() { return bits_of(p); });
            const std::string expected = bits_of(p);
            const std::string expected_net = train();
            DLIB_TEST(first == expected);
            DLIB_TEST(in_child_process([&]() { return bits_of(p); }) == expected);
            DLIB_TEST(in_child_process([&]() { return bits_of(p), bits_of(p); }) == expected);
            DLIB_TEST(in_child_process(train) == expected_net);
            // and a child of a child
            DLIB_TEST(in_child_process([&]()
                          { return in_child_process([&]() { return bits_of(p); }); }) == expected);
            std::cout << "\nforked: " << expected << std::endl;
        }
    } an_after_fork_tester;

    void a_forked_child()
    {
        const std::string expected = hex(run_again(1, "print_rms_norm_fork"), "forked: ");
        DLIB_TEST(!expected.empty());
        for (int num_threads : {2, 4})
            DLIB_TEST(hex(run_again(num_threads, "print_rms_norm_fork"), "forked: ") == expected);
    }

    // ----------------------------------------------------------------------------------------

    template <typename objects, typename function>
    int fails_at_each_allocation(const objects& begin, const function& f, const std::string& what)
    /*!
        requires
            - f(objects&) returns a string that tells what came out, and objects::unchanged(begin)
              whether what must not change is as it was
        ensures
            - checks that f, when one of its allocations fails, throws std::bad_alloc or gets by
              without that memory, and that the next call with the same objects is right
            - returns how often it threw
    !*/
    {
        objects good = begin;
        const std::string expected = f(good);
        int thrown = 0;
        for (long n = 0;; ++n)
        {
            objects o = begin;
            bool has_thrown = false;
            std::string result;
            allocations_before_failure = n;
            try
            {
                result = f(o);
            }
            catch (std::bad_alloc&)
            {
                has_thrown = true;
            }
            const bool no_allocation_failed = allocations_before_failure >= 0;
            allocations_before_failure = -1;

            thrown += has_thrown;
            DLIB_TEST_MSG(has_thrown || result == expected, what << ", allocation " << n);
            if (has_thrown)
            {
                DLIB_TEST_MSG(o.unchanged(begin), what << ", allocation " << n);
                DLIB_TEST_MSG(f(o) == expected, what << ", the call after allocation " << n);
            }
            if (no_allocation_failed)
                break;
        }
        return thrown;
    }

    struct tensors
    {
        rms_norm_problem p;
        resizable_tensor src, gamma, d, dest, scale, src_grad, gamma_grad, dscale;

        explicit tensors(const rms_norm_problem& p_) :
            p(p_)
        {
            const auto fill = [](resizable_tensor& t, const contrib::rms_norm_dims& dims,
                                  const std::vector<float>& values)
            {
                t.set_size(dims.num_samples, dims.k, dims.nr, dims.nc);
                std::copy(values.begin(), values.end(), t.begin());
            };
            fill(src, p.dims, p.src);
            fill(gamma, gamma_shape(p), p.gamma);
            fill(d, p.dims, p.gradient_input);
            fill(src_grad, p.dims, p.old_src_grad);
            gamma_grad.copy_size(gamma);
            // outputs that are there already, and too small
            for (resizable_tensor* t : {&dest, &scale, &dscale})
            {
                t->set_size(1, 1, 1, 2);
                *t = 7;
            }
        }

        bool unchanged(const tensors& begin) const
        {
            // A tensor has memory for what it says it holds: every value can be read and written.
            for (resizable_tensor t : {dest, scale, dscale})
                t = 3;
            return same_bits(values_of(src), values_of(begin.src)) &&
                same_bits(values_of(gamma), values_of(begin.gamma)) &&
                same_bits(values_of(d), values_of(begin.d));
        }
    };

    void functions_without_memory()
    {
        random_source rnd(43);
        int thrown_forward = 0, thrown_backward = 0;
        for (rms_norm_axes axes :
            {rms_norm_axes::sample, rms_norm_axes::row, rms_norm_axes::channel})
        {
            for (const auto& dims : {contrib::rms_norm_dims{3, 4, 5, 6}, {64, 1, 1, 4096},
                     {8, 32, 32, 32}, {1, 1, 1, 300000}})
            {
                const tensors begin(random_problem(rnd, axes, rms_norm_gain::per_channel, dims));
                thrown_forward += fails_at_each_allocation(
                    begin,
                    [](tensors& t)
                    {
                        contrib::tt::rms_normalize(
                            t.p.axes, 0.5, 1e-5, t.dest, t.scale, t.src, t.gamma);
                        rms_norm_result r;
                        const long armed = allocations_before_failure.exchange(-1);
                        r.dest = values_of(t.dest);
                        r.scale = values_of(t.scale);
                        const std::string bits = bits_of(r);
                        allocations_before_failure = armed;
                        return bits;
                    },
                    "forward");

                tensors after_forward = begin;
                contrib::tt::rms_normalize(axes, 0.5, 1e-5, after_forward.dest, after_forward.scale,
                    after_forward.src, after_forward.gamma);
                thrown_backward += fails_at_each_allocation(
                    after_forward,
                    [](tensors& t)
                    {
                        // a call that throws may have added a part already
                        std::copy(
                            t.p.old_src_grad.begin(), t.p.old_src_grad.end(), t.src_grad.begin());
                        contrib::tt::rms_normalize_gradient(t.p.axes, 0.5, t.d, t.scale, t.src,
                            t.gamma, t.src_grad, t.gamma_grad, t.dscale);
                        rms_norm_result r;
                        const long armed = allocations_before_failure.exchange(-1);
                        r.src_grad = values_of(t.src_grad);
                        r.gamma_grad = values_of(t.gamma_grad);
                        r.dscale = values_of(t.dscale);
                        const std::string bits = bits_of(r);
                        allocations_before_failure = armed;
                        return bits;
                    },
                    "backward");
            }
        }
        DLIB_TEST(thrown_forward > 0 && thrown_backward > 0);
    }

    struct layer_and_file
    {
        contrib::rms_norm_ layer;
        std::string file;

        std::string saved() const
        {
            std::ostringstream sout;
            serialize(layer, sout);
            return sout.str();
        }

        bool unchanged(const layer_and_file& begin) const { return saved() == begin.saved(); }
    };

    void layers_without_memory()
    {
        random_source rnd(44);
        const auto sub_of = [&](const contrib::rms_norm_dims& dims)
        {
            return subnet_with_output(
                random_problem(rnd, rms_norm_axes::sample, rms_norm_gain::per_channel, dims));
        };
        const subnet_with_output small = sub_of({2, 3, 4, 5}), large = sub_of({2, 300, 4, 5});

        layer_and_file begin;
        begin.layer.setup(large);
        begin.file = begin.saved();
        begin.layer.setup(small);

        const auto saved = [](const layer_and_file& l)
        {
            const long armed = allocations_before_failure.exchange(-1);
            const std::string result = l.saved();
            allocations_before_failure = armed;
            return result;
        };
        const int in_setup = fails_at_each_allocation(
            begin,
            [&](layer_and_file& l)
            {
                l.layer.setup(large);
                return saved(l);
            },
            "setup");

        const int in_load = fails_at_each_allocation(
            begin,
            [&](layer_and_file& l)
            {
                const long armed = allocations_before_failure.exchange(-1);
                std::istringstream sin(l.file);
                allocations_before_failure = armed;
                deserialize(l.layer, sin);
                return saved(l);
            },
            "deserialize");

        const int in_forward = fails_at_each_allocation(
            begin,
            [&](layer_and_file& l)
            {
                resizable_tensor output;
                l.layer.forward(small, output);
                rms_norm_result r;
                const long armed = allocations_before_failure.exchange(-1);
                r.dest = values_of(output);
                const std::string bits = bits_of(r);
                allocations_before_failure = armed;
                return bits;
            },
            "forward of a layer");
        DLIB_TEST(in_setup > 0 && in_load > 0 && in_forward > 0);
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_process_tester : public tester
    {
    public:
        rms_norm_process_tester() :
            tester("rms_norm_process", "Run tests on forks and failing allocations.")
        {
        }

        void perform_test() override
        {
            RUN_CASE(a_forked_child());
            if (!allocations_can_fail())
                return skip_case("functions_without_memory, layers_without_memory",
                    "AddressSanitizer has an operator new of its own");
            RUN_CASE(functions_without_memory());
            RUN_CASE(layers_without_memory());
        }
    } a_rms_norm_process_tester;

    // ----------------------------------------------------------------------------------------

}
