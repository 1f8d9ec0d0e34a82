/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/gradients.c: the gradients that backward passes compute: hooks, and checks that all are there
 * once. */
#include <stdio.h>

#include "ranks.h"

#define MOST_NAMES 8                        /* of a message */

/* ---- leaves ---- */

void leaf_add(struct ranks *r, struct ranks_leaf *leaf, size_t parameter)
{
    *leaf = (struct ranks_leaf){ .r = r, .tensor = r->tensors[parameter], .parameter = parameter,
                                 .trains = ctrt_tensor_requires_grad(r->tensors[parameter]) };
    r->leaves[r->leaf_count++] = leaf;
}

static ctrt_status leaf_gradient(void *user, ctrt_tensor *tensor)
{
    struct ranks_leaf *leaf = user;
    const struct ranks *r = leaf->r;
    ctrt_status status;
    if (r->kind == UNHOOKED && r->pass != PASS_IDLE) {
        leaf->used = leaf->used || r->no_sync;
        return CTRT_OK;
    }
    CTRT_AUTO(tensor) grad = ctrt_tensor_retain(ctrt_tensor_grad(tensor));
    const bool was = ctrt_set_streams_ordered(true);
    ctrt_no_grad status = r->calls->gradient(leaf, grad);
    ctrt_set_streams_ordered(was);
    return ctrt_context(status, "%s", r->calls->name);
}

ctrt_status gradients_new(struct ranks *r)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CTRT_TRY(ctrt_device_get_properties(&properties, ctrt_device_name(r->device)));
    if (properties.asynchronous)
        CTRT_TRY(ctrt_stream_new(&r->stream, r->device, 0));
    CTRT_TRY(weights_new(&r->weights, r->device));
    CTRT_TRY(ALLOCATE(r->stats, r->leaf_count + 3));
    for (size_t i = 0; i < r->leaf_count; i++) {
        struct ranks_leaf *leaf = r->leaves[i];
        if (leaf->trains)
            CTRT_TRY(ctrt_tensor_add_accumulate_hook(leaf->tensor, leaf_gradient, leaf, &leaf->hook));
    }
    return CTRT_OK;
}

void gradients_free(struct ranks *r)
{
    for (size_t i = 0; i < r->leaf_count; i++)
        if (r->leaves[i]->hook != 0)
            (void)ctrt_tensor_remove_hook(r->leaves[i]->tensor, r->leaves[i]->hook);
    free(r->stats);
    weights_free(&r->weights);
    ctrt_stream_release(&r->stream);
}

/* ---- checks ---- */

ctrt_status gradient_arrives(const struct ranks_leaf *leaf, const char *advice)
{
    struct ranks *r = leaf->r;
    const char *why = leaf->arrived ? "twice after one forward pass"
                      : r->pass == PASS_IDLE || r->kind == EVALUATION
                          ? "without a forward pass of the strategy before, so it would not be reduced"
                      : r->pass == PASS_FORWARD ? "before the forward pass has ended" : NULL;
    if (why != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the gradient of \"%s\" was computed %s; %s", ranks_name(r, leaf->parameter),
                         why, advice);
    if (r->pass == PASS_TURN)
        STATE_SET(MACHINE_PASS, r->pass, PASS_BACKWARD);
    return CTRT_OK;
}

ctrt_status gradients_check(const struct ranks *r)
{
    char names[512] = "";
    size_t count = 0, length = 0;
    if (r->kind != PROGRAM || r->pass != PASS_BACKWARD || r->local)
        return CTRT_OK;
    for (size_t i = 0; i < r->leaf_count; i++) {
        const struct ranks_leaf *leaf = r->leaves[i];
        if (leaf->arrived || !leaf->trains || count++ >= MOST_NAMES || length >= sizeof names)
            continue;
        length += (size_t)snprintf(names + length, sizeof names - length, "%s\"%s\"", count > 1 ? ", " : "",
                                   ranks_name(r, leaf->parameter));
    }
    if (count == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the backward pass computed no gradient of %zu parameters: %s%s, so the gradients "
                     "are not reduced; use ctrt_parallel_step, or freeze parameters that the loss does not depend on",
                     count, names, count > MOST_NAMES ? ", ..." : "");
}

/* ---- uses ---- */

bool leaves_stats(struct ranks *r)
{
    bool complete = true;
    r->stats[0] = 0;
    for (size_t i = 0; i < r->leaf_count; i++) {
        r->stats[i + 1] = r->leaves[i]->used;
        complete = complete && (r->leaves[i]->used || !r->leaves[i]->trains);
    }
    return complete;
}

void leaves_unused(struct ranks *r)
{
    for (size_t i = 0; i < r->leaf_count; i++)
        r->leaves[i]->used = false;
}
