// License: Boost Software License   See LICENSE.txt for the full license.

// The loops over contiguous groups of floats: the backward pass, and the table.

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
            const padded<float> last_d(d, count);
            const padded<float> last_x(x, count);
            if constexpr (std::is_same_v<destination, nothing>)
            {
                add_chunk(lanes, last_d.values, last_x.values, nullptr, scale, to, at);
            }
            else if constexpr (std::is_same_v<destination, gain_sums>)
            {
                const padded<float> last_g(g, count);
                add_chunk(lanes, last_d.values, last_x.values, last_g.values, scale, to, at);
            }
            else
            {
                const padded<float> last_g(g, count);
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
            input_gradient<float, add, single, gains> f{
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
            input_gradient<float, add, single, runs> f{now.d, now.x, now.old, now.dx, {now.scale},
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
                            input_gradient<float, add, single, decltype(make_gains(begin, end))> f{
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
        static const rms_norm_row_loops<float> table = {hwy::TargetName(HWY_TARGET),
            add_offset<float>, normalize<float>, sum_squares<float>, write<float>, gradient,
            gradient_of_one, sum_products, write_gradient, add};
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
