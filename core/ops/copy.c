/* SPDX-License-Identifier: Apache-2.0 */
/* ops/copy.c: ops that copy: to another layout, dtype or device, and between tensors and buffers of the host.
 * copy_engine.c copies the elements. */
#include "ops/op_common.h"

#include "base/host_alloc.h"
#include "memory/hazard.h"
#include "ops/inplace.h"
#include "tensor/pinned.h"

/* ---- copies that are new tensors ---- */

/* Allocates a tensor for a copy of `x`. With CTRT_PRESERVE_FORMAT on the same device it is dense in x's dimension
 * order; on another device it is channels-last if x is, else contiguous. */
static ctrt_status new_for_copy(ctrt_tensor **out, const ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device,
                                ctrt_memory_format format)
{
    const ctrt_view *view = &x->view;
    if (format == CTRT_PRESERVE_FORMAT && device == x->device)
        return tensor_new_like(out, x, dtype);
    if (format == CTRT_PRESERVE_FORMAT && !(view->flags & CTRT_VIEW_CONTIGUOUS)
        && (view->flags & CTRT_VIEW_CHANNELS_LAST))
        format = CTRT_CHANNELS_LAST;
    return tensor_new_format(out, view->shape, view->ndim, dtype, device, format);
}

/* Makes a copy and records it as `op`. */
static ctrt_status copied(ctrt_tensor **out, enum op op, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device,
                          ctrt_memory_format format)
{
    OP_SCOPE(op);
    ctrt_tensor *result = NULL;
    TRY_FROM(op_table[op].name, new_for_copy(&result, x, dtype, device, format));
    ctrt_status status = kernel_copy(&result->view, device, &x->view, x->device);
    return op_finish(status, out, op, &result, 1, &x, 1, NULL);
}

ctrt_status ctrt_to_non_blocking(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, bool *asynchronous)
{
    OP_SCOPE(OP_to);
    bool left = false;
    NULL_CHECK("to_non_blocking", out);
    NULL_CHECK("to_non_blocking", tensor);
    NULL_CHECK("to_non_blocking", device);
    if (asynchronous != NULL)
        *asynchronous = false;
    if (device == tensor->device) {
        ctrt_tensor_assign(out, tensor);
        return CTRT_OK;
    }
    ctrt_tensor *result = NULL;
    const ctrt_view *view = &tensor->view;
    const bool pinned = device_host_memory(device) && device_asynchronous(tensor->device)
                        && (view->flags & CTRT_VIEW_CONTIGUOUS);
    ctrt_status status = pinned ? tensor_new_pinned(&result, view->shape, view->ndim, tensor_dtype(tensor),
                                                    tensor->device)
                                : new_for_copy(&result, tensor, tensor_dtype(tensor), device, CTRT_PRESERVE_FORMAT);
    CTRT_TRY(ctrt_context(status, "to_non_blocking"));
    status = kernel_copy_non_blocking(&result->view, device, view, tensor->device, &left);
    if (asynchronous != NULL)
        *asynchronous = left && status == CTRT_OK;
    return op_finish(status, out, OP_to, &result, 1, &tensor, 1, NULL);
}

static ctrt_status format_check(const char *who, ctrt_memory_format format, const ctrt_tensor *x)
{
    if (unlikely((unsigned)format > CTRT_CHANNELS_LAST))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "%d is not a memory format", (int)format);
    if (unlikely(format == CTRT_CHANNELS_LAST && x->view.ndim != 4)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, who, "the channels-last format needs 4 dimensions, not shape %s",
                         shape_text(text, x->view.shape, x->view.ndim));
    }
    return CTRT_OK;
}

static inline bool has_format(const ctrt_tensor *x, ctrt_memory_format format)
{
    return format == CTRT_PRESERVE_FORMAT
           || (x->view.flags & (format == CTRT_CHANNELS_LAST ? CTRT_VIEW_CHANNELS_LAST : CTRT_VIEW_CONTIGUOUS));
}

