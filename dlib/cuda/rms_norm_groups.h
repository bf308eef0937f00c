// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_GROUPS_H_
#define DLIB_RMS_NORM_GROUPS_H_

// Which numbers of a tensor are normalized together, and which gain each of them gets.
// This is the only file that knows what a sample, a row or a channel is: everything that
// computes, on the CPU or with CUDA, forward or backward, starts from the struct below.
// It includes nothing, so that kernels can be compiled without dlib.

#ifdef __CUDACC__
#define DLIB_RMS_NORM_HOST_DEVICE __host__ __device__
#else
#define DLIB_RMS_NORM_HOST_DEVICE
#endif

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    enum class rms_norm_axes
    {
        sample = 0, // one group is all of k, nr and nc of a sample
        row = 1,    // one group is the nc values of one row
        channel = 2 // one group is the k values at one (sample, r, c)
    };

    enum class rms_norm_gain
    {
        per_channel = 0, // one gain per channel k, or per column with row axes
        per_element = 1, // one gain per element of a group
        none = 2         // no gain: the layer has no parameters
    };

    // ----------------------------------------------------------------------------------------

    struct rms_norm_groups
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A row-major array of outer*size*stride values, seen as groups that are each
                normalized by themselves:

                    value i of group g is at    first(g) + i*stride,   0 <= i < size
                    its gain is                 gamma[i/gain_run],     if there are gains

                stride is 1 when a group is contiguous (sample and row axes). With channel
                axes it is nr*nc: `stride` neighbouring groups lie interleaved. Even where that
                is one group alone, its sums are those of interleaved ones: its bits do not
                depend on neighbours.

            CONVENTION
                - if (interleaved) then gain_run == 1, else stride == 1
                - num_gains == 0 (no gain) or num_gains*gain_run == size
                - if the tensor is empty: outer == 0
        !*/

        long long outer = 0;  // how many times `stride` interleaved groups follow each other
        long long size = 0;   // values in each group
        long long stride = 1; // distance between neighbouring values of a group
        bool interleaved = false;
        long long gain_run = 1;  // consecutive values of a group that share one gain: a run
        long long num_gains = 0; // gains in gamma, 0 if there is no gamma

        DLIB_RMS_NORM_HOST_DEVICE long long num_groups() const { return outer * stride; }

        DLIB_RMS_NORM_HOST_DEVICE long long num_values() const { return outer * size * stride; }

        DLIB_RMS_NORM_HOST_DEVICE long long first(long long g) const
        {
            return stride == 1 ? g * size : (g / stride) * size * stride + g % stride;
        }

        // The same in an array whose groups lie row_stride apart, unless that is 0.
        DLIB_RMS_NORM_HOST_DEVICE long long first(long long g, long long row_stride) const
        {
            return row_stride == 0 ? first(g) : g * row_stride;
        }
    };

    // ----------------------------------------------------------------------------------------

    struct rms_norm_dims
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The four dimensions of a dlib tensor.
        !*/

        long long num_samples;
        long long k;
        long long nr;
        long long nc;

        long long size() const { return num_samples * k * nr * nc; }

        bool operator==(const rms_norm_dims& b) const
        {
            return num_samples == b.num_samples && k == b.k && nr == b.nr && nc == b.nc;
        }
        bool operator!=(const rms_norm_dims& b) const { return !(*this == b); }
    };

    inline rms_norm_dims larger_dims(const rms_norm_dims& a, const rms_norm_dims& b)
    {
        const auto larger = [](long long i, long long j) { return i < j ? j : i; };
        return {larger(a.num_samples, b.num_samples), larger(a.k, b.k), larger(a.nr, b.nr),
            larger(a.nc, b.nc)};
    }

    // ----------------------------------------------------------------------------------------

    inline rms_norm_dims
    rms_norm_gamma_dims(rms_norm_axes axes, rms_norm_gain gain, const rms_norm_dims& src)
    /*!
        ensures
            - returns the dimensions that gamma has to have for src. All are 0 if gain == none.
    !*/
    {
        if (gain == rms_norm_gain::none)
            return {0, 0, 0, 0};
        if (axes == rms_norm_axes::row)
            return {1, 1, 1, src.nc};
        if (axes == rms_norm_axes::sample && gain == rms_norm_gain::per_element)
            return {1, src.k, src.nr, src.nc};
        return {1, src.k, 1, 1};
    }

    inline rms_norm_dims rms_norm_scale_dims(rms_norm_axes axes, const rms_norm_dims& src)
    /*!
        ensures
            - returns the dimensions of the tensor that holds one number per group of src. All
              are 0 if src is empty.
    !*/
    {
        if (src.size() == 0)
            return {0, 0, 0, 0};
        if (axes == rms_norm_axes::row)
            return {src.num_samples, src.k, src.nr, 1};
        if (axes == rms_norm_axes::channel)
            return {src.num_samples, 1, src.nr, src.nc};
        return {src.num_samples, 1, 1, 1};
    }

    inline bool make_rms_norm_groups(rms_norm_axes axes,
        const rms_norm_dims& src,
        const rms_norm_dims& gamma,
        rms_norm_groups& groups)
    /*!
        ensures
            - if (gamma is empty or has the dimensions that one of the kinds of gain asks for) then
                - returns true
                - #groups == how to normalize src over the given axes with this gamma
            - else
                - returns false and leaves groups as it was
    !*/
    {
        const long long num_gains = gamma.size();
        if (num_gains != 0 && gamma != rms_norm_gamma_dims(axes, rms_norm_gain::per_channel, src) &&
            gamma != rms_norm_gamma_dims(axes, rms_norm_gain::per_element, src))
            return false;

        long long outer = src.num_samples;
        long long size = src.k;
        long long stride = 1;
        if (axes == rms_norm_axes::sample)
        {
            size = src.k * src.nr * src.nc;
        }
        else if (axes == rms_norm_axes::row)
        {
            outer = src.num_samples * src.k * src.nr;
            size = src.nc;
        }
        else
        {
            stride = src.nr * src.nc;
        }
        const bool is_empty = src.size() == 0;

        // Field by field: a copy of all would wait for each of them to reach memory.
        groups.outer = is_empty ? 0 : outer;
        groups.size = size;
        groups.stride = is_empty ? 1 : stride;
        groups.interleaved = axes == rms_norm_axes::channel;
        groups.gain_run = is_empty || num_gains == 0 || num_gains == size ? 1 : size / num_gains;
        groups.num_gains = num_gains;
        return true;
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_GROUPS_H_
