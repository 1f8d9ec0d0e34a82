/* SPDX-License-Identifier: Apache-2.0 */
/* Tests memory statistics on fake devices: names, pools, scopes with peaks, the summary table, limits and metrics.
 * Sums over random blocks and threads are in test-memory.c. */
#include <pthread.h>

#include "calls.h"
#include "base/strbuf.h"
#include "fake_pool.h"
#include "log_kept.h"
#include "memory/quota.h"
#include "memory_stats/summary.h"

TEST(keys, "statistics have PyTorch's names")
{
#define STAT(name)  name ".current", name ".peak", name ".allocated", name ".freed"
#define POOLS(name) STAT(name ".all"), STAT(name ".large_pool"), STAT(name ".small_pool")
#define TIMES(name) name ".total", name ".max", name ".min", name ".count", name ".avg"
    static const char *const keys[] = {
        POOLS("allocation"), POOLS("segment"), POOLS("active"), POOLS("inactive_split"), POOLS("allocated_bytes"),
        POOLS("reserved_bytes"), POOLS("active_bytes"), POOLS("inactive_split_bytes"), POOLS("requested_bytes"),
        STAT("oversize_allocations"), STAT("oversize_segments"), STAT("host.allocations"), STAT("host.allocated_bytes"),
        STAT("host.active_requests"), STAT("host.active_bytes"), STAT("spilled"), STAT("spilled_bytes"),
        "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
        "num_oom_rejections", "max_split_size", "host.num_host_alloc", "host.num_host_free",
        TIMES("host.host_alloc_time"), TIMES("host.host_free_time"),
    };
    for (size_t i = 0; i < COUNT(keys); i++)
        CHECK_STR(ctrt_memory_stat_key(i), keys[i]);
    CHECK_TRUE(ctrt_memory_stat_key(COUNT(keys)) == NULL);
}

#define DIRECT "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m"

enum { SCOPES = 7, BLOCKS = 20, VALUES = 4 };

/* Memory as a scope reports it: allocated bytes, requested bytes, reserved bytes, blocks. */
struct usage {
    uint64_t values[VALUES];
};

static void raise_peak(struct usage *peak, const struct usage *now)
{
    for (int v = 0; v < VALUES; v++)
        if (now->values[v] > peak->values[v])
            peak->values[v] = now->values[v];
}

/* Returns whether the scope reports the peak and the bytes at its begin. */
static bool reports(const ctrt_memory_peaks *peaks, const struct usage *peak, const struct usage *before)
{
    return peaks->allocated_bytes == peak->values[0] && peaks->requested_bytes == peak->values[1]
           && peaks->reserved_bytes == peak->values[2] && peaks->allocations == peak->values[3]
           && peaks->allocated_before == before->values[0];
}

FAKE_TEST(scopes, "scopes, nested and overlapping at random, have the peaks of a simple model", DIRECT)
{
    ctrt_memory_scope *scopes[SCOPES] = { NULL };
    struct usage now = { 0 }, peak[SCOPES] = { 0 }, before[SCOPES] = { 0 }, since_reset = { 0 };
    ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
    ctrt_block blocks[BLOCKS] = { 0 };
    size_t requested[BLOCKS];
    uint32_t seed = 7;
    int wrong = 0;
    for (int i = 0; i < 20000 && wrong == 0; i++) {
        const size_t at = next_random(&seed) % (SCOPES + 3 * BLOCKS);
        if (at < SCOPES && scopes[at] == NULL) {
            CHECK_OK(ctrt_memory_scope_begin(&scopes[at], device));
            peak[at] = before[at] = now;
            continue;
        }
        if (at < SCOPES) {
            CHECK_OK(ctrt_memory_scope_read(&peaks, scopes[at]));
            wrong += !reports(&peaks, &peak[at], &before[at]);
            if (i % 3 == 0)
                continue;
            CHECK_OK(ctrt_memory_scope_end(&peaks, &scopes[at]));
            wrong += !reports(&peaks, &peak[at], &before[at]) || scopes[at] != NULL;
            continue;
        }
        const size_t b = (at - SCOPES) % BLOCKS;
        const bool frees = blocks[b].address != NULL;
        if (!frees) {
            requested[b] = 1 + next_random(&seed) % 6400;
            blocks[b] = take(memory, requested[b]);
        }
        const uint64_t change[VALUES] = { blocks[b].bytes, requested[b], blocks[b].bytes, 1 };
        for (int v = 0; v < VALUES; v++)
            now.values[v] += frees ? -change[v] : change[v];
        if (frees)
            give(memory, &blocks[b], requested[b]);
        for (int s = 0; s < SCOPES; s++)
            raise_peak(&peak[s], &now);
        raise_peak(&since_reset, &now);
        if (i % 1000 == 0) {                        /* a reset does not affect scopes */
            CHECK_EQ(ctrt_memory_max_allocated(device), since_reset.values[0]);
            ctrt_memory_reset_peak(device);
            since_reset = now;
        }
    }
    CHECK(wrong == 0, "wrong: a scope reports %llu allocated, %llu requested, %llu reserved bytes in %llu blocks",
          (unsigned long long)peaks.allocated_bytes, (unsigned long long)peaks.requested_bytes,
          (unsigned long long)peaks.reserved_bytes, (unsigned long long)peaks.allocations);
}

