// License: Boost Software License   See LICENSE.txt for the full license.

// The loops over rows of float16 and bfloat16. Numbers of 16 bits come from memory so fast that sums
// in double would keep it waiting: a few values are added up in float, and only these sums go to
// those in double.

#include "rms_norm_simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/cuda/rms_norm_simd_rows16.cpp"
#include <cfloat>
#include <hwy/foreach_target.h>
#include "rms_norm_simd_float16-inl.h"
#include "rms_norm_simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{
    namespace
    {

        // ------------------------------------------------------------------------------------

        constexpr size_t step = rms_norm_step;

        // The values of a step are added up in float, first in chains of four, in 16 lanes. There
        // value i of a float16 row goes to lane i%16, of a bfloat16 row to lane i/2%16.
        template <typename T>
        struct step_sum
        {
            // Whose values go to different lanes, but for even and odd ones.
            static constexpr size_t block = is_even_and_odd<T> ? 2 * chunk
                                                               : std::max(chunk, pair_size);

            HWY_INLINE step_sum()
            {
                HWY_UNROLL(16)
                for (size_t k = 0; k < vectors; ++k)
                    lanes[k] = hn::Zero(floats());
            }

            HWY_INLINE void add(size_t q, pair v)
            /*!
                ensures
                    - adds pair q of a block
            !*/
            {
                auto& a = lanes[(is_even_and_odd<T> ? q : 2 * q) % vectors];
                a = hn::Add(a, v.a);
                auto& b = lanes[(is_even_and_odd<T> ? q : 2 * q + 1) % vectors];
                b = hn::Add(b, v.b);
            }

            static constexpr size_t vectors = chunk / num_floats;
            float_vec lanes[vectors];
        };

        using short_lanes = lane_sums<chunk / 2>;

        // Lanes j and j+8 of a step go to lane j.
        template <typename T>
        HWY_INLINE void add_to(short_lanes& to, const step_sum<T>& s)
        {
#if HWY_MAX_BYTES == 64
            const half_floats d;
            const auto sum = hn::Add(hn::LowerHalf(d, s.lanes[0]), hn::UpperHalf(d, s.lanes[0]));
            to.v[0] = hn::Add(to.v[0], hn::PromoteTo(doubles(), sum));
#else
            constexpr size_t half = step_sum<T>::vectors / 2;
            HWY_UNROLL(8)
            for (size_t k = 0; k < half; ++k)
            {
                for_each_half(hn::Add(s.lanes[k], s.lanes[k + half]),
                    [&](size_t i, vec sum) HWY_ATTR
                    {
                        vec& lane = to.v[(k * num_floats + i) / num_doubles];
                        lane = hn::Add(lane, sum);
                    });
            }
#endif
        }

        template <typename T>
        struct last_step
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The last values of a row, followed by zeros, which add nothing to a sum.
            !*/
            last_step() = default;

            HWY_INLINE last_step(const T* from, size_t count) { assign(from, count); }

            HWY_INLINE void assign(const T* from, size_t count)
            {
                std::memset(values, 0, sizeof(values));
                std::memcpy(values, from, count * sizeof(T));
            }

            alignas(64) T values[step];
        };

        // ------------------------------------------------------------------------------------
        //                                     forward
        // ------------------------------------------------------------------------------------

        // So many values of a row are summed before as many of another one are written.
        constexpr size_t forward_piece = 1024;

        // Of short rows, several are summed before they are written.
        constexpr size_t panel_values = 2048;
        constexpr size_t panel_rows = 16;

        template <typename T>
        struct input
        {
            HWY_INLINE const T* normalized() const { return h ? h : x; }

            const T* x;
            const T* r;
            T* h; // null if there is no residual
        };

        template <typename T>
        HWY_INLINE void add_step(const input<T>& in, size_t i, short_lanes& lanes)
        {
            step_sum<T> sum;
            HWY_UNROLL(32)
            for (size_t q = 0; q < step / pair_size; ++q)
            {
                const pair v = load(in.x + i + q * pair_size);
                sum.add(q, mul(v, v));
            }
            add_to(lanes, sum);
        }

        template <typename T>
        HWY_INLINE void add_residual(const input<T>& in, size_t i, short_lanes& lanes)
        {
            step_sum<T> sum;
            HWY_UNROLL(32)
            for (size_t q = 0; q < step / pair_size; ++q)
            {
                const size_t at = i + q * pair_size;
                const pair v = store(add(load(in.x + at), load(in.r + at)), in.h + at);
                sum.add(q, mul(v, v));
            }
            add_to(lanes, sum);
        }

        template <typename T>
        HWY_NOINLINE void
        sum_values(const input<T>& in, size_t begin, size_t end, short_lanes& lanes)
        {
            short_lanes sums = lanes;
            size_t i = begin;
            if (in.h == nullptr)
            {
                for (; i + step <= end; i += step)
                {
                    for (size_t k = 0; k < step; k += line<T>)
                        prefetch_at(in.x, i + k + distance_ahead<T>);
                    add_step(in, i, sums);
                }
                if (i < end)
                    add_step<T>(
                        {last_step<T>(in.x + i, end - i).values, nullptr, nullptr}, 0, sums);
            }
            else
            {
                for (; i + step <= end; i += step)
                {
                    for (size_t k = 0; k < step; k += line<T>)
                    {
                        prefetch_at(in.x, i + k + distance_ahead<T>);
                        prefetch_at(in.r, i + k + distance_ahead<T>);
                    }
                    add_residual(in, i, sums);
                }
                if (i < end)
                {
                    const last_step<T> x(in.x + i, end - i), r(in.r + i, end - i);
                    last_step<T> h;
                    add_residual<T>({x.values, r.values, h.values}, 0, sums);
                    std::memcpy(in.h + i, h.values, (end - i) * sizeof(T));
                }
            }
            lanes = sums;
        }

        template <typename T>
        double
        sum_of_segment(const short_lanes& lanes, const T* x, size_t begin, size_t end, double eps)
        /*!
            ensures
                - returns what is in the lanes. If squares of bfloat16 may have left the range of
                  floats (above, or below by so many that they count beside eps) then the values are
                  summed again, in double. (What is lost below it is at most 2^-126 per value, which
                  is what a processor that flushes denormals loses.)
        !*/
        {
            double total = lanes.total();
            if constexpr (std::is_same_v<T, bfloat16>)
            {
                const double small = 0x1p-100;
                const bool is_right = total <= DBL_MAX &&
                    (eps >= small || total >= static_cast<double>(end - begin) * small);
                if (!is_right)
                {
                    total = 0;
                    for (size_t i = begin; i < end; ++i)
                    {
                        const double v = static_cast<double>(static_cast<float>(x[i]));
                        total += v * v;
                    }
                }
            }
            return total;
        }

        template <bool llama, typename T>
        HWY_NOINLINE void
        write_values(const T* x, float scale, const float* gains, T* y, size_t size)
        {
            const auto s = hn::Set(floats(), scale);
            size_t i = 0;
            for (; i + pair_size <= size; i += pair_size)
            {
                pair v = mul(load(x + i), s);
                if constexpr (llama)
                    v = rounded<T>(v);
                store(mul(v, load(gains + i)), y + i);
            }
            if (i < size)
            {
                const last_step<T> last(x + i, size - i);
                T out[pair_size];
                write_values<llama>(last.values, scale, gains + i, out, pair_size);
                std::memcpy(y + i, out, (size - i) * sizeof(T));
            }
        }

        template <typename T>
        HWY_NOINLINE void copy_past_caches(const T* from, T* to, size_t size)
        /*!
            ensures
                - only whole lines go past the caches, each at once
        !*/
        {
            const hn::ScalableTag<std::uint16_t> d;
            const size_t begin = next_line(to, 0, size);
            std::memcpy(to, from, begin * sizeof(T));
            size_t i = begin;
            for (; i + line<T> <= size; i += line<T>)
            {
                HWY_UNROLL(8)
                for (size_t k = 0; k < line<T>; k += hn::MaxLanes(d))
                    hn::Stream(hn::LoadU(d, &from[i + k].bits), d, &to[i + k].bits);
            }
            std::memcpy(to + i, from + i, (size - i) * sizeof(T));
        }

        template <typename T>
        HWY_NOINLINE void write_piece(const T* x,
            float scale,
            const float* gains,
            bool is_llama,
            T* y,
            size_t begin,
            size_t end,
            bool stream)
        {
            alignas(64) T buffer[forward_piece];
            T* const to = stream ? buffer : y + begin;
            with_bool(is_llama,
                [&](auto llama) HWY_ATTR
                { write_values<llama>(x + begin, scale, gains + begin, to, end - begin); });
            if (stream)
                copy_past_caches(buffer, y + begin, end - begin);
        }

        template <typename T>
        struct forward_rows
        {
            HWY_INLINE explicit forward_rows(const rms_norm_forward<T>& p) :
                x(p.x, p.groups, p.x_stride),
                r(p.r, p.groups, p.r_stride),
                h(p.h, p.groups, p.h_stride),
                y(p.y, p.groups, p.y_stride)
            {
            }

            HWY_INLINE input<T> operator[](size_t row) const { return {x[row], r[row], h[row]}; }

            rows<const T> x;
            rows<const T> r;
            rows<T> h;
            rows<T> y;
        };

        template <typename T>
        void normalize(const rms_norm_forward<T>& p,
            const rms_norm_gains& gains,
            size_t first,
            size_t last,
            bool stream)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            const forward_rows<T> at(p);
            const size_t most = std::clamp<size_t>(panel_values / size, 1, panel_rows);
            const bool is_llama = p.casting == rms_norm_casting::llama;
            // Sums the rows from g on while it writes those before.
            for (size_t g = first; g < last + most; g += most)
            {
                const size_t next_end = std::min(last, g + most);
                double totals[panel_rows] = {};
                for (size_t b = 0; b < size; b += rms_norm_segment)
                {
                    const size_t segment_end = std::min(size, b + rms_norm_segment);
                    short_lanes lanes[panel_rows];
                    for (size_t i = b; i < segment_end; i += forward_piece)
                    {
                        const size_t end = std::min(segment_end, i + forward_piece);
                        for (size_t k = g; k < next_end; ++k)
                            sum_values(at[k], i, end, lanes[k - g]);
                        if (g == first)
                            continue;
                        for (size_t k = g - most; k < std::min(g, last); ++k)
                        {
                            write_piece(at[k].normalized(), p.scale[k], gains.values, is_llama,
                                at.y[k], i, end, stream);
                        }
                    }
                    for (size_t k = g; k < next_end; ++k)
                    {
                        totals[k - g] += sum_of_segment(
                            lanes[k - g], at[k].normalized(), b, segment_end, p.eps);
                    }
                }
                for (size_t k = g; k < next_end; ++k)
                    p.scale[k] = scale_of_group(totals[k - g], size, p.eps);
            }
            if (stream)
                hwy::FlushStream();
        }

        template <typename T>
        double sum_squares(const rms_norm_forward<T>& p, size_t group, size_t begin, size_t end)
        {
            const input<T> in = forward_rows<T>(p)[group];
            short_lanes lanes;
            sum_values(in, begin, end, lanes);
            return sum_of_segment(lanes, in.normalized(), begin, end, p.eps);
        }

        template <typename T>
        void write(const rms_norm_forward<T>& p,
            const rms_norm_gains& gains,
            size_t group,
            size_t begin,
            size_t end,
            bool stream)
        {
            const forward_rows<T> at(p);
            for (size_t i = begin; i < end; i += forward_piece)
            {
                write_piece(at[group].normalized(), p.scale[group], gains.values,
                    p.casting == rms_norm_casting::llama, at.y[group], i,
                    std::min(end, i + forward_piece), stream);
            }
            if (stream)
                hwy::FlushStream();
        }

        // ------------------------------------------------------------------------------------
        //                                     backward
        // ------------------------------------------------------------------------------------

        // So many values of a row are summed before as many of another one are written.
        constexpr size_t backward_piece = 1024;

        // So many rows add their shares in the gradient of a gain up in float.
        constexpr size_t rows_in_float = 5;

        template <typename T>
        struct row_gradient
        {
            HWY_INLINE row_gradient from(size_t i) const
            {
                return {d + i, x + i, old ? old + i : nullptr, dx + i, scale, mean};
            }

            const T* d;
            const T* x;
            const T* old;
            T* dx;
            float scale;
            float mean;
        };

        template <typename T>
        row_gradient<T> row_of(const rms_norm_backward<T>& p, size_t g, float mean)
        {
            const gradient_rows<T> at(p);
            return {at.d[g], at.x[g], at.old[g], at.dx[g], p.scale[g], mean};
        }

        // Adds the products of the first values of a row to the lanes, and their shares in the
        // gradients of the gains to shares. Asks for the memory at soon.
        template <bool llama, typename T>
        HWY_NOINLINE void add_products(const row_gradient<T>& row,
            const float* gains,
            size_t size,
            short_lanes& lanes,
            float* shares,
            const T* soon)
        {
            const T* const d = row.d;
            const T* const x = row.x;
            const auto s = hn::Set(floats(), row.scale);
            short_lanes sums = lanes;
            size_t i = 0;
            for (; i + step <= size; i += step)
            {
                for (size_t k = 0; k < step; k += line<T>)
                {
                    prefetch_at(d, i + k + distance_ahead<T>);
                    prefetch_at(x, i + k + distance_ahead<T>);
                    prefetch_at(soon, i + k);
                }
                step_sum<T> products;
                HWY_UNROLL(1)
                for (size_t b = 0; b < step; b += step_sum<T>::block)
                {
                    HWY_UNROLL(16)
                    for (size_t q = 0; q < step_sum<T>::block / pair_size; ++q)
                    {
                        const size_t at = i + b + q * pair_size;
                        const pair dk = load(d + at);
                        const pair xs = mul(load(x + at), s);
                        pair share;
                        if constexpr (llama)
                        {
                            const pair gd = rounded<T>(mul(load(gains + at), dk));
                            products.add(q, mul(gd, xs));
                            share = rounded<T>(mul(dk, rounded<T>(xs)));
                        }
                        else
                        {
                            share = mul(dk, xs);
                            products.add(q, mul(load(gains + at), share));
                        }
                        store(add(load(shares + at), share), shares + at);
                    }
                }
                add_to(sums, products);
            }
            lanes = sums;
            if (i < size)
            {
                const last_step<T> last_d(d + i, size - i), last_x(x + i, size - i);
                add_products<llama, T>(
                    {last_d.values, last_x.values, nullptr, nullptr, row.scale, 0}, gains + i, step,
                    lanes, shares + i, d);
            }
        }

        template <typename T>
        HWY_NOINLINE void move_shares(float* shares, size_t size, double* sums)
        /*!
            ensures
                - adds shares to sums, and sets them to 0
        !*/
        {
            for (size_t i = 0; i < size; i += pair_size)
            {
                pair v = load(shares + i);
                store({hn::Zero(floats()), hn::Zero(floats())}, shares + i);
                if constexpr (is_even_and_odd<T>)
                {
                    alignas(64) float in_order[pair_size];
                    hn::StoreInterleaved2(v.a, v.b, floats(), in_order);
                    v = load(in_order);
                }
                for (size_t k = 0; k < 2; ++k)
                {
                    for_each_half(k == 0 ? v.a : v.b,
                        [&](size_t half, vec share) HWY_ATTR
                        {
                            double* const to = sums + i + k * num_floats + half;
                            hn::StoreU(hn::Add(hn::LoadU(doubles(), to), share), doubles(), to);
                        });
                }
            }
        }

        // Writes the first values of dx.
        template <bool llama, bool adds, typename T>
        HWY_NOINLINE void
        write_gradient_of(const row_gradient<T>& row, const float* gains, size_t size)
        {
            const row_gradient<T> at = row;
            const auto s = hn::Set(floats(), at.scale);
            const auto m = hn::Set(floats(), at.mean);
            size_t i = 0;
            for (; i + pair_size <= size; i += pair_size)
            {
                pair gd = mul(load(gains + i), load(at.d + i));
                if constexpr (llama)
                    gd = rounded<T>(gd);
                pair v = mul(sub(gd, mul(mul(load(at.x + i), s), m)), s);
                if constexpr (adds)
                    v = add(load(at.old + i), rounded<T>(v));
                store(v, at.dx + i);
            }
            if (i < size)
            {
                const size_t count = size - i;
                const last_step<T> d(at.d + i, count), x(at.x + i, count);
                last_step<T> old, dx;
                if constexpr (adds)
                    old.assign(at.old + i, count);
                write_gradient_of<llama, adds, T>(
                    {d.values, x.values, old.values, dx.values, at.scale, at.mean}, gains + i,
                    pair_size);
                std::memcpy(at.dx + i, dx.values, count * sizeof(T));
            }
        }

        // Calls f with all that a backward pass can be, as types.
        template <typename T, class F>
        HWY_INLINE void with_variant(const rms_norm_backward<T>& p, const F& f)
        {
            with_bool(adds(p),
                [&](auto add) HWY_ATTR {
                    with_bool(p.casting == rms_norm_casting::llama,
                        [&](auto llama) HWY_ATTR { f(add, llama); });
                });
        }

        template <typename T>
        void gradient(const rms_norm_backward<T>& p,
            const rms_norm_gains& gains,
            size_t first,
            size_t last,
            double* sums)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            float* const shares = sums ? reinterpret_cast<float*>(sums + whole_steps(size))
                                       : nullptr;
            alignas(64) float unused[backward_piece] = {};
            row_gradient<T> now = {};
            // Sums row g while it writes the one before.
            for (size_t g = first; g <= last; ++g)
            {
                const row_gradient<T> next = row_of(p, std::min(g, last - 1), 0);
                double total = 0;
                for (size_t b = 0; b < size; b += rms_norm_segment)
                {
                    const size_t segment_end = std::min(size, b + rms_norm_segment);
                    short_lanes lanes;
                    for (size_t i = b; i < segment_end; i += backward_piece)
                    {
                        const size_t count = std::min(segment_end - i, backward_piece);
                        with_variant(p,
                            [&](auto add, auto llama) HWY_ATTR
                            {
                                if (g != last)
                                {
                                    add_products<llama>(next.from(i), gains.values + i, count,
                                        lanes, shares ? shares + i : unused,
                                        (g == first ? next : now).dx + i);
                                }
                                if (g != first)
                                {
                                    write_gradient_of<llama, add>(
                                        now.from(i), gains.values + i, count);
                                }
                            });
                    }
                    total += lanes.total();
                }
                if (g == last)
                    break;
                now = next;
                now.mean = finish_group(p, g, total);
                if (shares != nullptr &&
                    ((g - first) % rows_in_float == rows_in_float - 1 || g + 1 == last))
                    move_shares<T>(shares, size, sums);
            }
        }

        template <typename T>
        double sum_products(const rms_norm_backward<T>& p,
            const rms_norm_gains& gains,
            size_t group,
            size_t begin,
            size_t end,
            double* sums)
        {
            const row_gradient<T> row = row_of(p, group, 0);
            alignas(64) float shares[backward_piece] = {};
            short_lanes lanes;
            for (size_t i = begin; i < end; i += backward_piece)
            {
                const size_t count = std::min(end - i, backward_piece);
                with_bool(p.casting == rms_norm_casting::llama,
                    [&](auto llama) HWY_ATTR {
                        add_products<llama>(
                            row.from(i), gains.values + i, count, lanes, shares, row.dx + i);
                    });
                if (sums != nullptr)
                    move_shares<T>(shares, count, sums + i);
            }
            return lanes.total();
        }

        template <typename T>
        void write_gradient(const rms_norm_backward<T>& p,
            const rms_norm_gains& gains,
            size_t group,
            float mean,
            size_t begin,
            size_t end)
        {
            const row_gradient<T> row = row_of(p, group, mean).from(begin);
            with_variant(p,
                [&](auto add, auto llama) HWY_ATTR
                { write_gradient_of<llama, add>(row, gains.values + begin, end - begin); });
        }

        // ------------------------------------------------------------------------------------

        template <typename T>
        void make_gains(const T* gamma, float offset, float* gains, size_t size)
        {
            const auto add_offset = [&](const T* from, size_t i) HWY_ATTR
            {
                for (size_t k = 0; k < step; k += pair_size)
                {
                    const auto o = hn::Set(floats(), offset);
                    store(add({o, o}, load(from + k)), gains + i + k);
                }
            };
            size_t i = 0;
            for (; i + step <= size; i += step)
                add_offset(gamma + i, i);
            if (i < size)
                add_offset(last_step<T>(gamma + i, size - i).values, i);
        }

        template <typename T>
        constexpr rms_norm_row_loops<T> make_table(const char* instruction_set)
        {
            return {instruction_set, make_gains<T>, normalize<T>, sum_squares<T>, write<T>,
                gradient<T>, nullptr, sum_products<T>, write_gradient<T>, add};
        }

        // ------------------------------------------------------------------------------------

    }

    const rms_norm_row_loops<float16>& table_of_float16()
    {
        static const auto table = make_table<float16>(hwy::TargetName(HWY_TARGET));
        return table;
    }

    const rms_norm_row_loops<bfloat16>& table_of_bfloat16()
    {
        static const auto table = make_table<bfloat16>(hwy::TargetName(HWY_TARGET));
        return table;
    }

}
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dlib::contrib::cpu
{
    HWY_EXPORT(table_of_float16);
    HWY_EXPORT(table_of_bfloat16);

    template <>
    const rms_norm_row_loops<float16>& row_loops()
    {
        return HWY_DYNAMIC_DISPATCH(table_of_float16)();
    }

    template <>
    const rms_norm_row_loops<bfloat16>& row_loops()
    {
        return HWY_DYNAMIC_DISPATCH(table_of_bfloat16)();
    }
}

#endif // HWY_ONCE
