/* SPDX-License-Identifier: Apache-2.0 */
/* Tests memory statistics on fake devices: counters, peaks, scopes, several threads, the summary table, limits and
 * metrics. */
#include <pthread.h>

#include "base/strbuf.h"
#include "child.h"
#include "ctrt/memory.h"
#include "folder.h"
#include "memory/pool.h"
#include "memory/quota.h"
#include "memory_stats/summary.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static char *folder;

static struct device_memory *open_memory(const char *name)
{
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, name))) {
        fflush(stdout);
        exit(1);
    }
    return device->memory;
}

static int64_t stat_of(struct device_memory *memory, const char *key)
{
    int64_t value = -1;
    CHECK_OK(ctrt_memory_stat_get(&value, memory->device, key));
    return value;
}

#define CHECK_STAT(memory, key, want)                                                                         \
    do {                                                                                                      \
        int64_t got_ = stat_of(memory, key), want_ = (int64_t)(want);                                         \
        CHECK(got_ == want_, "%s is %lld, expected %lld", key, (long long)got_, (long long)want_);            \
    } while (0)

/* ---- statistics ---- */

static void test_keys(void)
{
    group("statistics have PyTorch's names");
    static const char *const families[] = { "allocation", "segment", "active", "inactive_split", "allocated_bytes",
                                            "reserved_bytes", "active_bytes", "inactive_split_bytes",
                                            "requested_bytes" };
    static const char *const pools[] = { "all", "large_pool", "small_pool" };
    static const char *const members[] = { "current", "peak", "allocated", "freed" };
    static const char *const last[] = {
        "oversize_allocations.current", "oversize_allocations.peak", "oversize_allocations.allocated",
        "oversize_allocations.freed", "oversize_segments.current", "oversize_segments.peak",
        "oversize_segments.allocated",
        "oversize_segments.freed",
#define STAT(name) "host." name ".current", "host." name ".peak", "host." name ".allocated", "host." name ".freed"
        STAT("allocations"), STAT("allocated_bytes"), STAT("active_requests"), STAT("active_bytes"),
        "spilled.current", "spilled.peak", "spilled.allocated", "spilled.freed", "spilled_bytes.current", "spilled_bytes.peak",
        "spilled_bytes.allocated", "spilled_bytes.freed",
        "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
        "num_oom_rejections",
        "max_split_size", "host.num_host_alloc", "host.num_host_free",
#define TIMES(name) "host." name ".total", "host." name ".max", "host." name ".min", "host." name ".count", \
                    "host." name ".avg"
        TIMES("host_alloc_time"), TIMES("host_free_time"),
    };
    size_t index = 0;
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t p = 0; p < COUNT(pools); p++)
            for (size_t m = 0; m < COUNT(members); m++) {
                char key[64];
                snprintf(key, sizeof key, "%s.%s.%s", families[f], pools[p], members[m]);
                const char *got = ctrt_memory_stat_key(index++);
                CHECK(got != NULL && strcmp(got, key) == 0, "key %zu is %s, expected %s", index - 1, got, key);
            }
    for (size_t i = 0; i < COUNT(last); i++) {
        const char *got = ctrt_memory_stat_key(index++);
        CHECK(got != NULL && strcmp(got, last[i]) == 0, "key %zu is %s, expected %s", index - 1, got, last[i]);
    }
    CHECK(ctrt_memory_stat_key(index) == NULL, "there is one more key, %s", ctrt_memory_stat_key(index));
}

