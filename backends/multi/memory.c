/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/memory.c: copies of bytes between the host and blocks, on a device and between two devices of this
 * backend, and the functions of ctrt/layout.h. */
#include "multi.h"

#include <stdio.h>
#include <stdlib.h>

#include "ctrt/strategy_plugin.h"

static ctrt_status find(struct multi_block **block, int64_t *offset, const void *address, size_t bytes)
{
    *block = multi_block_of(address);
    *offset = *block != NULL ? (const char *)address - (*block)->address : 0;
    if (*block == NULL || (size_t)*offset > (*block)->bytes || bytes > (*block)->bytes - (size_t)*offset)
        return multi_host->fail(CTRT_ERR_BACKEND, "%s: %zu bytes at %p are not within one allocation", multi_kind.name,
                                bytes, address);
    return CTRT_OK;
}

/* Returns whether the range contains every byte of the block that was written. */
static bool overwrites(const struct multi_block *block, int64_t offset, size_t bytes)
{
    return offset == 0 && bytes + 64 > block->bytes
           && (block->data.state == MULTI_EMPTY || (int64_t)bytes >= block->data.bytes);
}

/* ---- to a block ---- */

/* Bytes that are copied to a block: of the host, or replicated data of another device. */
struct multi_origin {
    const void *host;                       /* NULL: the range of `parts` that begins at byte `offset` */
    ctrt_tensor *const *parts;
    int count;                              /* members of the other device */
    int64_t offset;
};

static ctrt_status write_part(ctrt_tensor *part, ctrt_dtype dtype, int64_t offset, const struct multi_origin *from,
                              int member, size_t bytes)
{
    const int64_t size = multi_dtype_bytes(dtype), count = (int64_t)bytes / size;
    ctrt_tensor *range = NULL, *source = NULL;
    ctrt_status status = ctrt_narrow(&range, part, 0, offset / size, count);
    if (status == CTRT_OK && from->host != NULL)
        status = ctrt_from_host_(range, from->host, count, dtype);
    if (status == CTRT_OK && from->host == NULL)
        status = ctrt_narrow(&source, from->parts[member % from->count], 0, from->offset / size, count);
    if (status == CTRT_OK && from->host == NULL)
        status = ctrt_copy_(range, source);
    ctrt_tensor_release(&range);
    ctrt_tensor_release(&source);
    return status;
}

/* Copies the bytes to the same range of every member's part. */
static ctrt_status write_parts(const struct multi_device *device, const struct multi_data *data, int64_t offset,
                               const struct multi_origin *from, size_t bytes)
{
    for (int m = 0; m < device->count; m++) {
        const ctrt_status status = write_part(data->parts[m], data->dtype, offset, from, m, bytes);
        if (status != CTRT_OK)
            return multi_member_fails(device, m, status);
    }
    return CTRT_OK;
}

/* Makes the block replicated and writes the bytes to all parts. A block that the program has sharded stays sharded: a
 * replicated copy is written and copied back. The range is a multiple of the element size of the parts, except in a
 * block that was written as bytes before. */
static ctrt_status write_block(struct multi_device *device, struct multi_block *block, int64_t offset,
                               const struct multi_origin *from, size_t bytes)
{
    struct multi_data *data = &block->data, whole;
    if (data->state == MULTI_SHARDED && block->kept) {
        CTRT_TRY(multi_data_to(device, &whole, data, &(struct multi_data){ .state = MULTI_REPLICATED }, block->bytes));
        ctrt_status status = write_parts(device, &whole, offset, from, bytes);
        if (status == CTRT_OK)
            status = multi_write_back(device, data, &whole);
        multi_data_release(&whole);
        return status;
    }
    if (data->state != MULTI_REPLICATED && overwrites(block, offset, bytes))
        multi_data_release(data);
    CTRT_TRY(multi_replicate(device, block));
    if (offset + (int64_t)bytes > data->bytes)
        data->bytes = offset + (int64_t)bytes;
    return write_parts(device, data, offset, from, bytes);
}

