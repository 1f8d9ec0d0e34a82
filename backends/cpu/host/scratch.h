/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/scratch.h: per-thread workspace that is kept between kernel calls. */
#ifndef CTRT_CPU_SCRATCH_H
#define CTRT_CPU_SCRATCH_H

#include <stddef.h>

/* Each use has a buffer of its own, so that one kernel may call another. */
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

/* Returns at least `bytes` of memory that belongs to the calling thread, aligned to 64 bytes, with undefined contents.
 * Valid until the same thread calls again with the same `use`. Returns NULL if there is no memory; the caller then
 * returns cpu_no_scratch(). */
void *cpu_scratch(enum cpu_scratch use, size_t bytes);
/* Sets the error message for `op` and returns CTRT_ERR_OUT_OF_MEMORY. */
int cpu_no_scratch(const char *op, size_t bytes);

#endif