static void test_stats(void)
{
    group("blocks are counted by pool: current, peak, allocated, freed");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block small, edge, large;
        CHECK_OK(pool_alloc(memory, &small, 100, NULL)); /* the direct policy rounds up to a multiple of 64 */
        CHECK_OK(pool_alloc(memory, &edge, MIB, NULL));
        CHECK_OK(pool_alloc(memory, &large, MIB + 1, NULL));
        CHECK_STAT(memory, "allocation.all.current", 3);
        CHECK_STAT(memory, "allocation.small_pool.current", 2);
        CHECK_STAT(memory, "allocation.large_pool.current", 1);
        CHECK_STAT(memory, "allocated_bytes.all.current", 128 + 2 * MIB + 64);
        CHECK_STAT(memory, "allocated_bytes.large_pool.current", MIB + 64);
        CHECK_STAT(memory, "requested_bytes.all.current", 100 + 2 * MIB + 1);
        CHECK_STAT(memory, "requested_bytes.small_pool.current", 100 + MIB);
        CHECK_STAT(memory, "reserved_bytes.all.current", 128 + 2 * MIB + 64);
        CHECK_STAT(memory, "segment.all.current", 3);
        CHECK_STAT(memory, "active.all.current", 3);
        CHECK_STAT(memory, "active_bytes.all.peak", 128 + 2 * MIB + 64);
        pool_free(memory, &large, MIB + 1, NULL);
        CHECK_OK(pool_alloc(memory, &large, 3, NULL));
        CHECK_STAT(memory, "allocated_bytes.large_pool.current", 0);
        CHECK_STAT(memory, "allocated_bytes.large_pool.peak", MIB + 64);
        CHECK_STAT(memory, "allocated_bytes.large_pool.allocated", MIB + 64);
        CHECK_STAT(memory, "allocated_bytes.large_pool.freed", MIB + 64);
        CHECK_STAT(memory, "allocation.all.peak", 3);
        CHECK_STAT(memory, "allocation.small_pool.peak", 3);
        CHECK_STAT(memory, "allocation.all.allocated", 4);
        CHECK_STAT(memory, "allocation.all.freed", 1);
        CHECK_STAT(memory, "num_device_alloc", 4);
        CHECK_STAT(memory, "num_device_free", 1);
        CHECK_STAT(memory, "max_split_size", -1);
        ctrt_memory_reset_peak(memory->device);
        CHECK_STAT(memory, "allocated_bytes.all.peak", 128 + MIB + 64);
        CHECK_STAT(memory, "requested_bytes.all.peak", 103 + MIB);
        CHECK_STAT(memory, "reserved_bytes.all.peak", 128 + MIB + 64);
        CHECK_STAT(memory, "allocation.large_pool.peak", 0);
        pool_free(memory, &large, 3, NULL);
        pool_free(memory, &edge, MIB, NULL);
        pool_free(memory, &small, 100, NULL);
        for (size_t i = 0; ctrt_memory_stat_key(i) != NULL; i++)
            if (strstr(ctrt_memory_stat_key(i), "current"))
                CHECK_STAT(memory, ctrt_memory_stat_key(i), 0);
        CHECK_STAT(memory, "requested_bytes.all.freed", 100 + 2 * MIB + 1 + 3);
        ctrt_memory_stats stats;
        CHECK_OK(ctrt_memory_get_stats(&stats, memory->device));
        CHECK(stats.allocation[CTRT_POOL_ALL].allocated == 4 && stats.num_device_alloc == 4,
              "%lld allocations, %lld calls of the device, expected 4",
              (long long)stats.allocation[CTRT_POOL_ALL].allocated, (long long)stats.num_device_alloc);
    }
    CHILD_END;
    group("sums of all blocks are exact with every policy");
    static const char *const settings[] = { "CTRT_MEMORY=caching", "CTRT_MEMORY=direct", "CTRT_MEMORY=direct+caching" };
    for (size_t s = 0; s < COUNT(settings); s++) {
        IN_CHILD(folder_path(folder, NULL), settings[s], "CTRT_FAKE_MEMORY=1g") {
            struct device_memory *memory = open_memory("fake:0");
            struct { ctrt_block block; size_t asked; } live[64] = { 0 };
            uint64_t bytes = 0, asked = 0, most = 0, most_asked = 0, seed = 1;
            for (int i = 0; i < 3000; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t at = (size_t)(seed >> 33) % COUNT(live);
                if (live[at].block.address != NULL) {
                    bytes -= live[at].block.bytes, asked -= live[at].asked;
                    pool_free(memory, &live[at].block, live[at].asked, NULL);
                    live[at].block.address = NULL;
                } else {
                    live[at].asked = 1 + (size_t)(seed >> 40) % (i % 8 ? 5000 : 3 * MIB);
                    CHECK_OK(pool_alloc(memory, &live[at].block, live[at].asked, NULL));
                    bytes += live[at].block.bytes, asked += live[at].asked;
                    most = bytes > most ? bytes : most;
                    most_asked = asked > most_asked ? asked : most_asked;
                }
            }
            CHECK_STAT(memory, "allocated_bytes.all.current", bytes);
            CHECK_STAT(memory, "allocated_bytes.all.peak", most);
            CHECK_STAT(memory, "requested_bytes.all.current", asked);
            CHECK_STAT(memory, "requested_bytes.all.peak", most_asked);
            CHECK(stat_of(memory, "allocated_bytes.large_pool.current")
                          + stat_of(memory, "allocated_bytes.small_pool.current") == (int64_t)bytes,
                  "%s: the pools do not add up", settings[s]);
            CHECK(stat_of(memory, "segment.large_pool.allocated") + stat_of(memory, "segment.small_pool.allocated")
                      == stat_of(memory, "segment.all.allocated"), "%s: segments of the pools do not add up",
                          settings[s]);
        }
        CHILD_END;
    }
}