static ctrt_status multi_copy_to_device(struct multi_device *device, void *to, const void *from, size_t bytes)
{
    struct multi_block *block;
    int64_t offset;
    CTRT_TRY(find(&block, &offset, to, bytes));
    return write_block(device, block, offset, &(struct multi_origin){ .host = from }, bytes);
}

/* ---- to the host ---- */

/* Copies those of the bytes [offset, offset + bytes) of SHARDED data that are in the member's part. `part`: a copy of
 * the whole part in host memory. */
static void collect_part(char *to, const struct multi_device *device, const struct multi_data *data, int member,
                         int64_t offset, int64_t bytes, const char *part)
{
    const struct multi_range range = multi_chunk(data->extent, device->count, member);
    const int64_t run = range.count * data->inner, period = data->extent * data->inner;
    for (int64_t o = 0; o < data->bytes / period; o++) {
        const int64_t begin = o * period + range.start * data->inner;
        const int64_t first = begin > offset ? begin : offset;
        const int64_t last = begin + run < offset + bytes ? begin + run : offset + bytes;
        if (first < last)
            memcpy(to + (first - offset), part + o * run + (first - begin), (size_t)(last - first));
    }
}

static ctrt_status read_sharded(const struct multi_device *device, const struct multi_data *data, char *to,
                                int64_t offset, int64_t bytes)
{
    for (int m = 0; m < device->count; m++) {
        const size_t size = (size_t)multi_part_bytes(data, device->count, m);
        if (size == 0)
            continue;
        char *part = malloc(size);
        if (part == NULL)
            return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes of host memory", multi_kind.name, size);
        const ctrt_status status = ctrt_to_host(part, size, data->parts[m], data->dtype);
        if (status == CTRT_OK)
            collect_part(to, device, data, m, offset, bytes, part);
        free(part);
        if (status != CTRT_OK)
            return multi_member_fails(device, m, status);
    }
    return CTRT_OK;
}

/* Reads sharded bytes from the parts, and all others from the first member after making the block replicated. */
static ctrt_status multi_copy_to_host(struct multi_device *device, void *to, const void *from, size_t bytes)
{
    struct multi_block *block;
    int64_t offset;
    CTRT_TRY(find(&block, &offset, from, bytes));
    struct multi_data *data = &block->data;
    if (data->state == MULTI_SHARDED && offset + (int64_t)bytes <= data->bytes)
        return read_sharded(device, data, to, offset, (int64_t)bytes);
    CTRT_TRY(multi_replicate(device, block));
    const int64_t size = multi_dtype_bytes(data->dtype);
    ctrt_tensor *range = NULL;
    ctrt_status status = ctrt_narrow(&range, data->parts[0], 0, offset / size, (int64_t)bytes / size);
    if (status == CTRT_OK)
        status = ctrt_to_host(to, bytes, range, data->dtype);
    ctrt_tensor_release(&range);
    return status == CTRT_OK ? CTRT_OK : multi_member_fails(device, 0, status);
}

/* ---- on the device ---- */

/* Writes a contiguous view of the range: [outer, extent, inner] of the block's layout if the range consists of whole
 * periods (extent * inner bytes), so that the copy can keep the layout; else one dimension. */
static void range_view(ctrt_view *view, const struct multi_data *data, int64_t offset, int64_t bytes, ctrt_dtype dtype,
                       void *address)
{
    const int64_t size = multi_dtype_bytes(dtype), period = data->extent * data->inner;
    *view = (ctrt_view){ .data = address, .dtype = (uint8_t)dtype, .numel = bytes / size, .ndim = 1,
                         .flags = CTRT_VIEW_CONTIGUOUS, .shape = { bytes / size }, .strides = { 1 } };
    if (data->state != MULTI_SHARDED || offset % period != 0 || bytes % period != 0)
        return;
    view->ndim = 3;
    view->shape[0] = bytes / period, view->shape[1] = data->extent, view->shape[2] = data->inner / size;
    view->strides[0] = period / size, view->strides[1] = data->inner / size, view->strides[2] = 1;
}

