#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the example programs unchanged on the cuda backend with the software driver and on the cpu: the same seeds must
# give the same losses.
#
# Random numbers are equal on both; only the order of f32 additions differs. The first loss of gpt is computed from
# equal parameters, so only that rounding is visible: 1e-5 of the loss. The first steps of AdamW depend almost only on
# the sign of a gradient, which can change if the gradient is nearly 0, so later losses may differ by 1 %, and 4 of 359
# images may be classified differently (cnn: 1 of 60). On cuda-fp16 parameters and results have 11 bits of precision:
# losses within 2 %, images within 3 %, the first loss of gpt within 0.2 %. The driver takes half a second for a
# training step of cnn, which therefore gets only a sixth of the digits, and several seconds for one of gpt.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
SOFTCUDA=devices=1,memory=512m
work=$(mktemp -d "${TMPDIR:-/tmp}/ctrt-examples-XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
cp "$srcdir/examples/data/digits.csv" "$work/mlp.csv" && cd "$work" && head -n 300 mlp.csv >cnn.csv || exit 99

# near WHAT ONE OTHER PART: requires that two numbers differ by at most PART of the first.
near() {
    check "$1" "$(awk -v a="${2:-none}" -v b="${3:-none}" -v part="$4" 'BEGIN {
        d = a - b; if (d < 0) d = -d
        if (!(a + 0 > 0 && b + 0 > 0 && d <= part * a))
            print a " on the cpu, " b " on the other device; the difference may be at most " part " of it" }')"
}

# ---- digits: the loss at the end of an epoch, and the share of correctly classified images ----
digits() {
    CTRT_DEVICE=$2 "$build/example-digits" --data "$1.csv" --model "$1" --epochs 1 --seed 3 >"$1-$3" 2>&1 </dev/null ||
        echo "$1 on $2 failed"
}
loss_of() { sed -n 's/.*100 %  loss \([0-9.]*\) .*/\1/p' "$1"; }
right_of() { sed -n 's/.* gets \([0-9.]*\) % of .*/\1/p' "$1"; }
compare() {
    near "digits $1 on $2: the loss" "$(loss_of "$1-cpu")" "$(loss_of "$1-$3")" "$4"
    near "digits $1 on $2: the accuracy" "$(right_of "$1-cpu")" "$(right_of "$1-$3")" "$5"
}
part=0.015
for model in mlp cnn; do
    check "digits $model on the cpu" "$(digits $model cpu cpu; grep -q 'to the bit' $model-cpu || cat $model-cpu)"
    check "digits $model on cuda:0" "$(digits $model cuda:0 cuda; grep -q 'to the bit' $model-cuda || cat $model-cuda)"
    compare $model cuda:0 cuda 0.01 $part
    part=0.06
done
check "digits mlp on cuda-fp16:0" "$(digits mlp cuda-fp16:0 fp16; grep -q 'to the bit' mlp-fp16 || cat mlp-fp16)"
compare mlp cuda-fp16:0 fp16 0.02 0.03
# ---- gpt: the first losses and the sample ----
i=0
while [ $i -lt 100 ]; do
    echo "a line of text, then another"
    i=$((i + 1))
done >text
step_of() { sed -n "s/^step *$2 of .* loss \([0-9.]*\) .*/\1/p" "$1"; }
for device in cpu cuda:0 cuda-fp16:0; do
    steps=2
    [ $device != cuda-fp16:0 ] || steps=1
    CTRT_DEVICE=$device "$build/example-gpt" text $steps 5 >"gpt-$device" 2>&1 ||
        not_ok "gpt on $device" "$(cat "gpt-$device")"
done
near "gpt on cuda:0: the first loss" "$(step_of gpt-cpu 1)" "$(step_of gpt-cuda:0 1)" 0.00001
near "gpt on cuda:0: the second loss" "$(step_of gpt-cpu 2)" "$(step_of gpt-cuda:0 2)" 0.01
near "gpt on cuda-fp16:0: the first loss" "$(step_of gpt-cpu 1)" "$(step_of gpt-cuda-fp16:0 1)" 0.002
check "gpt on cuda:0 writes 5 letters" \
    "$(n=$(sed 1,/^step/d gpt-cuda:0 | sed '/^step/d' | wc -c); [ "$n" -ge 5 ] || echo "$n")"
finish
