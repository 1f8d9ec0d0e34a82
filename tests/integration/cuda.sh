#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first device of the cuda backend with the software driver: conformance, the training reference, captured steps.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms cuda:0
passes "the training reference on cuda:0" "$builddir/test-train-reference" cuda:0
passes "captured steps on cuda:0" "$builddir/test-capture" cuda:0
finish
