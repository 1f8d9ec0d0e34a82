#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks fail during training. Checks the reports of the other ranks and their delay, exit statuses, and that nothing
# remains of the jobs.
# As processes of this machine (`ctrt run`, mpirun), and of two machines, which are network namespaces.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=$(cd "${builddir:-.}" && pwd)

# In a mount namespace of its own, so that the jobs' shared memory and temporary files can be told from other programs'.
if [ -z "${FAILURES_PRIVATE:-}" ] && unshare -m true 2>/dev/null; then
    export srcdir builddir FAILURES_PRIVATE=yes
    exec unshare -m --propagation private sh -c 'mount -t tmpfs tmpfs /dev/shm && exec sh "$0"' "$0"
fi
. "$srcdir/tests/lib.sh"
ctrt=$builddir/ctrt
program=$builddir/fail-rank
work=$(mktemp -d) || exit 1
name=ctrt-$$                            # of the network namespaces, with -a and -b

in_hosts() { for host in a b; do ip netns pids "$name-$host" 2>/dev/null; done; }
clean_up() {
    in_hosts | xargs -r kill -9
    for host in a b; do ip netns del "$name-$host" 2>/dev/null; done
    rm -rf "$work"
}
trap clean_up EXIT
mkdir "$work/tmp"
TIMEOUT=2
export CTRT_COMM_TIMEOUT=$TIMEOUT TMPDIR CTRT_NUM_THREADS=1
unset CTRT_COMM CTRT_STORE CTRT_STORE_SECRET RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# job NAME COMMAND...: runs the command; output, exit status and reports are in the folder $work/NAME.
job() {
    folder=$work/$1
    TMPDIR=$work/tmp/$1                 # of its own, because two mpirun that start at the same time disturb each other
    mkdir -p "$folder" "$TMPDIR"
    shift
    CTRT_COMM_REPORT="$folder/%r.json" timeout -k 2 "${limit:-60}" "$@" </dev/null >"$folder/out" 2>&1
    echo $? >"$folder/status"
}

# failed JOB [killed]: requires an exit status that is neither 0 nor that of the time limit of the job, or, if a rank is
# killed, which is the only way to 137 without the time limit, that.
failed() {
    case $(cat "$work/$1/status")${2:-} in
        0* | 124* | 137) echo "exit status $(cat "$work/$1/status"): $(tail -n 5 "$work/$1/out")" ;;
    esac
}

# reports JOB RANK OTHER HOST STATE: the report of RANK names OTHER, its host, process and state, and the collectives. A
# rank that finds garbage between two collectives can only say so.
reports() {
    file=$work/$1/$2.json
    [ -s "$file" ] || { echo "rank $2 has written no report: $(cat "$work/$1"/out*)"; return; }
    grep -qE "\"rank\": $3, \"host\": \"$4\", \"pid\": [0-9]+, \"device\": \"cpu\", \"state\": \"($5)\"" "$file" ||
        echo "rank $2: $(head -n 20 "$file")"
    ! grep -qE '^  "error": "the key world/0/alarm of the store has a wrong value",$' "$file" || return
    grep -qE "^  \"error\": \".*rank $3(:| \($4, process [0-9]+, cpu\))" "$file" ||
        echo "rank $2: $(grep '^  "error"' "$file")"
    grep -qE '^  "completed": "[a-z_]+ [0-9]+' "$file" || echo "rank $2: no completed collective"
    grep -qE '^  "(error|pending)": ".*(all_reduce|broadcast) [0-9]+ \(' "$file" || echo "rank $2: no collective"
}

# in_time OUTPUT RANK: the rank has failed within the time limit and one second; on a busy machine, plus the time by
# which a thread of the rank that only slept was late.
in_time() {
    sed -n "s/^\(\[[0-9]*\] \)\{0,1\}rank $2: \([0-9.]*\) s after its last step, \([0-9.]*\) s late.*/\2 \3/p" \
        "$work/$1" | awk -v limit=$((TIMEOUT + 1)) '
            $1 >= limit + $2 { print "after " $1 " s, " $2 " s late" } END { if (NR != 1) print "no error" }'
}

# gone: requires that no rank is left, within 5 s.
ranks_left() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" != "$program" ] || echo "${process#/proc/}"
    done 2>/dev/null
    for process in $(in_hosts); do
        case $(cat "/proc/$process/comm" 2>/dev/null) in ctrt | lt-ctrt | sleep) echo "$process" ;; esac
    done
}
gone() {
    tries=0
    while left=$(ranks_left) && [ -n "$left" ]; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { echo "processes are left: $left"; break; }
        sleep 0.1
    done
}

# --- two machines ----------------------------------------------------------------------------------------------------

