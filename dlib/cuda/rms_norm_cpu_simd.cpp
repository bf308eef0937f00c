// License: Boost Software License   See LICENSE.txt for the full license.

// The loops of rms_norm_cpu_simd.h, compiled once per instruction set. To read memory only
// once and to keep it busy all the time, a loop that writes one group also sums the next
// one: the group that is written was summed a moment ago and is still in the cache. (Tiles
// of interleaved groups are larger; where two of them would not fit, one is done at a time.)

// Vectors whose length is known only at run time can't be members or arrays. SSSE3 without SSE4
// is too rare to be worth its compile time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dlib/cuda/rms_norm_cpu_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "rms_norm_cpu_plan.h"
#include "rms_norm_cpu_simd.h"

HWY_BEFORE_NAMESPACE();
namespace dlib::contrib::cpu::HWY_NAMESPACE
{

    namespace hn = hwy::HWY_NAMESPACE;
    using std::size_t;

    using doubles = hn::ScalableTag<double>;
    using floats = hn::ScalableTag<float>;
    using half_floats = hn::Rebind<float, doubles>;
    using few_floats = hn::CappedTag<float, 4>;
    using one_float = hn::CappedTag<float, 1>;
    using vec = hn::Vec<doubles>;

    constexpr size_t chunk = 16; // values that go into the 16 lanes of a sum, and a cache line
    constexpr size_t num_doubles = hn::MaxLanes(doubles());
    constexpr size_t num_floats = hn::MaxLanes(floats());
    constexpr size_t num_few_floats = hn::MaxLanes(few_floats());
    constexpr size_t vecs = chunk / num_doubles;

    // A step of a loop that writes one group and sums the next one, and how far ahead (in
    // floats) it asks for memory: the processor's own prefetching stops at page borders.
    constexpr size_t step_chunks = 4;
    constexpr size_t prefetch_distance = 768;

    // A backward pass has so many streams that it takes them in turns, a page of memory each.
    constexpr size_t piece = 1024;

    const char* instruction_set() { return hwy::TargetName(HWY_TARGET); }

