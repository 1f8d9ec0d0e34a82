/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/copy.c: copies and memsets in stream order.
 *
 * As in CUDA, pinned memory is read and written when the stream reaches the copy. A pageable source is read during the
 * call, and a pageable target is written before the call returns. */
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTER(device_address) ((void *)(uintptr_t)(device_address))
struct copy_op {
    struct op op;
    char *to;
    const char *from;
    size_t bytes;
    void *staged;                           /* copy of a pageable source; owned by the operation */
};

/* Returns true if the memory is allocated on a device and, if `write`, is writable. */
static bool good(address at, size_t bytes, bool write)
{
    return space_usable(at, bytes) && (!write || space_device(at) != NULL || virtual_writable(at, bytes));
}

/* Reports an access to device memory that is not allocated. `what`: "copy to", ... */
static result check(const char *what, address at, size_t bytes, bool write)
{
    char text[600], where[300];
    if (bytes == 0 || good(at, bytes, write) || (!space_is(at) && host_pinned(POINTER(at), bytes, NULL, NULL)))
        return CUDA_SUCCESS;
    memory_describe(at, where, sizeof where);
    snprintf(text, sizeof text, "a %s %zu bytes at %p, %s", what, bytes, POINTER(at), where);
    fault_report(text);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void run_copy(struct op *op, struct stream *stream)
{
    const struct copy_op *copy = (struct copy_op *)op;
    result error = CUDA_SUCCESS;
    if (space_is((uintptr_t)copy->to))
        error = check("copy to", (uintptr_t)copy->to, copy->bytes, true);
    if (error == CUDA_SUCCESS && space_is((uintptr_t)copy->from))
        error = check("copy from", (uintptr_t)copy->from, copy->bytes, false);
    if (error != CUDA_SUCCESS) {
        device_fail(stream->device, error);
        return;
    }
    order_touch((uintptr_t)copy->from, copy->bytes, false);
    order_touch((uintptr_t)copy->to, copy->bytes, true);
    space_copy(copy->to, copy->from, copy->bytes);
}

static void release_copy(struct op *op)
{
    free(((struct copy_op *)op)->staged);
    free(op);
}

static struct device *device_at(const void *where)
{
    struct device *device = space_device((uintptr_t)where);
    return device == NULL && space_is((uintptr_t)where) ? virtual_owner((uintptr_t)where) : device;
}

static bool pageable(const void *at, size_t bytes)
{
    return !space_is((uintptr_t)at) && !host_pinned(at, bytes, NULL, NULL);
}

static result put_copy(struct stream *stream, void *to, const void *from, size_t bytes)
{
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (to == NULL || from == NULL || (space_is((uintptr_t)to) && !good((uintptr_t)to, bytes, true))
        || (space_is((uintptr_t)from) && !good((uintptr_t)from, bytes, false)))
        return CUDA_ERROR_INVALID_VALUE;
    const bool captured = capture_active(stream);
    struct copy_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct copy_op){ .op = { .run = run_copy, .release = release_copy, .node = NODE_MEMCPY }, .to = to,
                            .from = from, .bytes = bytes };
    if (!captured && pageable(from, bytes)) {
        op->staged = malloc(bytes);
        if (op->staged == NULL) {
            free(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(op->staged, from, bytes);
        op->from = op->staged;
    }
    const result put = stream_put(stream, &op->op);
    if (put != CUDA_SUCCESS || captured || !pageable(to, bytes))
        return put;
    stream_wait_idle(stream);
    return stream->device->error;
}

EXPORT result cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream)
{
    CALL(cuMemcpyHtoDAsync_v2, ENTER_READY);
    if (!space_is(to) || space_is((uintptr_t)from))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_copy(stream_of(stream), POINTER(to), from, bytes);
}

EXPORT result cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream)
{
    CALL(cuMemcpyDtoHAsync_v2, ENTER_READY);
    if (!space_is(from) || space_is((uintptr_t)to))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_copy(stream_of(stream), to, POINTER(from), bytes);
}

EXPORT result cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream)
{
    CALL(cuMemcpyDtoDAsync_v2, ENTER_READY);
    if (!space_is(to) || !space_is(from))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_copy(stream_of(stream), POINTER(to), POINTER(from), bytes);
}

EXPORT result cuMemcpyPeerAsync(address to, struct device *to_context, address from, struct device *from_context,
                                size_t bytes, void *stream)
{
    CALL(cuMemcpyPeerAsync, ENTER_READY);
    if (!device_is(to_context) || !device_is(from_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes > 0 && (device_at(POINTER(to)) != to_context || device_at(POINTER(from)) != from_context))
        return CUDA_ERROR_INVALID_VALUE;
    return put_copy(stream_of(stream), POINTER(to), POINTER(from), bytes);
}

/* ---- memset ---- */

struct fill_op {
    struct op op;
    address to;
    unsigned char value;
    size_t bytes;
};

static void run_fill(struct op *op, struct stream *stream)
{
    const struct fill_op *fill = (struct fill_op *)op;
    const result error = check("fill of", fill->to, fill->bytes, true);
    if (error != CUDA_SUCCESS) {
        device_fail(stream->device, error);
        return;
    }
    order_touch(fill->to, fill->bytes, true);
    space_fill(fill->to, fill->value, fill->bytes);
}

EXPORT result cuMemsetD8Async(address to, unsigned char value, size_t bytes, void *handle)
{
    CALL(cuMemsetD8Async, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!good(to, bytes, true) && (space_is(to) || !host_pinned(POINTER(to), bytes, NULL, NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    struct fill_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct fill_op){ .op = { .run = run_fill, .node = NODE_MEMSET }, .to = to, .value = value,
                            .bytes = bytes };
    return stream_put(stream, &op->op);
}

/* ---- memory accesses of the fake libraries, on a stream's thread ---- */

EXPORT result softcuda_read(void *to, address from, size_t bytes)
{
    const result error = check("library's read of", from, bytes, false);
    if (error == CUDA_SUCCESS) {
        order_touch(from, bytes, false);
        space_copy(to, POINTER(from), bytes);
    }
    return error;
}

EXPORT result softcuda_write(address to, const void *from, size_t bytes)
{
    const result error = check("library's write of", to, bytes, true);
    if (error == CUDA_SUCCESS) {
        order_touch(to, bytes, true);
        space_copy(POINTER(to), from, bytes);
    }
    return error;
}
