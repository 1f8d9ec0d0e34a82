/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/create.c: creates tensors with uninitialised memory or with memory of the program. Factories that compute
 * values are in ops/create.c. */
#include "tensor/create.h"

ctrt_status dtype_default_on(ctrt_dtype *out, const char *who, ctrt_device *device)
{
    CTRT_TRY(ctrt_context(device_or_default(&device, device), "%s", who));
    *out = device->float_default != 0 ? (ctrt_dtype)device->float_default : ctrt_default_dtype();
    return CTRT_OK;
}

ctrt_status create_empty(ctrt_tensor **out, const char *who, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    CTRT_TRY(dtype_resolve_on(&dtype, who, dtype, device));
    CTRT_TRY(shape_check(who, shape, dtype));
    if (device == NULL)
        CTRT_TRY(ctrt_context(device_or_default(&device, NULL), "%s", who));
    return ctrt_context(tensor_new(out, shape.values, shape.count, dtype, device), "%s", who);
}

ctrt_status ctrt_empty(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    NULL_CHECK("empty", out);
    ctrt_tensor *fresh = NULL;
    CTRT_TRY(create_empty(&fresh, "empty", shape, dtype, device));
    tensor_move(out, fresh);
    return CTRT_OK;
}

/* ---- memory of the program ---- */

static void blob_release(struct storage *storage)
{
    void (*free_data)(void *, void *);
    memcpy(&free_data, &storage->user[0], sizeof free_data);
    if (free_data != NULL)
        free_data(storage->user[1], storage->block.address);
}

ctrt_status strides_import(int64_t *out, int64_t *elements, const char *who, const int64_t *shape,
                           const int64_t *strides, int ndim, ctrt_dtype dtype)
{
    int64_t span = 1, bytes;
    bool overflow = false;
    const bool empty = shape_numel(shape, ndim) == 0;
    shape_strides(out, shape, ndim);
    for (int d = 0; d < ndim && strides != NULL; d++) {
        int64_t reach;
        if (unlikely(strides[d] < 0))
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, who,
                             "negative stride %lld at dimension %d; strides are 0 or more",
                             (long long)strides[d], d);
        if (shape[d] <= 1 || empty)
            continue;
        out[d] = strides[d];
        overflow |=
            __builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || __builtin_add_overflow(span, reach, &span);
    }
    if (strides == NULL && !empty)
        span = shape_numel(shape, ndim);
    overflow = overflow || __builtin_mul_overflow(span, (int64_t)dtype_bytes(dtype), &bytes);
    *elements = empty ? 0 : span;
    if (unlikely(overflow)) {
        char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_OVERFLOW, who, "shape %s with strides %s spans more than 2^63 bytes",
                         shape_text(a, shape, ndim), shape_text(b, strides, ndim));
    }
    return CTRT_OK;
}

ctrt_status ctrt_from_blob(ctrt_tensor **out, void *data, ctrt_ints shape, ctrt_ints strides, ctrt_dtype dtype,
                           void (*free_data)(void *user, void *data), void *user)
{
    NULL_CHECK("from_blob", out);
    CTRT_TRY(dtype_resolve(&dtype, "from_blob", dtype));
    CTRT_TRY(shape_check("from_blob", shape, dtype));
    int64_t steps[CTRT_MAX_DIMS], elements;
    if (unlikely(strides.values != NULL && strides.count != shape.count))
        return fail_from(CTRT_ERR_SHAPE, "from_blob", "%d sizes and %d strides", shape.count, strides.count);
    CTRT_TRY(strides_import(steps, &elements, "from_blob", shape.values, strides.values, shape.count, dtype));
    if (unlikely(data == NULL && elements > 0))
        return fail_null("from_blob", "data");
    if (unlikely((uintptr_t)data % dtype_bytes(dtype) != 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "from_blob",
                         "the address %p is not aligned to the %zu bytes of %s; copy it with "
                         "ctrt_from_data", data, dtype_bytes(dtype), ctrt_dtype_name(dtype));
    ctrt_device *cpu;
    CTRT_TRY(ctrt_context(device_cpu(&cpu), "from_blob"));
    void *function;
    /* POSIX: function pointers and object pointers have the same size */
    memcpy(&function, &free_data, sizeof function);
    ctrt_tensor *fresh = NULL;
    CTRT_TRY(tensor_new_foreign(&fresh, data, (size_t)elements * dtype_bytes(dtype), shape.values, steps, shape.count,
                                dtype, cpu, blob_release, function, user));
    tensor_move(out, fresh);
    return CTRT_OK;
}
