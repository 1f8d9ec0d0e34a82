#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What offsets cannot show: the types of members and the signatures of slots, compared by abidiff (libabigail) between the
# headers as they are and as the current minor version described them (plugin-1.0/).
#
#   abidiff.sh --update     takes the headers anew, after a change that only adds at the end and raised
#                           CTRT_PLUGIN_ABI_MINOR (or before the version is released)
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$srcdir/tests/lib.sh"
CC=${CC:-cc}
version=plugin-1.0
reference=$srcdir/tests/abi/$version

if [ "${1:-}" = --update ]; then
    mkdir -p "$reference/ctrt"
    for file in plugin.h types.h status.def dtype.def; do cp "$srcdir/include/ctrt/$file" "$reference/ctrt/" || exit 1; done
    exit
fi
if ! command -v abidiff >/dev/null; then
    skip "the types of plugin.h are those of $version" "no abidiff (Debian: abigail-tools)"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# build FOLDER NAME: a shared object that shows every struct of the headers in FOLDER.
build() {
    $CC -g -std=gnu11 -shared -fPIC -I"$1" "$srcdir/tests/abi/surface.c" -o "$work/$2" || exit 1
}

build "$reference" then.so
build "$srcdir/include" now.so
changes=$(abidiff --no-show-locs "$work/then.so" "$work/now.so" 2>&1)
if [ $? -eq 0 ]; then
    ok "the types of plugin.h are those of $version"
else
    not_ok "the types of plugin.h are those of $version" "$changes
(an addition at the end? raise CTRT_PLUGIN_ABI_MINOR, then sh tests/abi/abidiff.sh --update)"
fi

# The comparison must be able to fail: a slot that takes an argument of another type, at the same offset.
mkdir "$work/other" && cp -R "$srcdir/include/ctrt" "$work/other/"
chmod -R u+w "$work/other"
sed -i 's/(\*free)(void \*device, void \*address, size_t bytes)/(*free)(void *device, size_t bytes, void *address)/' "$work/other/ctrt/plugin.h"
build "$work/other" other.so
if abidiff "$work/then.so" "$work/other.so" >/dev/null 2>&1; then
    not_ok "a slot with exchanged arguments is found out"
else
    ok "a slot with exchanged arguments is found out"
fi
# Every struct of the header is shown, or lies in one that is.
check "surface.c shows every struct of plugin.h" "$(
    $CC -std=gnu11 -E -P -I"$srcdir/include" "$srcdir/tests/abi/surface.c" >"$work/all"
    sed -n 's/^} \(ctrt_[a-z_]*\);/\1/p' "$srcdir/include/ctrt/plugin.h" | while read -r name; do
        grep -q "SHOW($name)" "$srcdir/tests/abi/surface.c" || grep -Eq "(const )?$name (\*|[a-z_]+;)" "$work/all" || echo "$name"
    done)"
finish
