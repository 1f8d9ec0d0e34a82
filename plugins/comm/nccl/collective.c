/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/collective.c: enqueues collectives and messages as NCCL calls on the current stream. */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

/* The arguments of the NCCL calls for one collective or message. */
struct nccl_call {
    struct nccl_group *group;
    struct nccl_link *link;
    const ctrt_comm_call *call;
    const void *send;
    void *receive;
    size_t count;                           /* elements of one part, of `type` */
    size_t part;                            /* bytes of one part */
    int type, op, root;
    void *stream;                           /* CUstream */
};

/* ---- dtypes and reductions ---- */

/* Returns the ncclDataType_t of a dtype, or -1. */
static int nccl_type_of(uint32_t dtype)
{
    switch (dtype) {
    case CTRT_F16: return NCCL_F16;
    case CTRT_BF16: return NCCL_BF16;
    case CTRT_F32: return NCCL_F32;
    case CTRT_F64: return NCCL_F64;
    case CTRT_I8: return NCCL_I8;
    case CTRT_U8: case CTRT_BOOL: return NCCL_U8;
    case CTRT_I32: return NCCL_I32;
    case CTRT_I64: return NCCL_I64;
    default: return -1;
    }
}

/* Returns the ncclRedOp_t of a reduction. A bool is a byte that is 0 or 1, so "or" is the maximum, and "and" is the
 * minimum. */
static int nccl_op_of(uint32_t op, uint32_t dtype)
{
    static const int ops[] = {
        [CTRT_COMM_SUM] = NCCL_SUM, [CTRT_COMM_PRODUCT] = NCCL_PRODUCT, [CTRT_COMM_MIN] = NCCL_MIN,
        [CTRT_COMM_MAX] = NCCL_MAX, [CTRT_COMM_AVERAGE] = NCCL_AVERAGE,
    };
    if (dtype == CTRT_BOOL)
        return op == CTRT_COMM_SUM || op == CTRT_COMM_MAX ? NCCL_MAX : NCCL_MIN;
    return ops[op];
}

/* ---- NCCL calls ---- */

static nccl_result send_part(const struct nccl_call *job, int part, int peer)
{
    return nccl.send((const char *)job->send + (size_t)part * job->part, job->count, job->type, peer, job->link->handle,
                     job->stream);
}

static nccl_result receive_part(const struct nccl_call *job, int part, int peer)
{
    return nccl.receive((char *)job->receive + (size_t)part * job->part, job->count, job->type, peer, job->link->handle,
                        job->stream);
}

static bool enqueued(nccl_result result)
{
    return result == NCCL_OK || result == NCCL_IN_PROGRESS;
}

/* Enqueues the sends and receives that replace a collective that NCCL lacks, between ncclGroupStart and ncclGroupEnd. A
 * rank also sends to itself. */
static nccl_result messages(const struct nccl_call *job)
{
    const uint32_t collective = job->call->signature.collective;
    const int rank = job->link->rank, world = job->link->world;
    const bool root = rank == job->root, all = collective == CTRT_COLLECTIVE_ALL_TO_ALL;
    nccl_result result = NCCL_OK;
    for (int other = 0; other < world && enqueued(result); other++) {
        if (all || (collective == CTRT_COLLECTIVE_SCATTER && root))
            result = send_part(job, other, other);
        else if (collective == CTRT_COLLECTIVE_GATHER && other == job->root)
            result = send_part(job, 0, other);
        if (enqueued(result) && (all || (collective == CTRT_COLLECTIVE_GATHER && root)))
            result = receive_part(job, other, other);
        else if (enqueued(result) && collective == CTRT_COLLECTIVE_SCATTER && other == job->root)
            result = receive_part(job, 0, other);
    }
    return result;
}

static nccl_result grouped(const struct nccl_call *job, const char **what)
{
    *what = "GroupStart";
    nccl_result result = nccl.group_start();
    if (result != NCCL_OK)
        return result;
    *what = "Send or ncclRecv";
    result = messages(job);
    const nccl_result end = nccl.group_end();
    if (!enqueued(result))
        return result;
    *what = "GroupEnd";
    return end;
}

