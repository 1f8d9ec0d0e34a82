/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/fatbin.h: the fat binaries embedded in this plugin, one per .cu file. */
#ifndef CUDA_FATBIN_H
#define CUDA_FATBIN_H

#include "cuda.h"

#define FATBIN(file) extern struct cuda_fatbin cuda_fatbin_##file;
#include "fatbin.def"
#undef FATBIN

/* Loads all fat binaries that are not loaded yet. Ignores failures: the first launch from such a fat binary tries again
 * and reports the error. */
void cuda_fatbins_load(struct cuda_device *device);

#endif
