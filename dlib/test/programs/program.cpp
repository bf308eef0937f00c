// License: Boost Software License   See LICENSE.txt for the full license.

// A user's program, which is compiled with whatever flags a user may have. It prints a hash of
// outputs and gradients, which no flag may change, and checks what flags can break: the refusal of
// numbers that are not finite, and an exception that leaves a shared library.

#include <cstdint>
#include <iostream>
#include <limits>
#include <sstream>
#include <dlib/md5.h>
#include <dlib/rms_norm.h>

namespace
{

    using namespace dlib;
    using dlib::contrib::rms_norm_axes;

    resizable_tensor values(long long n, long long k, long long nr, long long nc)
    {
        static std::uint64_t state = 1;
        resizable_tensor t(n, k, nr, nc);
        for (float& v : t)
        {
            state = state * 6364136223846793005u + 1442695040888963407u;
            v = static_cast<float>(static_cast<int>(state >> 40) - (1 << 23)) / (1 << 22);
        }
        return t;
    }

    void add(std::string& bytes, const tensor& t)
    {
        bytes.append(reinterpret_cast<const char*>(t.host()), t.size() * sizeof(float));
    }

    std::string hash()
    {
        std::string bytes;
        for (rms_norm_axes axes :
            {rms_norm_axes::sample, rms_norm_axes::row, rms_norm_axes::channel})
        {
            const auto x = values(5, 6, 7, 67), d = values(5, 6, 7, 67);
            const auto gamma = axes == rms_norm_axes::row ? values(1, 1, 1, 67)
                                                          : values(1, 6, 1, 1);
            resizable_tensor y, scale, dx = values(5, 6, 7, 67), dgamma, dscale;
            dgamma.copy_size(gamma);
            contrib::tt::rms_normalize(axes, 0.5, 1e-5, y, scale, x, gamma);
            contrib::tt::rms_normalize_gradient(axes, 0.5, d, scale, x, gamma, dx, dgamma, dscale);
            for (const tensor* t : {&y, &scale, &dx, &dgamma, &dscale})
                add(bytes, *t);
        }
        return md5(bytes);
    }

    bool refuses_multiplier(std::int16_t kind)
    /*!
        requires
            - kind is one of the numbers that dlib writes in place of the exponent of a number that
              is not finite
    !*/
    {
        std::ostringstream sout;
        serialize(std::string("rms_norm_"), sout);
        serialize(resizable_tensor(), sout);
        serialize(alias_tensor(), sout);
        serialize(std::int64_t(0), sout);
        serialize(kind, sout);
        for (int i = 0; i < 4; ++i)
            serialize(1.0, sout);
        std::istringstream sin(sout.str());
        try
        {
            contrib::rms_norm_ layer;
            deserialize(layer, sin);
            return false;
        }
        catch (serialization_error& e)
        {
            return e.info.find("learning_rate_multiplier") != std::string::npos;
        }
    }

    bool throws_a_fatal_error()
    {
        try
        {
            resizable_tensor y, scale;
            contrib::tt::rms_normalize(std::numeric_limits<double>::quiet_NaN(), y, scale,
                values(1, 2, 3, 4), values(1, 2, 1, 1));
            return false;
        }
        catch (fatal_error&)
        {
            return true;
        }
    }

}

int main()
{
    for (std::int16_t kind : {float_details::is_inf, float_details::is_ninf, float_details::is_nan})
    {
        if (!refuses_multiplier(kind))
            std::cout << "a multiplier of kind " << kind << " was read" << std::endl;
    }
    if (!throws_a_fatal_error())
        std::cout << "an eps of NaN was taken" << std::endl;
    std::cout << hash() << std::endl;
}
