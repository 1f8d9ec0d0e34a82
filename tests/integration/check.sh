#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `ctrt check`: of a device, of a plugin file, of the backend template, and with arguments that it must reject.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-$srcdir}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
tool=$builddir/ctrt

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# run STATUS DESCRIPTION PATTERN ARGUMENT...: requires the exit status, and a line of output that matches PATTERN.
run() {
    want=$1 what=$2 pattern=$3
    shift 3
    "$tool" check "$@" >"$work/out" 2>"$work/err"
    code=$?
    [ "$code" -eq "$want" ] && cat "$work/out" "$work/err" | grep -q -- "$pattern"
    result $? "$what" "exit status $code, expected $want with '$pattern':
$(grep '^not ok' "$work/out"; cat "$work/out" "$work/err" | head -n 20)"
}

run 0 "prints its options" '--skip-tags' --help
run 2 "rejects an unknown option" 'usage:' --bogus
run 2 "rejects two devices" 'usage:' --device cpu cpu
run 2 "rejects a seed that is not a number" 'usage:' --seed x
run 2 "rejects an unknown device" 'no backend called' quantum
run 2 "rejects a missing file" 'No such file' "$work/none.so"
cp "$srcdir/LICENSE" "$work/backend-law.so" && chmod 755 "$work/backend-law.so"
run 2 "rejects a file that is not a plugin, with the reason" 'is refused' "$work/backend-law.so"
cp "$srcdir/LICENSE" "$work/law.so"
run 2 "rejects a file that is not named as a plugin" 'its name must be' "$work/law.so"
if [ -e "$builddir/plugins-built/memory-direct.so" ]; then
    run 2 "reports that there is no suite for memory policies" 'kind memory' "$builddir/plugins-built/memory-direct.so"
else
    skip "reports that there is no suite for memory policies" "memory-direct is not built"
fi

if [ -e "$builddir/plugins-built/backend-cpu.so" ]; then
    run 0 "checks the cpu" '^ok .* - neg f32 contiguous$' --op neg
    run 0 "checks a device by name" '^ok .* - neg f32 contiguous$' --op neg --device cpu
    run 0 "prints the file that it checks" "^# conformance of cpu (.*/backend-cpu.so), seed 1" --op neg --tags f32
    path=$CTRT_PLUGIN_PATH
    CTRT_PLUGIN_PATH=plugins-built:$path
    run 0 "warns about a relative folder" 'plugins-built (ignored: not an absolute path)' --op neg --tags f32
    CTRT_PLUGIN_PATH=$path
    run 0 "lists" '^neg bf16 sliced$' --op neg --list
    # JUnit XML. A reason with what XML has to escape or cannot contain.
    printf 'unsupported neg f64 *: <a> & "b" \001 \377 \303\244 \357\277\277 end\n' >"$work/expect"
    run 2 "reports a file that cannot be created" 'none/file: No such file' --op neg --junit "$work/none/file"
    run 2 "reports a file that cannot be written" 'full: No space left' --op neg --tags f32 --junit /dev/full
    run 2 "rejects --junit with --list" 'usage:' --list --junit "$work/list.xml"
    run 0 "writes JUnit XML" '^ok 1 - neg f32' --op neg --tags f32,f64 --expect "$work/expect" --junit "$work/neg.xml"
    # junit DESCRIPTION ARGUMENT...: see junit.py.
    junit() {
        what=$1
        shift
        if command -v python3 >/dev/null; then
            check "JUnit XML: $what" "$(python3 "$srcdir/tests/integration/junit.py" "$@" 2>&1)"
        else
            skip "JUnit XML: $what" "no python3"
        fi
    }
    junit "a check that passed" "$work/neg.xml" passed 'ctrt.cpu.elementwise.neg f32 contiguous' ''
    junit "escapes" "$work/neg.xml" skipped 'ctrt.cpu.elementwise.neg f64 contiguous' \
        "$(printf '<a> & "b" \357\277\275 \357\277\275 \303\244 \357\277\275 end')"

    run 0 "checks the backend of a file" '^ok .* - sum f64 transposed$' \
        --op sum --tags f64 "$builddir/plugins-built/backend-cpu.so"

    # A file with wrong kernels that override those of the cpu; the check runs on the cpu.
    mutant=$work/mutant/kernels-cpu-mutant.so
    mkdir -m 755 "$work/mutant" && cp "$builddir/.libs/mutant.so" "$mutant" && chmod 755 "$mutant"
    CTRT_MUTANT=neg; export CTRT_MUTANT
    run 1 "detects wrong kernels in a file" '^not ok .* - neg f32 contiguous$' \
        --op neg --junit "$work/wrong.xml" "$mutant"
    junit "a check that failed" "$work/wrong.xml" failure 'ctrt.cpu.elementwise.neg f32 contiguous' 'expected'
    unset CTRT_MUTANT

    # A third-party backend, with memory that the host cannot read and few kernels.
    if ${CC:-cc} -O1 ${SANITIZE-} -fPIC -shared -fvisibility=hidden -I"$srcdir/include" \
            "$srcdir/templates/backend/plugin.c" -o "$work/backend-template.so" 2>"$work/err"; then
        chmod 755 "$work/backend-template.so"
        # The whole suite (with sanitizers, one dtype), which also checks the core's copies between the host and memory
        # that the host cannot access.
        run 0 "checks the template" '^ok .* - relu f32 contiguous$' ${SANITIZE:+--tags f32} "$work/backend-template.so"
        run 0 "the template keeps the contract of a backend" '^# [0-9]* passed, 0 failed' \
            --contract "$work/backend-template.so"
        run 1 "reports an op for which the template used the cpu" \
            'SKIP template:0 has no kernel for exp and used the cpu' --op exp --junit "$work/exp.xml" \
            "$work/backend-template.so"
        junit "a check that was skipped" "$work/exp.xml" skipped 'ctrt.template:0.elementwise.exp f32 contiguous' \
            'has no kernel for exp and used the cpu'
        run 1 "fails if the template has no kernel for the checked op, and prints the tested file" \
            "template:0 has no kernels for these checks. Its file is $work/backend-template.so" \
            --op exp "$work/backend-template.so"
        "$tool" ops --coverage "$work/backend-template.so" >"$work/out" 2>&1
        check "ops --coverage: kernels of the template, ops of the cpu, and composed ones" "$(
            for row in 'relu  *x    c    c' 'exp  *c    c' 'sgd_step  *o    o    o    o    \.'; do
                grep -q "^$row" "$work/out" || cat "$work/out"
            done)"
    else
        not_ok "builds the template" "$(cat "$work/err")"
    fi
else
    skip "checks the cpu" "the cpu plugin is not built"
fi
finish
