/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/metrics.c: memory statistics of all open devices for monitoring: in Prometheus' text format 0.0.4,
 * or as JSON.
 *
 * A monitor reads the metrics at intervals and would miss what happens in between. Therefore maxima are those since the
 * last reading (memory->scraped). */
#include "base/base.h"
#include "base/json.h"
#include "memory/pinned_cache.h"
#include "memory/quota.h"
#include "memory_stats/stats.h"

#define MOST_DEVICES 64

struct metrics_now {
    const char *device, *policy;
    ctrt_device *of;
    ctrt_memory_stats stats;
    int64_t peaks[PEAKS];                   /* since the last reading */
    uint64_t total, free_bytes, limit;      /* 0 and QUOTA_NONE: unknown, no limit */
    uint64_t pinned;
};

struct readings {
    struct metrics_now at[MOST_DEVICES];
    size_t count;
};

/* Called under the device lock, under which locks of policies must not be taken; therefore only collects the
 * devices. */
static void note_device(ctrt_device *device, void *argument)
{
    struct readings *readings = argument;
    if (readings->count < MOST_DEVICES && device->memory != NULL && device_usable(device))
        readings->at[readings->count++].of = device;
}

static void read_device(struct metrics_now *reading)
{
    ctrt_device *device = reading->of;
    reading->device = device->name;
    reading->policy = device->memory->policy_name;
    /* The statistics are read first, so that the current values belong to the period of the peaks. */
    stats_read(&reading->stats, device->memory);
    peak_window_restart(&device->memory->counters, &device->memory->scraped, reading->peaks);
    if (!CTRT_SLOT(device->backend->device, memory_info)
        || device->backend->device->memory_info(device->handle, &reading->free_bytes, &reading->total) != CTRT_OK)
        reading->free_bytes = reading->total = 0;
    reading->limit = atomic_load(&device->memory->limit);
    reading->pinned = pinned_held(device);
}

/* ---- metrics; MAX is needed because with several threads a peak may be below the current value ---- */

static int64_t allocated(const struct metrics_now *r) { return r->stats.allocated_bytes[0].current; }
static int64_t allocated_most(const struct metrics_now *r)
{
    return MAX(r->peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES)], allocated(r));
}
static int64_t requested(const struct metrics_now *r) { return r->stats.requested_bytes[0].current; }
static int64_t reserved(const struct metrics_now *r) { return r->stats.reserved_bytes[0].current; }
static int64_t reserved_most(const struct metrics_now *r)
{
    return MAX(r->peaks[PEAK_OF_RESERVED(CTRT_POOL_ALL, COUNTER_BYTES)], reserved(r));
}
static int64_t inactive_split(const struct metrics_now *r) { return r->stats.inactive_split_bytes[0].current; }
static int64_t spilled(const struct metrics_now *r) { return r->stats.spilled_bytes.current; }
static int64_t blocks(const struct metrics_now *r) { return r->stats.allocation[0].current; }
static int64_t blocks_most(const struct metrics_now *r)
{
    return MAX(r->peaks[PEAK_OF(CTRT_POOL_ALL, COUNTER_COUNT)], blocks(r));
}
static int64_t segments(const struct metrics_now *r) { return r->stats.segment[0].current; }
static int64_t device_free(const struct metrics_now *r) { return (int64_t)r->free_bytes; }
static int64_t device_total(const struct metrics_now *r) { return (int64_t)r->total; }
static int64_t limit(const struct metrics_now *r) { return r->limit != QUOTA_NONE ? (int64_t)r->limit : 0; }
static int64_t pinned(const struct metrics_now *r) { return (int64_t)r->pinned; }
static int64_t pinned_active(const struct metrics_now *r) { return r->stats.host.active_bytes.current; }
static int64_t rejections(const struct metrics_now *r) { return r->stats.num_oom_rejections; }
static int64_t allocations(const struct metrics_now *r) { return r->stats.allocation[0].allocated; }
static int64_t frees(const struct metrics_now *r) { return r->stats.allocation[0].freed; }
static int64_t device_allocs(const struct metrics_now *r) { return r->stats.num_device_alloc; }
static int64_t device_frees(const struct metrics_now *r) { return r->stats.num_device_free; }
static int64_t retries(const struct metrics_now *r) { return r->stats.num_alloc_retries; }
static int64_t synchronizations(const struct metrics_now *r) { return (int64_t)ctrt_device_synchronizations(r->of); }
static int64_t ooms(const struct metrics_now *r) { return r->stats.num_ooms; }

