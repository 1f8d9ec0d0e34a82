/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/images.c: the fat binaries that nvcc made of the .cu files, as bytes of this plugin. A build without nvcc (for tests over a
 * driver in software, which has its own kernels) has empty ones. */
#include "images.h"

#ifdef CUDA_IMAGES                          /* the folder where they are */
#include "backends/cuda/images-made.h"
#define BYTES(name) ".incbin \"" CUDA_IMAGES "/" #name ".fatbin\"\n"
#else
#define BYTES(name) ".byte 0\n"
#endif

#define IMAGE(file)                                                                                                 \
    __asm__(".pushsection .rodata\n.balign 64\n.global cuda_image_begin_" #file "\n.hidden cuda_image_begin_" #file "\ncuda_image_begin_" #file ":\n" \
            BYTES(file) ".global cuda_image_end_" #file "\n.hidden cuda_image_end_" #file "\ncuda_image_end_" #file ":\n.byte 0\n.popsection\n"); \
    extern const unsigned char cuda_image_begin_##file[], cuda_image_end_##file[];                                  \
    struct cuda_image cuda_image_##file = { #file, cuda_image_begin_##file, cuda_image_end_##file, NULL };
#include "images.def"
