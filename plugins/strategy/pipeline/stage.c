/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/stage.c: the forward and the backward pass of one micro-batch in one stage, and copies
 * between stages. */
#include "run.h"

/* ---- streams for copies ---- */

void streams_free(struct pipeline *p)
{
    for (int s = 0; s < p->stage_count; s++) {
        ctrt_stream_release(&p->stages[s].activations);
        ctrt_stream_release(&p->stages[s].gradients);
    }
}

/* Copies a tensor to the device of a stage without history. *stream: the one for such copies. */
static ctrt_status send(ctrt_tensor **to, ctrt_tensor *from, const struct stage *stage, ctrt_stream **stream)
{
    CTRT_AUTO(tensor) source = NULL, copy = NULL;
    if (*stream == NULL)
        CTRT_TRY(ctrt_stream_new(stream, stage->device, 0));
    CTRT_TRY(ctrt_detach(&source, from));
    /* Elements with gaps would cross by way of the host. */
    if (!ctrt_tensor_is_contiguous(source, CTRT_CONTIGUOUS_FORMAT)
        && !ctrt_tensor_is_contiguous(source, CTRT_CHANNELS_LAST))
        ctrt_no_grad CTRT_TRY(ctrt_contiguous(&source, source, CTRT_CONTIGUOUS_FORMAT));
    ctrt_on_stream(*stream)
        ctrt_no_grad CTRT_TRY(ctrt_to_device(&copy, source, stage->device));
    ctrt_tensor_assign(to, copy);
    return CTRT_OK;
}

/* ---- one stage ---- */

static ctrt_status children_forward(ctrt_tensor **y, const struct pipeline *p, const struct stage *stage,
                                    ctrt_tensor *x)
{
    CTRT_AUTO(tensor) h = ctrt_tensor_retain(x);
    for (size_t c = stage->first; c < stage->end; c++)
        CTRT_TRY(ctrt_context(ctrt_forward(&h, p->children[c], h), "child %zu", c));
    ctrt_tensor_assign(y, h);
    return CTRT_OK;
}

ctrt_status stage_run(ctrt_tensor **y, struct run *run, int s, int64_t m, ctrt_tensor *x)
{
    const struct stage *stage = &run->p->stages[s];
    struct generator *numbers = &run->numbers[m];
    CTRT_TRY(ctrt_generator_set(stage->device, numbers->seed, numbers->offset));
    CTRT_TRY(children_forward(y, run->p, stage, x));
    CTRT_TRY(buffers_next(run, stage, m));
    return ctrt_generator_get(stage->device, &numbers->seed, &numbers->offset);
}

/* Writes the rows of input i for the loss function, on the last device. The module's input crosses in micro-batches, so
 * that the last device need not wait for the whole batch. */
static ctrt_status loss_input(ctrt_tensor **out, struct run *run, int i, int64_t m)
{
    struct stage *last = &run->p->stages[run->p->stage_count - 1];
    ctrt_tensor *whole = i == 0 ? run->x : run->inputs[i];
    if (whole == NULL)
        return CTRT_OK;
    CTRT_TRY(pipeline_rows_cut(out, run, whole, m));
    return i > 0 || last->device == run->p->stages[0].device ? CTRT_OK : send(out, *out, last, &last->activations);
}

