/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/reduce.c: adds the gradients of all ranks up in buckets, during the backward pass.
 *
 * The bucket contains the sum of a parameter's new gradient and of its gradient from before the pass. The latter comes
 * from passes without reduction, or from the last reduction. In that case it is equal on all ranks, and the reduction
 * does not change it, because the weights of all ranks add up to 1. */
#include <stdlib.h>
#include <string.h>

#include "distributed.h"

#define FIRST_BUCKET ((uint64_t)1 << 20)    /* small, so that the first reduction begins early */

/* ---- buckets ---- */

static void memory_release(struct distributed *d)
{
    for (size_t b = 0; d->buckets != NULL && b < d->bucket_count; b++) {
        ctrt_work_release(&d->buckets[b].work);
        ctrt_tensor_release(&d->buckets[b].flat);
    }
    for (size_t s = 0; d->slots != NULL && s < d->slot_count; s++)
        ctrt_tensor_release(&d->slots[s].view);
}

static void buckets_free(struct distributed *d)
{
    memory_release(d);
    for (size_t b = 0; d->buckets != NULL && b < d->bucket_count; b++) {
        ctrt_tensor_release(&d->buckets[b].shared);
        ctrt_tensor_release(&d->buckets[b].sent);
        free(d->buckets[b].gradients);
    }
    free(d->buckets);
    free(d->order);
    d->buckets = NULL;
    d->order = NULL;
    d->bucket_count = 0;
}

/* Decides where in the bucket's memory the gradients are. */
static void bucket_layout(struct distributed *d, size_t b)
{
    struct distributed_bucket *bucket = &d->buckets[b];
    bucket->dtype = ctrt_tensor_dtype(d->slots[d->order[bucket->first]].tensor);
    for (size_t k = 0; k < bucket->count; k++) {
        struct distributed_slot *slot = &d->slots[d->order[bucket->first + k]];
        slot->offset = bucket->numel;
        slot->bucket = b;
        bucket->numel += ctrt_tensor_numel(slot->tensor);
    }
}

static ctrt_status buckets_fill(struct distributed *d, struct bucket_item *items, size_t *ends, const size_t *order)
{
    const size_t n = d->slot_count;
    for (size_t s = 0; s < n; s++) {
        const ctrt_dtype dtype = ctrt_tensor_dtype(d->slots[s].tensor);
        items[s].bytes = (uint64_t)ctrt_tensor_numel(d->slots[s].tensor) * ctrt_dtype_size(dtype);
        items[s].dtype = (int)dtype;
    }
    const long count = buckets_assign(d->order, ends, items, n, order, FIRST_BUCKET, d->bucket_bytes);
    CTRT_TRY(strategy_allocated(count >= 0 ? d->order : NULL, 4 * n * sizeof *d->order));
    for (size_t b = 0; b < (size_t)count; b++) {
        struct distributed_bucket *bucket = &d->buckets[b];
        bucket->first = b > 0 ? ends[b - 1] : 0;
        bucket->count = ends[b] - bucket->first;
        d->bucket_count = b + 1;
        bucket_layout(d, b);
        CTRT_TRY(ALLOCATE(bucket->gradients, bucket->count));
    }
    return CTRT_OK;
}

/* Assigns the slots to buckets, in the given order or, NULL, by their order in the module. */
static ctrt_status buckets_make(struct distributed *d, const size_t *order)
{
    struct bucket_item *items = NULL;
    size_t *ends = NULL;
    buckets_free(d);
    d->layout++;
    ctrt_status status = ALLOCATE(d->order, d->slot_count);
    if (status == CTRT_OK)
        status = ALLOCATE(d->buckets, d->slot_count);
    if (status == CTRT_OK)
        status = ALLOCATE(items, d->slot_count);
    if (status == CTRT_OK)
        status = ALLOCATE(ends, d->slot_count);
    if (status == CTRT_OK)
        status = buckets_fill(d, items, ends, order);
    free(items);
    free(ends);
    return status;
}

ctrt_status distributed_reduce_memory(struct distributed *d)
{
    ctrt_status status = CTRT_OK;
    for (size_t b = 0; b < d->bucket_count; b++) {
        struct distributed_bucket *bucket = &d->buckets[b];
        const ctrt_ints shape = CTRT_SHAPE(bucket->numel);
        const ctrt_status result = ctrt_comm_empty(&bucket->shared, d->r.comm, shape, bucket->dtype);
        status = status == CTRT_OK ? result : status;
        /* The call is collective, so this rank makes it for the ranks that share memory. With a stream it keeps no
         * tensor, which would hold memory of the device between the passes. */
        if (d->stream != NULL)
            ctrt_tensor_release(&bucket->shared);
    }
    return status;
}

