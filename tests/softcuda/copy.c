/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/copy.c: copies and memsets in stream order.
 *
 * As in CUDA, pinned memory is read and written when the stream reaches the copy. A pageable source is read during the
 * call, and a pageable target is written before the call returns. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTER(device_address) ((void *)(uintptr_t)(device_address))

struct copy {
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
    if (bytes == 0 || good(at, bytes, write) || (!space_is(at) && memory_pinned(POINTER(at), bytes, NULL)))
        return CUDA_SUCCESS;
    memory_describe(at, where, sizeof where);
    snprintf(text, sizeof text, "a %s %zu bytes at %p, %s", what, bytes, POINTER(at), where);
    fault_report(text);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void run_copy(void *argument, struct stream *stream)
{
    const struct copy *copy = argument;
    const address to = (uintptr_t)copy->to, from = (uintptr_t)copy->from;
    result error = space_is(to) ? check("copy to", to, copy->bytes, true) : CUDA_SUCCESS;
    if (error == CUDA_SUCCESS && space_is(from))
        error = check("copy from", from, copy->bytes, false);
    if (error != CUDA_SUCCESS) {
        device_fail(stream->device, error);
        return;
    }
    order_touch(from, copy->bytes, false);
    order_touch(to, copy->bytes, true);
    space_copy(copy->to, copy->from, copy->bytes);
}

static void release_copy(void *argument)
{
    free(((struct copy *)argument)->staged);
}

static struct device *device_at(address where)
{
    return space_device(where) != NULL ? space_device(where) : virtual_owner(where);
}

static bool pageable(const void *at, size_t bytes)
{
    return !space_is((uintptr_t)at) && !memory_pinned(at, bytes, NULL);
}

static result put_copy(void *handle, address to_at, address from_at, size_t bytes)
{
    STREAM(stream, handle);
    void *const to = POINTER(to_at);
    const void *const from = POINTER(from_at);
    RETURN_IF(bytes == 0, CUDA_SUCCESS);
    RETURN_IF(to == NULL || from == NULL || (space_is(to_at) && !good(to_at, bytes, true))
              || (space_is(from_at) && !good(from_at, bytes, false)), CUDA_ERROR_INVALID_VALUE);
    const bool captured = capture_active(stream);
    struct copy copy = { to, from, bytes, NULL };
    if (!captured && pageable(from, bytes)) {
        copy.from = copy.staged = allocated(malloc(bytes));
        memcpy(copy.staged, from, bytes);
    }
    TRY(stream_put(stream, op_new(run_copy, release_copy, NODE_MEMCPY, &copy, sizeof copy)));
    RETURN_IF(captured || !pageable(to, bytes), CUDA_SUCCESS);
    stream_wait_idle(stream);
    return stream->device->error;
}

/* A copy without bytes is valid with any address. */
#define COPY(name, type_to, type_from, to_device, from_device)                            \
    EXPORT result name(type_to to, type_from from, size_t bytes, void *stream)            \
    {                                                                                     \
        CALL(name, ENTER_READY);                                                          \
        const address to_at = (address)(uintptr_t)to, from_at = (address)(uintptr_t)from; \
        RETURN_IF(space_is(to_at) != (to_device) || space_is(from_at) != (from_device),   \
                  bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);                  \
        return put_copy(stream, to_at, from_at, bytes);                                   \
    }
COPY(cuMemcpyHtoDAsync_v2, address, const void *, true, false)
COPY(cuMemcpyDtoHAsync_v2, void *, address, false, true)
COPY(cuMemcpyDtoDAsync_v2, address, address, true, true)

EXPORT result cuMemcpyPeerAsync(address to, struct device *to_context, address from, struct device *from_context,
                                size_t bytes, void *stream)
{
    CALL(cuMemcpyPeerAsync, ENTER_READY);
    RETURN_IF(!device_is(to_context) || !device_is(from_context), CUDA_ERROR_INVALID_CONTEXT);
    RETURN_IF(bytes > 0 && (device_at(to) != to_context || device_at(from) != from_context), CUDA_ERROR_INVALID_VALUE);
    return put_copy(stream, to, from, bytes);
}

/* ---- memset ---- */

struct fill {
    address to;
    unsigned char value;
    size_t bytes;
};

static void run_fill(void *argument, struct stream *stream)
{
    const struct fill *fill = argument;
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
    STREAM_CALL(cuMemsetD8Async, stream, handle);
    RETURN_IF(bytes == 0, CUDA_SUCCESS);
    RETURN_IF(!good(to, bytes, true) && (space_is(to) || !memory_pinned(POINTER(to), bytes, NULL)),
              CUDA_ERROR_INVALID_VALUE);
    const struct fill fill = { to, value, bytes };
    return stream_put(stream, op_new(run_fill, NULL, NODE_MEMSET, &fill, sizeof fill));
}

/* ---- memory accesses of the fake libraries, on a stream's thread ---- */

EXPORT result softcuda_read(void *to, address from, size_t bytes)
{
    TRY(check("library's read of", from, bytes, false));
    order_touch(from, bytes, false);
    space_copy(to, POINTER(from), bytes);
    return CUDA_SUCCESS;
}

EXPORT result softcuda_write(address to, const void *from, size_t bytes)
{
    TRY(check("library's write of", to, bytes, true));
    order_touch(to, bytes, true);
    space_copy(POINTER(to), from, bytes);
    return CUDA_SUCCESS;
}

/* Overwrites the first bytes of each 512, to which blocks are aligned, as if all were overwritten. */
EXPORT result softcuda_overwrite(address to, unsigned char value, size_t bytes)
{
    TRY(check("library's write of", to, bytes, true));
    order_touch(to, bytes, true);
    for (size_t i = 0; i < bytes; i += 512)
        space_fill(to + i, value, bytes - i < 64 ? bytes - i : 64);
    return CUDA_SUCCESS;
}
