/* SPDX-License-Identifier: Apache-2.0 */
/* memory_checks.h: checks of a device's memory statistics through the public API. Uses tap.h.
 *
 *     CHECK_STAT(device, "num_ooms", 1);
 *     CHECK_STATS(device, { "allocation.all.current", 3 }, { "num_device_free", 0 }); */
#ifndef CTRT_TESTS_MEMORY_CHECKS_H
#define CTRT_TESTS_MEMORY_CHECKS_H

#include <sys/mman.h>

#include "ctrt/ctrt.h"
#include "ctrt/memory.h"
#include "tap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

struct stat_case {
    const char *key;
    int64_t want;
};

static inline int64_t stat_of(ctrt_device *device, const char *key)
{
    int64_t value = -1;
    CHECK_OK(ctrt_memory_stat_get(&value, device, key));
    return value;
}

static inline void check_stats(const char *file, int line, ctrt_device *device, const struct stat_case *cases,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        tap_eq(stat_of(device, cases[i].key), cases[i].want, file, line, cases[i].key);
}

#define CHECK_STATS(device, ...)                                                                        \
    check_stats(__FILE__, __LINE__, (device), (const struct stat_case[]){ __VA_ARGS__ },                \
                sizeof(const struct stat_case[]){ __VA_ARGS__ } / sizeof(struct stat_case))
#define CHECK_STAT(device, key, want) CHECK_STATS(device, { (key), (int64_t)(want) })

/* Checks that every statistic of the present is 0. */
static inline void check_no_current(ctrt_device *device)
{
    for (size_t i = 0; ctrt_memory_stat_key(i) != NULL; i++)
        if (strstr(ctrt_memory_stat_key(i), "current"))
            CHECK_STAT(device, ctrt_memory_stat_key(i), 0);
}

/* Returns the bytes that are not free on the device, including those of other processes. */
static inline uint64_t taken_on(ctrt_device *device)
{
    uint64_t left = 0, total = 0;
    CHECK_OK(ctrt_device_memory_info(device, &left, &total));
    return total - left;
}

/* Each returns a text until its next call; "" if the call failed. */
static inline const char *snapshot_of(ctrt_device *device)
{
    static char *text;
    free(text);
    return CHECK_OK(ctrt_memory_snapshot(&text, device)) ? text : (text = NULL, "");
}

static inline const char *last_oom_of(ctrt_device *device)
{
    static char *text;
    free(text);
    return CHECK_OK(ctrt_memory_last_oom(&text, device)) ? text : (text = NULL, "");
}

static inline const char *metrics_as(ctrt_metrics_format format)
{
    static char *text;
    free(text);
    return CHECK_OK(ctrt_memory_metrics(&text, format)) ? text : (text = NULL, "");
}

/* What ctrt_memory_set_oom_callback(note_oom, NULL) has reported. */
static struct {
    int calls;
    size_t bytes;
    char report[4096];
} oom_noted;

static inline void note_oom(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)user, (void)device;
    oom_noted.calls++;
    oom_noted.bytes = bytes;
    snprintf(oom_noted.report, sizeof oom_noted.report, "%s", report);
}

/* Returns zeroed memory that child processes share, for their results. */
static inline void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_TRUE(memory != MAP_FAILED);
    return memory;
}

#endif
