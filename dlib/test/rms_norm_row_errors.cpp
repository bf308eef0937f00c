// License: Boost Software License   See LICENSE.txt for the full license.

// Broken contracts of the functions on rows: each is refused with a message that names the values,
// and nothing is touched. Views of one buffer whose rows lie side by side are none.

#include "refusals.h"
#include "rms_norm_row_runs.h"

namespace
{

    using namespace test;
    namespace contrib = dlib::contrib;
    namespace cpu = dlib::contrib::cpu;

    // ----------------------------------------------------------------------------------------

    struct row_call
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Arguments that are right, for a test to spoil one of them: 6 rows of 8 values, 20
                apart, each argument in a buffer of its own. Copies have the same buffers, so what
                is in them is kept beside.
        !*/
        static constexpr long long rows = 6, size = 8, stride = 20;

        row_call()
        {
            for (float16* p : {x(), r(), h(), y(), d(), dx(), dh()})
            {
                for (int i = 0; i < 400; ++i)
                    p[i] = float16(static_cast<float>(i % 17 + 1));
            }
            for (float16* p : {gamma(), dgamma()})
                std::fill_n(p, 400, float16(2.0f));
            for (float* p : {scale(), dgamma_float(), dscale()})
                std::fill_n(p, 400, 0.5f);
            f.groups = b.groups = contrib::rms_norm_rows(rows, size, true);
            f.eps = 1e-5;
            f.x = x();
            f.r = r();
            f.h = h();
            f.y = y();
            f.gamma = b.gamma = gamma();
            f.scale = scale();
            f.x_stride = f.r_stride = f.h_stride = f.y_stride = stride;
            b.d = d();
            b.x = x();
            b.scale = scale();
            b.dx = dx();
            b.dh = dh();
            b.dgamma = dgamma();
            b.dscale = dscale();
            b.d_stride = b.x_stride = b.dx_stride = b.dh_stride = stride;
            before = memory();
        }

        static float16* x() { return shorts(0); }
        static float16* r() { return shorts(1); }
        static float16* h() { return shorts(2); }
        static float16* y() { return shorts(3); }
        static float16* d() { return shorts(4); }
        static float16* dx() { return shorts(5); }
        static float16* dh() { return shorts(6); }
        static float16* gamma() { return shorts(7); }
        static float16* dgamma() { return shorts(8); }
        static float* scale() { return floats(0); }
        static float* dgamma_float() { return floats(1); }
        static float* dscale() { return floats(2); }

        rms_norm_forward<float16> f;
        rms_norm_backward<float16> b;
        std::string before;

        bool operator==(const row_call&) const { return memory() == before; }

