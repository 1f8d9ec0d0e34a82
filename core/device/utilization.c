/* SPDX-License-Identifier: Apache-2.0 */
/* device/utilization.c: load, memory, processes and links of devices; selection of devices that are free.
 *
 * The table and the selection follow the GPUtil package (showUtilization, getAvailable, getFirstAvailable), which reads
 * nvidia-smi; here the backends report the values. */
#include <errno.h>
#include <math.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "base/thread.h"
#include "device/internal.h"

#define PROCESSES 256                   /* maximum number listed for one device */

/* ---- one device ---- */

/* For a backend without `usage`: reports the memory if the device is open. */
static ctrt_status usage_from_memory_info(ctrt_device_usage *usage, struct device_type *type, int index)
{
    const ctrt_device_table *table = type->backend->device;
    device_enter();
    const ctrt_device *device = type->open[index];
    void *handle = device != NULL && device_usable(device) && device->owner != 0 ? device->handle : NULL;
    ctrt_status status = CTRT_ERR_NOT_SUPPORTED;
    if (handle != NULL && CTRT_SLOT(table, memory_info))
        status = table->memory_info(handle, &usage->free_memory, &usage->total_memory);
    device_leave();
    if (status != CTRT_OK)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s:%d: its backend does not report utilization", type->name, index);
    usage->used_memory = usage->total_memory - MIN(usage->free_memory, usage->total_memory);
    return CTRT_OK;
}

static ctrt_status utilization_usage_of(ctrt_device_usage *usage, struct device_type *type, int index,
                                        ctrt_device_process *processes, int capacity)
{
    const ctrt_device_table *table = type->backend->device;
    *usage = (ctrt_device_usage){ .size = sizeof *usage, .busy = -1, .memory_busy = -1, .temperature = -1, .power = -1,
                                  .power_limit = -1, .clock_khz = -1, .process_count = -1, .process_room = capacity,
                                  .processes = processes };
    if (!CTRT_SLOT(table, usage))
        return usage_from_memory_info(usage, type, index);
    return table->usage(type->physical[index], usage);
}

ctrt_status ctrt_device_get_usage(ctrt_usage *out, const char *name)
{
    CANCEL_DISABLED;
    struct device_type *type;
    ctrt_device_usage usage;
    int index;
    NULL_CHECK("device_get_usage", out);
    CTRT_TRY(device_locate(&type, &index, name));
    CTRT_TRY(utilization_usage_of(&usage, type, index, NULL, 0));
    const ctrt_usage own = {
        .busy = usage.busy,
        .memory_busy = usage.memory_busy,
        .total_memory = usage.total_memory,
        .used_memory = usage.used_memory,
        .free_memory = usage.free_memory,
        .temperature = usage.temperature,
        .power = usage.power < 0 ? -1 : usage.power / 1e3,
        .power_limit = usage.power_limit < 0 ? -1 : usage.power_limit / 1e3,
        .clock_khz = usage.clock_khz,
        .processes = usage.process_count,
    };
    return struct_write(out, &own, sizeof own, "device_get_usage", "out");
}

/* ---- processes ---- */

static int by_memory(const void *a, const void *b)
{
    const uint64_t x = ((const ctrt_device_process *)a)->memory, y = ((const ctrt_device_process *)b)->memory;
    const uint64_t m = x == UINT64_MAX ? 0 : x, n = y == UINT64_MAX ? 0 : y;
    return m > n ? -1 : m < n;
}

