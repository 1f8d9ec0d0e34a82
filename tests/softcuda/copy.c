/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/copy.c: copies and memsets in stream order.
 *
 * As in CUDA, pinned memory is read and written when the stream reaches the copy. A pageable source is read during the
 * call, and a pageable target is written before the call returns. */
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct side {
    char *at;
    size_t pitch;
};

struct copy_op {
    struct op op;
    struct side to, from;
    size_t width, height;
    void *staged;                           /* copy of a pageable source; owned by the operation */
    bool lies;
};

static void illegal(struct stream *stream, const char *what, const void *at, size_t bytes)
{
    char text[600], where[300];
    memory_describe((uintptr_t)at, where, sizeof where);
    snprintf(text, sizeof text, "a %s of %zu bytes at %p, %s", what, bytes, at, where);
    fault_tell(text);
    device_fail(stream->device, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* Returns true if the memory is allocated on a device and, if `write`, is writable. */
static bool good(address at, size_t bytes, bool write)
{
    return space_usable(at, bytes) && (!write || space_device(at) != NULL || virtual_writable(at, bytes));
}

static bool row_good(struct stream *stream, const char *what, const char *at, size_t bytes, bool write)
{
    if (!space_is((uintptr_t)at) || good((uintptr_t)at, bytes, write))
        return true;
    illegal(stream, what, at, bytes);
    return false;
}

static void run_copy(struct op *op, struct stream *stream)
{
    const struct copy_op *copy = (struct copy_op *)op;
    for (size_t y = 0; y < copy->height; y++) {
        char *to = copy->to.at + y * copy->to.pitch;
        const char *from = copy->from.at + y * copy->from.pitch;
        if (!row_good(stream, "copy to", to, copy->width, true)
            || !row_good(stream, "copy from", from, copy->width, false))
            return;
        order_touch((uintptr_t)from, copy->width, false);
        order_touch((uintptr_t)to, copy->width, true);
        if (copy->lies)
            space_fill((uintptr_t)to, "", 1, copy->width);
        else
            space_copy(to, from, copy->width);
    }
}

static void release_copy(struct op *op)
{
    free(((struct copy_op *)op)->staged);
    free(op);
}

static struct device *device_at(const void *where)
{
    struct device *device = space_device((uintptr_t)where);
    address begin;
    size_t bytes;
    if (device == NULL && space_is((uintptr_t)where))
        virtual_owner((uintptr_t)where, &device, &begin, &bytes);
    return device;
}

static bool link_lies(const void *to, const void *from)
{
    const struct device *a = device_at(from), *b = device_at(to);
    for (int i = 0; a != NULL && b != NULL && a != b && i < options.n_lying; i++) {
        const int *pair = options.lying[i];
        if ((pair[0] == a->hardware && pair[1] == b->hardware) || (pair[1] == a->hardware && pair[0] == b->hardware))
            return true;
    }
    return false;
}

static bool rows_usable(struct side side, size_t width, size_t height, bool write)
{
    if (!space_is((uintptr_t)side.at))
        return true;
    for (size_t y = 0; y < height; y++)
        if (!good((uintptr_t)side.at + y * side.pitch, width, write))
            return false;
    return true;
}

static bool pageable(struct side side, size_t width, size_t height)
{
    return !space_is((uintptr_t)side.at) && !host_pinned(side.at, side.pitch * (height - 1) + width, NULL, NULL);
}

static result put_copy(struct stream *stream, struct side to, struct side from, size_t width, size_t height, bool wait)
{
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    if (to.at == NULL || from.at == NULL || !rows_usable(to, width, height, true)
        || !rows_usable(from, width, height, false))
        return CUDA_ERROR_INVALID_VALUE;
    const bool captured = capture_active(stream);
    struct copy_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct copy_op){ .op = { .run = run_copy, .release = release_copy, .node = NODE_MEMCPY }, .to = to,
                            .from = from, .width = width, .height = height, .lies = link_lies(to.at, from.at) };
    if (!captured && pageable(from, width, height)) {
        op->staged = malloc(width * height);
        if (op->staged == NULL) {
            free(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        for (size_t y = 0; y < height; y++)
            memcpy((char *)op->staged + y * width, from.at + y * from.pitch, width);
        op->from = (struct side){ .at = op->staged, .pitch = width };
    }
    wait |= pageable(to, width, height);
    const result put = stream_put(stream, &op->op);
    if (put != CUDA_SUCCESS || captured || !wait)
        return put;
    stream_wait_idle(stream);
    return stream->device->error;
}

static result put_line(struct stream *stream, void *to, const void *from, size_t bytes, bool wait)
{
    return put_copy(stream, (struct side){ to, bytes }, (struct side){ (char *)(uintptr_t)from, bytes }, bytes, 1,
                    wait);
}

#define POINTER(device_address) ((void *)(uintptr_t)(device_address))
#define WELL (ENTER_INIT | ENTER_CONTEXT | ENTER_WELL)

EXPORT result cuMemcpyAsync(address to, address from, size_t bytes, void *stream)
{
    CALL(cuMemcpyAsync, WELL);
    return put_line(stream_of(stream), POINTER(to), POINTER(from), bytes, false);
}

EXPORT result cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream)
{
    CALL(cuMemcpyHtoDAsync_v2, WELL);
    if (!space_is(to) || space_is((uintptr_t)from))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_line(stream_of(stream), POINTER(to), from, bytes, false);
}

EXPORT result cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream)
{
    CALL(cuMemcpyDtoHAsync_v2, WELL);
    if (!space_is(from) || space_is((uintptr_t)to))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_line(stream_of(stream), to, POINTER(from), bytes, false);
}

EXPORT result cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream)
{
    CALL(cuMemcpyDtoDAsync_v2, WELL);
    if (!space_is(to) || !space_is(from))
        return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return put_line(stream_of(stream), POINTER(to), POINTER(from), bytes, false);
}

