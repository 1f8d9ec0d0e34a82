/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/numa.c: NUMA placement of large blocks.
 *
 * By default, Linux places a page on the node of the thread that first writes to it. This is suitable here, because
 * kernels divide loops among threads in the same way each time (threads.c), so that the thread that fills a part of a
 * tensor also processes it later. `interleave` is for data that all nodes read equally; a node number is for a process
 * that should stay on one node. Both are set with mbind(2) before the memory is touched. A requested node is only
 * preferred (MPOL_PREFERRED): if it is full, Linux uses other nodes. With MPOL_BIND, Linux would kill the process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"
#include "numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    int mode;                           /* MPOL_*; MPOL_DEFAULT: do not call mbind */
    struct cpu_list nodes;
} wanted;

bool cpu_list_parse(struct cpu_list *list, const char *text)
{
    memset(list, 0, sizeof *list);
    for (const char *at = text; *at >= '0' && *at <= '9';) {
        char *end = NULL;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < CPU_LIST_MOST; i++)
            list->bits[i / CPU_LIST_WORD] |= 1ul << i % CPU_LIST_WORD;
        if (last < first || last >= CPU_LIST_MOST)
            return false;
        at = *end == ',' ? end + 1 : end;
        if (*at == '\0' || *at == '\n')
            return true;
    }
    return *text == '\0' || *text == '\n';          /* a node without processors has an empty list */
}

int cpu_list_count(const struct cpu_list *list)
{
    int count = 0;
    for (int i = 0; i < CPU_LIST_WORDS; i++)
        count += __builtin_popcountl(list->bits[i]);
    return count;
}

static bool has(const struct cpu_list *list, unsigned long i)
{
    return i < CPU_LIST_MOST && (list->bits[i / CPU_LIST_WORD] >> i % CPU_LIST_WORD & 1);
}

static struct cpu_list both(const struct cpu_list *a, const struct cpu_list *b)
{
    struct cpu_list out;
    for (int i = 0; i < CPU_LIST_WORDS; i++)
        out.bits[i] = a->bits[i] & b->bits[i];
    return out;
}

static bool read_list(struct cpu_list *list, const char *path)
{
    char text[4096];
    return cpu_read_file(path, text, sizeof text) && cpu_list_parse(list, text);
}

/* Reads the cpuset's nodes: "Mems_allowed_list:\t0-1" in /proc/self/status. */
static bool read_allowed(struct cpu_list *list)
{
    static const char key[] = "\nMems_allowed_list:";
    char text[8192];
    if (!cpu_read_file("/proc/self/status", text, sizeof text))
        return false;
    const char *line = strstr(text, key);
    if (!line)
        return false;
    line += sizeof key - 1;
    return cpu_list_parse(list, line + strspn(line, " \t"));
}

bool cpu_numa_allowed(struct cpu_list *nodes)
{
    struct cpu_list allowed;
    if (!read_list(nodes, "/sys/devices/system/node/has_memory")
        && !read_list(nodes, "/sys/devices/system/node/online"))
        return false;
    if (read_allowed(&allowed))
        *nodes = both(nodes, &allowed);
    return cpu_list_count(nodes) > 0;
}

/* Reads the processors of `node`; returns false if the node does not exist. */
static bool node_processors(struct cpu_list *list, unsigned long node)
{
    char path[80];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%lu/cpulist", node);
    return read_list(list, path);
}

void cpu_numa_near(struct cpu_list *nodes, const struct cpu_list *processors)
{
    struct cpu_list near = { { 0 } };
    for (unsigned long node = 0; node < CPU_LIST_MOST; node++) {
        struct cpu_list here;
        if (!has(nodes, node) || !node_processors(&here, node))
            continue;
        here = both(&here, processors);
        if (cpu_list_count(&here) > 0)
            near.bits[node / CPU_LIST_WORD] |= 1ul << node % CPU_LIST_WORD;
    }
    if (cpu_list_count(&near) > 0)
        *nodes = near;
}

