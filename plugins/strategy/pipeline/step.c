/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/step.c: forward passes, and steps by the schedules gpipe and 1f1b.
 *
 * One thread enqueues all work. Each stage runs its micro-batches in a fixed order on the current stream of its device;
 * copies between devices run on streams of their own, so that a stage computes while its next input arrives. Both
 * schedules run the forward passes, and the backward passes, of a stage in the order of the micro-batches, so they give
 * the same bits. */
#include <stdlib.h>

#include "pipeline.h"

struct slot {                               /* one micro-batch in one stage; owned; NULL: not there (yet) */
    ctrt_tensor *input;                     /* a leaf, on the stage's device */
    ctrt_tensor *output;                    /* with history; of the last stage the loss */
    ctrt_tensor *gradient;                  /* of `output`, on the stage's device */
};

struct generator {
    uint64_t seed, offset;
};

struct buffer {
    ctrt_tensor *before, *after;            /* copies; after: as micro-batch 0 left it; NULL: not changed */
    uint32_t version;
};

struct run {
    struct pipeline *p;
    const ctrt_strategy_batch *batch;       /* NULL: forward only */
    int64_t rows, micro;                    /* number of micro-batches */
    int64_t *sizes, *firsts;                /* rows of each */
    ctrt_tensor *x;                         /* the whole batch on the first device */
    ctrt_tensor **inputs;                   /* the other inputs of the whole batch on the last device */
    struct slot *slots;                     /* slots[stage * micro + m] */
    int64_t *forwards, *backwards;          /* number of passes that each stage has enqueued */
    struct generator *generators;           /* of the stages' devices, from before */
    struct generator *numbers;              /* of each micro-batch, at the point that it has reached */
    bool random;                            /* a micro-batch has used random numbers */
    struct buffer *buffers;                 /* canonical mode: of all buffers */
    ctrt_sum_tree **sums;                   /* canonical mode: of the gradients of each stage */
    ctrt_sum_tree *loss;
    ctrt_tensor **leaves;                   /* scratch: the gradients of one micro-batch */
};

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
    ctrt_status status = CTRT_OK;
    if (*stream == NULL)
        CTRT_TRY(ctrt_stream_new(stream, stage->device, 0));
    CTRT_TRY(ctrt_detach(&source, from));
    /* Tensors with gaps between elements would be copied through the host. */
    if (!ctrt_tensor_is_contiguous(source, CTRT_CONTIGUOUS_FORMAT)
        && !ctrt_tensor_is_contiguous(source, CTRT_CHANNELS_LAST))
        ctrt_no_grad status = ctrt_contiguous(&source, source, CTRT_CONTIGUOUS_FORMAT);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_stream_push(*stream));
    ctrt_no_grad status = ctrt_to_device(&copy, source, stage->device);
    (void)ctrt_stream_pop();
    if (status == CTRT_OK)
        ctrt_tensor_assign(to, copy);
    return status;
}

/* ---- random numbers ----
 *
 * The numbers of a micro-batch do not depend on the devices: micro-batch m begins with the state of the first device's
 * generator, advanced by (m + 1) * 2^32, and takes the state along from stage to stage. In canonical mode this gives
 * the numbers that `single` uses. */

static uint64_t numbers_first(const struct run *run, int64_t m)
{
    return run->generators[0].offset + (((uint64_t)m + 1) << 32);
}

static ctrt_status numbers_save(struct run *run)
{
    for (int s = 0; s < run->p->stage_count; s++) {
        struct generator *generator = &run->generators[s];
        CTRT_TRY(ctrt_generator_get(run->p->stages[s].device, &generator->seed, &generator->offset));
    }
    for (int64_t m = 0; m < run->micro; m++)
        run->numbers[m] = (struct generator){ run->generators[0].seed, numbers_first(run, m) };
    return CTRT_OK;
}

/* The generators get their states from before, except that the first device's continues after the numbers of all
 * micro-batches if the run has used any. */
static ctrt_status numbers_end(const struct run *run, ctrt_status status)
{
    const struct pipeline *p = run->p;
    for (int s = p->stage_count; s-- > 0;)
        (void)ctrt_generator_set(p->stages[s].device, run->generators[s].seed, run->generators[s].offset);
    if (status != CTRT_OK || !run->random)
        return status;
    return ctrt_generator_set(p->stages[0].device, run->generators[0].seed, numbers_first(run, run->micro));
}

/* ---- buffers: in canonical mode every micro-batch begins with the same values ---- */

