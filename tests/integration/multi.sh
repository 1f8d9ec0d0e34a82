#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sim-multi with three or four simulated members: the conformance suite, the training reference, and examples, which
# must print the losses of one device, on one logical device and on two. Under sanitizers the suite runs the checks of
# f32 only.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
CTRT_SIM=devices=3,memory=256m,poison=yes
export CTRT_SIM
conforms sim-multi:0 ${SANITIZE:+--tags f32}
CTRT_SIM_MULTI='sim:1;sim:2,sim:0' conforms sim-multi:1 --tags f32 --op '*m*'
passes "the training reference on sim-multi:0" "$builddir/test-train-reference" sim-multi:0

cd "$work" || exit 1
# digits DEVICE: the lines of one epoch without what differs between devices: progress, times, device and memory.
digits() {
    "$builddir/example-digits" --data "$srcdir/examples/data/digits.csv" --epochs 1 --seed 5 --device "$1" 2>&1 \
        </dev/null | tr '\r' '\n' | sed -e 's/^.*\] 100 %//' -e 's/ *[0-9]* images.s.*//' | grep -v '%.*loss' |
        grep -e loss -e 'others right' -e 'same results'
}
digits sim:0 >digits.want
check "digits has the losses and accuracies of one device" "$(
    [ "$(grep -c loss digits.want)" -ge 2 ] || cat digits.want
    digits sim-multi:0 | diff digits.want -)"

# gpt DEVICE [OPTION]: the losses of the first steps.
gpt() {
    CTRT_SIM=devices=4 CTRT_DEVICE=$1 "$builddir/example-gpt" ${2-} "$srcdir/LICENSE" 3 1 2>&1 </dev/null |
        tee gpt.out | sed -n 's/^step.*\(loss [0-9.]*\).*/\1/p'
}
gpt sim:0 >gpt.want
check "gpt --tensor-parallel has the losses of one device" "$(
    [ "$(grep -c loss gpt.want)" -eq 2 ] || cat gpt.out
    gpt sim-multi:0 --tensor-parallel | diff gpt.want -)"
check "gpt --tensor-parallel gathers nothing" "$(
    grep -q '^redistributions: [1-9][0-9]* all_reduce, 0 all_gather, 0 reduce_scatter, 0 all_to_all$' gpt.out ||
        cat gpt.out)"
check "gpt on a mesh of 2 x 2, data x tensor, has the losses of one device" "$(
    CTRT_SIM_MULTI=2x2 CTRT_STRATEGY=data-parallel
    export CTRT_SIM_MULTI CTRT_STRATEGY
    gpt sim-multi --tensor-parallel | diff gpt.want -)"
check "gpt on a mesh gathers nothing" "$(
    grep -q '^redistributions: [1-9][0-9]* all_reduce, 0 all_gather, 0 reduce_scatter, 0 all_to_all$' gpt.out ||
        cat gpt.out)"
finish
