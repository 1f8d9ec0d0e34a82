#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Counts the instructions that an op needs in the calling thread, with callgrind, on a device with members and on one of
# its members. Requires valgrind.
#
#   bench/layouts.sh BUILD [CASE...]
#
# BUILD is a folder in which `make` and `make bench-layouts` have run. With `make softcuda` nccl-multi is measured over
# the software CUDA driver (tests/softcuda), else sim-multi. A case is a name that bench-layouts prints. The count of a
# case is the difference between a run with 2 N calls and one with N calls, divided by N. Kernels and copies run in
# threads of the driver, which are not counted. `over` is what remains after subtracting the member's count, multiplied
# by the number of members: the cost of the layouts.
set -eu
[ $# -ge 1 ] || { sed -n '3,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- empty add add_inplace relu_sharded add_sharded linear_replicated linear_columns linear_rows \
    sgd_step_2 sgd_step_16
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS MKL_NUM_THREADS
export OMP_NUM_THREADS=1 CTRT_NUM_THREADS=1 LC_ALL=C
if [ -e "$build/tests/softcuda/libcuda.so.1" ]; then
    base=cuda multi=nccl-multi
    export CTRT_PLUGIN_PATH="$build/softcuda-plugins" LD_LIBRARY_PATH="$build/.libs:$build/tests/softcuda"
    export SOFTCUDA=devices=4,memory=256m
else
    base=sim multi=sim-multi
    export CTRT_PLUGIN_PATH="$build/plugins-built" LD_LIBRARY_PATH="$build/.libs" CTRT_SIM=devices=4
fi
program=$build/.libs/bench-layouts
[ -x "$program" ] || program=$build/bench-layouts

# total DEVICE MEMBERS CASE CALLS: instructions of the first thread. MEMBERS is not used by a device without members.
total() {
    rm -f "$work"/out*
    CTRT_DEVICE=$1 CTRT_SIM_MULTI=$2 CTRT_NCCL_MULTI=$2 TIMING_CASE=$3 TIMING_CALLS=$4 \
        valgrind --tool=callgrind --separate-threads=yes --callgrind-out-file="$work/out" "$program" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    sed -n 's/^totals: //p' "$work/out-01"
}

# per_call DEVICE MEMBERS CASE
per_call() {
    calls=${CALLS:-50}
    first=$(total "$1" "$2" "$3" "$calls")
    second=$(total "$1" "$2" "$3" $((2 * calls)))
    echo $(((second - first) / calls))
}

printf '%-20s %10s' "instructions" "$base:0"
for n in 1 2 4; do printf ' %10s %8s' "$n members" over; done
echo
members=
for case in "$@"; do
    own=$(per_call "$base:0" "" "$case")
    printf '%-20s %10d' "$case" "$own"
    members=
    for n in 1 2 3 4; do
        members=$members${members:+,}$base:$((n - 1))
        [ $n -ne 3 ] || continue
        count=$(per_call "$multi:0" "$members" "$case")
        printf ' %10d %8d' "$count" $((count - n * own))
    done
    echo
done