static ctrt_status buffers_copy(struct run *run)
{
    const struct pipeline *p = run->p;
    ctrt_status status = CTRT_OK;
    for (size_t i = p->parameters; i < p->count && status == CTRT_OK; i++) {
        struct buffer *buffer = &run->buffers[i - p->parameters];
        ctrt_no_grad status = ctrt_clone(&buffer->before, p->tensors[i]);
        buffer->version = ctrt_tensor_version(p->tensors[i]);
    }
    return status;
}

static ctrt_status buffer_reset(struct buffer *buffer, ctrt_tensor *tensor, bool keep)
{
    if (keep)
        CTRT_TRY(ctrt_clone(&buffer->after, tensor));
    CTRT_TRY(ctrt_copy_(tensor, buffer->before));
    buffer->version = ctrt_tensor_version(tensor);
    return CTRT_OK;
}

/* Called after the forward pass of micro-batch m. */
static ctrt_status buffers_next(struct run *run, const struct stage *stage, int64_t m)
{
    const struct pipeline *p = run->p;
    ctrt_status status = CTRT_OK;
    for (size_t k = 0; run->buffers != NULL && k < stage->buffer_count && status == CTRT_OK; k++) {
        ctrt_tensor *tensor = p->tensors[stage->buffers[k]];
        struct buffer *buffer = &run->buffers[stage->buffers[k] - p->parameters];
        if (ctrt_tensor_version(tensor) != buffer->version)
            ctrt_no_grad status = buffer_reset(buffer, tensor, m == 0);
    }
    return status;
}

/* The buffers get the values that micro-batch 0 left, or after a failure those from before. */
static ctrt_status buffers_end(struct run *run, ctrt_status status)
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

/* ---- runs ---- */

static ctrt_status run_begin(struct run *run)
{
    struct pipeline *p = run->p;
    const ctrt_scatter_options balanced = { .rule = CTRT_CHUNK_BALANCED };
    const size_t stages = (size_t)p->stage_count;
    int64_t most = p->micro > 0 ? p->micro : p->stage_count == 1 ? 1 : 4 * (int64_t)p->stage_count;
    int count = 0;
    most = p->canonical > 0 ? p->canonical : run->batch == NULL ? 1 : most;
    run->sizes = calloc((size_t)most, sizeof *run->sizes);
    run->firsts = calloc((size_t)most, sizeof *run->firsts);
    if (run->sizes == NULL || run->firsts == NULL)
        return no_memory();
    CTRT_TRY(ctrt_chunk_sizes(run->sizes, &count, run->rows, (int)most, &balanced));
    run->micro = count;
    for (int m = 1; m < count; m++)
        run->firsts[m] = run->firsts[m - 1] + run->sizes[m - 1];

    run->slots = calloc(stages * (size_t)count, sizeof *run->slots);
    run->forwards = calloc(stages, sizeof *run->forwards);
    run->backwards = calloc(stages, sizeof *run->backwards);
    run->generators = calloc(stages, sizeof *run->generators);
    run->numbers = calloc((size_t)count, sizeof *run->numbers);
    run->sums = calloc(stages, sizeof(ctrt_sum_tree *));
    run->leaves = calloc(p->parameters + 1, sizeof *run->leaves);
    if (run->slots == NULL || run->forwards == NULL || run->backwards == NULL || run->generators == NULL
        || run->numbers == NULL || run->sums == NULL || run->leaves == NULL)
        return no_memory();
    if (p->canonical > 0) {
        run->buffers = calloc(p->count - p->parameters + 1, sizeof *run->buffers);
        if (run->buffers == NULL)
            return no_memory();
    }
    return CTRT_OK;
}

static void run_free(struct run *run)
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
    ctrt_tensor_release(&run->x);
    if (run->batch != NULL)
        ctrt_gradients_release(run->inputs, (size_t)run->batch->count);
    if (run->leaves != NULL)
        ctrt_gradients_release(run->leaves, p->parameters);
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

/* The rows of micro-batch m. In canonical mode as a copy, so that kernels find the same alignment on every device. */
static ctrt_status rows_cut(ctrt_tensor **out, const struct run *run, ctrt_tensor *whole, int64_t m)
{
    CTRT_AUTO(tensor) piece = ctrt_tensor_retain(whole);
    if (run->sizes[m] != run->rows)
        CTRT_TRY(ctrt_narrow(&piece, whole, 0, run->firsts[m], run->sizes[m]));
    if (run->p->canonical > 0)
        CTRT_TRY(ctrt_to(&piece, piece, NULL, CTRT_DTYPE_DEFAULT, true, CTRT_CONTIGUOUS_FORMAT));
    ctrt_tensor_assign(out, piece);
    return CTRT_OK;
}

