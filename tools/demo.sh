#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Sets up, builds and runs the example: a network with RMS normalization learns to write.
# What is given to this script goes on to the example; see tools/demo.sh -h.

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build="$top/build/release"

"$top/tools/setup.sh"
(
    cd "$top"
    cmake --preset release -DDLIB_RMS_NORM_BUILD_TESTS=OFF >/dev/null
    echo "Building the example. The first time takes a minute or two."
    cmake --build --preset release --target dnn_rms_norm_ex >/dev/null
)

# Without this the network would be saved wherever the caller happens to be.
for argument in "$@"
do
    case "$argument" in
        --out | --out=* | --load | --load=*) exec "$build/examples/dnn_rms_norm_ex" "$@" ;;
    esac
done
exec "$build/examples/dnn_rms_norm_ex" --out "$build/dnn_rms_norm_ex.dat" "$@"
