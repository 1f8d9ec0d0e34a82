/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/collectives.c: the public collectives: checks their arguments and submits them. */
#include "graph/capture.h"
#include "parallel/comm/comm.h"
#include "tensor/tensor.h"

/* A collective with the tensors of this rank; NULL where it has none. */
struct request {
    const char *who;
    ctrt_collective collective;
    ctrt_tensor *send, *receive;
    bool send_parts, receive_parts;         /* the tensor has a part for every rank */
    bool reduces;
    ctrt_comm_op op;
    bool rooted;
    int root;                               /* or the other rank of a message */
};

static ctrt_status check_tensor(const ctrt_comm *comm, const char *who, const char *argument, const ctrt_tensor *tensor)
{
    if (tensor->device != comm->device)
        return ctrt_fail(CTRT_ERR_DEVICE, "%s: %s is on %s, but rank %d of group %s uses %s", who, argument,
                         ctrt_device_name(tensor->device), comm->group.rank, comm->group.name,
                         ctrt_device_name(comm->device));
    if (!(tensor->view.flags & CTRT_VIEW_CONTIGUOUS) && tensor->view.numel > 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "%s: %s is not contiguous; use ctrt_contiguous", who, argument);
    return CTRT_OK;
}

static bool tensors_overlap(const ctrt_tensor *a, const ctrt_tensor *b)
{
    const int64_t size = (int64_t)ctrt_dtype_size(tensor_dtype(a));
    return ctrt_tensor_shares_storage(a, b)
           && ctrt_tensor_offset(a) * size < (ctrt_tensor_offset(b) + b->view.numel) * size
           && ctrt_tensor_offset(b) * size < (ctrt_tensor_offset(a) + a->view.numel) * size;
}

/* Checks the tensors and the reduction, and sets *count to the elements of one part. */
static ctrt_status check_tensors(uint64_t *count, const ctrt_comm *comm, const struct request *request)
{
    const char *who = request->who;
    ctrt_tensor *const send = request->send, *const receive = request->receive;
    const ctrt_tensor *const any = send ? send : receive;
    if (send != NULL)
        CTRT_TRY(check_tensor(comm, who, receive == send || receive == NULL ? "tensor" : "in", send));
    if (receive != NULL && receive != send)
        CTRT_TRY(check_tensor(comm, who, send == NULL ? "tensor" : "out", receive));
    const bool parts = any == send ? request->send_parts : request->receive_parts;
    *count = (uint64_t)any->view.numel / (parts ? (uint64_t)comm->group.size : 1);
    if (parts && any->view.numel % comm->group.size != 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "%s: %lld elements cannot be cut into %d equal parts", who,
                         (long long)any->view.numel, comm->group.size);
    const bool in_place = !request->send_parts && !request->receive_parts;      /* reductions have one tensor */
    if (send != NULL && receive != NULL && !in_place) {
        if (tensor_dtype(send) != tensor_dtype(receive))
            return ctrt_fail(CTRT_ERR_DTYPE, "%s: in has dtype %s, out %s", who, ctrt_dtype_name(tensor_dtype(send)),
                             ctrt_dtype_name(tensor_dtype(receive)));
        const uint64_t expected = *count * (request->receive_parts ? (uint64_t)comm->group.size : 1);
        if ((uint64_t)receive->view.numel != expected)
            return ctrt_fail(CTRT_ERR_SHAPE, "%s: out has %lld elements, expected %llu for %d ranks", who,
                             (long long)receive->view.numel, (unsigned long long)expected, comm->group.size);
        if (tensors_overlap(send, receive))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: in and out overlap", who);
    }
    if (request->reduces && ((int)request->op < 0 || request->op > CTRT_COMM_AVERAGE))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: unknown reduction %d", who, (int)request->op);
    if (request->reduces && request->op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(tensor_dtype(any)))
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: the average of %s tensors; use a floating dtype, or CTRT_COMM_SUM", who,
                         ctrt_dtype_name(tensor_dtype(any)));
    if (receive != NULL && ctrt_grad_enabled() && tensor_requires_grad(receive))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "%s: it would change a tensor that requires grad; call it within ctrt_no_grad", who);
    return CTRT_OK;
}

