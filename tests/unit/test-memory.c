/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of fake devices: the syntax of CTRT_MEMORY, the policies, statistics, out of memory, threads and fork. */
#include <pthread.h>

#include "base/host_alloc.h"
#include "child.h"
#include "ctrt/memory.h"
#include "folder.h"
#include "memory/policy.h"
#include "memory/pool.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MIB ((size_t)1 << 20)

static char *folder;

static struct device_memory *open_memory(const char *name)
{
    ctrt_device *device = NULL;
    ctrt_status status = ctrt_device_get(&device, name);
    if (!CHECK_OK(status)) {
        fflush(stdout);
        exit(1);
    }
    return device->memory;
}

/* Frees the block with its full size as the requested size. test-counters.c tests the requested sizes. */
static void give(struct device_memory *memory, const ctrt_block *block)
{
    pool_free(memory, block, block->bytes, NULL);
}

/* ---- syntax of CTRT_MEMORY ---- */

static void test_grammar(void)
{
    static const struct { const char *text; int count; const char *names[4], *options[4]; } good[] = {
        { "caching", 1, { "caching" }, { "" } },
        { "caching:max_split=64m", 1, { "caching" }, { "max_split=64m" } },
        { "caching:max_split=64m,gc=0.8", 1, { "caching" }, { "max_split=64m,gc=0.8" } },
        { "spill+caching", 2, { "spill", "caching" }, { "", "" } },
        { "a:x=1+b+c:y=2,z=3+d", 4, { "a", "b", "c", "d" }, { "x=1", "", "y=2,z=3", "" } },
        { "a:x=y=z", 1, { "a" }, { "x=y=z" } },
        { "caching:roundup=[256:1,512:2,>:8],gc=0.8", 1, { "caching" }, { "roundup=[256:1,512:2,>:8],gc=0.8" } },
    };
    static const char *const bad[] = {
        "",
        "+",
        "a+",
        "+a",
        ":x=1",
        "a:",
        "a:x",
        "a:x=",
        "a:=1",
        "a:x=1,",
        "a:,x=1",
        "a:x=1,,y=2",
        "a+b+c+d+e",
        "A",
        "a b",
        "a:x=1,y",
        "abcdefghijklmnopqrstuvwxyzabcdef",
        "../a",
        "a:x=1+",
        "-a",
        "1a",
    };
    group("CTRT_MEMORY is parsed, and invalid settings are errors");
    for (size_t i = 0; i < COUNT(good); i++) {
        struct policy_spec specs[MEMORY_MAX_POLICIES];
        int count = 0;
        CHECK_OK(policy_parse(specs, &count, good[i].text));
        CHECK(count == good[i].count, "%s has %d policies", good[i].text, count);
        for (int k = 0; k < count; k++)
            CHECK(strcmp(specs[k].name, good[i].names[k]) == 0
                      && strcmp(specs[k].options, good[i].options[k]) == 0,
                  "%s: policy %d is %s:%s", good[i].text, k, specs[k].name, specs[k].options);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct policy_spec specs[MEMORY_MAX_POLICIES];
        int count = 0;
        ctrt_status status = policy_parse(specs, &count, bad[i]);
        CHECK(status == CTRT_ERR_INVALID_ARGUMENT && strstr(ctrt_error_message(), "CTRT_MEMORY="),
              "\"%s\": the status is %d", bad[i], (int)status);
    }
}

