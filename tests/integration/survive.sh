#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that are lost while a program trains with CTRT_ON_FAILURE=shrink: the remaining ranks complete all steps with
# status 0 and equal parameters. SURVIVE_KILLS: number of runs in which each rank is killed (2; 1 with sanitizers).
# SURVIVE_STEPS: steps of each run (600). SURVIVE_ONLY=kills: only those runs. CTRT_TEST_MPIRUN: the mpirun of the
# tests with MPI.
#
# With sanitizers, of the six times at which a second rank is killed during the rebuild there are two: they find errors
# in the rebuild's code, and the plain tree finds those that depend on the time.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=$(cd "${builddir:-.}" && pwd)
. "$srcdir/tests/lib.sh"
ctrt=$builddir/ctrt
program=$builddir/survive-rank
steps=${SURVIVE_STEPS:-600}
kills=${SURVIVE_KILLS:-2} delays='1000 3000 6000 10000 20000 40000'
[ -z "${SANITIZE-}" ] || kills=1 delays='3000 20000'
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export CTRT_NUM_THREADS=1 CTRT_COMM_TIMEOUT=20
unset CTRT_COMM CTRT_STORE CTRT_STORE_SECRET RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT \
    CTRT_ON_FAILURE CTRT_JOIN

# job NAME COMMAND...: runs the command. Output and exit status are in $work/NAME.out and $work/NAME.status.
job() {
    name=$1
    shift
    timeout -k 2 "${limit:-100}" "$@" </dev/null >"$work/$name.out" 2>&1
    echo $? >"$work/$name.status"
}

# shrink NAME RANKS FAULT...: a job of RANKS ranks that may be lost.
shrink() {
    name=$1
    ranks=$2
    shift 2
    job "$name" "$ctrt" run -n "$ranks" --on-failure shrink "$program" $steps "$@"
}

results() { grep -E '^(\[[0-9]*\] )?result: ' "$work/$1.out"; }
value() { results "$1" | sed -n "s/.* $2 \([^ ,]*\).*/\1/p"; }

# survived NAME STATUS RANKS: requires the exit status, and results of RANKS ranks that have made all steps and have
# equal parameters. A rank may have no more descriptors and threads than before, and at most one more mapping, because
# the buckets of a group have one mapping while a rank uses them.
survived() {
    [ "$(cat "$work/$1.status")" = "$2" ] || echo "exit status $(cat "$work/$1.status"), expected $2"
    [ "$(results "$1" | grep -c "of $3, $steps steps, $steps optimizer steps,")" = "$3" ] || echo "not $3 results"
    [ "$(value "$1" hash | sort -u | wc -l)" = 1 ] || echo "the ranks have different parameters"
    results "$1" | sed 's/.* descriptors //; s/[a-z,]//g' |
        awk '$2 > $1 || $4 > $3 + 1 || $6 > $5 { print "leaks: descriptors, mappings, threads " $0 }'
}
# loss_fits NAME: requires a loss between those of uninterrupted runs of 4 ranks and of 1, with a margin of a half.
loss_fits() {
    value "$1" loss | awk -v most="$most" -v least="$least" '
        !($1 > least / 2 && $1 < most * 1.5) { print "loss " $1 ", uninterrupted " least " to " most }'
}
# explain NAME DETAILS: the details with the end of the output, if there are any.
explain() { [ -z "$2" ] || { echo "$2"; tail -n 25 "$work/$1.out"; }; }

# --- without faults --------------------------------------------------------------------------------------------------

for ranks in 1 4; do
    job "whole$ranks" "$ctrt" run --prefix -n $ranks "$program" $steps
    value "whole$ranks" loss
done >"$work/losses"
least=$(sort -g "$work/losses" | head -n 1)
most=$(sort -g "$work/losses" | tail -n 1)
shrink whole 4
check "without a fault, shrink changes no bit" "$(explain whole "$(survived whole 0 4
    [ "$(value whole hash | sort -u)" = "$(value whole4 hash | sort -u)" ] || echo "other parameters")")"

# --- ranks that are killed at random times ---------------------------------------------------------------------------

