#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Python: the example of doc/bindings.md; the package's wheel, installed into a clean venv, with the example of 20
# lines, the tests in python_package.py, and random cases of tests/reference/compare.py if there is PyTorch 2.15 or
# newer.
# $PYTHON names another python. NumPy and PyTorch are used if that python has them.
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
unset PYTHONPATH PYTHONHOME
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE

output=$(sed -n '/^```python$/,/^```$/p' "$srcdir/doc/bindings.md" | grep -v '^```' | "$python" - "$library" 2>&1)
status=$?
check "the example of doc/bindings.md" "$(
    [ "$status" -eq 0 ] && echo "$output" | sed -n 1p | grep -qxF '[2.0, 8.0]' &&
    echo "$output" | sed -n 2p | grep -q '^add_.*leaf that requires grad' || echo "status $status: $output")"

for module in cffi venv ensurepip; do
    if ! "$python" -c "import $module" >/dev/null 2>&1; then
        skip "the Python package" "$python has no module $module"
        finish
    fi
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# --- the wheel, in a venv that has only it and the packages of $PYTHON, which may be in a venv too --------------------

output=$("$python" "$srcdir/bindings/python/build_wheel.py" --build "$builddir" --out "$work" --cc "${CC:-cc}" \
    --readelf "${READELF:-readelf}" 2>&1)
check "the wheel is built" "$(ls "$work"/ctrt-*.whl >/dev/null 2>&1 || echo "$output" | tail -n 20)"
output=$("$python" -m venv "$work/venv" 2>&1 &&
    "$python" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith("-packages")))' >"$work/outer.pth" &&
    mv "$work/outer.pth" "$work"/venv/lib/python3*/site-packages/ &&
    "$work/venv/bin/python" -m pip install --quiet --no-index --no-deps --ignore-installed --disable-pip-version-check \
        "$work"/ctrt-*.whl 2>&1)
check "pip installs it without an index" "$([ -x "$work/venv/bin/ctrt" ] || echo "$output" | tail -n 20)"
python=$work/venv/bin/python
unset CTRT_PLUGIN_PATH          # the plugins are those of the wheel
cd "$work" || exit 1

output=$("$work/venv/bin/ctrt" plugins 2>&1)
check "the command of the wheel finds the plugins of the wheel" "$(
    echo "$output" | grep "$work/venv/.*/lib/ctrt/" >/dev/null || echo "$output")"
output=$("$python" "$srcdir/bindings/python/examples/digits.py" "$srcdir/examples/data/digits.csv" 2>&1)
status=$?
check "20 lines train on handwritten digits" "$([ "$status" -eq 0 ] || echo "status $status: $output")"

# unittest writes "test_x (module.Class.test_x) ... ok" and so on, which become the lines of TAP.
CTRT_SIM=devices=2 "$python" "$srcdir/tests/integration/python_package.py" -v >"$work/tests" 2>&1
status=$?
while read -r name where rest; do
    case $rest in
    "... ok") ok "$name $where" ;;
    "... skipped "*) skip "$name $where" "${rest#... skipped }" ;;
    esac
done <<END
$(grep '^test_.* \.\.\. ' "$work/tests")
END
check "the tests of the package" "$([ "$status" -eq 0 ] || tail -n 80 "$work/tests")"

if "$python" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15))' >/dev/null 2>&1; then
    output=$(timeout 300 "$python" "$srcdir/tests/reference/compare.py" --seed 3 --count 100 2>&1)
    status=$?
    check "random cases equal PyTorch's" "$([ "$status" -eq 0 ] || echo "status $status: $output")"
else
    skip "random cases equal PyTorch's" "$python has no torch 2.15"
fi
finish
