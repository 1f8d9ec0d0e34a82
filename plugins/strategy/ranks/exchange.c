/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/exchange.c: sends many tensors with few messages. */
#include "ranks.h"

#define GROUP_BYTES ((uint64_t)25 << 20)

static ctrt_status pack(ctrt_tensor *flat, ctrt_tensor *const *tensors, const size_t *members, size_t count, bool in)
{
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        CTRT_AUTO(tensor) view = NULL;
        ctrt_tensor *tensor = tensors[members[i]];
        CTRT_TRY(strategy_part(&view, flat, at, tensor));
        CTRT_TRY(in ? ctrt_copy_(view, tensor) : ctrt_copy_(tensor, view));
        at += ctrt_tensor_numel(tensor);
    }
    return CTRT_OK;
}

static ctrt_status transmit(struct ranks *r, enum exchange how, ctrt_tensor *tensor, int peer)
{
    switch (how) {
    case EXCHANGE_SEND: return ctrt_comm_send(NULL, r->comm, tensor, peer);
    case EXCHANGE_RECV: return ctrt_comm_recv(NULL, r->comm, tensor, peer);
    default:            return ctrt_comm_broadcast(NULL, r->comm, tensor, peer);
    }
}

static ctrt_status flush(struct ranks *r, enum exchange how, ctrt_tensor *const *tensors, const size_t *members,
                         size_t count, int peer)
{
    CTRT_AUTO(tensor) flat = NULL;
    int64_t numel = 0;
    const bool writes = how == EXCHANGE_SEND || (how == EXCHANGE_BROADCAST && r->rank == peer);
    for (size_t i = 0; i < count; i++)
        numel += ctrt_tensor_numel(tensors[members[i]]);
    if (numel == 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_empty(&flat, CTRT_SHAPE(numel), ctrt_tensor_dtype(tensors[members[0]]), r->device));
    if (writes)
        CTRT_TRY(pack(flat, tensors, members, count, true));
    CTRT_TRY(transmit(r, how, flat, peer));
    return writes ? CTRT_OK : pack(flat, tensors, members, count, false);
}

static ctrt_status exchange_all(struct ranks *r, enum exchange how, ctrt_tensor *const *tensors, size_t count,
                                int peer, size_t *members)
{
    uint64_t dtypes = 0;
    for (size_t t = 0; t < count; t++)
        if (tensors[t] != NULL)
            dtypes |= CTRT_DTYPE_BIT(ctrt_tensor_dtype(tensors[t]));
    for (; dtypes != 0; dtypes &= dtypes - 1) {
        const int dtype = __builtin_ctzll(dtypes);
        size_t n = 0;
        uint64_t bytes = 0;
        for (size_t t = 0; t < count; t++) {
            if (tensors[t] == NULL || (int)ctrt_tensor_dtype(tensors[t]) != dtype)
                continue;
            members[n++] = t;
            bytes += strategy_tensor_bytes(tensors[t]);
            if (bytes < GROUP_BYTES)
                continue;
            CTRT_TRY(flush(r, how, tensors, members, n, peer));
            n = 0, bytes = 0;
        }
        if (n > 0)
            CTRT_TRY(flush(r, how, tensors, members, n, peer));
    }
    return CTRT_OK;
}

ctrt_status exchange(struct ranks *r, enum exchange how, ctrt_tensor *const *tensors, size_t count, int peer)
{
    SCRATCH size_t *members = NULL;
    CTRT_TRY(ALLOCATE(members, count));
    ctrt_no_grad CTRT_TRY(exchange_all(r, how, tensors, count, peer, members));
    return CTRT_OK;
}

ctrt_status exchange_numbers(struct ranks *r, enum exchange how, int64_t *numbers, size_t count, int peer)
{
    CTRT_AUTO(tensor) tensor = NULL;
    const int64_t n = (int64_t)count;
    CTRT_TRY(ctrt_from_data(&tensor, numbers, n, CTRT_SHAPE(n), CTRT_I64, r->device));
    CTRT_TRY(transmit(r, how, tensor, peer));
    return how == EXCHANGE_SEND ? CTRT_OK : ctrt_to_host(numbers, count * sizeof *numbers, tensor, CTRT_I64);
}

ctrt_status gather_numbers(struct ranks *r, int64_t *out, const int64_t *numbers, size_t count)
{
    CTRT_AUTO(tensor) in = NULL, all = NULL;
    const int64_t n = (int64_t)count, total = n * r->size;
    CTRT_TRY(ctrt_from_data(&in, numbers, n, CTRT_SHAPE(n), CTRT_I64, r->device));
    CTRT_TRY(ctrt_empty(&all, CTRT_SHAPE(total), CTRT_I64, r->device));
    CTRT_TRY(ctrt_comm_all_gather(NULL, r->comm, all, in));
    return ctrt_to_host(out, (size_t)total * sizeof *out, all, CTRT_I64);
}

static bool contains(const int64_t *numbers, size_t count, int64_t number)
{
    size_t i = 0;
    while (i < count && numbers[i] != number)
        i++;
    return i < count;
}

ctrt_status exchange_order(struct ranks *r, size_t *order, size_t count, const size_t *recorded, size_t recorded_count)
{
    SCRATCH int64_t *numbers = NULL;
    size_t n = 0;
    CTRT_TRY(ALLOCATE(numbers, count));
    for (; n < recorded_count; n++)
        numbers[n] = (int64_t)recorded[n];
    for (size_t i = count; i-- > 0;)
        if (!contains(numbers, recorded_count, (int64_t)i))
            numbers[n++] = (int64_t)i;
    CTRT_TRY(exchange_numbers(r, EXCHANGE_BROADCAST, numbers, count, 0));
    for (size_t i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= (int64_t)count || contains(numbers, i, numbers[i]))
            return ctrt_fail(CTRT_ERR_STATE, "rank 0 has sent a wrong order; do all ranks run the same version of "
                             "the library?");
    for (size_t i = 0; i < count; i++)
        order[i] = (size_t)numbers[i];
    return CTRT_OK;
}
