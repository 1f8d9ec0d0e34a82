/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/internal.h: what plugin.c joins: the tables of the backend and the beginnings of its rooms. */
#ifndef CTRT_CPU_INTERNAL_H
#define CTRT_CPU_INTERNAL_H

#include "cpu.h"

extern const ctrt_device_table cpu_device_table;
extern const ctrt_memory_table cpu_memory_table;
extern ctrt_kernel_table cpu_kernel_table;       /* rows are joined at init */

/* Each reads its parameters; called by the plugin's init, in this order. */
ctrt_status cpu_isa_init(void);
ctrt_status cpu_threads_init(void);
ctrt_status cpu_gemm_init(void);
ctrt_status cpu_kernels_init(void);

/* How many processors the affinity mask and the cgroup's quota leave to this process; at least 1. */
int cpu_allowed_processors(void);

/* The machine's memory in bytes, or the cgroup's limit where that is less; 0 when unknown. And what of it is free. */
uint64_t cpu_memory_total(void);
uint64_t cpu_memory_free(void);

/* The least value that a cgroup above or at this process sets in `file`: v2 by its unified path, v1 by
 * `controller`. cpu_cgroup_memory: bytes, UINT64_MAX without a limit; *used receives what the limiting group uses.
 * cpu_cgroup_cpus: processors (quota by period), 0 without a quota. */
uint64_t cpu_cgroup_memory(uint64_t *used);
double cpu_cgroup_cpus(void);

/* Reads at most bytes-1 of the file at `path` into `buffer` and terminates it; false when it cannot be read. */
bool cpu_read_file(const char *path, char *buffer, size_t bytes);

#endif