/* Parameters that had no gradient in rank 0's pass come last. */
ctrt_status distributed_reduce_rebuild(struct distributed *d)
{
    if (d->order_state != ORDER_RECORDED)
        return CTRT_OK;
    CTRT_TRY(exchange_order(&d->r, d->recorded, d->slot_count, d->recorded, d->recorded_count));
    CTRT_TRY(buckets_make(d, d->recorded));
    CTRT_TRY(distributed_reduce_memory(d));
    STATE_SET(MACHINE_ORDER, d->order_state, ORDER_AGREED);
    return CTRT_OK;
}

/* ---- reductions ---- */

ctrt_status distributed_reduce_begin(struct distributed *d, enum pass_kind kind)
{
    ranks_pass_begin(&d->r, kind);
    d->next = 0;
    if (d->order_state == ORDER_OF_MODULE)
        d->recorded_count = 0;
    memory_release(d);
    for (size_t b = 0; b < d->bucket_count; b++) {
        d->buckets[b].waiting = d->buckets[b].count;
        STATE_SET(MACHINE_BUCKET, d->buckets[b].state, BUCKET_FILLING);
    }
    return capture_join(d);
}

void base_move(struct distributed *d, bool back)
{
    for (size_t i = 0; i < d->r.parameters; i++) {
        ctrt_tensor **from = back ? &d->base[i] : &d->r.before[i], **to = back ? &d->r.before[i] : &d->base[i];
        if (*from == NULL)
            continue;
        ctrt_tensor_assign(to, *from);
        ctrt_tensor_release(from);
    }
}

ctrt_status distributed_reduce_weights(struct distributed *d)
{
    struct weights *w = &d->weights;
    int joining = 0;
    if (d->group_open && !weights_known(w))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the last step of a captured group (ctrt_parallel_no_sync) whose loss "
                         "is no mean has no rows on this rank");
    if (weights_known(w) && weights_kind(w) != CTRT_LOSS_MEAN && !w->begun && !d->group_open)
        base_move(d, false);
    if (d->captured)
        CTRT_TRY(capture_weights(d));
    else if (d->survive.on && ctrt_comm_joining(&joining, d->r.comm) != CTRT_OK)
        joining = 0;                        /* the store does not answer; the watching thread reports that */
    CTRT_TRY(weights_reduce(w, d->r.comm, joining));
    return d->order_state != ORDER_OF_MODULE || d->captured ? CTRT_OK : weights_verify(w);
}

/* Calls the hook for the next stage. It has finished the bucket if it returns without work. */
static ctrt_status hook_call(struct distributed *d, struct distributed_bucket *bucket)
{
    for (size_t k = 0; k < bucket->count; k++)
        bucket->gradients[k] = d->slots[d->order[bucket->first + k]].view;
    const ctrt_gradient_bucket view = {
        .size = sizeof view, .flat = bucket->flat, .gradients = bucket->gradients, .count = (int32_t)bucket->count,
        .index = (int32_t)(bucket - d->buckets), .last = bucket == d->buckets + d->bucket_count - 1,
        .layout = d->layout, .comm = d->r.comm,
    };
    CTRT_TRY(ctrt_autocast_push_state(NULL));           /* the hook computes in the dtypes of the gradients */
    ctrt_status status = d->hook(&bucket->work, &view, bucket->stage, d->hook_user);
    (void)ctrt_autocast_pop();
    CTRT_TRY(ctrt_context(status, "communication hook %s, stage %d", d->hook_name, bucket->stage));
    bucket->stage++;
    if (bucket->work == NULL)
        STATE_SET(MACHINE_BUCKET, bucket->state, BUCKET_REDUCED);
    return CTRT_OK;
}

static bool hook_used(const struct distributed *d)
{
    return d->hook != NULL && d->r.size > 1;
}

static ctrt_status bucket_launch(struct distributed *d, struct distributed_bucket *bucket)
{
    CTRT_TRY(weights_apply(&d->weights, bucket->flat, d->r.size));
    STATE_SET(MACHINE_BUCKET, bucket->state, BUCKET_REDUCING);
    bucket->stage = 0;
    if (hook_used(d))
        return hook_call(d, bucket);
    return ctrt_comm_all_reduce(&bucket->work, d->r.comm, bucket->flat, CTRT_COMM_SUM);
}

