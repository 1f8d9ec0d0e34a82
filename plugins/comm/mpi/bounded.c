/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/bounded.c: calls of MPI that wait for other processes and that MPI cannot cancel, with a time limit.
 *
 * Such a call runs in a thread of its own. After the time limit the caller continues, and the thread remains until the
 * call returns or the process ends. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "engine.h"
#include "plugins/common/clock.h"

struct bounded {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    enum { RUNNING, RETURNED, ABANDONED } state;
    int error;
    int (*call)(void *data);
    void *data;
};

static void bounded_free(struct bounded *bounded)
{
    pthread_mutex_destroy(&bounded->lock);
    pthread_cond_destroy(&bounded->ended);
    free(bounded);
}

static void *bounded_run(void *argument)
{
    struct bounded *bounded = argument;
    const int error = bounded->call(bounded->data);
    pthread_mutex_lock(&bounded->lock);
    const bool abandoned = bounded->state == ABANDONED;
    bounded->error = error;
    bounded->state = abandoned ? ABANDONED : RETURNED;
    pthread_cond_signal(&bounded->ended);
    pthread_mutex_unlock(&bounded->lock);
    if (abandoned) {
        free(bounded->data);
        bounded_free(bounded);
    }
    return NULL;
}

static ctrt_status bounded_start(struct bounded *bounded)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);                       /* the program's handlers run in its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, bounded_run, bounded);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return mpi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "no thread for a call of MPI");
    pthread_detach(thread);
    return CTRT_OK;
}

/* Waits until the call has returned, the time is over, or poll fails. */
static ctrt_status await(struct bounded *bounded, double seconds, const ctrt_comm_config *config)
{
    const int64_t deadline = clock_now(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&bounded->lock);
    while (bounded->state == RUNNING && status == CTRT_OK && clock_now(CLOCK_MONOTONIC) < deadline) {
        const int64_t next = clock_now(CLOCK_MONOTONIC) + 5000000;
        const struct timespec limit = { .tv_sec = next / 1000000000, .tv_nsec = next % 1000000000 };
        pthread_cond_timedwait(&bounded->ended, &bounded->lock, &limit);
        pthread_mutex_unlock(&bounded->lock);
        status = config != NULL ? config->poll(config->state) : CTRT_OK;
        pthread_mutex_lock(&bounded->lock);
    }
    pthread_mutex_unlock(&bounded->lock);
    return status;
}

ctrt_status mpi_bounded(bool *returned, int *error, int (*call)(void *data), void *data, double seconds,
                        const ctrt_comm_config *config)
{
    pthread_condattr_t monotonic;
    struct bounded *bounded = calloc(1, sizeof *bounded);
    *returned = false;
    if (bounded == NULL) {
        free(data);
        return mpi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a call of MPI");
    }
    bounded->call = call;
    bounded->data = data;
    pthread_mutex_init(&bounded->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&bounded->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    ctrt_status status = bounded_start(bounded);
    if (status != CTRT_OK) {
        free(data);
        bounded_free(bounded);
        return status;
    }
    status = await(bounded, seconds, config);
    pthread_mutex_lock(&bounded->lock);
    *returned = bounded->state == RETURNED;
    *error = bounded->error;
    bounded->state = *returned ? RETURNED : ABANDONED;
    pthread_mutex_unlock(&bounded->lock);
    if (*returned)
        bounded_free(bounded);
    else
        atomic_store(&mpi_exit.gave_up, true);
    return *returned ? CTRT_OK : status;
}
