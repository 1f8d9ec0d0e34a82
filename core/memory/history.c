/* SPDX-License-Identifier: Apache-2.0 */
/* memory/history.c: the ring buffer of memory events, and the choice of what is recorded. */
#include "memory/history.h"

#include "base/base.h"
#include "base/clock.h"
#include "base/intern.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/param.h"
#include "base/backtrace.h"

static const ctrt_param history_param = {
    sizeof history_param, "CTRT_MEMORY_HISTORY", CTRT_PARAM_STRING, NULL, NULL,
    "memory records: none, state (live blocks), all[:ENTRIES] (also the last events) or frames[:ENTRIES] (also "
    "backtraces); default: state on asynchronous devices, none on others",
};
CORE_PARAM(history_param);

struct history {
    size_t capacity;
    uint64_t count;                         /* events so far; the ring contains the last `capacity` */
    struct history_event events[];
};

LOCK_DEFINE_MUTEX(history_lock);    /* guards all rings and `choice` */
static bool parameter_read;                 /* no lock, because devices are opened one at a time */
static struct choice {
    bool made;
    ctrt_memory_watch watch;
    size_t entries;
} choice;

uint64_t history_now(void)
{
    return (uint64_t)clock_now(CLOCK_REALTIME) / 1000;
}

uint64_t history_about_now(void)
{
    return (uint64_t)clock_now(CLOCK_REALTIME_COARSE) / 1000;
}

const char *history_action_name(enum history_action action)
{
    static const char *const names[HISTORY_ACTIONS] = { "alloc", "free_requested", "free_completed", "segment_alloc",
                                                        "segment_free", "segment_map", "segment_unmap", "oom",
                                                        "snapshot", "annotate" };
    return names[action];
}

/* ---- ring buffer ---- */

__attribute__((noinline)) void history_note(struct device_memory *memory, struct history_event *event)
{
    if (unlikely(atomic_load_explicit(&backtrace_wanted, memory_order_relaxed)) && event->backtrace == NULL)
        event->backtrace = backtrace_here();
    pthread_mutex_lock(&history_lock);
    struct history *ring = memory->history;
    if (ring != NULL) {
        event->number = ++ring->count;
        ring->events[event->number % ring->capacity] = *event;
    }
    pthread_mutex_unlock(&history_lock);
}

void history_name(struct device_memory *memory, uint64_t number, const char *op, const char *label)
{
    pthread_mutex_lock(&history_lock);
    struct history *ring = memory->history;
    struct history_event *event = ring != NULL ? &ring->events[number % ring->capacity] : NULL;
    if (event != NULL && event->number == number) {
        event->op = op != NULL ? op : event->op;
        event->label = label != NULL ? label : event->label;
    }
    pthread_mutex_unlock(&history_lock);
}

bool history_list(struct history_event **out, size_t *count, uint64_t *lost, struct device_memory *memory)
{
    *out = NULL;
    *count = 0;
    *lost = 0;
    pthread_mutex_lock(&history_lock);
    struct history *ring = memory->history;
    size_t n = ring != NULL ? MIN(ring->count, ring->capacity) : 0;
    struct history_event *list = n > 0 ? host_alloc(n * sizeof *list) : NULL;
    for (size_t i = 0; list != NULL && i < n; i++)
        list[i] = ring->events[(ring->count - n + 1 + i) % ring->capacity];
    *lost = n > 0 ? ring->count - n : 0;
    pthread_mutex_unlock(&history_lock);
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
            || (fresh = host_calloc(sizeof *fresh + bytes)) == NULL)
            return out_of_memory(entries * sizeof fresh->events[0], "the history of memory");
        fresh->capacity = entries;
    }
    pthread_mutex_lock(&history_lock);
    old = memory->history;
    memory->history = fresh;
    atomic_store(&memory->history_on, fresh != NULL);
    pthread_mutex_unlock(&history_lock);
    host_free(old);
    return CTRT_OK;
}

/* ---- choice of what is recorded ---- */

