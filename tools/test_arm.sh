#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Builds dtest for 64-bit ARM and runs a part of it with an emulated processor (qemu-user). What it
# computes has to be the same bits as here. Debian's packages for ARM are unpacked into a folder of
# the build; nothing is installed.
#
# usage: tools/test_arm.sh BUILD_FOLDER      one with the release preset, already built

set -euo pipefail
here=$(cd "$1" && pwd)
repository=$(cd "$(dirname "$0")/.." && pwd)
root=$here/arm/root
build=$here/arm/build

skip()
{
    echo "test_arm: skipped: $1"
    exit 0
}

for command in apt-get dpkg-deb aarch64-linux-gnu-g++ qemu-aarch64
do
    command -v "$command" >/dev/null ||
        skip "no $command (Debian's g++-aarch64-linux-gnu and qemu-user)"
done

# ------------------------------------------------------------------------------------------

# A small apt of its own, which knows ARM only: the system is left alone.
packages="libdlib-dev libdlib19.1 libhwy-dev libhwy1 libboost1.74-dev libboost-context1.74-dev
    libboost-context1.74.0 libpng-dev libpng16-16 zlib1g zlib1g-dev libjpeg62-turbo
    libjpeg62-turbo-dev libsqlite3-0 libsqlite3-dev libblas3 libblas-dev liblapack3 liblapack-dev
    libgfortran5"

get_packages()
{
    mkdir -p "$here/arm/apt/lists/partial" "$here/arm/apt/archives/partial" "$here/arm/packages"
    : >"$here/arm/apt/status"
    local options=(-q -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64
        -o Dir::State="$here/arm/apt" -o Dir::State::status="$here/arm/apt/status"
        -o Dir::Cache="$here/arm/apt" -o APT::Sandbox::User=root -o Debug::NoLocking=1
        -o Acquire::Languages=none)
    apt-get "${options[@]}" update || return 1
    # Word splitting is meant.
    # shellcheck disable=SC2086
    (cd "$here/arm/packages" && apt-get "${options[@]}" download $packages) || return 1
    for package in "$here/arm/packages"/*.deb
    do
        dpkg-deb -x "$package" "$root" || return 1
    done
    # Some files name the libraries as alternatives that are not set up in an unpacked package.
    local lib=$root/usr/lib/aarch64-linux-gnu
    ln -sf blas/libblas.so.3 "$lib/libblas.so"
    ln -sf blas/libblas.so.3 "$lib/libblas.so.3"
    ln -sf lapack/liblapack.so.3 "$lib/liblapack.so"
    ln -sf lapack/liblapack.so.3 "$lib/liblapack.so.3"
    ln -sf "$root"/lib/aarch64-linux-gnu/libz.so.1 "$lib/libz.so"
}

if [ ! -e "$root/complete" ]
then
    rm -rf "$here/arm"
    mkdir -p "$root"
    get_packages >"$here/arm/log" 2>&1 || { tail -3 "$here/arm/log"; skip "no packages for ARM"; }
    # dlib's package names its libraries with their whole path.
    sed -i "s|/usr/lib/aarch64|$root&|g; s|/usr/include|$root&|g" \
        "$root"/usr/lib/aarch64-linux-gnu/cmake/dlib/*.cmake
    touch "$root/complete"
fi

# ------------------------------------------------------------------------------------------

cat >"$here/arm/toolchain.cmake" <<TEXT
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_PREFIX_PATH $root/usr)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu)
TEXT
cmake -S "$repository" -B "$build" -DCMAKE_TOOLCHAIN_FILE="$here/arm/toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF \
    -DDLIB_RMS_NORM_WARNINGS_AS_ERRORS=ON >/dev/null
cmake --build "$build" -j2 --target dtest_numbers >"$here/arm/log" 2>&1 ||
    { cat "$here/arm/log"; exit 1; }

on_arm()
{
    qemu-aarch64 -L /usr/aarch64-linux-gnu \
        -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu" \
        "$build/dlib/test/dtest_numbers" -q "$@"
}

# qemu runs two threads at once, too
export DLIB_NUM_THREADS=2
hash_here=$("$here/dlib/test/dtest" -q --print_rms_norm_hash cpu | grep ^hash)
hash_on_arm=$(on_arm --print_rms_norm_hash cpu | grep ^hash)
if [ "$hash_here" != "$hash_on_arm" ]
then
    echo "test_arm: FAILED: here $hash_here, on ARM $hash_on_arm"
    exit 1
fi
echo "test_arm: $hash_on_arm, as here"
on_arm --rms_norm_formula
echo "test_arm: passed"
