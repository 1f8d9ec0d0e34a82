/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/images.h: the fat binaries in this plugin, one a .cu file. */
#ifndef CUDA_IMAGES_H
#define CUDA_IMAGES_H

#include "cuda.h"

#define IMAGE(file) extern struct cuda_image cuda_image_##file;
#include "images.def"
#undef IMAGE

/* Loads all that is not loaded yet; what fails says so when it is used. */
void cuda_images_load(struct cuda_device *device);

#endif
