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

#include <cmath>
#include <cstddef>
#include "rms_norm_cpu_plan.h"
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

    inline float mean_of_group(double products, float scale, std::size_t size)
    {
        return static_cast<float>(
            static_cast<double>(scale) * products / static_cast<double>(size));
    }

    inline float dscale_of_group(double products, float scale)
    {
        const double s = static_cast<double>(scale);
        return static_cast<float>(-0.5 * (s * s * s) * products);
    }

    // ----------------------------------------------------------------------------------------

    struct rms_norm_row_loops
    {
        const char* instruction_set;

        void (*normalize)(const rms_norm_forward<float>& pass,
            const rms_norm_gains& gains,
            std::size_t first,
            std::size_t last,
            bool stream);
        /*!
            ensures
                - normalizes the groups [first, last)
                - if (stream) then writes y past the caches. So do the functions below.
        !*/

        double (*sum_squares)(const float* x, std::size_t size);
        /*!
            requires
                - size <= rms_norm_segment
            ensures
                - returns the sum of the squares of one segment
        !*/

        void (*write)(const rms_norm_forward<float>& pass,
            const rms_norm_gains& gains,
            std::size_t group,
            std::size_t begin,
            std::size_t end,
            bool stream);
        /*!
            ensures
                - writes the values [begin, end) of a group whose scale is known
        !*/

        void (*gradient)(const rms_norm_backward<float>& pass,
            const rms_norm_gains& gains,
            std::size_t first,
            std::size_t last,
            double* gain_sums);
        /*!
            requires
                - gain_sums is null if and only if there are no gains. It has room for one value
                  per gain, rounded up to a multiple of rms_norm_lanes.
            ensures
                - does the backward pass of the groups [first, last), but for dgamma
                - adds the gradients of the gains to gain_sums
        !*/

        void (*gradient_of_one)(const rms_norm_backward<float>& pass, const rms_norm_gains& gains);
        /*!
            requires
                - there is one group only, and gains.run == 1
            ensures
                - does the backward pass. If there are gains, then dgamma is written too.
        !*/

        double (*sum_products)(const float* d,
            const float* x,
            const float* gains,
            float scale,
            std::size_t size,
            double* gain_sums);
        /*!
            requires
                - size <= rms_norm_segment
                - gains and gain_sums are both null or both not. gain_sums has room for size values,
                  rounded up to a multiple of rms_norm_lanes.
            ensures
                - returns the sum of d*x*gains over one segment (of d*x if there are no gains)
                - adds d*x*scale to gain_sums
        !*/

        void (*write_gradient)(const rms_norm_backward<float>& pass,
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

    const rms_norm_row_loops& row_loops();

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
