#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests with random delays: 501 runs of each strategy, about 1,000 in all.
name=test-parallel-costs
CTRT_TEST_RUNS=501 exec sh "$srcdir/tests/run.sh" tests/unit/$name.c
