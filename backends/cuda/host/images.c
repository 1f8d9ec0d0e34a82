/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/images.c: embeds the fat binaries that nvcc made from the .cu files. A build without nvcc embeds
 * empty images; the software driver of the tests (tests/softcuda) has kernels of its own. */
#include "images.h"

#ifdef CUDA_IMAGES                          /* directory of the .fatbin files */
#include "backends/cuda/kernels/images-made.h"
#define BYTES(name) ".incbin \"" CUDA_IMAGES "/" #name ".fatbin\"\n"
#else
#define BYTES(name) ".byte 0\n"
#endif

#define IMAGE(file)                                                                                                 \
    __asm__(".pushsection .rodata\n.balign 64\n.global cuda_image_begin_" #file                                     \
            "\n.hidden cuda_image_begin_" #file "\ncuda_image_begin_" #file ":\n"                                   \
            BYTES(file) ".global cuda_image_end_" #file "\n.hidden cuda_image_end_" #file                           \
            "\ncuda_image_end_" #file ":\n.byte 0\n.popsection\n");                                                 \
    extern const unsigned char cuda_image_begin_##file[], cuda_image_end_##file[];                                  \
    struct cuda_image cuda_image_##file = { #file, cuda_image_begin_##file, cuda_image_end_##file, NULL };
#include "images.def"