    HWY_INLINE vec load_as_double(const float* p)
    {
        return hn::PromoteTo(doubles(), hn::LoadU(half_floats(), p));
    }

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
                    const auto at_k = hn::Eq(
                        hn::Iota(half_floats(), 0), hn::Set(half_floats(), static_cast<float>(k)));
                    v = hn::IfThenElse(at_k, hn::Set(half_floats(), p[k]), v);
                }
            }
            return hn::PromoteTo(doubles(), v);
        }

        size_t count;
    };

    // An address a little past the end of an array does no harm.
    HWY_INLINE void prefetch_at(const float* p, size_t i)
    {
        hwy::Prefetch(reinterpret_cast<const float*>(
            reinterpret_cast<std::uintptr_t>(p) + i * sizeof(float)));
    }

    HWY_INLINE void copy_less_than_chunk(const float* from, size_t count, float* to)
    {
        if (count & 8)
        {
            std::memcpy(to, from, 8 * sizeof(float));
            from += 8;
            to += 8;
        }
        if (count & 4)
        {
            std::memcpy(to, from, 4 * sizeof(float));
            from += 4;
            to += 4;
        }
        if (count & 2)
        {
            std::memcpy(to, from, 2 * sizeof(float));
            from += 2;
            to += 2;
        }
        if (count & 1)
            *to = *from;
    }

    struct padded
    {
        // The last values of a group, followed by zeros, which add nothing to a sum.
        HWY_INLINE padded(const float* from, size_t count)
        {
            for (size_t k = 0; k < chunk; k += num_floats)
                hn::StoreU(hn::Zero(floats()), floats(), values + k);
            copy_less_than_chunk(from, count, values);
        }

        alignas(64) float values[chunk];
    };

    // ----------------------------------------------------------------------------------------

    struct sum_lanes
    {
        HWY_INLINE sum_lanes()
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
                v[k] = hn::Zero(doubles());
        }

        HWY_INLINE void add_squares(const float* x)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
            {
                const vec a = load_as_double(x + k * num_doubles);
                v[k] = hn::MulAdd(a, a, v[k]);
            }
        }

        HWY_INLINE void add_products(const float* d, const float* x)
        {
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
            {
                v[k] = hn::MulAdd(
                    load_as_double(d + k * num_doubles), load_as_double(x + k * num_doubles), v[k]);
            }
        }

        HWY_INLINE double total() const
        {
            vec a[vecs];
            HWY_UNROLL(16)
            for (size_t k = 0; k < vecs; ++k)
                a[k] = v[k];
            HWY_UNROLL(4)
            for (size_t half = vecs / 2; half >= 1; half /= 2)
            {
                HWY_UNROLL(8)
                for (size_t k = 0; k < half; ++k)
                    a[k] = hn::Add(a[k], a[k + half]);
            }

            alignas(64) double b[num_doubles];
            hn::Store(a[0], doubles(), b);
            HWY_UNROLL(4)
            for (size_t half = num_doubles / 2; half >= 1; half /= 2)
            {
                HWY_UNROLL(8)
                for (size_t k = 0; k < half; ++k)
                    b[k] += b[k + half];
            }
            return b[0];
        }

        vec v[vecs];
    };

    // ----------------------------------------------------------------------------------------

    // Operands of the formulas below: one number for all values, one per value, or one per
    // run of values. fetch(i) is called before get(d, i), for growing i.

    struct nothing
    {
        static constexpr bool exists = false;
    };

    struct single
    {
        static constexpr bool exists = true;

        HWY_INLINE void fetch(size_t) {}

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t) const
        {
            return hn::Set(d, value);
        }

        float value;
    };

    struct array
    {
        static constexpr bool exists = true;

        HWY_INLINE void fetch(size_t) {}

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return hn::LoadU(d, values + i);
        }

        const float* values;
    };

    struct runs
    {
        static constexpr bool exists = true;

        HWY_INLINE runs(const float* values_, size_t run_, size_t begin, size_t end_) :
            value(values_ + begin / run_),
            run(run_),
            run_end(begin / run_ * run_ + run_),
            end(end_)
        {
            spread();
        }

        HWY_INLINE void spread()
        {
            const auto a = hn::Set(floats(), value[0]);
            const auto b = hn::Set(floats(), run_end < end ? value[1] : value[0]);
            for (size_t k = 0; k < chunk; k += num_floats)
            {
                hn::Store(a, floats(), both + k);
                hn::Store(b, floats(), both + chunk + k);
            }
        }

        HWY_INLINE void fetch(size_t i)
        {
            if (i >= run_end)
            {
                ++value;
                run_end += run;
                spread();
            }
            at = i;
            from = i + chunk > run_end ? both + (i + chunk - run_end) : both;
        }

        template <class D>
        HWY_INLINE hn::Vec<D> get(D d, size_t i) const
        {
            return hn::LoadU(d, from + (i - at));
        }

        const float* value;
        size_t run;
        size_t run_end;
        size_t end;
        size_t at = 0;
        const float* from = both;
        alignas(64) float both[2 * chunk]; // this run's and the next one's: a chunk meets two runs
    };

    template <class scales, class gains>
    struct normalize
    {
        HWY_INLINE void fetch(size_t i)
        {
            if constexpr (gains::exists)
                g.fetch(i);
        }

        template <bool stream, class D>
        HWY_INLINE void write(D d, size_t i) const
        {
            auto v = hn::Mul(hn::LoadU(d, x + i), s.get(d, i));
            if constexpr (gains::exists)
                v = hn::Mul(v, g.get(d, i));
            if constexpr (stream)
                hn::Stream(v, d, y + i);
            else
                hn::StoreU(v, d, y + i);
        }

        HWY_INLINE void prefetch(size_t i) const { prefetch_at(next_x, i); }

        const float* x;
        float* y;
        scales s;
        gains g;
        const float* next_x; // what is read after this
    };

    template <bool add, class scales, class gains>
    struct gradient
    {
        HWY_INLINE void fetch(size_t i)
        {
            if constexpr (gains::exists)
                g.fetch(i);
        }

        template <bool, class D>
        HWY_INLINE void write(D dd, size_t i) const
        {
            auto gd = hn::LoadU(dd, d + i);
            if constexpr (gains::exists)
                gd = hn::Mul(g.get(dd, i), gd);
            const auto scale = s.get(dd, i);
            const auto xhm = hn::Mul(hn::Mul(hn::LoadU(dd, x + i), scale), m.get(dd, i));
            auto v = hn::Mul(scale, hn::Sub(gd, xhm));
            if constexpr (add)
                v = hn::Add(hn::LoadU(dd, dx + i), v);
            hn::StoreU(v, dd, dx + i);
        }

        HWY_INLINE void prefetch(size_t i) const
        {
            prefetch_at(next_d, i);
            prefetch_at(next_x, i);
        }

        const float* d;
        const float* x;
        float* dx;
        scales s;
        scales m;
        gains g;
        const float* next_d; // what is read after this
        const float* next_x;
    };

    // ----------------------------------------------------------------------------------------

    template <class formula>
    HWY_INLINE void write_few(formula& f, size_t i, size_t end)
    {
        for (; i + num_few_floats <= end; i += num_few_floats)
        {
            f.fetch(i);
            f.template write<false>(few_floats(), i);
        }
        for (; i < end; ++i)
        {
            f.fetch(i);
            f.template write<false>(one_float(), i);
        }
    }

    template <bool stream, class formula>
    HWY_INLINE void write_chunk(formula& f, size_t i)
    {
        f.fetch(i);
        HWY_UNROLL(16)
        for (size_t k = 0; k < chunk; k += num_floats)
            f.template write<stream>(floats(), i + k);
    }

    // Streaming stores are for whole cache lines; a line that two groups share is left to
    // the cache.
    HWY_INLINE size_t next_line(const float* y, size_t begin, size_t end)
    {
        const size_t past = reinterpret_cast<std::uintptr_t>(y + begin) / sizeof(float) % chunk;
        return past == 0 ? begin : std::min(end, begin + chunk - past);
    }

    template <bool stream, class formula>
    HWY_INLINE void write_values(formula& f, const float* y, size_t begin, size_t end)
    {
        size_t i = begin;
        if constexpr (stream)
        {
            i = next_line(y, begin, end);
            write_few(f, begin, i);
        }
        for (; i + chunk <= end; i += chunk)
        {
            f.prefetch(i);
            write_chunk<stream>(f, i);
        }
        write_few(f, i, end);
    }

    struct sum_squares
    {
        HWY_INLINE sum_squares(const float* x_, size_t size) :
            x(x_),
            chunks(size / chunk),
            rest(size % chunk)
        {
        }

        HWY_INLINE void step()
        {
            if (chunks >= step_chunks)
            {
                HWY_UNROLL(4)
                for (size_t k = 0; k < step_chunks; ++k)
                {
                    prefetch_at(x, prefetch_distance);
                    lanes.add_squares(x);
                    x += chunk;
                }
                chunks -= step_chunks;
            }
        }

        HWY_INLINE double finish()
        {
            for (; chunks != 0; --chunks)
            {
                lanes.add_squares(x);
                x += chunk;
            }
            if (rest != 0)
                lanes.add_squares(padded(x, rest).values);
            return lanes.total();
        }

        const float* x;
        size_t chunks;
        size_t rest;
        sum_lanes lanes;
    };

    template <bool stream, class formula>
    HWY_INLINE double
    write_and_sum(formula& f, const float* y, size_t begin, size_t end, sum_squares next)
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

    // ----------------------------------------------------------------------------------------

    double sum_of_squares(const float* x, size_t size) { return sum_squares(x, size).finish(); }

    HWY_INLINE double sum_of_group(const float* x, size_t size)
    {
        double sum = 0;
        for (size_t b = 0; b < size; b += rms_norm_sum_block)
            sum += sum_of_squares(x + b, std::min(rms_norm_sum_block, size - b));
        return sum;
    }

    // A short group is over before its neighbour's sum has come out of the pipeline: many of
    // them are summed, then written.
    constexpr size_t short_size = 512;
    constexpr size_t panel_size = 1024;
    constexpr size_t panel_groups = 32;

    template <bool stream, class make_gains>
    HWY_INLINE void normalize_short_groups(const float* x,
        float* y,
        float* scale,
        const make_gains& gains,
        size_t size,
        size_t count,
        double eps)
    {
        const size_t groups = std::max<size_t>(1, std::min(panel_groups, panel_size / size));
        double sums[panel_groups];
        for (size_t g = 0; g < count; g += groups)
        {
            const size_t n = std::min(groups, count - g);
            for (size_t j = 0; j < n; ++j)
                sums[j] = sum_of_squares(x + (g + j) * size, size);
            for (size_t j = 0; j < n; ++j)
                scale[g + j] = cpu::scale_of_group(sums[j], size, eps);
            for (size_t j = 0; j < n; ++j)
            {
                const float* const from = x + (g + j) * size;
                float* const to = y + (g + j) * size;
                normalize<single, decltype(gains(size_t(), size_t()))> f{
                    from, to, {scale[g + j]}, gains(0, size), from + groups * size};
                write_values<stream>(f, to, 0, size);
            }
        }
    }

    template <bool stream, class make_gains>
    HWY_INLINE void normalize_long_groups(const float* x,
        float* y,
        float* scale,
        const make_gains& gains,
        size_t size,
        size_t count,
        double eps)
    {
        double sum = sum_of_group(x, size);
        for (size_t g = 0; g < count; ++g, x += size, y += size)
        {
            scale[g] = cpu::scale_of_group(sum, size, eps);
            sum = 0;
            for (size_t b = 0; b < size; b += rms_norm_sum_block)
            {
                const size_t end = std::min(size, b + rms_norm_sum_block);
                const size_t next = g + 1 < count ? end - b : 0;
                normalize<single, decltype(gains(size_t(), size_t()))> f{
                    x, y, {scale[g]}, gains(b, size), nullptr};
                sum += write_and_sum<stream>(f, y, b, end, sum_squares(x + size + b, next));
            }
        }
    }

    struct make_nothing
    {
        HWY_INLINE nothing operator()(size_t, size_t) const { return {}; }
    };

    struct make_array
    {
        HWY_INLINE array operator()(size_t, size_t) const { return {values}; }
        const float* values;
    };

    struct make_runs
    {
        HWY_INLINE runs operator()(size_t begin, size_t end) const
        {
            return {values, run, begin, end};
        }
        const float* values;
        size_t run;
    };

    template <bool stream, class make_gains>
    void normalize_any_groups(const float* x,
        float* y,
        float* scale,
        const make_gains& gains,
        size_t size,
        size_t count,
        double eps)
    {
        if (size < short_size)
            normalize_short_groups<stream>(x, y, scale, gains, size, count, eps);
        else
            normalize_long_groups<stream>(x, y, scale, gains, size, count, eps);
    }

    template <bool stream>
    void normalize_groups_to(const float* x,
        float* y,
        float* scale,
        const rms_norm_gains& gains,
        size_t size,
        size_t count,
        double eps)
    {
        if (gains.values == nullptr)
            normalize_any_groups<stream>(x, y, scale, make_nothing(), size, count, eps);
        else if (gains.run == 1)
            normalize_any_groups<stream>(x, y, scale, make_array{gains.values}, size, count, eps);
        else
            normalize_any_groups<stream>(
                x, y, scale, make_runs{gains.values, gains.run}, size, count, eps);
    }

    void normalize_groups(const float* x,
        float* y,
        float* scale,
        const rms_norm_gains& gains,
        size_t size,
        size_t count,
        double eps,
        bool stream)
    {
        if (stream)
        {
            normalize_groups_to<true>(x, y, scale, gains, size, count, eps);
            hwy::FlushStream();
        }
        else
        {
            normalize_groups_to<false>(x, y, scale, gains, size, count, eps);
        }
    }

    template <bool stream, class make_gains>
    HWY_INLINE void normalize_part_with(const float* x,
        float* y,
        float scale,
        const make_gains& gains,
        size_t begin,
        size_t end)
    {
        normalize<single, decltype(gains(size_t(), size_t()))> f{
            x, y, {scale}, gains(begin, end), x + prefetch_distance};
        write_values<stream>(f, y, begin, end);
    }

    template <bool stream>
    void normalize_part_to(const float* x,
        float* y,
        float scale,
        const rms_norm_gains& gains,
        size_t begin,
        size_t end)
    {
        if (gains.values == nullptr)
            normalize_part_with<stream>(x, y, scale, make_nothing(), begin, end);
        else if (gains.run == 1)
            normalize_part_with<stream>(x, y, scale, make_array{gains.values}, begin, end);
        else
            normalize_part_with<stream>(
                x, y, scale, make_runs{gains.values, gains.run}, begin, end);
    }

    void normalize_part(const float* x,
        float* y,
        float scale,
        const rms_norm_gains& gains,
        size_t begin,
        size_t end,
        bool stream)
    {
        if (stream)
        {
            normalize_part_to<true>(x, y, scale, gains, begin, end);
            hwy::FlushStream();
        }
        else
        {
            normalize_part_to<false>(x, y, scale, gains, begin, end);
        }
    }

    // ----------------------------------------------------------------------------------------

    struct tile
    {
        HWY_INLINE tile(const rms_norm_tiles& tiles, size_t number)
        {
            const size_t block = number / tiles.per_block();
            const size_t column = number % tiles.per_block() * tiles.width;
            first = block * tiles.size * tiles.stride + column;
            group = block * tiles.stride + column;
            width = std::min(tiles.width, tiles.stride - column);
        }

        size_t first; // index of the value at its upper left
        size_t group; // number of its first group
        size_t width;
    };

    // The 16 lanes of the sum of every column of a tile, the totals and the scales of the columns,
    // all with room for whole vectors. Lanes are loaded and stored once for several rows, 16
    // rows apart.
    struct tile_sums
    {
        HWY_INLINE tile_sums(double* workspace, size_t width_) :
            totals(workspace),
            width((width_ + chunk - 1) / chunk * chunk),
            scales(workspace + width),
            lanes(workspace + 2 * width)
        {
        }

        HWY_INLINE void clear_totals() { std::fill_n(totals, width, 0.0); }
        HWY_INLINE void clear_lanes() { std::fill_n(lanes, chunk * width, 0.0); }
        HWY_INLINE double* lane(size_t row) const { return lanes + row % chunk * width; }

        HWY_INLINE void set_scales(const float* scale, size_t count)
        {
            for (size_t w = 0; w < width; ++w)
                scales[w] = w < count ? static_cast<double>(scale[w]) : 0;
        }

        HWY_INLINE void finish_block()
        {
            for (size_t half = chunk / 2; half >= 1; half /= 2)
            {
                double* const a = lanes;
                const double* const b = lanes + half * width;
                for (size_t i = 0; i < half * width; i += num_doubles)
                {
                    hn::StoreU(hn::Add(hn::LoadU(doubles(), a + i), hn::LoadU(doubles(), b + i)),
                        doubles(), a + i);
                }
            }
            for (size_t w = 0; w < width; ++w)
                totals[w] += lanes[w];
        }

        double* totals;
        size_t width;
        double* scales;
        double* lanes;
    };

    template <size_t rows>
    HWY_INLINE void add_squares_of_rows(const float* x, size_t distance, size_t width, double* lane)
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

    // Sums one tile, if there is one, and writes another, if there is one.
    template <bool stream, class gains>
    HWY_INLINE void normalize_tile_step(const float* x,
        float* y,
        float* scale,
        const float* values,
        const rms_norm_tiles& tiles,
        const tile* to_sum,
        const tile* to_write,
        double eps,
        double* workspace)
    {
        const float* const next = to_sum ? x + to_sum->first : y + to_write->first;
        tile_sums sums(workspace, to_sum ? to_sum->width : 0);
        sums.clear_totals();
        for (size_t b = 0; b < tiles.size; b += rms_norm_sum_block)
        {
            sums.clear_lanes();
            const size_t block_end = std::min(tiles.size, b + rms_norm_sum_block);
            for (size_t p = b; p < block_end; p += 4 * chunk)
            {
                const size_t end = std::min(block_end, p + 4 * chunk);
                const bool full = to_sum && end - p == 4 * chunk;
                for (size_t i = p; i < (full ? p + chunk : end); ++i)
                {
                    const float* const from = next + i * tiles.stride;
                    if (to_sum && full)
                        add_squares_of_rows<4>(
                            from, chunk * tiles.stride, to_sum->width, sums.lane(i));
                    else if (to_sum)
                        add_squares_of_rows<1>(from, 0, to_sum->width, sums.lane(i));
                    if (to_write)
                    {
                        for (size_t j = i; j < (full ? end : i + 1); j += chunk)
                        {
                            const size_t at = to_write->first + j * tiles.stride;
                            normalize<array, gains> f{x + at, y + at, {scale + to_write->group}, {},
                                next + (j + 1) * tiles.stride};
                            if constexpr (gains::exists)
                                f.g.value = values[j];
                            write_values<stream>(f, y + at, 0, to_write->width);
                        }
                    }
                }
            }
            sums.finish_block();
        }
        if (to_sum)
        {
            for (size_t w = 0; w < to_sum->width; ++w)
                scale[to_sum->group + w] = cpu::scale_of_group(sums.totals[w], tiles.size, eps);
        }
    }

    // A tile and the one before it fit into the cache together only if stores go past it.
    template <bool stream, class gains>
    void normalize_tiles_to(const float* x,
        float* y,
        float* scale,
        const float* values,
        const rms_norm_tiles& tiles,
        size_t first,
        size_t last,
        double eps,
        double* workspace)
    {
        const auto step = [&](const tile* to_sum, const tile* to_write) HWY_ATTR
        {
            normalize_tile_step<stream, gains>(
                x, y, scale, values, tiles, to_sum, to_write, eps, workspace);
        };

        if (first == last)
            return;
        tile now(tiles, first);
        step(&now, nullptr);
        for (size_t t = first + 1; t < last; ++t)
        {
            const tile next(tiles, t);
            if constexpr (stream)
            {
                step(&next, &now);
            }
            else
            {
                step(nullptr, &now);
                step(&next, nullptr);
            }
            now = next;
        }
        step(nullptr, &now);
    }

    void normalize_tiles(const float* x,
        float* y,
        float* scale,
        const float* gains,
        const rms_norm_tiles& tiles,
        size_t first,
        size_t last,
        double eps,
        bool stream,
        double* workspace)
    {
        if (stream)
        {
            if (gains == nullptr)
                normalize_tiles_to<true, nothing>(
                    x, y, scale, gains, tiles, first, last, eps, workspace);
            else
                normalize_tiles_to<true, single>(
                    x, y, scale, gains, tiles, first, last, eps, workspace);
            hwy::FlushStream();
        }
        else
        {
            if (gains == nullptr)
                normalize_tiles_to<false, nothing>(
                    x, y, scale, gains, tiles, first, last, eps, workspace);
            else
                normalize_tiles_to<false, single>(
                    x, y, scale, gains, tiles, first, last, eps, workspace);
        }
    }

    // ----------------------------------------------------------------------------------------
    // ----------------------------------------------------------------------------------------

    // Adds d*x*gains to the lanes, d*x*scale to gains_grad.
    HWY_INLINE void add_gradient_chunk(sum_lanes& lanes,
        const float* d,
        const float* x,
        const float* g,
        double scale,
        double* gains_grad)
    {
        HWY_UNROLL(16)
        for (size_t k = 0; k < vecs; ++k)
        {
            const size_t i = k * num_doubles;
            const vec t = hn::Mul(load_as_double(d + i), load_as_double(x + i));
            const vec grad = hn::LoadU(doubles(), gains_grad + i);
            lanes.v[k] = hn::Add(lanes.v[k], hn::Mul(t, load_as_double(g + i)));
            hn::StoreU(
                hn::Add(grad, hn::Mul(t, hn::Set(doubles(), scale))), doubles(), gains_grad + i);
        }
    }

    // Adds values [begin, end) of a group. end is a multiple of chunk, or the end of the group.
    template <bool gains>
    HWY_INLINE void add_gradient_values(sum_lanes& lanes,
        const float* d,
        const float* x,
        const float* g,
        float scale,
        double* gains_grad,
        const float* prefetch,
        size_t begin,
        size_t end)
    {
        sum_lanes sums = lanes;
        const double s = static_cast<double>(scale);
        size_t i = begin;
        for (; i + chunk <= end; i += chunk)
        {
            prefetch_at(prefetch, i);
            if constexpr (gains)
                add_gradient_chunk(sums, d + i, x + i, g + i, s, gains_grad + i);
            else
                sums.add_products(d + i, x + i);
        }
        if (i < end)
        {
            const padded last_d(d + i, end - i);
            const padded last_x(x + i, end - i);
            if constexpr (gains)
                add_gradient_chunk(sums, last_d.values, last_x.values,
                    padded(g + i, end - i).values, s, gains_grad + i);
            else
                sums.add_products(last_d.values, last_x.values);
        }
        lanes = sums;
    }

    HWY_INLINE rms_norm_gradients at_group(rms_norm_gradients a, size_t size, size_t g)
    {
        a.d += g * size;
        a.x += g * size;
        a.dx += g * size;
        a.scale += g;
        a.m += g;
        return a;
    }

    // Writes dx of one group, if there is one, and sums another, if there is one.
    template <bool add, bool gains>
    HWY_INLINE void gradient_step(const rms_norm_gradients* to_write,
        const rms_norm_gradients* to_sum,
        const float* g,
        double* gains_grad,
        size_t size)
    {
        const rms_norm_gradients& now = to_write ? *to_write : *to_sum;
        const rms_norm_gradients& next = to_sum ? *to_sum : *to_write;
        gradient<add, single, std::conditional_t<gains, array, nothing>> f{
            now.d, now.x, now.dx, {*now.scale}, {*now.m}, {}, next.d + piece, next.x + piece};
        if constexpr (gains)
            f.g.values = g;

        double total = 0;
        for (size_t b = 0; b < size; b += rms_norm_sum_block)
        {
            sum_lanes lanes;
            const size_t block_end = std::min(size, b + rms_norm_sum_block);
            for (size_t i = b; i < block_end; i += piece)
            {
                const size_t end = std::min(block_end, i + piece);
                if (to_sum)
                {
                    add_gradient_values<gains>(
                        lanes, next.d, next.x, g, *next.scale, gains_grad, now.dx, i, end);
                }
                if (to_write)
                    write_values<false>(f, now.dx, i, end);
            }
            total += lanes.total();
        }
        if (to_sum)
            *next.m = cpu::mean_of_group(total, *next.scale, size);
    }

    // As gradient_step, for gains that are shared by runs of values.
    template <bool add>
    HWY_INLINE void gradient_step_of_runs(const rms_norm_gradients* to_write,
        const rms_norm_gradients* to_sum,
        const rms_norm_gains& gains,
        size_t size,
        double* gains_grad)
    {
        const rms_norm_gradients& now = to_write ? *to_write : *to_sum;
        const rms_norm_gradients& next = to_sum ? *to_sum : *to_write;
        gradient<add, single, runs> f{now.d, now.x, now.dx, {*now.scale}, {*now.m},
            {gains.values, gains.run, 0, size}, next.d + piece, next.x + piece};

        double total = 0;
        size_t written = 0;
        for (size_t c = 0; c < size / gains.run; ++c)
        {
            const size_t run_end = (c + 1) * gains.run;
            double run_total = 0;
            for (size_t b = c * gains.run; b < run_end; b += rms_norm_sum_block)
            {
                sum_lanes lanes;
                const size_t block_end = std::min(run_end, b + rms_norm_sum_block);
                for (size_t i = b; i < block_end; i += piece)
                {
                    const size_t end = std::min(block_end, i + piece);
                    if (to_sum)
                    {
                        add_gradient_values<false>(
                            lanes, next.d, next.x, nullptr, 0, nullptr, now.dx, i, end);
                    }
                    if (to_write)
                    {
                        const size_t chunks_end = written + (end - written) / chunk * chunk;
                        write_values<false>(f, now.dx, written, chunks_end);
                        written = chunks_end;
                    }
                }
                run_total += lanes.total();
            }
            if (to_sum)
            {
                total += run_total * static_cast<double>(gains.values[c]);
                gains_grad[c] += run_total * static_cast<double>(*next.scale);
            }
        }
        if (to_write)
            write_few(f, written, size);
        if (to_sum)
            *next.m = cpu::mean_of_group(total, *next.scale, size);
    }

    template <bool add, bool gains>
    void gradient_of_groups(const rms_norm_gradients& a,
        const float* g,
        size_t size,
        size_t count,
        const rms_norm_gain_sums& sums)
    {
        for (size_t j = 0; j <= count; ++j)
        {
            const rms_norm_gradients now = at_group(a, size, j == 0 ? 0 : j - 1);
            const rms_norm_gradients next = at_group(a, size, j);
            gradient_step<add, gains>(
                j == 0 ? nullptr : &now, j == count ? nullptr : &next, g, sums.of_unit(j), size);
        }
    }

    template <bool add>
    void gradient_of_runs(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        size_t size,
        size_t count,
        const rms_norm_gain_sums& sums)
    {
        for (size_t j = 0; j <= count; ++j)
        {
            const rms_norm_gradients now = at_group(a, size, j == 0 ? 0 : j - 1);
            const rms_norm_gradients next = at_group(a, size, j);
            gradient_step_of_runs<add>(j == 0 ? nullptr : &now, j == count ? nullptr : &next, gains,
                size, sums.of_unit(j));
        }
    }

    template <bool add>
    void gradient_groups_to(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        size_t size,
        size_t count,
        const rms_norm_gain_sums& sums)
    {
        if (gains.values == nullptr)
            gradient_of_groups<add, false>(a, nullptr, size, count, sums);
        else if (gains.run == 1)
            gradient_of_groups<add, true>(a, gains.values, size, count, sums);
        else
            gradient_of_runs<add>(a, gains, size, count, sums);
    }

    void gradient_groups(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        size_t size,
        size_t count,
        const rms_norm_gain_sums& sums)
    {
        if (a.add)
            gradient_groups_to<true>(a, gains, size, count, sums);
        else
            gradient_groups_to<false>(a, gains, size, count, sums);
    }

    double gradient_sums(const float* d,
        const float* x,
        float scale,
        const float* gains,
        double* gains_grad,
        size_t size)
    {
        sum_lanes lanes;
        if (gains != nullptr)
            add_gradient_values<true>(
                lanes, d, x, gains, scale, gains_grad, x + prefetch_distance, 0, size);
        else
            add_gradient_values<false>(
                lanes, d, x, nullptr, scale, nullptr, x + prefetch_distance, 0, size);
        return lanes.total();
    }

    template <bool add, class gains>
    HWY_INLINE void
    gradient_part_with(const rms_norm_gradients& a, const gains& g, size_t begin, size_t end)
    {
        gradient<add, single, gains> f{a.d, a.x, a.dx, {*a.scale}, {*a.m}, g,
            a.d + prefetch_distance, a.x + prefetch_distance};
        write_values<false>(f, a.dx, begin, end);
    }

    template <bool add>
    void gradient_part_to(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        size_t begin,
        size_t end)
    {
        if (gains.values == nullptr)
            gradient_part_with<add>(a, nothing(), begin, end);
        else if (gains.run == 1)
            gradient_part_with<add>(a, array{gains.values}, begin, end);
        else
            gradient_part_with<add>(a, runs(gains.values, gains.run, begin, end), begin, end);
    }

    void gradient_part(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        size_t begin,
        size_t end)
    {
        if (a.add)
            gradient_part_to<true>(a, gains, begin, end);
        else
            gradient_part_to<false>(a, gains, begin, end);
    }

    // ----------------------------------------------------------------------------------------

    // Adds rows of a tile to the sums of its columns and, with gains, the sum of d*x*scale over
    // each row, whose lanes are columns, to gains_grad.
    template <bool gains, size_t rows>
    HWY_INLINE void add_products_of_rows(const float* d,
        const float* x,
        size_t distance,
        const double* scale,
        const float* values,
        double* gains_grad,
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
                gain[r] = hn::Set(doubles(), static_cast<double>(values[row_number + r * chunk]));
        }

        const auto add = [&](size_t i, size_t k, const auto& part) HWY_ATTR
        {
            vec sum = hn::LoadU(doubles(), lane + i);
            HWY_UNROLL(2)
            for (size_t r = 0; r < rows; ++r)
            {
                const vec t = hn::Mul(
                    part.load(d + r * distance + i), part.load(x + r * distance + i));
                if constexpr (gains)
                {
                    sum = hn::Add(sum, hn::Mul(t, gain[r]));
                    row[r].v[k] = hn::Add(row[r].v[k], hn::Mul(t, hn::LoadU(doubles(), scale + i)));
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
                gains_grad[row_number + r * chunk] += row[r].total();
        }
    }

    template <bool add, class gains>
    void gradient_tiles_to(const rms_norm_gradients& a,
        const float* values,
        const rms_norm_tiles& tiles,
        size_t first,
        size_t last,
        const rms_norm_gain_sums& gain_sums,
        double* workspace)
    {
        // Two tiles at a time, with three streams each, would not fit into the cache.
        for (size_t t = first; t < last; ++t)
        {
            const tile now(tiles, t);
            double* const gains_grad = gain_sums.of_unit(t - first);

            tile_sums sums(workspace, now.width);
            sums.clear_totals();
            sums.set_scales(a.scale + now.group, now.width);
            for (size_t b = 0; b < tiles.size; b += rms_norm_sum_block)
            {
                sums.clear_lanes();
                const size_t block_end = std::min(tiles.size, b + rms_norm_sum_block);
                for (size_t p = b; p < block_end; p += 2 * chunk)
                {
                    const size_t end = std::min(block_end, p + 2 * chunk);
                    const bool full = end - p == 2 * chunk;
                    for (size_t i = p; i < (full ? p + chunk : end); ++i)
                    {
                        const size_t at = now.first + i * tiles.stride;
                        if (full)
                            add_products_of_rows<gains::exists, 2>(a.d + at, a.x + at,
                                chunk * tiles.stride, sums.scales, values, gains_grad, i, now.width,
                                sums.lane(i), tiles.stride);
                        else
                            add_products_of_rows<gains::exists, 1>(a.d + at, a.x + at, 0,
                                sums.scales, values, gains_grad, i, now.width, sums.lane(i),
                                tiles.stride);
                    }
                }
                sums.finish_block();
            }
            for (size_t w = 0; w < now.width; ++w)
            {
                const size_t g = now.group + w;
                a.m[g] = cpu::mean_of_group(sums.totals[w], a.scale[g], tiles.size);
            }

            for (size_t i = 0; i < tiles.size; ++i)
            {
                const size_t at = now.first + i * tiles.stride;
                const float* const soon = a.dx + at + tiles.stride;
                gradient<add, array, gains> f{a.d + at, a.x + at, a.dx + at, {a.scale + now.group},
                    {a.m + now.group}, {}, soon, soon};
                if constexpr (gains::exists)
                    f.g.value = values[i];
                write_values<false>(f, a.dx + at, 0, now.width);
            }
        }
    }

    void gradient_tiles(const rms_norm_gradients& a,
        const float* gains,
        const rms_norm_tiles& tiles,
        size_t first,
        size_t last,
        const rms_norm_gain_sums& gain_sums,
        double* workspace)
    {
        if (a.add)
        {
            if (gains == nullptr)
                gradient_tiles_to<true, nothing>(
                    a, gains, tiles, first, last, gain_sums, workspace);
            else
                gradient_tiles_to<true, single>(a, gains, tiles, first, last, gain_sums, workspace);
        }
        else
        {
            if (gains == nullptr)
                gradient_tiles_to<false, nothing>(
                    a, gains, tiles, first, last, gain_sums, workspace);
            else
                gradient_tiles_to<false, single>(
                    a, gains, tiles, first, last, gain_sums, workspace);
        }
    }

    // ----------------------------------------------------------------------------------------

    void add_partial_sums(double* partials, size_t count, size_t pitch, size_t begin, size_t end)
    {
        for (size_t p = 1; p < count; ++p)
        {
            const double* const from = partials + p * pitch;
            size_t i = begin;
            for (; i + num_doubles <= end; i += num_doubles)
            {
                hn::StoreU(
                    hn::Add(hn::LoadU(doubles(), partials + i), hn::LoadU(doubles(), from + i)),
                    doubles(), partials + i);
            }
            for (; i < end; ++i)
                partials[i] += from[i];
        }
    }

}
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    HWY_EXPORT(instruction_set);
    HWY_EXPORT(sum_of_squares);
    HWY_EXPORT(normalize_groups);
    HWY_EXPORT(normalize_part);
    HWY_EXPORT(normalize_tiles);
    HWY_EXPORT(gradient_sums);
    HWY_EXPORT(gradient_groups);
    HWY_EXPORT(gradient_part);
    HWY_EXPORT(gradient_tiles);
    HWY_EXPORT(add_partial_sums);

    const char* rms_norm_instruction_set() { return HWY_DYNAMIC_DISPATCH(instruction_set)(); }

    float scale_of_group(double squares, std::size_t size, double eps)
    {
        return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + eps));
    }

    float mean_of_group(double sum, float scale, std::size_t size)
    {
        return static_cast<float>(static_cast<double>(scale) * sum / static_cast<double>(size));
    }

    double sum_of_squares(const float* x, std::size_t size)
    {
        return HWY_DYNAMIC_DISPATCH(sum_of_squares)(x, size);
    }

    void normalize_groups(const float* x,
        float* y,
        float* scale,
        const rms_norm_gains& gains,
        std::size_t size,
        std::size_t count,
        double eps,
        bool stream)
    {
        HWY_DYNAMIC_DISPATCH(normalize_groups)(x, y, scale, gains, size, count, eps, stream);
    }

    void normalize_part(const float* x,
        float* y,
        float scale,
        const rms_norm_gains& gains,
        std::size_t begin,
        std::size_t end,
        bool stream)
    {
        HWY_DYNAMIC_DISPATCH(normalize_part)(x, y, scale, gains, begin, end, stream);
    }

    void normalize_tiles(const float* x,
        float* y,
        float* scale,
        const float* gains,
        const rms_norm_tiles& tiles,
        std::size_t first,
        std::size_t last,
        double eps,
        bool stream,
        double* workspace)
    {
        HWY_DYNAMIC_DISPATCH(normalize_tiles)
        (x, y, scale, gains, tiles, first, last, eps, stream, workspace);
    }

    double gradient_sums(const float* d,
        const float* x,
        float scale,
        const float* gains,
        double* gains_grad,
        std::size_t size)
    {
        return HWY_DYNAMIC_DISPATCH(gradient_sums)(d, x, scale, gains, gains_grad, size);
    }

    void gradient_groups(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        std::size_t size,
        std::size_t count,
        const rms_norm_gain_sums& sums)
    {
        HWY_DYNAMIC_DISPATCH(gradient_groups)(a, gains, size, count, sums);
    }

    void gradient_part(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        std::size_t begin,
        std::size_t end)
    {
        HWY_DYNAMIC_DISPATCH(gradient_part)(a, gains, begin, end);
    }

    void gradient_tiles(const rms_norm_gradients& a,
        const float* gains,
        const rms_norm_tiles& tiles,
        std::size_t first,
        std::size_t last,
        const rms_norm_gain_sums& sums,
        double* workspace)
    {
        HWY_DYNAMIC_DISPATCH(gradient_tiles)(a, gains, tiles, first, last, sums, workspace);
    }

    void add_partial_sums(double* partials,
        std::size_t count,
        std::size_t pitch,
        std::size_t begin,
        std::size_t end)
    {
        HWY_DYNAMIC_DISPATCH(add_partial_sums)(partials, count, pitch, begin, end);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // HWY_ONCE
