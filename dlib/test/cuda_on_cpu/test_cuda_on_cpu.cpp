// License: Boost Software License   See LICENSE.txt for the full license.

// Proves that cuda_on_cpu runs right kernels rightly and catches each kind of fault that it is
// there to catch, on kernels of a few lines.

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <dlib/test/tester.h>
#include <cuda_runtime_api.h>

// Not without a name: faults tell the names of kernels.
namespace toy_kernels
{
    using namespace dlib::contrib::DLIB_TEST_KERNEL_NAMESPACE;

    constexpr unsigned all_lanes = 0xffffffff;

    // ----------------------------------------------------------------------------------------

    __global__ void reverse_block(const float* in, float* out, bool with_barrier)
    {
        const shared_pointer<float> shared = shared_memory<float>();
        const unsigned i = threadIdx.x;
        const unsigned base = blockIdx.x * blockDim.x;
        shared[i] = load(in + base + i);
        if (with_barrier)
            __syncthreads();
        const float value = shared[blockDim.x - 1 - i];
        store(out + base + i, value);
    }

    __global__ void sum_rounds(float* out, int rounds, bool with_second_barrier)
    {
        const shared_pointer<float> shared = shared_memory<float>();
        const unsigned warp = threadIdx.x / 32;
        for (int round = 0; round < rounds; ++round)
        {
            float value = static_cast<float>(round);
            for (int step = 16; step > 0; step /= 2)
                value += __shfl_xor_sync(all_lanes, value, step);
            if (threadIdx.x % 32 == 0)
                shared[warp] = value;
            __syncthreads();
            if (threadIdx.x == 0)
            {
                float sum = 0;
                for (unsigned i = 0; i < blockDim.x / 32; ++i)
                    sum += static_cast<float>(shared[i]);
                store(out + round, sum);
            }
            if (with_second_barrier)
                __syncthreads();
        }
    }

    enum class meeting
    {
        none,
        shuffle,
        half_warp,
        warp,
        block
    };

    void meet(meeting kind)
    {
        if (kind == meeting::shuffle)
            __shfl_xor_sync(all_lanes, 0, 1);
        else if (kind == meeting::half_warp)
            __syncwarp(threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u);
        else if (kind == meeting::warp)
            __syncwarp();
        else if (kind == meeting::block)
            __syncthreads();
    }

    __global__ void read_from_neighbour(meeting kind, unsigned distance)
    {
        const shared_pointer<double> shared = shared_memory<double>();
        shared[threadIdx.x] = threadIdx.x;
        meet(kind);
        const double value = shared[threadIdx.x ^ distance];
        static_cast<void>(value);
    }

    __global__ void write_again_what_all_read(meeting kind)
    {
        const shared_pointer<float> shared = shared_memory<float>();
        for (int round = 0; round < 3; ++round)
        {
            if (threadIdx.x == 5)
                shared[1] = 1.0f;
            __syncthreads();
            const float value = shared[1];
            static_cast<void>(value);
            meet(kind);
        }
    }

    __global__ void write_the_same(meeting kind)
    {
        for (unsigned turn = 0; turn < blockDim.x; ++turn)
        {
            if (threadIdx.x == turn)
                shared_memory<float>()[0] = 1.0f;
            meet(kind);
        }
    }

    __global__ void barrier_for_some(unsigned num_threads)
    {
        if (threadIdx.x < num_threads)
            __syncthreads();
    }

    __global__ void two_barriers()
    {
        if (threadIdx.x < 40)
            __syncthreads();
        else
            __syncthreads();
    }

    // ----------------------------------------------------------------------------------------

    enum class between_blocks
    {
        none,
        all_write,
        read_what_another_writes
    };

    __global__ void touch(float* out, between_blocks kind)
    {
        const unsigned self = blockIdx.x;
        const unsigned other = (self + 1) % gridDim.x;
        if (kind == between_blocks::none)
            store(out + self, load(out + self) + 1);
        else if (kind == between_blocks::all_write)
            store(out + 3, 1.0f);
        else
            store(out + self, load(out + other) + 1);
    }

