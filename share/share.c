/* SPDX-License-Identifier: Apache-2.0 */
/* share/share.c: moves tensors and modules into memory that processes share. */
#include "ctrt/share.h"

#include "ctrt/autograd.h"
#include "base/ptr_map.h"
#include "device/device.h"
#include "nn/module/module.h"
#include "share/device_memory.h"
#include "share/share.h"
#include "tensor/share.h"

bool tensor_shared(const ctrt_tensor *tensor)
{
    return tensor->storage->bytes == 0 || shared_storage_segment(tensor->storage) != NULL
           || device_exports(tensor->device);
}

bool ctrt_tensor_is_shared(const ctrt_tensor *tensor)
{
    return tensor != NULL && tensor_shared(tensor);
}

ctrt_status tensor_share(const char *who, ctrt_tensor *tensor)
{
    struct shared_segment *segment = NULL;
    CTRT_TRY(ctrt_context(storage_present(tensor->storage), "%s", who));
    if (tensor_shared(tensor))
        return CTRT_OK;
    CTRT_TRY(tensor_share_check(who, tensor));
    CTRT_TRY(ctrt_context(shared_segment_new(&segment, tensor->storage->bytes), "%s", who));
    tensor_share_move(tensor, segment, 0);
    shared_segment_release(segment);        /* the storage owns a reference */
    return CTRT_OK;
}

ctrt_status ctrt_tensor_share_(ctrt_tensor *tensor)
{
    NULL_CHECK("tensor_share_", tensor);
    if (tensor->device->owner == DEVICE_ENDED)
        return ctrt_context(device_fail_forked(tensor->device), "tensor_share_");
    return tensor_share("tensor_share_", tensor);
}

/* ---- modules ---- */

/* Calls `visit` with the parameters, buffers and gradients of a module that are not shared. */
static ctrt_status each_tensor(ctrt_module *module, ctrt_status (*visit)(ctrt_tensor *tensor, void *argument),
                               void *argument)
{
    for (enum walk_kind kind = 0; kind < WALK_KINDS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, kind));
        for (size_t i = 0; i < walk->count; i++) {
            ctrt_tensor *tensors[] = { walk->entries[i].tensor, ctrt_tensor_grad(walk->entries[i].tensor) };
            for (size_t t = 0; t < COUNT_OF(tensors); t++)
                if (tensors[t] != NULL && !tensor_shared(tensors[t]))
                    CTRT_TRY(ctrt_context(visit(tensors[t], argument), "%s", walk->entries[i].name));
        }
    }
    return CTRT_OK;
}

struct needed {
    struct ptr_map storages;                /* items are pointers to the storages that `bytes` includes */
    size_t bytes;
};

static ctrt_status add_bytes(ctrt_tensor *tensor, void *argument)
{
    struct needed *needed = argument;
    const size_t before = needed->storages.count;
    CTRT_TRY(tensor_share_check("module_share", tensor));
    if (ptr_map_add(&needed->storages, tensor->storage, sizeof tensor->storage) == NULL)
        return out_of_memory(sizeof tensor->storage, "the storages of a module");
    if (needed->storages.count > before)
        needed->bytes += tensor->storage->bytes + SHARED_ALIGN;
    return CTRT_OK;
}

struct share_place {
    struct shared_segment *segment;
    size_t next;
};

static ctrt_status move(ctrt_tensor *tensor, void *argument)
{
    struct share_place *place = argument;
    const size_t bytes = tensor->storage->bytes;
    tensor_share_move(tensor, place->segment, place->next);
    place->next += (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    return CTRT_OK;
}

ctrt_status ctrt_module_share(ctrt_module *module)
{
    struct share_place place = { 0 };
    struct needed needed = { .bytes = 0 };
    if (module == NULL)
        return module_missing("module_share", "module");
    ctrt_status status = each_tensor(module, add_bytes, &needed);
    ptr_map_free(&needed.storages);
    if (status != CTRT_OK || needed.bytes == 0)
        return status;
    CTRT_TRY(ctrt_context(shared_segment_new(&place.segment, needed.bytes), "module_share"));
    status = each_tensor(module, move, &place);
    shared_segment_release(place.segment);
    return status;
}
