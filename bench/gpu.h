/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu.h: what the parts of bench-gpu share. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <ctrt/ctrt.h>

#include "timing.h"

extern ctrt_device *gpu;
extern bool gpu_small;                      /* sizes that a driver in software can do */

/* Ends the program with ctrt's message unless `status` is CTRT_OK. */
void gpu_check(ctrt_status status);

typedef void gpu_body(void *argument);
/* The milliseconds that `times` runs take on the device. */
typedef double gpu_batch(void *argument, long times);

/* Prints "NAME NANOSECONDS BYTES" for one run, the median of batches of at least 2 ms, and returns the nanoseconds; bytes 0: not told. */
double gpu_report(const char *name, gpu_batch *batch, void *argument, double bytes);
/* The same for ops of ctrt on the current stream. */
double gpu_measure(const char *name, gpu_body *body, void *argument, double bytes);

/* gpu_direct.c: the driver and cuBLAS without ctrt. What is missing is said on stderr. `dtype`: "f32", "tf32", "f16", "bf16"; a, b: on the device,
 * [m, k] and [k, n], with no work left on them. */
void gpu_direct_copy(const char *name, size_t bytes);
void gpu_direct_product(int64_t m, int64_t n, int64_t k, const char *dtype, const char *name, const void *a, const void *b);

/* gpu_steps.c */
void gpu_steps(void);
/* gpu_overlap.c: trace: a file for chrome://tracing or Perfetto; NULL: none. */
void gpu_overlap(const char *trace);

#endif