/* *what: the name of the NCCL function without "nccl", for messages. */
static nccl_result enqueue(const struct nccl_call *job, const char **what)
{
    const nccl_handle handle = job->link->handle;
    switch (job->call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        *what = "Broadcast";
        return nccl.broadcast(job->receive, job->receive, job->count, job->type, job->root, handle, job->stream);
    case CTRT_COLLECTIVE_ALL_REDUCE: case CTRT_COLLECTIVE_BARRIER: case CTRT_COLLECTIVE_EMPTY:
        *what = "AllReduce";
        return nccl.all_reduce(job->send, job->receive, job->count, job->type, job->op, handle, job->stream);
    case CTRT_COLLECTIVE_REDUCE:
        *what = "Reduce";
        return nccl.reduce(job->send, job->receive, job->count, job->type, job->op, job->root, handle, job->stream);
    case CTRT_COLLECTIVE_ALL_GATHER:
        *what = "AllGather";
        return nccl.all_gather(job->send, job->receive, job->count, job->type, handle, job->stream);
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        *what = "ReduceScatter";
        return nccl.reduce_scatter(job->send, job->receive, job->count, job->type, job->op, handle, job->stream);
    case CTRT_COLLECTIVE_SEND:
        *what = job->call->receive_tensor != NULL ? "Recv" : "Send";
        return job->call->receive_tensor != NULL ? receive_part(job, 0, 0) : send_part(job, 0, 1);
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        *what = "AlltoAll";
        if (nccl.all_to_all != NULL)
            return nccl.all_to_all(job->send, job->receive, job->count, job->type, handle, job->stream);
        break;
    default:
        break;
    }
    return grouped(job, what);
}

/* Sets job->stream, and the CUDA device of the thread. */
static ctrt_status fill_stream(struct nccl_call *job)
{
    CTRT_AUTO(stream) stream = NULL;
    CTRT_TRY(ctrt_stream_current(&stream, job->group->config->device));
    return ctrt_stream_native(&job->stream, stream);
}

static ctrt_status run_job(const struct nccl_call *job)
{
    struct nccl_group *group = job->group;
    const char *what = "";
    const bool captured = group->config->elastic && ctrt_capture_running(group->config->device);
    pthread_mutex_lock(&group->lock);
    group->captured |= captured;
    const bool usable = !group->aborted && job->link->handle != NULL;
    const nccl_result result = usable ? enqueue(job, &what) : NCCL_OK;
    pthread_mutex_unlock(&group->lock);
    if (!usable)
        return nccl_fail_aborted();
    return nccl_settle(group, job->link, what, result, job->call->state);
}

/* ---- waiting ---- */

/* Waits until the current stream has reached this point. */
static ctrt_status wait_for_stream(const struct nccl_call *job)
{
    CTRT_AUTO(event) event = NULL;
    bool done = false;
    CTRT_TRY(ctrt_event_new(&event, job->group->config->device, false));
    CTRT_TRY(ctrt_event_record(event, NULL));
    for (long pause = 5000;; nccl_pause(&pause)) {
        CTRT_TRY(ctrt_event_query(event, &done));
        if (done)
            return CTRT_OK;
        CTRT_TRY(nccl_links_error(job->group));
        CTRT_TRY(job->group->config->poll(job->call->state));
    }
}

/* A barrier is an all_reduce whose result is not used, because an all_reduce completes only after all ranks have called
 * it. */
static ctrt_status nccl_barrier(struct nccl_call job)
{
    job.send = job.receive = ctrt_tensor_data(job.group->ones);
    job.count = 1;
    job.type = NCCL_I32;
    job.op = NCCL_MAX;
    CTRT_TRY(run_job(&job));
    return wait_for_stream(&job);
}

ctrt_status nccl_all_true(bool *all, struct nccl_group *group, bool own)
{
    CTRT_AUTO(tensor) x = NULL;
    double value = 0;
    const ctrt_comm_call call = { .size = sizeof call, .signature.collective = CTRT_COLLECTIVE_ALL_REDUCE, .peer = -1,
                                  .state = group->config->state };
    struct nccl_call job = { .group = group, .link = &group->all, .call = &call, .count = 1, .type = NCCL_I32,
                             .op = NCCL_MIN };
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(1), ctrt_int(own), CTRT_I32, group->config->device));
    job.send = job.receive = ctrt_tensor_data(x);
    CTRT_TRY(fill_stream(&job));
    CTRT_TRY(run_job(&job));
    CTRT_TRY(wait_for_stream(&job));
    CTRT_TRY(ctrt_item(&value, x));
    *all = value != 0;
    return CTRT_OK;
}

/* ---- CTRT_NCCL_CHECK ---- */

