/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/plan.c: chooses the layout in which a call runs, and redistributes its operands.
 *
 * A call is divided along at most one letter of its rule (rules.c). Candidates are the letters in which an operand is
 * sharded already. The candidate that communicates the fewest bytes is chosen, as in DTensor. Without a candidate, or
 * if replicating the operands communicates fewer bytes, every member runs the call on replicated operands, which is
 * correct for every op. */
#include "multi.h"

#include <ctype.h>
#include <limits.h>

/* A letter along which a call may be divided. */
struct plan_candidate {
    char letter;
    struct multi_split split;
};

static int64_t view_bytes(const ctrt_view *view)
{
    return view->numel * multi_dtype_bytes(view->dtype);
}

/* ---- operands ---- */

/* Copies the names of the dimensions of input or output `index` from the contract; none if the op has no rule. */
static void copy_letters(char *to, const struct multi_rule *rule, bool output, int index)
{
    const char *at = rule->operands != NULL ? *rule->operands : "";
    if (output)
        at = strstr(at, "->");
    for (int i = 0; i <= index && at != NULL; i++)
        at = strchr(at + (i > 0), '[');
    for (; at != NULL && *at != ']'; at++)
        if (isalnum((unsigned char)*at))
            *to++ = (char)(strchr(rule->letters, *at) != NULL ? tolower((unsigned char)*at) : *at);
    *to = '\0';
}

static void set_letters(struct multi_operand *o, const struct multi_plan *plan, int index)
{
    const struct multi_rule *rule = plan->rule;
    if (!(rule->flags & MULTI_BY_DIM)) {
        if (o->same >= 0)
            strcpy(o->letters, plan->operands[o->same].letters);
        else
            copy_letters(o->letters, rule, o->output, o->output ? index - plan->n_inputs : index);
        return;
    }
    for (int d = 0; d < o->view->ndim; d++) {
        const bool blocked = (plan->reduced >> d & 1) && !(rule->flags & MULTI_SUMS);
        o->letters[d] = (char)((blocked ? 'A' : 'a') + d);
    }
    o->letters[o->view->ndim] = '\0';
}

static ctrt_status find_block(struct multi_operand *o, const struct multi_plan *plan)
{
    if ((o->view->flags & CTRT_VIEW_HOST_SCALAR) || o->view->numel == 0)
        return CTRT_OK;
    o->block = multi_block_of(o->view->data);
    if (o->block == NULL)
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s: %p is no memory of %s", plan->op, o->view->data,
                                multi_kind.name);
    o->offset = (char *)o->view->data - o->block->address;
    return CTRT_OK;
}

static bool covers(const struct multi_operand *o)
{
    return multi_covers(&o->block->data, o->view, o->offset, o->block->bytes);
}

/* Returns whether another operand uses the same block. */
static bool shared(const struct multi_plan *plan, const struct multi_operand *o)
{
    for (int i = 0; i < plan->count; i++)
        if (&plan->operands[i] != o && plan->operands[i].block == o->block)
            return true;
    return false;
}

static ctrt_status find_operands(struct multi_plan *plan)
{
    for (int i = 0; i < plan->count; i++) {
        struct multi_operand *o = &plan->operands[i];
        o->output = i >= plan->n_inputs;
        o->same = -1;
        o->dim = -1;
        if (o->view == NULL)
            continue;
        CTRT_TRY(find_block(o, plan));
        for (int k = 0; o->output && k < plan->n_inputs && o->same < 0; k++)
            if (plan->operands[k].view == o->view)
                o->same = k;
    }
    for (int i = plan->n_inputs; i < plan->count; i++) {
        struct multi_operand *o = &plan->operands[i];
        if (o->block == NULL || o->block->kept || shared(plan, o))
            continue;
        o->fresh = o->block->data.state <= MULTI_CONSTANT || covers(o);
    }
    for (int i = 0; i < plan->count; i++)
        if (plan->operands[i].block != NULL && plan->operands[i].block->data.state == MULTI_LOST
            && !plan->operands[i].fresh)
            return multi_data_lost(plan->op);
    return CTRT_OK;
}

