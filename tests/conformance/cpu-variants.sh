#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the conformance suite and the comparison with PyTorch's results on the cpu with each instruction set, and the ops
# that use matrix products also with each library for them. No other test checks the results of cpu kernels.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

# variant SETTING...: sets the variables and clears those of the variant before.
variant() {
    unset CTRT_CPU_ISA CTRT_CPU_GEMM
    with=$*
    for setting; do export "$setting"; done
}

# With sanitizers, cpu.sh tests the best instruction set, and one more suffices. The libraries have no instrumentation.
isas="baseline avx2 avx512" libraries="onednn blas"
[ -z "$SANITIZE" ] || isas=avx2 libraries=
for isa in $isas; do
    variant CTRT_CPU_ISA=$isa
    conforms cpu --skip-tags gradient,gradient2
    passes "PyTorch's answers" "$builddir/run-public" test-ops-reference
    variant CTRT_CPU_ISA=$isa CTRT_CPU_GEMM=builtin
    conforms cpu --skip-tags gradient,gradient2 --tags matmul,conv,attention
done
for library in $libraries; do
    variant CTRT_CPU_GEMM=$library
    conforms cpu --skip-tags gradient,gradient2 --tags matmul,conv,attention
done
finish
