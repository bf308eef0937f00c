# License: Boost Software License   See LICENSE.txt for the full license.

# Computes how training over MPI scales to many machines, from what tools/scaling_mpi.sh has measured
# on one and two ranks. docs/data_parallel.md states the assumptions.

function rounds_up(x) { return int(x) == x ? x : int(x) + 1 }

# One message of so many bytes, in pieces of a megabyte as mpi_ranks sends it, in ms.
function message(bytes) {
    return rounds_up(bytes / 1048576) * latency[net] + bytes / bandwidth[net]
}

# Halves of halves there and back, as mpi_ranks::sum().
function halving(nodes,    size, ms) {
    ms = 0
    for (size = bytes / 2; nodes > 1; nodes /= 2) {
        ms += 2 * message(size)
        size /= 2
    }
    return ms
}

# Recursive doubling with whole buffers.
function doubling(nodes,    ms) {
    for (ms = 0; nodes > 1; nodes /= 2)
        ms += message(bytes)
    return ms
}

function ring(nodes) { return 2 * (nodes - 1) * message(bytes / nodes) }

# What adding up costs in memory: measured on two ranks, where each adds up one half.
function memory(nodes) { return 2 * (1 - 1 / nodes) * adding }

$1 == 1 { one = $3; pieces = $2 }
$1 == 2 { two = $3; adding = $6; bytes = $7 * 1e6 }

END {
    if (!bytes) {
        print "There is nothing to compute from: that needs two cores."
        exit
    }
    split("10 25 100", speed)
    split("0.05 0.02 0.005", latency)
    for (net = 1; net <= 3; ++net)
        bandwidth[net] = speed[net] * 1e9 / 8 / 1e3

    printf "adding %.2f MB of gradients over nodes, in ms on the network\n", bytes / 1e6
    printf "  %5s", "nodes"
    for (net = 1; net <= 3; ++net)
        printf "   %8s  %8s  %8s", speed[net] " Gbit", "ring", "whole"
    print ""
    for (nodes = 8; nodes <= 1024; nodes *= 2) {
        printf "  %5d", nodes
        for (net = 1; net <= 3; ++net)
            printf "   %8.2f  %8.2f  %8.2f", halving(nodes), ring(nodes), doubling(nodes)
        print ""
    }

    split("1 10 100", faster)
    printf "\nweak scaling: percent of the time that a node computes, %d pieces per node and step\n",
        pieces
    printf "  %5s", "nodes"
    for (f = 1; f <= 3; ++f)
        for (net = 1; net <= 3; ++net)
            printf "  %9s", faster[f] "x, " speed[net]
    print "   (x: a node so many times as fast as one core here; Gbit/s)"
    for (nodes = 8; nodes <= 1024; nodes *= 2) {
        printf "  %5d", nodes
        for (f = 1; f <= 3; ++f)
            for (net = 1; net <= 3; ++net) {
                compute = one / faster[f]
                printf "  %9.1f", 100 * compute / (compute + memory(nodes) / faster[f] + halving(nodes))
            }
        print ""
    }

    # What a rank does whatever its share is: the solvers, copying parameters.
    fixed = 2 * (two - adding) - one
    if (fixed < 0)
        fixed = 0
    printf "\nstrong scaling: speed-up with 1024 pieces in a batch; %.1f ms of a step are not shared\n",
        fixed
    printf "  %5s  %9s  %9s  %9s   (Gbit/s)\n", "nodes", speed[1], speed[2], speed[3]
    whole = (one - fixed) * 1024 / pieces
    for (nodes = 8; nodes <= 1024; nodes *= 2) {
        printf "  %5d", nodes
        for (net = 1; net <= 3; ++net)
            printf "  %9.1f", (whole + fixed) / (whole / nodes + fixed + memory(nodes) + halving(nodes))
        print ""
    }
}
