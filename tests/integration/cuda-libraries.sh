#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Which cuBLASLt the cuda backend takes, over the driver in software: version 12 where 13 is not to be had, none where neither is, none that lacks a
# function; each told, and the products right all the same. Files that are no libraries keep the loader from finding others on the machine.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
soft=$builddir/tests/softcuda
folder=$(mktemp -d "${TMPDIR:-/tmp}/ctrt-libraries-XXXXXX") || exit 99
trap 'rm -rf "$folder"' EXIT
for file in libcuda.so.1 libsoftkernels.so libnvidia-ml.so.1 libcudnn.so.9; do
    ln -s "$(cd "$soft" && pwd)/$file" "$folder/$file"
done
LD_LIBRARY_PATH=$folder
CTRT_LOG=info
export LD_LIBRARY_PATH CTRT_LOG

# library NAME FILE: under that name lies FILE, or with "" what cannot be loaded.
library() {
    rm -f "$folder/$1"
    if [ -n "$2" ]; then ln -s "$(cd "$soft" && pwd)/$2" "$folder/$1"; else : >"$folder/$1"; fi
}

# products WHAT WORDS...: products conform, and the log has each of WORDS.
products() {
    what=$1
    shift
    said=$("$builddir/ctrt" check --device cuda:0 --op matmul --tags f32 2>&1)
    status=$?
    bad=$([ $status -eq 0 ] && echo "$said" | grep -q '^# [1-9][0-9]* passed, 0 failed' || { echo "status $status"; echo "$said" | tail -n 3; })
    for words; do
        echo "$said" | grep -qF "$words" || bad="$bad
the log lacks: $words
$(echo "$said" | grep -i cublas)"
    done
    check "$what" "$bad"
}

library libcublasLt.so.13 libcublasLt.so.13
library libcublasLt.so.12 cuda12/libcublasLt.so.12
products "version 13 goes first" "matrix products by $folder/libcublasLt.so.13 (130002)"
library libcublasLt.so.13 ""
products "version 12 where 13 cannot be loaded" "matrix products by $folder/libcublasLt.so.12 (120805)"
library libcublasLt.so.12 ""
products "neither: kernels of ctrt's own, and a warning" "no cuBLASLt, so matrix products take kernels of ctrt's own" "libcublasLt.so.13: file too short" \
    "libcublasLt.so.12: file too short"
library libcublasLt.so.13 lacking/libcublasLt.so.13
products "a version that lacks a function is not taken" "libcublasLt.so.13 lacks cublasLtMatmulAlgoCheck" "no cuBLASLt"
library libcublasLt.so.12 cuda12/libcublasLt.so.12
products "but the other is" "matrix products by $folder/libcublasLt.so.12 (120805)"

# As pip lays them, in folders that the loader does not search.
site=$folder/site-packages/nvidia
mkdir -p "$site/cublas/lib" "$site/cudnn/lib" "$folder/own"
ln -s "$(cd "$soft" && pwd)/cuda12/libcublasLt.so.12" "$site/cublas/lib/libcublasLt.so.12"
ln -s "$(cd "$soft" && pwd)/libcudnn.so.9" "$site/cudnn/lib/libcudnn.so.9"
ln -s "$(cd "$soft" && pwd)/libcublasLt.so.13" "$folder/own/libcublasLt.so.13"
library libcublasLt.so.13 libcublasLt.so.13
library libcublasLt.so.12 ""
library libcudnn.so.9 ""
CTRT_CUDA_LIBRARIES=$folder/none:$site
export CTRT_CUDA_LIBRARIES
products "folders that are named go before what the loader finds" "matrix products by $site/cublas/lib/libcublasLt.so.12 (120805)"
said=$("$builddir/ctrt" check --device cuda:0 --op conv2d --tags f32 --skip-tags gradient 2>&1)
check "cuDNN is found there too" "$(echo "$said" | grep -qF "convolutions by $site/cudnn/lib/libcudnn.so.9 (91900)" || echo "$said" | grep -i cudnn)"
CTRT_CUDA_LIBRARIES=own:$folder/own
products "the libraries' own folder; one that is no absolute path is not searched" "matrix products by $folder/own/libcublasLt.so.13 (130002)"
library libcublasLt.so.13 ""
CTRT_CUDA_LIBRARIES=own:$folder/none
products "what was tried is said" "no cuBLASLt" "CTRT_CUDA_LIBRARIES has own, which is not an absolute path; no libcublasLt.so.13 in $folder/none; " \
    "libcublasLt.so.13: file too short"
CTRT_CUDA_LIBRARIES=$folder/own
# A preloaded library precedes the address sanitizer's runtime, and the shell and grep load both, whose leaks are not ours.
preload=$site/cublas/lib/libcublasLt.so.12
export LD_PRELOAD ASAN_OPTIONS
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0:detect_leaks=0
LD_PRELOAD=$preload
products "a library that is loaded already goes first of all" "matrix products by $preload (120805)"
unset LD_PRELOAD
finish