ctrt_status loss_run(ctrt_tensor **loss, ctrt_tensor **weight, struct run *run, int64_t m, ctrt_tensor *output)
{
    const ctrt_strategy_batch *batch = run->batch;
    ctrt_loss_part part = { .parts = 0 };
    CTRT_AUTO(tensor) value = NULL;
    SCRATCH ctrt_tensor **inputs = NULL;
    ctrt_status status = ALLOCATE(inputs, (size_t)batch->count);
    for (int i = 0; i < batch->count && status == CTRT_OK; i++)
        ctrt_no_grad status = loss_input(&inputs[i], run, i, m);
    const ctrt_part_module module = { run->p->module, run->originals };
    const ctrt_part_module *before = ctrt_set_part_module(&module);
    if (status == CTRT_OK)
        status = ctrt_part_loss(&value, &part, output, inputs, batch, run->sizes[m]);
    (void)ctrt_set_part_module(before);
    ctrt_tensors_release(inputs, (size_t)batch->count);
    if (status == CTRT_OK) {
        ctrt_tensor_assign(loss, value);
        ctrt_tensor_assign(weight, part.weight);
        ctrt_tensor_release(&part.weight);      /* the sum tree adds the weights up */
        status = ctrt_loss_part_add(&run->total, &part);
    }
    ctrt_loss_part_release(&part);
    return status;
}

/* Passes the output of stage s on: it becomes a leaf of the next stage. */
static ctrt_status output_send(struct run *run, int s, int64_t m)
{
    struct stage *next = &run->p->stages[s + 1];
    struct pipeline_slot *slot = slot_of(run, s, m), *to = slot_of(run, s + 1, m);
    const bool recorded = ctrt_tensor_requires_grad(slot->output);
    CTRT_TRY(send(&to->input, slot->output, next, &next->activations));
    if (recorded)
        return ctrt_tensor_require_grad(to->input, true);
    ctrt_tensor_release(&slot->output);
    return CTRT_OK;
}

/* The losses are weighted by their parts of all rows. */
static ctrt_scalar weight_of(const struct run *run, int64_t m)
{
    return ctrt_float((double)run->sizes[m] / (double)run->rows);
}

/* `weight`: of a fraction. */
static ctrt_status loss_keep(struct run *run, int64_t m, ctrt_tensor *weight)
{
    ctrt_tensor *values[2] = { NULL, ctrt_tensor_retain(weight) };
    const ctrt_status status = ctrt_mul_scalar(&values[0], slot_of(run, run->p->stage_count - 1, m)->output,
                                               weight_of(run, m));
    if (status == CTRT_OK)
        return ctrt_sum_tree_add(run->loss, m, values);
    ctrt_tensor_release(&values[1]);
    return status;
}

/* The weight is the gradient with which the backward pass begins. Most micro-batches have the same. */
ctrt_status loss_backward(struct run *run, ctrt_tensor *loss, int64_t m)
{
    if (run->seed == NULL || run->seed_rows != run->sizes[m])
        ctrt_no_grad CTRT_TRY(ctrt_full_like(&run->seed, loss, weight_of(run, m), CTRT_DTYPE_DEFAULT, NULL));
    run->seed_rows = run->sizes[m];
    return ctrt_backward_with(loss, run->seed, false, false);
}

ctrt_status stage_forward(struct run *run, int s, int64_t m)
{
    CTRT_AUTO(tensor) output = NULL;
    struct pipeline_slot *slot = slot_of(run, s, m);
    if (s == 0) {
        ctrt_no_grad CTRT_TRY(pipeline_rows_cut(&slot->input, run, run->x, m));
        CTRT_TRY(ctrt_detach(&slot->input, slot->input));
    }
    CTRT_TRY(stage_run(&output, run, s, m, slot->input));
    if (s + 1 < run->p->stage_count) {
        ctrt_tensor_assign(&slot->output, output);
        CTRT_TRY(output_send(run, s, m));
    } else {
        CTRT_AUTO(tensor) weight = NULL;
        struct generator *numbers = &run->numbers[m];
        CTRT_TRY(loss_run(&slot->output, &weight, run, m, output));
        ctrt_no_grad CTRT_TRY(loss_keep(run, m, weight));
        CTRT_TRY(ctrt_generator_get(run->p->stages[s].device, &numbers->seed, &numbers->offset));
        run->random = run->random || numbers->offset != numbers_first(run, m);
    }
    if (!ctrt_tensor_requires_grad(slot->input))
        ctrt_tensor_release(&slot->input);
    return CTRT_OK;
}

