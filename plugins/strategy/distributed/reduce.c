/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/reduce.c: adds the gradients of all ranks up in buckets, during the backward pass.
 *
 * The bucket contains the sum of a parameter's new gradient and of its gradient from before the pass. The latter comes
 * from passes without reduction, or from the last reduction. In that case it is equal on all ranks, and the reduction
 * does not change it, because the weights of all ranks add up to 1. */
#include "distributed.h"

#define FIRST_BUCKET ((uint64_t)1 << 20)    /* small, so that the first reduction begins early */

/* ---- buckets ---- */

static void memory_release(struct distributed *d)
{
    for (size_t b = 0; d->buckets != NULL && b < d->bucket_count; b++) {
        ctrt_work_release(&d->buckets[b].work);
        ctrt_tensor_release(&d->buckets[b].flat);
    }
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        ctrt_tensor_release(&d->slots[s].view);
        d->slots[s].leaf.arrived = false;
    }
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
    bucket->dtype = ctrt_tensor_dtype(d->slots[d->order[bucket->first]].leaf.tensor);
    for (size_t k = 0; k < bucket->count; k++) {
        struct distributed_slot *slot = &d->slots[d->order[bucket->first + k]];
        slot->offset = bucket->numel;
        slot->bucket = b;
        bucket->numel += ctrt_tensor_numel(slot->leaf.tensor);
    }
}

static ctrt_status buckets_fill(struct distributed *d, struct bucket_item *items, size_t *ends, const size_t *order)
{
    const size_t n = d->r.leaf_count;
    for (size_t s = 0; s < n; s++) {
        items[s].bytes = strategy_tensor_bytes(d->slots[s].leaf.tensor);
        items[s].dtype = (int)ctrt_tensor_dtype(d->slots[s].leaf.tensor);
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
    SCRATCH struct bucket_item *items = NULL;
    SCRATCH size_t *ends = NULL;
    buckets_free(d);
    d->layout++;
    CTRT_TRY(ALLOCATE(d->order, d->r.leaf_count));
    CTRT_TRY(ALLOCATE(d->buckets, d->r.leaf_count));
    CTRT_TRY(ALLOCATE(items, d->r.leaf_count));
    CTRT_TRY(ALLOCATE(ends, d->r.leaf_count));
    return buckets_fill(d, items, ends, order);
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
        if (d->r.stream != NULL)
            ctrt_tensor_release(&bucket->shared);
    }
    return status;
}