# on HOST COMMAND...: runs the command on machine a or b, whose name is node$HOST. As on Debian, the machine's own name
# has the address 127.0.1.1.
cat >"$work/on" <<END
#!/bin/sh
host=\$1
shift
exec ip netns exec $name-\$host unshare -u -m sh -c '
    hostname node\$0
    printf "127.0.0.1 localhost\n127.0.1.1 node\$0\n" >"$work/hosts.\$0"
    mount --bind "$work/hosts.\$0" /etc/hosts
    exec "\$@"' "\$host" "\$@"
END
# For mpirun, instead of ssh: agent ADDRESS COMMAND.
cat >"$work/agent" <<END
#!/bin/sh
host=b
[ "\$1" != 10.213.0.1 ] || host=a
shift
exec "$work/on" \$host sh -c "\$*"
END
chmod +x "$work/on" "$work/agent"

two_machines() {
    [ "$(id -u)" = 0 ] && [ -n "${FAILURES_PRIVATE:-}" ] || { echo "needs root and namespaces"; return 1; }
    command -v ip >/dev/null || { echo "ip is not installed"; return 1; }
    { ip netns add "$name-a" && ip netns add "$name-b" &&
        ip link add va netns "$name-a" type veth peer name vb netns "$name-b" &&
        ip -n "$name-a" addr add 10.213.0.1/24 dev va && ip -n "$name-b" addr add 10.213.0.2/24 dev vb &&
        for host in a b; do
            ip -n "$name-$host" link set lo up && ip -n "$name-$host" link set v$host up || return 1
        done && "$work/on" a true; } 2>&1
}

# Open MPI's daemons notice the loss of a machine only with keep-alive messages, and not always. Hence the exit statuses
# of the ranks, not that of mpirun.
mpi_on_two() {
    limit=25 job cut "$work/on" a mpirun --mca plm_rsh_agent "$work/agent" --host 10.213.0.1:2,10.213.0.2:2 \
        --mca oob_tcp_keepalive_time 4 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 \
        -x CTRT_COMM_TIMEOUT -x CTRT_COMM_REPORT -x CTRT_PLUGIN_PATH -x TMPDIR -x CTRT_NUM_THREADS \
        sh -c '"$0" none 0 >"$1.$OMPI_COMM_WORLD_RANK" 2>&1
            echo $? >"$2.$OMPI_COMM_WORLD_RANK"' "$program" "$work/cut/out" "$work/cut/status"
}

# run_on NODE HOST: a launcher whose rank has no collectives.
run_on() {
    CTRT_STORE_SECRET=secret job "node$1" "$work/on" "$2" "$ctrt" run -n 1 --nodes 2 --node "$1" --grace 0 \
        --store tcp://10.213.0.1:2900 sh -c 'echo up; exec sleep 50'
}

count_lines() { cat "$@" 2>/dev/null | grep -c "$line"; }
cut_off() {
    tries=0
    while [ "$(line='^training$' count_lines "$work"/cut/out.[0-3])" -lt "$1" ] ||
        [ "$(line='up$' count_lines "$work"/node[01]/out)" -lt 2 ]
    do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { echo "the ranks have not started"; break; }
        sleep 0.1
    done
    sleep 0.5
    ip -n "$name-b" link set vb down
}

case $(mpirun --version 2>/dev/null | head -n 1) in
    *'Open MPI'*' 4.'*) mpi=yes ;;
    *) mpi= ;;
esac
if grep -q '__[atu]*san_init' "$builddir/.libs/fail-rank" "$program" 2>/dev/null; then
    mpi=                                # MPI libraries have leaks and races of their own
fi
[ -f "$builddir/plugins-built/comm-mpi.so" ] || mpi=
no_mpi="no Open MPI 4 with the engine mpi, or sanitizers"

if reason=$(two_machines); then
    reason=
    run_on 0 a &
    run_on 1 b &
    [ -z "$mpi" ] || mpi_on_two &
    cut_off ${mpi:+4} >"$work/cut_off" &
fi

# --- one machine -----------------------------------------------------------------------------------------------------

host=$(hostname)
slow_faults="stop late"
quick_faults="kill exit return leave op"
more_faults="dtype count root alarm state members"

launch() {
    case $1 in
        host) job "host-$2-$3" "$ctrt" run -n 3 --grace 1.5 "$program" "$2" "$3" ;;
        mpi) job "mpi-$2-$3" mpirun -n 3 "$program" "$2" "$3" ;;
    esac
}

# each FAULTS LAUNCHERS COMMAND: calls COMMAND LAUNCHER FAULT RANK.
each() {
    for launcher in $2; do
        for fault in $1; do
            for rank in 0 1 2; do "$3" "$launcher" "$fault" "$rank"; done
        done
    done
}
in_background() { launch "$@" & jobs="$jobs $!"; }
three_at_once() {
    in_background "$@"
    [ "$3" != 2 ] || { wait $jobs; jobs=; }
}

