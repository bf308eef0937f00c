// License: Boost Software License   See LICENSE.txt for the full license.
/*
    How fast RMS normalization is on the CPU, as a multiple of the time that moving the same
    bytes takes. A ratio lasts longer than a time: a neighbour on the machine slows both.
    So every function is timed in pairs with its bound, one right after the other, in the
    order bound-function, function-bound, bound-function..., and what counts is the median
    and the quartiles of the ratios of the pairs.

    The bounds work on the function's own tensors and on as many threads (DLIB_NUM_THREADS):

        forward         dest = src                      by memcpy
        backward        src_grad += gradient_input*src  element by element
        both            one after the other
        forward_read    memcpy, then a sum over dest, which shows whether the next layer
                        finds the output in cache. The function is followed by the same sum.

    Rows of 16 bits (and of float, for the passes with a residual) lie in the same memory. Their
    bounds move the same bytes, as integers:

        forward         y = x                           by memcpy
        backward        dx = d*x                        element by element
        fused_forward   h = x + r, y = x - r
        fused_backward  dx = d*x + dh
        add+forward     h = x + r, then our forward pass over h: what fusing saves. So is
        add+backward    our backward pass, then dx = dx + dh

    What a second thread brings is measured against a forked child, where our passes use one:

        forward_threads, backward_threads

    A few rows are in the cache, where a call costs more than moving bytes: their bound are the
    plain loops of rms_norm_plain.h.

    Google Benchmark lists, filters and reports the cases. It has no notion of a pair, so
    each of its benchmarks has one iteration, which makes all the pairs of a case.
*/

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <benchmark/benchmark.h>
#include <dlib/cmd_line_parser.h>
#include <dlib/cuda/cpu_dlib.h>
#include <dlib/cuda/tensor.h>
#include <dlib/revision.h>
#include <dlib/threads.h>

#include <dlib/rms_norm_config.h>
#include <dlib/cuda/rms_norm_cpu.h>
#include <dlib/cuda/rms_norm_plain.h>
#include <dlib/cuda/rms_norm_rows.h>
#include <dlib/cuda/rms_norm_tools.h>

namespace
{
    using dlib::contrib::rms_norm_axes;
    using dlib::contrib::rms_norm_backward;
    using dlib::contrib::rms_norm_dims;
    using dlib::contrib::rms_norm_forward;
    using dlib::contrib::rms_norm_groups;

    const double eps = 1e-5;

    // ----------------------------------------------------------------------------------------

    enum class pass
    {
        forward,
        backward,
        both,
        forward_read,
        forward_threads,
        backward_threads,
        fused_forward,
        fused_backward,
        instead_of_add_forward,
        instead_of_add_backward
    };

    const char* name_of(pass p)
    {
        switch (p)
        {
        case pass::forward: return "forward";
        case pass::backward: return "backward";
        case pass::both: return "both";
        case pass::forward_threads: return "forward_threads";
        case pass::backward_threads: return "backward_threads";
        case pass::fused_forward: return "fused_forward";
        case pass::fused_backward: return "fused_backward";
        case pass::instead_of_add_forward: return "add+forward";
        case pass::instead_of_add_backward: return "add+backward";
        default: return "forward_read";
        }
    }

    bool is_against_one_thread(pass p)
    {
        return p == pass::forward_threads || p == pass::backward_threads;
    }

    const char* bound_of(pass p, bool is_small)
    {
        if (is_small)
            return "plain loops";
        switch (p)
        {
        case pass::forward: return "memcpy";
        case pass::backward: return "stream";
        case pass::both: return "memcpy+stream";
        case pass::forward_threads:
        case pass::backward_threads: return "1 thread";
        case pass::fused_forward:
        case pass::fused_backward: return "stream";
        case pass::instead_of_add_forward: return "add+forward";
        case pass::instead_of_add_backward: return "add+backward";
        default: return "memcpy+sum";
        }
    }

    int values_moved_per_value(pass p, const std::string& subject)
    {
        switch (p)
        {
        case pass::backward:
        case pass::backward_threads: return subject.find("16") == std::string::npos ? 4 : 3;
        case pass::fused_forward:
        case pass::fused_backward:
        case pass::instead_of_add_forward:
        case pass::instead_of_add_backward: return 4;
        case pass::forward:
        case pass::forward_threads: return 2;
        case pass::both: return 6;
        default: return 3;
        }
    }

    const char* name_of(rms_norm_axes axes)
    {
        switch (axes)
        {
        case rms_norm_axes::sample: return "sample";
        case rms_norm_axes::row: return "row";
        default: return "channel";
        }
    }

    // ----------------------------------------------------------------------------------------