/* In canonical mode, sets aside the gradients that the loss of micro-batch m has given to parameters of other stages:
 * these stages may run backward passes of other micro-batches before that of m. */
static ctrt_status early_take(struct run *run, int s, int64_t m)
{
    const struct pipeline *p = run->p;
    const struct stage *stage = &p->stages[s];
    size_t own = 0;                         /* the stage's parameters are in the order of the module's */
    for (size_t i = 0; p->canonical > 0 && i < p->parameters; i++) {
        ctrt_tensor *gradient = ctrt_tensor_grad(p->tensors[i]);
        const bool ours = own < stage->parameter_count && stage->parameters[own] == i;
        own += ours;
        if (gradient == NULL || ours)
            continue;
        if (run->early == NULL)
            CTRT_TRY(ALLOCATE(run->early, (size_t)run->micro * p->parameters));
        ctrt_tensor_assign(&run->early[(size_t)m * p->parameters + i], gradient);
        CTRT_TRY(ctrt_tensor_set_grad(p->tensors[i], NULL));
    }
    return CTRT_OK;
}

/* The backward pass of the stage adds to these gradients. */
static ctrt_status early_return(struct run *run, const struct stage *stage, int64_t m)
{
    const struct pipeline *p = run->p;
    for (size_t k = 0; run->early != NULL && k < stage->parameter_count; k++) {
        const size_t i = stage->parameters[k];
        ctrt_tensor **gradient = &run->early[(size_t)m * p->parameters + i];
        if (*gradient != NULL)
            CTRT_TRY(ctrt_tensor_set_grad(p->tensors[i], *gradient));
        ctrt_tensor_release(gradient);
    }
    return CTRT_OK;
}

/* In canonical mode, moves the gradients of micro-batch m to the sum of the stage. */
static ctrt_status gradients_sum(struct run *run, int s, int64_t m)
{
    const struct stage *stage = &run->p->stages[s];
    if (run->p->canonical == 0)
        return CTRT_OK;
    for (size_t k = 0; k < stage->parameter_count; k++) {
        ctrt_tensor *parameter = run->p->tensors[stage->parameters[k]];
        run->leaves[k] = ctrt_tensor_retain(ctrt_tensor_grad(parameter));
        CTRT_TRY(ctrt_tensor_set_grad(parameter, NULL));
    }
    return ctrt_sum_tree_add(run->sums[s], m, run->leaves);
}

/* Releases what has crossed devices for micro-batch m, and its gradient. This is done one micro-batch late: a copy to
 * memory that was released at once would have to wait for the pass that has just been enqueued. */
static void crossing_release(struct run *run, int s, int64_t m)
{
    if (m < 0)
        return;
    ctrt_tensor_release(&slot_of(run, s, m)->input);
    ctrt_tensor_release(&slot_of(run, s, m)->gradient);
}

ctrt_status stage_backward(struct run *run, int s, int64_t m)
{
    struct pipeline_slot *slot = slot_of(run, s, m);
    CTRT_TRY(early_return(run, &run->p->stages[s], m));
    if (s + 1 == run->p->stage_count) {
        CTRT_TRY(loss_backward(run, slot->output, m));
        CTRT_TRY(early_take(run, s, m));
    } else if (slot->output != NULL && slot->gradient != NULL) {
        CTRT_TRY(ctrt_backward_with(slot->output, slot->gradient, false, false));
    }
    ctrt_tensor_release(&slot->output);
    crossing_release(run, s, m - 1);
    CTRT_TRY(gradients_sum(run, s, m));
    ctrt_tensor *gradient = slot->input != NULL ? ctrt_tensor_grad(slot->input) : NULL;
    if (s == 0 || gradient == NULL)
        return CTRT_OK;
    struct stage *before = &run->p->stages[s - 1];
    return send(&slot_of(run, s - 1, m)->gradient, gradient, before, &before->gradients);
}
