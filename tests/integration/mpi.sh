#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The engine mpi under each MPI that is installed: mpi-program with 1 to 4 ranks. With CTRT_MPI_MACHINES they behave as
# if they were on several machines.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$srcdir/tests/lib.sh"
builddir=${builddir:-.}
build=$(cd "$builddir" && pwd) || exit 1
program="$builddir/mpi-program"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Open MPI's launcher refuses to run as root, and to start more ranks than processors, without these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
unset CTRT_COMM CTRT_STORE RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT

mkdir -m 755 "$work/plugins"
for file in plugins-built/comm-mpi.so .libs/broken_comm.so; do
    [ ! -e "$build/$file" ] || cp "$build/$file" "$work/plugins"
done
[ ! -e "$work/plugins/broken_comm.so" ] || mv "$work/plugins/broken_comm.so" "$work/plugins/comm-broken.so"

# contract NAME PLUGIN LIMIT CHECKS [VARIABLE=VALUE]: runs the checks of the engine's contract on 4 ranks.
contract() {
    # shellcheck disable=SC2086
    env ${5:-} timeout -k 2 90 "$mpirun" -n 4 "$build/ctrt" check --contract --timeout "$3" --op "$4" \
        "$work/plugins/comm-$2.so" </dev/null >"$work/$1" 2>&1
    echo $? >"$work/$1.rc"
}

# kept NAME: no check has failed, and most have passed. finds NAME DESCRIPTION CHECK MESSAGE: the check has failed so.
kept() {
    if [ "$(cat "$work/$1.rc")" = 0 ] && grep -q '^# [23][0-9] passed, 0 failed' "$work/$1"; then
        ok "$mpi: the contract, with 4 ranks"
    else
        not_ok "$mpi: the contract, with 4 ranks" "exit status $(cat "$work/$1.rc")
$(grep -v '^ok' "$work/$1")"
    fi
}
finds() {
    if [ "$(cat "$work/$1.rc")" != 0 ] && grep -q "^not ok [0-9]* - $3\$" "$work/$1" && grep -q "$4" "$work/$1"; then
        ok "$mpi: the check $3 finds $2"
    else
        not_ok "$mpi: the check $3 finds $2" "exit status $(cat "$work/$1.rc")
$(cat "$work/$1")"
    fi
}

# job NAME RANKS PART [VARIABLE=VALUE]: runs the launcher $mpirun; the output is in $work/NAME, the exit status in
# $work/NAME.rc.
job() {
    # shellcheck disable=SC2086
    env ${4:-} timeout -k 2 60 "$mpirun" -n "$2" "$program" $3 </dev/null >"$work/$1" 2>&1
    echo $? >"$work/$1.rc"
}

# passed NAME DESCRIPTION RANKS [any]: reports the job: all ranks have passed; any: whatever the exit status is.
passed() {
    if [ "$(grep -c '^rank [0-9]* passed$' "$work/$1")" = "$3" ] &&
        { [ -n "${4:-}" ] || [ "$(cat "$work/$1.rc")" = 0 ]; }
    then
        ok "$mpi: $2"
    else
        not_ok "$mpi: $2" "exit status $(cat "$work/$1.rc")
$(head -n 40 "$work/$1")"
    fi
}

# ended NAME DESCRIPTION: the job has failed before the time limit.
ended() {
    case $(cat "$work/$1.rc") in
        0 | 124) not_ok "$mpi: $2" "exit status $(cat "$work/$1.rc")
$(cat "$work/$1")" ;;
        *) ok "$mpi: $2" ;;
    esac
}

