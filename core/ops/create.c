/* SPDX-License-Identifier: Apache-2.0 */
/* ops/create.c: functions that create and initialize a tensor. */
#include "tensor/create.h"

#include <math.h>

#include "ops/op_common.h"

/* On success moves `fresh` into *out; on failure releases it and adds the context `who`. */
static ctrt_status create_finish(ctrt_status status, const char *who, ctrt_tensor **out, ctrt_tensor *fresh)
{
    if (unlikely(status != CTRT_OK)) {
        tensor_release(fresh);
        return context_from(status, who);
    }
    tensor_move(out, fresh);
    return CTRT_OK;
}

static ctrt_status create_filled(ctrt_tensor **out, const char *who, ctrt_ints shape, ctrt_scalar value,
                                 ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *fresh = NULL;
    NULL_CHECK(who, out);
    CTRT_TRY(dtype_resolve_on(&dtype, who, dtype, device));
    CTRT_TRY(dtype_check_scalar(who, dtype, value));
    CTRT_TRY(create_empty(&fresh, who, shape, dtype, device));
    return create_finish(kernel_fill(&fresh->view, fresh->device, value), who, out, fresh);
}

ctrt_status ctrt_zeros(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    return create_filled(out, "zeros", shape, ctrt_int(0), dtype, device);
}

ctrt_status ctrt_ones(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    return create_filled(out, "ones", shape, ctrt_int(1), dtype, device);
}

/* Returns the dtype of a tensor with this value. CTRT_DTYPE_DEFAULT stays for a floating number, because the default
 * floating dtype depends on the device. */
static ctrt_dtype dtype_for(ctrt_scalar value, ctrt_dtype dtype)
{
    return dtype == CTRT_DTYPE_DEFAULT && value.kind != CTRT_SCALAR_FLOAT ? dtype_of_scalar(value) : dtype;
}

ctrt_status ctrt_full(ctrt_tensor **out, ctrt_ints shape, ctrt_scalar value, ctrt_dtype dtype, ctrt_device *device)
{
    return create_filled(out, "full", shape, value, dtype_for(value, dtype), device);
}

ctrt_status ctrt_scalar_tensor(ctrt_tensor **out, ctrt_scalar value, ctrt_dtype dtype, ctrt_device *device)
{
    return create_filled(out, "scalar_tensor", CTRT_SCALAR_SHAPE, value, dtype_for(value, dtype), device);
}

/* ---- sequences and matrices ---- */

static double as_double(ctrt_scalar value)
{
    return value.kind == CTRT_SCALAR_FLOAT ? value.f : (double)value.i;
}

/* Sets *count to the number of elements of start, start+step, ... before end. Integers are compared and counted as
 * integers, because a double cannot represent all of them. */
static ctrt_status arange_count(int64_t *count, ctrt_scalar start, ctrt_scalar end, ctrt_scalar step, bool integers)
{
    const double first = as_double(start), last = as_double(end), by = as_double(step);
    if (unlikely(!isfinite(first) || !isfinite(last) || !isfinite(by)))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "arange", "start %g, end %g, step %g; all must be finite", first,
                         last, by);
    if (unlikely(by == 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "arange", "the step is 0");
    if (unlikely(integers ? (step.i > 0 ? start.i > end.i : start.i < end.i) : by > 0 ? first > last : first < last))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "arange", "a step of %g does not lead from %g to %g", by, first,
                         last);
    if (integers) {
        /* The distance is unsigned, so it cannot overflow. */
        uint64_t distance = step.i > 0 ? (uint64_t)end.i - (uint64_t)start.i : (uint64_t)start.i - (uint64_t)end.i;
        uint64_t stride = step.i > 0 ? (uint64_t)step.i : -(uint64_t)step.i;
        uint64_t n = distance / stride + (distance % stride != 0);
        *count = n > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)n;
        return CTRT_OK;
    }
    const double n = ceil((last - first) / by);
    if (unlikely(!(n < 0x1p62)))
        return fail_from(CTRT_ERR_OVERFLOW, "arange", "%g elements from %g to %g by %g are too many", n,
                         first, last, by);
    *count = (int64_t)n;
    return CTRT_OK;
}