static const struct metric {
    const char *name, *type, *help;
    int64_t (*value)(const struct metrics_now *reading);
} metrics[] = {
    { "ctrt_memory_allocated_bytes", "gauge", "Bytes in blocks allocated to tensors.", allocated },
    { "ctrt_memory_allocated_bytes_max", "gauge", "Peak of allocated bytes since the last scrape.",
      allocated_most },
    { "ctrt_memory_requested_bytes", "gauge", "Requested bytes, before rounding.", requested },
    { "ctrt_memory_reserved_bytes", "gauge", "Bytes reserved from the device, in use or cached.", reserved },
    { "ctrt_memory_reserved_bytes_max", "gauge", "Peak of reserved bytes since the last scrape.", reserved_most },
    { "ctrt_memory_inactive_split_bytes", "gauge", "Free bytes in segments that cannot be released.", inactive_split },
    { "ctrt_memory_spilled_bytes", "gauge", "Bytes of blocks moved to the host for lack of device memory.", spilled },
    { "ctrt_memory_blocks", "gauge", "Allocated blocks.", blocks },
    { "ctrt_memory_blocks_max", "gauge", "Peak of allocated blocks since the last scrape.", blocks_most },
    { "ctrt_memory_segments", "gauge", "Segments reserved from the device.", segments },
    { "ctrt_memory_device_free_bytes", "gauge", "Free bytes of the device, over all processes; 0 if unknown.",
      device_free },
    { "ctrt_memory_device_total_bytes", "gauge", "Total bytes of the device; 0 if unknown.", device_total },
    { "ctrt_memory_limit_bytes", "gauge", "Limit of reserved bytes; 0: no limit.", limit },
    { "ctrt_memory_pinned_bytes", "gauge", "Host memory pinned for the device, in use or cached.", pinned },
    { "ctrt_memory_pinned_active_bytes", "gauge", "Pinned host memory used by tensors.", pinned_active },
    { "ctrt_memory_allocations_total", "counter", "Allocations of blocks since the start.", allocations },
    { "ctrt_memory_frees_total", "counter", "Frees of blocks since the start.", frees },
    { "ctrt_memory_device_allocations_total", "counter", "Allocations of the backend since the start.", device_allocs },
    { "ctrt_memory_device_frees_total", "counter", "Frees of the backend since the start.", device_frees },
    { "ctrt_memory_retries_total", "counter", "Allocations retried after the cache was released.", retries },
    { "ctrt_memory_ooms_total", "counter", "Allocations that failed.", ooms },
    { "ctrt_memory_oom_rejections_total", "counter",
      "Failed allocations that a limit rejected without a call of the device.",
      rejections },
    { "ctrt_device_synchronizations_total", "counter", "Times that the host waited for the device.", synchronizations },
};

/* Appends a label's value; backslash, quote and newline are escaped. */
static void label(struct strbuf *text, const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value == '\\' || *value == '"')
            strbuf_add(text, "\\%c", *value);
        else if (*value == '\n')
            strbuf_add(text, "\\n");
        else
            strbuf_add(text, "%c", *value);
    }
}

static void to_prometheus(struct strbuf *text, const struct readings *readings)
{
    for (size_t m = 0; m < COUNT_OF(metrics); m++) {
        strbuf_add(text, "# HELP %s %s\n# TYPE %s %s\n", metrics[m].name, metrics[m].help, metrics[m].name,
                   metrics[m].type);
        for (size_t i = 0; i < readings->count; i++) {
            strbuf_add(text, "%s{device=\"", metrics[m].name);
            label(text, readings->at[i].device);
            strbuf_add(text, "\",policy=\"");
            label(text, readings->at[i].policy);
            strbuf_add(text, "\"} %lld\n", (long long)metrics[m].value(&readings->at[i]));
        }
    }
}

static void metrics_to_json(struct strbuf *text, const struct readings *readings)
{
    struct json json = { .text = text, .lines = 3 };
    json_begin(&json, NULL, '{');
    json_begin(&json, "devices", '[');
    for (size_t i = 0; i < readings->count; i++) {
        json_begin(&json, NULL, '{');
        json_add_string(&json, "device", readings->at[i].device);
        json_add_string(&json, "policy", readings->at[i].policy);
        for (size_t m = 0; m < COUNT_OF(metrics); m++)
            json_add_int(&json, metrics[m].name + strlen("ctrt_memory_"),      /* same length as ctrt_device_ */
                         metrics[m].value(&readings->at[i]));
        json_end(&json, '}');
    }
    json_end(&json, ']');
    json_end(&json, '}');
}

ctrt_status ctrt_memory_metrics(char **out, ctrt_metrics_format format)
{
    struct readings readings = { .count = 0 };
    struct strbuf text = { 0 };
    if (out == NULL)
        return fail_null("memory_metrics", "out");
    if (format != CTRT_METRICS_PROMETHEUS && format != CTRT_METRICS_JSON)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_metrics: %d is not a ctrt_metrics_format", (int)format);
    device_for_each(note_device, &readings);
    for (size_t i = 0; i < readings.count; i++)
        read_device(&readings.at[i]);
    if (format == CTRT_METRICS_PROMETHEUS)
        to_prometheus(&text, &readings);
    else
        metrics_to_json(&text, &readings);
    return strbuf_finish(out, &text, "metrics");
}
