#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A C++ program that uses the macros of the public headers (cxx-program.cc), compiled and run.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
if [ -z "${CXX:-}" ]; then
    skip "a C++ program" "no C++ compiler"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for std in c++11 c++17 c++20; do
    check "a program in $std" "$(
        $CXX -std=$std -Wall -Wextra -Werror ${SANITIZE:-} -I"$srcdir/include" \
            "$srcdir/tests/integration/cxx-program.cc" -o "$work/program" -L"$builddir/.libs" \
            -Wl,-rpath,"$builddir/.libs" -lctrt 2>&1 &&
        "$work/program" 2>&1)"
done
finish
