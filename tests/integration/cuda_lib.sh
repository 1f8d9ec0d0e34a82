# SPDX-License-Identifier: Apache-2.0
# Sourced after tests/lib.sh: sets up the cuda backend with the software driver (tests/softcuda).

build=$(cd "$builddir" && pwd)
LD_LIBRARY_PATH=$build/tests/softcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CTRT_PLUGIN_PATH=$build/softcuda-plugins
SOFTCUDA=devices=2,memory=256m,streams=error
export LD_LIBRARY_PATH CTRT_PLUGIN_PATH SOFTCUDA
. "$srcdir/tests/integration/checks.sh"
