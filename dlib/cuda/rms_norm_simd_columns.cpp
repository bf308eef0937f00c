// License: Boost Software License   See LICENSE.txt for the full license.

// The loops over interleaved groups: the columns of an array, a tile of neighbouring ones at a
// time, row by row. Each column has its lanes in a workspace.

#include "rms_norm_simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/cuda/rms_norm_simd_columns.cpp"
#include <hwy/foreach_target.h>
#include "rms_norm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{
    namespace
    {

        // ------------------------------------------------------------------------------------

        struct whole_vector
        {
            HWY_INLINE vec load(const float* p) const { return load_as_double(p); }
        };

        struct few_values
        {
            // The last values of a row, fewer than a vector, followed by zeros.
            HWY_INLINE vec load(const float* p) const
            {
                auto v = hn::Zero(half_floats());
                HWY_UNROLL(8)
                for (size_t k = 0; k + 1 < num_doubles; ++k)
                {
                    if (k < count)
                    {
                        const auto at_k = hn::Eq(hn::Iota(half_floats(), 0),
                            hn::Set(half_floats(), static_cast<float>(k)));
                        v = hn::IfThenElse(at_k, hn::Set(half_floats(), p[k]), v);
                    }
                }
                return hn::PromoteTo(doubles(), v);
            }

            size_t count;
        };

        struct tile_sums
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    The sums of the columns of a tile and their lanes, with room for whole vectors.
                    Lanes are loaded and stored once for several rows that go into the same ones.
            !*/
            HWY_INLINE tile_sums(double* workspace, size_t width_) :
                totals(workspace),
                width(whole_lanes(width_)),
                lanes(workspace + width)
            {
            }

            HWY_INLINE void clear_totals() { std::fill_n(totals, width, 0.0); }
            HWY_INLINE void clear_lanes() { std::fill_n(lanes, rms_norm_lanes * width, 0.0); }
            HWY_INLINE double* lane(size_t row) const
            {
                return lanes + row % rms_norm_lanes * width;
            }

            HWY_INLINE void finish_segment()
            {
                for (size_t half = rms_norm_lanes / 2; half >= 1; half /= 2)
                {
                    double* const a = lanes;
                    const double* const b = lanes + half * width;
                    for (size_t i = 0; i < half * width; i += num_doubles)
                    {
                        hn::StoreU(
                            hn::Add(hn::LoadU(doubles(), a + i), hn::LoadU(doubles(), b + i)),
                            doubles(), a + i);
                    }
                }
                for (size_t w = 0; w < width; ++w)
                    totals[w] += lanes[w];
            }

            double* totals;
            size_t width;
            double* lanes;
        };

        // Walks through a segment of rows in an order in which `rows` of them go into the same
        // lanes: calls several(i) for the rows i, i+16, i+32, ..., or one(i).
        template <size_t rows, class F, class G>
        HWY_INLINE void for_each_row(size_t begin, size_t end, const F& several, const G& one)
        {
            constexpr size_t step = rows * rms_norm_lanes;
            for (; begin + step <= end; begin += step)
            {
                for (size_t i = begin; i < begin + rms_norm_lanes; ++i)
                    several(i);
            }
            for (; begin < end; ++begin)
                one(begin);
        }

        // ------------------------------------------------------------------------------------
        //                                     forward
        // ------------------------------------------------------------------------------------

        constexpr size_t forward_rows = 4;

        template <size_t rows>
        HWY_INLINE void
        add_squares_of_rows(const float* x, size_t distance, size_t width, double* lane)
        {
            const auto add = [&](size_t i, const auto& part) HWY_ATTR
            {
                vec sum = hn::LoadU(doubles(), lane + i);
                HWY_UNROLL(4)
                for (size_t r = 0; r < rows; ++r)
                {
                    const vec a = part.load(x + r * distance + i);
                    sum = hn::MulAdd(a, a, sum);
                }
                hn::StoreU(sum, doubles(), lane + i);
            };

            size_t w = 0;
            for (; w + chunk <= width; w += chunk)
            {
                HWY_UNROLL(4)
                for (size_t r = 0; r < rows; ++r)
                    prefetch_at(x, r * distance + w + prefetch_distance);
                HWY_UNROLL(16)
                for (size_t k = 0; k < chunk; k += num_doubles)
                    add(w + k, whole_vector());
            }
            for (; w + num_doubles <= width; w += num_doubles)
                add(w, whole_vector());
            if (w < width)
                add(w, few_values{width - w});
        }

        // Writes one tile, sums the other, or both at the same time.
        template <bool writes, bool sums, bool stream, class gains>
        HWY_INLINE void normalize_step(const rms_norm_forward<float>& p,
            const float* values,
            const rms_norm_tile& now,
            const rms_norm_tile& next,
            double* workspace)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            const auto stride = static_cast<size_t>(p.groups.stride);
            const float* const soon = sums ? p.x + next.first : p.y + now.first;
            tile_sums lanes(workspace, next.width);

            const auto write = [&](size_t row) HWY_ATTR
            {
                const size_t at = now.first + row * stride;
                const float* const ahead = soon + (row + 1) * stride;
                output<array, gains> f{p.x + at, p.y + at, {p.scale + now.group}, {}};
                if constexpr (gains::exists)
                    f.g.value = values[row];
                write_values<stream>(
                    f, p.y + at, 0, now.width, [&](size_t i) HWY_ATTR { prefetch_at(ahead, i); });
            };
            const auto several = [&](size_t row) HWY_ATTR
            {
                if constexpr (sums)
                {
                    add_squares_of_rows<forward_rows>(p.x + next.first + row * stride,
                        rms_norm_lanes * stride, next.width, lanes.lane(row));
                }
                if constexpr (writes)
                {
                    for (size_t r = 0; r < forward_rows; ++r)
                        write(row + r * rms_norm_lanes);
                }
            };
            const auto one = [&](size_t row) HWY_ATTR
            {
                if constexpr (sums)
                {
                    add_squares_of_rows<1>(
                        p.x + next.first + row * stride, 0, next.width, lanes.lane(row));
                }
                if constexpr (writes)
                    write(row);
            };

            if constexpr (sums)
                lanes.clear_totals();
            for (size_t b = 0; b < size; b += rms_norm_segment)
            {
                if constexpr (sums)
                    lanes.clear_lanes();
                for_each_row<forward_rows>(b, std::min(size, b + rms_norm_segment), several, one);
                if constexpr (sums)
                    lanes.finish_segment();
            }
            if constexpr (sums)
            {
                for (size_t w = 0; w < next.width; ++w)
                    p.scale[next.group + w] = scale_of_group(lanes.totals[w], size, p.eps);
            }
        }

        template <bool stream, class gains>
        void normalize_tiles(const rms_norm_forward<float>& p,
            const float* values,
            const rms_norm_cpu_plan& plan,
            size_t first,
            size_t last,
            double* workspace)
        {
            rms_norm_tile now = plan.tile(p.groups, first);
            normalize_step<false, true, stream, gains>(p, values, now, now, workspace);
            for (size_t t = first + 1; t < last; ++t)
            {
                const rms_norm_tile next = plan.tile(p.groups, t);
                if constexpr (stream)
                {
                    normalize_step<true, true, stream, gains>(p, values, now, next, workspace);
                }
                else
                {
                    // Two tiles fit into the cache together only if stores go past it.
                    normalize_step<true, false, stream, gains>(p, values, now, now, workspace);
                    normalize_step<false, true, stream, gains>(p, values, next, next, workspace);
                }
                now = next;
            }
            normalize_step<true, false, stream, gains>(p, values, now, now, workspace);
        }

        void normalize(const rms_norm_forward<float>& p,
            const float* gains,
            const rms_norm_cpu_plan& plan,
            size_t first,
            size_t last,
            double* workspace)
        {
            with_bool(plan.streams,
                [&](auto stream) HWY_ATTR
                {
                    if (gains == nullptr)
                        normalize_tiles<stream, nothing>(p, gains, plan, first, last, workspace);
                    else
                        normalize_tiles<stream, single>(p, gains, plan, first, last, workspace);
                });
            if (plan.streams)
                hwy::FlushStream();
        }

        // ------------------------------------------------------------------------------------
        //                                     backward
        // ------------------------------------------------------------------------------------

        constexpr size_t backward_rows = 2;

        // Adds rows of a tile to the sums of its columns and, with gains, the sum of d*x*scale over
        // each row, whose lanes are columns, to gain_sums.
        template <bool gains, size_t rows>
        HWY_INLINE void add_products_of_rows(const float* d,
            const float* x,
            size_t distance,
            const float* scale,
            const float* values,
            double* gain_sums,
            size_t row_number,
            size_t width,
            double* lane,
            size_t ahead)
        {
            sum_lanes row[rows];
            vec gain[rows];
            if constexpr (gains)
            {
                HWY_UNROLL(2)
                for (size_t r = 0; r < rows; ++r)
                {
                    gain[r] = hn::Set(
                        doubles(), static_cast<double>(values[row_number + r * rms_norm_lanes]));
                }
            }

            const auto add = [&](size_t i, size_t k, const auto& part) HWY_ATTR
            {
                vec sum = hn::LoadU(doubles(), lane + i);
                vec s = hn::Zero(doubles());
                if constexpr (gains)
                    s = part.load(scale + i);
                HWY_UNROLL(2)
                for (size_t r = 0; r < rows; ++r)
                {
                    const vec t = hn::Mul(
                        part.load(d + r * distance + i), part.load(x + r * distance + i));
                    if constexpr (gains)
                    {
                        sum = hn::Add(sum, hn::Mul(t, gain[r]));
                        row[r].v[k] = hn::Add(row[r].v[k], hn::Mul(t, s));
                    }
                    else
                    {
                        sum = hn::Add(sum, t);
                    }
                }
                hn::StoreU(sum, doubles(), lane + i);
            };

            size_t w = 0;
            for (; w + chunk <= width; w += chunk)
            {
                HWY_UNROLL(2)
                for (size_t r = 0; r < rows; ++r)
                {
                    prefetch_at(d, r * distance + w + ahead);
                    prefetch_at(x, r * distance + w + ahead);
                }
                HWY_UNROLL(16)
                for (size_t k = 0; k < vecs; ++k)
                    add(w + k * num_doubles, k, whole_vector());
            }
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
            {
                const size_t i = w + k * num_doubles;
                if (i + num_doubles <= width)
                    add(i, k, whole_vector());
                else if (i < width)
                    add(i, k, few_values{width - i});
            }

            if constexpr (gains)
            {
                HWY_UNROLL(2)
                for (size_t r = 0; r < rows; ++r)
                    gain_sums[row_number + r * rms_norm_lanes] += row[r].total();
            }
        }

        template <bool add, class gains>
        void gradient_of_tile(const rms_norm_backward<float>& p,
            const float* values,
            const rms_norm_tile& tile,
            double* workspace,
            double* gain_sums)
        {
            const auto size = static_cast<size_t>(p.groups.size);
            const auto stride = static_cast<size_t>(p.groups.stride);
            tile_sums lanes(workspace, tile.width);

            const auto several = [&](size_t row) HWY_ATTR
            {
                const size_t at = tile.first + row * stride;
                add_products_of_rows<gains::exists, backward_rows>(p.d + at, p.x + at,
                    rms_norm_lanes * stride, p.scale + tile.group, values, gain_sums, row,
                    tile.width, lanes.lane(row), stride);
            };
            const auto one = [&](size_t row) HWY_ATTR
            {
                const size_t at = tile.first + row * stride;
                add_products_of_rows<gains::exists, 1>(p.d + at, p.x + at, 0, p.scale + tile.group,
                    values, gain_sums, row, tile.width, lanes.lane(row), stride);
            };
            lanes.clear_totals();
            for (size_t b = 0; b < size; b += rms_norm_segment)
            {
                lanes.clear_lanes();
                for_each_row<backward_rows>(b, std::min(size, b + rms_norm_segment), several, one);
                lanes.finish_segment();
            }

            // The lanes have been added up: the means take their place.
            float* const means = reinterpret_cast<float*>(lanes.lanes);
            for (size_t w = 0; w < tile.width; ++w)
                means[w] = finish_group(p, tile.group + w, lanes.totals[w]);

            for (size_t i = 0; i < size; ++i)
            {
                const size_t at = tile.first + i * stride;
                const float* const ahead = p.dx + at + stride;
                input_gradient<add, array, gains> f{
                    p.d + at, p.x + at, p.dx + at, p.dx + at, {p.scale + tile.group}, {means}, {}};
                if constexpr (gains::exists)
                    f.g.value = values[i];
                write_values<false>(
                    f, p.dx + at, 0, tile.width, [&](size_t w) HWY_ATTR { prefetch_at(ahead, w); });
            }
        }

        void gradient(const rms_norm_backward<float>& p,
            const float* gains,
            const rms_norm_cpu_plan& plan,
            size_t first,
            size_t last,
            double* workspace,
            double* gain_sums)
        {
            // Two tiles at a time, with three streams each, would not fit into the cache.
            with_bool(p.add,
                [&](auto add) HWY_ATTR
                {
                    for (size_t t = first; t < last; ++t)
                    {
                        const rms_norm_tile tile = plan.tile(p.groups, t);
                        if (gains == nullptr)
                            gradient_of_tile<add, nothing>(p, gains, tile, workspace, gain_sums);
                        else
                            gradient_of_tile<add, single>(p, gains, tile, workspace, gain_sums);
                    }
                });
        }

        // ------------------------------------------------------------------------------------

    }

    const rms_norm_column_loops& table_of_columns()
    {
        static const rms_norm_column_loops table = {normalize, gradient};
        return table;
    }

}
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dlib::contrib::cpu
{
    HWY_EXPORT(table_of_columns);

    const rms_norm_column_loops& column_loops() { return HWY_DYNAMIC_DISPATCH(table_of_columns)(); }
}

#endif // HWY_ONCE
