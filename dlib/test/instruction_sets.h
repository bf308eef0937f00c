// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_INSTRUCTION_SETS_H_
#define DLIB_TEST_INSTRUCTION_SETS_H_

// Runs something once with each instruction set that was compiled and that this processor has.

#include <cstdint>
#include <dlib/cuda/rms_norm_simd_targets.h>
#include <hwy/targets.h>

namespace test
{

    template <typename F>
    int for_each_instruction_set(const F& f)
    /*!
        ensures
            - calls f(name) while Highway chooses the instruction set of this name. Afterwards, and
              after an exception, it chooses as before.
            - returns how many there are
    !*/
    {
        const struct back_to_all_targets
        {
            ~back_to_all_targets() { use(0); }

            static void use(std::int64_t targets)
            {
                hwy::SetSupportedTargetsForTest(targets);
                hwy::GetChosenTarget().Update(hwy::SupportedTargets());
            }
        } at_the_end;

        const std::int64_t all_targets = hwy::SupportedTargets();
        int count = 0;
        for (int bit = 0; bit < 63; ++bit)
        {
            const std::int64_t target = std::int64_t(1) << bit;
            if ((all_targets & target) == 0)
                continue;
            at_the_end.use(target);
            f(hwy::TargetName(target));
            ++count;
        }
        return count;
    }

}

#endif // DLIB_TEST_INSTRUCTION_SETS_H_