/* ---- scopes ---- */

static void test_scopes(void)
{
    group("nested and overlapping scopes have exact peaks");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_device *device = memory->device;
        ctrt_memory_scope *a = NULL, *b = NULL, *c = NULL;
        ctrt_memory_peaks peaks;
        ctrt_block x, y, z;
        CHECK_OK(pool_alloc(memory, &x, 1 * KIB, NULL));
        CHECK_OK(ctrt_memory_scope_begin(&a, device));
        CHECK_OK(pool_alloc(memory, &y, 4 * KIB, NULL));            /* 5 KiB */
        CHECK_OK(ctrt_memory_scope_begin(&b, device));              /* inside scope a */
        CHECK_OK(pool_alloc(memory, &z, 2 * KIB, NULL));            /* 7 KiB */
        pool_free(memory, &z, 2 * KIB, NULL);
        pool_free(memory, &y, 4 * KIB, NULL);                       /* 1 KiB */
        CHECK_OK(ctrt_memory_scope_begin(&c, device));              /* ends after a and b */
        CHECK_OK(ctrt_memory_scope_end(&peaks, &b));
        CHECK(peaks.allocated_bytes == 7 * KIB && peaks.allocated_before == 5 * KIB && peaks.allocations == 3
                  && peaks.reserved_bytes == 7 * KIB && peaks.requested_bytes == 7 * KIB,
              "inner: %llu bytes in %llu, before %llu", (unsigned long long)peaks.allocated_bytes,
              (unsigned long long)peaks.allocations, (unsigned long long)peaks.allocated_before);
        ctrt_memory_reset_peak(device);                             /* does not affect scopes */
        CHECK_OK(pool_alloc(memory, &y, 3 * KIB, NULL));            /* 4 KiB */
        CHECK_OK(ctrt_memory_scope_read(&peaks, c));
        CHECK(peaks.allocated_bytes == 4 * KIB && peaks.allocated_before == 1 * KIB, "overlapping, so far: %llu",
              (unsigned long long)peaks.allocated_bytes);
        CHECK_OK(ctrt_memory_scope_end(&peaks, &a));
        CHECK(peaks.allocated_bytes == 7 * KIB && peaks.allocated_before == 1 * KIB, "outer: %llu",
              (unsigned long long)peaks.allocated_bytes);
        CHECK_OK(pool_alloc(memory, &z, 5 * KIB, NULL));            /* 9 KiB */
        pool_free(memory, &z, 5 * KIB, NULL);
        CHECK_OK(ctrt_memory_scope_end(&peaks, &c));
        CHECK(peaks.allocated_bytes == 9 * KIB && c == NULL, "overlapping: %llu",
              (unsigned long long)peaks.allocated_bytes);
        CHECK(ctrt_memory_max_allocated(device) == 9 * KIB, "since the reset: %llu",
              (unsigned long long)ctrt_memory_max_allocated(device));
        CHECK_OK(ctrt_memory_scope_begin(&a, device));
        CHECK_OK(ctrt_memory_scope_end(&peaks, &a));
        CHECK(peaks.allocated_bytes == 4 * KIB, "an empty scope: %llu", (unsigned long long)peaks.allocated_bytes);
        CHECK_OK(ctrt_memory_scope_begin(&a, device));
        pool_free(memory, &y, 3 * KIB, NULL);
        pool_free(memory, &x, 1 * KIB, NULL);
        CHECK_OK(ctrt_memory_scope_end(&peaks, &a));
        CHECK(peaks.allocated_bytes == 4 * KIB, "a scope that only frees: %llu",
              (unsigned long long)peaks.allocated_bytes);
    }
    CHILD_END;
    group("random scopes have the peaks of a simple model");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        enum { SCOPES = 7, BLOCKS = 20 };
        struct device_memory *memory = open_memory("fake:0");
        ctrt_memory_scope *scopes[SCOPES] = { NULL };
        uint64_t want[SCOPES], now = 0, seed = 7, wrong = 0;
        ctrt_block blocks[BLOCKS] = { 0 };
        for (int i = 0; i < 20000; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(seed >> 33) % (SCOPES + 3 * BLOCKS);
            if (at < SCOPES && scopes[at] == NULL) {
                CHECK_OK(ctrt_memory_scope_begin(&scopes[at], memory->device));
                want[at] = now;
            } else if (at < SCOPES) {
                ctrt_memory_peaks peaks;
                CHECK_OK(ctrt_memory_scope_end(&peaks, &scopes[at]));
                wrong += peaks.allocated_bytes != want[at];
            } else {
                ctrt_block *block = &blocks[(at - SCOPES) % BLOCKS];
                if (block->address != NULL) {
                    now -= block->bytes;
                    pool_free(memory, block, block->bytes, NULL);
                    block->address = NULL;
                } else {
                    CHECK_OK(pool_alloc(memory, block, 64 * (1 + (size_t)(seed >> 44) % 100), NULL));
                    now += block->bytes;
                }
                for (int s = 0; s < SCOPES; s++)
                    want[s] = scopes[s] != NULL && now > want[s] ? now : want[s];
            }
        }
        CHECK(wrong == 0, "%llu scopes have a wrong peak", (unsigned long long)wrong);
    }
    CHILD_END;
}

