# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: checks by exit status. $with, if set, is added to the description of passes and conforms.

# result STATUS DESCRIPTION [DETAILS]: passes if STATUS is 0.
result() {
    if [ "$1" -eq 0 ]; then ok "$2"; else not_ok "$2" "${3:-}"; fi
}

# passes WHAT COMMAND...: passes if the command succeeds.
passes() {
    what=$1${with:+ with $with}
    shift
    output=$("$@" 2>&1)
    status=$?
    result $status "$what" "status $status
$(echo "$output" | grep -v '^ok' | head -n 40; echo "$output" | tail -n 5)"
}

# conforms DEVICE [OPTION...]: passes if the conformance suite runs at least one check and all pass.
conforms() {
    passes "the conformance suite on $*" suite "$@"
}
suite() {
    output=$("$builddir/ctrt" check --device "$@" 2>&1)
    set -- $?
    echo "$output"
    [ "$1" -eq 0 ] || return "$1"
    echo "$output" | grep -q '^# [1-9][0-9]* passed, 0 failed'
}
