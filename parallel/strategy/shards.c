/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/shards.c: functions that strategies share: lists of gradients, and forward and backward passes
 * of parts of a batch. */
#include "base/base.h"
#include "ctrt/strategy_plugin.h"
#include "nn/module/module.h"
#include "ops/op_common.h"
#include "parallel/strategy/loss.h"

#define MOST_INPUTS 64

/* ---- gradients ---- */

void ctrt_tensors_release(ctrt_tensor **tensors, size_t count)
{
    for (size_t i = 0; tensors != NULL && i < count; i++)
        ctrt_tensor_release(&tensors[i]);
}

ctrt_status ctrt_gradients_take(ctrt_tensor **grads, ctrt_module *module)
{
    const struct walk *walk;
    NULL_CHECKS("gradients_take", grads, module);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_tensor *parameter = walk->entries[i].tensor;
        grads[i] = ctrt_tensor_retain(ctrt_tensor_grad(parameter));
        if (grads[i] != NULL)
            (void)ctrt_tensor_set_grad(parameter, NULL);
    }
    return CTRT_OK;
}

/* Adds before[] to grads[], which fails without a change of before[]. */
static ctrt_status sums_make(const struct walk *walk, ctrt_tensor **before, ctrt_tensor **grads)
{
    for (size_t i = 0; i < walk->count; i++)
        if (before[i] != NULL && grads[i] != NULL)
            CTRT_TRY(ctrt_add_(grads[i], before[i]));
    return CTRT_OK;
}

/* Makes before[] or, where that is NULL, grads[] the gradients of the parameters. grads[] are the new values of
 * before[]; `grads` NULL: none. */
static ctrt_status grads_place(const struct walk *walk, ctrt_tensor **before, ctrt_tensor **grads)
{
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_tensor *old = before[i], *sum = grads != NULL ? grads[i] : NULL;
        if (old != NULL && sum != NULL && !tensor_requires_grad(old) && ctrt_copy_(old, sum) != CTRT_OK)
            tensor_set_data(old, sum);      /* cannot fail: `old` uses the memory of `sum` */
        /* A gradient with history (create_graph) is replaced, as in ctrt_backward. */
        const bool keep = old != NULL && (sum == NULL || !tensor_requires_grad(old));
        const ctrt_status here = ctrt_tensor_set_grad(walk->entries[i].tensor, keep ? old : sum);
        status = status == CTRT_OK ? here : status;
        ctrt_tensor_release(&before[i]);
    }
    ctrt_tensors_release(grads, walk->count);
    return status;
}

ctrt_status ctrt_gradients_restore(ctrt_module *module, ctrt_tensor **grads)
{
    const struct walk *walk;
    NULL_CHECKS("gradients_restore", module, grads);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    return grads_place(walk, grads, NULL);
}

ctrt_status ctrt_gradients_add(ctrt_module *module, ctrt_tensor **before, ctrt_tensor **grads)
{
    const struct walk *walk;
    NULL_CHECKS("gradients_add", module, before, grads);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    const bool was = op_pause_recording(true);
    const ctrt_status status = sums_make(walk, before, grads);
    if (status != CTRT_OK)
        ctrt_tensors_release(grads, walk->count);
    const ctrt_status placed = grads_place(walk, before, status == CTRT_OK ? grads : NULL);
    op_pause_recording(was);
    return status == CTRT_OK ? placed : status;
}

/* ---- parts of a batch ---- */

struct shards_part {                               /* the inputs of a part; owned */
    ctrt_tensor *inputs[MOST_INPUTS];
    int count;
};

/* Cuts the rows from..from+rows-1 out of the inputs; `rows` -1: takes them as they are. `own`: as copies, so that
 * kernels find the same alignment on every device. The parts have history only if the inputs have and grad mode is
 * on. */
