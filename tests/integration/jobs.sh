#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two jobs with one address of the store: they never train together, whoever starts them, and the second one does not
# disturb the first. REPEAT: how often each job is started (2).
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=$(cd "${builddir:-.}" && pwd)
. "$srcdir/tests/lib.sh"
ctrt=$builddir/ctrt
rank=$builddir/job-rank
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset CTRT_COMM CTRT_STORE CTRT_STORE_SECRET CTRT_JOB RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR \
    MASTER_PORT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export CTRT_NUM_THREADS=1 CTRT_COMM_TIMEOUT=20
repeat=${REPEAT:-2}

# by_hand NAME VARIABLE=VALUE... COMMAND...: two ranks, each with the variables, as a script starts them. The output
# goes to $work/NAME.R.
by_hand() {
    name=$1
    shift
    for number in 0 1; do
        if [ "${slurm:-}" ]; then variables="SLURM_PROCID=$number SLURM_STEP_NUM_TASKS=2"
        else variables="RANK=$number WORLD_SIZE=2"
        fi
        # shellcheck disable=SC2086
        env $variables "$@" >"$work/$name.$number" 2>"$work/$name.$number.err" &
    done
}

# joined NAME: waits until the job has made its first collective.
joined() {
    tries=0
    until grep -q 'has joined' "$work/$1".*err 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 500 ] || { echo "$1 has not joined"; return; }
        sleep 0.02
    done
}

# results NAME: what the ranks have printed, in one line; an error without its text.
results() {
    cat "$work/$1".? "$work/$1.out" 2>/dev/null | sort | sed 's/error: .*/error/' | tr '\n' ' '
}

