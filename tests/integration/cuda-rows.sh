#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Reductions, rows, indices and optimizers of the cuda backend beside the cpu's, over the driver in software: threads and blocks in order, and in
# no order.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
passes "rows beside the cpu's" "$builddir/run-public" test-cuda-rows cuda:0
SOFTCUDA=$SOFTCUDA,order=random
passes "rows beside the cpu's, in random order" "$builddir/run-public" test-cuda-rows cuda:0
CTRT_CUDA_SCATTER=sort
export CTRT_CUDA_SCATTER
passes "sums by sorted indices, in random order" "$builddir/run-public" test-cuda-rows cuda:0 index
unset CTRT_CUDA_SCATTER
passes "sums by many indices" "$builddir/run-public" test-cuda-rows cuda:0 large
finish
