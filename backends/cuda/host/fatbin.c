/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/fatbin.c: embeds the fat binaries that nvcc made from the .cu files. A build without nvcc embeds
 * empty ones; the software driver of the tests (tests/softcuda) has kernels of its own. */
#include "fatbin.h"

#ifdef CUDA_FATBINS                          /* directory of the .fatbin files */
#include "backends/cuda/kernels/fatbins-made.h"
#define BYTES(name) ".incbin \"" CUDA_FATBINS "/" #name ".fatbin\"\n"
#else
#define BYTES(name) ".byte 0\n"
#endif

#define FATBIN(file)                                                                                                  \
    __asm__(".pushsection .rodata\n.balign 64\n.global cuda_fatbin_begin_" #file                                      \
            "\n.hidden cuda_fatbin_begin_" #file "\ncuda_fatbin_begin_" #file ":\n"                                   \
            BYTES(file) ".global cuda_fatbin_end_" #file "\n.hidden cuda_fatbin_end_" #file                           \
            "\ncuda_fatbin_end_" #file ":\n.byte 0\n.popsection\n");                                                  \
    extern const unsigned char cuda_fatbin_begin_##file[], cuda_fatbin_end_##file[];                                  \
    struct cuda_fatbin cuda_fatbin_##file = { #file, cuda_fatbin_begin_##file, cuda_fatbin_end_##file, NULL };
#include "fatbin.def"
