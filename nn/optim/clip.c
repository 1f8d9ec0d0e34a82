/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/clip.c: clips gradients by their total norm (Pascanu et al. 2013), with 1e-6 in the denominator as in
 * PyTorch. */
#include "base/host_alloc.h"
#include "base/ptr_map.h"
#include "ctrt/layout.h"
#include "ctrt/optim.h"
#include "nn/module/module.h"

#include "device/device.h"

/* Computes the sum of squares of one gradient as a 0-dim tensor on `device`. The dtype is f32 or f64. */
static ctrt_status squares(ctrt_tensor **out, ctrt_tensor *grad, ctrt_device *device)
{
    ctrt_dtype dtype = ctrt_tensor_dtype(grad);
    if (ctrt_dtype_size(dtype) < 4)
        dtype = CTRT_F32;                           /* squares of f16 overflow at 256 */
    CTRT_TRY(ctrt_to_dtype(out, grad, dtype));
    CTRT_TRY(ctrt_square(out, *out));
    CTRT_TRY(ctrt_sum(out, *out, CTRT_ALL_DIMS));
    return ctrt_to_device(out, *out, device);
}

static ctrt_status add_to(ctrt_tensor **sum, ctrt_tensor *one)
{
    if (*sum != NULL)
        return ctrt_add(sum, *sum, one);
    ctrt_tensor_assign(sum, one);
    return CTRT_OK;
}

/* Adds the squares of the gradients of walk[] whose group is `group` to *sum, a 0-dim tensor on the device of the first
 * gradient. *sum stays NULL if there are none. `listener`: NULL, or the group's, which may have parts of gradients. */
static ctrt_status squares_add(ctrt_tensor **sum, const struct walk *walk, const size_t *groups, size_t group,
                               ctrt_module *listener)
{
    /* On a device with members, sums of sharded gradients are partial. Added to another sum, each would need an
     * all_reduce. */
    CTRT_AUTO(tensor) one = NULL, partial = NULL;
    ctrt_device *device = *sum != NULL ? ctrt_tensor_device(*sum) : NULL;
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_module_gradient gradient = { .parameter = walk->entries[i].tensor };
        ctrt_tensor *grad = groups[i] == group ? ctrt_tensor_grad(gradient.parameter) : NULL;
        if (grad == NULL)
            continue;
        if (listener != NULL)
            CTRT_TRY(listener->class_of->event(listener, CTRT_MODULE_GRAD_WHOLE, &gradient));
        device = device != NULL ? device : ctrt_tensor_device(grad);
        const ctrt_status status = squares(&one, gradient.whole != NULL ? gradient.whole : grad, device);
        ctrt_tensor_release(&gradient.whole);
        CTRT_TRY(status);
        ctrt_layout layout;
        CTRT_TRY(ctrt_tensor_layout(&layout, one));
        CTRT_TRY(add_to(layout.kind == CTRT_LAYOUT_PARTIAL ? &partial : sum, one));
    }
    return partial != NULL ? add_to(sum, partial) : CTRT_OK;
}

/* groups[i]: 1 + the index of the listener that has parameter i of `walk`, or 0. */
static ctrt_status groups_find(size_t *groups, const struct walk *walk, ctrt_module *const *listeners, size_t count)
{
    for (size_t l = 0; l < count; l++) {
        const struct walk *theirs;
        struct ptr_map map = { .count = 0 };
        CTRT_TRY(module_walk(&theirs, listeners[l], WALK_PARAMETERS));
        ctrt_status status = CTRT_OK;
        for (size_t i = 0; i < theirs->count && status == CTRT_OK; i++)
            if (ptr_map_add(&map, theirs->entries[i].tensor, sizeof(void *)) == NULL)
                status = out_of_memory(sizeof(void *), "clipping gradients");
        for (size_t i = 0; i < walk->count && status == CTRT_OK; i++)
            if (groups[i] == 0 && ptr_map_find(&map, walk->entries[i].tensor, sizeof(void *)) != NULL)
                groups[i] = l + 1;
        ptr_map_free(&map);
        CTRT_TRY(status);
    }
    return CTRT_OK;
}

