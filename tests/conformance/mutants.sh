#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Does the conformance suite notice wrong kernels? tests/plugins/mutant.c lays kernels over the cpu's that are off by a
# little: for each op of ops.def one run, in which the suite must complain; for some a run over everything, in which it must
# complain about these ops and those made of them and no others; and for each kind of mistake a run that must tell it by its name.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-$srcdir}
. "$srcdir/tests/lib.sh"
suite=$builddir/ctrt-conformance

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
plugins=$work/plugins
mkdir -m 755 "$plugins" && cp "$builddir"/plugins-built/*.so "$plugins" &&
    cp "$builddir/.libs/mutant.so" "$plugins/kernels-cpu-mutant.so" && chmod 755 "$plugins"/*.so || exit 1
if [ ! -e "$plugins/backend-cpu.so" ]; then
    echo "1..0 # SKIP the cpu plugin is not built"
    exit 0
fi

# judge MUTANT ARGUMENT...: the failed checks, one on each line; "crash N" when the suite did not end as it should.
judge() {
    mutant=$1
    shift
    CTRT_PLUGIN_PATH=$plugins CTRT_MUTANT=$mutant "$suite" "$@" >"$work/tap" 2>"$work/err"
    code=$?
    if [ "$code" -gt 1 ] || grep -q 'ERROR: AddressSanitizer' "$work/err"; then
        echo "crash $code: $(grep 'ERROR: ' "$work/err" | head -n 1 | cut -c 1-100)"
        return
    fi
    sed -n 's/^not ok [0-9]* - //p' "$work/tap"
}

# The suite without mutants: nothing to complain of, else what follows says nothing.
found=$(judge '' --tags forward --op 'a*')
check "no mutant, no complaint" "$found"
# Attention that the core composes, and by kernels of the device's; gradients by those, or composed where there is none for them.
for kernels in '' attention@none attention@none,attention_backward@none; do
    check "attention by ${kernels:-other ops}: no complaint" "$(judge "$kernels" --op '*attention*')"
done

# ---- every kernel can be found out ----

# Where a kernel is looked at that is no op of its own.
looked_at() {
    case $1 in
    conv2d_*)    echo conv2d ;;
    *_backward)  echo "${1%_backward}" ;;
    index_add)   echo index_select ;;
    scatter_add) echo gather ;;
    copy)        echo clone ;;
    fill)        echo fill_ ;;
    *)           echo "$1" ;;
    esac
}
# The mutant, and what it takes for its kernel to be called.
with_company() {
    case $1 in
    attention_backward*) echo "attention@none,$1" ;;
    *)                   echo "$1" ;;
    esac
}
for kernel in $(sed -n '/VIEW,/d; s/^OP(\([a-z0-9_]*\),.*/\1/p' "$srcdir/core/ops/ops.def"); do
    op=$(looked_at "$kernel")
    found=$(judge "$(with_company "$kernel")" --op "$op")
    case $found in
    crash*) not_ok "a wrong $kernel is noticed" "$found" ;;
    '')     not_ok "a wrong $kernel is noticed" "no check of '$op' failed" ;;
    *)      ok "a wrong $kernel is noticed" ;;
    esac
done
for kernel in attention_backward:1 attention_backward:2; do
    found=$(judge "$(with_company "$kernel")" --op attention)
    [ -n "$found" ] && ok "a wrong result of $kernel is noticed" || not_ok "a wrong result of $kernel is noticed"
done
for kernel in max_pool2d:1 batch_norm:3 batch_norm:4 sgd_step:3 adam_step:3; do
    found=$(judge "$kernel" --op "${kernel%:*}")
    [ -n "$found" ] && ok "a wrong result of $kernel is noticed" || not_ok "a wrong result of $kernel is noticed"
done

# ---- and nothing else is blamed ----

# blamed MUTANT OP...: exactly these ops fail in their results.
blamed() {
    mutant=$1
    shift
    found=$(judge "$mutant" --tags forward --skip-tags gradient | sed 's/ \(of batches alone\|attention\) .*/_\1/; s/ .*//' | sort -u | tr '\n' ' ')
    want=$(printf '%s\n' "$@" | sort -u | tr '\n' ' ')
    if [ "$found" = "$want" ]; then ok "a wrong $mutant is blamed on: $*"; else not_ok "a wrong $mutant is blamed on: $*" "blamed: $found"; fi
}
blamed exp exp
blamed max_pool2d max_pool2d
blamed add add attention
blamed matmul matmul attention masked_attention
blamed softmax softmax attention masked_attention
blamed attention attention
blamed sum sum var mse_loss cross_entropy
blamed index_select index_select embedding cross_entropy
blamed layer_norm layer_norm
blamed tril tril