/* Writes the command name of a process; "" if /proc does not show it. */
static void program_name(char *text, size_t bytes, int64_t pid)
{
    char path[48];
    text[0] = '\0';
    snprintf(path, sizeof path, "/proc/%lld/comm", (long long)pid);
    FILE *file = fopen_above_stdio(path);
    if (file == NULL)
        return;
    if (fgets(text, (int)bytes, file) == NULL)
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

/* Lists the processes with memory on the device, sorted, at most PROCESSES. The caller frees *out. *count is the number
 * of processes, *listed the number of entries in *out. */
static ctrt_status processes_of(ctrt_device_process **out, size_t *listed, size_t *count, struct device_type *type,
                                int index)
{
    ctrt_device_usage usage;
    ctrt_device_process *list = host_alloc(PROCESSES * sizeof *list);
    ALLOC_CHECK(list, PROCESSES * sizeof *list, "a list of processes");
    ctrt_status status = utilization_usage_of(&usage, type, index, list, PROCESSES);
    if (status == CTRT_OK && usage.process_count < 0)
        status = ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s:%d: its backend does not report which processes use it",
                           type->name, index);
    if (status != CTRT_OK) {
        host_free(list);
        return status;
    }
    *count = (size_t)usage.process_count;
    *listed = MIN(*count, (size_t)PROCESSES);
    qsort(list, *listed, sizeof *list, by_memory);
    *out = list;
    return CTRT_OK;
}

ctrt_status ctrt_device_get_processes(ctrt_process *list, size_t *count, size_t capacity, const char *name)
{
    CANCEL_DISABLED;
    struct device_type *type;
    int index;
    ctrt_device_process *found = NULL;
    size_t listed = 0, total = 0;
    NULL_CHECK("device_get_processes", count);
    if (list == NULL && capacity > 0)
        return fail_null("device_get_processes", "list");
    CTRT_TRY(device_locate(&type, &index, name));
    CTRT_TRY(processes_of(&found, &listed, &total, type, index));
    for (size_t i = 0; i < listed && i < capacity; i++) {
        list[i] = (ctrt_process){ .pid = found[i].pid, .memory = found[i].memory };
        program_name(list[i].name, sizeof list[i].name, found[i].pid);
    }
    host_free(found);
    *count = total;
    return CTRT_OK;
}

size_t device_other_processes(ctrt_process *list, size_t capacity, const ctrt_device *device)
{
    const ctrt_device_table *table = device->backend->device;
    ctrt_device_process found[64];
    ctrt_device_usage usage = { .size = sizeof usage, .process_count = -1, .process_room = (int32_t)COUNT_OF(found),
                                .processes = found };
    size_t count = 0;
    bool self = false;
    if (!CTRT_SLOT(table, usage) || table->usage(device->physical, &usage) != CTRT_OK || usage.process_count <= 0)
        return 0;
    const size_t listed = MIN((size_t)usage.process_count, COUNT_OF(found));
    qsort(found, listed, sizeof *found, by_memory);
    for (size_t i = 0; i < listed; i++) {
        self = self || found[i].pid == device_process;
        if (found[i].pid == device_process || found[i].memory == UINT64_MAX || count == capacity)
            continue;
        list[count] = (ctrt_process){ .pid = found[i].pid, .memory = found[i].memory };
        program_name(list[count].name, sizeof list[count].name, found[i].pid);
        count++;
    }
    /* In a container the process IDs may be those of the host, so they are used only if this process is among them. */
    return self ? count : 0;
}

/* ---- the table ---- */

/* Formats "87%", or "nan" for an unknown value. */
static const char *percent_text(char text[16], double part)
{
    if (isnan(part))
        snprintf(text, 16, "nan");
    else
        snprintf(text, 16, "%.0f%%", part * 100);
    return text;
}

static double load_of(const ctrt_device_usage *usage)
{
    return usage->busy < 0 ? (double)NAN : usage->busy / 100.0;
}

static double memory_of(const ctrt_device_usage *usage)
{
    return usage->total_memory == 0 ? (double)NAN : (double)usage->used_memory / (double)usage->total_memory;
}

