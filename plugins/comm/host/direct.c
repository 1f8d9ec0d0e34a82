/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/direct.c: collectives on memory that all ranks can address: of threads, or in segments.
 *
 * Between two barriers each rank reads the inputs of the others. all_reduce and reduce share the work: rank r reduces
 * part r of all inputs and writes it to all outputs. It does so in blocks that stay in its cache, so that memory is
 * read and written once. */
#include "host.h"

#define BLOCK ((size_t)8 << 10)             /* bytes */

static void reduce_shared(const struct host_comm *comm, const ctrt_comm_call *call)
{
    const size_t element = ctrt_dtype_size((ctrt_dtype)call->signature.dtype), world = (size_t)comm->world;
    const size_t lines = (call->bytes + 63) / 64;
    const size_t begin = lines * (size_t)comm->rank / world * 64;
    size_t end = lines * ((size_t)comm->rank + 1) / world * 64;
    host_reduction *const reduce = host_reduction_of(&call->signature);
    if (end > call->bytes)
        end = call->bytes;
    int first = 0;
    while (comm->to[first] == NULL)
        first++;
    for (size_t at = begin; at < end; at += BLOCK) {
        const size_t bytes = end - at < BLOCK ? end - at : BLOCK;
        const void *in[world];
        for (size_t rank = 0; rank < world; rank++)
            in[rank] = comm->from[rank] + at;
        char *out = (char *)comm->to[first] + at;
        reduce(out, in, comm->world, bytes / element);
        for (size_t rank = (size_t)first + 1; rank < world; rank++)
            if (comm->to[rank] != NULL)
                memcpy((char *)comm->to[rank] + at, out, bytes);
    }
}

ctrt_status host_run_direct(struct host_comm *comm, const ctrt_comm_call *call)
{
    CTRT_TRY(host_use_begin(comm));
    if (host_reduces(call) && call->signature.collective != CTRT_COLLECTIVE_REDUCE_SCATTER)
        reduce_shared(comm, call);
    else
        host_take(comm, call, comm->from, call->bytes, 0, call->bytes);
    host_use_end(comm);
    return host_barrier(comm, call->state);
}
