/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/share.c: moves tensors into memory that processes share.
 *
 * A tensor contains the address of its elements, so moving a storage has to change all its tensors. They are found by
 * visiting all tensors of the process, because a list for each storage would make every view slower. Tensors without
 * views, such as parameters, need no visit. */
#include "tensor/share.h"

#include "base/host_alloc.h"
#include "tensor/replaced.h"

struct tensor_visit {
    const struct storage *storage;
    int tensors;
    bool exported;
    const char *from;                       /* NULL: only count */
    char *to;
};

/* Reads tensors that other threads create and free. Those do not belong to the storage, before and after. */
__attribute__((no_sanitize("thread"))) static void visit(void *object, void *argument)
{
    ctrt_tensor *tensor = object;
    struct tensor_visit *found = argument;
    if (__atomic_load_n(&tensor->storage, __ATOMIC_RELAXED) != found->storage)
        return;
    found->tensors++;
    found->exported |= tensor->flags & TENSOR_EXPORTED;
    if (found->from != NULL && tensor->view.data != NULL)
        tensor->view.data = found->to + ((const char *)tensor->view.data - found->from);
}

static void visit_all(struct tensor_visit *found, ctrt_tensor *tensor)
{
    if (atomic_load(&tensor->storage->refs) == 1)
        visit(tensor, found);
    else
        free_list_visit(visit, found);
}

ctrt_status tensor_share_check(const char *who, ctrt_tensor *tensor)
{
    const struct storage *storage = tensor->storage;
    if (!device_is_cpu(device_home(tensor->device)))
        return fail_from(CTRT_ERR_NOT_SUPPORTED, who, "memory of %s cannot be moved to memory that processes share; "
                         "copy the tensor with ctrt_cpu first", tensor->device->name);
    if (storage->ordered)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, who, "the tensor is in pinned memory, which cannot be moved; share a "
                         "result of ctrt_clone");
    if (dry_run_on(storage->device))
        return fail_from(CTRT_ERR_NOT_SUPPORTED, who, "tensors of a dry run have no memory to share");
    struct tensor_visit found = { .storage = storage };
    visit_all(&found, tensor);
    if (found.exported)
        return fail_from(CTRT_ERR_STATE, who, "the memory was exported with ctrt_to_dlpack, so it cannot be moved; "
                         "share a result of ctrt_clone");
    if (found.tensors != atomic_load(&storage->refs))
        return fail_from(CTRT_ERR_STATE, who, "the memory contains parts that other tensors use with storages of their "
                         "own, so it cannot be moved; share a result of ctrt_clone");
    return CTRT_OK;
}

void tensor_share_move(ctrt_tensor *tensor, struct shared_segment *segment, size_t place)
{
    struct tensor_visit found = { .storage = tensor->storage, .from = tensor->storage->block.address,
                                  .to = segment->address + place };
    atomic_fetch_add_explicit(&tensor_replaced, 1, memory_order_relaxed);
    shared_storage_move(tensor->storage, segment, place);
    visit_all(&found, tensor);
}
