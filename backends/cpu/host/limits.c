/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/limits.c: how much memory exists and is free, and which requests would make the operating system
 * kill the process.
 *
 * Linux overcommits memory, and kills a process when the memory runs out. Therefore large requests are checked first,
 * and a request is rejected if it exceeds the memory that the process can still get. For each limit (the machine's
 * memory, and the hard limit of every control group above this process), this is
 *
 *     limit - used and not reclaimable + free swap - allocated by this backend and not written to yet.
 *
 * The result is an upper bound: page cache and reclaimable slab count as free, although the kernel may keep some of
 * them; of the allocated memory, only the part that exceeds the process's total anonymous memory counts as not written
 * to. A granted request may still fail later, because other processes also allocate memory; a rejected request could
 * not have succeeded. memory.high throttles a group and kills no process. So it lowers the reported free memory, but no
 * request is rejected because of it. RLIMIT_AS is not checked here, because mmap enforces it. */
#include "internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A check reads about ten files in /proc and /sys, which takes about 100 us; clearing LOOK_BYTES takes 3 ms. Requests
 * are granted without a check until their sum reaches LOOK_BYTES, unless the last check found less than LITTLE. */
#define LOOK_BYTES ((uint64_t)32 << 20)
#define LITTLE     (4 * LOOK_BYTES)

static bool checking = true;
static _Atomic uint64_t promised;               /* bytes of granted blocks that are not returned */
static _Atomic uint64_t unseen;                 /* bytes granted since the last check */
static _Atomic uint64_t seen_left;              /* bytes grantable at the last check; 0 before the first */

ctrt_status cpu_limits_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_CPU_MEMORY_CHECK", .type = CTRT_PARAM_ENUM, .fallback = "on",
        .words = "off|on",
        .help = "refuse blocks that exceed the memory of the machine or control group, before the kernel ends the "
                "process",
    };
    ctrt_param_value value;
    CTRT_TRY(cpu_host->param(&value, &param));
    checking = value.integer == 1;
    atomic_store_explicit(&seen_left, 0, memory_order_relaxed);
    return CTRT_OK;
}

/* Returns the number after `key` at the beginning of a line, times `unit`; 0 if there is none. */
static uint64_t value_of(const char *text, const char *key, uint64_t unit)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, length) == 0)
            return strtoull(line + length, NULL, 10) * unit;
    return 0;
}

static uint64_t less(uint64_t from, uint64_t what)
{
    return from > what ? from - what : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns a lower bound of the bytes that are granted and not written to yet. */
static uint64_t untouched(void)
{
    char status[4096];
    if (!cpu_read_file("/proc/self/status", status, sizeof status))
        return 0;
    uint64_t anonymous = value_of(status, "RssAnon:", 1024);
    if (anonymous == 0)
        return 0;                               /* kernels before 4.5 do not report RssAnon */
    return less(atomic_load_explicit(&promised, memory_order_relaxed), anonymous + value_of(status, "VmSwap:", 1024));
}

static void bound_by_groups(struct cpu_memory_limits *limits, uint64_t swap, uint64_t ours)
{
    struct cpu_memory_group groups[CPU_MEMORY_GROUPS];
    int count = cpu_cgroup_memory(groups);
    for (int i = 0; i < count; i++) {
        const struct cpu_memory_group *group = &groups[i];
        uint64_t used = less(group->used, group->reclaimable);
        uint64_t soft = least(group->high, group->max);
        if (soft != UINT64_MAX) {
            limits->total = limits->total ? least(limits->total, soft) : soft;
            limits->free = least(limits->free, less(soft, used));
        }
        if (group->max == UINT64_MAX)
            continue;
        uint64_t left = less(less(group->max, used) + least(swap, group->swap_left), ours);
        if (left < limits->grantable) {
            limits->grantable = left;
            limits->limit = group->max;
            limits->used = used;
            snprintf(limits->bound, sizeof limits->bound, "control group %.120s", group->name);
        }
    }
}

/* RLIMIT_AS limits address space, not memory, but an allocation cannot exceed it. */
static void bound_by_process(struct cpu_memory_limits *limits)
{
    struct rlimit space;
    char text[128];
    if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY)
        return;
    uint64_t used = cpu_read_file("/proc/self/statm", text, sizeof text)
                        ? strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    limits->total = limits->total ? least(limits->total, space.rlim_cur) : space.rlim_cur;
    limits->free = least(limits->free, less(space.rlim_cur, used));
}

