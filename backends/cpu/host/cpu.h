/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/cpu.h: declarations that the files of the CPU backend share.
 *
 * Each op family is a file that ends in a table of kernels; kernels.c joins the tables. cpu_parallel_for and oneDNN (by
 * libs/openmp.c) start parallel work, with the threads of host/team.c. Only threads.c handles the number of threads and
 * the affinity mask. */
#ifndef CTRT_CPU_H
#define CTRT_CPU_H

#include "ctrt/plugin.h"

/* The core's host table, set by the plugin's init and valid until the process ends. */
extern const ctrt_host *cpu_host;

/* Sets of dtypes, for the `dtypes` field of a kernel. */
#define CPU_F32      CTRT_DTYPE_BIT(CTRT_F32)
#define CPU_F64      CTRT_DTYPE_BIT(CTRT_F64)
#define CPU_F16      CTRT_DTYPE_BIT(CTRT_F16)
#define CPU_BF16     CTRT_DTYPE_BIT(CTRT_BF16)
#define CPU_FLOATING (CPU_F32 | CPU_F64 | CPU_F16 | CPU_BF16)
#define CPU_INTEGRAL                                                                                              \
    (CTRT_DTYPE_BIT(CTRT_I8) | CTRT_DTYPE_BIT(CTRT_U8) | CTRT_DTYPE_BIT(CTRT_I16) | CTRT_DTYPE_BIT(CTRT_I32)      \
     | CTRT_DTYPE_BIT(CTRT_I64))
#define CPU_BOOL     CTRT_DTYPE_BIT(CTRT_BOOL)
#define CPU_NUMBERS  (CPU_FLOATING | CPU_INTEGRAL)
#define CPU_ALL      (CPU_NUMBERS | CPU_BOOL)
#define CPU_DTYPES   (CTRT_BOOL + 1)        /* length of the tables of these dtypes */

/* Returns a / b rounded up, for b > 0 and a >= 0. (a + b - 1) / b could overflow. */
static inline int64_t cpu_divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Runs body(argument, begin, end) over consecutive ranges of [0, count). Uses several threads if count exceeds `grain`,
 * the minimum number of items per thread. Otherwise, or if called inside a parallel region, runs the whole range in the
 * calling thread. */
void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end),
                      void *argument);
/* Returns the number of threads that cpu_parallel_for may use: CTRT_NUM_THREADS if it is set, otherwise the number of
 * processors that the affinity mask and the cgroup's CPU quota allow. */
int cpu_thread_count(void);
/* Returns true if fewer threads can be started than cpu_parallel_for may use. Do not call libraries that start their
 * own threads in that case, because they end the process when a thread cannot be started. */
bool cpu_threads_limited(void);
/* Makes kernels that the calling thread runs use only this thread, or ends that. */
void cpu_threads_single(bool on);

/* Instruction sets for which kernels are compiled, in increasing order of preference. cpu_isa() returns the one that
 * the plugin's init selected: the best that the processor and the build have, or a lower one set by CTRT_CPU_ISA. */
enum cpu_isa { CPU_ISA_BASELINE, CPU_ISA_AVX2, CPU_ISA_AVX512 };
enum cpu_isa cpu_isa(void);
/* Returns the size of the last-level cache in bytes. Outputs of this size or larger use non-temporal stores. */
size_t cpu_stream_bytes(void);

/* A row of the kernel table. `data` is what only this kernel needs, such as the loop of an elementwise op for a dtype,
 * so that kernels share a run function. */
struct cpu_kernel {
    ctrt_kernel base;
    const void *data;
};
static inline const void *cpu_kernel_data(const ctrt_call *call)
{
    return ((const struct cpu_kernel *)call->kernel)->data;
}

/* The kernel tables of the op families. */
struct cpu_kernels {
    const struct cpu_kernel *kernels;
    size_t count;
};
extern const struct cpu_kernels cpu_copy_kernels, cpu_elementwise_kernels, cpu_reduce_kernels, cpu_random_kernels,
    cpu_matmul_kernels, cpu_conv_kernels, cpu_pool_kernels, cpu_norm_kernels, cpu_softmax_kernels, cpu_index_kernels,
    cpu_optim_kernels, cpu_amp_kernels;

#endif
