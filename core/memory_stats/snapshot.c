/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/snapshot.c: a snapshot of a device's memory as JSON.
 *
 * Statistics, allocated blocks, segments and history are read one after the other. While other threads allocate, they
 * may therefore differ by the allocations in between. */
#include <stdlib.h>

#include "base/base.h"
#include "base/file_writer.h"
#include "base/host_alloc.h"
#include "base/json.h"
#include "base/thread.h"
#include "base/backtrace.h"
#include "memory/history.h"
#include "memory_stats/owners.h"
#include "memory_stats/segments.h"
#include "memory_stats/stats.h"
#include "memory_stats/summary.h"
#include "stream/stream.h"

struct parts {
    struct block_entry *blocks;             /* by address */
    size_t block_count;
    ctrt_memory_piece *pieces;
    size_t piece_count;
    struct history_event *events;
    size_t event_count;
    uint64_t lost;
    ctrt_memory_owner *owners;
    size_t owner_count;
    const struct backtrace **stacks;        /* of the blocks and events; each stack once, by number */
    size_t stack_count;
};

static void parts_free(struct parts *parts)
{
    host_free(parts->blocks);
    host_free(parts->pieces);
    host_free(parts->events);
    host_free(parts->owners);
    host_free(parts->stacks);
}

static int compare_stacks(const void *a, const void *b)
{
    const struct backtrace *x = *(const struct backtrace *const *)a, *y = *(const struct backtrace *const *)b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static bool list_stacks(struct parts *parts)
{
    size_t count = 0, most = parts->block_count + parts->event_count;
    if (most == 0)
        return true;
    parts->stacks = host_alloc(most * sizeof parts->stacks[0]);
    if (parts->stacks == NULL)
        return false;
    for (size_t i = 0; i < parts->block_count; i++)
        if (parts->blocks[i].backtrace != NULL)
            parts->stacks[count++] = parts->blocks[i].backtrace;
    for (size_t i = 0; i < parts->event_count; i++)
        if (parts->events[i].backtrace != NULL)
            parts->stacks[count++] = parts->events[i].backtrace;
    qsort(parts->stacks, count, sizeof parts->stacks[0], compare_stacks);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || parts->stacks[i] != parts->stacks[i - 1])
            parts->stacks[parts->stack_count++] = parts->stacks[i];
    return true;
}

static bool parts_read(struct parts *parts, struct device_memory *memory)
{
    *parts = (struct parts){ 0 };
    if (block_table_list(&parts->blocks, &parts->block_count, memory)
        && segments_list(&parts->pieces, &parts->piece_count, memory)
        && history_list(&parts->events, &parts->event_count, &parts->lost, memory)
        && owners_of(&parts->owners, &parts->owner_count, memory) && list_stacks(parts))
        return true;
    parts_free(parts);
    return false;
}

static const struct block_entry *entry_at(const struct parts *parts, const void *address)
{
    size_t low = 0, high = parts->block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)parts->blocks[middle].address < (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < parts->block_count && parts->blocks[low].address == address ? &parts->blocks[low] : NULL;
}

/* The id of the stream that has, or last had, this queue. 0: the device's default stream, or a device without
 * streams. */
static unsigned long long stream_number(const ctrt_device *device, const void *queue)
{
    if (queue == NULL || device->stream == NULL || device->stream->queue == queue)
        return 0;
    return (unsigned long long)stream_queue_id(device, queue);
}

/* ---- segments ---- */

static void owner(struct json *json, const char *label, const char *op)
{
    json_add_string(json, "label", label);
    json_add_string(json, "op", op != NULL ? op : "");
}

static void stack(struct json *json, const struct backtrace *backtrace)
{
    if (backtrace != NULL)
        json_add_uint(json, "stack", backtrace->number);
}

static void block(struct json *json, const void *address, size_t bytes, int state, const struct block_entry *live)
{
    static const char *const states[] = { "inactive", "active_allocated", "active_awaiting_free" };
    json_begin(json, NULL, '{');
    json_add_uint(json, "address", (uintptr_t)address);
    json_add_uint(json, "size", bytes);
    json_add_uint(json, "requested_size", live != NULL ? live->requested : state == CTRT_BLOCK_ACTIVE ? bytes : 0);
    json_add_string(json, "state", states[MIN((unsigned)state, 2u)]);
    if (live != NULL) {
        owner(json, live->label, live->op);
        json_add_uint(json, "time_us", live->time);
        stack(json, live->backtrace);
    }
    json_end(json, '}');
}

/* Begins a segment, up to its blocks. */
static void snapshot_segment_begin(struct json *json, const void *address, size_t bytes, unsigned long long stream,
                                   bool large, bool expandable, uint64_t allocated, uint64_t active)
{
    json_begin(json, NULL, '{');
    json_add_uint(json, "address", (uintptr_t)address);
    json_add_uint(json, "total_size", bytes);
    json_add_uint(json, "stream", stream);
    json_add_string(json, "segment_type", large ? "large" : "small");
    json_add_bool(json, "is_expandable", expandable);
    json_add_uint(json, "allocated_size", allocated);
    json_add_uint(json, "active_size", active);
    json_begin(json, "blocks", '[');
}

static void segment_end(struct json *json)
{
    json_end(json, ']');
    json_end(json, '}');
}

