/* SPDX-License-Identifier: Apache-2.0 */
/* Tests parts of the memory policies: expandable segments, fork during trim, split statistics, walk, clone, the arena,
 * host memory, and failing allocations of the policy itself. */
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"
#include "memory_bed.h"

/* ---- pages ---- */

static void test_expandable(void)
{
    struct bed bed;
    group("expandable segments: one range for each pool, grown by pages, trimmed to the pages in use");
    if (!bed_make(&bed, caching, "expandable=true", 256 * MIB, 2 * MIB))
        return;
    ctrt_block a = take(&bed, 100, 1);
    CHECK(bed.paper.used == 2 * MIB && bed.paper.reserved_ranges == 1, "%llu mapped", (unsigned long long)bed.paper.used);
    ctrt_block b = take(&bed, 15 * MIB, 1), c = take(&bed, 10 * MIB, 1), d = take(&bed, 30 * MIB, 1);
    CHECK(b.bytes == 15 * MIB && (char *)c.address == (char *)b.address + 15 * MIB && (char *)d.address == (char *)c.address + 10 * MIB,
          "the blocks of 15, 10 and 30 MiB are not adjacent");
    CHECK(bed.paper.used == 62 * MIB && bed.paper.allocs == 4 && bed.paper.maps == 4, "%llu MiB mapped in %d",
          (unsigned long long)bed.paper.used / MIB, (int)bed.paper.maps);
    ctrt_memory_policy_stats stats = stats_of(&bed);
    CHECK(stats.segment[CTRT_POOL_LARGE].current == 1 && stats.reserved_bytes == 62 * MIB
              && stats.inactive_split[CTRT_POOL_ALL].current == 0,
          "%lld segments", (long long)stats.segment[CTRT_POOL_LARGE].current);
    /* A request that fits no hole extends the tail. */
    give(&bed, &b);
    ctrt_block e = take(&bed, 16 * MIB, 1);
    CHECK((char *)e.address == (char *)d.address + 30 * MIB && bed.paper.used == 82 * MIB,
          "16 MiB are not at the tail; %llu MiB are mapped",
          (unsigned long long)bed.paper.used / MIB);
    give(&bed, &e);
    b = take(&bed, 4 * MIB, 1);
    CHECK((char *)b.address == (char *)c.address - 15 * MIB, "4 MiB are at the tail, not in the hole");
    /* trim unmaps whole pages of 2 MiB: of the free range from 4 to 15 MiB those from 4 to 14, of the tail from 55 to
     * 80 MiB those from 56 to 80. */
    caching->trim(bed.policy);
    CHECK(bed.paper.used == 2 * MIB + (80 - 10 - 24) * MIB,
          "%llu MiB are mapped after trim", (unsigned long long)bed.paper.used / MIB);
    CHECK(stats_of(&bed).segment[CTRT_POOL_LARGE].current == 2, "%lld runs of pages",
          (long long)stats_of(&bed).segment[CTRT_POOL_LARGE].current);
    e = take(&bed, 9 * MIB, 1);
    CHECK((char *)e.address == (char *)b.address + 4 * MIB, "the unmapped gap was not used again for 9 MiB");
    give(&bed, &e);
    give(&bed, &a);
    give(&bed, &b);
    give(&bed, &c);
    give(&bed, &d);
    bed_end(&bed);

    group("expandable segments: when the device is full, free pages are unmapped, then single pages are mapped");
    if (!bed_make(&bed, caching, "expandable=true", 50 * MIB, 2 * MIB))
        return;
    a = take(&bed, 19 * MIB, 1);
    b = take(&bed, 19 * MIB, 1);
    CHECK(bed.paper.used == 40 * MIB, "%llu MiB", (unsigned long long)bed.paper.used / MIB);
    /* the tail has 2 MiB, the device 10 MiB: less than one step of 20 MiB */
    c = take(&bed, 11 * MIB, 1);
    CHECK(bed.paper.used == 50 * MIB && stats_of(&bed).retries == 1, "%llu MiB, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    give(&bed, &a);
    /* on another queue: free pages of the first queue are unmapped for it */
    d = take(&bed, 12 * MIB, 2);
    CHECK(bed.paper.used == 44 * MIB && stats_of(&bed).retries == 2, "%llu MiB, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    give(&bed, &b);
    give(&bed, &c);
    give(&bed, &d);
    bed_end(&bed);
}

/* ---- fork ---- */

static struct bed *forking;
static int child_status, pages_gone;

static void add_bytes(const ctrt_memory_piece *piece, void *sum)
{
    *(size_t *)sum += piece->segment ? piece->bytes : 0;
}

/* Forks at the second of three unmaps: the first run of pages is unmapped, the third has not been begun. */
static void fork_now(struct paper *paper, void *address, size_t bytes)
{
    (void)address, (void)bytes;
    if (++pages_gone != 2)
        return;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ctrt_block block = { 0 };
        size_t walked = 0;
        alarm(10);
        pthread_mutex_init(&paper->lock, NULL);
        paper->on_free = NULL;
        const ctrt_memory_policy_stats stats = stats_of(forking);
        caching->walk(forking->policy, add_bytes, &walked);
        const uint64_t maps = paper->maps;
        bool good = stats.reserved_bytes == 3 * 20 * MIB && walked == stats.reserved_bytes && stats.segment[CTRT_POOL_LARGE].current == 2;
        /* The child reuses the run that is still mapped and maps the other two again. */
        good &= caching->alloc(forking->policy, &block, 20 * MIB, QUEUE(1)) == CTRT_OK && paper->maps == maps;
        good &= caching->alloc(forking->policy, &block, 20 * MIB, QUEUE(1)) == CTRT_OK && paper->maps == maps + 1;
        good &= caching->alloc(forking->policy, &block, 20 * MIB, QUEUE(1)) == CTRT_OK && paper->maps == maps + 2;
        good &= stats_of(forking).reserved_bytes == 5 * 20 * MIB && stats_of(forking).segment[CTRT_POOL_LARGE].current == 1;
        _exit(good ? 0 : 1);
    }
    waitpid(child, &child_status, 0);
}

static void test_fork(void)
{
    struct bed bed;
    ctrt_block blocks[5];
    group("expandable segments: a child forked during trim keeps the pages still mapped and can map the others again");
    if (!bed_make(&bed, caching, "expandable=true", 256 * MIB, 2 * MIB))
        return;
    forking = &bed;
    for (int i = 0; i < 5; i++)
        blocks[i] = take(&bed, 20 * MIB, 1);
    for (int i = 0; i < 5; i += 2)
        give(&bed, &blocks[i]);
    child_status = -1;
    bed.paper.on_free = fork_now;
    caching->trim(bed.policy);
    bed.paper.on_free = NULL;
    CHECK(pages_gone == 3, "trim unmapped %d runs of pages, expected 3", pages_gone);
    CHECK(WIFEXITED(child_status) && WEXITSTATUS(child_status) == 0, "the child ended with %#x", (unsigned)child_status);
    give(&bed, &blocks[1]);
    give(&bed, &blocks[3]);
    bed_end(&bed);
}

/* ---- statistics ---- */

static void check_split(struct bed *bed, const char *what, int64_t allocated, int64_t freed, int64_t peak)
{
    const ctrt_stat split = stats_of(bed).inactive_split[CTRT_POOL_ALL];
    CHECK(split.allocated == allocated && split.freed == freed && split.peak == peak, "%s: +%lld -%lld, peak %lld; expected +%lld -%lld, peak "
          "%lld", what, (long long)split.allocated, (long long)split.freed, (long long)split.peak, (long long)allocated, (long long)freed,
          (long long)peak);
}

static void test_split_stats(void)
{
    struct bed bed;
    group("a block that is freed and reused counts as an inactive split in between, cached outside of the heap or not");
    if (!bed_make(&bed, caching, "", 256 * MIB, 0))
        return;
    ctrt_block a = take(&bed, 1 * KIB, 1), b = take(&bed, 1 * KIB, 1), c = take(&bed, 1 * KIB, 1);
    check_split(&bed, "three blocks of a segment allocated", 1, 0, 1);            /* the remainder of the segment */
    give(&bed, &b);
    b = take(&bed, 1 * KIB, 1);
    check_split(&bed, "the middle block freed and reused", 2, 1, 2);
    for (int i = 0; i < 10; i++) {
        give(&bed, &b);
        b = take(&bed, 1 * KIB, 1);
    }
    check_split(&bed, "the middle block freed and reused ten times", 12, 11, 2);
    give(&bed, &c);
    c = take(&bed, 1 * KIB, 1);
    check_split(&bed, "the last block merged with the remainder and allocated again", 12, 11, 2);
    CHECK(stats_of(&bed).inactive_split_bytes[CTRT_POOL_ALL].peak == (int64_t)(2 * MIB - 1 * KIB),
          "the peak of inactive split bytes is %lld",
          (long long)stats_of(&bed).inactive_split_bytes[CTRT_POOL_ALL].peak);
    give(&bed, &c);
    give(&bed, &b);
    check_split(&bed, "two of three blocks freed", 12, 11, 2);
    give(&bed, &a);
    check_split(&bed, "all blocks freed", 12, 12, 2);
    a = take(&bed, 1 * KIB, 1);
    check_split(&bed, "one block allocated", 13, 12, 2);
    give(&bed, &a);
    a = take(&bed, 1 * KIB, 1);
    check_split(&bed, "the only block freed and reused", 14, 13, 2);
    give(&bed, &a);
    bed_end(&bed);
}

/* ---- walk and clone ---- */

struct seen {
    size_t segments, blocks, bytes, active, awaiting, block_bytes;
    const char *next;
    bool ordered;
};

static void see(const ctrt_memory_piece *piece, void *argument)
{
    struct seen *seen = argument;
    if (piece->segment) {
        seen->ordered &= seen->block_bytes == seen->bytes;
        seen->segments++;
        seen->bytes += piece->bytes;
        seen->next = piece->address;
        return;
    }
    seen->ordered &= piece->address == seen->next;
    seen->next += piece->bytes;
    seen->blocks++;
    seen->block_bytes += piece->bytes;
    seen->active += piece->block_state == CTRT_BLOCK_ACTIVE;
    seen->awaiting += piece->block_state == CTRT_BLOCK_AWAITING;
}

static void test_walk(void)
{
    static const char *const names[] = { "caching", "caching, expandable", "direct", "arena" };
    for (int i = 0; i < 4; i++) {
        struct bed bed;
        group("walk visits every segment and its blocks in address order: %s", names[i]);
        if (!bed_make(&bed, i < 2 ? caching : i == 2 ? direct : arena, i == 1 ? "expandable=on" : "", 1024 * MIB, 2 * MIB))
            return;
        ctrt_block blocks[30];
        for (int k = 0; k < 30; k++)
            blocks[k] = take(&bed, (size_t)(k % 7 + 1) * 300000, k % 3);
        for (int k = 0; k < 30; k += 4)
            give_later(&bed, &blocks[k], paper_work(&bed.paper));
        struct seen seen = { .ordered = true };
        bed.table->walk(bed.policy, see, &seen);
        ctrt_memory_policy_stats stats = stats_of(&bed);
        CHECK(seen.ordered && seen.block_bytes == seen.bytes,
              "the blocks of a segment are not adjacent, or do not fill it");
        CHECK(seen.bytes == stats.reserved_bytes && (int64_t)seen.segments == stats.segment[CTRT_POOL_ALL].current,
              "%zu bytes in %zu segments, by statistics %llu in %lld", seen.bytes, seen.segments,
              (unsigned long long)stats.reserved_bytes, (long long)stats.segment[CTRT_POOL_ALL].current);
        CHECK(seen.active == 22 && (seen.awaiting > 0) == (i != 2), "%zu active, %zu awaiting", seen.active, seen.awaiting);
        for (int k = 0; k < 30; k++)
            if (k % 4 != 0)
                give(&bed, &blocks[k]);
        bed_end(&bed);
    }
}

static void test_clone(void)
{
    struct bed bed, clone;
    ctrt_block blocks[40], other;
    group("clone: places later requests as the original does, and can free the original's blocks");
    if (!bed_make(&bed, caching, "", 4096 * MIB, 0))
        return;
    for (int k = 0; k < 40; k++)
        blocks[k] = take(&bed, (size_t)(k % 9 + 1) * 250000, 1 + k % 2);
    for (int k = 0; k < 40; k += 3)
        give(&bed, &blocks[k]);
    paper_init(&clone.paper, 4096 * MIB, 0);
    clone.paper.next = bed.paper.next;
    clone.table = caching;
    CHECK(caching->clone(bed.policy, &clone.policy, &clone.paper.source) == CTRT_OK, "%s", host_error);
    clone.paper.used = bed.paper.used;
    ctrt_memory_policy_stats before = stats_of(&bed), after = stats_of(&clone);
    CHECK(memcmp(&before, &after, sizeof before) == 0, "the statistics of the clone differ");
    /* Both get the same requests, the clone first. The clone's blocks are those of the original. */
    ctrt_block made[40];
    for (int k = 1; k < 40; k += 3)
        give(&clone, &blocks[k]);
    for (int k = 0; k < 20; k++)
        made[k] = take(&clone, (size_t)(k % 5 + 1) * 777777, 1 + k % 2);
    CHECK(stats_of(&bed).cached_bytes == before.cached_bytes, "requests to the clone changed the original");
    for (int k = 1; k < 40; k += 3)
        give(&bed, &blocks[k]);
    for (int k = 0; k < 20; k++) {
        other = take(&bed, (size_t)(k % 5 + 1) * 777777, 1 + k % 2);
        CHECK(other.address == made[k].address && other.bytes == made[k].bytes,
              "request %d has another address or size than in the clone", k);
        give(&clone, &made[k]);
        made[k] = other;
    }
    for (int k = 2; k < 40; k += 3)
        give(&clone, &blocks[k]);
    CHECK(stats_of(&clone).cached_bytes == stats_of(&clone).reserved_bytes, "the clone still has blocks in use");
    caching->trim(clone.policy);
    CHECK(stats_of(&clone).reserved_bytes == 0, "%llu bytes are reserved in the clone after trim",
          (unsigned long long)stats_of(&clone).reserved_bytes);
    bed_end(&clone);
    for (int k = 0; k < 20; k++)
        give(&bed, &made[k]);
    for (int k = 2; k < 40; k += 3)
        give(&bed, &blocks[k]);
    bed_end(&bed);
}

/* ---- arena ---- */

static void test_arena(void)
{
    struct bed bed;
    group("arena: after a step that frees everything, the next step gets the same addresses from the same chunks");
    if (!bed_make(&bed, arena, "chunk=8m", 64 * MIB, 0))
        return;
    void *first[20];
    for (int step = 0; step < 5; step++) {
        ctrt_block blocks[20];
        for (int k = 0; k < 20; k++) {
            blocks[k] = take(&bed, MIB - 1000 * (size_t)k, 1);
            if (step == 0)
                first[k] = blocks[k].address;
            CHECK(blocks[k].address == first[k], "step %d, block %d has another address than in step 0", step, k);
        }
        for (int k = 0; k < 20; k++)
            give(&bed, &blocks[(k * 7) % 20]);
    }
    CHECK(bed.paper.allocs == 3 && bed.paper.used == 24 * MIB, "%d chunks", (int)bed.paper.allocs);
    /* A live block pins its chunk up to its own end; the space after it is reused. */
    ctrt_block keep = take(&bed, MIB, 1), after = take(&bed, MIB, 1);
    give(&bed, &after);
    after = take(&bed, MIB, 1);
    CHECK((char *)after.address == (char *)keep.address + MIB, "the space after a live block is not reused");
    give(&bed, &after);
    ctrt_block big = take(&bed, 30 * MIB, 1);
    CHECK(big.bytes == 30 * MIB && bed.paper.used == 54 * MIB, "%zu", big.bytes);
    give(&bed, &big);
    big = take(&bed, 40 * MIB, 2);              /* does not fit until empty chunks are freed */
    CHECK(bed.paper.used == 48 * MIB && stats_of(&bed).retries == 1, "%llu MiB", (unsigned long long)bed.paper.used / MIB);
    ctrt_block block = { 0 };
    CHECK(arena->alloc(bed.policy, &block, 60 * MIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY,
          "60 MiB were allocated although 48 of 64 MiB are in use");
    give(&bed, &keep);
    give(&bed, &big);
    bed_end(&bed);
}

/* ---- host memory ---- */

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBIDDEN(address) __asan_address_is_poisoned(address)
#define KNOWN_FORBIDDEN    true
#else
#define FORBIDDEN(address) ((void)(address), false)
#define KNOWN_FORBIDDEN    false
#endif

static ctrt_status real_alloc(void *state, void **address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    return posix_memalign(address, 4096, bytes) == 0 ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

static void real_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    memset(address, 1, bytes);          /* under AddressSanitizer no byte may be poisoned any more */
    free(address);
}

static void test_real_memory(void)
{
    ctrt_memory_source source = { .size = sizeof source, .alloc = real_alloc, .free = real_free, .device_name = "real:0",
                                  .device_flags = CTRT_DEVICE_HOST_MEMORY, .total_bytes = 1024 * MIB };
    void *policy = NULL;
    ctrt_block blocks[64];
    unsigned places = 0;
    group("host memory: tiny blocks start at different cache lines; AddressSanitizer poisons free blocks");
    CHECK(caching->create(&policy, &source, "") == CTRT_OK, "%s", host_error);
    for (int i = 0; i < 64; i++) {
        CHECK(caching->alloc(policy, &blocks[i], i < 32 ? 4 : 5000 * (size_t)i, NULL) == CTRT_OK, "%s", host_error);
        memset(blocks[i].address, i, i < 32 ? 4 : 5000 * (size_t)i);
        if (i < 32)
            places |= 1u << (uintptr_t)blocks[i].address / 64 % 8;
        CHECK(i >= 32 || (blocks[i].bytes == 512 && (uintptr_t)blocks[i].address % 64 == 0), "block %d", i);
    }
    CHECK(places == 0xff, "the cache lines (modulo 8) of tiny blocks are %#x, expected 0xff", places);
    CHECK(FORBIDDEN((char *)blocks[0].address + 4) == KNOWN_FORBIDDEN && !FORBIDDEN(blocks[0].address),
          "the bytes after the requested size are not poisoned, or the block itself is");
    for (int i = 0; i < 64; i++) {
        const unsigned char *at = blocks[i].address;
        CHECK(at[0] == i && at[(i < 32 ? 4 : 5000 * (size_t)i) - 1] == i, "block %d was overwritten", i);
        caching->free(policy, &blocks[i], NULL);
        CHECK(FORBIDDEN(at) == KNOWN_FORBIDDEN, "block %d is not poisoned after it was freed", i);
    }
    caching->destroy(policy);
}

/* ---- failing allocations of the policy itself ---- */

static void test_host_memory(void)
{
    group("when the policy's own n-th allocation fails, alloc fails or returns a larger block, and no bytes are lost");
    static const size_t sizes[] = { 8, 5000, 700000, 2 * MIB, 12 * MIB, 600, 700 };
    for (long n = 1; n < 20; n++) {
        struct bed bed;
        ctrt_block blocks[COUNT(sizes)] = { { 0 } };
        if (!bed_make(&bed, caching, "", 256 * MIB, 0))
            return;
        host_allocs_left = n;
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (caching->alloc(bed.policy, &blocks[i], sizes[i], QUEUE(1 + i % 2)) != CTRT_OK)
                blocks[i].address = NULL;
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (blocks[i].address != NULL)
                give(&bed, &blocks[i]);
        host_allocs_left = 0;
        CHECK(stats_of(&bed).cached_bytes == bed.paper.used,
              "allocation %ld failed: the cached bytes are not the device's bytes in use", n);
        bed_end(&bed);
    }
}

TEST_MAIN
{
    beds_load();
    test_expandable();
    test_fork();
    test_split_stats();
    test_walk();
    test_clone();
    test_arena();
    test_real_memory();
    test_host_memory();
    return done();
}