    struct target
    {
        // 0 means that there is none
        double forward = 0;
        double backward = 0;
    };

    struct problem
    {
        rms_norm_axes axes;
        rms_norm_dims dims;
        target aim;            // as multiples of the bound
        bool is_small = false; // its bound are the plain loops
    };

    struct data
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The tensors that every function and every bound works on. They stay allocated
                while their size stays the same, so that all of them find the same memory.
        !*/

        problem what;
        rms_norm_groups groups;
        dlib::resizable_tensor src, dest, gradient_input, src_grad;
        dlib::resizable_tensor gamma, beta, gamma_grad, beta_grad;
        dlib::resizable_tensor scale, means, dscale, dmeans;

        long long size() const { return what.dims.size(); }
    };

    void fill(dlib::tensor& t, float low, float high)
    {
        std::uint32_t state = 1;
        for (float& x : t)
        {
            state = state * 1664525u + 1013904223u;
            x = low + (high - low) * static_cast<float>(state >> 8) / 16777216.0f;
        }
    }

    void set_dims(dlib::resizable_tensor& t, const rms_norm_dims& d)
    {
        t.set_size(static_cast<long>(d.num_samples), static_cast<long>(d.k),
            static_cast<long>(d.nr), static_cast<long>(d.nc));
    }

    void shape_tensors(data& d, const rms_norm_dims& dims, const rms_norm_dims& gamma_dims)
    {
        for (auto* t : {&d.src, &d.dest, &d.gradient_input, &d.src_grad})
            set_dims(*t, dims);
        for (auto* t : {&d.gamma, &d.beta, &d.gamma_grad, &d.beta_grad})
            set_dims(*t, gamma_dims);
    }

    void make_data(data& d, const problem& what)
    {
        d.what = what;
        const rms_norm_dims gamma_dims = dlib::contrib::rms_norm_gamma_dims(
            what.axes, dlib::contrib::rms_norm_gain::per_channel, what.dims);
        make_rms_norm_groups(what.axes, what.dims, gamma_dims, d.groups);
        shape_tensors(d, what.dims, gamma_dims);
        fill(d.src, -2, 2);
        fill(d.gradient_input, -1, 1);
        fill(d.gamma, 0.5f, 1.5f);
        const rms_norm_dims scale_dims = dlib::contrib::rms_norm_scale_dims(what.axes, what.dims);
        set_dims(d.scale, scale_dims);
        set_dims(d.dscale, scale_dims);
        d.src_grad = 0;
        d.beta = 0;
    }

    // ----------------------------------------------------------------------------------------

    long num_threads()
    {
        return std::max(1L, static_cast<long>(dlib::default_thread_pool().num_threads_in_pool()));
    }

    template <typename F>
    void on_all_threads(long long n, F f)
    /*!
        ensures
            - calls f(begin, end) for one piece of [0, n) per thread. What is too small for
              threads to pay is one piece.
    !*/
    {
        const long threads = n < 65536 ? 1 : num_threads();
        if (threads == 1)
        {
            f(0LL, n);
            return;
        }
        dlib::parallel_for(
            dlib::default_thread_pool(), 0, threads,
            [&](long t) { f(n * t / threads, n * (t + 1) / threads); }, 1);
    }

    void copy_bound(data& d)
    {
        const float* src = d.src.host();
        float* dest = d.dest.host();
        on_all_threads(d.size(),
            [=](long long begin, long long end) {
                std::memcpy(dest + begin, src + begin,
                    static_cast<std::size_t>(end - begin) * sizeof(float));
            });
    }

    void stream_bound(data& d)
    {
        const float* b = d.gradient_input.host();
        const float* c = d.src.host();
        float* a = d.src_grad.host();
        on_all_threads(d.size(),
            [=](long long begin, long long end)
            {
                for (long long i = begin; i < end; ++i)
                    a[i] += b[i] * c[i];
            });
    }

    void read_output(data& d)
    {
        // A sum of integers may be reordered by the compiler, and so runs at full speed.
        const float* dest = d.dest.host();
        std::atomic<std::uint32_t> total(0);
        on_all_threads(d.size(),
            [dest, &total](long long begin, long long end)
            {
                std::uint32_t sum = 0;
                for (long long i = begin; i < end; ++i)
                {
                    std::uint32_t bits;
                    std::memcpy(&bits, dest + i, sizeof(bits));
                    sum += bits;
                }
                total += sum;
            });
        benchmark::DoNotOptimize(total.load());
    }

    // ----------------------------------------------------------------------------------------

    struct subject
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A function to be timed. prepare() gives the tensors the shape it wants, and
                kept_bytes() is what has to stay in memory from forward() to backward(),
                besides the input.
        !*/

        std::string name;
        bool uses_threads;
        std::function<bool(const problem&)> can_do;
        std::function<void(data&)> prepare;
        std::function<void(data&)> forward;
        std::function<void(data&)> backward;
        std::function<std::size_t(const data&)> kept_bytes;

        // of rows behind pointers: other passes, with bounds of their own
        std::size_t bytes_per_value = sizeof(float);
        std::map<pass, std::function<void(data&)>> passes;
        std::map<pass, std::function<void(data&)>> bounds;
    };

    std::size_t bytes(const dlib::tensor& t) { return t.size() * sizeof(float); }

    subject ours()
    {
        subject s;
        s.name = "contrib";
        s.uses_threads = true;
        s.can_do = [](const problem&) { return true; };
        s.prepare = [](data&) {};
        s.forward = [](data& d) {
            dlib::contrib::cpu::rms_normalize(d.what.axes, 0, eps, d.dest, d.scale, d.src, d.gamma);
        };
        s.backward = [](data& d)
        {
            dlib::contrib::cpu::rms_normalize_gradient(d.what.axes, 0, d.gradient_input, d.scale,
                d.src, d.gamma, d.src_grad, d.gamma_grad, d.dscale);
        };
        s.kept_bytes = [](const data& d) { return bytes(d.scale); };
        return s;
    }

    // ----------------------------------------------------------------------------------------

    // What one writes first: the formula, one group after the other.

    rms_norm_forward<float> forward_pass(data& d)
    {
        rms_norm_forward<float> pass;
        pass.groups = d.groups;
        pass.eps = eps;
        pass.x = d.src.host();
        pass.gamma = d.gamma.host();
        pass.y = d.dest.host();
        pass.scale = d.scale.host();
        return pass;
    }

    rms_norm_backward<float> backward_pass(data& d)
    {
        rms_norm_backward<float> pass;
        pass.groups = d.groups;
        pass.d = d.gradient_input.host();
        pass.x = d.src.host();
        pass.gamma = d.gamma.host();
        pass.scale = d.scale.host();
        pass.dx = d.src_grad.host();
        pass.add = true;
        pass.dgamma = d.gamma_grad.host();
        pass.dscale = d.dscale.host();
        return pass;
    }

    void plain_forward(data& d) { dlib::contrib::plain::rms_normalize(forward_pass(d)); }

    void plain_backward(data& d) { dlib::contrib::plain::rms_normalize_gradient(backward_pass(d)); }

    subject plain()
    {
        subject s;
        s.name = "plain";
        s.uses_threads = false;
        s.can_do = [](const problem& what) { return !what.is_small; };
        s.prepare = [](data&) {};
        s.forward = plain_forward;
        s.backward = plain_backward;
        s.kept_bytes = [](const data& d) { return bytes(d.scale); };
        return s;
    }

    // ----------------------------------------------------------------------------------------

    // dlib's own functions normalize whole samples. A sample of nc channels of one value each
    // is the same work as a row of nc columns, and the only shape for which all versions of
    // dlib's layer_normalize agree on how many numbers gamma has.

    bool is_row(const problem& p) { return p.axes == rms_norm_axes::row; }

    void rows_as_samples(data& d)
    {
        const long long nc = d.what.dims.nc;
        shape_tensors(d, {d.size() / nc, nc, 1, 1}, {1, nc, 1, 1});
    }

    // Later versions of dlib have the caller pass in what the function needs for itself.
    template <typename T>
    auto layer_norm_gradient(T& d, int) -> decltype(dlib::cpu::layer_normalize_gradient(eps,
        d.gradient_input,
        d.means,
        d.scale,
        d.src,
        d.gamma,
        d.src_grad,
        d.gamma_grad,
        d.beta_grad,
        d.dmeans,
        d.dscale))
    {
        dlib::cpu::layer_normalize_gradient(eps, d.gradient_input, d.means, d.scale, d.src, d.gamma,
            d.src_grad, d.gamma_grad, d.beta_grad, d.dmeans, d.dscale);
    }

    template <typename T>
    auto layer_norm_gradient(T& d, long) -> decltype(dlib::cpu::layer_normalize_gradient(eps,
        d.gradient_input,
        d.means,
        d.scale,
        d.src,
        d.gamma,
        d.src_grad,
        d.gamma_grad,
        d.beta_grad))
    {
        dlib::cpu::layer_normalize_gradient(eps, d.gradient_input, d.means, d.scale, d.src, d.gamma,
            d.src_grad, d.gamma_grad, d.beta_grad);
    }

    subject dlib_layer_norm()
    {
        subject s;
        s.name = "layer_norm";
        s.uses_threads = false;
        s.can_do = is_row;
        s.prepare = rows_as_samples;
        s.forward = [](data& d)
        { dlib::cpu::layer_normalize(eps, d.dest, d.means, d.scale, d.src, d.gamma, d.beta); };
        s.backward = [](data& d) { layer_norm_gradient(d, 0); };
        s.kept_bytes = [](const data& d) { return bytes(d.means) + bytes(d.scale); };
        return s;
    }

