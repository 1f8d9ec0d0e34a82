#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures ctrt on a GPU that is available only for minutes: in phases of at most 9 minutes, the most
# important work first, and each result is saved as soon as it exists.
#
#   bench/gpu.sh package [ARCH]         builds for compute capability ARCH (default: this machine's GPU, else 90)
#                                       into _build-gpu/package: programs, libraries, plugins, reference data, this
#                                       script. The package runs from any folder, without the source tree, on any
#                                       machine with the same or a newer C library: PACKAGE/bench/gpu.sh PHASE OUT.
#                                       Fails if it is larger than GPU_PACKAGE_MIB.
#   bench/gpu.sh PHASE OUT [small]      runs a phase with that package (builds it first if none runs) and writes into
#                                       the folder OUT. small: sizes for a software driver, without the suites that
#                                       would take minutes on it.
#
#   bench/gpu.sh facts                  prints the machine's hardware and software.
#
#   PHASE 1  facts, smoke test, conformance, comparison of elementwise, row and product kernels with the cpu, captured
#            steps, training reference, then measurements of ctrt
#         2  PyTorch's measurements, each followed by a second one of ctrt
#         3  conformance with other settings (cuda-fp16, built-in products, driver pools, expandable segments) and
#            measurements with other settings
#         4  compute-sanitizer and Nsight Compute (each only if a probe of it works), torch.compile
#
# Each phase begins with the smoke test, and ends there if it fails, because everything else would fail too. Each step
# has a timeout and its own output file; other failed steps do not end the phase. A step that exits with 77 is skipped;
# the last line of its output says why. After every step, these are updated:
#   OUT/summary.txt        one line per step: ok, skipped, FAILED, TIMEOUT or not started, and the duration
#   OUT/measured.txt       "ours|theirs NAME NANOSECONDS [BYTES]", for bench/gpu_goals.sh
#   OUT/results.tar.gz     all results, with the output of each step as STEP.txt
#   OUT/running.txt        "# SIDE STEP", then the output of the running step; if a phase is killed, the next phase with
#                          the same OUT saves this file
# A phase appends to the files that it finds in OUT.
#
# Environment: GPU_SECONDS: time limit of a phase (540). GPU_DEVICE: the device (cuda:0). GPU_PACKAGE: the package's
# folder. GPU_PACKAGE_MIB: its size at most (56). GPU_PYTHON: a Python with PyTorch (python3); without one, or if it
# finds no GPU, PyTorch's steps are skipped. Exit status: 0 if every step that started passed.
set -u
usage() { sed -n '2,39s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
if [ -x "$top/bin/ctrt" ]; then package=$top; else package=$top/_build-gpu/package; fi
package=${GPU_PACKAGE:-$package}
device=${GPU_DEVICE:-cuda:0}
python=${GPU_PYTHON:-python3}

# ---- the package ----

gpu_arch() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        sed -n '1s/\.//p' | grep '^[0-9]*$' || echo 90
}

