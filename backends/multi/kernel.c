/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/kernel.c: the kernel of every op: runs the op on the members' parts of the operands. */
#include "multi.h"

#include <stdio.h>

/* ---- one call on the members ---- */

static ctrt_status fill_zero(const struct multi_plan *plan, ctrt_operand *out, int member)
{
    const ctrt_dtype dtype = (ctrt_dtype)out->view.dtype;
    const ctrt_range_attributes zero = { .size = sizeof zero, .lo = ctrt_int(0), .has_lo = true };
    return multi_run(plan->device, member,
                     &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = "fill", .key = dtype,
                                      .device = plan->device->members[member], .outputs = &out, .n_outputs = 1,
                                      .attributes = &zero });
}

/* Multiplies the mean over a member's elements by its share of all elements. */
static ctrt_status weight_mean(const struct multi_plan *plan, ctrt_operand *out, int member)
{
    const double share = (double)multi_split_count(plan->split, plan->device->count, member) / (double)plan->split.n;
    const float share32 = (float)share;
    ctrt_operand number = { .number = out->view.dtype == CTRT_F64 ? (const void *)&share : &share32,
                            .view = { .dtype = out->view.dtype } };
    ctrt_operand *inputs[2] = { out, &number };
    return multi_run(plan->device, member,
                     &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = "mul", .key = (ctrt_dtype)out->view.dtype,
                                      .device = plan->device->members[member], .inputs = inputs, .n_inputs = 2,
                                      .outputs = &out, .n_outputs = 1 });
}

/* Returns the attributes for one member. In dropout, a member's random numbers begin where those of the previous member
 * end, so that the result is that of one device. */
static const void *member_attributes(ctrt_random_attributes *random, const struct multi_plan *plan, int member)
{
    if (!(plan->rule->flags & MULTI_DROPOUT) || plan->letter == 0)
        return plan->attributes;
    const struct multi_operand *x = &plan->operands[0];
    const int64_t start = multi_chunk(plan->split.n, plan->device->count, member).start * x->view->strides[x->dim];
    *random = *(const ctrt_random_attributes *)plan->attributes;
    random->offset += (uint64_t)start / (x->view->dtype == CTRT_F64 ? 2 : 4);
    return random;
}

/* Returns whether the member has no elements of the dimension that is divided. */
static bool is_empty(const struct multi_plan *plan, int member)
{
    return plan->letter != 0 && multi_split_count(plan->split, plan->device->count, member) == 0;
}

/* Writes the member's operands of the call. Absent ones are NULL. */
static void local_operands(ctrt_operand *operands, ctrt_operand **pointers, const struct multi_plan *plan, int member)
{
    for (int i = 0; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        pointers[i] = NULL;
        if (o->view == NULL || (i == 2 && (plan->rule->flags & MULTI_BIAS) && plan->letter == 'k' && member > 0))
            continue;
        pointers[i] = o->same >= 0 ? pointers[o->same] : &operands[i];
        if (o->same >= 0)
            continue;
        multi_local(&operands[i], o->data, o->view, o->offset, o->dim, plan->split, plan->device->count, member);
        if (o->view->flags & CTRT_VIEW_HOST_SCALAR)
            operands[i].number = o->view->data;
    }
}

static ctrt_status run_member(const struct multi_plan *plan, int member)
{
    ctrt_operand operands[MULTI_OPERANDS], *pointers[MULTI_OPERANDS];
    ctrt_random_attributes random;
    int64_t written = 0;
    local_operands(operands, pointers, plan, member);
    ctrt_operand **outputs = pointers + plan->n_inputs;
    const bool empty = is_empty(plan, member);
    for (int i = plan->n_inputs; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        if (o->view == NULL || o->block == NULL || (empty && o->dim >= 0))
            continue;
        written++;
        if (empty)                          /* the member's addend is a sum over no elements */
            CTRT_TRY(fill_zero(plan, pointers[i], member));
    }
    if (empty || written == 0)
        return CTRT_OK;
    CTRT_TRY(multi_run(plan->device, member,
                       &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = plan->op, .key = plan->key,
                                        .device = plan->device->members[member], .inputs = pointers, .outputs = outputs,
                                        .n_inputs = plan->n_inputs, .n_outputs = plan->n_outputs,
                                        .attributes = member_attributes(&random, plan, member),
                                        .number = plan->number }));
    const bool weighted = (plan->rule->flags & MULTI_MEAN) && plan->letter != 0 && plan->operands[1].dim < 0;
    return weighted ? weight_mean(plan, outputs[0], member) : CTRT_OK;
}