#ifdef DLIB_RMS_NORM_DLIB_HAS_ITS_OWN
    subject dlib_rms_norm()
    {
        subject s;
        s.name = "dlib_rms_norm";
        s.uses_threads = false;
        s.can_do = is_row;
        s.prepare = rows_as_samples;
        s.forward = [](data& d) { dlib::cpu::rms_normalize(eps, d.dest, d.scale, d.src, d.gamma); };
        s.backward = [](data& d)
        {
            dlib::cpu::rms_normalize_gradient(
                d.gradient_input, d.scale, d.src, d.gamma, d.src_grad, d.gamma_grad, d.dscale);
        };
        s.kept_bytes = [](const data& d) { return bytes(d.scale); };
        return s;
    }
#endif

    // ----------------------------------------------------------------------------------------

    // Rows of type T behind pointers, in the memory of the tensors.

    template <typename T>
    struct row_arrays
    {
        explicit row_arrays(data& d) :
            a(at(d.src)),
            b(at(d.gradient_input)),
            c(at(d.src_grad)),
            e(at(d.dest)),
            gamma(at(d.gamma)),
            dgamma(at(d.gamma_grad)),
            scale(d.scale.host()),
            groups(d.groups)
        {
        }

        static T* at(dlib::tensor& t) { return reinterpret_cast<T*>(t.host()); }

        rms_norm_forward<T> forward(bool fused) const
        {
            rms_norm_forward<T> p;
            p.groups = groups;
            p.eps = eps;
            p.x = a;
            p.gamma = gamma;
            p.y = e;
            p.scale = scale;
            p.r = fused ? b : nullptr;
            p.h = fused ? c : nullptr;
            return p;
        }

        rms_norm_backward<T> backward(bool fused) const
        {
            rms_norm_backward<T> p;
            p.groups = groups;
            p.d = b;
            p.x = a;
            p.gamma = gamma;
            p.scale = scale;
            p.dx = c;
            p.dh = fused ? e : nullptr;
            p.dgamma = dgamma;
            return p;
        }

        T *a, *b, *c, *e;
        T *gamma, *dgamma;
        float* scale;
        rms_norm_groups groups;
    };

    template <typename T>
    void fill_rows(dlib::tensor& t)
    {
        // From the front: a value of 16 bits lies where a float has been read.
        const auto* const from = reinterpret_cast<const unsigned char*>(t.host());
        auto* const to = reinterpret_cast<unsigned char*>(t.host());
        for (std::size_t i = 0; i < t.size(); ++i)
        {
            float value;
            std::memcpy(&value, from + i * sizeof(value), sizeof(value));
            const T converted(value);
            std::memcpy(to + i * sizeof(T), &converted, sizeof(T));
        }
    }

    template <typename I, typename F>
    void on_rows(data& d, const F& f)
    /*!
        ensures
            - calls f(a, b, c, e, i), the arrays taken as integers, for all values i
    !*/
    {
        const row_arrays<I> rows(d);
        on_all_threads(d.size(),
            [&](long long begin, long long end)
            {
                const I* __restrict__ const a = rows.a;
                I* __restrict__ const b = rows.b, * __restrict__ const c = rows.c, * __restrict__ const e = rows.e;
                for (long long i = begin; i < end; ++i)
                    f(a, b, c, e, i);
            });
    }

    template <typename T>
    subject rows_of(const std::string& type, bool is_plain)
    {
        using I = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
        namespace contrib = dlib::contrib;
        subject s;
        s.name = (is_plain ? "plain_" : "contrib_") + type;
        s.uses_threads = !is_plain;
        s.bytes_per_value = sizeof(T);
        s.can_do = [](const problem& what) {
            return what.axes == rms_norm_axes::row && (what.dims.nr == 2048 || what.dims.nr == 128);
        };
        s.prepare = [](data& d)
        {
            for (auto* t : {&d.src, &d.gradient_input, &d.dest, &d.src_grad, &d.gamma})
                fill_rows<T>(*t);
        };
        s.kept_bytes = [](const data& d) { return bytes(d.scale); };

        void (*forward)(const rms_norm_forward<T>&) = contrib::cpu::rms_normalize;
        void (*backward)(const rms_norm_backward<T>&) = contrib::cpu::rms_normalize_gradient;
        if (is_plain)
        {
            forward = contrib::plain::rms_normalize<T>;
            backward = contrib::plain::rms_normalize_gradient<T>;
        }
        s.forward = [=](data& d) { forward(row_arrays<T>(d).forward(false)); };
        s.backward = [=](data& d) { backward(row_arrays<T>(d).backward(false)); };
        const auto fused_forward = [=](data& d) { forward(row_arrays<T>(d).forward(true)); };
        const auto fused_backward = [=](data& d) { backward(row_arrays<T>(d).backward(true)); };
        if (sizeof(T) == 2)
        {
            s.passes = {{pass::forward, s.forward}, {pass::backward, s.backward}};
            s.bounds[pass::forward] = [](data& d)
            {
                const row_arrays<T> rows(d);
                on_all_threads(d.size(),
                    [=](long long begin, long long end)
                    {
                        std::memcpy(static_cast<void*>(rows.e + begin), rows.a + begin,
                            static_cast<std::size_t>(end - begin) * sizeof(T));
                    });
            };
            s.bounds[pass::backward] = [](data& d)
            {
                on_rows<I>(d,
                    [](auto* a, auto* b, auto* c, auto*, long long i)
                    { c[i] = static_cast<I>(a[i] * b[i]); });
            };
        }
        if (is_plain)
            return s;
        s.passes[pass::fused_forward] = fused_forward;
        s.bounds[pass::fused_forward] = [](data& d)
        {
            on_rows<I>(d,
                [](auto* a, auto* b, auto* c, auto* e, long long i)
                {
                    const I x = a[i], r = b[i];
                    c[i] = static_cast<I>(x + r);
                    e[i] = static_cast<I>(x - r);
                });
        };
        s.passes[pass::fused_backward] = fused_backward;
        s.bounds[pass::fused_backward] = [](data& d)
        {
            on_rows<I>(d,
                [](auto* a, auto* b, auto* c, auto* e, long long i)
                { c[i] = static_cast<I>(a[i] * b[i] + e[i]); });
        };
        s.passes[pass::instead_of_add_forward] = fused_forward;
        s.bounds[pass::instead_of_add_forward] = [=](data& d)
        {
            on_rows<I>(d,
                [](auto* a, auto* b, auto* c, auto*, long long i)
                { c[i] = static_cast<I>(a[i] + b[i]); });
            rms_norm_forward<T> p = row_arrays<T>(d).forward(false);
            p.x = row_arrays<T>(d).c;
            forward(p);
        };
        s.passes[pass::instead_of_add_backward] = fused_backward;
        s.bounds[pass::instead_of_add_backward] = [=](data& d)
        {
            backward(row_arrays<T>(d).backward(false));
            on_rows<I>(d,
                [](auto*, auto*, auto* c, auto* e, long long i)
                { c[i] = static_cast<I>(c[i] + e[i]); });
        };
        return s;
    }

    // ----------------------------------------------------------------------------------------

    using action = std::function<void(data&)>;

    action bound_action(const subject& s, pass p, bool is_small)
    {
        if (s.bounds.count(p) != 0)
            return s.bounds.at(p);
        if (is_small)
            return p == pass::forward ? plain_forward : plain_backward;
        switch (p)
        {
        case pass::forward: return copy_bound;
        case pass::backward: return stream_bound;
        case pass::both:
            return [](data& d)
            {
                copy_bound(d);
                stream_bound(d);
            };
        default:
            return [](data& d)
            {
                copy_bound(d);
                read_output(d);
            };
        }
    }

    action subject_action(const subject& s, pass p)
    {
        if (s.passes.count(p) != 0)
            return s.passes.at(p);
        switch (p)
        {
        case pass::forward:
        case pass::forward_threads: return s.forward;
        case pass::backward:
        case pass::backward_threads: return s.backward;
        case pass::both:
            return [s](data& d)
            {
                s.forward(d);
                s.backward(d);
            };
        default:
            return [s](data& d)
            {
                s.forward(d);
                read_output(d);
            };
        }
    }

    double seconds_for(const action& f, data& d, long calls)
    {
        const auto start = std::chrono::steady_clock::now();
        for (long i = 0; i < calls; ++i)
        {
            f(d);
            benchmark::ClobberMemory();
        }
        const std::chrono::duration<double> t = std::chrono::steady_clock::now() - start;
        return t.count() / static_cast<double>(calls);
    }

    class child_with_one_thread
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A forked child that has the caller's data and times f on it when told to. The pool
                has no threads there, so our passes use the caller's alone.
        !*/
    public:
        child_with_one_thread(const action& f, data& d)
        {
            int to_child[2], from_child[2];
            if (pipe(to_child) != 0 || pipe(from_child) != 0 || (child = fork()) < 0)
                throw dlib::error("can't start a child process");
            if (child == 0)
            {
                close(to_child[1]);
                long calls = 0;
                while (read(to_child[0], &calls, sizeof(calls)) == sizeof(calls))
                {
                    const double t = seconds_for(f, d, calls);
                    if (write(from_child[1], &t, sizeof(t)) != sizeof(t))
                        break;
                }
                _exit(0);
            }
            close(to_child[0]);
            close(from_child[1]);
            out = to_child[1];
            in = from_child[0];
        }

        child_with_one_thread(const child_with_one_thread&) = delete;

        ~child_with_one_thread()
        {
            close(out);
            close(in);
            waitpid(child, nullptr, 0);
        }

        double seconds(long calls) const
        {
            double t = 0;
            if (write(out, &calls, sizeof(calls)) != sizeof(calls) ||
                read(in, &t, sizeof(t)) != sizeof(t))
                throw dlib::error("the child process has ended");
            return t;
        }

    private:
        pid_t child = 0;
        int in = 0;
        int out = 0;
    };

    double quantile(std::vector<double> v, double q)
    {
        std::sort(v.begin(), v.end());
        const double at = q * static_cast<double>(v.size() - 1);
        const auto i = static_cast<std::size_t>(at);
        const auto next = std::min(i + 1, v.size() - 1);
        return v[i] + (at - static_cast<double>(i)) * (v[next] - v[i]);
    }

    struct effort
    {
        std::size_t min_pairs;
        std::size_t max_pairs;
        double seconds;
    };

    struct result
    {
        std::vector<double> bound;
        std::vector<double> time;
        std::vector<double> ratio;
    };

    // Returns the seconds that each of so many calls takes.
    using timer = std::function<double(long calls)>;

    result measure(long long size, const timer& bound, const timer& f, const effort& e)
    {
        // Short calls are repeated until the clock's own cost does not matter.
        const long calls = static_cast<long>(std::max(1LL, 262144 / size));

        result r;
        bound(1);
        f(1);
        double spent = 0;
        while (r.ratio.size() < e.min_pairs || (r.ratio.size() < e.max_pairs && spent < e.seconds))
        {
            const bool bound_first = r.ratio.size() % 2 == 0;
            double b = bound_first ? bound(calls) : 0;
            const double t = f(calls);
            if (!bound_first)
                b = bound(calls);
            r.bound.push_back(b);
            r.time.push_back(t);
            r.ratio.push_back(t / b);
            spent += (b + t) * static_cast<double>(calls);
        }
        return r;
    }

    // ----------------------------------------------------------------------------------------

    const char* const csv_head =
        "threads,axes,num_samples,k,nr,nc,pass,subject,bound,pairs,ratio_q1,ratio,ratio_q3,"
        "target_ratio,us,bound_us,gb_per_s,bound_gb_per_s,kept_bytes\n";

    void write_csv_line(std::ostream& out, const data& d, pass p, const subject& s, const result& r)
    {
        const rms_norm_dims& dims = d.what.dims;
        const target& aim = d.what.aim;
        const bool is_fused = p == pass::fused_forward || p == pass::fused_backward;
        const bool is_instead = p == pass::instead_of_add_forward ||
            p == pass::instead_of_add_backward;
        const double aim_ratio = is_instead     ? 0.75
            : is_against_one_thread(p)          ? (d.size() >= 262144 ? 0.65 : 1)
            : is_fused || s.bytes_per_value < 4 ? 1.3
            : p == pass::forward                ? aim.forward
            : p == pass::backward               ? aim.backward
                                                : 0;
        const double moved = 1e-9 * static_cast<double>(s.bytes_per_value) *
            values_moved_per_value(p, s.name) * static_cast<double>(d.size());
        const double time = quantile(r.time, 0.5);
        const double bound = quantile(r.bound, 0.5);
        out << num_threads() << ',' << name_of(d.what.axes) << ',' << dims.num_samples << ','
            << dims.k << ',' << dims.nr << ',' << dims.nc << ',' << name_of(p) << ',' << s.name
            << ',' << bound_of(p, d.what.is_small) << ',' << r.ratio.size() << ','
            << quantile(r.ratio, 0.25) << ',' << quantile(r.ratio, 0.5) << ','
            << quantile(r.ratio, 0.75) << ',';
        if (aim_ratio != 0)
            out << aim_ratio;
        out << ',' << time * 1e6 << ',' << bound * 1e6 << ',' << moved / time << ','
            << moved / bound << ',' << s.kept_bytes(d) << std::endl;
    }

    // ----------------------------------------------------------------------------------------

    std::string name_of(const problem& what)
    {
        const rms_norm_dims& d = what.dims;
        std::ostringstream sout;
        sout << name_of(what.axes) << '/';
        if (what.axes == rms_norm_axes::row)
            sout << d.num_samples * d.k * d.nr << 'x' << d.nc;
        else
            sout << d.num_samples << 'x' << d.k << 'x' << d.nr << 'x' << d.nc;
        return sout.str();
    }

    std::vector<problem> make_problems()
    {
        std::vector<problem> all;
        const auto row = rms_norm_axes::row;
        for (long long nc = 1024; nc <= 32768; nc *= 2)
            all.push_back({row, {1, 1, 2048, nc}, {1.15, 1.35}});
        // From the size on at which threads may be used.
        for (long long rows : {72, 144, 288, 576})
            all.push_back({row, {1, 1, rows, 1024}, {}});
        for (long long nc = 64; nc <= 4096; nc *= 4)
            all.push_back({row, {1, 1, 1, nc}, {1, 1}, true});
        all.push_back({row, {1, 1, 2, 1024}, {1, 1}, true});
        all.push_back({row, {1, 1, 4, 128}, {1, 1}, true});
        all.push_back({row, {1, 1, 8, 768}, {1, 1}, true});
        // A convolutional net halves the height and width where it doubles the channels.
        for (long long k = 64, side = 56; k <= 512; k *= 2, side /= 2)
            all.push_back({rms_norm_axes::sample, {32, k, side, side}, {1.3, 1.3}});
        for (long long k = 64, side = 56; k <= 256; k *= 2, side /= 2)
            all.push_back({rms_norm_axes::channel, {32, k, side, side}, {1.3, 1.3}});
        all.push_back({rms_norm_axes::channel, {32, 512, 14, 14}, {1.3, 1.3}});
        return all;
    }

    std::vector<problem> make_quick_problems()
    {
        // Too small for a target: they show that the program works.
        std::vector<problem> all;
        for (long long nc = 1024; nc <= 4096; nc *= 2)
            all.push_back({rms_norm_axes::row, {1, 1, 128, nc}, {}});
        all.push_back({rms_norm_axes::row, {1, 1, 1, 64}, {}, true});
        all.push_back({rms_norm_axes::sample, {4, 256, 14, 14}, {}});
        all.push_back({rms_norm_axes::channel, {4, 256, 14, 14}, {}});
        return all;
    }

    std::vector<subject> make_subjects()
    {
        using dlib::contrib::bfloat16;
        using dlib::contrib::float16;
        std::vector<subject> all = {ours(), plain(), dlib_layer_norm(),
            rows_of<float>("float", false), rows_of<float16>("float16", false),
            rows_of<bfloat16>("bfloat16", false), rows_of<float16>("float16", true),
            rows_of<bfloat16>("bfloat16", true)};
#ifdef DLIB_RMS_NORM_DLIB_HAS_ITS_OWN
        all.push_back(dlib_rms_norm());
#endif
        return all;
    }

    void run_case(benchmark::State& state,
        data& d,
        const problem& what,
        pass p,
        const subject& s,
        const effort& e,
        std::ostream& csv)
    {
        make_data(d, what);
        s.prepare(d);
        s.forward(d); // what backward starts from

        const action f = subject_action(s, p);
        timer bound;
        if (is_against_one_thread(p))
        {
            const auto child = std::make_shared<child_with_one_thread>(f, d);
            bound = [child](long calls) { return child->seconds(calls); };
        }
        else
        {
            const action g = bound_action(s, p, what.is_small);
            bound = [g, &d](long calls) { return seconds_for(g, d, calls); };
        }
        const result r = measure(
            d.size(), bound, [&](long calls) { return seconds_for(f, d, calls); }, e);
        for (auto _ : state)
            state.SetIterationTime(quantile(r.time, 0.5));
        state.counters["ratio_q1"] = quantile(r.ratio, 0.25);
        state.counters["ratio"] = quantile(r.ratio, 0.5);
        state.counters["ratio_q3"] = quantile(r.ratio, 0.75);
        write_csv_line(csv, d, p, s, r);
    }

    void register_cases(bool quick, std::ostream& csv)
    {
        const auto d = std::make_shared<data>();
        const effort full_effort = {15, 1001, 0.5};
        const effort rest_effort = {5, 101, 0.2};
        const effort quick_effort = {3, 25, 0.01};

        for (const problem& what : quick ? make_quick_problems() : make_problems())
        {
            for (const subject& s : make_subjects())
            {
                // Beside several threads, a function that has one says nothing.
                if (!s.can_do(what) || (num_threads() > 1 && !s.uses_threads))
                    continue;
                const effort e = quick                     ? quick_effort
                    : s.name.compare(0, 7, "contrib") == 0 ? full_effort
                                                           : rest_effort;
                std::vector<pass> passes = {
                    pass::forward, pass::backward, pass::both, pass::forward_read};
                if (!s.passes.empty())
                    passes.clear();
                for (const auto& own : s.passes)
                    passes.push_back(own.first);
                if (num_threads() > 1 && s.name == "contrib" && what.dims.size() > 65536)
                {
                    passes.push_back(pass::forward_threads);
                    passes.push_back(pass::backward_threads);
                }
                for (pass p : passes)
                {
                    if (what.is_small && p != pass::forward && p != pass::backward)
                        continue;
                    const std::string name = name_of(what) + '/' + name_of(p) + '/' + s.name;
                    benchmark::RegisterBenchmark(name.c_str(),
                        [=, &csv](benchmark::State& state)
                        { run_case(state, *d, what, p, s, e, csv); })
                        ->Iterations(1)
                        ->UseManualTime();
                }
            }
        }
    }

    // ----------------------------------------------------------------------------------------

    std::string processor()
    {
        std::ifstream fin("/proc/cpuinfo");
        std::string line;
        while (std::getline(fin, line))
        {
            if (line.compare(0, 10, "model name") == 0)
                return line.substr(line.find(':') + 2);
        }
        return "unknown processor";
    }

    std::string compiler()
    {
#if defined(__clang__)
        return "clang " __clang_version__;
#elif defined(__GNUC__)
        return "gcc " __VERSION__;
#else
        return "unknown compiler";
#endif
    }

    std::string describe_run()
    {
        const benchmark::CPUInfo& cpu = benchmark::CPUInfo::Get();
        std::ostringstream sout;
        sout << "# " << processor() << ", " << cpu.num_cpus << " cores";
        for (const auto& cache : cpu.caches)
        {
            if (cache.type != "Instruction")
                sout << ", L" << cache.level << ' ' << cache.size / 1024 << " KiB";
        }
        sout << "\n# " << compiler() << ", dlib " << DLIB_MAJOR_VERSION << '.' << DLIB_MINOR_VERSION
             << '.' << DLIB_PATCH_VERSION << ", instruction set "
             << dlib::contrib::cpu::rms_norm_instruction_set() << ", threads " << num_threads();
        if (!cpu.load_avg.empty())
            sout << ", load average " << std::fixed << std::setprecision(1) << cpu.load_avg.front();
        sout << '\n';
        return sout.str();
    }

    class progress_reporter : public benchmark::BenchmarkReporter
    {
    public:
        bool ReportContext(const Context&) override
        {
            std::cout << describe_run() << "# case, microseconds, multiple of the bound "
                      << "(lower quartile, median, upper quartile)\n";
            return true;
        }

        void ReportRuns(const std::vector<Run>& runs) override
        {
            for (const Run& run : runs)
            {
                std::cout << std::left << std::setw(44) << run.run_name.function_name << std::right
                          << std::fixed << std::setprecision(2) << std::setw(12)
                          << run.real_accumulated_time * 1e6;
                for (const char* counter : {"ratio_q1", "ratio", "ratio_q3"})
                    std::cout << std::setw(8) << run.counters.at(counter).value;
                std::cout << std::endl;
            }
        }
    };
}

