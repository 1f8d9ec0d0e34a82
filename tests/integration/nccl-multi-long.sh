#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nccl-multi:0 with two GPUs of the software driver as members: conformance of f32, and the training reference.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms nccl-multi:0 --tags f32
passes "the training reference on nccl-multi:0" "$builddir/test-train-reference" nccl-multi:0
finish
