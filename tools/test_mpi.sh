#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Tests training over MPI, with several ranks on this machine: the same bits as one program alone, a
# rank that dies, is interrupted, throws, or was told something else than the others.
#
#   tools/test_mpi.sh BUILD_FOLDER      one with the release preset

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
if ! command -v mpirun >/dev/null
then
    echo "test_mpi: skipped: no mpirun (Debian's libopenmpi-dev and openmpi-bin)"
    exit 0
fi
cmake --build "$build" -j2 --target mpi_dtest dnn_transformer_ex >/dev/null
example="$build/examples/dnn_transformer_ex"
. "$top/tools/mpi_environment.sh"
export OPENBLAS_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail()
{
    echo "test_mpi: FAILED: $1"
    exit 1
}

# A job that does not end by itself has failed.
run()
{
    timeout -k 5 60 mpirun --oversubscribe "$@"
}

# ------------------------------------------------------------------------------------------

for ranks in 1 2 4
do
    run -n $ranks "$build/dlib/test/mpi_dtest" -q --runall >out 2>&1 || fail "$(cat out)"
    [ "$(grep -c '^6 passed, 0 failed' out)" = $ranks ] || fail "$ranks ranks: $(cat out)"
    echo "test_mpi: mpi_dtest, ranks: $ranks"
done

# ------------------------------------------------------------------------------------------

awk 'BEGIN { for (i = 0; i < 4000; ++i) printf "%d times %d is %d. ", i % 89, i % 7, i % 89 * (i % 7) }' >text
tr 0-9 9876543210 <text >other_text
sizes="--blocks 2 --features 32 --heads 2 --hidden 48 --context 32 --batch 8 --length 10"
train="--text text $sizes --threads 1"
# Word splitting of these options is meant below.
# shellcheck disable=SC2086
"$example" $train --steps 300 --file whole >whole.out
grep "The net's hash" whole.out >whole.hash || fail "no hash: $(cat whole.out)"

same_as_whole()
{
    cmp whole.curve "$1.curve" || fail "$1: another curve"
    grep "The net's hash" "$1.out" | cmp - whole.hash || fail "$1: another net"
}

for ranks in 1 2 4 8
do
    # shellcheck disable=SC2086
    run -n $ranks "$example" $train --steps 300 --file ranks$ranks >ranks$ranks.out
    grep -q "on $ranks rank" ranks$ranks.out || fail "not on $ranks ranks"
    same_as_whole ranks$ranks
    echo "test_mpi: the curve and the net of one program alone, ranks: $ranks"
done

# ------------------------------------------------------------------------------------------

# Becomes a command, and leaves the process id in a file.
cat >as <<'TEXT'
echo $$ >"pid.${OMPI_COMM_WORLD_RANK:-mpirun}"
exec "$@"
TEXT

# Starts a job in the background.
start()
{
    ranks=$1
    shift
    rm -f pid.*
    timeout -k 5 60 sh as mpirun --oversubscribe -n "$ranks" sh as "$example" "$@" >out 2>&1 &
    job=$!
}

# Waits for a condition, which has to come.
wait_for()
{
    for _ in $(seq 600)
    do
        ! "$@" || return 0
        sleep 0.05
    done
    fail "waited for $*: $(cat out)"
}

trains()
{
    grep -q "Training on" out
}

# Sends a signal. The job has to end by itself, before the time is over, and not with 0.
ends_by() # SIGNAL WHO
{
    began=$(date +%s)
    kill -"$1" "$(cat pid."$2")"
    code=0
    wait $job || code=$?
    seconds=$(($(date +%s) - began))
    if [ $seconds -ge 25 ] || [ $code = 0 ]
    then
        fail "ended with $code after $seconds s: $(cat out)"
    fi
}

sum_of()
{
    cksum <"$1"
}

has_changed()
{
    [ -e part ] && [ "$(sum_of part)" != "$before" ]
}

