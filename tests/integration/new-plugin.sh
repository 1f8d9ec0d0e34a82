#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `ctrt new-plugin`: a plugin of each kind builds, passes its own checks, is installed and removed; two kinds also with
# CMake and Meson in tests/installed.sh. Then what the command refuses.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=$(cd "${builddir:-$srcdir}" && pwd)
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
templates=$(cd "$srcdir/templates" && pwd)
CTRT=$builddir/ctrt
export CTRT
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work" || exit 1

# new ARGUMENT...: the command, with the templates of the source tree, which this command does not know by itself.
new() {
    "$CTRT" new-plugin --templates "$templates" "$@"
}

# refuses STATUS PATTERN ARGUMENT...: requires the exit status, a line that matches PATTERN, and no new folder.
refuses() {
    want=$1 pattern=$2
    shift 2
    ls >.before
    new "$@" >.output 2>&1
    code=$?
    [ "$code" -eq "$want" ] && grep -q -- "$pattern" .output && ls | cmp -s - .before
    result $? "refuses: new-plugin $*" "exit status $code, expected $want with '$pattern': $(head -n 5 .output) $(ls)"
}

refuses 2 '--kind is missing' mine
refuses 2 'there is no kind "engine"' mine --kind engine
refuses 2 'begins with a lower-case letter' Mine --kind backend
refuses 2 'begins with a lower-case letter' 3d --kind backend
refuses 2 'begins with a lower-case letter' my_own --kind backend
refuses 2 'does not end with' own- --kind backend
refuses 2 'it is at most 31 characters' a-name-that-has-32-characters-01 --kind memory
refuses 2 'with "cpu-" before it is at most 31' a-name-that-has-28-character --kind kernels
refuses 2 'the name of its format, one of: bmp jpeg' gif --kind image
refuses 2 'usage:' one two --kind backend
refuses 1 'no templates in /nowhere .*libctrt-dev' mine --kind backend --templates /nowhere
refuses 1 'the folder no/where cannot be made' mine --kind backend --folder no/where
mkdir exists
refuses 1 'exists already; remove it, or name another' mine --kind backend --folder exists
# A file of the templates that cannot be read, and a disk that is full, after the first file was written.
cp -R "$templates" damaged && chmod -R u+w damaged && ln -s nowhere damaged/common/zz
refuses 1 'damaged/common/zz: No such file' mine --kind memory --templates damaged
check "a file that is too large for its limit is reported, and nothing is left" "$(
    (ulimit -f 2; trap '' XFSZ; new mine --kind memory) >out 2>&1 && echo "no error"
    grep -q 'writing mine/.*: File too large' out || cat out
    ls mine 2>&1 | grep -v 'No such file')"

if ! command -v "${PKG_CONFIG:-pkg-config}" >/dev/null; then
    skip "a plugin of each kind" "no pkg-config"
    finish
fi
PKG_CONFIG_PATH=$builddir/pkgconfig
CTRT_PLUGIN_PATH=$builddir/plugins-built
OPS=relu
export PKG_CONFIG_PATH CTRT_PLUGIN_PATH OPS
make="${MAKE:-make} CFLAGS='-O0 -Wall -Wextra -Werror' CC='${CC:-cc}'"

kinds="backend backend-async kernels memory comm strategy image"
for kind in $kinds; do
    name=my-$kind
    [ $kind != image ] || name=bmp
    # Ranks that wait for others take long, so of an engine some checks are enough.
    checks='*'
    [ $kind != comm ] || checks='[amt]*'
    (new "$name" --kind $kind --folder $kind && cd $kind && eval "$make check CHECKS='$checks'") >$kind.log 2>&1
    echo $? >$kind.status
done
for kind in $kinds; do
    check "$kind: is made, builds without warnings, and passes its checks" "$(
        [ "$(cat $kind.status)" = 0 ] || tail -n 30 $kind.log
        grep -rn '@[a-z]*@\|template' $kind --include='[!.]*' -I | head -n 5)"
    check "$kind: is installed where all programs search, and removed" "$(
        cd $kind || exit
        eval "$make install plugindir=/plugins DESTDIR='$work/root'" >out 2>&1 || cat out
        for file in "$work"/root/plugins/*; do
            cmp "$file" "${file##*/}"
            env -u CTRT_LOG CTRT_PLUGIN_PATH="$work/root/plugins:$CTRT_PLUGIN_PATH" "$CTRT" plugins >out 2>&1
            grep -q "root/plugins" out || cat out
        done
        eval "$make uninstall plugindir=/plugins DESTDIR='$work/root'" >out 2>&1 || cat out
        ls "$work/root/plugins")"
done
finish
