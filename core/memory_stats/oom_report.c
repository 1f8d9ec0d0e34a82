/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/oom_report.c: the report of a failed allocation: how much memory is in use, by what, and what the
 * user can do. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/json.h"
#include "memory/pinned_cache.h"
#include "memory/quota.h"
#include "memory/history.h"
#include "memory_stats/owners.h"
#include "memory_stats/segments.h"
#include "memory_stats/stats.h"

#define OWNERS_REPORTED 20
#define PROCESSES_REPORTED 8

LOCK_DEFINE_MUTEX(oom_lock);            /* guards all last_oom and the callback */
static ctrt_memory_oom_callback callback;
static void *callback_user;
static __thread bool in_callback;

/* The state of the device at the time of the failure. */
struct finding {
    struct device_memory *memory;
    size_t requested;
    bool pinned;                            /* pinned host memory was requested */
    bool refused;                           /* by a limit, not by the device */
    const char *why;
    uint64_t free_bytes, total;             /* of the device; total 0: unknown */
    uint64_t others;                        /* bytes of `total` that are neither free nor reserved by this process */
    ctrt_process processes[PROCESSES_REPORTED];     /* those that hold most of `others`, if the backend reports them */
    size_t process_count;
    uint64_t limit, allocated, reserved, held_pinned;
    uint64_t cached, largest;               /* reserved but free, and the largest free block */
    bool largest_known;
    double fragmentation;                   /* percent of `cached` outside the largest free block */
    ctrt_memory_owner *owners;
    size_t owner_count;
};

static void oom_read_surroundings(struct finding *f, struct device_memory *memory, size_t requested, const char *why,
                                  bool pinned)
{
    const ctrt_device *device = memory->device;
    *f = (struct finding){ .memory = memory, .requested = requested, .why = why, .pinned = pinned,
                           .refused = limit_refused };
    if (slot_memory_info(device, &f->free_bytes, &f->total) != CTRT_OK)
        f->free_bytes = f->total = 0;
    f->limit = atomic_load(&memory->limit);
    f->allocated = counters_current(&memory->counters, COUNTER_BYTES);
    f->reserved = counters_reserved_bytes(&memory->counters);
    f->held_pinned = pinned_held(device);
    f->others = f->total > f->free_bytes + f->reserved ? f->total - f->free_bytes - f->reserved : 0;
    if (f->others > 0)
        f->process_count = device_other_processes(f->processes, PROCESSES_REPORTED, device);
    f->cached = f->reserved > f->allocated ? f->reserved - f->allocated : 0;
    f->largest_known = segments_largest_free(&f->largest, memory);
    f->largest = MIN(f->largest, f->cached);
    if (f->cached > 0 && f->largest_known)
        f->fragmentation = 100.0 * (1.0 - (double)f->largest / (double)f->cached);
    if (!owners_of(&f->owners, &f->owner_count, memory))
        f->owner_count = 0;
}

/* Returns the option of the lowest policy under which the free memory would suffice. NULL: there is none, or it is in
 * use. Segments that grow consist of pages, so cached memory and free memory of the device are used together. */
static const char *fragmentation_option(const struct finding *f)
{
    const struct device_memory *memory = f->memory;
    const uint64_t allowed = f->limit > f->reserved ? f->limit - f->reserved : 0;
    const bool grows = CTRT_SLOT(memory->device->backend->memory, map);
    if (memory->policy_count == 0 || !f->largest_known || f->largest >= f->requested
        || f->cached + (grows ? MIN(f->free_bytes, allowed) : 0) < f->requested)
        return NULL;
    const struct policy_layer *lowest = memory->policies[memory->policy_count - 1];
    return CTRT_SLOT(lowest->policy, gaps_option) ? lowest->policy->gaps_option(lowest->state) : NULL;
}

