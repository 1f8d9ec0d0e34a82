/* SPDX-License-Identifier: Apache-2.0 */
/* contract_memory.c: checks of memory policies, on the source of contract_source.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_blocks.h"

static struct source second;                    /* of a clone */

/* Allocates, uses and frees blocks at random on all queues. `check` runs now and then. */
static void run_at_random(int rounds, uint32_t seed, void (*check)(void))
{
    uint32_t state = seed;
    for (int i = 0; i < rounds; i++) {
        state = state * 1664525u + 1013904223u;
        struct live *l = &live[(state >> 8) % LIVE];
        const int queue = (int)(state >> 16) % QUEUES;
        if (l->bytes == 0) {
            live_new(l, live_size(&state), queue);
            if (!policy_on_host())
                live_use(l, queue);
        } else if ((state >> 24) % 3 == 0 && !policy_on_host() && l->others == 0) {
            pol.source.known[queue] |= pol.source.known[l->queue];        /* as the library orders uses of one tensor */
            live_use(l, queue);
            l->others = queue != l->queue ? pol.source.known[queue] : 0;
            l->epoch = pol.source.epoch;
        } else {
            live_free(l);
        }
        if (check != NULL && i % 10 == 0)
            check();
    }
}

static void check_policy_options(void)
{
    const long before = contract_host_blocks();
    source_init(&pol.source, 64 * MIB, CTRT_DEVICE_HOST_MEMORY, pol.moves);
    for (int i = 0; i < 3; i++) {
        REFUSES(pol.table->create(&pol.state, &pol.source.source, "no_such_option=1"), CTRT_ERR_INVALID_ARGUMENT,
                "create with the options \"no_such_option=1\"");
        EXPECT(strstr(contract_failure.text, "no_such_option") != NULL, "the message does not contain the option: %s",
               contract_failure.text);
    }
    EXPECT(contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
           contract_host_blocks() - before);
}

