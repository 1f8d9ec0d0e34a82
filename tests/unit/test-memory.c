/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of fake devices: the syntax of CTRT_MEMORY, policies, sums of statistics, threads and fork. */
#include <pthread.h>

#include "calls.h"
#include "fake_pool.h"
#include "memory/policy.h"

/* ---- syntax of CTRT_MEMORY ---- */

TEST(test_grammar, "CTRT_MEMORY is parsed, and invalid settings are errors")
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
        "", "+", "a+", "+a", ":x=1", "a:", "a:x", "a:x=", "a:=1", "a:x=1,", "a:,x=1", "a:x=1,,y=2", "a:x=1,y", "a:x=1+",
        "a+b+c+d+e", "A", "a b", "-a", "1a", "../a", "abcdefghijklmnopqrstuvwxyzabcdef",
    };
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    int count = 0;
    EACH(c, good) {
        CHECK_OK(policy_parse(specs, &count, c->text));
        CHECK_EQ(count, c->count);
        for (int k = 0; k < count; k++) {
            CHECK_STR(specs[k].name, c->names[k]);
            CHECK_STR(specs[k].options, c->options[k]);
        }
    }
    EACH(text, bad)
        CHECK_FAILS(policy_parse(specs, &count, *text), CTRT_ERR_INVALID_ARGUMENT, "CTRT_MEMORY=");
}

TEST(test_choice, "CTRT_MEMORY selects the policy; an error names the setting")
{
    /* words: of the message, or the policy's name */
    static const struct { const char *setting, *words; ctrt_status status; } cases[] = {
        { "CTRT_MEMORY=", "caching", CTRT_OK }, { "CTRT_MEMORY=direct", "direct", CTRT_OK },
        { "CTRT_MEMORY=direct+caching", "direct+caching", CTRT_OK },
        { "CTRT_MEMORY=caching:roundup=[256:1,512:2,>:8],max_split=64m", "caching", CTRT_OK },
        { "CTRT_MEMORY=caching:roundup=[256:1,512:2", "roundup must be a power of two", CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_MEMORY=cachng", "did you mean caching?", CTRT_ERR_NOT_FOUND },
        { "CTRT_MEMORY=policy+caching", "memory policy policy: this policy cannot be created", CTRT_ERR_NOT_SUPPORTED },
        { "CTRT_MEMORY=direct caching", "CTRT_MEMORY", CTRT_ERR_INVALID_ARGUMENT },
    };
    EACH(c, cases) {
        IN_FAKE(c->setting) {
            ctrt_device *device = NULL;
            if (CHECK_FAILS(ctrt_device_get(&device, "fake:0"), c->status, c->status != CTRT_OK ? c->words : NULL)
                && c->status == CTRT_OK)
                CHECK_STR(ctrt_memory_policy_name(device), c->words);
            CHECK_TRUE(c->status == CTRT_OK || strstr(ctrt_error_message(), "CTRT_MEMORY") != NULL);
        }
    }
}

/* ---- random blocks ---- */

static const char *const pools[] = { "all", "large_pool", "small_pool" };
static const char *const values[] = { "allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes" };

enum { LIVE = 48 };

/* Random blocks that exist at the same time, and their statistics. */
struct churn {
    struct { ctrt_block block; size_t requested; unsigned char mark; } live[LIVE];
    ctrt_stat stats[COUNT(pools)][COUNT(values)];
    long wrong;                         /* blocks that were missing, misaligned, too small or overwritten */
};

static size_t some_size(uint32_t *state)
{
    uint32_t kind = next_random(state) % 8, r = next_random(state);
    if (r % 16 == 0)
        return MIB + kind % 2;                  /* the largest small block, the smallest large one */
    return kind < 4 ? 1 + r % 4096 : kind < 7 ? 1 + r % MIB : 1 + r % (6 * MIB);
}

/* Writes `mark` to both ends of a block and to one byte of every 512, which detects blocks that overlap. */
static void mark_block(unsigned char *bytes, size_t requested, unsigned char mark)
{
    const size_t end = requested < 512 ? requested : 512;
    for (size_t i = 0; i < requested; i += 512)
        bytes[i] = mark;
    memset(bytes, mark, end);
    memset(bytes + requested - end, mark, end);
}

static bool marked(const unsigned char *bytes, size_t requested, unsigned char mark)
{
    for (size_t i = 0; i < requested; i += 512)
        if (bytes[i] != mark)
            return false;
    return bytes[requested - 1] == mark;
}

/* Counts that a block was allocated or, if `sign` is -1, freed. */
static void churn_count(struct churn *churn, const ctrt_block *block, size_t requested, int sign)
{
    const int64_t bytes = (int64_t)block->bytes, amounts[] = { 1, 1, bytes, bytes, (int64_t)requested };
    for (size_t k = 0; k < 2 * COUNT(values); k++) {
        ctrt_stat *stat = &churn->stats[k % 2 == 0 ? 0 : requested > MIB ? 1 : 2][k / 2];
        stat->current += sign * amounts[k / 2];
        *(sign > 0 ? &stat->allocated : &stat->freed) += amounts[k / 2];
        stat->peak = stat->current > stat->peak ? stat->current : stat->peak;
    }
}

static void check_churn(const struct churn *churn, ctrt_device *device)
{
    static const char *const fields[] = { "current", "peak", "allocated", "freed" };
    for (size_t k = 0; k < COUNT(pools) * COUNT(values) * 4; k++) {
        const size_t pool = k / 4 / COUNT(values), value = k / 4 % COUNT(values);
        const ctrt_stat *stat = &churn->stats[pool][value];
        const int64_t want[] = { stat->current, stat->peak, stat->allocated, stat->freed };
        char key[64];
        snprintf(key, sizeof key, "%s.%s.%s", values[value], pools[pool], fields[k % 4]);
        CHECK_STAT(device, key, want[k % 4]);
    }
}

static void churn_free(struct churn *churn, struct device_memory *memory, int at)
{
    const unsigned char *bytes = churn->live[at].block.address, mark = churn->live[at].mark;
    const size_t requested = churn->live[at].requested;
    if (bytes == NULL)
        return;
    churn->wrong += !marked(bytes, requested, mark);
    churn_count(churn, &churn->live[at].block, requested, -1);
    give(memory, &churn->live[at].block, requested);
}

/* Allocates and frees random blocks. Any thread may call this function, so it does not use CHECK. */
static void churn_run(struct churn *churn, struct device_memory *memory, uint32_t seed, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        const int at = (int)(next_random(&seed) % LIVE);
        churn_free(churn, memory, at);
        ctrt_block *block = &churn->live[at].block;
        const size_t requested = churn->live[at].requested = some_size(&seed);
        churn->live[at].mark = (unsigned char)next_random(&seed);
        if (pool_alloc(memory, block, requested, NULL) != CTRT_OK) {
            block->address = NULL;
            churn->wrong++;
            continue;
        }
        churn->wrong += (uintptr_t)block->address % 64 != 0 || block->bytes < requested;
        mark_block(block->address, requested, churn->live[at].mark);
        churn_count(churn, block, requested, 1);
    }
}