/* Chooses the most effective remedy. */
static void oom_write_advice(char advice[256], const struct finding *f)
{
    char a[32], b[32];
    const struct device_memory *memory = f->memory;
    const bool fits = f->total == 0 || f->pinned || f->free_bytes >= f->requested;
    const char *gaps = fragmentation_option(f);
    if (f->refused && f->requested > f->limit)
        snprintf(advice, 256,
                 "The request alone exceeds the limit: raise it (ctrt_memory_set_limit, CTRT_MEMORY_LIMIT)");
    else if (f->refused && fits)
        snprintf(advice, 256,
                 "The device has enough free memory: raise the limit of %s (ctrt_memory_set_limit, CTRT_MEMORY_LIMIT)",
                 format_bytes(a, f->limit));
    else if (f->pinned)
        snprintf(advice, 256,
                 "Release pinned tensors, or use pageable memory, whose copies block the host");
    else if (f->total > 0 && f->requested > f->total)
        snprintf(advice, 256,
                 "The block is larger than the device: split the tensor, or use a device with more memory");
    else if (gaps != NULL)
        snprintf(advice, 256, "%s is free, but no block is larger than %s: CTRT_MEMORY=%s:%s",
                 format_bytes(a, f->cached + f->free_bytes), format_bytes(b, MAX(f->largest, f->free_bytes)),
                 memory->policy_name, gaps);
    else if (f->total > 0 && f->others > f->total / 2)
        snprintf(advice, 256, "Other processes hold %s of the device's %s: use another device, or end them",
                 format_bytes(a, f->others), format_bytes(b, f->total));
    else if (memory->moves)
        snprintf(
            advice, 256,
            "All operands of an op must be on the device at once, and all other blocks on the host: make the batch "
            "smaller, or give the policy more host memory (CTRT_MEMORY=spill:host=SIZE+caching)");
    else if (device_asynchronous(memory->device))
        snprintf(advice, 256,
                 "Release tensors, make the batch smaller, or move idle blocks to the host "
                 "(CTRT_MEMORY=spill+caching)");
    else
        snprintf(advice, 256, "Release tensors, make the batch smaller, or use a device with more memory");
}

static void add_known(struct json *json, const char *key, bool known, uint64_t value)
{
    if (known)
        json_add_uint(json, key, value);
    else
        json_add_string(json, key, NULL);
}

static char *to_json(const struct finding *f, const char *advice)
{
    struct strbuf text = { 0 };
    struct json json = { .text = &text, .lines = 1 };
    char *out, percent[32];
    json_begin(&json, NULL, '{');
    json_add_string(&json, "device", f->memory->device->name);
    json_add_string(&json, "policy", f->memory->policy_name);
    json_add_uint(&json, "time_us", history_now());
    json_add_string(&json, "kind", f->pinned ? "pinned" : "device");
    json_add_uint(&json, "requested", f->requested);
    json_add_uint(&json, "total", f->total);
    json_add_uint(&json, "free", f->free_bytes);
    add_known(&json, "others", f->total > 0, f->others);
    json_begin(&json, "processes", '[');
    for (size_t i = 0; i < f->process_count; i++) {
        json_begin(&json, NULL, '{');
        json_add_int(&json, "pid", f->processes[i].pid);
        json_add_uint(&json, "memory", f->processes[i].memory);
        json_add_string(&json, "name", f->processes[i].name);
        json_end(&json, '}');
    }
    json_end(&json, ']');
    json_add_bool(&json, "refused_by_limit", f->refused);
    add_known(&json, "allowed", f->limit != QUOTA_NONE, f->limit);
    json_add_uint(&json, "allocated", f->allocated);
    json_add_uint(&json, "reserved", f->reserved);
    json_add_uint(&json, "reserved_unallocated", f->cached);
    json_add_uint(&json, "pinned", f->held_pinned);
    add_known(&json, "largest_free_block", f->largest_known, f->largest);
    snprintf(percent, sizeof percent, "%.1f", f->fragmentation);
    json_add_literal(&json, "fragmentation_percent", f->largest_known ? percent : "null");
    json_add_string(&json, "reason", f->why);
    json_add_string(&json, "label", label_here());
    json_add_string(&json, "op", thread_state.op != NULL ? thread_state.op : "");
    json_add_string(&json, "advice", advice);
    owners_json(&json, "owners", f->owners, f->owner_count);
    json_end(&json, '}');
    return strbuf_finish(&out, &text, "a report") == CTRT_OK ? out : NULL;
}

/* Stores `json` as the device's last report, which then owns it. */
static void oom_keep_report(struct device_memory *memory, char *json)
{
    if (json == NULL)
        return;
    pthread_mutex_lock(&oom_lock);
    char *old = memory->last_oom;
    memory->last_oom = json;
    pthread_mutex_unlock(&oom_lock);
    host_free(old);
}

static void call_callback(struct device_memory *memory, size_t bytes, const char *json)
{
    pthread_mutex_lock(&oom_lock);
    ctrt_memory_oom_callback function = callback;
    void *user = callback_user;
    pthread_mutex_unlock(&oom_lock);
    if (function == NULL || in_callback)
        return;
    in_callback = true;
    function(user, memory->device, bytes, json != NULL ? json : "{}");
    in_callback = false;
}

