// License: Boost Software License   See LICENSE.txt for the full license.

// The functions on rows behind pointers: checks, then the pass.

#include "rms_norm_rows.h"

#include <algorithm>
#include "rms_norm_cpu.h"
#include "rms_norm_row_arguments.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    namespace
    {
        template <typename T>
        void normalize_rows(const rms_norm_forward<T>& pass)
        {
            check_rms_norm_rows(pass);
            if (pass.groups.num_values() != 0)
                cpu::normalize(pass);
        }

        template <typename T>
        void normalize_gradient_of_rows(rms_norm_backward<T> pass)
        {
            check_rms_norm_rows(pass);
            if constexpr (std::is_same_v<T, float>)
            {
                if (pass.dgamma == nullptr)
                    pass.dgamma = pass.dgamma_float;
                pass.dgamma_float = nullptr;
            }
            if (pass.groups.num_values() != 0)
            {
                cpu::normalize_gradient(pass);
                return;
            }
            if (pass.dgamma)
                std::fill_n(pass.dgamma, pass.groups.num_gains, T(0.0f));
            if (pass.dgamma_float)
                std::fill_n(pass.dgamma_float, pass.groups.num_gains, 0.0f);
        }
    }

    // ----------------------------------------------------------------------------------------

    void cpu::rms_normalize(const rms_norm_forward<float>& pass) { normalize_rows(pass); }
    void cpu::rms_normalize(const rms_norm_forward<float16>& pass) { normalize_rows(pass); }
    void cpu::rms_normalize(const rms_norm_forward<bfloat16>& pass) { normalize_rows(pass); }

    void cpu::rms_normalize_gradient(const rms_norm_backward<float>& pass)
    {
        normalize_gradient_of_rows(pass);
    }

    void cpu::rms_normalize_gradient(const rms_norm_backward<float16>& pass)
    {
        normalize_gradient_of_rows(pass);
    }

    void cpu::rms_normalize_gradient(const rms_norm_backward<bfloat16>& pass)
    {
        normalize_gradient_of_rows(pass);
    }

    // ----------------------------------------------------------------------------------------

}
