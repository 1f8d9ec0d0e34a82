#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# limit.sh PROGRAM [ARGUMENT...]: runs a test with a time limit of $TEST_TIMEOUT seconds, so that a hang is
# reported as a failure of that test.
limit=${TEST_TIMEOUT:-900}
with_limit=
! command -v timeout >/dev/null || with_limit="timeout -k 10 $limit"
$with_limit "$@"
status=$?
# For the log: user and system time, of this shell and of the test.
echo '# processor time:'
times
[ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "Bail out! $* was ended after $limit seconds"
exit "$status"
