#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cuda backend with the software driver: on its first device conformance, the training reference and captured steps;
# tests of several devices.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms cuda:0
coverage=$("$builddir/ctrt" ops --coverage cuda:0 2>&1)
check "cuda:0 has every kernel that the cpu has" "$(
    case $coverage in *"    0  o  "*"    0  c  "*) ;; *) echo "$coverage" ;; esac)"
passes "the training reference on cuda:0" "$builddir/test-train-reference" cuda:0
passes "captured steps on cuda:0" "$builddir/test-capture" cuda:0
SOFTCUDA=devices=4,memory=256m,streams=error,late=20us
CTRT_TEST_DEVICES=cuda
export CTRT_TEST_DEVICES
passes "scatter, gather and parallel threads on four devices" "$builddir/run-public" test-parallel
passes "replicas on four devices" "$builddir/run-public" test-replicate
passes "captures and dry runs of strategies" "$builddir/run-public" test-strategy-modes
finish
