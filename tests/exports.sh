#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The exported symbols of the built libraries, and the symbols and libraries that they require.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"

NM=${NM:-nm}
READELF=${READELF:-readelf}
library=$builddir/.libs/libctrt.so
plugins=$(ls "$builddir"/plugins-built/*.so 2>/dev/null)
sanitized="built with $SANITIZE, which adds symbols and libraries of its own"

names() { $NM -D "$@" | awk '{ print $NF }' | sed 's/@.*//' | sort -u; }

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
exported=$(names --defined-only "$library") || exit 1
count=$(printf '%s\n' "$exported" | grep -c '^ctrt_')
if [ "$count" -gt 0 ]; then
    ok "libctrt exports $count symbols named ctrt_*"
else
    not_ok "libctrt exports symbols named ctrt_*" "none found in $library"
fi
if [ -n "$SANITIZE" ]; then
    skip "libctrt exports nothing else" "$sanitized"
    skip "libctrt needs libc and libm only" "$sanitized"
    skip "libctrt is under 2 MiB stripped" "$sanitized"
else
    check "libctrt exports nothing else" "$(printf '%s\n' "$exported" | grep -v -e '^ctrt_' -e '^CTRT_1\.[0-9]*$')"
    check "libctrt needs libc and libm only" \
        "$($READELF -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' |
           grep -v -e '^libc\.so' -e '^libm\.so' -e '^libdl\.so' -e '^libpthread\.so' -e '^ld-linux')"
    stripped=$work/stripped
    strip -o "$stripped" "$library"
    size=$(wc -c <"$stripped")
    if [ "$size" -lt 2097152 ]; then
        ok "libctrt is under 2 MiB stripped ($size bytes)"
    else
        not_ok "libctrt is under 2 MiB stripped" "it has $size bytes"
    fi
fi
# For bindings: every inline function of a header for programs is also a symbol (plugin.h and probe_plugin.h are for
# plugins, which do not need libctrt), and ctrt_constant_get has every constant.
inline=$(sed -n 's/^static inline .*[ *]\(ctrt_[a-z_0-9]*\)(.*/\1/p' \
    $(ls "$srcdir"/include/ctrt/*.h | grep -v '/\(probe_\)*plugin\.h$'))
[ -n "$inline" ] || not_ok "public headers have inline functions" "none was found"
check "libctrt exports the inline functions of its headers" "$(
    for name in $inline; do
        printf '%s\n' "$exported" | grep -qx "$name" || echo "$name is missing in core/base/bindings.c"
    done)"
constants() {
    echo '#include <ctrt/ctrt.h>' | ${CC:-cc} -I"$srcdir/include" "$@" -x c -
}
{
    constants -E -P | tr '\n' ' ' | grep -o 'enum[^{}();]*{[^}]*}' | sed 's/.*{//; s/}//' | tr ',' '\n' |
        sed 's/=.*//; s/ //g'
    constants -E -dM | sed -n 's/^#define \(CTRT_[A-Z_0-9]*\) -*[0-9][0-9A-Za-z]*$/\1/p'
} | grep -v -e '_$' -e '_H$' | sort -u >"$work/constants"
{
    sed -n 's/^CONSTANT(\(.*\))$/\1/p' "$srcdir/core/base/constants.def"
    sed -n -e 's/^STATUS(\([A-Z0-9_]*\),.*/CTRT_\1/p' -e 's/^DTYPE(\([A-Z0-9_]*\),.*/CTRT_\1/p' \
        "$srcdir"/include/ctrt/*.def
} | sort -u >"$work/listed"
[ "$(wc -l <"$work/constants")" -gt 50 ] || not_ok "public headers have constants" "$(cat "$work/constants")"
check "ctrt_constant_get lists the constants of the public headers" "$(diff "$work/listed" "$work/constants")"
check "libctrt has no text relocations and no executable stack" \
    "$($READELF -dW "$library" | grep TEXTREL; $READELF -lW "$library" | grep 'GNU_STACK.*E ')"

# Who searches for a global, or sets a breakpoint at it, finds one. Sources of several plugins, such as those of
# plugins/strategy/ranks, define theirs in each.
check "no two plugins define the same global" "$(cd "$builddir" &&
    find backends plugins -path '*/.libs/*.o' -exec $NM -A --defined-only {} + | ${AWK:-awk} '
        $2 ~ /^[TDBR]$/ && $3 !~ /^(__.*|ctrt_plugin_v1)$/ {
            source = plugin = $1
            sub(/\.o:.*/, "", source)
            sub(/\.libs\/.*_la-/, "", source)
            sub(/.*\.libs\//, "", plugin)
            sub(/_la-.*/, "", plugin)
            if ($3 in sources && sources[$3] != source && plugins[$3] != plugin)
                print $3 ": " sources[$3] ".c and " source ".c"
            sources[$3] = source
            plugins[$3] = plugin
        }')"
[ -n "$plugins" ] || skip "plugins" "none was built"
for plugin in $plugins; do
    name=$(basename "$plugin")
    case $name in
    comm-* | strategy-* | backend-*-multi.so)      # these call the public functions (ctrt/plugin.h)
        check "$name is linked with libctrt" \
            "$($READELF -d "$plugin" | grep -q 'NEEDED.*libctrt\.so' || echo 'it is not')"
        check "$name uses only exported symbols of libctrt" "$(names --undefined-only "$plugin" | grep '^ctrt_' |
            while read -r symbol; do printf '%s\n' "$exported" | grep -qx "$symbol" || echo "$symbol"; done)" ;;
    *)
        check "$name uses no symbol of libctrt" \
            "$(names --undefined-only "$plugin" | grep '^ctrt_'; $READELF -d "$plugin" | grep 'NEEDED.*libctrt')" ;;
    esac
    if [ -n "$SANITIZE" ]; then
        skip "$name exports ctrt_plugin_v1 alone" "$sanitized"
    elif [ "$(names --defined-only "$plugin")" = ctrt_plugin_v1 ]; then
        ok "$name exports ctrt_plugin_v1 alone"
    else
        not_ok "$name exports ctrt_plugin_v1 alone" "$(names --defined-only "$plugin")"
    fi
    check "$name links no vendor library" \
        "$($READELF -d "$plugin" | grep NEEDED | grep -E 'libdnnl|blas|libcuda|libcublas|libnccl|libjpeg|libpng')"
done
finish
