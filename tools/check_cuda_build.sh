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
#   - no kernel is launched with more threads than its launch bounds say, and each is launched
#   - the tensor layer compiles against the installed dlib's CUDA headers
# and prints a table of the kernels: what a multiprocessor has in flight before the first store, and
# how many double operations a value takes. docs/cuda_kernels.txt has to be that table, where this is
# the compiler that it names.
#
# usage: tools/check_cuda_build.sh [ARCHITECTURE...]      such as 80 90
#        tools/check_cuda_build.sh --table                writes docs/cuda_kernels.txt

set -euo pipefail

cd "$(dirname "$0")/.."
nvcc=${NVCC:-nvcc}
write_table=0
if [ "${1:-}" = --table ]
then
    write_table=1
    shift
fi
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

# For awk: the name of the kernel in a demangled line.
name_of='
    function name_of(text) {
        sub(/[(].*/, "", text)
        sub(/.*cuda::/, "", text)
        gsub(/[ \047]/, "", text)
        return text
    }'

# KERNEL THREADS, as the launch bounds say: the same for every architecture.
"$nvcc" "${flags[@]}" -arch "compute_$newest" -ptx "$source" -o "$build/bounds.ptx"
c++filt < "$build/bounds.ptx" | awk "$name_of"'
    /[.]entry/ { kernel = name_of($0) }
    /[.]maxntid/ { split($2, n, ","); print kernel, n[1] + 0 }' > "$build/bounds"

cxx=${CXX:-g++}
simulator=dlib/test/cuda_on_cpu
if ! echo '#include <boost/context/detail/fcontext.hpp>' | "$cxx" -E -x c++ - > /dev/null 2>&1
then
    echo "launch bounds: skipped: no Boost.Context"
elif ! "$cxx" -std=c++17 -O1 -w -rdynamic -I "$simulator/fake" "$simulator/print_launches.cpp" \
    "$simulator/kernels_on_cpu.cpp" "$simulator/cuda_on_cpu.cpp" -lboost_context -ldl \
    -o "$build/print_launches"
then
    echo "check_cuda_build: FAILED: print_launches.cpp does not compile"
    failed=1
else
    "$build/print_launches" > "$build/launches"
    awk '
        FILENAME ~ /bounds$/ { bounds[$1] = $2 }
        FILENAME ~ /launches$/ { launched[$1] = 1 }
        FILENAME ~ /launches$/ && !($1 in bounds) { print "no launch bounds: " $1; bad = 1 }
        FILENAME ~ /launches$/ && $2 > bounds[$1] {
            print $1 " is launched with " $2 " threads, its bound is " bounds[$1]
            bad = 1
        }
        END {
            for (kernel in bounds) {
                ++kernels
                if (!(kernel in launched)) { print "never launched: " kernel; bad = 1 }
            }
            print kernels " kernels keep to their launch bounds"
            exit bad || kernels == 0
        }' "$build/bounds" "$build/launches" || { echo "check_cuda_build: FAILED: launch bounds"; failed=1; }
fi

# ------------------------------------------------------------------------------------------

# Prints the loads and stores of each kernel in the order of the code, and what else is counted:
#   kernel: Q4 L16 T4 S16 ...   double operations, fused float operations
# Q and T are loads and stores of 16 bytes, L and S smaller ones.
accesses()
{
    c++filt < "$1" | awk "$name_of"'
        function flush() { if (last != "") printf " %s%d", last, n; last = ""; n = 0 }
        function finish() { if (kernel != "") { flush(); print " | " doubles + 0 " " fused + 0 } }
        /Function : |[.]visible [.]entry / {
            finish()
            kernel = name_of($0)
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
            # mawk has no {3}
            if (halves[1] ~ /[QL]1 [TS]1 [QL]1 [TS]1 [QL]1 [TS]1 /) {
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

# Reads the log of ptxas, PTX with the launch bounds, and the accesses of one architecture.
print_table()
{
    local arch=$1 device=$2
    echo
    echo "$device: blocks of a multiprocessor by registers and threads; bytes in flight there, loaded"
    echo "before the first store; double operations in the code, and for each value a thread keeps"
    echo
    c++filt < "$build/log" > "$build/registers"
    awk -v arch="sm_$arch" "$name_of"'
        FILENAME ~ /registers$/ && /Compiling entry function/ {
            wanted = index($0, "\047" arch "\047") > 0
            kernel = name_of($0)
        }
        FILENAME ~ /registers$/ && wanted && /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            registers[kernel] = substr($0, RSTART + 5, RLENGTH - 5) + 0
        }
        FILENAME ~ /bounds$/ { threads[$1] = $2 }
        FILENAME ~ /accesses$/ {
            split($0, halves, " [|] ")
            split(halves[2], counts, " ")
            count = split(halves[1], words, " ")
            # A branch for quads and one for single values: the quads count, where there are any.
            quads = halves[1] ~ / Q/
            bytes = 0
            for (i = 2; i <= count && words[i] !~ /^[TS]/; ++i) {
                if (words[i] ~ /^Q/) bytes += 16 * substr(words[i], 2)
                else if (words[i] ~ /^L/ && !quads) bytes += 4 * substr(words[i], 2)
            }
            kernel = words[1]
            per_warp = int((registers[kernel] * 32 + 255) / 256) * 256
            warps = threads[kernel] / 32
            blocks = int(65536 / (per_warp * warps))
            if (blocks * threads[kernel] > 2048) blocks = int(2048 / threads[kernel])
            # Sums in shared memory leave room for one block.
            if (kernel ~ /,true,/) blocks = 1
            values = 0
            if (match(kernel, /_rows<[0-9]+/))
                values = 4 * substr(kernel, RSTART + 6, RLENGTH - 6)
            else if (match(kernel, /_columns<[0-9]+/))
                values = substr(kernel, RSTART + 9, RLENGTH - 9) + 0
            else if (kernel == "gradient_run_rows")
                values = 16
            printf "%-34s %9d %7d %6d %9.0f %8d %9s\n", kernel, registers[kernel],
                threads[kernel], blocks, bytes * threads[kernel] * blocks / 1024, counts[1],
                values ? sprintf("%.1f", counts[1] / values) : "-" | "sort"
        }
        BEGIN {
            printf "%-34s %9s %7s %6s %9s %8s %9s\n", "kernel", "registers", "threads", "blocks",
                "KiB", "doubles", "per value"
            fflush()
        }' "$build/registers" "$build/bounds" "$build/accesses"
    echo
}

cuobjdump=${CUOBJDUMP:-cuobjdump}
if command -v "$cuobjdump" >/dev/null
then
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    echo "What the CUDA compiler makes of the kernels, printed by tools/check_cuda_build.sh (CUDA $version)." \
        > "$build/table"
    for arch in "${architectures[@]}"
    do
        "$cuobjdump" -sass -arch "sm_$arch" "$build/kernels.o" > "$build/code"
        check_accesses "$build/code" "sm_$arch"
        case $arch in
            89) print_table 89 "L4, RTX 40 (sm_89)" >> "$build/table" ;;
            90) print_table 90 "H100, H200 (sm_90)" >> "$build/table" ;;
        esac
    done
    echo "4.3 TB/s on 132 multiprocessors with a latency of 1.2 microseconds need 40 KB in flight in each." \
        >> "$build/table"
    cat "$build/table"
    table=docs/cuda_kernels.txt
    if [ $write_table = 1 ]
    then
        cp "$build/table" "$table"
    elif [ $# = 0 ] && [ "$(head -n 1 "$build/table")" = "$(head -n 1 "$table")" ] &&
        ! diff "$table" "$build/table"
    then
        echo "check_cuda_build: FAILED: $table is another table, --table writes it"
        failed=1
    fi
else
    echo "no cuobjdump: looking at the PTX instead of the machine code, no table"
    "$nvcc" "${flags[@]}" -arch "compute_$newest" -ptx "$source" -o "$build/code"
    check_accesses "$build/code" PTX
fi

# ------------------------------------------------------------------------------------------

# dlib's headers as they are when dlib was built with CUDA. Only the syntax: Debian's library
# itself has no CUDA.
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
