/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/capture.c: passes in a capture of the device's stream (ctrt/capture.h).
 *
 * The library records the collectives. This file records the host's part of a pass as calls (ctrt_capture_call), which
 * count rows and steps at each replay. The weights of the ranks are computed from these counts, so steps with and
 * without no_sync, captured or not, may follow each other in any order. */
#include "distributed.h"

/* The argument of a recorded call. */
struct record {
    struct distributed *d;                  /* borrowed: the graph owns a reference to the net */
    struct weights_step step;
    double number;                          /* of the loss, see struct weights */
    int64_t earlier;                        /* captured steps of the group before this one */
    ctrt_tensor *totals, *own;              /* see struct weights; owned */
    size_t *used, used_count;               /* slots that get a gradient in a pass without reduction; owned */
    ctrt_tensor **before, **after;          /* of each slot: its gradient before the pass and, if the pass is without
                                             * reduction, after it; owned; two halves of one list */
    size_t slot_count;
};

static void record_free(void *user)
{
    struct record *record = user;
    ctrt_tensor_release(&record->totals);
    ctrt_tensor_release(&record->own);
    ctrt_tensors_release(record->before, 2 * record->slot_count);
    free(record->before);
    free(record->used);
    free(record);
}

static ctrt_status record_new(struct record **out, struct distributed *d)
{
    CTRT_TRY(ALLOCATE(*out, 1));
    (*out)->d = d;
    (*out)->step = weights_step(&d->r.weights);
    (*out)->number = d->r.weights.number;
    (*out)->earlier = d->group_steps;
    const ctrt_status status = ALLOCATE((*out)->before, 2 * d->r.leaf_count);
    if (status != CTRT_OK)
        record_free(*out);
    CTRT_TRY(status);
    (*out)->slot_count = d->r.leaf_count;
    (*out)->after = (*out)->before + d->r.leaf_count;
    for (size_t s = 0; s < d->r.leaf_count; s++)
        (*out)->before[s] = ctrt_tensor_retain(d->slots[s].before);
    return CTRT_OK;
}

ctrt_status capture_check(struct distributed *d)
{
    if (!d->captured || d->order_state == ORDER_AGREED)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the buckets are not arranged yet, and a capture is running on %s; make two steps "
                     "(ctrt_parallel_step without no_sync, or ctrt_forward and ctrt_backward) before the capture",
                     ctrt_device_name(d->r.device));
}

void capture_begin(struct distributed *d)
{
    d->captured = ctrt_capture_running(d->r.device);
    if (!d->captured) {
        d->group_open = false;
        d->group_steps = 0;
    }
    for (size_t s = 0; d->captured && s < d->r.leaf_count; s++) {
        d->slots[s].used_before = d->slots[s].leaf.used;
        ctrt_tensor_assign(&d->slots[s].before, ctrt_tensor_grad(d->slots[s].leaf.tensor));
    }
}

ctrt_status capture_join(struct distributed *d)
{
    CTRT_AUTO(stream) current = NULL;
    if (!d->captured || d->r.stream == NULL)
        return CTRT_OK;
    CTRT_TRY(ctrt_stream_current(&current, d->r.device));
    return ctrt_stream_wait(d->r.stream, current);
}

void capture_end(struct distributed *d)
{
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        d->slots[s].leaf.used = d->slots[s].used_before;
        ctrt_tensor_release(&d->slots[s].before);
    }
}

/* ---- groups of captured and other steps ---- */

/* The end of a group, and of a reduction. */
static ctrt_status end_reduction(void *user)
{
    struct distributed *d = user;
    leaves_unused(&d->r);
    for (size_t s = 0; s < d->r.leaf_count; s++)
        ctrt_tensor_release(&d->slots[s].replayed);
    weights_reset(&d->r.weights);
    return CTRT_OK;
}

/* The group begins anew: its gradients are lost. */
static void group_drop(struct distributed *d)
{
    ctrt_no_grad (void)ctrt_zero_(d->r.weights.sum);
    (void)end_reduction(d);
}

