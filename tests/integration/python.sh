#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Python programs that use libctrt: the example of doc/bindings.md, the exchange of tensors by DLPack with NumPy and
# PyTorch (dlpack.py), and random cases of tests/reference/compare.py if there is PyTorch 2.15 or newer.
# $PYTHON names another python.
. "$srcdir/tests/lib.sh"
python=${PYTHON:-python3}
library=$builddir/.libs/libctrt.so
reason=
if ! command -v "$python" >/dev/null 2>&1; then
    reason="no python3"
elif [ ! -e "$library" ]; then
    reason="libctrt is not built as a shared library"
elif [ -n "${SANITIZE:-}" ]; then
    reason="a library with sanitizers does not load into python"
fi
if [ -n "$reason" ]; then
    skip "programs in python" "$reason"
    finish
fi
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE

output=$(sed -n '/^```python$/,/^```$/p' "$srcdir/doc/bindings.md" | grep -v '^```' | "$python" - "$library" 2>&1)
status=$?
check "the example of doc/bindings.md" "$(
    [ "$status" -eq 0 ] && echo "$output" | sed -n 1p | grep -qxF '[2.0, 8.0]' &&
    echo "$output" | sed -n 2p | grep -q '^add_.*leaf that requires grad' || echo "status $status: $output")"

output=$("$python" "$srcdir/tests/integration/dlpack.py" "$library" 2>&1)
status=$?
case $output in
"1..0 # SKIP "*) skip "exchange by DLPack" "${output#1..0 # SKIP }" ;;
*) check "exchange by DLPack" "$([ "$status" -eq 0 ] || echo "$output" | grep -v '^ok')" ;;
esac

if "$python" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15))' >/dev/null 2>&1; then
    output=$(timeout 300 "$python" "$srcdir/tests/reference/compare.py" --library "$library" --seed 3 --count 100 2>&1)
    status=$?
    check "random cases equal PyTorch's" "$([ "$status" -eq 0 ] || echo "status $status: $output")"
else
    skip "random cases equal PyTorch's" "$python has no torch 2.15"
fi
finish