static void churn_end(struct churn *churn, struct device_memory *memory)
{
    for (int i = 0; i < LIVE; i++)
        churn_free(churn, memory, i);
}

/* Runs all of it and returns the number of wrong blocks. */
static long churned(struct device_memory *memory, uint32_t seed, int rounds)
{
    struct churn churn = { .wrong = 0 };
    churn_run(&churn, memory, seed, rounds);
    churn_end(&churn, memory);
    return churn.wrong;
}

TEST(test_churn, NULL)
{
    static const char *const settings[] = {
        "CTRT_MEMORY=caching",
#ifndef __SANITIZE_THREAD__             /* one thread has no races */
        "CTRT_MEMORY=direct", "CTRT_MEMORY=caching:max_split=21m", "CTRT_MEMORY=direct+caching",
        "CTRT_MEMORY=caching+caching", "CTRT_MEMORY=caching+direct",
#endif
    };
    EACH(setting, settings) {
        group("random blocks: contents, exact statistics, and all memory is freed: %s", *setting);
        IN_FAKE(*setting, "CTRT_FAKE_MEMORY=1g", "CTRT_FAKE_HOST=1") {
            struct device_memory *memory = open_memory("fake:1");
            ctrt_device *device = memory->device;
            struct churn churn = { .wrong = 0 };
            ctrt_memory_stats before = CTRT_MEMORY_STATS, after = CTRT_MEMORY_STATS;
            churn_run(&churn, memory, 1, FEWER_SANITIZED(4000));
            check_churn(&churn, device);
            if (strcmp(*setting, "CTRT_MEMORY=direct") == 0)
                CHECK_STATS(device, { "segment.all.current", churn.stats[0][0].current },
                            { "reserved_bytes.all.peak", churn.stats[0][2].peak }, { "max_split_size", -1 });
            CHECK_OK(ctrt_memory_get_stats(&before, device));
            CHECK_EQ(before.segment[CTRT_POOL_LARGE].allocated + before.segment[CTRT_POOL_SMALL].allocated,
                     before.segment[CTRT_POOL_ALL].allocated);
            churn_end(&churn, memory);
            CHECK_EQ(churn.wrong, 0);
            check_churn(&churn, device);
            CHECK_OK(ctrt_memory_empty_cache(device));
            CHECK_EQ(taken_on(device), 0);
            check_no_current(device);
            CHECK_OK(ctrt_memory_get_stats(&after, device));
            CHECK_EQ(after.num_device_alloc, after.num_device_free);
            CHECK_EQ(churned(memory, 2, 500), 0);
        }
    }
}

