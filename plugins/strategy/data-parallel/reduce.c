/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/reduce.c: adds the gradients of the replicas up, by a binary tree over the devices.
 *
 * Parameters are sorted into buckets, in the reverse of their order in the module, in which backward passes compute
 * their gradients. A hook counts the gradients of each bucket. The thread that computes the last one reduces the
 * bucket, on streams of its own if the devices are asynchronous, while the other threads, and this one afterwards, go
 * on with their backward passes. Buckets that are not complete
 * then, because a parameter has no gradient on some device, are reduced at the end. */
#include <stdlib.h>
#include <string.h>

#include "data_parallel.h"

/* ---- buckets ---- */

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf);

static ctrt_status hooks_add(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    if (replica->module == NULL || replica->hooks != NULL)
        return CTRT_OK;
    replica->hooks = calloc(dp->parameters + 1, sizeof *replica->hooks);
    if (replica->hooks == NULL)
        return no_memory();
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
    free(dp->order);
    free(dp->buckets);
    free(dp->seen);
    dp->order = NULL;
    dp->buckets = NULL;
    dp->seen = NULL;
    dp->bucket_count = 0;
}

static ctrt_status make(struct data_parallel *dp)
{
    uint64_t bytes = 0;
    dp->order = calloc(dp->parameters + 1, sizeof *dp->order);
    dp->buckets = calloc(dp->parameters + 1, sizeof *dp->buckets);
    dp->seen = calloc(dp->parameters * (size_t)dp->n + 1, sizeof *dp->seen);
    if (dp->order == NULL || dp->buckets == NULL || dp->seen == NULL)
        return no_memory();
    for (size_t k = 0; k < dp->parameters; k++) {
        const size_t parameter = dp->parameters - 1 - k;
        const ctrt_tensor *tensor = dp->tensors[parameter];
        const uint64_t here = (uint64_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
        if (k == 0 || bytes + here > dp->bucket_bytes) {
            dp->buckets[dp->bucket_count++].first = k;
            bytes = 0;
        }
        bytes += here;
        dp->order[k] = parameter;
        dp->buckets[dp->bucket_count - 1].count++;
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

/* ---- streams ---- */

/* Finds the calling thread's streams, and creates the reductions'. */
ctrt_status streams_find(struct data_parallel *dp, int count)
{
    for (int r = 0; r < count; r++) {
        CTRT_TRY(ctrt_stream_current(&dp->compute[r], dp->devices[r]));
        if (dp->streams[r] != NULL || !dp->asynchronous[r])
            continue;
        for (int other = 0; other < r && dp->streams[r] == NULL; other++)
            if (dp->devices[other] == dp->devices[r])
                dp->streams[r] = ctrt_stream_retain(dp->streams[other]);
        if (dp->streams[r] == NULL)
            CTRT_TRY(ctrt_stream_new(&dp->streams[r], dp->devices[r], 0));
    }
    return CTRT_OK;
}

/* ---- reductions ---- */

ctrt_status trees_merge(ctrt_sum_tree **trees, int count)
{
    for (int distance = 1; distance < count; distance *= 2)
        for (int r = 0; r + distance < count; r += 2 * distance) {
            CTRT_TRY(ctrt_sum_tree_merge(trees[r], trees[r + distance]));
            ctrt_sum_tree_release(&trees[r + distance]);
        }
    return CTRT_OK;
}

/* Moves the gradients of a bucket's parameters out of a replica. */
static void bucket_take(struct data_parallel *dp, const struct bucket *bucket, int r, ctrt_tensor **grads)
{
    for (size_t k = 0; k < bucket->count; k++) {
        ctrt_tensor *parameter = dp->replicas[r].tensors[dp->order[bucket->first + k]];
        grads[k] = ctrt_tensor_retain(ctrt_tensor_grad(parameter));
        if (grads[k] != NULL)
            (void)ctrt_tensor_set_grad(parameter, NULL);
    }
}

static ctrt_status bucket_sum(struct data_parallel *dp, const struct bucket *bucket, int count, ctrt_sum_tree **trees,
                              ctrt_tensor **grads)
{
    for (int r = 0; r < count; r++) {
        CTRT_TRY(ctrt_sum_tree_new(&trees[r], count, bucket->count, dp->devices[r]));
        if (dp->replicas[r].module != NULL)
            bucket_take(dp, bucket, r, grads);
        CTRT_TRY(ctrt_sum_tree_add(trees[r], r, grads));
    }
    CTRT_TRY(trees_merge(trees, count));
    CTRT_TRY(ctrt_sum_tree_result(grads, trees[0]));
    for (size_t k = 0; k < bucket->count; k++) {
        dp->grads[dp->order[bucket->first + k]] = grads[k];
        grads[k] = NULL;
    }
    return CTRT_OK;
}

/* Makes the reductions' streams the current ones; they wait for the work that has computed the gradients. `was`
 * receives the streams to restore. */
static ctrt_status streams_enter(struct data_parallel *dp, int count, ctrt_stream **was)
{
    for (int r = 0; r < count; r++) {
        if (dp->streams[r] == NULL)
            continue;
        CTRT_TRY(ctrt_stream_wait(dp->streams[r], dp->compute[r]));
        CTRT_TRY(ctrt_stream_current(&was[r], dp->devices[r]));
        CTRT_TRY(ctrt_stream_set_current(dp->streams[r]));
    }
    return CTRT_OK;
}

static void streams_leave(int count, ctrt_stream **was)
{
    for (int r = count - 1; r >= 0; r--)
        if (was[r] != NULL) {
            (void)ctrt_stream_set_current(was[r]);
            ctrt_stream_release(&was[r]);
        }
}

/* May be called by several threads at the same time, for different buckets. */
static ctrt_status bucket_reduce(struct data_parallel *dp, struct bucket *bucket, int count)
{
    ctrt_sum_tree **trees = calloc((size_t)count, sizeof *trees);
    ctrt_tensor **grads = calloc(bucket->count, sizeof *grads);
    ctrt_stream **was = calloc((size_t)count, sizeof *was);
    ctrt_status status = trees != NULL && grads != NULL && was != NULL ? CTRT_OK : no_memory();
    if (status == CTRT_OK)
        status = streams_enter(dp, count, was);
    if (status == CTRT_OK)
        ctrt_no_grad status = bucket_sum(dp, bucket, count, trees, grads);
    if (was != NULL)
        streams_leave(count, was);
    for (int r = 0; trees != NULL && r < count; r++)
        ctrt_sum_tree_release(&trees[r]);
    if (grads != NULL)
        ctrt_gradients_release(grads, bucket->count);
    free(trees);
    free(grads);
    free(was);
    bucket->done = true;
    return ctrt_context(status, "adding up gradients");
}

/* ---- during the backward pass ---- */

static struct bucket *bucket_of(struct data_parallel *dp, size_t parameter)
{
    const size_t k = dp->parameters - 1 - parameter;
    size_t low = 0, high = dp->bucket_count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (dp->buckets[middle].first <= k)
            low = middle;
        else
            high = middle;
    }
    return &dp->buckets[low];
}

static ctrt_status on_gradient(void *user, ctrt_tensor *leaf)
{
    struct hook_user *hook = user;
    struct data_parallel *dp = hook->dp;
    (void)leaf;
    if (!atomic_load_explicit(&dp->overlapping, memory_order_acquire) || hook->replica >= dp->active)
        return CTRT_OK;
    if (atomic_exchange(&dp->seen[(size_t)hook->replica * dp->parameters + hook->parameter], 1) != 0)
        return ctrt_fail(CTRT_ERR_STATE, "a second backward pass in one step; the loss function must not call one");
    struct bucket *bucket = bucket_of(dp, hook->parameter);
    return atomic_fetch_sub(&bucket->waiting, 1) == 1 ? bucket_reduce(dp, bucket, dp->active) : CTRT_OK;
}

ctrt_status reduce_begin(struct data_parallel *dp, int count, bool overlap)
{
    CTRT_TRY(streams_find(dp, count));
    dp->active = count;
    for (size_t b = 0; b < dp->bucket_count; b++) {
        struct bucket *bucket = &dp->buckets[b];
        int waiting = 0;
        for (size_t k = bucket->first; k < bucket->first + bucket->count; k++)
            waiting += ctrt_tensor_requires_grad(dp->tensors[dp->order[k]]);
        atomic_store(&bucket->waiting, waiting * count);
        bucket->done = waiting == 0;
    }
    for (size_t i = 0; i < dp->parameters * (size_t)count && overlap; i++)
        atomic_store_explicit(&dp->seen[i], 0, memory_order_relaxed);
    atomic_store_explicit(&dp->overlapping, overlap, memory_order_release);
    return CTRT_OK;
}

ctrt_status reduce_rest(struct data_parallel *dp, int count)
{
    atomic_store(&dp->overlapping, false);
    CTRT_TRY(streams_find(dp, count));
    for (size_t b = 0; b < dp->bucket_count; b++)
        if (!dp->buckets[b].done)
            CTRT_TRY(bucket_reduce(dp, &dp->buckets[b], count));
    return CTRT_OK;
}

ctrt_status streams_join(struct data_parallel *dp, int count)
{
    for (int r = 0; r < count; r++) {
        if (r > 0 && dp->compute[r] != NULL)
            CTRT_TRY(ctrt_stream_wait(dp->compute[0], dp->compute[r]));
        if (dp->streams[r] != NULL)
            CTRT_TRY(ctrt_stream_wait(dp->compute[0], dp->streams[r]));
    }
    return CTRT_OK;
}

void reduce_end(struct data_parallel *dp, bool failed)
{
    atomic_store(&dp->overlapping, false);
    for (int r = 0; r < dp->n; r++) {
        ctrt_stream_release(&dp->compute[r]);
        if (failed)
            ctrt_stream_release(&dp->streams[r]);
    }
}
