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
    struct bucket *bucket = &d->buckets[b];
    bucket->dtype = ctrt_tensor_dtype(d->slots[d->order[bucket->first]].tensor);
    for (size_t k = 0; k < bucket->count; k++) {
        struct slot *slot = &d->slots[d->order[bucket->first + k]];
        slot->offset = bucket->numel;
        slot->bucket = b;
        bucket->numel += ctrt_tensor_numel(slot->tensor);
    }
}

/* Assigns the slots to buckets, in the order `seen` or, NULL, by their order in the module. */
static ctrt_status buckets_make(struct distributed *d, const size_t *seen)
{
    const size_t n = d->slot_count;
    buckets_free(d);
    d->layout++;
    struct bucket_item *items = calloc(n, sizeof *items);
    size_t *ends = calloc(n, sizeof *ends);
    d->order = calloc(n, sizeof *d->order);
    d->buckets = calloc(n, sizeof *d->buckets);
    long count = -1;
    for (size_t s = 0; items != NULL && s < n; s++) {
        const ctrt_dtype dtype = ctrt_tensor_dtype(d->slots[s].tensor);
        items[s].bytes = (uint64_t)ctrt_tensor_numel(d->slots[s].tensor) * ctrt_dtype_size(dtype);
        items[s].dtype = (int)dtype;
    }
    if (items != NULL && ends != NULL && d->order != NULL && d->buckets != NULL)
        count = buckets_assign(d->order, ends, items, n, seen, FIRST_BUCKET, d->bucket_bytes);
    ctrt_status status = count < 0 ? no_memory() : CTRT_OK;
    for (long b = 0; b < count; b++) {
        struct bucket *bucket = &d->buckets[b];
        bucket->first = b > 0 ? ends[b - 1] : 0;
        bucket->count = ends[b] - bucket->first;
        bucket->gradients = calloc(bucket->count, sizeof *bucket->gradients);
        d->bucket_count = (size_t)b + 1;
        bucket_layout(d, (size_t)b);
        if (bucket->gradients == NULL)
            status = no_memory();
    }
    free(items);
    free(ends);
    return status;
}

