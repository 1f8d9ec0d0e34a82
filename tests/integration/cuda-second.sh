#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The second device of the cuda backend with the software driver: conformance of results in f32 (cuda.sh runs the other
# dtypes, whose kernels get their device in the same way), and the training reference with delayed events under all
# memory policies.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms cuda:1 --tags f32 --skip-tags gradient,gradient2
SOFTCUDA=$SOFTCUDA,late=20us
passes "the training reference on cuda:1" "$builddir/test-train-reference" cuda:1
for policy in direct arena caching:expandable=true spill+caching; do
    CTRT_MEMORY=$policy
    export CTRT_MEMORY
    passes "the training reference on cuda:1 under $policy" "$builddir/test-train-reference" cuda:1
done
finish
