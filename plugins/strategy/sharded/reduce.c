/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/reduce.c: adds up the gradients of all ranks; each rank gets the sum for its shard.
 *
 * The whole gradients of a part are copied to one tensor with one shard per rank of the row, multiplied by this
 * rank's weight, and reduced by reduce_scatter within the row, then by all_reduce over the column. In stage 1,
 * reductions begin after the backward pass has ended. Gradients of passes without reduction stay whole until the
 * next reduction. */
#include "sharded.h"

/* ---- parts ---- */

/* The slot's elements in part->sent: one chunk per rank of the row. */
static ctrt_status sent_chunks(ctrt_tensor **out, const struct sharded_slot *slot, struct sharded_part *part)
{
    CTRT_TRY(ctrt_view_as(out, part->sent, CTRT_SHAPE(sharded_of(slot)->mesh_columns, part->grad_numel)));
    return ctrt_narrow(out, *out, 1, slot->grad_offset, slot->chunk * slot->row);
}

/* Copies `grad` to the slot's chunks, or adds it. Padding is not written, because its sums are not read. */
static ctrt_status chunks_fill(const struct sharded_slot *slot, struct sharded_part *part, ctrt_tensor *grad, bool add)
{
    CTRT_AUTO(tensor) chunks = NULL, to = NULL, flat = NULL, from = NULL;
    const int64_t chunk = slot->chunk * slot->row, numel = slot->rows * slot->row;
    const int64_t whole = chunk > 0 ? numel / chunk : 0;
    CTRT_TRY(ctrt_contiguous(&flat, grad, CTRT_CONTIGUOUS_FORMAT));
    CTRT_TRY(ctrt_view_as(&flat, flat, CTRT_SHAPE(numel)));
    if (part->training == 1) {                  /* its chunks are adjacent */
        CTRT_TRY(ctrt_narrow(&to, part->sent, 0, 0, numel));
        return add ? ctrt_add_(to, flat) : ctrt_copy_(to, flat);
    }
    CTRT_TRY(sent_chunks(&chunks, slot, part));
    if (whole > 0) {
        CTRT_TRY(ctrt_narrow(&to, chunks, 0, 0, whole));
        CTRT_TRY(ctrt_narrow(&from, flat, 0, 0, whole * chunk));
        CTRT_TRY(ctrt_view_as(&from, from, CTRT_SHAPE(whole, chunk)));
        CTRT_TRY(add ? ctrt_add_(to, from) : ctrt_copy_(to, from));
    }
    if (whole * chunk == numel)
        return CTRT_OK;
    CTRT_TRY(ctrt_select(&to, chunks, 0, whole));
    CTRT_TRY(ctrt_narrow(&to, to, 0, 0, numel - whole * chunk));
    CTRT_TRY(ctrt_narrow(&from, flat, 0, whole * chunk, numel - whole * chunk));
    return add ? ctrt_add_(to, from) : ctrt_copy_(to, from);
}

/* If the gradient is alone in its part and needs no padding, part->sent is a view of it, and nothing is copied. */
static ctrt_status sent_alone(bool *done, const struct sharded_slot *slot, struct sharded_part *part, ctrt_tensor *grad)
{
    *done = part->training == 1 && part->sent == NULL && slot->chunk * sharded_of(slot)->mesh_columns == slot->rows
            && ctrt_tensor_is_contiguous(grad, CTRT_CONTIGUOUS_FORMAT);
    return *done ? ctrt_view_as(&part->sent, grad, CTRT_SHAPE(slot->rows * slot->row)) : CTRT_OK;
}

/* Writes the gradient (NULL: zero) plus the gradients of passes without reduction to part->sent. */
static ctrt_status slot_fill(const struct sharded_slot *slot, struct sharded_part *part, ctrt_tensor *grad)
{
    const struct sharded *s = sharded_of(slot);
    CTRT_AUTO(tensor) chunks = NULL;
    bool alone = false;
    if (grad != NULL)
        CTRT_TRY(sent_alone(&alone, slot, part, grad));
    if (part->sent == NULL)
        CTRT_TRY(ctrt_empty(&part->sent, CTRT_SHAPE(s->mesh_columns * part->grad_numel), part->dtype, s->r.device));
    if (grad == NULL) {
        CTRT_TRY(sent_chunks(&chunks, slot, part));
        CTRT_TRY(ctrt_zero_(chunks));
    } else if (!alone) {
        CTRT_TRY(chunks_fill(slot, part, grad, false));
    }
    return slot->local_grad_sum != NULL ? chunks_fill(slot, part, slot->local_grad_sum, true) : CTRT_OK;
}

