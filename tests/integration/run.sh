#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `ctrt run`: the environment of the ranks, their output, exit statuses, signals, and launchers of two nodes.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
ctrt=$builddir/ctrt
rank=$builddir/run-rank
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT CTRT_STORE CTRT_STORE_SECRET \
    CTRT_NUM_THREADS OMP_NUM_THREADS CTRT_LOG CTRT_DEVICE

# runs STATUS ARGUMENT...: starts `ctrt run`, with its output in $work/out and $work/err, and requires its status.
runs() {
    want=$1
    shift
    timeout 20 "$ctrt" run "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    [ "$status" -eq "$want" ] || echo "exit status $status, expected $want: $* $(head -c 2000 "$work/err")"
}

# prints WHAT WORDS: requires the words in $work/WHAT.
prints() {
    grep -qF -- "$2" "$work/$1" || echo "no \"$2\" in: $(head -c 2000 "$work/$1")"
}

# has_line WHAT LINE: requires the line in $work/WHAT.
has_line() {
    grep -qxF -- "$2" "$work/$1" || echo "no line \"$2\" in: $(head -c 2000 "$work/$1")"
}

# wait_for FILE LINES: waits until $work/FILE has that many lines.
wait_for() {
    tries=0
    while [ "$(wc -l <"$work/$1")" -lt "$2" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 400 ] || { echo "$1 has not got $2 lines"; return; }
        sleep 0.02
    done
}

# gone PID...: requires that the processes end within 2 s.
gone() {
    for process; do
        tries=0
        while [ -d "/proc/$process" ] && ! grep -q '^State:.Z' "/proc/$process/status" 2>/dev/null; do
            tries=$((tries + 1))
            [ "$tries" -lt 100 ] || { echo "process $process still runs"; break; }
            sleep 0.02
        done
    done
}

# Two tests that take 3 seconds run while the others do.
( timeout 20 "$ctrt" run -n 2 --grace 0.1 sh -c '
    if [ $RANK = 1 ]; then sleep 0.1; exit 4; fi
    trap "" TERM
    while :; do sleep 0.1; done' >/dev/null 2>"$work/stubborn" </dev/null
  echo $? >"$work/stubborn.status" ) &
stubborn=$!
( timeout 20 "$ctrt" run -n 2 sh -c 'echo rank $RANK; sleep 30 & echo $! >'"$work"'/leftover.$RANK' \
    >"$work/leftover" 2>&1 </dev/null
  echo $? >"$work/leftover.status" ) &
leftover=$!

# --- usage -----------------------------------------------------------------------------------------------------------

check "--help" "$(runs 0 --help; prints out "usage: ctrt run")"
check "wrong usage" "$(
    runs 2; prints err "no program"
    for number in 0 -1 x 2x 5000 ''; do runs 2 -n "$number" true; prints err "is not a number from 1 to 4096"; done
    runs 2 --grace never true; prints err "is not a number of seconds"
    runs 2 --on-failure go true; prints err "is neither stop nor shrink"
    runs 2 --restart x true; prints err "is not a number from 0 to 1000000"
    runs 2 --such true; prints err "usage: ctrt run"
    runs 2 --nodes 2 true; prints err "--nodes needs --node and --store"
    runs 2 --nodes 2 --node 2 --store tcp://127.0.0.1:1 true; prints err "--node must be less than --nodes"
    runs 2 --store 127.0.0.1:1 true; prints err "is not an address tcp://HOST:PORT")"
check "a store that cannot be served" "$(runs 1 --store tcp://192.0.2.1:1 true; prints err "cannot listen")"

# --- the environment of the ranks ------------------------------------------------------------------------------------

check "variables of 3 ranks" "$(
    runs 0 -n 3 sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${CTRT_STORE%:*} $1' sh "a  b"
    for i in 0 1 2; do has_line out "[$i] $i/3 $i/3 127.0.0.1 tcp://127.0.0.1 a b"; done
    [ "$(wc -l <"$work/out")" -eq 3 ] || cat "$work/out")"