judge() {
    job=$1-$2-$3
    killed=
    case $2 in
        kill | alarm | state | members) killed=killed ;;
    esac
    case $2 in
        kill) states=ended ;;
        stop) states='no answer' ;;
        late) states='not arrived' ;;
        leave) states='left the group' ;;
        exit | return) states='ended|left the group' ;;
        alarm | state | members) states='ended|not arrived|no answer' ;;
        *) states='[a-z ]*' ;;
    esac
    early=
    [ "$1" != mpi ] || [ "$2" != kill ] || early=yes
    check "$1: rank $3: $2" "$(failed "$job" $killed
        for other in 0 1 2; do
            [ $other != "$3" ] || continue
            # mpirun may end the others before they can report that a rank was killed.
            [ -z "$early" ] || [ -s "$work/$job/$other.json" ] || continue
            reports "$job" $other "$3" "$host" "$states"
            [ -n "$early" ] || in_time "$job/out" $other
        done)"
}

jobs=
launchers="host ${mpi:+mpi}"
each "$slow_faults" host in_background
wait $jobs
jobs=
[ -z "$mpi" ] || each "$slow_faults" mpi in_background
wait $jobs
jobs=
each "$quick_faults" "$launchers" three_at_once
each "$more_faults" host three_at_once
each "$slow_faults $quick_faults" "$launchers" judge
each "$more_faults" host judge
[ -n "$mpi" ] || skip "ranks of mpirun that fail" "$no_mpi"

# --- SIGKILL anywhere ------------------------------------------------------------------------------------------------

# killed RANK SEED: $times jobs of 4 ranks, of which RANK is killed at some time between its start and 150 ms later.
# The exit status is 137, or 1 if the others have failed and ended before the kernel has ended that process.
killed() {
    awk -v seed="$2" -v times=$times '
        BEGIN { srand(seed); for (i = 0; i < times; i++) print int(1000 + rand() * 150000) }' |
        while read -r time; do
            job "at-$1-$time" "$ctrt" run -n 4 --grace 0.3 "$program" "$time" "$1"
            grep -qxE '1|137' "$work/at-$1-$time/status" &&
                grep -q "^ctrt run: rank $1 (process [0-9]*) was killed by signal 9" "$work/at-$1-$time/out" ||
                echo "after $time us: exit status $(cat "$work/at-$1-$time/status"): $(cat "$work/at-$1-$time/out")"
        done >"$work/killed-$1"
}
seed=$(date +%s)
times=20
[ -z "${SANITIZE-}" ] || times=4
jobs=
for rank in 0 1 2 3; do killed $rank "$seed$rank" & jobs="$jobs $!"; done
wait $jobs
for rank in 0 1 2 3; do
    check "ctrt run reports that rank $rank of 4 was killed, $times times (seed $seed$rank)" \
        "$(cat "$work/killed-$rank")"
done

# --- what remains ----------------------------------------------------------------------------------------------------

wait
if [ -n "$reason" ]; then
    skip "two machines of which one is cut off" "$reason"
else
    check "the ranks have started before the machine is cut off" "$(cat "$work/cut_off")"
    check "ctrt run: both launchers end, and name the other machine" "$(failed node0; failed node1
        grep -q 'node 1 has not answered' "$work/node0/out" || cat "$work/node0/out"
        grep -q 'the connection to node 0 is lost' "$work/node1/out" || cat "$work/node1/out")"
fi
if [ -z "$reason" ] && [ -n "$mpi" ]; then
    for rank in 0 1 2 3; do
        other=$([ $rank -lt 2 ] && echo b || echo a)
        check "mpi: a machine is cut off: rank $rank names the ranks of the other one in time" "$(
            [ "$(cat "$work/cut/status.$rank")" = 1 ] || echo "exit status $(cat "$work/cut/status.$rank")"
            for lost in $([ $rank -lt 2 ] && echo 2 3 || echo 0 1); do
                reports cut $rank $lost "node$other" 'no answer|unknown'
            done
            in_time cut/out.$rank $rank)"
    done
elif [ -z "$reason" ]; then
    skip "mpi: a machine is cut off" "$no_mpi"
fi
# A daemon of Open MPI that has lost its mpirun may hang; clean_up ends it.
check "no process is left" "$(gone)"
if [ -n "${FAILURES_PRIVATE:-}" ]; then
    check "no shared memory is left" "$(ls -A /dev/shm)"
else
    skip "no shared memory is left" "needs a mount namespace"
fi
check "no temporary file is left" "$(find "$work/tmp" -name 'ompi.*' -prune -o -type f -print)"
finish
