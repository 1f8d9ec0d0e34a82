/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/canonical.c: steps whose result does not depend on the number of ranks.
 *
 * The batch is the rows of all ranks, one after the other. It is cut into shards as on one device, and each rank
 * computes those of its own rows. Rank 0 adds the sums of all ranks up in one tree, and broadcasts the result. */
#include "ranks.h"

enum { ROWS, SEED, OFFSET, FIELDS };        /* numbers that the ranks exchange before a step */
/* In front of the flags of tensors that are not NULL: gradients, loss, weight of the loss. */
enum { LEVEL, INDEX, RANDOM, LOSS_DTYPE, LOSS_DIMS, LOSS_KIND, LOSS_PARTS, LOSS_PER_ROW, HEADER };

struct plan {
    int64_t *ranks;                         /* FIELDS per rank */
    int64_t *sizes;                         /* rows of each shard */
    int64_t rows;                           /* of the whole batch */
    ctrt_shard_range range;                 /* of this rank */
    ctrt_loss_part total;                   /* of the shards so far, without the weight */
    int64_t *header;                        /* HEADER + parameters + 2 */
};

static size_t header_count(const struct ranks *r)
{
    return HEADER + r->parameters + 2;
}

/* ---- which rank computes which shards ---- */

/* Finds the shard that begins with row `from`. Rows that are not whole shards fail on all ranks. */
static ctrt_status shard_at(int64_t *shard, const struct plan *plan, int rank, int64_t from)
{
    int64_t at = 0;
    for (*shard = 0; at < from; (*shard)++)
        at += plan->sizes[*shard];
    if (at == from)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_SHAPE, "canonical mode: the rows of rank %d begin with row %lld of %lld, in the middle "
                     "of shard %lld of %lld (rows %lld to %lld); give each rank whole shards, for example equal parts "
                     "and a multiple of the number of ranks as CTRT_CANONICAL",
                     rank, (long long)from, (long long)plan->rows, (long long)*shard - 1, (long long)plan->range.total,
                     (long long)(at - plan->sizes[*shard - 1]), (long long)at - 1);
}

static ctrt_status plan_shards(struct ranks *r, struct plan *plan)
{
    int total = 0;
    int64_t from = 0;
    for (int rank = 0; rank < r->size; rank++)
        plan->rows += plan->ranks[rank * FIELDS + ROWS];
    if (plan->rows == 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "canonical mode: no rank has rows");
    CTRT_TRY(strategy_cut(plan->sizes, &total, plan->rows, r->canonical, NULL));
    plan->range = (ctrt_shard_range){
        .sizes = plan->sizes, .total = total, .seeded = r->distinct,
        .seed = (uint64_t)plan->ranks[SEED], .offset = (uint64_t)plan->ranks[OFFSET],
    };
    for (int rank = 0; rank < r->size; rank++) {
        int64_t first, end;
        CTRT_TRY(shard_at(&first, plan, rank, from));
        from += plan->ranks[rank * FIELDS + ROWS];
        if (rank != r->rank)
            continue;
        plan->range.first = first;
        CTRT_TRY(shard_at(&end, plan, rank + 1, from));
        plan->range.count = end - first;
    }
    return CTRT_OK;
}

static ctrt_status plan_make(struct ranks *r, struct plan *plan, int64_t rows)
{
    uint64_t seed, offset;
    CTRT_TRY(ctrt_generator_get(r->device, &seed, &offset));
    const int64_t own[FIELDS] = { rows, (int64_t)seed, (int64_t)offset };
    CTRT_TRY(ALLOCATE(plan->ranks, (size_t)r->size * FIELDS));
    CTRT_TRY(ALLOCATE(plan->sizes, (size_t)r->canonical + 1));
    CTRT_TRY(ALLOCATE(plan->header, header_count(r)));
    CTRT_TRY(gather_numbers(r, plan->ranks, own, FIELDS));
    return plan_shards(r, plan);
}