ctrt_status ctrt_contiguous(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_memory_format format)
{
    NULL_CHECK("contiguous", out);
    NULL_CHECK("contiguous", tensor);
    CTRT_TRY(format_check("contiguous", format, tensor));
    if (unlikely(format == CTRT_PRESERVE_FORMAT))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "contiguous",
                         "name a format, CTRT_CONTIGUOUS_FORMAT or CTRT_CHANNELS_LAST");
    if (has_format(tensor, format)) {
        ctrt_tensor_assign(out, tensor);
        return CTRT_OK;
    }
    return copied(out, OP_copy, tensor, tensor_dtype(tensor), tensor->device, format);
}

ctrt_status ctrt_clone(ctrt_tensor **out, ctrt_tensor *tensor)
{
    NULL_CHECK("clone", out);
    NULL_CHECK("clone", tensor);
    return copied(out, OP_copy, tensor, tensor_dtype(tensor), tensor->device, CTRT_PRESERVE_FORMAT);
}

ctrt_status ctrt_to(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype, bool copy,
                    ctrt_memory_format format)
{
    NULL_CHECK("to", out);
    NULL_CHECK("to", tensor);
    CTRT_TRY(format_check("to", format, tensor));
    if (dtype == CTRT_DTYPE_DEFAULT)
        dtype = tensor_dtype(tensor);
    else
        CTRT_TRY(dtype_resolve(&dtype, "to", dtype));
    if (device == NULL)
        device = tensor->device;
    if (!copy && device == tensor->device && dtype == tensor_dtype(tensor) && has_format(tensor, format)) {
        ctrt_tensor_assign(out, tensor);
        return CTRT_OK;
    }
    return copied(out, OP_to, tensor, dtype, device, format);
}

ctrt_status ctrt_to_device(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device)
{
    NULL_CHECK("to_device", device);
    return ctrt_to(out, tensor, device, CTRT_DTYPE_DEFAULT, false, CTRT_PRESERVE_FORMAT);
}

ctrt_status ctrt_to_dtype(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype)
{
    CTRT_TRY(dtype_resolve(&dtype, "to_dtype", dtype));
    return ctrt_to(out, tensor, NULL, dtype, false, CTRT_PRESERVE_FORMAT);
}

ctrt_status ctrt_cpu(ctrt_tensor **out, ctrt_tensor *tensor)
{
    ctrt_device *cpu;
    NULL_CHECK("cpu", tensor);
    CTRT_TRY(device_cpu(&cpu));
    return ctrt_to(out, tensor, cpu, CTRT_DTYPE_DEFAULT, false, CTRT_PRESERVE_FORMAT);
}

/* ---- copies into an existing tensor ---- */

static bool copy_same_elements(const ctrt_view *a, const ctrt_view *b)
{
    if (a->data != b->data || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d])
            return false;
    return true;
}

/* Copies `from`, the source expanded to self's shape, to self. A source that overlaps self, but is not the same view,
 * is copied to a temporary tensor first. */
static ctrt_status write_elements(ctrt_tensor *self, const ctrt_view *from, ctrt_tensor *source, bool *asynchronous)
{
    if (source->device == self->device) {
        if (copy_same_elements(&self->view, from))
            return CTRT_OK;
        if (views_overlap(&self->view, from)) {
            TENSOR_AUTO aside = NULL;
            ctrt_view expanded;
            CTRT_TRY(op_dense_copy(&aside, source, tensor_dtype(source), source->device, CTRT_CONTIGUOUS_FORMAT));
            view_expand(&expanded, &aside->view, self->view.shape, self->view.ndim);
            return kernel_copy(&self->view, self->device, &expanded, aside->device);
        }
    }
    if (asynchronous != NULL)
        return kernel_copy_non_blocking(&self->view, self->device, from, source->device, asynchronous);
    return kernel_copy(&self->view, self->device, from, source->device);
}

/* Implements copy_ and copy_non_blocking_; `who` is the name of the called one. If `asynchronous` is not NULL, the copy
 * is non-blocking if possible, and *asynchronous is set to whether it is. */
