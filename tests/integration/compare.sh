#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a few random cases of tests/reference/compare.py if $PYTHON (python3) has PyTorch 2.15 or newer.
. "$srcdir/tests/lib.sh"
python=${PYTHON:-python3}
library=$builddir/.libs/libctrt.so
name="random cases equal PyTorch's"
if ! "$python" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15))' >/dev/null 2>&1; then
    skip "$name" "$python has no torch 2.15"
elif [ ! -e "$library" ]; then
    skip "$name" "libctrt is not built as a shared library"
elif [ -n "${SANITIZE:-}" ]; then
    skip "$name" "a library with sanitizers does not load into python"
else
    if output=$(PYTHONDONTWRITEBYTECODE=1 timeout 300 "$python" "$srcdir/tests/reference/compare.py" \
            --library "$library" --seed 3 --count 100 2>&1); then
        ok "$name"
    else
        not_ok "$name" "$output"
    fi
fi
finish
