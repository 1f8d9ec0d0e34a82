/* SPDX-License-Identifier: Apache-2.0 */
/* data/samplers.c: the ready samplers. Their random numbers are those of sample -1 (data/random.c), so the order is a
 * function of the seed and the epoch, and no sample has the same numbers. */
#include <inttypes.h>
#include <math.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "data/sampler.h"
#include "parallel/strategy/strategy.h"

struct order {
    int64_t length, count;              /* of the dataset; of an epoch */
    bool replacement, shuffle;
    int rank, world;
    int64_t block;                      /* distributed */
    double weights[];                   /* weighted: with replacement, their running sums */
};

static int64_t order_count(void *state)
{
    return ((const struct order *)state)->count;
}

/* Creates a sampler whose state is a copy of `order` and has room for `weights` weights. */
static ctrt_status order_new(ctrt_sampler **out, const char *name, struct order order, int64_t weights,
                             struct order **state,
                             ctrt_status (*write)(int64_t *, uint64_t, uint64_t, void *))
{
    NULL_CHECK(name, out);
    if (order.length < 0 || order.count < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a length of %" PRId64 " and a count of %" PRId64 "; expected "
                         "0 or more", name, order.length, order.count);
    const size_t bytes = sizeof order + (size_t)weights * sizeof(double);
    struct order *copy = host_calloc(bytes);
    ALLOC_CHECK(copy, bytes, "a sampler");
    *copy = order;
    const ctrt_sampler_functions functions = { .size = sizeof functions, .name = name + sizeof "sampler",
                                               .order = write, .length = order_count, .free = host_free };
    ctrt_status status = ctrt_sampler_new(out, &functions, copy);
    if (status != CTRT_OK)
        host_free(copy);
    else if (state != NULL)
        *state = copy;
    return status;
}

static void write_range(int64_t *indices, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        indices[i] = i;
}

/* Writes `count` <= `length` elements of a random permutation of 0 to length-1 (Fisher and Yates). `indices` has room
 * for `length` elements. */
static void write_permutation(int64_t *indices, int64_t length, int64_t count, ctrt_sample_random *random)
{
    write_range(indices, length);
    for (int64_t i = 0; i < count; i++) {
        const int64_t j = i + (int64_t)ctrt_sample_random_below(random, (uint64_t)(length - i)), other = indices[j];
        indices[j] = indices[i];
        indices[i] = other;
    }
}

static ctrt_status sequential_order(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    (void)seed;
    (void)epoch;
    write_range(indices, ((const struct order *)state)->count);
    return CTRT_OK;
}

ctrt_status ctrt_sampler_sequential(ctrt_sampler **out, int64_t length)
{
    CTRT_TRY(order_new(out, "sampler_sequential", (struct order){ .length = length, .count = length }, 0, NULL,
                       sequential_order));
    (*out)->share = (struct sampler_share){ ORDER_SEQUENTIAL, 1, 1, 0 };
    return CTRT_OK;
}

static ctrt_status random_order(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    const struct order *o = state;
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, seed, epoch, -1);
    if (o->replacement) {
        for (int64_t i = 0; i < o->count; i++)
            indices[i] = (int64_t)ctrt_sample_random_below(&random, (uint64_t)o->length);
        return CTRT_OK;
    }
    int64_t done = 0;
    for (; o->count - done >= o->length && o->length > 0; done += o->length)
        write_permutation(indices + done, o->length, o->length, &random);
    if (done == o->count)
        return CTRT_OK;
    HOST_AUTO int64_t *last = host_alloc((size_t)o->length * sizeof *last);
    ALLOC_CHECK(last, (size_t)o->length * sizeof *last, "the order of an epoch");
    write_permutation(last, o->length, o->count - done, &random);
    memcpy(indices + done, last, (size_t)(o->count - done) * sizeof *last);
    return CTRT_OK;
}

ctrt_status ctrt_sampler_random(ctrt_sampler **out, int64_t length, bool replacement, int64_t count)
{
    if (length == 0 && count > 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_random: %" PRId64 " of 0 indices", count);
    CTRT_TRY(order_new(out, "sampler_random", (struct order){ .length = length, .count = count == 0 ? length : count,
                       .replacement = replacement }, 0, NULL, random_order));
    if (!replacement && (count == 0 || count == length))
        (*out)->share = (struct sampler_share){ ORDER_SHUFFLED, 1, 1, 0 };
    return CTRT_OK;
}

/* ---- weighted ---- */

static ctrt_status weighted_replaced(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    const struct order *o = state;
    const double sum = o->weights[o->length - 1];
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, seed, epoch, -1);
    for (int64_t i = 0; i < o->count; i++) {
        const double x = (double)(ctrt_sample_random_u64(&random) >> 11) * 0x1p-53 * sum;
        int64_t low = 0, high = o->length - 1;          /* the first index whose running sum is above x */
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (o->weights[middle] > x)
                high = middle;
            else
                low = middle + 1;
        }
        while (low > 0 && o->weights[low] == o->weights[low - 1])       /* x rounded up to the sum: not a weight of 0 */
            low--;
        indices[i] = low;
    }
    return CTRT_OK;
}

struct keyed {
    double key;
    int64_t index;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->index > y->index) - (x->index < y->index);
}

/* Efraimidis and Spirakis (2006): the indices with the smallest of exponentially distributed numbers whose rates are
 * the weights, in the order of these numbers. */
