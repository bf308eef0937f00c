#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Installs a build folder into a temporary place and builds and runs a tiny outside project
# against it, once with CMake's find_package and once with pkg-config.

set -eu
build=$(cd "$1" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

cmake --install "$build" --prefix "$temporary/installed" >/dev/null

mkdir "$temporary/outside"
cat >"$temporary/outside/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
find_package(dlib_rms_norm REQUIRED)
add_executable(outside outside.cpp)
target_link_libraries(outside dlib::rms_norm)
TEXT
cat >"$temporary/outside/outside.cpp" <<'TEXT'
#include <cmath>
#include <iostream>
#include <dlib/rms_norm.h>

int main()
{
    dlib::resizable_tensor x(1, 4), gamma(1, 4), y, scale;
    for (int i = 0; i < 4; ++i)
        x.host()[i] = gamma.host()[i] = static_cast<float>(i + 1);
    dlib::contrib::tt::rms_normalize(1e-5, y, scale, x, gamma);
    const bool right = std::abs(y.host()[3] - 5.842370052) < 1e-6;
    std::cout << y.host()[3] << (right ? " is right\n" : " is wrong\n");
    return right ? 0 : 1;
}
TEXT

cmake -S "$temporary/outside" -B "$temporary/outside/build" \
    -DCMAKE_PREFIX_PATH="$temporary/installed" >/dev/null
cmake --build "$temporary/outside/build" >/dev/null
"$temporary/outside/build/outside"

PKG_CONFIG_PATH=$(dirname "$(find "$temporary/installed" -name dlib_rms_norm.pc)")
export PKG_CONFIG_PATH
# Word splitting is meant: pkg-config prints several flags.
# shellcheck disable=SC2046
c++ "$temporary/outside/outside.cpp" -o "$temporary/outside/with_pkg_config" \
    $(pkg-config --cflags --libs dlib_rms_norm)
"$temporary/outside/with_pkg_config"
