#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A C++ program that uses the macros of the public headers (cxx-program.cc), compiled and run. Then
# bindings/cpp/ctrt.hpp: its tests (cxx-binding.cc), also with clang++ if it is there, and its example.
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

# binding COMPILER STANDARD SOURCE [ARGUMENT]: compiles a program with ctrt.hpp and runs it; prints what is wrong.
binding() {
    $1 -std=$2 -Wall -Wextra -Wshadow -Werror ${SANITIZE:-} -pthread -I"$srcdir/include" -I"$srcdir/bindings/cpp" "$3" \
        -o "$work/program" -L"$builddir/.libs" -Wl,-rpath,"$builddir/.libs" -lctrt 2>&1 && "$work/program" ${4:-} 2>&1
}
check "ctrt.hpp in c++17" "$(binding "$CXX" c++17 "$srcdir/tests/integration/cxx-binding.cc")"
check "ctrt.hpp in c++20" "$(binding "$CXX" c++20 "$srcdir/tests/integration/cxx-binding.cc")"
if [ -z "${SANITIZE:-}" ] && command -v clang++ >/dev/null; then
    check "ctrt.hpp with clang++" "$(
        binding "clang++ --target=$($CXX -dumpmachine)" c++17 "$srcdir/tests/integration/cxx-binding.cc")"
else
    skip "ctrt.hpp with clang++" "no clang++, or a library with sanitizers"
fi
output=$(binding "$CXX" c++17 "$srcdir/bindings/cpp/examples/digits.cc" "$srcdir/examples/data/digits.csv")
check "the example of ctrt.hpp" "$(echo "$output" | grep -q '^9[5-9]\.[0-9]* % of 359' || echo "$output")"
finish