/* ---- threads ---- */

struct worker {
    struct device_memory *memory;
    ctrt_block blocks[32];
    int rounds;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (int round = 0; round < worker->rounds; round++) {
        for (int i = 0; i < 32; i++)
            if (pool_alloc(worker->memory, &worker->blocks[i], (size_t)(100 << (i % 12)), NULL) != CTRT_OK)
                abort();
        if (round + 1 < worker->rounds)
            for (int i = 0; i < 32; i++)
                pool_free(worker->memory, &worker->blocks[i], (size_t)(100 << (i % 12)), NULL);
    }
    return NULL;
}

static void test_threads(void)
{
    group("threads end and free each other's blocks: sums are exact");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=4g") {
        struct device_memory *memory = open_memory("fake:0");
        struct worker workers[6], mine = { .memory = memory, .rounds = 1 };
        pthread_t threads[6];
        uint64_t each = 0;
        /* This thread holds memory and is idle from here on. */
        work(&mine);
        for (int i = 0; i < 32; i++)
            each += mine.blocks[i].bytes;
        for (int round = 0; round < 3; round++) {
            ctrt_memory_reset_peak(memory->device);
            for (int i = 0; i < 6; i++) {
                workers[i] = (struct worker){ .memory = memory, .rounds = 20 };
                pthread_create(&threads[i], NULL, work, &workers[i]);
            }
            for (int i = 0; i < 6; i++)
                pthread_join(threads[i], NULL);
            CHECK_STAT(memory, "allocated_bytes.all.current", 7 * each);
            CHECK_STAT(memory, "allocation.all.current", 7 * 32);
            CHECK_STAT(memory, "allocated_bytes.all.peak", 7 * each); /* all threads end with their maximum allocated */
            CHECK_STAT(memory, "allocation.all.allocated", 32 + (round + 1) * 6 * 20 * 32);
            for (int i = 0; i < 6; i++)
                for (int k = 0; k < 32; k++)
                    pool_free(memory, &workers[i].blocks[k], (size_t)(100 << (k % 12)), NULL);
            CHECK_STAT(memory, "allocated_bytes.all.current", each);
            CHECK_STAT(memory, "requested_bytes.small_pool.current", stat_of(memory, "requested_bytes.all.current"));
        }
        CHECK(memory->counters.threads != NULL && memory->counters.threads->next == NULL,
              "threads that have ended are still in the list");
        for (int i = 0; i < 32; i++)
            pool_free(memory, &mine.blocks[i], (size_t)(100 << (i % 12)), NULL);
        for (size_t i = 0; ctrt_memory_stat_key(i) != NULL; i++)
            if (strstr(ctrt_memory_stat_key(i), "current"))
                CHECK_STAT(memory, ctrt_memory_stat_key(i), 0);
    }
    CHILD_END;
    group("a new thread's peak includes memory that an idle thread holds");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=4g") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block big;
        pthread_t thread;
        struct worker worker = { .memory = memory, .rounds = 2 };
        CHECK_OK(pool_alloc(memory, &big, 500 * MIB, NULL));
        pthread_create(&thread, NULL, work, &worker);
        pthread_join(thread, NULL);
        uint64_t each = 0;
        for (int i = 0; i < 32; i++)
            each += worker.blocks[i].bytes;
        CHECK_STAT(memory, "allocated_bytes.all.peak", 500 * MIB + each);
    }
    CHILD_END;
}

