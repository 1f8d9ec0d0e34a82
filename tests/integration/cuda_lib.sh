# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: everything that the cpu passes, on devices of the cuda backend over the driver in software (tests/softcuda).

LD_LIBRARY_PATH=$builddir/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$builddir/softcuda-plugins
SOFTCUDA=devices=2,memory=256m,streams=error
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH SOFTCUDA

# passes WHAT COMMAND...: a check that passes when the command does.
passes() {
    what=$1
    shift
    said=$("$@" 2>&1)
    status=$?
    check "$what" "$([ $status -eq 0 ] || { echo "status $status"; echo "$said" | grep -v '^ok' | head -n 40; echo "$said" | tail -n 5; })"
}

# conforms DEVICE: the conformance suite, with at least one check in it.
conforms() {
    said=$("$builddir/ctrt" check --device "$1" 2>&1)
    status=$?
    check "the conformance suite on $1" "$([ $status -eq 0 ] && echo "$said" | grep -q '^# [1-9][0-9]* passed, 0 failed' ||
        { echo "status $status"; echo "$said" | grep -A3 '^not ok' | head -n 40; echo "$said" | tail -n 5; })"
}