static struct sharded_part *part_of(struct sharded *s, const struct sharded_slot *slot)
{
    const struct sharded_group *group = &s->groups[slot->group];
    size_t p = group->part;
    while ((size_t)(slot - s->slots) >= s->parts[p].first + s->parts[p].count)
        p++;
    return &s->parts[p];
}

/* ---- reductions ---- */

/* Waits for the group's running reduction. If that was the one within the row, begins the one over the column. */
static ctrt_status group_advance(struct sharded *s, struct sharded_group *group)
{
    const bool column = group->reduce == REDUCE_ROW && s->columns != NULL;
    if (group->reduce == REDUCE_DONE)
        return CTRT_OK;
    STATE_SET(MACHINE_REDUCE, group->reduce, column ? REDUCE_COLUMN : REDUCE_DONE);
    for (size_t p = group->part; p < group->part + group->parts; p++) {
        struct sharded_part *part = &s->parts[p];
        if (part->reduce != NULL)
            CTRT_TRY(ctrt_work_wait(part->reduce));
        ctrt_work_release(&part->reduce);
        ctrt_tensor_release(&part->sent);
        if (column && part->received != NULL)
            CTRT_TRY(ctrt_comm_all_reduce(&part->reduce, s->columns, part->received, CTRT_COMM_SUM));
    }
    return CTRT_OK;
}

static ctrt_status part_launch(struct sharded *s, struct sharded_part *part)
{
    if (part->grad_numel == 0 || part->sent == NULL)
        return CTRT_OK;
    CTRT_TRY(weights_apply(&s->r.weights, part->sent, s->r.size));
    if (s->mesh_columns == 1) {
        part->received = part->sent;
        part->sent = NULL;
        return CTRT_OK;
    }
    CTRT_TRY(ctrt_empty(&part->received, CTRT_SHAPE(part->grad_numel), part->dtype, s->r.device));
    return ctrt_comm_reduce_scatter(&part->reduce, s->reduces, part->received, part->sent, CTRT_COMM_SUM);
}

static ctrt_status group_launch(struct sharded *s, size_t k)
{
    struct sharded_group *group = &s->groups[s->order[s->group_count - 1 - k]];
    for (size_t back = 2; back >= 1; back--)        /* at most one reduction of each kind runs, to bound the memory */
        if (k >= back)
            CTRT_TRY(group_advance(s, &s->groups[s->order[s->group_count - 1 - k + back]]));
    STATE_SET(MACHINE_REDUCE, group->reduce, REDUCE_ROW);
    for (size_t p = group->part; p < group->part + group->parts; p++)
        CTRT_TRY(part_launch(s, &s->parts[p]));
    return CTRT_OK;
}

/* Launches the reductions of complete groups, in order, on a stream of their own, so that the backward pass
 * continues. */
static ctrt_status launch(struct sharded *s)
{
    ctrt_on_stream(s->r.stream)
        while (s->next < s->group_count && s->groups[s->order[s->group_count - 1 - s->next]].waiting == 0)
            CTRT_TRY(group_launch(s, s->next++));
    return CTRT_OK;
}

void sharded_reduce_begin(struct sharded *s)
{
    s->next = 0;
    for (size_t g = 0; g < s->group_count; g++) {
        struct sharded_group *group = &s->groups[g];
        group->waiting = 0;
        for (size_t i = group->first; i < group->first + group->count; i++) {
            group->waiting += s->slots[i].leaf.trains;
            s->slots[i].leaf.arrived = false;
        }
    }
}

void sharded_reduce_cancel(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++)
        STATE_SET(MACHINE_REDUCE, s->groups[g].reduce, REDUCE_NONE);
    for (size_t p = 0; p < s->part_count; p++) {
        struct sharded_part *part = &s->parts[p];
        if (part->reduce != NULL)
            (void)ctrt_work_wait(part->reduce);
        ctrt_work_release(&part->reduce);
        ctrt_tensor_release(&part->sent);
        ctrt_tensor_release(&part->received);
    }
    for (size_t i = 0; i < s->r.leaf_count; i++)
        ctrt_tensor_release(&s->slots[i].local_grad);
    weights_end(&s->r.weights);
}

