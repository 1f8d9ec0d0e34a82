#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The public headers are compatible with those of each frozen version of the ABI (tests/abi/VERSION): layouts of structs
# and values of constants (abi.py), types of members and parameters (abidiff of libabigail). The library has each
# function with its version.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
CC=${CC:-cc}
export CC
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
command -v python3 >/dev/null || { skip "the ABI is that of the frozen versions" "no python3"; finish; }

# differences VERSION INCLUDE NAME: prints what is incompatible.
differences() {
    mkdir -p "$work/$3"
    python3 "$srcdir/tests/abi/abi.py" compare "$srcdir/tests/abi/$1" "$2" "$work/$3" 2>&1
    command -v abidiff >/dev/null || return
    for side in then now; do
        $CC -w -g -std=gnu11 -shared -fPIC "$work/$3/$side.c" -o "$work/$3/$side.so" 2>&1 | head -n 20
    done
    abidiff --no-show-locs "$work/$3/then.so" "$work/$3/now.so" 2>&1 >"$work/$3/types" || cat "$work/$3/types"
}

# exported LIBRARY: prints its functions with their versions, as the lines of nm.
exported() {
    ${NM:-nm} -D --with-symbol-versions --defined-only "$1" | sed -n 's/.* \(ctrt_[a-z0-9_]*@@*\)/\1/p' | sort -u
}
# listed VERSION: prints the functions of a version in core/libctrt.map, in the same form.
listed() {
    sed -n "/^CTRT_$1 {/,/^}/s/^ *\(ctrt_[a-z0-9_]*\);/\1@@CTRT_$1/p" "$srcdir/core/libctrt.map" | sort -u
}

exported "$builddir/.libs/libctrt.so" >"$work/exported"
for folder in "$srcdir"/tests/abi/[0-9]*; do
    version=${folder##*/}
    check "the headers are compatible with ABI $version" "$(differences "$version" "$srcdir/include" "is-$version")"
    listed "$version" >"$work/listed"
    [ -s "$work/listed" ] || not_ok "core/libctrt.map has the functions of ABI $version" "none"
    check "the library has the $(wc -l <"$work/listed") functions of ABI $version" \
        "$(comm -23 "$work/listed" "$work/exported")"
done
if [ -f "$srcdir/debian/libctrt0.symbols" ]; then
    check "debian/libctrt0.symbols has all versions" "$(
        sed -n 's/^\(CTRT_[0-9.]*\) {$/\1/p' "$srcdir/core/libctrt.map" | while read -r node; do
            grep -Eq "^ \((optional\|)?symver\)$node " "$srcdir/debian/libctrt0.symbols" || echo "$node"
        done)"
fi
command -v abidiff >/dev/null || skip "types of members and parameters" "no abidiff (Debian: abigail-tools)"
# The comparison must be able to fail.
sed 's/^ctrt_add@@CTRT_1.0$/ctrt_add@@CTRT_1.1/; /^ctrt_mul@/d' "$work/exported" >"$work/other"
listed 1.0 | comm -23 - "$work/other" | tr '\n' ' ' >"$work/lost"
check "functions that are missing or have another version are detected" \
    "$([ "$(cat "$work/lost")" = "ctrt_add@@CTRT_1.0 ctrt_mul@@CTRT_1.0 " ] || cat "$work/lost")"

# A function that is added belongs to the open version, and one of 1.0 does not.
printf 'void ctrt_add(void) { }\nvoid ctrt_newer(void) { }\nvoid newer(void) { }\n' >"$work/added.c"
$CC -w -shared -fPIC "$work/added.c" -o "$work/added.so" -Wl,--version-script="$srcdir/core/libctrt.map" 2>&1
open=$(sed -n '/^CTRT_.* {$/h; /global: ctrt_\*;/{g;s/ {$//p;}' "$srcdir/core/libctrt.map")
if [ -n "$open" ]; then
    check "a function that is added gets the open version, $open" "$(
        exported "$work/added.so" | tr '\n' ' ' | grep -v "^ctrt_add@@CTRT_1.0 ctrt_newer@@$open $")"
else
    skip "a function that is added gets the open version" "no version is open in a release"
fi

# x86_64 and aarch64 share table.txt.
other=aarch64-linux-gnu-gcc
[ "$(uname -m)" = x86_64 ] || other=x86_64-linux-gnu-gcc
if command -v $other >/dev/null; then
    python3 "$srcdir/tests/abi/abi.py" table "$srcdir/include" >"$work/own" 2>&1
    CC=$other python3 "$srcdir/tests/abi/abi.py" table "$srcdir/include" >"$work/other-machine" 2>&1
    check "$other has the same sizes, offsets and values" "$(diff "$work/own" "$work/other-machine")"
else
    skip "another machine has the same sizes, offsets and values" "no $other"
fi

