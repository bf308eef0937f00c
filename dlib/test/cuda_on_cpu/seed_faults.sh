#!/bin/bash
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Shows that the tests of the CUDA kernels can fail: puts one fault at a time into a copy of the
# kernels, builds them, and looks whether a test fails, or tools/check_cuda_build.sh for faults that
# only the machine code shows. Prints a table; the exit status is 0 if every fault was seen.
#
#   seed_faults.sh            all faults
#   seed_faults.sh PATTERN    those whose description matches PATTERN
#   seed_faults.sh --list     only say what would be done, and whether it fits the source

set -euo pipefail

pattern=${1:-}
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work_dir=$(mktemp -d)
trap 'rm -rf "$work_dir"' EXIT
copy=$work_dir/source
build=$work_dir/build
common=dlib/cuda/rms_norm_kernels_common.cuh
rows=dlib/cuda/rms_norm_kernels_rows.cuh
long_rows=dlib/cuda/rms_norm_kernels_long_rows.cuh
columns=dlib/cuda/rms_norm_kernels_columns.cuh
gains=dlib/cuda/rms_norm_kernels_gains.cuh
launch=dlib/cuda/rms_norm_launch.cu
device=dlib/cuda/rms_norm_cuda.cpp
plan=dlib/cuda/rms_norm_cuda_plan.h
not_seen=0
seen=0

mkdir "$copy"
cp -r "$source_dir/CMakeLists.txt" "$source_dir/cmake" "$source_dir/dlib" "$source_dir/tools" "$copy/"
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
    # The program ends with the pipe, soon after the first failure, or after 600 seconds of its own.
    set +o pipefail
    failed=$( (ulimit -t 600; exec "$(find "$build" -name dtest_kernels -type f)" --rms_norm_kernels) 2>&1 |
        tee "$work_dir/test.log" | grep -a -m 1 -o 'FAILED: .*' | sed 's/FAILED: //')
    set -o pipefail
    if [ -z "$failed" ] && ! grep -a -q ' passed, 0 failed' "$work_dir/test.log"
    then
        failed="(the program was stopped)"
    fi
}

look_at_machine_code()
# The same with tools/check_cuda_build.sh.
{
    failed=$("$copy/tools/check_cuda_build.sh" 90 2>&1 | grep -a -m 1 'FAILED: ' || true)
}

check=build_and_test

