#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh with the software driver: a phase that ends normally and phases that are killed at different times keep
# their measurements; a phase ends if the smoke test fails; a plugin without kernels is detected.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=devices=1,memory=512m
work=$(mktemp -d "${TMPDIR:-/tmp}/ctrt-gpu-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
GPU_PYTHON=false                            # as on a machine without PyTorch
export GPU_PYTHON
unset GPU_PACKAGE
# The package as `gpu.sh package` lays it out; its script finds the rest of it without the source tree.
mkdir -p "$work/package/bin" "$work/package/lib/ctrt/1" "$work/package/bench/peers"
cp "$srcdir/bench/gpu.sh" "$srcdir/bench/gpu_goals.sh" "$work/package/bench/"
script=$work/package/bench/gpu.sh
for program in ctrt bench-gpu bench-comm-nccl run-public; do
    ln -s "$build/$program" "$work/package/bin/$program"
done
# The kernels of the software driver are not in the plugin, so their size is added at its end.
cat "$build/softcuda-plugins/backend-cuda.so" >"$work/package/lib/ctrt/1/backend-cuda.so"
head -c 1000001 /dev/zero >>"$work/package/lib/ctrt/1/backend-cuda.so"
echo 1000001 >"$work/package/kernel-bytes"

# kept FOLDER: prints each step in the summary whose file is not in the archive, each measurement in a step's file that
# measured.txt lacks, and each file name with unusual characters.
kept() {
    mkdir "$1/all" && tar xzf "$1/results.tar.gz" -C "$1/all" || echo "results.tar.gz is incomplete"
    sed -n 's/^\([1-4]-[a-zA-Z0-9_-]*\): \(ok\|FAILED\|TIMEOUT\).*/\1/p' "$1/summary.txt" | while read -r step; do
        [ -f "$1/all/$step.txt" ] || echo "$step is in the summary, but its file is not in the archive"
    done
    cat "$1/all/"*.txt "$1/running.txt" 2>/dev/null |
        sed -n 's/^[a-z][a-z0-9_]* [0-9][0-9.]*\( [0-9]*\)\{0,1\}$/ours &/p' |
        while read -r line; do
            grep -qsxF "$line" "$1/measured.txt" "$1/running.txt" || grep -qsxF "${line#ours }" "$1/running.txt" ||
                echo "lost: $line"
        done
    find "$1" -name '*[!A-Za-z0-9._-]*' | sed 's/^/a name with other characters: /'
}

GPU_SECONDS=300 "$script" 1 "$work/whole" small >"$work/whole.out" 2>&1
check "a complete phase keeps everything" "$(kept "$work/whole")"
for step in facts smoke conformance elementwise rows product-kernels launches attention convolution index \
    step_transformer_small_amp; do
    check "step $step passes" "$(grep -q "^1-$step: ok" "$work/whole/summary.txt" || cat "$work/whole/summary.txt")"
done
check "NCCL with one rank: its results are checked" \
    "$(grep -q 'collectives with one rank passed' "$work/whole/all/1-nccl.txt" || cat "$work/whole/all/1-nccl.txt")"
check "the summary says that NCCL in software is not measured" \
    "$(grep -q '^1-nccl: skipped: .*NCCL in software' "$work/whole/summary.txt" || cat "$work/whole/summary.txt")"
check "steps have peak memories" "$(grep -q '^ours memory_step_cnn_small_amp [1-9]' "$work/whole/measured.txt" ||
    cat "$work/whole/measured.txt")"
check "the summary says that PyTorch is missing" "$(grep -q '^PyTorch: false does not run' "$work/whole/summary.txt" ||
    cat "$work/whole/summary.txt")"
check "it measures" "$([ "$(grep -c '^ours ' "$work/whole/measured.txt")" -gt 40 ] || cat "$work/whole/measured.txt")"

# kill_session LEADER: sends SIGKILL to all processes of a session, as if the machine were lost. (A process group is not
# enough, because timeout puts each step into its own.)
kill_session() {
    kill -KILL $(cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$1" '$6 == session { print $1 }') 2>/dev/null
}
for moment in 1 3 5; do
    setsid "$script" 1 "$work/killed$moment" small >/dev/null 2>&1 &
    pid=$!
    sleep $moment
    kill_session "$pid"
    kill_session "$pid"
    wait "$pid" 2>/dev/null
    check "a phase killed after $moment s keeps its results" "$(kept "$work/killed$moment")"
done

# With a driver that cannot launch kernels, only the facts, which need no kernel, and the smoke test run.
SOFTCUDA=devices=1,memory=1m GPU_SECONDS=60 "$script" 1 "$work/broken" small >/dev/null 2>&1
check "a phase ends after a failed smoke test" "$({
    grep -q '^1-smoke: FAILED' "$work/broken/summary.txt" &&
    grep -q 'the smoke test failed' "$work/broken/summary.txt" &&
    ! grep -q '^1-conformance' "$work/broken/summary.txt"; } || cat "$work/broken/summary.txt")"
head -c 1100000 /dev/zero >"$work/package/lib/ctrt/1/backend-cuda.so"
echo 4000000 >"$work/package/kernel-bytes"
check "the facts detect a plugin without kernels" "$("$script" facts 2>&1 |
    grep -q '^FAILED: the cuda plugin does not contain the kernels' || echo "not detected")"

# A phase that finds the files of another phase continues them.
GPU_SECONDS=9 "$script" 1 "$work/killed5" small >/dev/null 2>&1
rm -rf "$work/killed5/all"
check "a second phase keeps the first one's results" "$(kept "$work/killed5")"
summary=$work/killed5/summary.txt
check "its summary has both" "$([ "$(grep -c '^phase 1 on' "$summary")" -eq 2 ] || cat "$summary")"
check "the summary lists steps that did not start" "$(grep -q 'not started' "$summary" || cat "$summary")"
finish
