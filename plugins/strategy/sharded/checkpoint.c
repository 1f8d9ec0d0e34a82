/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/checkpoint.c: checkpoints, and the norm of gradients.
 *
 * Saving gathers whole parameters and states in host memory, or each rank saves its shards to a file of its own. All
 * ranks must save, because they gather or agree. Loading does not communicate: every rank reads its rows. */
#include "sharded.h"

/* ---- modules ---- */

static ctrt_status group_to_host(struct sharded *s, struct sharded_group *group, ctrt_device *cpu)
{
    CTRT_TRY(group_gather(s, group));
    for (size_t i = group->first; i < group->first + group->count; i++)
        CTRT_TRY(ctrt_to_device(&s->slots[i].host, s->slots[i].full, cpu));
    return CTRT_OK;
}

static ctrt_status save_begin(struct sharded *s)
{
    ctrt_device *cpu;
    CTRT_TRY(ranks_buffers(&s->r));
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    for (size_t g = 0; g < s->group_count; g++) {
        const ctrt_status status = group_to_host(s, &s->groups[g], cpu);
        group_forget(s, &s->groups[g]);
        CTRT_TRY(status);
    }
    for (size_t i = 0; i < s->r.leaf_count; i++)
        CTRT_TRY(slot_set(&s->slots[i], SLOT_WHOLE, s->slots[i].host));
    return CTRT_OK;
}

static void hosts_end(struct sharded *s)
{
    slots_shard(s);
    for (size_t i = 0; i < s->r.leaf_count; i++)
        ctrt_tensor_release(&s->slots[i].host);
}

/* ---- optimizers ---- */

static struct sharded_slot *slot_of(struct sharded *s, const ctrt_tensor *tensor)
{
    for (size_t i = 0; i < s->r.leaf_count; i++)
        if (s->slots[i].leaf.tensor == tensor)
            return &s->slots[i];
    return NULL;
}

typedef ctrt_status (*state_visit)(struct sharded *s, struct sharded_slot *slot, ctrt_tensor *state);

/* Calls visit() for each state of a parameter of this strategy, in the order of the optimizer. */
static ctrt_status states_visit(struct sharded *s, ctrt_optimizer *optimizer, state_visit visit)
{
    ctrt_tensor *parameter, *states[CTRT_OPTIMIZER_STATES];
    for (size_t i = 0; ctrt_optimizer_tensors(&parameter, states, optimizer, i) == CTRT_OK; i++) {
        struct sharded_slot *slot = slot_of(s, parameter);
        for (int k = 0; slot != NULL && k < CTRT_OPTIMIZER_STATES && states[k] != NULL; k++)
            CTRT_TRY(visit(s, slot, states[k]));
    }
    return CTRT_OK;
}

/* Replaces a state of the whole parameter, from a file or from before ctrt_parallel_new, by that of the shard. */
static ctrt_status state_cut(struct sharded *s, struct sharded_slot *slot, ctrt_tensor *state)
{
    CTRT_AUTO(tensor) own = NULL;
    bool whole = ctrt_tensor_ndim(state) == slot->ndim;
    for (int i = 0; whole && i < slot->ndim; i++)
        whole = ctrt_tensor_size(state, i) == slot->shape[i];
    if (!whole || (slot->own == slot->rows && slot->ndim > 0))
        return CTRT_OK;
    CTRT_TRY(sharded_rows_cut(&own, slot, state, s->r.device));
    return ctrt_tensor_set_data(state, own);
}

static ctrt_status swap_add(struct sharded *s, ctrt_tensor *tensor)
{
    const size_t bytes = (s->swap_count + 1) * sizeof *s->swaps;
    struct sharded_swap *grown = realloc(s->swaps, bytes);
    CTRT_TRY(strategy_allocated(grown, bytes));
    s->swaps = grown;
    struct sharded_swap *swap = &s->swaps[s->swap_count];
    *swap = (struct sharded_swap){ .tensor = NULL };
    CTRT_TRY(ctrt_detach(&swap->was, tensor));
    swap->tensor = ctrt_tensor_retain(tensor);
    s->swap_count++;
    return CTRT_OK;
}

