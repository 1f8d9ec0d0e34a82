#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh FILE: runs the test of a source file, which one of $TEST_PROGRAMS has (tests/unit/run.h).
name=$(basename "$1" .c)
for program in $TEST_PROGRAMS; do
    if [ -x "$builddir/$program" ] && "$builddir/$program" --has "$name"; then
        exec "$builddir/$program" "$name"
    fi
done
echo "Bail out! no program has the test $name: $TEST_PROGRAMS"
exit 99
