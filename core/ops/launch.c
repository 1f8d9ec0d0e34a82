/* SPDX-License-Identifier: Apache-2.0 */
/* ops/launch.c: enqueues work on the thread's current stream. */
#include "ops/launch.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/backtrace.h"
#include "base/slot.h"
#include "memory/label.h"

/* ---- records of enqueued work ---- */

static pthread_once_t backtrace_once = PTHREAD_ONCE_INIT;

static __attribute__((noinline)) void note_site(ctrt_stream *stream, const char *name, const char *label)
{
    const struct backtrace *backtrace = NULL;
    if (stream_order_mode == ORDER_CHECK || atomic_load_explicit(&backtrace_wanted, memory_order_relaxed)) {
        pthread_once(&backtrace_once, backtrace_prepare);
        backtrace = backtrace_here();
    }
    stream_note_site(stream, name, label, backtrace);
}

/* Counts work that was enqueued and returns its timepoint. The caller holds the stream's lock. */
static inline timepoint count_work(ctrt_stream *stream, const char *name)
{
    const timepoint point = stream_count_work(stream);
    stream->op = name;
    const char *label = label_here();
    if (unlikely(label != stream->label || stream->works != NULL
                 || atomic_load_explicit(&backtrace_wanted, memory_order_relaxed)))
        note_site(stream, name, label);
    return point;
}

static ctrt_status after_launch(ctrt_status status, ctrt_stream *stream, const char *name)
{
    if (likely(status == CTRT_OK) && unlikely(stream_launch_blocking) && !stream_captured(stream))
        status = stream_synchronize(stream);
    return likely(status == CTRT_OK) ? CTRT_OK : ctrt_context(status, "%s", name);
}

/* ---- kernels ---- */

/* Replaces the views of a call by copies with the current addresses, for memory policies that move memory. The caller
 * frees *copies. */
static ctrt_status views_moved(ctrt_view **copies, ctrt_call *call, void *const *addresses)
{
    const uint32_t count = call->n_inputs + call->n_outputs;
    const size_t bytes = count * (sizeof(ctrt_view) + sizeof(ctrt_view *));
    ctrt_view *views = host_alloc(bytes);
    ALLOC_CHECK(views, bytes, "operands");
    const ctrt_view **pointers = (const ctrt_view **)(views + count);
    for (uint32_t i = 0; i < count; i++) {
        const ctrt_view *view = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        pointers[i] = NULL;
        if (view == NULL)
            continue;
        views[i] = *view;
        views[i].data = addresses[i];
        pointers[i] = &views[i];
        /* An operand that is input and output stays one operand. */
        for (uint32_t j = 0; i >= call->n_inputs && j < call->n_inputs; j++)
            if (call->inputs[j] == view)
                pointers[i] = &views[j];
    }
    call->inputs = pointers;
    call->outputs = pointers + call->n_inputs;
    *copies = views;
    return CTRT_OK;
}

#define FEW 16

static ctrt_status enqueue_kernel(ctrt_call *call, ctrt_device *device)
{
    const ctrt_kernel *kernel = call->kernel;
    CTRT_TRY(device_check(device));
    ctrt_stream *stream = stream_here(device);
    const ctrt_view *const *inputs = call->inputs, *const *outputs = call->outputs;
    const uint32_t n_in = call->n_inputs, count = n_in + call->n_outputs;
    void *few[FEW], **addresses = few;
    const bool moves = device->memory->moves;
    if (unlikely(moves && count > FEW)) {
        addresses = host_alloc(count * sizeof *addresses);
        ALLOC_CHECK(addresses, count * sizeof *addresses, "operands");
    }
    ctrt_status status = CTRT_OK;
    timepoint point = 0;
    uint64_t noted = 0;                     /* bit i: the access to operand i is recorded; only for the first 64 */
    uint32_t ready = 0;
    ctrt_view *copies = NULL;
    for (; ready < count && status == CTRT_OK; ready++) {
        const bool writes = ready >= n_in;
        const ctrt_view *view = writes ? outputs[ready - n_in] : inputs[ready];
        if (view != NULL && !(view->flags & CTRT_VIEW_HOST_SCALAR))
            status = hazard_before(stream, view, writes, kernel->op, moves ? &addresses[ready] : NULL);
        else if (moves && view != NULL)
            addresses[ready] = view->data;
    }
    if (unlikely(status != CTRT_OK))
        ready--;                            /* hazard_before failed for the last operand, so it needs no hazard_after */
    if (status == CTRT_OK && unlikely(moves))
        status = views_moved(&copies, call, addresses);
    if (likely(status == CTRT_OK)) {
        pthread_mutex_lock(&stream->lock);
        call->queue = stream->queue;
        call->sequence = stream->sequence + 1;
        status = SLOT_CALL(device->type, "run of a kernel", kernel->run(call));
        if (likely(status == CTRT_OK)) {
            point = count_work(stream, kernel->op);
            for (uint32_t i = 0; i < ready && i < 64; i++) {
                const ctrt_view *view = i >= n_in ? outputs[i - n_in] : inputs[i];
                if (view == NULL || (view->flags & CTRT_VIEW_HOST_SCALAR)
                    || hazard_note_alone(stream, view, i >= n_in, point))
                    noted |= (uint64_t)1 << i;
            }
        }
        pthread_mutex_unlock(&stream->lock);
    }
    for (uint32_t i = 0; i < ready; i++) {
        const ctrt_view *view = i >= n_in ? outputs[i - n_in] : inputs[i];
        const bool is_noted = i < 64 && (noted >> i & 1);
        if (likely(is_noted && !moves))
            continue;
        if (view != NULL && !(view->flags & CTRT_VIEW_HOST_SCALAR))
            hazard_after(stream, view, i >= n_in, is_noted ? 0 : point);
    }
    host_free(copies);
    if (unlikely(addresses != few))
        host_free(addresses);
    return likely(status == CTRT_OK && !stream_launch_blocking) ? CTRT_OK : after_launch(status, stream, kernel->op);
}

