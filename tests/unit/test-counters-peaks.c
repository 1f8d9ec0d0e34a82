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

/* atomic_exchange may be a macro that uses atomic_exchange_explicit, which is replaced below. */
static inline int64_t plain_exchange(_Atomic int64_t *value, int64_t next)
{
    return atomic_exchange(value, next);
}

#undef atomic_fetch_add_explicit
#undef atomic_exchange_explicit
#define atomic_fetch_add_explicit(cell, value, order) __extension__({ stopped(); (*(cell) += (value)) - (value); })
#define atomic_exchange_explicit(cell, value, order)  (stopped(), plain_exchange(cell, value))

#include "calls.h"
#include "memory/counters.c"

#include "tap.h"

static struct counters counters;
static struct peak_window window;
static sem_t start, finished;
static _Atomic int task;
static pthread_t thread;

enum { END, ALLOC, FREE, PUBLISH };

/* The other thread performs one task for each post of `start`, then posts `finished`. */
static void *other(void *unused)
{
    for (;;) {
        sem_wait(&start);
        if (task == END)
            return unused;
        if (task == ALLOC)
            counters_alloc(&counters, 1000, 900);
        else if (task == FREE)
            counters_free(&counters, 1000, 900);
        else
            counters_publish(&counters, counters_here(&counters));
        sem_post(&finished);
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
    while (sem_timedwait(&finished, &until) != 0)
        if (errno != EINTR)
            return false;
    return true;
}

static bool other_does(int what)
{
    task = what;
    sem_post(&start);
    return done_soon();
}

static bool published;

static void publish_meanwhile(void)
{
    published = other_does(PUBLISH);
}

static void alloc_meanwhile(void)
{
    (void)other_does(ALLOC);
}

static int64_t peak_of(int peak)
{
    int64_t peaks[PEAKS];
    peak_window_restart(&counters, &window, peaks);
    return peaks[peak];
}

static void begin_test(const char *name)
{
    group("%s", name);
    counters_init(&counters);
    window = (struct peak_window){ .next = NULL };
    sem_init(&start, 0, 0);
    sem_init(&finished, 0, 0);
    pthread_create(&thread, NULL, other, NULL);
}

static void end_test(void)
{
    peak_window_close(&counters, &window);
    task = END;
    sem_post(&start);
    pthread_join(thread, NULL);
    counters_destroy(&counters);
}

static void test_publishing(void)
{
    begin_test("two threads publish counters at the same time, and nothing is counted twice");
    CHECK_TRUE(other_does(ALLOC) && other_does(ALLOC));         /* not yet published */
    peak_window_open(&counters, &window);
    stop = publish_meanwhile;
    counters_alloc(&counters, 64, 64);      /* registers this thread and publishes the other one's counters */
    CHECK_TRUE(published || done_soon());
    int64_t counted = 0;
    for (const struct thread_counters *each = counters.threads; each != NULL; each = each->next)
        counted += counter_load(&each->published[COUNTER_SMALL][COUNTER_COUNT]);
    CHECK_EQ(counter_load(&counters.published[COUNTER_SMALL][COUNTER_COUNT]), 2);
    CHECK_EQ(counted, 2);
    counters_update_peaks(&counters, counters_here(&counters));
    CHECK_EQ(peak_of(PEAK_OF(CTRT_POOL_ALL, COUNTER_COUNT)), 3);
    counters_free(&counters, 64, 64);
    CHECK_TRUE(other_does(FREE) && other_does(FREE));
    CHECK_EQ(counters_current(&counters, COUNTER_BYTES), 0);
    end_test();
}

static void test_folding(void)
{
    const int bytes = PEAK_OF(CTRT_POOL_ALL, COUNTER_BYTES);
    begin_test("a block allocated while the peaks are read counts in the next peak");
    CHECK_TRUE(other_does(ALLOC) && other_does(FREE));          /* makes the thread record this peak */
    peak_window_open(&counters, &window);
    CHECK_TRUE(other_does(ALLOC) && other_does(FREE));
    stop = alloc_meanwhile;
    CHECK_EQ(peak_of(bytes), 1000);
    CHECK_TRUE(other_does(FREE));
    CHECK_EQ(peak_of(bytes), 1000);
    CHECK_EQ(peak_of(bytes), 0);
    end_test();
}

TEST_MAIN
{
    test_publishing();
    test_folding();
    return done();
}
