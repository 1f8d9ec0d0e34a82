/* SPDX-License-Identifier: Apache-2.0 */
/* data/sampler.c: samplers: tables of functions with a state, and batch samplers. */
#include "data/sampler.h"

#include <inttypes.h>

#include "base/base.h"
#include "base/host_alloc.h"

static ctrt_status sampler_check_functions(const ctrt_sampler_functions *f)
{
    if (f->length == NULL || f->order == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_new: the function %s is NULL",
                         f->length == NULL ? "length" : "order");
    const int batch = (f->batch_count != NULL) + (f->largest_batch != NULL) + (f->batches != NULL);
    if (batch != 0 && batch != 3)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_new: a batch sampler has all of batch_count, "
                         "largest_batch and batches; other samplers have none");
    return CTRT_OK;
}

ctrt_status ctrt_sampler_new(ctrt_sampler **out, const ctrt_sampler_functions *functions, void *state)
{
    if (out == NULL || functions == NULL)
        return fail_null("sampler_new", out == NULL ? "out" : "functions");
    if (functions->size <= offsetof(ctrt_sampler_functions, order))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_new: functions.size is %zu; expected sizeof "
                         "(ctrt_sampler_functions)", functions->size);
    ctrt_sampler_functions known = { 0 };
    memcpy(&known, functions, MIN(functions->size, sizeof known));
    CTRT_TRY(sampler_check_functions(&known));
    ctrt_sampler *sampler = host_calloc(sizeof *sampler);
    known.name = host_strdup(known.name == NULL ? "sampler" : known.name);
    if (sampler == NULL || known.name == NULL) {
        host_free(sampler);
        host_free((char *)known.name);
        return out_of_memory(sizeof *sampler, "a sampler");
    }
    atomic_init(&sampler->refs, 1);
    sampler->functions = known;
    sampler->state = state;
    ctrt_sampler_release(out);
    *out = sampler;
    return CTRT_OK;
}

ctrt_sampler *ctrt_sampler_retain(ctrt_sampler *sampler)
{
    if (sampler != NULL)
        atomic_fetch_add(&sampler->refs, 1);
    return sampler;
}

void ctrt_sampler_release(ctrt_sampler **sampler)
{
    if (sampler == NULL || *sampler == NULL)
        return;
    ctrt_sampler *old = *sampler;
    *sampler = NULL;
    if (atomic_fetch_sub(&old->refs, 1) != 1)
        return;
    if (old->functions.free != NULL)
        old->functions.free(old->state);
    host_free((char *)old->functions.name);
    host_free(old);
}

int64_t ctrt_sampler_length(const ctrt_sampler *sampler)
{
    return sampler == NULL ? 0 : sampler->functions.length(sampler->state);
}

int64_t ctrt_sampler_batches(const ctrt_sampler *sampler)
{
    return sampler == NULL || !sampler_forms_batches(sampler) ? 0 : sampler->functions.batch_count(sampler->state);
}

static ctrt_status check_sizes(const int64_t *sizes, const ctrt_sampler *sampler)
{
    const int64_t largest = sampler_largest_batch(sampler), batches = ctrt_sampler_batches(sampler);
    int64_t sum = 0;
    for (int64_t b = 0; b < batches; sum += sizes[b++])
        if (sizes[b] < 1 || sizes[b] > largest)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler \"%s\": batch %" PRId64 " has %" PRId64 " samples; "
                             "expected 1 to %" PRId64 ", its largest batch", sampler->functions.name, b, sizes[b],
                             largest);
    if (sum != ctrt_sampler_length(sampler))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler \"%s\": its batches have %" PRId64 " samples, its length "
                         "is %" PRId64, sampler->functions.name, sum, ctrt_sampler_length(sampler));
    return CTRT_OK;
}

