# License: Boost Software License   See LICENSE.txt for the full license.

# Draws what dnn_transformer_ex wrote: gnuplot -c transformer_curve.gp CURVE PICTURE

set terminal pngcairo size 800,500
set output ARG2
set xlabel "step"
set ylabel "loss per character, nats"
set grid
plot ARG1 using 1:2 with lines title "training", \
     ARG1 using 1:3 with lines linewidth 2 title "held out"
