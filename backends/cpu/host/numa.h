/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/numa.h: functions of numa.c that its tests call. */
#ifndef CTRT_CPU_NUMA_H
#define CTRT_CPU_NUMA_H

#include "cpu.h"

/* A set of processors or memory nodes: parsed from sysfs lists ("0-3,8"), passed as a bit mask to system calls. */
#define CPU_LIST_MOST  1024
#define CPU_LIST_WORD  (8 * sizeof(unsigned long))
#define CPU_LIST_WORDS (CPU_LIST_MOST / (8 * (int)sizeof(unsigned long)))
struct cpu_list {
    unsigned long bits[CPU_LIST_WORDS];
};

/* Parses the first line of `text`. Returns false if it is not a list or names an element of CPU_LIST_MOST or more; the
 * set then holds what could be read. */
bool cpu_list_parse(struct cpu_list *list, const char *text);
int cpu_list_count(const struct cpu_list *list);

/* Stores the nodes that have memory and that the cpuset allows. Returns false if the system does not report them or
 * there are none. */
bool cpu_numa_allowed(struct cpu_list *nodes);
/* Keeps the nodes to which at least one of the processors belongs, unless there are none. */
void cpu_numa_near(struct cpu_list *nodes, const struct cpu_list *processors);
/* Converts CTRT_NUMA=`text` to a mode and node set for mbind(2). The mode is MPOL_DEFAULT (call nothing) if only one
 * node is available. Errors: CTRT_ERR_INVALID_ARGUMENT. */
ctrt_status cpu_numa_choose(int *mode, struct cpu_list *nodes, const char *text, const struct cpu_list *processors);

#endif
