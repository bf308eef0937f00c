#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Shows that the tests of the CUDA kernels can fail: puts one fault at a time into a copy of the
# kernels, builds them, and looks whether a test fails. Prints a table; the exit status is 0 if
# every fault was seen.
#
#   seed_faults.sh            all faults
#   seed_faults.sh PATTERN    those whose description holds PATTERN
#   seed_faults.sh --list     only say what would be done, and whether it fits the source

set -euo pipefail

pattern=${1:-}
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work_dir=$(mktemp -d)
trap 'rm -rf "$work_dir"' EXIT
copy=$work_dir/source
build=$work_dir/build
kernels=dlib/cuda/rms_norm_kernels.h
launchers=dlib/cuda/rms_norm_kernels.cu
not_seen=0
seen=0

mkdir "$copy"
cp -r "$source_dir/CMakeLists.txt" "$source_dir/cmake" "$source_dir/dlib" "$copy/"
cp "$source_dir/LICENSE.txt" "$source_dir/README.md" "$copy/" 2> /dev/null || true

# ------------------------------------------------------------------------------------------

build_and_test()
# Leaves the name of the first case that fails in $failed, which is empty if all pass.
{
    if ! cmake --build "$build" --target dtest_kernels > "$work_dir/build.log" 2>&1
    then
        cat "$work_dir/build.log"
        echo "seed_faults.sh: '$1' does not compile" >&2
        exit 2
    fi
    # The program ends with the pipe, soon after the first failure.
    set +o pipefail
    failed=$(timeout 600 "$(find "$build" -name dtest_kernels -type f)" --rms_norm_kernels 2>&1 |
        tee "$work_dir/test.log" | grep -a -m 1 -o 'FAILED: .*' | sed 's/FAILED: //')
    set -o pipefail
    if [ -z "$failed" ] && ! grep -a -q ' passed, 0 failed' "$work_dir/test.log"
    then
        failed="(the program was stopped)"
    fi
}

try()
# try DESCRIPTION FILE: tests $copy/FILE as it is now and puts the original back
{
    if [ "$pattern" = --list ]
    then
        printf '%s\n' "$1"
    elif [[ $1 == *"$pattern"* ]]
    then
        build_and_test "$1"
        if [ -n "$failed" ]
        then
            seen=$((seen + 1))
            printf '%-62s seen by %s\n' "$1" "$failed"
        else
            not_seen=$((not_seen + 1))
            printf '%-62s NOT SEEN\n' "$1"
        fi
    fi
    cp "$source_dir/$2" "$copy/$2"
}

fault()
# fault DESCRIPTION FILE OLD NEW [WHICH]: OLD, of which only the words and signs matter but not
# the spaces, has to be in the file once, or WHICH says which of several to replace.
{
    if ! old=$3 new=$4 which=${5:-0} perl -0777 -i -pe '
        my $old = join "\\s*", map { quotemeta } $ENV{old} =~ /\w+|[^\w\s]/g;
        my $count = () = /$old/g;
        my $which = $ENV{which};
        $ok = $which == 0 ? $count == 1 : $count >= $which;
        my $n = 0;
        s/$old/++$n == ($which || 1) ? $ENV{new} : $&/ge if $ok;
        END { exit($ok ? 0 : 1) }' "$copy/$2"
    then
        echo "seed_faults.sh: '$1' does not fit $2 any more" >&2
        exit 2
    fi
    try "$1" "$2"
}

# ------------------------------------------------------------------------------------------

if [ "$pattern" != --list ]
then
    cmake -S "$copy" -B "$build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
        -DDLIB_RMS_NORM_BUILD_TESTS=ON -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF > "$work_dir/build.log" 2>&1 ||
        { cat "$work_dir/build.log"; exit 2; }
    build_and_test "the unchanged source"
    if [ -n "$failed" ]
    then
        echo "seed_faults.sh: without any fault this fails: $failed" >&2
        exit 2
    fi
fi

# ------------------------------------------------------------------------------------------

fault "gamma of channel 0 for all, one gain per value" $kernels \
    'load_unit<vectors>(gamma + begin, i, left, g);' \
    'g[0] = g[1] = g[2] = g[3] = load(gamma);'
fault "gamma of channel 0 for all, runs" $kernels \
    'load(gamma + run)' 'load(gamma)'
fault "gamma of channel 0 for all, columns" $kernels \
    'load(gamma + begin + i)' 'load(gamma)'

# Each barrier in turn.
while read -r number line function
do
    perl -i -pe "s/__syncthreads\(\);/;/ if \$. == $line" "$copy/$kernels"
    try "barrier $number removed (line $line, $function)" $kernels