# Keeps the build folder, so that a second call is an incremental build.
make_package() {
    build=$top/_build-gpu/build
    mkdir -p "$build" && cd "$build" || return 1
    [ -x "$top/configure" ] || (cd "$top" && ./autogen.sh) || return 1
    [ "$(cat .arch 2>/dev/null)" = "$1" ] ||
        { ../../configure --prefix="$package" --with-cuda-arch="$1" && echo "$1" >.arch; } || return 1
    make -j "$(nproc)" all || return 1        # a separate call; one call with both goals builds the library twice
    programs='test-train-reference test-capture run-public bench-gpu bench-comm-nccl'
    make -j "$(nproc)" $programs || return 1
    rm -rf "$package"
    make install || return 1
    for program in $programs; do
        ./libtool --mode=install cp $program "$package/bin/" || return 1
    done
    cat backends/cuda/kernels/*.fatbin | wc -c >"$package/kernel-bytes"
    mkdir -p "$package/tests/reference" "$package/bench/peers" &&
        cp "$top"/tests/reference/train_*.txt "$package/tests/reference/" &&
        cp "$here/gpu.sh" "$here/gpu_goals.sh" "$package/bench/" &&
        cp "$here/peers/gpu_torch.py" "$package/bench/peers/" || return 1
    mib=$(du -sm "$package" | cut -f 1)
    [ "$mib" -le "${GPU_PACKAGE_MIB:-56}" ] || { echo "the package is too large: $mib MiB" >&2; return 1; }
}

if [ "$1" = package ]; then
    make_package "${2:-$(gpu_arch)}" || exit 1
    echo "packaged for compute capability ${2:-$(gpu_arch)}: $package ($(du -sh "$package" | cut -f 1))"
    exit 0
fi

# ---- facts of the machine ----

cuda_plugin() {
    find "$package/lib/ctrt" -name backend-cuda.so | head -n 1
}

# Prints PyTorch's version, or why it cannot be measured.
torch_state() {
    "$python" -c 'import torch
print(torch.__version__ if torch.cuda.is_available() else "version " + torch.__version__ + " finds no GPU")' 2>&1 |
        tail -n 1 | grep . || echo "$python does not run"
}

if [ "$1" = facts ]; then
    nvidia-smi --format=csv \
        --query-gpu=index,name,driver_version,memory.total,compute_cap,pcie.link.gen.max,pcie.link.width.max
    uname -srm
    nproc
    ldd --version | head -n 1
    ldd "$(cuda_plugin)"
    ldconfig -p | grep -E 'libcuda|libcublas|libcudnn|libnvidia-ml|libnccl'
    echo "PyTorch: $(torch_state)"
    "$package/bin/ctrt" info
    "$package/bin/ctrt" info --params
    "$package/bin/ctrt" plugins
    kernels=$(cat "$package/kernel-bytes") bytes=$(wc -c <"$(cuda_plugin)")
    echo "the cuda plugin has $bytes bytes, of which $kernels are kernels"
    # A fat binary of all kernels for one architecture has several MB.
    [ "$kernels" -gt 1000000 ] && [ "$bytes" -gt "$kernels" ] ||
        { echo "FAILED: the cuda plugin does not contain the kernels"; exit 1; }
    exit 0
fi

# ---- steps ----

case $1 in 1|2|3|4) ;; *) usage ;; esac
[ $# -ge 2 ] || usage
phase=$1
mkdir -p "$2" || exit 1
out=$(cd "$2" && pwd)
small=${3:-}
deadline=$(($(date +%s) + ${GPU_SECONDS:-540}))
work=$(mktemp -d)
failed=
child=

# Rewrites the archive under another name and renames it, so that results.tar.gz is always complete.
archive() {
    cp "$out/summary.txt" "$out/measured.txt" "$work/results/" 2>/dev/null
    tar czf "$out/results.tar.gz.new" -C "$work/results" . && mv "$out/results.tar.gz.new" "$out/results.tar.gz"
}
# keep FILE LINE: adds running.txt to the archive as FILE and appends LINE to the summary. The archive is first, so that
# it contains every file that the summary names.
keep() {
    cp "$out/running.txt" "$work/results/$1"
    archive
    say "$2"
    rm -f "$out/running.txt"
}
say() { echo "$*" | tee -a "$out/summary.txt"; }

stop() {
    trap - TERM INT EXIT
    [ -z "$child" ] || kill "$child" 2>/dev/null
    [ ! -s "$out/running.txt" ] || { record; keep "$name.cut.txt" "$name: cut off"; }
    rm -rf "$work"
    exit 1
}

# Appends the measurements in running.txt to measured.txt, for the side that its first line names.
record() {
    sed -n '1s/^# \([^ ]*\) .*/\1/p' "$out/running.txt" >"$work/side"
    sed -n "s/^\([a-z][a-z0-9_]* [0-9][0-9.]*\( [0-9]*\)\{0,1\}\)\$/$(cat "$work/side") \1/p" "$out/running.txt" \
        >>"$out/measured.txt"
}

# step SIDE NAME SECONDS COMMAND...
step() {
    side=$1 name=$phase-$2 limit=$3
    shift 3
    left=$((deadline - $(date +%s) - 3))
    status=1 started=
    if [ "$left" -lt 5 ]; then
        say "$name: not started, the phase's time is over"
        return
    fi
    [ "$limit" -lt "$left" ] || limit=$left
    begin=$(date +%s) started=yes
    echo "# $side $name" >"$out/running.txt"
    timeout -k 5 "$limit" "$@" >>"$out/running.txt" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    case $status in
    0) word=ok ;;
    77) word="skipped: $(tail -n 1 "$out/running.txt")" ;;
    124|137) word="TIMEOUT" failed=yes ;;
    *) word="FAILED (status $status)" failed=yes ;;
    esac
    record
    checks=$(grep -c '^ok ' "$out/running.txt")
    line="$name: $word, $(($(date +%s) - begin)) s"
    [ "$checks" -eq 0 ] || line="$line, $checks checks passed, $(grep -c '^not ok ' "$out/running.txt") failed"
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
        why=$(grep -E '^not ok |^[^ ].*failed|FAILED|rror:' "$out/running.txt" | head -n 5 | sed 's/^/    /')
        line="$line${why:+