    __global__ void write_what_another_read(float* data, float* out)
    {
        if (blockIdx.x == 0)
            store(data + 1, 1.0f);
        else
            store(out + blockIdx.x, load(data + 1));
    }

    __global__ void write_a_constant(float* data, bool before)
    {
        if (before)
            store(data + blockIdx.x, 1.0f);
        const float value = load_constant(data + blockIdx.x);
        if (!before)
            store(data + blockIdx.x, value + 1);
    }

    __global__ void read_what_all_read(const float* in, float* out)
    {
        store(out + blockIdx.x, load(in));
    }

    // ----------------------------------------------------------------------------------------

    __global__ void sum_by_xor(const double* in, double* out)
    {
        double value = load(in + threadIdx.x);
        for (int step = 16; step > 0; step /= 2)
            value += __shfl_xor_sync(all_lanes, value, step);
        store(out + threadIdx.x, value);
    }

    __global__ void halves_by_themselves(float* seen)
    {
        const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
        const int first = threadIdx.x % 32 < 16 ? 0 : 16;
        seen[threadIdx.x] = __shfl_sync(mask, static_cast<float>(threadIdx.x), first);
        __syncwarp(mask);
    }

    __global__ void warp_with_mask(unsigned mask, int source_lane)
    {
        __shfl_sync(mask, threadIdx.x, source_lane);
    }

    __global__ void warp_after_exit()
    {
        if (threadIdx.x != 7)
            __syncwarp();
    }

    __global__ void warp_against_barrier()
    {
        if (threadIdx.x == 3)
            __syncthreads();
        else
            __syncwarp();
    }

    __global__ void two_masks() { __syncwarp(threadIdx.x == 5 ? 0x0000ffffu : all_lanes); }

    __global__ void two_places()
    {
        if (threadIdx.x < 9)
            __shfl_xor_sync(all_lanes, 1.0f, 1);
        else
            __shfl_xor_sync(all_lanes, 1.0f, 1);
    }

    // ----------------------------------------------------------------------------------------

    __global__ void copy_one(const float* in, float* out) { store(out, load_streaming(in)); }

    __global__ void copy_four(const float* in, float* out)
    {
        store(reinterpret_cast<float4*>(out), load(reinterpret_cast<const float4*>(in)));
    }

    __global__ void read_uninitialized(float* out)
    {
        const shared_pointer<float> shared = shared_memory<float>();
        const float value = shared[5];
        store(out + blockIdx.x, value);
        shared[5] = 1;
    }

    __global__ void read_uninitialized_double(double* out)
    {
        const double value = shared_memory<double>()[2];
        store(out + blockIdx.x, value);
    }

    __global__ void write_shared(int at) { shared_memory<float>()[at] = 1; }

    __global__ void write_misaligned() { (shared_memory<float>() + 1).as<double>()[0] = 1; }

    __global__ void read_strided(const float* in, unsigned stride)
    {
        load(in + threadIdx.x * stride);
    }

    __global__ void read_by_lanes(const float* in, unsigned lanes)
    {
        if (threadIdx.x % 32 < lanes)
            load(in + 8 * (threadIdx.x / 32));
        load(in + threadIdx.x);
    }

    __global__ void note_order(std::vector<unsigned>* order)
    {
        order->push_back(blockIdx.x * 1000 + threadIdx.x);
        __syncthreads();
        order->push_back(blockIdx.x * 1000 + threadIdx.x);
    }

    __global__ void mark_far(char* memory, std::size_t step)
    {
        store(reinterpret_cast<float*>(memory + blockIdx.x * step),
            1.0f + static_cast<float>(blockIdx.x));
    }

}

namespace
{
    using namespace test;
    using namespace cuda_on_cpu;
    using namespace toy_kernels;

    dlib::logger dlog("test.cuda_on_cpu");

    // ----------------------------------------------------------------------------------------