static void test_choice(void)
{
    static const struct {
        const char *setting, *name, *words;
        ctrt_status status;
    } cases[] = {
        { "CTRT_MEMORY=", "caching", NULL, CTRT_OK },
        { "CTRT_MEMORY=direct", "direct", NULL, CTRT_OK },
        { "CTRT_MEMORY=caching:max_split=64m", "caching", NULL, CTRT_OK },
        { "CTRT_MEMORY=direct+caching", "direct+caching", NULL, CTRT_OK },
        { "CTRT_MEMORY=caching:roundup=[256:1,512:2,>:8],max_split=64m", "caching", NULL, CTRT_OK },
        { "CTRT_MEMORY=caching:roundup=[256:1,512:2", NULL, "roundup must be a power of two",
          CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=cachng", NULL, "did you mean caching?", CTRT_ERR_NOT_FOUND },
        { "CTRT_MEMORY=caching:max_splt=64m", NULL, "caching has no option \"max_splt\"; known: max_split",
          CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=caching:max_split=20m", NULL, "max_split must be a size above 20m",
          CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=caching:max_split=99999999999999999999g", NULL, "max_split must",
          CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=direct:x=1", NULL, "direct has no options", CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=policy", NULL, "this policy cannot be created", CTRT_ERR_NOT_SUPPORTED },
        { "CTRT_MEMORY=policy+caching", NULL, "memory policy policy: this policy cannot be created",
          CTRT_ERR_NOT_SUPPORTED },
        { "CTRT_MEMORY=direct caching", NULL, "CTRT_MEMORY", CTRT_ERR_INVALID_ARGUMENT },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        group("a device with %s", cases[i].setting);
        IN_CHILD(folder_path(folder, NULL), cases[i].setting) {
            ctrt_device *device = NULL;
            ctrt_status status = ctrt_device_get(&device, "fake:0");
            CHECK(status == cases[i].status, "the status is %d, message: %s", (int)status, ctrt_error_message());
            if (status == CTRT_OK)
                CHECK(strcmp(ctrt_memory_policy_name(device), cases[i].name) == 0, "the device's policy is %s",
                      ctrt_memory_policy_name(device));
            else
                CHECK(strstr(ctrt_error_message(), cases[i].words)
                          && strstr(ctrt_error_message(), "CTRT_MEMORY"),
                      "the message does not name the setting: %s", ctrt_error_message());
        }
        CHILD_END;
    }
}

/* ---- exact statistics with one thread ---- */

static void test_caching_figures(void)
{
    group("caching: sizes of small and large blocks equal PyTorch's");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_device *device = memory->device;
        ctrt_block tiny, block, large, whole;
        CHECK(ctrt_memory_allocated(device) == 0 && ctrt_memory_reserved(device) == 0,
              "a new device has allocated or reserved memory");
        CHECK_OK(pool_alloc(memory, &tiny, 8, NULL));
        CHECK(ctrt_memory_allocated(device) == 512, "8 bytes take %lu",
              (unsigned long)ctrt_memory_allocated(device));
        CHECK(ctrt_memory_reserved(device) == 2 * MIB, "%lu bytes are reserved, expected 2 MiB",
              (unsigned long)ctrt_memory_reserved(device));
        CHECK_OK(pool_alloc(memory, &block, 513, NULL));
        CHECK(ctrt_memory_allocated(device) == 512 + 1024, "513 bytes more: %lu",
              (unsigned long)ctrt_memory_allocated(device));
        CHECK_OK(pool_alloc(memory, &large, MIB + 1, NULL));
        CHECK(ctrt_memory_allocated(device) == 1536 + MIB + 512 && ctrt_memory_reserved(device) == 22 * MIB,
              "%lu bytes are allocated of %lu reserved", (unsigned long)ctrt_memory_allocated(device),
              (unsigned long)ctrt_memory_reserved(device));
        CHECK_OK(pool_alloc(memory, &whole, 11 * MIB, NULL));
        CHECK(ctrt_memory_reserved(device) == 22 * MIB,
              "11 MiB fit the rest of the segment, but %lu are reserved",
              (unsigned long)ctrt_memory_reserved(device));
        ctrt_block more;
        CHECK_OK(pool_alloc(memory, &more, 13 * MIB, NULL));
        CHECK(ctrt_memory_reserved(device) == 36 * MIB, "13 MiB take a segment of 14: %lu",
              (unsigned long)ctrt_memory_reserved(device));
        uint64_t peak = ctrt_memory_allocated(device);
        give(memory, &more);
        give(memory, &whole);
        give(memory, &large);
        give(memory, &block);
        give(memory, &tiny);
        CHECK(ctrt_memory_allocated(device) == 0, "%lu allocated at the end",
              (unsigned long)ctrt_memory_allocated(device));
        CHECK(ctrt_memory_max_allocated(device) == peak, "peak %lu, expected %lu",
              (unsigned long)ctrt_memory_max_allocated(device), (unsigned long)peak);
        ctrt_memory_reset_peak(device);
        CHECK(ctrt_memory_max_allocated(device) == 0, "peak %lu after reset",
              (unsigned long)ctrt_memory_max_allocated(device));
        ctrt_memory_stats stats;
        CHECK_OK(ctrt_memory_get_stats(&stats, device));
        CHECK(stats.allocation[CTRT_POOL_ALL].allocated == 5 && stats.allocation[CTRT_POOL_ALL].freed == 5
                  && stats.num_device_alloc == 3 && stats.num_device_free == 0,
              "wrong statistics: %lu %lu %lu %lu", (unsigned long)stats.allocation[CTRT_POOL_ALL].allocated,
              (unsigned long)stats.allocation[CTRT_POOL_ALL].freed, (unsigned long)stats.num_device_alloc,
              (unsigned long)stats.num_device_free);
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_OK(ctrt_memory_get_stats(&stats, device));
        CHECK(stats.num_device_free == 3 && ctrt_memory_reserved(device) == 0, "%lu freed, %lu reserved",
              (unsigned long)stats.num_device_free, (unsigned long)ctrt_memory_reserved(device));
        uint64_t left, total;
        CHECK_OK(ctrt_device_memory_info(device, &left, &total));
        CHECK(left == total, "%lu bytes of the device were not freed", (unsigned long)(total - left));
    }
    CHILD_END;
    group("direct: every block is a device allocation in multiples of 64 bytes");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block a, b;
        ctrt_memory_stats stats;
        CHECK_OK(pool_alloc(memory, &a, 1, NULL));
        CHECK_OK(pool_alloc(memory, &b, 65, NULL));
        CHECK(ctrt_memory_allocated(memory->device) == 192 && ctrt_memory_reserved(memory->device) == 192,
              "%lu bytes are allocated of %lu reserved, expected 192 of 192",
              (unsigned long)ctrt_memory_allocated(memory->device),
              (unsigned long)ctrt_memory_reserved(memory->device));
        give(memory, &a);
        give(memory, &b);
        CHECK_OK(ctrt_memory_get_stats(&stats, memory->device));
        CHECK(stats.num_device_alloc == 2 && stats.num_device_free == 2 && ctrt_memory_reserved(memory->device) == 0,
              "%lu device allocations and %lu frees, expected 2 and 2", (unsigned long)stats.num_device_alloc,
              (unsigned long)stats.num_device_free);
    }
    CHILD_END;
    group("a request of 0 bytes returns no block and is not counted");
    IN_CHILD(folder_path(folder, NULL)) {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block none;
        CHECK_OK(pool_alloc(memory, &none, 0, NULL));
        CHECK(none.address == NULL && none.bytes == 0, "0 bytes returned the block %p of %zu bytes", none.address,
              none.bytes);
        give(memory, &none);
        ctrt_memory_stats stats;
        CHECK_OK(ctrt_memory_get_stats(&stats, memory->device));
        CHECK(stats.allocation[CTRT_POOL_ALL].allocated == 0 && stats.allocation[CTRT_POOL_ALL].freed == 0, "%lu were counted",
              (unsigned long)stats.allocation[CTRT_POOL_ALL].allocated);
    }
    CHILD_END;
}