static void plan_free(struct plan *plan)
{
    free(plan->ranks);
    free(plan->sizes);
    free(plan->header);
}

/* ---- sums of all ranks ---- */

static void header_write(const struct ranks *r, struct plan *plan, ctrt_tensor *const *tensors)
{
    const ctrt_tensor *loss = tensors[r->parameters];
    plan->header[LOSS_DTYPE] = loss != NULL ? (int64_t)ctrt_tensor_dtype(loss) : 0;
    plan->header[LOSS_DIMS] = loss != NULL ? ctrt_tensor_ndim(loss) : 0;
    plan->header[LOSS_KIND] = plan->total.kind;
    plan->header[LOSS_PARTS] = plan->total.parts;
    plan->header[LOSS_PER_ROW] = (int64_t)plan->total.per_row;
    for (size_t i = 0; i <= r->parameters + 1; i++)
        plan->header[HEADER + i] = tensors[i] != NULL;
}

/* Creates the tensors that a header announces. */
static ctrt_status header_read(const struct ranks *r, const struct plan *plan, ctrt_tensor **tensors)
{
    static const int64_t ones[CTRT_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    for (size_t i = 0; i <= r->parameters + 1; i++) {
        const bool loss = i == r->parameters, weight = i > r->parameters;
        ctrt_tensor_release(&tensors[i]);
        if (plan->header[HEADER + i] == 0)
            continue;
        if (loss && (plan->header[LOSS_DIMS] < 0 || plan->header[LOSS_DIMS] > CTRT_MAX_DIMS))
            return ctrt_fail(CTRT_ERR_STATE, "another rank has sent a loss with %lld dimensions",
                             (long long)plan->header[LOSS_DIMS]);
        if (loss || weight) {
            CTRT_TRY(ctrt_empty(&tensors[i], ctrt_ints_of(ones, loss ? (int)plan->header[LOSS_DIMS] : 0),
                                loss ? (ctrt_dtype)plan->header[LOSS_DTYPE] : CTRT_F64, r->device));
            continue;
        }
        const ctrt_tensor *like = r->tensors[i];
        CTRT_TRY(ctrt_empty(&tensors[i], strategy_shape(like), ctrt_tensor_dtype(like), r->device));
    }
    return CTRT_OK;
}

/* Moves all sums of this rank to rank 0. */
static ctrt_status sums_send(struct ranks *r, struct plan *plan, ctrt_sum_tree *sum, ctrt_tensor **tensors)
{
    for (;;) {
        int level = -1;
        int64_t index = 0;
        CTRT_TRY(ctrt_sum_tree_take(sum, &level, &index, tensors));
        plan->header[LEVEL] = level;
        plan->header[INDEX] = index;
        plan->header[RANDOM] = plan->range.random;
        header_write(r, plan, tensors);
        CTRT_TRY(exchange_numbers(r, EXCHANGE_SEND, plan->header, header_count(r), 0));
        if (level < 0)
            return CTRT_OK;
        CTRT_TRY(exchange(r, EXCHANGE_SEND, tensors, r->parameters + 2, 0));
        ctrt_tensors_release(tensors, r->parameters + 2);
    }
}

/* The last header of a rank has the kind of its losses. */
static ctrt_status total_add(struct plan *plan)
{
    ctrt_loss_part part = { .kind = (int32_t)plan->header[LOSS_KIND], .parts = (int32_t)plan->header[LOSS_PARTS],
                            .per_row = (double)plan->header[LOSS_PER_ROW] };
    return plan->header[LEVEL] < 0 ? ctrt_loss_part_add(&plan->total, &part) : CTRT_OK;
}

static ctrt_status sums_receive(struct ranks *r, struct plan *plan, ctrt_sum_tree *sum, ctrt_tensor **tensors,
                                int rank)
{
    for (;;) {
        CTRT_TRY(exchange_numbers(r, EXCHANGE_RECV, plan->header, header_count(r), rank));
        plan->range.random = plan->range.random || plan->header[RANDOM] != 0;
        CTRT_TRY(total_add(plan));
        if (plan->header[LEVEL] < 0)
            return CTRT_OK;
        CTRT_TRY(header_read(r, plan, tensors));
        CTRT_TRY(exchange(r, EXCHANGE_RECV, tensors, r->parameters + 2, rank));
        CTRT_TRY(ctrt_sum_tree_put(sum, (int)plan->header[LEVEL], plan->header[INDEX], tensors));
    }
}

/* Combines the sums on rank 0 and broadcasts the result to tensors[parameters + 2]. */
static ctrt_status sums_combine(struct ranks *r, struct plan *plan, ctrt_sum_tree *sum, ctrt_tensor **tensors)
{
    if (r->rank > 0) {
        CTRT_TRY(sums_send(r, plan, sum, tensors));
    } else {
        for (int rank = 1; rank < r->size; rank++)
            CTRT_TRY(sums_receive(r, plan, sum, tensors, rank));
        CTRT_TRY(ctrt_sum_tree_result(tensors, sum));
        plan->header[RANDOM] = plan->range.random;
        header_write(r, plan, tensors);
    }
    CTRT_TRY(exchange_numbers(r, EXCHANGE_BROADCAST, plan->header, header_count(r), 0));
    if (r->rank > 0)
        CTRT_TRY(header_read(r, plan, tensors));
    return exchange(r, EXCHANGE_BROADCAST, tensors, r->parameters + 2, 0);
}

/* ---- steps ---- */

/* All ranks get the buffers of the first shard, and the generators continue after the numbers of all shards. */
static ctrt_status state_end(struct ranks *r, struct plan *plan)
{
    int first = 0;
    plan->range.random = plan->header[RANDOM] != 0;
    while (plan->ranks[first * FIELDS + ROWS] == 0)
        first++;
    if (r->broadcast_buffers)
        CTRT_TRY(exchange(r, EXCHANGE_BROADCAST, r->tensors + r->parameters, r->count - r->parameters, first));
    return strategy_shards_end(CTRT_OK, r->device, &plan->range);
}

static ctrt_status step_planned(struct ranks *r, struct plan *plan, ctrt_tensor **loss, ctrt_sum_tree *sum,
                                const ctrt_strategy_batch *batch)
{
    ctrt_strategy_batch whole = *batch;
    whole.rows = plan->rows;
    whole.partial = (int16_t)(batch->partial & CTRT_PARTIAL_STEPS);        /* the rows are those of all ranks */
    if (plan->range.count > 0)
        CTRT_TRY(ctrt_shards_backward(sum, r->module, r->device, &whole, &plan->range));
    plan->total = (ctrt_loss_part){ .kind = plan->range.kind, .parts = plan->range.parts,
                                    .per_row = plan->range.per_row };
    CTRT_TRY(sums_combine(r, plan, sum, r->grads));
    CTRT_TRY(state_end(r, plan));
    ctrt_loss_part total = { .kind = (int32_t)plan->header[LOSS_KIND], .parts = 1,
                             .per_row = (double)plan->header[LOSS_PER_ROW], .weight = r->grads[r->parameters + 1] };
    *loss = r->grads[r->parameters];
    r->grads[r->parameters] = r->grads[r->parameters + 1] = NULL;
    return ctrt_step_finish(loss, r->module, r->before, r->grads, &total, &whole);
}

ctrt_status canonical_step(struct ranks *r, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct plan plan = { .rows = 0 };
    ctrt_sum_tree *sum = NULL;
    ctrt_status status = plan_make(r, &plan, batch->rows);
    if (status == CTRT_OK)
        status = ctrt_sum_tree_new(&sum, plan.range.total, r->parameters + 2, r->device);
    if (status == CTRT_OK)
        status = step_planned(r, &plan, loss, sum, batch);
    ctrt_sum_tree_release(&sum);
    ctrt_tensors_release(r->grads, r->parameters + 2);
    plan_free(&plan);
    return status;
}
