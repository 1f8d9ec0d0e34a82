#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/opencl, a backend outside of this tree, on pocl: it builds with what is installed, keeps the plugin ABI's
# contract, computes what it should, trains, and reports its errors. pocl compiles kernels at their first use and keeps
# them in ~/.cache/pocl; only the first run on a machine takes minutes.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# The backend needs the headers to build and a platform to run.
missing=
pkg-config --exists OpenCL 2>/dev/null || missing="no headers of OpenCL (ocl-icd-opencl-dev, opencl-headers)"
ls "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/pocl*.icd >/dev/null 2>&1 || missing="no pocl (pocl-opencl-icd)"
if [ -n "$missing" ]; then
    skip "examples/opencl" "$missing"
    finish
fi

# What an installed ctrt has in its lib/pkgconfig.
printf 'Name: ctrt-plugin\nDescription: headers\nVersion: 0\nCflags: -I%s/include\n' "$srcdir" >ctrt-plugin.pc
PKG_CONFIG_PATH=$work${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
mkdir -m 755 opencl && cp -R "$srcdir/examples/opencl/." opencl/ && chmod -R u+w,go-w opencl || exit 1
passes "the backend builds without warnings" ${MAKE:-make} -C opencl -B CFLAGS="-O2 -Wall -Wextra -Werror"
plugin=$work/opencl/backend-opencl.so
[ -e "$plugin" ] || finish

passes "the backend keeps the contract" "$builddir/ctrt" check --contract --timeout 100 "$plugin"
# One op of each kind: an expression, a reduction, products, rows, a queue's failure.
for op in sub sum linear conv2d log_softmax index_select; do
    passes "$op computes what the reference does" env CTRT_FALLBACK=error \
        "$builddir/ctrt" check --op "$op" --tags f32 --skip-tags gradient,gradient2 "$plugin"
done

CTRT_PLUGIN_PATH=$work/opencl:$builddir/plugins-built
export CTRT_PLUGIN_PATH
# trained DEVICE: prints the accuracy in hundredths of a percent.
trained() {
    "$builddir/example-digits" --data "$srcdir/examples/data/digits.csv" --model cnn --epochs 1 --device "$1" \
        >"$1.out" 2>&1 && sed -n 's/.* gets \([0-9]*\)\.\([0-9]*\) .*/\1\2/p' "$1.out"
}
here=$(trained opencl:0)
there=$(trained cpu:0)
[ "${here:-0}" -gt 9000 ] && [ "$here" -gt $((there - 150)) ] && [ "$here" -lt $((there + 150)) ]
result $? "a network trains on opencl:0 as on the cpu" "$here and $there hundredths of a percent
$(cat opencl:0.out cpu:0.out)"

# ---- errors: each is injected, and the message says what is wrong ----

# reports WORDS SETTING: `ctrt check` of the backend fails with these words.
reports() {
    ! output=$(env "$2" CTRT_FALLBACK=error "$builddir/ctrt" check --op neg --tags f32 "$plugin" 2>&1) &&
        echo "$output" | grep -qF -- "$1"
    result $? "with ${2%%=*}=${2##*/}: $1" "$output"
}
# A libOpenCL with a function that differs.
library() {
    { printf '#define CL_TARGET_OPENCL_VERSION 200\n#include <CL/cl.h>\n#include <stdlib.h>\n' && cat; } >"$1.c"
    ${CC:-cc} -fPIC -shared "$1.c" -o "$work/$1.so" -Wl,--no-as-needed -lOpenCL || not_ok "builds $1.so"
}
library lost <<END
cl_int clFinish(cl_command_queue q) { (void)q; return CL_DEVICE_NOT_AVAILABLE; }
END
library crash <<END
cl_int clGetPlatformIDs(cl_uint n, cl_platform_id *p, cl_uint *m) { (void)n; (void)p; (void)m; abort(); }
END
library none <<END
cl_int clGetPlatformIDs(cl_uint n, cl_platform_id *p, cl_uint *m) { (void)n; (void)p; *m = 0; return 0; }
END
library full <<END
void *clSVMAlloc(cl_context c, cl_svm_mem_flags f, size_t n, cl_uint a)
{
    (void)c, (void)f;
    return n < 4096 ? aligned_alloc(a, 4096) : NULL;
}
void clSVMFree(cl_context c, void *p) { (void)c; free(p); }
END
reports "no OpenCL platform is installed: $work has no file *.icd" OCL_ICD_VENDORS="$work"
reports "cannot open shared object file" CTRT_OPENCL_LIBRARY=/nowhere/libOpenCL.so
reports "there is no OpenCL platform" CTRT_OPENCL_LIBRARY="$work/none.so"
reports "the child that listed the devices crashed with SIGABRT" CTRT_OPENCL_LIBRARY="$work/crash.so"
reports "device lost" CTRT_OPENCL_LIBRARY="$work/lost.so"
reports "bytes, of which" CTRT_OPENCL_LIBRARY="$work/full.so"
reports "unknown type name 'nonsense'" CTRT_OPENCL_OPTIONS="-D kernel=nonsense"
finish