/* If the call is a fill of a whole block, marks the block as a constant, which needs no memory, and returns true. */
static bool fill_constant(const struct multi_plan *plan)
{
    if (!(plan->rule->flags & MULTI_FILL))
        return false;
    const ctrt_view *view = plan->operands[0].view;
    struct multi_block *block = multi_block_of(view->data);
    if (block == NULL || block->kept
        || !multi_covers(&block->data, view, (char *)view->data - block->address, block->bytes))
        return false;
    multi_data_release(&block->data);
    block->data = (struct multi_data){ .state = MULTI_CONSTANT, .dtype = (ctrt_dtype)view->dtype,
                                       .bytes = view->numel * multi_dtype_bytes(view->dtype),
                                       .value = ((const ctrt_range_attributes *)plan->attributes)->lo };
    return true;
}

static ctrt_status run_plan(struct multi_plan *plan)
{
    if (plan->rule->flags & MULTI_REDUCES)
        plan->reduced = ((const ctrt_reduce_attributes *)plan->attributes)->dims;
    if (fill_constant(plan))
        return CTRT_OK;
    ctrt_status status = multi_plan_make(plan);
    for (int m = 0; m < plan->device->count && status == CTRT_OK; m++)
        status = run_member(plan, m);
    return multi_plan_end(plan, status);
}

/* ---- calls ---- */

/* An op, and what is looked up once by its name. */
struct op {
    const char *name;
    int number;                             /* as in ctrt_op_call; 0: unknown */
    const struct multi_rule *rule;
};

/* The operands of a call. */
struct views {
    const ctrt_view *const *inputs, *const *outputs;
    int n_inputs, n_outputs;
};

static void plan_init(struct multi_plan *plan, struct multi_operand *operands, struct multi_device *device,
                      const struct op *op, ctrt_dtype key, const struct views *views, const void *attributes)
{
    *plan = (struct multi_plan){ .device = device, .op = op->name, .number = op->number, .key = key, .rule = op->rule,
                                 .attributes = attributes, .n_inputs = views->n_inputs,
                                 .n_outputs = views->n_outputs, .count = views->n_inputs + views->n_outputs,
                                 .operands = operands };
    for (int i = 0; i < plan->count; i++) {
        memset(&operands[i], 0, offsetof(struct multi_operand, temporary));
        operands[i].view = i < views->n_inputs ? views->inputs[i] : views->outputs[i - views->n_inputs];
    }
}

static ctrt_status run_views(struct multi_device *device, const struct op *op, ctrt_dtype key,
                             const struct views *views, const void *attributes)
{
    struct multi_operand operands[MULTI_OPERANDS];
    struct multi_plan plan;
    if (views->n_inputs + views->n_outputs > MULTI_OPERANDS)
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s has %d operands", op->name, views->n_inputs + views->n_outputs);
    plan_init(&plan, operands, device, op, key, views, attributes);
    return run_plan(&plan);
}

/* ---- steps of optimizers ---- */

#define STEP_OPERANDS 8                     /* most operands of one tensor: 4 inputs, 3 outputs */

/* A step of n tensors. Each tensor has its own plan, because each has its own layout. */
struct step {
    int n, n_in, n_out;                     /* tensors; inputs and outputs of each */
    struct tensor {
        struct multi_plan plan;
        struct multi_operand operands[STEP_OPERANDS];
        const ctrt_tensor *first[STEP_OPERANDS];    /* the part of member 0 for which the plan was made */
        ctrt_operand local[STEP_OPERANDS], *pointers[STEP_OPERANDS];
    } tensors[];
};

/* The operands of tensor t. */
struct tensor_views {
    const ctrt_view *in[STEP_OPERANDS], *out[STEP_OPERANDS];
};

static struct views views_of(struct tensor_views *room, const struct step *step, const struct views *views, int t)
{
    for (int k = 0; k < step->n_in; k++)
        room->in[k] = views->inputs[t + k * step->n];
    for (int k = 0; k < step->n_out; k++)
        room->out[k] = views->outputs[t + k * step->n];
    return (struct views){ room->in, room->out, step->n_in, step->n_out };
}

static const ctrt_tensor *first_part(const struct multi_operand *o)
{
    return o->data != NULL ? o->data->parts[0] : NULL;
}

/* Makes the plans. Sets *current to whether all of them are valid at the end: a plan may redistribute a block of which
 * an earlier plan uses another view. */
