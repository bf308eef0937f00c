#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Compiles the CUDA code for every architecture it supports and looks at the machine code, which
# needs the CUDA toolkit but no GPU:
#   - no kernel spills registers to memory
#   - every kernel for rows reads and writes 16 bytes at a time
#   - no kernel waits for each load by itself: loads of several values come before the store of
#     the first
#   - no operation is fused but where the source says fma()
#   - the tensor layer compiles against the installed dlib's CUDA headers
# Prints a table of the kernels, which docs/cuda_kernels.txt holds too.
#
# usage: tools/check_cuda_build.sh [ARCHITECTURE...]      such as 80 90

set -euo pipefail

cd "$(dirname "$0")/.."
nvcc=${NVCC:-nvcc}
architectures=("$@")
if [ ${#architectures[@]} -eq 0 ]
then
    architectures=(75 80 86 89 90 100 120)
fi

if ! command -v "$nvcc" >/dev/null
then
    echo "check_cuda_build: skipped: no nvcc"
    exit 0
fi

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
failed=0

# ------------------------------------------------------------------------------------------

# One code for each architecture, and the code that later ones compile it from.
code=()
for arch in "${architectures[@]}"
do
    code+=(-gencode "arch=compute_$arch,code=sm_$arch")
done
newest=${architectures[-1]}
code+=(-gencode "arch=compute_$newest,code=compute_$newest")

echo "check_cuda_build: compiling for ${architectures[*]}"
source=dlib/cuda/rms_norm_launch.cu
flags=(-std=c++17 -O3 --fmad=false -I.)
if ! "$nvcc" "${flags[@]}" --threads 2 -Xptxas -v -Xcompiler -Wall,-Wextra -Werror all-warnings \
    "${code[@]}" -c "$source" -o "$build/kernels.o" > "$build/log" 2>&1
then
    cat "$build/log"
    echo "check_cuda_build: FAILED: $source does not compile"
    exit 1
fi

# ptxas names the kernel in one line and tells in a later one what it spills.
c++filt < "$build/log" | awk -v wanted="${#architectures[@]}" '
    /Compiling entry function/ {
        match($0, /'\''.*'\'' for '\''sm_[0-9a-z]+'\''/)
        kernel = substr($0, RSTART, RLENGTH)
        arch = kernel
        sub(/.* for /, "", arch)
        seen[arch] = 1
        ++kernels
    }
    /bytes stack frame/ {
        match($0, /[0-9]+ bytes stack frame/)
        stack = substr($0, RSTART, RLENGTH) + 0
        match($0, /[0-9]+ bytes spill stores/)
        stores = substr($0, RSTART, RLENGTH) + 0
        match($0, /[0-9]+ bytes spill loads/)
        loads = substr($0, RSTART, RLENGTH) + 0
        ++reports
        if (stack + stores + loads > 0) {
            print "spills: " kernel ": stack " stack ", stores " stores ", loads " loads " bytes"
            bad = 1
        }
    }
    END {
        archs = 0
        for (a in seen)
            ++archs
        print kernels " kernels compiled for " archs " architectures"
        if (kernels == 0 || reports < kernels || archs != wanted) {
            print "ptxas reported on " reports + 0 " kernels, " archs " of " wanted " architectures"
            bad = 1
        }
        exit bad
    }' || { echo "check_cuda_build: FAILED: registers"; failed=1; }

# ------------------------------------------------------------------------------------------

# Prints the loads and stores of each kernel in the order of the code, and what else is counted:
#   kernel: Q4 L16 T4 S16 ...   double operations, fused float operations
# Q and T are loads and stores of 16 bytes, L and S smaller ones.
accesses()
{
    c++filt < "$1" | awk '
        function flush() { if (last != "") printf " %s%d", last, n; last = ""; n = 0 }
        function finish() { if (kernel != "") { flush(); print " | " doubles + 0 " " fused + 0 } }
        /Function : |[.]visible [.]entry / {
            finish()
            kernel = $0
            sub(/[(][^()]*$/, "", kernel)
            sub(/.*cuda::/, "", kernel)
            sub(/[(].*/, "", kernel)
            gsub(/ /, "", kernel)
            printf "%s", kernel
            doubles = fused = 0
        }
        {
            what = ""
            if (/LDG[.A-Z]*[.]128|ld[.]global[.a-z]*[.]v4/) what = "Q"
            else if (/LDG|ld[.]global/) what = "L"
            else if (/STG[.A-Z]*[.]128|st[.]global[.a-z]*[.]v4/) what = "T"
            else if (/STG|st[.]global/) what = "S"
            else if (/BAR[.]SYNC|bar[.]sync|barrier[.]sync/) what = "B"
            if (/ (DADD|DMUL|DFMA|F2F[.]F64[.]F32)/) ++doubles
            if (/ FFMA/) ++fused
            if (what == "") next
            if (what != last) flush()
            last = what
            ++n
        }
        END { finish() }'
}

check_accesses()
{
    accesses "$1" > "$build/accesses"
    awk -v what="$2" '
        {
            split($0, halves, " [|] ")
            ++kernels
            by_rows = $1 ~ /^(normalize|gradient)_(rows|run_rows|parts)/
            if (by_rows && !(halves[1] ~ / Q/ && halves[1] ~ / T/)) {
                print "no 16-byte loads or stores: " $0
                bad = 1
            }
            if (halves[1] ~ /([QL]1 [TS]1 ){3}/) {
                print "loads that wait for each other: " $0
                bad = 1
            }
            split(halves[2], counts, " ")
            if (counts[2] > 0) {
                print "fused float operations: " $0
                bad = 1
            }
        }
        END {
            print kernels " kernels of " what
            exit bad || kernels == 0
        }' "$build/accesses" || { echo "check_cuda_build: FAILED: accesses of $2"; failed=1; }
}

cuobjdump=${CUOBJDUMP:-cuobjdump}
if command -v "$cuobjdump" >/dev/null
then
    for arch in "${architectures[@]}"
    do
        "$cuobjdump" -sass -arch "sm_$arch" "$build/kernels.o" > "$build/code"
        check_accesses "$build/code" "sm_$arch"
    done
else
    echo "no cuobjdump: looking at the PTX instead of the machine code"
    "$nvcc" "${flags[@]}" -arch "compute_$newest" -ptx "$source" -o "$build/code"
    check_accesses "$build/code" PTX
fi

# ------------------------------------------------------------------------------------------

# dlib's headers as they are when dlib was built with CUDA. Only the syntax: Debian's library
# itself has no CUDA.
cxx=${CXX:-g++}
includes=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc")")")")/include
missing=
for header in cuda_runtime_api.h cudnn.h
do
    if [ ! -e "$includes/$header" ] && [ ! -e "/usr/include/$header" ]
    then
        missing="$missing $header"
    fi
done
dlib_headers=${DLIB_INCLUDE_DIR:-/usr/include}
if [ ! -e "$dlib_headers/dlib/cuda/tensor.h" ]
then
    missing="$missing dlib/cuda/tensor.h"
fi

if [ -n "$missing" ]
then
    echo "tensor layer: skipped: no$missing"
else
    # System headers, so that -Werror is about our own.
    mkdir -p "$build/include"
    ln -s "$dlib_headers/dlib" "$build/include/dlib"
    if "$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only \
        -DDLIB_USE_CUDA -isystem "$build/include" -isystem "$includes" -I. \
        dlib/cuda/rms_norm_cuda.cpp
    then
        echo "tensor layer compiles against $dlib_headers/dlib"
    else
        echo "check_cuda_build: FAILED: rms_norm_cuda.cpp"
        failed=1
    fi
fi

# ------------------------------------------------------------------------------------------

if [ $failed -ne 0 ]
then
    exit 1
fi
echo "check_cuda_build: passed"
