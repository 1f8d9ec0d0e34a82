#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# installed.sh PREFIX PKGCONFIGDIR: tests an installed tree as users use it, with pkg-config and without the build tree.
# `make installcheck` runs it, and `make distcheck` runs that.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"
prefix=$1
pkgconfigdir=$2
CC=${CC:-cc}
MAKE=${MAKE:-make}
PKG_CONFIG=${PKG_CONFIG:-pkg-config}
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR LD_PRELOAD
for v in $(env | sed -n 's/^\(CTRT_[A-Za-z_]*\)=.*/\1/p'); do unset "$v"; done

if ! command -v "$PKG_CONFIG" >/dev/null; then
    skip "the installed tree" "no pkg-config"
    finish
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The .pc file of a tree below /usr has an absolute prefix; with DESTDIR a changed copy of the file is used.
PKG_CONFIG_PATH=$pkgconfigdir
case $(sed -n 's/^prefix=//p' "$pkgconfigdir/ctrt.pc") in
/usr)
    mkdir "$work/pc"
    sed "s|^prefix=.*|prefix=$prefix|" "$pkgconfigdir/ctrt.pc" >"$work/pc/ctrt.pc"
    PKG_CONFIG_PATH=$work/pc ;;
esac
export PKG_CONFIG_PATH

libdir=$(cd "$($PKG_CONFIG --variable=libdir ctrt)" && pwd)
plugindir=$(cd "$($PKG_CONFIG --variable=plugindir ctrt)" && pwd)
abi=$($PKG_CONFIG --variable=plugin_abi ctrt)
LD_LIBRARY_PATH=$libdir
export LD_LIBRARY_PATH

# run NAME COMMAND...: passes if the command succeeds; otherwise shows its output.
run() {
    name=$1
    shift
    if output=$("$@" 2>&1 </dev/null); then
        ok "$name"
    else
        not_ok "$name" "$(printf '%s\n' "$output" | tail -n 40)"
    fi
}

# --- the installed files ---------------------------------------------------------------------------------------------

check "plugindir ends in the ABI major version of plugin.h" "$(
    header=$(sed -n 's/^#define CTRT_PLUGIN_ABI_MAJOR *\([0-9]*\).*/\1/p' "$prefix"/include/ctrt/plugin.h)
    [ "$plugindir" = "$libdir/ctrt/$abi" ] && [ "$abi" = "$header" ] ||
        echo "plugindir $plugindir, plugin_abi $abi, plugin.h $header")"