/* Returns the next value of a fixed pseudo-random sequence. */
static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t some_size(uint32_t *state)
{
    uint32_t kind = next_random(state) % 8, r = next_random(state);
    return kind < 4 ? 1 + r % 4096 : kind < 7 ? 1 + r % MIB : 1 + r % (6 * MIB);
}

/* Allocates and frees random blocks. Returns the number of blocks that were missing, misaligned, too small or
 * overwritten. Any thread may call this function, so it does not use CHECK. */
static long churn(struct device_memory *memory, uint32_t seed, int rounds)
{
    enum { LIVE = 48 };
    struct { ctrt_block block; size_t bytes; unsigned char mark; } live[LIVE] = { 0 };
    long wrong = 0;
    for (int i = 0; i < rounds; i++) {
        int at = (int)(next_random(&seed) % LIVE);
        if (live[at].block.address != NULL) {
            const unsigned char *bytes = live[at].block.address;
            wrong += bytes[0] != live[at].mark || bytes[live[at].bytes - 1] != live[at].mark
                     || bytes[live[at].bytes / 2] != live[at].mark;
            give(memory, &live[at].block);
        }
        live[at].bytes = some_size(&seed);
        live[at].mark = (unsigned char)next_random(&seed);
        if (pool_alloc(memory, &live[at].block, live[at].bytes, NULL) != CTRT_OK) {
            live[at].block.address = NULL;
            wrong++;
            continue;
        }
        wrong += (uintptr_t)live[at].block.address % 64 != 0 || live[at].block.bytes < live[at].bytes;
        memset(live[at].block.address, live[at].mark, live[at].bytes);
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].block.address != NULL)
            give(memory, &live[i].block);
    return wrong;
}