/* Stores the affinity mask of the calling thread; all processors if the kernel's mask does not fit. */
static void own_processors(struct cpu_list *list)
{
    memset(list, 0, sizeof *list);
    if (syscall(SYS_sched_getaffinity, 0, sizeof list->bits, list->bits) < 0)
        memset(list, 0xff, sizeof *list);
}

int32_t cpu_numa_node(void)
{
    struct cpu_list mine, online, here, inside;
    own_processors(&mine);
    if (!read_list(&online, "/sys/devices/system/node/online"))
        return -1;
    for (unsigned long node = 0; node < CPU_LIST_MOST; node++) {
        if (!has(&online, node) || !node_processors(&here, node))
            continue;
        inside = both(&here, &mine);
        if (memcmp(&inside, &mine, sizeof mine) == 0)
            return (int32_t)node;
    }
    return -1;
}

/* Formats a set as in "0-3,8". */
static void list_text(char *out, size_t bytes, const struct cpu_list *list)
{
    size_t used = 0;
    out[0] = '\0';
    for (unsigned long i = 0, last; i < CPU_LIST_MOST && used < bytes; i = last + 1) {
        last = i;
        if (!has(list, i))
            continue;
        while (has(list, last + 1))
            last++;
        used += (size_t)snprintf(out + used, bytes - used, last > i ? "%s%lu-%lu" : "%s%lu", used ? "," : "", i, last);
    }
}

ctrt_status cpu_numa_choose(int *mode, struct cpu_list *nodes, const char *text, const struct cpu_list *processors)
{
    char *end = NULL, listed[256];
    *mode = MPOL_DEFAULT;
    if (strcmp(text, "local") == 0)
        return CTRT_OK;
    bool interleave = strcmp(text, "interleave") == 0, known = cpu_numa_allowed(nodes);
    unsigned long node = 0;
    if (!interleave) {
        if (text[0] < '0' || text[0] > '9' || (node = strtoul(text, &end, 10), *end))
            return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT,
                                  "CTRT_NUMA is \"%s\"; it must be local, interleave, or the number of a "
                                  "memory node", text);
        if (known ? !has(nodes, node) : node != 0) {
            if (known)
                list_text(listed, sizeof listed, nodes);
            return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT,
                                  "CTRT_NUMA is %s, but the memory nodes that this process may use are %s",
                                  text, known ? listed : "0 alone");
        }
    }
    if (!known || cpu_list_count(nodes) < 2)
        return CTRT_OK;
    if (interleave) {
        cpu_numa_near(nodes, processors);
        *mode = cpu_list_count(nodes) > 1 ? MPOL_INTERLEAVE : MPOL_DEFAULT;
    } else {
        memset(nodes, 0, sizeof *nodes);
        nodes->bits[node / CPU_LIST_WORD] = 1ul << node % CPU_LIST_WORD;
        *mode = MPOL_PREFERRED;
    }
    return CTRT_OK;
}

ctrt_status cpu_numa_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_NUMA", .type = CTRT_PARAM_STRING, .fallback = "local",
        .help = "NUMA nodes of large host blocks: local (node of the thread that first writes), interleave, or a node "
                "number",
    };
    ctrt_param_value value;
    CTRT_TRY(cpu_host->param(&value, &param));
    struct cpu_list mine;
    own_processors(&mine);
    return cpu_numa_choose(&wanted.mode, &wanted.nodes, value.text, &mine);
}

void cpu_numa_place(void *address, size_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (wanted.mode == MPOL_DEFAULT)
        return;
    /* The kernel ignores the last bit of the given mask size, so pass one bit more. */
    if (syscall(SYS_mbind, address, bytes, wanted.mode, wanted.nodes.bits, (unsigned long)CPU_LIST_MOST + 1, 0u) != 0
        && !atomic_flag_test_and_set(&said))
        cpu_host->log(CTRT_LOG_WARNING, "backend-cpu", "CTRT_NUMA has no effect: mbind: %s", strerror(errno));
}
