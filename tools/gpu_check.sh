#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Everything that only a machine with a GPU can check, in a few minutes: compares the kernels'
# numbers with those of plain loops, runs more than 2^31 values, measures the kernels against a
# device-to-device copy, with PyTorch and Liger beside them where they are installed, runs every
# kernel under compute-sanitizer, and dtest on the device. Ends in a short table.
#
# usage: tools/gpu_check.sh [--dry-run] [--kernels-only]
#
#   --dry-run       prints the commands and runs none
#   --kernels-only  leaves out what needs a dlib that was built with CUDA
#
# That dlib is found as CMake finds packages: set CMAKE_PREFIX_PATH or dlib_DIR.
# BUILD_DIR is where to build, by default a new directory.

set -uo pipefail

cd "$(dirname "$0")/.." || exit 1

dry_run=0
kernels_only=0
for option in "$@"
do
    case $option in
        --dry-run) dry_run=1 ;;
        --kernels-only) kernels_only=1 ;;
        *)
            echo "usage: tools/gpu_check.sh [--dry-run] [--kernels-only]" >&2
            exit 2 ;;
    esac
done

stop()
{
    echo "gpu_check: $1" >&2
    exit 1
}

if [ $dry_run -eq 0 ]
then
    command -v nvcc >/dev/null ||
        stop "there is no nvcc: install the CUDA toolkit or put its bin directory on PATH"
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L | grep '^GPU' >/dev/null
    then
        stop "there is no GPU that nvidia-smi can see"
    fi
    if [ $kernels_only -eq 0 ]
    then
        command -v cmake >/dev/null || stop "there is no cmake"
    fi
    build=${BUILD_DIR:-$(mktemp -d)}
    mkdir -p "$build"
else
    build=${BUILD_DIR:-BUILD_DIR}
fi

# ------------------------------------------------------------------------------------------

names=()
results=()
status=0

# step NAME SECONDS COMMAND...: runs a command, notes how it went and how long it took
step()
{
    local name=$1 limit=$2 begin result
    shift 2
    if [ $dry_run -eq 1 ]
    then
        printf '%s (at most %s s):\n   ' "$name" "$limit"
        printf ' %q' "$@"
        printf '\n'
        return 0
    fi
    echo "---- $name"
    begin=$SECONDS
    if timeout "$limit" "$@"
    then
        result="passed"
    else
        result="FAILED (exit status $?)"
        status=1
    fi
    names+=("$name")
    results+=("$result, $((SECONDS - begin)) s")
    [ "$result" = passed ]
}

skip()
{
    echo "---- $1: skipped: $2"
    names+=("$1")
    results+=("skipped: $2")
}

summary()
{
    local i
    if [ $dry_run -eq 1 ]
    then
        return
    fi
    echo
    for i in "${!names[@]}"
    do
        printf '%-34s %s\n' "${names[$i]}" "${results[$i]}"
    done
    if [ $status -eq 0 ]
    then
        echo "gpu_check: passed"
    else
        echo "gpu_check: FAILED"
    fi
}

# ------------------------------------------------------------------------------------------

jobs=$(nproc)

# What needs the kernels alone comes first: it takes the least time and tells the most.
step "build the kernels" 200 \
    nvcc -std=c++17 -O3 --fmad=false -Xcompiler -ffp-contract=off -arch=native -lineinfo \
    --threads "$jobs" -I. tools/rms_norm_gpu_benchmark.cu dlib/cuda/rms_norm_launch.cu \
    -o "$build/rms_norm_gpu_benchmark" ||
    { summary; exit 1; }

step "numbers" 60 "$build/rms_norm_gpu_benchmark" --small
step "more than 2^31 values" 60 "$build/rms_norm_gpu_benchmark" --large
step "benchmark" 100 "$build/rms_norm_gpu_benchmark"

if [ $dry_run -eq 1 ] ||
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null
then
    step "PyTorch and Liger" 200 python3 tools/rms_norm_gpu_peers.py
else
    skip "PyTorch and Liger" "no python3 with PyTorch for this GPU"
fi

for tool in memcheck racecheck initcheck
do
    if [ $dry_run -eq 1 ] || command -v compute-sanitizer >/dev/null
    then
        step "compute-sanitizer $tool" 100 \
            compute-sanitizer --tool "$tool" --error-exitcode 1 \
            "$build/rms_norm_gpu_benchmark" --small
    else
        skip "compute-sanitizer $tool" "not installed"
    fi
done

if [ $kernels_only -eq 0 ]
then
    if step "configure with dlib" 100 \
        cmake -S . -B "$build/cmake" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_CUDA_ARCHITECTURES=native -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF
    then
        # The project enables CUDA if dlib was built with it.
        if [ $dry_run -eq 0 ] &&
            ! grep -q '^CMAKE_CUDA_COMPILER:' "$build/cmake/CMakeCache.txt"
        then
            echo "The dlib that CMake found was built without CUDA. Set CMAKE_PREFIX_PATH or"
            echo "dlib_DIR to one that was built with it, or use --kernels-only."
            names+=("dlib with CUDA")
            results+=("FAILED: not found")
            status=1
        else
            # The tests that use the device.
            step "build dtest" 280 \
                cmake --build "$build/cmake" --target dtest --parallel "$jobs" &&
                step "dtest on the GPU" 200 "$build/cmake/dlib/test/dtest" --rms_norm_functions \
                --rms_norm_errors --rms_norm_files --test_dnn
        fi
    fi
fi

summary
exit $status