ctrt_status reduce_memory(struct distributed *d)
{
    ctrt_status status = CTRT_OK;
    for (size_t b = 0; b < d->bucket_count; b++) {
        struct bucket *bucket = &d->buckets[b];
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

/* Rank 0's order of gradients; parameters that had none come last. */
static ctrt_status order_agree(struct distributed *d, int64_t *order)
{
    size_t n = d->seen_count;
    for (size_t i = 0; i < n; i++)
        order[i] = (int64_t)d->seen[i];
    for (size_t s = d->slot_count; s-- > 0;) {
        bool known = false;
        for (size_t i = 0; i < d->seen_count && !known; i++)
            known = d->seen[i] == s;
        if (!known)
            order[n++] = (int64_t)s;
    }
    return exchange_order(&d->r, order, d->slot_count);
}

ctrt_status reduce_rebuild(struct distributed *d)
{
    if (!d->reduced || d->rebuilt)
        return CTRT_OK;
    int64_t *order = calloc(d->slot_count, sizeof *order);
    if (order == NULL)
        return no_memory();
    ctrt_status status = order_agree(d, order);
    for (size_t s = 0; s < d->slot_count && status == CTRT_OK; s++)
        d->seen[s] = (size_t)order[s];
    free(order);
    if (status == CTRT_OK)
        status = buckets_make(d, d->seen);
    if (status == CTRT_OK)
        status = reduce_memory(d);
    d->rebuilt = status == CTRT_OK;
    return status;
}

/* ---- reductions ---- */

ctrt_status reduce_begin(struct distributed *d, enum mode mode)
{
    d->mode = mode;
    d->started = false;
    d->next = 0;
    if (!d->reduced)
        d->seen_count = 0;
    memory_release(d);
    for (size_t b = 0; b < d->bucket_count; b++)
        d->buckets[b].waiting = d->buckets[b].count, d->buckets[b].hooked = false;
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

ctrt_status reduce_weights(struct distributed *d)
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
    return d->reduced || d->captured ? CTRT_OK : weights_verify(w);
}

/* Calls the hook for the next stage. It has finished the bucket if it returns without work. */
static ctrt_status hook_call(struct distributed *d, struct bucket *bucket)
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
    bucket->hooked = bucket->work != NULL;
    return CTRT_OK;
}

static ctrt_status bucket_launch(struct distributed *d, struct bucket *bucket)
{
    CTRT_TRY(weights_find(&d->weights));
    if (d->weights.weight != NULL)
        CTRT_TRY(ctrt_mul_(bucket->flat, d->weights.weight));
    else if (d->r.size > 1)
        CTRT_TRY(ctrt_mul_scalar_(bucket->flat, ctrt_float(1.0 / d->r.size)));
    bucket->stage = 0;
    if (d->hook != NULL && d->r.size > 1)
        return hook_call(d, bucket);
    return ctrt_comm_all_reduce(&bucket->work, d->r.comm, bucket->flat, CTRT_COMM_SUM);
}

/* The memory that processes share, unless gradients of an earlier pass are still in it. */
static ctrt_status bucket_memory(struct distributed *d, struct bucket *bucket)
{
    if (bucket->flat != NULL)
        return CTRT_OK;
    if (bucket->shared == NULL || ctrt_tensor_storage_use_count(bucket->shared) > 1)
        return ctrt_empty(&bucket->flat, CTRT_SHAPE(bucket->numel), bucket->dtype, d->r.device);
    bucket->flat = ctrt_tensor_retain(bucket->shared);
    return CTRT_OK;
}

static ctrt_status slot_view(struct distributed *d, struct slot *slot)
{
    struct bucket *bucket = &d->buckets[slot->bucket];
    const ctrt_tensor *like = slot->tensor;
    CTRT_TRY(bucket_memory(d, bucket));
    CTRT_TRY(ctrt_narrow(&slot->view, bucket->flat, 0, slot->offset, ctrt_tensor_numel(like)));
    return ctrt_view_as(&slot->view, slot->view, ctrt_ints_of(ctrt_tensor_shape(like), ctrt_tensor_ndim(like)));
}

static ctrt_status slot_fill(struct distributed *d, struct slot *slot, ctrt_tensor *grad)
{
    ctrt_tensor *before = d->mode == STEP ? d->r.before[slot->parameter] : NULL;
    CTRT_TRY(slot_view(d, slot));
    if (grad != NULL || before != NULL)
        CTRT_TRY(ctrt_copy_(slot->view, grad != NULL ? grad : before));
    else
        CTRT_TRY(ctrt_zero_(slot->view));
    if (grad != NULL && before != NULL)
        CTRT_TRY(ctrt_add_(slot->view, before));
    d->buckets[slot->bucket].waiting--;
    while (d->next < d->bucket_count && d->buckets[d->next].waiting == 0)
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
static ctrt_status slot_ready(struct distributed *d, struct slot *slot, ctrt_tensor *grad)
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
            struct bucket *bucket = &d->buckets[b];
            if (bucket->work != NULL)
                CTRT_TRY(ctrt_work_wait(bucket->work));
            ctrt_work_release(&bucket->work);
            if (bucket->hooked)
                CTRT_TRY(hook_call(d, bucket));
            more = more || bucket->work != NULL;
        }
    }
    return CTRT_OK;
}

static void reduce_end(struct distributed *d)
{
    for (size_t s = 0; s < d->slot_count; s++)
        d->slots[s].used = false;
    d->mode = IDLE;
    d->started = false;
    if (d->captured)
        capture_end(d);
    else
        weights_reset(&d->weights);
    memory_release(d);
    weights_end(&d->weights);
}

/* ---- the end of a backward pass of the program ---- */

static ctrt_status forward_finish(struct distributed *d)
{
    CTRT_TRY(buckets_wait(d));
    CTRT_TRY(ranks_buffers(&d->r));
    for (size_t s = 0; s < d->slot_count; s++) {
        d->slots[s].anywhere = true;
        CTRT_TRY(ctrt_copy_(ctrt_tensor_grad(d->slots[s].tensor), d->slots[s].view));
    }
    if (d->captured)
        CTRT_TRY(capture_reduced(d));
    d->reduced = true;
    reduce_end(d);
    return CTRT_OK;
}

/* ---- hooks ---- */

