// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_CHILD_PROCESS_H_
#define DLIB_TEST_CHILD_PROCESS_H_

// A function, or this program again, run in a process of its own, for what would end this one,
// needs a fork() or another number of threads.

#include <array>
#include <climits>
#include <cstdio>
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

    inline std::string run_again(int num_threads, const std::string& option)
    /*!
        ensures
            - returns what this program prints with the option --option in a new process: dlib
              reads DLIB_NUM_THREADS once, when a program starts. OpenBLAS has one thread there.
            - throws if a case fails there, or it takes longer than five minutes
    !*/
    {
        std::array<char, PATH_MAX> path = {};
        DLIB_TEST(readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
        const std::string command = "DLIB_NUM_THREADS=" + std::to_string(num_threads) +
            " OPENBLAS_NUM_THREADS=1 timeout 300 '" + path.data() + "' -q --" + option;

        FILE* const pipe = popen(command.c_str(), "r");
        DLIB_TEST(pipe != nullptr);
        std::string output;
        std::array<char, 256> part;
        while (std::fgets(part.data(), static_cast<int>(part.size()), pipe))
            output += part.data();
        const int status = pclose(pipe);
        DLIB_TEST_MSG(status == 0, command << " ended with " << status << ":\n" << output);
        return output;
    }

}

#endif // DLIB_TEST_CHILD_PROCESS_H_