# points SEED COUNT: COUNT random points of the training: STEP:MICROSECONDS, with at most 2 ms, about the time of two
# steps.
points() {
    awk -v seed="$1" -v count="$2" -v steps=$steps '
        BEGIN { srand(seed); for (i = 0; i < count; i++) print int(rand() * (steps - 50)) ":" int(rand() * 2000) }'
}
seed=${SURVIVE_SEED:-4711}
for rank in 0 1 2 3; do
    for point in $(points "$seed$rank" "$kills"); do
        job=kill$rank-$point
        shrink "$job" 4 "$rank:kill:$point"
        details=$(survived "$job" 0 3; loss_fits "$job"
            grep -q "rank $rank (.*) is lost" "$work/$job.out" || echo "rank $rank is not reported as lost")
        [ -z "$details" ] || { echo "killed at $point: $(explain "$job" "$details")"; }
    done >"$work/kills$rank"
    check "rank $rank of 4 is killed, $kills times (seed $seed$rank)" "$(cat "$work/kills$rank")"
done

[ "${SURVIVE_ONLY-}" != kills ] || finish

# --- the table: name, ranks left, faults -----------------------------------------------------------------------------

table() {
    echo "two-at-once 2 1:kill:500:0 2:kill:500:0"
    echo "two-with-the-first 2 0:kill:500:0 3:kill:500:0"
    echo "three-at-once 1 0:kill:500:0 1:kill:500:0 3:kill:500:0"
    echo "one-after-the-other 1 0:kill:120:300 2:kill:250:600 1:kill:500:900"
    echo "in-the-last-step 3 1:kill:$((steps - 1)):0"
    # The agreement and the new group take some milliseconds.
    for delay in $delays; do
        echo "during-the-rebuild-$delay 2 3:kill:300:0 1:kill:300:$delay"
        echo "first-during-the-rebuild-$delay 2 2:kill:300:0 0:kill:300:$delay"
    done
    echo "returns 3 2:return:500:0"
    echo "the-first-returns 3 0:return:500:0"
}
table | while read -r name left faults; do
    shrink "$name" 4 $faults
    echo "$name $left $faults" >>"$work/table"
done
while read -r name left faults; do
    check "$name: $faults" "$(explain "$name" "$(survived "$name" 0 "$left"; loss_fits "$name")")"
done <"$work/table"

# --- a stopped rank that wakes later, a rank that joins ---------------------------------------------------------------

PAUSE_US=6000 CTRT_COMM_TIMEOUT=1 shrink stop 4 2:stop:50:0
check "a stopped rank is excluded, wakes up and says so" "$(explain stop "$(survived stop 0 3
    grep -qE '^\[2\] error: .*rank 2 of group world is excluded: it did not answer in time, and the ranks 0, 1, 3' \
        "$work/stop.out" || echo "no message of rank 2")")"
CTRT_COMM_TIMEOUT=1 shrink stay 4 1:stop:500:0
check "a stopped rank is ended when the others have ended" "$(explain stay "$(survived stay 0 3)")"

PAUSE_US=1000 job join "$ctrt" run -n 4 --restart 2 "$program" $steps 2:kill:300:0 0:kill:500:0
check "ranks that are started again join the others, twice" "$(explain join "$(survived join 0 4
    [ "$(grep -o 'joins as rank' "$work/join.out" | wc -l)" -ge 2 ] || echo "no rank has joined")")"

# Rank 2 does not belong to the group at first.
PAUSE_US=2000 job later "$ctrt" run -n 3 --on-failure shrink sh -c '
    export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
    [ "$RANK" != 2 ] || { sleep 0.7; export RANK=0 LOCAL_RANK=0 CTRT_JOIN=yes; }
    exec "$0" "$@"' "$program" $steps
check "a rank joins between two steps" "$(explain later "$(survived later 0 3
    grep -q 'epoch 1 with 3 ranks: .* joins as rank 2$' "$work/later.out" || echo "no rank has joined"
    ! grep 'ctrt: error' "$work/later.out")")"

# Rank 2 has another module. The ranks of the group cannot continue with it, and continue without it.
PAUSE_US=4000 job other "$ctrt" run -n 3 --prefix --on-failure shrink sh -c '
    export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
    [ "$RANK" != 2 ] || { sleep 0.7; export RANK=0 LOCAL_RANK=0 CTRT_JOIN=yes HIDDEN=13; }
    exec "$0" "$@"' "$program" $steps
check "a process with another module cannot join, and the others continue" "$(explain other "$(survived other 0 2
    grep -q '^\[2\] error: .*rank 2: parameter "0.weight", f32 \[13, 6\], but on rank 0 parameter "0.weight"' \
        "$work/other.out" || echo "no message of the process"
    grep -q 'epoch 1 with 3 ranks' "$work/other.out" || echo "it was not admitted")")"