TEST(table, "sizes and counts are formatted as in PyTorch's table")
{
    static const struct { int64_t value, by; const char *size, *count; } cases[] = {
        { 0, 0, "     0 B  ", "      0   " },
        { 786431, 786431, "786431 B  ", "    786 K " },
        { 786432, 786432, "   768 KiB", "    786 K " },
        { 4005560320, 4005560320, "  3820 MiB", "   4005 M " },
        { 749999, 749999, "749999 B  ", " 749999   " },
        { 750000, 750000, "750000 B  ", "    750 K " },
        { 749999999, 749999999, "732421 KiB", " 749999 K " },
        { 750000000, 750000000, "732421 KiB", "    750 M " },
        { 1023, 786432, "     0 KiB", "      1 K " },              /* the first row decides the unit */
        { 805306368, 805306368, "   768 MiB", "    805 M " },
        { 805306367, 805306367, "786431 KiB", "    805 M " },
    };
    char text[16];
    EACH(c, cases) {
        CHECK_STR(summary_size(text, c->value, c->by), c->size);
        CHECK_STR(summary_count(text, c->value, c->by), c->count);
    }

    static const char want[] =
        "|===========================================================================|\n"
        "|                    ctrt memory summary, device cuda:1                     |\n"
        "|---------------------------------------------------------------------------|\n"
        "|            Device OOMs: 2          |      allocation retries: 3           |\n"
        "|===========================================================================|\n"
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
        "|---------------------------------------------------------------------------|\n"
        "| Allocated memory      |   3820 MiB |   3820 MiB |   7640 MiB | 786431 B   |\n"
        "|       from large pool |   3819 MiB |   3820 MiB |   7640 MiB |      0 B   |\n"
        "|       from small pool |      1 MiB |      0 MiB |      0 MiB |      0 B   |\n"
        "|---------------------------------------------------------------------------|\n";
    ctrt_memory_stats stats = { .size = sizeof(ctrt_memory_stats), .num_ooms = 2, .num_alloc_retries = 3 };
    stats.allocated_bytes[CTRT_POOL_ALL] = (ctrt_stat){ 4005560320, 4005560320, 8011120640, 786431 };
    stats.allocated_bytes[CTRT_POOL_LARGE] = (ctrt_stat){ 4005560320 - 1048576, 4005560320, 8011120640, 0 };
    stats.allocated_bytes[CTRT_POOL_SMALL] = (ctrt_stat){ 1048576, 0, 0, 0 };
    struct strbuf table = { 0 };
    summary_table(&table, "cuda:1", &stats, false);
    CHECK(table.bytes != NULL && strncmp(table.bytes, want, strlen(want)) == 0, "the table is\n%.*s", (int)strlen(want),
          table.bytes);
    int lines = 0;
    for (const char *at = table.bytes; *at != '\0'; lines++) {
        size_t length = strcspn(at, "\n");
        CHECK(length == 77 && at[0] == '|' && at[76] == '|', "line %d has %zu characters", lines, length);
        at += length + 1;
    }
    CHECK_EQ(lines, 6 + 11 + 11 + 2 * 9 + 1);
    strbuf_drop(&table);
    summary_table(&table, "cpu", &stats, true);
    CHECK_TRUE(strstr(table.bytes, "from large pool") == NULL);
    CHECK_HAS(table.bytes, "Oversize GPU segments");
    strbuf_drop(&table);
}

