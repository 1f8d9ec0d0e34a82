/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/group.c: divides the parameters into groups, creates their shards, and replaces the shards
 * by the gathered parameters and back. */
#include "sharded.h"

#define MOST_GROUPS 65535                   /* hooks.c has 16 bits for the number */

/* ---- division ---- */

struct division {
    struct sharded *s;
    ctrt_module **modules;                  /* of the groups */
    size_t count;
    size_t *owner;                          /* of each parameter: its group */
};

static ctrt_status modules_add(struct division *d, ctrt_module *module)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->modules[i] == module)
            return CTRT_OK;
    if (d->count == MOST_GROUPS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "more than %d modules with parameters", MOST_GROUPS);
    d->modules[d->count++] = module;
    return CTRT_OK;
}

/* Gives the parameters of `module` to group g, or to group 0 if another group has them as well. `own`: only those that
 * are registered in the module itself, whose names have no dots. */
static void owners_set(struct division *d, ctrt_module *module, size_t g, bool own)
{
    const struct ranks *r = &d->s->r;
    ctrt_tensor *tensor = NULL;
    const char *name = NULL;
    for (size_t i = 0; ctrt_module_parameter(&name, &tensor, module, i) == CTRT_OK; i++) {
        size_t p = 0;
        while (p < r->parameters && r->tensors[p] != tensor)
            p++;
        if (p < r->parameters && (!own || strchr(name, '.') == NULL))
            d->owner[p] = d->owner[p] == SIZE_MAX ? g : 0;
    }
}

/* Returns the number of modules at and below `module`, of which each may be a group. */
static size_t modules_count(ctrt_module *module)
{
    size_t count = 1;
    ctrt_module *child = NULL;
    for (size_t i = 0; ctrt_module_child(NULL, &child, module, i) == CTRT_OK; i++)
        count += modules_count(child);
    return count;
}

/* Each child of a module is a group. A Sequential only calls its children, so these are groups instead of the
 * Sequential. The children of a MultiheadAttention are not, because it reads their parameters itself. Parameters of the
 * module itself and of a Sequential belong to group 0, also those that a child has as well. */
static ctrt_status modules_find(struct division *d, ctrt_module *module)
{
    ctrt_module *child = NULL;
    owners_set(d, module, 0, true);
    if (strcmp(ctrt_module_kind(module), "MultiheadAttention") == 0)
        return CTRT_OK;
    for (size_t i = 0; ctrt_module_child(NULL, &child, module, i) == CTRT_OK; i++) {
        if (ctrt_module_parameter_count(child) == 0)
            continue;
        if (strcmp(ctrt_module_kind(child), "Sequential") == 0)
            CTRT_TRY(modules_find(d, child));
        else
            CTRT_TRY(modules_add(d, child));
    }
    return CTRT_OK;
}

/* Finds the group of each parameter. The module itself is group 0, which also gets parameters that several groups
 * share. */
static void owners_find(struct division *d)
{
    for (size_t g = 1; g < d->count; g++)
        owners_set(d, d->modules[g], g, false);
    for (size_t p = 0; p < d->s->r.parameters; p++)
        if (d->owner[p] == SIZE_MAX)
            d->owner[p] = 0;
}

static void slot_make(struct sharded *s, struct sharded_slot *slot, size_t parameter, size_t group)
{
    ctrt_tensor *tensor = s->r.tensors[parameter];
    *slot = (struct sharded_slot){ .group = group, .ndim = ctrt_tensor_ndim(tensor) };
    leaf_add(&s->r, &slot->leaf, parameter);
    for (int i = 0; i < slot->ndim; i++)
        slot->shape[i] = ctrt_tensor_size(tensor, i);
    slot->rows = slot->ndim > 0 ? slot->shape[0] : 1;
    slot->row = 1;
    for (int i = 1; i < slot->ndim; i++)
        slot->row *= slot->shape[i];
    slot->chunk = (slot->rows + s->mesh_columns - 1) / s->mesh_columns;
    slot->first = slot->chunk * s->column < slot->rows ? slot->chunk * s->column : slot->rows;
    slot->own = slot->first + slot->chunk < slot->rows ? slot->chunk : slot->rows - slot->first;
}

/* Adds the slots of one dtype to the group. */
static void part_make(struct sharded *s, const struct division *d, size_t g, ctrt_dtype dtype)
{
    struct sharded_part part = { .first = s->r.leaf_count, .dtype = dtype };
    for (size_t p = 0; p < s->r.parameters; p++) {
        if (d->owner[p] != g || ctrt_tensor_dtype(s->r.tensors[p]) != dtype)
            continue;
        struct sharded_slot *slot = &s->slots[s->r.leaf_count];
        slot_make(s, slot, p, g);
        slot->offset = part.numel;
        slot->grad_offset = part.grad_numel;
        part.numel += slot->chunk * slot->row;
        part.grad_numel += slot->leaf.trains ? slot->chunk * slot->row : 0;
        part.training += slot->leaf.trains;
        part.count++;
        s->groups[g].frozen = s->groups[g].frozen || !slot->leaf.trains;
    }
    if (part.count > 0)
        s->parts[s->part_count++] = part;
}

