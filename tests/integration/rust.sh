#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rust: the crate ctrt-sys, generated as by `make rust`, its tests of sizes and constants, its examples, and the program
# in doc/bindings.md. Cargo runs without network.
. "$srcdir/tests/lib.sh"
python=${PYTHON:-python3}
reason=
if ! command -v cargo >/dev/null 2>&1 || ! cargo --version >/dev/null 2>&1; then
    reason="no cargo"
elif ! "$python" -c 'import cffi, pycparser' >/dev/null 2>&1; then
    reason="$python has no module cffi"
elif [ ! -e "$builddir/.libs/libctrt.so" ]; then
    reason="libctrt is not built as a shared library"
elif ! command -v "${PKG_CONFIG:-pkg-config}" >/dev/null 2>&1; then
    reason="no pkg-config"
elif [ -n "${SANITIZE:-}" ]; then
    reason="a library with sanitizers does not load into a program of rustc"
fi
if [ -n "$reason" ]; then
    skip "programs in Rust" "$reason"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
crate=$work/ctrt-sys
version=$(sed -n 's/^AC_INIT(\[ctrt\], \[\(.*\)\])$/\1/p' "$srcdir/configure.ac")
output=$("$python" -B "$srcdir/bindings/rust/generate.py" "${CC:-cc}" "$srcdir/include" "$version" "$crate" 2>&1)
check "the crate is generated" "$([ -s "$crate/src/bindings.rs" ] || echo "$output" | tail -n 20)"

# A crate that cannot find the library says so.
unset MAKEFLAGS MFLAGS                     # cargo would look for the job server of make
PKG_CONFIG=${PKG_CONFIG:-pkg-config} CARGO_TARGET_DIR=$work/target
export PKG_CONFIG CARGO_TARGET_DIR
cd "$crate" || exit 1
output=$(PKG_CONFIG_LIBDIR=$work PKG_CONFIG_PATH=$work cargo build --offline 2>&1)
check "without ctrt.pc, the build says what to do" "$(
    echo "$output" | grep -q 'set PKG_CONFIG_PATH to the folder of ctrt.pc' || echo "$output")"

sed -n '/^```rust$/,/^```$/p' "$srcdir/doc/bindings.md" | grep -v '^```' >examples/documented.rs
PKG_CONFIG_PATH=$builddir/pkgconfig LD_LIBRARY_PATH=$builddir/.libs
export PKG_CONFIG_PATH LD_LIBRARY_PATH
output=$(cargo test --offline 2>&1)
check "sizes of structs and values of constants are those of the library" "$(
    echo "$output" | grep -q '^test result: ok. 2 passed' || echo "$output" | tail -n 60)"
check "there are no warnings" "$(echo "$output" | grep -A 8 '^warning')"

# example NAME PATTERN
example() {
    output=$("$work/target/debug/examples/$1" 2>&1)
    check "the example $1" "$(echo "$output" | grep -q "$2" || echo "$output")"
}
example add '^\[11.0, 22.0, 33.0\]$'
example train '^loss 0\.0'
example documented '^3$'
finish