$why}"
    fi
    keep "$name.txt" "$line"
}

# conforms NAME SECONDS [VARIABLE=VALUE...]
conforms() {
    name_=$1 seconds_=$2
    shift 2
    step ours "$name_" "$seconds_" env "$@" ctrt check --device "$device" ${small:+--op add}
}
bench() { name_=$1 seconds_=$2; shift 2; step ours "$name_" "$seconds_" bench-gpu "$device" "$@" ${small:+small}; }
# compares NAME SECONDS TEST [ARGUMENT...]: a test of tests/unit, which compares results of the device with the cpu's.
compares() {
    name_=$1 seconds_=$2 test_=$3
    shift 3
    step ours "$name_" "$seconds_" env CTRT_TEST_GPU=yes run-public "$test_" "$device" "$@"
}
# Skips the measurements of PyTorch if there is none.
peer() {
    name_=$1 seconds_=$2
    shift 2
    case $torch in
    [0-9]*) step theirs "$name_" "$seconds_" "$python" "$here/peers/gpu_torch.py" "$@" ;;
    *) say "$phase-$name_: skipped, no PyTorch" ;;
    esac
}

# ---- the phases ----

models='step_mlp step_cnn step_transformer'
kinds='small_f32 small_bf16 small_amp large_f32 large_bf16 large_amp'
sections='launches products attention convolution index softmax norms cross-entropy optimizers bandwidth transfers'
seconds_of() {
    case $1 in
    launches|transfers) echo 20 ;;
    products|attention|convolution|bandwidth) echo 60 ;;
    *) echo 30 ;;
    esac
}

phase_1() {
    conforms conformance 180
    compares elementwise 60 test-cuda-elementwise
    compares rows 90 test-cuda-rows ${small:+softmax}
    compares product-kernels 60 test-cuda-products
    if [ -z "$small" ]; then
        step ours captures 60 test-capture "$device"
        step ours training-reference 60 test-train-reference "$device"
    fi
    for section in $sections; do
        bench "$section" "$(seconds_of "$section")" "$section"
    done
    for model in $models; do
        for kind in $kinds; do
            bench "${model}_$kind" 30 steps "only=${model}_$kind*"
        done
    done
    step ours nccl 30 bench-comm-nccl "$device"
    bench overlap 20 overlap "trace=$work/results/overlap.json"
    bench tf32 40 tf32
}

phase_2() {
    for section in $sections tf32; do
        peer "torch-$section" "$(seconds_of "$section")" "$section"
        bench "$section" "$(seconds_of "$section")" "$section"
    done
    for model in $models; do
        for kind in $kinds; do
            peer "torch-${model}_$kind" 40 steps "only=${model}_$kind*"
            bench "${model}_$kind" 30 steps "only=${model}_$kind*"
        done
    done
}

# Uses the setting's label as the side, which separates these measurements from those of the default settings.
setting() {
    label=$1 section=$2
    shift 2
    step "$label" "$section-$label" 60 env "$@" bench-gpu "$device" "$section" ${small:+small}
}

