/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/scratch.h: working memory that a thread keeps between kernels. */
#ifndef CTRT_CPU_SCRATCH_H
#define CTRT_CPU_SCRATCH_H

#include <stddef.h>

/* Each use has memory of its own, so that a kernel may call another. */
enum cpu_scratch {
    SCRATCH_GEMM_A,
    SCRATCH_GEMM_B,
    SCRATCH_CONV,
    SCRATCH_ROW,
    SCRATCH_WIDE_A,
    SCRATCH_WIDE_B,
    SCRATCH_WIDE_C,
    SCRATCH_LIBRARY,
    SCRATCH_COUNT
};

/* At least `bytes`, aligned to 64, of this thread; valid until the thread asks again with the same use. Contents
 * are undefined. NULL when there is no memory: the caller says so with cpu_no_scratch. */
void *cpu_scratch(enum cpu_scratch use, size_t bytes);
/* Sets the message of CTRT_ERR_OUT_OF_MEMORY and returns that status. */
int cpu_no_scratch(const char *op, size_t bytes);

#endif
