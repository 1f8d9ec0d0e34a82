/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/loss_parameter.c: parameters and buffers of the module in loss functions. A loss function is
 * called for parts of the batch, some of which a copy of the module has computed, or a device without the parameter. */
#include "base/base.h"
#include "nn/module/module.h"
#include "ops/op_common.h"
#include "parallel/strategy/loss.h"

const ctrt_part_module *ctrt_set_part_module(const ctrt_part_module *part)
{
    const ctrt_part_module *before = thread_state.part_module;
    thread_state.part_module = part;
    return before;
}

static const ctrt_part_module *part_module(void)
{
    const ctrt_part_module *part = thread_state.part_module;
    return part != NULL && part->module != NULL && part->originals != NULL ? part : NULL;
}

/* Finds the tensor of the thread's module that replaces `tensor`, and its name. *out is NULL if `tensor` is no
 * parameter or buffer of the original. */
static ctrt_status replacement(ctrt_tensor **out, const char **name, const ctrt_tensor *tensor)
{
    const ctrt_part_module *part = part_module();
    const struct walk *walks[2];
    size_t index = 0;
    *out = NULL;
    if (part == NULL)
        return CTRT_OK;
    CTRT_TRY(module_walk(&walks[0], part->module, WALK_PARAMETERS));
    CTRT_TRY(module_walk(&walks[1], part->module, WALK_BUFFERS));
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < walks[k]->count; i++, index++)
            if (part->originals[index] == tensor) {
                *out = walks[k]->entries[i].tensor;
                *name = walks[k]->entries[i].name;
                return CTRT_OK;
            }
    return CTRT_OK;
}

ctrt_status ctrt_loss_parameter(ctrt_tensor **out, ctrt_tensor *tensor)
{
    ctrt_device *device = thread_state.loss_device;
    ctrt_tensor *here = NULL;
    const char *name;
    NULL_CHECKS("loss_parameter", out, tensor);
    if (device != NULL)
        CTRT_TRY(ctrt_context(replacement(&here, &name, tensor), "loss_parameter"));
    here = here != NULL ? here : tensor;
    if (device != NULL && here->device != device)
        return ctrt_context(ctrt_to_device(out, here, device), "loss_parameter");
    ctrt_tensor_assign(out, here);
    return CTRT_OK;
}

/* ---- errors ---- */

#define REMEDY "get the tensor for this part of the batch by ctrt_loss_parameter, or compute the term in the forward " \
               "function of the module"

ctrt_status loss_remedy(ctrt_status status)
{
    const ctrt_part_module *part = part_module();
    const ctrt_device *device = thread_state.loss_device;
    char message[1024];
    const struct walk *walk;
    if (status != CTRT_ERR_DEVICE || part == NULL)
        return status;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    if (module_walk(&walk, part->module, WALK_PARAMETERS) != CTRT_OK)
        return ctrt_fail(status, "%s", message);
    for (size_t i = 0; i < walk->count; i++)
        if (part->originals[i]->device != device)
            return ctrt_fail(status, "%s; the output is on %s; if the loss function uses a tensor that is not among "
                             "its inputs, such as \"%s\" of the module (%s), which is on %s, " REMEDY, message,
                             device->name, walk->entries[i].name, ctrt_module_kind(part->module),
                             part->originals[i]->device->name);
    return ctrt_fail(status, "%s", message);
}

static bool is_own(ctrt_module *module, const ctrt_tensor *leaf)
{
    const struct walk *walk;
    bool own = false;
    if (module_walk(&walk, module, WALK_PARAMETERS) == CTRT_OK)
        for (size_t i = 0; i < walk->count && !own; i++)
            own = walk->entries[i].tensor == leaf;
    return own;
}

ctrt_status loss_leaf_check(const ctrt_tensor *leaf)
{
    const ctrt_part_module *part = part_module();
    ctrt_tensor *here;
    const char *name;
    char shape[SHAPE_TEXT_BYTES];
    if (part == NULL || is_own(part->module, leaf))
        return CTRT_OK;
    CTRT_TRY(replacement(&here, &name, leaf));
    if (here == NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the loss depends on a tensor of shape %s that requires grad and is "
                         "no parameter of the module (%s), so the strategy does not add up its gradients; register it "
                         "in the module (ctrt_module_add_parameter), or use it detached",
                         shape_text(shape, leaf->view.shape, leaf->view.ndim), ctrt_module_kind(part->module));
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the loss function uses the parameter \"%s\" of the module (%s), but a "
                     "copy of the module has computed the output, so the gradient would be lost; " REMEDY, name,
                     ctrt_module_kind(part->module));
}
