#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cuda plugin as nvcc built it, run by the interpreter of PTX: its fat binaries have their kernels, the conformance
# suite and the comparisons with the cpu pass, and every kernel runs except those that unused.txt explains.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/ptx/ptx_lib.sh"
PTX=counts=$work/counts
export PTX

grep -aoE '\.visible \.entry [A-Za-z0-9_]+' "$PTX_PLUGIN" | sed 's/.* //' | sort -u >"$work/kernels"
check "the plugin has kernels" "$([ -s "$work/kernels" ] || echo "$PTX_PLUGIN has no PTX")"
"${NM:-nm}" "$PTX_PLUGIN" >"$work/symbols"
place() { sed -n "s/ . cuda_fatbin_$1_$2\$//p" "$work/symbols"; }
short=$(sed -n 's/^FATBIN(\(.*\))/\1/p' "$srcdir/backends/cuda/host/fatbin.def" | while read -r name; do
    begin=$(place begin "$name") end=$(place end "$name")
    [ -n "$begin" ] && [ $((0x$end - 0x$begin)) -gt 10000 ] || echo "$name"
done)
check "no fat binary is missing or empty" "$short"

conforms cuda:0
passes "rows, compared with the cpu" "$builddir/run-public" test-cuda-rows cuda:0
CTRT_CUDA_SCATTER=sort passes "sums by sorted indices" "$builddir/run-public" test-cuda-rows cuda:0 sorted
passes "elementwise kernels" "$builddir/run-public" test-cuda-elementwise
passes "products and convolutions" "$builddir/run-public" test-cuda-products cuda:0
passes "products of cuda-fp16" "$builddir/run-public" test-cuda-products cuda-fp16:0
CTRT_CUDA_FP16=bf16 passes "products of cuda-fp16 in bf16" "$builddir/run-public" test-cuda-products cuda-fp16:0
passes "the training reference" "$builddir/test-train-reference" cuda:0

cut -d ' ' -f 1 "$work/counts" | sort -u >"$work/run"
grep -vE '^(#|$)' "$srcdir/tests/ptx/unused.txt" | sort >"$work/explained"
check "kernels that did not run are explained in unused.txt" "$(comm -23 "$work/kernels" "$work/run" |
    comm -23 - "$work/explained")"
check "kernels in unused.txt exist and did not run" \
    "$(comm -23 "$work/kernels" "$work/run" | comm -13 - "$work/explained")"
echo "# $(wc -l <"$work/run") of $(wc -l <"$work/kernels") kernels ran"
finish
