/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c: reports a check whose kernel does not return, or crashes. A thread does so, because the thread of the kernel
 * cannot. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "suite.h"

#define NONE_RUNS 0.0                           /* values of `deadline`, which is otherwise a time in seconds */
#define ENDED     (-1.0)                        /* the thread reports the check */
static _Atomic double deadline;

static atomic_int crash;                        /* the number of a signal */
static _Atomic(void *) crash_address;
static atomic_bool crash_reported;

static void rest(void)
{
    nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
}

void watch_begin(const struct run *run)
{
    atomic_store(&deadline, seconds_now() + run->options->seconds);
}

void watch_end(void)
{
    if (atomic_exchange(&deadline, NONE_RUNS) == ENDED)
        for (;;)                                /* the process ends */
            pause();
}

/* Waits for the report. Then the access is repeated, so that the process ends as without this function. */
static void on_crash(int number, siginfo_t *info, void *context)
{
    (void)context;
    signal(number, SIG_DFL);
    atomic_store(&crash_address, info->si_addr);
    atomic_store(&crash, number);
    for (int i = 0; i < 100 && !atomic_load(&crash_reported) && atomic_load(&deadline) != NONE_RUNS; i++)
        rest();
}

static void *watch_thread(void *run)
{
    for (;; rest()) {
        const int number = atomic_load(&crash);
        double limit = atomic_load(&deadline);
        if (limit <= 0 || (number == 0 && seconds_now() < limit)
            || !atomic_compare_exchange_strong(&deadline, &limit, ENDED))
            continue;
        check_ends_badly(run, number, atomic_load(&crash_address));
        atomic_store(&crash_reported, true);
    }
    return NULL;
}

bool watch_start(struct run *run)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    const struct sigaction action = { .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    struct sigaction before;
    pthread_t thread;
    for (int i = 0; i < COUNT_OF(signals); i++)     /* sanitizers and --guard have their own handlers */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
    const bool started = pthread_create(&thread, NULL, watch_thread, run) == 0 && pthread_detach(thread) == 0;
    if (!started)
        fprintf(stderr, "conformance: no thread can be started\n");
    return started;
}