/* Returns the dimension of the operand that has the candidate's letter, or -1. A dimension of size 1 that is broadcast
 * does not count. */
static int dim_of(const struct multi_operand *o, const struct plan_candidate *c)
{
    const char *at = strchr(o->letters, c->letter);
    const int dim = at != NULL ? (int)(at - o->letters) : -1;
    return dim >= 0 && dim < o->view->ndim && o->view->shape[dim] == c->split.n ? dim : -1;
}

/* multi_match of the operand, whose block is SHARDED. Another operand's redistribution may have changed the block after
 * the result was computed; the block has other parts then. */
static int match(struct multi_split *split, const struct multi_plan *plan, const struct multi_operand *o)
{
    if (o->matched != o->block->data.parts[0])
        return multi_match(split, &o->block->data, o->view, o->offset, plan->device->count);
    *split = o->match_split;
    return o->match;
}

/* Returns whether the block's data is sharded in dimension `dim` of the operand, cut as `split` describes. */
static bool is_sharded_in(const struct multi_plan *plan, const struct multi_operand *o, int dim,
                          struct multi_split split)
{
    struct multi_split found;
    return o->block->data.state == MULTI_SHARDED && match(&found, plan, o) == dim && found.n == split.n
           && found.groups == split.groups;
}

/* Writes to `like` the layout of the block in which dimension `dim` of the operand is sharded. Returns false if no such
 * layout exists. */
static bool sharded_like(struct multi_data *like, const struct multi_plan *plan, const struct multi_operand *o, int dim,
                         struct multi_split split)
{
    *like = (struct multi_data){ .state = o->block->data.state, .dtype = (ctrt_dtype)o->view->dtype,
                                 .bytes = o->block->data.bytes };
    if (!multi_describe(like, o->view, o->offset, o->block->bytes, dim, split, plan->device->count))
        return false;
    like->state = MULTI_SHARDED;
    return true;
}

/* ---- costs ---- */

#define IMPOSSIBLE INT64_MAX

/* Returns the bytes that are communicated to replicate the data. */
static int64_t gather_cost(const struct multi_operand *o)
{
    switch (o->block->data.state) {
    case MULTI_SHARDED: return view_bytes(o->view);
    case MULTI_PARTIAL: return 2 * view_bytes(o->view);
    default: return 0;
    }
}

static int64_t input_cost(const struct multi_plan *plan, const struct multi_operand *o, const struct plan_candidate *c)
{
    const int dim = dim_of(o, c);
    struct multi_data like;
    if (dim < 0)
        return gather_cost(o);
    if (is_sharded_in(plan, o, dim, c->split))
        return 0;
    const bool can_cut = c->split.groups == 1 || o->view->strides[dim] == 0
                         || sharded_like(&like, plan, o, dim, c->split);
    return can_cut ? gather_cost(o) : IMPOSSIBLE;
}

static int64_t output_cost(const struct multi_plan *plan, struct multi_operand *o, const struct plan_candidate *c)
{
    const int dim = dim_of(o, c);
    struct multi_data like;
    if (dim < 0)
        return o->fresh && (plan->rule->flags & MULTI_SUMS) && o->view->dtype != CTRT_BOOL
               && covers(o) ? 0 : IMPOSSIBLE;
    if (is_sharded_in(plan, o, dim, c->split) && !(o->fresh && o->block->data.state <= MULTI_CONSTANT))
        return 0;
    const bool free = o->fresh || o->block->data.state <= MULTI_CONSTANT;
    if (!free || !sharded_like(&like, plan, o, dim, c->split))
        return IMPOSSIBLE;
    o->described = c->letter;
    o->layout_split = c->split;
    o->layout.bytes = like.bytes;
    o->layout.extent = like.extent;
    o->layout.inner = like.inner;
    return 0;
}

/* Returns whether dropout can be divided: the generator makes blocks of 4 numbers (f64: 2), so each part must begin
 * with a new block. */
