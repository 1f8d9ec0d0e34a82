/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/gather.c: gathers the parameters of groups, in an order on which all ranks have agreed.
 *
 * The sequence has the groups in the order of the forward pass. If a backward pass follows, the groups that are freed
 * after their forward pass come again in reverse order. When a module needs its group, the gathers up to this group are
 * issued, and one more, which runs in the background while the module computes. */
#include "sharded.h"

#define NOWHERE SIZE_MAX

/* ---- one group ---- */

static ctrt_status group_issue(struct sharded *s, struct sharded_group *group)
{
    if (group->gather != GATHER_NONE)
        return CTRT_OK;
    STATE_SET(MACHINE_GATHER, group->gather, GATHER_ISSUED);
    for (size_t p = group->part; p < group->part + group->parts; p++) {
        struct sharded_part *part = &s->parts[p];
        if (s->mesh_columns == 1 || part->numel == 0)
            continue;
        CTRT_TRY(ctrt_empty(&part->flat, CTRT_SHAPE(s->mesh_columns * part->numel), part->dtype, s->r.device));
        CTRT_TRY(ctrt_comm_all_gather(&part->gather, s->gathers, part->flat, part->shard));
    }
    return CTRT_OK;
}

/* Sets slot->full to the whole parameter. If the parameter is alone in its part, `full` is a view of the gather's
 * output, otherwise a copy. */
static ctrt_status slot_full(struct sharded *s, struct sharded_slot *slot, struct sharded_part *part)
{
    CTRT_AUTO(tensor) memory = NULL, to = NULL, from = NULL;
    const int64_t ranks = s->mesh_columns, chunk = slot->chunk * slot->row;
    if (s->mesh_columns == 1 || part->numel == 0 || part->count == 1) {
        ctrt_tensor_assign(&memory, part->flat != NULL ? part->flat : part->shard);
        if (part->flat == NULL)
            CTRT_TRY(ctrt_narrow(&memory, memory, 0, slot->offset, slot->rows * slot->row));
    } else {
        CTRT_TRY(ctrt_empty(&memory, CTRT_SHAPE(ranks * chunk), part->dtype, s->r.device));
        CTRT_TRY(ctrt_view_as(&to, memory, CTRT_SHAPE(ranks, chunk)));
        CTRT_TRY(ctrt_view_as(&from, part->flat, CTRT_SHAPE(ranks, part->numel)));
        CTRT_TRY(ctrt_narrow(&from, from, 1, slot->offset, chunk));
        CTRT_TRY(ctrt_copy_(to, from));
    }
    CTRT_TRY(ctrt_narrow(&slot->full, memory, 0, 0, slot->rows * slot->row));
    CTRT_TRY(ctrt_view_as(&slot->full, slot->full, ctrt_ints_of(slot->shape, slot->ndim)));
    /* By the version, a backward pass detects that the shards have changed since the forward pass. */
    ctrt_tensor_set_version(slot->full, ctrt_tensor_version(part->shard));
    return CTRT_OK;
}

static ctrt_status group_receive(struct sharded *s, struct sharded_group *group)
{
    if (group->gather != GATHER_ISSUED)
        return CTRT_OK;
    for (size_t p = group->part; p < group->part + group->parts; p++) {
        struct sharded_part *part = &s->parts[p];
        if (part->gather != NULL)
            CTRT_TRY(ctrt_work_wait(part->gather));
        ctrt_work_release(&part->gather);
        for (size_t i = part->first; i < part->first + part->count; i++)
            CTRT_TRY(slot_full(s, &s->slots[i], part));
        ctrt_tensor_release(&part->flat);
    }
    STATE_SET(MACHINE_GATHER, group->gather, GATHER_GATHERED);
    return CTRT_OK;
}

ctrt_status group_gather(struct sharded *s, struct sharded_group *group)
{
    ctrt_no_grad {
        CTRT_TRY(group_issue(s, group));
        CTRT_TRY(group_receive(s, group));
    }
    return CTRT_OK;
}

