/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/settings.c: the options of the caching policy.
 *
 *   max_split=64m        blocks of at least this size are never split, so that large ones stay whole for large requests
 *   max_rounding=20m     such a block is used for a request only if less than this remains unused
 *   gc=0.8               above this share of the device's memory, segments that have long been unused are returned
 *   roundup=4            sizes are rounded up to one of this many steps between two powers of two; or by size:
 *                        [256:1,512:2,1024:4,>:8]. The first number of an entry, in MiB, is the start of an interval
 *                        that ends at its double. The first entry also applies to all smaller sizes, and '>' to all
 *                        larger ones
 *   expandable=true      segments that grow by pages, if the backend supports them
 *   large_segment=20m    size of the segments for blocks above 1 MiB and below half of it */
#include <string.h>

#include "caching.h"
#include "options.h"

#define INTERVAL_FIRST 20                       /* divisions[0] is for sizes below 2 MiB */

static bool is_power(size_t value)
{
    return value > 0 && (value & (value - 1)) == 0;
}

static bool read_division(size_t *out, struct option_text value)
{
    return option_number(out, value) && is_power(*out) && *out <= 1024;
}

/* Parses one "256:1" or ">:8" of the list. `last`: the interval of the previous entry, -1 for none. */
static bool read_interval(struct settings *settings, struct option_text item, int *last)
{
    const char *colon = memchr(item.at, ':', item.length);
    size_t from, steps, key = colon != NULL ? (size_t)(colon - item.at) : 0;
    if (key == 0 || !read_division(&steps, (struct option_text){ colon + 1, item.length - key - 1 }))
        return false;
    int first = *last + 1, end = DIVISIONS;
    if (key != 1 || item.at[0] != '>') {
        if (!option_number(&from, (struct option_text){ item.at, key }) || !is_power(from))
            return false;
        int index = 63 - __builtin_clzll(from);
        if (index >= DIVISIONS || index <= *last)
            return false;
        first = *last < 0 ? 0 : index;
        end = index + 1;
    }
    for (int i = first; i < end; i++)
        settings->divisions[i] = (uint32_t)steps;
    *last = end - 1;
    return true;
}

static bool read_roundup(void *given, struct option_text value)
{
    struct settings *settings = given;
    size_t steps;
    int last = -1;
    memset(settings->divisions, 0, sizeof settings->divisions);
    settings->divided = true;
    if (read_division(&steps, value)) {
        for (int i = 0; i < DIVISIONS; i++)
            settings->divisions[i] = (uint32_t)steps;
        return true;
    }
    if (value.length < 2 || value.at[0] != '[' || value.at[value.length - 1] != ']')
        return false;
    const char *at = value.at + 1, *end = value.at + value.length - 1;
    for (;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        if (!read_interval(settings, (struct option_text){ at, (size_t)(stop - at) }, &last))
            return false;
        if (comma == NULL)
            return true;
        at = comma + 1;
    }
}

/* Keeps powers of two and rounds other sizes up to the next of the steps between two powers of two, as long as a step
 * is at least 512 bytes. Sizes up to 512 bytes times the number of steps, and all sizes if there is one step, are
 * rounded to multiples of 512. */
size_t settings_divide(const struct settings *settings, size_t bytes)
{
    int power = 63 - __builtin_clzll(bytes);
    int index = power - INTERVAL_FIRST;
    size_t steps = settings->divisions[index < 0 ? 0 : index >= DIVISIONS ? DIVISIONS - 1 : index];
    size_t step = GRANULE;
    if (steps > 1 && bytes > GRANULE * steps)
        step = ((size_t)1 << power) / steps;
    return (bytes + step - 1) & ~(step - 1);
}

ctrt_status settings_read(struct settings *settings, const ctrt_memory_source *source, const char *text)
{
    static const struct option options[] = {
        { "max_split", "a size above 20m (or above large_segment)", OPTION_BYTES,
          .offset = offsetof(struct settings, max_split) },
        { "gc", "a share of the device's memory between 0 and 1", OPTION_SHARE,
          .offset = offsetof(struct settings, gc_threshold) },
        { "roundup", "a power of two up to 1024, or an ascending list like [256:1,512:2,1024:4,>:8]", OPTION_OTHER,
          .read = read_roundup },
        { "expandable", "true or false", OPTION_BOOL, .offset = offsetof(struct settings, expandable) },
        { "large_segment", "a multiple of 2m, at least 4m", OPTION_BYTES,
          .offset = offsetof(struct settings, large_segment), .least = 2 * LARGE_ROUNDING,
          .most = (size_t)1 << 40, .unit = LARGE_ROUNDING },
        { "max_rounding", "a size", OPTION_BYTES, .offset = offsetof(struct settings, max_rounding), .least = 1 },
    };
    *settings = (struct settings){ .max_split = SIZE_MAX, .large_segment = (size_t)20 << 20,
                                   .max_rounding = (size_t)20 << 20 };
    CTRT_TRY(options_read("caching", options, sizeof options / sizeof options[0], settings, text));
    if (settings->max_split <= settings->large_segment)
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "caching: max_split must be a size above %zum, not %zu bytes",
                          settings->large_segment >> 20, settings->max_split);
    if (settings->gc_threshold > 0 && source->total_bytes == 0)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "caching: gc needs the total memory of %s, which is unknown",
                          source->device_name);
    if (settings->expandable
        && (!CTRT_SLOT(source, map) || source->page_bytes == 0 || source->page_bytes % GRANULE != 0
            || source->total_bytes == 0)) {
        host->log(CTRT_LOG_WARNING, "caching", "%s cannot map pages: expandable=true has no effect",
                  source->device_name);
        settings->expandable = false;
    }
    settings->plain = settings->max_split == SIZE_MAX && !settings->expandable;
    return CTRT_OK;
}
