#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The second device of the cuda backend with the software driver: conformance of results in f32, and ten training steps
# of the network with convolutions, which need workspaces, with delayed events under all memory policies. cuda.sh runs
# the other dtypes, whose kernels get their device in the same way, and trains all networks.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms cuda:1 --tags f32 --skip-tags gradient,gradient2
SOFTCUDA=$SOFTCUDA,late=20us
for policy in caching direct arena caching:expandable=true spill+caching; do
    CTRT_MEMORY=$policy
    export CTRT_MEMORY
    passes "the training reference on cuda:1 under $policy" "$builddir/test-train-reference" cuda:1 cnn
done
finish
