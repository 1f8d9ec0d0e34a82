/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/loss_group.c: the end of a step whose gradients are whole: divides losses that are no means, and
 * adds up groups of steps (ctrt_parallel_no_sync), which are divided once. */
#include <math.h>

#include "base/base.h"
#include "ctrt/capture.h"
#include "graph/capture.h"
#include "nn/module/module.h"
#include "ops/op_common.h"
#include "parallel/strategy/loss.h"

void loss_group_clear(struct loss_group *group)
{
    if (group->pending != NULL)
        ctrt_tensors_release(group->pending, group->count);
    host_free(group->pending);
    ctrt_tensor_release(&group->weight);
    *group = (struct loss_group){ .no_sync = group->no_sync };
}

void loss_group_enter(struct loss_group *group)
{
    thread_state.loss_group = group;
}

/* ---- captures ---- */

struct replay {                             /* the state of a recorded call */
    struct loss_group *group;
    ctrt_module *net, *module;              /* owned; the group belongs to the net */
    bool ends;                              /* the captured step is the last one of a group */
    size_t count;
    ctrt_tensor *grads[];                   /* of the parameters at the capture; owned; NULL: none */
};

/* Steps outside of the graph keep sums and fractions aside; means are in the gradients of the parameters. */
static ctrt_status loss_group_replay_check(void *state)
{
    struct replay *replay = state;
    const struct walk *walk;
    if (replay->group->steps == 0)
        return CTRT_OK;
    CTRT_TRY(module_walk(&walk, replay->module, WALK_PARAMETERS));
    bool same = replay->group->kind == CTRT_LOSS_MEAN && walk->count == replay->count;
    for (size_t i = 0; same && i < replay->count; i++)
        same = ctrt_tensor_grad(walk->entries[i].tensor) == replay->grads[i];
    if (same && replay->ends)
        replay->group->steps = 0;
    if (same)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the captured step does not add to the gradients of the steps since "
                     "ctrt_parallel_no_sync(net, true); end the group by a step that is not captured; if the loss is a "
                     "mean, you can also capture when the parameters have gradients, and keep these "
                     "(ctrt_optimizer_zero_grad(optimizer, false))");
}

static void replay_release(void *state)
{
    struct replay *replay = state;
    ctrt_tensors_release(replay->grads, replay->count);
    ctrt_module_release(&replay->module);
    ctrt_module_release(&replay->net);
    host_free(replay);
}

ctrt_status loss_group_capture(struct capture *capture, struct loss_group *group, ctrt_module *net,
                               ctrt_module *module)
{
    static const struct graph_call call = { .run = loss_group_replay_check, .release = replay_release };
    const struct walk *walk;
    if (group->steps > 0)
        return CTRT_OK;
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    struct replay *replay = host_calloc(sizeof *replay + walk->count * sizeof(ctrt_tensor *));
    ALLOC_CHECK(replay, sizeof *replay + walk->count * sizeof(ctrt_tensor *), "gradients of a captured step");
    replay->group = group;
    replay->ends = !group->no_sync;
    replay->net = ctrt_module_retain(net);
    replay->module = ctrt_module_retain(module);
    for (replay->count = 0; replay->count < walk->count; replay->count++)
        replay->grads[replay->count] = ctrt_tensor_retain(ctrt_tensor_grad(walk->entries[replay->count].tensor));
    return capture_call(capture, &call, replay);
}

/* ---- factors ---- */

/* number / weight, as f64; without a weight the number. */
static ctrt_status factor_make(ctrt_tensor **out, double number, ctrt_tensor *weight, ctrt_device *device)
{
    CTRT_TRY(ctrt_full(out, CTRT_SCALAR_SHAPE, ctrt_float(number), CTRT_F64, weight != NULL ? weight->device : device));
    return weight != NULL ? ctrt_div(out, *out, weight) : CTRT_OK;
}

