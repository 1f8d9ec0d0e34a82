/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/dryrun.c: an optimizer continues after a dry run as if the dry run had not been: tensors that the dry run
 * has created are released, and the next step creates them again. */
#include "nn/optim/optim.h"

#include "dryrun/cleanup.h"
#include "tensor/tensor.h"

static void optimizer_cleanup(void *object)
{
    ctrt_optimizer *optimizer = object;
    for (size_t i = 0; i < optimizer->count; i++)
        for (int s = 0; s < OPTIM_STATES; s++) {
            struct optim_slot *slot = &optimizer->slots[i];
            dryrun_drop(&slot->state[s]);
            if (slot->before[s] != NULL)
                tensor_move(&slot->state[s], slot->before[s]);
            slot->before[s] = NULL;
        }
    for (size_t i = 0; i < optimizer->place_count; i++) {
        struct optim_place *place = &optimizer->places[i];
        dryrun_drop(&place->found);
        dryrun_drop(&place->skipped);
        dryrun_drop(&place->inf);
        place->used = place->used && place->found != NULL;
    }
}

ctrt_status optim_prepare(ctrt_optimizer *optimizer, const ctrt_device *device)
{
    return dry_run_on(device) ? dryrun_cleanup_add(&optimizer->cleanup, optimizer_cleanup, optimizer) : CTRT_OK;
}

ctrt_status optim_convert(ctrt_optimizer *optimizer, struct optim_slot *slot, int i)
{
    ctrt_tensor *parameter = slot->parameter, *state = slot->state[i];
    if (unlikely(dry_run_on(parameter->device) || dry_run_on(state->device)) && slot->before[i] == NULL) {
        CTRT_TRY(dryrun_cleanup_add(&optimizer->cleanup, optimizer_cleanup, optimizer));
        slot->before[i] = ctrt_tensor_retain(state);
    }
    return ctrt_to(&slot->state[i], state, parameter->device, optim_state_dtype(parameter), false,
                   CTRT_CONTIGUOUS_FORMAT);
}
