/* SPDX-License-Identifier: Apache-2.0 */
/* memory/history.c: the ring of events, and what is watched at all. */
#include "memory/history.h"

#include <time.h>

#include "base/base.h"
#include "base/keep.h"
#include "base/memory.h"
#include "base/param.h"

static const ctrt_param history_param = {
    sizeof history_param, "CTRT_MEMORY_HISTORY", CTRT_PARAM_STRING, NULL, NULL,
    "what is noted of memory: none, state (live blocks) or all[:ENTRIES] (and the last events); default: state on "
    "asynchronous devices, none on others",
};
CORE_PARAM(history_param);

struct history {
    size_t room;
    uint64_t count;                         /* ever; the last `room` are there */
    struct history_event events[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* of all rings */
static bool chosen, parameter_read;
static ctrt_memory_watch choice;
static size_t choice_entries;

static void after_fork_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void history_start(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t history_now(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t history_about_now(void)
{
    return read_clock(CLOCK_REALTIME_COARSE);
}

const char *history_action_name(enum history_action action)
{
    static const char *const names[HISTORY_ACTIONS] = { "alloc", "free_requested", "free_completed", "segment_alloc",
                                                        "segment_free", "segment_map", "segment_unmap", "oom", "snapshot", "annotate" };
    return names[action];
}

/* ---- the ring ---- */

void history_note(struct device_memory *memory, struct history_event *event)
{
    pthread_mutex_lock(&lock);
    struct history *ring = memory->history;
    if (ring != NULL) {
        event->number = ++ring->count;
        ring->events[event->number % ring->room] = *event;
    }
    pthread_mutex_unlock(&lock);
}

void history_name(struct device_memory *memory, uint64_t number, const char *op)
{
    pthread_mutex_lock(&lock);
    struct history *ring = memory->history;
    if (ring != NULL && ring->events[number % ring->room].number == number)
        ring->events[number % ring->room].op = op;
    pthread_mutex_unlock(&lock);
}

bool history_list(struct history_event **out, size_t *count, uint64_t *lost, struct device_memory *memory)
{
    *out = NULL;
    *count = 0;
    *lost = 0;
    pthread_mutex_lock(&lock);
    struct history *ring = memory->history;
    size_t n = ring != NULL ? MIN(ring->count, ring->room) : 0;
    struct history_event *list = n > 0 ? memory_alloc(n * sizeof *list) : NULL;
    for (size_t i = 0; list != NULL && i < n; i++)
        list[i] = ring->events[(ring->count - n + 1 + i) % ring->room];
    *lost = n > 0 ? ring->count - n : 0;
    pthread_mutex_unlock(&lock);
    if (n > 0 && list == NULL)
        return false;
    *out = list;
    *count = n;
    return true;
}

ctrt_status history_resize(struct device_memory *memory, size_t entries)
{
    struct history *fresh = NULL, *old;
    if (entries > 0) {
        size_t bytes;
        if (__builtin_mul_overflow(entries, sizeof fresh->events[0], &bytes) || bytes > PTRDIFF_MAX / 2
            || (fresh = memory_zeroed(sizeof *fresh + bytes)) == NULL)
            return out_of_memory(entries * sizeof fresh->events[0], "the history of memory");
        fresh->room = entries;
    }
    pthread_mutex_lock(&lock);
    old = memory->history;
    memory->history = fresh;
    atomic_store(&memory->history_on, fresh != NULL);
    pthread_mutex_unlock(&lock);
    memory_free(old);
    return CTRT_OK;
}

/* ---- what is watched ---- */

static ctrt_status parse(const char *text, ctrt_memory_watch *watch, size_t *entries)
{
    static const char *const words[] = { "none", "state", "all" };
    size_t length = strcspn(text, ":");
    *entries = HISTORY_ENTRIES;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strlen(words[i]) != length || memcmp(words[i], text, length) != 0)
            continue;
        *watch = (ctrt_memory_watch)i;
        if (text[length] == '\0')
            return CTRT_OK;
        char *end;
        unsigned long long value = strtoull(text + length + 1, &end, 10);
        if (*watch != CTRT_MEMORY_WATCH_ALL || *end != '\0' || text[length + 1] < '1' || text[length + 1] > '9'
            || value > UINT32_MAX)
            break;
        *entries = (size_t)value;
        return CTRT_OK;
    }
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "CTRT_MEMORY_HISTORY=%.100s: expected none, state, all or all:ENTRIES, as in all:100000", text);
}

static ctrt_status watch_device(struct device_memory *memory)
{
    ctrt_memory_watch watch = choice;
    if (!chosen)
        watch = memory->device->flags & CTRT_DEVICE_ASYNCHRONOUS ? CTRT_MEMORY_WATCH_STATE : CTRT_MEMORY_WATCH_NONE;
    if (watch != CTRT_MEMORY_WATCH_NONE)
        atomic_store(&tag_wanted, true);
    return live_watch(memory, watch != CTRT_MEMORY_WATCH_NONE, watch == CTRT_MEMORY_WATCH_ALL ? choice_entries : 0);
}

/* Devices open one at a time. */
ctrt_status live_init(struct device_memory *memory)
{
    if (!parameter_read && !chosen) {
        ctrt_param_value value;
        CTRT_TRY(param_read(&value, &history_param, "core"));
        if (value.text != NULL && value.text[0] != '\0') {
            CTRT_TRY(parse(value.text, &choice, &choice_entries));
            chosen = true;
        }
        parameter_read = true;
    }
    return watch_device(memory);
}

struct watching {
    ctrt_status status;
};

static void watch_each(ctrt_device *device, void *argument)
{
    struct watching *watching = argument;
    ctrt_status status = watch_device(device->memory);
    if (watching->status == CTRT_OK)
        watching->status = status;
}

ctrt_status ctrt_memory_set_watch(ctrt_memory_watch watch, size_t entries)
{
    struct watching watching = { CTRT_OK };
    if ((int)watch < CTRT_MEMORY_WATCH_NONE || watch > CTRT_MEMORY_WATCH_ALL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_set_watch: %d is none of ctrt_memory_watch", (int)watch);
    choice = watch;
    choice_entries = entries > 0 ? entries : HISTORY_ENTRIES;
    chosen = true;
    if (watch == CTRT_MEMORY_WATCH_NONE)
        atomic_store(&tag_wanted, false);
    device_for_each(watch_each, &watching);
    return watching.status;
}

ctrt_status ctrt_memory_annotate(ctrt_device *device, const char *text)
{
    struct device_memory *memory;
    if (text == NULL)
        return fail_null("memory_annotate", "text");
    CTRT_TRY(memory_get(&memory, device));
    if (!history_on(memory))
        return CTRT_OK;
    struct history_event event = { .time = history_now(), .tag = keep_text(text), .action = HISTORY_ANNOTATE };
    if (event.tag == NULL)
        return out_of_memory(strlen(text), "a remark");
    history_note(memory, &event);
    return CTRT_OK;
}
