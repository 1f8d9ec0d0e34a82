/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/direct.c: collectives on memory that all ranks can address: of threads, or in segments.
 *
 * Between two barriers each rank reads the inputs of the others. all_reduce and reduce share the work: rank r reduces
 * part r of all inputs and writes it to all outputs. It does so in blocks that stay in its cache, so that memory is
 * read and written once. */
#include "host.h"

#define BLOCK ((size_t)8 << 10)             /* bytes */

struct host_range host_share(const struct host_comm *comm, int rank, size_t bytes)
{
    const size_t lines = (bytes + 63) / 64, number = (size_t)rank, world = (size_t)comm->world;
    const size_t begin = lines * number / world * 64, end = lines * (number + 1) / world * 64;
    return (struct host_range){ begin < bytes ? begin : bytes, end < bytes ? end : bytes };
}

void host_reduce_range(const struct host_comm *comm, const ctrt_comm_call *call, struct host_range range,
                       const char *const *to, int count)
{
    const size_t element = ctrt_dtype_size((ctrt_dtype)call->signature.dtype);
    host_reduction *const reduce = host_reduction_of(&call->signature);
    const void *in[comm->world];
    int first = 0;
    while (to[first] == NULL)
        first++;
    for (size_t at = range.begin; at < range.end; at += BLOCK) {
        const size_t bytes = range.end - at < BLOCK ? range.end - at : BLOCK;
        for (int rank = 0; rank < comm->world; rank++)
            in[rank] = comm->from[rank] + at;
        char *out = (char *)to[first] + at;
        reduce(out, in, comm->world, bytes / element);
        for (int other = first + 1; other < count; other++)
            if (to[other] != NULL)
                memcpy((char *)to[other] + at, out, bytes);
    }
}

ctrt_status host_run_direct(struct host_comm *comm, const ctrt_comm_call *call)
{
    CTRT_TRY(host_use_begin(comm, call->state));
    if (host_shares(call))
        host_reduce_range(comm, call, host_share(comm, comm->rank, call->bytes), comm->to, comm->world);
    else
        host_take(comm->rank, comm->world, call, comm->from, call->bytes, 0, call->bytes);
    host_use_end(comm);
    return host_barrier(comm, call->state);
}
