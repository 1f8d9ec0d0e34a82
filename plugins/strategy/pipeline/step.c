/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/step.c: forward passes, and steps by the schedules gpipe and 1f1b.
 *
 * One thread enqueues all work. Each stage runs its micro-batches in a fixed order on the current stream of its device;
 * copies between devices run on streams of their own, so that a stage computes while its next input arrives. Both
 * schedules run the forward passes, and the backward passes, of a stage in the order of the micro-batches, so they give
 * the same bits. */
#include "run.h"

/* ---- schedules ---- */

static ctrt_status pass_run(struct run *run, int s, int64_t m, bool forward)
{
    const struct stage *stage = &run->p->stages[s];
    ctrt_status status = CTRT_OK;
    ctrt_on_device(stage->device) status = forward ? stage_forward(run, s, m) : stage_backward(run, s, m);
    return ctrt_context(status, "stage %d (%s): micro-batch %lld %s", s, ctrt_device_name(stage->device), (long long)m,
                        forward ? "forward" : "backward");
}

/* Runs the next pass of a stage if its input is there, and returns whether it ran in *ran.
 *
 * gpipe: all forward passes, then all backward passes. 1f1b: a stage runs ahead of its backward passes by as many
 * micro-batches as there are stages from it to the end, then alternates; so it never has more in flight. */
static ctrt_status stage_next(bool *ran, struct run *run, int s)
{
    const int stages = run->p->stage_count;
    const int64_t f = run->forwards[s], b = run->backwards[s];
    const int64_t ahead = run->p->gpipe ? run->micro : stages - s;
    const bool forward = f < run->micro && f - b < ahead;
    *ran = forward ? s == 0 || run->forwards[s - 1] > f
                   : b < f && (s + 1 == stages || run->backwards[s + 1] > b);
    if (!*ran)
        return CTRT_OK;
    CTRT_TRY(pass_run(run, s, forward ? f : b, forward));
    run->forwards[s] += forward;
    run->backwards[s] += !forward;
    return CTRT_OK;
}

static ctrt_status schedule_run(struct run *run)
{
    while (run->backwards[0] < run->micro)
        for (int s = 0; s < run->p->stage_count; s++) {
            bool ran;
            CTRT_TRY(stage_next(&ran, run, s));
        }
    return CTRT_OK;
}

/* ---- steps ---- */

/* Writes a tensor without history, to which no gradient flows. */
static ctrt_status input_copy(ctrt_tensor **to, ctrt_tensor *from, ctrt_device *device, int i)
{
    CTRT_TRY(ctrt_context(ctrt_to_device(to, from, device), "inputs[%d]", i));
    return ctrt_detach(to, *to);
}

ctrt_status batch_copy(struct run *run)
{
    const struct pipeline *p = run->p;
    const ctrt_strategy_batch *batch = run->batch;
    CTRT_TRY(ALLOCATE(run->inputs, (size_t)batch->count));
    CTRT_TRY(input_copy(&run->x, batch->inputs[0], p->stages[0].device, 0));
    for (int i = 1; i < batch->count; i++)
        if (batch->inputs[i] != NULL)
            CTRT_TRY(input_copy(&run->inputs[i], batch->inputs[i], p->stages[p->stage_count - 1].device, i));
    return CTRT_OK;
}

static ctrt_status sums_begin(struct run *run)
{
    const struct pipeline *p = run->p;
    CTRT_TRY(ctrt_sum_tree_new(&run->loss, run->micro, 2, p->stages[p->stage_count - 1].device));
    for (int s = 0; p->canonical > 0 && s < p->stage_count; s++)
        CTRT_TRY(ctrt_sum_tree_new(&run->sums[s], run->micro, p->stages[s].parameter_count, p->stages[s].device));
    return CTRT_OK;
}

/* Parameters of the Sequential itself belong to no stage. */
static ctrt_status early_check(const struct run *run)
{
    const size_t parameters = run->p->parameters;
    const char *name = "";
    const size_t count = run->early != NULL ? (size_t)run->micro * parameters : 0;
    size_t i = 0;
    while (i < count && run->early[i] == NULL)
        i++;
    if (i == count)
        return CTRT_OK;
    (void)ctrt_module_parameter(&name, NULL, run->p->module, i % parameters);
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the loss function uses the parameter \"%s\", which no child of the "
                     "Sequential has, so no stage adds its gradients in the order of canonical mode; register it in a "
                     "child (ctrt_module_add_parameter)", name);
}

/* Moves the gradients of the step to p->grads, and the loss to the first device. */
static ctrt_status sums_finish(struct run *run, ctrt_tensor **loss)
{
    struct pipeline *p = run->p;
    CTRT_AUTO(tensor) value = NULL;
    ctrt_tensor *values[2] = { NULL };
    CTRT_TRY(ctrt_sum_tree_result(values, run->loss));
    run->total.weight = values[1];
    const ctrt_status status = ctrt_to_device(&value, values[0], p->stages[0].device);
    ctrt_tensor_release(&values[0]);
    CTRT_TRY(status);
    CTRT_TRY(early_check(run));
    if (p->canonical == 0)
        CTRT_TRY(ctrt_gradients_take(p->grads, p->module));
    for (int s = 0; p->canonical > 0 && s < p->stage_count; s++) {
        const struct stage *stage = &p->stages[s];
        CTRT_TRY(ctrt_sum_tree_result(run->leaves, run->sums[s]));
        for (size_t k = 0; k < stage->parameter_count; k++) {
            p->grads[stage->parameters[k]] = run->leaves[k];
            run->leaves[k] = NULL;
        }
    }
    ctrt_tensor_assign(loss, value);
    return CTRT_OK;
}