/* Compares the signatures of the ranks of the link. The ranks of a message's link are the sender and the receiver. */
static ctrt_status compare_signatures(const struct nccl_call *of)
{
    enum { WORDS = sizeof(ctrt_comm_signature) / 8 };
    struct nccl_group *group = of->group;
    ctrt_device *device = group->config->device;
    const ctrt_comm_call *call = of->call;
    const int world = of->link->world;
    CTRT_AUTO(tensor) in = NULL, out = NULL;
    CTRT_TRY(ctrt_from_data(&in, &call->signature, WORDS, CTRT_SHAPE(WORDS), CTRT_I64, device));
    CTRT_TRY(ctrt_empty(&out, CTRT_SHAPE(world, WORDS), CTRT_I64, device));
    ctrt_comm_call gather = *call;
    gather.signature.collective = CTRT_COLLECTIVE_ALL_GATHER;
    struct nccl_call job = *of;
    job.call = &gather;
    job.send = ctrt_tensor_data(in);
    job.receive = ctrt_tensor_data(out);
    job.count = WORDS;
    job.type = NCCL_I64;
    CTRT_TRY(run_job(&job));
    CTRT_TRY(wait_for_stream(&job));
    ctrt_comm_signature *all = calloc((size_t)world + (size_t)group->world, sizeof *all), *of_group = all + world;
    if (all == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for the signatures of %d ranks", world);
    ctrt_status status = ctrt_to_host(all, (size_t)world * sizeof *all, out, CTRT_I64);
    bool differ = false;
    for (int rank = 0; rank < world && status == CTRT_OK; rank++) {
        const int in_group = call->peer < 0 ? rank
                             : rank == 0    ? call->signature.root
                                            : call->receive_tensor != NULL ? group->rank : call->peer;
        of_group[in_group] = all[rank];
        differ |= memcmp(&all[rank], &call->signature, sizeof *all) != 0;
    }
    if (differ)
        status = group->config->mismatch(call->state, of_group);
    free(all);
    return status;
}

/* ---- the calls ---- */

/* NCCL has no 16-bit integers, so they are reduced as 32-bit integers; the lower 16 bits of the result are the same.
 * The other collectives transfer 16-bit integers as bytes. */
static ctrt_status run_widened(struct nccl_call job)
{
    const ctrt_comm_call *call = job.call;
    ctrt_tensor *const target = call->receive_tensor;
    CTRT_AUTO(tensor) in = NULL, out = NULL;
    CTRT_AUTO(stream) stream = NULL;
    CTRT_TRY(ctrt_stream_current(&stream, job.group->config->device));
    CTRT_TRY(ctrt_to_dtype(&in, call->send_tensor, CTRT_I32));
    if (call->signature.collective == CTRT_COLLECTIVE_REDUCE_SCATTER)
        CTRT_TRY(ctrt_to_dtype(&out, target, CTRT_I32));
    else
        out = ctrt_tensor_retain(in);
    job.send = ctrt_tensor_data(in);
    job.receive = ctrt_tensor_data(out);
    job.type = NCCL_I32;
    CTRT_TRY(run_job(&job));
    CTRT_TRY(ctrt_tensor_record_stream(in, stream));
    CTRT_TRY(ctrt_tensor_record_stream(out, stream));
    return target != NULL ? ctrt_copy_(target, out) : CTRT_OK;
}

/* Messages between two ranks in one direction have an NCCL communicator of their own, in which the sender is rank 0. */
static ctrt_status message_link(struct nccl_link **out, struct nccl_group *group, const ctrt_comm_call *call)
{
    const bool receives = call->receive_tensor != NULL;
    const int from = call->signature.root, to = receives ? group->rank : call->peer;
    char key[64];
    *out = &(receives ? group->receives : group->sends)[call->peer];
    if ((*out)->handle != NULL)
        return CTRT_OK;
    snprintf(key, sizeof key, "nccl/%d-%d", from, to);
    return nccl_link_open(group, *out, key, receives, 2, call->state);
}

static ctrt_status nccl_fill(struct nccl_call *job)
{
    const ctrt_comm_signature *signature = &job->call->signature;
    job->part = job->call->bytes;
    job->count = (size_t)signature->count;
    job->type = nccl_type_of(signature->dtype);
    job->root = signature->root;
    if (job->type < 0) {
        job->type = NCCL_I8;
        job->count = job->call->bytes;
    }
    if (call_reduces(job->call))
        job->op = nccl_op_of(signature->op, signature->dtype);
    return fill_stream(job);
}

ctrt_status nccl_run(void *state, const ctrt_comm_call *call)
{
    struct nccl_group *group = state;
    const uint32_t collective = call->signature.collective;
    const bool waits = collective == CTRT_COLLECTIVE_BARRIER || collective == CTRT_COLLECTIVE_EMPTY;
    struct nccl_call job = { .group = group, .link = &group->all, .call = call, .send = call->send,
                             .receive = call->receive };
    if (call->queue == NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the engine nccl needs tensors that stay in the memory of %s; use "
                         "another memory policy than spill, or CTRT_COMM=host",
                         ctrt_device_name(group->config->device));
    if (call->peer >= 0)
        CTRT_TRY(message_link(&job.link, group, call));
    CTRT_TRY(nccl_fill(&job));
    if (group->check && !ctrt_capture_running(group->config->device))
        CTRT_TRY(compare_signatures(&job));
    if (waits)
        return nccl_barrier(job);
    if (call->bytes == 0)
        return CTRT_OK;
    if (call_reduces(call) && nccl_type_of(call->signature.dtype) < 0) {
        job.count = (size_t)call->signature.count;
        return run_widened(job);
    }
    return run_job(&job);
}
