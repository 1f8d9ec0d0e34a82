/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/images.h: the fat binaries embedded in this plugin, one per .cu file. */
#ifndef CUDA_IMAGES_H
#define CUDA_IMAGES_H

#include "cuda.h"

#define IMAGE(file) extern struct cuda_image cuda_image_##file;
#include "images.def"
#undef IMAGE

/* Loads all fat binaries that are not loaded yet. Ignores failures: the first launch from such an image tries again and
 * reports the error. */
void cuda_images_load(struct cuda_device *device);

#endif
