#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Programs and plugins of each frozen version of the ABI (tests/abi/VERSION/*.c), compiled with the headers of that
# version, work with this library; also plugins that are compiled with headers of a later version.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# compile FOLDER INCLUDE: compiles the plugins of FOLDER with these headers into $work/plugins.
compile() {
    rm -rf "$work/plugins" && mkdir -m 755 "$work/plugins"
    for source in "$1"/*-*.c; do
        name=$(basename "$source" .c)
        case $name in comm-* | strategy-*) libs="-L$builddir/.libs -lctrt" ;; *) libs= ;; esac
        # shellcheck disable=SC2086
        ${CC:-cc} -std=gnu11 -O1 ${SANITIZE-} -Wall -Werror -fPIC -shared -fvisibility=hidden -I"$2" "$source" \
            -o "$work/plugins/$name.so" $libs || return
        chmod 755 "$work/plugins/$name.so"
    done
}

run_program() {
    CTRT_PLUGIN_PATH=$work/plugins:$CTRT_PLUGIN_PATH CTRT_MEMORY=old CTRT_FALLBACK=cpu \
        LD_LIBRARY_PATH=$builddir/.libs "$work/program" "$work" >"$work/out" 2>&1
}

# runs WHAT: runs the program with the plugins, and prints its checks as checks of this test.
runs() {
    run_program
    status=$?
    while read -r line; do
        case $line in
        "ok "*) ok "$1: ${line#* - }" ;;
        "not ok "*) not_ok "$1: ${line#* - }" "$(cat "$work/out")" ;;
        esac
    done <"$work/out"
    [ $status -eq 0 ] && grep -q '^1\.\.' "$work/out"
    result $? "$1: the program ends" "status $status
$(cat "$work/out")"
}

for folder in "$srcdir"/tests/abi/[0-9]*; do
    version=${folder##*/}
    [ -f "$folder/program.c" ] || continue
    ${CC:-cc} -std=gnu11 -O1 ${SANITIZE-} -Wall -Werror -I"$folder/include" "$folder/program.c" -o "$work/program" \
        -L"$builddir/.libs" -lctrt -lm 2>"$work/err" && compile "$folder" "$folder/include" 2>>"$work/err"
    result $? "compiles with the headers of ABI $version" "$(cat "$work/err")"
    check "they require functions of ABI $version only" "$(
        for file in "$work/program" "$work"/plugins/*.so; do
            ${READELF:-readelf} -V "$file" | sed -n "s|.*Name: \(CTRT_[0-9.]*\).*|${file##*/}: \1|p"
        done | grep -v " CTRT_$version\$")"
    runs "ABI $version"
done

# Plugins of a later minor version: tables, calls and attributes that they know are longer.
grow='table\|host\|kernel\|call\|info\|engine\|config\|strategy\|batch\|codec\|plugin\|backend\|policy\|source\|stats'
grow="$grow\\|component\\|attributes"
mkdir "$work/later" && cp -R "$srcdir/include/ctrt" "$work/later/" && chmod -R u+w "$work/later"
for header in plugin comm_plugin strategy_plugin image_plugin; do
    sed -e "s/^} ctrt_[a-z_]*\\($grow\\);/    void *later[4];\\n&/" \
        -e 's/^\(#define CTRT_PLUGIN_ABI_MINOR\).*/\1 99u/' "$srcdir/include/ctrt/$header.h" \
        >"$work/later/ctrt/$header.h"
done
[ "$(grep -c 'void \*later' "$work/later/ctrt/plugin.h")" -gt 20 ] || not_ok "tables of a later version are longer"
compile "$srcdir/tests/abi/1.0" "$work/later" 2>"$work/err"
result $? "compiles with headers of a later version" "$(cat "$work/err")"
runs "plugins of a later version"

# The test must be able to fail: plugins of another major version.
sed 's/^\(#define CTRT_PLUGIN_ABI_MAJOR\).*/\1 2u/' "$srcdir/include/ctrt/plugin.h" >"$work/later/ctrt/plugin.h"
compile "$srcdir/tests/abi/1.0" "$work/later" 2>"$work/err"
run_program
[ $? -eq 1 ] && grep -q 'built for plugin ABI 2.0, this library supports 1\.' "$work/out"
result $? "plugins of another major version are refused" "$(cat "$work/err" "$work/out")"
finish