static struct slot *slot_of(const struct run *run, int s, int64_t m)
{
    return &run->slots[(int64_t)s * run->micro + m];
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

/* Runs `x` through a stage, with the random numbers of the micro-batch. */
static ctrt_status stage_run(ctrt_tensor **y, struct run *run, int s, int64_t m, ctrt_tensor *x)
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
    CTRT_TRY(rows_cut(out, run, whole, m));
    return i > 0 || last->device == run->p->stages[0].device ? CTRT_OK : send(out, *out, last, &last->activations);
}

/* Computes the loss of a micro-batch, multiplied by its part of all rows. */
static ctrt_status loss_run(ctrt_tensor **loss, struct run *run, int64_t m, ctrt_tensor *output)
{
    const ctrt_strategy_batch *batch = run->batch;
    CTRT_AUTO(tensor) value = NULL;
    const double weight = (double)run->sizes[m] / (double)run->rows;
    ctrt_tensor **inputs = calloc((size_t)batch->count, sizeof *inputs);
    ctrt_status status = inputs != NULL ? CTRT_OK : no_memory();
    for (int i = 0; i < batch->count && status == CTRT_OK; i++)
        ctrt_no_grad status = loss_input(&inputs[i], run, i, m);
    if (status == CTRT_OK)
        status = ctrt_context(batch->loss(&value, output, inputs, batch->count, batch->user), "loss");
    ctrt_gradients_release(inputs, inputs != NULL ? (size_t)batch->count : 0);
    free(inputs);
    CTRT_TRY(status);
    if (value == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the loss function succeeded without a result");
    if (ctrt_tensor_numel(value) != 1)
        return ctrt_fail(CTRT_ERR_SHAPE, "the loss has %lld elements, expected 1; take the mean over rows",
                         (long long)ctrt_tensor_numel(value));
    if (weight != 1)
        CTRT_TRY(ctrt_mul_scalar(&value, value, ctrt_float(weight)));
    ctrt_tensor_assign(loss, value);
    return CTRT_OK;
}

/* Passes the output of stage s on: it becomes a leaf of the next stage. */
static ctrt_status output_send(struct run *run, int s, int64_t m)
{
    struct stage *next = &run->p->stages[s + 1];
    struct slot *slot = slot_of(run, s, m), *to = slot_of(run, s + 1, m);
    const bool recorded = ctrt_tensor_requires_grad(slot->output);
    CTRT_TRY(send(&to->input, slot->output, next, &next->activations));
    if (recorded)
        return ctrt_tensor_require_grad(to->input, true);
    ctrt_tensor_release(&slot->output);
    return CTRT_OK;
}

static ctrt_status loss_keep(struct run *run, int64_t m)
{
    CTRT_AUTO(tensor) value = NULL;
    CTRT_TRY(ctrt_detach(&value, slot_of(run, run->p->stage_count - 1, m)->output));
    CTRT_TRY(ctrt_to(&value, value, NULL, CTRT_DTYPE_DEFAULT, true, CTRT_PRESERVE_FORMAT));
    return ctrt_sum_tree_add(run->loss, m, &value);
}

static ctrt_status stage_forward(struct run *run, int s, int64_t m)
{
    CTRT_AUTO(tensor) output = NULL;
    struct slot *slot = slot_of(run, s, m);
    ctrt_status status = CTRT_OK;
    if (s == 0) {
        ctrt_no_grad status = rows_cut(&slot->input, run, run->x, m);
        CTRT_TRY(status);
        CTRT_TRY(ctrt_detach(&slot->input, slot->input));
    }
    CTRT_TRY(stage_run(&output, run, s, m, slot->input));
    if (s + 1 < run->p->stage_count) {
        ctrt_tensor_assign(&slot->output, output);
        CTRT_TRY(output_send(run, s, m));
    } else {
        struct generator *numbers = &run->numbers[m];
        CTRT_TRY(loss_run(&slot->output, run, m, output));
        ctrt_no_grad status = loss_keep(run, m);
        CTRT_TRY(status);
        CTRT_TRY(ctrt_generator_get(run->p->stages[s].device, &numbers->seed, &numbers->offset));
        run->random = run->random || numbers->offset != numbers_first(run, m);
    }
    if (!ctrt_tensor_requires_grad(slot->input))
        ctrt_tensor_release(&slot->input);
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

static ctrt_status stage_backward(struct run *run, int s, int64_t m)
{
    struct slot *slot = slot_of(run, s, m);
    if (s + 1 == run->p->stage_count) {
        CTRT_TRY(ctrt_backward(slot->output));
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

/* ---- schedules ---- */

static ctrt_status pass_run(struct run *run, int s, int64_t m, bool forward)
{
    const struct stage *stage = &run->p->stages[s];
    ctrt_status status = ctrt_device_push(stage->device);
    if (status == CTRT_OK) {
        status = forward ? stage_forward(run, s, m) : stage_backward(run, s, m);
        (void)ctrt_device_pop();
    }
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

/* Copies the batch before the devices have other work: a copy from the host would wait for it. */
static ctrt_status batch_copy(struct run *run)
{
    const struct pipeline *p = run->p;
    const ctrt_strategy_batch *batch = run->batch;
    run->inputs = calloc((size_t)batch->count, sizeof *run->inputs);
    if (run->inputs == NULL)
        return no_memory();
    CTRT_TRY(input_copy(&run->x, batch->inputs[0], p->stages[0].device, 0));
    for (int i = 1; i < batch->count; i++)
        if (batch->inputs[i] != NULL)
            CTRT_TRY(input_copy(&run->inputs[i], batch->inputs[i], p->stages[p->stage_count - 1].device, i));
    return CTRT_OK;
}

static ctrt_status sums_begin(struct run *run)
{
    const struct pipeline *p = run->p;
    CTRT_TRY(ctrt_sum_tree_new(&run->loss, run->micro, 1, p->stages[p->stage_count - 1].device));
    for (int s = 0; p->canonical > 0 && s < p->stage_count; s++)
        CTRT_TRY(ctrt_sum_tree_new(&run->sums[s], run->micro, p->stages[s].parameter_count, p->stages[s].device));
    return CTRT_OK;
}

/* Moves the gradients of the step to p->grads, and the loss to the first device. */
static ctrt_status sums_finish(struct run *run, ctrt_tensor **loss)
{
    struct pipeline *p = run->p;
    CTRT_AUTO(tensor) value = NULL;
    CTRT_TRY(ctrt_sum_tree_result(&value, run->loss));
    CTRT_TRY(ctrt_to_device(&value, value, p->stages[0].device));
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
    ctrt_status status;
    ctrt_no_grad {
        status = batch_copy(run);
        if (status == CTRT_OK)
            status = sums_begin(run);
    }
    CTRT_TRY(status);
    const bool was = ctrt_set_grad_enabled(true);
    status = schedule_run(run);
    ctrt_set_grad_enabled(was);
    if (status == CTRT_OK)
        ctrt_no_grad status = sums_finish(run, loss);
    return status;
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
    CTRT_TRY(pipeline_refresh(p));
    ctrt_status status = run_begin(&run);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(p->before, p->module);
    if (status == CTRT_OK) {
        status = step_numbered(&run, loss);
        if (status == CTRT_OK)
            status = ctrt_gradients_add(p->module, p->before, p->grads);
        else
            (void)ctrt_gradients_restore(p->module, p->before);
    }
    ctrt_gradients_release(p->grads, p->parameters);
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
        ctrt_status status = ctrt_device_push(stage->device);
        if (status == CTRT_OK) {
            status = stage_run(&h, run, s, m, h);
            (void)ctrt_device_pop();
        }
        CTRT_TRY(ctrt_context(status, "stage %d (%s)", s, ctrt_device_name(stage->device)));
    }
    run->random = run->random || run->numbers[m].offset != numbers_first(run, m);
    return ctrt_to_device(y, h, p->stages[0].device);
}

/* Canonical mode: each shard by itself, and the results concatenated. */
static ctrt_status shards_forward(ctrt_tensor **y, struct run *run, ctrt_tensor *x)
{
    ctrt_tensor **results = calloc((size_t)run->micro, sizeof *results);
    ctrt_status status = results != NULL ? buffers_copy(run) : no_memory();
    for (int64_t m = 0; m < run->micro && status == CTRT_OK; m++) {
        CTRT_AUTO(tensor) piece = NULL;
        status = rows_cut(&piece, run, x, m);
        if (status == CTRT_OK)
            status = ctrt_context(part_forward(&results[m], run, m, piece), "shard %lld", (long long)m);
    }
    status = buffers_end(run, status);
    if (status == CTRT_OK)
        status = ctrt_gather_tensor(y, results, (int)run->micro, run->p->stages[0].device, 0);
    ctrt_gradients_release(results, results != NULL ? (size_t)run->micro : 0);
    free(results);
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