    std::string fault_of(const std::function<void()>& launch_it)
    /*!
        ensures
            - returns the text of the fault that launch_it() throws, "" if there is none
    !*/
    {
        try
        {
            launch_it();
        }
        catch (const fault& f)
        {
            dlog << dlib::LINFO << f.what();
            return f.what();
        }
        return "";
    }

    bool has(const std::string& text, const std::string& part)
    {
        return text.find(part) != std::string::npos;
    }

    template <typename... parameters, typename... arguments>
    cudaError_t launch(void (*kernel)(parameters...),
        unsigned grid,
        unsigned threads,
        std::size_t shared_bytes,
        arguments... values)
    {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(grid);
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared_bytes;
        return cudaLaunchKernelEx(&config, kernel, static_cast<parameters>(values)...);
    }

    cudaError_t reverse(std::vector<float>& out, unsigned threads, bool with_barrier)
    {
        const unsigned blocks = 3;
        std::vector<float> in(blocks * threads);
        for (std::size_t i = 0; i < in.size(); ++i)
            in[i] = static_cast<float>(i);
        out.assign(in.size(), -1);
        return launch(reverse_block, blocks, threads, threads * sizeof(float), in.data(),
            out.data(), with_barrier);
    }

    bool is_reversed(const std::vector<float>& out, unsigned threads)
    {
        for (unsigned i = 0; i < out.size(); ++i)
        {
            if (out[i] != static_cast<float>(i / threads * threads + threads - 1 - i % threads))
                return false;
        }
        return true;
    }

    // ----------------------------------------------------------------------------------------

    void test_barriers()
    {
        std::vector<float> out;
        for (const unsigned threads : {1, 31, 32, 33, 256, 1024})
        {
            DLIB_TEST(reverse(out, threads, true) == cudaSuccess);
            DLIB_TEST(is_reversed(out, threads));
        }
        const scoped_settings restore;
        current_settings().check_races = false;
        for (int repeat = 0; repeat < 20; ++repeat)
        {
            DLIB_TEST(reverse(out, 64, false) == cudaSuccess);
            DLIB_TEST(!is_reversed(out, 64));
        }

        // a warp that gets a round ahead of the one that still reads
        const auto wrong_rounds = [](bool with_second_barrier)
        {
            int wrong = 0;
            for (int repeat = 0; repeat < 20; ++repeat)
            {
                std::vector<float> sums(3);
                launch(sum_rounds, 1, 256, 8 * sizeof(float), sums.data(), 3, with_second_barrier);
                wrong += sums != std::vector<float>{0, 256, 512};
            }
            return wrong;
        };
        DLIB_TEST(wrong_rounds(true) == 0);
        DLIB_TEST(wrong_rounds(false) > 0);

        std::string text = fault_of([]() { launch(barrier_for_some, 2, 64, 0, 37); });
        DLIB_TEST_MSG(has(text, "barrier_for_some"), text);
        DLIB_TEST_MSG(has(text, "threads 0 to 36: at __syncthreads"), text);
        DLIB_TEST_MSG(has(text, "threads 37 to 63: exited"), text);
        DLIB_TEST_MSG(has(text, "CUDA_ON_CPU_SEED=" + std::to_string(seed())), text);
        DLIB_TEST(fault_of([]() { launch(barrier_for_some, 2, 64, 0, 64); }) == "");
        DLIB_TEST(fault_of([]() { launch(barrier_for_some, 2, 64, 0, 0); }) == "");

        text = fault_of([]() { launch(two_barriers, 1, 64, 0); });
        DLIB_TEST_MSG(has(text, "different barriers"), text);
        DLIB_TEST_MSG(has(text, "threads 40 to 63: at __syncthreads"), text);

        // what came before leaves no trace
        DLIB_TEST(reverse(out, 64, true) == cudaSuccess);
        DLIB_TEST(is_reversed(out, 64));
    }

