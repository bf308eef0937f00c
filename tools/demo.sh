#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Sets up, builds and runs the demo: a Transformer with RMS normalization learns to write. What is
# given to this script goes on to the example; see tools/demo.sh -h. Draws the curve of the
# training in the end. TRANSFORMER_LAUNCHER, if set, starts the example (see tools/demo_mpi.sh).

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build="$top/build/release"
example="$build/examples/dnn_transformer_ex"

"$top/tools/setup.sh"
(
    cd "$top"
    cmake --preset release -DDLIB_RMS_NORM_BUILD_TESTS=OFF >/dev/null
    echo "Building the example. The first time takes a minute or two."
    cmake --build --preset release --target dnn_transformer_ex >/dev/null
)
. "$top/tools/blas_environment.sh"

# Without this the network would be saved wherever the caller happens to be.
file="$build/dnn_transformer_ex.dat"
has_text=no
trains=yes
previous=""
for argument in "$@"
do
    case "$argument" in
        --file=*) file=${argument#--file=} ;;
        --text | --text=*) has_text=yes ;;
        --generate | -h) trains=no ;;
    esac
    [ "$previous" != --file ] || file=$argument
    previous=$argument
done

# The text is the Jargon File, where Debian's package of it is installed.
jargon=/usr/share/doc/jargon-text/jargon.txt.gz
if [ $trains = yes ] && [ $has_text = no ] && [ -r $jargon ]
then
    gzip -dc $jargon >"$build/jargon.txt"
    set -- --text "$build/jargon.txt" "$@"
fi

# Ctrl-C is the example's to handle.
trap : INT
result=0
# shellcheck disable=SC2086
${TRANSFORMER_LAUNCHER:-} "$example" --file "$file" "$@" || result=$?

# Trained to the end or interrupted, and for long enough to have a curve.
if [ $trains = yes ] && { [ $result = 0 ] || [ $result = 130 ]; } &&
    [ "$(grep -vc '^#' "$file.curve")" -ge 2 ] && command -v gnuplot >/dev/null
then
    gnuplot -c "$top/tools/transformer_curve.gp" "$file.curve" "$file.png"
    echo "The curve of the training: $file.png"
fi
exit $result
