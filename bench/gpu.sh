#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that wants a real GPU, in one call: builds from a release archive, runs the suites on the driver, looks for bad accesses and races in
# kernels, and measures beside PyTorch.
#
#   make dist && bench/gpu.sh ctrt-0.1.0.tar.gz FOLDER [ROUNDS [small]]    FOLDER: where logs and tables go; rounds of the measurement: 3; small:
#                                                                       sizes for a driver in software, to try this script
#
# Needs a C compiler, make, pkg-config, nvcc and the driver; PyTorch (python3 -c "import torch") for the comparison, compute-sanitizer for the
# check of kernels: what is missing is said and left out. Prints a summary at the end, with the goals of speed that were missed (gpu_goals.sh); its
# exit status tells whether all suites passed.
set -u
[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
archive=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mkdir -p "$2" && out=$(cd "$2" && pwd)
rounds=${3:-3}
small=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=
summary=$out/summary.txt
: >"$summary"
say() { echo "$*" | tee -a "$summary"; }

nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv >"$out/gpu.txt" 2>&1 || { cat "$out/gpu.txt"; exit 1; }
say "$(sed 1d "$out/gpu.txt" | head -n 1), $(date -u +%F)"
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)

# ---- built ----
cd "$work" && tar xf "$archive" && mkdir build && cd build || exit 1
{ ../ctrt-*/configure --prefix="$work/installed" --with-cuda-arch="$arch" && make -j "$(nproc)" && make install; } >"$out/build.log" 2>&1 ||
    { tail -n 30 "$out/build.log"; say "the build failed"; exit 1; }
say "built for compute capability $arch"
PATH=$work/installed/bin:$PATH
LD_LIBRARY_PATH=$work/installed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# cuBLAS and cuDNN, where only a pip-installed PyTorch has them.
more=$(python3 -c 'import glob, os, torch
print(":".join(sorted(glob.glob(os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia", "*", "lib")))))' 2>/dev/null)
[ -z "$more" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$more
export PATH LD_LIBRARY_PATH
ctrt info >"$out/info.txt" 2>&1

# ---- the suites, on the real driver ----
suite() {
    name=$1
    shift
    if "$@" >"$out/$name.log" 2>&1; then
        say "$name: passed ($(grep -c '^ok' "$out/$name.log") checks)"
    else
        say "$name: FAILED, $(grep -c '^not ok' "$out/$name.log") checks: $out/$name.log"
        grep -A2 '^not ok' "$out/$name.log" | head -n 12
        failed=yes
    fi
}
make -s test-train-reference test-capture >>"$out/build.log" 2>&1
srcdir=$(cd ../ctrt-*/ && pwd)
export srcdir
for device in cuda:0 cuda-fp16:0; do
    suite "conformance-$device" ctrt check --device "$device"
    suite "captures-$device" ./test-capture "$device"
done
CTRT_CUDA_GEMM=builtin CTRT_CUDA_CONV=builtin suite "conformance-builtin" ctrt check --device cuda:0
CTRT_CUDA_ATTENTION=composite suite "conformance-composite" ctrt check --device cuda:0 --op '*attention*'
suite "training-reference" ./test-train-reference cuda:0
CTRT_MEMORY=caching:expandable=true suite "conformance-expandable" ctrt check --device cuda:0 --op 'a*'
CTRT_CUDA_POOL=yes CTRT_MEMORY=direct suite "conformance-pool" ctrt check --device cuda:0
CTRT_CUDA_POOL=yes CTRT_MEMORY=direct suite "captures-pool" ./test-capture cuda:0

# ---- bad accesses, races, reads of what nobody wrote, bad barriers in kernels; each block of its own, so that its end is known ----
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
        CTRT_MEMORY=direct suite "$tool" compute-sanitizer --tool $tool --error-exitcode 9 ctrt check --device cuda:0 --tags forward --op '[a-s]*'
    done
else
    say "no compute-sanitizer: kernels were not looked at by it"
fi

# ---- speed ----
make -s bench-gpu >>"$out/build.log" 2>&1 || { say "bench-gpu was not built"; failed=yes; }
bench="./bench-gpu cuda:0 $small trace=$out/overlap.json && ./bench-gpu cuda:0 $small tf32"
COMPARE_RAW=$out/raw.txt
export COMPARE_RAW
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>"$out/torch.log"; then
    say "PyTorch $(python3 -c 'import torch; print(torch.__version__)')"
    "$here/compare.sh" "$rounds" "$bench" "python3 $here/peers/gpu_torch.py" >"$out/speed.txt" 2>"$out/speed.log" || failed=yes
else
    say "no PyTorch with CUDA: ctrt alone"
    "$here/compare.sh" "$rounds" "$bench" true >"$out/speed.txt" 2>"$out/speed.log" || failed=yes
fi
cat "$out/speed.txt"
grep -h 'note:\|no comparison\|torch.compile' "$out/speed.log" | sort -u | tee -a "$summary"
"$here/gpu_goals.sh" "$out/raw.txt" >"$out/goals.txt"
say "$(tail -n 1 "$out/goals.txt")"
grep '^MISSED' "$out/goals.txt" | tee -a "$summary"
say "copies and products on two streams: $out/overlap.json (chrome://tracing or ui.perfetto.dev)"
say "link: PCIe generation and lanes, as nvidia-smi tells: $(nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max --format=csv,noheader | head -n 1)"
echo
cat "$summary"
[ -z "$failed" ]
