#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Tests the Transformer example as a program: an interrupted and resumed training equals one that
# was not, for any number of threads; broken, foreign and mismatching files are refused and kept.
#
#   tools/test_transformer.sh EXAMPLE

set -eu
example=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OPENBLAS_NUM_THREADS=1

fail()
{
    echo "FAILED: $1"
    exit 1
}

sum_of()
{
    [ ! -e "$1" ] || cksum <"$1"
}

# The last arguments are words that the message has to hold. The file has to stay as it is.
refuses()
{
    file=$1
    options=$2
    shift 2
    before=$(sum_of "$file")
    # shellcheck disable=SC2086
    if "$example" $options --file "$file" >out 2>&1
    then
        fail "$options was accepted"
    fi
    for word in "$@"
    do
        grep -q -- "$word" out || fail "'$word' is not in the message for $options: $(cat out)"
    done
    [ "$(sum_of "$file")" = "$before" ] || fail "$file changed"
}

awk 'BEGIN { for (i = 0; i < 4000; ++i) printf "%d times %d is %d. ", i % 89, i % 7, i % 89 * (i % 7) }' >text
tr 0-9 9876543210 <text >other_text
sizes="--blocks 2 --features 32 --heads 2 --hidden 48 --context 32 --batch 8"
train="--text text $sizes --length 200"

# shellcheck disable=SC2086
"$example" $train --steps 300 --threads 2 --file whole >whole.out
grep -q "this network" whole.out || fail "no comparison"
# shellcheck disable=SC2086
"$example" $train --steps 300 --threads 1 --file one_thread >one_thread.out
cmp whole.curve one_thread.curve || fail "threads change the curve"

# Ctrl-C once it has begun to train; again if it was done before that came. A program that a script
# starts in the background ignores Ctrl-C unless it asks for it, as this one does.
tries=0
until grep -q "Interrupted" part.out 2>/dev/null
do
    tries=$((tries + 1))
    [ $tries -le 20 ] || fail "it was not interrupted: $(cat part.out)"
    rm -f part
    # shellcheck disable=SC2086
    "$example" $train --steps 300 --threads 2 --file part >part.out &
    while ! grep -q "^step" part.out && kill -0 $! 2>/dev/null
    do
        sleep 0.01
    done
    kill -INT $! 2>/dev/null || true
    status=0
    wait $! || status=$?
done
[ "$status" = 130 ] || fail "status $status on Ctrl-C"
[ -s part ] || fail "nothing was saved on Ctrl-C: $(cat part.out)"
refuses part "--resume --text other_text" "another text"
refuses part "--resume --text text --hidden 64" "--hidden 48" "64"
# And whenever it happens to be.
timeout --foreground -s INT 0.3 "$example" --resume --text text --length 200 --file part >part.out || [ $? = 124 ]
"$example" --resume --text text --length 200 --file part >part.out
cmp whole.curve part.curve || fail "the resumed curve differs"
for file in whole part one_thread
do
    "$example" --generate --prompt "12 times" --length 300 --file $file >$file.written
    cmp whole.written $file.written || fail "$file writes something else"
done
"$example" --generate --prompt "12 times" --length 0 --file whole | grep -qx " *\[12 times\] *" ||
    fail "a prompt alone"

# files that are not what they should be
head -c 5000 whole >short
cp whole changed
printf x | dd of=changed bs=1 seek=20000 conv=notrunc 2>/dev/null
echo "my novel" >novel
for option in "--resume --text text" --generate
do
    refuses short "$option" "broken"
    refuses changed "$option" "broken"
    refuses novel "$option" "not written by this program"
    refuses missing "$option" "Can't open missing"
done
refuses novel "$train --steps 5" "not written by this program"

# what can't be learned or written
printf 'a\000b' >binary
echo "short" >short_text
refuses new "--text binary" "value 0"
refuses new "--text short_text" "too short"
refuses new "--text missing" "missing"
refuses whole "--generate --prompt %" "%"
refuses new "$train --heads 2" "heads"
refuses new "--text text --heads 3" "multiple"
refuses new "--text text --micro-batches 3" "power of two"
refuses new "--text text --blocks 3" "3"
refuses new "--text text --steps 0" "steps"
[ ! -e new ] || fail "a file was written"
echo "The Transformer example passed."