ctrt_status ctrt_sampler_order(int64_t *indices, int64_t *sizes, ctrt_sampler *sampler, uint64_t seed, uint64_t epoch)
{
    NULL_CHECK("sampler_order", sampler);
    if (indices == NULL && ctrt_sampler_length(sampler) > 0)
        return fail_null("sampler_order", "indices");
    CTRT_TRY(sampler->functions.order(indices, seed, epoch, sampler->state));
    if (sizes == NULL || !sampler_forms_batches(sampler))
        return CTRT_OK;
    CTRT_TRY(sampler->functions.batches(sizes, seed, epoch, sampler->state));
    return check_sizes(sizes, sampler);
}

/* ---- batches of one size ---- */

struct batched {
    ctrt_sampler *sampler;
    int64_t batch_size;
    bool drop_last;
};

static int64_t batched_count(void *state)
{
    const struct batched *b = state;
    const int64_t length = ctrt_sampler_length(b->sampler);
    return length / b->batch_size + (!b->drop_last && length % b->batch_size != 0);
}

static int64_t batched_length(void *state)
{
    const struct batched *b = state;
    const int64_t length = ctrt_sampler_length(b->sampler);
    return b->drop_last ? length - length % b->batch_size : length;
}

static int64_t batched_largest(void *state)
{
    const struct batched *b = state;
    return MIN(b->batch_size, MAX(1, ctrt_sampler_length(b->sampler)));
}

static ctrt_status order_of_batches(int64_t *indices, const struct batched *b, uint64_t seed, uint64_t epoch)
{
    const ctrt_sampler_functions *functions = &b->sampler->functions;
    if (functions->order_of_batches == NULL)
        return ctrt_sampler_order(indices, NULL, b->sampler, seed, epoch);
    return functions->order_of_batches(indices, b->batch_size, seed, epoch, b->sampler->state);
}

static ctrt_status batched_order(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    const struct batched *b = state;
    const int64_t length = ctrt_sampler_length(b->sampler), kept = batched_length(state);
    if (length == kept)
        return order_of_batches(indices, b, seed, epoch);
    HOST_AUTO int64_t *all = host_alloc((size_t)length * sizeof *all);
    ALLOC_CHECK(all, (size_t)length * sizeof *all, "the order of an epoch");
    CTRT_TRY(order_of_batches(all, b, seed, epoch));
    if (kept > 0)
        memcpy(indices, all, (size_t)kept * sizeof *all);
    return CTRT_OK;
}

static ctrt_status batched_sizes(int64_t *sizes, uint64_t seed, uint64_t epoch, void *state)
{
    const struct batched *b = state;
    const int64_t length = batched_length(state);
    (void)seed;
    (void)epoch;
    for (int64_t begin = 0; begin < length; begin += b->batch_size)
        *sizes++ = MIN(b->batch_size, length - begin);
    return CTRT_OK;
}

static void batched_free(void *state)
{
    struct batched *b = state;
    ctrt_sampler_release(&b->sampler);
    host_free(b);
}

ctrt_status ctrt_sampler_batch(ctrt_sampler **out, ctrt_sampler *sampler, int64_t batch_size, bool drop_last)
{
    if (out == NULL || sampler == NULL)
        return fail_null("sampler_batch", out == NULL ? "out" : "sampler");
    if (batch_size < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_batch: batch_size is %" PRId64 "; expected at least 1",
                         batch_size);
    if (sampler_forms_batches(sampler))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_batch: \"%s\" forms batches already",
                         sampler->functions.name);
    static const ctrt_sampler_functions functions = {
        .size = sizeof functions, .name = "batch", .length = batched_length, .order = batched_order,
        .batch_count = batched_count, .largest_batch = batched_largest, .batches = batched_sizes, .free = batched_free
    };
    struct batched *b = host_alloc(sizeof *b);
    ALLOC_CHECK(b, sizeof *b, "a sampler");
    *b = (struct batched){ .sampler = ctrt_sampler_retain(sampler), .batch_size = batch_size, .drop_last = drop_last };
    struct sampler_share share = sampler->share;
    ctrt_status status = ctrt_sampler_new(out, &functions, b);
    share.batch_size = batch_size;
    if (status != CTRT_OK)
        batched_free(b);
    else
        (*out)->share = share;
    return status;
}