# test_cuda MACHINES YES_OR_NO TRANSFERS DESCRIPTION: 3 ranks with the driver in software, whose memory every MPI can
# read and write; MPI gets it directly in TRANSFERS calls of the part `large`.
test_cuda() {
    if [ ! -e "$build/softcuda-plugins/stamp" ] || [ ! -e "$build/tests/softcuda/libcuda.so.1" ]; then
        skip "$mpi: $4" "softcuda was not built"
        return
    fi
    job "cuda$1$2" 3 large "CTRT_DEVICE=cuda CTRT_PLUGIN_PATH=$build/softcuda-plugins CTRT_LOG=debug \
        LD_LIBRARY_PATH=$build/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        SOFTCUDA=devices=3,memory=256m,late=20000us CTRT_MPI_MACHINES=$1 CTRT_MPI_CUDA=$2"
    transfers=$(grep -c 'MPI transfers parts of [0-9]* bytes in the memory of cuda:[0-2]$' "$work/cuda$1$2")
    if [ "$transfers" = "$3" ]; then
        passed "cuda$1$2" "$4" 3
    else
        not_ok "$mpi: $4" "$transfers transfers of device memory, expected $3
$(grep -v debug "$work/cuda$1$2" | head -n 40)"
    fi
}

# test_captured RANKS MACHINES YES_OR_NO: steps of `distributed` in graphs, with the driver in software.
test_captured() {
    if [ ! -e "$build/softcuda-plugins/stamp" ] || [ ! -e "$build/tests/softcuda/libcuda.so.1" ]; then
        skip "$mpi: captured steps; ranks: $1" "softcuda was not built"
        return
    fi
    job "captured$1$2$3" "$1" captured "CTRT_DEVICE=cuda CTRT_PLUGIN_PATH=$build/softcuda-plugins \
        LD_LIBRARY_PATH=$build/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        SOFTCUDA=devices=4,memory=256m,late=20us CTRT_MPI_MACHINES=$2 CTRT_MPI_CUDA=$3"
    passed "captured$1$2$3" "captured steps; ranks: $1, machines: $2, device memory: $3" "$1"
}

# test_mpi NAME LAUNCHER: the jobs that mostly wait run at the same time as the others.
test_mpi() {
    mpi=$1 mpirun=$2
    { contract contract mpi 60 '*'
    contract hang broken 2 timeout 'CTRT_BROKEN=poll_never CTRT_BROKEN_ENGINE=mpi'
    contract crash broken 20 barrier 'CTRT_BROKEN=crash CTRT_BROKEN_ENGINE=mpi'
    contract wrong broken 20 all_gather 'CTRT_BROKEN=gather_reversed CTRT_BROKEN_ENGINE=mpi'; } &
    { job timeout 3 timeout; job kill 3 lose CTRT_COMM_REPORT="$work/report-%r.json"; } &
    { job leave 3 leave; job timeout-mpi 3 timeout CTRT_MPI_MACHINES=3; } &
    { for machines in 1 2; do
        for way in recv send; do job "depart-$way$machines" 2 "depart-$way" "CTRT_MPI_MACHINES=$machines"; done
    done; } &
    for n in 1 3; do
        job "all$n" "$n" collectives
        passed "all$n" "collectives, background work, messages, split; ranks: $n" "$n"
    done
    job unreadable 3 unreadable OMPI_MCA_btl_vader_single_copy_mechanism=none
    passed unreadable "processes that must not read each other's memory" 3
    job unshared 3 unshared
    passed unshared "processes that cannot share memory" 3
    job apart 3 collectives CTRT_MPI_MACHINES=3
    passed apart "one rank per machine" 3
    job machines 4 collectives CTRT_MPI_MACHINES=2
    passed machines "two machines with two ranks each" 4
    job native 2 native 'CTRT_MPI_ORDERED=1 CTRT_MPI_MOST=16k CTRT_MPI_MACHINES=2'
    passed native "MPI's reductions, calls in pieces; hashes of signatures" 2
    job leaders 3 native 'CTRT_MPI_ORDERED=1 CTRT_MPI_MOST=16k CTRT_MPI_MACHINES=2'
    passed leaders "the same between two machines, one of them with two ranks" 3
    for machines in 1 2; do
        job "mismatch$machines" 3 mismatch "CTRT_MPI_MACHINES=$machines"
        passed "mismatch$machines" "calls that differ are errors on all ranks; machines: $machines" 3 any
    done
    job hashes 2 mismatch 'CTRT_MPI_ORDERED=1 CTRT_MPI_MACHINES=2'
    passed hashes "calls that differ, found by hashes" 2 any
    job own 2 own
    passed own "a program that initialises MPI itself" 2
    # Per rank: 5 collectives that wait, 8 in the background, 2 sends and 2 receives.
    test_cuda 3 yes 51 "device memory on several machines"
    test_cuda 2 yes 51 "device memory on two machines, one of them with two ranks"
    test_cuda 1 yes 12 "device memory on one machine, only in messages"
    test_cuda 3 no 0 "device memory, copied through the host"
    test_captured 2 1 no
    test_captured 3 3 yes
    test_captured 4 2 no
    wait
    passed timeout "a rank that does not come is named; no call hangs" 3 any
    passed timeout-mpi "the same on several machines" 3 any
    for machines in 1 2; do
        passed "depart-recv$machines" "a message from a rank that has left without it; machines: $machines" 2 any
        passed "depart-send$machines" "a message to a rank that has left without it; machines: $machines" 2 any
    done
    kept contract
    finds hang "ranks that do not return" timeout 'rank [0-9] did not end timeout within 2 s'
    finds crash "a rank that crashes" barrier 'crashed with signal 6'
    finds wrong "wrong results" all_gather 'is [0-9]*, expected'
    # The launcher kills the other ranks, which may be before they have written their reports.
    ended kill "a killed rank ends the job"
    ended leave "a rank that ends without leaving its group ends the job"
    if grep -q 'rank 2 ([^)]*) has ended' "$work/kill" || cat "$work"/report-*.json 2>/dev/null | grep -q '"ended"'
    then
        ok "$mpi: a killed rank is named by the others"
    else
        skip "$mpi: a killed rank is named by the others" "the launcher killed them before"
    fi
    rm -f "$work"/report-*.json
}