static void segments_walked(struct json *json, const struct parts *parts, const ctrt_device *device)
{
    for (size_t i = 0; i < parts->piece_count;) {
        const ctrt_memory_piece *segment = &parts->pieces[i];
        uint64_t allocated = 0, active = 0;
        size_t end = i + 1;
        for (; end < parts->piece_count && !parts->pieces[end].segment; end++) {
            const ctrt_memory_piece *piece = &parts->pieces[end];
            allocated += piece->block_state == CTRT_BLOCK_ACTIVE ? piece->bytes : 0;
            active += piece->block_state != CTRT_BLOCK_INACTIVE ? piece->bytes : 0;
        }
        snapshot_segment_begin(json, segment->address, segment->bytes, stream_number(device, segment->queue),
                               segment->large, segment->expandable, allocated, active);
        for (size_t k = i + 1; k < end; k++) {
            const ctrt_memory_piece *piece = &parts->pieces[k];
            block(json, piece->address, piece->bytes, piece->block_state,
                  piece->block_state == CTRT_BLOCK_ACTIVE
                      ? entry_at(parts, piece->name != NULL ? piece->name : piece->address)
                      : NULL);
        }
        segment_end(json);
        i = end;
    }
}

/* For a policy that does not report its segments: lists each allocated block as a segment. */
static void segments_live(struct json *json, const struct parts *parts, const ctrt_device *device)
{
    for (size_t i = 0; i < parts->block_count; i++) {
        const struct block_entry *live = &parts->blocks[i];
        snapshot_segment_begin(json, live->address, live->bytes, stream_number(device, live->queue),
                               live->bytes > COUNTER_SMALL_MOST, false, live->bytes, live->bytes);
        block(json, live->address, live->bytes, CTRT_BLOCK_ACTIVE, live);
        segment_end(json);
    }
}

/* ---- history ---- */

static void event(struct json *json, const struct history_event *e, const ctrt_device *device)
{
    json_begin(json, NULL, '{');
    json_add_string(json, "action", history_action_name(e->action));
    json_add_uint(json, "addr", (uintptr_t)e->address);
    json_add_uint(json, "size", e->bytes);
    json_add_uint(json, "stream", stream_number(device, e->queue));
    json_add_uint(json, "time_us", e->time);
    if (e->action == HISTORY_OOM)
        json_add_uint(json, "device_free", e->free_bytes);
    if (e->action == HISTORY_ANNOTATE || e->action == HISTORY_SNAPSHOT)
        json_add_string(json, "text", e->label);
    else
        owner(json, e->label, e->op);
    stack(json, e->backtrace);
    json_end(json, '}');
}

/* ---- snapshot ---- */

static const char *watch_name(struct device_memory *memory)
{
    if (history_on(memory))
        return atomic_load(&backtrace_wanted) ? "frames" : "all";
    return pool_watched(memory) ? "state" : "none";
}

static void snapshot_to_json(struct strbuf *text, struct device_memory *memory, const struct parts *parts)
{
    struct json json = { .text = text, .lines = 2 };
    ctrt_memory_stats stats;
    stats_read(&stats, memory);
    json_begin(&json, NULL, '{');
    json_add_string(&json, "format", "ctrt memory snapshot");
    json_add_uint(&json, "version", 2);
    json_add_string(&json, "library", ctrt_version());
    json_add_string(&json, "device", memory->device->name);
    json_add_string(&json, "policy", memory->policy_name);
    json_add_string(&json, "watch", watch_name(memory));
    json_add_uint(&json, "time_us", history_now());
    json_add_uint(&json, "total_bytes", memory->total_bytes);
    summary_stats_json(&json, &stats);
    owners_json(&json, "owners", parts->owners, parts->owner_count);
    json_begin(&json, "segments", '[');
    if (parts->pieces != NULL)
        segments_walked(&json, parts, memory->device);
    else
        segments_live(&json, parts, memory->device);
    json_end(&json, ']');
    json_add_uint(&json, "events_lost", parts->lost);
    json_begin(&json, "device_traces", '[');
    json_begin(&json, NULL, '[');
    for (size_t i = 0; i < parts->event_count; i++)
        event(&json, &parts->events[i], memory->device);
    json_end(&json, ']');
    json_end(&json, ']');
    json_begin(&json, "stacks", '{');
    for (size_t i = 0; i < parts->stack_count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%u", (unsigned)parts->stacks[i]->number);
        backtrace_json(&json, number, parts->stacks[i]);
    }
    json_end(&json, '}');
    json_end(&json, '}');
}

static ctrt_status snapshot(char **out, ctrt_device *device, const char *why)
{
    struct device_memory *memory;
    struct parts parts;
    struct strbuf text = { 0 };
    CTRT_TRY(memory_get(&memory, device));
    if (history_on(memory)) {
        struct history_event event = { .time = history_now(), .label = why, .action = HISTORY_SNAPSHOT };
        history_note(memory, &event);
    }
    if (!parts_read(&parts, memory))
        return out_of_memory(1, "a snapshot");
    snapshot_to_json(&text, memory, &parts);
    parts_free(&parts);
    return strbuf_finish(out, &text, "a snapshot");
}

ctrt_status ctrt_memory_snapshot(char **out, ctrt_device *device)
{
    NULL_CHECK("memory_snapshot", out);
    return snapshot(out, device, "");
}

/* ---- writing to a file ---- */

ctrt_status ctrt_memory_snapshot_write(const char *path, ctrt_device *device)
{
    CANCEL_DISABLED;
    HOST_AUTO char *text = NULL;
    NULL_CHECK("memory_snapshot_write", path);
    CTRT_TRY(snapshot(&text, device, ""));
    struct file_writer file;
    ctrt_status status = file_writer_open(&file, path);
    if (status == CTRT_OK)
        status = file_writer_close(&file, file_writer_write(&file, text, strlen(text)));
    return ctrt_context(status, "memory_snapshot_write");
}
