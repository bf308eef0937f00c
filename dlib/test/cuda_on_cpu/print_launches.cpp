// License: Boost Software License   See LICENSE.txt for the full license.

// Prints the most threads that a block of each kernel is launched with, over all kinds of sizes:
//
//     KERNEL THREADS
//
// tools/check_cuda_build.sh compares that with the kernels' launch bounds, which are not looked at
// on the CPU.

#include <algorithm>
#include <iostream>
#include <map>

#include "kernels_on_cpu.h"

namespace
{
    using namespace dlib::contrib;
    using namespace cuda_on_cpu;

    std::map<std::string, unsigned> most_threads;

    void note_launches()
    {
        for (const launch_record& l : launches())
        {
            std::string name = l.kernel.substr(0, l.kernel.find('('));
            name.erase(0, name.rfind("::") + 2);
            name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
            most_threads[name] = std::max(most_threads[name], l.threads);
        }
        launches().clear();
    }

    void launch(const rms_norm_groups& groups, const kernels::rms_norm_device& device)
    {
        rms_norm_forward<float> forward;
        forward.groups = groups;
        kernels::launch_rms_normalize(
            forward, kernels::plan_rms_normalize(groups, true, device), nullptr, nullptr);

        rms_norm_backward<float> backward;
        backward.groups = groups;
        kernels::launch_rms_normalize_gradient(
            backward, kernels::plan_rms_normalize_gradient(groups, true, device), nullptr, nullptr);
        note_launches();
    }
}

int main()
{
    current_settings().record_launches = true;
    // None: it is no block's number.
    current_settings().choose_blocks = [](const std::string&)
    { return std::vector<long long>(1, 1LL << 40); };

    for (const std::size_t shared_bytes : {48 * 1024, 227 * 1024})
    {
        kernels::rms_norm_device device;
        device.shared_bytes_per_block = shared_bytes;
        for (long long size = 1; size < 40000; size += size < 1100 ? 1 : 2)
        {
            rms_norm_groups rows;
            rows.outer = 1000;
            rows.size = rows.num_gains = size;
            launch(rows, device);

            rms_norm_groups columns = rows;
            columns.stride = 100;
            columns.interleaved = true;
            launch(columns, device);

            rms_norm_groups runs = rows;
            runs.size = 3 * size;
            runs.gain_run = 3;
            launch(runs, device);
        }
    }
    for (const auto& kernel : most_threads)
        std::cout << kernel.first << " " << kernel.second << "\n";
    return 0;
}
