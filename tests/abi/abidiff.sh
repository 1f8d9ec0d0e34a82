#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the types of members and the signatures of functions in the plugin headers with those of the current minor
# version (plugin-1.0/), with abidiff (libabigail). test-abi.c compares only offsets.
#
#   abidiff.sh --update     replaces the reference headers, which have no comments, after a change that only appends
#                           members and increments CTRT_PLUGIN_ABI_MINOR (or before the version is released)
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$srcdir/tests/lib.sh"
CC=${CC:-cc}
version=plugin-1.0
reference=$srcdir/tests/abi/$version

if [ "${1:-}" = --update ]; then
    mkdir -p "$reference/ctrt"
    for file in plugin.h types.h status.def dtype.def; do
        { echo '/* SPDX-License-Identifier: Apache-2.0 */'
          $CC -w -x c -fpreprocessed -dD -E -P "$srcdir/include/ctrt/$file" | sed 's/ *$//'
        } >"$reference/ctrt/$file" || exit 1
    done
    exit
fi
if ! command -v abidiff >/dev/null; then
    skip "the types of plugin.h equal those of $version" "no abidiff (Debian: abigail-tools)"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# build FOLDER NAME: builds a shared object that exports an object of every struct of the headers in FOLDER.
build() {
    $CC -g -std=gnu11 -shared -fPIC -I"$1" "$srcdir/tests/abi/surface.c" -o "$work/$2" || exit 1
}

build "$reference" then.so
build "$srcdir/include" now.so
changes=$(abidiff --no-show-locs "$work/then.so" "$work/now.so" 2>&1)
if [ $? -eq 0 ]; then
    ok "the types of plugin.h equal those of $version"
else
    not_ok "the types of plugin.h equal those of $version" "$changes
(if members were only appended: increment CTRT_PLUGIN_ABI_MINOR, then run sh tests/abi/abidiff.sh --update)"
fi

# The comparison must be able to fail: a function pointer at the same offset with two arguments exchanged.
mkdir "$work/other" && cp -R "$srcdir/include/ctrt" "$work/other/"
chmod -R u+w "$work/other"
sed -i 's/(\*free)(void \*device, void \*address, size_t bytes)/(*free)(void *device, size_t bytes, void *address)/' \
    "$work/other/ctrt/plugin.h"
build "$work/other" other.so
if abidiff "$work/then.so" "$work/other.so" >/dev/null 2>&1; then
    not_ok "exchanged arguments of a function are detected"
else
    ok "exchanged arguments of a function are detected"
fi
# Every struct of the header is exported, or is a member of one that is.
check "surface.c exports every struct of plugin.h" "$(
    $CC -std=gnu11 -E -P -I"$srcdir/include" "$srcdir/tests/abi/surface.c" >"$work/all"
    sed -n 's/^} \(ctrt_[a-z_]*\);/\1/p' "$srcdir/include/ctrt/plugin.h" | while read -r name; do
        grep -q "SHOW($name)" "$srcdir/tests/abi/surface.c" ||
            grep -Eq "(const )?$name (\*|[a-z_]+;)" "$work/all" || echo "$name"
    done)"
finish