is_dead()
{
    [ ! -e "/proc/$1/status" ] || grep -q "^State:.Z" "/proc/$1/status"
}

# One rank is interrupted: all stop after the same step, and another number of ranks goes on. The
# training may be over before the signal comes, so we try until it is not.
for _ in 1 2 3 4 5
do
    rm -f part
    # shellcheck disable=SC2086
    start 2 $train --steps 300 --file part
    wait_for trains
    kill -TERM "$(cat pid.1)" 2>/dev/null || true
    wait $job || true
    ! grep -q Interrupted out || break
done
grep -q Interrupted out || fail "it was not interrupted: $(cat out)"
run -n 4 "$example" --resume --text text --threads 1 --length 10 --file part >part.out
same_as_whole part
echo "test_mpi: interrupted on two ranks, resumed on four"

# Ctrl-C on mpirun saves. This training is far too long to end.
long="--steps 1000000 $train"
rm -f part
export OMPI_MCA_odls_base_sigkill_timeout=3 # seconds to save
# shellcheck disable=SC2086
start 2 $long --file part
unset OMPI_MCA_odls_base_sigkill_timeout
wait_for trains
[ ! -e part ] || fail "saved too early"
ends_by INT mpirun
"$example" --generate --prompt 12 --length 10 --file part >out || fail "not saved on Ctrl-C: $(cat out)"
echo "test_mpi: Ctrl-C on mpirun saves"

# A rank is killed while rank 0 writes one checkpoint after the other.
for victim in 1 0
do
    before=$(sum_of part)
    start 2 --resume --text text --threads 1 --save-every 0 --file part
    wait_for has_changed
    ends_by KILL $victim
    for rank in 0 1
    do
        wait_for is_dead "$(cat pid.$rank)"
    done
    "$example" --generate --prompt 12 --length 10 --file part >out || fail "after kill: $(cat out)"
    echo "test_mpi: rank $victim killed: the job ended with $code after $seconds s," \
        "the checkpoint is whole"
done

# ------------------------------------------------------------------------------------------

# refuses "WORDS" MPIRUN'S ARGUMENTS...: each word has to be in the message
refuses()
{
    words=$1
    shift
    if run "$@" >out 2>&1
    then
        fail "$* was accepted"
    fi
    for word in $words
    do
        grep -q -- "$word" out || fail "'$word' is not in the message for $*: $(cat out)"
    done
}

# shellcheck disable=SC2086
refuse_two() # WORDS OPTIONS OF RANK 0, OPTIONS OF RANK 1
{
    refuses "Rank.1.of.2.on $1" -n 1 "$example" $sizes --file new $2 : \
        -n 1 "$example" $sizes --file new $3
}

refuse_two "differ --seed 8.and.7" "--text text --seed 7" "--text text --seed 8"
refuse_two "differ --learning-rate 0.0050000000000000001.and.0.0015" "--text text" \
    "--text text --learning-rate 0.005"
refuse_two "differ --micro-batches 4.and.8" "--text text" "--text text --micro-batches 4"
refuse_two "differ --steps not.given.and.10" "--text text --steps 10" "--text text"
refuse_two "differ hash.of.the.text" "--text text" "--text other_text"
refuse_two "Can't.open.missing" "--text text" "--text missing"
[ ! -e new ] || fail "a file was written"
# shellcheck disable=SC2086
refuses "3.ranks 8.micro-batches" -n 3 "$example" $train --file new
echo "test_mpi: what differs between ranks is named"

# shellcheck disable=SC2086
refuses "Rank.0.of.2 step.2: gradient.of layer not.finite" \
    -n 2 "$example" $train --learning-rate 1e30 --save-every 0 --file infinite
before=$(sum_of infinite)
refuses "step.2: gradient.of not.finite" \
    -n 4 "$example" --resume --text text --threads 1 --file infinite
[ "$(sum_of infinite)" = "$before" ] || fail "the checkpoint changed"
echo "test_mpi: gradients that are not finite stop all ranks"
