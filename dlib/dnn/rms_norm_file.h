// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_DNn_RMS_NORM_FILE_H_
#define DLIB_DNn_RMS_NORM_FILE_H_

// Reads the fields of a saved RMS normalization layer. Whatever a file holds, the outcome is
// a value that the layer can have or a serialization_error that names what was found: dlib's
// own deserialize() trusts the sizes in a file, and would allocate what a broken one says.

#include <algorithm>
#include <istream>
#include <sstream>
#include <string>
#include <vector>
#include <dlib/cuda/tensor.h>
#include <dlib/serialize.h>
#include "../cuda/rms_norm_arguments.h"

namespace dlib::contrib
{

    // ----------------------------------------------------------------------------------------

    inline std::string printable(const std::string& bytes)
    /*!
        ensures
            - returns bytes with everything but printable ASCII written as \\x and two digits
    !*/
    {
        const char* const digits = "0123456789abcdef";
        std::string result;
        for (const char c : bytes)
        {
            const auto code = static_cast<unsigned char>(c);
            if (code >= ' ' && code <= '~' && c != '\\')
                result += c;
            else
                result += {'\\', 'x', digits[code / 16], digits[code % 16]};
        }
        return result;
    }

    // ----------------------------------------------------------------------------------------

    class rms_norm_file
    {
    public:
        rms_norm_file(const std::string& class_name_, std::istream& in_) :
            class_name(class_name_),
            in(in_),
            exceptions(in_.exceptions())
        {
            // A stream that throws by itself would throw something else.
            in.exceptions(std::ios::goodbit);
        }

        ~rms_norm_file()
        {
            try
            {
                in.exceptions(exceptions);
            }
            catch (std::ios::failure&)
            {
                // It is set nevertheless, and the serialization_error tells what happened.
            }
        }

        rms_norm_file(const rms_norm_file&) = delete;
        rms_norm_file& operator=(const rms_norm_file&) = delete;

        [[noreturn]] void refuse(const std::string& found) const
        {
            throw serialization_error(
                "Found " + found + " while deserializing dlib::contrib::" + class_name + ".");
        }

        std::string read_tag()
        {
            const unsigned long longest = 64;
            const auto size = read<unsigned long>("version");
            if (size > longest)
                refuse("a version of " + std::to_string(size) + " characters");
            std::string tag(size, ' ');
            if (size != 0 && !in.read(&tag[0], static_cast<std::streamsize>(size)))
                refuse("the end of the file inside the version");
            return tag;
        }

        rms_norm_gain read_gain()
        {
            const int value = read<int>("gain");
            if (value < 0 || value > static_cast<int>(rms_norm_gain::none))
                refuse("gain " + std::to_string(value));
            return static_cast<rms_norm_gain>(value);
        }

        double read_gain_offset() { return read_if(is_valid_rms_norm_gain_offset, "gain_offset"); }

        double read_multiplier(const char* name)
        {
            return read_if(is_valid_rms_norm_multiplier, name);
        }

        double read_eps() { return read_if(is_valid_rms_norm_eps, "eps"); }

        void read_params(rms_norm_axes axes,
            rms_norm_gain gain,
            resizable_tensor& params,
            alias_tensor& gamma)
        /*!
            ensures
                - #params has as many values as #gamma
                - #gamma is empty (the layer was not set up, or has no gain) or has a shape that
                  the layer asks for with some input
        !*/
        {
            read_tensor(params);

            const int version = read<int>("gamma version");
            if (version != 1)
                refuse("gamma of version " + std::to_string(version));
            const rms_norm_dims d = read_dims("gamma");
            const bool fits_some_input = d == rms_norm_gamma_dims(axes, gain, d);
            if (!fits_some_input && d != rms_norm_dims{0, 0, 0, 0})
                refuse("gamma of shape " + to_string(d) + " with " + to_string(gain) + " gain");
            if (static_cast<long long>(params.size()) != d.size())
                refuse("gamma of shape " + to_string(d) + " but " + std::to_string(params.size()) +
                    " parameters");
            gamma = alias_tensor(d.num_samples, d.k, d.nr, d.nc);
        }

    private:
        template <typename T>
        T read(const std::string& what)
        {
            try
            {
                T value;
                deserialize(value, in);
                return value;
            }
            catch (serialization_error& e)
            {
                refuse("no readable " + what + " (" + e.info + ")");
            }
        }

        template <typename is_valid_value>
        double read_if(const is_valid_value& is_valid, const std::string& name)
        {
            const auto value = read<double>(name);
            if (!is_valid(value))
            {
                std::ostringstream sout;
                sout << name << " " << value;
                refuse(sout.str());
            }
            return value;
        }

        rms_norm_dims read_dims(const std::string& what)
        {
            const long long largest = 1LL << 40;

            rms_norm_dims d = {};
            long long size = 1;
            for (long long* dim : {&d.num_samples, &d.k, &d.nr, &d.nc})
            {
                *dim = read<long long>(what + " shape");
                if (*dim < 0 || *dim > largest || (*dim > 0 && size > largest / (*dim)))
                    refuse(what + " with a dimension of " + std::to_string(*dim));
                if (*dim > 0)
                    size *= *dim;
            }
            return d;
        }

        void read_tensor(resizable_tensor& params)
        /*!
            ensures
                - #params == what dlib's serialize(tensor) wrote. Memory grows with what was
                  really read, not with what the file says is coming.
        !*/
        {
            const int version = read<int>("parameters");
            if (version != 2)
                refuse("parameters of version " + std::to_string(version));
            const rms_norm_dims d = read_dims("parameters");

            const byte_orderer bo;
            const auto size = static_cast<std::size_t>(d.size());
            const std::size_t chunk = 1 << 20;
            std::vector<float> values;
            while (values.size() < size)
            {
                const std::size_t begin = values.size();
                const std::size_t count = std::min(chunk, size - begin);
                values.resize(begin + count);
                const auto bytes = static_cast<std::streamsize>(count * sizeof(float));
                if (in.rdbuf()->sgetn(reinterpret_cast<char*>(&values[begin]), bytes) != bytes)
                {
                    in.setstate(std::ios::badbit);
                    refuse("the end of the file inside parameters of shape " + to_string(d));
                }
            }
            for (float& value : values)
                bo.little_to_host(value);

            set_size(params, d);
            std::copy(values.begin(), values.end(), params.begin());
        }

        const std::string class_name;
        std::istream& in;
        const std::ios::iostate exceptions;
    };

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_DNn_RMS_NORM_FILE_H_