# ---- every kind of mistake has its name ----

# names MUTANT OP PATTERN DETAIL: the check fails whose name fits PATTERN, and says DETAIL.
names() {
    told=$(judge "$1" --op "$2")
    ! stopped "$1 is told as: $4" || return 0
    if printf '%s\n' "$told" | grep -q -- "$3" && grep -q -- "$4" "$work/tap"; then
        ok "$1 is told as: $4"
    else
        not_ok "$1 is told as: $4" "$(printf '%s\n' "$told"; grep -A3 '^not ok' "$work/tap" | head -n 20)"
    fi
}
# spared MUTANT OP PATTERN: what this mistake does not touch passes.
spared() {
    told=$(judge "$1" --op "$2")
    ! stopped "$1 leaves alone: $3" || return 0
    check "$1 leaves alone: $3" "$(printf '%s\n' "$told" | grep -- "$3")"
}
# A mutant that reads where it should not is the address sanitizer's to find, and that ends the run.
stopped() {
    case $told in
    crash*AddressSanitizer*) skip "$1" "the sanitizer stopped it: ${told#crash *: }" ;;
    *) return 1 ;;
    esac
}
names  matmul@strides matmul 'matmul f32 transposed' 'result\[.*got'
names  neg@strides neg 'neg i64 sliced'     'result\[.*got'
names  neg@strides neg 'neg f64 broadcast'  'result\[.*got'
spared neg@strides neg 'neg f32 contiguous'
names  attention@strides attention 'attention f32 permuted' 'result\[.*got'
names  attention:1,attention_backward@none attention 'attention f32 gradients' 'gradient of'
names  exp@nan     exp 'exp f32 NaN'        'expected nan'
spared exp@nan     exp 'exp f32 contiguous'
names  neg@input   neg 'neg f32 contiguous' 'operand 0 was changed'
names  add@flaky   add 'add f32'            'the same call twice gives different results'
names  neg@large   neg 'neg f32 large'      'result\[.*got'
spared neg@large   neg 'neg f32 contiguous'
names  add         add 'add f32 with a scalar' 'with the integer 3'
names  relu        relu 'relu f32 in place' 'self.s memory'
names  add@refuse  add 'add f32'            "failed with 'not supported'"
names  relu_backward relu 'relu gradient'   'gradient of input 0'
names  relu_backward relu 'relu f32 gradient' 'gradient 0'
names  uniform     uniform 'uniform f32'    'numbers\['

# Differences between the second derivative and what the first says; the rule of tanh multiplies where its kernel does not.
names  mul         tanh 'tanh second derivative' 'second derivative by'

# ---- what is foreseen ----

echo "unsupported neg i8*: no such thing here
fails neg f32 contiguous: a known fault   # and a comment" >"$work/expect"
CTRT_PLUGIN_PATH=$plugins CTRT_MUTANT=neg "$suite" --op neg --expect "$work/expect" >"$work/tap" 2>&1
grep -q '^not ok [0-9]* - neg f32 contiguous # TODO a known fault' "$work/tap" && grep -q '^ok [0-9]* - neg i8 sliced # SKIP no such thing here' "$work/tap" &&
    ok "foreseen failures are told as such" || not_ok "foreseen failures are told as such" "$(head -n 20 "$work/tap")"
CTRT_PLUGIN_PATH=$plugins CTRT_MUTANT='' "$suite" --op neg --expect "$work/expect" >"$work/tap" 2>&1
grep -q 'passes, though it is listed as failing' "$work/tap" && ok "a foreseen failure that passes is a failure" ||
    not_ok "a foreseen failure that passes is a failure"
echo "sometimes neg" >"$work/expect"
CTRT_PLUGIN_PATH=$plugins "$suite" --op neg --expect "$work/expect" >"$work/tap" 2>&1
[ $? -eq 2 ] && ok "a malformed list is refused" || not_ok "a malformed list is refused" "$(cat "$work/tap")"
CTRT_PLUGIN_PATH=$plugins "$suite" --device quantum >"$work/tap" 2>&1
[ $? -eq 2 ] && ok "an unknown device is refused" || not_ok "an unknown device is refused" "$(cat "$work/tap")"
CTRT_PLUGIN_PATH=$plugins "$suite" --op nosuchop >"$work/tap" 2>&1
[ $? -eq 1 ] && ok "a run that checks nothing does not pass" || not_ok "a run that checks nothing does not pass" "$(cat "$work/tap")"
finish
