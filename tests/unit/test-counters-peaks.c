/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the peaks of the memory counters under races: another thread acts in the middle of publishing counters and of
 * folding peaks. memory/counters.c is included here with a hook before each of its atomic exchanges and additions. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

static __thread void (*stop)(void);         /* called once, before the thread's next such operation */

static void stopped(void)
{
    void (*once)(void) = stop;
    stop = NULL;
    if (once != NULL)
        once();
}

static inline int64_t plain_add(_Atomic int64_t *cell, int64_t value)
{
    return atomic_fetch_add(cell, value);
}

static inline uint32_t plain_add32(_Atomic uint32_t *cell, uint32_t value)
{
    return atomic_fetch_add(cell, value);
}

static inline int64_t plain_exchange(_Atomic int64_t *cell, int64_t value)
{
    return atomic_exchange(cell, value);
}

#undef atomic_fetch_add_explicit
#undef atomic_exchange_explicit
#define atomic_fetch_add_explicit(cell, value, order) \
    (stopped(), _Generic((cell), _Atomic uint32_t *: plain_add32, default: plain_add)(cell, value))
#define atomic_exchange_explicit(cell, value, order) (stopped(), plain_exchange(cell, value))

#include "memory/counters.c"

#include "tap.h"

static struct counters counters;
static sem_t go, gone;
static _Atomic int task;

enum { END, TAKE, GIVE, PUBLISH };

/* The other thread performs one task for each post of `go`, then posts `gone`. */
static void *other(void *unused)
{
    for (;;) {
        sem_wait(&go);
        if (task == END)
            return unused;
        if (task == TAKE)
            counters_alloc(&counters, 1000, 900);
        else if (task == GIVE)
            counters_free(&counters, 1000, 900);
        else
            counters_publish(&counters, counters_here(&counters));
        sem_post(&gone);
    }
}

/* Waits up to 100 ms for the task to finish. A wait without limit could deadlock, because the task may wait for this
 * thread. */
static bool done_soon(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (sem_timedwait(&gone, &until) != 0)
        if (errno != EINTR)
            return false;
    return true;
}

static bool has(int what)
{
    task = what;
    sem_post(&go);
    return done_soon();
}

static bool published_well;

static void publish_meanwhile(void)
{
    published_well = has(PUBLISH);
}

static void take_meanwhile(void)
{
    (void)has(TAKE);
}

static int64_t peak_now(struct peak_window *window, int peak)
{
    int64_t peaks[PEAKS];
    peak_window_restart(&counters, window, peaks);
    return peaks[peak];
}

#define BLOCKS PEAK_OF(CTRT_POOL_ALL, COUNTER_COUNT)
#define BYTES  PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES)

static void begin_test(pthread_t *thread)
{
    counters_init(&counters);
    sem_init(&go, 0, 0);
    sem_init(&gone, 0, 0);
    pthread_create(thread, NULL, other, NULL);
}

static void end_test(pthread_t thread)
{
    task = END;
    sem_post(&go);
    pthread_join(thread, NULL);
    counters_destroy(&counters);
}

static void test_publishing(void)
{
    pthread_t thread;
    struct peak_window window = { .next = NULL };
    group("two threads publish counters at the same time, and nothing is counted twice");
    begin_test(&thread);
    CHECK(has(TAKE) && has(TAKE), "the other thread hangs");        /* not yet published */
    peak_window_open(&counters, &window);
    stop = publish_meanwhile;
    /* registers this thread and publishes the other one's cells */
    counters_alloc(&counters, 64, 64);
    if (!published_well)
        CHECK(done_soon(), "the other thread hangs");
    int64_t seen = 0;
    for (const struct thread_counters *cells = counters.threads; cells != NULL; cells = cells->next)
        seen += counter_load(&cells->seen[COUNTER_SMALL][COUNTER_COUNT]);
    const int64_t published = counter_load(&counters.published[COUNTER_SMALL][COUNTER_COUNT]);
    CHECK(published == 2 && seen == 2, "%lld blocks published, %lld seen", (long long)published, (long long)seen);
    counters_update_peaks(&counters, counters_here(&counters));
    const int64_t peak = peak_now(&window, BLOCKS);
    CHECK(peak == 3, "the peak is %lld blocks, expected 3", (long long)peak);
    counters_free(&counters, 64, 64);
    CHECK(has(GIVE) && has(GIVE), "the other thread hangs");
    CHECK(counters_current(&counters, COUNTER_BYTES) == 0,
          "%llu bytes are allocated, expected 0", (unsigned long long)counters_current(&counters, COUNTER_BYTES));
    peak_window_close(&counters, &window);
    end_test(thread);
}

static void test_folding(void)
{
    pthread_t thread;
    struct peak_window window = { .next = NULL };
    group("a block allocated while the peaks are read counts in the next peak");
    begin_test(&thread);
    CHECK(has(TAKE) && has(GIVE), "the other thread hangs");        /* makes the thread record this peak */
    peak_window_open(&counters, &window);
    CHECK(has(TAKE) && has(GIVE), "the other thread hangs");
    stop = take_meanwhile;
    int64_t peak = peak_now(&window, BYTES);
    CHECK(peak == 1000, "the first window's peak is %lld bytes, expected 1000", (long long)peak);
    CHECK(has(GIVE), "the other thread hangs");
    peak = peak_now(&window, BYTES);
    CHECK(peak == 1000, "the second window's peak is %lld bytes, expected 1000", (long long)peak);
    peak = peak_now(&window, BYTES);
    CHECK(peak == 0, "the third window's peak is %lld bytes, expected 0", (long long)peak);
    peak_window_close(&counters, &window);
    end_test(thread);
}

TEST_MAIN
{
    test_publishing();
    test_folding();
    return done();
}
