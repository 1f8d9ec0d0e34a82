/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/measure.c: measures the memory of one micro-batch in each child, by a dry run.
 *
 * A copy of the module runs on the first device and is recorded as one autograd graph, so all children are measured as
 * if they were in one stage. (In a dry run the parameters of the copy have no memory.) Hooks on the outputs of the
 * children divide the backward pass, because the gradient of a child's output is complete when the backward pass of the
 * child begins.
 *
 * There are four passes, for all combinations of two conditions. Gradients from an earlier pass exist or not. Either a
 * child's input is released when the child has run, as within a stage, or its output is held until its backward pass,
 * as at the end of a stage. */
#include "run.h"

struct probe {
    struct run run;
    struct pipeline whole;                  /* of the run: the copy in one stage on the first device */
    struct stage stage;
    struct child_memory *memory;
    int64_t *before;                        /* of each child: bytes allocated before its forward pass */
    ctrt_tensor **outputs;                  /* of each child; owned; only if `hold` */
    struct mark { struct probe *probe; size_t child; } *marks;
    bool hold, later;                       /* the current pass: outputs are held; gradients exist before */
    size_t current;                         /* the child whose backward pass is running; child_count: the loss */
    int64_t grads;                          /* bytes of the parameters' gradients when that backward pass began */
    ctrt_memory_scope *scope;               /* NULL: no backward pass is running */
};

/* ---- backward ---- */

static int64_t grads_bytes(const struct pipeline *p)
{
    int64_t bytes = 0;
    ctrt_tensor *parameter;
    for (size_t i = 0; ctrt_module_parameter(NULL, &parameter, p->module, i) == CTRT_OK; i++)
        if (ctrt_tensor_grad(parameter) != NULL)
            bytes += (int64_t)strategy_tensor_bytes(ctrt_tensor_grad(parameter));
    return bytes;
}

static ctrt_status segment_end(struct probe *probe)
{
    ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
    struct child_memory *memory = &probe->memory[probe->current];
    if (probe->scope == NULL)
        return CTRT_OK;
    CTRT_TRY(ctrt_memory_scope_end(&peaks, &probe->scope));
    const int64_t peak = (int64_t)peaks.allocated_bytes - probe->before[probe->current]
                         - (probe->later ? 0 : probe->grads);
    if (probe->hold)                        /* this pass also holds the input, which a stage does not */
        memory->backward_last[probe->later] = peak - (probe->current > 0 ? memory->freed : 0);
    else
        memory->backward[probe->later] = peak;
    return CTRT_OK;
}

static ctrt_status segment_begin(struct probe *probe, size_t child)
{
    CTRT_TRY(segment_end(probe));
    for (size_t c = child + 1; c < probe->whole.child_count; c++)
        ctrt_tensor_release(&probe->outputs[c]);
    probe->current = child;
    probe->grads = grads_bytes(&probe->whole);
    return ctrt_memory_scope_begin(&probe->scope, probe->stage.device);
}

static ctrt_status output_gradient(void *user, ctrt_tensor **grad)
{
    const struct mark *mark = user;
    (void)grad;
    /* If a child returns its input, the tensor has the hooks of this child and of the child before it. */
    return mark->child < mark->probe->current ? segment_begin(mark->probe, mark->child) : CTRT_OK;
}

/* ---- forward ---- */

/* Runs child c, or the loss if c is child_count. *h: the input, afterwards the output. */
static ctrt_status child_forward(struct probe *probe, size_t c, ctrt_tensor **h)
{
    struct pipeline *p = &probe->whole;
    ctrt_device *device = probe->stage.device;
    CTRT_AUTO(memory_scope) scope = NULL;
    CTRT_AUTO(tensor) y = NULL, weight = NULL;
    ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
    const int64_t input = (int64_t)strategy_tensor_bytes(*h);
    CTRT_TRY(ctrt_memory_scope_begin(&scope, device));
    CTRT_TRY(c < p->child_count ? ctrt_context(ctrt_forward(&y, p->children[c], *h), "child %zu", c)
                                : loss_run(&y, &weight, &probe->run, 0, *h));
    CTRT_TRY(ctrt_memory_scope_end(&peaks, &scope));
    const int64_t before = (int64_t)peaks.allocated_before, full = (int64_t)ctrt_memory_allocated(device);
    ctrt_tensor_assign(h, y);
    const int64_t after = (int64_t)ctrt_memory_allocated(device);
    probe->before[c] = before;
    if (!probe->hold) {
        struct child_memory *memory = &probe->memory[c];
        memory->input = input;
        memory->kept = after - before;
        memory->freed = full - after;
        memory->forward = (int64_t)peaks.allocated_bytes - before;
    }
    if (c == p->child_count || !ctrt_tensor_requires_grad(y))
        return CTRT_OK;
    if (probe->hold)
        ctrt_tensor_assign(&probe->outputs[c], y);
    probe->marks[c] = (struct mark){ probe, c };
    return ctrt_tensor_add_hook(y, output_gradient, &probe->marks[c], NULL);
}

