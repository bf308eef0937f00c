// License: Boost Software License   See LICENSE.txt for the full license.

// The loops over contiguous groups of floats.

#include "rms_norm_simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/cuda/rms_norm_simd_rows.cpp"
#include <hwy/foreach_target.h>
#include "rms_norm_simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{
    namespace
    {

        // ------------------------------------------------------------------------------------
        //                                     forward
        // ------------------------------------------------------------------------------------

        // Chunks at a time.
        constexpr size_t step_chunks = 4;

        void add_offset(const float* gamma, float offset, float* gains, size_t size)
        {
            const auto add = [&](auto d, size_t i) HWY_ATTR
            { hn::StoreU(hn::Add(hn::Set(d, offset), hn::LoadU(d, gamma + i)), d, gains + i); };
            size_t i = 0;
            for (; i + num_floats <= size; i += num_floats)
                add(floats(), i);
            for (; i < size; ++i)
                add(one_float(), i);
        }

        template <class values>
        struct input_rows;

        template <>
        struct input_rows<only_x>
        {
            HWY_INLINE explicit input_rows(const rms_norm_forward<float>& p) :
                x(p.x, p.groups, p.x_stride)
            {
            }
            HWY_INLINE only_x operator[](size_t group) const { return {x[group]}; }

            rows<const float> x;
        };

        template <>
        struct input_rows<x_plus_r>
        {
            HWY_INLINE explicit input_rows(const rms_norm_forward<float>& p) :
                x(p.x, p.groups, p.x_stride),
                r(p.r, p.groups, p.r_stride),
                h(p.h, p.groups, p.h_stride)
            {
            }
            HWY_INLINE x_plus_r operator[](size_t group) const
            {
                return {x[group], r[group], h[group]};
            }

            rows<const float> x;
            rows<const float> r;
            rows<float> h;
        };

        // ------------------------------------------------------------------------------------

        rows<const float> normalized_rows(const rms_norm_forward<float>& p)
        {
            return p.h == nullptr ? rows<const float>(p.x, p.groups, p.x_stride)
                                  : rows<const float>(p.h, p.groups, p.h_stride);
        }

        template <class F>
        HWY_INLINE void with_values(const rms_norm_forward<float>& p, const F& f)
        {
            if (p.r == nullptr)
                f(input_rows<only_x>(p));
            else
                f(input_rows<x_plus_r>(p));
        }

        // ------------------------------------------------------------------------------------
        //                                       forward
        // ------------------------------------------------------------------------------------

        template <class values>
        struct squares
        {
            HWY_INLINE squares(const values& x_, size_t size_) :
                x(x_),
                chunks(size_ / chunk),
                size(size_)
            {
            }

            HWY_INLINE void step()
            {
                if (chunks < step_chunks)
                    return;
                HWY_UNROLL(4)
                for (size_t k = 0; k < step_chunks; ++k)
                {
                    x.prefetch(prefetch_distance + k * chunk);
                    lanes.add_squares(x, k * chunk);
                }
                x = x.from(step_chunks * chunk);
                chunks -= step_chunks;
            }

            HWY_INLINE double finish()
            {
                while (chunks >= step_chunks)
                    step();
                for (; chunks != 0; --chunks)
                {
                    lanes.add_squares(x, 0);
                    x = x.from(chunk);
                }
                if (size % chunk != 0)
                {
                    const padded last = x.last(size % chunk);
                    lanes.add_squares(only_x{last.values}, 0);
                }
                return lanes.total();
            }

        private:
            values x;
            size_t chunks;
            size_t size;
            sum_lanes lanes;
        };

        template <class values>
        double sum_squares_of_group(const values& x, size_t size)
        {
            double sum = 0;
            for (size_t b = 0; b < size; b += rms_norm_segment)
                sum += squares<values>(x.from(b), std::min(rms_norm_segment, size - b)).finish();
            return sum;
        }

        double sum_squares(const rms_norm_forward<float>& p, size_t group, size_t begin, size_t end)
        {
            double sum = 0;
            with_values(p,
                [&](const auto& x) HWY_ATTR
                { sum = sum_squares_of_group(x[group].from(begin), end - begin); });
            return sum;
        }

        template <bool stream, class formula, class values>
        HWY_INLINE double
        write_and_sum(formula& f, const float* y, size_t begin, size_t end, squares<values> next)
        {
            size_t i = begin;
            if constexpr (stream)
            {
                i = next_line(y, begin, end);
                write_few(f, begin, i);
            }
            for (; i + step_chunks * chunk <= end; i += step_chunks * chunk)
            {
                next.step();
                HWY_UNROLL(4)
                for (size_t k = 0; k < step_chunks; ++k)
                    write_chunk<stream>(f, i + k * chunk);
            }
            for (; i + chunk <= end; i += chunk)
                write_chunk<stream>(f, i);
            write_few(f, i, end);
            return next.finish();
        }

        // A short group is over before its neighbour's sum has come out of the pipeline: many of
        // them are summed, then written.
        constexpr size_t short_size = 512;
        constexpr size_t panel_size = 1024;
        constexpr size_t panel_groups = 32;

        template <bool stream, class inputs, class make_gains>
        void normalize_short_groups(const rms_norm_forward<float>& p,
            const inputs& x,
            const make_gains& gains,
            size_t first,
            size_t last)
        {
            using values = decltype(x[0]);
            const auto size = static_cast<size_t>(p.groups.size);
            const rows<const float> normalized = normalized_rows(p);
            const rows<float> y(p.y, p.groups, p.y_stride);
            const size_t groups = std::max<size_t>(1, std::min(panel_groups, panel_size / size));
            double sums[panel_groups];
            for (size_t g = first; g < last; g += groups)
            {
                const size_t n = std::min(groups, last - g);
                for (size_t j = 0; j < n; ++j)
                    sums[j] = squares<values>(x[g + j], size).finish();
                for (size_t j = 0; j < n; ++j)
                    p.scale[g + j] = scale_of_group(sums[j], size, p.eps);
                for (size_t j = 0; j < n; ++j)
                {
                    output<single, decltype(gains(0, size))> f{
                        normalized[g + j], y[g + j], {p.scale[g + j]}, gains(0, size)};
                    const values next = x[std::min(g + j + groups, last - 1)];
                    write_values<stream>(
                        f, f.y, 0, size, [&](size_t i) HWY_ATTR { next.prefetch(i); });
                }
            }
        }

        template <bool stream, class inputs, class make_gains>
        void normalize_long_groups(const rms_norm_forward<float>& p,
            const inputs& x,
            const make_gains& gains,
            size_t first,
            size_t last)
        {
            using values = decltype(x[0]);
            const auto size = static_cast<size_t>(p.groups.size);
            const rows<const float> normalized = normalized_rows(p);
            const rows<float> y(p.y, p.groups, p.y_stride);
            double sum = sum_squares_of_group(x[first], size);
            for (size_t g = first; g < last; ++g)
            {
                p.scale[g] = scale_of_group(sum, size, p.eps);
                sum = 0;
                const bool has_next = g + 1 < last;
                const values next_x = x[has_next ? g + 1 : g];
                for (size_t b = 0; b < size; b += rms_norm_segment)
                {
                    const size_t end = std::min(size, b + rms_norm_segment);
                    output<single, decltype(gains(b, size))> f{
                        normalized[g], y[g], {p.scale[g]}, gains(b, size)};
                    const squares<values> next(next_x.from(b), has_next ? end - b : 0);
                    sum += write_and_sum<stream>(f, f.y, b, end, next);
                }
            }
        }

        // Calls f with what writes y, as types.
        template <class F>
        HWY_INLINE void with_output(const rms_norm_gains& gains, bool stream, const F& f)
        {
            with_bool(stream,
                [&](auto streams) HWY_ATTR {
                    with_gains(
                        gains, [&](const auto& make_gains) HWY_ATTR { f(streams, make_gains); });
                });
            if (stream)
                hwy::FlushStream();
        }

        void normalize(const rms_norm_forward<float>& p,
            const rms_norm_gains& gains,
            size_t first,
            size_t last,
            bool stream)
        {
            with_output(gains, stream,
                [&](auto streams, const auto& make_gains) HWY_ATTR
                {
                    with_values(p,
                        [&](const auto& x) HWY_ATTR
                        {
                            if (static_cast<size_t>(p.groups.size) < short_size)
                                normalize_short_groups<streams>(p, x, make_gains, first, last);
                            else
                                normalize_long_groups<streams>(p, x, make_gains, first, last);
                        });
                });
        }

        void write(const rms_norm_forward<float>& p,
            const rms_norm_gains& gains,
            size_t group,
            size_t begin,
            size_t end,
            bool stream)
        {
            float* const y = rows<float>(p.y, p.groups, p.y_stride)[group];
            with_output(gains, stream,
                [&](auto streams, const auto& make_gains) HWY_ATTR
                {
                    output<single, decltype(make_gains(begin, end))> f{
                        normalized_rows(p)[group], y, {p.scale[group]}, make_gains(begin, end)};
                    write_values<streams>(f, y, begin, end,
                        [&](size_t at) HWY_ATTR { prefetch_at(f.x, at + prefetch_distance); });
                });
        }

        // ------------------------------------------------------------------------------------
        //                                     backward
        // ------------------------------------------------------------------------------------

        // The streams are taken in turns, so many values at a time (measured). The sum of a piece
        // asks for memory, of the next one mostly, for the writing too.
        constexpr size_t piece = num_floats >= 16 ? 512 : 128;

        // Where d*x*s goes, the share of a group in the gradients of the gains.

        struct gain_sums
        {
            HWY_INLINE void put(size_t i, vec v) const
            {
                hn::StoreU(hn::Add(hn::LoadU(doubles(), sums + i), v), doubles(), sums + i);
            }

            double* sums; // with room for whole chunks
        };

        // The only group's share is the gradient. Added to 0, because that makes -0 a 0.
        struct gain_gradients
        {
            HWY_INLINE void put(size_t i, vec v) const
            {
                const vec sum = hn::Add(hn::Zero(doubles()), v);
                hn::StoreU(hn::DemoteTo(half_floats(), sum), half_floats(), gradients + i);
            }

            float* gradients;
        };

        // Adds d*x*gains to the lanes.
        template <class destination>
        HWY_INLINE void add_chunk(sum_lanes& lanes,
            const float* d,
            const float* x,
            const float* g,
            double scale,
            const destination& to,
            size_t at)
        {
            if constexpr (std::is_same_v<destination, nothing>)
            {
                lanes.add_products(d, x);
            }
            else
            {
                HWY_UNROLL(16)
                for (size_t k = 0; k < vecs; ++k)
                {
                    const size_t i = k * num_doubles;
                    const vec t = hn::Mul(load_as_double(d + i), load_as_double(x + i));
                    lanes.v[k] = hn::Add(lanes.v[k], hn::Mul(t, load_as_double(g + i)));
                    to.put(at + i, hn::Mul(t, hn::Set(doubles(), scale)));
                }
            }
        }

        template <class destination>
        HWY_INLINE void add_last_values(sum_lanes& lanes,
            const float* d,
            const float* x,
            const float* g,
            double scale,
            const destination& to,
            size_t at,
            size_t count)
        {
            const padded last_d(d, count);
            const padded last_x(x, count);
            if constexpr (std::is_same_v<destination, nothing>)
            {
                add_chunk(lanes, last_d.values, last_x.values, nullptr, scale, to, at);
            }
            else if constexpr (std::is_same_v<destination, gain_sums>)
            {
                const padded last_g(g, count);
                add_chunk(lanes, last_d.values, last_x.values, last_g.values, scale, to, at);
            }
            else
            {
                const padded last_g(g, count);
                alignas(64) float last[chunk];
                add_chunk(lanes, last_d.values, last_x.values, last_g.values, scale,
                    gain_gradients{last}, 0);
                copy_less_than_chunk(last, count, to.gradients + at);
            }
        }

        // Adds the values [begin, end) of a group. end is a multiple of chunk from the beginning of
        // a segment or run, or its end.
        template <class destination>
        HWY_INLINE void add_values(sum_lanes& lanes,
            const float* d,
            const float* x,
            const float* g,
            float scale,
            const destination& to,
            const float* soon,
            size_t begin,
            size_t end)
        {
            sum_lanes sums = lanes;
            const double s = static_cast<double>(scale);
            size_t i = begin;
            for (; i + chunk <= end; i += chunk)
            {
                prefetch_at(d, i + prefetch_distance);
                prefetch_at(x, i + prefetch_distance);
                prefetch_at(soon, i + prefetch_distance);
                add_chunk(sums, d + i, x + i, g + i, s, to, i);
            }
            if (i < end)
                add_last_values(sums, d + i, x + i, g + i, s, to, i, end - i);
            lanes = sums;
        }

        struct group_gradient
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    One group of a backward pass.
            !*/
            HWY_INLINE
            group_gradient(const rms_norm_backward<float>& p,
                const gradient_rows<float>& at,
                size_t g) :
                d(at.d[g]),
                x(at.x[g]),
                old(at.old[g]),
                dx(at.dx[g]),
                scale(p.scale[g]),
                size(static_cast<size_t>(p.groups.size)),
                pass(&p),
                group(g)
            {
            }

            HWY_INLINE void finish(double products) { mean = finish_group(*pass, group, products); }

            const float* d;
            const float* x;
            const float* old;
            float* dx;
            float scale;
            size_t size;
            const rms_norm_backward<float>* pass;
            size_t group;
            float mean = 0;
        };

        // Writes dx of one group, sums the other, or both at the same time.
        template <bool writes, bool sums, bool add, class gains, class destination>
        HWY_INLINE void
        gradient_step(group_gradient& now, group_gradient& next, const gains& g, destination to)
        {
            input_gradient<add, single, gains> f{
                now.d, now.x, now.old, now.dx, {now.scale}, {now.mean}, g};
            const float* values = nullptr;
            if constexpr (gains::exists)
                values = g.values;

            double total = 0;
            for (size_t b = 0; b < next.size; b += rms_norm_segment)
            {
                sum_lanes lanes;
                const size_t segment_end = std::min(next.size, b + rms_norm_segment);
                for (size_t i = b; i < segment_end; i += piece)
                {
                    const size_t end = std::min(segment_end, i + piece);
                    if constexpr (sums)
                        add_values(lanes, next.d, next.x, values, next.scale, to, now.dx, i, end);
                    if constexpr (writes)
                        write_values<false>(f, now.dx, i, end, [](size_t) {});
                }
                total += lanes.total();
            }
            if constexpr (sums)
                next.finish(total);
        }

        // As gradient_step, for gains that are shared by runs of values.
        template <bool writes, bool sums, bool add>
        HWY_INLINE void gradient_step_of_runs(group_gradient& now,
            group_gradient& next,
            const rms_norm_gains& gains,
            double* gain_sums)
        {
            input_gradient<add, single, runs> f{now.d, now.x, now.old, now.dx, {now.scale},
                {now.mean}, {gains.values, gains.run, 0, now.size}};

            double total = 0;
            size_t written = 0;
            for (size_t c = 0; c < next.size / gains.run; ++c)
            {
                const size_t run_end = (c + 1) * gains.run;
                double run_total = 0;
                for (size_t b = c * gains.run; b < run_end; b += rms_norm_segment)
                {
                    sum_lanes lanes;
                    const size_t segment_end = std::min(run_end, b + rms_norm_segment);
                    for (size_t i = b; i < segment_end; i += piece)
                    {
                        const size_t end = std::min(segment_end, i + piece);
                        if constexpr (sums)
                        {
                            add_values(lanes, next.d, next.x, next.x, 0, nothing(), now.dx, i, end);
                        }
                        if constexpr (writes)
                        {
                            const size_t chunks_end = written + (end - written) / chunk * chunk;
                            write_values<false>(f, now.dx, written, chunks_end, [](size_t) {});
                            written = chunks_end;
                        }
                    }
                    run_total += lanes.total();
                }
                if constexpr (sums)
                {
                    total += run_total * static_cast<double>(gains.values[c]);
                    gain_sums[c] += run_total * static_cast<double>(next.scale);
                }
            }
            if constexpr (writes)
                write_few(f, written, now.size);
            if constexpr (sums)
                next.finish(total);
        }

        // The first group is summed, the last one written, and between them one of each.
        template <class F>
        HWY_INLINE void
        for_each_step(const rms_norm_backward<float>& p, size_t first, size_t last, const F& step)
        {
            const gradient_rows<float> at(p);
            group_gradient now(p, at, first);
            step(std::false_type(), std::true_type(), now, now);
            for (size_t g = first + 1; g < last; ++g)
            {
                group_gradient next(p, at, g);
                step(std::true_type(), std::true_type(), now, next);
                now = next;
            }
            step(std::true_type(), std::false_type(), now, now);
        }

        void gradient(const rms_norm_backward<float>& p,
            const rms_norm_gains& gains,
            size_t first,
            size_t last,
            double* sums)
        {
            with_bool(adds(p),
                [&](auto add) HWY_ATTR
                {
                    if (gains.run > 1)
                    {
                        for_each_step(p, first, last,
                            [&](auto write, auto sum, group_gradient& now, group_gradient& next)
                                HWY_ATTR
                            { gradient_step_of_runs<write, sum, add>(now, next, gains, sums); });
                    }
                    else if (gains.values != nullptr)
                    {
                        for_each_step(p, first, last,
                            [&](auto write, auto sum, group_gradient& now, group_gradient& next)
                                HWY_ATTR {
                                    gradient_step<write, sum, add>(
                                        now, next, array{gains.values}, gain_sums{sums});
                                });
                    }
                    else
                    {
                        for_each_step(p, first, last,
                            [&](auto write, auto sum, group_gradient& now, group_gradient& next)
                                HWY_ATTR
                            { gradient_step<write, sum, add>(now, next, nothing(), nothing()); });
                    }
                });
        }

        void gradient_of_one(const rms_norm_backward<float>& p, const rms_norm_gains& gains)
        {
            if (gains.values == nullptr)
            {
                gradient(p, gains, 0, 1, nullptr);
                return;
            }
            with_bool(adds(p),
                [&](auto add) HWY_ATTR
                {
                    for_each_step(p, 0, 1,
                        [&](auto write, auto sum, group_gradient& now, group_gradient& next)
                            HWY_ATTR {
                                gradient_step<write, sum, add>(
                                    now, next, array{gains.values}, gain_gradients{p.dgamma});
                            });
                });
        }

        double sum_products(const rms_norm_backward<float>& p,
            const rms_norm_gains& gains,
            size_t group,
            size_t begin,
            size_t end,
            double* sums)
        {
            const gradient_rows<float> at(p);
            const float* const d = at.d[group] + begin;
            const float* const x = at.x[group] + begin;
            const size_t size = end - begin;
            sum_lanes lanes;
            if (gains.values != nullptr && gains.run == 1)
            {
                add_values(lanes, d, x, gains.values + begin, p.scale[group],
                    gain_sums{sums + begin}, x, 0, size);
            }
            else
            {
                add_values(lanes, d, x, x, 0, nothing(), x, 0, size);
            }
            return lanes.total();
        }

        void write_gradient(const rms_norm_backward<float>& p,
            const rms_norm_gains& gains,
            size_t group,
            float mean,
            size_t begin,
            size_t end)
        {
            const gradient_rows<float> at(p);
            with_bool(adds(p),
                [&](auto add) HWY_ATTR
                {
                    with_gains(gains,
                        [&](const auto& make_gains) HWY_ATTR
                        {
                            input_gradient<add, single, decltype(make_gains(begin, end))> f{
                                at.d[group], at.x[group], at.old[group], at.dx[group],
                                {p.scale[group]}, {mean}, make_gains(begin, end)};
                            write_values<false>(f, f.dx, begin, end,
                                [&](size_t i) HWY_ATTR
                                {
                                    prefetch_at(f.d, i + prefetch_distance);
                                    prefetch_at(f.x, i + prefetch_distance);
                                });
                        });
                });
        }

        // ------------------------------------------------------------------------------------

    }

    const rms_norm_row_loops<float>& table_of_rows()
    {
        static const rms_norm_row_loops<float> table = {hwy::TargetName(HWY_TARGET), add_offset,
            normalize, sum_squares, write, gradient, gradient_of_one, sum_products, write_gradient,
            add};
        return table;
    }

}
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dlib::contrib::cpu
{
    HWY_EXPORT(table_of_rows);

    template <>
    const rms_norm_row_loops<float>& row_loops()
    {
        return HWY_DYNAMIC_DISPATCH(table_of_rows)();
    }
}

#endif // HWY_ONCE
