/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/summary.c: the memory statistics of a device as a table and as JSON.
 *
 * The table has the rows and columns of PyTorch's memory_summary, with 75 characters between the outer bars. The unit
 * of the sizes in a column is chosen by the row over all pools, so that the lines below it can be added up. */
#include "memory_stats/summary.h"

#include "base/base.h"
#include "base/json.h"
#include "memory_stats/stats.h"

#define WIDTH 75

const char *summary_size(char text[16], int64_t bytes, int64_t by)
{
    static const char *const units[] = { "B  ", "KiB", "MiB", "GiB", "TiB", "PiB" };
    size_t unit = 0;
    double chooser = (double)by;
    for (; chooser >= 768 * 1024 && unit + 1 < COUNT_OF(units); unit++) {
        chooser /= 1024;
        bytes /= 1024;
    }
    snprintf(text, 16, "%6lld %s", (long long)bytes, units[unit]);
    return text;
}

const char *summary_count(char text[16], int64_t count, int64_t by)
{
    static const char units[] = " KM";
    size_t unit = 0;
    double chooser = (double)by;
    for (; chooser >= 750 * 1000 && unit < 2; unit++) {
        chooser /= 1000;
        count /= 1000;
    }
    snprintf(text, 16, "%7lld %c ", (long long)count, units[unit]);
    return text;
}

static void line_of(struct strbuf *text, char c)
{
    char line[WIDTH + 1];
    memset(line, c, WIDTH);
    line[WIDTH] = '\0';
    strbuf_add(text, "|%s|\n", line);
}

static void centered(struct strbuf *text, const char *title)
{
    int length = (int)MIN(strlen(title), WIDTH - 2), left = (WIDTH - length) / 2;
    strbuf_add(text, "|%*s%.*s%*s|\n", left, "", length, title, WIDTH - length - left, "");
}

static void row(struct strbuf *text, const char *name, const ctrt_stat *stat, const ctrt_stat *by,
                const char *(*format)(char *, int64_t, int64_t))
{
    char current[16], peak[16], allocated[16], freed[16];
    strbuf_add(text, "| %-21s | %s | %s | %s | %s |\n", name, format(current, stat->current, by->current),
               format(peak, stat->peak, by->peak), format(allocated, stat->allocated, by->allocated),
               format(freed, stat->freed, by->freed));
}

#define MEMBER(name) offsetof(ctrt_memory_stats, name)
static const struct {
    const char *name;
    size_t offset;
    const char *(*format)(char *, int64_t, int64_t);
    bool pools, rare;                       /* rare: printed only if not 0 */
} rows[] = {
    { "Allocated memory",      MEMBER(allocated_bytes),      summary_size,  true, false },
    { "Active memory",         MEMBER(active_bytes),         summary_size,  true, false },
    { "Requested memory",      MEMBER(requested_bytes),      summary_size,  true, false },
    { "GPU reserved memory",   MEMBER(reserved_bytes),       summary_size,  true, false },
    { "Non-releasable memory", MEMBER(inactive_split_bytes), summary_size,  true, false },
    { "Allocations",           MEMBER(allocation),           summary_count, true, false },
    { "Active allocs",         MEMBER(active),               summary_count, true, false },
    { "GPU reserved segments", MEMBER(segment),              summary_count, true, false },
    { "Non-releasable allocs", MEMBER(inactive_split),       summary_count, true, false },
    { "Oversize allocations",  MEMBER(oversize_allocations), summary_count, false, false },
    { "Oversize GPU segments", MEMBER(oversize_segments),    summary_count, false, false },
    { "Memory on the host",    MEMBER(spilled_bytes),        summary_size,  false, true },
    { "Blocks on the host",    MEMBER(spilled),              summary_count, false, true },
};

void summary_table(struct strbuf *text, const char *device, const ctrt_memory_stats *stats, bool abbreviated)
{
    char title[WIDTH];
    snprintf(title, sizeof title, "ctrt memory summary, device %.40s", device);
    line_of(text, '=');
    centered(text, title);
    line_of(text, '-');
    strbuf_add(text, "|  %9s Device OOMs: %-10lld | %4s allocation retries: %-10lld  |\n", "",
               (long long)stats->num_ooms, "", (long long)stats->num_alloc_retries);
    line_of(text, '=');
    strbuf_add(text, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const ctrt_stat *all = (const void *)((const char *)stats + rows[i].offset);
        if (rows[i].rare && all->allocated == 0)
            continue;
        line_of(text, '-');
        row(text, rows[i].name, all, all, rows[i].format);
        if (abbreviated || !rows[i].pools)
            continue;
        row(text, "      from large pool", &all[CTRT_POOL_LARGE], all, rows[i].format);
        row(text, "      from small pool", &all[CTRT_POOL_SMALL], all, rows[i].format);
    }
    line_of(text, '=');
}

void summary_stats_json(struct json *json, const ctrt_memory_stats *stats)
{
    const char *key;
    json_begin(json, "stats", '{');
    for (size_t i = 0; (key = ctrt_memory_stat_key(i)) != NULL; i++)
        json_add_int(json, key, stats_value(stats, i));
    json_end(json, '}');
}

/* ---- public ---- */

ctrt_status ctrt_memory_summary(char **out, ctrt_device *device, bool abbreviated)
{
    struct device_memory *memory;
    ctrt_memory_stats stats;
    struct strbuf text = { 0 };
    NULL_CHECK("memory_summary", out);
    CTRT_TRY(memory_get(&memory, device));
    stats_read(&stats, memory);
    summary_table(&text, memory->device->name, &stats, abbreviated);
    return strbuf_finish(out, &text, "a summary");
}

ctrt_status ctrt_memory_summary_json(char **out, ctrt_device *device)
{
    struct device_memory *memory;
    ctrt_memory_stats stats;
    struct strbuf text = { 0 };
    NULL_CHECK("memory_summary_json", out);
    CTRT_TRY(memory_get(&memory, device));
    stats_read(&stats, memory);
    struct json json = { .text = &text, .lines = 2 };
    json_begin(&json, NULL, '{');
    json_add_string(&json, "device", memory->device->name);
    json_add_string(&json, "policy", memory->policy_name);
    summary_stats_json(&json, &stats);
    json_end(&json, '}');
    return strbuf_finish(out, &text, "a summary");
}
