#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures training on the CPU beside other programs: alone, beside one and three copies of itself, and with a quota of
# processor time (1.5 processors, or three quarters of them if there are fewer than 2).
#
#   bench/competitors.sh BUILD [SECONDS [CASE...]]        e.g. bench/competitors.sh _build 4
#
# BUILD is a folder in which `make all bench-train` has run, inside its source tree; examples/digits.c is compiled
# here. A case is "digits" or a name that bench-train prints. The first column is steps (digits: images) per second,
# alone. The others are the share of a fair part. With n programs, that is n times the mean rate divided by the rate
# alone. With a quota, it is the rate divided by the rate alone and by the part of the processors that the quota grants.
# 1 is ideal; more than 1 is possible because the second thread adds less than the first.
#
# ROUNDS repeats everything and prints medians (default 3). If other programs use the machine, run this with a higher
# priority (nice -n -5), so that the programs compete with each other only. A quota requires root and a control group
# with the controller cpu.
set -eu
[ $# -ge 1 ] || { sed -n '3,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
shift
seconds=${1:-4}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- digits mlp_64_256_256_10_sgd mlp_784_1024_1024_10_adamw cnn_28x28_sgd transformer_256_4_adamw
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS MKL_NUM_THREADS
work=$(mktemp -d)
group=
cleanup() {
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
train=$build/bench-train
[ ! -x "$build/.libs/bench-train" ] || train=$build/.libs/bench-train
${CC:-cc} -O2 -std=gnu11 -I"$build/../include" -I"$build/include" -o "$work/digits" "$here/examples/digits.c" \
    -L"$build/.libs" -lctrt -lm
LD_LIBRARY_PATH=$build/.libs CTRT_PLUGIN_PATH=$build/plugins-built TIMING_SECONDS=$seconds
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH TIMING_SECONDS

# rate CASE: runs one program and prints its steps per second. Training of the digits takes as long as its epochs take.
rate() {
    if [ "$1" = digits ]; then
        mkdir "$work/$2"
        (cd "$work/$2" && "$work/digits" --model mlp --epochs "$epochs" --data "$here/examples/data/digits.csv") |
            tr '\r' '\n' | sed -n 's/.* \([0-9]*\) images\/s.*/\1/p' | tail -1
        rm -rf "${work:?}/$2"
    else
        TIMING_CASE=$1 "$train" | awk '{ printf "%.6g\n", 1e9 / $2 }'
    fi
}

# together CASE N: runs N programs at the same time and prints the mean of their rates.
together() {
    pids=
    for i in $(seq "$2"); do
        rate "$1" "$i" >"$work/rate-$i" &
        pids="$pids $!"
    done
    for pid in $pids; do
        wait "$pid"
    done
    for i in $(seq "$2"); do
        cat "$work/rate-$i"
    done | awk '{ sum += $1 } END { printf "%.6g\n", sum / NR }'
}

# Creates a control group with a quota and prints its folder and the quota in processors.
make_group() {
    processors=$(nproc)
    quota=$(awk -v n="$processors" 'BEGIN { printf "%d", (n < 2 ? 0.75 * n : 1.5) * 100000 }')
    own=$(sed -n 's/^[0-9]*:\([a-z_,]*,\)*cpu\(,[a-z_,]*\)*:\(.*\)$/\3/p' /proc/self/cgroup)
    one=/sys/fs/cgroup/cpu$own/ctrt-competitors-$$ two=/sys/fs/cgroup/ctrt-competitors-$$
    if mkdir "$one" 2>/dev/null; then
        group=$one
        echo 100000 >"$one/cpu.cfs_period_us" && echo "$quota" >"$one/cpu.cfs_quota_us"
    elif mkdir "$two" 2>/dev/null; then
        group=$two
        echo "$quota 100000" >"$two/cpu.max" || { rmdir "$two"; group=; }
    fi
}
make_group

# limited CASE: as `together CASE 1`, in the control group.
limited() {
    sh -c 'echo $$ >"$0/cgroup.procs"; exec sleep 0' "$group" || { echo 0; return; }
    (echo "$(exec sh -c 'echo $PPID')" >"$group/cgroup.procs"; rate "$1" quota)
}

epochs=400
if [ "$1" = digits ]; then                      # as many epochs as take about SECONDS alone
    epochs=$(rate digits first | awk -v s="$seconds" '{ n = int($1 * s / 1438); print (n > 10 ? n : 10) }')
fi
for round in $(seq "${ROUNDS:-3}"); do
    for case in "$@"; do
        alone=$(together "$case" 1) one=$(together "$case" 2) three=$(together "$case" 4)
        part=0
        [ -z "$group" ] || part=$(limited "$case")
        echo "$case $alone $one $three $part"
    done
done >"$work/rates"
printf '%-30s %12s %14s %14s %14s\n' case "alone, 1/s" "1 competitor" "3 competitors" \
    "$([ -n "$group" ] && echo "quota" || echo "no quota")"
for case in "$@"; do
    for column in 2 3 4 5; do
        awk -v c="$case" -v k="$column" '$1 == c { print (k == 2 ? $2 : $k / $2) }' "$work/rates" | sort -g |
            awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
    done | tr '\n' ' ' | awk -v c="$case" -v q="${quota:-0}" -v n="$(nproc)" '{
        share = $4 > 0 ? sprintf("%.2f", $4 * n * 100000 / q) : "-"
        printf "%-30s %12.1f %14.2f %14.2f %14s\n", c, $1, 2 * $2, 4 * $3, share }'
done
