/* SPDX-License-Identifier: Apache-2.0 */
/* nn/clip.c: clips gradients by their total norm (Pascanu et al. 2013), with 1e-6 in the denominator as in PyTorch. */
#include "ctrt/optim.h"
#include "nn/module.h"

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

/* Computes the norm of all gradients as a 0-dim tensor on the device of the first gradient. *norm is NULL if there are
 * no gradients. */
static ctrt_status total_norm(ctrt_tensor **norm, const struct walk *walk)
{
    CTRT_AUTO(tensor) one = NULL;
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(walk->entries[i].tensor);
        if (grad == NULL)
            continue;
        CTRT_TRY(squares(&one, grad, *norm ? ctrt_tensor_device(*norm) : ctrt_tensor_device(grad)));
        if (*norm == NULL)
            ctrt_tensor_assign(norm, one);
        else
            CTRT_TRY(ctrt_add(norm, *norm, one));
    }
    return *norm ? ctrt_sqrt(norm, *norm) : CTRT_OK;
}

/* grad *= min(1, max_norm / (norm + 1e-6)). Computes the factor on the device, without copying the norm to the host. */
static ctrt_status scale(const struct walk *walk, ctrt_tensor *norm, double max_norm)
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

static ctrt_status clip(double *norm, const struct walk *walk, double max_norm)
{
    CTRT_AUTO(tensor) total = NULL;
    double value = 0;
    CTRT_TRY(total_norm(&total, walk));
    if (total != NULL && (norm || device_host_memory(ctrt_tensor_device(total)))) {
        CTRT_TRY(ctrt_item(&value, total));
        if (max_norm >= value + 1e-6)               /* the factor would be 1 */
            ctrt_tensor_release(&total);
    }
    if (total != NULL)
        CTRT_TRY(scale(walk, total, max_norm));
    if (norm)
        *norm = value;
    return CTRT_OK;
}

ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm)
{
    const struct walk *walk;
    ctrt_status status = CTRT_OK;
    if (module == NULL)
        return fail_null("clip_grad_norm_", "module");
    if (!(max_norm >= 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "clip_grad_norm_: max_norm is %g, expected at least 0", max_norm);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    ctrt_no_grad status = clip(norm, walk, max_norm);
    return ctrt_context(status, "clip_grad_norm_");
}