    void test_races()
    {
        std::vector<float> data(12), out(12);
        const global_buffer d("data", data.data(), data.size() * sizeof(float), access::read_write);
        const global_buffer o("out", out.data(), out.size() * sizeof(float), access::read_write);
        const auto touching = [&](between_blocks kind)
        { return fault_of([&]() { launch(touch, 12, 1, 0, data.data(), kind); }); };

        DLIB_TEST(touching(between_blocks::none) == "");
        DLIB_TEST(data == std::vector<float>(12, 1));
        // one launch may use what the one before wrote
        DLIB_TEST(touching(between_blocks::none) == "");

        for (int repeat = 0; repeat < 20; ++repeat)
        {
            std::string text = touching(between_blocks::all_write);
            DLIB_TEST_MSG(
                has(text, "Race between blocks: write at byte 12 of data, which block "), text);
            DLIB_TEST_MSG(has(text, " wrote in the same launch"), text);

            // found in whichever order the blocks run
            text = touching(between_blocks::read_what_another_writes);
            DLIB_TEST_MSG(has(text, "Race between blocks"), text);
            text = fault_of(
                [&]() { launch(write_what_another_read, 3, 1, 0, data.data(), out.data()); });
            DLIB_TEST_MSG(has(text, "Race between blocks"), text);
            DLIB_TEST_MSG(has(text, "at byte 4 of data"), text);
        }

        // a constant can't be written, not even by the block that reads it
        for (const bool before : {false, true})
        {
            const std::string text = fault_of(
                [&]() { launch(write_a_constant, 3, 1, 0, data.data(), before); });
            DLIB_TEST_MSG(has(text, before ? "read as a constant at byte" : "write at byte"), text);
        }

        DLIB_TEST(fault_of([&]()
                      { launch(read_what_all_read, 12, 1, 0, data.data(), out.data()); }) == "");

        const scoped_settings restore;
        current_settings().check_races = false;
        DLIB_TEST(touching(between_blocks::all_write) == "");
    }

    void test_races_in_shared_memory()
    {
        const auto neighbours = [](meeting kind, unsigned distance)
        { return fault_of([=]() { launch(read_from_neighbour, 2, 64, 512, kind, distance); }); };
        const auto again = [](meeting kind, unsigned threads)
        { return fault_of([=]() { launch(write_again_what_all_read, 2, threads, 8, kind); }); };
        const auto same = [](meeting kind, unsigned threads)
        { return fault_of([=]() { launch(write_the_same, 2, threads, 4, kind); }); };

        for (int repeat = 0; repeat < 20; ++repeat)
        {
            // A shuffle makes threads wait for each other, but not for what they wrote.
            for (const meeting kind : {meeting::none, meeting::shuffle})
            {
                DLIB_TEST(neighbours(kind, 0) == "");
                DLIB_TEST(has(neighbours(kind, 1), "Race between threads"));
                DLIB_TEST(has(neighbours(kind, 32), "Race between threads"));
                DLIB_TEST(has(again(kind, 32), "Race between threads"));
                DLIB_TEST(has(again(kind, 64), "Race between threads"));
                DLIB_TEST(has(same(kind, 32), "Race between threads"));
            }

            DLIB_TEST(neighbours(meeting::half_warp, 0) == "");
            DLIB_TEST(has(neighbours(meeting::half_warp, 16), "Race between threads"));

            DLIB_TEST(neighbours(meeting::warp, 1) == "");
            DLIB_TEST(has(neighbours(meeting::warp, 32), "Race between threads"));
            DLIB_TEST(again(meeting::warp, 32) == "");
            DLIB_TEST(has(again(meeting::warp, 64), "Race between threads"));
            DLIB_TEST(same(meeting::warp, 32) == "");
            DLIB_TEST(has(same(meeting::warp, 64), "Race between threads"));

            DLIB_TEST(neighbours(meeting::block, 32) == "");
            DLIB_TEST(again(meeting::block, 64) == "");
            DLIB_TEST(same(meeting::block, 64) == "");
        }

        std::string text = again(meeting::shuffle, 32);
        DLIB_TEST_MSG(has(text, "thread 5, test_cuda_on_cpu.cpp:"), text);
        DLIB_TEST_MSG(has(text,
                          "write at byte 4 of shared memory, which threads of warp 0 read in "
                          "line "),
            text);
        text = neighbours(meeting::shuffle, 2);
        DLIB_TEST_MSG(has(text, "read at byte "), text);
        DLIB_TEST_MSG(has(text, " of shared memory, which thread "), text);
        DLIB_TEST_MSG(has(text, " wrote in line "), text);

        const scoped_settings restore;
        current_settings().check_races = false;
        DLIB_TEST(neighbours(meeting::none, 32) == "");
    }

