# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: sets up the cuda backend with the software driver (tests/softcuda).

LD_LIBRARY_PATH=$builddir/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$builddir/softcuda-plugins
SOFTCUDA=devices=2,memory=256m,streams=error
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH SOFTCUDA

# passes WHAT COMMAND...: a check that passes if the command succeeds.
passes() {
    what=$1
    shift
    output=$("$@" 2>&1)
    status=$?
    check "$what" "$([ $status -eq 0 ] ||
        { echo "status $status"; echo "$output" | grep -v '^ok' | head -n 40; echo "$output" | tail -n 5; })"
}

# conforms DEVICE [OPTION...]: a check that passes if the conformance suite runs at least one check and all pass.
conforms() {
    output=$("$builddir/ctrt" check --device "$@" 2>&1)
    status=$?
    check "the conformance suite on $*" "$(
        [ $status -eq 0 ] && echo "$output" | grep -q '^# [1-9][0-9]* passed, 0 failed' ||
        { echo "status $status"; echo "$output" | grep -A3 '^not ok' | head -n 40; echo "$output" | tail -n 5; })"
}
