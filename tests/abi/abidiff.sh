#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The plugin border against the released one (tests/abi/released, a copy of the headers made at release), by libabigail's abidiff. Growth at the end
# of a struct is fine. Then it is shown that the check can fail: with a field moved, and with a field inserted in the middle.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$srcdir/tests/lib.sh"
CC=${CC:-cc}
here=$srcdir/tests/abi

if ! command -v abidiff >/dev/null; then
    skip "the plugin border against the released one" "no abidiff (Debian: abigail-tools)"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# build OUTPUT INCLUDE-FOLDER
build() { $CC -std=gnu11 -g -O0 -fPIC -shared -I"$2" "$here/border.c" -o "$1"; }
# differ OLD NEW: what breaks plugins, in abidiff's words: anything but members added at the end of a struct and new enumerators.
differ() {
    report=$(abidiff --leaf-changes-only "$1" "$2" 2>&1) && return
    printf '%s\n' "$report" | grep -E 'offset changed|deletion|type of|return type|parameter|changed from .* to|abidiff:' |
        grep -v 'type size changed from'
}
# change NAME SED-SCRIPT: a folder of headers with one thing changed.
change() {
    mkdir -p "$work/$1"
    cp -R "$srcdir/include/ctrt" "$work/$1/"
    chmod -R u+w "$work/$1"
    sed "$2" "$srcdir/include/ctrt/plugin.h" >"$work/$1/ctrt/plugin.h"
    build "$work/$1.so" "$work/$1"
}

build "$work/released.so" "$here/released"
build "$work/now.so" "$srcdir/include"
check "the plugin border is compatible with the released one" "$(differ "$work/released.so" "$work/now.so")"

change moved '/void (\*fill)\|ctrt_status (\*fill)/d; s/^    void (\*free)(void \*device, void \*address, size_t bytes);/    ctrt_status (*fill)(void *device, void *queue, void *address, int byte, size_t bytes);\n&/'
check "a moved slot is found out" "$([ -n "$(differ "$work/now.so" "$work/moved.so")" ] || echo 'abidiff saw nothing')"
change inserted 's/^    uint32_t n_inputs, n_outputs;/    void *surprise;\n&/'
check "a field put in the middle is found out" "$([ -n "$(differ "$work/now.so" "$work/inserted.so")" ] || echo 'abidiff saw nothing')"
change grown 's/^    const char \*default_memory;.*/&\n    void *later;/'
check "a field added at the end is allowed" "$(differ "$work/now.so" "$work/grown.so")"
change retyped 's/^    int32_t score;/    int64_t score;/'
check "a field of another type is found out" "$([ -n "$(differ "$work/now.so" "$work/retyped.so")" ] || echo 'abidiff saw nothing')"
finish
