// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_SIMD_H_
#define DLIB_RMS_NORM_SIMD_H_

// The arithmetic of RMS normalization on the CPU, in one thread, for whichever instruction set
// the machine has: one table of functions for contiguous groups (rows), one for interleaved
// groups (tiles of columns). What is done in which order is fixed here, so that every instruction
// set, every alignment and every way to share the work out gives the same bits:
//
//   - A sum over the values of a group, or of a run that shares a gain, goes segment by segment.
//     In a segment, lane i%16 adds value i in double; the 16 lanes are then added pairwise, j and
//     j+8, j and j+4, j and j+2, j and j+1; the sums of segments are added in order.
//   - The gradient of a gain is added up group by group.
//   - Products are fused into sums only where they are exact: x*x and d*x in double.
//   - Where values have 16 bits, the lanes take the sum of four values, 16 apart, that are added up
//     in float, and the gradient of a gain that of up to four neighbouring groups.

#include <cmath>
#include <cstddef>
#include "rms_norm_cpu_plan.h"
#include "rms_norm_float16.h"
#include "rms_norm_pass.h"

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_gains
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The gains as the loops need them, with the offset added: that of value i of a group
                is values[i/run]. There are none if values is null.

            CONVENTION
                - run == 1 or run >= rms_norm_lanes
                - if (values is null) then run == 1
        !*/
        const float* values = nullptr;
        std::size_t run = 1;
    };

    // ----------------------------------------------------------------------------------------

    // What becomes of the sums over a group.

    inline float scale_of_group(double squares, std::size_t size, double eps)
    {
        return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + eps));
    }

    template <typename T>
    float finish_group(const rms_norm_backward<T>& pass, std::size_t group, double products)
    /*!
        requires
            - products == the sum of g*d*x over the group or, if T has 16 bits, of g*d*(x*s)
        ensures
            - returns mean(g*d*(x*s))
            - #pass.dscale[group] == -0.5 * s^3 * sum(g*d*x)
    !*/
    {
        const double s = static_cast<double>(pass.scale[group]);
        const double size = static_cast<double>(pass.groups.size);
        const bool has_scale = sizeof(T) < sizeof(float);
        if (pass.dscale)
            pass.dscale[group] = static_cast<float>(
                -0.5 * (has_scale ? s * s : s * s * s) * products);
        return static_cast<float>((has_scale ? products : s * products) / size);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_row_loops
    {
        const char* instruction_set;

        void (*add_offset)(const T* gamma, float offset, float* gains, std::size_t size);
        /*!
            ensures
                - #gains == offset + gamma
        !*/

        void (*normalize)(const rms_norm_forward<T>& pass,
            const rms_norm_gains& gains,
            std::size_t first,
            std::size_t last,
            bool stream);
        /*!
            requires
                - if (T has 16 bits) then there are gains, and gains.run == 1. So it is for the
                  functions below.
            ensures
                - normalizes the groups [first, last)
                - if (stream) then writes y past the caches. So do the functions below.
        !*/

        double (*sum_squares)(const rms_norm_forward<T>& pass,
            std::size_t group,
            std::size_t begin,
            std::size_t end);
        /*!
            requires
                - [begin, end) is one segment of the group
            ensures
                - returns the sum of its squares
        !*/

        void (*write)(const rms_norm_forward<T>& pass,
            const rms_norm_gains& gains,
            std::size_t group,
            std::size_t begin,
            std::size_t end,
            bool stream);
        /*!
            ensures
                - writes the values [begin, end) of a group whose scale is known
        !*/

        void (*gradient)(const rms_norm_backward<T>& pass,
            const rms_norm_gains& gains,
            std::size_t first,
            std::size_t last,
            double* gain_sums);
        /*!
            requires
                - gain_sums is null or has room for one value per gain, rounded up to a multiple of
                  rms_norm_lanes. if (T is float) then it is null if and only if there are no gains.
            ensures
                - does the backward pass of the groups [first, last), but for dgamma
                - adds the gradients of the gains to gain_sums
        !*/

        void (*gradient_of_one)(const rms_norm_backward<T>& pass, const rms_norm_gains& gains);
        /*!
            requires
                - there is one group only, and gains.run == 1
                - this function exists: it does if T is float
            ensures
                - does the backward pass. If there are gains, then dgamma is written too.
        !*/

        double (*sum_products)(const rms_norm_backward<T>& pass,
            const rms_norm_gains& gains,
            std::size_t group,
            std::size_t begin,
            std::size_t end,
            double* gain_sums);
        /*!
            requires
                - [begin, end) is one segment of the group or, if gains.run > 1, of a run
                - gain_sums is as for gradient(), or gains.run > 1
            ensures
                - returns the sum of the products that finish_group() asks for over the segment; if
                  gains.run > 1 then without the gains
                - if (gains.run == 1) then adds the gradients of the gains to gain_sums
        !*/

        void (*write_gradient)(const rms_norm_backward<T>& pass,
            const rms_norm_gains& gains,
            std::size_t group,
            float mean,
            std::size_t begin,
            std::size_t end);
        /*!
            ensures
                - writes the values [begin, end) of dx of a group whose mean(g*d*(x*s)) is known
        !*/

        void (*add)(double* sums, const double* others, std::size_t size);
        /*!
            ensures
                - adds others to sums
        !*/
    };

    template <typename T>
    const rms_norm_row_loops<T>& row_loops();

    template <>
    const rms_norm_row_loops<float>& row_loops();
    template <>
    const rms_norm_row_loops<float16>& row_loops();
    template <>
    const rms_norm_row_loops<bfloat16>& row_loops();

    // ----------------------------------------------------------------------------------------

    struct rms_norm_column_loops
    {
        void (*normalize)(const rms_norm_forward<float>& pass,
            const float* gains,
            const rms_norm_cpu_plan& plan,
            std::size_t first,
            std::size_t last,
            double* workspace);
        /*!
            requires
                - workspace has room for tile_workspace(plan.tile_width) values
            ensures
                - normalizes the groups of the tiles [first, last)
        !*/

        void (*gradient)(const rms_norm_backward<float>& pass,
            const float* gains,
            const rms_norm_cpu_plan& plan,
            std::size_t first,
            std::size_t last,
            double* workspace,
            double* gain_sums);
        /*!
            requires
                - workspace has room for tile_workspace(plan.tile_width) values
                - gain_sums is null if and only if gains is. It has room for one value per gain.
            ensures
                - does the backward pass of the groups of the tiles [first, last), but for dgamma
                - adds the gradients of the gains to gain_sums
        !*/
    };

    const rms_norm_column_loops& column_loops();

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_SIMD_H_
