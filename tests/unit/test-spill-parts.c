/* SPDX-License-Identifier: Apache-2.0 */
/* The policy `spill` on a fake memory source: fork during a move, threads that wait for one another, statistics and
 * prefetching. */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tap.h"
#include "memory_bed.h"

static const ctrt_memory_policy *spill;

static bool bed_spill(struct bed *bed, uint64_t bytes)
{
    paper_init(&bed->paper, bytes, 0);
    paper_moves(&bed->paper);
    bed->table = spill;
    return CHECK(spill->create(&bed->policy, &bed->paper.source, "") == CTRT_OK, "%s", host_error);
}

/* Work on queue 1 uses the block, so its contents must be kept from then on. */
static ctrt_status use(struct bed *bed, const ctrt_block *block)
{
    void *address;
    return spill->use(bed->policy, block, QUEUE(1), &address);
}

static void touch(struct bed *bed, const ctrt_block *block)
{
    CHECK(use(bed, block) == CTRT_OK, "%s", host_error);
    spill->unuse(bed->policy, block, QUEUE(1));
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

/* ---- fork ---- */

static struct bed *forking;
static ctrt_block forked_blocks[3];
static int child_status;

static void count_piece(const ctrt_memory_piece *piece, void *argument)
{
    (void)piece;
    ++*(int *)argument;
}

/* Called while a block moves to the host. The child process frees all blocks. */
static void fork_now(struct paper *paper, void *address, size_t bytes)
{
    (void)address, (void)bytes;
    paper->on_free = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int pieces = 0;
        ctrt_block more;
        void *where;
        alarm(10);
        spill->trim(forking->policy);
        spill->walk(forking->policy, count_piece, &pieces);
        ctrt_memory_policy_stats stats = stats_of(forking);
        bool good = stats.source_allocs > 0;
        good &= spill->alloc(forking->policy, &more, 512, QUEUE(1)) == CTRT_ERR_FORKED;
        good &= spill->use(forking->policy, &forked_blocks[1], QUEUE(1), &where) == CTRT_ERR_FORKED;
        for (int i = 0; i < 2; i++)
            spill->free(forking->policy, &forked_blocks[i], QUEUE(1));
        _exit(good ? 0 : 1);
    }
    waitpid(child, &child_status, 0);
}

static void test_fork(void)
{
    struct bed bed;
    group("a child forked while a block moves can free all blocks");
    if (!bed_spill(&bed, 1 * MIB))
        return;
    forking = &bed;
    for (int i = 0; i < 2; i++) {
        forked_blocks[i] = take(&bed, 512 * KIB, 1);
        touch(&bed, &forked_blocks[i]);
    }
    child_status = -1;
    bed.paper.on_free = fork_now;
    forked_blocks[2] = take(&bed, 512 * KIB, 1);
    CHECK(WIFEXITED(child_status) && WEXITSTATUS(child_status) == 0, "the child ended with %#x",
          (unsigned)child_status);
    for (int i = 0; i < 3; i++)
        give(&bed, &forked_blocks[i]);
    bed_end(&bed);
}

/* ---- waiting threads ---- */

static atomic_long asked;               /* number of source allocations */

static ctrt_status counted_alloc(void *state, void **address, size_t bytes, void *queue)
{
    atomic_fetch_add(&asked, 1);
    return paper_alloc(state, address, bytes, queue);
}

struct waiter {
    pthread_t thread;
    struct bed *bed;
    ctrt_block block;
    ctrt_status status;
};

static void *wait_for_room(void *argument)
{
    struct waiter *w = argument;
    w->status = spill->alloc(w->bed->policy, &w->block, 256 * KIB, QUEUE(2));
    return NULL;
}

