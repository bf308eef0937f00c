#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Installs what building the library and its examples needs, with --mpi what training on several
# machines needs, with --tests what testing needs too, and with --tools what the benchmark needs as
# well. Says what it installs, and does nothing where everything is there, be it from packages or not.

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)

packages="
    g++ make cmake pkg-config
    libdlib-dev libpng-dev libjpeg-dev zlib1g-dev libsqlite3-dev
    libhwy-dev libopenblas-dev nlohmann-json3-dev
"
extras="jargon-text gnuplot-nox" # the demo's text, pictures
tests=OFF
tools=OFF
case "${1:-}" in
    --tests) tests=ON ;;
    --tools) tests=ON tools=ON ;;
esac
case "${1:-}" in
    --mpi | --tests | --tools) extras="$extras libopenmpi-dev openmpi-bin" ;;
esac
[ $tests = OFF ] || packages="$packages git clang-format libboost-context-dev"
[ $tests = OFF ] || extras="$extras g++-aarch64-linux-gnu qemu-user"
[ $tools = OFF ] || packages="$packages libbenchmark-dev"

is_all_there()
{
    command -v cmake >/dev/null || return 1
    [ $tests = OFF ] || { command -v git && command -v clang-format; } >/dev/null || return 1
    folder=$(mktemp -d)
    result=0
    cmake -S "$top" -B "$folder" -DDLIB_RMS_NORM_BUILD_TESTS=$tests \
        -DDLIB_RMS_NORM_BUILD_TOOLS=$tools >/dev/null 2>&1 || result=1
    rm -rf "$folder"
    return $result
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null
then
    is_all_there && exit 0
    cat <<TEXT
This system has no apt, so nothing was installed, and something is missing: CMake can't configure
the build. These are needed (Debian's package names):
$packages $extras
In words: a C++17 compiler, CMake 3.25 or newer, pkg-config, dlib 19.24 or newer with the libraries
it was built with (libpng, libjpeg, zlib, SQLite, a BLAS and LAPACK), Google Highway and
nlohmann-json; for pictures gnuplot, for the demo any text (jargon-text is one), for several machines Open MPI; for
the tests git,
clang-format, Boost.Context, and for 64-bit ARM a cross compiler and qemu; for the benchmark Google
Benchmark.
TEXT
    exit 1
fi

missing_of()
{
    for package
    do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || printf ' %s' "$package"
    done
}

# Word splitting is meant, here and below.
# shellcheck disable=SC2086
missing=$(missing_of $packages)
[ -z "$missing" ] || ! is_all_there || missing=""
# shellcheck disable=SC2086
missing=$missing$(missing_of $extras)
[ -n "$missing" ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]
then
    if ! command -v sudo >/dev/null
    then
        echo "Not root, and there is no sudo. Please have these packages installed:$missing"
        exit 1
    fi
    sudo=sudo
fi

echo "Installing${sudo:+ with sudo}:$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
