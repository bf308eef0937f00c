// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_CPU_SIMD_H_
#define DLIB_RMS_NORM_CPU_SIMD_H_

// The arithmetic of RMS normalization on the CPU, on raw pointers and in one thread, for
// whichever instruction set the machine has. What is done in which order is fixed here, so
// that every instruction set, every alignment and every way to share the work out gives the
// same bits:
//
//   - A sum over the values of a group runs over blocks of rms_norm_sum_block values. In a
//     block, lane i%16 adds value i in double; the 16 lanes are then added pairwise, j and
//     j+8, j and j+4, j and j+2, j and j+1; block sums are added in order.
//   - A value of a gradient of the gains is added to group by group.
//   - Products are fused into sums only where they are exact: x*x and d*x in double.

#include <cstddef>

namespace dlib::contrib::cpu
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_gains
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The gain of value i of a group is values[i/run]. There are no gains if
                values is null.

            CONVENTION
                - run == 1 or run >= 16
                - if (values is null) then run == 1
        !*/
        const float* values;
        std::size_t run;
    };

    struct rms_norm_tiles
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                An array of blocks of `size` rows and `stride` columns. A group is one column.
                A tile is `width` neighbouring columns of one block (fewer at the right edge);
                tiles are numbered from left to right, block after block.
        !*/
        std::size_t size;
        std::size_t stride;
        std::size_t width;

        std::size_t workspace_size() const { return 18 * ((width + 15) / 16 * 16); }

        std::size_t per_block() const { return (stride + width - 1) / width; }
    };

    // ----------------------------------------------------------------------------------------

    const char* rms_norm_instruction_set();
    /*!
        ensures
            - returns the name of the instruction set that the functions below use now
    !*/

    // ----------------------------------------------------------------------------------------

    double sum_of_squares(const float* x, std::size_t size);
    /*!
        requires
            - size <= rms_norm_sum_block
        ensures
            - returns the sum of the squares of the values of one block
    !*/

    float scale_of_group(double squares, std::size_t size, double eps);
    /*!
        ensures
            - returns 1/sqrt(squares/size + eps)
    !*/

    void normalize_groups(const float* x,
        float* y,
        float* scale,
        const rms_norm_gains& gains,
        std::size_t size,
        std::size_t count,
        double eps,
        bool stream);
    /*!
        ensures
            - normalizes count contiguous groups of size values each
            - if (stream) then writes y past the caches
    !*/

    void normalize_part(const float* x,
        float* y,
        float scale,
        const rms_norm_gains& gains,
        std::size_t begin,
        std::size_t end,
        bool stream);
    /*!
        ensures
            - writes values [begin, end) of the group that starts at x, whose scale is known
    !*/

    void normalize_tiles(const float* x,
        float* y,
        float* scale,
        const float* gains,
        const rms_norm_tiles& tiles,
        std::size_t first,
        std::size_t last,
        double eps,
        bool stream,
        double* workspace);
    /*!
        requires
            - workspace has room for tiles.workspace_size() values
        ensures
            - normalizes the groups of tiles [first, last). x, y and scale are whole arrays.
    !*/

    // ----------------------------------------------------------------------------------------

    struct rms_norm_gradients
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The arrays of a backward pass. dx may be d.
        !*/
        const float* d;
        const float* x;
        const float* scale;
        float* dx;
        float* m; // mean(g*d*x*s) of each group, out
        bool add; // add to dx, or assign
    };

    struct rms_norm_gain_sums
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where the gradients of the gains are added up: each `units_per_part` units (groups
                or tiles) that follow each other have sums of their own. values is null if there
                are no gains.
        !*/

        double* values;
        std::size_t pitch;
        std::size_t units_per_part;

        double* of_unit(std::size_t unit) const
        {
            return values == nullptr ? nullptr : values + unit / units_per_part * pitch;
        }
    };

    double gradient_sums(const float* d,
        const float* x,
        float scale,
        const float* gains,
        double* gains_grad,
        std::size_t size);
    /*!
        requires
            - size <= rms_norm_sum_block
            - gains and gains_grad are both null or both not
            - gains_grad has room for size values, rounded up to a multiple of 16
        ensures
            - returns the sum of d*x*gains over one block (of d*x if there are no gains)
            - adds d*x*scale to gains_grad
    !*/

    float mean_of_group(double sum, float scale, std::size_t size);
    /*!
        ensures
            - returns scale*sum/size
    !*/

    void gradient_groups(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        std::size_t size,
        std::size_t count,
        const rms_norm_gain_sums& sums);
    /*!
        requires
            - each part of sums has room for one value per gain, rounded up to a multiple of 16
        ensures
            - does the backward pass of count contiguous groups of size values each
            - adds to sums
    !*/

    void gradient_part(const rms_norm_gradients& a,
        const rms_norm_gains& gains,
        std::size_t begin,
        std::size_t end);
    /*!
        ensures
            - writes values [begin, end) of dx of the group that a starts with, whose m is known
    !*/

    void gradient_tiles(const rms_norm_gradients& a,
        const float* gains,
        const rms_norm_tiles& tiles,
        std::size_t first,
        std::size_t last,
        const rms_norm_gain_sums& sums,
        double* workspace);
    /*!
        requires
            - workspace has room for tiles.workspace_size() values
            - each part of sums has room for tiles.size values. The first part is that of first.
        ensures
            - does the backward pass of the groups of tiles [first, last). The arrays of a are
              whole arrays.
            - adds to sums
    !*/

    void add_partial_sums(double* partials,
        std::size_t count,
        std::size_t pitch,
        std::size_t begin,
        std::size_t end);
    /*!
        ensures
            - for i in [begin, end): adds partials[i + p*pitch], 0 < p < count, to partials[i], in
              this order
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_CPU_SIMD_H_