/* Fails, and drops the group, unless the slot's gradient of the steps since the last reduction is in `expected`. */
static ctrt_status gradient_check(struct distributed *d, const struct distributed_slot *slot,
                                  const ctrt_tensor *expected)
{
    ctrt_tensor *here = slot->replayed != NULL ? slot->replayed : ctrt_tensor_grad(slot->leaf.tensor);
    if (here == expected)
        return CTRT_OK;
    group_drop(d);
    return ctrt_fail(CTRT_ERR_STATE, "a captured step and another step of one group (ctrt_parallel_no_sync) have the "
                     "gradient of \"%s\" in different tensors, so the sum would lack steps; capture all steps of a "
                     "group, or capture when the parameters have gradients and keep these "
                     "(ctrt_optimizer_zero_grad(optimizer, false)); the gradients of the group are lost",
                     ranks_name(&d->r, slot->leaf.parameter));
}

ctrt_status capture_mixed(struct distributed *d)
{
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        struct distributed_slot *slot = &d->slots[s];
        if (slot->replayed != NULL)
            CTRT_TRY(gradient_check(d, slot, ctrt_tensor_grad(slot->leaf.tensor)));
    }
    for (size_t s = 0; s < d->r.leaf_count; s++)
        ctrt_tensor_release(&d->slots[s].replayed);
    return CTRT_OK;
}

/* The numbers of a replay are those of the captured step, plus those of the steps since the last reduction. */
static ctrt_status group_check(const struct weights *w, const struct record *record)
{
    const int32_t kind = record->step.known ? record->step.kind : weights_kind(w);
    if (kind != CTRT_LOSS_MEAN && w->steps != record->earlier)          /* steps outside of graphs move gradients */
        return ctrt_fail(CTRT_ERR_STATE, "%s (ctrt_parallel_no_sync); if the loss is no mean, capture all steps of a "
                         "group in their order, the first one without gradients, and replay each once; the gradients "
                         "of the group are lost",
                         w->steps < record->earlier ? "the captured step continues a group of steps that has not begun"
                                                    : "the captured step does not add to the gradients of the steps "
                                                      "since the last reduction");
    if (!record->step.known || !w->begun
        || (w->kind == record->step.kind && (w->kind == CTRT_LOSS_MEAN || w->unit == record->number)))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the captured step has another kind of loss, or other numbers of rows, than the "
                     "steps since the last reduction (ctrt_parallel_no_sync); the gradients of the group are lost");
}

/* Called by each replay. After a failure the group begins anew. A replay adds to the gradients that the parameters had
 * at the capture, and overwrites if they had none. */
static ctrt_status replay_check(const struct record *record)
{
    struct distributed *d = record->d;
    const ctrt_status status = group_check(&d->r.weights, record);
    if (status != CTRT_OK)
        group_drop(d);
    CTRT_TRY(status);
    for (size_t s = 0; s < d->r.leaf_count && d->r.weights.steps > 0; s++)
        if (d->slots[s].leaf.used)
            CTRT_TRY(gradient_check(d, &d->slots[s], record->before[s]));
    return CTRT_OK;
}

/* ---- the beginning of a pass ---- */

static ctrt_status count_step(void *user)
{
    struct distributed *d = user;
    d->steps++;
    d->done++;
    return CTRT_OK;
}

ctrt_status capture_step(struct distributed *d)
{
    return ctrt_capture_call(d->r.device, count_step, d, NULL);
}

static ctrt_status fill_weights(void *user)
{
    const struct record *record = user;
    struct weights *w = &record->d->r.weights;
    double numbers[WEIGHTS_TOTALS];
    CTRT_TRY(replay_check(record));
    w->part = (ctrt_loss_part){ .kind = record->step.kind, .parts = record->step.known };
    w->number = record->number;
    weights_numbers(w, numbers, 0);
    const double own = weights_own(w);
    w->part = (ctrt_loss_part){ .parts = 0 };
    for (int i = 0; i < WEIGHTS_TOTALS; i++) {
        CTRT_AUTO(tensor) place = NULL;
        CTRT_TRY(ctrt_select(&place, record->totals, 0, i));
        CTRT_TRY(ctrt_fill_(place, ctrt_float(numbers[i])));
    }
    return ctrt_fill_(record->own, ctrt_float(own));
}

