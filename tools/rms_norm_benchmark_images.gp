# License: Boost Software License   See LICENSE.txt for the full license.
#
# Draws how many times longer than their bounds the functions take for the shapes of a
# convolutional net.
#   gnuplot -e "csv='rms_norm_benchmark.csv'; picture='images.png'" rms_norm_benchmark_images.gp

set terminal pngcairo noenhanced size 1200,480 font "DejaVu Sans,11"
set output picture
set datafile separator ","

# columns of the CSV file, see benchmark.sh
ratio_q1 = 11; ratio = 12; ratio_q3 = 13

images(threads, pass, subject) = sprintf( \
    "< awk -F, '$1 == %d && $2 != \"row\" && $7 == \"%s\" && $8 == \"%s\"' '%s'", \
    threads, pass, subject, csv)
machine = system(sprintf("head -n 2 '%s' | sed 's/^# //; s/, threads.*//' | paste -sd ';' | sed 's|;|; |'", csv))
all_threads = system(sprintf( \
    "awk -F, '$8 == \"contrib\" && !seen[$1]++ {print $1}' '%s'", csv))
num_shapes = int(system(sprintf( \
    "awk -F, '$1 == 1 && $2 != \"row\" && $7 == \"forward\" && $8 == \"contrib\"' '%s' | wc -l", csv)))
shape(i) = strcol(2)."\n".strcol(4)."\n".strcol(5)."x".strcol(6)

set style fill solid 0.8 border lc rgb "black"
set bars 0.5
set xrange [-0.5:num_shapes - 0.15]
set yrange [0:*]
set ylabel "multiple of the bound's time"
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set xtics scale 0 font ",9"
set key below center samplen 2
set bmargin 8

set multiplot layout 1,2 title machine font ",10"

do for [pass in "forward backward"] {
    set title pass.", by axes, k and nr x nc (bound: ". \
        (pass eq "forward" ? "memcpy)" : "a[i] += b[i]*c[i])")
    plot for [t in all_threads] images(int(t), pass, "contrib") \
            using ($0 + 0.35*(int(t) - 1)):(column(ratio)):(column(ratio_q1)):(column(ratio_q3)):(0.35) \
            with boxerrorbars lc rgb (int(t) == 1 ? "#0072b2" : "#56b4e9") \
            title "dlib::contrib, ".(int(t) == 1 ? "1 thread" : t." threads"), \
        images(1, pass, "plain") using ($0 + 0.175):(column(ratio)) \
            with points pt 5 ps 1 lc rgb "#009e73" title "plain loops, 1 thread", \
        images(1, pass, "contrib") using ($0 + 0.175):(0):xtic(shape(0)) \
            with points pt 0 ps 0 notitle, \
        1 with lines lw 2 lc rgb "#888888" title "the bound", \
        1.3 with lines lw 1.5 dt 3 lc rgb "#888888" title "target: 1.3"
}

unset multiplot