static bool dropout_divides(const struct multi_plan *plan, const struct plan_candidate *c)
{
    const ctrt_view *x = plan->operands[0].view;
    const int dim = dim_of(&plan->operands[0], c);
    const int64_t per_block = x->dtype == CTRT_F64 ? 2 : 4;
    for (int i = 0; i < plan->count; i++)
        if (!(plan->operands[i].view->flags & CTRT_VIEW_CONTIGUOUS))
            return false;
    return dim >= 0 && c->split.groups == 1 && x->shape[dim] * x->strides[dim] == x->numel
           && multi_chunk(c->split.n, plan->device->count, 0).count * x->strides[dim] % per_block == 0;
}

static int64_t cost_of(const struct multi_plan *plan, const struct plan_candidate *c)
{
    const uint32_t flags = plan->rule->flags;
    const bool half = plan->key == CTRT_F16 || plan->key == CTRT_BF16;
    if (!islower((unsigned char)c->letter) || ((flags & MULTI_MEAN) && half)
        || ((flags & MULTI_DROPOUT) && !dropout_divides(plan, c))
        || ((flags & MULTI_CONV) && c->letter == 'o'
            && ((const ctrt_conv_attributes *)plan->attributes)->groups != 1))
        return IMPOSSIBLE;
    int64_t sum = 0;
    for (int i = 0; i < plan->count; i++) {
        struct multi_operand *o = &plan->operands[i];
        if (o->view != NULL && o->view->numel == 0)
            return IMPOSSIBLE;
        if (o->block == NULL)
            continue;
        const int64_t cost = o->output ? output_cost(plan, o, c) : input_cost(plan, o, c);
        if (cost == IMPOSSIBLE)
            return IMPOSSIBLE;
        sum += cost;
    }
    return sum;
}

/* Sets plan->letter and plan->split to the cheapest candidate, unless replicating the operands costs less. */
static void choose(struct multi_plan *plan)
{
    int64_t best = 0;
    for (int i = 0; i < plan->count; i++)
        if (plan->operands[i].block != NULL && !plan->operands[i].fresh)
            best += gather_cost(&plan->operands[i]);
    for (int i = 0; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        struct plan_candidate c = { 0 };
        if (o->block == NULL || o->fresh || o->block->data.state != MULTI_SHARDED)
            continue;
        const int dim = match(&c.split, plan, o);
        if (dim < 0 || dim >= (int)strlen(o->letters))
            continue;
        c.letter = o->letters[dim];
        if (c.letter == plan->letter && c.split.n == plan->split.n && c.split.groups == plan->split.groups)
            continue;
        const int64_t cost = cost_of(plan, &c);
        if (cost == IMPOSSIBLE || cost > best || (plan->letter != 0 && cost == best))
            continue;
        best = cost;
        plan->letter = c.letter;
        plan->split = c.split;
    }
}

/* ---- calls whose output can stay partial ---- */

static bool is_zero(const struct multi_data *data)
{
    return data->state == MULTI_CONSTANT
           && (data->value.kind == CTRT_SCALAR_FLOAT ? data->value.f == 0 : data->value.i == 0);
}

/* Returns whether each member can run the op on its addends of the partial inputs, so that the output is partial. */
static bool stays_linear(const struct multi_plan *plan)
{
    const bool scales = plan->rule->flags & MULTI_SCALES;
    const struct multi_operand *out = &plan->operands[plan->n_inputs];
    int partial = 0, numbers = 0;
    if (!(plan->rule->flags & MULTI_LINEAR) || plan->n_outputs != 1 || out->block == NULL)
        return false;
    for (int i = 0; i < plan->n_inputs; i++) {
        const struct multi_operand *o = &plan->operands[i];
        partial += o->block != NULL && o->block->data.state == MULTI_PARTIAL && o->view->dtype == out->view->dtype;
        numbers += o->block == NULL && !((plan->rule->flags & MULTI_DIVIDES) && i == 0);
    }
    if (partial == 0 || partial + (scales ? numbers : 0) != plan->n_inputs || (scales && partial != 1))
        return false;
    if (out->block->data.state == MULTI_PARTIAL && !out->block->kept)
        return true;
    return out->fresh && (covers(out) || is_zero(&out->block->data));
}