try()
# try DESCRIPTION FILE: tests $copy/FILE as it is now and puts the original back
{
    if [ "$pattern" = --list ]
    then
        printf '%s\n' "$1"
    elif [[ $1 =~ $pattern ]]
    then
        $check "$1"
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

fault "gamma of channel 0 for all, one gain per value" $common \
    'load_quads<quads, width, cache::constant>(pass.gamma + begin, left, by_quads, g);' \
    'for (int q = 0; q < quads; ++q) g[q][0] = g[q][1] = g[q][2] = g[q][3] = load(pass.gamma);'
fault "gamma of channel 0 for all, runs" $common \
    'gain = load_gain(pass, run)' 'gain = load_gain(pass, 0)'
fault "gamma of channel 0 for all, columns" $columns \
    'load_gain(pass, i) : 0.0f' 'load_gain(pass, 0) : 0.0f'
fault "gain of another value, columns" $columns \
    '__shfl_sync(0xffffffff, gain_of_this_lane, v)' \
    '__shfl_sync(0xffffffff, gain_of_this_lane, v ^ 1)'

# Each barrier in turn.
for file in $common $rows $long_rows $columns $gains
do
    while read -r number line function
    do
        perl -i -pe "s/__syncthreads\(\);/;/ if \$. == $line" "$copy/$file"
        try "barrier $number of $(basename "$file") removed (line $line, $function)" "$file"
    done < <(perl -ne '
        $in_head = 1 if /__global__|__forceinline__/;
        while ($in_head && /(\w+)\(/g)
        {
            ($function, $in_head) = ($1, 0) if $1 ne "__launch_bounds__";
        }
        print ++$n, " $. $function\n" if /^\s*__syncthreads\(\);/' "$copy/$file")
done

fault "one warp that meets at shuffles alone, runs" $rows '__syncwarp();' ''
fault "last partial row of gamma sums dropped" $gains \
    'for (long long row = first + warp; row < end; row += warps)' \
    'for (long long row = first + warp; row < end - 1; row += warps)'
fault "partial row of another block read, rows" $rows \
    'store(out + i, sum);' 'store(out + i, sum + 0*load(workspace + plan.gain_sums + i));'
fault "partial row of another block read, columns" $columns \
    'store(out + v, sum);' 'store(out + v, sum + 0*load(workspace + plan.gain_sums + begin + v));'
fault "sum of another part of the row read" $long_rows \
    'store(sums + item, sum);' 'store(sums + item, sum + 0*load(sums + (item + 1)%count));'
fault "tail of a row added unsquared, rows" $rows \
    'sum = add_square(sum, x[q][e]);' \
    'sum = q*4*width + e == left - 1 ? sum + x[q][e] : add_square(sum, x[q][e]);'
fault "tail of a row added unsquared, long rows" $long_rows \
    'sum = add_square(sum, x[0][e]);' \
    'sum = e == left - 1 ? sum + x[0][e] : add_square(sum, x[0][e]);'
fault "quad stored past the end of the row" $common \
    'if (at < left) store(reinterpret_cast<float4*>' \
    'if (at < left + 1) store(reinterpret_cast<float4*>'
fault "quad loaded past the end of the row" $common \
    'if (at < left) all = load_as' 'if (at < left + 1) all = load_as'
fault "quads decided by the row alone where runs are read" $plan \
    'plan.quads && groups.gain_run % quad_size == 0' 'plan.quads'
fault "eps forgotten, rows" $rows \
    'scale_of(total, plan.inv_size, pass.eps)' 'scale_of(total, plan.inv_size, 0)'
fault "eps forgotten, columns" $columns \
    'scale_of(total, plan.inv_size, pass.eps)' 'scale_of(total, plan.inv_size, 0)' 1
fault "eps forgotten, long columns" $columns \
    'scale_of(total, plan.inv_size, pass.eps)' 'scale_of(total, plan.inv_size, 0)' 2
fault "eps forgotten, long rows" $long_rows \
    'scale_of(sum, plan.inv_size, pass.eps)' 'scale_of(sum, plan.inv_size, 0)'
fault "approximate scale where rounding can tell" $common \
    'from_middle < -16 || from_middle > 16' 'true'
fault "approximate scale where it is denormal" $common 'v < 0x1p250 &&' ''
fault "first order step to the scale" $common 'fma(e, 0.375, 0.5)' '0.5'

fault "32-bit row offset, forward" $rows \
    'row < rows ? row*size + begin : 0' 'row < rows ? static_cast<int>(row*size + begin) : 0'
fault "32-bit row offset, backward" $rows \
    'inside ? row*pass.groups.size + column + begin : 0' \
    'inside ? static_cast<int>(row*pass.groups.size + column + begin) : 0'
fault "32-bit row offset, runs" $rows \
    'const long long offset = row*size + begin;' \
    'const long long offset = static_cast<int>(row*size + begin);'
fault "32-bit offset of a row of sums, runs" $rows \
    'plan.run_sums + row*runs + run' 'plan.run_sums + static_cast<int>(row*runs) + run'
fault "32-bit offset in a long row, its sum" $long_rows \
    'const long long begin = (item - row*parts.count)*part_size;' \
    'const long long begin = static_cast<int>((item - row*parts.count)*part_size);'
fault "32-bit offset of a long row, its sum" $long_rows \
    'pass.x + row*plan.parts.length + i' 'pass.x + static_cast<int>(row*plan.parts.length + i)'
fault "32-bit offset of a long row, its products" $long_rows \
    'const long long at = row*plan.parts.length + i;' \
    'const long long at = static_cast<int>(row*plan.parts.length + i);'
fault "32-bit offset in a long row, its values" $long_rows \
    'const long long begin = (item - row*plan.parts.count)*part_size;' \
    'const long long begin = static_cast<int>((item - row*plan.parts.count)*part_size);'
fault "32-bit offset of a long row, its values" $long_rows \
    'const long long at = row*size + begin + i;' \
    'const long long at = static_cast<int>(row*size + begin + i);'
fault "32-bit offset of a column, forward" $columns \
    'inside ? pass.groups.first(group) + begin*stride : 0' \
    'inside ? static_cast<int>(pass.groups.first(group) + begin*stride) : 0'
fault "32-bit offset of a column, backward" $columns \
    'long long offset = pass.groups.first(first_group + lane) + begin*stride;' \
    'long long offset = static_cast<int>(pass.groups.first(first_group + lane) + begin*stride);'
fault "32-bit offset of a long column, forward" $columns \
    'end != 0 ? pass.groups.first(group) + warp*pass.groups.stride : 0' \
    'end != 0 ? static_cast<int>(pass.groups.first(group) + warp*pass.groups.stride) : 0'
fault "32-bit offset of a long column, its products" $columns \
    'const long long at = offset + i*pass.groups.stride;' \
    'const long long at = static_cast<int>(offset + i*pass.groups.stride);'
fault "32-bit offset of a row of sums, read" $gains \
    'load(rows + row*size + i)' 'load(rows + static_cast<int>(row*size + i))'
fault "32-bit offset of a row of sums, written" $gains \
    'store(sums + slice*size + i' 'store(sums + static_cast<int>(slice*size + i)'
fault "step of columns where less than 32 are side by side" $columns \
    'warp_size/stride*pass.groups.size*stride + place_step' 'place_step'
fault "step of columns over the end of a sample" $columns \
    'offset += (pass.groups.size - 1)*stride;' ''

fault "s^3 in float" $common \
    'return __fmul_rn(s, __fsub_rn(__fmul_rn(g, d), __fmul_rn(__fmul_rn(x, s), m)));' \
    'return s*(g*d) - x*(s*s*s)*(m/s);'
fault "sums in float" $common \
    'return fma(static_cast<double>(x), static_cast<double>(x), sum);' \
    'return static_cast<float>(sum) + x*x;'
fault "alignment of d not looked at" $plan \
    'is_aligned(pass.d) && is_aligned(pass.x)' 'is_aligned(pass.x)'
fault "alignment of gamma not looked at" $plan \
    'groups.num_gains == 0 || groups.gain_run > 1 || is_aligned(gamma)' 'gamma == gamma'
fault "gain offset forgotten" $common \
    '__fadd_rn(pass.gain_offset, load_constant(pass.gamma + i))' 'load_constant(pass.gamma + i)'
fault "assigned instead of added, columns" $columns \
    'pass.add ? __fadd_rn(old[i], value) : value' 'value'
fault "dscale of another group, columns" $columns \
    'if (inside) store(pass.dscale + group, dscale_of(total, s));' \
    'if (inside) store(pass.dscale + group, dscale_of(total, s*s));'
fault "half of a warp in the mask of a shuffle" $common \
    '__shfl_xor_sync(0xffffffff, v, 4)' '__shfl_xor_sync(0x0000ffff, v, 4)'
fault "half a warp left out of the sum" $common \
    'v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 16));' ''

fault "order of a sum by alignment, rows" $rows \
    'sum = add_square(sum, x[q][e]);' 'sum = add_square(sum, x[q][plan.quads ? e : 3 - e]);'
fault "order of a sum by alignment, gradient of rows" $rows \
    'for (int e = 0; e < quad_size; ++e) { const double t = product(' \
    'for (int f = 0; f < quad_size; ++f) { const int e = plan.quads ? f : 3 - f;
        const double t = product('
fault "order of a sum by alignment, rows side by side" $rows \
    'sum = __dadd_rn(sum, shared_sums[j*capacity + i]);' \
    'sum = __dadd_rn(sum, shared_sums[(j + plan.quads)%slots*capacity + i]);'
fault "order of a sum by alignment, runs" $rows \
    'products[run*run_length + i]' \
    'products[run*run_length + (plan.quads ? i : run_length - 1 - i)]'
fault "order of a sum by alignment, squares of parts" $long_rows \
    'sum = add_square(sum, x[0][e]);' 'sum = add_square(sum, x[0][plan.quads ? e : 3 - e]);'
fault "order of a sum by alignment, products of parts" $long_rows \
    'sum = fma(product(d[0][e], x[0][e]), static_cast<double>(g[0][e]), sum);' \
    'sum = fma(product(d[0][plan.quads ? e : 3 - e], x[0][plan.quads ? e : 3 - e]),
        static_cast<double>(g[0][plan.quads ? e : 3 - e]), sum);'
fault "order of a sum by block, lanes" $common \
    'v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 4));
    v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, 2));' \
    'v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, blockIdx.x%2 == 0 ? 4 : 2));
    v = __dadd_rn(v, __shfl_xor_sync(0xffffffff, v, blockIdx.x%2 == 0 ? 2 : 4));'