check "the store counts 4 ranks" "$(
    runs 0 -n 4 "$rank" store
    for i in 0 1 2 3; do has_line out "[$i] 4 of 4 ranks have joined"; done)"
check "another secret is refused" "$(
    runs 1 -n 1 env CTRT_STORE_SECRET=other "$rank" store; prints err "CTRT_STORE_SECRET is another one")"
check "the ranks share the processors" "$(
    CTRT_LOG=info runs 0 -n 40 --no-prefix sh -c '[ $RANK != 9 ] || echo $OMP_NUM_THREADS'
    has_line out "1"; prints err "OMP_NUM_THREADS=1"
    OMP_NUM_THREADS=7 runs 0 -n 2 sh -c 'echo $OMP_NUM_THREADS'; has_line out "[1] 7")"
check "CTRT_DEVICE=cpu starts one rank" "$(
    CTRT_DEVICE=cpu runs 0 sh -c 'echo $RANK of $WORLD_SIZE'; has_line out "0 of 1")"
if [ -f "$builddir/plugins-built/backend-sim.so" ]; then
    check "one rank for each simulated device" "$(
        CTRT_DEVICE=sim CTRT_SIM=devices=3 runs 0 sh -c 'echo $WORLD_SIZE'; has_line out "[2] 3")"
else
    skip "one rank for each simulated device" "the sim plugin is not built"
fi
check "a device type that does not exist" "$(CTRT_DEVICE=gpx runs 1 true; prints err "no device of type gpx")"
check "rank 0 gets stdin, the others an empty one" "$(
    echo hello | "$ctrt" run -n 2 sh -c 'if [ $RANK = 0 ]; then cat; else readlink /proc/self/fd/0; fi' >"$work/out"
    has_line out "[0] hello"; has_line out "[1] /dev/null")"
check "the ranks have the launcher's signal mask and limits" "$(
    ulimit -S -n 200
    # Of the ignored signals only 1 to 28, because the C library uses some of the others.
    echo 'sed -n -e "/^SigBlk/p" -e "s/^SigIgn.*\(.......\)$/\1/p" -e "/open files/p" \
        /proc/self/status /proc/self/limits' >"$work/state.sh"
    sh "$work/state.sh" >"$work/want"
    runs 0 -n 2 --no-prefix sh -c '[ $RANK = 1 ] || . "$1"' sh "$work/state.sh"
    diff "$work/want" "$work/out")"

# --- output ----------------------------------------------------------------------------------------------------------

# whole_lines PREFIX FILE...: requires 8 x 400 whole lines.
whole_lines() {
    prefix=$1
    shift
    cat "$@" | grep -cE "^${prefix}rank [0-7] line [0-9]+ x*\\|\$" | grep -qx 3200 || echo "not 3200 whole lines"
    cat "$@" | sed 's/x*|$//' | sort -u | wc -l | grep -qx ' *3200' || echo "not 3200 different lines"
}
check "lines of 8 writers are whole" "$(
    runs 0 -n 8 "$rank" lines 400; whole_lines '\[[0-7]\] ' "$work/out" "$work/err")"
check "lines of stdout and stderr are whole in one file" "$(
    "$ctrt" run -n 8 "$rank" lines 400 >"$work/both" 2>&1 || echo failed; whole_lines '\[[0-7]\] ' "$work/both")"
check "--no-prefix" "$(runs 0 -n 8 --no-prefix "$rank" lines 400; whole_lines '' "$work/out" "$work/err")"
check "lines of 900 kB are whole in a slow pipe" "$(
    "$ctrt" run -n 3 --no-prefix "$rank" line 900000 2>&1 | { sleep 0.2; cat; } >"$work/out"
    awk '{ print length($0), substr($0, 1, 1) }' "$work/out" | sort >"$work/lengths"
    printf '899999 a\n899999 b\n899999 c\n' | cmp - "$work/lengths" 2>&1)"