/* ---- redistribution ---- */

/* Returns whether another view of the same block is an operand. The layout of the block must not change in that
 * case. */
static bool has_other_view(const struct multi_plan *plan, const struct multi_operand *o)
{
    for (int i = 0; i < plan->count; i++)
        if (plan->operands[i].block == o->block && plan->operands[i].view != o->view)
            return true;
    return false;
}

/* Replaces the block's data by `to`, or uses `to` as a temporary if the program has set the block's layout or another
 * operand uses the block. */
static void adopt(const struct multi_plan *plan, struct multi_operand *o, const struct multi_data *to)
{
    if (o->block->kept || has_other_view(plan, o)) {
        o->temporary = *to;
        o->data = &o->temporary;
        return;
    }
    multi_data_release(&o->block->data);
    o->block->data = *to;
}

static ctrt_status to_layout(struct multi_plan *plan, struct multi_operand *o, const struct multi_data *like)
{
    struct multi_data to;
    CTRT_TRY(multi_data_to(plan->device, &to, &o->block->data, like, o->block->bytes));
    adopt(plan, o, &to);
    return CTRT_OK;
}

static ctrt_status to_replicated(struct multi_plan *plan, struct multi_operand *o)
{
    if (o->block->data.state != MULTI_SHARDED)
        return multi_replicate(plan->device, o->block);
    const struct multi_data like = { .state = MULTI_REPLICATED };
    return to_layout(plan, o, &like);
}

static ctrt_status prepare_input(struct multi_plan *plan, struct multi_operand *o, const struct plan_candidate *c)
{
    struct multi_data *data = &o->block->data, like;
    o->data = data;
    if (plan->linear && data->state == MULTI_PARTIAL)
        return CTRT_OK;
    o->dim = c->letter != 0 ? dim_of(o, c) : -1;
    if (data->state == MULTI_SHARDED && o->dim >= 0 && is_sharded_in(plan, o, o->dim, c->split))
        return CTRT_OK;
    if (o->dim < 0 || !sharded_like(&like, plan, o, o->dim, c->split))
        return to_replicated(plan, o);
    switch (data->state) {
    case MULTI_EMPTY:
    case MULTI_CONSTANT: return multi_data_materialize(plan->device, data, &like, o->block->bytes);
    case MULTI_REPLICATED:
        if (c->split.groups == 1 || o->view->strides[o->dim] == 0)
            return CTRT_OK;
        CTRT_TRY(multi_data_to(plan->device, &o->temporary, data, &like, o->block->bytes));
        o->data = &o->temporary;
        return CTRT_OK;
    default: return to_layout(plan, o, &like);
    }
}

/* Allocates memory for a fresh output. If the output is a view of a part of a CONSTANT block, the rest of the block
 * keeps the constant. */
static ctrt_status prepare_fresh(struct multi_plan *plan, struct multi_operand *o, const struct plan_candidate *c)
{
    struct multi_data *data = &o->block->data;
    struct multi_data like = { .state = MULTI_REPLICATED, .dtype = (ctrt_dtype)o->view->dtype,
                               .bytes = view_bytes(o->view) };
    const bool whole = covers(o);
    o->dim = c->letter != 0 ? dim_of(o, c) : -1;
    if (o->dim >= 0 && o->described == c->letter && o->layout_split.n == c->split.n
        && o->layout_split.groups == c->split.groups) {
        like.state = MULTI_SHARDED;
        like.bytes = o->layout.bytes;
        like.extent = o->layout.extent;
        like.inner = o->layout.inner;
    } else if (o->dim >= 0 && !sharded_like(&like, plan, o, o->dim, c->split))
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s: the block of an output cannot have the chosen layout",
                                plan->op);
    if (o->dim < 0 && (plan->linear || c->letter != 0))
        like.state = MULTI_PARTIAL;
    if (o->dim < 0 && !whole)
        like.bytes = data->state == MULTI_EMPTY ? 0 : data->bytes;
    if (like.state == MULTI_REPLICATED && data->state == MULTI_REPLICATED)
        return CTRT_OK;
    if (whole)
        multi_data_release(data);
    return multi_data_materialize(plan->device, data, &like, o->block->bytes);
}

