// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_DATA_FILE_H_
#define DLIB_TEST_DATA_FILE_H_

#include <fstream>
#include <iterator>
#include <string>
#include "test_cases.h"

namespace test
{

    inline std::string read_data_file(const std::string& name)
    /*!
        ensures
            - returns the bytes of dlib/test/data/name
    !*/
    {
        const std::string path = std::string(DLIB_TEST_DATA_DIR) + "/" + name;
        std::ifstream fin(path, std::ios::binary);
        DLIB_TEST_MSG(fin, "unable to open " << path);
        return std::string(std::istreambuf_iterator<char>(fin), std::istreambuf_iterator<char>());
    }

}

#endif // DLIB_TEST_DATA_FILE_H_