static ctrt_status submit(ctrt_work **work, ctrt_comm *comm, const struct request *request)
{
    const bool message = request->collective == CTRT_COLLECTIVE_SEND || request->collective == CTRT_COLLECTIVE_RECV;
    NULL_CHECK(request->who, comm);
    if (request->rooted && (request->root < 0 || request->root >= comm->group.size))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: rank %d is not in group %s of %d ranks", request->who,
                         request->root, comm->group.name, comm->group.size);
    if (message && request->root == comm->group.rank)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a rank cannot exchange messages with itself", request->who);
    uint64_t count = 0;
    const ctrt_tensor *any = request->send ? request->send : request->receive;
    if (any != NULL)
        CTRT_TRY(check_tensors(&count, comm, request));
    ctrt_status status = comm_check(comm);
    if (status != CTRT_OK)
        return ctrt_context(status, "%s", request->who);
    const ctrt_comm_call call = {
        .size = sizeof call,
        .signature = { .count = count, .collective = message ? CTRT_COLLECTIVE_SEND : request->collective,
                       .op = request->reduces ? request->op : 0, .dtype = any ? tensor_dtype(any) : 0,
                       .root = !request->rooted                                     ? -1
                               : request->collective == CTRT_COLLECTIVE_SEND ? comm->group.rank : request->root },
        .peer = message ? request->root : -1,
        .bytes = any ? (size_t)count * ctrt_dtype_size(tensor_dtype(any)) : 0,
        .send_tensor = request->send, .receive_tensor = request->receive,
    };
    struct capture *capture = capture_here(comm->device);
    const bool own = capture == NULL || (comm->engine->flags & CTRT_COMM_CAPTURES);
    status = likely(own) ? comm_submit(work, comm, &call) : comm_capture(work, comm, request->who, &call, capture);
    return likely(status == CTRT_OK) ? CTRT_OK : ctrt_context(status, "%s", request->who);
}

#define SUBMIT(work, comm, ...) submit(work, comm, &(const struct request){ __VA_ARGS__ })

ctrt_status ctrt_comm_broadcast(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int root)
{
    NULL_CHECK("comm_broadcast", tensor);
    return SUBMIT(work, comm, "comm_broadcast", CTRT_COLLECTIVE_BROADCAST, .receive = tensor, .rooted = true,
                  .root = root);
}

ctrt_status ctrt_comm_all_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op)
{
    NULL_CHECK("comm_all_reduce", tensor);
    return SUBMIT(work, comm, "comm_all_reduce", CTRT_COLLECTIVE_ALL_REDUCE, .send = tensor, .receive = tensor,
                  .reduces = true, .op = op);
}

ctrt_status ctrt_comm_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op, int root)
{
    NULL_CHECKS("comm_reduce", tensor, comm);
    ctrt_tensor *const receive = comm->group.rank == root ? tensor : NULL;
    return SUBMIT(work, comm, "comm_reduce", CTRT_COLLECTIVE_REDUCE, .send = tensor, .receive = receive,
                  .reduces = true, .op = op, .rooted = true, .root = root);
}

ctrt_status ctrt_comm_all_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in)
{
    NULL_CHECKS("comm_all_gather", out, in);
    return SUBMIT(work, comm, "comm_all_gather", CTRT_COLLECTIVE_ALL_GATHER, .send = in, .receive = out,
                  .receive_parts = true);
}

ctrt_status ctrt_comm_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root)
{
    NULL_CHECKS("comm_gather", in, comm);
    if (comm->group.rank == root)
        NULL_CHECK("comm_gather", out);
    return SUBMIT(work, comm, "comm_gather", CTRT_COLLECTIVE_GATHER, .send = in,
                  .receive = comm->group.rank == root ? out : NULL, .receive_parts = true, .rooted = true,
                  .root = root);
}

ctrt_status ctrt_comm_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root)
{
    NULL_CHECKS("comm_scatter", out, comm);
    if (comm->group.rank == root)
        NULL_CHECK("comm_scatter", in);
    return SUBMIT(work, comm, "comm_scatter", CTRT_COLLECTIVE_SCATTER, .receive = out,
                  .send = comm->group.rank == root ? in : NULL, .send_parts = true, .rooted = true, .root = root);
}

ctrt_status ctrt_comm_reduce_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in,
                                     ctrt_comm_op op)
{
    NULL_CHECKS("comm_reduce_scatter", out, in);
    return SUBMIT(work, comm, "comm_reduce_scatter", CTRT_COLLECTIVE_REDUCE_SCATTER, .send = in, .receive = out,
                  .send_parts = true, .reduces = true, .op = op);
}

ctrt_status ctrt_comm_all_to_all(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in)
{
    NULL_CHECKS("comm_all_to_all", out, in);
    return SUBMIT(work, comm, "comm_all_to_all", CTRT_COLLECTIVE_ALL_TO_ALL, .send = in, .receive = out,
                  .send_parts = true, .receive_parts = true);
}

ctrt_status ctrt_comm_send(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int to)
{
    NULL_CHECK("comm_send", tensor);
    return SUBMIT(work, comm, "comm_send", CTRT_COLLECTIVE_SEND, .send = tensor, .rooted = true, .root = to);
}

ctrt_status ctrt_comm_recv(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int from)
{
    NULL_CHECK("comm_recv", tensor);
    return SUBMIT(work, comm, "comm_recv", CTRT_COLLECTIVE_RECV, .receive = tensor, .rooted = true, .root = from);
}

ctrt_status ctrt_comm_barrier(ctrt_comm *comm)
{
    NULL_CHECK("comm_barrier", comm);
    CTRT_TRY(ctrt_context(capture_refuse(comm->device, "a barrier waits for the device; call it after the replay"),
                          "comm_barrier"));
    CTRT_TRY(ctrt_device_synchronize(comm->device));
    return SUBMIT(NULL, comm, "comm_barrier", CTRT_COLLECTIVE_BARRIER, .send = NULL);
}