static ctrt_status step_plan(bool *current, struct step *step, struct multi_device *device, const struct op *op,
                             ctrt_dtype key, const struct views *views, const void *attributes)
{
    for (int t = 0; t < step->n; t++) {
        struct tensor *tensor = &step->tensors[t];
        struct tensor_views room;
        const struct views own = views_of(&room, step, views, t);
        plan_init(&tensor->plan, tensor->operands, device, op, key, &own, attributes);
        CTRT_TRY(multi_plan_make(&tensor->plan));
        for (int k = 0; k < tensor->plan.count; k++)
            tensor->first[k] = first_part(&tensor->operands[k]);
    }
    *current = true;
    for (int t = 0; t < step->n; t++)
        for (int k = 0; k < step->tensors[t].plan.count; k++)
            *current = *current && step->tensors[t].first[k] == first_part(&step->tensors[t].operands[k]);
    return CTRT_OK;
}

/* Returns whether the member has no elements of the tensor. */
static bool is_absent(const struct step *step, const struct tensor *tensor, int member)
{
    return is_empty(&tensor->plan, member) || tensor->operands[step->n_in].block == NULL;
}

/* Runs the tensors of which the member has elements as one call. `inputs`, `outputs`: room for all operands. */
static ctrt_status step_member(struct step *step, int member, ctrt_operand **inputs, ctrt_operand **outputs)
{
    const struct multi_plan *plan = &step->tensors[0].plan;
    int count = 0;
    for (int t = 0; t < step->n; t++)
        count += !is_absent(step, &step->tensors[t], member);
    for (int t = 0, at = 0; t < step->n; t++) {
        struct tensor *tensor = &step->tensors[t];
        if (is_absent(step, tensor, member))
            continue;
        local_operands(tensor->local, tensor->pointers, &tensor->plan, member);
        for (int k = 0; k < step->n_in; k++)
            inputs[at + k * count] = tensor->pointers[k];
        for (int k = 0; k < step->n_out; k++)
            outputs[at + k * count] = tensor->pointers[step->n_in + k];
        at++;
    }
    if (count == 0)
        return CTRT_OK;
    return multi_run(plan->device, member,
                     &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = plan->op, .key = plan->key,
                                      .device = plan->device->members[member], .inputs = inputs, .outputs = outputs,
                                      .n_inputs = count * step->n_in, .n_outputs = count * step->n_out,
                                      .attributes = plan->attributes, .number = plan->number });
}

/* Runs one call for each tensor. */
static ctrt_status step_singly(const struct step *step, struct multi_device *device, const struct op *op,
                               ctrt_dtype key, const struct views *views, const void *attributes)
{
    for (int t = 0; t < step->n; t++) {
        struct tensor_views room;
        const struct views own = views_of(&room, step, views, t);
        CTRT_TRY(run_views(device, op, key, &own, attributes));
    }
    return CTRT_OK;
}