    private:
        static std::vector<float16>& all_shorts()
        {
            static std::vector<float16> all(9 * 400);
            return all;
        }
        static std::vector<float>& all_floats()
        {
            static std::vector<float> all(3 * 400);
            return all;
        }
        static float16* shorts(std::size_t i) { return all_shorts().data() + i * 400; }
        static float* floats(std::size_t i) { return all_floats().data() + i * 400; }
        static std::string memory()
        {
            return std::string(reinterpret_cast<const char*>(all_shorts().data()), 9 * 400 * 2) +
                std::string(reinterpret_cast<const char*>(all_floats().data()), 3 * 400 * 4);
        }
    };

    void forward(row_call& c) { cpu::rms_normalize(c.f); }

    void backward(row_call& c) { cpu::rms_normalize_gradient(c.b); }

    using spoiler = std::function<void(row_call&)>;

    void forward_refused(const spoiler& spoil, const std::vector<std::string>& words)
    {
        refused<row_call>(spoil, forward, words);
    }

    void backward_refused(const spoiler& spoil, const std::vector<std::string>& words)
    {
        refused<row_call>(spoil, backward, words);
    }

    void allowed(const spoiler& spoil)
    {
        for (const auto& run : {forward, backward})
        {
            const std::string result = in_child_process(
                [&]() { return what_happens<row_call>(spoil, run, {}); });
            DLIB_TEST_MSG(result == "it was not refused", result);
        }
    }

    template <typename T>
    T* moved(T* p, int bytes)
    {
        return reinterpret_cast<T*>(
            reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes));
    }

    // ----------------------------------------------------------------------------------------

    void right_rows_are_not_refused()
    {
        allowed([](row_call&) {});
        allowed([](row_call& c) { c.f.x_stride = c.b.x_stride = c.size; });
        allowed([](row_call& c) { c.f.x_stride = c.b.x_stride = 0; });
        allowed([](row_call& c) { c.f.y = c.x(), c.f.h = c.r(), c.b.dx = c.d(); });
        allowed([](row_call& c) { c.b.dx = c.dh(); });
        allowed([](row_call& c) { c.f.r = c.f.h = nullptr, c.b.dh = nullptr, c.b.add = true; });
        allowed([](row_call& c) { c.b.dgamma = nullptr, c.b.dscale = nullptr; });
        allowed([](row_call& c) { c.b.dgamma = nullptr, c.b.dgamma_float = c.dgamma_float(); });
        // one beside the other in the rows of a buffer, and between each other's rows
        for (int at : {8, 9, 12, 20 + 8, 3 * 20 - 8})
            allowed([at](row_call& c) { c.f.y = c.x() + at, c.b.dx = c.d() + at; });
        allowed(
            [](row_call& c)
            {
                c.f.groups.outer = c.b.groups.outer = 3;
                c.f.x_stride = c.b.d_stride = 40;
                c.f.y = c.x() + 8, c.b.dx = c.d() + 8;
                c.f.y_stride = c.b.dx_stride = 12;
                // x at 0, 40, 80 and y at 8, 20, 32
            });
    }

    void sizes_and_options()
    {
        using std::to_string;
        const auto both_refused = [](const auto& spoil, const std::vector<std::string>& words)
        {
            forward_refused([&](row_call& c) { spoil(c.f); }, words);
            backward_refused([&](row_call& c) { spoil(c.b); }, words);
        };
        both_refused([](auto& p) { p.groups.outer = -1; }, {"groups.outer:    -1"});
        both_refused([](auto& p) { p.groups.size = -8; }, {"groups.size:     -8"});
        both_refused([](auto& p) { p.groups.stride = 2; }, {"groups.stride:   2"});
        both_refused([](auto& p) { p.groups.gain_run = 4; }, {"groups.gain_run: 4"});
        both_refused([](auto& p) { p.groups.num_gains = 7; },
            {"groups.num_gains: 7", "groups.size:      8"});
        both_refused([](auto& p) { p.gain_offset = HUGE_VALF; }, {"gain_offset: inf"});
        both_refused([](auto& p) { p.casting = static_cast<rms_norm_casting>(3); }, {"casting: 3"});
        both_refused([](auto& p) { p.groups.num_gains = 0; }, {"There are no gains, but gamma"});
        forward_refused([](row_call& c) { c.f.eps = 0; }, {"eps: 0"});
        forward_refused([](row_call& c) { c.f.eps = std::nan(""); }, {"eps: "});

        for (long long stride : {7LL, 1LL, -20LL, 1LL << 60})
        {
            const std::string value = to_string(stride);
            const auto named = [&](const char* name)
            {
                return std::vector<std::string>{
                    std::string(name) + "_stride: " + value, "groups.size:  8", "groups.outer: 6"};
            };
            forward_refused([&](row_call& c) { c.f.x_stride = stride; }, named("x"));
            forward_refused([&](row_call& c) { c.f.y_stride = stride; }, named("y"));
            forward_refused([&](row_call& c) { c.f.r_stride = stride; }, named("r"));
            forward_refused([&](row_call& c) { c.f.h_stride = stride; }, named("h"));
            backward_refused([&](row_call& c) { c.b.d_stride = stride; }, named("d"));
            backward_refused([&](row_call& c) { c.b.x_stride = stride; }, named("x"));
            backward_refused([&](row_call& c) { c.b.dx_stride = stride; }, named("dx"));
            backward_refused([&](row_call& c) { c.b.dh_stride = stride; }, named("dh"));
        }
    }

    void null_pointers()
    {
        forward_refused([](row_call& c) { c.f.x = nullptr; }, {"x is null"});
        forward_refused([](row_call& c) { c.f.y = nullptr; }, {"y is null"});
        forward_refused([](row_call& c) { c.f.scale = nullptr; }, {"scale is null"});
        forward_refused(
            [](row_call& c) { c.f.gamma = nullptr; }, {"gamma is null", "groups.num_gains: 8"});
        forward_refused([](row_call& c) { c.f.r = nullptr; }, {"r and h", "r: 0"});
        forward_refused([](row_call& c) { c.f.h = nullptr; }, {"r and h", "h: 0"});
        backward_refused([](row_call& c) { c.b.d = nullptr; }, {"d is null"});
        backward_refused([](row_call& c) { c.b.x = nullptr; }, {"x is null"});
        backward_refused([](row_call& c) { c.b.scale = nullptr; }, {"scale is null"});
        backward_refused([](row_call& c) { c.b.dx = nullptr; }, {"dx is null"});
        backward_refused(
            [](row_call& c) { c.b.gamma = nullptr; }, {"gamma is null", "groups.num_gains: 8"});
        backward_refused([](row_call& c) { c.b.add = true; }, {"add: true", "dh:  "});
        backward_refused([](row_call& c) { c.b.dgamma_float = c.dgamma_float(); },
            {"dgamma:       ", "dgamma_float: "});
        backward_refused(
            [](row_call& c)
            {
                c.b.groups.num_gains = 0;
                c.b.gamma = nullptr;
            },
            {"There are no gains, but dgamma"});
    }

    void odd_addresses()
    {
        const auto odd = [](const char* name, int bytes)
        {
            return std::vector<std::string>{"The address of " + std::string(name) +
                " has to be a multiple of " + std::to_string(bytes)};
        };
        forward_refused([](row_call& c) { c.f.x = moved(c.f.x, 1); }, odd("x", 2));
        forward_refused([](row_call& c) { c.f.y = moved(c.f.y, 1); }, odd("y", 2));
        forward_refused([](row_call& c) { c.f.r = moved(c.f.r, 1); }, odd("r", 2));
        forward_refused([](row_call& c) { c.f.h = moved(c.f.h, 1); }, odd("h", 2));
        forward_refused([](row_call& c) { c.f.gamma = moved(c.f.gamma, 1); }, odd("gamma", 2));
        forward_refused([](row_call& c) { c.f.scale = moved(c.f.scale, 2); }, odd("scale", 4));
        backward_refused([](row_call& c) { c.b.d = moved(c.b.d, 1); }, odd("d", 2));
        backward_refused([](row_call& c) { c.b.x = moved(c.b.x, 1); }, odd("x", 2));
        backward_refused([](row_call& c) { c.b.dx = moved(c.b.dx, 1); }, odd("dx", 2));
        backward_refused([](row_call& c) { c.b.dh = moved(c.b.dh, 1); }, odd("dh", 2));
        backward_refused([](row_call& c) { c.b.dgamma = moved(c.b.dgamma, 1); }, odd("dgamma", 2));
        backward_refused([](row_call& c) { c.b.dscale = moved(c.b.dscale, 2); }, odd("dscale", 4));
        backward_refused(
            [](row_call& c)
            {
                c.b.dgamma = nullptr;
                c.b.dgamma_float = moved(c.dgamma_float(), 2);
            },
            odd("dgamma_float", 4));
    }

    void rows_that_overlap()
    {
        const auto overlap = [](const char* one, const char* other)
        {
            return std::vector<std::string>{
                "The memory of " + std::string(one) + " overlaps that of " + other,
                "6 rows of 16 bytes, 40 apart"};
        };
        // the first row, one in the middle and the last one, by one value
        for (int at : {1, 7, -1, -7, 20, 21, 13, 5 * 20 + 7, -5 * 20 - 7})
        {
            forward_refused([=](row_call& c) { c.f.y = c.x() + at; }, overlap("y", "x"));
            forward_refused([=](row_call& c) { c.f.h = c.r() + at; }, overlap("h", "r"));
            backward_refused([=](row_call& c) { c.b.dx = c.d() + at; }, overlap("dx", "d"));
            backward_refused([=](row_call& c) { c.b.dx = c.dh() + at; }, overlap("dx", "dh"));
        }
        for (int at : {0, 7, 20, 5 * 20 + 7})
        {
            forward_refused([=](row_call& c) { c.f.y = c.r() + at; }, overlap("y", "r"));
            forward_refused([=](row_call& c) { c.f.h = c.x() + at; }, overlap("h", "x"));
            forward_refused([=](row_call& c) { c.f.h = c.y() + at; }, overlap("h", "y"));
            forward_refused([=](row_call& c) { c.f.gamma = c.y() + at; }, overlap("y", "gamma"));
            forward_refused([=](row_call& c) { c.f.gamma = c.h() + at; }, overlap("h", "gamma"));
            backward_refused([=](row_call& c) { c.b.dx = c.x() + at; }, overlap("dx", "x"));
            backward_refused([=](row_call& c) { c.b.gamma = c.dx() + at; }, overlap("dx", "gamma"));
            backward_refused([=](row_call& c) { c.b.dgamma = c.d() + at; }, overlap("dgamma", "d"));
            backward_refused([=](row_call& c) { c.b.dgamma = c.x() + at; }, overlap("dgamma", "x"));
            backward_refused(
                [=](row_call& c) { c.b.dgamma = c.dh() + at; }, overlap("dgamma", "dh"));
            backward_refused(
                [=](row_call& c) { c.b.dgamma = c.dx() + at; }, overlap("dgamma", "dx"));
        }
        const auto as_floats = [](float16* p) { return reinterpret_cast<float*>(p); };
        forward_refused([&](row_call& c) { c.f.scale = as_floats(c.x()); }, overlap("scale", "x"));
        forward_refused([&](row_call& c) { c.f.scale = as_floats(c.r()); }, overlap("scale", "r"));
        forward_refused([&](row_call& c) { c.f.scale = as_floats(c.y()); }, overlap("scale", "y"));
        forward_refused([&](row_call& c) { c.f.scale = as_floats(c.h()); }, overlap("scale", "h"));
        forward_refused([&](row_call& c) { c.f.scale = as_floats(c.gamma()); },
            {"The memory of scale overlaps that of gamma"});
        backward_refused(
            [&](row_call& c) { c.b.scale = as_floats(c.dx()); }, overlap("dx", "scale"));
        backward_refused([&](row_call& c) { c.b.dgamma = c.gamma(); },
            {"The memory of dgamma overlaps that of gamma", "1 rows of 16 bytes"});
        backward_refused([&](row_call& c) { c.b.scale = as_floats(c.dgamma()); },
            {"The memory of dgamma overlaps that of scale"});
        backward_refused([&](row_call& c) { c.b.dscale = c.scale(); },
            {"The memory of dscale overlaps that of scale", "1 rows of 24 bytes"});
        for (const char* name : {"d", "x", "dh", "dx"})
        {
            backward_refused(
                [&](row_call& c)
                {
                    c.b.dscale = as_floats(name == std::string("d") ? c.d()
                            : name == std::string("x")              ? c.x()
                            : name == std::string("dh")             ? c.dh()
                                                                    : c.dx());
                },
                overlap("dscale", name));
            backward_refused(
                [&](row_call& c)
                {
                    c.b.dgamma = nullptr;
                    c.b.dgamma_float = as_floats(name == std::string("d") ? c.d()
                            : name == std::string("x")                    ? c.x()
                            : name == std::string("dh")                   ? c.dh()
                                                                          : c.dx());
                },
                overlap("dgamma_float", name));
        }
        backward_refused([&](row_call& c) { c.b.dscale = as_floats(c.gamma()); },
            {"The memory of dscale overlaps that of gamma"});
        backward_refused([&](row_call& c) { c.b.dscale = as_floats(c.dgamma()); },
            {"The memory of dscale overlaps that of dgamma"});
        backward_refused(
            [&](row_call& c)
            {
                c.b.dgamma = nullptr;
                c.b.dgamma_float = c.dscale();
            },
            {"The memory of dscale overlaps that of dgamma_float"});
        // what is added to must not be the gradient itself
        backward_refused(
            [](row_call& c)
            {
                c.b.add = true;
                c.b.dh = nullptr;
                c.b.dx = c.d();
            },
            overlap("dx", "d"));
        // the same address, but other rows
        forward_refused(
            [](row_call& c)
            {
                c.f.y = c.x();
                c.f.y_stride = 8;
            },
            {"The memory of y overlaps that of x", "6 rows of 16 bytes, 16 apart"});
        // two strides, and only the last rows meet
        forward_refused(
            [](row_call& c)
            {
                c.f.groups.outer = 3;
                c.f.x_stride = 40;
                c.f.y = c.x() + 13;
                c.f.y_stride = 36;
                // x at 0, 40, 80 and y at 13, 49, 85
            },
            {"The memory of y overlaps that of x", "3 rows of 16 bytes, 80 apart"});
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_row_errors_tester : public tester
    {
    public:
        rms_norm_row_errors_tester() :
            tester("rms_norm_row_errors", "Run tests on what the functions on rows refuse.")
        {
        }

        void perform_test() override
        {
            RUN_CASE(right_rows_are_not_refused());
            RUN_CASE(sizes_and_options());
            RUN_CASE(null_pointers());
            RUN_CASE(odd_addresses());
            RUN_CASE(rows_that_overlap());
        }
    } a_rms_norm_row_errors_tester;

    // ----------------------------------------------------------------------------------------

}
