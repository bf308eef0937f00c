// License: Boost Software License   See LICENSE.txt for the full license.

// The functions that dlib's tester.h and our test_cases.h declare. dlib installs the first
// header without their source.

#include "test_cases.h"

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>

namespace test
{

    // ----------------------------------------------------------------------------------------

    bool be_verbose = true;

    namespace
    {
        const dlib::logger dlog("test.tester");

        std::atomic<dlib::uint64> statements{0};
    }

    // dlib's versions declare different unsigned types here
    decltype(number_of_testing_statements_executed()) number_of_testing_statements_executed()
    {
        return statements;
    }

    void increment_test_count() { ++statements; }

    void check_test(bool exp, long line, const char* file, const char* exp_str)
    {
        increment_test_count();
        if (exp)
            return;
        std::ostringstream sout;
        sout << file << ":" << line << ": this does not hold: " << exp_str;
        throw dlib::error(sout.str());
    }

    void print_spinner()
    {
        static std::mutex one_at_a_time;
        static unsigned int turns = 0;

        if (!be_verbose)
            return;
        std::lock_guard<std::mutex> lock(one_at_a_time);
        std::cout << "\b\b"
                  << "|/-\\"[turns++ % 4] << ' ' << std::flush;
    }

    // ----------------------------------------------------------------------------------------

    std::map<std::string, tester*>& registered_testers()
    {
        static std::map<std::string, tester*> all;
        return all;
    }

    case_counts& counted_cases()
    {
        static case_counts counts;
        return counts;
    }

    void report_failure(const std::string& name, const std::string& message)
    {
        std::cout << "\n\nFAILED: " << name << "\n" << message << "\n" << std::endl;
        dlog << dlib::LERROR << "FAILED: " << name << ": " << message;
    }

    void run_case(const std::string& name, const std::function<void()>& body)
    {
        print_spinner();
        dlog << dlib::LINFO << "case " << name;
        try
        {
            body();
            ++counted_cases().passed;
        }
        catch (std::exception& e)
        {
            report_failure(name, e.what());
            ++counted_cases().failed;
        }
    }

    void skip_case(const std::string& name, const std::string& reason)
    {
        std::cout << "\nskipped: " << name << ": " << reason << std::endl;
        dlog << dlib::LINFO << "skipped " << name << ": " << reason;
        ++counted_cases().skipped;
    }

    // ----------------------------------------------------------------------------------------

    tester::tester(const std::string& switch_name_,
        const std::string& description__,
        unsigned long num_of_args__) :
        switch_name(switch_name_),
        description_(description__),
        num_of_args_(num_of_args__)
    {
        if (!registered_testers().emplace(switch_name, this).second)
        {
            std::cerr << "Two testers have the switch '" << switch_name << "'." << std::endl;
            std::abort();
        }
    }

    const std::string& tester::cmd_line_switch() const { return switch_name; }

    const std::string& tester::description() const { return description_; }

    unsigned long tester::num_of_args() const { return num_of_args_; }

    // A tester overrides the one that fits its number of arguments.
    void tester::perform_test() {}
    void tester::perform_test(const std::string&) {}
    void tester::perform_test(const std::string&, const std::string&) {}

    // ----------------------------------------------------------------------------------------

}
