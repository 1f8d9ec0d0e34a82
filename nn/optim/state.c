/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/state.c: reads the parameters and states of an optimizer, and replaces states, so that they can be copied to
 * other ranks. */
#include "nn/optim/optim.h"

static ctrt_status optim_slot_of(struct optim_slot **out, ctrt_optimizer *optimizer, size_t index, const char *who)
{
    NULL_CHECK(who, optimizer);
    if (index >= optimizer->count)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "%s: index %zu, but the optimizer has %zu parameters", who, index,
                         optimizer->count);
    *out = &optimizer->slots[index];
    return CTRT_OK;
}

size_t ctrt_optimizer_parameter_count(const ctrt_optimizer *optimizer)
{
    return optimizer != NULL ? optimizer->count : 0;
}

ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index, const char *name)
{
    struct optim_slot *slot = NULL;
    NULL_CHECK("optimizer_state", borrowed);
    NULL_CHECK("optimizer_state", name);
    CTRT_TRY(optim_slot_of(&slot, optimizer, index, "optimizer_state"));
    for (int i = 0; i < OPTIM_STATES; i++) {
        const char *state_name = optimizer->kind->states[i].name;
        if (state_name && strcmp(name, state_name) == 0 && slot->state[i]) {
            *borrowed = slot->state[i];
            return CTRT_OK;
        }
    }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "optimizer_state: %s has no state \"%s\" for %s yet",
                     optimizer->kind->name, name, slot->name);
}

ctrt_status ctrt_optimizer_tensors(ctrt_tensor **parameter, ctrt_tensor **states, ctrt_optimizer *optimizer,
                                   size_t index)
{
    struct optim_slot *slot = NULL;
    NULL_CHECK("optimizer_tensors", parameter);
    NULL_CHECK("optimizer_tensors", states);
    CTRT_TRY(optim_slot_of(&slot, optimizer, index, "optimizer_tensors"));
    *parameter = slot->parameter;
    for (int i = 0, n = 0; i < OPTIM_STATES; i++) {
        if (n <= i)
            states[i] = NULL;
        if (slot->state[i] != NULL && !optimizer->kind->states[i].scalar)
            states[n++] = slot->state[i];
    }
    return CTRT_OK;
}

ctrt_status ctrt_optimizer_get_state(int64_t *steps, ctrt_tensor **states, ctrt_optimizer *optimizer, size_t index)
{
    struct optim_slot *slot = NULL;
    if (steps == NULL || states == NULL)
        return fail_null("optimizer_get_state", steps == NULL ? "steps" : "states");
    CTRT_TRY(optim_slot_of(&slot, optimizer, index, "optimizer_get_state"));
    CTRT_TRY(optim_settle(optimizer));
    *steps = slot->steps;
    for (int i = 0; i < OPTIM_STATES; i++)
        states[i] = slot->state[i];
    return CTRT_OK;
}

/* Fails if a state that the optimizer needs is missing or has another number of elements. */
static ctrt_status states_check(const struct optim_slot *slot, unsigned needs, ctrt_tensor *const *states)
{
    for (int i = 0; i < OPTIM_STATES; i++)
        if ((needs >> i & 1) && (states[i] == NULL
                                 || ctrt_tensor_numel(states[i]) != ctrt_tensor_numel(slot->state[i])))
            return ctrt_fail(CTRT_ERR_STATE, "optimizer_set_state: state %d of %s has %lld elements, expected %lld; "
                             "the optimizers must be of the same kind with the same options", i, slot->name,
                             states[i] != NULL ? (long long)ctrt_tensor_numel(states[i]) : 0,
                             (long long)ctrt_tensor_numel(slot->state[i]));
    return CTRT_OK;
}

static ctrt_status states_copy(struct optim_slot *slot, unsigned needs, ctrt_tensor *const *states)
{
    for (int i = 0; i < OPTIM_STATES; i++) {
        CTRT_AUTO(tensor) view = NULL;
        if (!(needs >> i & 1))
            continue;
        CTRT_TRY(ctrt_view_as(&view, states[i], ctrt_ints_of(ctrt_tensor_shape(slot->state[i]),
                                                             ctrt_tensor_ndim(slot->state[i]))));
        CTRT_TRY(ctrt_copy_(slot->state[i], view));
    }
    return CTRT_OK;
}

ctrt_status ctrt_optimizer_set_state(ctrt_optimizer *optimizer, size_t index, int64_t steps,
                                     ctrt_tensor *const *states)
{
    struct optim_slot *slot = NULL;
    ctrt_status status = CTRT_OK;
    CTRT_TRY(optim_slot_of(&slot, optimizer, index, "optimizer_set_state"));
    if (steps < 0 || states == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "optimizer_set_state: %s",
                         steps < 0 ? "steps is negative" : "states is NULL");
    CTRT_TRY(optim_settle(optimizer));
    const unsigned needs = optimizer->kind->needs(optim_slot_options(optimizer, slot));
    bool any = false;
    for (int i = 0; i < OPTIM_STATES; i++)
        any = any || states[i] != NULL;
    if (any || steps > 0) {
        ctrt_no_grad {
            status = optim_state_ready(optimizer, slot);
            if (status == CTRT_OK)
                status = states_check(slot, needs, states);
            if (status == CTRT_OK)
                status = states_copy(slot, needs, states);
        }
        CTRT_TRY(status);
    } else {
        for (int i = 0; i < OPTIM_STATES; i++)
            ctrt_tensor_release(&slot->state[i]);
    }
    slot->steps = steps;
    return CTRT_OK;
}
