#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the output of bench-gpu and of its PyTorch counterpart with ctrt's performance goals on a GPU.
#
#   bench/gpu_goals.sh FILE...      lines "ours|theirs NAME NANOSECONDS [BYTES]" of all rounds; gpu.sh writes them to
#                                   measured.txt. In lines of memory_NAME the number is bytes.
#
# Prints a line for each goal, "met" or "MISSED", and counts both; the exit status is 1 if one is missed. The goals,
# in speed:
#   products                    0.98 of direct calls of cuBLAS, and PyTorch's
#   single ops                  PyTorch's
#   ops on 1 GiB                0.90 of the bandwidth of a device copy, and PyTorch's
#   enqueue of an eager add     at most half of PyTorch's time
#   cached allocation           at most 100 ns
#   small training steps        1.5 times PyTorch's eager steps; captured, 3 times
#   large training steps        PyTorch's
#   peak memory of steps        PyTorch's
#   copies from pinned memory   0.95 of direct calls of the driver
#   copies with products        together at most 1.1 times the longer one's time
set -eu
[ $# -ge 1 ] || { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cat "$@" | sort -k2,2 -k1,1 -k3,3g | awk '
    function flush() { if (key != "") median[key] = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
    # The goal is met if ratio >= least. Cases that were not measured have no goal.
    function goal(name, what, ratio, least) {
        good = ratio >= least
        met += good; missed += !good
        printf "%-6s %-34s %-38s %8.3f, at least %.2f\n", good ? "met" : "MISSED", name, what, ratio, least | "sort"
    }
    function info(name, what, ratio) { printf "%-6s %-34s %-38s %8.3f\n", "info", name, what, ratio | "sort" }
    function ours(name) { return median[name " ours"] }
    function theirs(name) { return median[name " theirs"] }
    {
        k = $2 " " $1
        if (k != key) { flush(); key = k; n = 0 }
        v[++n] = $3
        if ($1 == "ours") { names[$2] = 1; if (NF > 3) bytes[$2] = $4 }
    }
    END {
        flush()
        single_op = "^(attention|conv|embedding|index_select|gather|softmax|log_softmax|layer_norm|batch_norm|" \
                    "cross_entropy|optimizer)_"
        for (name in names) {
            o = ours(name); t = theirs(name)
            if (name ~ /^matmul_/) {
                if (("cublas_" name) in names) goal(name, "of direct calls of cuBLAS", ours("cublas_" name) / o, 0.98)
                if (t != "") goal(name, "of PyTorch", t / o, 1)
            } else if (name ~ /_1g_/) {
                copy = name; sub(/^.*_1g_/, "copy_1g_", copy)
                if (name != copy && (copy in bytes))
                    goal(name, "of the bandwidth of " copy, bytes[name] / o / (bytes[copy] / ours(copy)), 0.90)
                if (t != "") goal(name, "of PyTorch", t / o, 1)
            } else if (name == "enqueue_add_64") {
                if (t != "") goal(name, "of PyTorch, enqueued", t / o, 2)
            } else if (name == "empty_64") {
                goal(name, "100 ns divided by its time", 100 / o, 1)
            } else if (name == "pinned_to_device_256m") {
                if (("driver_" name) in names)
                    goal(name, "of direct calls of the driver", ours("driver_" name) / o, 0.95)
                if (t != "") goal(name, "of PyTorch", t / o, 1)
            } else if (name == "overlap_both") {
                longer = ours("overlap_copies")
                if (ours("overlap_products") > longer) longer = ours("overlap_products")
                goal(name, "longer one divided by both together", longer / o, 0.91)
            } else if (name ~ /^memory_/) {
                if (t != "") goal(name, "of the peak memory of PyTorch", t / o, 1)
            } else if (name ~ /^step_.*_captured$/) {
                eager = name; sub(/_captured$/, "", eager)
                if (name ~ /_small_/ && theirs(eager) != "") goal(name, "of PyTorch, eager", theirs(eager) / o, 3)
                if (t != "") info(name, "of PyTorch, captured", t / o)
            } else if (name ~ single_op) {
                if (t != "") goal(name, "of PyTorch", t / o, 1)
            } else if (name ~ /^step_/) {
                if (t != "") goal(name, "of PyTorch, eager", t / o, name ~ /_small_/ ? 1.5 : 1)
                if (theirs(name "_compiled") != "") info(name, "of torch.compile", theirs(name "_compiled") / o)
            }
        }
        close("sort")
        printf "goals: %d met, %d missed\n", met, missed
        exit missed > 0
    }'