#define CHECK_CHURN(...)                                                        \
    do {                                                                        \
        long wrong_ = churn(__VA_ARGS__);                                       \
        CHECK(wrong_ == 0, "%ld blocks were missing, misplaced or overwritten", wrong_); \
    } while (0)

/* Allocates like a training step: the same sizes each time, all freed at the end. */
static void step(struct device_memory *memory)
{
    ctrt_block blocks[40];
    uint32_t seed = 5;
    for (int i = 0; i < 40; i++)
        CHECK_OK(pool_alloc(memory, &blocks[i], some_size(&seed), NULL));
    for (int i = 39; i >= 0; i--)
        give(memory, &blocks[i]);
}

static void test_churn(void)
{
    static const char *const settings[] = {
        "CTRT_MEMORY=caching",        "CTRT_MEMORY=direct",          "CTRT_MEMORY=caching:max_split=21m",
        "CTRT_MEMORY=direct+caching", "CTRT_MEMORY=caching+caching", "CTRT_MEMORY=caching+direct",
    };
    for (size_t i = 0; i < COUNT(settings); i++) {
        group("blocks of all sizes are allocated and freed: %s", settings[i]);
        IN_CHILD(folder_path(folder, NULL), settings[i], "CTRT_FAKE_MEMORY=1g", "CTRT_FAKE_HOST=1") {
            struct device_memory *memory = open_memory("fake:1");
            ctrt_memory_stats before, after;
            uint64_t left, total;
            CHECK_CHURN(memory, 1, 8000);
            step(memory);
            CHECK_OK(ctrt_memory_get_stats(&before, memory->device));
            for (int k = 0; k < 50; k++)
                step(memory);
            CHECK_OK(ctrt_memory_get_stats(&after, memory->device));
            if (strstr(settings[i], "caching"))
                CHECK(after.num_device_alloc == before.num_device_alloc
                          && after.num_device_free == before.num_device_free,
                      "50 repeated steps made %lu raw allocations",
                      (unsigned long)(after.num_device_alloc - before.num_device_alloc));
            CHECK(ctrt_memory_allocated(memory->device) == 0 && after.allocation[CTRT_POOL_ALL].allocated == after.allocation[CTRT_POOL_ALL].freed
                      && after.allocation[CTRT_POOL_ALL].allocated == 8000 + 51 * 40,
                  "%lu bytes, %lu and %lu blocks", (unsigned long)ctrt_memory_allocated(memory->device),
                  (unsigned long)after.allocation[CTRT_POOL_ALL].allocated, (unsigned long)after.allocation[CTRT_POOL_ALL].freed);
            CHECK_OK(ctrt_memory_empty_cache(memory->device));
            CHECK_OK(ctrt_device_memory_info(memory->device, &left, &total));
            CHECK(left == total && ctrt_memory_reserved(memory->device) == 0, "%lu bytes are still taken",
                  (unsigned long)(total - left));
            CHECK_OK(ctrt_memory_get_stats(&after, memory->device));
            CHECK(after.num_device_alloc == after.num_device_free, "%lu raw allocations, %lu frees",
                  (unsigned long)after.num_device_alloc, (unsigned long)after.num_device_free);
            CHECK_CHURN(memory, 2, 500);                      /* allocation still works */
        }
        CHILD_END;
    }
}