static ctrt_status multi_copy_on_device(struct multi_device *device, void *to, const void *from, size_t bytes)
{
    struct multi_block *block, *target;
    int64_t offset, at;
    ctrt_view in, out;
    CTRT_TRY(find(&block, &offset, from, bytes));
    CTRT_TRY(find(&target, &at, to, bytes));
    /* A copy, because another thread may redistribute the block. An old layout is correct, because it determines only
     * the shape of the views. */
    int cancel = multi_enter(device);
    const struct multi_data copied = block->data, *data = &copied;
    multi_leave(device, cancel);
    const int64_t size = data->dtype != 0 ? multi_dtype_bytes(data->dtype) : 1;
    const bool fits = data->dtype != 0 && (offset | at | (int64_t)bytes) % size == 0;
    const ctrt_dtype dtype = fits ? data->dtype : CTRT_U8;
    range_view(&in, data, offset, (int64_t)bytes, dtype, (void *)(uintptr_t)from);
    out = in;
    out.data = to;
    const ctrt_view *inputs = &in, *outputs = &out;
    return multi_call(device, "copy", dtype, &inputs, 1, &outputs, 1, NULL);
}

static ctrt_status copy(void *handle, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    struct multi_device *device = handle;
    (void)queue;
    if (bytes == 0)
        return CTRT_OK;
    if (kind == CTRT_COPY_ON_DEVICE)
        return multi_copy_on_device(device, to, from, bytes);
    const int cancel = multi_enter(device);
    const ctrt_status status = kind == CTRT_COPY_TO_DEVICE ? multi_copy_to_device(device, to, from, bytes)
                                                           : multi_copy_to_host(device, to, from, bytes);
    multi_leave(device, cancel);
    return status;
}

static ctrt_status fill(void *handle, void *queue, void *address, int byte, size_t bytes)
{
    const ctrt_view view = { .data = address, .dtype = CTRT_U8, .numel = (int64_t)bytes, .ndim = 1,
                             .flags = CTRT_VIEW_CONTIGUOUS, .shape = { (int64_t)bytes }, .strides = { 1 } };
    const ctrt_range_attributes attributes = { .size = sizeof attributes, .lo = ctrt_int(byte & 0xff),
                                               .has_lo = true };
    const ctrt_view *outputs = &view;
    struct multi_block *block;
    int64_t offset;
    (void)queue;
    CTRT_TRY(find(&block, &offset, address, bytes));
    return multi_call(handle, "fill", CTRT_U8, NULL, 0, &outputs, 1, &attributes);
}

/* ---- between two devices ---- */

/* Copies data to a block that has as many members and is overwritten. The block gets the layout of the data, unless the
 * program has set another one. *done: false if the layouts do not permit that; nothing was copied then. */
static ctrt_status copy_layout(bool *done, struct multi_device *device, struct multi_block *block,
                               const struct multi_device *source, const struct multi_data *from, size_t bytes)
{
    struct multi_data *data = &block->data;
    const bool sharded = from->state == MULTI_SHARDED;
    const bool equal = data->state == from->state && data->dtype == from->dtype
                       && (!sharded || (data->extent == from->extent && data->inner == from->inner
                                        && data->bytes == from->bytes));
    *done = source->count == device->count && from->bytes == (int64_t)bytes && overwrites(block, 0, bytes)
            && (equal || !block->kept) && (from->state == MULTI_CONSTANT || from->parts[0] != NULL);
    if (!*done)
        return CTRT_OK;
    if (!equal) {
        struct multi_data like = *from;
        memset(like.parts, 0, sizeof like.parts);
        multi_data_release(data);
        if (from->state != MULTI_CONSTANT)
            CTRT_TRY(multi_data_alloc(device, &like, block->bytes));
        *data = like;
    }
    data->bytes = from->bytes;
    data->value = from->value;
    for (int m = 0; m < device->count && from->state != MULTI_CONSTANT; m++) {
        const int64_t size = sharded ? multi_part_bytes(from, device->count, m) : from->bytes;
        const struct multi_origin part = { .parts = &from->parts[m], .count = 1 };
        const ctrt_status status = write_part(data->parts[m], from->dtype, 0, &part, 0, (size_t)size);
        if (status != CTRT_OK)
            return multi_member_fails(device, m, status);
    }
    return CTRT_OK;
}