fault "order of a sum by block, columns" $common \
    'sum = __dadd_rn(sum, shared[i]);' \
    'sum = __dadd_rn(sum, shared[(i + warp_size*blockIdx.x)%blockDim.x]);'
fault "order of a sum by place, gradient of columns" $columns \
    'for (int v = 0; v < values; ++v) { const float g = known' \
    'for (int w = 0; w < values; ++w) { const int v = first_group == 0 ? w : values - 1 - w;
        const float g = known'
fault "order of a sum by grid, slices" $gains \
    'total = __dadd_rn(total, shared[j]);' \
    'total = __dadd_rn(total, shared[(j + warp_size*gridDim.x)%blockDim.x]);'
fault "lanes by the number of groups" $plan \
    'parts.lanes = length <= 64 ? 8' 'parts.lanes = length <= 64 && rows%2 == 0 ? 8'

fault "grid limit dropped" $plan 'blocks < d.max_grid ? blocks : d.max_grid' 'blocks'
fault "workspace a hundred times too large" $plan \
    'static_cast<std::size_t>(doubles)*sizeof(double)' \
    '100*static_cast<std::size_t>(doubles)*sizeof(double)'
fault "stream ignored" $launch 'config.stream = stream;' ''
fault "device 0 asked" $launch \
    'cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id)' \
    'cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0)'