static ctrt_status run_step(struct multi_device *device, const struct op *op, ctrt_dtype key,
                            const struct views *views, const void *attributes)
{
    const int n = views->n_inputs - views->n_outputs;       /* the gradients are no outputs */
    if (views->n_inputs / n + views->n_outputs / n > STEP_OPERANDS)
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s has %d inputs for %d tensors", op->name, views->n_inputs, n);
    const size_t all = (size_t)(views->n_inputs + views->n_outputs) * sizeof(ctrt_operand *);
    const size_t bytes = sizeof(struct step) + (size_t)n * sizeof(struct tensor);
    struct step *step = multi_host->alloc(bytes + all);
    if (step == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a step of %d tensors", op->name, n);
    *step = (struct step){ .n = n, .n_in = views->n_inputs / n, .n_out = views->n_outputs / n };
    for (int t = 0; t < n; t++)
        step->tensors[t].plan.count = 0;    /* nothing to end */
    ctrt_operand **inputs = (ctrt_operand **)((char *)step + bytes);
    bool current = false;
    ctrt_status status = step_plan(&current, step, device, op, key, views, attributes);
    for (int m = 0; m < device->count && current && status == CTRT_OK; m++)
        status = step_member(step, m, inputs, inputs + views->n_inputs);
    const bool ran = status == CTRT_OK && current;
    for (int t = 0; t < n; t++) {
        const ctrt_status ended = multi_plan_end(&step->tensors[t].plan, ran ? status : CTRT_ERR_INTERNAL);
        status = ran ? ended : status;
    }
    if (status == CTRT_OK && !current)
        status = step_singly(step, device, op, key, views, attributes);
    multi_host->free(step);
    return status;
}

/* Takes the lock. */
static ctrt_status call_op(struct multi_device *device, const struct op *op, ctrt_dtype key, const struct views *views,
                           const void *attributes)
{
    const bool step = (op->rule->flags & MULTI_STEP) && views->n_inputs > views->n_outputs;
    const int cancel = multi_enter(device);
    const ctrt_status status = (step ? run_step : run_views)(device, op, key, views, attributes);
    multi_leave(device, cancel);
    return status;
}

ctrt_status multi_call(struct multi_device *device, const char *op, ctrt_dtype key, const ctrt_view *const *inputs,
                       int n_inputs, const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    return call_op(device, &(struct op){ op, 0, multi_rule_of(op) }, key,
                   &(struct views){ inputs, outputs, n_inputs, n_outputs }, attributes);
}

/* ---- the table of kernels ---- */

/* There is one kernel for each op and dtype, because a ctrt_call does not contain the key dtype. */
struct multi_kernel {
    ctrt_kernel base;
    ctrt_dtype key;
    struct op op;
};

ctrt_kernel_table multi_kernel_table = { .size = sizeof(ctrt_kernel_table), .stride = sizeof(struct multi_kernel),
                                         .prepare = multi_kernels_prepare };

static ctrt_status kernel_run(const ctrt_call *call)
{
    const struct multi_kernel *kernel = (const struct multi_kernel *)call->kernel;
    return call_op(call->device, &kernel->op, kernel->key,
                   &(struct views){ call->inputs, call->outputs, (int)call->n_inputs, (int)call->n_outputs },
                   call->attributes);
}

/* Asks the first member whether it has a kernel for the shapes. */
static bool kernel_accepts(const ctrt_call *call)
{
    const struct multi_device *device = call->device;
    const struct multi_kernel *kernel = (const struct multi_kernel *)call->kernel;
    ctrt_operand operands[MULTI_OPERANDS], *pointers[MULTI_OPERANDS];
    const uint32_t count = call->n_inputs + call->n_outputs;
    if (count > MULTI_OPERANDS)             /* an optimizer's step; its kernels accept any number of tensors */
        return true;
    for (uint32_t i = 0; i < count; i++) {
        const ctrt_view *view = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        pointers[i] = NULL;
        if (view == NULL)
            continue;
        operands[i] = (ctrt_operand){ .view = *view };
        if (view->flags & CTRT_VIEW_HOST_SCALAR)
            operands[i].number = view->data;
        pointers[i] = &operands[i];
    }
    return ctrt_op_accepts(&(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = kernel->base.op, .key = kernel->key,
                                            .device = device->members[0], .inputs = pointers,
                                            .outputs = pointers + call->n_inputs, .n_inputs = (int)call->n_inputs,
                                            .n_outputs = (int)call->n_outputs, .attributes = call->attributes });
}

/* Returns whether the core composes the op from other ops if no kernel accepts the call. */
static bool is_optional(const char *op)
{
    return strcmp(op, "attention") == 0 || strcmp(op, "attention_backward") == 0;
}

/* Returns whether the core composes the op from others on these devices, because its operands are a list of tensors
 * with different layouts, and numbers that belong to all of them. */
static bool is_composed(const char *op)
{
    return strcmp(op, "amp_unscale") == 0;
}

/* All members have the same kernels, those of their backend and of its overlays, so one table is made for all
 * devices. */
ctrt_status multi_kernels_prepare(void *handle)
{
    struct multi_device *device = handle;
    const char *op;
    ctrt_dtype dtype;
    size_t count = 0, ops = 0, dtypes = 0;
    static struct multi_kernel *kernels;
    CTRT_TRY(multi_members_open(device));
    if (kernels != NULL)
        return CTRT_OK;
    while (ctrt_op_name(&op, ops) == CTRT_OK)
        ops++;
    while (ctrt_dtype_get(NULL, &dtype, dtypes) == CTRT_OK)
        dtypes++;
    kernels = multi_host->alloc(ops * dtypes * sizeof *kernels);
    if (kernels == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no memory for the table of kernels", multi_kind.name);
    for (size_t i = 0; ctrt_op_name(&op, i) == CTRT_OK; i++)
        for (size_t d = 0; ctrt_dtype_get(NULL, &dtype, d) == CTRT_OK; d++) {
            if (is_composed(op) || !ctrt_op_supported(device->members[0], op, dtype))
                continue;
            struct multi_kernel *kernel = &kernels[count++];
            *kernel = (struct multi_kernel){
                .base = { .size = sizeof(ctrt_kernel), .op = op, .dtypes = CTRT_DTYPE_BIT(dtype),
                          .flags = CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE, .run = kernel_run },
                .key = dtype,
                .op = { op, (int)i + 1, multi_rule_of(op) },
            };
            if (is_optional(op))
                kernel->base.accepts = kernel_accepts;
        }
    multi_kernel_table.kernels = &kernels[0].base;
    multi_kernel_table.count = count;
    return CTRT_OK;
}