/* ---- the order ---- */

static void sequence_add(struct sharded *s, size_t g, size_t *index)
{
    *index = s->sequence_count;
    s->sequence[s->sequence_count++] = g;
}

ctrt_status sequence_begin(struct sharded *s, bool backward)
{
    if (s->order_state == ORDER_RECORDED)           /* groups whose modules did not run on rank 0 come last */
        CTRT_TRY(exchange_order(&s->r, s->order, s->group_count, s->recorded, s->recorded_count));
    if (s->order_state != ORDER_AGREED)
        STATE_SET(MACHINE_ORDER, s->order_state, s->order_state + 1);
    s->regathered = NULL;
    s->regathered_hash = 0;
    s->sequence_count = s->issued = 0;
    for (size_t k = 0; k < s->group_count; k++)
        sequence_add(s, s->order[k], &s->groups[s->order[k]].forward_index);
    s->forward_count = s->sequence_count;
    for (size_t k = s->group_count; k-- > 0;) {
        struct sharded_group *group = &s->groups[s->order[k]];
        group->backward_index = NOWHERE;
        if (backward && !group->keep)
            sequence_add(s, s->order[k], &group->backward_index);
    }
    for (size_t g = 0; g < s->group_count; g++) {
        struct sharded_group *group = &s->groups[g];
        group->first_call = group->last_call = 0;
    }
    return CTRT_OK;
}

/* ---- passes ---- */

static ctrt_status issue_until(struct sharded *s, size_t end)
{
    ctrt_no_grad
        while (s->issued < end)
            CTRT_TRY(group_issue(s, &s->groups[s->sequence[s->issued++]]));
    return CTRT_OK;
}

/* The gathers of modules that run again are in no sequence, so that the ranks do not know of those of each other. */
static void regather_note(struct sharded *s, const struct sharded_group *group)
{
    if (group->gather != GATHER_NONE)
        return;
    s->regathered = group;
    s->regathered_hash = (s->regathered_hash * 31 + (uint32_t)(group - s->groups) + 1) & 0xfffff;
}

static ctrt_status regather_explain(const struct sharded *s, ctrt_status status)
{
    if (status == CTRT_OK || s->regathered == NULL)
        return status;
    return ctrt_context(status, "a %s ran several times in this pass, and was gathered again; all ranks must run each "
                        "module equally often, in the same order", ctrt_module_kind(s->regathered->module));
}

ctrt_status sequence_open(struct sharded *s, struct sharded_group *group, bool backward)
{
    const size_t end = backward ? s->sequence_count : s->forward_count;
    const size_t index = backward ? group->backward_index : group->forward_index;
    if (group->gather == GATHER_OPEN)
        return CTRT_OK;
    if (index != NOWHERE)
        CTRT_TRY(regather_explain(s, issue_until(s, index + 2 < end ? index + 2 : end)));
    regather_note(s, group);
    CTRT_TRY(regather_explain(s, group_gather(s, group)));
    return group_open(s, group);
}

ctrt_status sequence_turn(struct sharded *s)
{
    return s->forward_count < s->sequence_count ? issue_until(s, s->forward_count + 1) : CTRT_OK;
}

ctrt_status sequence_end(struct sharded *s, bool backward)
{
    const size_t end = backward ? s->sequence_count : s->forward_count;
    while (s->issued < end) {
        struct sharded_group *group = &s->groups[s->sequence[s->issued]];
        CTRT_TRY(issue_until(s, s->issued + 1));
        if (!group->keep || backward)
            group_forget(s, group);
    }
    for (size_t g = 0; g < s->group_count; g++) {
        struct sharded_group *group = &s->groups[g];
        if (group->gather != GATHER_OPEN && (!group->keep || backward))
            group_forget(s, group);
    }
    return CTRT_OK;
}