static ctrt_status copy_into(const char *who, ctrt_tensor *self, ctrt_tensor *source, bool *asynchronous)
{
    NULL_CHECK(who, self);
    NULL_CHECK(who, source);
    CTRT_TRY(inplace_check(who, self));
    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    CTRT_TRY(shape_broadcast(shape, &ndim, who, self->view.shape, self->view.ndim, source->view.shape,
                             source->view.ndim));
    if (unlikely(!shape_equal(shape, ndim, self->view.shape, self->view.ndim))) {
        char to[SHAPE_TEXT_BYTES], from[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, who, "a source of shape %s does not broadcast to self's shape %s",
                         shape_text(from, source->view.shape, source->view.ndim),
                         shape_text(to, self->view.shape, self->view.ndim));
    }
    ctrt_view from;
    view_expand(&from, &source->view, self->view.shape, self->view.ndim);

    ctrt_tensor *const inputs[2] = { self, source };
    struct inplace_token token;
    TRY_FROM(who, autograd_inplace_begin(&token, OP_copy, self, inputs, 2, NULL));
    return context_from(autograd_inplace_end(&token, self, write_elements(self, &from, source, asynchronous)), who);
}

ctrt_status ctrt_copy_(ctrt_tensor *self, ctrt_tensor *source)
{
    return copy_into("copy_", self, source, NULL);
}

ctrt_status ctrt_copy_non_blocking_(ctrt_tensor *self, ctrt_tensor *source, bool *asynchronous)
{
    bool left = false;
    ctrt_status status = copy_into("copy_non_blocking_", self, source, &left);
    if (asynchronous != NULL)
        *asynchronous = left && status == CTRT_OK;
    return status;
}

static ctrt_status copy_filled(const char *who, ctrt_tensor *self, ctrt_scalar value)
{
    CTRT_TRY(inplace_check(who, self));
    CTRT_TRY(dtype_check_scalar(who, tensor_dtype(self), value));
    struct inplace_token token;
    TRY_FROM(who, autograd_inplace_begin(&token, OP_fill, self, &self, 1, NULL));
    return context_from(autograd_inplace_end(&token, self, kernel_fill(&self->view, self->device, value)), who);
}

ctrt_status ctrt_fill_(ctrt_tensor *self, ctrt_scalar value)
{
    NULL_CHECK("fill_", self);
    return copy_filled("fill_", self, value);
}

ctrt_status ctrt_zero_(ctrt_tensor *self)
{
    NULL_CHECK("zero_", self);
    return copy_filled("zero_", self, ctrt_int(0));
}

/* ---- transfers to and from the host ---- */

/* Reads the element of a tensor with one element. */
static ctrt_status element_read(ctrt_scalar *out, const char *who, ctrt_tensor *tensor)
{
    NULL_CHECK(who, tensor);
    if (unlikely(tensor->view.numel != 1)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, who, "expected a tensor of one element, got %lld elements of shape %s",
                         (long long)tensor->view.numel, shape_text(text, tensor->view.shape, tensor->view.ndim));
    }
    ctrt_device *device = tensor->device;
    const ctrt_dtype dtype = tensor_dtype(tensor);
    _Alignas(DTYPE_MAX_BYTES) unsigned char element[DTYPE_MAX_BYTES];
    const void *at = tensor->view.data;
    if (unlikely(!device_host_memory(device))) {
        ctrt_device *cpu;
        CTRT_TRY(device_cpu(&cpu));
        ctrt_view here = tensor->view;
        here.owner = NULL;
        here.data = element;
        TRY_FROM(who, kernel_copy(&here, cpu, &tensor->view, device));
        at = element;
    } else if (unlikely(tensor->view.flags & CTRT_VIEW_PINNED)) {
        TRY_FROM(who, hazard_host(&tensor->view, false));
    }
    *out = dtype_load(at, dtype);
    return CTRT_OK;
}

ctrt_status ctrt_item(double *out, ctrt_tensor *tensor)
{
    ctrt_scalar value;
    NULL_CHECK("item", out);
    CTRT_TRY(element_read(&value, "item", tensor));
    *out = value.kind == CTRT_SCALAR_FLOAT ? value.f : (double)value.i;
    return CTRT_OK;
}

ctrt_status ctrt_item_int(int64_t *out, ctrt_tensor *tensor)
{
    ctrt_scalar value;
    NULL_CHECK("item_int", out);
    CTRT_TRY(element_read(&value, "item_int", tensor));
    if (value.kind != CTRT_SCALAR_FLOAT) {
        *out = value.i;
        return CTRT_OK;
    }
    if (unlikely(!(value.f >= -0x1p63 && value.f < 0x1p63)))
        return fail_from(CTRT_ERR_OVERFLOW, "item_int", "%g is not a 64-bit integer", value.f);
    *out = (int64_t)value.f;
    return CTRT_OK;
}