head -c 3000000 /dev/urandom >"$work/random"
check "binary output of one rank is unchanged" "$(
    runs 0 -n 2 --no-prefix sh -c '[ $RANK = 0 ] || cat "$1"' sh "$work/random"; cmp "$work/random" "$work/out" 2>&1
    runs 0 -n 1 cat "$work/random"; cmp "$work/random" "$work/out" 2>&1)"
check "a last line without its end" "$(runs 0 -n 2 printf x; printf '[0] x\n[1] x\n' >"$work/want"
    sort "$work/out" | cmp - "$work/want" 2>&1)"
check "a reader that leaves ends the ranks" "$(
    timeout 10 "$ctrt" run -n 2 sh -c 'echo $$ >"$1.$RANK"; exec yes' sh "$work/yes" 2>"$work/err" |
        head -n 1 >"$work/out"
    grep -qx '\[[01]\] y' "$work/out" || echo "no line"; gone $(cat "$work/yes.0" "$work/yes.1"))"
if [ -c /dev/full ]; then
    check "a full disk is reported, and the ranks go on" "$(
        timeout 10 "$ctrt" run -n 2 sh -c 'echo x; sleep 0.1; echo x; touch "$1.$RANK"' sh "$work/done" \
            >/dev/full 2>"$work/err"
        [ $? = 1 ] || echo "wrong status"
        prints err "writing to stdout: No space left"; ls "$work/done.0" "$work/done.1" 2>&1 >/dev/null)"
else
    skip "a full disk is reported, and the ranks go on" "no /dev/full"
fi

# --- the ends of ranks -----------------------------------------------------------------------------------------------

check "the status of the first rank that fails" "$(
    runs 3 -n 3 sh -c '[ $RANK = 1 ] && exit 3; sleep 0.2'; prints err "ctrt run: rank 1 (process "
    prints err ") exited with status 3"
    runs 0 -n 3 true
    runs 5 -n 1 sh -c 'exit 5')"
check "a rank that is killed" "$(
    runs 137 -n 3 --grace 0.1 sh -c '[ $RANK = 2 ] && kill -9 $$; echo up; exec sleep 20'
    grep -qE '^ctrt run: rank 2 \(process [0-9]+\) was killed by signal 9 \(Killed\)$' "$work/err" || cat "$work/err"
    prints err "ranks 0, 1 have not ended within 0.1 s; sending SIGTERM"
    [ "$(grep -c killed "$work/err")" -eq 1 ] || cat "$work/err")"
check "other ranks can report within the grace time" "$(
    runs 1 -n 2 sh -c '[ $RANK = 0 ] && exit 1; sleep 0.3; echo report; exit 7'; has_line out "[1] report"
    prints err "exited with status 7")"
: >"$work/text" && chmod 644 "$work/text"
check "a program that cannot be started" "$(
    runs 127 -n 2 "$work/missing"; prints err "cannot start $work/missing: No such file"
    runs 126 -n 2 "$work/text"; prints err "Permission denied"
    runs 127 -n 1 no-such-program-in-path)"

# start ARGUMENT...: starts `ctrt run` in the background with SIGINT's default action; its process is $launcher.
start() {
    : >"$work/out"
    "$rank" default-int "$ctrt" run "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
}

# finish_launcher STATUS: waits for the launcher; its exit status must be that.
finish_launcher() {
    wait "$launcher"
    status=$?
    problem=
    [ "$status" -eq "$1" ] || problem="exit status $status, expected $1: $(cat "$work/err")"
}

start -n 3 --no-prefix sh -c 'echo $$; exec sleep 20'
check "no rank remains when the launcher is killed" "$(
    wait_for out 3; kill -9 "$launcher"; gone $(cat "$work/out"))"
finish_launcher 137 2>/dev/null
start -n 3 sh -c 'trap "echo caught; exit 6" INT; echo up; while :; do sleep 0.02; done'
wait_for out 3
kill -INT "$launcher"
finish_launcher 6
check "SIGINT is forwarded" "$problem$(
    for i in 0 1 2; do has_line out "[$i] caught"; done; prints err "signal 2 (Interrupt) forwarded to 3 ranks")"