static void add_details(struct strbuf *text, struct device_type *type, int index, const ctrt_device_usage *usage)
{
    char used[32], total[32];
    ctrt_device_info info = { .size = sizeof info };
    if (usage->total_memory > 0)
        strbuf_add(text, " %10s of %10s |", format_bytes(used, usage->used_memory),
                   format_bytes(total, usage->total_memory));
    else
        strbuf_add(text, " %24s |", "nan");
    if (usage->temperature >= 0)
        strbuf_add(text, " %3d C |", usage->temperature);
    else
        strbuf_add(text, " %5s |", "nan");
    if (usage->power >= 0)
        strbuf_add(text, " %4.0f W |", usage->power / 1e3);
    else
        strbuf_add(text, " %6s |", "nan");
    if (type->backend->device->describe(type->physical[index], &info) == CTRT_OK)
        strbuf_add(text, " %.*s", (int)sizeof info.name, info.name);
}

static void utilization_add_processes(struct strbuf *text, struct device_type *type, int index)
{
    ctrt_device_process *list = NULL;
    size_t listed = 0, count = 0;
    if (processes_of(&list, &listed, &count, type, index) != CTRT_OK)
        return;
    for (size_t i = 0; i < listed; i++) {
        char name[32], bytes[32];
        program_name(name, sizeof name, list[i].pid);
        strbuf_add(text, "%s:%d: process %lld%s%s uses %s\n", type->name, index, (long long)list[i].pid,
                   name[0] != '\0' ? " " : "", name,
                   list[i].memory == UINT64_MAX ? "an unknown amount of memory" : format_bytes(bytes, list[i].memory));
    }
    if (count > listed)
        strbuf_add(text, "%s:%d: and %zu more\n", type->name, index, count - listed);
    host_free(list);
}

/* Returns the type of that name; NULL: the type of the best accelerator. */
static ctrt_status type_named(struct device_type **out, const char *type)
{
    char name[32];
    ctrt_device_spec spec;
    if (type != NULL) {
        CTRT_TRY(ctrt_device_parse(&spec, type));
        return device_type_get(out, spec.type);
    }
    if (device_best_accelerator(name) != CTRT_OK)
        return ctrt_fail(CTRT_ERR_NO_DEVICE,
                         "there is no accelerator; name another device type (\"sim\")");
    return device_type_get(out, name);
}

struct row {
    char id[16], load[16], memory[16];
    ctrt_device_usage usage;
    bool known;
};

/* Fills the rows of all devices. Values that a device does not report are nan, and *why is the reason. */
static void read_rows(struct row *rows, struct device_type *type, char *why, size_t bytes)
{
    for (int i = 0; i < type->count; i++) {
        rows[i].known = utilization_usage_of(&rows[i].usage, type, i, NULL, 0) == CTRT_OK;
        if (!rows[i].known) {
            rows[i].usage.busy = -1;
            rows[i].usage.total_memory = 0;
            snprintf(why, bytes, "%s", ctrt_error_message());
        }
        snprintf(rows[i].id, sizeof rows[i].id, "%d", i);
        percent_text(rows[i].load, load_of(&rows[i].usage));
        percent_text(rows[i].memory, memory_of(&rows[i].usage));
    }
}

static int width(int least, const char *text)
{
    return MAX(least, (int)strlen(text));
}

