/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/cpu.h: what the rooms of the CPU backend share.
 *
 * Each op family is a file that ends in a table of rows; kernels.c joins the tables. Threads: one OpenMP pool, reached only
 * through cpu_parallel_for, so that thread count, affinity and fork are one file's business (threads.c). */
#ifndef CTRT_CPU_H
#define CTRT_CPU_H

#include "ctrt/plugin.h"

/* The host table, from init to the end of the process. */
extern const ctrt_host *cpu_host;

/* Sets of dtypes, for rows. */
#define CPU_F32      CTRT_DTYPE_BIT(CTRT_F32)
#define CPU_F64      CTRT_DTYPE_BIT(CTRT_F64)
#define CPU_F16      CTRT_DTYPE_BIT(CTRT_F16)
#define CPU_BF16     CTRT_DTYPE_BIT(CTRT_BF16)
#define CPU_FLOATING (CPU_F32 | CPU_F64 | CPU_F16 | CPU_BF16)
#define CPU_INTEGRAL                                                                                             \
    (CTRT_DTYPE_BIT(CTRT_I8) | CTRT_DTYPE_BIT(CTRT_U8) | CTRT_DTYPE_BIT(CTRT_I16) | CTRT_DTYPE_BIT(CTRT_I32)      \
     | CTRT_DTYPE_BIT(CTRT_I64))
#define CPU_BOOL     CTRT_DTYPE_BIT(CTRT_BOOL)
#define CPU_NUMBERS  (CPU_FLOATING | CPU_INTEGRAL)
#define CPU_ALL      (CPU_NUMBERS | CPU_BOOL)

/* a / b rounded up, for b > 0 and a >= 0; a + b - 1 could overflow. */
static inline int64_t cpu_divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Runs body(argument, begin, end) over pieces of [0, count), in parallel when count exceeds `grain` (the least that is
 * worth a thread), else in this thread. Nested calls run in the calling thread. */
void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end), void *argument);
/* How many threads cpu_parallel_for may use: CTRT_NUM_THREADS, else affinity mask and cgroup quota. */
int cpu_thread_count(void);
/* Could fewer threads be started than cpu_parallel_for may use? Libraries that start threads of their own are not called then, because
 * they end the process when that fails. */
bool cpu_threads_limited(void);
/* Around calls of libraries that open OpenMP regions of their own (oneDNN, BLAS): enter makes them use cpu_thread_count threads and
 * returns what leave restores. */
int cpu_threads_enter(void);
void cpu_threads_leave(int before);

/* The instruction sets of this CPU that kernels have versions for, best last. Chosen once, when the plugin is initialised;
 * CTRT_CPU_ISA lowers it. */
enum cpu_isa { CPU_ISA_BASELINE, CPU_ISA_AVX2, CPU_ISA_AVX512 };
enum cpu_isa cpu_isa(void);
/* Outputs of at least so many bytes are stored past the caches: the size of the last cache. */
size_t cpu_stream_bytes(void);

/* The families' tables. */
struct cpu_rows {
    const ctrt_kernel *rows;
    size_t count;
};
extern const struct cpu_rows cpu_copy_rows, cpu_elementwise_rows, cpu_reduce_rows, cpu_random_rows, cpu_matmul_rows, cpu_conv_rows,
    cpu_pool_rows, cpu_norm_rows, cpu_softmax_rows, cpu_index_rows, cpu_optim_rows;

#endif