static void swaps_end(struct sharded *s)
{
    while (s->swap_count > 0) {
        struct sharded_swap *swap = &s->swaps[--s->swap_count];
        (void)ctrt_tensor_set_data(swap->tensor, swap->was);
        ctrt_tensor_release(&swap->tensor);
        ctrt_tensor_release(&swap->was);
    }
    free(s->swaps);
    s->swaps = NULL;
}

/* Writes to *whole a new tensor with the rows of all ranks, of which this rank has `rows`. All ranks call it. */
static ctrt_status rows_gather(ctrt_tensor **whole, struct sharded *s, const struct sharded_slot *slot,
                               ctrt_tensor *rows)
{
    CTRT_AUTO(tensor) flat = NULL, own = NULL, all = NULL;
    const int64_t chunk = slot->chunk * slot->row, numel = slot->own * slot->row;
    const ctrt_dtype dtype = ctrt_tensor_dtype(rows);
    CTRT_TRY(ctrt_zeros(&flat, CTRT_SHAPE(chunk), dtype, s->r.device));
    CTRT_TRY(ctrt_narrow(&own, flat, 0, 0, numel));
    CTRT_TRY(ctrt_view_as(&own, own, ctrt_ints_of(ctrt_tensor_shape(rows), ctrt_tensor_ndim(rows))));
    if (numel > 0)
        CTRT_TRY(ctrt_copy_(own, rows));
    CTRT_TRY(ctrt_empty(&all, CTRT_SHAPE(s->mesh_columns * chunk), dtype, s->r.device));
    if (chunk > 0)
        CTRT_TRY(ctrt_comm_all_gather(NULL, s->gathers, all, flat));
    CTRT_TRY(ctrt_narrow(whole, all, 0, 0, slot->rows * slot->row));
    return ctrt_view_as(whole, *whole, ctrt_ints_of(slot->shape, slot->ndim));
}

/* Gathers a state in host memory; swaps_end makes it the shard again. All ranks call it. */
static ctrt_status state_gather(struct sharded *s, struct sharded_slot *slot, ctrt_tensor *state)
{
    CTRT_AUTO(tensor) whole = NULL;
    ctrt_device *cpu;
    CTRT_TRY(state_cut(s, slot, state));                    /* if it is whole, before the optimizer's first step */
    if (slot->chunk * slot->row == 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(rows_gather(&whole, s, slot, state));
    CTRT_TRY(ctrt_to_device(&whole, whole, cpu));
    CTRT_TRY(swap_add(s, state));
    return ctrt_tensor_set_data(state, whole);
}

/* ---- the norm of the gradients ---- */

/* In canonical mode the norm is computed from whole gradients, because the order of the additions in a sum depends on
 * the number of elements. */
static bool norm_of_whole(const struct sharded *s)
{
    return s->r.canonical > 0 || s->mesh_columns == 1;
}

static ctrt_status gradient_gather(struct sharded *s, ctrt_module_gradient *gradient)
{
    const struct sharded_slot *slot = slot_of(s, gradient->parameter);
    if (slot == NULL || s->r.canonical == 0 || s->mesh_columns == 1)
        return CTRT_OK;
    return rows_gather(&gradient->whole, s, slot, ctrt_tensor_grad(gradient->parameter));
}

/* ---- parts ---- */

static void rows_describe(struct sharded *s, ctrt_module_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        ctrt_module_place *place = &rows->places[i];
        const struct sharded_slot *slot = slot_of(s, place->tensor);
        if (slot == NULL)
            continue;
        place->divided = true;
        place->ndim = slot->ndim;
        memcpy(place->shape, slot->shape, sizeof place->shape);
        place->first = slot->first * slot->row;
    }
}