fault "device 0 taken for the current one" $device \
    'get_rms_norm_device(id, device.properties)' 'get_rms_norm_device(0, device.properties)'
fault "error of cudaGetDevice not looked at" $device \
    'check(cudaGetDevice(&id), "cudaGetDevice()");' 'cudaGetDevice(&id);'
fault "error of a launch not looked at" $device \
    'check(cuda::launch_rms_normalize(pass, plan, workspace, default_stream), "launch_rms_normalize()");' \
    'cuda::launch_rms_normalize(pass, plan, workspace, default_stream);'
fault "workspace too small" $device \
    'workspace_on(device, plan.workspace_bytes);' 'workspace_on(device, plan.workspace_bytes/2);' 2
fault "shared memory not asked for" $launch 'blocks.shared_bytes > 48*1024' 'false'
fault "error of the runtime not looked at" $launch 'error != cudaSuccess || blocks.grid == 0' \
    'blocks.grid == 0'

# ------------------------------------------------------------------------------------------

if [ "$pattern" = --list ] || command -v "${NVCC:-nvcc}" > /dev/null
then
    check=look_at_machine_code
    if [ "$pattern" != --list ]
    then
        look_at_machine_code
        if [ -n "$failed" ]
        then
            echo "seed_faults.sh: without any fault this fails: $failed" >&2
            exit 2
        fi
    fi
    fault "machine code: launch bounds smaller than the launch" $rows \
        '__launch_bounds__(in_shared ? 512 : 256,' '__launch_bounds__(256,'
    fault "machine code: registers spilled" $columns \
        '__launch_bounds__(512, 1) gradient_columns' '__launch_bounds__(1024, 1) gradient_columns'
    fault "machine code: loads that wait for stores" $columns \
        'constexpr int column_step = 8;' 'constexpr int column_step = 1;'
    fault "machine code: no quads" $common 'if (by_quads)' 'if (false)' 1
    fault "machine code: fused operations" $common \
        '__fsub_rn(__fmul_rn(g, d), __fmul_rn(__fmul_rn(x, s), m))' \
        'fmaf(g, d, -__fmul_rn(__fmul_rn(x, s), m))'
else
    echo "no nvcc: faults that the machine code shows are left out"
fi

# ------------------------------------------------------------------------------------------

if [ "$pattern" != --list ]
then
    echo "$seen faults seen, $not_seen not seen"
    [ $not_seen = 0 ] && [ $seen != 0 ]
fi
