#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the conformance suite and the comparison with PyTorch's results on the cpu with each instruction set, and the ops
# that use matrix products also with each library for them. No other test checks the results of cpu kernels.
. "$srcdir/tests/lib.sh"

# conforms WHAT ARGUMENT...: passes if the suite runs at least one check and all pass.
conforms() {
    what=$1
    shift
    said=$("$builddir/ctrt-conformance" --skip-tags gradient,gradient2 "$@" 2>&1)
    status=$?
    check "conformance with $what" "$([ $status -eq 0 ] && echo "$said" | grep -q '^# [1-9][0-9]* passed, 0 failed' ||
        { echo "status $status"; echo "$said" | grep -A3 '^not ok' | head -n 40; echo "$said" | tail -n 5; })"
}

for isa in baseline avx2 avx512; do
    CTRT_CPU_ISA=$isa
    export CTRT_CPU_ISA
    conforms "CTRT_CPU_ISA=$isa"
    said=$("$builddir/run-public" test-ops-reference 2>&1)
    check "PyTorch's answers with CTRT_CPU_ISA=$isa" "$([ $? -eq 0 ] || echo "$said" | grep -v '^ok' | head -n 40)"
    CTRT_CPU_GEMM=builtin
    export CTRT_CPU_GEMM
    conforms "CTRT_CPU_ISA=$isa and CTRT_CPU_GEMM=builtin" --tags matmul,conv,attention
    unset CTRT_CPU_GEMM
done
unset CTRT_CPU_ISA
for library in onednn blas; do
    CTRT_CPU_GEMM=$library
    export CTRT_CPU_GEMM
    conforms "CTRT_CPU_GEMM=$library" --tags matmul,conv,attention
done
finish