done < <(perl -ne '
    $in_head = 1 if /__global__|__forceinline__/;
    while ($in_head && /(\w+)\(/g)
    {
        ($function, $in_head) = ($1, 0) if $1 ne "__launch_bounds__";
    }
    print ++$n, " $. $function\n" if /^\s*__syncthreads\(\);/' "$copy/$kernels")

fault "last partial row of gamma sums dropped" $kernels \
    'for (long long row = first + warp; row < end; row += warps)' \
    'for (long long row = first + warp; row < end - 1; row += warps)'
fault "partial row of another block read, rows" $kernels \
    'store(out + i, sum);' 'store(out + i, sum + 0*load(gain_parts + i));'
fault "partial row of another block read, columns" $kernels \
    'store(gain_parts + slice*a.groups.size + begin + v, sum);' \
    'store(gain_parts + slice*a.groups.size + begin + v,
        sum + 0*load(gain_parts + begin + v));'
fault "sum of another part of the row read" $kernels \
    'store(sums + item, sum);' 'store(sums + item, sum + 0*load(sums + (item + 1)%count));'
fault "tail of a row added unsquared, rows" $kernels \
    'sum = add_square(sum, x[u][e]);' \
    'sum = u*4*width + e == left - 1 ? sum + x[u][e] : add_square(sum, x[u][e]);'
fault "tail of a row added unsquared, long rows" $kernels \
    'sum = add_square(sum, x[e]);' \
    'sum = i + e == length - 1 ? sum + x[e] : add_square(sum, x[e]);'
fault "vector store past the end of the row" $kernels \
    'if (i < end) store(reinterpret_cast<float4*>' \
    'if (i < end + 1) store(reinterpret_cast<float4*>'
fault "vector load past the end of the row" $kernels \
    'if (i < end) all = load(' 'if (i < end + 1) all = load('
fault "eps forgotten, rows" $kernels \
    'scale_of(total, a.inv_size, a.eps)' 'scale_of(total, a.inv_size, 0)' 1
fault "eps forgotten, columns" $kernels \
    'scale_of(total, a.inv_size, a.eps)' 'scale_of(total, a.inv_size, 0)' 2
fault "eps forgotten, long columns" $kernels \
    'scale_of(total, a.inv_size, a.eps)' 'scale_of(total, a.inv_size, 0)' 3
fault "eps forgotten, long rows" $kernels \
    'scale_of(sum, a.inv_size, a.eps)' 'scale_of(sum, a.inv_size, 0)'
fault "32-bit row offset, forward" $kernels \
    'row < rows ? row*size + begin : 0' 'row < rows ? static_cast<int>(row*size + begin) : 0'
fault "32-bit row offset, backward" $kernels \
    'inside ? row*a.groups.size + column + begin : 0' \
    'inside ? static_cast<int>(row*a.groups.size + column + begin) : 0'
fault "32-bit offset in a long row, its sum" $kernels \
    'const long long begin = (item - row*parts)*part_size;' \
    'const long long begin = static_cast<int>((item - row*parts)*part_size);' 1
fault "32-bit offset in a long row, its values" $kernels \
    'const long long begin = (item - row*parts)*part_size;' \
    'const long long begin = static_cast<int>((item - row*parts)*part_size);' 2
fault "32-bit offset of a column, forward" $kernels \
    'inside ? a.groups.first(group) + begin*stride : 0' \
    'inside ? static_cast<int>(a.groups.first(group) + begin*stride) : 0'
fault "32-bit offset of a column, backward" $kernels \
    'long long offset = a.groups.first(first_group + lane) + begin*stride;' \
    'long long offset = static_cast<int>(a.groups.first(first_group + lane) + begin*stride);'
fault "s^3 in float" $kernels \
    'return __fmul_rn(s, __fsub_rn(__fmul_rn(g, d), __fmul_rn(__fmul_rn(x, s), m)));' \
    'return s*(g*d) - x*(s*s*s)*(m/s);'

fault "sums in float" $kernels \
    'return fma(static_cast<double>(v), static_cast<double>(v), sum);' \
    'return static_cast<float>(sum) + v*v;'
fault "alignment of gradient_input not looked at" $launchers \
    'is_aligned(gradient_input) && is_aligned(src)' 'is_aligned(src)'
fault "alignment of gamma not looked at" $launchers \
    'groups.num_gains == 0 || groups.gain_run > 1 || is_aligned(gamma)' 'gamma == gamma'
fault "gain offset forgotten, columns" $kernels \
    '__fadd_rn(gain_offset, load(gamma + begin + i))' 'load(gamma + begin + i)'
fault "assigned instead of added, columns" $kernels \
    'a.add ? __fadd_rn(load(to), value) : value' 'value'
fault "error of a launch not looked at" $launchers \
    'if (error != cudaSuccess) return error;' '' 5
fault "half of a warp in the mask of a shuffle" $kernels \
    '__shfl_xor_sync(0xffffffff, v, 4)' '__shfl_xor_sync(0x0000ffff, v, 4)'
fault "half a warp left out of the sum" $kernels \
    'v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 16));' ''

# ------------------------------------------------------------------------------------------

if [ "$pattern" != --list ]
then
    echo "$seen faults seen, $not_seen not seen"
    [ $not_seen = 0 ] && [ $seen != 0 ]
fi
