#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the Python example of doc/bindings.md. $PYTHON names another python.
. "$srcdir/tests/lib.sh"
python=${PYTHON:-python3}
library=$builddir/.libs/libctrt.so
name="the example of doc/bindings.md"
if ! command -v "$python" >/dev/null 2>&1; then
    skip "$name" "no python3"
elif [ ! -e "$library" ]; then
    skip "$name" "libctrt is not built as a shared library"
elif [ -n "${SANITIZE:-}" ]; then
    skip "$name" "a library with sanitizers does not load into python"
else
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
    sed -n '/^```python$/,/^```$/p' "$srcdir/doc/bindings.md" | grep -v '^```' >"$work/bindings.py"
    "$python" "$work/bindings.py" "$library" >"$work/out" 2>&1
    status=$?
    if [ "$status" -eq 0 ] && [ "$(sed -n 1p "$work/out")" = '[2.0, 8.0]' ] &&
       sed -n 2p "$work/out" | grep -q '^add_.*leaf that requires grad'; then
        ok "$name"
    else
        not_ok "$name" "exit status $status
$(cat "$work/out")"
    fi
fi
finish
