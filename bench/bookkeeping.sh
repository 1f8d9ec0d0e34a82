#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the cost of memory accounting, of stream ordering and of block owners: runs a training step of small ops
# (smallstep.c) in turns on builds of the library, each without one of them.
#
#   bench/bookkeeping.sh ROUNDS FOLDER [DEVICE...]    builds four trees in FOLDER, kept for the next run; default
#                                                     devices: cpu sim:0
#
# The builds serve no other purpose: without ordering, results on several streams are wrong, and without accounting,
# there are no memory statistics.
set -eu
[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$(cd "$(dirname "$0")/.." && pwd)
rounds=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- cpu sim:0
unset OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS CTRT_PLUGIN_PATH
export CTRT_NUM_THREADS=1 CTRT_SIM=devices=1
builds="all COUNTERS ORDER OWNERS"
for build in $builds; do
    mkdir -p "$folder/$build"
    (
        cd "$folder/$build"
        [ -f Makefile ] || "$source/configure" -q CPPFLAGS="-DCTRT_WITHOUT_$build" >configure.out 2>&1
        make -s all bench-smallstep >make.out 2>&1 || { tail -n 20 make.out; exit 1; }
    )
done
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
while [ "$rounds" -gt 0 ]; do
    for build in $builds; do
        for device in "$@"; do
            CTRT_PLUGIN_PATH=$folder/$build/plugins-built CTRT_DEVICE=$device "$folder/$build/bench-smallstep" |
                sed "s/^/$build /" >>"$lines"
        done
    done
    rounds=$((rounds - 1))
done
sort -k2,2 -k1,1 -k3,3g "$lines" | awk '
    function flush() { if (key != "") median[key] = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
    { k = $2 " " $1; if (k != key) { flush(); key = k; n = 0 } v[++n] = $3; devices[$2] = 1 }
    END {
        flush()
        printf "%-8s %-22s %12s %9s\n", "device", "build", "step, ns", "share"
        for (device in devices) {
            whole = median[device " all"]
            printf "%-8s %-22s %12.0f\n", device, "everything", whole
            split("COUNTERS ORDER OWNERS", without, " ")
            for (i = 1; i <= 3; i++) {
                part = median[device " " without[i]]
                printf "%-8s %-22s %12.0f %8.1f%%\n", device, "without " tolower(without[i]), part,
                       100 * (whole - part) / whole
            }
        }
    }'
