#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Compiles the CUDA code for every architecture it supports and looks at the machine code, which
# needs the CUDA toolkit but no GPU:
#   - no kernel spills registers to memory
#   - the kernels read and write 16 bytes at a time
#   - the tensor layer compiles against the installed dlib's CUDA headers
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
if ! "$nvcc" -std=c++17 -O3 --threads 2 -Xptxas -v -Xcompiler -Wall,-Wextra -Werror all-warnings \
    "${code[@]}" -c dlib/cuda/rms_norm_kernels.cu -o "$build/kernels.o" > "$build/log" 2>&1
then
    cat "$build/log"
    echo "check_cuda_build: FAILED: rms_norm_kernels.cu does not compile"
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

# Every kernel that is built for 16-byte accesses has to have them, loads and stores.
check_vectors()
{
    awk -v load="$2" -v store="$3" -v what="$4" '
        /Function : |\.visible \.entry / {
            name = $NF
            sub(/\($/, "", name)
            # The template arguments of the kernels: vectors is the last but the flags after it.
            vectors = name ~ /normalize_rowsILi[0-9]+ELi[0-9]+ELb1E/ ||
                name ~ /normalize_partsILb1E/ ||
                name ~ /gradient_rowsILi[0-9]+ELi[0-9]+ELb[01]ELb1E/ ||
                name ~ /gradient_run_rowsILb1E/
            if (vectors)
                ++kernels
            loads[name] = stores[name] = 0
            check[name] = check[name] || vectors
            key = name
        }
        $0 ~ load { ++loads[key] }
        $0 ~ store { ++stores[key] }
        END {
            for (name in check)
                if (check[name] && (loads[name] == 0 || stores[name] == 0)) {
                    print "no 16-byte loads or stores: " name
                    bad = 1
                }
            print kernels " " what " kernels with 16-byte accesses"
            exit bad || kernels == 0
        }' "$1" || { echo "check_cuda_build: FAILED: 16-byte accesses"; failed=1; }
}

cuobjdump=${CUOBJDUMP:-cuobjdump}
if command -v "$cuobjdump" >/dev/null
then
    for arch in "${architectures[@]}"
    do
        "$cuobjdump" -sass -arch "sm_$arch" "$build/kernels.o" > "$build/sass"
        check_vectors "$build/sass" 'LDG[.0-9A-Z]*[.]128' 'STG[.0-9A-Z]*[.]128' "sm_$arch"
    done
else
    echo "no cuobjdump: looking at the PTX instead of the machine code"
    "$nvcc" -std=c++17 -O3 -arch "compute_$newest" -ptx dlib/cuda/rms_norm_kernels.cu \
        -o "$build/kernels.ptx"
    check_vectors "$build/kernels.ptx" 'ld[.]global.*[.]v4[.](f32|b32|u32)' \
        'st[.]global.*[.]v4[.](f32|b32|u32)' "PTX"
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
        -DDLIB_USE_CUDA -isystem "$build/include" -isystem "$includes" \
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
