/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/workers.c: one thread per device, kept alive between steps. */
#include <pthread.h>
#include <unistd.h>

#include "data_parallel.h"

struct worker {
    struct workers *workers;
    int index;
    ctrt_device *device;
    pthread_t thread;
    bool started;                           /* `thread` exists; of worker 0 always false */
    bool busy;                              /* has a task that has not ended */
    bool left;                              /* the function is running, or has ended the thread */
    ctrt_status status;
    char message[1024];
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pid_t process;
    const struct data_parallel *dp;
    int n, running;                         /* running: tasks that have not ended */
    bool stop;
    ctrt_status (*function)(void *user, int index);
    void *user;
    bool grad;
    const ctrt_autocast_settings *autocast;
    const char *label;
    struct worker list[];
};

/* ---- the threads ---- */

static void task_result(struct worker *worker, ctrt_status status, const char *message)
{
    worker->status = status;
    worker->message[0] = '\0';
    if (status != CTRT_OK) {
        strncpy(worker->message, message, sizeof worker->message - 1);
        worker->message[sizeof worker->message - 1] = '\0';
    }
}

static void task_run(struct worker *worker)
{
    const struct workers *workers = worker->workers;
    const bool labelled = *workers->label != '\0' && ctrt_memory_label_push(workers->label) == CTRT_OK;
    ctrt_status status = CTRT_OK;
    EACH_PLACE(place, workers->dp, worker->index)
        if (status == CTRT_OK)
            status = ctrt_stream_set_current(place->compute);
    if (status == CTRT_OK)
        status = ctrt_device_set_current(worker->device);
    ctrt_set_grad_enabled(workers->grad);
    if (status == CTRT_OK)
        status = ctrt_autocast_push_state(workers->autocast);
    if (status == CTRT_OK)
        status = workers->function(workers->user, worker->index);
    task_result(worker, status, ctrt_error_message());
    while (ctrt_autocast_state() != NULL && ctrt_autocast_pop() == CTRT_OK)
        continue;                               /* a function that failed may not have ended its own regions */
    if (labelled)
        (void)ctrt_memory_label_pop();
}

/* Called also if the function ends its thread (pthread_exit). Then the next run creates another thread. */
static void task_end(void *argument)
{
    struct worker *worker = argument;
    struct workers *workers = worker->workers;
    pthread_mutex_lock(&workers->lock);
    worker->busy = false;
    if (--workers->running == 0)
        pthread_cond_signal(&workers->done);
    pthread_mutex_unlock(&workers->lock);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct workers *workers = worker->workers;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    (void)ctrt_set_streams_ordered(true);
    for (;;) {
        pthread_mutex_lock(&workers->lock);
        while (!worker->busy && !workers->stop)
            pthread_cond_wait(&workers->work, &workers->lock);
        const bool stop = workers->stop;
        pthread_mutex_unlock(&workers->lock);
        if (stop)
            return NULL;
        pthread_cleanup_push(task_end, worker);
        task_result(worker, CTRT_ERR_STATE, "the function ended its thread");
        worker->left = true;
        task_run(worker);
        worker->left = false;
        pthread_cleanup_pop(1);
    }
}

/* ---- creation ---- */

/* Creates the thread if it does not exist. If that is not possible, the calling thread does its tasks. No task runs. */
static void worker_start(struct worker *worker)
{
    if (worker->started && !worker->left)
        return;
    if (worker->started)
        pthread_join(worker->thread, NULL);
    worker->left = false;
    worker->started = pthread_create(&worker->thread, NULL, worker_main, worker) == 0;
}

