#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cuBLASLt that the cuda backend selects, with the software driver: version 12 if 13 cannot be loaded, none if
# neither can, and none that lacks a function. The log reports each choice, and products are correct in each case. Empty
# files under the libraries' names keep the loader from finding other libraries of the machine.
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

# library NAME FILE: NAME becomes a link to FILE, or an empty file, which cannot be loaded, if FILE is "".
library() {
    rm -f "$folder/$1"
    if [ -n "$2" ]; then ln -s "$(cd "$soft" && pwd)/$2" "$folder/$1"; else : >"$folder/$1"; fi
}

# products WHAT WORDS...: the conformance checks of products pass, and the log contains each of WORDS.
products() {
    what=$1
    shift
    output=$(suite cuda:0 --op matmul --tags f32 2>&1) && bad= || bad="status $?: $(echo "$output" | tail -n 3)"
    for words; do
        echo "$output" | grep -qF "$words" || bad="$bad
the log lacks: $words
$(echo "$output" | grep -i cublas)"
    done
    check "$what" "$bad"
}

library libcublasLt.so.13 libcublasLt.so.13
library libcublasLt.so.12 cuda12/libcublasLt.so.12
products "version 13 is preferred" "matrix products by $folder/libcublasLt.so.13 (130002)"
library libcublasLt.so.13 ""
products "version 12 where 13 cannot be loaded" "matrix products by $folder/libcublasLt.so.12 (120805)"
library libcublasLt.so.12 ""
products "neither: built-in kernels, and a warning" "no cuBLASLt, so matrix products use built-in kernels" \
    "libcublasLt.so.13: file too short" "libcublasLt.so.12: file too short"
library libcublasLt.so.13 lacking/libcublasLt.so.13
products "a version that lacks a function is not used" "libcublasLt.so.13 lacks cublasLtMatmulAlgoCheck" "no cuBLASLt"
library libcublasLt.so.12 cuda12/libcublasLt.so.12
products "the other version is used instead" "matrix products by $folder/libcublasLt.so.12 (120805)"

# The folders of pip packages, which the loader does not search.
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
products "folders of CTRT_CUDA_LIBRARIES precede the loader's" \
    "matrix products by $site/cublas/lib/libcublasLt.so.12 (120805)"
output=$("$builddir/ctrt" check --device cuda:0 --op conv2d --tags f32 --skip-tags gradient 2>&1)
check "cuDNN is found there too" "$(
    echo "$output" | grep -qF "convolutions by $site/cudnn/lib/libcudnn.so.9 (91900)" ||
    echo "$output" | grep -i cudnn)"
CTRT_CUDA_LIBRARIES=own:$folder/own
products "a folder that contains the libraries; a relative path is not searched" \
    "matrix products by $folder/own/libcublasLt.so.13 (130002)"
library libcublasLt.so.13 ""
CTRT_CUDA_LIBRARIES=own:$folder/none
products "the log reports what was tried" "no cuBLASLt" \
    "CTRT_CUDA_LIBRARIES has own, which is not an absolute path; no libcublasLt.so.13 in $folder/none; " \
    "libcublasLt.so.13: file too short"
CTRT_CUDA_LIBRARIES=$folder/own
# The preloaded library precedes AddressSanitizer's runtime. The shell and grep also load both; their leaks are ignored.
preload=$site/cublas/lib/libcublasLt.so.12
export LD_PRELOAD ASAN_OPTIONS
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0:detect_leaks=0
LD_PRELOAD=$preload
products "a library that is already loaded is preferred to all" "matrix products by $preload (120805)"
unset LD_PRELOAD
finish
