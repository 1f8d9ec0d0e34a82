/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/row_args.h: launch sizes of the kernels that process rows. C and CUDA C++. */
#ifndef CUDA_ROW_ARGS_H
#define CUDA_ROW_ARGS_H

#define ROW_THREADS 256                     /* block size for one row per warp, and for the columns kernels */
/* block size for one row per block; small enough for two resident blocks, so that one runs while the other waits at a
 * barrier */
#define ROW_BLOCK_THREADS 512
#define ROW_REGISTERS 1024                  /* elements of a row that a warp keeps in registers */

#endif
