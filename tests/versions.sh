#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The version of the package is set in AC_INIT of configure.ac, and the files that must contain a copy of it are equal.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1
version=$(sed -n 's/^AC_INIT(\[ctrt\], \[\(.*\)\])$/\1/p' configure.ac)
soname=$(sed -n 's/^AC_SUBST(\[LIBCTRT_VERSION_INFO\], \[\([0-9]*\):[0-9]*:\([0-9]*\)\])$/\1 \2/p' configure.ac |
    awk '{ print $1 - $2 }')
abi=$(sed -n 's/^AC_SUBST(\[CTRT_PLUGIN_ABI\], \[\([0-9]*\)\])$/\1/p' configure.ac)

# same FILE EXPECTED EXPRESSION: passes if the first line that sed's EXPRESSION prints of FILE is EXPECTED.
same() {
    found=$(sed -n "$3" "$1" | head -n 1)
    if [ "$found" = "$2" ]; then ok "$1 has $2"; else not_ok "$1 has $2" "found: ${found:-nothing}"; fi
}
same NEWS "$version" 's/^\([0-9][0-9.a-z-]*\) (.*/\1/p'
same packaging/ctrt.spec "$version" 's/^Version: *//p'
same packaging/ctrt.spec "$version-1" '/^%changelog/,$s/^\*.* - //p'
same packaging/ctrt.spec "%{_libdir}/libctrt.so.$soname*" '/^%files libs/,$s/^\(%{_libdir}.*\.so.*\)/\1/p'
same packaging/ctrt.spec "%dir %{_libdir}/ctrt/$abi" '/^%dir .*ctrt\//p'
if [ -d debian ]; then
    same debian/changelog "$version" '1s/^ctrt (\(.*\)-[^-]*) .*/\1/p'
    same debian/control "libctrt$soname" 's/^Package: \(libctrt[0-9].*\)/\1/p'
    same debian/libctrt0.symbols "libctrt.so.$soname" '1s/ .*//p'
    same debian/libctrt0.install "usr/lib/*/ctrt/$abi/backend-cpu.so" '/backend-cpu/p'
else
    skip "debian/changelog has $version" "the release archive has no debian/"
fi
for cargo in $(find bindings -name Cargo.toml); do
    same "$cargo" "$version" 's/^version = "\(.*\)"/\1/p'
done
cd "$builddir" || exit 1
same pkgconfig/ctrt.pc "$version" 's/^Version: *//p'
same pkgconfig/ctrt-plugin.pc "$version" 's/^Version: *//p'
same cmake/ctrtConfigVersion.cmake "$version" 's/^set(PACKAGE_VERSION "*\([^")]*\).*/\1/p'
finish
