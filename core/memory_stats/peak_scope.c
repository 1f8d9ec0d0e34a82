/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/peak_scope.c: ctrt_memory_scope: peaks of a part of the program, by windows (counters.h). */
#include "base/base.h"
#include "base/host_alloc.h"
#include "memory/pool.h"

struct ctrt_memory_scope {
    struct peak_window window;
    struct device_memory *memory;
    uint64_t before;
};

ctrt_status ctrt_memory_scope_begin(ctrt_memory_scope **out, ctrt_device *device)
{
    struct device_memory *memory;
    NULL_CHECK("memory_scope_begin", out);
    CTRT_TRY(memory_get(&memory, device));
    ctrt_memory_scope *scope = host_calloc(sizeof *scope);
    ALLOC_CHECK(scope, sizeof *scope, "a scope");
    scope->memory = memory;
    ctrt_memory_scope_release(out);
    peak_window_open(&memory->counters, &scope->window);
    /* The peaks of a new window are the current values. */
    scope->before = (uint64_t)scope->window.peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES)];
    *out = scope;
    return CTRT_OK;
}

static ctrt_status peaks_write(ctrt_memory_peaks *out, const ctrt_memory_scope *scope, const char *who)
{
    const int64_t *peaks = scope->window.peaks;
    const ctrt_memory_peaks own = {
        .allocated_bytes = (uint64_t)peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES)],
        .requested_bytes = (uint64_t)peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_REQUESTED)],
        .reserved_bytes = (uint64_t)peaks[PEAK_OF_RESERVED(CTRT_POOL_ALL, COUNTER_BYTES)],
        .allocations = (uint64_t)peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_COUNT)],
        .allocated_before = scope->before,
    };
    return struct_write(out, &own, sizeof own, who, "out");
}

ctrt_status ctrt_memory_scope_read(ctrt_memory_peaks *out, ctrt_memory_scope *scope)
{
    NULL_CHECK("memory_scope_read", out);
    NULL_CHECK("memory_scope_read", scope);
    peak_windows_update(&scope->memory->counters);
    return peaks_write(out, scope, "memory_scope_read");
}

ctrt_status ctrt_memory_scope_end(ctrt_memory_peaks *out, ctrt_memory_scope **scope)
{
    if (scope == NULL || *scope == NULL)
        return fail_null("memory_scope_end", "scope");
    CTRT_TRY(struct_check(out, "memory_scope_end", "out"));
    HOST_AUTO ctrt_memory_scope *ended = *scope;
    *scope = NULL;
    peak_window_close(&ended->memory->counters, &ended->window);
    return out != NULL ? peaks_write(out, ended, "memory_scope_end") : CTRT_OK;
}

void ctrt_memory_scope_release(ctrt_memory_scope **scope)
{
    if (scope != NULL && *scope != NULL)
        (void)ctrt_memory_scope_end(NULL, scope);
}