    void test_warps()
    {
        std::vector<double> in(64), sums(64);
        for (std::size_t i = 0; i < in.size(); ++i)
            in[i] = static_cast<double>(i * i);
        launch(sum_by_xor, 1, 64, 0, in.data(), sums.data());
        for (std::size_t i = 0; i < sums.size(); ++i)
            DLIB_TEST(sums[i] == (i < 32 ? 10416 : 74928));

        std::vector<float> first(64);
        launch(halves_by_themselves, 1, 64, 0, first.data());
        for (std::size_t i = 0; i < first.size(); ++i)
            DLIB_TEST(first[i] == static_cast<float>(i / 16 * 16));

        const auto with_mask = [](unsigned threads, unsigned mask, int source_lane)
        { return fault_of([=]() { launch(warp_with_mask, 1, threads, 0, mask, source_lane); }); };
        DLIB_TEST(with_mask(32, all_lanes, 31) == "");
        std::string text = with_mask(32, 0xfffffffe, 1);
        DLIB_TEST_MSG(has(text, "thread 0"), text);
        DLIB_TEST_MSG(has(text, "__shfl_sync: the mask lacks the lane that calls it"), text);
        text = with_mask(16, 0x0000ffff, 20);
        DLIB_TEST_MSG(has(text, "reads from lane 20, which is not in the mask"), text);
        text = with_mask(16, all_lanes, 0);
        DLIB_TEST_MSG(has(text, "never come"), text);
        DLIB_TEST_MSG(has(text, "threads 0 to 15: at __shfl_sync with mask ffffffff"), text);

        text = fault_of([]() { launch(warp_after_exit, 1, 32, 0); });
        DLIB_TEST_MSG(has(text, "threads 7 to 7: exited"), text);
        text = fault_of([]() { launch(warp_against_barrier, 1, 32, 0); });
        DLIB_TEST_MSG(has(text, "threads 3 to 3: at __syncthreads"), text);
        DLIB_TEST_MSG(has(text, "threads 4 to 31: at __syncwarp with mask ffffffff"), text);
        text = fault_of([]() { launch(two_masks, 1, 32, 0); });
        DLIB_TEST_MSG(has(text, "different masks"), text);
        text = fault_of([]() { launch(two_places, 1, 32, 0); });
        DLIB_TEST_MSG(has(text, "at different places"), text);
    }