static ctrt_status gradient_arrived(struct distributed *d, struct slot *slot)
{
    const char *name = "";
    ctrt_tensor *tensor = NULL;
    if (d->mode == IDLE || slot->view != NULL) {
        (void)ctrt_module_parameter(&name, &tensor, d->r.module, slot->parameter);
        return ctrt_fail(CTRT_ERR_STATE, "the gradient of \"%s\" was computed %s; call ctrt_parallel_no_sync to add up "
                         "gradients on this rank", name,
                         d->mode == IDLE ? "without a forward pass of the strategy before, so it would not be reduced"
                                         : "twice after one forward pass");
    }
    if (d->captured != ctrt_capture_running(d->r.device))
        return ctrt_fail(CTRT_ERR_STATE, "the forward pass %s captured, but the backward pass %s; capture both",
                         d->captured ? "was" : "was not", d->captured ? "is not" : "is");
    d->started = true;
    if (!d->reduced)
        d->seen[d->seen_count++] = (size_t)(slot - d->slots);
    CTRT_TRY(slot_ready(d, slot, ctrt_tensor_grad(slot->tensor)));
    return d->mode == FORWARD && d->next == d->bucket_count ? forward_finish(d) : CTRT_OK;
}

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf)
{
    struct slot *slot = user;
    struct distributed *d = slot->d;
    ctrt_status status;
    (void)leaf;
    if (d->no_sync)
        slot->used = true;
    if (d->no_sync || d->mode == LOCAL)
        return CTRT_OK;
    slot->used = true;
    const bool was = ctrt_set_streams_ordered(true);
    ctrt_no_grad status = gradient_arrived(d, slot);
    ctrt_set_streams_ordered(was);
    return ctrt_context(status, "distributed");
}

/* ---- the end of a step ---- */

/* Adds up the loss, times its number, and, for each slot, the number of ranks that use it. */
static ctrt_status stats_reduce(struct distributed *d, ctrt_tensor **stats, double *used, ctrt_tensor *loss)
{
    const int64_t n = (int64_t)d->slot_count + 1;
    CTRT_AUTO(tensor) first = NULL, value = NULL;
    bool complete = true;
    used[0] = 0;
    for (size_t s = 0; s < d->slot_count; s++) {
        used[s + 1] = d->slots[s].used;
        complete = complete && d->slots[s].used;
    }
    if (d->captured)
        CTRT_TRY(capture_stats(d, stats, used));
    else
        CTRT_TRY(ctrt_from_data(stats, used, n, CTRT_SHAPE(n), CTRT_F64, d->r.device));
    if (loss != NULL) {
        CTRT_TRY(ctrt_narrow(&first, *stats, 0, 0, 1));
        CTRT_TRY(ctrt_to_dtype(&value, loss, CTRT_F64));
        CTRT_TRY(ctrt_mul_scalar(&value, value, ctrt_float(d->weights.number)));
        CTRT_TRY(ctrt_view_as(&value, value, CTRT_SHAPE(1)));
        CTRT_TRY(ctrt_copy_(first, value));
    }
    CTRT_TRY(ctrt_comm_all_reduce(NULL, d->r.comm, *stats, CTRT_COMM_SUM));
    /* A parameter that this rank uses is reduced in any case. If it uses all, it does not need the counts. */
    return complete || d->captured ? CTRT_OK : ctrt_to_host(used, (size_t)n * sizeof *used, *stats, CTRT_F64);
}

/* Makes the sum the gradient, in the tensor from before the step if there is one. d->r.before receives it. */
static ctrt_status slot_finish(struct distributed *d, struct slot *slot, bool used)
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

static ctrt_status stats_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss, double *used)
{
    CTRT_AUTO(tensor) stats = NULL, sum = NULL;
    CTRT_TRY(weights_find(&d->weights));                        /* the totals are there also without buckets */
    CTRT_TRY(stats_reduce(d, &stats, used, loss));
    CTRT_TRY(ctrt_select(&sum, stats, 0, 0));
    return weights_loss(mean, &d->weights, sum, loss != NULL ? ctrt_tensor_dtype(loss) : CTRT_F32);
}

/* Makes the program's stream wait for the loss. */
static ctrt_status stream_join(struct distributed *d)
{
    CTRT_AUTO(stream) current = NULL;
    CTRT_TRY(ctrt_stream_current(&current, d->r.device));
    return ctrt_stream_wait(current, d->stream);
}

