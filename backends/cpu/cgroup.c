/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/cgroup.c: the limits that control groups put on this process.
 *
 * Kernel documentation: admin-guide/cgroup-v2.rst (cpu.max, memory.max, memory.current) and cgroup-v1. A limit of
 * any group on the way up to the root counts; the least one holds. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cpu_read_file(const char *path, char *buffer, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    while (used < bytes - 1) {
        ssize_t got = read(fd, buffer + used, bytes - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    buffer[used] = '\0';
    return used > 0;
}

/* The group of this process, below the mount of `controller` ("" is v2's single hierarchy); false when there is
 * none. */
static bool own_group(char *path, size_t bytes, const char *controller)
{
    char text[4096];
    if (!cpu_read_file("/proc/self/cgroup", text, sizeof text))
        return false;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ':');            /* "4:cpu,cpuacct:/path", v2: "0::/path" */
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

/* Calls visit(text of `file`, folder) for each group from this process's own up to the root of the mount at
 * `mount`. */
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

struct memory_limit {
    uint64_t bytes, used;
    const char *used_file;
};

static void visit_memory(const char *text, const char *folder, void *argument)
{
    struct memory_limit *limit = argument;
    char *end = NULL;
    uint64_t bytes = strtoull(text, &end, 10);
    if (end == text || bytes >= limit->bytes)       /* "max" is no number */
        return;
    char path[1200], used[64];
    limit->bytes = bytes;
    snprintf(path, sizeof path, "%s/%s", folder, limit->used_file);
    limit->used = cpu_read_file(path, used, sizeof used) ? strtoull(used, NULL, 10) : 0;
}

uint64_t cpu_cgroup_memory(uint64_t *used)
{
    struct memory_limit limit = { UINT64_MAX, 0, "memory.current" };
    each_group("/sys/fs/cgroup", "", "memory.max", visit_memory, &limit);
    limit.used_file = "memory.usage_in_bytes";
    each_group("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", visit_memory, &limit);
    *used = limit.used;
    return limit.bytes;
}

static void take_least(double *least, double quota, double period)
{
    if (quota > 0 && period > 0 && (*least == 0 || quota / period < *least))
        *least = quota / period;
}

static void visit_cpu_max(const char *text, const char *folder, void *argument)
{
    (void)folder;
    double quota, period;
    if (sscanf(text, "%lf %lf", &quota, &period) == 2)      /* "max 100000" is no limit */
        take_least(argument, quota, period);
}

static void visit_cfs_quota(const char *text, const char *folder, void *argument)
{
    char path[1200], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (cpu_read_file(path, period, sizeof period))
        take_least(argument, strtod(text, NULL), strtod(period, NULL));     /* -1 is no limit */
}

double cpu_cgroup_cpus(void)
{
    double least = 0;
    each_group("/sys/fs/cgroup", "", "cpu.max", visit_cpu_max, &least);
    each_group("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_quota_us", visit_cfs_quota, &least);
    return least;
}
