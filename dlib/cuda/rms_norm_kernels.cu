// License: Boost Software License   See LICENSE.txt for the full license.

// From a plan to launched kernels. This file decides nothing: rms_norm_cuda_plan.h does.

#include <cuda_runtime_api.h>
#include <cstdint>
#include "rms_norm_kernels.cuh"
#include "rms_norm_kernels.h"

namespace dlib::contrib::cuda
{

    // ----------------------------------------------------------------------------------------

#ifdef __CUDACC__

    template <typename... parameters, typename... arguments>
    cudaError_t launch(void (*kernel)(parameters...),
        long long grid_x,
        long long grid_y,
        int threads,
        std::size_t shared_bytes,
        cudaStream_t stream,
        arguments... values)
    {
        if (shared_bytes > 48 * 1024)
        {
            const cudaError_t error = cudaFuncSetAttribute(kernel,
                cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
            if (error != cudaSuccess)
                return error;
        }
        const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
        kernel<<<grid, static_cast<unsigned>(threads), shared_bytes, stream>>>(values...);
        return cudaGetLastError();
    }

#endif

    // ----------------------------------------------------------------------------------------

    namespace
    {
        bool is_aligned(const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

        bool has_aligned_gains(const rms_norm_groups& groups, const float* gamma)
        {
            return groups.num_gains == 0 || groups.gain_run > 1 || is_aligned(gamma);
        }
    }

    // ----------------------------------------------------------------------------------------

    cudaError_t rms_norm_current_device(rms_norm_device& device)
    {
        int id = 0;
        cudaError_t error = cudaGetDevice(&id);
        if (error != cudaSuccess)
            return error;
        int multiprocessors = 0;
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id);
        if (error != cudaSuccess)
            return error;
        int shared_bytes = 0;
        error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
        if (error != cudaSuccess)
            return error;
        device.num_multiprocessors = multiprocessors;
        device.shared_bytes_per_block = static_cast<std::size_t>(shared_bytes);
        return cudaSuccess;
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        template <int units, int width>
        cudaError_t launch_normalize_rows(const rms_norm_forward_plan& plan,
            const normalize_arguments& a,
            cudaStream_t stream)
        {
            const bool runs = a.gamma != nullptr && a.groups.gain_run > 1;
            const auto kernel = plan.vectors ? (runs ? normalize_rows<units, width, true, true>
                                                     : normalize_rows<units, width, true, false>)
                                             : (runs ? normalize_rows<units, width, false, true>
                                                     : normalize_rows<units, width, false, false>);
            return launch(
                kernel, plan.grid, 1, plan.threads, plan.shared_bytes, stream, a, plan.lanes);
        }

        cudaError_t launch_normalize_long_rows(const rms_norm_forward_plan& plan,
            const rms_norm_device& device,
            const normalize_arguments& a,
            double* sums,
            cudaStream_t stream)
        {
            const long long rows = a.groups.num_groups();
            const float* const nothing = nullptr;
            const std::size_t shared_bytes = reduction_doubles * sizeof(double);

            const auto sum = plan.vectors ? sum_parts<part_sum::squares, true>
                                          : sum_parts<part_sum::squares, false>;
            cudaError_t error = launch(sum, grid_of_parts(rows, plan.parts, device), 1,
                threads_of_parts, shared_bytes, stream, a.src, nothing, nothing, 0.0f, rows,
                plan.parts.length, plan.parts.count, plan.parts.lanes, sums);
            if (error != cudaSuccess)
                return error;

            error = launch(finish_scales, limited_grid(rows, device), 1, threads_of_parts,
                shared_bytes, stream, a, plan.parts.count, sums);
            if (error != cudaSuccess)
                return error;

            const bool runs = a.gamma != nullptr && a.groups.gain_run > 1;
            const auto normalize = plan.vectors
                ? (runs ? normalize_parts<true, true> : normalize_parts<true, false>)
                : (runs ? normalize_parts<false, true> : normalize_parts<false, false>);
            return launch(normalize, limited_grid(rows * plan.parts.count, device), 1,
                threads_of_parts, std::size_t(0), stream, a, plan.parts.count);
        }
    }

    std::size_t rms_normalize_workspace_bytes(const rms_norm_groups& groups,
        const rms_norm_device& device)
    {
        return plan_rms_normalize(groups, false, device).workspace_bytes;
    }

    cudaError_t launch_rms_normalize(const rms_norm_groups& groups,
        const rms_norm_device& device,
        double eps,
        float gain_offset,
        const float* src,
        const float* gamma,
        float* dest,
        float* scale,
        void* workspace,
        cudaStream_t stream)
    {
        const rms_norm_forward_plan plan = plan_rms_normalize(groups,
            is_aligned(src) && is_aligned(dest) && has_aligned_gains(groups, gamma), device);

        normalize_arguments a;
        a.groups = groups;
        a.eps = eps;
        a.inv_size = 1 / static_cast<double>(groups.size);
        a.gain_offset = gain_offset;
        a.src = src;
        a.gamma = groups.num_gains == 0 ? nullptr : gamma;
        a.dest = dest;
        a.scale = scale;

        switch (plan.kernel)
        {
        case rms_norm_kernel::nothing: break;
        case rms_norm_kernel::rows:
            if (plan.values == 8)
                return launch_normalize_rows<2, 8>(plan, a, stream);
            if (plan.values == 16 && plan.lanes == 8)
                return launch_normalize_rows<4, 8>(plan, a, stream);
            if (plan.values == 16)
                return launch_normalize_rows<4, 32>(plan, a, stream);
            return launch_normalize_rows<16, 32>(plan, a, stream);
        case rms_norm_kernel::long_rows:
            return launch_normalize_long_rows(
                plan, device, a, static_cast<double*>(workspace), stream);
        case rms_norm_kernel::columns:
            return launch(plan.values == 8 ? normalize_columns<8> : normalize_columns<32>,
                plan.grid, 1, plan.threads, plan.shared_bytes, stream, a);
        case rms_norm_kernel::long_columns:
            return launch(
                normalize_long_columns, plan.grid, 1, plan.threads, plan.shared_bytes, stream, a);
        }
        return cudaSuccess;
    }

    // ----------------------------------------------------------------------------------------

    namespace
    {
        template <typename T>
        cudaError_t launch_sum_gain_parts(const rms_norm_device& device,
            const double* parts,
            const float* weights,
            long long rows,
            const rms_norm_slices& slices,
            long long size,
            T* sums,
            cudaStream_t stream)
        {
            return launch(sum_gain_parts<T>,
                limited_grid(slices.count * divide_up(size, 32), device), 1, threads_of_gain_sums,
                threads_of_gain_sums * sizeof(double), stream, parts, weights, rows,
                slices.passes_per_slice, slices.count, size, sums);
        }

        cudaError_t launch_finish_means(const rms_norm_device& device,
            const gradient_arguments& a,
            long long runs,
            const float* gamma,
            const rms_norm_parts& parts,
            const double* sums,
            double* run_sums,
            cudaStream_t stream)
        {
            return launch(finish_means, limited_grid(a.groups.num_groups(), device), 1,
                threads_of_parts, reduction_doubles * sizeof(double), stream, a, runs, gamma,
                parts.count, parts.count == 1 ? 1 : 32, sums, run_sums);
        }

        template <typename K>
        cudaError_t launch_gradient_rows(K kernel,
            const rms_norm_gradient_plan& plan,
            const gradient_arguments& a,
            double* gain_parts,
            cudaStream_t stream)
        {
            return launch(kernel, plan.grid, 1, plan.threads, plan.shared_bytes, stream, a,
                plan.lanes, plan.slices.passes_per_slice, plan.chunks, gain_parts);
        }

        template <bool vectors>
        cudaError_t launch_gradient_of_rows(const rms_norm_gradient_plan& plan,
            const gradient_arguments& a,
            double* gain_parts,
            cudaStream_t stream)
        {
            const auto kernel = plan.values == 8 ? gradient_rows<2, 8, false, vectors, false, false>
                : plan.lanes == 8                ? gradient_rows<4, 8, false, vectors, false, false>
                : plan.values == 16 ? gradient_rows<4, 32, false, vectors, false, false>
                                    : gradient_rows<8, 32, true, vectors, false, false>;
            return launch_gradient_rows(kernel, plan, a, gain_parts, stream);
        }

        template <typename K>
        cudaError_t launch_gradient_columns(K kernel,
            const rms_norm_gradient_plan& plan,
            const gradient_arguments& a,
            double* gain_parts,
            cudaStream_t stream)
        {
            return launch(kernel, plan.grid, 1, plan.threads, plan.shared_bytes, stream, a,
                plan.slices.passes_per_slice, plan.chunks, gain_parts);
        }

        cudaError_t launch_gradient_of_long_rows(const rms_norm_gradient_plan& plan,
            const rms_norm_device& device,
            const gradient_arguments& a,
            double* workspace,
            double* gain_parts,
            cudaStream_t stream)
        {
            const long long rows = a.groups.num_groups();
            double* const sums = workspace;
            const auto sum = plan.vectors ? sum_parts<part_sum::weighted_products, true>
                                          : sum_parts<part_sum::weighted_products, false>;
            cudaError_t error = launch(sum, grid_of_parts(rows, plan.parts, device), 1,
                threads_of_parts, reduction_doubles * sizeof(double), stream, a.src,
                a.gradient_input, a.gamma, a.gain_offset, rows, plan.parts.length, plan.parts.count,
                plan.parts.lanes, sums);
            if (error != cudaSuccess)
                return error;

            double* const no_run_sums = nullptr;
            const float* const no_gamma = nullptr;
            error = launch_finish_means(
                device, a, 1, no_gamma, plan.parts, sums, no_run_sums, stream);
            if (error != cudaSuccess)
                return error;

            return launch_gradient_rows(plan.vectors
                    ? gradient_rows<2, 32, false, true, false, true>
                    : gradient_rows<2, 32, false, false, false, true>,
                plan, a, gain_parts, stream);
        }

        cudaError_t launch_gradient_of_long_run_rows(const rms_norm_gradient_plan& plan,
            const rms_norm_device& device,
            const gradient_arguments& a,
            double* workspace,
            cudaStream_t stream)
        {
            const long long runs = a.groups.num_gains;
            const long long rows = a.groups.num_groups() * runs;
            double* const sums = workspace;
            const float* const nothing = nullptr;
            const auto sum = plan.vectors_in_runs ? sum_parts<part_sum::products, true>
                                                  : sum_parts<part_sum::products, false>;
            cudaError_t error = launch(sum, grid_of_parts(rows, plan.parts, device), 1,
                threads_of_parts, reduction_doubles * sizeof(double), stream, a.src,
                a.gradient_input, nothing, 0.0f, rows, plan.parts.length, plan.parts.count,
                plan.parts.lanes, sums);
            if (error != cudaSuccess)
                return error;

            error = launch_finish_means(
                device, a, runs, a.gamma, plan.parts, sums, workspace + plan.run_sums, stream);
            if (error != cudaSuccess)
                return error;

            double* const no_gain_parts = nullptr;
            return launch_gradient_rows(plan.vectors
                    ? gradient_rows<2, 32, false, true, true, true>
                    : gradient_rows<2, 32, false, false, true, true>,
                plan, a, no_gain_parts, stream);
        }
    }

    std::size_t rms_normalize_gradient_workspace_bytes(const rms_norm_groups& groups,
        const rms_norm_device& device)
    {
        return plan_rms_normalize_gradient(groups, false, device).workspace_bytes;
    }

    cudaError_t launch_rms_normalize_gradient(const rms_norm_groups& groups,
        const rms_norm_device& device,
        float gain_offset,
        const float* gradient_input,
        const float* scale,
        const float* src,
        const float* gamma,
        float* src_grad,
        bool add_to_src_grad,
        float* gamma_grad,
        float* dscale,
        void* workspace,
        cudaStream_t stream)
    {
        const rms_norm_gradient_plan plan = plan_rms_normalize_gradient(groups,
            is_aligned(gradient_input) && is_aligned(src) && is_aligned(src_grad) &&
                has_aligned_gains(groups, gamma),
            device);
        const bool has_gains = groups.num_gains != 0;

        gradient_arguments a;
        a.groups = groups;
        a.inv_size = 1 / static_cast<double>(groups.size);
        a.gain_offset = gain_offset;
        a.gradient_input = gradient_input;
        a.scale = scale;
        a.src = src;
        a.gamma = has_gains ? gamma : nullptr;
        a.src_grad = src_grad;
        a.add = add_to_src_grad;
        a.dscale = dscale;

        double* const doubles = static_cast<double*>(workspace);
        double* const gain_parts = has_gains ? doubles + plan.gain_sums : nullptr;

        cudaError_t error = cudaSuccess;
        switch (plan.kernel)
        {
        case rms_norm_gradient_kernel::nothing: break;
        case rms_norm_gradient_kernel::rows:
            error = plan.vectors ? launch_gradient_of_rows<true>(plan, a, gain_parts, stream)
                                 : launch_gradient_of_rows<false>(plan, a, gain_parts, stream);
            break;
        case rms_norm_gradient_kernel::long_rows:
            error = launch_gradient_of_long_rows(plan, device, a, doubles, gain_parts, stream);
            break;
        case rms_norm_gradient_kernel::run_rows:
            error = launch(plan.vectors ? gradient_run_rows<true> : gradient_run_rows<false>,
                plan.grid, 1, plan.threads, plan.shared_bytes, stream, a, plan.lanes,
                doubles + plan.run_sums);
            break;
        case rms_norm_gradient_kernel::long_run_rows:
            error = launch_gradient_of_long_run_rows(plan, device, a, doubles, stream);
            break;
        case rms_norm_gradient_kernel::columns:
            error = launch_gradient_columns(plan.values == 8 ? gradient_columns<8, false, false>
                    : !plan.sums_in_shared                   ? gradient_columns<16, false, false>
                                                             : gradient_columns<32, true, false>,
                plan, a, gain_parts, stream);
            break;
        case rms_norm_gradient_kernel::long_columns:
            error = launch(find_column_means,
                limited_grid(divide_up(groups.num_groups(), 32), device), 1, 512,
                (512 + 32) * sizeof(double), stream, a);
            if (error == cudaSuccess)
            {
                error = launch_gradient_columns(
                    gradient_columns<8, false, true>, plan, a, gain_parts, stream);
            }
            break;
        }
        if (error != cudaSuccess || !has_gains)
            return error;

        const float* const no_weights = nullptr;
        const rms_norm_slices all = {plan.slices.count, 1};
        if (plan.kernel != rms_norm_gradient_kernel::run_rows &&
            plan.kernel != rms_norm_gradient_kernel::long_run_rows)
        {
            return launch_sum_gain_parts(device, gain_parts, no_weights, plan.slices.count, all,
                groups.num_gains, gamma_grad, stream);
        }

        error = launch_sum_gain_parts(device, doubles + plan.run_sums, scale, groups.num_groups(),
            plan.gain_slices, groups.num_gains, gain_parts, stream);
        if (error != cudaSuccess)
            return error;
        const rms_norm_slices all_gain_slices = {plan.gain_slices.count, 1};
        return launch_sum_gain_parts(device, gain_parts, no_weights, plan.gain_slices.count,
            all_gain_slices, groups.num_gains, gamma_grad, stream);
    }

    // ----------------------------------------------------------------------------------------
}
