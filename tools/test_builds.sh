#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Builds a small program the ways that users build theirs, with flags of theirs, and checks that
# each of them works and gives the same bits.
#
# usage: tools/test_builds.sh BUILD_FOLDER      one with the release preset, already built

set -euo pipefail
build=$(cd "$1" && pwd)
repository=$(cd "$(dirname "$0")/.." && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"

fail()
{
    echo "test_builds: FAILED: $1"
    exit 1
}

quietly()
{
    "$@" >log 2>&1 || { cat log; fail "$*"; }
}

program() # FOLDER WAY OPTIONS...
{
    local folder=$1 way=$2
    shift 2
    quietly cmake -S "$repository/dlib/test/programs" -B "$folder" -DWAY="$way" \
        -DREPOSITORY="$repository" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
    quietly cmake --build "$folder" -j2
}

same_bits() # PROGRAM WHAT
{
    local found
    found=$("$1") || fail "$2: the program ended with $?"
    [ "$found" = "$expected" ] || fail "$2: $found instead of $expected"
    echo "test_builds: $2: same bits"
}

optimized() # FOLDER WHAT
{
    # the last -O counts
    grep -E '"command":.* -c .*/dlib/cuda/' "$1/compile_commands.json" >commands
    [ "$(wc -l <commands)" -ge 3 ] || fail "$2: where are the library's sources?"
    ! sed -E 's/.* -(O[0-9sgfast]*) .*/\1/' commands | grep -v '^O3$' ||
        fail "$2: the library is not optimized"
    ! grep -v -E 'fno-fast-math -ffp-contract=off' commands || fail "$2: flags"
}

# One instruction set is enough for most, and sooner compiled.
one=-DHWY_COMPILE_ONLY_STATIC

cpu=x86-64-v3
if grep -q avx512vl /proc/cpuinfo
then
    cpu=x86-64-v4
fi

# ------------------------------------------------------------------------------------------

quietly cmake --install "$build" --prefix "$temporary/release"
program package package -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$temporary/release"
expected=$(package/program)
[[ $expected =~ ^[0-9a-f]{32}$ ]] || fail "$expected"
echo "test_builds: package: $expected"

# Everything that a user may do to the bits, in a project without a build type.
program fetch fetch -DCMAKE_CXX_STANDARD=20 -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON \
    -DCMAKE_CXX_FLAGS="-march=$cpu -Ofast -ffast-math -D_GLIBCXX_ASSERTIONS -fvisibility=hidden $one"
same_bits fetch/program "fetched, -Ofast, $cpu, C++20, LTO, unity"
optimized fetch "no build type"
quietly cmake --install fetch --prefix "$temporary/nothing"
[ ! -e "$temporary/nothing" ] || fail "a subproject installs files that nobody asked for"

# Highway does not compile with this -march by itself. Few machines can run it.
program sapphirerapids fetch -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS="-march=sapphirerapids -ffast-math"
echo "test_builds: sapphirerapids: builds"
if grep -q avx512_fp16 /proc/cpuinfo
then
    same_bits sapphirerapids/program sapphirerapids
fi

# ------------------------------------------------------------------------------------------

# A shared library, without the best instruction sets, debugged, in an absolute folder.
lib=$temporary/shared/anywhere/lib
quietly cmake -S "$repository" -B shared_build -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_STANDARD=23 -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DCMAKE_CXX_FLAGS="-march=native '-DHWY_DISABLED_TARGETS=(HWY_AVX3|HWY_AVX2)'" \
    -DDLIB_RMS_NORM_BUILD_TESTS=OFF -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF \
    -DCMAKE_INSTALL_PREFIX="$temporary/shared" -DCMAKE_INSTALL_LIBDIR="$lib"
quietly cmake --build shared_build -j2
quietly cmake --install shared_build
optimized shared_build "Debug"
# Not into a pipe: nm fails where grep has seen enough.
nm -C shared_build/libdlib_rms_norm.so >symbols
grep -q '::N_SSE4::' symbols || fail "no SSE4"
for target in AVX3 AVX2
do
    ! grep -q "::N_$target::" symbols ||
        fail "HWY_DISABLED_TARGETS: $target was compiled"
done
readelf -d "$lib/libdlib_rms_norm.so" | grep 'soname: \[libdlib_rms_norm.so.[0-9]' >/dev/null ||
    fail "no SONAME with a version"
nm -DC --defined-only "$lib/libdlib_rms_norm.so" | grep ' T ' >shown
! grep -v -E 'dlib::contrib::(cpu|cuda|tt)::rms_normalize(_gradient|_sum)?\(' shown ||
    fail "internal symbols are shown"
[ "$(wc -l <shown)" -ge 4 ] || fail "public symbols are hidden"
program shared_program package -DCMAKE_PREFIX_PATH="$lib/cmake" -DCMAKE_CXX_STANDARD=23 \
    -DCMAKE_CXX_FLAGS="-fvisibility=hidden"
same_bits shared_program/program "shared library, Debug, C++23, Highway's targets disabled"

for prefix in release shared
do
    PKG_CONFIG_PATH=$(dirname "$(find "$temporary/$prefix" -name dlib_rms_norm.pc)")
    export PKG_CONFIG_PATH
    read -ra flags <<<"$(pkg-config --cflags --libs dlib_rms_norm)"
    [[ ${flags[*]} != *-std* ]] || fail "pkg-config: ${flags[*]}"
    [[ $prefix = release || ${flags[*]} != *hwy* ]] || fail "pkg-config, shared: ${flags[*]}"
    quietly c++ -std=c++20 "$repository/dlib/test/programs/program.cpp" -o "$prefix/program" \
        "${flags[@]}" -Wl,-rpath,"$lib"
    same_bits "$prefix/program" "pkg-config, $prefix"
done

# ------------------------------------------------------------------------------------------

# Another dlib: enough of one for CMake to look at.
mkdir -p other/include/dlib/dnn other/include/dlib/cuda other/lib/cmake/dlib
echo "class rms_norm_" >other/include/dlib/dnn/layers.h
cat >other/lib/cmake/dlib/dlibConfig.cmake <<TEXT
add_library(dlib::dlib INTERFACE IMPORTED)
set_target_properties(dlib::dlib PROPERTIES INTERFACE_INCLUDE_DIRECTORIES $temporary/other/include)
TEXT
cat >other/lib/cmake/dlib/dlibConfigVersion.cmake <<TEXT
set(PACKAGE_VERSION 20.1.0)
set(PACKAGE_VERSION_COMPATIBLE TRUE)
TEXT
config=shared_build/include/dlib/rms_norm_config.h
grep -q 'MAJOR_VERSION != 20 .*MINOR_VERSION != 1' "$config" && fail "the test is wrong"
quietly cmake -S "$repository" -B shared_build -Ddlib_DIR="$temporary/other/lib/cmake/dlib"
grep -q 'MAJOR_VERSION != 20 .*MINOR_VERSION != 1' "$config" ||
    fail "another dlib_DIR keeps the old answer"
grep -q '#define DLIB_RMS_NORM_DLIB_HAS_ITS_OWN' "$config" ||
    fail "another dlib_DIR keeps the old headers"
echo "test_builds: configured again with another dlib"

if cmake -S "$repository/dlib/test/programs" -B mismatch -DWAY=package \
    -DCMAKE_PREFIX_PATH="$temporary/release" -Ddlib_DIR="$temporary/other/lib/cmake/dlib" >log 2>&1
then
    fail "the package takes another dlib"
fi
tr -s ' \n' ' ' <log | grep -o 'dlib_rms_norm in [^:]* was built for dlib .*: set dlib_DIR[^.]*\.' ||
    { cat log; fail "the package does not say what is wrong with the dlib"; }

if command -v nvcc >/dev/null
then
    echo "#define DLIB_USE_CUDA" >other/include/dlib/config.h
    quietly cmake -S "$repository" -B with_cuda -Ddlib_DIR="$temporary/other/lib/cmake/dlib" \
        -DDLIB_RMS_NORM_BUILD_TESTS=OFF -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF
    grep '^Libs:.*libcudart.*libcublas' with_cuda/dlib_rms_norm.pc >/dev/null ||
        { cat with_cuda/dlib_rms_norm.pc; fail "the .pc file lacks what a dlib with CUDA needs"; }
    echo "test_builds: configured for a dlib with CUDA"
else
    echo "test_builds: skipped: a dlib with CUDA: no nvcc"
fi

# The headers, for those who do not use CMake.
mkdir -p wrong/dlib
cat >wrong/dlib/revision.h <<TEXT
#define DLIB_MAJOR_VERSION 1
#define DLIB_MINOR_VERSION 2
TEXT
if c++ -fsyntax-only -Iwrong -Irelease/include "$repository/dlib/test/programs/program.cpp" 2>log
then
    fail "the headers take another dlib"
fi
grep -q 'error: #error dlib_rms_norm was built for dlib' log || { cat log; fail "no clear message"; }

# A dlib that is part of the project. Its headers are Debian's, under another name.
mkdir own_dlib
ln -s "$(dirname "$(find -L /usr/include /usr/local/include -path '*/dlib/algs.h' -print -quit)")" \
    own_dlib/dlib
program own own_dlib -DOWN_DLIB="$temporary/own_dlib" -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS="$one" \
    -DCMAKE_CXX_STANDARD_LIBRARIES="$(pkg-config --libs dlib-1)"
grep -q -- "-I$temporary/own_dlib\|-isystem $temporary/own_dlib" own/compile_commands.json ||
    fail "the project's own dlib is not used"
same_bits own/program "dlib in the same project"
optimized own "Debug subproject"

echo "test_builds: passed"
