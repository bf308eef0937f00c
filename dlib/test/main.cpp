// License: Boost Software License   See LICENSE.txt for the full license.

// dtest: picks testers by command line switches, as the dtest of dlib does, runs them, and
// ends with one line that tells how many cases passed and failed.

#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <dlib/cmd_line_parser.h>
#include "test_cases.h"

using namespace dlib;
using namespace test;

namespace
{

    const logger dlog("test.main");

    // ----------------------------------------------------------------------------------------

    void add_options(command_line_parser& parser)
    {
        parser.add_option("runall", "Run every test that takes no argument.");
        parser.add_option("h", "Show this help.");
        parser.add_option("n", "Run the selected tests this many times (default: 1).", 1);
        parser.add_option("d", "Write log messages to the file debug.txt.");
        parser.add_option("l",
            "With -d: what to log, one of all, trace, debug, info, warn, error, fatal (default: "
            "all).",
            1);
        parser.add_option("a", "With -d: append to debug.txt instead of starting it anew.");
        parser.add_option("q", "Be quiet: print failures, skipped cases and the last line only.");

        for (const auto& named : registered_testers())
        {
            const tester& t = *named.second;
            parser.add_option(t.cmd_line_switch(), t.description(), t.num_of_args());
            if (t.num_of_args() == 0)
                parser.add_option("no_" + t.cmd_line_switch(), "Leave this test out of --runall.");
        }
    }

    void check_options(const command_line_parser& parser)
    {
        const char* once[] = {"runall", "h", "n", "d", "l", "a", "q"};
        const char* only_with_d[] = {"l", "a"};
        const char* levels[] = {"all", "trace", "debug", "info", "warn", "error", "fatal"};
        parser.check_one_time_options(once);
        parser.check_sub_options("d", only_with_d);
        parser.check_option_arg_range("l", levels);
        parser.check_option_arg_range("n", 1, 1000000000);
    }

    void start_logging(const command_line_parser& parser, std::ofstream& file)
    {
        if (!parser.option("d"))
        {
            set_all_logging_levels(LNONE);
            return;
        }

        file.open("debug.txt", parser.option("a") ? std::ios::app : std::ios::trunc);
        if (!file)
            throw error("Unable to open debug.txt for writing.");
        set_all_logging_output_streams(file);

        const std::map<std::string, log_level> levels = {{"all", LALL}, {"trace", LTRACE},
            {"debug", LDEBUG}, {"info", LINFO}, {"warn", LWARN}, {"error", LERROR},
            {"fatal", LFATAL}};
        set_all_logging_levels(levels.at(get_option(parser, "l", "all")));
    }

    // ----------------------------------------------------------------------------------------

    void run(tester& t, const command_line_parser::option_type& option, unsigned long occurrence)
    /*!
        ensures
            - runs t once. A tester that counts no cases of its own is one case itself.
    !*/
    {
        if (be_verbose)
            std::cout << "Running " << t.cmd_line_switch() << "   " << std::flush;
        dlog << LINFO << "Running " << t.cmd_line_switch();

        case_counts& counts = counted_cases();
        const unsigned long before = counts.passed + counts.failed + counts.skipped;
        try
        {
            if (t.num_of_args() == 0)
                t.perform_test();
            else if (t.num_of_args() == 1)
                t.perform_test(option.argument(0, occurrence));
            else
                t.perform_test(option.argument(0, occurrence), option.argument(1, occurrence));

            if (counts.passed + counts.failed + counts.skipped == before)
                ++counts.passed;
        }
        catch (std::exception& e)
        {
            report_failure(t.cmd_line_switch(), e.what());
            ++counts.failed;
        }

        if (be_verbose)
            std::cout << std::endl;
    }

    void run_selected(const command_line_parser& parser)
    {
        for (const auto& named : registered_testers())
        {
            tester& t = *named.second;
            const auto& option = parser.option(t.cmd_line_switch());
            for (unsigned long i = 0; i < option.count(); ++i)
                run(t, option, i);
            if (parser.option("runall") && t.num_of_args() == 0 &&
                !parser.option("no_" + t.cmd_line_switch()))
                run(t, option, 0);
        }
    }

    // ----------------------------------------------------------------------------------------

}

int main(int argc, char** argv)
{
    try
    {
        command_line_parser parser;
        add_options(parser);
        parser.parse(argc, argv);
        check_options(parser);

        if (parser.option("h"))
        {
            std::cout << "Usage: dtest [options]\n";
            parser.print_options();
            std::cout << std::endl;
            return EXIT_SUCCESS;
        }

        be_verbose = !parser.option("q");
        std::ofstream log_file;
        start_logging(parser, log_file);

        const unsigned long rounds = get_option(parser, "n", 1ul);
        for (unsigned long i = 0; i < rounds; ++i)
        {
            dlog << LINFO << "Round " << i + 1 << " of " << rounds;
            run_selected(parser);
        }

        const case_counts& counts = counted_cases();
        const bool nothing_ran = counts.passed + counts.failed + counts.skipped == 0;
        if (nothing_ran)
            std::cout << "No test was selected. The -h option lists them.\n";
        else if (be_verbose)
            std::cout << "Testing statements executed: " << number_of_testing_statements_executed()
                      << "\n";

        std::ostringstream last_line;
        last_line << counts.passed << " passed, " << counts.failed << " failed";
        if (counts.skipped != 0)
            last_line << ", " << counts.skipped << " skipped";
        dlog << LINFO << last_line.str();
        std::cout << last_line.str() << std::endl;

        // the log must not outlive its file
        set_all_logging_output_streams(std::cout);
        return nothing_ran || counts.failed != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    catch (std::exception& e)
    {
        std::cout << e.what() << "\nThe -h option lists what can be given." << std::endl;
        return EXIT_FAILURE;
    }
}