static void test_waiting(void)
{
    struct bed bed;
    struct waiter waiters[3];
    group("threads that wait for a block do not wake each other repeatedly");
    if (!bed_spill(&bed, 1 * MIB))
        return;
    bed.paper.source.alloc = counted_alloc;
    ctrt_block all = take(&bed, 1 * MIB, 1);
    CHECK(use(&bed, &all) == CTRT_OK, "%s", host_error);
    atomic_store(&asked, 0);
    for (int i = 0; i < 3; i++) {
        waiters[i] = (struct waiter){ .bed = &bed };
        pthread_create(&waiters[i].thread, NULL, wait_for_room, &waiters[i]);
    }
    sleep_ms(350);
    const long before = atomic_load(&asked);
    spill->unuse(bed.policy, &all, QUEUE(1));
    for (int i = 0; i < 3; i++) {
        pthread_join(waiters[i].thread, NULL);
        CHECK(waiters[i].status == CTRT_OK, "thread %d: alloc returned status %d", i, (int)waiters[i].status);
    }
    CHECK(before == 3, "%ld source allocations while three threads waited, expected 3", before);
    CHECK(atomic_load(&asked) <= 3 + 4 * 3, "%ld source allocations in total, expected at most 15",
          atomic_load(&asked));
    for (int i = 0; i < 3; i++)
        give(&bed, &waiters[i].block);
    give(&bed, &all);
    bed_end(&bed);
}

struct holder {
    struct bed *bed;
    ctrt_block *block;
    atomic_bool holds;
};

static void *hold_a_while(void *argument)
{
    struct holder *h = argument;
    (void)use(h->bed, h->block);
    atomic_store(&h->holds, true);
    sleep_ms(150);
    spill->unuse(h->bed->policy, h->block, QUEUE(1));
    return NULL;
}

