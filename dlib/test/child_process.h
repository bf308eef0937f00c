// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_CHILD_PROCESS_H_
#define DLIB_TEST_CHILD_PROCESS_H_

// A function run in a process of its own, for what would end this one or needs a fork().

#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include "test_cases.h"

namespace test
{

    inline std::string in_child_process(const std::function<std::string()>& f)
    /*!
        ensures
            - returns what f returns in a child process. One that takes longer than a minute has
              failed.
    !*/
    {
        int ends[2];
        DLIB_TEST(pipe(ends) == 0);
        const pid_t child = fork();
        DLIB_TEST(child >= 0);
        if (child == 0)
        {
            alarm(60);
            const std::string result = f();
            const bool is_written = write(ends[1], result.data(), result.size()) ==
                static_cast<ssize_t>(result.size());
            _exit(is_written ? 0 : 1);
        }

        close(ends[1]);
        std::string result;
        char buffer[1000];
        for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
            result.append(buffer, static_cast<std::size_t>(n));
        close(ends[0]);

        int status = 0;
        DLIB_TEST(waitpid(child, &status, 0) == child);
        DLIB_TEST_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "the child process ended with status " << status);
        return result;
    }

}

#endif // DLIB_TEST_CHILD_PROCESS_H_