ctrt_status ctrt_show_utilization(char **out, const char *type, bool full)
{
    CANCEL_DISABLED;
    struct device_type *found;
    struct strbuf text = { 0 };
    char why[512] = "";
    int id = 2, load = 3, memory = 3;
    NULL_CHECK("show_utilization", out);
    CTRT_TRY(type_named(&found, type));
    HOST_AUTO struct row *rows = host_calloc((size_t)MAX(found->count, 1) * sizeof *rows);
    ALLOC_CHECK(rows, (size_t)found->count * sizeof *rows, "a table of devices");
    read_rows(rows, found, why, sizeof why);
    for (int i = 0; i < found->count; i++) {
        id = width(id, rows[i].id);
        load = width(load, rows[i].load);
        memory = width(memory, rows[i].memory);
    }
    strbuf_add(&text, "| %*s | %*s | %*s |%s\n", id, "ID", load, "GPU", memory, "MEM",
               full ? "                   memory |  temp |  power | name" : "");
    for (int i = 0; i < id + load + memory + 10; i++)
        strbuf_add(&text, "-");
    strbuf_add(&text, "%s\n", full ? "--------------------------------------------------" : "");
    for (int i = 0; i < found->count; i++) {
        strbuf_add(&text, "| %*s | %*s | %*s |", id, rows[i].id, load, rows[i].load, memory, rows[i].memory);
        if (full)
            add_details(&text, found, i, &rows[i].usage);
        strbuf_add(&text, "\n");
    }
    for (int i = 0; full && i < found->count; i++)
        if (rows[i].known)
            utilization_add_processes(&text, found, i);
    if (why[0] != '\0')
        strbuf_add(&text, "nan: %s\n", why);
    return strbuf_finish(out, &text, "a table of devices");
}

/* ---- selection ---- */

struct utilization_candidate {
    int index;
    double load, memory;
    uint64_t free_bytes;
    uint64_t key;                       /* sort key of the random order */
    bool taken;                         /* excluded, or not free */
};

static bool excluded(const ctrt_pick_options *options, int index)
{
    for (size_t i = 0; i < options->exclude_count; i++)
        if (options->exclude[i] == index)
            return true;
    return false;
}

/* Reports whether `part` is below its limit; returns `unknown` for an unknown value. */
static bool below(double part, double limit, bool unknown)
{
    return isnan(part) ? unknown : part < limit;
}

static int compare(double a, double b)
{
    const double x = isnan(a) ? 1 : a, y = isnan(b) ? 1 : b;
    return x < y ? -1 : x > y;
}

static int by_index(const void *a, const void *b)
{
    return ((const struct utilization_candidate *)a)->index - ((const struct utilization_candidate *)b)->index;
}

static int by_index_down(const void *a, const void *b)
{
    return by_index(b, a);
}

static int by_key(const void *a, const void *b)
{
    const uint64_t x = ((const struct utilization_candidate *)a)->key,
        y = ((const struct utilization_candidate *)b)->key;
    return x < y ? -1 : x > y ? 1 : by_index(a, b);
}

static int by_load(const void *a, const void *b)
{
    const int order = compare(((const struct utilization_candidate *)a)->load,
                              ((const struct utilization_candidate *)b)->load);
    return order != 0 ? order : by_index(a, b);
}

static int by_memory_part(const void *a, const void *b)
{
    const int order = compare(((const struct utilization_candidate *)a)->memory,
                              ((const struct utilization_candidate *)b)->memory);
    return order != 0 ? order : by_index(a, b);
}

static int (*const orders[])(const void *, const void *) = {
    [CTRT_PICK_FIRST] = by_index, [CTRT_PICK_LAST] = by_index_down, [CTRT_PICK_RANDOM] = by_key,
    [CTRT_PICK_LOAD] = by_load,   [CTRT_PICK_MEMORY] = by_memory_part,
};