EXPORT result cuMemcpyPeerAsync(address to, struct device *to_context, address from, struct device *from_context,
                                size_t bytes, void *stream)
{
    CALL(cuMemcpyPeerAsync, WELL);
    if (!device_is(to_context) || !device_is(from_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes > 0 && (device_at(POINTER(to)) != to_context || device_at(POINTER(from)) != from_context))
        return CUDA_ERROR_INVALID_VALUE;
    return put_line(stream_of(stream), POINTER(to), POINTER(from), bytes, false);
}

EXPORT result cuMemcpyPeer(address to, struct device *to_context, address from, struct device *from_context,
                           size_t bytes)
{
    CALL(cuMemcpyPeer, WELL);
    if (!device_is(to_context) || !device_is(from_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return put_line(stream_of(NULL), POINTER(to), POINTER(from), bytes, true);
}

EXPORT result cuMemcpy(address to, address from, size_t bytes)
{
    CALL(cuMemcpy, WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : put_line(stream_of(NULL), POINTER(to), POINTER(from), bytes, true);
}

EXPORT result cuMemcpyHtoD_v2(address to, const void *from, size_t bytes)
{
    CALL(cuMemcpyHtoD_v2, WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : put_line(stream_of(NULL), POINTER(to), from, bytes, true);
}

EXPORT result cuMemcpyDtoH_v2(void *to, address from, size_t bytes)
{
    CALL(cuMemcpyDtoH_v2, WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : put_line(stream_of(NULL), to, POINTER(from), bytes, true);
}

EXPORT result cuMemcpyDtoD_v2(address to, address from, size_t bytes)
{
    CALL(cuMemcpyDtoD_v2, WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : put_line(stream_of(NULL), POINTER(to), POINTER(from), bytes, false);
}

EXPORT result cuMemcpy2DAsync_v2(const copy_2d *c, void *stream)
{
    CALL(cuMemcpy2DAsync_v2, WELL);
    if (c == NULL || c->from_type == MEMORY_ARRAY || c->to_type == MEMORY_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    struct side to = { c->to_type == MEMORY_HOST ? c->to_host : POINTER(c->to_device),
                       c->to_pitch != 0 ? c->to_pitch : c->width };
    struct side from = { c->from_type == MEMORY_HOST ? (char *)(uintptr_t)c->from_host : POINTER(c->from_device),
                         c->from_pitch != 0 ? c->from_pitch : c->width };
    if (to.pitch < c->to_x + c->width || from.pitch < c->from_x + c->width)
        return CUDA_ERROR_INVALID_VALUE;
    to.at += c->to_y * to.pitch + c->to_x;
    from.at += c->from_y * from.pitch + c->from_x;
    return put_copy(stream_of(stream), to, from, c->width, c->height, false);
}

/* ---- memset ---- */

struct fill_op {
    struct op op;
    address to;
    uint32_t pattern;
    size_t width, count;
};

static void run_fill(struct op *op, struct stream *stream)
{
    const struct fill_op *fill = (struct fill_op *)op;
    if (row_good(stream, "fill", POINTER(fill->to), fill->width * fill->count, true)) {
        order_touch(fill->to, fill->width * fill->count, true);
        space_fill(fill->to, &fill->pattern, fill->width, fill->count);
    }
}

static result put_fill(struct stream *stream, address to, uint32_t pattern, size_t width, size_t count)
{
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count == 0)
        return CUDA_SUCCESS;
    if (to % width != 0 || count > SIZE_MAX / width
        || (!good(to, width * count, true) && (space_is(to) || !host_pinned(POINTER(to), width * count, NULL, NULL))))
        return CUDA_ERROR_INVALID_VALUE;
    struct fill_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct fill_op){ .op = { .run = run_fill, .node = NODE_MEMSET }, .to = to, .pattern = pattern,
                            .width = width, .count = count };
    return stream_put(stream, &op->op);
}

EXPORT result cuMemsetD8_v2(address to, unsigned char value, size_t count)
{
    CALL(cuMemsetD8_v2, WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : put_fill(stream_of(NULL), to, value, 1, count);
}

EXPORT result cuMemsetD8Async(address to, unsigned char value, size_t count, void *stream)
{
    CALL(cuMemsetD8Async, WELL);
    return put_fill(stream_of(stream), to, value, 1, count);
}

EXPORT result cuMemsetD16Async(address to, unsigned short value, size_t count, void *stream)
{
    CALL(cuMemsetD16Async, WELL);
    return put_fill(stream_of(stream), to, value, 2, count);
}

EXPORT result cuMemsetD32Async(address to, unsigned value, size_t count, void *stream)
{
    CALL(cuMemsetD32Async, WELL);
    return put_fill(stream_of(stream), to, value, 4, count);
}

/* ---- memory accesses of the fake libraries, on a stream's thread ---- */

static result checked(address at, size_t bytes)
{
    char text[400], where[300];
    if (bytes == 0 || space_usable(at, bytes) || (!space_is(at) && host_pinned(POINTER(at), bytes, NULL, NULL)))
        return CUDA_SUCCESS;
    memory_describe(at, where, sizeof where);
    snprintf(text, sizeof text, "a library touches %zu bytes at %p, %s", bytes, POINTER(at), where);
    fault_tell(text);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

EXPORT result softcuda_read(void *to, address from, size_t bytes)
{
    const result good = checked(from, bytes);
    if (good == CUDA_SUCCESS) {
        order_touch(from, bytes, false);
        space_copy(to, POINTER(from), bytes);
    }
    return good;
}

EXPORT result softcuda_write(address to, const void *from, size_t bytes)
{
    const result good = checked(to, bytes);
    if (good == CUDA_SUCCESS) {
        order_touch(to, bytes, true);
        space_copy(POINTER(to), from, bytes);
    }
    return good;
}