/* ---- the table ---- */

static void test_table(void)
{
    group("sizes and counts are formatted as in PyTorch's table");
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
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK(strcmp(summary_size(text, cases[i].value, cases[i].by), cases[i].size) == 0,
              "size %lld: \"%s\", expected \"%s\"",
              (long long)cases[i].value, text, cases[i].size);
        CHECK(strcmp(summary_count(text, cases[i].value, cases[i].by), cases[i].count) == 0,
              "count %lld: \"%s\", expected \"%s\"", (long long)cases[i].value, text, cases[i].count);
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
    ctrt_memory_stats stats = { .num_ooms = 2, .num_alloc_retries = 3 };
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
    CHECK(lines == 6 + 11 + 11 + 2 * 9 + 1, "%d lines", lines);
    strbuf_drop(&table);
    summary_table(&table, "cpu", &stats, true);
    CHECK(strstr(table.bytes, "from large pool") == NULL && strstr(table.bytes, "Oversize GPU segments") != NULL, "%s",
          table.bytes);
    strbuf_drop(&table);
}

/* ---- limits ---- */

static void test_limits(void)
{
    group("the grammar of CTRT_MEMORY_LIMIT");
    static const struct { const char *text; uint64_t limit; ctrt_status status; } cases[] = {
        { "fake:0=64m", 64 * MIB, CTRT_OK },
        { "fake:1=64m", QUOTA_NONE, CTRT_OK },
        { "fake=1g", 1024 * MIB, CTRT_OK },
        { "fake:0=2m,fake=1g", 2 * MIB, CTRT_OK }, /* the entry with the device's name has priority, in any position */
        { "fake=1g,fake:0=2m", 2 * MIB, CTRT_OK },
        { "fake:0=50%", 500, CTRT_OK },
        { "fake:0=0%", 0, CTRT_OK },
        { "fake:0=100%", 1000, CTRT_OK },
        { "cpu=2g,fake:0=512", 512, CTRT_OK },
        { "fake:0=101%", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0=-1", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0=", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "=5", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0=1m,", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "64m", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0=%", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:0=lots", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "fake:=1m", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "cuda:o=1m", 0, CTRT_ERR_INVALID_ARGUMENT },
        { "cuda:0x1=1m", 0, CTRT_ERR_INVALID_ARGUMENT },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t limit = 1;
        ctrt_status status = quota_parse(&limit, cases[i].text, "fake:0", "fake", 1000);
        CHECK(status == cases[i].status && (status != CTRT_OK || limit == cases[i].limit),
              "\"%s\": status %d, limit %llu",
              cases[i].text, (int)status, (unsigned long long)limit);
    }
    uint64_t limit;
    CHECK_FAILS(quota_parse(&limit, "fake:0=50%", "fake:0", "fake", 0), CTRT_ERR_INVALID_ARGUMENT, "give a size");

    static const char *const settings[] = { "CTRT_MEMORY=caching", "CTRT_MEMORY=direct" };
    for (size_t s = 0; s < COUNT(settings); s++) {
        group("reserved memory never exceeds the limit: %s", settings[s]);
        IN_CHILD(folder_path(folder, NULL), settings[s], "CTRT_FAKE_MEMORY=256m", "CTRT_MEMORY_LIMIT=fake:0=64m") {
            struct device_memory *memory = open_memory("fake:0");
            ctrt_device *device = memory->device;
            ctrt_block a, b, c;
            CHECK(ctrt_memory_limit(device) == 64 * MIB, "the limit is %llu bytes",
                  (unsigned long long)ctrt_memory_limit(device));
            CHECK_OK(pool_alloc(memory, &a, 40 * MIB, NULL));
            CHECK_FAILS(pool_alloc(memory, &b, 30 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY, "64.00 MiB allowed");
            CHECK(strstr(ctrt_error_message(), "The device has enough free memory: raise the limit") != NULL, "%s",
                  ctrt_error_message());
            CHECK_STAT(memory, "num_ooms", 1);
            CHECK_STAT(memory, "num_oom_rejections", 1);
            pool_free(memory, &a, 40 * MIB, NULL);
            CHECK_OK(pool_alloc(memory, &b, 50 * MIB, NULL));       /* the cache is trimmed to make room */
            CHECK(ctrt_memory_reserved(device) <= 64 * MIB, "%llu reserved",
                  (unsigned long long)ctrt_memory_reserved(device));
            CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
            CHECK_OK(pool_alloc(memory, &c, 100 * MIB, NULL));
            pool_free(memory, &c, 100 * MIB, NULL);
            CHECK_OK(ctrt_memory_set_fraction(device, 0.125));      /* 32 MiB, less than is reserved */
            CHECK(ctrt_memory_limit(device) == 32 * MIB, "the limit is %llu bytes",
                  (unsigned long long)ctrt_memory_limit(device));
            CHECK_FAILS(pool_alloc(memory, &c, 120 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY, "32.00 MiB allowed");
            CHECK_OK(ctrt_memory_set_fraction(device, 0));
            CHECK_FAILS(pool_alloc(memory, &c, 120 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY, "0 bytes allowed");
            CHECK_STAT(memory, "num_oom_rejections", 3);
            CHECK_OK(ctrt_memory_set_fraction(device, 1));
            CHECK_FAILS(pool_alloc(memory, &c, 500 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                        "The request alone exceeds the limit");
            CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
            CHECK_FAILS(pool_alloc(memory, &c, 230 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY, NULL);
            CHECK_STAT(memory, "num_ooms", 5);
            CHECK_STAT(memory, "num_oom_rejections", 4);
            CHECK_OK(pool_alloc(memory, &c, 120 * MIB, NULL));
            pool_free(memory, &c, 120 * MIB, NULL);
            pool_free(memory, &b, 50 * MIB, NULL);
            CHECK_OK(ctrt_memory_release_all(device));
            CHECK(atomic_load(&memory->reserved) == 0, "%llu bytes count as reserved at the end",
                  (unsigned long long)atomic_load(&memory->reserved));
        }
        CHILD_END;
    }
    group("an invalid limit makes ctrt_device_get() fail");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY_LIMIT=fake:0=much") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_MEMORY_LIMIT=fake:0=much");
    }
    CHILD_END;
}

static char logged[1024];

static void note_log(void *user, ctrt_log_level level, const char *where, const char *message)
{
    (void)user;
    (void)where;
    if (level == CTRT_LOG_WARNING)
        snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

static void test_limit_types(void)
{
    static const struct { const char *setting, *error, *warning; } cases[] = {
        { "CTRT_MEMORY_LIMIT=fake:0=8m", NULL, NULL },
        { "CTRT_MEMORY_LIMIT=fkae:0=8m", "there is no backend fkae; did you mean fake?", NULL },
        { "CTRT_MEMORY_LIMIT=fake:1=8m,Fake=8m", "there is no backend Fake; did you mean fake?", NULL },
        { "CTRT_MEMORY_LIMIT=opencl=90%,fake:0=8m", NULL, "there is no backend opencl, so that part has no effect\n" },
    };
    group("a limit for a misspelt device type is an error, for one that is not installed a warning");
    for (size_t i = 0; i < COUNT(cases); i++) {
        IN_CHILD(folder_path(folder, NULL), cases[i].setting) {
            ctrt_device *device = NULL, *second = NULL;
            ctrt_log_set_callback(note_log, NULL);
            if (cases[i].error != NULL) {
                CHECK_FAILS(ctrt_device_get(&device, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, cases[i].error);
            } else {
                CHECK_OK(ctrt_device_get(&device, "fake:0"));
                CHECK_OK(ctrt_device_get(&second, "fake:1"));
                CHECK(ctrt_memory_limit(device) == 8 * MIB, "the limit is %llu bytes",
                      (unsigned long long)ctrt_memory_limit(device));
                const char *told = cases[i].warning != NULL ? strstr(logged, cases[i].warning) : logged;
                CHECK(told != NULL && (cases[i].warning != NULL ? strstr(told + 1, cases[i].warning) == NULL
                                       : *told == '\0'),
                      "%s: logged \"%s\"", cases[i].setting, logged);
            }
        }
        CHILD_END;
    }
}

/* ---- metrics ---- */

static long long metric(const char *text, const char *name)
{
    char start[128];
    snprintf(start, sizeof start, "\n%s{device=\"fake:0\",policy=\"direct\"} ", name);
    const char *at = strstr(text, start);
    return at != NULL ? atoll(at + strlen(start)) : -1;
}

static void test_metrics(void)
{
    group("metrics have Prometheus' format and report a peak between two readings");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block block;
        char *text = NULL;
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
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
        CHECK(samples == 23, "%d samples", samples);
        free(text);
        CHECK_OK(pool_alloc(memory, &block, 5 * MIB, NULL));
        pool_free(memory, &block, 5 * MIB, NULL);
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(metric(text, "ctrt_memory_allocated_bytes") == 0 &&
              metric(text, "ctrt_memory_allocated_bytes_max") == 5 * (long)MIB
                  && metric(text, "ctrt_memory_reserved_bytes_max") == 5 * (long)MIB &&
                  metric(text, "ctrt_memory_blocks_max") == 1
                  && metric(text, "ctrt_memory_allocations_total") == 1, "%s", text);
        free(text);
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(metric(text, "ctrt_memory_allocated_bytes_max") == 0, "the peak is reported twice: %lld",
              metric(text, "ctrt_memory_allocated_bytes_max"));
        CHECK(ctrt_memory_max_allocated(memory->device) == 5 * MIB, "reading the metrics reset the peak");
        free(text);
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_JSON));
        CHECK(strstr(text, "\"device\": \"fake:0\"") && strstr(text, "\"allocations_total\": 1"), "%s", text);
        free(text);
    }
    CHILD_END;
}

static _Atomic bool enough;

static void *take_and_give(void *argument)
{
    struct device_memory *memory = argument;
    ctrt_block blocks[2000];
    /* Allocates slowly, so that allocated bytes often exceed the peak since the last reading. */
    while (!enough) {
        for (int i = 0; i < 2000; i++)
            if (pool_alloc(memory, &blocks[i], 64 * KIB, NULL) != CTRT_OK)
                abort();
        for (int i = 0; i < 2000; i++)
            pool_free(memory, &blocks[i], 64 * KIB, NULL);
    }
    return NULL;
}

static void test_moving_metrics(void)
{
    group("metrics: a current value never exceeds its peak while another thread allocates");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        pthread_t thread;
        int wrong = 0, held = 0;
        pthread_create(&thread, NULL, take_and_give, memory);
        for (int i = 0; i < 3000; i++) {
            char *text = NULL;
            CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
            held += metric(text, "ctrt_memory_allocated_bytes") > 0;
            wrong += metric(text, "ctrt_memory_allocated_bytes_max") < metric(text, "ctrt_memory_allocated_bytes")
                     || metric(text, "ctrt_memory_reserved_bytes_max") < metric(text, "ctrt_memory_reserved_bytes")
                     || metric(text, "ctrt_memory_blocks_max") < metric(text, "ctrt_memory_blocks");
            free(text);
        }
        enough = true;
        pthread_join(thread, NULL);
        CHECK(wrong == 0 && held > 0, "%d readings of 3000 have a statistic above its peak; in %d memory is allocated",
              wrong, held);
    }
    CHILD_END;
}

TEST_MAIN
{
    folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    test_stats();
    test_scopes();
    test_threads();
    test_limits();
    test_limit_types();
    test_metrics();
    test_moving_metrics();
    test_keys();
    test_table();
    folder_remove(folder);
    return done();
}
