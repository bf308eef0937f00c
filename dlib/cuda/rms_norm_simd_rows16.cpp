// License: Boost Software License   See LICENSE.txt for the full license.

// The loops over rows of float16 and bfloat16: the backward pass, and the tables. Numbers of 16
// bits come from memory so fast that sums in double would keep it waiting. Their products are
// rounded to float, a few of them are added up in float, and only these sums go to those in double.

#include "rms_norm_simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/cuda/rms_norm_simd_rows16.cpp"
#include <hwy/foreach_target.h>
#include "rms_norm_simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{
    namespace
    {

        // ------------------------------------------------------------------------------------

        // Groups whose shares in the gradient of a gain are added up in float. They are summed side
        // by side, and written when they are still in the cache.
        constexpr size_t block_groups = 4;
        constexpr size_t block_values = 32768;

        constexpr size_t step_size = step_chunks * chunk;

        template <typename T>
        struct group_gradient
        {
            const T* d;
            const T* x;
            const T* old;
            T* dx;
            float scale;
            float mean;
        };

        template <typename T>
        struct block
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The groups [first, last) of a backward pass.
            !*/
            HWY_INLINE block(const rms_norm_backward<T>& p, size_t first_, size_t last_) :
                first(first_),
                count(last_ - first_)
            {
                const gradient_rows<T> at(p);
                for (size_t r = 0; r < count; ++r)
                {
                    const size_t g = first + r;
                    groups[r] = {at.d[g], at.x[g], at.old[g], at.dx[g], p.scale[g], 0};
                }
            }

            group_gradient<T> groups[block_groups];
            size_t first;
            size_t count;
        };

        // ------------------------------------------------------------------------------------

        // Adds the products of so many chunks, from i on, to the lanes of each group, and their
        // shares in the gradients of the gains to sums, if it is not null.
        template <size_t chunks, bool llama, typename T>
        HWY_INLINE void add_products(const group_gradient<T>* groups,
            size_t count,
            size_t i,
            const float* gains,
            sum_lanes* lanes,
            double* sums)
        {
            constexpr size_t vectors = chunk / num_floats;
            hn::Vec<floats> shares[chunks * vectors];
            HWY_UNROLL(16)
            for (size_t k = 0; k < chunks * vectors; ++k)
                shares[k] = hn::Zero(floats());

            for (size_t r = 0; r < count; ++r)
            {
                const T* const d = groups[r].d + i;
                const T* const x = groups[r].x + i;
                const auto s = hn::Set(floats(), groups[r].scale);
                hn::Vec<floats> products[vectors];
                HWY_UNROLL(16)
                for (size_t k = 0; k < chunks * vectors; ++k)
                {
                    const size_t at = k * num_floats;
                    const auto dk = load(floats(), d + at);
                    const auto xs = hn::Mul(load(floats(), x + at), s);
                    auto gd = hn::Mul(hn::LoadU(floats(), gains + at), dk);
                    auto share = hn::Mul(dk, xs);
                    if constexpr (llama)
                    {
                        gd = rounded<T>(floats(), gd);
                        share = rounded<T>(floats(), hn::Mul(dk, rounded<T>(floats(), xs)));
                    }
                    const auto product = hn::Mul(gd, xs);
                    auto& sum = products[k % vectors];
                    sum = k < vectors ? product : hn::Add(sum, product);
                    shares[k] = hn::Add(shares[k], share);
                }
                HWY_UNROLL(16)
                for (size_t k = 0; k < vectors; ++k)
                    lanes[r].add(k * num_floats, products[k]);
            }

            if (sums == nullptr)
                return;
            HWY_UNROLL(16)
            for (size_t k = 0; k < chunks * vectors; ++k)
            {
                for_each_half(shares[k],
                    [&](size_t half, vec share) HWY_ATTR
                    {
                        double* const to = sums + k * num_floats + half;
                        hn::StoreU(hn::Add(hn::LoadU(doubles(), to), share), doubles(), to);
                    });
            }
        }

        template <bool llama, typename T>
        HWY_NOINLINE void add_last_products(const group_gradient<T>* groups,
            size_t count,
            size_t begin,
            size_t end,
            const float* gains,
            sum_lanes* lanes,
            double* sums)
        {
            size_t i = begin;
            for (; i + chunk <= end; i += chunk)
            {
                add_products<1, llama>(
                    groups, count, i, gains + i, lanes, sums ? sums + i : nullptr);
            }
            if (i == end)
                return;

            const padded<float> last_gains(gains + i, end - i);
            group_gradient<T> last[block_groups];
            padded<T> values[2 * block_groups];
            for (size_t r = 0; r < count; ++r)
            {
                values[2 * r].assign(groups[r].d + i, end - i);
                values[2 * r + 1].assign(groups[r].x + i, end - i);
                last[r].d = values[2 * r].values;
                last[r].x = values[2 * r + 1].values;
                last[r].scale = groups[r].scale;
            }
            add_products<1, llama>(
                last, count, 0, last_gains.values, lanes, sums ? sums + i : nullptr);
        }

        // Adds the values [begin, end) of groups, and asks for memory: of the groups, and of those
        // that are written meanwhile.
        template <bool llama, typename T>
        HWY_NOINLINE void add_values(const block<T>& next,
            const block<T>& now,
            size_t begin,
            size_t end,
            const float* gains,
            sum_lanes* lanes,
            double* sums)
        {
            size_t i = begin;
            for (; i + step_size <= end; i += step_size)
            {
                for (size_t r = 0; r < next.count; ++r)
                {
                    HWY_UNROLL(4)
                    for (size_t k = 0; k < step_size; k += line<T>)
                    {
                        const size_t ahead = i + k + distance_ahead<T>;
                        prefetch_at(next.groups[r].d, ahead);
                        prefetch_at(next.groups[r].x, ahead);
                        prefetch_at(now.groups[r].dx, ahead);
                    }
                }
                add_products<step_chunks, llama>(
                    next.groups, next.count, i, gains + i, lanes, sums ? sums + i : nullptr);
            }
            if (i < end)
                add_last_products<llama>(next.groups, next.count, i, end, gains, lanes, sums);
        }

        template <bool llama, bool add, typename T>
        HWY_NOINLINE void
        write_values_of(const block<T>& now, size_t begin, size_t end, const float* gains)
        {
            for (size_t r = 0; r < now.count; ++r)
            {
                const group_gradient<T>& g = now.groups[r];
                input_gradient<T, add, single, array, llama> f{
                    g.d, g.x, g.old, g.dx, {g.scale}, {g.mean}, {gains}};
                write_values<false>(f, g.dx, begin, end, [](size_t) {});
            }
        }

        // Writes dx of one block, sums the other, or both at the same time.
        template <bool llama, bool add, typename T>
        void gradient_step(const rms_norm_backward<T>& p,
            const block<T>* now,
            block<T>* next,
            const float* gains,
            double* sums)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            double totals[block_groups] = {};
            for (size_t b = 0; b < size; b += rms_norm_segment)
            {
                sum_lanes lanes[block_groups];
                const size_t segment_end = std::min(size, b + rms_norm_segment);
                for (size_t i = b; i < segment_end; i += piece)
                {
                    const size_t end = std::min(segment_end, i + piece);
                    if (next != nullptr)
                        add_values<llama>(*next, now ? *now : *next, i, end, gains, lanes, sums);
                    if (now != nullptr)
                        write_values_of<llama, add>(*now, i, end, gains);
                }
                for (size_t r = 0; r < block_groups; ++r)
                    totals[r] += lanes[r].total();
            }
            if (next == nullptr)
                return;
            for (size_t r = 0; r < next->count; ++r)
                next->groups[r].mean = finish_group(p, next->first + r, totals[r]);
        }

        // Calls f with all that a backward pass can be, as types.
        template <typename T, class F>
        HWY_INLINE void with_variant(const rms_norm_backward<T>& p, const F& f)
        {
            with_bool(adds(p),
                [&](auto add) HWY_ATTR
                { with_casting<T>(p.casting, [&](auto llama) HWY_ATTR { f(add, llama); }); });
        }

        template <typename T>
        void gradient(const rms_norm_backward<T>& p,
            const rms_norm_gains& gains,
            size_t first,
            size_t last,
            double* sums)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            const size_t most = std::clamp<size_t>(block_values / size, 1, block_groups);
            with_variant(p,
                [&](auto add, auto llama) HWY_ATTR
                {
                    const auto make_block = [&](size_t g) HWY_ATTR
                    { return block<T>(p, g, std::min(last, g + most)); };
                    block<T> now = make_block(first);
                    gradient_step<llama, add, T>(p, nullptr, &now, gains.values, sums);
                    for (size_t g = first + most; g < last; g += most)
                    {
                        block<T> next = make_block(g);
                        gradient_step<llama, add, T>(p, &now, &next, gains.values, sums);
                        now = next;
                    }
                    gradient_step<llama, add, T>(p, &now, nullptr, gains.values, sums);
                });
        }

        template <typename T>
        double sum_products(const rms_norm_backward<T>& p,
            const rms_norm_gains& gains,
            size_t group,
            size_t begin,
            size_t end,
            double* sums)
        {
            sum_lanes lanes;
            const block<T> one(p, group, group + 1);
            with_casting<T>(p.casting,
                [&](auto llama) HWY_ATTR
                { add_values<llama>(one, one, begin, end, gains.values, &lanes, sums); });
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
            block<T> one(p, group, group + 1);
            one.groups[0].mean = mean;
            with_variant(p,
                [&](auto add, auto llama) HWY_ATTR
                { write_values_of<llama, add>(one, begin, end, gains.values); });
        }

        template <typename T>
        constexpr rms_norm_row_loops<T> make_table(const char* instruction_set)
        {
            return {instruction_set, add_offset<T>, normalize<T>, sum_squares<T>, write<T>,
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
