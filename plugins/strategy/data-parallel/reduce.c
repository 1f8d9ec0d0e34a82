/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/reduce.c: adds the gradients of the replicas up, by a binary tree over the devices.
 *
 * Parameters are sorted into buckets, in the reverse of their order in the module, in which backward passes compute
 * their gradients. A hook copies each gradient to the bucket's memory on its device. The thread that copies the last
 * gradient of all replicas enqueues the additions of the whole bucket: per level of the tree one copy between devices
 * and one addition. The gradients of the module are then parts of the first device's memory of the bucket. A bucket
 * that is not complete when all backward passes have been enqueued, because a parameter has no gradient on some device,
 * is added up at the end. A parameter that is sharded over the members of its device (ctrt/layout.h) is alone in its
 * bucket, and its gradients are added without such memory, so that each member has only its part of the sum.
 *
 * Asynchronous devices have a stream for the copies to the buckets and one for the additions, so that neither delays
 * the backward passes. One stream is not sufficient, because a thread may enqueue all copies of its device before
 * another one enqueues the first addition, which would then wait for them. */
#include "data_parallel.h"

#define PART_ALIGN 64                       /* bytes; alignment of the gradients in a bucket, for vector loads */

/* ---- buckets ---- */

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf);

static ctrt_status hooks_add(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    if (replica->module == NULL || replica->hooks != NULL)
        return CTRT_OK;
    CTRT_TRY(ALLOCATE(replica->hooks, dp->parameters + 1));
    for (size_t i = 0; i < dp->parameters; i++) {
        struct hook_user *hook = &replica->hooks[i];
        ctrt_tensor *leaf = replica->tensors[i];
        const bool frozen = !ctrt_tensor_requires_grad(leaf);
        if (!ctrt_dtype_is_floating(ctrt_tensor_dtype(leaf)))
            continue;
        *hook = (struct hook_user){ .dp = dp, .replica = index, .parameter = i };
        if (frozen)                         /* a leaf can have hooks only while it requires grad */
            CTRT_TRY(ctrt_tensor_require_grad(leaf, true));
        ctrt_status status = ctrt_tensor_add_accumulate_hook(leaf, on_gradient, hook, &hook->id);
        if (frozen)
            CTRT_TRY(ctrt_tensor_require_grad(leaf, false));
        CTRT_TRY(status);
        hook->leaf = ctrt_tensor_retain(leaf);
    }
    return CTRT_OK;
}

void hooks_free(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    for (size_t i = 0; replica->hooks != NULL && i < dp->parameters; i++)
        if (replica->hooks[i].leaf != NULL) {
            (void)ctrt_tensor_remove_hook(replica->hooks[i].leaf, replica->hooks[i].id);
            ctrt_tensor_release(&replica->hooks[i].leaf);
        }
    free(replica->hooks);
    replica->hooks = NULL;
}

void buckets_free(struct data_parallel *dp)
{
    for (size_t b = 0; b < dp->bucket_count; b++) {
        struct dp_bucket *bucket = &dp->buckets[b];
        ctrt_tensors_release(bucket->sums, (size_t)dp->n);
        for (int p = 0; bucket->events != NULL && p < dp->first[dp->n]; p++)
            ctrt_event_release(&bucket->events[p]);
        free(bucket->sums);
        free(bucket->events);
    }
    free(dp->offsets);
    free(dp->buckets);
    free(dp->packed);
    dp->offsets = NULL;
    dp->buckets = NULL;
    dp->packed = NULL;
    dp->bucket_count = 0;
}

static bool is_sharded(ctrt_tensor *parameter)
{
    ctrt_layout layout;
    return ctrt_tensor_layout(&layout, parameter) == CTRT_OK && layout.kind == CTRT_LAYOUT_SHARDED;
}

/* The parameters of a bucket have one dtype. A sharded parameter has a bucket of its own. */
static ctrt_status make(struct data_parallel *dp)
{
    uint64_t bytes = 0;
    CTRT_TRY(ALLOCATE(dp->offsets, dp->parameters));
    CTRT_TRY(ALLOCATE(dp->buckets, dp->parameters));
    CTRT_TRY(ALLOCATE(dp->packed, dp->parameters * (size_t)dp->n));
    for (size_t i = dp->parameters; i-- > 0;) {
        const uint64_t here = strategy_tensor_bytes(dp->tensors[i]);
        const ctrt_dtype dtype = ctrt_tensor_dtype(dp->tensors[i]);
        const bool whole = is_sharded(dp->tensors[i]);
        struct dp_bucket *bucket = &dp->buckets[dp->bucket_count];
        if (dp->bucket_count == 0 || bytes + here > dp->bucket_bytes || dtype != bucket[-1].dtype || whole
            || bucket[-1].whole) {
            dp->bucket_count++;
            *bucket = (struct dp_bucket){ .end = i + 1, .dtype = dtype, .whole = whole };
            CTRT_TRY(ALLOCATE(bucket->sums, (size_t)dp->n));
            CTRT_TRY(ALLOCATE(bucket->events, (size_t)dp->first[dp->n]));
            bytes = 0;
        }
        bytes += here;
        dp->buckets[dp->bucket_count - 1].first = i;
    }
    for (int r = 0; r < dp->n && dp->n > 1; r++)
        CTRT_TRY(hooks_add(dp, r));
    return CTRT_OK;
}

