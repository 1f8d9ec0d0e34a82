/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/run.c: the state of a step or a forward pass: micro-batches, the states of
 * random generators, and the values of buffers. */
#include "run.h"

/* ---- runs ---- */

ctrt_status run_begin(struct run *run)
{
    struct pipeline *p = run->p;
    const size_t stages = (size_t)p->stage_count;
    int64_t most = p->micro > 0 ? p->micro : p->stage_count == 1 ? 1 : 4 * (int64_t)p->stage_count;
    int count = 0;
    most = p->canonical > 0 ? p->canonical : run->batch == NULL ? 1 : most;
    CTRT_TRY(ALLOCATE(run->sizes, (size_t)most));
    CTRT_TRY(ALLOCATE(run->firsts, (size_t)most));
    CTRT_TRY(strategy_cut(run->sizes, &count, run->rows, (int)most, NULL));
    run->micro = count;
    for (int m = 1; m < count; m++)
        run->firsts[m] = run->firsts[m - 1] + run->sizes[m - 1];

    CTRT_TRY(ALLOCATE(run->slots, stages * (size_t)count));
    CTRT_TRY(ALLOCATE(run->forwards, stages));
    CTRT_TRY(ALLOCATE(run->backwards, stages));
    CTRT_TRY(ALLOCATE(run->generators, stages));
    CTRT_TRY(ALLOCATE(run->numbers, (size_t)count));
    CTRT_TRY(ALLOCATE(run->sums, stages));
    CTRT_TRY(ALLOCATE(run->leaves, p->parameters));
    return p->canonical > 0 ? ALLOCATE(run->buffers, p->count - p->parameters) : CTRT_OK;
}

void run_free(struct run *run)
{
    const struct pipeline *p = run->p;
    const size_t stages = (size_t)p->stage_count;
    for (size_t i = 0; run->slots != NULL && i < stages * (size_t)run->micro; i++) {
        ctrt_tensor_release(&run->slots[i].input);
        ctrt_tensor_release(&run->slots[i].output);
        ctrt_tensor_release(&run->slots[i].gradient);
    }
    for (size_t s = 0; run->sums != NULL && s < stages; s++)
        ctrt_sum_tree_release(&run->sums[s]);
    ctrt_sum_tree_release(&run->loss);
    ctrt_loss_part_release(&run->total);
    ctrt_tensor_release(&run->seed);
    ctrt_tensor_release(&run->x);
    if (run->batch != NULL)
        ctrt_tensors_release(run->inputs, (size_t)run->batch->count);
    ctrt_tensors_release(run->leaves, p->parameters);
    ctrt_tensors_release(run->early, (size_t)run->micro * p->parameters);
    free(run->early);
    free(run->inputs);
    free(run->sizes);
    free(run->firsts);
    free(run->slots);
    free(run->forwards);
    free(run->backwards);
    free(run->generators);
    free(run->numbers);
    free(run->buffers);
    free(run->sums);
    free(run->leaves);
}

ctrt_status pipeline_rows_cut(ctrt_tensor **out, const struct run *run, ctrt_tensor *whole, int64_t m)
{
    CTRT_AUTO(tensor) piece = ctrt_tensor_retain(whole);
    if (run->sizes[m] != run->rows)
        CTRT_TRY(ctrt_narrow(&piece, whole, 0, run->firsts[m], run->sizes[m]));
    if (run->p->canonical > 0)
        CTRT_TRY(ctrt_to(&piece, piece, NULL, CTRT_DTYPE_DEFAULT, true, CTRT_CONTIGUOUS_FORMAT));
    ctrt_tensor_assign(out, piece);
    return CTRT_OK;
}

/* ---- random numbers ---- */

uint64_t numbers_first(const struct run *run, int64_t m)
{
    return run->generators[0].offset + (((uint64_t)m + 1) << 32);
}

ctrt_status numbers_save(struct run *run)
{
    for (int s = 0; s < run->p->stage_count; s++) {
        struct generator *generator = &run->generators[s];
        CTRT_TRY(ctrt_generator_get(run->p->stages[s].device, &generator->seed, &generator->offset));
    }
    for (int64_t m = 0; m < run->micro; m++)
        run->numbers[m] = (struct generator){ run->generators[0].seed, numbers_first(run, m) };
    return CTRT_OK;
}

ctrt_status numbers_end(const struct run *run, ctrt_status status)
{
    const struct pipeline *p = run->p;
    for (int s = p->stage_count; s-- > 0;)
        (void)ctrt_generator_set(p->stages[s].device, run->generators[s].seed, run->generators[s].offset);
    if (status != CTRT_OK || !run->random)
        return status;
    return ctrt_generator_set(p->stages[0].device, run->generators[0].seed, numbers_first(run, run->micro));
}

/* ---- buffers: in canonical mode every micro-batch begins with the same values ---- */

ctrt_status buffers_copy(struct run *run)
{
    const struct pipeline *p = run->p;
    for (size_t i = p->parameters; i < p->count; i++) {
        struct buffer *buffer = &run->buffers[i - p->parameters];
        ctrt_no_grad CTRT_TRY(ctrt_clone(&buffer->before, p->tensors[i]));
        buffer->version = ctrt_tensor_version(p->tensors[i]);
    }
    return CTRT_OK;
}

static ctrt_status buffer_reset(struct buffer *buffer, ctrt_tensor *tensor, bool keep)
{
    if (keep)
        CTRT_TRY(ctrt_clone(&buffer->after, tensor));
    CTRT_TRY(ctrt_copy_(tensor, buffer->before));
    buffer->version = ctrt_tensor_version(tensor);
    return CTRT_OK;
}

ctrt_status buffers_next(struct run *run, const struct stage *stage, int64_t m)
{
    const struct pipeline *p = run->p;
    for (size_t k = 0; run->buffers != NULL && k < stage->buffer_count; k++) {
        ctrt_tensor *tensor = p->tensors[stage->buffers[k]];
        struct buffer *buffer = &run->buffers[stage->buffers[k] - p->parameters];
        if (ctrt_tensor_version(tensor) != buffer->version)
            ctrt_no_grad CTRT_TRY(buffer_reset(buffer, tensor, m == 0));
    }
    return CTRT_OK;
}

ctrt_status buffers_end(struct run *run, ctrt_status status)
{
    const struct pipeline *p = run->p;
    for (size_t i = 0; run->buffers != NULL && i < p->count - p->parameters; i++) {
        struct buffer *buffer = &run->buffers[i];
        ctrt_tensor *tensor = p->tensors[p->parameters + i];
        ctrt_no_grad {
            if (status == CTRT_OK && buffer->after != NULL)
                status = ctrt_copy_(tensor, buffer->after);
            else if (status != CTRT_OK && buffer->before != NULL && ctrt_tensor_version(tensor) != buffer->version)
                (void)ctrt_copy_(tensor, buffer->before);
        }
        ctrt_tensor_release(&buffer->before);
        ctrt_tensor_release(&buffer->after);
    }
    return status;
}
