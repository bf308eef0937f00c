// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_ROW_ARGUMENTS_H_
#define DLIB_RMS_NORM_ROW_ARGUMENTS_H_

// The requires clauses of rms_norm_rows_abstract.h as code, for every device. A broken clause fails
// a DLIB_CASSERT that names every value it compared, before any output is touched.

#include <climits>
#include "rms_norm_arguments.h"
#include "rms_norm_pass.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    struct rms_norm_rows_in_memory
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Where the rows of an argument lie: `rows` of `size` bytes, `stride` bytes apart.
                data is null if there is no such argument.

            CONVENTION
                - size > 0, and if (rows > 1) then stride >= size
        !*/
        const char* name;
        const void* data;
        long long rows;
        long long size;
        long long stride;

        long long begin(long long row = 0) const
        {
            return static_cast<long long>(reinterpret_cast<std::uintptr_t>(data)) + row * stride;
        }
        long long end(long long row) const { return begin(row) + size; }

        bool is_same_as(const rms_norm_rows_in_memory& b) const
        {
            return data == b.data && rows == b.rows && size == b.size &&
                (stride == b.stride || rows == 1);
        }

        bool overlaps(const rms_norm_rows_in_memory& b) const
        {
            if (data == nullptr || b.data == nullptr || begin() >= b.end(b.rows - 1) ||
                b.begin() >= end(rows - 1))
                return false;
            // Row i of one against row j of the other: the one that ends first is left behind.
            // Where the strides are equal the first rows to meet tell it all.
            const bool same_stride = stride == b.stride;
            long long i = skipped(b), j = b.skipped(*this);
            for (int steps = 0; i < rows && j < b.rows && !(same_stride && steps == 3); ++steps)
            {
                if (end(i) <= b.begin(j))
                    ++i;
                else if (b.end(j) <= begin(i))
                    ++j;
                else
                    return true;
            }
            return false;
        }

    private:
        long long skipped(const rms_norm_rows_in_memory& b) const
        /*!
            ensures
                - returns how many rows end before the first one of b, or one less
        !*/
        {
            return stride == 0 || b.begin() < end(0) ? 0 : (b.begin() - end(0)) / stride;
        }
    };

    inline std::ostream& operator<<(std::ostream& out, const rms_norm_rows_in_memory& a)
    {
        return out << a.name << ": " << a.rows << " rows of " << a.size << " bytes, " << a.stride
                   << " apart, from " << a.data;
    }

    template <typename... others>
    void check_rows_are_apart(const rms_norm_rows_in_memory& output, const others&... inputs)
    {
        const auto check = [&](const rms_norm_rows_in_memory& other)
        {
            DLIB_CASSERT(!output.overlaps(other),
                "\n\t The memory of " << output.name << " overlaps that of " << other.name << "."
                                      << "\n\t " << output << "\n\t " << other);
        };
        (check(inputs), ...);
    }

    // ----------------------------------------------------------------------------------------

    template <typename T>
    struct rms_norm_row_checks
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Checks of one argument after the other.
        !*/
        const rms_norm_groups& groups;

        void check_groups(float gain_offset, rms_norm_casting casting) const
        {
            DLIB_CASSERT(
                groups.outer >= 0 && groups.size >= 0 && groups.stride == 1 && groups.gain_run == 1,
                "\n\t Groups have to be rows."
                    << "\n\t groups.outer:    " << groups.outer << "\n\t groups.size:     "
                    << groups.size << "\n\t groups.stride:   " << groups.stride
                    << "\n\t groups.gain_run: " << groups.gain_run);
            DLIB_CASSERT(groups.num_gains == 0 || groups.num_gains == groups.size,
                "\n\t There is one gain for each value of a row, or none."
                    << "\n\t groups.size:      " << groups.size
                    << "\n\t groups.num_gains: " << groups.num_gains);
            check_rms_norm_gain_offset(static_cast<double>(gain_offset));
            DLIB_CASSERT(casting == rms_norm_casting::none || casting == rms_norm_casting::llama ||
                    casting == rms_norm_casting::gemma,
                "\n\t There is no such casting order.\n\t casting: " << static_cast<int>(casting));
        }

        template <typename E>
        rms_norm_rows_in_memory array(const char* name,
            const E* data,
            long long rows,
            long long size,
            long long stride) const
        /*!
            ensures
                - checks the address of an argument, which may be null
        !*/
        {
            DLIB_CASSERT(reinterpret_cast<std::uintptr_t>(data) % sizeof(E) == 0,
                "\n\t The address of " << name << " has to be a multiple of " << sizeof(E) << "."
                                       << "\n\t " << name << ": " << data);
            const auto bytes = static_cast<long long>(sizeof(E));
            return {name, data, rows, size * bytes, stride * bytes};
        }

        rms_norm_rows_in_memory rows(const char* name, const T* data, long long row_stride) const
        {
            const long long most = LLONG_MAX / static_cast<long long>(sizeof(T));
            const long long stride = row_stride == 0 ? groups.size : row_stride;
            DLIB_CASSERT(stride >= groups.size && stride <= most / groups.outer,
                "\n\t Rows can't lie one in the other, nor take more than all memory."
                    << "\n\t " << name << "_stride: " << row_stride << "\n\t groups.outer: "
                    << groups.outer << "\n\t groups.size:  " << groups.size);
            return array(name, data, groups.outer, groups.size, stride);
        }

        void check_needed(const char* name, const void* data, bool is_needed) const
        {
            DLIB_CASSERT(data != nullptr || !is_needed,
                "\n\t " << name << " is null."
                        << "\n\t groups.outer:     " << groups.outer << "\n\t groups.size:      "
                        << groups.size << "\n\t groups.num_gains: " << groups.num_gains);
        }

        void check_no_gains(const char* name, const void* data) const
        {
            DLIB_CASSERT(data == nullptr || groups.num_gains != 0,
                "\n\t There are no gains, but " << name << " is not null."
                                                << "\n\t groups.num_gains: " << groups.num_gains
                                                << "\n\t " << name << ": " << data);
        }
    };

    // ----------------------------------------------------------------------------------------

    template <typename T>
    void check_rms_norm_rows(const rms_norm_forward<T>& p)
    {
        const rms_norm_row_checks<T> check = {p.groups};
        check_rms_norm_eps(p.eps);
        check.check_groups(p.gain_offset, p.casting);
        DLIB_CASSERT((p.r == nullptr) == (p.h == nullptr),
            "\n\t r and h have to be both null or both not.\n\t r: " << p.r << "\n\t h: " << p.h);
        check.check_no_gains("gamma", p.gamma);
        if (p.groups.num_values() == 0)
            return;

        check.check_needed("x", p.x, true);
        check.check_needed("y", p.y, true);
        check.check_needed("scale", p.scale, true);
        check.check_needed("gamma", p.gamma, p.groups.num_gains != 0);
        const auto x = check.rows("x", p.x, p.x_stride);
        const auto y = check.rows("y", p.y, p.y_stride);
        const auto r = check.rows("r", p.r, p.r_stride);
        const auto h = check.rows("h", p.h, p.h_stride);
        const auto gamma = check.array("gamma", p.gamma, 1, p.groups.size, 0);
        const auto scale = check.array("scale", p.scale, 1, p.groups.outer, 0);

        if (!y.is_same_as(x))
            check_rows_are_apart(y, x);
        if (!h.is_same_as(r))
            check_rows_are_apart(h, r);
        check_rows_are_apart(y, gamma, r);
        check_rows_are_apart(h, x, gamma, y);
        check_rows_are_apart(scale, x, gamma, r, y, h);
    }

    template <typename T>
    void check_rms_norm_rows(const rms_norm_backward<T>& p)
    {
        const rms_norm_row_checks<T> check = {p.groups};
        check.check_groups(p.gain_offset, p.casting);
        DLIB_CASSERT(!p.add || p.dh == nullptr,
            "\n\t The gradient is added to what is in dx or to dh, not to both."
                << "\n\t add: " << p.add << "\n\t dh:  " << p.dh);
        DLIB_CASSERT(p.dgamma == nullptr || p.dgamma_float == nullptr,
            "\n\t The gradient of gamma is stored as T or as float, not as both."
                << "\n\t dgamma:       " << p.dgamma << "\n\t dgamma_float: " << p.dgamma_float);
        check.check_no_gains("gamma", p.gamma);
        check.check_no_gains("dgamma", p.dgamma);
        check.check_no_gains("dgamma_float", p.dgamma_float);
        const auto dgamma = check.array("dgamma", p.dgamma, 1, p.groups.size, 0);
        const auto dgamma_float = check.array("dgamma_float", p.dgamma_float, 1, p.groups.size, 0);
        if (p.groups.num_values() == 0)
            return;

        check.check_needed("d", p.d, true);
        check.check_needed("x", p.x, true);
        check.check_needed("scale", p.scale, true);
        check.check_needed("dx", p.dx, true);
        check.check_needed("gamma", p.gamma, p.groups.num_gains != 0);
        const auto d = check.rows("d", p.d, p.d_stride);
        const auto x = check.rows("x", p.x, p.x_stride);
        const auto dx = check.rows("dx", p.dx, p.dx_stride);
        const auto dh = check.rows("dh", p.dh, p.dh_stride);
        const auto gamma = check.array("gamma", p.gamma, 1, p.groups.size, 0);
        const auto scale = check.array("scale", p.scale, 1, p.groups.outer, 0);
        const auto dscale = check.array("dscale", p.dscale, 1, p.groups.outer, 0);

        if (p.add || !dx.is_same_as(d))
            check_rows_are_apart(dx, d);
        if (!dx.is_same_as(dh))
            check_rows_are_apart(dx, dh);
        check_rows_are_apart(dx, x, gamma, scale);
        check_rows_are_apart(dgamma, d, x, gamma, scale, dh, dx);
        check_rows_are_apart(dgamma_float, d, x, gamma, scale, dh, dx);
        check_rows_are_apart(dscale, d, x, gamma, scale, dh, dx, dgamma, dgamma_float);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_ROW_ARGUMENTS_H_