/* ---- out of memory ---- */

static void test_exhaustion(void)
{
    group("cached memory is freed before an out-of-memory error, which states sizes");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=64m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block a, b, c;
        CHECK_OK(pool_alloc(memory, &a, 30 * MIB, NULL));
        CHECK_OK(pool_alloc(memory, &b, 20 * MIB, NULL));
        CHECK_FAILS(pool_alloc(memory, &c, 40 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                    "out of memory on fake:0: 40.00 MiB requested, 50.00 MiB allocated");
        CHECK(strstr(ctrt_error_message(), "50.00 MiB reserved by policy caching")
                  && strstr(ctrt_error_message(), "14.00 MiB of 64.00 MiB free")
                  && strstr(ctrt_error_message(), "has no 41943040 bytes left"),
              "the message lacks a size: %s", ctrt_error_message());
        CHECK(ctrt_memory_allocated(memory->device) == 50 * MIB, "a failed allocation was counted");
        give(memory, &a);
        give(memory, &b);
        CHECK(ctrt_memory_reserved(memory->device) == 50 * MIB, "freed blocks were not cached");
        CHECK_OK(pool_alloc(memory, &c, 40 * MIB, NULL));
        CHECK(ctrt_memory_reserved(memory->device) == 40 * MIB, "%lu bytes are reserved, expected 40 MiB",
              (unsigned long)ctrt_memory_reserved(memory->device));
        give(memory, &c);
        CHECK_OK(pool_alloc(memory, &a, 63 * MIB,
                            NULL)); /* fits after the cached segments are freed */
        give(memory, &a);
        CHECK_FAILS(pool_alloc(memory, &c, SIZE_MAX, NULL), CTRT_ERR_OUT_OF_MEMORY, "address space");
        CHECK_FAILS(pool_alloc(memory, &c, SIZE_MAX / 2, NULL), CTRT_ERR_OUT_OF_MEMORY, NULL);
        CHECK_FAILS(pool_alloc(memory, &c, SIZE_MAX / 2 - 600, NULL), CTRT_ERR_OUT_OF_MEMORY, NULL);
    }
    CHILD_END;
    group("small blocks fit into free parts of a nearly full device");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=2m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block blocks[40];
        for (int i = 0; i < 32; i++)
            CHECK_OK(pool_alloc(memory, &blocks[i], 64 << 10, NULL));
        give(memory, &blocks[7]);
        CHECK_OK(pool_alloc(memory, &blocks[7], 30000, NULL));
        CHECK_OK(pool_alloc(memory, &blocks[32], 35328, NULL));         /* exactly the rest of the 64 KiB */
        CHECK_FAILS(pool_alloc(memory, &blocks[33], 100, NULL), CTRT_ERR_OUT_OF_MEMORY,
                    "out of memory on fake:0");
        for (int i = 0; i < 33; i++)
            give(memory, &blocks[i]);
        CHECK_OK(pool_alloc(memory, &blocks[0], MIB, NULL));
        give(memory, &blocks[0]);
    }
    CHILD_END;
    group("a smaller segment is allocated when one of the usual size does not fit");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=6m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block a, b;
        CHECK_OK(pool_alloc(memory, &a, 3 * MIB, NULL));
        CHECK(ctrt_memory_reserved(memory->device) == 3 * MIB, "%lu bytes are reserved, expected 3 MiB",
              (unsigned long)ctrt_memory_reserved(memory->device));
        CHECK_OK(pool_alloc(memory, &b, 100, NULL));
        give(memory, &a);
        give(memory, &b);
    }
    CHILD_END;
    group("a failure of the n-th allocation, for every n, returns a status and leaks nothing");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=256m") {
        static const size_t sizes[] = { 8, 100, 5000, 700000, 2 * MIB, 12 * MIB, 15 * MIB, 20 * MIB, 30 * MIB };
        int failures = 0;
        struct device_memory *memory = open_memory("fake:0");
        for (uint64_t n = 1; n < 40; n++) {
            ctrt_block blocks[COUNT(sizes)];
            bool got[COUNT(sizes)];
            CHECK_OK(ctrt_memory_empty_cache(memory->device));
            alloc_fail_at(n, n % 2);
            for (size_t i = 0; i < COUNT(sizes); i++) {
                ctrt_status status = pool_alloc(memory, &blocks[i], sizes[i], NULL);
                got[i] = status == CTRT_OK;
                failures += !got[i];
                CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "n %d, size %zu: the status is %d", (int)n,
                      sizes[i], (int)status);
            }
            alloc_fail_at(0, false);
            for (size_t i = 0; i < COUNT(sizes); i++)
                if (got[i])
                    give(memory, &blocks[i]);
            CHECK(ctrt_memory_allocated(memory->device) == 0, "n %d: %lu bytes were not freed", (int)n,
                  (unsigned long)ctrt_memory_allocated(memory->device));
        }
        CHECK(failures > 15, "only %d allocations failed", failures);
        uint64_t left, total;
        CHECK_OK(ctrt_memory_empty_cache(memory->device));
        CHECK_OK(ctrt_device_memory_info(memory->device, &left, &total));
        CHECK(left == total, "%lu bytes of the device were not freed", (unsigned long)(total - left));
    }
    CHILD_END;
    group("a failure of the n-th allocation, for every n, while a device opens returns a status");
    for (uint64_t n = 1; n < 60; n++) {
        IN_CHILD(folder_path(folder, NULL), n % 2 ? "CTRT_MEMORY=caching" : "CTRT_MEMORY=direct+caching",
                 "CTRT_LOG=error")
        {
            ctrt_device *device = NULL;
            alloc_fail_at(n, false);
            ctrt_status status = ctrt_device_get(&device, "fake:1");
            alloc_fail_at(0, false);
            CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "n %d: status %d: %s", (int)n,
                  (int)status, ctrt_error_message());
            CHECK((device != NULL) == (status == CTRT_OK), "n %d: a device was returned with an error", (int)n);
            if (!CHECK_OK(ctrt_device_get(&device, "fake:1")))
                printf("# n %d\n", (int)n);
        }
        CHILD_END;
    }
}

