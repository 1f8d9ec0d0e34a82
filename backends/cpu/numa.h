/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/numa.h: what numa.c shows to its tests. */
#ifndef CTRT_CPU_NUMA_H
#define CTRT_CPU_NUMA_H

#include "cpu.h"

/* A set of processors or of memory nodes, as sysfs lists them ("0-3,8") and as the kernel's calls take them. */
#define CPU_LIST_MOST  1024
#define CPU_LIST_WORD  (8 * sizeof(unsigned long))
#define CPU_LIST_WORDS (CPU_LIST_MOST / (8 * (int)sizeof(unsigned long)))
struct cpu_list {
    unsigned long bits[CPU_LIST_WORDS];
};

/* False when the text is no list, or names more than fits; what could be read is in the set. Ends at the line's end. */
bool cpu_list_parse(struct cpu_list *list, const char *text);
int cpu_list_count(const struct cpu_list *list);

/* The nodes that have memory and that the cpuset allows; false when the system does not say. */
bool cpu_numa_allowed(struct cpu_list *nodes);
/* Keeps the nodes to which one of the processors belongs, unless that would leave none. */
void cpu_numa_near(struct cpu_list *nodes, const struct cpu_list *processors);
/* What CTRT_NUMA=`text` means here: a mode of mbind(2) and its nodes. MPOL_DEFAULT, and nothing to do, on one node. */
ctrt_status cpu_numa_choose(int *mode, struct cpu_list *nodes, const char *text, const struct cpu_list *processors);

#endif