/* ---- gradients of the shards ---- */

/* Adds `grad` to the gradient of the shard; if there is none, `grad` becomes the gradient. */
static ctrt_status shard_add(struct sharded_slot *slot, ctrt_tensor *grad)
{
    ctrt_tensor *before = ctrt_tensor_grad(slot->leaf.tensor);
    return before != NULL ? ctrt_add_(before, grad) : ctrt_tensor_set_grad(slot->leaf.tensor, grad);
}

static ctrt_status slot_finish(struct sharded_slot *slot, struct sharded_part *part)
{
    CTRT_AUTO(tensor) grad = NULL;
    CTRT_TRY(strategy_part(&grad, part->received, slot->grad_offset, slot->shard));
    return shard_add(slot, grad);
}

/* Waits for all reductions, and adds the sums to the gradients of the shards. used[i + 1]: the number of ranks that use
 * slot i; NULL: all slots are used. */
static ctrt_status reductions_end(struct sharded *s, const double *used)
{
    for (int turn = 0; turn < (s->columns != NULL ? 2 : 1); turn++)
        for (size_t k = 0; k < s->group_count; k++)
            CTRT_TRY(group_advance(s, &s->groups[s->order[s->group_count - 1 - k]]));
    CTRT_TRY(ranks_buffers(&s->r));
    groups_forget(s);
    for (size_t p = 0; p < s->part_count; p++) {
        struct sharded_part *part = &s->parts[p];
        for (size_t i = part->first; i < part->first + part->count; i++)
            if (s->slots[i].leaf.trains && part->received != NULL && (used == NULL || used[i + 1] != 0))
                CTRT_TRY(slot_finish(&s->slots[i], part));
    }
    leaves_unused(&s->r);
    for (size_t i = 0; i < s->r.leaf_count; i++)
        ctrt_tensor_release(&s->slots[i].local_grad_sum);
    CTRT_TRY(weights_clear(&s->r.weights));
    weights_reset(&s->r.weights);
    sharded_reduce_cancel(s);
    return CTRT_OK;
}

ctrt_status sharded_reduce_cut(struct sharded *s)
{
    for (size_t i = 0; i < s->r.leaf_count; i++) {
        struct sharded_slot *slot = &s->slots[i];
        CTRT_AUTO(tensor) own = NULL;
        if (s->r.grads[slot->leaf.parameter] == NULL)
            continue;
        CTRT_TRY(sharded_rows_cut(&own, slot, s->r.grads[slot->leaf.parameter], s->r.device));
        CTRT_TRY(shard_add(slot, own));
    }
    return CTRT_OK;
}

/* ---- the backward pass ---- */

/* All gradients of the group are computed. Frees its parameters, unless some are frozen, because the backward pass may
 * still need these. Ends a backward pass of the program after its last group. */
static ctrt_status group_complete(struct sharded *s, struct sharded_group *group)
{
    if (!group->frozen && s->r.canonical == 0)
        group_forget(s, group);
    if (s->r.local || (s->stage == 1 && s->r.kind == STEP))
        return CTRT_OK;
    if (s->stage > 1)
        CTRT_TRY(launch(s));
    for (size_t g = 0; g < s->group_count; g++)
        if (s->groups[g].waiting > 0)
            return CTRT_OK;
    if (s->r.kind != PROGRAM)
        return CTRT_OK;
    CTRT_TRY(launch(s));
    CTRT_TRY(reductions_end(s, NULL));
    ranks_pass_end(&s->r);
    return CTRT_OK;
}

ctrt_status sharded_reduce_complete(struct sharded *s, struct sharded_group *group)
{
    for (size_t p = group->part; p < group->part + group->parts && !s->r.local; p++) {
        struct sharded_part *part = &s->parts[p];
        for (size_t i = part->first; i < part->first + part->count; i++)
            if (s->slots[i].leaf.trains && !s->slots[i].leaf.arrived)
                CTRT_TRY(slot_fill(&s->slots[i], part, NULL));
    }
    for (size_t i = group->first; i < group->first + group->count; i++)
        s->slots[i].leaf.arrived = true;
    group->waiting = 0;
    return s->r.local || s->stage == 1 ? CTRT_OK : launch(s);
}

