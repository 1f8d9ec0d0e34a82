/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/worker.c: the worker thread of a queue, and simulated time.
 *
 * In simulated time, a work item starts when it was enqueued or, if that is later, when the previous item ended. A work
 * item with a duration of 20 us ends 20 us after its start, or later if the work uses more processor time. The worker
 * sleeps until that end. If the system wakes it late, or runs other threads instead, that does not change simulated
 * time: the worker catches up, because the next end is computed from this one. */
#include "sim.h"
#include "plugins/common/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t sim_now(void)
{
    return clock_now(CLOCK_MONOTONIC);
}

void sim_sleep_until(int64_t time)
{
    const struct timespec until = { .tv_sec = time / 1000000000, .tv_nsec = time % 1000000000 };
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
    pthread_setcancelstate(cancel, NULL);
}

/* xorshift64* (Vigna 2016). */
int64_t sim_random(uint64_t *state, int64_t limit)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return limit > 0 ? (int64_t)((*state * 0x2545f4914f6cdd1du >> 11) % (uint64_t)limit) : 0;
}

ctrt_status sim_work_fails(struct sim_queue *queue, const struct sim_work *work, ctrt_status status,
                           const char *format, ...)
{
    struct sim_failure failure = { .status = status, .sequence = work->sequence };
    va_list arguments;
    int used = snprintf(failure.text, sizeof failure.text, "%s, queue %d: ", queue->device->name, queue->number);
    va_start(arguments, format);
    vsnprintf(failure.text + used, sizeof failure.text - (size_t)used, format, arguments);
    va_end(arguments);
    sim_count(&queue->device->count.failures, 1);
    pthread_mutex_lock(&queue->lock);
    queue->failure = failure;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* After the first failure, no work runs except timepoints, which are still reached so that no thread waits
 * permanently. */
static bool dropped(struct sim_queue *queue, const struct sim_work *work)
{
    if (work->always)
        return false;
    pthread_mutex_lock(&queue->lock);
    bool failed = queue->failure.status != CTRT_OK;
    pthread_mutex_unlock(&queue->lock);
    return failed || atomic_load(&queue->device->lost);
}

/* The number of work items that are running now. No further work starts once `exiting` is set. */
static _Atomic int running;
#define EXIT_WAIT 5000000000                /* nanoseconds */
static _Atomic bool exiting;

void sim_worker_forked(void)
{
    atomic_store(&running, 0);
}

void sim_stop_at_exit(void)
{
    const int64_t give_up = sim_now() + EXIT_WAIT;
    atomic_store(&exiting, true);
    while (atomic_load(&running) > 0 && sim_now() < give_up)
        sim_sleep_until(sim_now() + 100000);
}

static void worker_run(struct sim_queue *queue, struct sim_work *work)
{
    atomic_fetch_add(&running, 1);
    if (work->always || !atomic_load(&exiting))         /* timepoints are still reached */
        work->run(queue, work);
    atomic_fetch_sub(&running, 1);
}

static void work_do(struct sim_queue *queue, struct sim_work *work)
{
    struct sim_device *device = queue->device;
    if (dropped(queue, work))
        return;
    const int64_t late = atomic_load_explicit(&device->late, memory_order_relaxed);
    const int64_t delay = late > 0 ? sim_random(&queue->random, late) : 0;
    if (late > 0)
        sim_sleep_until(sim_now() + delay);
    const int64_t begin = (work->put > queue->clock ? work->put : queue->clock) + delay;
    queue->clock = begin;
    if (work->loses) {
        sim_work_fails(queue, work, CTRT_ERR_DEVICE_LOST, "%s is lost (fault %s)", device->name, work->fault);
        atomic_store(&device->lost, true);
        return;
    }
    const int64_t before = clock_now(CLOCK_THREAD_CPUTIME_ID);
    worker_run(queue, work);
    const int64_t used = clock_now(CLOCK_THREAD_CPUTIME_ID) - before;
    const int64_t end = begin + (used > work->cost ? used : work->cost);
    if (end > sim_now())
        sim_sleep_until(end);
    queue->clock = end > queue->clock ? end : queue->clock;         /* waits and calls of the host change the clock */
}

static void work_free(struct sim_work *work)
{
    if (work->drop != NULL)
        work->drop(work);
    sim_host->free(work);
}

__thread bool sim_in_worker;

void *sim_worker(void *argument)
{
    struct sim_queue *queue = argument;
    sim_in_worker = true;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        struct sim_work *work = queue->first;
        if (work == NULL && queue->ends)
            break;
        if (work == NULL) {
            pthread_cond_wait(&queue->come, &queue->lock);
            continue;
        }
        queue->first = work->next;
        if (queue->first == NULL)
            queue->last = &queue->first;
        pthread_mutex_unlock(&queue->lock);
        const int64_t began = sim_now();
        atomic_store_explicit(&queue->began, began, memory_order_relaxed);
        work_do(queue, work);
        atomic_fetch_add_explicit(&queue->worked, sim_now() - began, memory_order_relaxed);
        atomic_store_explicit(&queue->began, 0, memory_order_relaxed);
        work_free(work);
        pthread_mutex_lock(&queue->lock);
        queue->completed++;
        pthread_cond_broadcast(&queue->done);
    }
    queue->ended = true;
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}
