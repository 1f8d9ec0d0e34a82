/* SPDX-License-Identifier: Apache-2.0 */
/* The policy `spill` on a fake memory source: fork during a move, threads that wait for one another, statistics and
 * prefetching; also allocations of spare memory with caching and arena. */
#include "calls.h"
#include "child.h"
#include "memory_host.h"

static const ctrt_memory_policy *spill;

/* Work on queue 1 uses the block, so its contents must be kept from then on. */
static ctrt_status use(struct fixture *f, const ctrt_block *block)
{
    void *address;
    return spill->use(f->policy, block, QUEUE(1), &address);
}

static void use_shortly(struct fixture *f, const ctrt_block *block)
{
    CHECK_OK(use(f, block));
    spill->unuse(f->policy, block, QUEUE(1));
}

/* ---- fork ---- */

static struct fixture *forking;
static ctrt_block forked_blocks[3];

static void count_piece(const ctrt_memory_piece *piece, void *argument)
{
    (void)piece;
    ++*(int *)argument;
}

/* Called while a block moves to the host. The child process frees all blocks. */
static void fork_now(struct fake_source *source, void *address, size_t bytes)
{
    (void)address, (void)bytes;
    source->on_free = NULL;
    IN_FORK {
        int pieces = 0;
        ctrt_block more;
        spill->trim(forking->policy);
        spill->walk(forking->policy, count_piece, &pieces);
        CHECK_TRUE(stats_of(forking).source_allocs > 0);
        CHECK_EQ(spill->alloc(forking->policy, &more, 512, QUEUE(1)), CTRT_ERR_FORKED);
        CHECK_EQ(use(forking, &forked_blocks[1]), CTRT_ERR_FORKED);
        free_blocks(forking, forked_blocks, 2);
    }
}

FIXTURE_TEST(forked, spill, "a child forked while a block moves can free all blocks", "", 1 * MIB, 0)
{
    forking = f;
    f->source.on_free = fork_now;
    for (int i = 0; i < 3; i++) {               /* the third one moves a block to the host */
        forked_blocks[i] = alloc_block(f, 512 * KIB, 1);
        if (i < 2)
            use_shortly(f, &forked_blocks[i]);
    }
    CHECK_TRUE(f->source.on_free == NULL);
    free_blocks(f, forked_blocks, 3);
}

/* ---- waiting threads ---- */

static atomic_long source_allocs;

static ctrt_status counted_alloc(void *state, void **address, size_t bytes, void *queue)
{
    atomic_fetch_add(&source_allocs, 1);
    return source_alloc(state, address, bytes, queue);
}

struct waiter {
    pthread_t thread;
    struct fixture *f;
    ctrt_block block;
    ctrt_status status;
};

static void *wait_for_memory(void *argument)
{
    struct waiter *w = argument;
    w->status = spill->alloc(w->f->policy, &w->block, 256 * KIB, QUEUE(2));
    return NULL;
}

FIXTURE_TEST(waiting, spill, "threads that wait for a block do not wake each other repeatedly", "", 1 * MIB, 0)
{
    struct waiter waiters[3];
    f->source.source.alloc = counted_alloc;
    ctrt_block all = alloc_block(f, 1 * MIB, 1);
    CHECK_EQ(use(f, &all), CTRT_OK);
    atomic_store(&source_allocs, 0);
    for (int i = 0; i < 3; i++) {
        waiters[i] = (struct waiter){ .f = f };
        pthread_create(&waiters[i].thread, NULL, wait_for_memory, &waiters[i]);
    }
    usleep(350000);
    CHECK_EQ(atomic_load(&source_allocs), 3);
    spill->unuse(f->policy, &all, QUEUE(1));
    for (int i = 0; i < 3; i++) {
        pthread_join(waiters[i].thread, NULL);
        CHECK_EQ(waiters[i].status, CTRT_OK);
    }
    CHECK(atomic_load(&source_allocs) <= 3 + 4 * 3, "%ld source allocations in total, expected at most 15",
          atomic_load(&source_allocs));
    for (int i = 0; i < 3; i++)
        free_after(f, &waiters[i].block, NULL);
    free_after(f, &all, NULL);
}

struct holder {
    struct fixture *f;
    ctrt_block *block;
    atomic_bool holds;
};

static void *hold_a_while(void *argument)
{
    struct holder *h = argument;
    (void)use(h->f, h->block);
    atomic_store(&h->holds, true);
    usleep(150000);
    spill->unuse(h->f->policy, h->block, QUEUE(1));
    return NULL;
}

