// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_TEST_CASES_H_
#define DLIB_TEST_TEST_CASES_H_

// What dlib's tester.h leaves to the program: the list of all testers, and cases inside of a
// tester that are counted, and can fail or be skipped, one by one.

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <dlib/test/tester.h>

namespace test
{

    // ----------------------------------------------------------------------------------------

    // Sanitizers look at memory, and make the loops slow: some tests of bits then do with less.
#ifdef __SANITIZE_ADDRESS__
    constexpr bool is_sanitized = true;
#else
    constexpr bool is_sanitized = false;
#endif

    std::map<std::string, tester*>& registered_testers();
    /*!
        ensures
            - returns every tester of this program, by its command line switch.
    !*/

    struct case_counts
    {
        unsigned long passed = 0;
        unsigned long failed = 0;
        unsigned long skipped = 0;
    };

    case_counts& counted_cases();
    /*!
        ensures
            - returns what became of the cases since the program began.
    !*/

    void run_case(const std::string& name, const std::function<void()>& body);
    /*!
        ensures
            - runs body. If it throws, its message is printed under this name and the case
              counts as failed, else it counts as passed.
    !*/

    // A case that is named as its call: RUN_CASE(layers_below_learn());
#define RUN_CASE(...) test::run_case(#__VA_ARGS__, [&]() { __VA_ARGS__; })

    // {name, function} for a list of cases
#define NAMED_CASE(function) \
    {                        \
#function, function  \
    }

    void skip_case(const std::string& name, const std::string& reason);
    /*!
        ensures
            - prints the reason and counts the case as skipped.
    !*/

    void report_failure(const std::string& name, const std::string& message);
    /*!
        ensures
            - prints that the test of this name failed, and logs it.
    !*/

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_TEST_CASES_H_
