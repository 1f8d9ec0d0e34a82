#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The build tree installs into a folder, the installed tree passes `make installcheck`, and `make uninstall` removes it.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# target NAME: makes a target of the build tree with DESTDIR.
target() {
    if output=$(${MAKE:-make} -C "$builddir" "$1" DESTDIR="$work" 2>&1 </dev/null); then
        ok "make $1"
    else
        not_ok "make $1" "$(printf '%s\n' "$output" | grep -E '^(not ok|#  )|\*\*\*' | head -n 60)"
    fi
    printf '%s\n' "$output" | grep -E '^ok .* # SKIP' | sed 's/^ok [0-9]*/# installcheck:/'
}
target install
target installcheck
target uninstall
check "make uninstall leaves no file" "$(find "$work" ! -type d)"
finish
