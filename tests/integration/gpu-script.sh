#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh, over the driver in software: a phase that ends by itself, and phases that are killed at different moments, keep what was measured.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=devices=1,memory=512m
build=$(cd "$builddir" && pwd)
LD_LIBRARY_PATH=$build/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$build/softcuda-plugins
work=$(mktemp -d "${TMPDIR:-/tmp}/ctrt-gpu-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
GPU_PACKAGE=$work/package
GPU_PYTHON=false                            # as on a machine without PyTorch
export GPU_PACKAGE GPU_PYTHON
mkdir -p "$work/package/bin"
for program in ctrt bench-gpu; do
    ln -s "$build/$program" "$work/package/bin/$program"
done

# kept FOLDER: complains of a step in the summary without its file in the archive, and of a measurement in a step's file that measured.txt lacks.
kept() {
    mkdir "$1/all" && tar xzf "$1/results.tar.gz" -C "$1/all" || echo "results.tar.gz is not whole"
    sed -n 's/^\([1-4]-[a-zA-Z0-9_-]*\): \(ok\|FAILED\|TIMEOUT\).*/\1/p' "$1/summary.txt" | while read -r step; do
        [ -f "$1/all/$step.txt" ] || echo "$step is in the summary and its file not in the archive"
    done
    cat "$1/all/"*.txt "$1/running.txt" 2>/dev/null | sed -n 's/^[a-z][a-z0-9_]* [0-9][0-9.]*\( [0-9]*\)\{0,1\}$/ours &/p' | while read -r line; do
        grep -qsxF "$line" "$1/measured.txt" "$1/running.txt" || grep -qsxF "${line#ours }" "$1/running.txt" || echo "lost: $line"
    done
    find "$1" -name '*[!A-Za-z0-9._-]*' | sed 's/^/a name with other characters: /'
}

GPU_SECONDS=40 "$srcdir/bench/gpu.sh" 1 "$work/whole" small >"$work/whole.out" 2>&1
check "a whole phase keeps everything" "$(kept "$work/whole")"
for step in smoke conformance launches attention index; do
    check "step $step passes" "$(grep -q "^1-$step: ok" "$work/whole/summary.txt" || cat "$work/whole/summary.txt")"
done
check "it measures" "$([ "$(grep -c '^ours ' "$work/whole/measured.txt")" -gt 40 ] || cat "$work/whole/measured.txt")"

# kill_session LEADER: SIGKILL for all processes of a session, as when a machine is taken away. (A step has a process group of its own.)
kill_session() {
    kill -KILL $(cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$1" '$6 == session { print $1 }') 2>/dev/null
}
for moment in 1 3 5; do
    setsid "$srcdir/bench/gpu.sh" 1 "$work/killed$moment" small >/dev/null 2>&1 &
    pid=$!
    sleep $moment
    kill_session "$pid"
    kill_session "$pid"
    wait "$pid" 2>/dev/null
    check "killed after $moment s, it has kept what it had" "$(kept "$work/killed$moment")"
done
# A phase that finds the remains of another goes on from them.
GPU_SECONDS=9 "$srcdir/bench/gpu.sh" 1 "$work/killed5" small >/dev/null 2>&1
rm -rf "$work/killed5/all"
check "a second phase keeps the first one's results" "$(kept "$work/killed5")"
check "its summary has both" "$([ "$(grep -c '^phase 1' "$work/killed5/summary.txt")" -eq 2 ] || cat "$work/killed5/summary.txt")"
check "steps that did not fit are named" "$(grep -q 'not started' "$work/killed5/summary.txt" || cat "$work/killed5/summary.txt")"
finish