/* Copies a range of a block of another device. The layout of that block does not change, unless it is partial. */
static ctrt_status copy_range(struct multi_device *device, struct multi_block *block, int64_t offset,
                              struct multi_device *source, struct multi_block *other, int64_t other_offset,
                              size_t bytes)
{
    struct multi_data whole = { .state = MULTI_EMPTY };
    struct multi_origin from = { .parts = other->data.parts, .count = source->count, .offset = other_offset };
    if (other->data.state == MULTI_SHARDED) {
        CTRT_TRY(multi_data_to(source, &whole, &other->data, &(struct multi_data){ .state = MULTI_REPLICATED },
                               other->bytes));
        from.parts = whole.parts;
    } else {
        CTRT_TRY(multi_replicate(source, other));
    }
    if (overwrites(block, offset, bytes) && !block->kept && block->data.dtype != other->data.dtype) {
        multi_data_release(&block->data);
        block->data = (struct multi_data){ .dtype = other->data.dtype };
    }
    const ctrt_status status = write_block(device, block, offset, &from, bytes);
    multi_data_release(&whole);
    return status;
}

/* Returns whether copies of elements can copy the bytes. */
static bool same_elements(const struct multi_block *to, int64_t to_offset, const struct multi_block *from,
                          int64_t offset, size_t bytes)
{
    const ctrt_dtype dtype = from->data.dtype;
    return dtype != 0 && (dtype == to->data.dtype || (!to->kept && overwrites(to, to_offset, bytes)))
           && (to_offset | offset | (int64_t)bytes) % multi_dtype_bytes(dtype) == 0;
}

static ctrt_status through_host(struct multi_device *device, void *to, struct multi_device *source, const void *from,
                                size_t bytes)
{
    void *buffer = malloc(bytes);
    if (buffer == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes of host memory", multi_kind.name, bytes);
    ctrt_status status = multi_copy_to_host(source, buffer, from, bytes);
    if (status == CTRT_OK)
        status = multi_copy_to_device(device, to, buffer, bytes);
    free(buffer);
    return status;
}

static ctrt_status multi_copy_between(struct multi_device *device, void *to, struct multi_device *source,
                                      const void *from, size_t bytes)
{
    struct multi_block *block, *other;
    int64_t offset, other_offset;
    bool done = false;
    CTRT_TRY(find(&block, &offset, to, bytes));
    CTRT_TRY(find(&other, &other_offset, from, bytes));
    if (other->data.state == MULTI_EMPTY)
        return CTRT_OK;
    if (offset == 0 && other_offset == 0)
        CTRT_TRY(copy_layout(&done, device, block, source, &other->data, bytes));
    if (done)
        return CTRT_OK;
    if (!same_elements(block, offset, other, other_offset, bytes))
        return through_host(device, to, source, from, bytes);
    return copy_range(device, block, offset, source, other, other_offset, bytes);
}

static bool can_access_peer(void *handle, void *peer)
{
    return handle != peer;
}

/* The locks are taken in the order of the devices' numbers, because another thread may copy in the other direction. */
static ctrt_status copy_peer(void *handle, void *to, void *peer, const void *from, size_t bytes, void *queue)
{
    struct multi_device *device = handle, *source = peer;
    struct multi_device *first = device->index < source->index ? device : source;
    const bool ordered = ctrt_set_streams_ordered(true);    /* members' streams of both devices */
    (void)queue;
    const int cancel = multi_enter(first), inner = multi_enter(first == device ? source : device);
    const ctrt_status status = bytes > 0 ? multi_copy_between(device, to, source, from, bytes) : CTRT_OK;
    multi_leave(first == device ? source : device, inner);
    multi_leave(first, cancel);
    ctrt_set_streams_ordered(ordered);
    return status;
}

const ctrt_memory_table multi_memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = multi_alloc,
    .free = multi_free,
    .copy = copy,
    .fill = fill,
    .can_access_peer = can_access_peer,
    .copy_peer = copy_peer,
};

