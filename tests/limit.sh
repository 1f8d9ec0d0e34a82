#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# limit.sh PROGRAM [ARGUMENT...]: runs a test with a time limit of $CTRT_TEST_TIMEOUT seconds, so that a hang is
# reported as a failure of that test. cmocka prints a skipped test as "not ok 2 # SKIP"; in TAP that line begins with
# "ok".
limit=${CTRT_TEST_TIMEOUT:-900}
with_limit=
! command -v timeout >/dev/null || with_limit="timeout -k 10 $limit"
exec 3>&1
status=$({ { $with_limit "$@" 4>&-; echo $? >&4; } | sed 's/^not \(ok [0-9]* # SKIP\)/\1/' >&3; } 4>&1)
[ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "Bail out! $* was ended after $limit seconds"
exit "$status"
