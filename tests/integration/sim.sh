#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite and the training reference on simulated devices with random delays before work starts: on the
# first of four, or on those in $devices (sim-second.sh). Under sanitizers, and on other devices than the first, the
# suite runs the checks of f32 only.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

CTRT_SIM=devices=4,memory=256m,jitter=5us,poison=yes
export CTRT_SIM
only=
[ -z "${SANITIZE:-}${devices:-}" ] || only="--tags f32"
for device in ${devices:-sim:0}; do
    conforms $device $only
    passes "the training reference on $device" "$builddir/test-train-reference" $device
done
finish
