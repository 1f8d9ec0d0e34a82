#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs two programs that print "NAME NANOSECONDS" lines in turns, so that other load affects both, and prints the
# medians and their ratio.
#
#   bench/compare.sh ROUNDS OURS THEIRS     two command lines, e.g. bench/compare.sh 5 ./bench-overhead ./overhead_torch
#
# COMPARE_RAW=FILE: every line is also written to FILE as soon as it is printed, with the prefix "ours" or "theirs".
#
# Unsets variables that slow one side down (OPENBLAS_CORETYPE and similar); THREADS=N (default 1) applies to both.
set -eu
[ $# -eq 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS MKL_NUM_THREADS
threads=${THREADS:-1}
export OMP_NUM_THREADS="$threads" CTRT_NUM_THREADS="$threads"
lines=${COMPARE_RAW:-}
[ -n "$lines" ] || { lines=$(mktemp) && trap 'rm -f "$lines"' EXIT; }
: >"$lines"
round=0
while [ "$round" -lt "$1" ]; do
    sh -c "$2" | sed -u 's/^/ours /' >>"$lines"
    sh -c "$3" | sed -u 's/^/theirs /' >>"$lines"
    round=$((round + 1))
done
sort -k2,2 -k1,1 -k3,3g "$lines" | awk '
    function flush() { if (key != "") median[key] = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
    { k = $2 " " $1; if (k != key) { flush(); key = k; n = 0 } v[++n] = $3; names[$2] = 1 }
    END {
        flush()
        printf "%-32s %14s %14s %10s\n", "case", "ours, ns", "theirs, ns", "ratio"
        for (name in names) {
            o = median[name " ours"]; t = median[name " theirs"]
            if (o != "" && t != "") printf "%-32s %14.1f %14.1f %9.2fx\n", name, o, t, t / o | "sort"
        }
    }'