static ctrt_status division_apply(struct sharded *s, const struct division *d)
{
    uint64_t dtypes = 0;
    CTRT_TRY(ALLOCATE(s->groups, d->count));
    CTRT_TRY(ALLOCATE(s->slots, s->r.parameters));
    CTRT_TRY(ALLOCATE(s->parts, s->r.parameters));
    CTRT_TRY(ALLOCATE(s->order, d->count));
    CTRT_TRY(ALLOCATE(s->recorded, d->count));
    CTRT_TRY(ALLOCATE(s->sequence, 2 * d->count));
    for (size_t p = 0; p < s->r.parameters; p++)
        dtypes |= CTRT_DTYPE_BIT(ctrt_tensor_dtype(s->r.tensors[p]));
    s->group_count = d->count;
    for (size_t g = 0; g < d->count; g++) {
        struct sharded_group *group = &s->groups[g];
        group->module = d->modules[g];
        group->keep = g == 0 || s->stage < 3;
        group->first = s->r.leaf_count;
        group->part = s->part_count;
        for (uint64_t left = dtypes; left != 0; left &= left - 1)
            part_make(s, d, g, (ctrt_dtype)__builtin_ctzll(left));
        group->count = s->r.leaf_count - group->first;
        group->parts = s->part_count - group->part;
        s->order[g] = g;
    }
    return CTRT_OK;
}

ctrt_status groups_make(struct sharded *s)
{
    SCRATCH size_t *owner = NULL;
    SCRATCH ctrt_module **modules = NULL;
    CTRT_TRY(ALLOCATE(owner, s->r.parameters));
    CTRT_TRY(ALLOCATE(modules, modules_count(s->r.module)));
    struct division d = { .s = s, .owner = owner, .modules = modules };
    for (size_t p = 0; p < s->r.parameters; p++)
        d.owner[p] = SIZE_MAX;
    CTRT_TRY(modules_add(&d, s->r.module));
    CTRT_TRY(modules_find(&d, s->r.module));
    owners_find(&d);
    return division_apply(s, &d);
}

void groups_free(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++)
        group_forget(s, &s->groups[g]);             /* a gather may have failed */
    for (size_t i = 0; i < s->r.leaf_count; i++) {
        ctrt_tensor_release(&s->slots[i].shard);
        ctrt_tensor_release(&s->slots[i].absent);
        ctrt_tensor_release(&s->slots[i].shard_grad);
        ctrt_tensor_release(&s->slots[i].local_grad);
        ctrt_tensor_release(&s->slots[i].local_grad_sum);
    }
    for (size_t i = 0; i < s->part_count; i++)
        ctrt_tensor_release(&s->parts[i].shard);
    free(s->groups);
    free(s->slots);
    free(s->parts);
    free(s->order);
    free(s->recorded);
    free(s->sequence);
}

/* ---- shards ---- */

static ctrt_ints shard_shape(const struct sharded_slot *slot, int64_t *shape)
{
    memcpy(shape, slot->shape, sizeof slot->shape);
    shape[0] = slot->own;
    return ctrt_ints_of(shape, slot->ndim > 0 ? slot->ndim : 1);
}

ctrt_status sharded_rows_cut(ctrt_tensor **out, const struct sharded_slot *slot, ctrt_tensor *whole,
                             ctrt_device *device)
{
    int64_t shape[CTRT_MAX_DIMS];
    CTRT_AUTO(tensor) rows = NULL, view = NULL, fresh = NULL;
    const ctrt_ints form = shard_shape(slot, shape);
    if (slot->ndim == 0)
        CTRT_TRY(ctrt_view_as(&view, whole, CTRT_SHAPE(1)));
    else
        ctrt_tensor_assign(&view, whole);
    CTRT_TRY(ctrt_narrow(&rows, view, 0, slot->first, slot->own));
    CTRT_TRY(ctrt_empty(&fresh, form, ctrt_tensor_dtype(whole), device));
    if (slot->own > 0)
        CTRT_TRY(ctrt_copy_(fresh, rows));
    ctrt_tensor_assign(out, fresh);
    return CTRT_OK;
}

/* Creates the slot's slice of the part's shard, and copies this rank's rows of the parameter and of its gradient. */
static ctrt_status slot_shard(struct sharded *s, struct sharded_slot *slot, struct sharded_part *part)
{
    int64_t shape[CTRT_MAX_DIMS];
    CTRT_AUTO(tensor) rows = NULL;
    CTRT_TRY(ctrt_narrow(&slot->shard, part->shard, 0, slot->offset, slot->own * slot->row));
    CTRT_TRY(ctrt_view_as(&slot->shard, slot->shard, shard_shape(slot, shape)));
    CTRT_TRY(sharded_rows_cut(&rows, slot, slot->leaf.tensor, s->r.device));
    if (slot->own > 0)
        CTRT_TRY(ctrt_copy_(slot->shard, rows));
    CTRT_TRY(slot_absent_new(slot));
    if (ctrt_tensor_grad(slot->leaf.tensor) != NULL)
        CTRT_TRY(sharded_rows_cut(&slot->shard_grad, slot, ctrt_tensor_grad(slot->leaf.tensor), s->r.device));
    return CTRT_OK;
}