/* ---- many threads ---- */

enum { KEPT = 32, ROUNDS = 20, REPEATS = SANITIZED ? 2 : 4 };

/* A thread that allocates ROUNDS times the same blocks, of which it keeps the last. */
struct worker {
    struct device_memory *memory;
    ctrt_block kept[KEPT];
};

static size_t kept_size(int i) { return (size_t)100 << (i % 16); }

static void free_kept(struct worker *worker)
{
    for (int i = 0; i < KEPT; i++)
        give(worker->memory, &worker->kept[i], kept_size(i));
}

static void *keep(void *argument)
{
    struct worker *worker = argument;
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < KEPT; i++)
            if (pool_alloc(worker->memory, &worker->kept[i], kept_size(i), NULL) != CTRT_OK)
                abort();
        if (round < ROUNDS)
            free_kept(worker);
    }
    return NULL;
}

#define MANY "statistics are exact with many threads that free each other's blocks"
FAKE_TEST(threads, MANY, "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=4g", "CTRT_FAKE_HOST=1")
{
    struct worker workers[6], mine = { .memory = memory };
    keep(&mine);                                /* the peaks of other threads include this idle one */
    const int64_t each = stat_of(device, "allocated_bytes.all.current");
    for (int round = 0; round < REPEATS; round++) {
        ctrt_memory_reset_peak(device);
        EACH(worker, workers)
            worker->memory = memory;
        in_threads(6, keep, workers, sizeof *workers);
        CHECK_STATS(device, { "allocated_bytes.all.current", 7 * each }, { "allocated_bytes.all.peak", 7 * each },
                    { "allocation.all.current", 7 * KEPT });
        EACH(worker, workers)
            free_kept(worker);
        CHECK_STAT(device, "allocated_bytes.all.current", each);
    }
    CHECK_STAT(device, "allocation.all.allocated", KEPT * ROUNDS * (1 + REPEATS * 6));
    CHECK(memory->counters.threads != NULL && memory->counters.threads->next == NULL,
          "threads that have ended are still in the list");
    free_kept(&mine);
    CHECK_OK(ctrt_memory_empty_cache(device));
    check_no_current(device);
    CHECK_EQ(taken_on(device), 0);
}
FAKE_AGAIN(threads, MANY, "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=4g", "CTRT_FAKE_HOST=1")
FAKE_AGAIN(threads, MANY, "CTRT_MEMORY=direct+caching", "CTRT_FAKE_MEMORY=4g", "CTRT_FAKE_HOST=1")

static atomic_bool stop;

static void *churn_until_stopped(void *memory)
{
    for (uint32_t seed = 1; !atomic_load(&stop); seed++)
        CHECK_EQ(churned(memory, seed, 100), 0);
    return NULL;
}

TEST(test_fork, "a child forked while other threads allocate can use host memory")
{
    if (!forks_beside_threads())
        return;
    IN_FAKE("CTRT_MEMORY=caching", "CTRT_FAKE_HOST=1", "CTRT_FAKE_MEMORY=4g") {
        struct device_memory *memory = open_memory("fake:0");
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, churn_until_stopped, memory);
        for (int i = 0; i < FEWER_SANITIZED(15); i++) {
            IN_FORK {
                CHECK_EQ(churned(memory, (uint32_t)i, 200), 0);
            }
        }
        atomic_store(&stop, true);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
}

TEST_MAIN
{
    folder = pool_folder();
    folder_actor(folder, "memory-policy");
    return run_tests();
}
