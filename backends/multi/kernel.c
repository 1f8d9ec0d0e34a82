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

static ctrt_status run_member(const struct multi_plan *plan, int member)
{
    const int members = plan->device->count;
    ctrt_operand operands[MULTI_OPERANDS], *pointers[MULTI_OPERANDS];
    ctrt_random_attributes random;
    int64_t written = 0;
    for (int i = 0; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        pointers[i] = NULL;
        if (o->view == NULL || (i == 2 && (plan->rule->flags & MULTI_BIAS) && plan->letter == 'k' && member > 0))
            continue;
        pointers[i] = o->same >= 0 ? pointers[o->same] : &operands[i];
        if (o->same >= 0)
            continue;
        multi_local(&operands[i], o->data, o->view, o->offset, o->dim, plan->split, members, member);
        if (o->view->flags & CTRT_VIEW_HOST_SCALAR)
            operands[i].number = o->view->data;
    }
    ctrt_operand **outputs = pointers + plan->n_inputs;
    const bool empty = plan->letter != 0 && multi_split_count(plan->split, members, member) == 0;
    for (int i = plan->n_inputs; i < plan->count; i++) {
        const struct multi_operand *o = &plan->operands[i];
        if (o->view == NULL || o->block == NULL || (empty && o->dim >= 0))
            continue;
        written++;
        if (empty)                          /* the member's addend is a sum over no elements */
            TRY(fill_zero(plan, pointers[i], member));
    }
    if (empty || written == 0)
        return CTRT_OK;
    TRY(multi_run(plan->device, member,
                  &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = plan->op, .key = plan->key,
                                   .device = plan->device->members[member], .inputs = pointers, .outputs = outputs,
                                   .n_inputs = plan->n_inputs, .n_outputs = plan->n_outputs,
                                   .attributes = member_attributes(&random, plan, member) }));
    const bool weighted = (plan->rule->flags & MULTI_MEAN) && plan->letter != 0 && plan->operands[1].dim < 0;
    return weighted ? weight_mean(plan, outputs[0], member) : CTRT_OK;
}

/* If the call is a fill of a whole block, marks the block as a constant, which needs no memory, and returns true. */
static bool fill_constant(const struct multi_plan *plan)
{
    const ctrt_view *view = plan->operands[0].view;
    struct multi_block *block = multi_block_of(view->data);
    if (!(plan->rule->flags & MULTI_FILL) || block == NULL || block->kept
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

static ctrt_status run_views(struct multi_device *device, const char *op, ctrt_dtype key,
                             const ctrt_view *const *inputs, int n_inputs, const ctrt_view *const *outputs,
                             int n_outputs, const void *attributes)
{
    struct multi_operand operands[MULTI_OPERANDS];
    struct multi_plan plan = { .device = device, .op = op, .key = key, .rule = multi_rule_of(op),
                               .attributes = attributes, .n_inputs = n_inputs, .n_outputs = n_outputs,
                               .count = n_inputs + n_outputs, .operands = operands };
    if (plan.count > MULTI_OPERANDS)
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s has %d operands", op, plan.count);
    memset(operands, 0, (size_t)plan.count * sizeof *operands);
    for (int i = 0; i < plan.count; i++)
        operands[i].view = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
    return run_plan(&plan);
}

/* Runs an optimizer's step of n tensors as n calls, because each tensor has its own layout. */
static ctrt_status run_step(struct multi_device *device, const char *op, ctrt_dtype key, const ctrt_view *const *inputs,
                            int n_inputs, const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    const int n = n_inputs - n_outputs;
    for (int i = 0; i < n; i++) {
        const ctrt_view *in[4], *out[3];
        int in_count = 0, out_count = 0;
        for (int k = i; k < n_inputs && in_count < 4; k += n)
            in[in_count++] = inputs[k];
        for (int k = i; k < n_outputs && out_count < 3; k += n)
            out[out_count++] = outputs[k];
        TRY(run_views(device, op, key, in, in_count, out, out_count, attributes));
    }
    return CTRT_OK;
}

ctrt_status multi_call(struct multi_device *device, const char *op, ctrt_dtype key, const ctrt_view *const *inputs,
                       int n_inputs, const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    const bool step = multi_rule_of(op)->flags & MULTI_STEP;
    const int cancel = multi_enter(device);
    const ctrt_status status = (step ? run_step : run_views)(device, op, key, inputs, n_inputs, outputs, n_outputs,
                                                             attributes);
    multi_leave(device, cancel);
    return status;
}

/* ---- the table of kernels ---- */

/* There is one kernel for each op and dtype, because a ctrt_call does not contain the key dtype. */
struct multi_kernel {
    ctrt_kernel base;
    ctrt_dtype key;
};

ctrt_kernel_table multi_kernel_table = { .size = sizeof(ctrt_kernel_table), .stride = sizeof(struct multi_kernel),
                                         .prepare = multi_kernels_prepare };
static struct multi_kernel *kernels;

static ctrt_status kernel_run(const ctrt_call *call)
{
    const struct multi_kernel *kernel = (const struct multi_kernel *)call->kernel;
    return multi_call(call->device, kernel->base.op, kernel->key, call->inputs, (int)call->n_inputs, call->outputs,
                      (int)call->n_outputs, call->attributes);
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

ctrt_status multi_kernels_prepare(void *handle)
{
    struct multi_device *device = handle;
    const char *op;
    size_t count = 0, room = 0;
    TRY(multi_members_open(device));
    if (kernels != NULL)
        return CTRT_OK;
    while (ctrt_op_name(&op, room) == CTRT_OK)
        room++;
    room *= CTRT_DTYPE_COUNT;
    kernels = multi_host->alloc(room * sizeof *kernels);
    if (kernels == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no memory for the table of kernels", multi_kind.name);
    for (size_t i = 0; ctrt_op_name(&op, i) == CTRT_OK; i++)
        for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++) {
            if (!ctrt_op_supported(device->members[0], op, (ctrt_dtype)dtype))
                continue;
            struct multi_kernel *kernel = &kernels[count++];
            *kernel = (struct multi_kernel){
                .base = { .size = sizeof(ctrt_kernel), .op = op, .dtypes = CTRT_DTYPE_BIT(dtype),
                          .flags = CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE, .run = kernel_run },
                .key = (ctrt_dtype)dtype,
            };
            if (is_optional(op))
                kernel->base.accepts = kernel_accepts;
        }
    multi_kernel_table.kernels = &kernels[0].base;
    multi_kernel_table.count = count;
    return CTRT_OK;
}
