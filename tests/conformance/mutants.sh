#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the conformance suite detects wrong kernels. tests/plugins/mutant.c overrides kernels of the cpu with
# slightly wrong ones ("mutants"). For each op of ops.def, a run in which a check of that op must fail. For some ops, a
# run of all ops, in which exactly the checks of that op and of ops composed of it must fail. For each kind of mistake,
# a run in which the failed check and its message must describe the mistake.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-$srcdir}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
plugins=$work/plugins
mkdir -m 755 "$plugins" && cp "$builddir"/plugins-built/*.so "$plugins" &&
    cp "$builddir/.libs/mutant.so" "$plugins/kernels-cpu-mutant.so" && chmod 755 "$plugins"/*.so || exit 1
if [ ! -e "$plugins/backend-cpu.so" ]; then
    echo "1..0 # SKIP the cpu plugin is not built"
    exit 0
fi

# run_suite MUTANT ARGUMENT...: prints the failed checks, one per line; "crash N" if the suite ended abnormally.
run_suite() {
    mutant=$1
    shift
    CTRT_PLUGIN_PATH=$plugins CTRT_MUTANT=$mutant "$builddir/ctrt" check "$@" >"$work/tap" 2>"$work/err"
    code=$?
    if [ "$code" -gt 1 ] || grep -q 'ERROR: AddressSanitizer' "$work/err"; then
        echo "crash $code: $(grep 'ERROR: ' "$work/err" | head -n 1 | cut -c 1-100)"
        return
    fi
    sed -n 's/^not ok [0-9]* - //p' "$work/tap"
}

# Without mutants the suite must pass; otherwise the checks below prove nothing.
found=$(run_suite '' --tags forward --op 'a*')
check "no mutant, no failed check" "$found"
# Attention composed by the core, and by kernels of the device, with a backward kernel or with composed gradients.
for kernels in '' attention@none attention@none,attention_backward@none; do
    check "attention by ${kernels:-other ops}: no failed check" "$(run_suite "$kernels" --op '*attention*')"
done

# ---- a mistake in any kernel is detected ----

# The op whose checks cover a kernel that has none of its own.
checked_by() {
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
# The mutant, with the other mutants that are required for its kernel to be called.
with_required() {
    case $1 in
    attention_backward*) echo "attention@none,$1" ;;
    *)                   echo "$1" ;;
    esac
}
# detected WHAT MUTANT OP: a check of OP fails.
detected() {
    found=$(run_suite "$(with_required "$2")" --op "$3" --fail-fast)
    case $found in
    crash* | '') not_ok "a wrong $1 is detected" "${found:-no check of '$3' failed}" ;;
    *)           ok "a wrong $1 is detected" ;;
    esac
}
for kernel in $(sed -n '/GRAPH,/d; s/^CTRT_OP(\([a-z0-9_]*\),.*/\1/p' "$srcdir/include/ctrt/ops.def"); do
    detected "$kernel" "$kernel" "$(checked_by "$kernel")"
done
for kernel in attention_backward:1 attention_backward:2 max_pool2d:1 batch_norm:3 batch_norm:4 sgd_step:3 \
    adam_step:3 amp_unscale:1 amp_update:1 amp_update:2; do
    detected "result of $kernel" "$kernel" "$(checked_by "${kernel%:*}")"
done

# ---- checks of other ops do not fail ----

# blamed MUTANT OP...: exactly the forward checks of these ops fail. In f32 only, because ops are composed of the same
# others in all types.
blamed() {
    mutant=$1
    shift
    found=$(run_suite "$mutant" --tags f32 --skip-tags gradient |
        sed 's/ \(of batches alone\|attention\) .*/_\1/; s/ .*//' | sort -u | tr '\n' ' ')
    want=$(printf '%s\n' "$@" | sort -u | tr '\n' ' ')
    [ "$found" = "$want" ]
    result $? "with a wrong $mutant exactly these fail: $*" "failed: $found"
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

# ---- the report describes the kind of mistake ----

# names MUTANT OP PATTERN DETAIL: a check whose name matches PATTERN fails, and the output contains DETAIL.
names() {
    found=$(run_suite "$1" --op "$2")
    ! stopped "$1 is reported as: $4" || return 0
    printf '%s\n' "$found" | grep -q -- "$3" && grep -q -- "$4" "$work/tap"
    result $? "$1 is reported as: $4" "$(printf '%s\n' "$found"; grep -A3 '^not ok' "$work/tap" | head -n 20)"
}
# spared MUTANT OP PATTERN: no check whose name matches PATTERN fails, because the mistake does not affect it.
spared() {
    found=$(run_suite "$1" --op "$2")
    ! stopped "$1 does not affect: $3" || return 0
    check "$1 does not affect: $3" "$(printf '%s\n' "$found" | grep -- "$3")"
}
# AddressSanitizer ends the run if a mutant reads out of bounds.
stopped() {
    case $found in
    crash*AddressSanitizer*) skip "$1" "AddressSanitizer ended the run: ${found#crash *: }" ;;
    *) return 1 ;;
    esac
}
names  matmul@strides matmul 'matmul f32 transposed' 'result\[.*got'
names  neg@strides neg 'neg i64 sliced'     'result\[.*got'
names  neg@strides neg 'neg f64 broadcast'  'result\[.*got'
spared neg@strides neg 'neg f32 contiguous'
names  attention@strides attention 'attention f32 permuted' 'result\[.*got'
names  attention:1,attention_backward@none attention 'attention gradient contiguous' 'gradient of input'
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

# The second derivative disagrees with the first: the backward function of tanh calls mul with create_graph, its kernel
# does not.
names  mul         tanh 'tanh second derivative' 'second derivative by'

# ---- the list of known failures ----

# expects WHAT STATUS ARGUMENT...: the exit status of a run with the mutant $CTRT_MUTANT.
expects() {
    what=$1 want=$2
    shift 2
    CTRT_PLUGIN_PATH=$plugins "$builddir/ctrt" check "$@" >"$work/tap" 2>&1
    [ $? -eq "$want" ]
    result $? "$what" "$(head -n 20 "$work/tap")"
}
echo "unsupported neg i8*: no such thing here
fails neg f32 contiguous: a known fault   # and a comment" >"$work/expect"
CTRT_MUTANT=neg
export CTRT_MUTANT
expects "other failures are not known" 1 --op neg --expect "$work/expect"
grep -q '^not ok [0-9]* - neg f32 contiguous # TODO a known fault' "$work/tap" &&
    grep -q '^ok [0-9]* - neg i8 sliced # SKIP no such thing here' "$work/tap"
result $? "known failures are reported as such" "$(head -n 20 "$work/tap")"
CTRT_MUTANT=
expects "a known failure that passes is a failure" 1 --op neg --expect "$work/expect"
check "it is reported as such" "$(grep -q 'passes, although it is listed as failing' "$work/tap" || echo "it is not")"
echo "sometimes neg" >"$work/expect"
expects "a malformed list is an error" 2 --op neg --expect "$work/expect"
expects "an unknown device is an error" 2 --device quantum
expects "a run without checks fails" 1 --op nosuchop
finish
