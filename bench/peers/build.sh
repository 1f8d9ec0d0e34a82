#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the libtorch programs of this folder with the headers and libraries of a Python interpreter's torch package
# (`pip install torch`).
#
#   bench/peers/build.sh [PYTHON] [OUTPUT FOLDER]         defaults: python3, the current folder
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
python=${1:-python3}
out=${2:-.}
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))') || {
    echo "build.sh: $python has no torch; try: python3 -m venv v && v/bin/pip install torch && $0 v/bin/python" >&2
    exit 1
}
abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
# The CUDA libraries of a wheel are in the folder nvidia next to torch.
nvidia=$(for d in "$torch"/../nvidia/*/lib; do [ ! -d "$d" ] || printf ' -Wl,-rpath,%s' "$d"; done)
for program in overhead_torch train_torch; do
    # shellcheck disable=SC2086
    ${CXX:-g++} -O2 -std=c++20 -w -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$torch/include" \
        -I"$torch/include/torch/csrc/api/include" "$here/$program.cpp" -o "$out/$program" \
        -L"$torch/lib" -Wl,-rpath,"$torch/lib" $nvidia -Wl,--disable-new-dtags \
        -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -Wl,--as-needed
    echo "$out/$program"
done
