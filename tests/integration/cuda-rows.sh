#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# With the software driver running threads, blocks and nodes of graphs in random order: compares reductions, row ops,
# indexing and optimizers of the cuda backend with those of the cpu; attention conforms; captured steps.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=$SOFTCUDA,order=random
passes "rows, compared with the cpu, in random order" "$builddir/run-public" test-cuda-rows cuda:0
conforms cuda:0 --op attention --tags f32
passes "captured steps, in random order" "$builddir/test-capture" cuda:0
CTRT_CUDA_SCATTER=sort
export CTRT_CUDA_SCATTER
passes "sums by sorted indices, in random order" "$builddir/run-public" test-cuda-rows cuda:0 sorted
finish