static ctrt_scalar as_integer(ctrt_scalar value)
{
    int64_t whole = 0;
    dtype_store(&whole, CTRT_I64, value);
    return ctrt_int(whole);
}

ctrt_status ctrt_arange(ctrt_tensor **out, ctrt_scalar start, ctrt_scalar end, ctrt_scalar step, ctrt_dtype dtype,
                        ctrt_device *device)
{
    OP_SCOPE(OP_arange);
    NULL_CHECK("arange", out);
    const bool floating = start.kind == CTRT_SCALAR_FLOAT || end.kind == CTRT_SCALAR_FLOAT
        || step.kind == CTRT_SCALAR_FLOAT;
    if (dtype == CTRT_DTYPE_DEFAULT && !floating)
        dtype = CTRT_I64;
    CTRT_TRY(dtype_resolve_on(&dtype, "arange", dtype, device));
    if (unlikely(dtype == CTRT_BOOL))
        return fail_from(CTRT_ERR_DTYPE, "arange", "not defined for bool");
    CTRT_TRY(dtype_check_scalar("arange", dtype, start));
    CTRT_TRY(dtype_check_scalar("arange", dtype, step));

    const bool integral = !dtype_floating(dtype), in_integers = integral && !floating;
    if (in_integers) {
        start = as_integer(start), end = as_integer(end), step = as_integer(step);
    }
    int64_t count = 0;
    CTRT_TRY(arange_count(&count, start, end, step, in_integers));

    ctrt_tensor *fresh = NULL;
    CTRT_TRY(create_empty(&fresh, "arange", CTRT_SHAPE(count), dtype, device));
    ctrt_range_attributes attributes = { .size = sizeof attributes, .has_lo = true, .has_hi = true };
    attributes.lo = integral ? as_integer(start) : ctrt_float(as_double(start));
    attributes.hi = integral ? as_integer(step) : ctrt_float(as_double(step));
    ctrt_status status = CTRT_OK;
    if (count > 0)
        status = kernel_call(&(struct op_call){ OP_arange, dtype, fresh->device, NULL, 0, OP_VIEWS(&fresh->view),
                                                &attributes });
    return create_finish(status, "arange", out, fresh);
}

ctrt_status ctrt_eye(ctrt_tensor **out, int64_t n, int64_t m, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *fresh = NULL;
    NULL_CHECK("eye", out);
    CTRT_TRY(create_empty(&fresh, "eye", CTRT_SHAPE(n, m), dtype, device));
    ctrt_status status = kernel_fill(&fresh->view, fresh->device, ctrt_int(0));
    ctrt_view diagonal = fresh->view;
    diagonal.ndim = 1;
    diagonal.shape[0] = MIN(n, m);
    diagonal.strides[0] = m < INT64_MAX ? m + 1 : m;
    view_refresh(&diagonal);
    if (status == CTRT_OK)
        status = kernel_fill(&diagonal, fresh->device, ctrt_int(1));
    return create_finish(status, "eye", out, fresh);
}

/* ---- from data ---- */

/* Copies row-major host values of `data_dtype` to a new tensor and converts them to its dtype. */
static ctrt_status created_from(ctrt_tensor **out, const char *who, const void *data, int64_t numel,
                                ctrt_dtype data_dtype, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    TENSOR_AUTO fresh = NULL;
    NULL_CHECK(who, out);
    if (unlikely(numel < 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "%lld values", (long long)numel);
    if (numel > 0)
        NULL_CHECK(who, data);
    CTRT_TRY(create_empty(&fresh, who, shape, dtype, device));
    if (unlikely(numel != fresh->view.numel)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, who, "%lld values for a tensor of %lld elements, shape %s",
                         (long long)numel, (long long)fresh->view.numel,
                         shape_text(text, fresh->view.shape, fresh->view.ndim));
    }
    if (numel > 0)
        CTRT_TRY(ctrt_from_host_(fresh, data, numel, data_dtype));
    ctrt_tensor_assign(out, fresh);
    return CTRT_OK;
}

