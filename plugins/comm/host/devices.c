/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/devices.c: collectives of threads whose devices are asynchronous, or of different types.
 *
 * Each rank enqueues copies and reductions on its own device, on the calling thread's current stream, and writes only
 * its own tensors. Ranks exchange tensors in phases: a rank records an event, all ranks meet at a barrier, and then
 * each rank's stream waits for the events of the others. So the result does not depend on CTRT_STREAM_ORDER. */
#include "host.h"

ctrt_status host_devices_init(struct host_comm *comm)
{
    struct host_rank *own = &comm->header->ranks[comm->rank];
    CTRT_TRY(ctrt_event_new(&own->events[0], comm->config->device, false));
    CTRT_TRY(ctrt_event_new(&own->events[1], comm->config->device, false));
    return ctrt_event_new(&own->outbox.event, comm->config->device, false);
}

void host_devices_end(struct host_header *header, int world)
{
    if (!header->devices)
        return;
    for (int rank = 0; rank < world; rank++) {
        ctrt_event_release(&header->ranks[rank].events[0]);
        ctrt_event_release(&header->ranks[rank].events[1]);
        ctrt_event_release(&header->ranks[rank].outbox.event);
    }
}

ctrt_status host_stream_wait(ctrt_device *device, ctrt_event *event)
{
    CTRT_AUTO(stream) stream = NULL;
    CTRT_TRY(ctrt_stream_current(&stream, device));
    return ctrt_stream_wait_event(stream, event);
}

/* ---- phases ---- */

static ctrt_tensor *tensor_of(const struct host_comm *comm, int rank)
{
    return comm->header->ranks[rank].tensors[comm->phases & 1];
}

/* Makes `tensor` and the work that computes it known to the other ranks. Before host_arrive or host_barrier. On failure
 * the group is dead, and no rank uses a tensor any more that was published before. */
static ctrt_status publish(struct host_comm *comm, ctrt_tensor *tensor)
{
    struct host_rank *own = &comm->header->ranks[comm->rank];
    comm->phases++;
    own->tensors[comm->phases & 1] = tensor;
    const ctrt_status status = ctrt_event_record(own->events[comm->phases & 1], NULL);
    return status == CTRT_OK ? CTRT_OK : host_dead(comm, status);
}

/* Makes this rank's stream wait for the work that the other ranks have published. A copy may also use the source's
 * device. */
static ctrt_status host_devices_follow(struct host_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++) {
        ctrt_event *event = comm->header->ranks[rank].events[comm->phases & 1];
        ctrt_tensor *tensor = tensor_of(comm, rank);
        if (rank == comm->rank)
            continue;
        CTRT_TRY(host_stream_wait(comm->config->device, event));
        if (tensor != NULL && ctrt_tensor_device(tensor) != comm->config->device)
            CTRT_TRY(host_stream_wait(ctrt_tensor_device(tensor), event));
    }
    return CTRT_OK;
}

/* ---- copies and reductions ---- */

static ctrt_status part(ctrt_tensor **out, ctrt_tensor *tensor, uint64_t offset, uint64_t count)
{
    CTRT_AUTO(tensor) plain = NULL, flat = NULL;
    CTRT_TRY(ctrt_detach(&plain, tensor));
    CTRT_TRY(ctrt_flatten(&flat, plain, 0, -1));
    return ctrt_narrow(out, flat, 0, (int64_t)offset, (int64_t)count);
}

static ctrt_status copy_part(ctrt_tensor *to, uint64_t to_offset, ctrt_tensor *from, uint64_t from_offset,
                             uint64_t count)
{
    CTRT_AUTO(tensor) target = NULL, source = NULL;
    CTRT_TRY(part(&target, to, to_offset, count));
    CTRT_TRY(part(&source, from, from_offset, count));
    return ctrt_copy_(target, source);
}

ctrt_status host_copy_tensor(ctrt_tensor *to, ctrt_tensor *from)
{
    return copy_part(to, 0, from, 0, (uint64_t)ctrt_tensor_numel(from));
}

static ctrt_status host_devices_combine(ctrt_tensor **sum, ctrt_tensor *x, uint32_t op)
{
    switch ((ctrt_comm_op)op) {
    case CTRT_COMM_PRODUCT: return ctrt_mul_(*sum, x);
    case CTRT_COMM_MIN:     return ctrt_minimum(sum, *sum, x);
    case CTRT_COMM_MAX:     return ctrt_maximum(sum, *sum, x);
    default:                return ctrt_add_(*sum, x);
    }
}

/* Reduces a range of the tensors of all ranks into a new tensor on this rank's device, in the order of the ranks. f16
 * and bf16 are combined in f32. */
