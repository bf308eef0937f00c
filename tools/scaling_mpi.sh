#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Measures how training over MPI scales on this machine, one thread per rank, at the size of the
# demo: with a batch that the ranks share (strong scaling) and with one that grows with them (weak).
# Then computes what that means for many machines.
#
#   tools/scaling_mpi.sh [STEPS]

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build="$top/build/release"
steps=${1:-100}
"$top/tools/setup.sh" --mpi
(
    cd "$top"
    cmake --preset release >/dev/null
    cmake --build --preset release --target dnn_transformer_ex >/dev/null
)
. "$top/tools/blas_environment.sh"
. "$top/tools/mpi_environment.sh"
export DLIB_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# a small text: only the speed counts
cat /usr/share/common-licenses/* | head -c 150000 >text

# Prints ranks, pieces per batch, ms per step, tokens/s, ms of waiting, ms of adding, MB.
measure() # RANKS OPTIONS
{
    ranks=$1
    shift
    # Cores are given to ranks by the system: it knows what else runs.
    mpirun --oversubscribe --bind-to none -n "$ranks" "$build/examples/dnn_transformer_ex" \
        --text text --threads 1 --length 0 --steps "$steps" "$@" >out
    awk -v batch="$4" '/^A step takes/ { print $7, batch, $4, $9, $13 + 0, $21 + 0, $28 + 0 }' out
}

ranks=1
while [ $ranks -le "$(nproc)" ] && [ $ranks -le 8 ]
do
    measure "$ranks" --micro-batches 8 --batch 16 >>strong
    measure "$ranks" --micro-batches $((8 * ranks)) --batch $((16 * ranks)) >>weak
    ranks=$((2 * ranks))
done

for kind in strong weak
do
    echo "$kind scaling:"
    echo "  ranks  pieces in a batch  ms per step  tokens/s  speed-up  ms waiting  ms adding  MB sent"
    awk 'NR == 1 { first = $4 }
        { printf "  %5d  %17d  %11.1f  %8d  %8.2f  %10.2f  %9.2f  %7.2f\n",
            $1, $2, $3, $4, $4 / first, $5, $6, $7 }' $kind
done
echo
awk -f "$top/tools/scaling_model.awk" strong