static ctrt_status oom_write_text(const struct finding *f, const char *why, const char *advice)
{
    char requested[32], taken[32], held[32], left[32], whole[32], limit[32], cached[32], largest[32];
    char free_text[96] = "", allowed[64] = "", pieces[160] = "", owner[192] = "", label[128], owned[32];
    char others[192] = "", pinned[64] = "", other[32], host[32];
    if (f->total > 0)
        snprintf(free_text, sizeof free_text, ", %s of %s free on the device", format_bytes(left, f->free_bytes),
                 format_bytes(whole, f->total));
    if (f->others > 0)
        snprintf(others, sizeof others, ", %s held by other processes", format_bytes(other, f->others));
    if (f->process_count > 0) {
        const ctrt_process *most = &f->processes[0];
        const size_t used = strlen(others);
        snprintf(others + used, sizeof others - used, " (most by process %lld%s%s: %s)", (long long)most->pid,
                 most->name[0] != '\0' ? " " : "", most->name, format_bytes(other, most->memory));
    }
    if (f->held_pinned > 0)
        snprintf(pinned, sizeof pinned, ", %s of the host pinned", format_bytes(host, f->held_pinned));
    if (f->limit != QUOTA_NONE)
        snprintf(allowed, sizeof allowed, ", %s allowed", format_bytes(limit, f->limit));
    if (f->cached > 0 && f->largest_known)
        snprintf(pieces, sizeof pieces, ", %s of that unallocated, the largest block %s (fragmentation %.0f %%)",
                 format_bytes(cached, f->cached), format_bytes(largest, f->largest), f->fragmentation);
    if (f->owner_count > 0 && strcmp(f->owners[0].label, OWNER_UNKNOWN) != 0)
        snprintf(owner, sizeof owner, "Most is held by %s, %s. ", owner_label(label, &f->owners[0]),
                 format_bytes(owned, f->owners[0].bytes));
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY,
                     "out of memory on %s: %s%s requested, %s allocated to tensors, %s reserved by policy %s%s%s%s%s%s "
                     "(%.600s). %s%s",
                     f->memory->device->name, format_bytes(requested, f->requested),
                     f->pinned ? " of pinned host memory" : "",
                     format_bytes(taken, f->allocated), format_bytes(held, f->reserved), f->memory->policy_name, pieces,
                     free_text, others, pinned, allowed, why, owner, advice);
}

static ctrt_status oom_compose_and_fail(struct device_memory *memory, size_t bytes, const char *why, bool pinned)
{
    char advice[256], reason[1024];
    struct finding f;
    snprintf(reason, sizeof reason, "%s", why);
    atomic_fetch_add_explicit(&memory->ooms, 1, memory_order_relaxed);
    oom_read_surroundings(&f, memory, bytes, reason, pinned);
    if (limit_refused)
        atomic_fetch_add_explicit(&memory->rejections, 1, memory_order_relaxed);
    limit_refused = false;
    oom_write_advice(advice, &f);
    if (history_on(memory)) {
        struct history_event event = { .time = history_now(), .label = label_here(), .op = thread_state.op,
                                       .bytes = bytes, .free_bytes = f.free_bytes, .action = HISTORY_OOM };
        history_note(memory, &event);
    }
    char *json = to_json(&f, advice);
    call_callback(memory, bytes, json);
    oom_keep_report(memory, json);
    ctrt_status status = oom_write_text(&f, reason, advice);
    host_free(f.owners);
    return status;
}

ctrt_status oom_fail(struct device_memory *memory, size_t bytes, const char *why)
{
    return oom_compose_and_fail(memory, bytes, why, false);
}

ctrt_status oom_fail_pinned(struct device_memory *memory, size_t bytes, const char *why)
{
    return oom_compose_and_fail(memory, bytes, why, true);
}

/* ---- public ---- */

ctrt_status ctrt_memory_last_oom(char **out, ctrt_device *device)
{
    struct device_memory *memory;
    char *copy = NULL;
    NULL_CHECK("memory_last_oom", out);
    CTRT_TRY(memory_get(&memory, device));
    pthread_mutex_lock(&oom_lock);
    bool there = memory->last_oom != NULL;
    if (there)
        copy = host_strdup(memory->last_oom);
    pthread_mutex_unlock(&oom_lock);
    if (!there)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "memory_last_oom: %s was never out of memory", memory->device->name);
    ALLOC_CHECK(copy, 1, "a report");
    *out = copy;
    return CTRT_OK;
}

void ctrt_memory_set_oom_callback(ctrt_memory_oom_callback function, void *user)
{
    pthread_mutex_lock(&oom_lock);
    callback = function;
    callback_user = user;
    pthread_mutex_unlock(&oom_lock);
}