/* Runs the first micro-batch, which is the largest. */
static ctrt_status pass(struct probe *probe, bool later, bool hold)
{
    const struct pipeline *p = &probe->whole;
    CTRT_AUTO(tensor) h = NULL;
    ctrt_status status = CTRT_OK;
    probe->later = later;
    probe->hold = hold;
    ctrt_no_grad CTRT_TRY(pipeline_rows_cut(&h, &probe->run, probe->run.x, 0));
    for (size_t c = 0; c <= p->child_count && status == CTRT_OK; c++)
        status = child_forward(probe, c, &h);
    if (status == CTRT_OK)
        status = segment_begin(probe, p->child_count);
    if (status == CTRT_OK)
        status = loss_backward(&probe->run, h, 0);
    if (status == CTRT_OK)
        status = segment_end(probe);
    ctrt_memory_scope_release(&probe->scope);
    ctrt_tensors_release(probe->outputs, p->child_count);
    return status;
}

static ctrt_status passes(struct probe *probe)
{
    CTRT_TRY(pass(probe, false, false));
    CTRT_TRY(pass(probe, true, false));
    CTRT_TRY(pass(probe, true, true));
    CTRT_TRY(ctrt_module_zero_grad(probe->whole.module, true));
    return pass(probe, false, true);
}

/* ---- together ---- */

static ctrt_status probe_run(struct probe *probe, const struct pipeline *p, ctrt_module **copy)
{
    struct run *run = &probe->run;
    probe->stage = (struct stage){ .device = p->stages[0].device, .end = p->child_count };
    probe->whole = (struct pipeline){ .devices = p->devices, .n = 1, .canonical = p->canonical, .stages = &probe->stage,
                                      .stage_count = 1, .child_count = p->child_count };
    probe->whole.micro = p->micro > 0 ? p->micro : 4 * (int64_t)p->stage_count;
    CTRT_TRY(ALLOCATE(probe->whole.children, p->child_count));
    CTRT_TRY(ctrt_module_copy(copy, p->module, probe->stage.device));
    probe->whole.module = *copy;
    for (size_t c = 0; c < p->child_count; c++)
        CTRT_TRY(ctrt_module_child(NULL, &probe->whole.children[c], *copy, c));
    CTRT_TRY(run_begin(run));
    ctrt_no_grad CTRT_TRY(batch_copy(run));
    const bool was = ctrt_set_grad_enabled(true);
    const ctrt_status status = passes(probe);
    ctrt_set_grad_enabled(was);
    return status;
}

/* Writes the bytes that the copies of the batch need on the first and the last device. */
static void copies_read(uint64_t copies[2], const struct pipeline *p, const ctrt_strategy_batch *batch)
{
    copies[0] = copies[1] = 0;
    for (int i = 0; i < batch->count; i++)
        if (batch->inputs[i] != NULL
            && ctrt_tensor_device(batch->inputs[i]) != p->stages[i == 0 ? 0 : p->stage_count - 1].device)
            copies[i > 0] += strategy_tensor_bytes(batch->inputs[i]);
}

ctrt_status pipeline_measure(struct child_memory *memory, int64_t *micro, uint64_t copies[2], const struct pipeline *p,
                             const ctrt_strategy_batch *batch)
{
    ctrt_strategy_batch part = *batch;
    struct probe probe = {
        .run = { .p = &probe.whole, .batch = &part, .originals = p->tensors, .rows = batch->rows }, .memory = memory,
    };
    part.partial |= CTRT_PARTIAL_STEPS;     /* else the loss of one micro-batch would not be checked */
    ctrt_module *copy = NULL;
    const size_t count = p->child_count + 1;
    ctrt_dry_run **runs;
    ctrt_status status = ALLOCATE(runs, (size_t)p->stage_count);
    if (status == CTRT_OK)
        status = ALLOCATE(probe.before, count);
    if (status == CTRT_OK)
        status = ALLOCATE(probe.outputs, count);
    if (status == CTRT_OK)
        status = ALLOCATE(probe.marks, count);
    for (int s = 0; s < p->stage_count && status == CTRT_OK; s++)
        if (!ctrt_dry_run_active(p->stages[s].device))
            status = ctrt_dry_run_begin(&runs[s], p->stages[s].device);
    /* A loss function may use parameters of the module itself. Their gradients of the dry run have no memory. */
    const bool taken = status == CTRT_OK && ctrt_gradients_take(p->before, p->module) == CTRT_OK;
    if (status == CTRT_OK)
        status = ctrt_device_push(p->stages[0].device);
    if (status == CTRT_OK) {
        status = probe_run(&probe, p, &copy);
        (void)ctrt_device_pop();
        *micro = probe.run.micro;
        copies_read(copies, p, batch);
        run_free(&probe.run);
        ctrt_module_release(&copy);
        free(probe.whole.children);
        streams_free(&probe.whole);
    }
    if (taken)
        (void)ctrt_gradients_restore(p->module, p->before);
    for (int s = 0; runs != NULL && s < p->stage_count; s++)
        ctrt_dry_run_release(&runs[s]);
    free(runs);
    free(probe.before);
    free(probe.outputs);
    free(probe.marks);
    return status;
}