    void test_global_memory()
    {
        alignas(16) float surroundings[16] = {};
        alignas(16) float out[12] = {};
        float* in = surroundings + 4;
        for (int i = 0; i < 12; ++i)
            in[i] = static_cast<float>(i);
        const global_buffer i("in", in, 8 * sizeof(float), access::read_only);
        const global_buffer o("out", out, 8 * sizeof(float), access::read_write);
        const auto copying = [](void (*kernel)(const float*, float*), const float* from, float* to)
        { return fault_of([=]() { launch(kernel, 1, 1, 0, from, to); }); };

        DLIB_TEST(copying(copy_one, in + 7, out + 7) == "");
        DLIB_TEST(copying(copy_four, in + 4, out) == "");
        DLIB_TEST(out[7] == 7 && out[0] == 4 && out[3] == 7);
        DLIB_TEST(i.bytes_read() == 20 && i.bytes_written() == 0);
        DLIB_TEST(o.bytes_read() == 0 && o.bytes_written() == 20);

        std::string text = copying(copy_one, in + 8, out);
        DLIB_TEST_MSG(has(text, "Read of 4 bytes outside of every buffer"), text);
        DLIB_TEST_MSG(has(text, "in has 32 bytes, the access is at 32"), text);
        text = copying(copy_one, in - 1, out);
        DLIB_TEST_MSG(has(text, "in has 32 bytes, the access is at -4"), text);
        text = copying(copy_one, in, out + 8);
        DLIB_TEST_MSG(has(text, "Write of 4 bytes outside of every buffer"), text);
        text = copying(copy_one, in, in);
        DLIB_TEST_MSG(has(text, "Write to in, which is only to be read"), text);

        text = copying(copy_four, in + 1, out);
        DLIB_TEST_MSG(has(text, "Misaligned read of 16 bytes"), text);
        DLIB_TEST_MSG(has(text, "test_cuda_on_cpu.cpp:"), text);
        text = copying(copy_four, in, out + 2);
        DLIB_TEST_MSG(has(text, "Misaligned write of 16 bytes"), text);
        DLIB_TEST(out[2] == 6 && out[8] == 0);

        // the last vector reaches over the end of a row of seven
        const global_buffer row("row", in + 8, 3 * sizeof(float), access::read_only);
        text = copying(copy_four, in + 8, out);
        DLIB_TEST_MSG(has(text, "Read of 16 bytes outside of every buffer"), text);
    }

    void test_shared_memory()
    {
        std::vector<float> out(5);
        launch(read_uninitialized, 5, 1, 24, out.data());
        for (const float value : out)
            DLIB_TEST(std::isnan(value));
        std::vector<double> out_double(5);
        launch(read_uninitialized_double, 5, 1, 24, out_double.data());
        for (const double value : out_double)
            DLIB_TEST(std::isnan(value));

        const auto writing = [](int at)
        { return fault_of([=]() { launch(write_shared, 1, 1, 24, at); }); };
        DLIB_TEST(writing(5) == "");
        DLIB_TEST(has(writing(6), "write outside of shared memory"));
        DLIB_TEST(has(writing(-1), "write outside of shared memory"));
        const std::string text = fault_of([]() { launch(write_misaligned, 1, 1, 24); });
        DLIB_TEST_MSG(has(text, "Misaligned write in shared memory"), text);
    }

    void test_limits()
    {
        const auto launching = [](unsigned grid, unsigned threads, std::size_t shared)
        { return fault_of([=]() { launch(barrier_for_some, grid, threads, shared, 0u); }); };
        const scoped_settings restore;
        current_settings().choose_blocks = [](const std::string&)
        { return std::vector<long long>(1); };
        const std::size_t most_shared = current_settings().shared_bytes_per_block;

        DLIB_TEST(launching(0x7fffffff, 1024, 48 * 1024) == "");
        DLIB_TEST(has(launching(1, 1025, 0), "threads in a block is 1025"));
        DLIB_TEST(has(launching(1, 0, 0), "threads in a block is 0"));
        DLIB_TEST(has(launching(0x80000000, 1, 0), "The number of blocks is 2147483648"));
        DLIB_TEST(has(launching(0, 1, 0), "The number of blocks is 0"));

        // more than 48 KiB of shared memory has to be asked for
        DLIB_TEST(has(launching(1, 1, 48 * 1024 + 1), "bytes of shared memory is 49153"));
        const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
        const int most = static_cast<int>(most_shared);
        DLIB_TEST(cudaFuncSetAttribute(barrier_for_some, attribute, most) == cudaSuccess);
        DLIB_TEST(launching(1, 1, most_shared) == "");
        DLIB_TEST(has(launching(1, 1, most_shared + 1), "bytes of shared memory"));
        DLIB_TEST(
            cudaFuncSetAttribute(barrier_for_some, attribute, most + 1) == cudaErrorInvalidValue);

        // a launch that fails does nothing else
        current_settings().failing_launch = 2;
        DLIB_TEST(launch(barrier_for_some, 1, 64, 0, 0) == cudaSuccess);
        DLIB_TEST(launch(barrier_for_some, 1, 64, 0, 3) == cudaErrorLaunchFailure);
        DLIB_TEST(launch(barrier_for_some, 1, 64, 0, 0) == cudaSuccess);
    }