if [ ! -x "$program" ]; then
    skip "the engine mpi" "mpi-program was not built"
    finish
elif grep -q '__[atu]*san_init' "$builddir/.libs/mpi-program" "$program" 2>/dev/null; then
    skip "the engine mpi" "MPI libraries have leaks and races of their own"
    finish
fi

# The launchers mpirun.openmpi and mpiexec.mpich are Debian's names; others are known by their --version.
found=
for name in mpirun.openmpi mpiexec.mpich mpirun mpiexec; do
    launcher=$(command -v "$name") || continue
    case $("$launcher" --version 2>&1 | head -n 1) in
        *'Open MPI'* | *OpenRTE* | *PRTE* | *prte*) kind='Open MPI' ;;
        *HYDRA*) kind=MPICH ;;
        *) continue ;;
    esac
    case ",$found" in *",$kind,"*) continue ;; esac
    found="$found$kind,"
    test_mpi "$kind" "$launcher"
done
[ -n "$found" ] || skip "the engine mpi" "no mpirun or mpiexec of Open MPI or MPICH is installed"

# The declarations of the engine against the header, if a compiler wrapper is installed.
wrappers=
for wrapper in mpicc.openmpi mpicc.mpich mpicc; do
    command -v "$wrapper" >/dev/null || continue
    if echo '#include <mpi.h>' >"$work/empty.c" && "$wrapper" -fsyntax-only "$work/empty.c" 2>/dev/null; then
        wrappers="$wrappers $wrapper"
        flags=$("$wrapper" -show | tr ' ' '\n' | grep '^-I' | tr '\n' ' ')
        # shellcheck disable=SC2086
        check "the declarations of MPI are those of $wrapper" "$(
            ${CC:-cc} -I"$srcdir" $flags "$srcdir/tests/integration/mpi-header.c" -o "$work/header" 2>&1 &&
                "$work/header" 2>&1)"
    fi
done
[ -n "$wrappers" ] || skip "the declarations of MPI are those of its header" "no mpicc is installed"
finish