static ctrt_status finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss, double *used)
{
    ctrt_status status = CTRT_OK;
    for (size_t k = 0; k < d->slot_count; k++) {
        struct slot *slot = &d->slots[d->order[k]];
        if (slot->view == NULL)
            CTRT_TRY(slot_ready(d, slot, NULL));
    }
    ON_STREAM(d, status, stats_finish(d, mean, loss, used));      /* beside the last bucket's reduction */
    CTRT_TRY(status);
    CTRT_TRY(buckets_wait(d));
    CTRT_TRY(ranks_buffers(&d->r));
    if (d->stream != NULL)
        CTRT_TRY(stream_join(d));
    if (d->survive.on && !d->captured)
        CTRT_TRY(survive_settle(d, *mean));
    for (size_t s = 0; s < d->slot_count; s++) {
        d->slots[s].anywhere = used[s + 1] != 0;
        CTRT_TRY(slot_finish(d, &d->slots[s], d->slots[s].anywhere));
    }
    CTRT_TRY(ctrt_gradients_restore(d->r.module, d->r.before));
    CTRT_TRY(weights_clear(&d->weights));
    if (d->captured)
        CTRT_TRY(capture_reduced(d));
    d->reduced = true;
    reduce_end(d);
    return CTRT_OK;
}

ctrt_status reduce_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss)
{
    ctrt_status status;
    double *used = calloc(d->slot_count + 1, sizeof *used);
    if (used == NULL)
        return no_memory();
    ctrt_no_grad status = finish(d, mean, loss, used);
    free(used);
    return status;
}

/* ---- failures ---- */

void reduce_cancel(struct distributed *d)
{
    for (size_t b = 0; b < d->bucket_count; b++) {
        if (d->buckets[b].work != NULL && !d->captured)
            (void)ctrt_work_wait(d->buckets[b].work);
        ctrt_work_release(&d->buckets[b].work);
    }
    reduce_end(d);
}

ctrt_status reduce_check(const struct distributed *d)
{
    struct missing missing = { .count = 0 };
    if (d->mode != FORWARD || !d->started)
        return CTRT_OK;
    for (size_t s = 0; s < d->slot_count; s++)
        if (d->slots[s].view == NULL)
            missing_add(&missing, &d->r, d->slots[s].parameter);
    return missing_check(&missing);
}

/* ---- creation ---- */

ctrt_status reduce_new(struct distributed *d)
{
    if (d->slots != NULL) {
        d->reduced = d->rebuilt = false;
        d->seen_count = 0;
        return buckets_make(d, NULL);
    }
    d->slots = calloc(d->r.parameters + 1, sizeof *d->slots);
    d->seen = calloc(d->r.parameters + 1, sizeof *d->seen);
    d->base = calloc(d->r.parameters + 1, sizeof *d->base);
    if (d->slots == NULL || d->seen == NULL || d->base == NULL)
        return no_memory();
    CTRT_TRY(weights_new(&d->weights, d->r.device));
    for (size_t i = 0; i < d->r.parameters; i++)
        if (ctrt_tensor_requires_grad(d->r.tensors[i]))
            d->slots[d->slot_count++] = (struct slot){
                .d = d, .tensor = ctrt_tensor_retain(d->r.tensors[i]), .parameter = i,
            };
    if (d->slot_count == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the module has no parameter that requires grad, so there is "
                         "nothing to reduce");
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CTRT_TRY(ctrt_device_get_properties(&properties, ctrt_device_name(d->r.device)));
    if (properties.asynchronous)
        CTRT_TRY(ctrt_stream_new(&d->stream, d->r.device, 0));
    for (size_t s = 0; s < d->slot_count; s++) {
        struct slot *slot = &d->slots[s];
        CTRT_TRY(ctrt_tensor_add_accumulate_hook(slot->tensor, on_gradient, slot, &slot->hook));
        slot->hooked = true;
    }
    return buckets_make(d, NULL);
}

void reduce_free(struct distributed *d)
{
    buckets_free(d);
    for (size_t s = 0; d->slots != NULL && s < d->slot_count; s++) {
        if (d->slots[s].hooked)
            (void)ctrt_tensor_remove_hook(d->slots[s].tensor, d->slots[s].hook);
        ctrt_tensor_release(&d->slots[s].tensor);
        ctrt_tensor_release(&d->slots[s].before);
        ctrt_tensor_release(&d->slots[s].replayed);
    }
    if (d->base != NULL)
        ctrt_tensors_release(d->base, d->r.parameters);
    free(d->base);
    weights_free(&d->weights);
    ctrt_stream_release(&d->stream);
    free(d->slots);
    free(d->seen);
}
