/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu.h: shared by the source files of bench-gpu. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <ctrt/ctrt.h>

#include "timing.h"

extern ctrt_device *gpu;
extern bool gpu_small;                      /* use sizes that a software driver can run */
extern bool gpu_failed;                     /* a case failed, so the program's exit status is 1 */

/* Unless `status` is CTRT_OK, prints ctrt's message and ends the program: for errors that make every measurement
 * impossible. */
void gpu_check(ctrt_status status);
/* Unless `status` is CTRT_OK, reports on stderr that the case `name` failed, with ctrt's message. Returns whether
 * `status` is CTRT_OK. */
bool gpu_case(const char *name, ctrt_status status);
/* Returns whether `name` matches the pattern of only=. Call it before a case allocates its operands. */
bool gpu_wanted(const char *name);

typedef ctrt_status gpu_body(void *argument);
/* Writes the device time of `times` runs, in milliseconds. */
typedef ctrt_status gpu_batch(double *ms, void *argument, long times);

/* Measures batches of at least 2 ms and prints "NAME NANOSECONDS [BYTES]" with the median of one run; `bytes` 0 is not
 * printed. Reports a case that fails and returns, so that the next one can be measured. */
void gpu_report(const char *name, gpu_batch *batch, void *argument, double bytes);
/* Like gpu_report, for ops of ctrt on the current stream. */
void gpu_measure(const char *name, gpu_body *body, void *argument, double bytes);

/* gpu_direct.c: direct calls of the driver and of cuBLAS. A missing library is reported on stderr. `dtype`: "f32",
 * "tf32", "f16", "bf16"; a, b: device addresses of [m, k] and [k, n], with no pending work. */
void gpu_direct_copy(const char *name, size_t bytes);
void gpu_direct_product(int64_t m, int64_t n, int64_t k, const char *dtype, const char *name, const void *a,
                        const void *b);

/* gpu_ops.c: forward, and forward with backward, of the ops of one section */
void gpu_attention(void);
void gpu_convolution(void);
void gpu_index(void);
void gpu_softmax(void);
void gpu_norms(void);
void gpu_cross_entropy(void);
void gpu_optimizers(void);
/* gpu_smoke.c: compares the device's results with those of the cpu */
void gpu_smoke(void);
/* gpu_steps.c */
void gpu_steps(void);
/* gpu_overlap.c: `trace`: a file for chrome://tracing or Perfetto, or NULL */
void gpu_overlap(const char *trace);

#endif