/* The memory that processes share, unless gradients of an earlier pass are still in it. */
static ctrt_status bucket_memory(struct distributed *d, struct distributed_bucket *bucket)
{
    if (bucket->flat != NULL)
        return CTRT_OK;
    if (bucket->shared == NULL || ctrt_tensor_storage_use_count(bucket->shared) > 1)
        return ctrt_empty(&bucket->flat, CTRT_SHAPE(bucket->numel), bucket->dtype, d->r.device);
    bucket->flat = ctrt_tensor_retain(bucket->shared);
    return CTRT_OK;
}

static ctrt_status slot_view(struct distributed *d, struct distributed_slot *slot)
{
    struct distributed_bucket *bucket = &d->buckets[slot->bucket];
    const ctrt_tensor *like = slot->tensor;
    CTRT_TRY(bucket_memory(d, bucket));
    CTRT_TRY(ctrt_narrow(&slot->view, bucket->flat, 0, slot->offset, ctrt_tensor_numel(like)));
    return ctrt_view_as(&slot->view, slot->view, ctrt_ints_of(ctrt_tensor_shape(like), ctrt_tensor_ndim(like)));
}

static ctrt_status slot_fill(struct distributed *d, struct distributed_slot *slot, ctrt_tensor *grad)
{
    struct distributed_bucket *bucket = &d->buckets[slot->bucket];
    ctrt_tensor *before = d->r.kind == STEP ? d->r.before[slot->parameter] : NULL;
    CTRT_TRY(slot_view(d, slot));
    if (grad != NULL || before != NULL)
        CTRT_TRY(ctrt_copy_(slot->view, grad != NULL ? grad : before));
    else
        CTRT_TRY(ctrt_zero_(slot->view));
    if (grad != NULL && before != NULL)
        CTRT_TRY(ctrt_add_(slot->view, before));
    if (--bucket->waiting == 0)
        STATE_SET(MACHINE_BUCKET, bucket->state, BUCKET_READY);
    while (d->next < d->bucket_count && d->buckets[d->next].state == BUCKET_READY)
        CTRT_TRY(bucket_launch(d, &d->buckets[d->next++]));
    return CTRT_OK;
}

/* Makes a call while d->stream is the current stream. */
#define ON_STREAM(d, status, call)                                                      \
    do {                                                                                \
        if ((d)->stream != NULL)                                                        \
            CTRT_TRY(ctrt_stream_push((d)->stream));                                    \
        status = (call);                                                                \
        if ((d)->stream != NULL)                                                        \
            (void)ctrt_stream_pop();                                                    \
    } while (0)

/* Copies the gradient (NULL: none) and that from before the step to the bucket. Reduces buckets whose turn it is. The
 * copies have a stream of their own, so that the backward pass goes on. */
static ctrt_status slot_ready(struct distributed *d, struct distributed_slot *slot, ctrt_tensor *grad)
{
    ctrt_status status;
    ON_STREAM(d, status, slot_fill(d, slot, grad));
    return status;
}

/* Waits for the works of all buckets and runs the next stages of their hooks, until no work is left. All ranks do this
 * in the same order. */
static ctrt_status buckets_wait(struct distributed *d)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t b = 0; b < d->bucket_count; b++) {
            struct distributed_bucket *bucket = &d->buckets[b];
            if (bucket->state == BUCKET_REDUCED)
                continue;
            if (bucket->work != NULL)
                CTRT_TRY(ctrt_work_wait(bucket->work));
            ctrt_work_release(&bucket->work);
            if (hook_used(d))
                CTRT_TRY(hook_call(d, bucket));
            else
                STATE_SET(MACHINE_BUCKET, bucket->state, BUCKET_REDUCED);
            more = more || bucket->state != BUCKET_REDUCED;
        }
    }
    return CTRT_OK;
}

static void reduce_end(struct distributed *d)
{
    for (size_t s = 0; s < d->slot_count; s++)
        d->slots[s].used = false;
    ranks_pass_end(&d->r);
    if (d->captured)
        capture_end(d);
    else
        weights_reset(&d->weights);
    memory_release(d);
    weights_end(&d->weights);
}

