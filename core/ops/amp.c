/* SPDX-License-Identifier: Apache-2.0 */
/* ops/amp.c: the ops of the gradient scaler, with a device's kernels or composed of elementwise ops. */
#include "ops/amp.h"

#include "ctrt/ops.h"
#include "ops/dispatch.h"
#include "ops/op_common.h"

/* found = max(found, any element of x is inf or NaN) */
static ctrt_status found_add(ctrt_tensor *found, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) finite = NULL;
    CTRT_TRY(ctrt_isfinite(&finite, x));
    CTRT_TRY(ctrt_all(&finite, finite, CTRT_ALL_DIMS, false));
    CTRT_TRY(ctrt_logical_not(&finite, finite));
    CTRT_TRY(ctrt_to_dtype(&finite, finite, CTRT_F32));
    CTRT_TRY(ctrt_maximum(&finite, finite, found));
    return ctrt_copy_(found, finite);
}

static ctrt_status unscale_composed(ctrt_tensor *found, ctrt_tensor *const *grads, size_t count, ctrt_tensor *scale)
{
    CTRT_AUTO(tensor) inverse = NULL, product = NULL;
    CTRT_TRY(ctrt_reciprocal(&inverse, scale));
    for (size_t i = 0; i < count; i++) {
        CTRT_TRY(found_add(found, grads[i]));
        /* In f16 and bf16 the factor would be rounded before the product. */
        ctrt_tensor_assign(&product, grads[i]);
        if (dtype_bytes(tensor_dtype(product)) < 4)
            CTRT_TRY(ctrt_to_dtype(&product, product, CTRT_F32));
        CTRT_TRY(ctrt_mul(&product, product, inverse));
        CTRT_TRY(ctrt_copy_(grads[i], product));
    }
    return CTRT_OK;
}

ctrt_status op_amp_unscale(ctrt_tensor *found, ctrt_tensor *const *grads, size_t count, ctrt_tensor *scale,
                           const ctrt_view **views)
{
    OP_SCOPE(OP_amp_unscale);
    const ctrt_view **outputs = views + count + 2;
    views[0] = outputs[0] = &found->view;
    for (size_t i = 0; i < count; i++)
        views[1 + i] = outputs[1 + i] = &grads[i]->view;
    views[1 + count] = &scale->view;
    struct op_call call = { OP_amp_unscale, tensor_dtype(grads[0]), found->device, .inputs = views, .n_inputs = 3,
                            .outputs = outputs, .n_outputs = 2 };
    if (!kernel_available(&call))
        return unscale_composed(found, grads, count, scale);
    call.n_inputs = (int)count + 2;
    call.n_outputs = (int)count + 1;
    CTRT_TRY(kernel_call(&call));
    tensor_bump_version(found);
    for (size_t i = 0; i < count; i++)
        tensor_bump_version(grads[i]);
    return CTRT_OK;
}

/* Sets *out to condition ? yes : no, or to `no` times 0 if `yes` is NULL. */
static ctrt_status pick(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *yes, ctrt_tensor *no)
{
    CTRT_AUTO(tensor) zero = NULL;
    if (yes == NULL)
        CTRT_TRY(ctrt_mul_scalar(&zero, no, ctrt_int(0)));
    return ctrt_where(out, condition, yes != NULL ? yes : zero, no);
}

static ctrt_status update_composed(ctrt_tensor *scale, ctrt_tensor *tracker, ctrt_tensor *skips, ctrt_tensor *found,
                                   const ctrt_amp_attributes *a)
{
    CTRT_AUTO(tensor) inf = NULL, due = NULL, finite = NULL, grown = NULL, next = NULL, count = NULL, more = NULL,
                      row = NULL, both = NULL;
    CTRT_TRY(ctrt_ne_scalar(&inf, found, ctrt_int(0)));
    CTRT_TRY(ctrt_add_scalar(&count, tracker, ctrt_int(1)));
    CTRT_TRY(ctrt_eq_scalar(&due, count, ctrt_int(a->growth_interval)));
    CTRT_TRY(ctrt_mul_scalar(&grown, scale, ctrt_float(a->growth_factor)));
    CTRT_TRY(ctrt_isfinite(&finite, grown));
    CTRT_TRY(ctrt_logical_and(&finite, finite, due));
    CTRT_TRY(pick(&grown, finite, grown, scale));
    CTRT_TRY(ctrt_mul_scalar(&next, scale, ctrt_float(a->backoff_factor)));
    if (a->min_scale > 0) {
        CTRT_AUTO(tensor) least = NULL;             /* a scale that is below min_scale already stays */
        CTRT_TRY(ctrt_clamp_max(&least, scale, ctrt_float(a->min_scale)));
        CTRT_TRY(ctrt_maximum(&next, next, least));
    }
    CTRT_TRY(pick(&next, inf, next, grown));
    CTRT_TRY(ctrt_logical_or(&due, due, inf));
    CTRT_TRY(pick(&count, due, NULL, count));

    CTRT_TRY(ctrt_to_dtype(&more, inf, CTRT_I32));
    CTRT_TRY(ctrt_add(&both, skips, more));
    CTRT_TRY(ctrt_select(&row, both, 0, 0));
    CTRT_TRY(ctrt_mul(&more, row, more));
    CTRT_TRY(ctrt_copy_(row, more));
    CTRT_TRY(ctrt_copy_(skips, both));
    CTRT_TRY(ctrt_copy_(tracker, count));
    return ctrt_copy_(scale, next);
}

ctrt_status op_amp_update(ctrt_tensor *scale, ctrt_tensor *tracker, ctrt_tensor *skips, ctrt_tensor *found,
                          const ctrt_amp_attributes *attributes)
{
    OP_SCOPE(OP_amp_update);
    const ctrt_view *inputs[4] = { &scale->view, &tracker->view, &skips->view, &found->view };
    const struct op_call call = { OP_amp_update, CTRT_F32, scale->device, .inputs = inputs, .n_inputs = 4,
                                  .outputs = inputs, .n_outputs = 3, .attributes = attributes };
    if (!kernel_available(&call))
        return update_composed(scale, tracker, skips, found, attributes);
    CTRT_TRY(kernel_call(&call));
    tensor_bump_version(scale);
    tensor_bump_version(tracker);
    tensor_bump_version(skips);
    return CTRT_OK;
}