static void test_two_devices(void)
{
    struct bed here, there;
    pthread_t thread;
    group("a thread's blocks in use on one device do not stop it from waiting on another device");
    if (!bed_spill(&here, 1 * MIB) || !bed_spill(&there, 1 * MIB))
        return;
    ctrt_block source = take(&there, 512 * KIB, 1), all = take(&here, 1 * MIB, 1), more = { 0 };
    struct holder holder = { .bed = &here, .block = &all };
    CHECK(use(&there, &source) == CTRT_OK, "%s", host_error);
    pthread_create(&thread, NULL, hold_a_while, &holder);
    while (!atomic_load(&holder.holds))
        sleep_ms(1);
    CHECK(spill->alloc(here.policy, &more, 512 * KIB, QUEUE(1)) == CTRT_OK,
          "alloc did not wait for the other thread: %s", host_error);
    pthread_join(thread, NULL);
    spill->unuse(there.policy, &source, QUEUE(1));
    give(&there, &source);
    give(&here, &all);
    if (more.address != NULL)
        give(&here, &more);

    /* Blocks in use on the same device make alloc fail at once, because no other thread can free memory there. */
    all = take(&here, 1 * MIB, 1);
    CHECK(use(&here, &all) == CTRT_OK, "%s", host_error);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    CHECK(spill->alloc(here.policy, &more, 512 * KIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY &&
          strstr(host_error, "in use and cannot be moved"), "a block in use was moved, or a wrong message: %s",
          host_error);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK(to.tv_sec - from.tv_sec < 2, "the thread waited for itself");
    spill->unuse(here.policy, &all, QUEUE(1));
    give(&here, &all);
    bed_end(&here);
    bed_end(&there);
}

/* ---- statistics ---- */

/* Checks that the policy's statistics equal those of the source. */
static void check_figures(struct bed *bed, const char *what)
{
    const ctrt_memory_policy_stats stats = stats_of(bed);
    CHECK(stats.source_allocs == bed->paper.allocs && stats.source_frees == bed->paper.frees, "%s: %llu allocations and %llu frees, the source "
          "counted %llu and %llu", what, (unsigned long long)stats.source_allocs, (unsigned long long)stats.source_frees,
          (unsigned long long)bed->paper.allocs, (unsigned long long)bed->paper.frees);
    CHECK(stats.reserved_bytes == bed->paper.used, "%s: %llu bytes, the source counted %llu", what,
          (unsigned long long)stats.reserved_bytes,
          (unsigned long long)bed->paper.used);
}

static void test_figures(void)
{
    struct bed bed;
    ctrt_block blocks[3];
    group("statistics are exact when any one copy fails");
    for (long n = 0; n < 6; n++) {
        if (!bed_spill(&bed, 1 * MIB))
            return;
        paper_copies_left = 0;
        for (int i = 0; i < 2; i++) {
            blocks[i] = take(&bed, 512 * KIB, 1);
            touch(&bed, &blocks[i]);
        }
        paper_copies_left = n;
        const bool third = spill->alloc(bed.policy, &blocks[2], 512 * KIB, QUEUE(1)) == CTRT_OK;
        if (third)
            touch(&bed, &blocks[2]);
        CHECK(third, "alloc failed with a failure of copy %ld: %s", n, host_error);         /* another block is moved */
        check_figures(&bed, "after a block moved to the host");
        for (int round = 0; round < 4; round++)
            for (int i = 0; i < 2; i++)
                if (use(&bed, &blocks[i]) == CTRT_OK)
                    spill->unuse(bed.policy, &blocks[i], QUEUE(1));
        CHECK(paper_copies_left == 0, "there were fewer than %ld copies", n);
        check_figures(&bed, "after blocks moved back");
        for (int i = 0; i < 2 + third; i++)
            give(&bed, &blocks[i]);
        check_figures(&bed, "at the end");
        bed_end(&bed);
    }
}

/* ---- prefetch ---- */

static long spare, spare_refused;

static ctrt_status paper_alloc_spare(void *state, void **address, size_t bytes, void *queue)
{
    spare++;
    ctrt_status status = paper_alloc(state, address, bytes, queue);
    spare_refused += status != CTRT_OK;
    return status;
}

static void test_ahead(void)
{
    struct bed bed;
    ctrt_block blocks[6];
    group("prefetching allocates spare memory only");
    if (!bed_spill(&bed, 4 * MIB))
        return;
    bed.paper.source.alloc = counted_alloc;
    bed.paper.source.alloc_spare = paper_alloc_spare;
    for (int i = 0; i < 6; i++) {
        blocks[i] = take(&bed, 1 * MIB, 1);
        touch(&bed, &blocks[i]);
    }
    for (int i = 3; i < 6; i++)
        give(&bed, &blocks[i]);
    touch(&bed, &blocks[0]);            /* blocks 0 and 1 are on the host, and memory is free */
    CHECK(spare == 1 && spare_refused == 0, "%ld requests for spare memory, %ld failed", spare, spare_refused);
    atomic_store(&asked, 0);
    touch(&bed, &blocks[1]);
    CHECK(atomic_load(&asked) == 0, "block 1 was not prefetched");
    for (int i = 0; i < 3; i++)
        give(&bed, &blocks[i]);
    bed_end(&bed);

    group("caching: spare memory is a cached block or free memory of the source");
    if (!bed_make(&bed, caching, "", 44 * MIB, 0))
        return;
    ctrt_block kept = take(&bed, 12 * MIB, 1), other = take(&bed, 30 * MIB, 2), got = { 0 };
    give(&bed, &other);                 /* cached, for queue 2 */
    CHECK(caching->alloc_spare(bed.policy, &got, 12 * MIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY,
          "12 MiB were allocated for queue 1");
    CHECK(bed.paper.frees == 0, "a spare allocation freed a cached segment");
    CHECK(caching->alloc_spare(bed.policy, &got, 30 * MIB, QUEUE(2)) == CTRT_OK,
          "30 MiB of spare memory for queue 2: %s", host_error);
    give(&bed, &got);
    CHECK(caching->alloc_spare(bed.policy, &got, 1 * MIB, QUEUE(1)) == CTRT_OK, "1 MiB of spare memory for queue 1: %s",
          host_error);
    give(&bed, &got);
    got = take(&bed, 12 * MIB, 1);
    CHECK(bed.paper.frees > 0, "a normal allocation freed no cached segment");
    give(&bed, &got);
    give(&bed, &kept);
    bed_end(&bed);

    group("arena: a spare allocation frees no chunk, a normal one does");
    if (!bed_make(&bed, arena, "chunk=16m", 32 * MIB, 0))
        return;
    kept = take(&bed, 1 * MIB, 1);
    other = take(&bed, 1 * MIB, 2);
    give(&bed, &other);
    CHECK(arena->alloc_spare(bed.policy, &got, 16 * MIB, QUEUE(3)) == CTRT_ERR_OUT_OF_MEMORY && bed.paper.frees == 0,
          "16 MiB of spare memory were allocated, or %llu source frees",
          (unsigned long long)bed.paper.frees);
    got = take(&bed, 16 * MIB, 3);
    give(&bed, &got);
    give(&bed, &kept);
    bed_end(&bed);
}

TEST_MAIN
{
    beds_load();
    spill = policy_load("spill");
    test_fork();
    test_waiting();
    test_two_devices();
    test_figures();
    test_ahead();
    return done();
}
