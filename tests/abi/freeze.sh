#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stores the ABI of this tree as a version, or stores a version again before it is released; doc/abi.md and
# doc/releasing.md explain when.
#
#   freeze.sh VERSION BUILD [release]     for example `sh tests/abi/freeze.sh 1.0 _build`, after `make -C _build`
#
# Writes
#   CTRT_PLUGIN_ABI_MINOR of ctrt/plugin.h,
#   tests/abi/VERSION: include/ctrt (the public headers without comments) and table.txt (sizes, offsets, values),
#   core/libctrt.map: the functions of the built library that no older version has are those of VERSION, and later ones
#   get the next minor version. With `release`, the next version is not there, so that the loader refuses a program
#   that needs it.
# Then adapt debian/libctrt0.symbols.
set -e
[ $# -eq 2 ] || [ "${3-}" = release ] || { sed -n '6s/^# *//p' "$0" >&2; exit 2; }
version=$1 library=$2/.libs/libctrt.so
cd "$(dirname "$0")/../.."
LC_ALL=C
export LC_ALL
case $version in
[1-9].[0-9] | [1-9].[0-9][0-9]) ;;
*) echo "freeze.sh: $version is not a version such as 1.1" >&2; exit 2 ;;
esac
next=${version%.*}.$((${version#*.} + 1))
map=core/libctrt.map
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

minor=${version#*.}
sed "s/^\(#define CTRT_PLUGIN_ABI_MINOR\) .*/\1 ${minor}u/" include/ctrt/plugin.h >"$work/plugin.h"
cmp -s "$work/plugin.h" include/ctrt/plugin.h || cp "$work/plugin.h" include/ctrt/plugin.h

folder=tests/abi/$version
mkdir -p "$folder/include/ctrt"
rm -f "$folder"/include/ctrt/*
for file in include/ctrt/*.h include/ctrt/dtype.def include/ctrt/ops.def include/ctrt/status.def; do
    { echo '/* SPDX-License-Identifier: Apache-2.0 */'
      python3 tests/abi/abi.py strip "$file"
    } >"$folder/include/ctrt/${file##*/}"
done
{ echo "# SPDX-License-Identifier: Apache-2.0"
  echo "# ABI $version: size of each struct, and whether it grows; offset and size of its members; values of constants."
  python3 tests/abi/abi.py table include
} >"$folder/table.txt"

sed "/^CTRT_$version /,\$d" "$map" >"$work/map"
sed -n 's/.*\(ctrt_[a-z0-9_]*\);$/\1/p' "$work/map" | sort >"$work/older"
older=$(sed -n 's/^\(CTRT_[0-9.]*\) {$/\1/p' "$work/map" | tail -n 1)
${NM:-nm} -D --defined-only "$library" | sed -n 's/.* \(ctrt_[a-z0-9_]*\).*/\1/p' | sort -u | comm -23 - "$work/older" \
    >"$work/names"
{
    cat "$work/map"
    printf 'CTRT_%s {\n    global:\n' "$version"
    sed 's/.*/        &;/' "$work/names"
    [ -n "$older" ] || printf '    local: *;\n'
    printf '}%s;\n' "${older:+ $older}"
    [ "${3-}" = release ] || printf '\nCTRT_%s {\n    global: ctrt_*;\n} CTRT_%s;\n' "$next" "$version"
} >"$work/new"
cp "$work/new" "$map"
echo "$folder and $map have $(wc -l <"$work/names") functions of $version"