ctrt_status ctrt_from_data(ctrt_tensor **out, const void *data, int64_t numel, ctrt_ints shape, ctrt_dtype dtype,
                           ctrt_device *device)
{
    CTRT_TRY(dtype_resolve_on(&dtype, "from_data", dtype, device));
    return created_from(out, "from_data", data, numel, dtype, shape, dtype, device);
}

/* ---- like another tensor ---- */

ctrt_status ctrt_empty_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *fresh = NULL;
    NULL_CHECK("empty_like", out);
    NULL_CHECK("empty_like", like);
    CTRT_TRY(dtype_resolve(&dtype, "empty_like", dtype == CTRT_DTYPE_DEFAULT ? tensor_dtype(like) : dtype));
    ctrt_status status;
    if (device == NULL || device == like->device)
        status = tensor_new_like(&fresh, like, dtype);
    else
        status = tensor_new_format(&fresh, like->view.shape, like->view.ndim, dtype, device,
                                   (like->view.flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_CHANNELS_LAST))
                                   == CTRT_VIEW_CHANNELS_LAST
                                       ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT);
    return create_finish(status, "empty_like", out, fresh);
}

static ctrt_status filled_like(ctrt_tensor **out, const char *who, ctrt_tensor *like, ctrt_scalar value,
                               ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *fresh = NULL;
    NULL_CHECK(who, out);
    NULL_CHECK(who, like);
    CTRT_TRY(dtype_resolve(&dtype, who, dtype == CTRT_DTYPE_DEFAULT ? tensor_dtype(like) : dtype));
    CTRT_TRY(dtype_check_scalar(who, dtype, value));
    CTRT_TRY(ctrt_empty_like(&fresh, like, dtype, device));
    return create_finish(kernel_fill(&fresh->view, fresh->device, value), who, out, fresh);
}

ctrt_status ctrt_zeros_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device)
{
    return filled_like(out, "zeros_like", like, ctrt_int(0), dtype, device);
}

ctrt_status ctrt_ones_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device)
{
    return filled_like(out, "ones_like", like, ctrt_int(1), dtype, device);
}

ctrt_status ctrt_full_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_scalar value, ctrt_dtype dtype,
                           ctrt_device *device)
{
    return filled_like(out, "full_like", like, value, dtype, device);
}

/* Sets *dtype and *device to those of `like` if they are the default. */
static ctrt_status inherit(const char *who, ctrt_tensor *like, ctrt_dtype *dtype, ctrt_device **device)
{
    NULL_CHECK(who, like);
    if (*dtype == CTRT_DTYPE_DEFAULT)
        *dtype = tensor_dtype(like);
    if (*device == NULL)
        *device = like->device;
    return CTRT_OK;
}

ctrt_status ctrt_new_empty(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *fresh = NULL;
    NULL_CHECK("new_empty", out);
    CTRT_TRY(inherit("new_empty", like, &dtype, &device));
    CTRT_TRY(create_empty(&fresh, "new_empty", shape, dtype, device));
    tensor_move(out, fresh);
    return CTRT_OK;
}

ctrt_status ctrt_new_zeros(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    CTRT_TRY(inherit("new_zeros", like, &dtype, &device));
    return create_filled(out, "new_zeros", shape, ctrt_int(0), dtype, device);
}

ctrt_status ctrt_new_ones(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    CTRT_TRY(inherit("new_ones", like, &dtype, &device));
    return create_filled(out, "new_ones", shape, ctrt_int(1), dtype, device);
}

ctrt_status ctrt_new_full(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_scalar value, ctrt_dtype dtype,
                          ctrt_device *device)
{
    CTRT_TRY(inherit("new_full", like, &dtype, &device));
    return create_filled(out, "new_full", shape, value, dtype, device);
}

ctrt_status ctrt_new_tensor(ctrt_tensor **out, ctrt_tensor *like, const void *data, int64_t numel, ctrt_ints shape,
                            ctrt_dtype data_dtype, ctrt_device *device)
{
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    CTRT_TRY(inherit("new_tensor", like, &dtype, &device));
    CTRT_TRY(dtype_resolve(&data_dtype, "new_tensor", data_dtype));
    return created_from(out, "new_tensor", data, numel, data_dtype, shape, dtype, device);
}
