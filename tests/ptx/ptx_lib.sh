# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: sets up the cuda backend of $PTX_PLUGIN, which nvcc has built, with the interpreter of
# PTX.

build=$(cd "$builddir" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. "$srcdir/tests/integration/checks.sh"

mkdir "$work/plugins"
cp "$build"/plugins-built/*.so "$build/.libs/backend-cuda-fp16.so" "$work/plugins/"
cp "$PTX_PLUGIN" "$work/plugins/backend-cuda.so" || { echo "Bail out! PTX_PLUGIN is \"$PTX_PLUGIN\""; exit 99; }
LD_LIBRARY_PATH=$build/tests/ptx${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$work/plugins
# For tests/unit/soft_begin.h: not the software driver. No libraries of a CUDA toolkit, which need a real driver.
CTRT_TEST_GPU=yes CTRT_CUDA_GEMM=builtin CTRT_CUDA_CONV=builtin
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH CTRT_TEST_GPU CTRT_CUDA_GEMM CTRT_CUDA_CONV