start -n 2 sh -c 'trap "echo caught" INT; echo up; while :; do sleep 0.02; done'
wait_for out 2
kill -INT "$launcher"
wait_for out 4
kill -INT "$launcher"
finish_launcher 137
check "a second SIGINT kills" "$problem$(prints err "killing 2 ranks")"
start -n 2 sh -c 'trap "echo usr1" USR1; echo up; while :; do sleep 0.02; done'
wait_for out 2
kill -USR1 "$launcher"
wait_for out 4
kill -TERM "$launcher"
finish_launcher 143
check "SIGUSR1 and SIGTERM are forwarded" "$problem$(
    has_line out "[1] usr1"; [ "$(grep -c "ctrt run" "$work/err")" -eq 1 ] || cat "$work/err")"

# --- two nodes -------------------------------------------------------------------------------------------------------

# nodes STATUS0 STATUS1 ARGUMENT...: starts two launchers with 2 ranks each; output in $work/out and $work/err.0, err.1.
nodes() {
    want0=$1 want1=$2
    shift 2
    address=tcp://127.0.0.1:$("$rank" port)
    CTRT_STORE_SECRET=secret
    export CTRT_STORE_SECRET
    timeout 20 "$ctrt" run -n 2 --nodes 2 --node 1 --store "$address" "$@" >"$work/out.1" 2>"$work/err.1" </dev/null &
    other=$!
    timeout 20 "$ctrt" run -n 2 --nodes 2 --node 0 --store "$address" "$@" >"$work/out.0" 2>"$work/err.0" </dev/null
    status0=$?
    wait "$other"
    status1=$?
    unset CTRT_STORE_SECRET
    cat "$work/out.0" "$work/out.1" >"$work/out"
    [ "$status0 $status1" = "$want0 $want1" ] ||
        echo "exit statuses $status0 and $status1, expected $want0 and $want1: $(cat "$work/err.0" "$work/err.1")"
}

check "ranks of two nodes use one store" "$(
    nodes 0 0 sh -c 'echo $RANK $LOCAL_RANK $MASTER_PORT; exec "$@"' sh "$rank" store
    for i in 0 1 2 3; do has_line out "[$i] 4 of 4 ranks have joined"; done
    for i in 0 1 2 3; do grep "^\[$i\] $i $((i % 2)) " "$work/out"; done | cut -d ' ' -f 4 | sort | uniq -c |
        grep -q '^ *4 [0-9]*$' || cat "$work/out")"
check "a failure on one node ends the other" "$(
    nodes 1 9 --grace 0 sh -c '[ $RANK != 3 ] || exit 9; exec sleep 20'
    prints err.0 "node 1: rank 3 (process"; prints err.1 "rank 3 (process")"
check "a second launcher of a node is rejected" "$(
    address=tcp://127.0.0.1:$("$rank" port)
    CTRT_STORE_SECRET=secret
    export CTRT_STORE_SECRET
    launchers=
    : >"$work/err"
    for node in 0 1 1; do
        "$ctrt" run -n 1 --nodes 3 --node "$node" --store "$address" true 2>>"$work/err" & launchers="$launchers $!"
    done
    wait_for err 1; kill $launchers 2>/dev/null; prints err "another launcher with --node 1 has joined already")"

wait "$stubborn"
check "a rank that ignores SIGTERM is killed" "$(grep -qx 4 "$work/stubborn.status" || cat "$work/stubborn.status"
    prints stubborn "rank 0 has not ended within 3 s of SIGTERM; sending SIGKILL")"
wait "$leftover"
check "processes that a rank leaves behind are ended" "$(
    grep -qx 0 "$work/leftover.status" || cat "$work/leftover.status"
    has_line leftover "[1] rank 1"; prints leftover "rank 1 has left processes that keep its output open"
    gone $(cat "$work/leftover.0" "$work/leftover.1"))"
finish
