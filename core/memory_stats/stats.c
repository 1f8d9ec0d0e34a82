/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/stats.c: memory statistics, with PyTorch's names.
 *
 * The core counts blocks, and counts segments where they are allocated from the lowest source. How segments are split
 * is available only from the policy. If a policy does not report it, splits are 0 and segments are assigned to pools by
 * their size. */
#include "memory_stats/stats.h"

#include "base/base.h"
#include "base/intern.h"
#include "memory/pinned_cache.h"
#include "memory/policy.h"

/* ---- keys ---- */

#define KEYS_OF(member) { #member, offsetof(ctrt_memory_stats, member), CTRT_POOLS }
static const struct family {
    const char *name;
    size_t offset;
    int pools;                              /* 1: the key has no pool */
} families[] = {
    KEYS_OF(allocation),
    KEYS_OF(segment),
    KEYS_OF(active),
    KEYS_OF(inactive_split),
    KEYS_OF(allocated_bytes),
    KEYS_OF(reserved_bytes),
    KEYS_OF(active_bytes),
    KEYS_OF(inactive_split_bytes),
    KEYS_OF(requested_bytes),
    { "oversize_allocations", offsetof(ctrt_memory_stats, oversize_allocations), 1 },
    { "oversize_segments", offsetof(ctrt_memory_stats, oversize_segments), 1 },
    { "host.allocations", offsetof(ctrt_memory_stats, host.allocations), 1 },
    { "host.allocated_bytes", offsetof(ctrt_memory_stats, host.allocated_bytes), 1 },
    { "host.active_requests", offsetof(ctrt_memory_stats, host.active_requests), 1 },
    { "host.active_bytes", offsetof(ctrt_memory_stats, host.active_bytes), 1 },
    { "spilled", offsetof(ctrt_memory_stats, spilled), 1 },
    { "spilled_bytes", offsetof(ctrt_memory_stats, spilled_bytes), 1 },
};
static const struct { const char *name; size_t offset; } counts[] = {
    { "num_alloc_retries", offsetof(ctrt_memory_stats, num_alloc_retries) },
    { "num_ooms", offsetof(ctrt_memory_stats, num_ooms) },
    { "num_sync_all_streams", offsetof(ctrt_memory_stats, num_sync_all_streams) },
    { "num_device_alloc", offsetof(ctrt_memory_stats, num_device_alloc) },
    { "num_device_free", offsetof(ctrt_memory_stats, num_device_free) },
    { "num_oom_rejections", offsetof(ctrt_memory_stats, num_oom_rejections) },
    { "max_split_size", offsetof(ctrt_memory_stats, max_split_size) },
    { "host.num_host_alloc", offsetof(ctrt_memory_stats, host.host_alloc_time.count) },
    { "host.num_host_free", offsetof(ctrt_memory_stats, host.host_free_time.count) },
#define TIMES_OF(member)                                                                    \
    { "host." #member ".total", offsetof(ctrt_memory_stats, host.member.total) },              \
    { "host." #member ".max", offsetof(ctrt_memory_stats, host.member.max) },                  \
    { "host." #member ".min", offsetof(ctrt_memory_stats, host.member.min) },                  \
    { "host." #member ".count", offsetof(ctrt_memory_stats, host.member.count) },              \
    { "host." #member ".avg", offsetof(ctrt_memory_stats, host.member.avg) }
    TIMES_OF(host_alloc_time),
    TIMES_OF(host_free_time),
};
static const char *const pools[] = { "all", "large_pool", "small_pool" };
static const char *const members[] = { "current", "peak", "allocated", "freed" };
#define MEMBERS COUNT_OF(members)

/* Determines the offset of the `index`-th value in ctrt_memory_stats, and stores its key in key[64]. Returns false
 * after the last. */
static bool stats_locate(size_t index, char *key, size_t *offset)
{
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        const struct family *family = &families[f];
        size_t keys = (size_t)family->pools * MEMBERS;
        if (index >= keys) {
            index -= keys;
            continue;
        }
        *offset = family->offset + index / MEMBERS * sizeof(ctrt_stat) + index % MEMBERS * sizeof(int64_t);
        if (key != NULL && family->pools > 1)
            snprintf(key, 64, "%s.%s.%s", family->name, pools[index / MEMBERS], members[index % MEMBERS]);
        else if (key != NULL)
            snprintf(key, 64, "%s.%s", family->name, members[index % MEMBERS]);
        return true;
    }
    if (index >= COUNT_OF(counts))
        return false;
    *offset = counts[index].offset;
    if (key != NULL)
        snprintf(key, 64, "%s", counts[index].name);
    return true;
}

const char *ctrt_memory_stat_key(size_t index)
{
    char key[64];
    size_t offset;
    return stats_locate(index, key, &offset) ? intern_string(key) : NULL;
}

int64_t stats_value(const ctrt_memory_stats *stats, size_t index)
{
    size_t offset;
    return stats_locate(index, NULL, &offset) ? *(const int64_t *)((const char *)stats + offset) : 0;
}

/* ---- reading ---- */

bool stats_of_policy(ctrt_memory_policy_stats *out, const struct device_memory *memory)
{
    *out = (ctrt_memory_policy_stats){ .size = sizeof *out };
    if (memory->policy_count == 0)          /* the device was closed */
        return false;
    const struct policy_layer *top = memory->policies[0], *lowest = memory->policies[memory->policy_count - 1];
    bool known = false;
    /* The lowest policy has the segments; blocks of the upper ones are parts of the lower one's. */
    if (CTRT_SLOT(lowest->policy, stats)) {
        lowest->policy->stats(lowest->state, out);
        known = true;
    } else if (CTRT_SLOT(top->policy, stats)) {
        top->policy->stats(top->state, out);
    }
    return known;
}

/* Uses the policy's segment statistics by pool, if it reports them; `reserved` is 0 for policies of an older ABI.
 * Values over all pools are always the core's, because it can reset their peaks. */
static void read_segments(ctrt_memory_stats *out, const struct counter_stats *counted,
                          const ctrt_memory_policy_stats *policy, bool known)
{
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        out->segment[pool] = counted->reserved[pool][COUNTER_COUNT];
        out->reserved_bytes[pool] = counted->reserved[pool][COUNTER_BYTES];
    }
    if (!known || policy->reserved[CTRT_POOL_ALL].allocated == 0)
        return;
    for (int pool = CTRT_POOL_LARGE; pool < CTRT_POOLS; pool++) {
        out->segment[pool] = policy->segment[pool];
        out->reserved_bytes[pool] = policy->reserved[pool];
    }
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        out->inactive_split[pool] = policy->inactive_split[pool];
        out->inactive_split_bytes[pool] = policy->inactive_split_bytes[pool];
    }
    out->oversize_segments = policy->oversize_segment;
}

/* Which blocks are on the host is reported only by the policy that moves memory. It is always the top policy. */
static void read_spilled(ctrt_memory_stats *out, const struct device_memory *memory)
{
    ctrt_memory_policy_stats policy = { .size = sizeof policy };
    const struct policy_layer *top = memory->policies[0];
    if (!memory->moves || top == NULL || !CTRT_SLOT(top->policy, stats))
        return;
    top->policy->stats(top->state, &policy);
    out->spilled = policy.spilled;
    out->spilled_bytes = policy.spilled_bytes;
}

void stats_read(ctrt_memory_stats *out, struct device_memory *memory)
{
    struct counter_stats counted;
    ctrt_memory_policy_stats policy;
    memset(out, 0, sizeof *out);
    counters_read(&counted, &memory->counters);
    bool known = stats_of_policy(&policy, memory);
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        out->allocation[pool] = out->active[pool] = counted.blocks[pool][COUNTER_COUNT];
        out->allocated_bytes[pool] = out->active_bytes[pool] = counted.blocks[pool][COUNTER_BYTES];
        out->requested_bytes[pool] = counted.blocks[pool][COUNTER_REQUESTED];
    }
    out->oversize_allocations = counted.oversize;
    read_segments(out, &counted, &policy, known);
    out->num_alloc_retries = (int64_t)MAX(atomic_load(&memory->retries), policy.retries);
    out->num_ooms = (int64_t)atomic_load(&memory->ooms);
    out->num_oom_rejections = (int64_t)atomic_load(&memory->rejections);
    pinned_stats(&out->host, memory->device);
    read_spilled(out, memory);
    out->num_device_alloc = counted.reserved[CTRT_POOL_ALL][COUNTER_COUNT].allocated;
    out->num_device_free = counted.reserved[CTRT_POOL_ALL][COUNTER_COUNT].freed;
    out->max_split_size = policy.max_split > 0 ? (int64_t)policy.max_split : -1;
}

/* ---- public ---- */

ctrt_status ctrt_memory_get_stats(ctrt_memory_stats *out, ctrt_device *device)
{
    struct device_memory *memory;
    NULL_CHECK("memory_get_stats", out);
    CTRT_TRY(memory_get(&memory, device));
    ctrt_memory_stats stats;
    stats_read(&stats, memory);
    return struct_write(out, &stats, sizeof stats, "memory_get_stats", "out");
}

static ctrt_status unknown_key(const char *key)
{
    const char *keys[256];
    size_t count = 0;
    while (count < COUNT_OF(keys) && (keys[count] = ctrt_memory_stat_key(count)) != NULL)
        count++;
    const char *near = nearest_word(key, keys, count);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "memory_stat_get: there is no statistic \"%.100s\"%s%s%s", key,
                     near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
}

ctrt_status ctrt_memory_stat_get(int64_t *value, ctrt_device *device, const char *key)
{
    struct device_memory *memory;
    ctrt_memory_stats stats;
    char name[64];
    size_t offset;
    NULL_CHECK("memory_stat_get", value);
    NULL_CHECK("memory_stat_get", key);
    for (size_t i = 0; stats_locate(i, name, &offset); i++) {
        if (strcmp(name, key) != 0)
            continue;
        CTRT_TRY(memory_get(&memory, device));
        stats_read(&stats, memory);
        *value = stats_value(&stats, i);
        return CTRT_OK;
    }
    return unknown_key(key);
}

uint64_t ctrt_memory_allocated(ctrt_device *device)
{
    struct device_memory *memory;
    return memory_get(&memory, device) == CTRT_OK ? counters_current(&memory->counters, COUNTER_BYTES) : 0;
}

uint64_t ctrt_memory_reserved(ctrt_device *device)
{
    struct device_memory *memory;
    return memory_get(&memory, device) == CTRT_OK ? counters_reserved_bytes(&memory->counters) : 0;
}

static uint64_t peak(ctrt_device *device, bool reserved)
{
    struct device_memory *memory;
    struct counter_stats counted;
    if (memory_get(&memory, device) != CTRT_OK)
        return 0;
    counters_read(&counted, &memory->counters);
    return (uint64_t)(reserved ? counted.reserved[CTRT_POOL_ALL][COUNTER_BYTES].peak
                            : counted.blocks[CTRT_POOL_ALL][COUNTER_BYTES].peak);
}

uint64_t ctrt_memory_max_allocated(ctrt_device *device)
{
    return peak(device, false);
}

uint64_t ctrt_memory_max_reserved(ctrt_device *device)
{
    return peak(device, true);
}

void ctrt_memory_reset_peak(ctrt_device *device)
{
    struct device_memory *memory;
    if (memory_get(&memory, device) != CTRT_OK)
        return;
    counters_reset_peaks(&memory->counters);
    for (int i = 0; i < memory->policy_count; i++)
        if (CTRT_SLOT(memory->policies[i]->policy, reset_peaks))
            memory->policies[i]->policy->reset_peaks(memory->policies[i]->state);
    pinned_reset_peaks(memory->device);
}

ctrt_status ctrt_memory_empty_cache(ctrt_device *device)
{
    struct device_memory *memory;
    CTRT_TRY(memory_get(&memory, device));
    CTRT_TRY(device_check(memory->device));
    pool_trim(memory);
    return CTRT_OK;
}

const char *ctrt_memory_policy_name(ctrt_device *device)
{
    struct device_memory *memory;
    return memory_get(&memory, device) == CTRT_OK ? memory->policy_name : "";
}
