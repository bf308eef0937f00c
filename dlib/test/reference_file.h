// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_TEST_REFERENCE_FILE_H_
#define DLIB_TEST_REFERENCE_FILE_H_

// Numbers that other software computed.

#include <array>
#include <cstring>
#include <string>
#include <vector>
#include <dlib/cuda/rms_norm_float16.h>
#include <nlohmann/json.hpp>
#include "data_file.h"

namespace test
{

    // ----------------------------------------------------------------------------------------

    class reference_file
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                A safetensors file of named arrays: 8 bytes with the length of a JSON header, the
        header, and the numbers, all little endian.
        !*/
    public:
        explicit reference_file(const std::string& file_name) :
            bytes(read_data_file(file_name))
        {
            dlib::uint64 length = 0;
            DLIB_TEST(bytes.size() > sizeof(length));
            std::memcpy(&length, bytes.data(), sizeof(length));
            numbers_begin = sizeof(length) + length;
            DLIB_TEST(numbers_begin <= bytes.size());
            header = nlohmann::json::parse(bytes.begin() + sizeof(length),
                bytes.begin() + static_cast<std::ptrdiff_t>(numbers_begin));
        }

        double metadata(const char* name) const
        {
            return std::stod(header.at("__metadata__").at(name).get<std::string>());
        }

        std::vector<std::string> shapes() const
        {
            std::vector<std::string> names;
            for (const auto& item : header.items())
            {
                const std::string& name = item.key();
                if (name.size() > 2 && name.compare(name.size() - 2, 2, ".x") == 0)
                    names.push_back(name.substr(0, name.size() - 2));
            }
            return names;
        }

        std::vector<long long> shape(const std::string& name) const
        {
            return header.at(name).at("shape").get<std::vector<long long>>();
        }

        template <typename T>
        std::vector<T> numbers(const std::string& name) const
        {
            const auto& entry = header.at(name);
            DLIB_TEST(entry.at("dtype") == type_name(T()));
            const auto range = entry.at("data_offsets").get<std::array<std::size_t, 2>>();
            DLIB_TEST(range[0] <= range[1] && numbers_begin + range[1] <= bytes.size());
            std::vector<T> values((range[1] - range[0]) / sizeof(T));
            if (!values.empty())
                std::memcpy(values.data(), &bytes[numbers_begin + range[0]], range[1] - range[0]);
            return values;
        }

    private:
        static const char* type_name(float) { return "F32"; }
        static const char* type_name(double) { return "F64"; }
        static const char* type_name(dlib::contrib::float16) { return "F16"; }
        static const char* type_name(dlib::contrib::bfloat16) { return "BF16"; }

        std::string bytes;
        std::size_t numbers_begin = 0;
        nlohmann::json header;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_TEST_REFERENCE_FILE_H_
