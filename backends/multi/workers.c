/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/workers.c: one thread for each member but the first, for collectives.
 *
 * A collective of the engine host returns only after all ranks have called it, and the first collective of nccl waits
 * for the connections of the other ranks. So the members' calls run at the same time. The call of member 0 runs in the
 * calling thread. */
#include "multi.h"

#include <signal.h>
#include <stdio.h>

#include "ctrt/strategy_plugin.h"

struct multi_workers {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct multi_device *device;
    int started;                        /* threads */
    int left;                           /* members whose call of this round has not returned */
    uint64_t round;
    bool stop;
    ctrt_status (*function)(void *argument, int member);
    void *argument;
    ctrt_stream *const *streams;        /* the caller's current streams of the members */
    struct result { ctrt_status status; char message[1024]; } results[MULTI_MEMBERS];
    struct worker { struct multi_workers *all; pthread_t thread; int member; } list[MULTI_MEMBERS];
};

/* Calls the function for one member on the caller's stream. */
static ctrt_status call_on(struct multi_workers *workers, int member)
{
    if (member == 0)
        return workers->function(workers->argument, 0);
    CTRT_TRY(ctrt_stream_push(workers->streams[member]));
    ctrt_status status = workers->function(workers->argument, member);
    char message[1024];
    snprintf(message, sizeof message, "%s", status != CTRT_OK ? multi_host->message() : "");
    const ctrt_status popped = ctrt_stream_pop();
    return status == CTRT_OK ? popped : multi_host->fail(status, "%s", message);
}

/* Runs a member's call and records its result. */
static void worker_run_member(struct multi_workers *workers, int member)
{
    struct result *result = &workers->results[member];
    result->status = call_on(workers, member);
    snprintf(result->message, sizeof result->message, "%s", result->status != CTRT_OK ? multi_host->message() : "");
    pthread_mutex_lock(&workers->lock);
    if (--workers->left == 0)
        pthread_cond_signal(&workers->idle);
    pthread_mutex_unlock(&workers->lock);
}

static void *worker_thread(void *argument)
{
    const struct worker *self = argument;
    struct multi_workers *workers = self->all;
    uint64_t done = 0;
    (void)ctrt_set_streams_ordered(true);
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        while (workers->round == done && !workers->stop)
            pthread_cond_wait(&workers->work, &workers->lock);
        if (workers->stop)
            break;
        done = workers->round;
        pthread_mutex_unlock(&workers->lock);
        worker_run_member(workers, self->member);
        pthread_mutex_lock(&workers->lock);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

void multi_workers_end(struct multi_workers *workers)
{
    if (workers == NULL)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->stop = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (int i = 0; i < workers->started; i++)
        pthread_join(workers->list[i].thread, NULL);
    pthread_cond_destroy(&workers->work);
    pthread_cond_destroy(&workers->idle);
    pthread_mutex_destroy(&workers->lock);
    multi_host->free(workers);
}

/* Starts the threads; returns 0 or an error number. The threads block all signals, so that handlers of the program run
 * in its own threads. */
static int start_all(struct multi_workers *workers)
{
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int m = 1; m < workers->device->count && error == 0; m++) {
        struct worker *worker = &workers->list[workers->started];
        *worker = (struct worker){ .all = workers, .member = m };
        error = pthread_create(&worker->thread, NULL, worker_thread, worker);
        workers->started += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

ctrt_status multi_workers_new(struct multi_workers **out, struct multi_device *device)
{
    struct multi_workers *workers = multi_host->alloc(sizeof *workers);
    if (workers == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for threads", multi_kind.name);
    memset(workers, 0, sizeof *workers);
    workers->device = device;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->work, NULL);
    pthread_cond_init(&workers->idle, NULL);
    const int error = start_all(workers);
    if (error != 0) {
        multi_workers_end(workers);
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no thread for collectives: %s", multi_kind.name,
                                strerror(error));
    }
    *out = workers;
    return CTRT_OK;
}

/* Returns the first failure whose message names a member, and writes that member to *named. `own`: considers only
 * messages that name the member whose call failed. */
static const struct result *find_named(int *named, const struct multi_workers *workers, bool own)
{
    for (int m = 0; m < workers->device->count; m++)
        for (int k = 0; k < workers->device->count && workers->results[m].status != CTRT_OK; k++)
            if ((k == m || !own) && strstr(workers->results[m].message, workers->device->names[k]) != NULL) {
                *named = k;
                return &workers->results[m];
            }
    return NULL;
}

/* If one member fails, the calls of the other members also fail, some with the message of that member, some with
 * "another rank has failed". Returns the most specific result, or NULL if no call failed. *by: the member that
 * failed. */
static const struct result *failure(int *by, const struct multi_workers *workers)
{
    const struct result *found = find_named(by, workers, true);
    if (found == NULL)
        found = find_named(by, workers, false);
    for (int m = 0; m < workers->device->count && found == NULL; m++)
        if (workers->results[m].status != CTRT_OK) {
            *by = m;
            found = &workers->results[m];
        }
    return found;
}

static ctrt_status run_round(struct multi_workers *workers, ctrt_status (*function)(void *argument, int member),
                             void *argument, ctrt_stream *const *streams)
{
    pthread_mutex_lock(&workers->lock);
    workers->function = function;
    workers->argument = argument;
    workers->streams = streams;
    workers->left = workers->device->count;
    workers->round++;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    worker_run_member(workers, 0);
    pthread_mutex_lock(&workers->lock);
    while (workers->left > 0)
        pthread_cond_wait(&workers->idle, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
    int by = 0;
    const struct result *failed = failure(&by, workers);
    if (failed == NULL)
        return CTRT_OK;
    multi_host->fail(failed->status, "%s", failed->message);
    return multi_member_fails(workers->device, by, failed->status);
}

ctrt_status multi_workers_run(struct multi_workers *workers, ctrt_status (*function)(void *argument, int member),
                              void *argument)
{
    ctrt_stream *streams[MULTI_MEMBERS] = { NULL };
    ctrt_status status = CTRT_OK;
    for (int m = 0; m < workers->device->count && status == CTRT_OK; m++)
        status = ctrt_stream_current(&streams[m], workers->device->members[m]);
    if (status == CTRT_OK)
        status = run_round(workers, function, argument, streams);
    for (int m = 0; m < workers->device->count; m++)
        ctrt_stream_release(&streams[m]);
    return status;
}
