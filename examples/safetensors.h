// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_SAFETENSORS_H_
#define DLIB_RMS_NORM_SAFETENSORS_H_

// Reads a safetensors file: named arrays of numbers. It begins with 8 bytes that give the length
// of a JSON header, then come the header and the numbers, all little endian.

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>
#include <dlib/serialize.h>
#include <nlohmann/json.hpp>

namespace transformer
{

    // ----------------------------------------------------------------------------------------

    class safetensors
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                The contents of a safetensors file. All functions throw
                dlib::serialization_error, with the file's name in the message, if the file is
                broken or does not hold what was asked for.
        !*/
    public:
        explicit safetensors(const std::string& path_) :
            path(path_)
        {
            std::ifstream in(path, std::ios::binary);
            if (!in)
                refuse("it can't be opened");
            bytes.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());

            std::uint64_t length = 0;
            if (bytes.size() < sizeof(length))
                refuse("it has only " + std::to_string(bytes.size()) + " bytes");
            for (std::size_t i = sizeof(length); i-- > 0;)
                length = length << 8 | static_cast<unsigned char>(bytes[i]);
            if (length > bytes.size() - sizeof(length))
                refuse("its header is to have " + std::to_string(length) +
                    " bytes, but the file has " + std::to_string(bytes.size()));
            begin = sizeof(length) + static_cast<std::size_t>(length);

            const auto header = nlohmann::json::parse(bytes.begin() + sizeof(length),
                bytes.begin() + static_cast<std::ptrdiff_t>(begin), nullptr, false);
            if (!header.is_object())
                refuse("its header is not a JSON object");
            for (const auto& item : header.items())
            {
                if (item.key() == "__metadata__")
                    read_metadata(item.value());
                else
                    arrays[item.key()] = read_entry(item.key(), item.value());
            }
        }

        std::string metadata(const std::string& name) const
        /*!
            ensures
                - returns the text of this name in the file's metadata.
        !*/
        {
            const auto found = texts.find(name);
            if (found == texts.end())
                refuse("its metadata has no '" + name + "'");
            return found->second;
        }

        std::vector<std::string> names(const std::string& prefix = "") const
        /*!
            ensures
                - returns the names of all arrays that begin with prefix, sorted.
        !*/
        {
            std::vector<std::string> result;
            for (const auto& item : arrays)
            {
                if (item.first.compare(0, prefix.size(), prefix) == 0)
                    result.push_back(item.first);
            }
            return result;
        }

        const std::vector<std::size_t>& shape(const std::string& name) const
        {
            return find(name).shape;
        }

        template <typename T>
        std::vector<T> numbers(const std::string& name) const
        /*!
            requires
                - T is float, double or std::int32_t
            ensures
                - returns the numbers of this array, the last index running fastest. The file
                  must hold them as T: nothing is converted.
        !*/
        {
            static_assert(std::is_same<T, float>::value || std::is_same<T, double>::value ||
                    std::is_same<T, std::int32_t>::value,
                "float, double or std::int32_t");
            using bits_type = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
            const std::string wanted = std::is_same<T, std::int32_t>::value ? "I32"
                : sizeof(T) == 4                                            ? "F32"
                                                                            : "F64";
            const entry& e = find(name);
            if (e.type != wanted)
                refuse("'" + name + "' has type " + e.type + " instead of " + wanted);

            std::vector<T> values((e.end - e.begin) / sizeof(T));
            for (std::size_t i = 0; i < values.size(); ++i)
            {
                bits_type bits = 0;
                for (std::size_t b = sizeof(T); b-- > 0;)
                    bits = static_cast<bits_type>(
                        bits << 8 | static_cast<unsigned char>(bytes[e.begin + i * sizeof(T) + b]));
                std::memcpy(&values[i], &bits, sizeof(T));
            }
            return values;
        }

        [[noreturn]] void refuse(const std::string& reason) const
        /*!
            ensures
                - throws a dlib::serialization_error: the file can't be used for this reason.
        !*/
        {
            throw dlib::serialization_error("Can't read " + path + ": " + reason + ".");
        }

    private:
        struct entry
        {
            std::string type;
            std::vector<std::size_t> shape;
            std::size_t begin; // in bytes
            std::size_t end;
        };

        const entry& find(const std::string& name) const
        {
            const auto found = arrays.find(name);
            if (found == arrays.end())
                refuse("it has no '" + name + "'");
            return found->second;
        }

        void read_metadata(const nlohmann::json& item)
        {
            if (!item.is_object())
                refuse("its metadata is not a JSON object");
            for (const auto& text : item.items())
            {
                if (!text.value().is_string())
                    refuse("'" + text.key() + "' in its metadata is not a text");
                texts[text.key()] = text.value().get<std::string>();
            }
        }

        static bool is_list_of_sizes(const nlohmann::json& item)
        {
            if (!item.is_array())
                return false;
            for (const auto& value : item)
            {
                if (!value.is_number_unsigned())
                    return false;
            }
            return true;
        }

        entry read_entry(const std::string& name, const nlohmann::json& item) const
        {
            const bool is_complete = item.is_object() && item.contains("dtype") &&
                item["dtype"].is_string() && item.contains("shape") &&
                is_list_of_sizes(item["shape"]) && item.contains("data_offsets") &&
                is_list_of_sizes(item["data_offsets"]) && item["data_offsets"].size() == 2;
            if (!is_complete)
                refuse("the entry '" + name + "' in its header has no type, shape and range");

            entry e;
            e.type = item["dtype"].get<std::string>();
            e.shape = item["shape"].get<std::vector<std::size_t>>();
            e.begin = item["data_offsets"][0].get<std::size_t>();
            e.end = item["data_offsets"][1].get<std::size_t>();
            const std::size_t available = bytes.size() - begin;
            if (e.begin > e.end || e.end > available)
                refuse("the range of '" + name + "', " + std::to_string(e.begin) + " to " +
                    std::to_string(e.end) + ", is not in its " + std::to_string(available) +
                    " bytes of numbers");

            const std::map<std::string, std::size_t> sizes = {{"F64", 8}, {"F32", 4}, {"F16", 2},
                {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}};
            const auto size = sizes.find(e.type);
            if (size == sizes.end())
                refuse("'" + name + "' has the unknown type '" + e.type + "'");
            std::size_t wanted = size->second;
            bool fits = true;
            for (std::size_t d : e.shape)
            {
                fits = fits && (d == 0 || wanted <= bytes.size() / d);
                wanted = fits ? wanted * d : wanted;
            }
            if (!fits || wanted != e.end - e.begin)
                refuse("the shape of '" + name + "' does not fit its " +
                    std::to_string(e.end - e.begin) + " bytes");

            e.begin += begin;
            e.end += begin;
            return e;
        }

        std::string path;
        std::string bytes;
        std::size_t begin = 0; // of the numbers
        std::map<std::string, std::string> texts;
        std::map<std::string, entry> arrays;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_SAFETENSORS_H_