/* If the ranks save parts, each of the mesh's first row writes one. */
static ctrt_status parts_describe(struct sharded *s, ctrt_module_parts *parts)
{
    if (!s->save_parts)
        return CTRT_OK;
    if (parts->count != 0 && (parts->count != s->mesh_columns || parts->part != s->column))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the module has another net that is divided over other ranks, so they "
                         "cannot save parts together; save the nets one by one");
    parts->count = s->mesh_columns;
    parts->part = s->column;
    parts->write = s->r.rank < s->mesh_columns;
    CTRT_TRY(pass_check(s));
    return parts->optimizer != NULL ? states_visit(s, parts->optimizer, state_cut) : CTRT_OK;
}

static ctrt_status parts_agree(struct sharded *s, ctrt_module_agreement *agreement)
{
    int64_t numbers[2];
    ctrt_status status = agreement->status;
    s->r.refused = -1;
    agreement->status = verify_ready(&s->r, status);
    if (agreement->status != CTRT_OK)
        return s->r.refused >= 0 ? agreement->status : ranks_fail_all(&s->r, agreement->status);
    memcpy(numbers, agreement->numbers, sizeof numbers);
    agreement->status = ranks_fail_all(&s->r, exchange_numbers(&s->r, EXCHANGE_BROADCAST, numbers, 2, 0));
    memcpy(agreement->numbers, numbers, sizeof numbers);
    return agreement->status;
}

/* ---- events ---- */

void checkpoint_end(struct sharded *s)
{
    hosts_end(s);
    swaps_end(s);
}

static ctrt_status begin(struct sharded *s, ctrt_module_event event, ctrt_optimizer *optimizer)
{
    switch (event) {
    case CTRT_MODULE_SAVE_BEGIN:           return save_begin(s);
    case CTRT_MODULE_OPTIMIZER_SAVE_BEGIN: return states_visit(s, optimizer, state_gather);
    case CTRT_MODULE_STEP_BEGIN:           return states_visit(s, optimizer, state_cut);
    default:                               return CTRT_OK;          /* loads */
    }
}

static ctrt_status event_run(struct sharded *s, ctrt_module_event event, void *argument)
{
    ctrt_status status = CTRT_OK;
    switch (event) {
    case CTRT_MODULE_SAVE_BEGIN:
    case CTRT_MODULE_LOAD_BEGIN:
    case CTRT_MODULE_STEP_BEGIN:
    case CTRT_MODULE_OPTIMIZER_SAVE_BEGIN:
    case CTRT_MODULE_OPTIMIZER_LOAD_BEGIN:
        CTRT_TRY(pass_check(s));
        status = begin(s, event, argument);
        if (status != CTRT_OK)
            checkpoint_end(s);
        /* The gathers of the other ranks must not meet those of this rank's next call. */
        if (event == CTRT_MODULE_SAVE_BEGIN || event == CTRT_MODULE_OPTIMIZER_SAVE_BEGIN)
            return ranks_fail_all(&s->r, status);
        return status;
    case CTRT_MODULE_ROWS:
        rows_describe(s, argument);
        return CTRT_OK;
    case CTRT_MODULE_SAVE_PARTS:
        return parts_describe(s, argument);
    case CTRT_MODULE_AGREE:
        return parts_agree(s, argument);
    case CTRT_MODULE_GRAD_NORM:
        return norm_of_whole(s) ? CTRT_OK : ctrt_comm_all_reduce(NULL, s->gathers, argument, CTRT_COMM_SUM);
    case CTRT_MODULE_GRAD_WHOLE:
        return gradient_gather(s, argument);
    case CTRT_MODULE_FOUND_INF:
        return s->mesh_columns > 1 ? ctrt_comm_all_reduce(NULL, s->gathers, argument, CTRT_COMM_MAX) : CTRT_OK;
    case CTRT_MODULE_OPTIMIZER_END:
        return CTRT_OK;
    default:
        checkpoint_end(s);
        return CTRT_OK;
    }
}

ctrt_status checkpoint_event(void *self, ctrt_module_event event, void *argument)
{
    ctrt_no_grad CTRT_TRY(event_run(self, event, argument));
    return CTRT_OK;
}