static ctrt_status prepare_output(struct multi_plan *plan, struct multi_operand *o, const struct plan_candidate *c)
{
    struct multi_data *data = &o->block->data;
    o->data = data;
    if (o->same >= 0 && plan->operands[o->same].block != NULL) {
        struct multi_operand *in = &plan->operands[o->same];
        o->data = in->data;
        o->dim = in->dim;
        in->write_back = in->data == &in->temporary;
        return CTRT_OK;
    }
    if (o->fresh)
        return prepare_fresh(plan, o, c);
    if (plan->linear)
        return CTRT_OK;
    o->dim = c->letter != 0 ? dim_of(o, c) : -1;
    if (o->dim >= 0)
        return CTRT_OK;
    CTRT_TRY(to_replicated(plan, o));
    o->write_back = o->data == &o->temporary;
    return CTRT_OK;
}

/* Counts a call whose operands have to be replicated, and logs the first such call of each op. */
static void note_fallback(const struct multi_plan *plan)
{
    const char **logged = plan->device->logged;
    const size_t room = sizeof plan->device->logged / sizeof plan->device->logged[0];
    size_t k = 0;
    plan->device->counts.fallbacks++;
    while (k < room && logged[k] != NULL && strcmp(logged[k], plan->op) != 0)
        k++;
    if (k == room || logged[k] != NULL)
        return;
    logged[k] = plan->op;
    multi_host->log(CTRT_LOG_DEBUG, multi_kind.name,
                    "%s: no rule fits the layouts of the operands, which are replicated", plan->op);
}

/* Sets the letters of the operand and its sharded dimension. */
static void describe_operand(struct multi_operand *o, const struct multi_plan *plan, int index)
{
    set_letters(o, plan, index);
    if (o->block == NULL || o->block->data.state != MULTI_SHARDED)
        return;
    o->match = match(&o->match_split, plan, o);
    o->matched = o->block->data.parts[0];
}

ctrt_status multi_plan_make(struct multi_plan *plan)
{
    bool distributed = false;
    CTRT_TRY(find_operands(plan));
    for (int i = 0; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        distributed = distributed || (o->block != NULL && !o->fresh && o->block->data.state >= MULTI_SHARDED);
    }
    if (distributed) {
        for (int i = 0; i < plan->count; i++)
            if (plan->operands[i].view != NULL)
                describe_operand(&plan->operands[i], plan, i);
        plan->linear = stays_linear(plan);
        if (!plan->linear)
            choose(plan);
        if (!plan->linear && plan->letter == 0)
            note_fallback(plan);
    }
    const struct plan_candidate c = { plan->letter, plan->split };
    for (int i = 0; i < plan->count; i++) {
        struct multi_operand *o = &plan->operands[i];
        if (o->block != NULL) {
            CTRT_TRY(o->output ? prepare_output(plan, o, &c) : prepare_input(plan, o, &c));
            if (o->output)
                multi_note_write(o->data, o->view, o->offset);
        } else if (o->view != NULL && plan->letter != 0 && o->view->ndim > 0)
            o->dim = dim_of(o, &c);
    }
    return CTRT_OK;
}

ctrt_status multi_plan_end(struct multi_plan *plan, ctrt_status status)
{
    for (int i = 0; i < plan->count; i++) {
        struct multi_operand *o = &plan->operands[i];
        if (o->data != &o->temporary)
            continue;
        if (o->write_back && status == CTRT_OK)
            status = multi_write_back(plan->device, &o->block->data, &o->temporary);
        multi_data_release(&o->temporary);
    }
    return status;
}