/* ---- layouts ---- */

static ctrt_status layout_get(void *handle, const ctrt_view *view, ctrt_layout *layout)
{
    struct multi_device *device = handle;
    struct multi_block *block;
    struct multi_split split;
    int64_t offset;
    CTRT_TRY(find(&block, &offset, view->data, 1));
    *layout = (ctrt_layout){ .kind = CTRT_LAYOUT_REPLICATED };
    const int cancel = multi_enter(device);
    if (block->data.state == MULTI_PARTIAL)
        layout->kind = CTRT_LAYOUT_PARTIAL;
    if (block->data.state == MULTI_SHARDED) {
        const int dim = multi_match(&split, &block->data, view, offset, device->count);
        if (dim >= 0)
            *layout = (ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = dim, .groups = split.groups };
    }
    multi_leave(device, cancel);
    return CTRT_OK;
}

static ctrt_status change(struct multi_device *device, struct multi_block *block, const struct multi_data *like)
{
    struct multi_data to;
    if (block->data.state <= MULTI_CONSTANT)
        return multi_data_materialize(device, &block->data, like, block->bytes);
    CTRT_TRY(multi_data_to(device, &to, &block->data, like, block->bytes));
    multi_data_release(&block->data);
    block->data = to;
    return CTRT_OK;
}

static ctrt_status layout_set(void *handle, const ctrt_view *view, const ctrt_layout *layout)
{
    struct multi_device *device = handle;
    struct multi_block *block;
    int64_t offset;
    const int64_t size = multi_dtype_bytes(view->dtype);
    CTRT_TRY(find(&block, &offset, view->data, (size_t)(view->numel * size)));
    const int cancel = multi_enter(device);
    ctrt_status status = CTRT_OK;
    if (layout->kind == CTRT_LAYOUT_REPLICATED) {
        status = multi_replicate(device, block);
    } else {
        struct multi_data like = { .state = MULTI_SHARDED, .dtype = (ctrt_dtype)view->dtype,
                                   .bytes = view->numel * size };
        int64_t inner = size;
        for (int d = view->ndim - 1; d > layout->dim; d--)
            inner *= view->shape[d];
        like.extent = view->shape[layout->dim] / layout->groups;
        like.inner = inner;
        const bool equal = block->data.state == MULTI_SHARDED && block->data.extent == like.extent
                           && block->data.inner == like.inner && block->data.bytes == like.bytes;
        status = equal ? CTRT_OK : change(device, block, &like);
    }
    if (status == CTRT_OK)
        block->kept = layout->kind == CTRT_LAYOUT_SHARDED;
    multi_leave(device, cancel);
    return status;
}

static ctrt_status layout_counts(void *handle, ctrt_layout_counts *counts)
{
    struct multi_device *device = handle;
    const size_t size = counts->size;
    const int cancel = multi_enter(device);
    memset(counts, 0, size);
    memcpy(counts, &device->counts, size < sizeof device->counts ? size : sizeof device->counts);
    multi_leave(device, cancel);
    counts->size = size;
    return CTRT_OK;
}

static const char *member_name(void *handle, int32_t index)
{
    const struct multi_device *device = handle;
    return index >= 0 && index < device->count ? device->names[index] : NULL;
}

const ctrt_layout_table multi_layout_table = {
    .size = sizeof(ctrt_layout_table),
    .get = layout_get,
    .set = layout_set,
    .counts = layout_counts,
    .member = member_name,
};
