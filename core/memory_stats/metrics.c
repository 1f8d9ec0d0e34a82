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
    uint64_t total, free_bytes, limit;      /* 0: unknown, no limit */
    uint64_t pinned, synchronizations;
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
    if (slot_memory_info(device, &reading->free_bytes, &reading->total) != CTRT_OK)
        reading->free_bytes = reading->total = 0;
    reading->limit = atomic_load(&device->memory->limit);
    if (reading->limit == QUOTA_NONE)
        reading->limit = 0;
    reading->pinned = pinned_held(device);
    reading->synchronizations = ctrt_device_synchronizations(device);
}

/* ---- metrics ---- */

#define AT(member)         offsetof(struct metrics_now, member), -1
#define STAT(member)       AT(stats.member)
#define PEAK(member, peak) offsetof(struct metrics_now, stats.member), peak
static const struct metric {
    const char *name, *type, *help;
    size_t offset;                          /* of the value, 64 bits */
    int peak;                               /* index of its peak in `peaks`, which is the metric; -1: none */
} metrics[] = {
    { "ctrt_memory_allocated_bytes", "gauge", "Bytes in blocks allocated to tensors.",
      STAT(allocated_bytes[0].current) },
    { "ctrt_memory_allocated_bytes_max", "gauge", "Peak of allocated bytes since the last scrape.",
      PEAK(allocated_bytes[0].current, PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES)) },
    { "ctrt_memory_requested_bytes", "gauge", "Requested bytes, before rounding.", STAT(requested_bytes[0].current) },
    { "ctrt_memory_reserved_bytes", "gauge", "Bytes reserved from the device, in use or cached.",
      STAT(reserved_bytes[0].current) },
    { "ctrt_memory_reserved_bytes_max", "gauge", "Peak of reserved bytes since the last scrape.",
      PEAK(reserved_bytes[0].current, PEAK_OF_RESERVED(CTRT_POOL_ALL, COUNTER_BYTES)) },
    { "ctrt_memory_inactive_split_bytes", "gauge", "Free bytes in segments that cannot be released.",
      STAT(inactive_split_bytes[0].current) },
    { "ctrt_memory_spilled_bytes", "gauge", "Bytes of blocks moved to the host for lack of device memory.",
      STAT(spilled_bytes.current) },
    { "ctrt_memory_blocks", "gauge", "Allocated blocks.", STAT(allocation[0].current) },
    { "ctrt_memory_blocks_max", "gauge", "Peak of allocated blocks since the last scrape.",
      PEAK(allocation[0].current, PEAK_OF(CTRT_POOL_ALL, COUNTER_COUNT)) },
    { "ctrt_memory_segments", "gauge", "Segments reserved from the device.", STAT(segment[0].current) },
    { "ctrt_memory_device_free_bytes", "gauge", "Free bytes of the device, over all processes; 0 if unknown.",
      AT(free_bytes) },
    { "ctrt_memory_device_total_bytes", "gauge", "Total bytes of the device; 0 if unknown.", AT(total) },
    { "ctrt_memory_limit_bytes", "gauge", "Limit of reserved bytes; 0: no limit.", AT(limit) },
    { "ctrt_memory_pinned_bytes", "gauge", "Host memory pinned for the device, in use or cached.", AT(pinned) },
    { "ctrt_memory_pinned_active_bytes", "gauge", "Pinned host memory used by tensors.",
      STAT(host.active_bytes.current) },
    { "ctrt_memory_allocations_total", "counter", "Allocations of blocks since the start.",
      STAT(allocation[0].allocated) },
    { "ctrt_memory_frees_total", "counter", "Frees of blocks since the start.", STAT(allocation[0].freed) },
    { "ctrt_memory_device_allocations_total", "counter", "Allocations of the backend since the start.",
      STAT(num_device_alloc) },
    { "ctrt_memory_device_frees_total", "counter", "Frees of the backend since the start.", STAT(num_device_free) },
    { "ctrt_memory_retries_total", "counter", "Allocations retried after the cache was released.",
      STAT(num_alloc_retries) },
    { "ctrt_memory_ooms_total", "counter", "Allocations that failed.", STAT(num_ooms) },
    { "ctrt_memory_oom_rejections_total", "counter",
      "Failed allocations that a limit rejected without a call of the device.", STAT(num_oom_rejections) },
    { "ctrt_device_synchronizations_total", "counter", "Times that the host waited for the device.",
      AT(synchronizations) },
};

static long long metric_value(const struct metric *metric, const struct metrics_now *reading)
{
    int64_t value;
    memcpy(&value, (const char *)reading + metric->offset, sizeof value);
    /* With several threads a peak may be below the current value. */
    return metric->peak >= 0 ? MAX(reading->peaks[metric->peak], value) : value;
}

/* Appends a label's value; backslash, quote and newline are escaped. */
static void label(struct strbuf *text, const char *value)
{
    for (; *value != '\0'; value++)
        strbuf_add(text, strchr("\\\"\n", *value) ? "\\%c" : "%c", *value == '\n' ? 'n' : *value);
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
            strbuf_add(text, "\"} %lld\n", metric_value(&metrics[m], &readings->at[i]));
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
                         metric_value(&metrics[m], &readings->at[i]));
        json_end(&json, '}');
    }
    json_end(&json, ']');
    json_end(&json, '}');
}

ctrt_status ctrt_memory_metrics(char **out, ctrt_metrics_format format)
{
    struct readings readings = { .count = 0 };
    struct strbuf text = { 0 };
    NULL_CHECK("memory_metrics", out);
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