static ctrt_status part_cut(struct shards_part *part, ctrt_device *device, ctrt_tensor *const *inputs, int count,
                            int64_t from, int64_t rows, bool own)
{
    if (count > MOST_INPUTS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%d inputs, expected at most %d", count, MOST_INPUTS);
    for (; part->count < count; part->count++) {
        ctrt_tensor **cut = &part->inputs[part->count], *input = inputs[part->count];
        *cut = NULL;
        if (input == NULL)
            continue;
        CTRT_AUTO(tensor) piece = ctrt_tensor_retain(input);
        if (rows >= 0 && (from != 0 || rows != ctrt_tensor_size(input, 0)))
            CTRT_TRY(ctrt_context(ctrt_narrow(&piece, input, 0, from, rows), "inputs[%d]", part->count));
        CTRT_TRY(ctrt_to(cut, piece, device, CTRT_DTYPE_DEFAULT, own, own ? CTRT_CONTIGUOUS_FORMAT
                                                                          : CTRT_PRESERVE_FORMAT));
    }
    return CTRT_OK;
}

struct shards_pass {                        /* forward and backward over the rows from..from+rows-1 */
    int64_t from, rows;
    double weight;
    bool own;                               /* copies of the inputs, see part_cut */
    ctrt_part_ready ready;
    void *user;
};

static ctrt_status part_backward(ctrt_tensor **loss, ctrt_loss_part *kind, ctrt_module *module,
                                 const struct shards_part *part, const ctrt_strategy_batch *batch,
                                 const struct shards_pass *pass)
{
    double weight = pass->weight;
    CTRT_AUTO(tensor) output = NULL, value = NULL;
    CTRT_TRY(ctrt_forward_n(&output, module, part->inputs, MAX(batch->module_inputs, 1)));
    CTRT_TRY(ctrt_part_loss(&value, kind, output, part->inputs, batch, pass->rows));
    ctrt_tensor_release(&output);           /* its memory may be free during the backward pass */
    if (pass->ready != NULL)
        CTRT_TRY(pass->ready(pass->user, kind, &weight));
    if (weight != 1)
        CTRT_TRY(ctrt_mul_scalar(&value, value, ctrt_float(weight)));
    CTRT_TRY(ctrt_backward(value));
    return ctrt_detach(loss, value);
}

static ctrt_status shard_backward(ctrt_tensor **loss, ctrt_loss_part *kind, ctrt_module *module, ctrt_device *device,
                                  const ctrt_strategy_batch *batch, const struct shards_pass *pass)
{
    struct shards_part part = { .count = 0 };
    bool was = ctrt_set_grad_enabled(false);
    ctrt_status status = part_cut(&part, device, batch->inputs, batch->count, pass->from, pass->rows, pass->own);
    for (int i = 0; i < part.count && status == CTRT_OK; i++)
        if (part.inputs[i] != NULL)
            status = ctrt_detach(&part.inputs[i], part.inputs[i]);
    ctrt_set_grad_enabled(true);
    if (status == CTRT_OK)
        status = part_backward(loss, kind, module, &part, batch, pass);
    ctrt_set_grad_enabled(was);
    ctrt_tensors_release(part.inputs, (size_t)part.count);
    return status;
}

static ctrt_status batch_check(const char *who, const ctrt_strategy_batch *batch)
{
    NULL_CHECK(who, batch);
    if (batch->inputs == NULL || batch->count < 1 || batch->loss == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: the batch has no inputs or no loss function", who);
    return CTRT_OK;
}

ctrt_status ctrt_part_backward(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_module *module, ctrt_device *device,
                               const ctrt_strategy_batch *batch, int64_t from, int64_t rows, double weight,
                               ctrt_part_ready ready, void *user)
{
    const struct shards_pass pass = { from, rows, weight, false, ready, user };
    NULL_CHECKS("part_backward", loss, part, module, device);
    CTRT_TRY(batch_check("part_backward", batch));
    return shard_backward(loss, part, module, device, batch, &pass);
}

/* Fails for a loss whose weight the strategy does not add up. */
static ctrt_status means_only(const ctrt_loss_part *part)
{
    if (part->kind == CTRT_LOSS_MEAN)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the strategy combines losses of parts of a batch only if they are means "
                     "over the rows, but the loss function returns %s; use another strategy (its author: "
                     "ctrt_part_backward)", part->kind == CTRT_LOSS_SUM
                     ? "a sum" : "a fraction or cross entropy, whose divisor depends on the data");
}

ctrt_status ctrt_shard_backward(ctrt_tensor **loss, ctrt_module *module, ctrt_device *device,
                                const ctrt_strategy_batch *batch, int64_t from, int64_t rows, double weight)
{
    CTRT_AUTO(tensor) value = NULL;
    ctrt_loss_part part = { .parts = 0 };
    const struct shards_pass pass = { .from = from, .rows = rows, .weight = weight };
    NULL_CHECKS("shard_backward", loss, module, device);
    CTRT_TRY(batch_check("shard_backward", batch));
    ctrt_status status = shard_backward(&value, &part, module, device, batch, &pass);
    if (status == CTRT_OK)
        status = means_only(&part);
    if (status == CTRT_OK)
        ctrt_tensor_assign(loss, value);
    ctrt_loss_part_release(&part);
    return status;
}

/* ---- buffers: every shard begins with the same values ---- */

struct buffers {
    const struct walk *walk;
    ctrt_tensor **before, **after;          /* copies; after[i] is NULL if the first shard has not changed the buffer */
    uint32_t *versions;
    bool first;                             /* no shard has ended yet */
};

static ctrt_status buffers_begin(struct buffers *b, ctrt_module *module)
{
    *b = (struct buffers){ .first = true };
    CTRT_TRY(module_walk(&b->walk, module, WALK_BUFFERS));
    const size_t count = b->walk->count + 1;
    b->before = host_calloc(2 * count * sizeof *b->before);
    ALLOC_CHECK(b->before, 2 * count * sizeof *b->before, "copies of buffers");
    b->versions = host_calloc(count * sizeof *b->versions);
    ALLOC_CHECK(b->versions, count * sizeof *b->versions, "copies of buffers");
    b->after = b->before + count;
    ctrt_no_grad
        for (size_t i = 0; i < b->walk->count; i++) {
            CTRT_TRY(ctrt_clone(&b->before[i], b->walk->entries[i].tensor));
            b->versions[i] = ctrt_tensor_version(b->walk->entries[i].tensor);
        }
    return CTRT_OK;
}

/* Called after each shard. */
static ctrt_status buffers_next(struct buffers *b)
{
    ctrt_no_grad
        for (size_t i = 0; i < b->walk->count; i++) {
            ctrt_tensor *buffer = b->walk->entries[i].tensor;
            if (ctrt_tensor_version(buffer) == b->versions[i])
                continue;
            if (b->first)
                CTRT_TRY(ctrt_clone(&b->after[i], buffer));
            CTRT_TRY(ctrt_copy_(buffer, b->before[i]));
            b->versions[i] = ctrt_tensor_version(buffer);
        }
    b->first = false;
    return CTRT_OK;
}

/* Frees the copies. Leaves the values of the first shard in the buffers or, after a failure, those from before. */
static ctrt_status buffers_end(struct buffers *b, ctrt_status status)
{
    const bool was = op_pause_recording(true);
    for (size_t i = 0; b->versions != NULL && b->before != NULL && i < b->walk->count; i++) {
        ctrt_tensor *buffer = b->walk->entries[i].tensor;
        if (status == CTRT_OK && b->after[i] != NULL)
            status = ctrt_copy_(buffer, b->after[i]);
        else if (status != CTRT_OK && b->before[i] != NULL && ctrt_tensor_version(buffer) != b->versions[i])
            (void)ctrt_copy_(buffer, b->before[i]);
        ctrt_tensor_release(&b->before[i]);
        ctrt_tensor_release(&b->after[i]);
    }
    op_pause_recording(was);
    host_free(b->before);
    host_free(b->versions);
    return status;
}

/* ---- shards ---- */

static ctrt_status range_check(const char *who, ctrt_module *module, ctrt_device *device, const ctrt_shard_range *range)
{
    NULL_CHECKS(who, module, device, range);
    if (range->sizes == NULL || range->first < 0 || range->count < 1 || range->first > range->total - range->count)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: shards %lld to %lld of %lld", who, (long long)range->first,
                         (long long)(range->first + range->count - 1), (long long)range->total);
    return CTRT_OK;
}