phase_3() {
    fp16=${device%%:*}-fp16:${device##*:}
    step ours conformance-fp16 120 ctrt check --device "$fp16" ${small:+--op add}
    step ours captures-fp16 60 test-capture "$fp16"
    conforms conformance-builtin 120 CTRT_CUDA_GEMM=builtin CTRT_CUDA_CONV=builtin
    conforms conformance-composite 90 CTRT_CUDA_ATTENTION=composite
    step ours product-kernels-fp16 60 env CTRT_TEST_GPU=yes run-public test-cuda-products "$fp16"
    step ours product-kernels-builtin 60 env CTRT_TEST_GPU=yes CTRT_CUDA_GEMM=builtin CTRT_CUDA_CONV=builtin \
        run-public test-cuda-products "$device"
    step ours rows-sorted 60 env CTRT_TEST_GPU=yes CTRT_CUDA_SCATTER=sort run-public test-cuda-rows "$device" sorted
    conforms conformance-pool 120 CTRT_CUDA_POOL=yes CTRT_MEMORY=direct
    conforms conformance-expandable 90 CTRT_MEMORY=caching:expandable=true
    step ours captures-pool 60 env CTRT_CUDA_POOL=yes CTRT_MEMORY=direct test-capture "$device"
    setting composite attention CTRT_CUDA_ATTENTION=composite
    setting workspace-2g convolution CTRT_CUDA_WORKSPACE=2g
    setting benchmark convolution CTRT_CUDA_BENCHMARK=yes
    setting nondeterministic convolution CTRT_CUDA_DETERMINISTIC=no
    setting nondeterministic index CTRT_CUDA_DETERMINISTIC=no
    setting builtin products CTRT_CUDA_GEMM=builtin
}

phase_4() {
    if compute-sanitizer --tool memcheck ctrt check --device "$device" --op add --tags scalar >"$work/probe" 2>&1; then
        for tool in memcheck racecheck initcheck synccheck; do
            # With the direct policy each tensor is a separate allocation, so an access past its end is detected.
            step ours "$tool" 100 env CTRT_MEMORY=direct compute-sanitizer --tool $tool --error-exitcode 9 \
                ctrt check --device "$device" --tags forward --op '[a-s]*'
        done
    else
        say "$phase-sanitizers: skipped, compute-sanitizer does not work here: $(tail -n 1 "$work/probe")"
    fi
    if ncu --clock-control none -c 1 bench-gpu "$device" launches ${small:+small} >"$work/probe" 2>&1; then
        for section in attention softmax norms index; do
            step ncu "ncu-$section" 60 ncu --clock-control none -c 12 bench-gpu "$device" "$section" ${small:+small}
        done
    else
        say "$phase-profiles: skipped, Nsight Compute does not work here: $(tail -n 1 "$work/probe")"
    fi
    for model in $models; do
        peer "torch-compiled-$model" 150 compiled "only=${model}_*"
    done
}

# ---- the run ----

mkdir "$work/results"
trap stop TERM INT
trap 'rm -rf "$work"' EXIT
if [ -f "$out/results.tar.gz" ]; then
    tar xzf "$out/results.tar.gz" -C "$work/results" || say "results.tar.gz was unreadable and is replaced"
fi
if [ -s "$out/running.txt" ]; then
    name=$(sed -n '1s/^# [^ ]* //p' "$out/running.txt")
    [ -e "$work/results/$name.txt" ] || { record; mv "$out/running.txt" "$work/results/$name.cut.txt"; }
fi
: >>"$out/measured.txt"
PATH=$package/bin:$PATH
LD_LIBRARY_PATH=$package/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# cuBLAS and cuDNN of a pip-installed PyTorch, in case the loader finds no others.
pip=$("$python" -c 'import glob, importlib.util, os
site = os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin))
print(":".join(sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))))' 2>/dev/null)
[ -z "$pip" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$pip
srcdir=$package
export PATH LD_LIBRARY_PATH srcdir
say "phase $phase on $device, $(date -u '+%F %T')"
archive
ctrt --version >/dev/null 2>&1 || step build package 400 "$here/gpu.sh" package
if ! version=$(ctrt --version 2>&1); then
    say "the package in $package does not run here: $(echo "$version" | head -n 1)"
    archive
    exit 1
fi
say "$version"
torch=$(torch_state)
say "PyTorch: $torch"
[ "$phase" -ne 1 ] || step ours facts 30 "$here/gpu.sh" facts
bench smoke 40 smoke
if [ "$status" -eq 0 ]; then
    phase_"$phase"
elif [ -n "$started" ]; then
    say "phase $phase ends: the smoke test failed, so the other steps would fail too"
fi
"$here/gpu_goals.sh" "$out/measured.txt" >"$out/goals.txt" 2>&1
say "$(tail -n 1 "$out/goals.txt")"
cp "$out/goals.txt" "$work/results/"
archive
grep '^MISSED' "$out/goals.txt"
cat "$out/summary.txt"
[ -z "$failed" ]
