#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Counts instructions per call with callgrind in two builds of ctrt and prints them with their ratio. The counts do not
# depend on the load of the machine, so differences below 1 % are visible. Requires valgrind.
#
#   bench/instructions.sh BUILD OTHER_BUILD [CASE...]     e.g. bench/instructions.sh _build ../before/_build
#
# BUILD is a folder in which `make` has run, inside its source tree. Both builds run this tree's bench/overhead.c and
# bench/train.c, compiled against their own headers. A case is a name that these programs print. The count of a case is
# the difference between a run with 2 N calls and one with N calls, divided by N.
set -eu
[ $# -ge 2 ] || { sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
ours=$(cd "$1" && pwd)
theirs=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- add_1 empty_1 relu_1 add_inplace_1 add_grad_1 muladdsum_backward_1 mlp_64_256_256_10_sgd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS MKL_NUM_THREADS
export OMP_NUM_THREADS=1 CTRT_NUM_THREADS=1

# total BUILD CASE CALLS: instructions of the whole program.
total() {
    program=overhead
    case $2 in mlp_*) program=train ;; esac
    binary=$work/$program-$(echo "$1" | cksum | cut -d ' ' -f 1)
    [ -x "$binary" ] || ${CC:-cc} -O2 -std=gnu11 -I"$1/../include" -I"$1/include" -o "$binary" "$here/$program.c" \
        -L"$1/.libs" -lctrt
    LD_LIBRARY_PATH=$1/.libs CTRT_PLUGIN_PATH=$1/plugins-built TIMING_CASE=$2 TIMING_CALLS=$3 \
        valgrind --tool=callgrind --callgrind-out-file=/dev/null "$binary" 2>&1 |
        sed -n 's/^.*Collected : \([0-9]*\).*/\1/p'
}

# per_call BUILD CASE
per_call() {
    calls=2000
    case $2 in mlp_*) calls=4 ;; esac
    first=$(total "$1" "$2" "$calls")
    second=$(total "$1" "$2" $((2 * calls)))
    echo "$first $second $calls" | awk '{ printf "%.1f\n", ($2 - $1) / $3 }'
}

printf '%-28s %16s %16s %10s\n' case "instructions" "other build" ratio
for case in "$@"; do
    echo "$case $(per_call "$ours" "$case") $(per_call "$theirs" "$case")" |
        awk '{ printf "%-28s %16.1f %16.1f %9.3fx\n", $1, $2, $3, $2 / $3 }'
done
