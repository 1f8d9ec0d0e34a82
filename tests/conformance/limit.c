/* SPDX-License-Identifier: Apache-2.0 */
/* limit.c: the time limit of a check. A thread watches it, because the kernel of a check may never return. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "suite.h"

#define NONE_RUNS 0.0                           /* values of `deadline`, which is otherwise a time in seconds */
#define EXPIRED   (-1.0)
static _Atomic double deadline;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void limit_begin(const struct run *run)
{
    atomic_store(&deadline, now() + run->options->seconds);
}

void limit_end(void)
{
    if (atomic_exchange(&deadline, NONE_RUNS) == EXPIRED)
        for (;;)                                /* check_expired ends the process */
            pause();
}

static void *limit_thread(void *run)
{
    for (;;) {
        double limit = atomic_load(&deadline);
        if (limit > 0 && now() > limit && atomic_compare_exchange_strong(&deadline, &limit, EXPIRED))
            check_expired(run);
        nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    }
    return NULL;
}

bool limit_start(struct run *run)
{
    pthread_t thread;
    const bool started = pthread_create(&thread, NULL, limit_thread, run) == 0 && pthread_detach(thread) == 0;
    if (!started)
        fprintf(stderr, "conformance: no thread can be started\n");
    return started;
}
