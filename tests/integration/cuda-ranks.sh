#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on devices of the cuda backend with the software driver: collectives and steps of `distributed` in graphs, batch
# norm, gradient scalers.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=devices=4,memory=256m,streams=error,late=20us
CTRT_TEST_DEVICES=cuda
export CTRT_TEST_DEVICES
passes "collectives in graphs" "$builddir/run-public" test-comm-capture
passes "captured steps of distributed" "$builddir/run-public" test-distributed-capture
passes "captured steps of losses that are no means" "$builddir/run-public" test-loss-captures
passes "batch norm of all dtypes" "$builddir/run-public" test-batch-norm-dtypes
passes "gradient scalers of ranks" "$builddir/run-public" test-grad-scaler-ranks
finish