/* 0 for a weight of 0: then no row has a gradient. */
static ctrt_status factor_of_gradients(ctrt_tensor **out, double number, ctrt_tensor *weight, ctrt_device *device)
{
    CTRT_AUTO(tensor) zero = NULL;
    CTRT_TRY(factor_make(out, number, weight, device));
    if (weight == NULL)
        return CTRT_OK;
    CTRT_TRY(ctrt_eq_scalar(&zero, weight, ctrt_float(0)));
    return ctrt_masked_fill(out, *out, zero, ctrt_float(0));
}

static ctrt_status loss_scale(ctrt_tensor **loss, double number, ctrt_tensor *weight)
{
    CTRT_AUTO(tensor) factor = NULL, wide = NULL;
    const ctrt_dtype dtype = ctrt_tensor_dtype(*loss);
    CTRT_TRY(factor_make(&factor, number, weight, ctrt_tensor_device(*loss)));
    CTRT_TRY(ctrt_to_device(&factor, factor, ctrt_tensor_device(*loss)));
    CTRT_TRY(ctrt_to_dtype(&wide, *loss, CTRT_F64));
    CTRT_TRY(ctrt_mul(&wide, wide, factor));
    return ctrt_to_dtype(loss, wide, dtype);
}

/* Returns the device of the first gradient; NULL if there is none. */
static ctrt_device *device_of(ctrt_tensor *const *grads, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (grads[i] != NULL)
            return grads[i]->device;
    return NULL;
}

/* The gradients may be on several devices. */
static ctrt_status gradients_divide(ctrt_tensor **grads, size_t count, double number, ctrt_tensor *weight)
{
    CTRT_AUTO(tensor) factor = NULL, here = NULL;
    ctrt_device *first = device_of(grads, count);
    if (first == NULL)
        return CTRT_OK;
    CTRT_TRY(factor_of_gradients(&factor, number, weight, first));
    for (size_t i = 0; i < count; i++) {
        if (grads[i] == NULL)
            continue;
        if (here == NULL || grads[i]->device != here->device)
            CTRT_TRY(ctrt_to_device(&here, factor, grads[i]->device));
        CTRT_TRY(ctrt_mul_(grads[i], here));
    }
    return CTRT_OK;
}

/* The number by which the sum of the parts is to be multiplied, besides the division by the weight. */
static double unit_of(const ctrt_loss_part *total, int64_t rows)
{
    return total->per_row * (double)rows;
}

/* ---- groups ---- */

static ctrt_status loss_group_check(const struct loss_group *group, const ctrt_loss_part *total, ctrt_device *device)
{
    if (group->steps > 0 && group->kind != total->kind)
        return ctrt_fail(CTRT_ERR_STATE, "the losses of the steps since ctrt_parallel_no_sync(net, true) are of "
                         "different kinds (means, sums, fractions), which cannot be divided once");
    if (total->kind == CTRT_LOSS_MEAN || device == NULL)
        return CTRT_OK;
    if (ctrt_dry_run_active(device) || ctrt_capture_running(device))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "gradients of a loss with a divisor that depends on the data are kept "
                         "aside while ctrt_parallel_no_sync is on, which %s on %s would lose",
                         ctrt_dry_run_active(device) ? "the dry run" : "the capture", ctrt_device_name(device));
    return CTRT_OK;
}