ctrt_status capture_weights(struct distributed *d)
{
    struct record *record = NULL;
    struct weights *w = &d->r.weights;
    CTRT_TRY(ctrt_empty(&w->totals, CTRT_SHAPE(WEIGHTS_TOTALS), CTRT_F64, d->r.device));
    CTRT_TRY(ctrt_empty(&w->own, CTRT_SCALAR_SHAPE, CTRT_F64, d->r.device));
    CTRT_TRY(record_new(&record, d));
    record->totals = ctrt_tensor_retain(w->totals);
    record->own = ctrt_tensor_retain(w->own);
    return ctrt_capture_call(d->r.device, fill_weights, record, record_free);
}

/* ---- the end of a pass ---- */

static ctrt_status end_alone(void *user)
{
    const struct record *record = user;
    CTRT_TRY(replay_check(record));
    CTRT_TRY(count_step(record->d));
    return end_reduction(record->d);
}

ctrt_status capture_alone(struct distributed *d)
{
    struct record *record = NULL;
    CTRT_TRY(record_new(&record, d));
    return ctrt_capture_call(d->r.device, end_alone, record, record_free);
}

ctrt_status capture_reduced(struct distributed *d)
{
    d->group_open = false;
    d->group_steps = 0;
    return ctrt_capture_call(d->r.device, end_reduction, d, NULL);
}

static ctrt_status end_local(void *user)
{
    const struct record *record = user;
    CTRT_TRY(replay_check(record));
    for (size_t i = 0; i < record->used_count; i++) {
        struct distributed_slot *slot = &record->d->slots[record->used[i]];
        slot->leaf.used = true;
        ctrt_tensor_assign(&slot->replayed, record->after[record->used[i]]);
    }
    weights_count(&record->d->r.weights, &record->step);
    return CTRT_OK;
}

ctrt_status capture_local(struct distributed *d)
{
    struct record *record = NULL;
    CTRT_TRY(record_new(&record, d));
    const ctrt_status status = ALLOCATE(record->used, d->r.leaf_count);
    if (status != CTRT_OK)
        record_free(record);
    CTRT_TRY(status);
    for (size_t s = 0; s < d->r.leaf_count; s++)
        if (d->slots[s].leaf.used) {
            record->used[record->used_count++] = s;
            ctrt_tensor_assign(&record->after[s], ctrt_tensor_grad(d->slots[s].leaf.tensor));
        }
    return ctrt_capture_call(d->r.device, end_local, record, record_free);
}

/* ---- statistics ---- */

ctrt_status capture_stats(struct distributed *d, ctrt_tensor **stats, double *used)
{
    const int64_t n = (int64_t)d->r.leaf_count + 1;
    bool complete = true;
    for (size_t s = 0; s < d->r.leaf_count; s++) {
        complete = complete && d->slots[s].leaf.used;
        used[s + 1] = d->slots[s].leaf.used || d->slots[s].used_globally;
    }
    CTRT_TRY(ctrt_full(stats, CTRT_SHAPE(n), ctrt_float(complete ? 1 : 0), CTRT_F64, d->r.device));
    for (int64_t s = 0; s < n; s++) {
        CTRT_AUTO(tensor) count = NULL;
        const bool counts = s > 0 && d->slots[s - 1].leaf.used;
        if (counts == complete)
            continue;
        CTRT_TRY(ctrt_narrow(&count, *stats, 0, s, 1));
        CTRT_TRY(ctrt_fill_(count, ctrt_float(counts ? 1 : 0)));
    }
    return CTRT_OK;
}