ctrt_status buckets_make(struct data_parallel *dp)
{
    buckets_free(dp);
    ctrt_status status = make(dp);
    if (status == CTRT_OK)
        return CTRT_OK;
    buckets_free(dp);
    for (int r = 0; r < dp->n; r++)
        hooks_free(dp, r);
    return status;
}

bool buckets_fit(const struct data_parallel *dp)
{
    size_t i = dp->parameters;
    for (size_t b = 0; b < dp->bucket_count; b++)
        while (i > dp->buckets[b].first)
            if (is_sharded(dp->tensors[--i]) != dp->buckets[b].whole)
                return false;
    return dp->buckets != NULL;
}

/* ---- streams ---- */

static ctrt_status place_add(struct data_parallel *dp, ctrt_device *device, int count)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    const size_t bytes = (size_t)(count + 1) * sizeof *dp->places;
    struct place *larger = realloc(dp->places, bytes);
    CTRT_TRY(strategy_allocated(larger, bytes));
    dp->places = larger;
    CTRT_TRY(ctrt_device_get_properties(&properties, ctrt_device_name(device)));
    larger[count] = (struct place){ .device = device, .asynchronous = properties.asynchronous };
    return CTRT_OK;
}

ctrt_status places_make(struct data_parallel *dp)
{
    for (int r = 0; r < dp->n; r++) {
        ctrt_device *device;
        ctrt_status status = CTRT_OK;
        dp->first[r + 1] = dp->first[r];
        for (int m = 0; (status = ctrt_device_member(&device, dp->devices[r], m)) == CTRT_OK; m++) {
            CTRT_TRY(place_add(dp, device, dp->first[r + 1]));
            dp->first[r + 1]++;
        }
        if (status != CTRT_ERR_NOT_FOUND)
            return status;
    }
    return CTRT_OK;
}

static ctrt_status streams_make(struct data_parallel *dp, int r)
{
    const int most = r == 0 ? STREAM_VALUES : STREAMS;
    EACH_PLACE(place, dp, r) {
        const struct place *like = dp->places;
        while (like->device != place->device)
            like++;
        for (int k = 0; k < most && place->asynchronous; k++) {
            if (place->at[k] == NULL && like < place && like->at[k] != NULL)
                place->at[k] = ctrt_stream_retain(like->at[k]);
            else if (place->at[k] == NULL)
                CTRT_TRY(ctrt_stream_new(&place->at[k], place->device, 0));
        }
    }
    return CTRT_OK;
}

ctrt_status streams_find(struct data_parallel *dp, int count)
{
    for (int r = 0; r < count; r++) {
        EACH_PLACE(place, dp, r)
            CTRT_TRY(ctrt_stream_current(&place->compute, place->device));
        CTRT_TRY(streams_make(dp, r));
    }
    return CTRT_OK;
}

ctrt_status streams_enter(int *entered, const struct data_parallel *dp, int r, int k)
{
    EACH_PLACE(place, dp, r)
        if (place->at[k] != NULL) {
            CTRT_TRY(ctrt_stream_push(place->at[k]));
            ++*entered;
        }
    return CTRT_OK;
}

void streams_leave(const int *entered)
{
    for (int i = 0; i < *entered; i++)
        (void)ctrt_stream_pop();
}

/* ---- canonical mode, and losses ---- */

ctrt_status trees_merge(ctrt_sum_tree **trees, int count)
{
    for (int distance = 1; distance < count; distance *= 2)
        for (int r = 0; r + distance < count; r += 2 * distance) {
            CTRT_TRY(ctrt_sum_tree_merge(trees[r], trees[r + distance]));
            ctrt_sum_tree_release(&trees[r + distance]);
        }
    return CTRT_OK;
}

/* ---- one bucket ---- */