/* Adds the step to the group. The gradients of the group are in group->pending, and grads[] are NULL. */
static ctrt_status loss_group_add(struct loss_group *group, ctrt_tensor **grads, size_t count,
                                  const ctrt_loss_part *total, int64_t rows)
{
    CTRT_AUTO(tensor) weight = ctrt_tensor_retain(total->weight);
    const double unit = unit_of(total, rows);
    if (group->steps == 0) {
        group->pending = host_calloc((count + 1) * sizeof *group->pending);
        ALLOC_CHECK(group->pending, (count + 1) * sizeof *group->pending, "gradients of a group of steps");
        group->count = count;
        group->kind = total->kind;
        group->unit = unit;
    } else if (weight != NULL) {
        CTRT_TRY(ctrt_to_device(&weight, weight, group->weight->device));
        CTRT_TRY(ctrt_add(&weight, group->weight, weight));
    }
    if (count != group->count)
        return ctrt_fail(CTRT_ERR_STATE, "the module has %zu parameters, %zu at the beginning of the group of steps "
                         "(ctrt_parallel_no_sync)", count, group->count);
    for (size_t i = 0; i < count && unit != group->unit; i++)
        if (grads[i] != NULL)
            CTRT_TRY(ctrt_mul_scalar_(grads[i], ctrt_float(unit / group->unit)));
    for (size_t i = 0; i < count; i++)      /* to the new ones, so that a failure leaves the group as it is */
        if (grads[i] != NULL && group->pending[i] != NULL)
            CTRT_TRY(ctrt_add_(grads[i], group->pending[i]));
    for (size_t i = 0; i < count; i++)
        if (grads[i] != NULL) {
            ctrt_tensor_assign(&group->pending[i], grads[i]);
            ctrt_tensor_release(&grads[i]);
        }
    ctrt_tensor_assign(&group->weight, weight);
    group->steps++;
    return CTRT_OK;
}

/* Moves the gradients of the group to grads[], divided. n steps count as n, as those of means. */
static ctrt_status group_end(struct loss_group *group, ctrt_tensor **grads)
{
    const double steps = group->kind == CTRT_LOSS_FRACTION ? (double)group->steps : 1;
    CTRT_TRY(gradients_divide(group->pending, group->count, group->unit * steps, group->weight));
    for (size_t i = 0; i < group->count; i++) {
        grads[i] = group->pending[i];
        group->pending[i] = NULL;
    }
    loss_group_clear(group);
    return CTRT_OK;
}

static ctrt_status loss_group_finish(struct loss_group *group, ctrt_tensor **loss, ctrt_tensor **grads, size_t count,
                                     const ctrt_loss_part *total, int64_t rows)
{
    ctrt_device *device = device_of(grads, count);
    if (group != NULL && (group->no_sync || group->steps > 0))
        CTRT_TRY(loss_group_check(group, total, device));
    if (total->kind == CTRT_LOSS_MEAN) {
        if (group != NULL && !(device != NULL && ctrt_capture_running(device))) {   /* a capture makes no step */
            group->kind = CTRT_LOSS_MEAN;
            group->steps = group->no_sync ? group->steps + 1 : 0;
        }
        return CTRT_OK;
    }
    if (group == NULL || (!group->no_sync && group->steps == 0))
        CTRT_TRY(gradients_divide(grads, count, unit_of(total, rows), total->weight));
    else
        CTRT_TRY(loss_group_add(group, grads, count, total, rows));
    CTRT_TRY(loss_scale(loss, unit_of(total, rows), total->weight));
    return group != NULL && !group->no_sync && group->steps > 0 ? group_end(group, grads) : CTRT_OK;
}

ctrt_status ctrt_step_finish(ctrt_tensor **loss, ctrt_module *module, ctrt_tensor **before, ctrt_tensor **grads,
                             ctrt_loss_part *total, const ctrt_strategy_batch *batch)
{
    const struct walk *walk;
    if (loss == NULL || *loss == NULL || module == NULL)
        return fail_null("step_finish", module == NULL ? "module" : "loss");
    NULL_CHECKS("step_finish", before, grads, total, batch);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    const bool was = op_pause_recording(true);
    ctrt_status status = loss_group_finish(thread_state.loss_group, loss, grads, walk->count, total, batch->rows);
    op_pause_recording(was);
    ctrt_loss_part_release(total);
    if (status == CTRT_OK)
        return ctrt_gradients_add(module, before, grads);
    (void)ctrt_gradients_restore(module, before);
    ctrt_tensors_release(grads, walk->count);
    return status;
}