    void test_counts()
    {
        alignas(32) static float data[1024];
        const scoped_settings restore;
        current_settings().count_sectors = true;
        const auto sectors = [](const std::function<void()>& launch_it)
        {
            const global_buffer b("data", data, sizeof(data), access::read_only);
            launch_it();
            return b.sectors();
        };
        DLIB_TEST(sectors([]() { launch(read_strided, 1, 64, 0, data, 1); }) == 8);
        DLIB_TEST(sectors([]() { launch(read_strided, 1, 64, 0, data + 1, 1); }) == 10);
        DLIB_TEST(sectors([]() { launch(read_strided, 2, 64, 0, data, 8); }) == 128);
        DLIB_TEST(sectors([]() { launch(read_strided, 1, 64, 0, data, 0); }) == 2);
        // lanes that skip an instruction do not disturb the count of the next
        DLIB_TEST(sectors([]() { launch(read_by_lanes, 1, 64, 0, data, 5); }) == 10);

        current_settings().record_launches = true;
        launches().clear();
        launch(read_strided, 6, 64, 12, data, 1);
        DLIB_TEST(launches().size() == 1);
        DLIB_TEST(has(launches()[0].kernel, "read_strided"));
        DLIB_TEST(launches()[0].grid == 6);
        DLIB_TEST(launches()[0].threads == 64 && launches()[0].shared_bytes == 12);
        launches().clear();
    }

    void test_order()
    {
        const auto order_with = [](std::uint64_t value)
        {
            set_seed(value);
            std::vector<unsigned> order;
            launch(note_order, 4, 8, 0, &order);
            return order;
        };

        const std::uint64_t before = seed();
        std::set<unsigned> first;
        std::set<std::vector<unsigned>> orders;
        for (std::uint64_t value = 0; value < 200; ++value)
        {
            const std::vector<unsigned> order = order_with(value);
            DLIB_TEST(order.size() == 64);
            first.insert(order[0]);
            orders.insert(order);
        }
        DLIB_TEST(orders.size() == 200);
        DLIB_TEST(first.size() > 20);
        DLIB_TEST(order_with(7) == order_with(7));
        DLIB_TEST(order_with(7) != order_with(8));
        set_seed(before);
    }

    void test_far_addresses()
    {
        const std::size_t step = std::size_t(1) << 31;
        const sparse_memory memory(5 * step);
        const global_buffer b("memory", memory.get(), 4 * step + 4, access::read_write);
        char* begin = static_cast<char*>(memory.get());
        const scoped_settings restore;
        current_settings().choose_blocks = [](const std::string& kernel)
        {
            DLIB_TEST(has(kernel, "mark_far"));
            return std::vector<long long>{0, 3, 4, 5, 4};
        };
        launch(mark_far, 5, 1, 0, begin, step);
        for (unsigned i = 0; i < 5; ++i)
        {
            const float value = *reinterpret_cast<const float*>(begin + i * step);
            DLIB_TEST(value == (i == 1 || i == 2 ? 0 : static_cast<float>(1 + i)));
        }
        const std::string text = fault_of([&]() { launch(mark_far, 5, 1, 0, begin + 4, step); });
        DLIB_TEST_MSG(has(text, "outside of every buffer"), text);
    }

    // ----------------------------------------------------------------------------------------

    class cuda_on_cpu_tester : public tester
    {
    public:
        cuda_on_cpu_tester() :
            tester("cuda_on_cpu", "Runs tests on what runs CUDA kernels on the CPU.")
        {
        }

        void perform_test()
        {
            dlog << dlib::LINFO << "CUDA_ON_CPU_SEED=" << seed();
            test_barriers();
            print_spinner();
            test_races();
            test_races_in_shared_memory();
            test_warps();
            print_spinner();
            test_global_memory();
            test_shared_memory();
            test_limits();
            test_counts();
            print_spinner();
            test_order();
            test_far_addresses();
        }
    } a;
}
