// License: Boost Software License   See LICENSE.txt for the full license.

// From a plan to launched kernels. This file decides nothing: rms_norm_cuda_plan.h does.

#include "rms_norm_launch.h"

#include <cuda_runtime.h>
#include "rms_norm_kernels_columns.cuh"
#include "rms_norm_kernels_gains.cuh"
#include "rms_norm_kernels_long_rows.cuh"
#include "rms_norm_kernels_rows.cuh"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

    cudaError_t get_rms_norm_device(int id, rms_norm_device& device)
    {
        int bytes = 0;
        const cudaError_t error = cudaDeviceGetAttribute(
            &bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
        if (error == cudaSuccess)
            device.shared_bytes_per_block = static_cast<std::size_t>(bytes);
        return error;
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        class launcher
        {
            /*!
                WHAT THIS OBJECT REPRESENTS
                    A stream, and the first error of the launches on it. After an error nothing
                    more is launched.
            !*/
        public:
            explicit launcher(cudaStream_t stream_) :
                stream(stream_)
            {
            }

            template <typename... parameters, typename... arguments>
            void run(const rms_norm_launch& blocks,
                void (*kernel)(parameters...),
                const arguments&... values)
            {
                if (error != cudaSuccess || blocks.grid == 0)
                    return;
                // More than this has to be asked for.
                if (blocks.shared_bytes > 48 * 1024)
                {
                    error = cudaFuncSetAttribute(kernel,
                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                        static_cast<int>(blocks.shared_bytes));
                    if (error != cudaSuccess)
                        return;
                }
                cudaLaunchConfig_t config = {};
                config.gridDim = dim3(static_cast<unsigned>(blocks.grid));
                config.blockDim = dim3(static_cast<unsigned>(blocks.threads));
                config.dynamicSmemBytes = blocks.shared_bytes;
                config.stream = stream;
                error = cudaLaunchKernelEx(&config, kernel, static_cast<parameters>(values)...);
            }

            cudaError_t error = cudaSuccess;

        private:
            cudaStream_t stream;
        };
    }

    // ----------------------------------------------------------------------------------------

    cudaError_t launch_rms_normalize(const rms_norm_forward<float>& pass,
        const rms_norm_forward_plan& plan,
        void* workspace,
        cudaStream_t stream)
    {
        launcher on(stream);
        switch (plan.kernel)
        {
        case rms_norm_kernel::rows:
            on.run(plan.normalize,
                plan.values == 64      ? normalize_rows<16, 32>
                    : plan.lanes == 8  ? normalize_rows<4, 8>
                    : plan.lanes == 16 ? normalize_rows<4, 16>
                                       : normalize_rows<4, 32>,
                pass, plan);
            break;
        case rms_norm_kernel::long_rows:
        {
            double* const doubles = static_cast<double*>(workspace);
            on.run(plan.sum_parts, sum_squares_of_parts, pass, plan, doubles);
            on.run(plan.finish, finish_scales, pass, plan, doubles);
            on.run(plan.normalize, normalize_parts, pass, plan);
            break;
        }
        case rms_norm_kernel::columns:
            on.run(plan.normalize, plan.values == 8 ? normalize_columns<8> : normalize_columns<32>,
                pass, plan);
            break;
        case rms_norm_kernel::long_columns:
            on.run(plan.normalize, normalize_long_columns, pass, plan);
            break;
        default: break;
        }
        return on.error;
    }

    // ----------------------------------------------------------------------------------------

    cudaError_t launch_rms_normalize_gradient(const rms_norm_backward<float>& pass,
        const rms_norm_backward_plan& plan,
        void* workspace,
        cudaStream_t stream)
    {
        launcher on(stream);
        double* const doubles = static_cast<double*>(workspace);
        switch (plan.kernel)
        {
        case rms_norm_kernel::nothing: return cudaSuccess;
        case rms_norm_kernel::rows:
            on.run(plan.gradient,
                plan.sums_in_shared    ? gradient_rows<8, 32, true, false>
                    : plan.lanes == 8  ? gradient_rows<4, 8, false, false>
                    : plan.lanes == 16 ? gradient_rows<4, 16, false, false>
                                       : gradient_rows<4, 32, false, false>,
                pass, plan, doubles);
            break;
        case rms_norm_kernel::long_rows:
        case rms_norm_kernel::long_run_rows:
            on.run(plan.find_means, sum_products_of_parts, pass, plan, doubles);
            on.run(plan.finish, finish_means, pass, plan, doubles);
            on.run(plan.gradient, gradient_rows<2, 32, false, true>, pass, plan, doubles);
            break;
        case rms_norm_kernel::run_rows:
            on.run(plan.gradient, gradient_run_rows, pass, plan, doubles);
            break;
        case rms_norm_kernel::columns:
            on.run(plan.gradient,
                plan.sums_in_shared    ? gradient_columns<32, true, false>
                    : plan.values == 8 ? gradient_columns<8, false, false>
                                       : gradient_columns<16, false, false>,
                pass, plan, doubles);
            break;
        case rms_norm_kernel::long_columns:
            on.run(plan.find_means, find_column_means, pass, plan, doubles);
            on.run(plan.gradient, gradient_columns<8, false, true>, pass, plan, doubles);
            break;
        }

        const long long num_gains = pass.groups.num_gains;
        double* const slices = doubles + plan.gain_sums;
        on.run(plan.sum_runs, sum_rows_of_slices<double>, doubles + plan.run_sums, pass.scale,
            pass.groups.num_groups(), plan.run_slices, num_gains, slices);
        const long long num_slices = plan.run_slices.count != 0 ? plan.run_slices.count
                                                                : plan.slices.count;
        const rms_norm_slices all = {num_slices, 1};
        const float* const no_weights = nullptr;
        on.run(plan.sum_slices, sum_rows_of_slices<float>, slices, no_weights, num_slices, all,
            num_gains, pass.dgamma);
        return on.error;
    }

    // ----------------------------------------------------------------------------------------

}
