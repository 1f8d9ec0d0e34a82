/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/skip.c: guarded steps. A gradient scaler makes them; the device skips them if a gradient is inf or NaN.
 *
 * The host does not wait for the decision, so it counts each guarded step of a slot. The device counts the skipped ones
 * in optim_place.skipped, as a negative number. The number of steps that Adam's formulas need is the sum of both,
 * computed on the device. All devices of an optimizer take the same decision. The count of a place therefore holds for
 * all slots that the guarded steps have updated, as long as these are the same in each step. If other slots have a
 * gradient, or something needs the true numbers on the host (checkpoints, steps without a scaler), optim_settle waits
 * for the device and adds the negative count to the counts of the slots. */
#include "nn/optim/optim.h"

#include <math.h>

#include "base/array.h"
#include "graph/capture.h"
#include "tensor/tensor.h"

ctrt_status optim_bias(ctrt_tensor **out, double base, ctrt_tensor *step)
{
    CTRT_TRY(ctrt_mul_scalar(out, step, ctrt_float(log(base))));
    CTRT_TRY(ctrt_expm1(out, *out));
    return ctrt_mul_scalar(out, *out, ctrt_float(-1));
}

struct optim_place *optim_place_of(const ctrt_optimizer *optimizer, const ctrt_device *device)
{
    for (size_t i = 0; i < optimizer->place_count; i++)
        if (optimizer->places[i].device == device)
            return &optimizer->places[i];
    return NULL;
}

ctrt_status optim_place_find(struct optim_place **out, ctrt_optimizer *optimizer, ctrt_device *device)
{
    struct optim_place *place = optim_place_of(optimizer, device);
    if (likely(place != NULL && place->found != NULL)) {
        *out = place;
        return CTRT_OK;
    }
    CTRT_TRY(capture_refuse(device, "this is the optimizer's first step with a gradient scaler; take a step before the "
                                    "capture"));
    CTRT_TRY(optim_prepare(optimizer, device));
    CTRT_TRY(ARRAY_RESERVE(optimizer->places, optimizer->place_capacity, optimizer->place_count, "an optimizer"));
    CTRT_AUTO(tensor) found = NULL, skipped = NULL;
    CTRT_TRY(ctrt_zeros(&found, CTRT_SCALAR_SHAPE, CTRT_F32, device));
    CTRT_TRY(ctrt_zeros(&skipped, CTRT_SCALAR_SHAPE, CTRT_F64, device));
    if (optim_place_of(optimizer, device) == NULL)
        optimizer->places[optimizer->place_count++] = (struct optim_place){ .device = device };
    place = optim_place_of(optimizer, device);
    ctrt_tensor_assign(&place->found, found);
    ctrt_tensor_assign(&place->skipped, skipped);
    *out = place;
    return CTRT_OK;
}

void optim_places_free(ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->place_count; i++) {
        ctrt_tensor_release(&optimizer->places[i].found);
        ctrt_tensor_release(&optimizer->places[i].skipped);
        ctrt_tensor_release(&optimizer->places[i].inf);
    }
    host_free(optimizer->places);
}

ctrt_status optim_settle(ctrt_optimizer *optimizer)
{
    bool dry = false;
    for (size_t p = 0; p < optimizer->place_count && optimizer->unsettled > 0; p++) {
        struct optim_place *place = &optimizer->places[p];
        ctrt_status status = CTRT_OK;
        double skipped = 0;
        if (dry_run_on(place->device)) {            /* the dry run cannot read the count and needs none */
            dry = true;
            continue;
        }
        if (place->found == NULL)
            continue;
        CTRT_TRY(ctrt_context(ctrt_item(&skipped, place->skipped), "%s: the number of skipped steps",
                              optimizer->kind->name));
        ctrt_no_grad status = ctrt_zero_(place->skipped);
        CTRT_TRY(status);
        for (size_t i = 0; i < optimizer->count; i++)
            if (optimizer->slots[i].place == p + 1)
                optimizer->slots[i].steps += (int64_t)skipped;
    }
    if (!dry)
        optimizer->unsettled = 0;
    return CTRT_OK;
}

/* Returns whether optim_settle must run before the step: a slot was not part of the last guarded step or no longer is,
 * or the slot's first step may have been skipped, and the formula needs that information on the host. */
static bool must_settle(const ctrt_optimizer *optimizer, const struct optim_slot *slot, size_t place)
{
    bool (*const first_differs)(const union optim_options *) = optimizer->kind->first_differs;
    return slot->place != place || (first_differs != NULL && slot->steps > 0 && slot->steps <= optimizer->unsettled
                                    && first_differs(optim_slot_options(optimizer, slot)));
}

ctrt_status optim_guard_begin(ctrt_optimizer *optimizer)
{
    bool other = false;
    for (size_t i = 0; i < optimizer->place_count; i++)
        ctrt_tensor_release(&optimizer->places[i].inf);             /* left by a step that failed */
    for (size_t i = 0; i < optimizer->count; i++) {
        struct optim_slot *slot = &optimizer->slots[i];
        struct optim_place *place = NULL;
        if (slot->grad != NULL)
            CTRT_TRY(optim_place_find(&place, optimizer, slot->target->device));
        if (dry_run_on(slot->parameter->device))
            continue;                           /* the slot keeps its place, and with it the skipped steps so far */
        const size_t number = place != NULL ? (size_t)(place - optimizer->places) + 1 : 0;
        if (must_settle(optimizer, slot, number))
            CTRT_TRY(optim_settle(optimizer));
        other = other || slot->place != number;
    }
    for (size_t i = 0; i < optimizer->count && other; i++) {
        struct optim_slot *slot = &optimizer->slots[i];
        struct optim_place *place = NULL;
        if (dry_run_on(slot->parameter->device))
            continue;
        if (slot->grad != NULL)
            CTRT_TRY(optim_place_find(&place, optimizer, slot->target->device));
        slot->place = place != NULL ? (size_t)(place - optimizer->places) + 1 : 0;
    }
    optimizer->skip_generation += other;
    return CTRT_OK;
}

ctrt_status optim_guard_end(ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->place_count; i++) {
        struct optim_place *place = &optimizer->places[i];
        ctrt_tensor_release(&place->inf);
        if (place->used)
            CTRT_TRY(ctrt_sub_(place->skipped, place->found));
    }
    for (size_t i = 0; i < optimizer->count; i++) {
        const ctrt_device *device = optimizer->slots[i].parameter->device;
        if (optimizer->slots[i].place > 0 && capture_here(device) == NULL && !dry_run_on(device)) {
            optimizer->unsettled++;
            break;
        }
    }
    return CTRT_OK;
}

ctrt_status optim_guarded_copy(struct optim_place *place, ctrt_tensor *old, ctrt_tensor *next)
{
    CTRT_AUTO(tensor) kept = NULL;
    if (place->inf == NULL)
        CTRT_TRY(ctrt_ne_scalar(&place->inf, place->found, ctrt_int(0)));
    /* The parameter may have a narrower dtype than `next`; the copy rounds once. */
    CTRT_TRY(ctrt_to_dtype(&kept, old, ctrt_tensor_dtype(next)));
    CTRT_TRY(ctrt_where(&kept, place->inf, kept, next));
    return ctrt_copy_(old, kept);
}
