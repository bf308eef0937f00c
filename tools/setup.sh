#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Installs what building and testing needs, and with --tools what the benchmark needs too. Says
# what it installs, and does nothing where everything is there. Without apt it says what is
# needed.

set -eu

packages="
    g++ make cmake git pkg-config clang-format
    libdlib-dev libpng-dev libjpeg-dev zlib1g-dev libsqlite3-dev
    libhwy-dev libopenblas-dev
    libboost-context-dev
    nlohmann-json3-dev
    jargon-text gnuplot-nox
"
[ "${1:-}" != --tools ] || packages="$packages libbenchmark-dev"

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null
then
    cat <<TEXT
This system has no apt, so nothing was installed. These are needed (Debian's package names):
$packages
In words: a C++17 compiler, CMake 3.25 or newer, git, pkg-config, clang-format, dlib 19.24 or
newer with the libraries it was built with (libpng, libjpeg, zlib, SQLite, a BLAS and LAPACK),
Google Highway, nlohmann-json and Boost.Context; for the benchmark Google Benchmark; for pictures
gnuplot; for the demo any text (jargon-text is one).
TEXT
    exit 1
fi

missing=""
for package in $packages
do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
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

echo "Installing:$missing"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
