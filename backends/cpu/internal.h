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
ctrt_status cpu_limits_init(void);
ctrt_status cpu_numa_init(void);
ctrt_status cpu_pages_init(void);
ctrt_status cpu_gemm_init(void);
ctrt_status cpu_kernels_init(void);

/* How many processors the affinity mask and the cgroup's quota leave to this process; at least 1. */
int cpu_allowed_processors(void);

/* limits.c: how much memory there is for this process. */
struct cpu_memory_room {
    uint64_t total;             /* the least of the machine's memory, the control groups' limits and RLIMIT_AS; 0: unknown */
    uint64_t free;              /* the least that any of these leaves */
    uint64_t grantable;         /* more than this cannot be had whatever happens; UINT64_MAX: unknown */
    char bound[160];            /* who sets that bound: "machine", "control group /a/b"; and by which figures: */
    uint64_t limit, used, swap;
    uint64_t untouched;         /* handed out by this backend and not written to yet */
};
void cpu_memory_room(struct cpu_memory_room *room);
uint64_t cpu_memory_total(void);

/* Before a large block is mapped: counts it, or refuses with CTRT_ERR_OUT_OF_MEMORY and figures. After it is unmapped, or could
 * not be mapped: */
ctrt_status cpu_memory_grant(size_t bytes);
void cpu_memory_returned(size_t bytes);
/* Bytes of such blocks that are out. */
uint64_t cpu_memory_out(void);
/* CTRT_ERR_OUT_OF_MEMORY with figures; `why`: what the system said. */
ctrt_status cpu_memory_refuse(size_t bytes, const char *why);

/* numa.c: places a fresh mapping as CTRT_NUMA says. */
void cpu_numa_place(void *address, size_t bytes);
/* The node in which all processors lie that this process may use, or -1. */
int32_t cpu_numa_node(void);

/* pages.c: blocks of CPU_MAPPED_FROM bytes and more, on boundaries of 2 MiB, in huge pages where CTRT_HUGE_PAGES allows. */
#define CPU_MAPPED_FROM ((size_t)2 << 20)
ctrt_status cpu_pages_map(void **address, size_t bytes);
void cpu_pages_unmap(void *address, size_t bytes);

/* pinned.c: memory for copies of other devices, kept in memory where RLIMIT_MEMLOCK allows. */
ctrt_status cpu_pinned_alloc(void *device, void **address, size_t bytes);
void cpu_pinned_free(void *device, void *address, size_t bytes);

/* cgroup.c: the control groups with a memory limit, from this process's own upward; returns how many. */
#define CPU_MEMORY_GROUPS 16
struct cpu_memory_group {
    char name[128];
    uint64_t max, high;         /* bytes; UINT64_MAX: none */
    uint64_t used, reclaimable; /* of used */
    uint64_t swap_left;         /* UINT64_MAX: as much as the machine has */
};
int cpu_cgroup_memory(struct cpu_memory_group groups[CPU_MEMORY_GROUPS]);
/* Processors that a control group allows (quota by period), 0 without a quota. */
double cpu_cgroup_cpus(void);

/* Put before the path of every file of /proc and /sys that is read here; "" but in tests, which have recorded trees. */
extern const char *cpu_root;
/* Reads at most bytes-1 of the file at `path` into `buffer` and terminates it; false when it cannot be read. */
bool cpu_read_file(const char *path, char *buffer, size_t bytes);

#endif
