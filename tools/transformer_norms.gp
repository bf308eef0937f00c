# License: Boost Software License   See LICENSE.txt for the full license.

# Draws the best runs of compare_norms.sh:
# gnuplot -c transformer_norms.gp FOLDER PICTURE RMS_RATE LAYER_RATE NONE_RATE

set terminal pngcairo size 800,500
set output ARG2
set xlabel "step"
set ylabel "held-out loss per character, nats"
set grid
file(norm, seed) = ARG1 . "/best-" . norm . "-" . seed
plot file("none", "0") using 1:3 with lines linecolor 3 title "none, learning rate " . ARG5, \
     file("none", "1") using 1:3 with lines linecolor 3 notitle, \
     file("layer", "0") using 1:3 with lines linecolor 2 title "layer norm, " . ARG4, \
     file("layer", "1") using 1:3 with lines linecolor 2 notitle, \
     file("rms", "0") using 1:3 with lines linecolor 1 linewidth 2 title "RMS norm, " . ARG3, \
     file("rms", "1") using 1:3 with lines linecolor 1 linewidth 2 notitle
