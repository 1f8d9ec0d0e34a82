/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/memory.c: tensors in memory that the ranks of a group share.
 *
 * The engine's part of the communicator exists until the last such tensor is freed, which can be after the program has
 * released the communicator and left the group (comm_drop). */
#include "device/device.h"
#include "graph/capture.h"
#include "parallel/comm/comm.h"
#include "tensor/create.h"

static void free_shared(struct storage *storage)
{
    ctrt_comm *comm = storage->user[0];
    if (comm->process != comm_process())        /* the parent uses the memory, and its threads the engine */
        return;
    comm->engine->free(comm->handle, storage->block.address);
    comm_drop(comm);
}

ctrt_status ctrt_comm_empty(ctrt_tensor **out, ctrt_comm *comm, ctrt_ints shape, ctrt_dtype dtype)
{
    CANCEL_DISABLED;
    void *address = NULL;
    ctrt_tensor *fresh = NULL;
    NULL_CHECKS("comm_empty", out, comm);
    CTRT_TRY(dtype_resolve_on(&dtype, "comm_empty", dtype, comm->device));
    CTRT_TRY(shape_check("comm_empty", shape, dtype));
    CTRT_TRY(ctrt_context(comm_check(comm), "comm_empty"));
    CTRT_TRY(ctrt_context(capture_refuse(comm->device, "memory that ranks share cannot be allocated there; allocate it "
                                         "before the capture"), "comm_empty"));
    const uint64_t count = (uint64_t)shape_numel(shape.values, shape.count);
    const ctrt_comm_call call = {
        .size = sizeof call, .peer = -1, .bytes = (size_t)count * ctrt_dtype_size(dtype), .receive = &address,
        .signature = { .count = count, .collective = CTRT_COLLECTIVE_EMPTY, .dtype = dtype, .root = -1 },
    };
    CTRT_TRY(ctrt_context(comm_submit(NULL, comm, &call), "comm_empty"));
    if (address == NULL) {
        CTRT_TRY(create_empty(&fresh, "comm_empty", shape, dtype, comm->device));
    } else {
        int64_t strides[CTRT_MAX_DIMS];
        shape_strides(strides, shape.values, shape.count);
        ctrt_status status = tensor_new_foreign(&fresh, address, call.bytes, shape.values, strides, shape.count, dtype,
                                                comm->device, free_shared, comm, NULL);
        if (status != CTRT_OK) {
            comm->engine->free(comm->handle, address);
            return ctrt_context(status, "comm_empty");
        }
        atomic_fetch_add(&comm->engine_refs, 1);
    }
    tensor_move(out, fresh);
    return CTRT_OK;
}