/* ---- many threads ---- */

struct worker {
    struct device_memory *memory;
    uint32_t seed;
    ctrt_block keep[8];
    long wrong;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    worker->wrong = churn(worker->memory, worker->seed, 400);
    for (int i = 0; i < 8; i++)
        if (pool_alloc(worker->memory, &worker->keep[i], (size_t)1000 << i, NULL) != CTRT_OK)
            abort();
    return NULL;
}

static void *work_and_free(void *memory)
{
    return (void *)churn(memory, 3, 500);
}

static void test_threads(void)
{
    static const char *const settings[] = { "CTRT_MEMORY=caching", "CTRT_MEMORY=direct",
                                            "CTRT_MEMORY=direct+caching" };
    for (size_t s = 0; s < COUNT(settings); s++) {
        group("statistics are exact with many threads that free each other's blocks: %s", settings[s]);
        IN_CHILD(folder_path(folder, NULL), settings[s], "CTRT_FAKE_MEMORY=4g", "CTRT_FAKE_HOST=1") {
            struct device_memory *memory = open_memory("fake:0");
            struct worker workers[6];
            pthread_t threads[6];
            ctrt_block first;
            CHECK_OK(pool_alloc(memory, &first, 100, NULL));            /* this thread is also counted */
            for (int round = 0; round < 3; round++) {
                uint64_t want = first.bytes;
                for (int i = 0; i < 6; i++) {
                    workers[i] = (struct worker){ .memory = memory, .seed = (uint32_t)(100 * round + i) };
                    pthread_create(&threads[i], NULL, work, &workers[i]);
                }
                CHECK_CHURN(memory, 7, 400);
                for (int i = 0; i < 6; i++) {
                    pthread_join(threads[i], NULL);
                    CHECK(workers[i].wrong == 0, "thread %d: %ld blocks were wrong", i, workers[i].wrong);
                }
                for (int i = 0; i < 6; i++)
                    for (int k = 0; k < 8; k++)
                        want += workers[i].keep[k].bytes;
                CHECK(ctrt_memory_allocated(memory->device) == want, "%lu allocated, expected %lu",
                      (unsigned long)ctrt_memory_allocated(memory->device), (unsigned long)want);
                CHECK(ctrt_memory_max_allocated(memory->device) >= want, "the peak is below what is allocated");
                for (int i = 0; i < 6; i++)
                    for (int k = 0; k < 8; k++)
                        give(memory, &workers[i].keep[k]);
                CHECK(ctrt_memory_allocated(memory->device) == first.bytes, "%lu allocated after all is freed",
                      (unsigned long)ctrt_memory_allocated(memory->device));
            }
            give(memory, &first);
            uint64_t left, total;
            CHECK_OK(ctrt_memory_empty_cache(memory->device));
            CHECK_OK(ctrt_device_memory_info(memory->device, &left, &total));
            CHECK(left == total, "ended threads keep %lu bytes", (unsigned long)(total - left));
        }
        CHILD_END;
    }
    group("statistics of ended threads are kept");
    IN_CHILD(folder_path(folder, NULL), "CTRT_FAKE_HOST=1", "CTRT_FAKE_MEMORY=1g") {
        struct device_memory *memory = open_memory("fake:0");
        for (int i = 0; i < 3; i++) {
            pthread_t thread;
            void *wrong;
            pthread_create(&thread, NULL, work_and_free, memory);
            pthread_join(thread, &wrong);
            CHECK(wrong == NULL, "%ld blocks were wrong", (long)wrong);
            CHECK(memory->counters.threads == NULL && !atomic_load(&memory->counters.many),
                  "an ended thread still has counters");
            CHECK(ctrt_memory_allocated(memory->device) == 0, "%lu bytes are still allocated",
                  (unsigned long)ctrt_memory_allocated(memory->device));
            int64_t peak = 0;
            CHECK_OK(ctrt_memory_stat_get(&peak, memory->device, "allocation.all.peak"));
            CHECK(peak == 48, "after thread %d the peak is %ld blocks", i, (long)peak);
        }
    }
    CHILD_END;
}

