#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the plugin headers with those of the current minor version (plugin-1.0/): the layout of structs and the
# values of constants with layout.py, the types of members and the signatures of functions with abidiff (libabigail).
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
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/other" && cp -R "$srcdir/include/ctrt" "$work/other/"
chmod -R u+w "$work/other"

if command -v python3 >/dev/null; then
    export CC
    check "structs and constants of plugin.h are those of $version" "$(
        python3 "$srcdir/tests/abi/layout.py" "$reference" "$srcdir/include" 2>&1)"
    # The comparison must be able to fail: a larger member.
    sed 's/^\( *\)uint8_t ndim;/\1uint16_t ndim;/' "$srcdir/include/ctrt/plugin.h" >"$work/other/ctrt/plugin.h"
    case $(python3 "$srcdir/tests/abi/layout.py" "$reference" "$work/other" 2>&1) in
        *"size of ctrt_view.ndim is 2, was 1"*) ok "a larger member is detected" ;;
        *) not_ok "a larger member is detected" ;;
    esac
else
    skip "structs and constants of plugin.h are those of $version" "no python3"
fi
if ! command -v abidiff >/dev/null; then
    skip "the types of plugin.h equal those of $version" "no abidiff (Debian: abigail-tools)"
    finish
fi

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
sed 's/(\*free)(void \*device, void \*address, size_t bytes)/(*free)(void *device, size_t bytes, void *address)/' \
    "$srcdir/include/ctrt/plugin.h" >"$work/other/ctrt/plugin.h"
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