static ctrt_status history_parse(const char *text, ctrt_memory_watch *watch, size_t *entries)
{
    static const char *const words[] = { "none", "state", "all", "frames" };
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
        if (*watch < CTRT_MEMORY_WATCH_ALL || *end != '\0' || text[length + 1] < '1' || text[length + 1] > '9'
            || value > UINT32_MAX)
            break;
        *entries = (size_t)value;
        return CTRT_OK;
    }
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "CTRT_MEMORY_HISTORY=%.100s: expected none, state, all, frames or all:ENTRIES, as in all:100000",
                     text);
}

/* Applies the latest choice to a device. Not called concurrently: opening a device and iterating over all devices hold
 * the same lock. */
static ctrt_status watch_device(struct device_memory *memory)
{
    pthread_mutex_lock(&history_lock);
    struct choice now = choice;
    if (!now.made)
        now.watch = memory->device->flags & CTRT_DEVICE_ASYNCHRONOUS ? CTRT_MEMORY_WATCH_STATE : CTRT_MEMORY_WATCH_NONE;
    if (now.watch != CTRT_MEMORY_WATCH_NONE)
        atomic_store(&label_wanted, true);
    pthread_mutex_unlock(&history_lock);
    return block_table_watch(memory, now.watch != CTRT_MEMORY_WATCH_NONE,
                             now.watch >= CTRT_MEMORY_WATCH_ALL ? now.entries : 0);
}

/* `anyway`: replace an earlier choice. */
static void history_choose(ctrt_memory_watch watch, size_t entries, bool anyway)
{
    if (watch == CTRT_MEMORY_WATCH_FRAMES)
        backtrace_prepare();
    pthread_mutex_lock(&history_lock);
    if (anyway || !choice.made)
        choice = (struct choice){ true, watch, entries };
    atomic_store(&backtrace_wanted, choice.watch == CTRT_MEMORY_WATCH_FRAMES);
    if (choice.watch == CTRT_MEMORY_WATCH_NONE)
        atomic_store(&label_wanted, false);
    pthread_mutex_unlock(&history_lock);
}

static bool choice_made(void)
{
    pthread_mutex_lock(&history_lock);
    bool made = choice.made;
    pthread_mutex_unlock(&history_lock);
    return made;
}

ctrt_status block_table_init(struct device_memory *memory)
{
    if (!parameter_read && !choice_made()) {
        ctrt_param_value value;
        ctrt_memory_watch watch = CTRT_MEMORY_WATCH_NONE;
        size_t entries = 0;
        CTRT_TRY(param_read(&value, &history_param, "core"));
        if (value.text != NULL && value.text[0] != '\0') {
            CTRT_TRY(history_parse(value.text, &watch, &entries));
            history_choose(watch, entries, false);
        }
        parameter_read = true;
    }
    return watch_device(memory);
}

static void watch_each(ctrt_device *device, void *argument)
{
    ctrt_status *first = argument, status = watch_device(device->memory);
    if (*first == CTRT_OK)
        *first = status;
}

ctrt_status ctrt_memory_set_watch(ctrt_memory_watch watch, size_t entries)
{
    ctrt_status status = CTRT_OK;
    if ((int)watch < CTRT_MEMORY_WATCH_NONE || watch > CTRT_MEMORY_WATCH_FRAMES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_set_watch: %d is not a ctrt_memory_watch", (int)watch);
    history_choose(watch, entries > 0 ? entries : HISTORY_ENTRIES, true);
    device_for_each(watch_each, &status);
    return status;
}

ctrt_status ctrt_memory_annotate(ctrt_device *device, const char *text)
{
    struct device_memory *memory;
    NULL_CHECK("memory_annotate", text);
    CTRT_TRY(memory_get(&memory, device));
    if (!history_on(memory))
        return CTRT_OK;
    struct history_event event = { .time = history_now(), .label = intern_string(text), .action = HISTORY_ANNOTATE };
    ALLOC_CHECK(event.label, strlen(text), "a remark");
    history_note(memory, &event);
    return CTRT_OK;
}
