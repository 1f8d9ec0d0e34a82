#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares reductions, row ops, indexing and optimizers of the cuda backend with those of the cpu, with the software
# driver running threads and blocks in random order.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=$SOFTCUDA,order=random
passes "rows, compared with the cpu, in random order" "$builddir/run-public" test-cuda-rows cuda:0
CTRT_CUDA_SCATTER=sort
export CTRT_CUDA_SCATTER
passes "sums by sorted indices, in random order" "$builddir/run-public" test-cuda-rows cuda:0 sorted
finish