static ctrt_status step_run(struct run *run, ctrt_tensor **loss)
{
    ctrt_no_grad {
        CTRT_TRY(batch_copy(run));
        CTRT_TRY(sums_begin(run));
    }
    const bool was = ctrt_set_grad_enabled(true);
    const ctrt_status status = schedule_run(run);
    ctrt_set_grad_enabled(was);
    CTRT_TRY(status);
    ctrt_no_grad CTRT_TRY(sums_finish(run, loss));
    return CTRT_OK;
}

static ctrt_status step_numbered(struct run *run, ctrt_tensor **loss)
{
    CTRT_TRY(numbers_save(run));
    ctrt_status status = run->buffers != NULL ? buffers_copy(run) : CTRT_OK;
    if (status == CTRT_OK)
        status = step_run(run, loss);
    status = buffers_end(run, status);
    return numbers_end(run, status);
}

ctrt_status pipeline_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct pipeline *p = self;
    struct run run = { .p = p, .batch = batch, .rows = batch->rows };
    if (batch->module_inputs > 1)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%d inputs for the module, but the first child of a Sequential gets "
                         "one; pack them in one tensor, or use another strategy", batch->module_inputs);
    CTRT_TRY(pipeline_refresh(p));
    CTRT_TRY(pipeline_place_batch(p, batch));
    run.originals = p->tensors;
    ctrt_status status = run_begin(&run);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(p->before, p->module);
    if (status == CTRT_OK) {
        status = step_numbered(&run, loss);
        if (status == CTRT_OK)
            status = ctrt_step_finish(loss, p->module, p->before, p->grads, &run.total, batch);
        else
            (void)ctrt_gradients_restore(p->module, p->before);
    }
    ctrt_tensors_release(p->grads, p->parameters);
    run_free(&run);
    if (status != CTRT_OK)
        streams_free(p);                    /* they may have an error */
    return status;
}

/* ---- forward alone ---- */

/* Runs one part of the batch through all stages, recorded as one graph. Returns the result on the first device. */
static ctrt_status part_forward(ctrt_tensor **y, struct run *run, int64_t m, ctrt_tensor *x)
{
    const struct pipeline *p = run->p;
    CTRT_AUTO(tensor) h = ctrt_tensor_retain(x);
    for (int s = 0; s < p->stage_count; s++) {
        const struct stage *stage = &p->stages[s];
        CTRT_TRY(ctrt_to_device(&h, h, stage->device));
        ctrt_on_device(stage->device)
            CTRT_TRY(ctrt_context(stage_run(&h, run, s, m, h), "stage %d (%s)", s, ctrt_device_name(stage->device)));
    }
    run->random = run->random || run->numbers[m].offset != numbers_first(run, m);
    return ctrt_to_device(y, h, p->stages[0].device);
}

/* Canonical mode: each shard by itself, and the results concatenated. */
static ctrt_status shards_forward(ctrt_tensor **y, struct run *run, ctrt_tensor *x)
{
    SCRATCH ctrt_tensor **results = NULL;
    ctrt_status status = ALLOCATE(results, (size_t)run->micro);
    if (status == CTRT_OK)
        status = buffers_copy(run);
    for (int64_t m = 0; m < run->micro && status == CTRT_OK; m++) {
        CTRT_AUTO(tensor) piece = NULL;
        status = pipeline_rows_cut(&piece, run, x, m);
        if (status == CTRT_OK)
            status = ctrt_context(part_forward(&results[m], run, m, piece), "shard %lld", (long long)m);
    }
    status = buffers_end(run, status);
    if (status == CTRT_OK)
        status = ctrt_gather_tensor(y, results, (int)run->micro, run->p->stages[0].device, 0);
    ctrt_tensors_release(results, (size_t)run->micro);
    return status;
}

static ctrt_status forward_run(struct run *run, ctrt_tensor **y, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) here = NULL;
    CTRT_TRY(numbers_save(run));
    ctrt_status status = ctrt_to_device(&here, x, run->p->stages[0].device);
    if (run->p->canonical > 0 && run->rows > 0) {
        if (status == CTRT_OK)
            status = shards_forward(y, run, here);
        return numbers_end(run, status);
    }
    /* The whole batch uses the numbers that follow in the first device's generator, and the buffers, as on one
     * device. */
    run->numbers[0].offset = run->generators[0].offset;
    free(run->buffers);
    run->buffers = NULL;
    if (status == CTRT_OK)
        status = part_forward(y, run, 0, here);
    run->random = false;
    const uint64_t offset = run->numbers[0].offset;
    CTRT_TRY(numbers_end(run, status));
    return ctrt_generator_set(run->p->stages[0].device, run->generators[0].seed, offset);
}

ctrt_status pipeline_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct pipeline *p = self;
    if (count != 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "a Sequential expects one input, got %d", count);
    if (ctrt_tensor_ndim(inputs[0]) == 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "inputs[0] has no dimensions, expected rows in dimension 0");
    struct run run = { .p = p, .rows = ctrt_tensor_size(inputs[0], 0) };
    CTRT_TRY(pipeline_refresh(p));
    ctrt_status status = run_begin(&run);
    if (status == CTRT_OK)
        status = forward_run(&run, y, inputs[0]);
    run_free(&run);
    return status;
}