# two_jobs DESCRIPTION REFUSED SETTINGS_A SETTINGS_B: the second job starts while the first one runs. The first one
# has the right results, and both ranks of the second one fail with the words REFUSED.
two_jobs() {
    wrong=
    for turn in $(seq "$repeat"); do
        port=$("$builddir/run-rank" port)
        rm -f "$work"/*
        # shellcheck disable=SC2086
        by_hand a MASTER_ADDR=localhost MASTER_PORT="$port" $3 "$rank" sum 1 150 10
        joined a
        # shellcheck disable=SC2086
        by_hand b MASTER_ADDR=localhost MASTER_PORT="$port" $4 "$rank" sum 100 150 10
        wait
        [ "$(results a)$(results b)" = "rank 0: 2 rank 1: 2 rank 0: error rank 1: error " ] &&
            [ "$(cat "$work"/b.? | grep -c "$2")" = 2 ] || wrong="$wrong turn $turn: $(cat "$work"/[ab].?)"
    done
    check "$1" "$wrong"
}

two_jobs "two jobs that a script has started" 'MASTER_PORT' TEST=a TEST=b
two_jobs "two jobs with CTRT_JOB" 'belongs to another job (a; this process: b)' CTRT_JOB=a CTRT_JOB=b
two_jobs "two jobs of torchrun" 'belongs to another job' TORCHELASTIC_RUN_ID=4711 TORCHELASTIC_RUN_ID=4712
two_jobs "two jobs with a file" 'MASTER_PORT' "CTRT_STORE=file://$work/store" "CTRT_STORE=file://$work/store"
two_jobs "two jobs with one secret" 'MASTER_PORT' CTRT_STORE_SECRET=s CTRT_STORE_SECRET=s
slurm=yes
two_jobs "two jobs of Slurm" 'belongs to another job' "CTRT_COMM=host SLURM_JOB_ID=7 SLURM_STEP_ID=0" \
    "CTRT_COMM=host SLURM_JOB_ID=7 SLURM_STEP_ID=1"
slurm=

# A strategy that does not connect the ranks, unless it is `single` by choice.
wrong=
for strategy in - single data-parallel distributed auto; do
    rm -f "$work"/*
    by_hand a MASTER_ADDR=localhost MASTER_PORT="$("$builddir/run-rank" port)" \
        "$([ $strategy = - ] && echo TEST=a || echo "CTRT_STRATEGY=$strategy")" "$rank" parallel
    wait
    case $strategy in - | data-parallel) want=2 ;; *) want=0 ;; esac
    [ "$(cat "$work"/a.*.err | grep -c 'every rank trains alone')" = "$want" ] &&
        [ "$(results a)" = "rank 0: 0 rank 1: 0 " ] || wrong="$wrong $strategy: $(cat "$work"/a.*)"
done
check "a strategy that does not connect the ranks is a warning" "$wrong"

# halted NAME KEY: rank 1 stops during the start, as soon as KEY is set in the store. The time limit is for the whole
# start, also on rank 0, which serves the store and releases the groups that are connected already.
halted() {
    begin=$(date +%s%N)
    pids=
    port=$("$builddir/run-rank" port)
    for number in 0 1; do
        env RANK=$number WORLD_SIZE=2 CTRT_STORE="tcp://localhost:$port" CTRT_STRATEGY=sharded CTRT_COMM_TIMEOUT=2 \
            "$rank" halt "$2" >"$work/$1.$number" 2>"$work/$1.$number.err" &
        pids="$pids $!"
    done
    wait "${pids% *}"
    awk -v ns=$(($(date +%s%N) - begin)) -v processors="$(nproc)" '{
        if (ns / 1e9 > ($1 > processors ? 6 : 4)) print "rank 0 has ended after " ns / 1e9 " s" }' /proc/loadavg
    grep -q '^rank 0: error: .*: rank 1 (.*) does not answer\|^rank 0: .*rank 1 did not join\|^rank 0: 0$' \
        "$work/$1.0" || cat "$work/$1".*
    kill -KILL "${pids##* }" 2>/dev/null            # it may have ended before it stopped
}
rm -f "$work"/*
keys="member/1 host-arena split-1-0/host-arena split-2-0/host-arena"
for key in $keys; do
    name=$(echo $key | tr / .)
    halted "$name" "world/0/$key" >"$work/$name.result" 2>&1 &
done
wait
for key in $keys; do
    check "a rank that is stopped during the start ($key)" "$(cat "$work/$(echo $key | tr / .).result")"
done

# The end of a process is not a failure, if it returns from main or calls exit without releasing its communicator.
# by_hand: rank 0 serves the store.
orderly() {
    wrong=
    for turn in $(seq "$repeat"); do
        for linger in 0 150 -150; do
            rm -f "$work"/*
            if [ "$1" = by_hand ]; then
                by_hand a MASTER_ADDR=localhost MASTER_PORT="$("$builddir/run-rank" port)" \
                    CTRT_COMM_REPORT="$work/report-%r" "$rank" sum 1 3 1 $linger
                wait
            else
                MASTER_PORT=${MASTER_ADDR:+$("$builddir/run-rank" port)} CTRT_COMM_REPORT="$work/report-%r" \
                    timeout 60 "$@" "$rank" sum 1 3 1 $linger >"$work/a.out" 2>"$work/a.0.err"
                echo "exit status $?" >"$work/a.status"
            fi
            [ "$(cat "$work"/a.? "$work/a.out" 2>/dev/null | grep -c '^rank .: [234]$')" -ge 2 ] &&
                ! grep -q 'status [^0]' "$work/a.status" 2>/dev/null &&
                ! cat "$work"/report-* "$work"/a.*err | grep -v 'has joined' ||
                wrong="$wrong turn $turn: $(cat "$work"/*)"
        done
    done 2>/dev/null >&2
    echo "$wrong"
}
check "ranks that return from main: started by a script" "$(orderly by_hand)"
check "ranks that return from main: ctrt run" "$(orderly "$ctrt" run -n 4 --no-prefix)"
check "ranks that return from main: a file" "$(CTRT_STORE="file://$work/store" orderly by_hand)"
check "ranks that return from main: ctrt run --on-failure shrink" \
    "$(orderly "$ctrt" run -n 4 --on-failure shrink --no-prefix)"

# The ranks of one machine divide the processors, whoever starts them. A shell between the launcher and the rank, which
# has the variables of the rank, is not the launcher.
two=$(($(nproc) > 1 ? $(nproc) / 2 : 1))
shared_by_two() {
    unset CTRT_NUM_THREADS
    "$@" >"$work/shared" 2>&1
    wait
    [ "$(cat "$work"/a.? "$work/shared" 2>/dev/null | sort | grep '^rank .: ' | tr '\n' ' ')" = \
        "rank 0: $two rank 1: $two " ] || cat "$work"/a.? "$work/shared"
}
rm -f "$work"/*
check "processors of ranks: started by a script" \
    "$(shared_by_two by_hand a LOCAL_WORLD_SIZE=2 LOCAL_RANK=0 "$rank" processors)"
rm -f "$work"/*
check "processors of ranks: ctrt run" "$(shared_by_two "$ctrt" run -n 2 --no-prefix "$rank" processors)"
check "processors of ranks: ctrt run with a shell" \
    "$(shared_by_two "$ctrt" run -n 2 --no-prefix sh -c '"$1" processors; true' sh "$rank")"
check "processors of a single rank" "$(
    unset CTRT_NUM_THREADS
    result=$("$ctrt" run -n 1 "$rank" processors)
    [ "$result" = "rank 0: $("$rank" processors | sed 's/.*: //')" ] || echo "$result")"

# With --on-failure shrink, ranks that are stopped after their last collective keep the launcher for the time limit, and
# at most two seconds more: a look each 0.5 s, and the ends of the processes. On a busy machine two more.
rm -f "$work"/*
begin=$(date +%s%N)
# shellcheck disable=SC2016
CTRT_COMM_TIMEOUT=2 timeout 60 "$ctrt" run -n 4 --on-failure shrink --no-prefix sh -c '"$1" sum 1 3 1
    [ $RANK -lt 2 ] || kill -STOP $$' sh "$rank" >"$work/a.out" 2>"$work/a.err" </dev/null
status=$? time=$((($(date +%s%N) - begin) / 1000000))
limit=$(awk -v processors="$(nproc)" '{ print ($1 > processors ? 6000 : 4000) }' /proc/loadavg)
check "ctrt run --on-failure shrink: ranks that are stopped at their end" "$(
    [ $status = 0 ] && [ $time -le "$limit" ] && grep -q 'ranks 2, 3 have been stopped' "$work/a.err" ||
        echo "status $status after $time ms: $(cat "$work/a.out" "$work/a.err")")"

for store in tcp file; do
    rm -f "$work"/*
    [ $store = tcp ] || export CTRT_STORE="file://$work/store"
    by_hand a MASTER_ADDR=localhost MASTER_PORT="$("$builddir/run-rank" port)" "$rank" release 15
    wait
    unset CTRT_STORE
    check "a communicator is released without a pause ($store)" "$(awk '!/rank .: [0-9.]+$/ || $3 > 30' "$work"/a.?)"
done

# Both start at the same time, so either can be the first one.
wrong=
for turn in $(seq "$repeat"); do
    port=$("$builddir/run-rank" port)
    rm -f "$work"/*
    by_hand a MASTER_ADDR=localhost MASTER_PORT="$port" CTRT_JOB=a "$rank" sum 1 60 5
    by_hand b MASTER_ADDR=localhost MASTER_PORT="$port" CTRT_JOB=b "$rank" sum 100 60 5
    wait
    case "$(results a)$(results b)" in
        'rank 0: 2 rank 1: 2 rank 0: error rank 1: error ' | 'rank 0: error rank 1: error rank 0: 200 rank 1: 200 ') ;;
        *) wrong="$wrong turn $turn: $(cat "$work"/[ab].?)" ;;
    esac
done
check "two jobs that start at the same time" "$wrong"

# The address belongs to another program.
port=$("$builddir/run-rank" port)
rm -f "$work"/*
"$rank" listen "$port" 2>"$work/listen" &
listener=$!
while [ ! -s "$work/listen" ]; do sleep 0.02; done
CTRT_COMM_TIMEOUT=4
by_hand a MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "$rank" sum 1 1 0
tries=0
while [ "$(results a)" != "rank 0: error rank 1: error " ] && [ $tries -lt 300 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
kill "$listener"
wait
check "an address that another program uses" "$(grep -q 'address is in use' "$work/a.0" || cat "$work"/a.?)"
CTRT_COMM_TIMEOUT=20

mpirun=$(command -v mpirun.openmpi || command -v mpirun)
if [ -z "$mpirun" ] || ! "$mpirun" --version 2>&1 | grep -q 'Open MPI\|OpenRTE\|PRTE\|MPICH\|HYDRA'; then
    skip "two jobs of mpirun" "no mpirun"
    mpirun=
else
    asan=${ASAN_OPTIONS-}
    ASAN_OPTIONS=$asan:detect_leaks=0           # MPI libraries have leaks of their own
    export ASAN_OPTIONS
    wrong=
    for turn in $(seq "$repeat"); do
        port=$("$builddir/run-rank" port)
        rm -f "$work"/*
        for job in a b; do
            mkdir -p "$work/tmp.$job"
            TMPDIR=$work/tmp.$job MASTER_ADDR=localhost MASTER_PORT=$port CTRT_COMM=host timeout 60 "$mpirun" -n 2 \
                "$rank" sum "$([ $job = a ] && echo 1 || echo 100)" 150 10 >"$work/$job.out" 2>"$work/$job.0.err" &
            [ "$job" = b ] || joined a
        done
        wait
        [ "$(results a)" = "rank 0: 2 rank 1: 2 " ] && ! grep -q 'rank .: [0-9]' "$work/b.out" &&
            grep -q 'belongs to another job' "$work/b.out" || wrong="$wrong turn $turn: $(cat "$work"/[ab].out)"
        rm -rf "$work"/tmp.*
    done
    check "two jobs of mpirun" "$wrong"
    rm -f "$work"/*
    # By default Open MPI binds two ranks to a core each; then these are not divided again.
    check "processors of ranks: mpirun" "$(shared_by_two "$mpirun" -n 2 --bind-to none "$rank" processors)"
    one=$two two=1
    check "processors of ranks: mpirun, bound to cores" \
        "$(shared_by_two "$mpirun" -n 2 --bind-to core "$rank" processors)"
    two=$one
    # The launcher's own messages about the output of ranks are not errors.
    check "ranks that return from main: mpirun" "$(orderly "$mpirun" -n 3)"
    check "ranks that return from main: mpirun, through shared memory" \
        "$(export MASTER_ADDR=localhost; CTRT_COMM=host orderly "$mpirun" -n 2)"
    ASAN_OPTIONS=$asan
fi

# ended FILE: the process whose number is in the file has ended.
ended() {
    [ -s "$1" ] && ! grep -q '^State:[[:space:]]*[^ZX]' "/proc/$(cat "$1")/status" 2>/dev/null
}

# Each MPI that is installed. A rank that does not call MPI_Init, or that stops at its start: the others fail after the
# time limit: 10 s in MPI_Init, then 2 s. The end of the ranks counts and not that of the launcher, because mpirun of
# Open MPI 4.1 sometimes crashes or waits for itself (in PMIx_server_finalize) if a rank was stopped while it connected.
# does_not_start MPIRUN FAULT
does_not_start() {
    begin=$(date +%s) time=0 start=$begin folder=$work/tmp.$1.$2
    # shellcheck disable=SC2016
    CTRT_COMM_TIMEOUT=2 TMPDIR=$folder timeout -k 2 45 "$1" -n 3 sh -c 'r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
        if [ "$r" = 2 ] && [ "$2" = sleep ]; then exec sleep 50; fi
        if [ "$r" = 2 ]; then (sleep 0.1; kill -STOP $$; sleep 40; kill -KILL $$) & fi
        echo $$ >"$3/pid.$r"
        exec "$1" sum 1 100000 1' sh "$rank" "$2" "$folder" >"$work/$1.$2" 2>"$work/$1.$2.err" </dev/null &
    # Counted from the start of the ranks: the launcher alone may take many seconds on a loaded machine.
    while [ $time -le 25 ] && ! { ended "$folder/pid.0" && ended "$folder/pid.1"; }; do
        sleep 0.2
        now=$(date +%s)
        [ -s "$folder/pid.0" ] && [ -s "$folder/pid.1" ] || [ $((now - start)) -gt 30 ] || begin=$now
        time=$((now - begin))
    done
    # The threads that still run, and what they wait for, for the report.
    [ $time -le 25 ] || for r in 0 1; do
        pid=$(cat "$folder/pid.$r")
        echo "rank $r: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
        for thread in "/proc/$pid/task"/*; do
            echo "$(cat "$thread/comm"): $(grep State "$thread/status") $(cat "$thread/wchan") $(cat "$thread/stack")"
        done
    done >"$work/$1.$2.threads" 2>&1
    wait
    [ $time -le 25 ] && grep -q 'rank [01]: error: .*did not\|rank [01]: error: .*within [0-9]* s' "$work/$1.$2" ||
        echo "$time s: $(cat "$work/$1.$2" "$work/$1.$2.err" "$work/$1.$2.threads" 2>/dev/null)"
}
asan=${ASAN_OPTIONS-}
ASAN_OPTIONS=$asan:detect_leaks=0               # MPI libraries have leaks of their own
export ASAN_OPTIONS
launchers=
for name in mpirun.openmpi mpirun.mpich; do
    ! command -v $name >/dev/null || launchers="$launchers $name"
done
[ -n "$launchers" ] || [ -z "$mpirun" ] || launchers=mpirun
rm -rf "$work"/*
for name in $launchers; do
    for fault in sleep stop; do
        mkdir "$work/tmp.$name.$fault"
        does_not_start $name $fault >"$work/$name.$fault.result" &
    done
done
wait
for name in $launchers; do
    for fault in sleep stop; do
        check "$name: a rank that does not start ($fault)" "$(cat "$work/$name.$fault.result")"
    done
done
rm -rf "$work"/*
[ -z "$(command -v mpirun.mpich)" ] || check "ranks that return from main: mpirun.mpich" "$(orderly mpirun.mpich -n 3)"
ASAN_OPTIONS=$asan

# `ctrt run`: the second launcher cannot serve, and its other node is refused.
wrong=
for turn in $(seq "$repeat"); do
    port=$("$builddir/run-rank" port)
    rm -f "$work"/*
    for job in a b; do
        for node in 0 1; do
            CTRT_JOB=$job timeout 60 "$ctrt" run -n 1 --nodes 2 --node $node --store "tcp://localhost:$port" \
                --no-prefix "$rank" sum "$([ $job = a ] && echo 1 || echo 100)" 150 10 \
                >"$work/$job.$node" 2>"$work/$job.$node.err" </dev/null &
        done
        [ "$job" = b ] || joined a
    done
    wait
    [ "$(results a)$(results b)" = "rank 0: 2 rank 1: 2 " ] && grep -q 'in use' "$work/b.0.err" &&
        grep -q 'belongs to another job' "$work/b.1.err" || wrong="$wrong turn $turn: $(cat "$work"/[ab].?*)"
done
check "two jobs of ctrt run on two nodes" "$wrong"

finish