static ctrt_status host_devices_reduce(ctrt_tensor **out, struct host_comm *comm, const ctrt_comm_call *call,
                                       uint64_t offset, uint64_t count)
{
    const ctrt_dtype dtype = (ctrt_dtype)call->signature.dtype;
    const ctrt_dtype wide = dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
    CTRT_AUTO(tensor) sum = NULL;
    for (int rank = 0; rank < comm->world; rank++) {
        CTRT_AUTO(tensor) view = NULL, x = NULL, here = NULL;
        CTRT_TRY(part(&view, tensor_of(comm, rank), offset, count));
        CTRT_TRY(ctrt_to_device(&here, view, comm->config->device));
        CTRT_TRY(ctrt_to(&x, here, NULL, wide, rank == 0, CTRT_PRESERVE_FORMAT));
        if (rank == 0)
            ctrt_tensor_assign(&sum, x);
        else
            CTRT_TRY(host_devices_combine(&sum, x, call->signature.op));
    }
    if (call->signature.op == CTRT_COMM_AVERAGE)
        CTRT_TRY(ctrt_div_scalar_(sum, ctrt_float(comm->world)));
    return ctrt_to_dtype(out, sum, dtype);
}

/* ---- collectives ---- */

/* Writes this rank's result, from the tensors of the other ranks. Not for reductions that the ranks share. */
static ctrt_status host_devices_take(struct host_comm *comm, const ctrt_comm_call *call)
{
    const uint64_t count = call->signature.count, mine = (uint64_t)comm->rank * count;
    const int root = call->signature.root;
    ctrt_tensor *to = call->receive_tensor;
    CTRT_AUTO(tensor) sum = NULL;
    if (to == NULL)
        return CTRT_OK;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        return comm->rank == root ? CTRT_OK : copy_part(to, 0, tensor_of(comm, root), 0, count);
    case CTRT_COLLECTIVE_SCATTER:
        return copy_part(to, 0, tensor_of(comm, root), mine, count);
    case CTRT_COLLECTIVE_ALL_GATHER:
    case CTRT_COLLECTIVE_GATHER:
        for (int rank = 0; rank < comm->world; rank++)
            CTRT_TRY(copy_part(to, (uint64_t)rank * count, tensor_of(comm, rank), 0, count));
        return CTRT_OK;
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        for (int rank = 0; rank < comm->world; rank++)
            CTRT_TRY(copy_part(to, (uint64_t)rank * count, tensor_of(comm, rank), mine, count));
        return CTRT_OK;
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        CTRT_TRY(host_devices_reduce(&sum, comm, call, mine, count));
        return host_copy_tensor(to, sum);
    default:
        return CTRT_OK;
    }
}

/* Begin and end of the share of a rank in a reduction of all elements. */
static uint64_t share(const struct host_comm *comm, const ctrt_comm_call *call, int rank)
{
    const uint64_t each = (call->signature.count + (uint64_t)comm->world - 1) / (uint64_t)comm->world;
    const uint64_t begin = each * (uint64_t)rank;
    return begin < call->signature.count ? begin : call->signature.count;
}

static ctrt_status reduce_share(ctrt_tensor **sum, struct host_comm *comm, const ctrt_comm_call *call)
{
    const uint64_t begin = share(comm, call, comm->rank), end = share(comm, call, comm->rank + 1);
    return end > begin ? host_devices_reduce(sum, comm, call, begin, end - begin) : CTRT_OK;
}

static ctrt_status take_shares(struct host_comm *comm, const ctrt_comm_call *call)
{
    for (int rank = 0; rank < comm->world && call->receive_tensor != NULL; rank++) {
        const uint64_t begin = share(comm, call, rank), end = share(comm, call, rank + 1);
        if (end > begin)
            CTRT_TRY(copy_part(call->receive_tensor, begin, tensor_of(comm, rank), 0, end - begin));
    }
    return CTRT_OK;
}

/* Runs `step` on tensors of other ranks. */
#define WITH_OTHERS(comm, step)                                                                                 \
    do {                                                                                                        \
        CTRT_TRY(host_use_begin(comm, call->state));                                                            \
        ctrt_status status_ = host_devices_follow(comm);                                                        \
        if (status_ == CTRT_OK)                                                                                 \
            status_ = (step);                                                                                   \
        host_use_end(comm);                                                                                     \
        if (status_ != CTRT_OK)                                                                                 \
            return host_dead(comm, status_);                                                                    \
    } while (0)

static ctrt_status host_devices_run(struct host_comm *comm, const ctrt_comm_call *call, ctrt_tensor **sum)
{
    const struct host_entry entry = { .signature = call->signature };
    const bool shares = host_shares(call);
    CTRT_TRY(publish(comm, call->send_tensor != NULL ? call->send_tensor : call->receive_tensor));
    host_enter(comm, &entry);
    CTRT_TRY(host_arrive(comm, call));
    if (call->signature.count == 0)
        return CTRT_OK;
    WITH_OTHERS(comm, shares ? reduce_share(sum, comm, call) : host_devices_take(comm, call));
    if (shares) {
        CTRT_TRY(publish(comm, *sum));
        CTRT_TRY(host_barrier(comm, call->state));
        WITH_OTHERS(comm, take_shares(comm, call));
    }
    /* The program may write its tensors again when the others have read them. */
    CTRT_TRY(publish(comm, NULL));
    CTRT_TRY(host_barrier(comm, call->state));
    WITH_OTHERS(comm, CTRT_OK);
    return CTRT_OK;
}

ctrt_status host_run_devices(struct host_comm *comm, const ctrt_comm_call *call)
{
    CTRT_AUTO(tensor) sum = NULL;
    return host_devices_run(comm, call, &sum);
}