static ctrt_status weighted_once(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    const struct order *o = state;
    const size_t bytes = (size_t)o->length * sizeof(struct keyed);
    HOST_AUTO struct keyed *keys = host_alloc(bytes);
    ALLOC_CHECK(keys, bytes, "the order of an epoch");
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, seed, epoch, -1);
    int64_t count = 0;
    for (int64_t i = 0; i < o->length; i++) {
        const double u = ((double)(ctrt_sample_random_u64(&random) >> 11) + 1) * 0x1p-53;
        if (o->weights[i] > 0)
            keys[count++] = (struct keyed){ -log(u) / o->weights[i], i };
    }
    qsort(keys, (size_t)count, sizeof *keys, by_key);
    for (int64_t i = 0; i < o->count; i++)
        indices[i] = keys[i].index;
    return CTRT_OK;
}

ctrt_status ctrt_sampler_weighted(ctrt_sampler **out, const double *weights, int64_t length, int64_t count,
                                  bool replacement)
{
    if (out == NULL || weights == NULL)
        return fail_null("sampler_weighted", out == NULL ? "out" : "weights");
    double sum = 0;
    int64_t positive = 0;
    for (int64_t i = 0; i < length; sum += weights[i++]) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_weighted: weight %" PRId64 " is %g; expected a finite "
                             "number that is not negative", i, weights[i]);
        positive += weights[i] > 0;
    }
    if (length < 1 || count < 1 || !(sum > 0) || isinf(sum))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_weighted: %" PRId64 " indices of %" PRId64 " weights with "
                         "the sum %g; expected at least 1, and a positive finite sum", count, length, sum);
    if (!replacement && count > positive)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sampler_weighted: %" PRId64 " indices without replacement, but "
                         "only %" PRId64 " weights are positive", count, positive);
    struct order *state = NULL;
    CTRT_TRY(order_new(out, "sampler_weighted", (struct order){ .length = length, .count = count }, length, &state,
                       replacement ? weighted_replaced : weighted_once));
    sum = 0;
    for (int64_t i = 0; i < length; i++)
        state->weights[i] = replacement ? (sum += weights[i]) : weights[i];
    return CTRT_OK;
}

/* ---- distributed ---- */

/* Of the list of all ranks, block number b of each rank together is one part, in the order of the ranks. */
static int64_t place_in_all(const struct order *o, int64_t i, int64_t block)
{
    const int64_t begin = i - i % block, size = MIN(block, o->count - begin);
    return (begin * o->world + o->rank * size + i % block) % o->length;
}

static ctrt_status distributed_blocks(int64_t *indices, int64_t batch_size, uint64_t seed, uint64_t epoch, void *state)
{
    const struct order *o = state;
    const int64_t block = o->block > 0 ? o->block : batch_size;
    if (o->count == 0)
        return CTRT_OK;
    HOST_AUTO int64_t *all = NULL;
    if (o->shuffle) {
        all = host_alloc((size_t)o->length * sizeof *all);
        ALLOC_CHECK(all, (size_t)o->length * sizeof *all, "the order of an epoch");
        ctrt_sample_random random;
        ctrt_sample_random_start(&random, seed, epoch, -1);
        write_permutation(all, o->length, o->length, &random);
    }
    for (int64_t i = 0; i < o->count; i++) {
        const int64_t at = place_in_all(o, i, block);
        indices[i] = all == NULL ? at : all[at];
    }
    return CTRT_OK;
}

static ctrt_status distributed_order(int64_t *indices, uint64_t seed, uint64_t epoch, void *state)
{
    return distributed_blocks(indices, MAX(1, ((const struct order *)state)->count), seed, epoch, state);
}

static ctrt_status distributed_new(ctrt_sampler **out, const char *name, struct order order, bool drop_last)
{
    if (order.world < 1 || order.rank < 0 || order.rank >= order.world)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: rank %d of %d ranks", name, order.rank, order.world);
    if (order.block < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a block of %" PRId64 "; expected 0 or more", name,
                         order.block);
    order.count = order.length < 0 ? order.length
                                   : order.length / order.world + (!drop_last && order.length % order.world != 0);
    CTRT_TRY(order_new(out, name, order, 0, NULL, distributed_order));
    (*out)->functions.order_of_batches = distributed_blocks;
    (*out)->share = (struct sampler_share){ order.shuffle ? ORDER_SHUFFLED : ORDER_SEQUENTIAL, order.world,
                                            order.block, 0 };
    return CTRT_OK;
}

ctrt_status ctrt_sampler_distributed(ctrt_sampler **out, int64_t length, int rank, int world, bool shuffle,
                                     bool drop_last)
{
    int32_t shards = 0;
    CTRT_TRY(ctrt_context(strategy_canonical(&shards), "sampler_distributed"));
    return distributed_new(out, "sampler_distributed", (struct order){ .length = length, .shuffle = shuffle,
                           .rank = rank, .world = world, .block = shards > 0 ? 0 : 1 }, drop_last);
}

ctrt_status ctrt_sampler_distributed_blocks(ctrt_sampler **out, int64_t length, int rank, int world, bool shuffle,
                                            bool drop_last, int64_t block)
{
    return distributed_new(out, "sampler_distributed_blocks", (struct order){ .length = length, .shuffle = shuffle,
                           .rank = rank, .world = world, .block = block }, drop_last);
}