// ----------------------------------------------------------------------------------------

int main(int argc, char** argv)
{
    benchmark::Initialize(&argc, argv);
    try
    {
        dlib::command_line_parser parser;
        parser.add_option("h",
            "Display this help message. Options of Google Benchmark, such "
            "as --benchmark_filter, are understood too.");
        parser.add_option("quick", "Few small cases, in a few seconds: shows that it works.");
        parser.add_option("csv", "Write the results to this file.", 1);
        parser.parse(argc, argv);
        if (parser.option("h"))
        {
            std::cout << "Usage: DLIB_NUM_THREADS=n rms_norm_benchmark [options]\n";
            parser.print_options(std::cout);
            return 0;
        }

        std::ofstream csv;
        if (parser.option("csv"))
        {
            csv.open(parser.option("csv").argument());
            csv << describe_run() << csv_head << std::flush;
            if (!csv)
                throw dlib::error("can't write to " + parser.option("csv").argument());
        }

        register_cases(parser.option("quick"), csv);
        progress_reporter reporter;
        benchmark::RunSpecifiedBenchmarks(&reporter);
        benchmark::Shutdown();
    }
    catch (const std::exception& e)
    {
        std::cerr << "rms_norm_benchmark: " << e.what() << std::endl;
        return 1;
    }
    return 0;
}
