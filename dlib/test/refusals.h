// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_REFUSALS_H_
#define DLIB_TEST_REFUSALS_H_

// Checks that a broken contract is refused. dlib ends a process that makes a second fatal_error,
// so every case has a child process of its own.

#include <functional>
#include <string>
#include <vector>
#include <dlib/error.h>
#include "child_process.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    template <typename call_type>
    std::string what_happens(const std::function<void(call_type&)>& spoil,
        const std::function<void(call_type&)>& run,
        const std::vector<std::string>& words)
    /*!
        ensures
            - returns "" if run, after spoil, throws a fatal_error that holds all the words and
              changes nothing, else a description of what happened instead
    !*/
    {
        call_type call;
        spoil(call);
        const call_type before = call;
        std::string message;
        try
        {
            run(call);
            return "it was not refused";
        }
        catch (dlib::fatal_error& e)
        {
            message = e.what();
        }
        catch (std::exception& e)
        {
            return std::string("it threw something else: ") + e.what();
        }

        if (!(call == before))
            return "an argument was touched";
        for (const std::string& word : words)
        {
            if (message.find(word) == std::string::npos)
                return "'" + word + "' is missing in the message:\n" + message;
        }
        return "";
    }

    template <typename call_type>
    void refused(const std::function<void(call_type&)>& spoil,
        const std::function<void(call_type&)>& run,
        const std::vector<std::string>& words)
    {
        const std::string result = in_child_process(
            [&]() { return what_happens<call_type>(spoil, run, words); });
        DLIB_TEST_MSG(result.empty(), result << "\nThe message should hold: " << words.front());
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_REFUSALS_H_