/* Moves a buffer to the device. The module may have been created on the cpu, because it may not fit on the device. */
static ctrt_status buffer_move(struct sharded *s, ctrt_tensor *buffer)
{
    CTRT_AUTO(tensor) moved = NULL;
    if (ctrt_tensor_device(buffer) == s->r.device)
        return CTRT_OK;
    CTRT_TRY(ctrt_to_device(&moved, buffer, s->r.device));
    return ctrt_tensor_set_data(buffer, moved);
}

ctrt_status shards_make(struct sharded *s)
{
    for (size_t p = 0; p < s->part_count; p++) {
        struct sharded_part *part = &s->parts[p];
        CTRT_TRY(ctrt_zeros(&part->shard, CTRT_SHAPE(part->numel), part->dtype, s->r.device));
        for (size_t i = part->first; i < part->first + part->count; i++)
            CTRT_TRY(slot_shard(s, &s->slots[i], part));
    }
    for (size_t i = s->r.parameters; i < s->r.count; i++)
        CTRT_TRY(buffer_move(s, s->r.tensors[i]));
    return CTRT_OK;
}

void shards_show(struct sharded *s)
{
    for (size_t i = 0; i < s->r.leaf_count; i++)
        (void)slot_set(&s->slots[i], SLOT_SHARD, NULL);
}

/* ---- states ---- */

ctrt_status slot_set(struct sharded_slot *slot, enum slot_state state, ctrt_tensor *data)
{
    if (slot->state == state)
        return CTRT_OK;
    if (slot->state == SLOT_WHOLE || slot->state == SLOT_UNDIVIDED) {
        (void)ctrt_tensor_set_grad(slot->leaf.tensor, NULL);
        (void)ctrt_tensor_set_data(slot->leaf.tensor, slot->shard);
        (void)ctrt_tensor_set_grad(slot->leaf.tensor, slot->shard_grad);
        ctrt_tensor_release(&slot->shard_grad);
    }
    STATE_SET(MACHINE_SLOT, slot->state, state);
    if (state == SLOT_ABSENT || state == SLOT_SHARD)
        return ctrt_tensor_set_data(slot->leaf.tensor, state == SLOT_ABSENT ? slot->absent : slot->shard);
    slot->shard_grad = ctrt_tensor_retain(ctrt_tensor_grad(slot->leaf.tensor));
    CTRT_TRY(ctrt_tensor_set_grad(slot->leaf.tensor, NULL));
    return ctrt_tensor_set_data(slot->leaf.tensor, data);
}

void slots_absent(struct sharded *s)
{
    for (size_t i = 0; i < s->r.leaf_count; i++)
        (void)slot_set(&s->slots[i], SLOT_ABSENT, NULL);
}

bool slots_divided(const struct sharded *s)
{
    return s->r.leaf_count > 0 && s->slots[0].state != SLOT_UNDIVIDED;
}

void slots_shard(struct sharded *s)
{
    for (size_t i = 0; i < s->r.leaf_count && slots_divided(s); i++)
        (void)slot_set(&s->slots[i], SLOT_SHARD, NULL);
}

ctrt_status group_open(struct sharded *s, struct sharded_group *group)
{
    if (group->gather == GATHER_OPEN)
        return CTRT_OK;
    STATE_SET(MACHINE_GATHER, group->gather, GATHER_OPEN);
    for (size_t i = group->first; i < group->first + group->count; i++)
        CTRT_TRY(slot_set(&s->slots[i], SLOT_WHOLE, s->slots[i].full));
    return CTRT_OK;
}

void group_close(struct sharded *s, struct sharded_group *group)
{
    if (group->gather != GATHER_OPEN)
        return;
    for (size_t i = group->first; i < group->first + group->count; i++)
        (void)slot_set(&s->slots[i], SLOT_ABSENT, NULL);
    STATE_SET(MACHINE_GATHER, group->gather, GATHER_GATHERED);
}

void group_forget(struct sharded *s, struct sharded_group *group)
{
    group_close(s, group);
    for (size_t i = group->first; i < group->first + group->count; i++)
        ctrt_tensor_release(&s->slots[i].full);
    for (size_t p = group->part; p < group->part + group->parts; p++) {
        if (s->parts[p].gather != NULL)
            (void)ctrt_work_wait(s->parts[p].gather);
        ctrt_work_release(&s->parts[p].gather);
        ctrt_tensor_release(&s->parts[p].flat);
    }
    STATE_SET(MACHINE_GATHER, group->gather, GATHER_NONE);
}

void groups_forget(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++)
        group_forget(s, &s->groups[g]);
    slots_shard(s);
}