ctrt_status ctrt_item_scalar(ctrt_scalar *out, ctrt_tensor *tensor)
{
    NULL_CHECK("item_scalar", out);
    return element_read(out, "item_scalar", tensor);
}

/* Sets *out to a row-major view of a host buffer with the shape of `like`. */
static void buffer_view(ctrt_view *out, void *buffer, const ctrt_view *like, ctrt_dtype dtype)
{
    *out = *like;
    shape_strides(out->strides, like->shape, like->ndim);
    out->dtype = (uint8_t)dtype;
    out->flags &= (uint16_t)~CTRT_VIEW_PINNED;
    view_refresh(out);
    out->data = buffer;
    out->owner = NULL;
}

/* Returns whether the buffer needs an aligned copy: kernels require aligned elements, but a program's buffer may be
 * misaligned. */
static bool misaligned(const void *buffer, ctrt_dtype dtype)
{
    return (uintptr_t)buffer % dtype_bytes(dtype) != 0;
}

ctrt_status ctrt_to_host(void *buffer, size_t bytes, ctrt_tensor *tensor, ctrt_dtype dtype)
{
    NULL_CHECK("to_host", tensor);
    CTRT_TRY(dtype_resolve(&dtype, "to_host", dtype));
    size_t wanted;
    if (unlikely(__builtin_mul_overflow((size_t)tensor->view.numel, dtype_bytes(dtype), &wanted) || bytes < wanted)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "to_host",
                         "the buffer has %zu bytes; shape %s as %s needs %lld elements of %zu bytes", bytes,
                         shape_text(text, tensor->view.shape, tensor->view.ndim), ctrt_dtype_name(dtype),
                         (long long)tensor->view.numel, dtype_bytes(dtype));
    }
    if (wanted == 0)
        return CTRT_OK;
    NULL_CHECK("to_host", buffer);
    ctrt_device *cpu;
    CTRT_TRY(device_cpu(&cpu));
    void *aligned = buffer;
    if (misaligned(buffer, dtype) && (aligned = host_alloc(wanted)) == NULL)
        return out_of_memory(wanted, "to_host");
    ctrt_view host;
    buffer_view(&host, aligned, &tensor->view, dtype);
    ctrt_status status = kernel_copy(&host, cpu, &tensor->view, tensor->device);
    if (dry_run_on(tensor->device))
        host_zeros(&host);
    if (aligned != buffer) {
        if (status == CTRT_OK)
            memcpy(buffer, aligned, wanted);
        host_free(aligned);
    }
    return ctrt_context(status, "to_host");
}

ctrt_status ctrt_from_host_(ctrt_tensor *tensor, const void *buffer, int64_t numel, ctrt_dtype dtype)
{
    NULL_CHECK("from_host_", tensor);
    CTRT_TRY(dtype_resolve(&dtype, "from_host_", dtype));
    CTRT_TRY(inplace_check("from_host_", tensor));
    if (unlikely(numel != tensor->view.numel)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "from_host_", "%lld values for a tensor of %lld elements, shape %s",
                         (long long)numel, (long long)tensor->view.numel,
                         shape_text(text, tensor->view.shape, tensor->view.ndim));
    }
    if (numel == 0)
        return CTRT_OK;
    NULL_CHECK("from_host_", buffer);
    ctrt_device *cpu;
    CTRT_TRY(device_cpu(&cpu));
    HOST_AUTO void *aligned = NULL;
    if (misaligned(buffer, dtype)) {
        const size_t bytes = (size_t)numel * dtype_bytes(dtype);
        aligned = host_alloc(bytes);
        ALLOC_CHECK(aligned, bytes, "from_host_");
        memcpy(aligned, buffer, bytes);
    }
    ctrt_view host;
    buffer_view(&host, aligned ? aligned : (void *)(uintptr_t)buffer, &tensor->view, dtype);

    /* Recorded as a fill, because the new values are constants for the graph. */
    struct inplace_token token;
    TRY_FROM("from_host_", autograd_inplace_begin(&token, OP_fill, tensor, &tensor, 1, NULL));
    return context_from(autograd_inplace_end(&token, tensor, kernel_copy(&tensor->view, tensor->device, &host, cpu)),
                        "from_host_");
}
