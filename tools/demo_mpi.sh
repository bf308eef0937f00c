#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# The demo over MPI: sets up, trains the Transformer with one rank per core of this machine, and
# shows how much faster that is. What is given to this script goes on to the example.
#
#   tools/demo_mpi.sh [OPTIONS]            RANKS=4 tools/demo_mpi.sh    chooses the number of ranks

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
"$top/tools/setup.sh" --mpi
. "$top/tools/mpi_environment.sh"

# A power of two that divides the 8 micro-batches.
cores=$(nproc)
ranks=1
while [ $((2 * ranks)) -le "$cores" ] && [ $ranks -lt 8 ]
do
    ranks=$((2 * ranks))
done
ranks=${RANKS:-$ranks}
threads=$((cores > ranks ? cores / ranks : 1))

# Without --bind-to none, mpirun gives each of two ranks one core, however many there are. On Ctrl-C
# the ranks have two seconds to save.
export DLIB_NUM_THREADS=$threads
export TRANSFORMER_LAUNCHER="mpirun --oversubscribe --bind-to none -n $ranks
    --mca odls_base_sigkill_timeout 2"
"$top/tools/demo.sh" --threads $threads "$@"

for option
do
    [ "$option" != --generate ] || exit 0
done
echo
"$top/tools/scaling_mpi.sh"
