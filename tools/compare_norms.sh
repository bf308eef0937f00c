#!/bin/sh
# License: Boost Software License   See LICENSE.txt for the full license.

# Trains the Transformer of the demo with RMS norm, with layer norm and without normalization, at
# three learning rates and with two seeds each, on the same text in the same order. Writes a table
# and draws the best of each into docs/. Takes about a quarter of an hour on two cores.
#
#   tools/compare_norms.sh [STEPS]

set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
build=build/tools
steps=${1:-300}
rates="0.0005 0.0015 0.0045"
seeds="0 1"

tools/setup.sh --tools
cmake -S . -B $build -DCMAKE_BUILD_TYPE=Release -DDLIB_RMS_NORM_BUILD_TOOLS=ON \
    -DDLIB_RMS_NORM_BUILD_TESTS=OFF -DDLIB_RMS_NORM_BUILD_EXAMPLES=OFF >/dev/null
cmake --build $build --target transformer_norms >/dev/null
. tools/blas_environment.sh

results=$build/norms
rm -rf $results
mkdir -p $results
gzip -dc /usr/share/doc/jargon-text/jargon.txt.gz >$results/text

for norm in rms layer none
do
    for rate in $rates
    do
        for seed in $seeds
        do
            run=$results/$norm-$rate-$seed
            $build/tools/transformer_norms --norm $norm --text $results/text --steps "$steps" \
                --learning-rate "$rate" --seed "$seed" >"$run"
            echo "$norm $rate $seed: $(tail -n 1 "$run")"
        done
    done
done

# The last held-out loss of each run; a run that ended early has none.
last_loss()
{
    awk -v steps="$steps" '!/^#/ { step = $1; loss = $3 }
        END { if (step > steps - steps / 20) printf "%.3f", loss; else printf "-" }' "$1"
}

# The learning rate whose runs are best on the average.
best_rate()
{
    for rate in $rates
    do
        echo "$rate $(last_loss "$results/$1-$rate-0") $(last_loss "$results/$1-$rate-1")"
    done | awk '$2 != "-" && $3 != "-" && (best == "" || $2 + $3 < best) { best = $2 + $3; rate = $1 }
        END { print rate }'
}

{
    echo "Held-out loss in nats per character after $steps steps, seeds 0 and 1"
    echo "(a run without a number left the finite numbers)"
    printf '%-12s' "rate"
    # shellcheck disable=SC2086
    printf '%-18s' $rates
    echo
    for norm in rms layer none
    do
        printf '%-12s' "$norm"
        for rate in $rates
        do
            printf '%-18s' "$(last_loss "$results/$norm-$rate-0") $(last_loss "$results/$norm-$rate-1")"
        done
        echo
    done
} | tee docs/transformer_norms.txt

for norm in rms layer none
do
    rate=$(best_rate $norm)
    for seed in $seeds
    do
        cp "$results/$norm-$rate-$seed" "$results/best-$norm-$seed"
    done
    echo "$rate" >$results/best-$norm
done
gnuplot -c tools/transformer_norms.gp $results docs/transformer_norms.png \
    "$(cat $results/best-rms)" "$(cat $results/best-layer)" "$(cat $results/best-none)"
echo "The curves: docs/transformer_norms.png"
