# License: Boost Software License   See LICENSE.txt for the full license.
#
# Draws speed over row length against the bounds.
#   gnuplot -e "csv='rms_norm_benchmark.csv'; picture='rows.png'" rms_norm_benchmark_rows.gp

set terminal pngcairo noenhanced size 1200,680 font "DejaVu Sans,11"
set output picture
set datafile separator ","

# columns of the CSV file, see benchmark.sh
nc = 6; ratio_q1 = 11; ratio = 12; ratio_q3 = 13; gb_per_s = 17; bound_gb_per_s = 18

most_rows = int(system(sprintf( \
    "awk -F, '$2 == \"row\" && $5 > most {most = $5} END {print most}' '%s'", csv)))
rows(threads, pass, subject) = sprintf( \
    "< awk -F, '$1 == %d && $2 == \"row\" && $5 == %d && $7 == \"%s\" && $8 == \"%s\"' '%s'", \
    threads, most_rows, pass, subject, csv)
machine = system(sprintf("head -n 2 '%s' | sed 's/^# //; s/, threads.*//' | paste -sd ';' | sed 's|;|; |'", csv))
all_threads = system(sprintf( \
    "awk -F, '$8 == \"contrib\" && !seen[$1]++ {print $1}' '%s'", csv))
others = system(sprintf( \
    "awk -F, '$1 == 1 && $2 == \"row\" && $8 != \"contrib\" && !seen[$8]++ {print $8}' '%s'", csv))

# Rows with a residual have no line here, so those of float are left out.
others = system(sprintf("echo '%s' | sed 's/contrib_float //'", others))
title_of(s) = s eq "plain" ? "plain loops" : s eq "layer_norm" ? "dlib layer_norm" : \
    s eq "contrib_float16" ? "dlib::contrib, float16" : \
    s eq "contrib_bfloat16" ? "dlib::contrib, bfloat16" : \
    s eq "plain_float16" ? "plain loops, float16" : \
    s eq "plain_bfloat16" ? "plain loops, bfloat16" : "dlib rms_norm"
color_of(s) = s eq "plain" ? "#009e73" : s eq "plain_float16" ? "#66c2a4" : \
    s eq "plain_bfloat16" ? "#99d8c9" : s eq "layer_norm" ? "#d55e00" : \
    s eq "contrib_float16" ? "#56b4e9" : s eq "contrib_bfloat16" ? "#e69f00" : "#cc79a7"
dash_of(t) = int(t) == 1 ? 1 : 2
threads_of(t) = int(t) == 1 ? "1 thread" : t." threads"

set logscale x 2
set xtics (1024, 2048, 4096, 8192, 16384, 32768)
set xlabel "values per row"
set yrange [0:*]
set grid ytics lc rgb "#dddddd"
set bmargin 11
set border 3
set tics nomirror
set xrange [950:36000]
set key at graph 0, graph -0.17 left top maxrows 6 samplen 2 width -4 font ",9"

set multiplot layout 1,2 title machine."; others on 1 thread" font ",10"

do for [pass in "forward backward"] {
    bound = pass eq "forward" ? "memcpy" : "a[i] += b[i]*c[i]"
    limit = pass eq "forward" ? 1.15 : 1.35
    set title pass.": speed of the necessary memory traffic"
    set ylabel "GB/s (".(pass eq "forward" ? "8" : "16")." bytes per float, ". \
        (pass eq "forward" ? "4" : "6")." per 16-bit value)"
    plot for [t in all_threads] rows(int(t), pass, "contrib") \
            using nc:bound_gb_per_s with lines lw 2 dt dash_of(t) lc rgb "#888888" \
            title bound.", ".threads_of(t), \
        for [t in all_threads] rows(int(t), pass, "contrib") \
            using nc:(column(bound_gb_per_s)/limit) with lines lw 1 dt 3 lc rgb "#888888" \
            title (int(t) == 1 ? sprintf("target: %.2f x its time", limit) : ""), \
        for [t in all_threads] rows(int(t), pass, "contrib") \
            using nc:(column(bound_gb_per_s)/column(ratio)): \
                (column(bound_gb_per_s)/column(ratio_q3)):(column(bound_gb_per_s)/column(ratio_q1)) \
            with yerrorlines lw 2 dt dash_of(t) pt (int(t) == 1 ? 7 : 6) ps 1 \
            lc rgb "#0072b2" title "dlib::contrib, ".threads_of(t), \
        for [s in others] rows(1, pass, s) \
            using nc:gb_per_s with linespoints lw 2 pt 5 ps 0.7 lc rgb color_of(s) \
            title title_of(s)
}

unset multiplot
