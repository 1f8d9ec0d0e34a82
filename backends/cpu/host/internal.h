/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/internal.h: the backend's tables, the init functions that plugin.c calls, and memory management. */
#ifndef CTRT_CPU_INTERNAL_H
#define CTRT_CPU_INTERNAL_H

#include "cpu.h"

extern const ctrt_device_table cpu_device_table;
extern const ctrt_memory_table cpu_memory_table;
extern ctrt_kernel_table cpu_kernel_table;       /* kernels.c fills in the kernels at init */

/* Each reads its parameters. The plugin's init calls them in this order. */
ctrt_status cpu_isa_init(void);
ctrt_status cpu_threads_init(void);
ctrt_status cpu_limits_init(void);
ctrt_status cpu_numa_init(void);
ctrt_status cpu_pages_init(void);
ctrt_status cpu_gemm_init(void);
ctrt_status cpu_kernels_init(void);

/* Returns the number of processors that the affinity mask and the cgroup's CPU quota allow this process; at least 1. */
int cpu_allowed_processors(void);

/* limits.c: how much memory this process can use. */
struct cpu_memory_limits {
    uint64_t total;             /* bytes: the minimum of the machine's memory, the control groups' limits and RLIMIT_AS;
                                 * 0 if unknown */
    uint64_t free;              /* bytes free under the tightest of these limits */
    uint64_t grantable;         /* upper bound in bytes of any allocation that can succeed; UINT64_MAX if unknown */
    char bound[160];            /* limit that sets `grantable`: "machine", "control group /a/b" */
    uint64_t limit, used, swap; /* bytes: that limit, its used and not reclaimable part, the machine's free swap */
    uint64_t untouched;         /* bytes allocated by this backend that have not been written to yet */
};
void cpu_memory_limits(struct cpu_memory_limits *limits);
uint64_t cpu_memory_total(void);

/* Call cpu_memory_grant before mapping a large block. It counts the block as granted, or returns CTRT_ERR_OUT_OF_MEMORY
 * with the current numbers in the message. Call cpu_memory_returned after unmapping the block, or if mapping it
 * failed. */
ctrt_status cpu_memory_grant(size_t bytes);
void cpu_memory_returned(size_t bytes);
/* Returns the bytes that are granted and not returned. */
uint64_t cpu_memory_out(void);
/* Returns CTRT_ERR_OUT_OF_MEMORY with the current numbers in the message. `why`: the reason, e.g. the text of errno. */
ctrt_status cpu_memory_refuse(size_t bytes, const char *why);

/* numa.c: sets the memory policy of a fresh mapping as CTRT_NUMA requires. */
void cpu_numa_place(void *address, size_t bytes);
/* Returns the NUMA node that contains all processors that the calling thread may use, or -1 if there is none. */
int32_t cpu_numa_node(void);

/* pages.c: blocks of at least CPU_MAPPED_FROM bytes, aligned to 2 MiB, in huge pages if CTRT_HUGE_PAGES allows. */
#define CPU_MAPPED_FROM ((size_t)2 << 20)
ctrt_status cpu_pages_map(void **address, size_t bytes);
void cpu_pages_unmap(void *address, size_t bytes);

/* pinned.c: page-locked host memory for copies to and from other devices, locked up to RLIMIT_MEMLOCK. */
ctrt_status cpu_pinned_alloc(void *device, void **address, size_t bytes);
void cpu_pinned_free(void *device, void *address, size_t bytes);

/* cgroup.c: lists the control groups with a memory limit, from this process's own up to the root. Returns how many. */
#define CPU_MEMORY_GROUPS 16
struct cpu_memory_group {
    char name[128];
    uint64_t max, high;         /* limits in bytes; UINT64_MAX if none */
    uint64_t used, reclaimable; /* bytes in use, and how many of them the kernel can reclaim */
    uint64_t swap_left;         /* bytes; UINT64_MAX if only the machine's swap limits it */
};
int cpu_cgroup_memory(struct cpu_memory_group groups[CPU_MEMORY_GROUPS]);
/* Returns the smallest CPU quota (quota divided by period) of the control groups, in processors; 0 without a quota. */
double cpu_cgroup_cpus(void);

/* Prefix of the paths of all /proc and /sys files that the backend reads: "", or a recorded directory tree in tests. */
extern const char *cpu_root;
/* Reads at most bytes-1 bytes of the file at `path` into `buffer` and adds a terminating NUL. Returns false if the file
 * cannot be read or is empty. */
bool cpu_read_file(const char *path, char *buffer, size_t bytes);

#endif