void cpu_memory_limits(struct cpu_memory_limits *limits)
{
    char text[4096];
    *limits = (struct cpu_memory_limits){ .free = UINT64_MAX, .grantable = UINT64_MAX, .untouched = untouched() };
    uint64_t swap = 0;
    if (cpu_read_file("/proc/meminfo", text, sizeof text)) {
        uint64_t available = value_of(text, "MemAvailable:", 1024);
        limits->total = value_of(text, "MemTotal:", 1024);
        limits->swap = swap = value_of(text, "SwapFree:", 1024);
        limits->free = available ? available : UINT64_MAX;
        if (limits->total && available) {
            limits->grantable = less(available + swap, limits->untouched);
            limits->limit = limits->total;
            limits->used = less(limits->total, available);
            snprintf(limits->bound, sizeof limits->bound, "machine");
        }
    }
    bound_by_groups(limits, swap, limits->untouched);
    bound_by_process(limits);
    if (limits->free == UINT64_MAX)
        limits->free = 0;
    atomic_store_explicit(&seen_left, limits->grantable, memory_order_relaxed);
}

uint64_t cpu_memory_total(void)
{
    struct cpu_memory_limits limits;
    cpu_memory_limits(&limits);
    return limits.total;
}

/* Formats a size as in "1.50 GiB". */
static const char *in_words(char text[32], uint64_t bytes)
{
    if (bytes >= (uint64_t)1 << 30)
        snprintf(text, 32, "%.2f GiB", (double)bytes / (1 << 30));
    else
        snprintf(text, 32, "%.2f MiB", (double)bytes / (1 << 20));
    return text;
}

ctrt_status cpu_memory_refuse(size_t bytes, const char *why)
{
    struct cpu_memory_limits limits;
    char requested[32], left[32], total[32];
    cpu_memory_limits(&limits);
    return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no %s (%zu bytes) of memory: %s; %s of %s are free",
                          in_words(requested, bytes), bytes, why, in_words(left, limits.free),
                          in_words(total, limits.total));
}

static ctrt_status beyond(size_t bytes, const struct cpu_memory_limits *limits)
{
    char requested[32], limit[32], used[32], ours[32], swap[32], left[32];
    return cpu_host->fail(
        CTRT_ERR_OUT_OF_MEMORY,
        "cpu: %s (%zu bytes) exceed the memory of the %s, and the kernel would end the process when they are "
        "written to: limit %s, used and not reclaimable %s, allocated but not yet written %s, free swap of the "
        "machine %s; %s are available. Release tensors, raise the limit, or set CTRT_CPU_MEMORY_CHECK=off",
        in_words(requested, bytes), bytes, limits->bound, in_words(limit, limits->limit), in_words(used, limits->used),
        in_words(ours, limits->untouched), in_words(swap, limits->swap), in_words(left, limits->grantable));
}

ctrt_status cpu_memory_grant(size_t bytes)
{
    uint64_t since = atomic_fetch_add_explicit(&unseen, bytes, memory_order_relaxed) + bytes;
    if (checking && (since >= LOOK_BYTES || atomic_load_explicit(&seen_left, memory_order_relaxed) < LITTLE)) {
        struct cpu_memory_limits limits;
        cpu_memory_limits(&limits);
        if (bytes > limits.grantable) {
            atomic_fetch_sub_explicit(&unseen, bytes, memory_order_relaxed);
            return beyond(bytes, &limits);
        }
        atomic_store_explicit(&unseen, 0, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&promised, bytes, memory_order_relaxed);
    return CTRT_OK;
}

uint64_t cpu_memory_out(void)
{
    return atomic_load_explicit(&promised, memory_order_relaxed);
}

void cpu_memory_returned(size_t bytes)
{
    atomic_fetch_sub_explicit(&promised, bytes, memory_order_relaxed);
}
