/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/row_args.h: how kernels that work on rows divide them, and the host side of that. C and CUDA C++. */
#ifndef CUDA_ROW_ARGS_H
#define CUDA_ROW_ARGS_H

#define ROW_THREADS 256                     /* of a block whose warps have a row each, or of one that works on columns */
#define ROW_BLOCK_THREADS 512               /* of a block that has a row: one that waits leaves the multiprocessor to another */
#define ROW_REGISTERS 1024                  /* numbers of a row that a warp keeps in registers */

#endif
