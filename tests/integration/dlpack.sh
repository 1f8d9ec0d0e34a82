#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs dlpack.py if python3 is available. $PYTHON names another python.

set -u
python=${PYTHON:-python3}
lib="$builddir/.libs/libctrt.so"
if ! command -v "$python" >/dev/null 2>&1; then
    echo '1..0 # SKIP no python3'
elif [ ! -e "$lib" ]; then
    echo '1..0 # SKIP libctrt is not built as a shared library'
elif [ -n "${SANITIZE:-}" ]; then
    echo '1..0 # SKIP a library with sanitizers does not load into python'
else
    exec "$python" "$srcdir/tests/integration/dlpack.py" "$lib"
fi
