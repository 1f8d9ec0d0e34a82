#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite and the training reference on simulated devices with random delays before work starts: on the
# first of four, or on those in $devices (sim-second.sh). Under sanitizers the suite runs the checks of f32 only.
. "$srcdir/tests/lib.sh"

CTRT_SIM=devices=4,memory=256m,jitter=5us,poison=yes
export CTRT_SIM
for device in ${devices:-sim:0}; do
    output=$("$builddir/ctrt" check --device $device ${SANITIZE:+--tags f32} 2>&1)
    status=$?
    check "the conformance suite on $device" "$(
        [ $status -eq 0 ] && echo "$output" | grep -q '^# [1-9][0-9]* passed, 0 failed' ||
        { echo "status $status"; echo "$output" | grep -A3 '^not ok' | head -n 40; echo "$output" | tail -n 5; })"
    output=$("$builddir/test-train-reference" $device 2>&1)
    status=$?
    check "the training reference on $device" \
        "$([ $status -eq 0 ] || { echo "status $status"; echo "$output" | grep -v '^ok' | head -n 40; })"
done
finish
