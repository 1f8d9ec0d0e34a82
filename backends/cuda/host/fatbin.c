/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/fatbin.c: embeds the fat binaries that nvcc made from the .cu files. A build without nvcc embeds
 * empty ones; the software driver of the tests (tests/softcuda) has kernels of its own. local.mk defines one of the two
 * macros below. */
#include "fatbin.h"

#if defined(CUDA_FATBINS) && !defined(CUDA_WITHOUT_FATBINS)
#include "backends/cuda/kernels/fatbins-made.h"
/* The assembler rejects a file that is too short for a fat binary with one kernel. */
#define BYTES(name)                                                                                                   \
    ".incbin \"" CUDA_FATBINS "/" #name ".fatbin\"\n.if . - cuda_fatbin_begin_" #name                                  \
    " < 512\n.error \"" #name ".fatbin contains no kernel\"\n.endif\n"
#elif defined(CUDA_WITHOUT_FATBINS) && !defined(CUDA_FATBINS)
#define BYTES(name) ".byte 0\n"
#else
#error "define CUDA_FATBINS as the directory of the .fatbin files, or CUDA_WITHOUT_FATBINS in a build without nvcc"
#endif

#define FATBIN(file)                                                                                                  \
    __asm__(".pushsection .rodata\n.balign 64\n.global cuda_fatbin_begin_" #file                                      \
            "\n.hidden cuda_fatbin_begin_" #file "\ncuda_fatbin_begin_" #file ":\n"                                   \
            BYTES(file) ".global cuda_fatbin_end_" #file "\n.hidden cuda_fatbin_end_" #file                           \
            "\ncuda_fatbin_end_" #file ":\n.byte 0\n.popsection\n");                                                  \
    extern const unsigned char cuda_fatbin_begin_##file[], cuda_fatbin_end_##file[];                                  \
    struct cuda_fatbin cuda_fatbin_##file = { #file, cuda_fatbin_begin_##file, cuda_fatbin_end_##file, NULL };
#include "fatbin.def"