check "plugindir contains only plugins" "$(
    ls "$plugindir"/*.so >/dev/null 2>&1 || echo "no plugin in $plugindir"
    ls "$plugindir" | grep -v '\.so$')"
check "no libtool archive is installed" "$(find "$prefix" -name '*.la')"
check "config.h is not installed" "$(find "$prefix" -name config.h; grep -l 'config\.h' "$prefix"/include/ctrt/*)"

# --- a small program -------------------------------------------------------------------------------------------------

run "a C program builds with pkg-config alone" $CC ${SANITIZE_FLAGS:-} "$srcdir/tests/installed.c" -o "$work/program" \
    $($PKG_CONFIG --cflags --libs ctrt)
run "it computes a value and a gradient, and loads its plugins from $plugindir" "$work/program" "$plugindir"
[ -z "${CXX:-}" ] || run "a C++ program builds with ctrt.hpp and pkg-config alone" $CXX -std=c++17 ${SANITIZE_FLAGS:-} \
    "$srcdir/bindings/cpp/examples/digits.cc" -o "$work/digits" $($PKG_CONFIG --cflags --libs ctrt)
[ ! -x "$prefix/bin/ctrt" ] || run "ctrt info runs" "$prefix/bin/ctrt" info

if [ -f "$libdir/libctrt.a" ]; then
    run "a program with libctrt.a builds, beside functions with names of internal ones" \
        $CC ${SANITIZE_FLAGS:-} -DINTERNAL_NAMES "$srcdir/tests/installed.c" -o "$work/one-file" \
        $($PKG_CONFIG --cflags ctrt) "$libdir/libctrt.a" $($PKG_CONFIG --static --libs ctrt | sed 's/-L[^ ]* *-lctrt//')
    run "it needs no other file of ctrt" env LD_LIBRARY_PATH= "$work/one-file" "(built in)"
fi

# --- a copy of the tree -----------------------------------------------------------------------------------------------

# The original tree remains, so a copy that used a file of the original would be detected.
cp -R "$prefix" "$work/moved"
moved_libdir=$work/moved${libdir#"$prefix"}
run "a program uses the plugins of the moved library" \
    env LD_LIBRARY_PATH="$moved_libdir" "$work/program" "$moved_libdir/ctrt/$abi"
if [ "$PKG_CONFIG_PATH" = "$pkgconfigdir" ]; then
    check "pkg-config prints folders of the moved tree" "$(
        PKG_CONFIG_PATH=$moved_libdir/pkgconfig
        for variable in includedir libdir plugindir; do
            folder=$($PKG_CONFIG --variable=$variable ctrt)
            case $(cd "$folder" && pwd) in "$work/moved"/*) ;; *) echo "$variable is $folder" ;; esac
        done)"
    [ ! -x "$prefix/bin/ctrt" ] || check "the moved command uses files of the moved tree only" "$(
        env -u LD_LIBRARY_PATH LD_DEBUG=files "$work/moved/bin/ctrt" plugins 2>&1 | grep -F "$prefix/")"
fi

# --- the examples, built with their own Makefile ---------------------------------------------------------------------

if [ -f "$srcdir/examples/Makefile" ]; then
    cp -R "$srcdir/examples" "$work/examples"
    chmod -R u+w "$work/examples"
    run "examples build with their own Makefile" $MAKE -C "$work/examples" CC="$CC" \
        CFLAGS="-O2 -Wall -Wextra -Werror ${SANITIZE_FLAGS:-}"
else
    skip "examples build with their own Makefile" "there is no examples/Makefile"
fi

# --- third-party plugins: those of `ctrt new-plugin` of the moved tree ------------------------------------------------

if [ -x "$prefix/bin/ctrt" ]; then
    backend=$work/backend
    CTRT=$prefix/bin/ctrt
    OPS=relu
    export CTRT OPS
    run "new-plugin makes a backend" "$work/moved/bin/ctrt" new-plugin mine --kind backend --folder "$backend"
    run "new-plugin makes a strategy" "$work/moved/bin/ctrt" new-plugin mine --kind strategy --folder "$work/strategy"
    for tool in cmake meson; do
        build=$backend/build-$tool
        if ! command -v $tool >/dev/null; then
            skip "the backend builds with $tool, and passes its checks" "no $tool"
        elif [ $tool = cmake ]; then
            run "the backend builds with $tool, and passes its checks" sh -c "
                cmake -S '$backend' -B '$build' -D CMAKE_C_COMPILER='${CC%% *}' \
                    -D 'CMAKE_C_FLAGS=${SANITIZE_FLAGS:-}' -D 'ctrt_DIR=$libdir/cmake/ctrt' &&
                cmake --build '$build' && cd '$build' && ctest --output-on-failure"
        else
            run "the backend builds with $tool, and passes its checks" env CC="$CC" CFLAGS="${SANITIZE_FLAGS:-}" sh -c "
                meson setup -D b_lundef=false -D pkg_config_path='$PKG_CONFIG_PATH' '$build' '$backend' &&
                meson compile -C '$build' && meson test -C '$build' --print-errorlogs"
        fi
    done
    for kind in backend strategy; do
        run "the $kind builds with make, and passes its checks" $MAKE -C "$work/$kind" check CC="$CC" \
            CFLAGS="-O2 -Wall -Wextra -Werror ${SANITIZE_FLAGS:-}"
    done
else
    skip "third-party plugins" "the command ctrt is not installed"
fi
finish