static void check_policy_create(void)
{
    long before = 0;
    for (int i = 0; i < 4; i++) {
        policy_begin(256 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        run_at_random(30, 1, NULL);
        live_free_all();
        policy_finish();
        EXPECT(i < 2 || contract_host_blocks() <= before, "%ld blocks of host->alloc more than after the last destroy",
               contract_host_blocks() - before);
        before = contract_host_blocks();
    }
}

static void check_policy_sizes(void)
{
    policy_begin(4096 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (size_t bytes = 1; bytes < 256 * MIB; bytes = bytes * 3 / 2 + 1) {
        live_new(&live[0], bytes, 0);
        live_new(&live[1], bytes + 63, 1);
        live_free_all();
    }
    struct live l;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = i == 0 ? SIZE_MAX : i == 1 ? SIZE_MAX / 2 : (size_t)PTRDIFF_MAX - 5;
        ctrt_status status = live_try(&l, bytes, 0, false);
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    }
    policy_finish();
}

static void check_policy_content(void)
{
    uint32_t state = 7;
    policy_begin(512 * MIB, CTRT_DEVICE_HOST_MEMORY);
    for (unsigned i = 0; i < 300; i++) {
        state = state * 1664525u + 1013904223u;
        struct live *l = &live[(state >> 8) % LIVE];
        if (l->bytes == 0) {
            live_new(l, live_size(&state) / 4 + 1, 0);
            l->seed = i;
            contract_pattern(l->block.address, l->bytes, l->seed);
        } else {
            contract_expect_pattern(l->block.address, l->bytes, l->seed, "an allocated block");
            live_free(l);
        }
        if (i % 50 == 49)
            policy_trim();
    }
    live_free_all();
    policy_finish();
}

static void check_policy_order(void)
{
    for (unsigned seed = 1; seed < 9; seed++) {
        policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        run_at_random(300, seed, NULL);
        live_free_all();
        policy_finish();
    }
}

static void check_policy_trim(void)
{
    if (!CTRT_SLOT(pol.table, trim))
        contract_skip("it has no trim");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(200, 3, NULL);
    for (int i = 1; i < LIVE; i++)
        live_free(&live[i]);
    if (live[0].bytes == 0)
        live_new(&live[0], 5000, 0);
    policy_trim();
    live_use(&live[0], live[0].queue);
    live_free_all();
    policy_trim();
    EXPECT(pol.source.used == 0, "all blocks are free, but %zu bytes of the source were not returned", pol.source.used);
    policy_finish();
}

static void check_policy_full(void)
{
    ctrt_status status = CTRT_OK;
    int n = 0;
    policy_begin(64 * MIB, CTRT_DEVICE_HOST_MEMORY);
    for (; n < LIVE && (status = live_try(&live[n], 3 * MIB, 0, false)) == CTRT_OK; n++)
        continue;
    EXPECT(n < LIVE && n >= 8, "%d blocks of 3 MiB fit into 64 MiB", n);
    contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    for (int i = 0; i < n; i++)
        memset(live[i].block.address, i, live[i].bytes);
    live_free_all();
    status = live_try(&live[0], 40 * MIB, 0, false);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {             /* as the library does */
        policy_trim();
        status = live_try(&live[0], 40 * MIB, 0, false);
    }
    contract_ok(status);
    live_free_all();
    policy_finish();
}

static void check_policy_failure(void)
{
    long before = 0;
    for (int cycle = 0; cycle < 4; cycle++) {
        policy_begin(2048 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        for (int i = 0; i < 3; i++) {
            pol.source.fails = CTRT_ERR_BACKEND;
            ctrt_status status = live_try(&live[0], 300 * MIB, 0, false);
            contract_refused(status, CTRT_ERR_BACKEND);
            pol.source.fails = CTRT_OK;
            live_new(&live[i + 1], 300 * MIB, 0);
        }
        live_free_all();
        policy_finish();
        EXPECT(cycle < 2 || contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        before = contract_host_blocks();
    }
}

static void check_policy_host_memory(void)
{
    long before = 0;
    for (long n = -2; n < 200; n++) {
        contract_step("while call %ld of host->alloc fails", n);
        source_init(&pol.source, 256 * MIB, CTRT_DEVICE_ASYNCHRONOUS, pol.moves);
        contract_host_fail(n > 0 ? n : 0);
        ctrt_status status = pol.table->create(&pol.state, &pol.source.source, contract_target.options);
        const bool created = status == CTRT_OK;
        for (int i = 0; i < 6 && status == CTRT_OK; i++)
            status = live_try(&live[i], 100000 << i, i % QUEUES, false);
        const bool failed = contract_host_failed();
        if (status != CTRT_OK)
            contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
        EXPECT(status == CTRT_OK || failed, "failed, although the host has memory");
        contract_host_fail(0);
        live_free_all();
        if (created)
            policy_finish();
        EXPECT(n <= 0 || contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        before = n <= 0 ? contract_host_blocks() : before;
        if (n > 0 && !failed)
            return;
    }
}

static void check_policy_stats(void)
{
    unsigned char room[sizeof(ctrt_memory_policy_stats) + 64];
    if (!CTRT_SLOT(pol.table, stats))
        contract_skip("it has no stats");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (size_t size = 16; size <= sizeof room; size += 64) {
        memset(room, 0x5a, sizeof room);
        memcpy(room, &size, sizeof size);
        contract_step("stats, size %zu", size);
        pol.table->stats(pol.state, (ctrt_memory_policy_stats *)(void *)room);
        contract_expect_bytes(room + size, sizeof room - size, 0x5a, "after the end of the caller's struct");
    }
    run_at_random(300, 5, policy_check_stats);
    policy_trim();
    policy_check_stats();
    live_free_all();
    policy_check_stats();
    policy_finish();
}

static void check_policy_peaks(void)
{
    if (!CTRT_SLOT(pol.table, stats) || !CTRT_SLOT(pol.table, reset_peaks))
        contract_skip("it has no stats or reset_peaks");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(100, 5, NULL);
    const int64_t used = (int64_t)pol.source.used;
    live_free_all();
    policy_trim();
    ctrt_memory_policy_stats stats = policy_stats();
    EXPECT(stats.reserved[CTRT_POOL_ALL].peak >= used, "the peak of reserved is %lld, but %lld bytes were reserved",
           (long long)stats.reserved[CTRT_POOL_ALL].peak, (long long)used);
    contract_step("reset_peaks");
    pol.table->reset_peaks(pol.state);
    stats = policy_stats();
    for (int i = 0; i < 15; i++)
        EXPECT(policy_stat(&stats, i)->peak == policy_stat(&stats, i)->current,
               "after reset_peaks, statistic %d has the peak %lld, current is %lld", i,
               (long long)policy_stat(&stats, i)->peak, (long long)policy_stat(&stats, i)->current);
    policy_finish();
}

static void check_policy_walk(void)
{
    if (!CTRT_SLOT(pol.table, walk))
        contract_skip("it has no walk");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(300, 9, policy_check_walk);
    live_free_all();
    policy_check_walk();
    policy_trim();
    policy_check_walk();
    policy_finish();
}

static void check_policy_clone(void)
{
    void *copy = NULL;
    if (!CTRT_SLOT(pol.table, clone))
        contract_skip("it has no clone");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(200, 11, NULL);
    const uint64_t allocs = pol.source.allocs, frees = pol.source.frees;
    const long fences_before = pol.source.fences;
    source_init(&second, 1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS, pol.moves);
    second.forgotten = true;
    CALL(pol.table->clone(pol.state, &copy, &second.source), "clone");
    for (int i = 0; i < 2; i++) {                       /* free the blocks of the original, then allocate new ones */
        for (int k = 0; k < LIVE; k += 2) {
            ctrt_block block = { 0 };
            if (live[k].bytes == 0)
                continue;
            if (i == 0)
                pol.table->free(copy, &live[k].block, QUEUE(live[k].queue));
            else
                CALL(pol.table->alloc(copy, &block, 30 * MIB, QUEUE(k % QUEUES)), "alloc of a clone");
            if (i == 1) {
                EXPECT(block.fence == NULL, "a clone returned a fence");
                pol.table->free(copy, &block, QUEUE(k % QUEUES));
            }
        }
    }
    EXPECT(pol.source.allocs == allocs && pol.source.frees == frees && pol.source.fences == fences_before,
           "a clone has called the original's source");
    if (CTRT_SLOT(pol.table, walk))
        policy_check_walk();
    contract_step("destroy of a clone");
    pol.table->destroy(copy);
    EXPECT(pol.source.allocs == allocs && pol.source.frees == frees,
           "destroy of a clone has called the original's source");
    run_at_random(100, 12, CTRT_SLOT(pol.table, stats) ? policy_check_stats : NULL);
    live_free_all();
    policy_finish();
}

static void check_policy_spare(void)
{
    const bool slot = CTRT_SLOT(pol.table, alloc_spare);
    policy_begin(64 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    if (pol.moves && !slot)
        contract_skip("it moves blocks and has no alloc_spare");
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < 12 && status == CTRT_OK; i++)
        status = live_try(&live[i], 5 * MIB, 0, false);
    live_free_all();
    pol.source.no_frees = true;
    status = live_try(&live[0], 62 * MIB, 0, slot);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    status = live_try(&live[1], 1000, 0, slot);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    pol.source.no_frees = false;
    live_free_all();
    policy_finish();
}

static void policy_threads(int number)
{
    ctrt_block blocks[16];
    size_t sizes[16] = { 0 };
    uint32_t state = (uint32_t)number * 991 + 5;
    for (int i = 0; i < 1500; i++) {
        state = state * 1664525u + 1013904223u;
        const unsigned k = (state >> 8) % 16;
        if (sizes[k] == 0) {
            const size_t bytes = 1 + (state >> 12) % 9000;
            blocks[k] = (ctrt_block){ 0 };
            contract_ok(pol.table->alloc(pol.state, &blocks[k], bytes, NULL));
            sizes[k] = bytes;
            contract_pattern(blocks[k].address, bytes, k * 4 + (unsigned)number);
        } else {
            contract_expect_pattern(blocks[k].address, sizes[k], k * 4 + (unsigned)number,
                                    "a block of one of four threads");
            pol.table->free(pol.state, &blocks[k], NULL);
            sizes[k] = 0;
        }
        if (i % 100 == 0 && CTRT_SLOT(pol.table, trim))
            pol.table->trim(pol.state);
    }
    for (int k = 0; k < 16; k++)
        if (sizes[k] > 0)
            pol.table->free(pol.state, &blocks[k], NULL);
}

/* Allocates and frees as fast as it can, so that threads without a lock meet in the policy, and a fork finds a lock
 * held. */
static void policy_race(int number, double seconds)
{
    ctrt_block blocks[16];
    int written[16] = { 0 };
    const double end = seconds_now() + seconds;
    for (int i = 1; seconds_now() < end; i++) {
        const int k = i * 7 % 16;
        int *memory = written[k] != 0 ? blocks[k].address : NULL;
        if (memory != NULL) {
            EXPECT(*memory == written[k], "a block of one of four threads was written by another one");
            pol.table->free(pol.state, &blocks[k], NULL);
            written[k] = 0;
            continue;
        }
        blocks[k] = (ctrt_block){ 0 };
        contract_ok(pol.table->alloc(pol.state, &blocks[k], 64 + (size_t)k % 4 * 700, NULL));
        written[k] = i * 4 + number;
        *(int *)blocks[k].address = written[k];
    }
    for (int k = 0; k < 16; k++)
        if (written[k] != 0)
            pol.table->free(pol.state, &blocks[k], NULL);
}

static void policy_races(int number)
{
    policy_race(number, 0.5);
}

static void check_policy_threads(void)
{
    policy_begin(1024 * MIB, CTRT_DEVICE_HOST_MEMORY);
    contract_step("alloc, free and trim in four threads");
    contract_in_threads(policy_threads, 4);
    contract_in_threads(policy_races, 4);
    policy_finish();
}

static void policy_child(void)
{
    ctrt_block block = { 0 };
    CALL(pol.table->alloc(pol.state, &block, 3000, NULL), "alloc in a forked child");
    memset(block.address, 1, 3000);
    pol.table->free(pol.state, &block, NULL);
}

static void policy_work(int number)
{
    if (number == 1)
        policy_threads(number);
    else
        policy_race(number, 0.05);
}

static void check_policy_fork(void)
{
    policy_begin(1024 * MIB, CTRT_DEVICE_HOST_MEMORY);
    contract_step("fork while other threads allocate");
    contract_fork_among(policy_child, policy_work);
    policy_finish();
}

static void check_policy_moves(void)
{
    enum { COUNT = 12, BYTES = 2 << 20 };
    void *address[COUNT], *again;
    unsigned count = 0;
    if (!pol.moves)
        contract_skip("it does not move blocks");
    policy_begin(13 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < (round == 0 ? COUNT : count); i++) {
            struct live *l = &live[i];
            if (round == 0 && live_try(l, BYTES, (int)i % QUEUES, false) != CTRT_OK)
                break;
            count = i >= count ? i + 1 : count;
            const int queue = l->queue;
            address[i] = live_address(l, queue);
            again = live_address(l, queue);
            EXPECT(again == address[i], "a block moved while it was in use");
            if (round == 0)
                contract_pattern(address[i], BYTES, i);
            contract_expect_pattern(address[i], BYTES, i, "a block that may have been moved");
            source_use(&pol.source, address[i], BYTES, queue);
            contract_step("unuse");
            pol.table->unuse(pol.state, &l->block, QUEUE(queue));
            pol.table->unuse(pol.state, &l->block, QUEUE(queue));
        }
    EXPECT(count > 4, "%u blocks of 2 MiB fit into 13 MiB", count);
    if (CTRT_SLOT(pol.table, stats))
        (void)policy_stats();
    live_free_all();
    policy_finish();
}

static void policy_prepare(const void *given, unsigned needs)
{
    (void)needs;
    pol.table = given;
    EXPECT(CTRT_SLOT(pol.table, create) && CTRT_SLOT(pol.table, destroy) && CTRT_SLOT(pol.table,
                                                                                      alloc) && CTRT_SLOT(pol.table,
                                                                                                          free),
           "required slots are create, destroy, alloc and free");
    pol.moves = CTRT_HAS(pol.table, flags) && (pol.table->flags & CTRT_MEMORY_MOVES);
    pol.fences = CTRT_HAS(pol.table, flags) && (pol.table->flags & CTRT_MEMORY_FENCES);
    EXPECT(!pol.moves || (CTRT_SLOT(pol.table, use) && CTRT_SLOT(pol.table, unuse)),
           "CTRT_MEMORY_MOVES requires use and unuse");
}

static const struct contract_check checks[] = {
    CONTRACT_COMMON(0),
    { "options", check_policy_options, 0,
      "an unknown option is CTRT_ERR_INVALID_ARGUMENT, with the option in the message" },
    { "create", check_policy_create, 0, "destroy returns all memory to the source, and frees the policy's own" },
    { "sizes", check_policy_sizes, 0,
      "blocks are aligned to 64 bytes, not smaller than requested, and memory of the source" },
    { "content", check_policy_content, 0, "the policy does not write to allocated blocks, which do not overlap" },
    { "order", check_policy_order, 0, "memory is used again, or returned, only after the work that uses it" },
    { "trim", check_policy_trim, 0, "trim returns cached memory, and nothing else" },
    { "full", check_policy_full, 0, "without memory, alloc fails; after free and trim it is available again" },
    { "failure", check_policy_failure, 0, "a failure of the source is passed on, and nothing is lost" },
    { "host.memory", check_policy_host_memory, 0,
      "if host->alloc fails, the call fails with a message, and nothing is lost" },
    { "stats", check_policy_stats, 0, "statistics are those of the source, and at most stats->size bytes are written" },
    { "peaks", check_policy_peaks, 0, "reset_peaks sets all peaks to the current values" },
    { "walk", check_policy_walk, 0, "walk visits each segment and then its blocks in order, which fill it" },
    { "clone", check_policy_clone, 0, "a clone changes neither the original nor its source" },
    { "spare", check_policy_spare, 0, "alloc_spare, or alloc without that slot, returns no memory to the source" },
    { "threads", check_policy_threads, 0, "slots may be called from any thread" },
    { "fork", check_policy_fork, 0, "on a device with host memory, a forked child goes on using the policy" },
    { "moves", check_policy_moves, 0,
      "use writes the address of the block's bytes, which does not change until unuse" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_memory = { CTRT_COMPONENT_MEMORY, "memory", { checks }, policy_prepare };