/* The part of the bucket's memory on replica r that is for the gradient of parameter i. */
static ctrt_status part_of(ctrt_tensor **out, const struct data_parallel *dp, const struct dp_bucket *bucket, int r,
                           size_t i)
{
    if (!bucket->whole)
        return strategy_part(out, bucket->sums[r], dp->offsets[i], dp->tensors[i]);
    ctrt_tensor_assign(out, bucket->sums[r]);
    return CTRT_OK;
}

/* Releases the gradients of a replica that were copied to bucket number `b`. */
static ctrt_status gradients_drop(struct data_parallel *dp, int r, size_t b)
{
    for (size_t i = dp->buckets[b].first; i < dp->buckets[b].end && dp->replicas[r].module != NULL; i++)
        CTRT_TRY(ctrt_tensor_set_grad(dp->replicas[r].tensors[i], NULL));
    return CTRT_OK;
}

/* Releases the gradients of earlier buckets two buckets late: the backward pass would otherwise get their memory at
 * once, and would have to wait until it was copied. */
static ctrt_status gradients_drop_late(struct data_parallel *dp, const struct dp_bucket *bucket, int r)
{
    const size_t b = (size_t)(bucket - dp->buckets);
    return b >= 2 ? gradients_drop(dp, r, b - 2) : CTRT_OK;
}

/* Allocates the memory of a bucket. */
static ctrt_status bucket_open(struct data_parallel *dp, struct dp_bucket *bucket, int r)
{
    if (bucket->sums[r] != NULL)
        return CTRT_OK;
    CTRT_TRY(gradients_drop_late(dp, bucket, r));
    return ctrt_empty(&bucket->sums[r], CTRT_SHAPE(bucket->numel), bucket->dtype, dp->devices[r]);
}

/* Records that the gradients of replica r are in bucket->sums. */
static ctrt_status packed_record(struct data_parallel *dp, struct dp_bucket *bucket, int r)
{
    EACH_PLACE(place, dp, r) {
        ctrt_event **event = &bucket->events[place - dp->places];
        if (!place->asynchronous)
            continue;
        if (*event == NULL)
            CTRT_TRY(ctrt_event_new(event, place->device, false));
        CTRT_TRY(ctrt_event_record(*event, bucket->whole ? place->compute : place->at[STREAM_PACK]));
    }
    return CTRT_OK;
}

/* Copies the gradient of parameter i of replica r to the bucket's memory; without gradient, writes zeros there. The
 * sum of a `whole` bucket is the gradient itself; without gradient, there is none. */
static ctrt_status pack(struct data_parallel *dp, struct dp_bucket *bucket, int r, size_t i)
{
    CTRT_AUTO(tensor) part = NULL;
    ctrt_tensor *grad = ctrt_tensor_grad(dp->replicas[r].tensors[i]);
    if (bucket->whole) {
        CTRT_TRY(gradients_drop_late(dp, bucket, r));
        ctrt_tensor_assign(&bucket->sums[r], grad);
        return packed_record(dp, bucket, r);
    }
    ON_STREAM(dp, r, STREAM_PACK);
    CTRT_TRY(bucket_open(dp, bucket, r));
    CTRT_TRY(part_of(&part, dp, bucket, r, i));
    CTRT_TRY(grad != NULL ? ctrt_copy_(part, grad) : ctrt_zero_(part));
    return packed_record(dp, bucket, r);
}

/* Makes additions on the device of replica `to` wait for the gradients of replica `from`. Automatic ordering would
 * wait for all copies that the thread of `from` has enqueued, also those of later buckets. */
static ctrt_status packed_wait(const struct data_parallel *dp, const struct dp_bucket *bucket, int to, int from)
{
    EACH_PLACE(place, dp, to)
        EACH_PLACE(other, dp, from) {
            ctrt_event *event = bucket->events[other - dp->places];
            if (place->at[STREAM_ADD] != NULL && event != NULL)
                CTRT_TRY(ctrt_stream_wait_event(place->at[STREAM_ADD], event));
        }
    return CTRT_OK;
}

/* Copies `sum` to memory of replica `to` that is the same for all additions of a step: a backward pass that got the
 * memory of a finished addition would have to wait for it. */
static ctrt_status receive(ctrt_tensor **out, struct data_parallel *dp, int to, ctrt_tensor *sum)
{
    ctrt_tensor **memory = &dp->received[to];
    const int64_t numel = ctrt_tensor_numel(sum);
    if (*memory != NULL
        && (ctrt_tensor_numel(*memory) < numel || ctrt_tensor_dtype(*memory) != ctrt_tensor_dtype(sum)))
        ctrt_tensor_release(memory);
    if (*memory == NULL)
        CTRT_TRY(ctrt_empty(memory, CTRT_SHAPE(numel), ctrt_tensor_dtype(sum), dp->devices[to]));
    CTRT_TRY(ctrt_narrow(out, *memory, 0, 0, numel));
    return ctrt_copy_(*out, sum);
}

