# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: sets up the cuda backend of $PTX_PLUGIN, which nvcc has built, with the interpreter of
# PTX.

build=$(cd "$builddir" && pwd)
plugins=$build/ptx-plugins
. "$srcdir/tests/integration/checks.sh"

# One of the tests that run at the same time makes the folder.
if mkdir "$plugins.$$"; then
    cp "$build"/plugins-built/*.so "$plugins.$$/" && cp "$PTX_PLUGIN" "$plugins.$$/backend-cuda.so" ||
        { echo "Bail out! no plugin: PTX_PLUGIN is \"$PTX_PLUGIN\""; exit 99; }
fi
trap 'rm -rf "$plugins.$$"' EXIT
LD_LIBRARY_PATH=$build/tests/ptx${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$plugins.$$
CTRT_TEST_GPU=yes                       # for tests/unit/soft_begin.h: not the software driver
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH CTRT_TEST_GPU
