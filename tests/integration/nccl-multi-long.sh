#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nccl-multi:0 with two GPUs of the software driver as members: conformance of about half of the ops in f32, and the
# training reference. How ops are divided is the same as on sim-multi (multi.sh), where all of them are checked.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms nccl-multi:0 --tags f32 --op '*m*'
passes "the training reference on nccl-multi:0" "$builddir/test-train-reference" nccl-multi:0
finish