TEST(test_two_devices, "a thread's blocks in use on one device do not stop it from waiting on another device")
{
    struct fixture here, there;
    pthread_t thread;
    fixture_begin(&here, spill, "", 1 * MIB, 0);
    fixture_begin(&there, spill, "", 1 * MIB, 0);
    ctrt_block source = alloc_block(&there, 512 * KIB, 1), all = alloc_block(&here, 1 * MIB, 1), more = { 0 };
    struct holder holder = { .f = &here, .block = &all };
    CHECK_EQ(use(&there, &source), CTRT_OK);
    pthread_create(&thread, NULL, hold_a_while, &holder);
    while (!atomic_load(&holder.holds))
        usleep(1000);
    more = alloc_block(&here, 512 * KIB, 1);            /* waits for the other thread */
    pthread_join(thread, NULL);
    spill->unuse(there.policy, &source, QUEUE(1));
    free_after(&there, &source, NULL);
    free_after(&here, &all, NULL);
    free_after(&here, &more, NULL);

    /* Blocks in use on the same device make alloc fail at once, because no other thread can free memory there. */
    all = alloc_block(&here, 1 * MIB, 1);
    CHECK_EQ(use(&here, &all), CTRT_OK);
    const double start = clock_seconds();
    CHECK_FAILS(spill->alloc(here.policy, &more, 512 * KIB, QUEUE(1)), CTRT_ERR_OUT_OF_MEMORY,
                "in use and cannot be moved");
    CHECK(clock_seconds() - start < 2, "the thread waited for itself");
    spill->unuse(here.policy, &all, QUEUE(1));
    free_after(&here, &all, NULL);
    fixture_end(&here);
    fixture_end(&there);
}

/* ---- statistics ---- */

/* Checks that the policy's statistics equal those of the source. */
static void check_stats(struct fixture *f)
{
    CHECK_EQ(stats_of(f).source_allocs, f->source.allocs);
    CHECK_EQ(stats_of(f).source_frees, f->source.frees);
    CHECK_EQ(stats_of(f).reserved_bytes, f->source.used);
}

static void test_stats(void)
{
    struct fixture f;
    ctrt_block blocks[3];
    for (long n = 0; n < 6; n++) {
        group("statistics are exact when copy %ld fails", n);
        fixture_begin(&f, spill, "", 1 * MIB, 0);
        for (int i = 0; i < 3; i++) {
            if (i == 2)
                f.source.copies_left = n;
            blocks[i] = alloc_block(&f, 512 * KIB, 1);          /* if the copy fails, another block is moved */
            use_shortly(&f, &blocks[i]);
        }
        check_stats(&f);
        for (int round = 0; round < 4; round++)
            for (int i = 0; i < 2; i++)
                if (use(&f, &blocks[i]) == CTRT_OK)
                    spill->unuse(f.policy, &blocks[i], QUEUE(1));
        CHECK_EQ(f.source.copies_left, 0);
        check_stats(&f);
        free_blocks(&f, blocks, 3);
        check_stats(&f);
        fixture_end(&f);
    }
}

/* ---- prefetch and spare memory ---- */

static long spare_allocs, spare_failed;

static ctrt_status counted_alloc_spare(void *state, void **address, size_t bytes, void *queue)
{
    spare_allocs++;
    ctrt_status status = source_alloc(state, address, bytes, queue);
    spare_failed += status != CTRT_OK;
    return status;
}

FIXTURE_TEST(prefetch, spill, "prefetching allocates spare memory only", "", 4 * MIB, 0)
{
    ctrt_block blocks[6];
    f->source.source.alloc = counted_alloc;
    f->source.source.alloc_spare = counted_alloc_spare;
    for (int i = 0; i < 6; i++) {
        blocks[i] = alloc_block(f, 1 * MIB, 1);
        use_shortly(f, &blocks[i]);
    }
    free_blocks(f, &blocks[3], 3);
    use_shortly(f, &blocks[0]);        /* blocks 0 and 1 are on the host, and memory is free */
    CHECK_EQ(spare_allocs, 1);
    CHECK_EQ(spare_failed, 0);
    atomic_store(&source_allocs, 0);
    use_shortly(f, &blocks[1]);
    CHECK_EQ(atomic_load(&source_allocs), 0);           /* prefetched */
    free_blocks(f, blocks, 3);
}

static void test_spare(void)
{
    /* One block stays, one of queue 2 is freed and cached. Spare memory for queue 3 does not free the cached one. */
    const struct {
        const char *name, *options;
        const ctrt_memory_policy *table;
        size_t bytes, keep, cached, asked;
    } cases[] = {
        { "caching", "", caching, 44 * MIB, 12 * MIB, 30 * MIB, 12 * MIB },
        { "arena", "chunk=16m", arena, 32 * MIB, 1 * MIB, 1 * MIB, 16 * MIB },
    };
    EACH(c, cases) {
        struct fixture f;
        group("%s: spare memory is cached or free memory of the source", c->name);
        fixture_begin(&f, c->table, c->options, c->bytes, 0);
        ctrt_block keep = alloc_block(&f, c->keep, 1), cached = alloc_block(&f, c->cached, 2), got = { 0 };
        free_after(&f, &cached, NULL);
        CHECK_EQ(f.table->alloc_spare(f.policy, &got, c->asked, QUEUE(3)), CTRT_ERR_OUT_OF_MEMORY);
        CHECK_EQ(f.table->alloc_spare(f.policy, &got, c->cached, QUEUE(2)), CTRT_OK);
        free_after(&f, &got, NULL);
        if (f.table == caching) {
            CHECK_EQ(f.table->alloc_spare(f.policy, &got, 1 * MIB, QUEUE(3)), CTRT_OK);
            free_after(&f, &got, NULL);
        }
        CHECK_EQ(f.source.frees, 0);
        got = alloc_block(&f, c->asked, 3);
        CHECK_TRUE(f.source.frees > 0);
        free_after(&f, &got, NULL);
        free_after(&f, &keep, NULL);
        fixture_end(&f);
    }
}

TEST_MAIN
{
    policies_load();
    spill = policy_load("spill");
    test_stats();
    test_spare();
    return run_tests();
}
