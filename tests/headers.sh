#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every installed header compiles alone, and all together in every rotation of their order, as C99, C11, gnu2x and
# C++17, without warnings; none depends on config.h. Structs can grow.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
headers=$(cd "$srcdir/include" && echo ctrt/*.h)
warn='-Wall -Wextra -Wshadow -Werror -pedantic'

# The files to compile: one per header, which includes it twice to test its include guard, and one per rotation.
for h in $headers; do
    name=alone_$(basename "$h" .h)
    printf '#include <%s>\n#include <%s>\n' "$h" "$h" >"$work/$name.c"
    set -- $headers
    while [ "$1" != "$h" ]; do set -- "$@" "$1"; shift; done
    for i; do echo "#include <$i>"; done >"$work/from_$(basename "$h" .h).c"
done
for f in "$work"/*.c; do
    # A translation unit without a declaration is not standard C.
    echo 'typedef int not_empty;' >>"$f"
done

# try NAME COMPILER FLAGS...: compiles all files at once and, if that fails, one by one to name those that fail.
try() {
    name=$1
    shift
    if output=$("$@" $warn -I"$srcdir/include" -fsyntax-only "$work"/*.c 2>&1); then
        ok "$name: each of $(set -- $headers; echo $#) headers alone, and in every rotation"
    else
        failing=$(for f in "$work"/*.c; do
            "$@" $warn -I"$srcdir/include" -fsyntax-only "$f" >/dev/null 2>&1 || basename "$f" .c
        done)
        not_ok "$name: $(echo $failing)" "$(printf '%s\n' "$output" | head -n 30)"
    fi
}

for std in c99 c11 gnu2x; do
    try "$std" ${CC:-cc} -std=$std
done
if [ -n "${CXX:-}" ] && command -v ${CXX%% *} >/dev/null; then
    try c++17 $CXX -std=c++17 -x c++
else
    skip c++17 "no C++ compiler"
fi

check "no header uses config.h or HAVE_..." \
    "$(cd "$srcdir/include" && grep -nE 'config\.h|\bHAVE_[A-Z]' ctrt/* /dev/null)"

# Structs that can grow (ctrt/base.h) have an initializer macro and are tested in test-struct-size. Others are tables of
# plugins, which begin with their size, or are listed with a reason. rules FOLDER: the structs that break this rule.
rules() {
    test=$srcdir/tests/unit/test-struct-size.c list=$srcdir/tests/abi/structs.txt
    for h in "$1"/ctrt/*.h; do
        sed -n '/^typedef struct ctrt_[a-z0-9_]* {$/{s/^typedef struct ctrt_\(.*\) {/\1/;N;s/\n */ /p}' "$h" |
            while read -r name first member _; do
                macro=CTRT_$(echo "$name" | tr a-z A-Z)
                case "$first $member $h" in
                    "size_t size; "* | "size_t initialized; "*)
                        if grep -q "^#define $macro\b" "$1"/ctrt/*.h; then
                            grep -Eq "(READS|WRITES)\($name,|\"$name\"" "$test" || echo "ctrt_$name: no test in $test"
                            continue
                        fi
                        case $h in *plugin.h) continue ;; esac ;;
                esac
                grep -q "^ctrt_$name  *[^ ]" "$list" || echo "ctrt_$name: begin it with its size and define $macro, " \
                    "or give the reason in $list"
            done
    done
}
check "structs that programs and the library exchange can grow" "$(rules "$srcdir/include")"
check "tests/abi/structs.txt has no other names" "$(
    sed -n 's/^\(ctrt_[a-z0-9_]*\) .*/\1/p' "$srcdir/tests/abi/structs.txt" | while read -r name; do
        grep -q "^typedef struct $name {" "$srcdir"/include/ctrt/*.h || echo "$name"
    done)"
# The check must be able to fail: a struct whose size is not its first member.
mkdir "$work/grown" && cp -R "$srcdir/include/ctrt" "$work/grown/" && chmod -R u+w "$work/grown"
sed 's/^typedef struct ctrt_usage {/&\n    int more;/' "$srcdir/include/ctrt/device.h" >"$work/grown/ctrt/device.h"
case $(rules "$work/grown") in
    "ctrt_usage: begin it with its size"*) ok "a struct without its size is detected" ;;
    *) not_ok "a struct without its size is detected" ;;
esac

# include/local.mk installs every public header.
listed=$(sed -n 's|^ *include/\(ctrt/[a-z_0-9]*\.[a-z]*\).*|\1|p' "$srcdir/include/local.mk" | sort)
there=$(cd "$srcdir/include" && ls ctrt/*.h ctrt/*.def | sort)
if [ "$listed" = "$there" ]; then
    ok "include/local.mk lists every public header"
else
    not_ok "include/local.mk lists every public header" "listed: $(echo $listed)
there:  $(echo $there)"
fi
finish