job ended "$ctrt" run -n 2 --prefix --on-failure shrink sh -c '
    "$0" 20 && [ "$RANK" = 1 ] || exit 0
    sleep 0.5
    CTRT_JOIN=yes CTRT_COMM_TIMEOUT=10 "$0" 20' "$program"
check "a process cannot join a group that has ended" "$(explain ended "$(
    grep -q '^\[1\] error: .*group world has ended before it admitted this process' "$work/ended.out" ||
        echo "no message")")"

# --- jobs that must end -----------------------------------------------------------------------------------------------

job default "$ctrt" run -n 3 --grace 1 "$program" $steps 1:kill:300:0
check "without CTRT_ON_FAILURE=shrink the job ends" "$(explain default "$(
    grep -qxE '1|137' "$work/default.status" || echo "exit status $(cat "$work/default.status")"
    grep -q 'error: .* rank 1 (.*) has ended' "$work/default.out" || echo "no report")")"

job all "$ctrt" run -n 2 --on-failure shrink "$program" $steps 0:kill:300:0 1:kill:300:0
check "all ranks are killed: the status is that of the first" "$(explain all "$(
    [ "$(cat "$work/all.status")" = 137 ] || echo "exit status $(cat "$work/all.status")")")"

# Rank 0 serves the store, so the store ends with rank 0.
port=$((20000 + $$ % 10000))
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        CTRT_ON_FAILURE=shrink job served$rank "$program" $steps 0:kill:20:0 &
done
wait
check "rank 0 serves the store and is lost" "$(explain served1 "$(
    [ "$(cat "$work/served1.status")" = 1 ] || echo "exit status $(cat "$work/served1.status")"
    grep -q 'error: .*because rank 0 has ended, which served the store .*`ctrt run`' "$work/served1.out" ||
        echo "no message")")"

# --- MPI --------------------------------------------------------------------------------------------------------------

mpirun=${CTRT_TEST_MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# ulfm NAME MACHINES FAULT...: 4 ranks of Open MPI 5, whose store ctrt run serves.
ulfm() {
    name=$1
    CTRT_MPI_MACHINES=$2
    export CTRT_MPI_MACHINES
    shift 2
    job "$name" "$ctrt" run -n 1 env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE -u MASTER_ADDR \
        -u MASTER_PORT CTRT_ON_FAILURE=shrink "$mpirun" --with-ft ulfm -n 4 "$program" $steps "$@"
}
case $($mpirun --version 2>/dev/null | head -n 1) in
    *'Open MPI'*' 4.'*) version=4 ;;
    *'Open MPI'*' 5.'*) version=5 ;;
    *) version= ;;
esac
if grep -q '__[atu]*san_init' "$builddir/.libs/survive-rank" "$program" 2>/dev/null; then
    version=                            # sanitizers report leaks and races within MPI libraries
fi
[ -f "$builddir/plugins-built/comm-mpi.so" ] || version=
if [ "$version" = 5 ]; then
    for machines in 0 2 4; do
        ulfm "mpi-one-$machines" $machines 2:kill:300:0
        check "Open MPI 5, $machines machines: a rank is killed" "$(explain "mpi-one-$machines" "$(
            survived "mpi-one-$machines" 0 3)")"
        ulfm "mpi-two-$machines" $machines 0:kill:300:0 3:kill:500:0
        check "Open MPI 5, $machines machines: the first, then another one" "$(explain "mpi-two-$machines" "$(
            survived "mpi-two-$machines" 0 2)")"
    done
else
    skip "Open MPI 5: ranks are killed" "no mpirun of Open MPI 5, or sanitizers"
fi
if [ "$version" = 4 ]; then
    CTRT_ON_FAILURE=shrink job mpi4 "$mpirun" -n 3 "$program" $steps 2:return:300:0
    check "Open MPI 4 cannot go on, and says what is needed" "$(explain mpi4 "$(
        [ "$(cat "$work/mpi4.status")" != 0 ] || echo "exit status 0"
        grep -q 'no MPIX_Comm_shrink.*needs Open MPI 5' "$work/mpi4.out" || echo "no message")")"
else
    skip "Open MPI 4 cannot go on, and says what is needed" "no mpirun of Open MPI 4, or sanitizers"
fi

# --- processes that are left ------------------------------------------------------------------------------------------

left_over() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe" 2>/dev/null)" = "$(readlink -f "$program")" ] || continue
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null
    done
}
for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -n "$(left_over)" ] || break
    sleep 1
done
check "no process is left" "$(left_over)"
finish
