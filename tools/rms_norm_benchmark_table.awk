# License: Boost Software License   See LICENSE.txt for the full license.
#
# Turns the CSV file of the benchmark into a table that can be read at a glance: one line per
# shape, the passes beside each other, what a second thread brings, and a list of the targets that
# were missed.

BEGIN {
    FS = ","
    num_passes = split("forward backward both forward_read", passes, " ")
    num_row_passes = split("forward backward fused_forward fused_backward add+forward add+backward",
        row_passes, " ")
}

/^#/ {
    if (!($0 in seen))
        print
    seen[$0]
    next
}

$1 == "threads" {
    for (i = 1; i <= NF; i++)
        column[$i] = i
    next
}

{
    axes = $column["axes"]
    if (axes == "row")
        shape = $column["num_samples"]*$column["k"]*$column["nr"] "x" $column["nc"]
    else
        shape = $column["num_samples"] "x" $column["k"] "x" $column["nr"] "x" $column["nc"]
    what = sprintf("%-8s%s", axes, shape)
    threads = $column["threads"]
    pass = $column["pass"]
    subject = $column["subject"]
    key = threads SUBSEP subject SUBSEP what SUBSEP pass

    add(thread_list, threads)
    if (subject ~ /^contrib_/)
        add(row_list, subject)
    else
        add(subject_list, subject)
    add(shape_list, what)
    ratio[key] = $column["ratio"]
    spread[key] = sprintf("%.2f [%.2f %.2f]", $column["ratio"], $column["ratio_q1"], $column["ratio_q3"])
    us[key] = $column["us"]
    values[what] = $column["num_samples"]*$column["k"]*$column["nr"]*$column["nc"]
    # A few rows are in the cache, and what a call costs is no matter of moving bytes.
    in_cache[what] = $column["bound"] == "plain loops"
    if (in_cache[what])
    {
        add(subject_list, "plain")
        us[threads, "plain", what, pass] = $column["bound_us"]
    }
    kept[subject, what] = $column["kept_bytes"]

    if (subject ~ /^contrib/ && $column["target_ratio"] != "")
        judge($column["ratio"] + 0, $column["target_ratio"], $column["bound"])
}

function add(list, item,    i)
{
    for (i = 1; i <= list[0]; i++)
        if (list[i] == item)
            return
    list[++list[0]] = item
}

function judge(value, target, unit)
{
    targets++
    if (value > target)
        misses[++num_misses] = sprintf("    %-22s%-10s%-18s%d thread%s  %.2f x %s, target %s",
            what, subject == "contrib" ? "" : substr(subject, 9), pass, threads, threads == 1 ? " " : "s", value, unit, target)
}

END {
    for (t = 1; t <= thread_list[0]; t++)
    {
        threads = thread_list[t]
        printf "\nTime as a multiple of the bound on %d thread%s: median [quartiles]\n", threads,
            threads == 1 ? "" : "s"
        printf "%-22s", ""
        for (p = 1; p <= num_passes; p++)
            printf "%-21s", passes[p]
        print ""
        for (i = 1; i <= shape_list[0]; i++)
        {
            what = shape_list[i]
            if (in_cache[what])
                continue
            printf "%-22s", what
            for (p = 1; p <= num_passes; p++)
                printf "%-21s", spread[threads, "contrib", what, passes[p]]
            print ""
        }
    }

    for (t = 1; t <= thread_list[0]; t++)
        print_rows_behind_pointers(thread_list[t])

    if (thread_list[0] > 1)
        print_second_thread()

    print "\nThe others on 1 thread, median multiple of the bound: forward, backward"
    printf "%-22s", ""
    for (s = 1; s <= subject_list[0]; s++)
        printf "%-16s", subject_list[s]
    print ""
    for (i = 1; i <= shape_list[0]; i++)
    {
        what = shape_list[i]
        if (!in_cache[what])
            print_line("%.2f  %.2f", ratio)
    }

    print "\nA few rows on 1 thread, microseconds: forward, backward"
    for (i = 1; i <= shape_list[0]; i++)
    {
        what = shape_list[i]
        if (in_cache[what])
            print_line("%.2f  %.2f", us)
    }

    what = shape_list[1]
    printf "\nBytes kept from forward to backward besides the input, %s:\n   ", what
    for (s = 1; s <= subject_list[0]; s++)
        printf " %s %d%s", subject_list[s], kept[subject_list[s], what],
            s < subject_list[0] ? "," : "\n"

    if (targets > 0)
        printf "\n%d of %d targets met.\n", targets - num_misses, targets
    if (num_misses > 0)
        print "Missed:"
    for (i = 1; i <= num_misses; i++)
        print misses[i]
}

function print_rows_behind_pointers(threads,    i, p, s, key)
{
    printf "\nRows behind pointers on %d thread%s: fused with the addition of a residual, and as a\n" \
        "multiple of addition and pass one after the other\n%-22s", threads, threads == 1 ? "" : "s", ""
    for (p = 1; p <= num_row_passes; p++)
        printf "%-16s", row_passes[p]
    print ""
    for (s = 1; s <= row_list[0]; s++)
    {
        print row_list[s]
        for (i = 1; i <= shape_list[0]; i++)
        {
            what = shape_list[i]
            if (!((threads SUBSEP row_list[s] SUBSEP what SUBSEP "fused_forward") in ratio))
                continue
            printf "%-22s", what
            for (p = 1; p <= num_row_passes; p++)
            {
                key = threads SUBSEP row_list[s] SUBSEP what SUBSEP row_passes[p]
                printf "%-16s", key in ratio ? sprintf("%.2f", ratio[key]) : "-"
            }
            print ""
        }
    }
}

function print_second_thread(    i, p)
{
    threads = thread_list[2]
    printf "\nTime on %d threads as a multiple of that on 1\n%-22s%-10s%-10s\n", threads, "",
        "forward", "backward"
    for (i = 1; i <= shape_list[0]; i++)
    {
        what = shape_list[i]
        if (values[what] <= 65536)
            continue
        printf "%-22s", what
        for (p = 1; p <= 2; p++)
            printf "%-10.2f", ratio[threads, "contrib", what, passes[p] "_threads"]
        print ""
    }
}

function print_line(format, value,    s, key)
{
    printf "%-22s", what
    for (s = 1; s <= subject_list[0]; s++)
    {
        key = 1 SUBSEP subject_list[s] SUBSEP what SUBSEP
        if ((key "forward") in value)
            printf "%-16s", sprintf(format, value[key "forward"], value[key "backward"])
        else
            printf "%-16s", "-"
    }
    print ""
}