TEST(limits, "the grammar of CTRT_MEMORY_LIMIT")
{
    static const struct { const char *text; uint64_t limit; } good[] = {
        { "fake:0=64m", 64 * MIB }, { "fake:1=64m", QUOTA_NONE }, { "fake=1g", 1024 * MIB },
        { "fake:0=2m,fake=1g", 2 * MIB },   /* the entry with the device's name has priority, in any position */
        { "fake=1g,fake:0=2m", 2 * MIB }, { "cpu=2g,fake:0=512", 512 },
        { "fake:0=50%", 500 }, { "fake:0=0%", 0 }, { "fake:0=100%", 1000 },
    };
    static const char *const bad[] = {
        "fake:0=101%", "fake:0=-1", "fake:0=", "fake:0", "=5", "fake:0=1m,", "64m", "fake:0=%", "fake:0=lots",
        "fake:=1m", "cuda:o=1m", "cuda:0x1=1m",
    };
    uint64_t limit;
    EACH(c, good) {
        CHECK_OK(quota_parse(&limit, c->text, "fake:0", "fake", 1000));
        CHECK(limit == c->limit, "\"%s\" is a limit of %llu", c->text, (unsigned long long)limit);
    }
    EACH(text, bad)
        CHECK_FAILS(quota_parse(&limit, *text, "fake:0", "fake", 1000), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(quota_parse(&limit, "fake:0=50%", "fake:0", "fake", 0), CTRT_ERR_INVALID_ARGUMENT, "give a size");
}

FAKE_TEST(limited, "reserved memory never exceeds the limit", "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=256m",
          "CTRT_MEMORY_LIMIT=fake:0=64m")
{
    CHECK_EQ(ctrt_memory_limit(device), 64 * MIB);
    ctrt_block a = take(memory, 40 * MIB), b, c;
    take_fails(memory, 30 * MIB, "64.00 MiB allowed");
    CHECK_HAS(ctrt_error_message(), "The device has enough free memory: raise the limit");
    CHECK_STATS(device, { "num_ooms", 1 }, { "num_oom_rejections", 1 });
    give(memory, &a, 40 * MIB);
    b = take(memory, 50 * MIB);                             /* the cache is trimmed to free memory */
    CHECK_TRUE(ctrt_memory_reserved(device) <= 64 * MIB);
    CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
    c = take(memory, 100 * MIB);
    give(memory, &c, 100 * MIB);
    CHECK_OK(ctrt_memory_set_fraction(device, 0.125));      /* 32 MiB, less than is reserved */
    CHECK_EQ(ctrt_memory_limit(device), 32 * MIB);
    take_fails(memory, 120 * MIB, "32.00 MiB allowed");
    CHECK_OK(ctrt_memory_set_fraction(device, 0));
    take_fails(memory, 120 * MIB, "0 bytes allowed");
    CHECK_STAT(device, "num_oom_rejections", 3);
    CHECK_OK(ctrt_memory_set_fraction(device, 1));
    take_fails(memory, 500 * MIB, "The request alone exceeds the limit");
    CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
    take_fails(memory, 230 * MIB, NULL);
    CHECK_STATS(device, { "num_ooms", 5 }, { "num_oom_rejections", 4 });
    give(memory, &b, 50 * MIB);
    CHECK_OK(ctrt_memory_release_all(device));
    CHECK_EQ(atomic_load(&memory->reserved), 0);
}

FAKE_AGAIN(limited, "reserved memory never exceeds the limit", "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m",
           "CTRT_MEMORY_LIMIT=fake:0=64m")

TEST(limit_types, "an invalid limit or a misspelt device type is an error, a type that is not installed one warning")
{
    static const char missing[] = "there is no backend opencl, so that part has no effect\n";
    static const struct { const char *setting, *error, *warning; } cases[] = {
        { "CTRT_MEMORY_LIMIT=fake:0=much", "CTRT_MEMORY_LIMIT=fake:0=much", NULL },
        { "CTRT_MEMORY_LIMIT=fake:0=8m", NULL, NULL },
        { "CTRT_MEMORY_LIMIT=fkae:0=8m", "there is no backend fkae; did you mean fake?", NULL },
        { "CTRT_MEMORY_LIMIT=fake:1=8m,Fake=8m", "there is no backend Fake; did you mean fake?", NULL },
        { "CTRT_MEMORY_LIMIT=opencl=90%,fake:0=8m", NULL, missing },
    };
    EACH(c, cases) {
        IN_FAKE(c->setting) {
            ctrt_device *device = NULL, *second = NULL;
            log_keep(CTRT_LOG_WARNING);
            if (c->error != NULL) {
                CHECK_FAILS(ctrt_device_get(&device, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, c->error);
            } else {
                CHECK_OK(ctrt_device_get(&device, "fake:0"));
                CHECK_OK(ctrt_device_get(&second, "fake:1"));
                CHECK_EQ(ctrt_memory_limit(device), 8 * MIB);
                if (c->warning == NULL)
                    CHECK_STR(logged, "");
                else
                    CHECK_EQ(count_of(logged, c->warning), 1);
            }
        }
    }
}

static long long metric(const char *text, const char *name)
{
    char start[128];
    snprintf(start, sizeof start, "\n%s{device=\"fake:0\",policy=\"direct\"} ", name);
    const char *at = strstr(text, start);
    return at != NULL ? atoll(at + strlen(start)) : -1;
}

FAKE_TEST(metrics, "metrics have Prometheus' format and report a peak between two readings", DIRECT)
{
    const char *text = metrics_as(CTRT_METRICS_PROMETHEUS);
    int samples = 0;
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        char name[100] = "", rest[200] = "";
        long long value;
        if (strncmp(at, "# HELP ", 7) == 0 || strncmp(at, "# TYPE ", 7) == 0) {
            CHECK(strncmp(at + 7, "ctrt_memory_", 12) == 0 || strncmp(at + 7, "ctrt_device_", 12) == 0, "%.*s",
                  (int)length, at);
        } else {
            CHECK(sscanf(at, "%99[a-z_]{device=\"%199[^\"]\",policy=\"direct\"} %lld\n", name, rest, &value) == 3
                      && (strncmp(name, "ctrt_memory_", 12) == 0 ||
                          strcmp(name, "ctrt_device_synchronizations_total") == 0),
                  "\"%.*s\" is not a sample", (int)length, at);
            samples++;
        }
        CHECK(at[length] == '\n', "the last line has no newline");
        at += length + 1;
    }
    CHECK_EQ(samples, 23);
    ctrt_block block = take(memory, 5 * MIB);
    give(memory, &block, 5 * MIB);
    text = metrics_as(CTRT_METRICS_PROMETHEUS);
    CHECK_EQ(metric(text, "ctrt_memory_allocated_bytes"), 0);
    CHECK_EQ(metric(text, "ctrt_memory_allocated_bytes_max"), 5 * MIB);
    CHECK_EQ(metric(text, "ctrt_memory_reserved_bytes_max"), 5 * MIB);
    CHECK_EQ(metric(text, "ctrt_memory_blocks_max"), 1);
    CHECK_EQ(metric(text, "ctrt_memory_allocations_total"), 1);
    text = metrics_as(CTRT_METRICS_PROMETHEUS);
    CHECK_EQ(metric(text, "ctrt_memory_allocated_bytes_max"), 0);           /* each peak is reported once */
    CHECK_EQ(ctrt_memory_max_allocated(device), 5 * MIB);
    CHECK_HAS(metrics_as(CTRT_METRICS_JSON), "\"device\": \"fake:0\"");
    CHECK_HAS(metrics_as(CTRT_METRICS_JSON), "\"allocations_total\": 1");
}

static _Atomic bool stop;

static void *allocate_and_free(void *argument)
{
    struct device_memory *memory = argument;
    ctrt_block blocks[2000];
    /* Allocates slowly, so that allocated bytes often exceed the peak since the last reading. */
    while (!stop) {
        for (int i = 0; i < 2000; i++)
            if (pool_alloc(memory, &blocks[i], 64 * KIB, NULL) != CTRT_OK)
                abort();
        for (int i = 0; i < 2000; i++)
            pool_free(memory, &blocks[i], 64 * KIB, NULL);
    }
    return NULL;
}

FAKE_TEST(moving_metrics, "metrics: no current value exceeds its peak while another thread allocates", DIRECT)
{
    pthread_t thread;
    int wrong = 0, held = 0;
    pthread_create(&thread, NULL, allocate_and_free, memory);
    for (int i = 0; i < 3000; i++) {
        const char *text = metrics_as(CTRT_METRICS_PROMETHEUS);
        held += metric(text, "ctrt_memory_allocated_bytes") > 0;
        wrong += metric(text, "ctrt_memory_allocated_bytes_max") < metric(text, "ctrt_memory_allocated_bytes")
                 || metric(text, "ctrt_memory_reserved_bytes_max") < metric(text, "ctrt_memory_reserved_bytes")
                 || metric(text, "ctrt_memory_blocks_max") < metric(text, "ctrt_memory_blocks");
    }
    stop = true;
    pthread_join(thread, NULL);
    CHECK(wrong == 0 && held > 0, "%d readings of 3000 have a statistic above its peak; in %d memory is allocated",
          wrong, held);
}

TEST_MAIN
{
    folder = pool_folder();
    return run_tests();
}
