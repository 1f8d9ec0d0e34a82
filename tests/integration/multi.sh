#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite and the training reference on one device over three simulated devices. Under sanitizers the
# suite runs the checks of f32 only.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

CTRT_SIM=devices=3,memory=256m,poison=yes
export CTRT_SIM
conforms sim-multi:0 ${SANITIZE:+--tags f32}
passes "the training reference on sim-multi:0" "$builddir/test-train-reference" sim-multi:0
finish