# edit NAME FILE COMMAND: edits a header in a copy of the headers. The command has to change it.
edit() {
    [ -d "$work/$1" ] || { mkdir "$work/$1" && cp -R "$srcdir/include/ctrt" "$work/$1/" && chmod -R u+w "$work/$1"; }
    sed "$3" "$work/$1/ctrt/$2" >"$work/edited"
    cmp -s "$work/edited" "$work/$1/ctrt/$2" && not_ok "the edit changes $2" "$3"
    cp "$work/edited" "$work/$1/ctrt/$2"
}

# What may be added: see doc/abi.md.
edit grown base.h '/^CTRT_API const char \*ctrt_version/a CTRT_API ctrt_status ctrt_newer(int number);'
edit grown types.h 's/int64_t reserved\[2\];/int64_t newer, reserved[1];/'
edit grown types.h 's/CTRT_LAYOUT_PARTIAL /CTRT_LAYOUT_PARTIAL, CTRT_LAYOUT_NEWER /'
edit grown dtype.def '/^DTYPE(BOOL,/s/.*/&\nDTYPE(NEWER, 63, 1, BOOL, "newer", 6, "NEWER", "newer")/'
edit grown ops.def '/^CTRT_OP(neg,/{h;s/neg/newest/;G;}'
edit grown plugin.h 's/^} ctrt_memory_policy;/    void (*newer)(void *policy);\n&/'
edit grown plugin.h 's/^} ctrt_host;/    bool newer;\n&/'
edit grown plugin.h 's/^} ctrt_kernel;/    uint64_t newer, newest;\n&/'
edit grown plugin.h 's/^\(#define CTRT_PLUGIN_ABI_MINOR\).*/\1 9u/'
edit grown stream.h \
    's/^#include "ctrt.*/&\ntypedef struct ctrt_newer_options { size_t size; int way; } ctrt_newer_options;/'
edit grown nn.h 's/^} ctrt_embedding_options;/    const char *newer;\n&/'
check "additions are compatible" "$(differences 1.0 "$work/grown" of-grown)"

# What may not be changed.
edit changed base.h '/^CTRT_API ctrt_status ctrt_status_get/d'
edit changed base.h 's/\(ctrt_param_set(const char \*name,\) const char \*value)/\1 int value)/'
edit changed types.h 's/CTRT_LOG_WARNING = 1/CTRT_LOG_WARNING = 2/'
edit changed types.h 's/CTRT_SCALAR_INT, CTRT_SCALAR_FLOAT/CTRT_SCALAR_FLOAT, CTRT_SCALAR_INT/'
edit changed types.h '/^typedef struct ctrt_scalar {/,/^}/s/^} /    int newer;\n&/'
edit changed plugin.h 's/^\(#define CTRT_PLUGIN_ABI_MAJOR\).*/\1 2u/'
edit changed plugin.h 's/uint8_t ndim;/uint16_t ndim;/'
edit changed plugin.h 's/\((\*free)(void \*device,\) void \*address, size_t bytes)/\1 size_t bytes, void *address)/'
edit changed plugin.h '/^typedef struct ctrt_norm_attributes/,/^}/s/bool training;/bool training, newer;/'
edit changed plugin.h 's/^    void (\*trim)(void \*policy);/    void (*newer)(void);\n&/'
edit changed plugin.h '/bool (\*accepts)(const ctrt_call/s/bool/int/'
edit changed optim.h '/^typedef struct ctrt_sgd_options {/,/^}/s/double lr;/double newer, lr;/'
differences 1.0 "$work/changed" of-changed >"$work/found"
while read -r words; do
    check "detects: $words" "$(grep -qF -- "$words" "$work/found" || cat "$work/found")"
done <<'END'
the function ctrt_status_get is missing
CTRT_LOG_WARNING is 2, was 1
CTRT_SCALAR_INT is 2, was 1
size of ctrt_scalar is 40, was 32
CTRT_PLUGIN_ABI_MAJOR is 2, was 1
offset and size of ctrt_view.ndim are 18 2, were 17 1
ctrt_norm_attributes.newer is new at offset 25, but the struct had 32 bytes
offset and size of ctrt_memory_policy.trim are 56 8, were 48 8
ctrt_sgd_options.newer is new at offset 8, but the struct had
offset and size of ctrt_sgd_options.lr are 16 8, were 8 8
END
# abidiff writes `void (* free)(void*)` since version 2.5, and `void (void*)* free` before.
while read -r pattern; do
    command -v abidiff >/dev/null || break
    check "detects: $pattern" "$(grep -qE -- "$pattern" "$work/found" || cat "$work/found")"
done <<'END'
\[C\] '.*\* show_ctrt_param_set.*' was changed
type of 'void .*\* free\>.*' changed
type of 'bool .*\* accepts\>.*' changed
END
finish
