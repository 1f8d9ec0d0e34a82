/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu.h: what the parts of bench-gpu share. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <ctrt/ctrt.h>

#include "timing.h"

extern ctrt_device *gpu;
extern bool gpu_small;                      /* sizes that a driver in software can run */
extern bool gpu_failed;                     /* a case failed: the program's exit status is 1 */

/* Ends the program with ctrt's message unless `status` is CTRT_OK: for errors that leave nothing to measure. */
void gpu_check(ctrt_status status);
/* Reports on stderr that the case `name` failed, with ctrt's message, unless `status` is CTRT_OK. Returns whether it is CTRT_OK. */
bool gpu_case(const char *name, ctrt_status status);
/* Does `name` match the pattern of only=? Asked before a case allocates its operands. */
bool gpu_wanted(const char *name);

typedef ctrt_status gpu_body(void *argument);
/* Writes the milliseconds that `times` runs take on the device. */
typedef ctrt_status gpu_batch(double *ms, void *argument, long times);

/* Measures batches of at least 2 ms and prints "NAME NANOSECONDS [BYTES]" with the median of one run; `bytes` 0 is not printed. A case that
 * fails is reported and the next one can be measured. */
void gpu_report(const char *name, gpu_batch *batch, void *argument, double bytes);
/* The same for ops of ctrt on the current stream. */
void gpu_measure(const char *name, gpu_body *body, void *argument, double bytes);

/* gpu_direct.c: the driver and cuBLAS without ctrt. A missing library is reported on stderr. `dtype`: "f32", "tf32", "f16", "bf16"; a, b: device
 * addresses of [m, k] and [k, n]; no work on them may be pending. */
void gpu_direct_copy(const char *name, size_t bytes);
void gpu_direct_product(int64_t m, int64_t n, int64_t k, const char *dtype, const char *name, const void *a, const void *b);

/* gpu_ops.c: forward, and forward with backward, of the ops of one section */
void gpu_attention(void);
void gpu_convolution(void);
void gpu_index(void);
void gpu_softmax(void);
void gpu_norms(void);
void gpu_cross_entropy(void);
void gpu_optimizers(void);
/* gpu_smoke.c: results of the device beside the cpu's */
void gpu_smoke(void);
/* gpu_steps.c */
void gpu_steps(void);
/* gpu_overlap.c: `trace`: a file for chrome://tracing or Perfetto, or NULL */
void gpu_overlap(const char *trace);

#endif