static ctrt_status shard_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device, ctrt_tensor *const *inputs,
                                 int count, int64_t from, int64_t rows, bool own)
{
    struct shards_part part = { .count = 0 };
    ctrt_status status = part_cut(&part, device, inputs, count, from, rows, own);
    if (status == CTRT_OK)
        status = ctrt_forward_n(y, module, part.inputs, count);
    ctrt_tensors_release(part.inputs, (size_t)part.count);
    return status;
}

ctrt_status ctrt_shard_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device, ctrt_tensor *const *inputs,
                               int count, int64_t from, int64_t rows)
{
    NULL_CHECKS("shard_forward", y, module, device, inputs);
    return shard_forward(y, module, device, inputs, count, from, rows, false);
}

/* What ctrt_shards_backward or ctrt_shards_forward computes. */
struct shards {
    ctrt_module *module;
    ctrt_device *device;
    ctrt_shard_range *range;
    const ctrt_strategy_batch *batch;       /* backward; NULL: forward */
    ctrt_sum_tree *sum;
    ctrt_loss_part total;
    size_t parameters;
    ctrt_tensor *const *inputs;             /* forward */
    int count;
    ctrt_tensor **y;
    ctrt_tensor **tensors;                  /* backward: gradients, loss, weight of one shard; forward: all outputs */
};