/* The end of a pass whose gradients are reduced. */
static ctrt_status reduced(struct distributed *d)
{
    if (d->captured)
        CTRT_TRY(capture_reduced(d));
    if (d->order_state == ORDER_OF_MODULE)
        STATE_SET(MACHINE_ORDER, d->order_state, ORDER_RECORDED);
    reduce_end(d);
    return CTRT_OK;
}

/* ---- the end of a backward pass of the program ---- */

static ctrt_status forward_finish(struct distributed *d)
{
    CTRT_TRY(buckets_wait(d));
    CTRT_TRY(ranks_buffers(&d->r));
    for (size_t s = 0; s < d->slot_count; s++) {
        d->slots[s].used_globally = true;
        CTRT_TRY(ctrt_copy_(ctrt_tensor_grad(d->slots[s].tensor), d->slots[s].view));
    }
    return reduced(d);
}

/* ---- hooks ---- */

static ctrt_status gradient_arrived(struct distributed *d, struct distributed_slot *slot)
{
    CTRT_TRY(ranks_gradient_arrives(&d->r, slot->parameter, slot->view != NULL, "call ctrt_parallel_no_sync to add up "
                                    "gradients on this rank"));
    if (d->captured != ctrt_capture_running(d->r.device))
        return ctrt_fail(CTRT_ERR_STATE, "the forward pass %s captured, but the backward pass %s; capture both",
                         d->captured ? "was" : "was not", d->captured ? "is not" : "is");
    if (d->order_state == ORDER_OF_MODULE)
        d->recorded[d->recorded_count++] = (size_t)(slot - d->slots);
    ctrt_status status = slot_ready(d, slot, ctrt_tensor_grad(slot->tensor));
    if (d->r.kind != PROGRAM)
        return status;
    if (status == CTRT_OK && d->next == d->bucket_count)
        status = forward_finish(d);
    return distributed_fail_all(d, status);                 /* nobody else would, as the end of a step does */
}

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf)
{
    struct distributed_slot *slot = user;
    struct distributed *d = slot->d;
    ctrt_status status;
    (void)leaf;
    if (d->r.no_sync)
        slot->used = true;
    if (d->r.no_sync || (d->r.kind == UNHOOKED && d->r.pass != PASS_IDLE))
        return CTRT_OK;
    slot->used = true;
    const bool was = ctrt_set_streams_ordered(true);
    ctrt_no_grad status = gradient_arrived(d, slot);
    ctrt_set_streams_ordered(was);
    return ctrt_context(status, "distributed");
}

/* ---- the end of a step ---- */

/* Makes the sum the gradient, in the tensor from before the step if there is one. d->r.before receives it. */
static ctrt_status slot_finish(struct distributed *d, struct distributed_slot *slot, bool used)
{
    ctrt_tensor **target = &d->r.before[slot->parameter], **base = &d->base[slot->parameter];
    if (*base != NULL) {
        if (used)
            CTRT_TRY(ctrt_add_(*base, slot->view));
        ctrt_tensor_assign(target, *base);
        ctrt_tensor_release(base);
        return CTRT_OK;
    }
    if (!used)
        return CTRT_OK;
    if (*target != NULL && !weights_known(&d->weights)) {       /* the sum may or may not contain *target */
        CTRT_AUTO(tensor) keeps = NULL;
        CTRT_TRY(weights_keeps(&keeps, &d->weights));
        CTRT_TRY(ctrt_mul_(*target, keeps));
        return ctrt_add_(*target, slot->view);
    }
    if (*target != NULL)
        return ctrt_copy_(*target, slot->view);
    *target = ctrt_tensor_retain(slot->view);
    return CTRT_OK;
}

/* Adds up the loss, times its number, and, for each slot, the number of ranks that use it. */
static ctrt_status stats_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss)
{
    CTRT_AUTO(tensor) recorded = NULL;
    bool complete = true;
    d->stats[0] = 0;
    for (size_t s = 0; s < d->slot_count; s++) {
        d->stats[s + 1] = d->slots[s].used;
        complete = complete && d->slots[s].used;
    }
    CTRT_TRY(weights_find(&d->weights));                        /* the totals are there also without buckets */
    if (d->captured)
        CTRT_TRY(capture_stats(d, &recorded, d->stats));
    /* A parameter that this rank uses is reduced in any case. If it uses all, it does not need the counts. */
    return weights_stats(mean, &d->weights, d->r.comm, loss, d->stats, d->slot_count + 1, recorded,
                         !complete && !d->captured);
}

