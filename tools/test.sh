#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Runs every test: sets up, checks the formatting, builds and runs dtest as a release and with
# AddressSanitizer and UndefinedBehaviorSanitizer, uses the library the ways that users do, runs a
# part of dtest on an emulated ARM processor, interrupts and resumes the example, trains over MPI,
# shows that the benchmark works, and compiles the CUDA code for every architecture where there is a
# CUDA toolkit.

set -eu
cd "$(dirname "$0")/.."
tools/setup.sh --tools

echo "== formatting"
git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' ':!*_abstract.h' |
    xargs -0 clang-format --dry-run --Werror

build()
{
    echo "== $1: build"
    cmake --preset "$1" -DDLIB_RMS_NORM_BUILD_TESTS=ON >/dev/null
    cmake --build --preset "$1" -j2
}

# Starts what runs beside the rest, which keeps two processors busy in parts only.
beside() # NAME COMMAND...
{
    name=$1
    shift
    "$@" >"build/$name.log" 2>&1 &
    started="$started $name=$!"
}

started=
trap 'for job in $started; do kill "${job#*=}" 2>/dev/null || true; done' EXIT

build sanitize
beside dtest_sanitize build/sanitize/dlib/test/dtest -q --runall

build release
beside dtest_release build/release/dlib/test/dtest -q --runall
# Builds with users' flags, in users' projects.
beside test_builds tools/test_builds.sh build/release

echo "== dtest as a project of its own: configure"
cmake -S dlib/test -B build/dtest >/dev/null

echo "== installed library, used from outside"
tools/test_install.sh build/release

echo "== 64-bit ARM"
tools/test_arm.sh build/release

echo "== the Transformer example"
tools/test_transformer.sh build/release/examples/dnn_transformer_ex

echo "== training over MPI"
tools/test_mpi.sh build/release

echo "== what tools/compare_norms.sh builds: compiles"
# shellcheck disable=SC2046
c++ -std=c++17 -fsyntax-only -Ibuild/release/include -I. $(pkg-config --cflags dlib-1) \
    tools/transformer_norms.cpp

echo "== benchmark"
tools/benchmark.sh --quick --build build/release

echo "== CUDA code"
tools/check_cuda_build.sh
faults=$(dlib/test/cuda_on_cpu/seed_faults.sh --list)
echo "$(echo "$faults" | wc -l) faults fit the kernels (seed_faults.sh)"

for job in $started
do
    name=${job%=*}
    echo "== $name"
    wait "${job#*=}" || { cat "build/$name.log"; exit 1; }
    cat "build/$name.log"
done
