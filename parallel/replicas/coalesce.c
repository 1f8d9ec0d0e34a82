/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/coalesce.c: copies many tensors to other devices with few copies.
 *
 * Tensors of one dtype are packed into a flat tensor on their device, which one copy moves to the other device. There,
 * each tensor uses its part of the flat tensor's memory with a storage of its own, because tensors of one storage share
 * its version counter: autograd would report that a parameter was changed if a module changes a buffer in place. */
#include "ctrt/layout.h"
#include "ctrt/strategy_plugin.h"

#include "autograd/engine.h"
#include "memory/hazard.h"
#include "memory/label.h"
#include "ops/op_common.h"
#include "parallel/replicas/devices.h"
#include "tensor/shape.h"

#define GROUP_BYTES ((size_t)10 << 20)      /* as PyTorch's broadcast_coalesced */
#define PART_ALIGN  ((size_t)256)           /* alignment of the parts, for vector loads */

/* ---- groups ---- */

struct coalesce_group {
    size_t *members;                        /* indices of tensors */
    size_t count, bytes;                    /* bytes: of all parts, aligned */
};

static size_t tensor_bytes(const ctrt_tensor *tensor)
{
    return (size_t)tensor->view.numel * dtype_bytes(tensor_dtype(tensor));
}

static size_t aligned(size_t bytes)
{
    return (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

/* Returns whether packing the tensor can save a copy. In a flat tensor a tensor would lose its layout. */
static bool can_join(const ctrt_tensor *tensor)
{
    return tensor != NULL && (tensor->view.flags & CTRT_VIEW_CONTIGUOUS) && tensor->view.numel > 0
           && tensor_bytes(tensor) < GROUP_BYTES && !device_distributes(tensor->device);
}

/* Calls `flush` for groups of those tensors for which `wanted` (NULL: all) is true, and for each other tensor alone. */
struct grouping {
    ctrt_tensor *const *tensors;
    size_t count;
    bool (*wanted)(const void *user, const ctrt_tensor *tensor);
    ctrt_status (*flush)(void *user, const struct coalesce_group *group);
    void *user;
};

static ctrt_status for_each_group(const struct grouping *g)
{
    ctrt_status status = CTRT_OK;
    HOST_AUTO size_t *members = host_alloc((g->count + 1) * sizeof *members);
    ALLOC_CHECK(members, (g->count + 1) * sizeof *members, "copying tensors");
    struct coalesce_group group = { .members = members };
    uint64_t dtypes = 0;
    for (size_t t = 0; t < g->count; t++)
        if (g->wanted(g->user, g->tensors[t]))
            dtypes |= UINT64_C(1) << tensor_dtype(g->tensors[t]);
    for (int dtype = 0; dtype < DTYPE_COUNT && status == CTRT_OK; dtype++) {
        if (!(dtypes >> dtype & 1))
            continue;
        for (size_t t = 0; t < g->count && status == CTRT_OK; t++) {
            ctrt_tensor *tensor = g->tensors[t];
            if (!g->wanted(g->user, tensor) || (int)tensor_dtype(tensor) != dtype)
                continue;
            const size_t bytes = aligned(tensor_bytes(tensor));
            if (!can_join(tensor)) {
                status = g->flush(g->user, &(struct coalesce_group){ .members = &t, .count = 1, .bytes = bytes });
                continue;
            }
            if (group.count > 0 && group.bytes + bytes > GROUP_BYTES) {
                status = g->flush(g->user, &group);
                group.count = group.bytes = 0;
            }
            group.members[group.count++] = t;
            group.bytes += bytes;
        }
        if (status == CTRT_OK && group.count > 0)
            status = g->flush(g->user, &group);
        group.count = group.bytes = 0;
    }
    return status;
}

/* ---- flat tensors ---- */

/* Packs the members of a group into a new tensor of one dimension on their device. */
static ctrt_status coalesce_pack(ctrt_tensor **out, ctrt_tensor *const *tensors, const struct coalesce_group *group)
{
    ctrt_tensor *first = tensors[group->members[0]], *flat = NULL;
    const int64_t numel = (int64_t)(group->bytes / dtype_bytes(tensor_dtype(first)));
    CTRT_TRY(tensor_new(&flat, &numel, 1, tensor_dtype(first), first->device));
    char *data = flat->view.data;
    ctrt_status status = CTRT_OK;
    for (size_t m = 0; m < group->count && status == CTRT_OK; m++) {
        ctrt_tensor *tensor = tensors[group->members[m]];
        ctrt_view part = flat->view;
        view_contiguous(&part, &tensor->view, data);
        part.owner = flat->view.owner;
        status = kernel_copy(&part, flat->device, &tensor->view, tensor->device);
        data += aligned(tensor_bytes(tensor));
    }
    if (status == CTRT_OK)
        *out = flat;
    else
        tensor_release(flat);
    return status;
}

/* Called when a part is not used any more: the flat tensor's memory is in use until the part's uses are done. */
static void coalesce_part_release(struct storage *self)
{
    struct storage *flat = self->user[0];
    if (self->ordered && device_usable(flat->device)) {
        const ctrt_view whole = { .owner = flat };
        timepoint points[HAZARD_READERS + 1];
        const int count = hazard_timepoints(self, points);
        for (int i = 0; i < count; i++)
            hazard_note(&whole, points[i]);
    }
    storage_release(flat);
}

/* Creates a tensor of the shape of `like` that uses the memory of `flat` from the byte `offset` on. It owns a
 * reference to the storage and not to the tensor `flat`, which may end with its scope. */
static ctrt_status part_new(ctrt_tensor **out, ctrt_tensor *flat, const ctrt_tensor *like, size_t offset)
{
    ctrt_tensor *part;
    ctrt_view view;
    view_contiguous(&view, &like->view, (char *)flat->view.data + offset);
    storage_retain(flat->storage);
    ctrt_status status = tensor_new_foreign(&part, view.data, tensor_bytes(like), view.shape, view.strides, view.ndim,
                                            tensor_dtype(flat), flat->device, coalesce_part_release, flat->storage,
                                                NULL);
    if (status != CTRT_OK) {
        storage_release(flat->storage);
        return status;
    }
    if (flat->storage->ordered) {
        /* Without a stream of its own, so that the host does not wait when the part is freed. */
        timepoint points[HAZARD_READERS + 1];
        const int count = hazard_timepoints(flat->storage, points);
        storage_order(part->storage, NULL, 0);
        for (int i = 0; i < count; i++) {
            if (i == 0)
                part->storage->uses.writer = points[0];         /* the copy into `flat` */
            else
                hazard_note(&part->view, points[i]);
        }
    }
    *out = part;
    return CTRT_OK;
}

/* Returns whether part_new works for tensors on the device: their memory does not move (CTRT_MEMORY=spill), their uses
 * are not captured, and they have no layouts of their own. */
static bool parts_work(const ctrt_device *device)
{
    return !device->memory->moves && !device_distributes(device)
           && (!device_asynchronous(device) || !stream_captured(stream_here(device)));
}

/* ---- copies to several devices ---- */

struct copying {
    ctrt_tensor **out;
    ctrt_tensor *const *tensors;
    size_t count;
    ctrt_device *const *devices;
    int n;
};

static bool all_wanted(const void *user, const ctrt_tensor *tensor)
{
    (void)user, (void)tensor;
    return true;
}

static ctrt_status copy_group(void *user, const struct coalesce_group *group)
{
    const struct copying *c = user;
    ctrt_device *from = c->tensors[group->members[0]]->device;
    CTRT_AUTO(tensor) flat = NULL;
    for (int i = 0; i < c->n; i++) {
        ctrt_tensor **out = &c->out[(size_t)i * c->count];
        CTRT_AUTO(tensor) moved = NULL;
        if (group->count == 1 || device_home(c->devices[i]) == device_home(from) || !parts_work(c->devices[i])) {
            for (size_t m = 0; m < group->count; m++) {
                const size_t t = group->members[m];
                CTRT_TRY(ctrt_to(&out[t], c->tensors[t], c->devices[i], CTRT_DTYPE_DEFAULT, true,
                                 CTRT_PRESERVE_FORMAT));
                CTRT_TRY(ctrt_tensor_distribute_like(out[t], c->tensors[t]));
            }
            continue;
        }
        if (flat == NULL)
            CTRT_TRY(coalesce_pack(&flat, c->tensors, group));
        CTRT_TRY(ctrt_to_device(&moved, flat, c->devices[i]));
        size_t offset = 0;
        for (size_t m = 0; m < group->count; m++) {
            const size_t t = group->members[m];
            CTRT_TRY(part_new(&out[t], moved, c->tensors[t], offset));
            offset += aligned(tensor_bytes(c->tensors[t]));
        }
    }
    return CTRT_OK;
}

ctrt_status coalesced_copy(ctrt_tensor **out, ctrt_tensor *const *tensors, size_t count, ctrt_device *const *devices,
                           int n)
{
    struct copying copying = { out, tensors, count, devices, n };
    const struct grouping grouping = { tensors, count, all_wanted, copy_group, &copying };
    const bool was = op_pause_recording(true);
    ctrt_status status = n > 0 && count > 0 ? for_each_group(&grouping) : CTRT_OK;
    op_pause_recording(was);
    return status;
}

/* ---- gradients ---- */

struct moving {
    ctrt_tensor **grads;
    ctrt_device *device;
};

static bool is_elsewhere(const void *user, const ctrt_tensor *grad)
{
    const struct moving *moving = user;
    return grad != NULL && grad->device != moving->device;
}

/* Moves a group with recorded ops: the gradients of all members are one tensor on the way. */
static ctrt_status move_joined(const struct moving *moving, const struct coalesce_group *group, ctrt_tensor **rows)
{
    CTRT_AUTO(tensor) all = NULL;
    int64_t start = 0;
    for (size_t m = 0; m < group->count; m++)
        CTRT_TRY(ctrt_flatten(&rows[m], moving->grads[group->members[m]], 0, -1));
    CTRT_TRY(ctrt_cat(&all, rows, (int)group->count, 0));
    CTRT_TRY(ctrt_to_device(&all, all, moving->device));
    for (size_t m = 0; m < group->count; m++) {
        ctrt_tensor **grad = &moving->grads[group->members[m]];
        const ctrt_ints shape = ctrt_ints_of((*grad)->view.shape, (*grad)->view.ndim);
        const int64_t numel = (*grad)->view.numel;
        CTRT_TRY(ctrt_narrow(&rows[m], all, 0, start, numel));
        CTRT_TRY(ctrt_reshape(grad, rows[m], shape));
        start += numel;
    }
    return CTRT_OK;
}

static ctrt_status move_group(void *user, const struct coalesce_group *group)
{
    const struct moving *moving = user;
    ctrt_tensor **first = &moving->grads[group->members[0]];
    if (group->count == 1)
        return ctrt_to_device(first, *first, moving->device);
    HOST_AUTO ctrt_tensor **rows = host_calloc(group->count * sizeof *rows);
    ALLOC_CHECK(rows, group->count * sizeof *rows, "copying gradients");
    ctrt_status status = move_joined(moving, group, rows);
    ctrt_tensors_release(rows, group->count);
    return status;
}

ctrt_status coalesced_move(ctrt_tensor **grads, size_t count, ctrt_device *device)
{
    struct moving moving = { grads, device };
    const struct grouping grouping = { grads, count, is_elsewhere, move_group, &moving };
    return for_each_group(&grouping);
}
