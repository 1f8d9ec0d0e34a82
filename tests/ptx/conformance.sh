#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cuda plugin as nvcc built it, run by the interpreter of PTX: its fat binaries have their kernels, and the
# conformance suite and the comparisons with the cpu pass.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/ptx/ptx_lib.sh"
conforms cuda:0
passes "rows, compared with the cpu" "$builddir/run-public" test-cuda-rows cuda:0
passes "elementwise kernels, compared with the cpu" "$builddir/run-public" test-cuda-elementwise
finish