/* ---- copies and fills ---- */

ctrt_status launch_finish(ctrt_device *device)
{
    return stream_synchronize(stream_here(device));
}

static ctrt_status enqueue_copy(const struct launch_copy *copy, ctrt_device *device)
{
    CTRT_TRY(device_check(device));
    const ctrt_memory_table *memory = device->backend->memory;
    if (!device_asynchronous(device))
        return SLOT_CALL(device->type, "copy",
                         memory->copy(device->handle, NULL, (char *)copy->to->data - copy->before,
                                      (const char *)copy->from->data - copy->before, copy->bytes, copy->kind));
    ctrt_stream *stream = stream_here(device);
    /* A capture cannot record a copy that the host must wait for, because the host memory may be freed before the
     * replay. launch_finish returns the error. */
    if (copy->wait && unlikely(stream_captured(stream)))
        return launch_finish(device);
    void *to = NULL, *from = NULL;
    timepoint point = 0;
    CTRT_TRY(hazard_before(stream, copy->from, false, "copy", &from));
    ctrt_status status = hazard_before(stream, copy->to, true, "copy", &to);
    const bool have_to = status == CTRT_OK;
    if (have_to) {
        to = (char *)to - copy->before;
        from = (char *)from - copy->before;
        pthread_mutex_lock(&stream->lock);
        if (copy->from_device != NULL)
            status = SLOT_CALL(device->type, "copy_peer",
                               memory->copy_peer(device->handle, to, copy->from_device->handle, from, copy->bytes,
                                                 stream->queue));
        else
            status = SLOT_CALL(device->type, "copy",
                               memory->copy(device->handle, stream->queue, to, from, copy->bytes, copy->kind));
        if (likely(status == CTRT_OK))
            point = count_work(stream, "copy");
        pthread_mutex_unlock(&stream->lock);
    }
    hazard_after(stream, copy->from, false, point);
    if (have_to)
        hazard_after(stream, copy->to, true, point);
    if (unlikely(status != CTRT_OK || stream_launch_blocking))
        status = after_launch(status, stream, "copy");
    return status == CTRT_OK && copy->wait ? launch_finish(device) : status;
}

static ctrt_status enqueue_fill(const ctrt_view *view, ctrt_device *device, int byte, size_t bytes)
{
    CTRT_TRY(device_check(device));
    if (!device_asynchronous(device))
        return SLOT_CALL(device->type, "fill",
                         device->backend->memory->fill(device->handle, NULL, view->data, byte, bytes));
    ctrt_stream *stream = stream_here(device);
    void *to;
    timepoint point = 0;
    CTRT_TRY(hazard_before(stream, view, true, "fill", &to));
    pthread_mutex_lock(&stream->lock);
    ctrt_status status = SLOT_CALL(device->type, "fill",
                                   device->backend->memory->fill(device->handle, stream->queue, to, byte, bytes));
    if (likely(status == CTRT_OK))
        point = count_work(stream, "fill");
    pthread_mutex_unlock(&stream->lock);
    hazard_after(stream, view, true, point);
    return likely(status == CTRT_OK && !stream_launch_blocking) ? CTRT_OK : after_launch(status, stream, "fill");
}

const struct launch_ops launch_direct = { .kernel = enqueue_kernel, .copy = enqueue_copy, .fill = enqueue_fill };