static ctrt_status gradient_add(struct sharded *s, struct sharded_slot *slot, ctrt_tensor *grad)
{
    struct sharded_group *group = &s->groups[slot->group];
    slot->leaf.arrived = slot->leaf.used = true;
    if (!s->r.local)
        CTRT_TRY(slot_fill(slot, part_of(s, slot), grad));
    else if (s->r.kind == PROGRAM && slot->local_grad_sum != NULL)
        CTRT_TRY(ctrt_add_(slot->local_grad_sum, grad));
    else
        ctrt_tensor_assign(s->r.kind == PROGRAM ? &slot->local_grad_sum : &slot->local_grad, grad);
    CTRT_TRY(ctrt_tensor_set_grad(slot->leaf.tensor, NULL));
    return --group->waiting == 0 ? group_complete(s, group) : CTRT_OK;
}

ctrt_status sharded_gradient(struct ranks_leaf *leaf, ctrt_tensor *grad)
{
    struct sharded *s = (struct sharded *)leaf->r;
    CTRT_TRY(gradient_arrives(leaf, "call ctrt_parallel_step, or ctrt_forward for each backward pass"));
    return ranks_fail_all(&s->r, gradient_add(s, (struct sharded_slot *)leaf, grad));
}

/* ---- the end of a step ---- */

/* Fails if modules that ran again were not the same on all ranks: if not all of the ranks' hashes, of which `sums` has
 * the sum and the sum of the squares, are equal. Gathers of different modules may then have met. */
static ctrt_status regather_check(const struct sharded *s, const double sums[2])
{
    if (s->r.size * sums[1] == sums[0] * sums[0])
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "a %s ran several times in this step, but on other ranks it ran less or more "
                     "often, or in another order; all ranks must run each module equally often, in the same order",
                     ctrt_module_kind(s->regathered->module));
}

/* Sums over the ranks the loss, times its number, for each slot whether a rank uses it, and the hash of the modules
 * that ran again and its square. */
static ctrt_status stats_reduce(struct sharded *s, ctrt_tensor **mean, ctrt_tensor *loss)
{
    const size_t n = s->r.leaf_count + 3;
    double *used = s->r.stats;
    const bool complete = leaves_stats(&s->r);
    used[n - 2] = s->regathered_hash;
    used[n - 1] = (double)s->regathered_hash * s->regathered_hash;
    /* Each parameter that this rank uses gets a gradient, so a rank that uses all parameters needs no counts. */
    CTRT_TRY(weights_stats(mean, &s->r.weights, s->r.comm, loss, used, n, NULL, !complete || s->regathered != NULL));
    return s->regathered != NULL ? regather_check(s, &used[n - 2]) : CTRT_OK;
}

ctrt_status sharded_reduce_finish(struct sharded *s, ctrt_tensor **mean, ctrt_tensor *loss)
{
    for (size_t k = s->group_count; k-- > 0;)
        CTRT_TRY(sharded_reduce_complete(s, &s->groups[s->order[k]]));
    CTRT_TRY(launch(s));
    CTRT_TRY(weights_find(&s->r.weights));
    CTRT_TRY(stats_reduce(s, mean, loss));
    return reductions_end(s, s->r.stats);
}

ctrt_status sharded_reduce_local(struct sharded *s, ctrt_tensor **loss)
{
    const struct weights_step step = weights_step(&s->r.weights);
    ctrt_no_grad {
        CTRT_TRY(weights_local_loss(loss, &s->r.weights));
        CTRT_TRY(weights_add(&s->r.weights));
        for (size_t i = 0; i < s->r.leaf_count; i++) {
            struct sharded_slot *slot = &s->slots[i];
            if (slot->local_grad_sum == NULL)
                ctrt_tensor_assign(&slot->local_grad_sum, slot->local_grad);
            else if (slot->local_grad != NULL)
                CTRT_TRY(ctrt_add_(slot->local_grad_sum, slot->local_grad));
            ctrt_tensor_release(&slot->local_grad);
        }
    }
    weights_count(&s->r.weights, &step);
    return CTRT_OK;
}
