/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/cgroup.c: the limits that control groups impose on this process.
 *
 * Kernel documentation: admin-guide/cgroup-v2.rst (cpu.max, memory.max, memory.high, memory.current, memory.stat) and
 * cgroup-v1/memory.rst. The limits of all ancestor groups also apply. */
#include "internal.h"
#include "plugins/common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *cpu_root = "";

bool cpu_read_file(const char *path, char *buffer, size_t bytes)
{
    char full[2048];
    if ((size_t)snprintf(full, sizeof full, "%s%s", cpu_root, path) >= sizeof full)
        return false;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    const int fd = CTRT_PLUGIN_DESCRIPTOR(cpu_host, open(full, O_RDONLY | O_CLOEXEC));
    const size_t used = file_read(fd, buffer, bytes);
    if (fd >= 0)
        close(fd);
    pthread_setcancelstate(cancel, NULL);
    return used > 0;
}

/* Stores the path of this process's group in the hierarchy of `controller` ("" is v2's single hierarchy). Returns false
 * if there is none. */
static bool own_group(char *path, size_t bytes, const char *controller)
{
    char text[4096];
    if (!cpu_read_file("/proc/self/cgroup", text, sizeof text))
        return false;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ':');            /* v1: "4:cpu,cpuacct:/path"; v2: "0::/path" */
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        char *more = NULL;
        bool found = !*controller && !names[1];
        for (char *name = strtok_r(names + 1, ",", &more); name && *controller; name = strtok_r(NULL, ",", &more))
            found |= strcmp(name, controller) == 0;
        if (found)
            return (size_t)snprintf(path, bytes, "%s", group) < bytes;
    }
    return false;
}

/* Calls visit(contents of `file`, directory, argument) for each group from this process's own up to the root of the
 * hierarchy mounted at `mount`. */
static void each_group(const char *mount, const char *controller, const char *file,
                       void (*visit)(const char *text, const char *folder, void *argument), void *argument)
{
    char group[1024], folder[1100], path[1200], text[128];
    if (!own_group(group, sizeof group, controller))
        return;
    for (;;) {
        if (strcmp(group, "/") == 0)
            group[0] = '\0';
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        snprintf(path, sizeof path, "%s/%s", folder, file);
        if (cpu_read_file(path, text, sizeof text))
            visit(text, folder, argument);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* ---- memory ---- */

struct groups {
    struct cpu_memory_group *list;
    int count;
    size_t mount;                   /* length of the mount point's path, which is not part of group names */
};

/* v1 represents "no limit" by a number near 2^63. */
#define NO_LIMIT ((uint64_t)1 << 62)

/* Returns the number in a file of the group; `missing` if the file contains no number ("max") or does not exist. */
static uint64_t number_in(const char *folder, const char *file, uint64_t missing)
{
    char path[1200], text[64], *end = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!cpu_read_file(path, text, sizeof text))
        return missing;
    uint64_t number = strtoull(text, &end, 10);
    return end == text || number >= NO_LIMIT ? missing : number;
}

/* Returns the bytes that the kernel can reclaim without swap: page cache and slab of the group and its descendants, the
 * sum of the memory.stat lines `keys`. */
static uint64_t reclaimable(const char *folder, const char *const keys[3])
{
    char path[1200], text[8192];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (!cpu_read_file(path, text, sizeof text))
        return 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        for (int i = 0; i < 3 && keys[i]; i++) {
            size_t length = strlen(keys[i]);
            if (strncmp(line, keys[i], length) == 0 && line[length] == ' ')
                sum += strtoull(line + length, NULL, 10);
        }
    return sum;
}

static struct cpu_memory_group *next_group(struct groups *groups, const char *folder)
{
    if (groups->count == CPU_MEMORY_GROUPS)
        return NULL;
    struct cpu_memory_group *group = &groups->list[groups->count++];
    const char *name = folder + groups->mount;
    snprintf(group->name, sizeof group->name, "%s", *name ? name : "/");
    return group;
}

static void visit_memory_v2(const char *text, const char *folder, void *argument)
{
    static const char *const keys[3] = { "active_file", "inactive_file", "slab_reclaimable" };
    (void)text;
    uint64_t max = number_in(folder, "memory.max", UINT64_MAX), high = number_in(folder, "memory.high", UINT64_MAX);
    struct cpu_memory_group *group = max == UINT64_MAX && high == UINT64_MAX ? NULL : next_group(argument, folder);
    if (!group)
        return;
    uint64_t swap = number_in(folder, "memory.swap.max", UINT64_MAX),
             swapped = number_in(folder, "memory.swap.current", 0);
    group->max = max;
    group->high = high;
    group->used = number_in(folder, "memory.current", 0);
    group->reclaimable = reclaimable(folder, keys);
    group->swap_left = swap == UINT64_MAX ? swap : swap > swapped ? swap - swapped : 0;
}

/* v1 has one limit for memory and one for memory plus swap. */
static void visit_memory_v1(const char *text, const char *folder, void *argument)
{
    static const char *const keys[3] = { "total_active_file", "total_inactive_file", NULL };
    (void)text;
    uint64_t max = number_in(folder, "memory.limit_in_bytes", UINT64_MAX);
    struct cpu_memory_group *group = max == UINT64_MAX ? NULL : next_group(argument, folder);
    if (!group)
        return;
    uint64_t both = number_in(folder, "memory.memsw.limit_in_bytes", UINT64_MAX);
    uint64_t both_used = number_in(folder, "memory.memsw.usage_in_bytes", 0);
    group->max = max;
    group->high = UINT64_MAX;
    group->used = number_in(folder, "memory.usage_in_bytes", 0);
    group->reclaimable = reclaimable(folder, keys);
    uint64_t swapped = both_used > group->used ? both_used - group->used : 0;
    uint64_t swap = both > max ? both - max : 0;
    group->swap_left = both == UINT64_MAX ? both : swap > swapped ? swap - swapped : 0;
}

int cpu_cgroup_memory(struct cpu_memory_group groups[CPU_MEMORY_GROUPS])
{
    /* the second path: v2 mounted beside v1 */
    static const char *const mounts[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
    static const char v1[] = "/sys/fs/cgroup/memory";
    struct groups found = { .list = groups };
    for (int i = 0; i < 2; i++) {
        found.mount = strlen(mounts[i]);
        each_group(mounts[i], "", "memory.max", visit_memory_v2, &found);
    }
    found.mount = sizeof v1 - 1;
    each_group(v1, "memory", "memory.limit_in_bytes", visit_memory_v1, &found);
    return found.count;
}

/* ---- processors ---- */

static void take_least(double *least, double quota, double period)
{
    if (quota > 0 && period > 0 && (*least == 0 || quota / period < *least))
        *least = quota / period;
}

static void visit_cpu_max(const char *text, const char *folder, void *argument)
{
    (void)folder;
    double quota, period;
    if (sscanf(text, "%lf %lf", &quota, &period) == 2)      /* "max 100000" means no limit */
        take_least(argument, quota, period);
}

static void visit_cfs_quota(const char *text, const char *folder, void *argument)
{
    char path[1200], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (cpu_read_file(path, period, sizeof period))
        take_least(argument, strtod(text, NULL), strtod(period, NULL));     /* -1 means no limit */
}

double cpu_cgroup_cpus(void)
{
    double least = 0;
    each_group("/sys/fs/cgroup", "", "cpu.max", visit_cpu_max, &least);
    each_group("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_quota_us", visit_cfs_quota, &least);
    return least;
}