static void *forks_while_busy(void *argument)
{
    struct device_memory *memory = argument;
    intptr_t failures = 0;
    for (int i = 0; i < 15; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            _exit(churn(memory, (uint32_t)i, 200) != 0);
        }
        int status = 1;
        failures += child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)
                    || WEXITSTATUS(status) != 0;
    }
    return (void *)failures;
}

static void test_fork(void)
{
    group("a child forked while other threads allocate can use host memory");
    if (!forks_beside_threads())
        return;
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_HOST=1", "CTRT_FAKE_MEMORY=4g") {
        struct device_memory *memory = open_memory("fake:0");
        struct worker workers[2];
        pthread_t threads[2], forker;
        void *failures = NULL;
        for (int i = 0; i < 2; i++) {
            workers[i] = (struct worker){ .memory = memory, .seed = (uint32_t)i };
            pthread_create(&threads[i], NULL, work, &workers[i]);
        }
        pthread_create(&forker, NULL, forks_while_busy, memory);
        pthread_join(forker, &failures);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(failures == NULL, "%ld of 15 children failed", (long)(intptr_t)failures);
    }
    CHILD_END;
}

TEST_MAIN
{
    folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "memory-policy");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    test_choice();
    test_caching_figures();
    test_churn();
    test_exhaustion();
    test_threads();
    test_fork();
    test_grammar();
    folder_remove(folder);
    return done();
}