/* SplitMix64 (Steele, Lea, Flood 2014). The state is seeded from the clock, so that two programs that start together
 * select different devices. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void look_at_all(struct utilization_candidate *list, struct device_type *type, const ctrt_pick_options *o)
{
    uint64_t state = (uint64_t)clock_now(CLOCK_REALTIME) + (uint64_t)device_process * 0x9e3779b9u;
    for (int i = 0; i < type->count; i++) {
        ctrt_device_usage usage;
        if (utilization_usage_of(&usage, type, i, NULL, 0) != CTRT_OK)
            usage = (ctrt_device_usage){ .busy = -1 };
        list[i] = (struct utilization_candidate){ .index = i, .load = load_of(&usage), .memory = memory_of(&usage),
                                                  .free_bytes = usage.free_memory, .key = next_random(&state) };
        const bool enough = usage.total_memory == 0 ? o->unknown_is_free || o->min_free == 0
                                                    : usage.free_memory >= o->min_free;
        list[i].taken = excluded(o, i) || !enough || !below(list[i].load, o->max_load, o->unknown_is_free)
                        || !below(list[i].memory, o->max_memory, o->unknown_is_free);
    }
    qsort(list, (size_t)type->count, sizeof *list, orders[o->order]);
}

static ctrt_status fail_none_free(struct utilization_candidate *list, const struct device_type *type,
                                  const ctrt_pick_options *o)
{
    char loads[768] = "";
    size_t used = 0;
    qsort(list, (size_t)type->count, sizeof *list, by_index);
    for (int i = 0; i < type->count && used < sizeof loads; i++) {
        char load[16], memory[16], left[32];
        used += (size_t)snprintf(loads + used, sizeof loads - used,
                                 "%s%s:%d is %s busy, %s of its memory used, %s free%s", i > 0 ? "; " : "", type->name,
                                 list[i].index, percent_text(load, list[i].load), percent_text(memory, list[i].memory),
                                 format_bytes(left, list[i].free_bytes),
                                 excluded(o, list[i].index) ? ", excluded" : "");
    }
    char need[32];
    return ctrt_fail(CTRT_ERR_NOT_FOUND,
                     "no device of type %s is free (busy below %.0f%%, memory used below %.0f%%, %s free): %s",
                     type->name, o->max_load * 100, o->max_memory * 100, format_bytes(need, o->min_free), loads);
}

static void sleep_for(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        continue;
}

static ctrt_status utilization_read_options(ctrt_pick_options *o, const ctrt_pick_options *options)
{
    CTRT_TRY(struct_read(o, sizeof *o, options, "pick_devices", "options"));
    if ((unsigned)o->order >= COUNT_OF(orders))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "pick_devices: %d is not a ctrt_pick_order", (int)o->order);
    if (!(o->max_load >= 0) || !(o->max_memory >= 0) || !(o->interval >= 0) || o->interval > 1e9 || o->attempts < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "pick_devices: max_load %g, max_memory %g, %d attempts and %g seconds between them must not "
                         "be negative", o->max_load, o->max_memory, o->attempts, o->interval);
    if (o->exclude == NULL && o->exclude_count > 0)
        return fail_null("pick_devices", "exclude");
    return CTRT_OK;
}

ctrt_status ctrt_pick_devices(ctrt_device_spec *list, size_t *count, size_t capacity, const ctrt_pick_options *options)
{
    CANCEL_DISABLED;
    ctrt_pick_options o = CTRT_PICK_OPTIONS;
    struct device_type *type;
    size_t picked = 0;
    NULL_CHECK("pick_devices", list);
    NULL_CHECK("pick_devices", count);
    CTRT_TRY(utilization_read_options(&o, options));
    CTRT_TRY(type_named(&type, o.type));
    HOST_AUTO struct utilization_candidate *all = host_calloc((size_t)MAX(type->count, 1) * sizeof *all);
    ALLOC_CHECK(all, (size_t)type->count * sizeof *all, "a list of devices");
    for (int attempt = 0; attempt < o.attempts && picked == 0 && capacity > 0; attempt++) {
        if (attempt > 0)
            sleep_for(o.interval);
        look_at_all(all, type, &o);
        for (int i = 0; i < type->count && picked < capacity; i++) {
            if (all[i].taken)
                continue;
            list[picked] = (ctrt_device_spec){ .index = type_is_cpu(type->name) ? -1 : all[i].index };
            snprintf(list[picked++].type, sizeof list[0].type, "%s", type->name);
        }
    }
    if (picked == 0 && capacity > 0)
        return fail_none_free(all, type, &o);
    *count = picked;
    return CTRT_OK;
}