/* Parameters that had no gradient in rank 0's pass come last. */
ctrt_status distributed_reduce_rebuild(struct distributed *d)
{
    if (d->order_state != ORDER_RECORDED)
        return CTRT_OK;
    CTRT_TRY(exchange_order(&d->r, d->recorded, d->r.leaf_count, d->recorded, d->recorded_count));
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
    struct weights *w = &d->r.weights;
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
    CTRT_TRY(weights_apply(&d->r.weights, bucket->flat, d->r.size));
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

static ctrt_status slot_fill(struct distributed *d, struct distributed_slot *slot, ctrt_tensor *grad)
{
    struct distributed_bucket *bucket = &d->buckets[slot->bucket];
    ctrt_tensor *before = d->r.kind == STEP ? d->r.before[slot->leaf.parameter] : NULL;
    CTRT_TRY(bucket_memory(d, bucket));
    CTRT_TRY(strategy_part(&slot->view, bucket->flat, slot->offset, slot->leaf.tensor));
    slot->leaf.arrived = true;
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

/* Copies the gradient (NULL: none) and that from before the step to the bucket. Reduces buckets whose turn it is. The
 * copies have a stream of their own, so that the backward pass goes on. */
static ctrt_status slot_ready(struct distributed *d, struct distributed_slot *slot, ctrt_tensor *grad)
{
    ctrt_on_stream(d->r.stream) CTRT_TRY(slot_fill(d, slot, grad));
    return CTRT_OK;
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
    leaves_unused(&d->r);
    ranks_pass_end(&d->r);
    if (d->captured)
        capture_end(d);
    else
        weights_reset(&d->r.weights);
    memory_release(d);
    weights_end(&d->r.weights);
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
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        d->slots[s].used_globally = true;
        CTRT_TRY(ctrt_copy_(ctrt_tensor_grad(d->slots[s].leaf.tensor), d->slots[s].view));
    }
    return reduced(d);
}

/* ---- hooks ---- */

ctrt_status distributed_gradient(struct ranks_leaf *leaf, ctrt_tensor *grad)
{
    struct distributed *d = (struct distributed *)leaf->r;
    struct distributed_slot *slot = (struct distributed_slot *)leaf;
    leaf->used = true;
    if (d->r.no_sync)
        return CTRT_OK;
    CTRT_TRY(gradient_arrives(leaf, "call ctrt_parallel_no_sync to add up gradients on this rank"));
    if (d->captured != ctrt_capture_running(d->r.device))
        return ctrt_fail(CTRT_ERR_STATE, "the forward pass %s captured, but the backward pass %s; capture both",
                         d->captured ? "was" : "was not", d->captured ? "is not" : "is");
    if (d->order_state == ORDER_OF_MODULE)
        d->recorded[d->recorded_count++] = (size_t)(slot - d->slots);
    ctrt_status status = slot_ready(d, slot, grad);
    if (d->r.kind != PROGRAM)
        return status;
    if (status == CTRT_OK && d->next == d->bucket_count)
        status = forward_finish(d);
    return ranks_fail_all(&d->r, status);       /* a step does this at its end; a program's backward pass has no end */
}

/* ---- the end of a step ---- */

/* Makes the sum the gradient, in the tensor from before the step if there is one. d->r.before receives it. */
static ctrt_status slot_finish(struct distributed *d, struct distributed_slot *slot, bool used)
{
    ctrt_tensor **target = &d->r.before[slot->leaf.parameter], **base = &d->base[slot->leaf.parameter];
    if (*base != NULL) {
        if (used)
            CTRT_TRY(ctrt_add_(*base, slot->view));
        ctrt_tensor_assign(target, *base);
        ctrt_tensor_release(base);
        return CTRT_OK;
    }
    if (!used)
        return CTRT_OK;
    if (*target != NULL && !weights_known(&d->r.weights)) {       /* the sum may or may not contain *target */
        CTRT_AUTO(tensor) keeps = NULL;
        CTRT_TRY(weights_keeps(&keeps, &d->r.weights));
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
    const bool complete = leaves_stats(&d->r);
    CTRT_TRY(weights_find(&d->r.weights));                        /* the totals are there also without buckets */
    if (d->captured)
        CTRT_TRY(capture_stats(d, &recorded, d->r.stats));
    /* A parameter that this rank uses is reduced in any case. If it uses all, it does not need the counts. */
    return weights_stats(mean, &d->r.weights, d->r.comm, loss, d->r.stats, d->r.leaf_count + 1, recorded,
                         !complete && !d->captured);
}

/* Makes the program's stream wait for the loss. */
static ctrt_status stream_join(struct distributed *d)
{
    CTRT_AUTO(stream) current = NULL;
    CTRT_TRY(ctrt_stream_current(&current, d->r.device));
    return ctrt_stream_wait(current, d->r.stream);
}

ctrt_status distributed_reduce_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss)
{
    for (size_t k = 0; k < d->r.leaf_count; k++) {
        struct distributed_slot *slot = &d->slots[d->order[k]];
        if (!slot->leaf.arrived)
            CTRT_TRY(slot_ready(d, slot, NULL));
    }
    ctrt_on_stream(d->r.stream) CTRT_TRY(stats_finish(d, mean, loss));      /* beside the last bucket's reduction */
    CTRT_TRY(buckets_wait(d));
    CTRT_TRY(ranks_buffers(&d->r));
    if (d->r.stream != NULL)
        CTRT_TRY(stream_join(d));
    if (d->survive.on && !d->captured)
        CTRT_TRY(survive_settle(d, *mean));
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        d->slots[s].used_globally = d->r.stats[s + 1] != 0;
        CTRT_TRY(slot_finish(d, &d->slots[s], d->slots[s].used_globally));
    }
    CTRT_TRY(ctrt_gradients_restore(d->r.module, d->r.before));
    CTRT_TRY(weights_clear(&d->r.weights));
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

/* ---- creation ---- */

ctrt_status distributed_reduce_new(struct distributed *d)
{
    if (d->slots != NULL) {
        STATE_SET(MACHINE_ORDER, d->order_state, ORDER_OF_MODULE);
        return buckets_make(d, NULL);
    }
    CTRT_TRY(ALLOCATE(d->slots, d->r.parameters));
    CTRT_TRY(ALLOCATE(d->recorded, d->r.parameters));
    CTRT_TRY(ALLOCATE(d->base, d->r.parameters));
    for (size_t i = 0; i < d->r.parameters; i++)
        if (ctrt_tensor_requires_grad(d->r.tensors[i]))
            leaf_add(&d->r, &d->slots[d->r.leaf_count].leaf, i);
    if (d->r.leaf_count == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the module has no parameter that requires grad, so there is "
                         "nothing to reduce");
    CTRT_TRY(gradients_new(&d->r));
    return buckets_make(d, NULL);
}

void distributed_reduce_free(struct distributed *d)
{
    buckets_free(d);
    gradients_free(&d->r);
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        ctrt_tensor_release(&d->slots[s].before);
        ctrt_tensor_release(&d->slots[s].replayed);
    }
    ctrt_tensors_release(d->base, d->r.parameters);
    free(d->base);
    free(d->slots);
    free(d->recorded);
}