ctrt_status workers_new(struct workers **out, const struct data_parallel *dp)
{
    const int n = dp->n;
    const size_t bytes = sizeof(struct workers) + (size_t)n * sizeof(struct worker);
    struct workers *workers = calloc(1, bytes);
    CTRT_TRY(strategy_allocated(workers, bytes));
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->work, NULL);
    pthread_cond_init(&workers->done, NULL);
    workers->process = getpid();
    workers->dp = dp;
    workers->n = n;
    for (int i = 0; i < n; i++) {
        struct worker *worker = &workers->list[i];
        worker->workers = workers;
        worker->index = i;
        worker->device = dp->devices[i];
        if (i > 0)
            worker_start(worker);
    }
    *out = workers;
    return CTRT_OK;
}

void workers_free(struct workers *workers)
{
    int cancel;
    if (workers == NULL)
        return;
    if (workers->process != getpid())
        return;                             /* a child process has neither the threads nor the state of the lock */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&workers->lock);
    workers->stop = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (int i = 0; i < workers->n; i++)
        if (workers->list[i].started)
            pthread_join(workers->list[i].thread, NULL);
    pthread_setcancelstate(cancel, NULL);
    pthread_mutex_destroy(&workers->lock);
    pthread_cond_destroy(&workers->work);
    pthread_cond_destroy(&workers->done);
    free(workers);
}

/* ---- running ---- */

static ctrt_status tasks_prepare(struct workers *workers, int count)
{
    if (workers->process != getpid())
        return ctrt_fail(CTRT_ERR_FORKED, "the process was forked after the strategy was created; create it in the "
                         "child");
    for (int i = 1; i < count; i++)
        worker_start(&workers->list[i]);
    return CTRT_OK;
}

static ctrt_status tasks_status(const struct workers *workers, int count)
{
    const struct worker *failed = NULL;
    for (int i = 0; i < count; i++) {
        const struct worker *worker = &workers->list[i];
        const bool cause = worker->status != CTRT_ERR_COMM;
        if (worker->status != CTRT_OK && (failed == NULL || (cause && failed->status == CTRT_ERR_COMM)))
            failed = worker;
    }
    if (failed == NULL)
        return CTRT_OK;
    return ctrt_fail(failed->status, "replica %d (%s): %s", failed->index, ctrt_device_name(failed->device),
                     failed->message);
}

ctrt_status workers_require(struct workers *workers, int count)
{
    for (int i = 1; i < count && workers->process == getpid(); i++) {
        worker_start(&workers->list[i]);
        if (!workers->list[i].started)
            return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "cannot create a thread for replica %d (%s)", i,
                             ctrt_device_name(workers->list[i].device));
    }
    return CTRT_OK;
}

/* Runs the task in the calling thread, where only the current device differs. */
static void task_run_here(struct worker *worker)
{
    const bool grad = ctrt_grad_enabled();
    ctrt_status status = ctrt_device_push(worker->device);
    const bool pushed = status == CTRT_OK;
    if (pushed)
        status = worker->workers->function(worker->workers->user, worker->index);
    task_result(worker, status, ctrt_error_message());
    ctrt_set_grad_enabled(grad);
    if (pushed)
        (void)ctrt_device_pop();
}

ctrt_status workers_run(struct workers *workers, ctrt_status (*function)(void *user, int index), void *user, int count)
{
    int cancel;
    if (count == 1)
        return ctrt_context(function(user, 0), "replica 0 (%s)", ctrt_device_name(workers->list[0].device));
    CTRT_TRY(tasks_prepare(workers, count));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&workers->lock);
    workers->function = function;
    workers->user = user;
    workers->grad = ctrt_grad_enabled();
    workers->autocast = ctrt_autocast_state();
    workers->label = ctrt_memory_label();
    workers->running = 0;
    for (int i = 1; i < count; i++)
        if (workers->list[i].started) {
            workers->list[i].busy = true;
            workers->running++;
        }
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);

    for (int i = 0; i < count; i++)
        if (!workers->list[i].started)
            task_run_here(&workers->list[i]);

    pthread_mutex_lock(&workers->lock);
    while (workers->running > 0)
        pthread_cond_wait(&workers->done, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
    pthread_setcancelstate(cancel, NULL);
    return tasks_status(workers, count);
}