/* Makes the program's stream wait for the loss. */
static ctrt_status stream_join(struct distributed *d)
{
    CTRT_AUTO(stream) current = NULL;
    CTRT_TRY(ctrt_stream_current(&current, d->r.device));
    return ctrt_stream_wait(current, d->stream);
}

ctrt_status distributed_reduce_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss)
{
    ctrt_status status = CTRT_OK;
    for (size_t k = 0; k < d->slot_count; k++) {
        struct distributed_slot *slot = &d->slots[d->order[k]];
        if (slot->view == NULL)
            CTRT_TRY(slot_ready(d, slot, NULL));
    }
    ON_STREAM(d, status, stats_finish(d, mean, loss));      /* beside the last bucket's reduction */
    CTRT_TRY(status);
    CTRT_TRY(buckets_wait(d));
    CTRT_TRY(ranks_buffers(&d->r));
    if (d->stream != NULL)
        CTRT_TRY(stream_join(d));
    if (d->survive.on && !d->captured)
        CTRT_TRY(survive_settle(d, *mean));
    for (size_t s = 0; s < d->slot_count; s++) {
        d->slots[s].used_globally = d->stats[s + 1] != 0;
        CTRT_TRY(slot_finish(d, &d->slots[s], d->slots[s].used_globally));
    }
    CTRT_TRY(ctrt_gradients_restore(d->r.module, d->r.before));
    CTRT_TRY(weights_clear(&d->weights));
    return reduced(d);
}

/* ---- failures ---- */

void distributed_reduce_cancel(struct distributed *d)
{
    for (size_t b = 0; b < d->bucket_count; b++) {
        if (d->buckets[b].work != NULL && !d->captured)
            (void)ctrt_work_wait(d->buckets[b].work);
        ctrt_work_release(&d->buckets[b].work);
    }
    reduce_end(d);
}

ctrt_status distributed_reduce_check(const struct distributed *d)
{
    struct missing missing = { .count = 0 };
    if (!missing_possible(&d->r))
        return CTRT_OK;
    for (size_t s = 0; s < d->slot_count; s++)
        if (d->slots[s].view == NULL)
            missing_add(&missing, &d->r, d->slots[s].parameter);
    return missing_check(&missing);
}

/* ---- creation ---- */

ctrt_status distributed_reduce_new(struct distributed *d)
{
    if (d->slots != NULL) {
        STATE_SET(MACHINE_ORDER, d->order_state, ORDER_OF_MODULE);
        return buckets_make(d, NULL);
    }
    CTRT_TRY(ALLOCATE(d->slots, d->r.parameters + 1));
    CTRT_TRY(ALLOCATE(d->recorded, d->r.parameters));
    CTRT_TRY(ALLOCATE(d->base, d->r.parameters + 1));
    CTRT_TRY(weights_new(&d->weights, d->r.device));
    for (size_t i = 0; i < d->r.parameters; i++)
        if (ctrt_tensor_requires_grad(d->r.tensors[i]))
            d->slots[d->slot_count++] = (struct distributed_slot){
                .d = d, .tensor = ctrt_tensor_retain(d->r.tensors[i]), .parameter = i,
            };
    if (d->slot_count == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the module has no parameter that requires grad, so there is "
                         "nothing to reduce");
    CTRT_TRY(ALLOCATE(d->stats, d->slot_count + 1));
    CTRT_TRY(ranks_stream(&d->stream, &d->r));
    for (size_t s = 0; s < d->slot_count; s++) {
        struct distributed_slot *slot = &d->slots[s];
        CTRT_TRY(ctrt_tensor_add_accumulate_hook(slot->tensor, on_gradient, slot, &slot->hook));
    }
    return buckets_make(d, NULL);
}

void distributed_reduce_free(struct distributed *d)
{
    buckets_free(d);
    for (size_t s = 0; d->slots != NULL && s < d->slot_count; s++) {
        if (d->slots[s].hook != 0)
            (void)ctrt_tensor_remove_hook(d->slots[s].tensor, d->slots[s].hook);
        ctrt_tensor_release(&d->slots[s].tensor);
        ctrt_tensor_release(&d->slots[s].before);
        ctrt_tensor_release(&d->slots[s].replayed);
    }
    ctrt_tensors_release(d->base, d->r.parameters);
    free(d->base);
    weights_free(&d->weights);
    ctrt_stream_release(&d->stream);
    free(d->slots);
    free(d->recorded);
    free(d->stats);
}