/* Runs one shard and adds its gradients, loss and weight to the sum. */
static ctrt_status shard_add(struct shards *s, int64_t shard, int64_t from, int64_t rows)
{
    const struct shards_pass pass = {
        .from = from, .rows = rows, .weight = (double)rows / (double)s->batch->rows, .own = true,
    };
    ctrt_loss_part part = { .parts = 0 };
    ctrt_status status = shard_backward(&s->tensors[s->parameters], &part, s->module, s->device, s->batch, &pass);
    if (status == CTRT_OK && sum_tree_tensors(s->sum) < s->parameters + 2)
        status = means_only(&part);
    s->tensors[s->parameters + 1] = part.weight;
    part.weight = NULL;
    if (status == CTRT_OK)
        status = ctrt_loss_part_add(&s->total, &part);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_gradients_take(s->tensors, s->module));
    return ctrt_sum_tree_add(s->sum, shard, s->tensors);
}

/* The random numbers of a shard are the same whatever device computes it. */
static ctrt_status shard_run(struct shards *s, int64_t shard, int64_t from)
{
    ctrt_shard_range *range = s->range;
    const int64_t rows = range->sizes[shard];
    const uint64_t begin = range->offset + (((uint64_t)shard + 1) << 32);
    uint64_t seed, end;
    ctrt_tensor **output = &s->tensors[shard - range->first];
    if (range->seeded)
        CTRT_TRY(ctrt_generator_set(s->device, range->seed, begin));
    CTRT_TRY(ctrt_context(s->batch != NULL
                              ? shard_add(s, shard, from, rows)
                              : shard_forward(output, s->module, s->device, s->inputs, s->count, from, rows, true),
                          "shard %lld", (long long)shard));
    if (!range->seeded)
        return CTRT_OK;
    CTRT_TRY(ctrt_generator_get(s->device, &seed, &end));
    range->random = range->random || end != begin;
    return CTRT_OK;
}

/* Runs all shards of the range. `count`: of `tensors`. */
static ctrt_status shards_run(struct shards *s, size_t count)
{
    struct buffers buffers;
    ctrt_shard_range *range = s->range;
    int64_t from = 0;
    uint64_t seed, offset;                  /* the generator's state before the first shard */
    range->random = false;
    CTRT_TRY(ctrt_generator_get(s->device, &seed, &offset));
    s->tensors = host_calloc(count * sizeof *s->tensors);
    ALLOC_CHECK(s->tensors, count * sizeof *s->tensors, "results of shards");
    ctrt_status status = buffers_begin(&buffers, s->module);
    for (int64_t shard = range->first; shard < range->first + range->count && status == CTRT_OK; shard++) {
        status = shard_run(s, shard, from);
        from += range->sizes[shard];
        if (status == CTRT_OK)
            status = buffers_next(&buffers);
    }
    status = buffers_end(&buffers, status);
    if (range->seeded)
        (void)ctrt_generator_set(s->device, seed, offset);
    if (status == CTRT_OK && s->y != NULL)
        status = ctrt_gather_tensor(s->y, s->tensors, (int)range->count, s->device, 0);
    ctrt_tensors_release(s->tensors, count);
    host_free(s->tensors);
    return status;
}

ctrt_status ctrt_shards_backward(ctrt_sum_tree *sum, ctrt_module *module, ctrt_device *device,
                                 const ctrt_strategy_batch *batch, ctrt_shard_range *range)
{
    struct shards s = { .module = module, .device = device, .range = range, .batch = batch, .sum = sum };
    const struct walk *walk;
    NULL_CHECK("shards_backward", sum);
    CTRT_TRY(range_check("shards_backward", module, device, range));
    CTRT_TRY(batch_check("shards_backward", batch));
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    s.parameters = walk->count;
    const ctrt_status status = shards_run(&s, s.parameters + 2);
    range->kind = s.total.kind;
    range->parts = s.total.parts;
    range->per_row = s.total.per_row;
    return status;
}

ctrt_status ctrt_shards_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device, ctrt_tensor *const *inputs,
                                int count, ctrt_shard_range *range)
{
    struct shards s = { .module = module, .device = device, .range = range, .inputs = inputs, .count = count, .y = y };
    NULL_CHECK("shards_forward", y);
    CTRT_TRY(range_check("shards_forward", module, device, range));
    NULL_CHECK("shards_forward", inputs);
    return shards_run(&s, (size_t)range->count);
}