/* The sum of squares of the parameters of a listener. It may have other parts of their gradients in other processes. */
static ctrt_status listener_squares(ctrt_tensor **sum, const struct walk *walk, const size_t *groups, size_t group,
                                    ctrt_module *listener)
{
    ctrt_device *device = NULL;
    CTRT_TRY(squares_add(sum, walk, groups, group, listener));
    if (*sum == NULL && ctrt_module_device(&device, listener) != CTRT_OK)
        return CTRT_OK;
    if (*sum == NULL)
        CTRT_TRY(ctrt_zeros(sum, CTRT_SCALAR_SHAPE, CTRT_F32, device));
    return listener->class_of->event(listener, CTRT_MODULE_GRAD_NORM, *sum);
}

/* Computes the norm of all gradients as a 0-dim tensor on the device of the first gradient. *norm is NULL if there are
 * no gradients. */
static ctrt_status total_norm(ctrt_tensor **norm, const struct walk *walk, ctrt_module *const *listeners,
                              size_t count, size_t *groups)
{
    CTRT_TRY(groups_find(groups, walk, listeners, count));
    for (size_t l = 0; l < count; l++) {
        CTRT_AUTO(tensor) sum = NULL;
        CTRT_TRY(listener_squares(&sum, walk, groups, l + 1, listeners[l]));
        if (*norm == NULL)
            ctrt_tensor_assign(norm, sum);
        else if (sum != NULL) {
            CTRT_TRY(ctrt_to_device(&sum, sum, ctrt_tensor_device(*norm)));
            CTRT_TRY(ctrt_add(norm, *norm, sum));
        }
    }
    CTRT_TRY(squares_add(norm, walk, groups, 0, NULL));
    return *norm ? ctrt_sqrt(norm, *norm) : CTRT_OK;
}

/* grad *= min(1, max_norm / (norm + 1e-6)). Computes the factor on the device, without copying the norm to the host. */
static ctrt_status clip_scale(const struct walk *walk, ctrt_tensor *norm, double max_norm)
{
    CTRT_AUTO(tensor) factor = NULL;
    CTRT_AUTO(tensor) here = NULL;
    CTRT_TRY(ctrt_add_scalar(&factor, norm, ctrt_float(1e-6)));
    CTRT_TRY(ctrt_rdiv_scalar(&factor, factor, ctrt_float(max_norm)));
    CTRT_TRY(ctrt_clamp_max(&factor, factor, ctrt_float(1)));
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(walk->entries[i].tensor);
        if (grad == NULL)
            continue;
        CTRT_TRY(ctrt_to_device(&here, factor, ctrt_tensor_device(grad)));
        CTRT_TRY(ctrt_mul_(grad, here));
    }
    return CTRT_OK;
}

static ctrt_status norm_find(ctrt_tensor **norm, const struct walk *walk, ctrt_module *module)
{
    HOST_AUTO ctrt_module **listeners = NULL;
    size_t count = 0, bytes = (walk->count + 1) * sizeof(size_t);
    HOST_AUTO size_t *groups = host_calloc(bytes);
    ALLOC_CHECK(groups, bytes, "clipping gradients");
    CTRT_TRY(module_listeners(&listeners, &count, module));
    return total_norm(norm, walk, listeners, count, groups);
}

static ctrt_status clip_to_norm(double *norm, const struct walk *walk, ctrt_module *module, double max_norm)
{
    CTRT_AUTO(tensor) total = NULL;
    double value = 0;
    CTRT_TRY(norm_find(&total, walk, module));
    if (total != NULL && (norm || device_host_memory(ctrt_tensor_device(total)))) {
        CTRT_TRY(ctrt_item(&value, total));
        if (max_norm >= value + 1e-6)               /* the factor would be 1 */
            ctrt_tensor_release(&total);
    }
    if (total != NULL)
        CTRT_TRY(clip_scale(walk, total, max_norm));
    if (norm)
        *norm = value;
    return CTRT_OK;
}

ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm)
{
    const struct walk *walk;
    ctrt_status status = CTRT_OK;
    NULL_CHECK("clip_grad_norm_", module);
    if (!(max_norm >= 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "clip_grad_norm_: max_norm is %g, expected at least 0", max_norm);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    ctrt_no_grad status = clip_to_norm(norm, walk, module, max_norm);
    return ctrt_context(status, "clip_grad_norm_");
}
