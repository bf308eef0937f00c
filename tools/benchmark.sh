#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.
#
# Shows how fast the CPU functions are, in one command: installs what is missing, builds the
# benchmark, runs it on one and on two threads, prints a table of how many times longer than
# their bounds the functions take, and draws pictures. A full run takes about five minutes
# and 1.2 GiB of memory.
#
#   tools/benchmark.sh                 results go to docs/
#   tools/benchmark.sh --quick         a few small cases in some seconds; results go to the
#                                      build directory
#   tools/benchmark.sh --out DIR       results go to DIR
#   tools/benchmark.sh --build DIR     build in DIR instead of build/release
#
# Results: rms_norm_benchmark.csv, .txt (the table), _rows.png, _images.png.
#
# Columns of the CSV file, after comment lines that begin with # and tell machine, compiler,
# version of dlib, instruction set and threads:
#   threads                     threads that the function and its bound may use
#   axes                        sample, row or channel
#   num_samples,k,nr,nc         shape of the tensor
#   pass                        forward; backward; both; forward_read: forward, then a sum over
#                               the output; fused_forward, fused_backward: with a residual, also
#                               as add+forward, add+backward, named after what they replace;
#                               forward_threads, backward_threads: what more threads bring
#   subject                     contrib (this library), plain (the formula as plain loops),
#                               layer_norm (dlib's), dlib_rms_norm (dlib's, if it has it);
#                               contrib_T, plain_T: rows of type T behind pointers
#   bound                       what it is compared with: memcpy of the tensor,
#                               stream: src_grad += gradient_input*src, or sums of these; for a
#                               few rows the plain loops; the same function on 1 thread
#   pairs                       how often function and bound were timed one after the other
#   ratio_q1,ratio,ratio_q3     quartiles and median of (time of function)/(time of bound)
#   target_ratio                what the median should not exceed; empty if there is no target
#   us                          median time of one call in microseconds
#   bound_us                    median time of the bound
#   gb_per_s,bound_gb_per_s     1e9 bytes per second of the traffic that can't be avoided: 8 bytes
#                               per float forward, 16 backward, 24 both, 12 forward_read; per value
#                               of 16 bits 4 forward, 6 backward, 8 fused
#   kept_bytes                  what must stay in memory from forward to backward, besides the
#                               input

set -eu

usage()
{
    sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
}

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
out=
quick=
while [ $# -gt 0 ]
do
    case $1 in
    --quick) quick=--quick ;;
    --out) out=$2; shift ;;
    --build) build=$2; shift ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
    esac
    shift
done
if [ -z "$out" ]
then
    if [ -n "$quick" ]; then out=$build/benchmark; else out=$root/docs; fi
fi

"$root/tools/setup.sh" --tools
cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DDLIB_RMS_NORM_BUILD_TOOLS=ON
cmake --build "$build" --target rms_norm_benchmark

mkdir -p "$out"
threads=1
if [ "$(nproc)" -ge 2 ]; then threads="1 2"; fi
csv=$out/rms_norm_benchmark.csv
: > "$csv"
for t in $threads
do
    DLIB_NUM_THREADS=$t "$build/tools/rms_norm_benchmark" $quick --csv "$csv.part"
    if [ -s "$csv" ]; then sed -i '/^threads,/d' "$csv.part"; fi
    cat "$csv.part" >> "$csv"
    rm "$csv.part"
done

awk -f "$root/tools/rms_norm_benchmark_table.awk" "$csv" > "$out/rms_norm_benchmark.txt"
for picture in rows images
do
    gnuplot -e "csv='$csv'; picture='$out/rms_norm_benchmark_$picture.png'" \
        "$root/tools/rms_norm_benchmark_$picture.gp"
done

echo
cat "$out/rms_norm_benchmark.txt"
echo
echo "Written to $out: rms_norm_benchmark.csv, rms_norm_benchmark.txt," \
    "rms_norm_benchmark_rows.png, rms_norm_benchmark_images.png"