/* Adds the sum of replica `from` to that of replica `to`. The memory of the former is released at the end of the step:
 * a later bucket would otherwise get it at once, and would have to wait until it was copied. */
static ctrt_status merge(struct data_parallel *dp, struct dp_bucket *bucket, int to, int from)
{
    CTRT_AUTO(tensor) here = NULL;
    ctrt_tensor *sum = bucket->sums[from];
    if (sum == NULL)
        return CTRT_OK;
    CTRT_TRY(packed_wait(dp, bucket, to, from));
    CTRT_TRY(packed_wait(dp, bucket, to, to));
    ON_STREAM(dp, from, STREAM_ADD);
    ON_STREAM(dp, to, STREAM_ADD);
    if (bucket->sums[to] == NULL)
        return ctrt_to_device(&bucket->sums[to], sum, dp->devices[to]);
    if (bucket->whole) {                        /* adds to the copy, because the program may use the gradient */
        CTRT_TRY(ctrt_empty_like(&here, sum, CTRT_DTYPE_DEFAULT, dp->devices[to]));
        CTRT_TRY(ctrt_tensor_distribute_like(here, dp->tensors[bucket->first]));
        CTRT_TRY(ctrt_copy_(here, sum));
        CTRT_TRY(ctrt_add_(here, bucket->sums[to]));
        ctrt_tensor_assign(&bucket->sums[to], here);
        return CTRT_OK;
    }
    if (dp->devices[to] == dp->devices[from])
        return ctrt_add_(bucket->sums[to], sum);
    CTRT_TRY(receive(&here, dp, to, sum));
    return ctrt_add_(bucket->sums[to], here);
}

static ctrt_status merge_all(struct data_parallel *dp, struct dp_bucket *bucket, int count)
{
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&dp->adding);            /* all buckets use the same memory */
    for (int distance = 1; distance < count; distance *= 2)
        for (int r = 0; r + distance < count && status == CTRT_OK; r += 2 * distance)
            status = merge(dp, bucket, r, r + distance);
    pthread_mutex_unlock(&dp->adding);
    return status;
}

/* Adds up the bucket's memory of all replicas. The parts of the sum that any replica has packed are the gradients of
 * the step. */
static ctrt_status bucket_sum(struct data_parallel *dp, struct dp_bucket *bucket, int count)
{
    CTRT_TRY(merge_all(dp, bucket, count));
    for (size_t i = bucket->first; i < bucket->end; i++) {
        bool any = false;
        for (int r = 0; r < count && !any; r++)
            any = dp->packed[(size_t)r * dp->parameters + i] != 0;
        if (any)
            CTRT_TRY(part_of(&dp->grads[i], dp, bucket, 0, i));
    }
    ctrt_tensor_release(&bucket->sums[0]);
    bucket->done = true;
    return CTRT_OK;
}

/* Call when no backward pass runs. */
static bool has_gradient(const struct data_parallel *dp, int r, size_t i)
{
    const struct replica *replica = &dp->replicas[r];
    return dp->packed[(size_t)r * dp->parameters + i] != 0
           || (replica->module != NULL && ctrt_tensor_grad(replica->tensors[i]) != NULL);
}

/* Packs what no hook has packed. A replica without any gradient of the bucket has no part in the sum. */
static ctrt_status bucket_rest(struct data_parallel *dp, struct dp_bucket *bucket, int count)
{
    for (int r = 0; r < count; r++) {
        bool any = false;
        for (size_t i = bucket->first; i < bucket->end && !any; i++)
            any = has_gradient(dp, r, i);
        for (size_t i = bucket->first; i < bucket->end && any; i++) {
            bool wanted = false;
            for (int other = 0; other < count && !wanted; other++)
                wanted = has_gradient(dp, other, i);
            if (wanted && atomic_exchange(&dp->packed[(size_t)r * dp->parameters + i], 1) == 0)
                CTRT_TRY(pack(dp, bucket, r, i));
        }
    }
    return CTRT_OK;
}

/* ---- during the backward pass ---- */

static struct dp_bucket *bucket_of(struct data_parallel *dp, size_t parameter)
{
    size_t low = 0, high = dp->bucket_count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (dp->buckets[middle].end > parameter)
            low = middle;
        else
            high = middle;
    }
    return &dp->buckets[low];
}

