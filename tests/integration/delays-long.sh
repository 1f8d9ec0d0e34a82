#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests with random delays, 1,000 runs of each.
name=test-parallel-costs
CTRT_TEST_RUNS=1000 exec sh "$srcdir/tests/run.sh" tests/unit/$name.c
