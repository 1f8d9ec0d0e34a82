/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/apply.c: runs one function per device, in parallel threads. */
#include <pthread.h>

#include "base/base.h"
#include "ctrt/amp.h"
#include "memory/label.h"
#include "parallel/replicas/devices.h"
#include "stream/stream.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

struct apply {                              /* state of the calling thread that the functions inherit */
    ctrt_parallel_function function;
    void *user;
    bool grad_disabled, order_auto;
    const char *label;
    const ctrt_autocast_settings *autocast;
    struct scope *scope;
};

struct apply_task {
    const struct apply *apply;
    int index;
    ctrt_device *device;
    ctrt_stream *stream;                    /* the calling thread's current stream of the device; owned */
    pthread_t thread;
    bool started;                           /* `thread` exists */
    bool ended;                             /* the function ended its thread */
    ctrt_status status;
    char *message;                          /* owned; NULL: none */
};

static void task_finish(struct apply_task *task, ctrt_status status)
{
    task->status = status;
    if (status != CTRT_OK)
        task->message = host_strdup(ctrt_error_message());
}

/* The state needs no restoring, because the thread ends. A scope that the function began and did not end is dropped
 * when the thread exits, before pthread_join returns. */
static void *task_thread(void *argument)
{
    struct apply_task *task = argument;
    const struct apply *apply = task->apply;
    struct memory_label label;
    thread_register();
    thread_state.grad_disabled = apply->grad_disabled;
    thread_state.order_auto = apply->order_auto;
    thread_state.scope = apply->scope;
    if (*apply->label != '\0')
        label_enter(&label, "", apply->label);
    ctrt_status status = ctrt_stream_set_current(task->stream);
    if (status == CTRT_OK)
        status = ctrt_device_set_current(task->device);
    if (status == CTRT_OK && apply->autocast != NULL)
        status = ctrt_autocast_push_state(apply->autocast);     /* ends with the thread */
    if (status == CTRT_OK) {
        task->status = CTRT_ERR_STATE, task->ended = true;      /* in case the function ends its thread */
        status = apply->function(apply->user, task->index);
        task->ended = false;
    }
    task_finish(task, status);
    if (*apply->label != '\0')
        label_leave(&label);
    return NULL;
}

/* Runs the function in the calling thread, where only the current device differs. */
static void apply_task_run_here(struct apply_task *task)
{
    const bool was = thread_state.grad_disabled;
    ctrt_status status = ctrt_device_push(task->device);
    const bool pushed = status == CTRT_OK;
    if (pushed)
        status = task->apply->function(task->apply->user, task->index);
    task_finish(task, status);
    thread_state.grad_disabled = was;
    if (pushed)
        (void)ctrt_device_pop();
}

static void tasks_run(struct apply_task *tasks, int n)
{
    CANCEL_DISABLED;                        /* the threads use this stack frame */
    for (int i = 0; i < n && n > 1; i++)
        tasks[i].started = pthread_create(&tasks[i].thread, NULL, task_thread, &tasks[i]) == 0;
    for (int i = 0; i < n; i++)
        if (tasks[i].started)
            pthread_join(tasks[i].thread, NULL);
    /* Last, because a function in this thread can end the scope that the threads use. */
    for (int i = 0; i < n; i++)
        if (!tasks[i].started)
            apply_task_run_here(&tasks[i]);
}

/* Returns the error of the first task that failed. */
static ctrt_status apply_tasks_status(const struct apply_task *tasks, int n)
{
    for (int i = 0; i < n; i++)
        if (tasks[i].status != CTRT_OK)
            return ctrt_fail(tasks[i].status, "replica %d (%s): %s", i, ctrt_device_name(tasks[i].device),
                             tasks[i].ended ? "the function ended its thread"
                             : tasks[i].message != NULL ? tasks[i].message
                                                        : ctrt_status_string(tasks[i].status));
    return CTRT_OK;
}

ctrt_status ctrt_parallel_apply(ctrt_parallel_function function, void *user, ctrt_device *const *devices, int n)
{
    NULL_CHECK("parallel_apply", function);
    CTRT_TRY(devices_check("parallel_apply", devices, n));
    const struct apply apply = {
        .function = function, .user = user, .grad_disabled = thread_state.grad_disabled,
        .order_auto = thread_state.order_auto, .label = label_here(), .scope = thread_state.scope,
        .autocast = ctrt_autocast_state(),
    };
    HOST_AUTO struct apply_task *tasks = host_calloc((size_t)n * sizeof *tasks);
    ALLOC_CHECK(tasks, (size_t)n * sizeof *tasks, "parallel_apply");
    for (int i = 0; i < n; i++)
        tasks[i] = (struct apply_task){ .apply = &apply, .index = i, .device = devices[i],
                                        .stream = ctrt_stream_retain(stream_here(devices[i])) };
    tasks_run(tasks, n);
    ctrt_status status = apply_tasks_status(tasks, n);
    for (int i = 0; i < n; i++) {
        ctrt_stream_release(&tasks[i].stream);
        host_free(tasks[i].message);
    }
    return status;
}

/* ---- modules ---- */

struct apply_forward {
    ctrt_tensor **results;
    ctrt_module *const *modules;
    ctrt_tensor *const *inputs;
};

static ctrt_status forward_one(void *user, int index)
{
    const struct apply_forward *f = user;
    return ctrt_forward(&f->results[index], f->modules[index], f->inputs[index]);
}

ctrt_status ctrt_parallel_forward(ctrt_tensor **outputs, ctrt_module *const *modules, ctrt_tensor *const *inputs,
                                  ctrt_device *const *devices, int n)
{
    NULL_CHECKS("parallel_forward", outputs, modules, inputs);
    CTRT_TRY(devices_check("parallel_forward", devices, n));
    HOST_AUTO ctrt_tensor **results = host_calloc((size_t)n * sizeof *results);
    ALLOC_CHECK(results, (size_t)n * sizeof *results, "parallel_forward");
    struct apply_forward f = { results, modules, inputs };
    ctrt_status status = ctrt_parallel_apply(forward_one, &f, devices, n);
    for (int i = 0; i < n; i++) {
        if (status == CTRT_OK)
            tensor_move(&outputs[i], results[i]);
        else
            tensor_release(results[i]);
    }
    return status;
}