static ctrt_status gradient_add(struct data_parallel *dp, int r, size_t parameter)
{
    struct dp_bucket *bucket = bucket_of(dp, parameter);
    CTRT_TRY(pack(dp, bucket, r, parameter));
    return atomic_fetch_sub(&bucket->waiting, 1) == 1 ? bucket_sum(dp, bucket, dp->active) : CTRT_OK;
}

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf)
{
    const struct hook_user *hook = user;
    struct data_parallel *dp = hook->dp;
    ctrt_status status;
    (void)leaf;
    if (!atomic_load_explicit(&dp->overlapping, memory_order_acquire) || hook->replica >= dp->active)
        return CTRT_OK;
    if (atomic_exchange(&dp->packed[(size_t)hook->replica * dp->parameters + hook->parameter], 1) != 0)
        return ctrt_fail(CTRT_ERR_STATE, "a second backward pass in one step; the loss function must not call one");
    ctrt_no_grad status = gradient_add(dp, hook->replica, hook->parameter);
    return ctrt_context(status, "adding up gradients");
}

/* Decides where in the bucket's memory the gradients are. Parameters that no_sync has kept gradients of may have been
 * frozen since. */
static void bucket_begin(struct data_parallel *dp, struct dp_bucket *bucket, int count)
{
    const int64_t unit = (int64_t)(PART_ALIGN / ctrt_dtype_size(bucket->dtype));
    int waiting = 0;
    bucket->numel = 0;
    for (size_t i = bucket->first; i < bucket->end; i++) {
        if (!ctrt_tensor_requires_grad(dp->tensors[i]) && !dp->pending)
            continue;
        dp->offsets[i] = bucket->numel;
        bucket->numel += (ctrt_tensor_numel(dp->tensors[i]) + unit - 1) / unit * unit;
        waiting += count;
    }
    atomic_store(&bucket->waiting, waiting);
    bucket->done = waiting == 0;
}

ctrt_status dp_reduce_begin(struct data_parallel *dp, int count, bool overlap)
{
    CTRT_TRY(streams_find(dp, count));
    dp->active = count;
    for (size_t b = 0; b < dp->bucket_count; b++)
        bucket_begin(dp, &dp->buckets[b], count);
    for (size_t i = 0; i < dp->parameters * (size_t)dp->n; i++)
        atomic_store_explicit(&dp->packed[i], 0, memory_order_relaxed);
    atomic_store_explicit(&dp->overlapping, overlap, memory_order_release);
    return CTRT_OK;
}

ctrt_status dp_reduce_rest(struct data_parallel *dp, int count)
{
    atomic_store(&dp->overlapping, false);
    CTRT_TRY(streams_find(dp, count));
    for (size_t b = 0; b < dp->bucket_count; b++) {
        struct dp_bucket *bucket = &dp->buckets[b];
        if (bucket->done)
            continue;
        ctrt_no_grad {
            CTRT_TRY(ctrt_context(bucket_rest(dp, bucket, count), "adding up gradients"));
            CTRT_TRY(ctrt_context(bucket_sum(dp, bucket, count), "adding up gradients"));
        }
    }
    for (size_t b = 0; b < dp->bucket_count; b++)
        for (int r = 0; r < count; r++)
            CTRT_TRY(gradients_drop(dp, r, b));
    return CTRT_OK;
}

ctrt_status streams_join(struct data_parallel *dp, int count)
{
    EACH_PLACE(first, dp, 0)
        for (int r = 0; r < count; r++)
            EACH_PLACE(place, dp, r) {
                if (place != first && place->compute != NULL)
                    CTRT_TRY(ctrt_stream_wait(first->compute, place->compute));
                for (int k = 0; k < STREAMS; k++)
                    if (place->at[k] != NULL)
                        CTRT_TRY(ctrt_stream_wait(first->compute, place->at[k]));
            }
    return CTRT_OK;
}

void dp_reduce_end(struct data_parallel *dp, bool failed)
{
    atomic_store(&dp->overlapping, false);
    for (size_t b = 0; b < dp->bucket_count; b++)
        ctrt_tensors_release(dp->buckets[b].sums, (size_t)dp->n);
    for (int r = 0; r < dp->n; r++) {
        ctrt_tensor_release(&dp->received[r]);
        EACH_PLACE(place, dp, r) {
            ctrt_stream_release(&place->compute);
            for (int k = 0; k < STREAMS && failed; k++)
                ctrt_stream_release(&place->at[k]);
        }
    }
}
