#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Macros that the build passes to the compiler and macros that sources test have the same names, so that a rename on one
# side is detected: without this check, #ifdef of a macro that nothing defines silently removes code.
#
#   A macro of a -D option or of AC_DEFINE is used by a source file.
#   A macro in #ifdef, #ifndef, #if or #elif is defined by a source file, by the build or by the list below. Names that
#   begin with "_" belong to the compiler and the C library.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Defined by headers outside the tree: CUDA, MPI, NCCL, PyTorch, Linux.
outside='HAVE_CONFIG_H MADV_[A-Z_]* NCCL_VERSION_CODE OPEN_MPI SYS_[a-z]* TORCH_VERSION_MAJOR'

names='[A-Za-z][A-Za-z0-9_]*'
sources() {
    find . \( -name '_*' -o -name 'autom4te.cache' -o -name .git -o -name 'ctrt-*' \) -prune -o -type f \
        \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \
        -o -name '*.cpp' \) -print
}
builds() {
    find . \( -name '_*' -o -name 'autom4te.cache' -o -name .git -o -name 'ctrt-*' -o -name build-aux \) -prune -o \
        -type f \( -name local.mk -o -name Makefile.am -o -name configure.ac -o -name 'ctrt*.m4' -o -name '*.sh' \
        -o -name quickstart \) ! -path ./tests/macros.sh -print
}

# one_sided: prints the macros that only one side has.
one_sided() {
    # `set -- -D...` and file names in comments are no options of a compiler: an option follows a blank or a quote.
    builds | xargs grep -hoE "(^|[ \"'=])-D$names" | sed 's/.*-D//' | sort -u >"$work/options"
    builds | xargs grep -hoE "(AC_DEFINE|AC_DEFINE_UNQUOTED)\(\[$names\]" | sed 's/.*\[//; s/\]//' |
        sort -u >"$work/config"
    sources | xargs cat >"$work/source"
    grep -oE "\b[A-Za-z_][A-Za-z0-9_]*" "$work/source" | sort -u >"$work/words"
    grep -oE "^[[:blank:]]*#[[:blank:]]*define[[:blank:]]+$names" "$work/source" | sed 's/.*[[:blank:]]//' |
        sort -u >"$work/defined"
    # Conditions without comments and without the names of functions that only the preprocessor has.
    sed -nE 's/^[[:blank:]]*#[[:blank:]]*(ifdef|ifndef|if|elif)[[:blank:]]//p' "$work/source" |
        sed 's|/\*.*||; s|//.*||' |
        grep -oE "(^|[^A-Za-z0-9_\"./<])$names" | sed 's/^[^A-Za-z]//' |
        grep -vxE 'defined|[uUlL]+|x[0-9A-Fa-f]+' | sort -u >"$work/tested"

    # An option that ends with "_" is the beginning of names, such as -DCTRT_WITHOUT_$build.
    for name in $(cat "$work/options" "$work/config"); do
        case $name in
        *_) grep -q "^$name" "$work/words" ;;
        *) grep -qx "$name" "$work/words" ;;
        esac || echo "$name: the build defines it, no source uses it"
    done
    starts=$(sed -n 's/_$/_[A-Z]*/p' "$work/options")
    known=$(echo $outside $starts | tr ' ' '|')
    cat "$work/options" "$work/config" "$work/defined" | sort -u >"$work/all"
    comm -23 "$work/tested" "$work/all" | grep -vxE "$known" | sed 's/$/: sources test it, nothing defines it/'
}

check "macros of the build and of the sources have the same names" "$(one_sided)"

# The check must be able to fail.
mkdir -p "$work/tree/core" && cd "$work/tree" || exit 1
printf '%s\n' 'a_CPPFLAGS = -DONE_SIDE=1 -DBOTH=2 -DPART_$(x)' >local.mk
printf '%s\n' 'AC_DEFINE([FOUND], [1], [x])' >configure.ac
printf '%s\n' '#ifdef OTHER_SIDE' '#endif' '#if defined(BOTH) && !defined(FOUND) /* a comment */' '#endif' \
    '#ifndef HERE' '#define HERE 1' '#endif' '#ifdef PART_ONE' '#endif' >core/a.c
found=$(one_sided)
if [ "$found" = 'ONE_SIDE: the build defines it, no source uses it
OTHER_SIDE: sources test it, nothing defines it' ]; then
    ok "a rename on one side is detected"
else
    not_ok "a rename on one side is detected" "found: $found"
fi
finish
