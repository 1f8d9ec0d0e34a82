/* SPDX-License-Identifier: Apache-2.0 */
/* bad-comm.c: invalid arguments of the functions in comm.h: stores, groups of one rank, collectives. */
#include <stdlib.h>

#include <math.h>

#include "bad-input.h"

#define LONG "0123456789012345678901234567890123456789012345678901234567890123"

static void bad_stores(void)
{
    ctrt_store *store = NULL, *bad = NULL;
    void *value = NULL;
    size_t bytes = 0;
    int64_t sum = 0;
    const char *const endless = LONG LONG LONG LONG LONG;
    FINE(ctrt_store_open(&store, "local://bad-input", true, 1) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_store_open(NULL, "local://x", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, NULL, true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "udp://x", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "tcp://localhost", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "tcp://localhost:99999", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "file://", true, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_open(&bad, "local://x", true, NAN));
    BAD(INVALID_ARGUMENT, ctrt_store_set(NULL, "k", "v", 1));
    BAD(INVALID_ARGUMENT, ctrt_store_set(store, NULL, "v", 1));
    BAD(INVALID_ARGUMENT, ctrt_store_set(store, "k", NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_set(store, endless, "v", 1));
    BAD(INVALID_ARGUMENT, ctrt_store_get(NULL, "k", &value, &bytes, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_get(store, NULL, &value, &bytes, 1));
    BAD(INVALID_ARGUMENT, ctrt_store_get(store, "k", &value, &bytes, NAN));
    BAD(ANY, ctrt_store_get(store, "k", &value, &bytes, 0.001));
    BAD(INVALID_ARGUMENT, ctrt_store_add(NULL, "k", 1, &sum));
    BAD(INVALID_ARGUMENT, ctrt_store_add(store, NULL, 1, &sum));
    FINE(ctrt_store_set(store, "word", "x", 1) == CTRT_OK);
    BAD(STATE, ctrt_store_add(store, "word", 1, &sum));
    BAD(INVALID_ARGUMENT, ctrt_store_compare_set(NULL, "k", NULL, 0, "v", 1, &value, &bytes));
    BAD(INVALID_ARGUMENT, ctrt_store_compare_set(store, NULL, NULL, 0, "v", 1, &value, &bytes));
    BAD(INVALID_ARGUMENT, ctrt_store_compare_set(store, "k", NULL, 0, NULL, 1, &value, &bytes));
    BAD(INVALID_ARGUMENT, ctrt_store_delete(NULL, "k", NULL));
    BAD(INVALID_ARGUMENT, ctrt_store_delete(store, NULL, NULL));
    FINE(ctrt_store_retain(NULL) == NULL);
    FINE(ctrt_store_address(NULL) == NULL);
    FINE(value == NULL && bad == NULL);
    FINE((ctrt_store_release(NULL), ctrt_store_release(&bad), ctrt_store_release(&store), store == NULL));
}

static void bad_groups(ctrt_comm **comm)
{
    ctrt_comm *bad[2] = { NULL, NULL };
    int joining = 7;
    ctrt_device *const device = p.cpu, *const none = NULL;
    char *json = NULL;
    BAD(INVALID_ARGUMENT, ctrt_comm_new(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new(bad, &CTRT_WITH(ctrt_comm_options, .world_size = -1)));
    BAD(INVALID_ARGUMENT, ctrt_comm_new(bad, &CTRT_WITH(ctrt_comm_options, .rank = 2, .world_size = 2)));
    BAD(INVALID_ARGUMENT, ctrt_comm_new(bad, &CTRT_WITH(ctrt_comm_options, .timeout = -1)));
    BAD(NOT_FOUND, ctrt_comm_new(bad, &CTRT_WITH(ctrt_comm_options, .engine = "pigeon")));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(NULL, &device, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, NULL, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, &none, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, &device, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, &device, -1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, &device, 1 << 20, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_new_local(bad, &device, 1, &CTRT_WITH(ctrt_comm_options, .timeout = -1)));
    FINE(ctrt_comm_new_local(comm, &device, 1, NULL) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_comm_split(NULL, *comm, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_split(bad, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_shrink(NULL, *comm));
    BAD(INVALID_ARGUMENT, ctrt_comm_shrink(bad, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_joining(NULL, *comm));
    BAD(INVALID_ARGUMENT, ctrt_comm_joining(&joining, NULL));
    FINE(ctrt_comm_joining(&joining, *comm) == CTRT_OK);
    FINE(joining == 0);
    FINE(ctrt_comm_epoch(NULL) == -1);
    FINE(ctrt_comm_epoch(*comm) == 0);
    FINE(ctrt_comm_previous_rank(NULL, 0) == -1);
    FINE(ctrt_comm_previous_rank(*comm, 0) == 0);
    FINE(ctrt_comm_previous_rank(*comm, -1) == -1);
    FINE(ctrt_comm_previous_rank(*comm, 1) == -1);
    BAD(INVALID_ARGUMENT, ctrt_comm_error(NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_report(NULL, *comm));
    BAD(INVALID_ARGUMENT, ctrt_comm_report(&json, NULL));
    FINE(ctrt_comm_retain(NULL) == NULL);
    FINE(ctrt_comm_rank(NULL) == -1);
    FINE(ctrt_comm_size(NULL) == 0);
    FINE(ctrt_comm_device(NULL) == NULL);
    FINE(ctrt_comm_engine_name(NULL) == NULL);
    FINE(ctrt_comm_name(NULL) == NULL);
    FINE(ctrt_comm_environment(NULL, NULL, NULL, NULL) == CTRT_OK);
    FINE((ctrt_comm_abort(NULL, NULL), true));
    FINE((ctrt_comm_release(NULL), ctrt_comm_release(bad), bad[0] == NULL));
}

static void bad_collectives(ctrt_comm *comm)
{
    ctrt_work *work = NULL;
    ctrt_tensor *bad = NULL;
    bool done = false;
    BAD(INVALID_ARGUMENT, ctrt_comm_broadcast(NULL, NULL, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_broadcast(NULL, comm, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_broadcast(NULL, comm, p.x, 1));
    BAD(INVALID_ARGUMENT, ctrt_comm_broadcast(&work, comm, p.x, -1));
    BAD(AUTOGRAD, ctrt_comm_broadcast(NULL, comm, p.leaf, 0));
    BAD(AUTOGRAD, ctrt_comm_all_reduce(NULL, comm, p.leaf, CTRT_COMM_SUM));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_reduce(NULL, NULL, p.x, CTRT_COMM_SUM));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_reduce(NULL, comm, NULL, CTRT_COMM_SUM));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_reduce(NULL, comm, p.x, (ctrt_comm_op)9));
    BAD(INVALID_ARGUMENT, ctrt_comm_reduce(NULL, NULL, p.x, CTRT_COMM_SUM, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_reduce(NULL, comm, NULL, CTRT_COMM_SUM, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_reduce(NULL, comm, p.x, CTRT_COMM_SUM, 7));
    BAD(DTYPE, ctrt_comm_all_reduce(NULL, comm, p.whole, CTRT_COMM_AVERAGE));
    BAD(DTYPE, ctrt_comm_all_gather(NULL, comm, p.whole, p.number));
    BAD(SHAPE, ctrt_comm_all_gather(NULL, comm, p.wide, p.x));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_gather(NULL, NULL, p.x, p.x));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_gather(NULL, comm, NULL, p.x));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_gather(NULL, comm, p.x, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_gather(NULL, NULL, p.x, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_gather(NULL, comm, NULL, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_gather(NULL, comm, p.x, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_scatter(NULL, NULL, p.x, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_scatter(NULL, comm, NULL, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_scatter(NULL, comm, p.x, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_reduce_scatter(NULL, NULL, p.x, p.x, CTRT_COMM_SUM));
    BAD(INVALID_ARGUMENT, ctrt_comm_reduce_scatter(NULL, comm, NULL, p.x, CTRT_COMM_SUM));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_to_all(NULL, NULL, p.x, p.x));
    BAD(INVALID_ARGUMENT, ctrt_comm_all_to_all(NULL, comm, p.x, NULL));
    BAD(INVALID_ARGUMENT, ctrt_comm_send(NULL, NULL, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_send(NULL, comm, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_send(NULL, comm, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_recv(NULL, NULL, p.x, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_recv(NULL, comm, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_recv(NULL, comm, p.x, 3));
    BAD(INVALID_ARGUMENT, ctrt_comm_barrier(NULL));
    BAD(INVALID_ARGUMENT, ctrt_work_wait(NULL));
    BAD(INVALID_ARGUMENT, ctrt_work_query(NULL, &done));
    if (p.away != NULL)
        BAD(DEVICE, ctrt_comm_broadcast(NULL, comm, p.away, 0));
    BAD(INVALID_ARGUMENT, ctrt_comm_empty(&bad, NULL, CTRT_SHAPE(2), CTRT_F32));
    BAD(INVALID_ARGUMENT, ctrt_comm_empty(NULL, comm, CTRT_SHAPE(2), CTRT_F32));
    BAD(SHAPE, ctrt_comm_empty(&bad, comm, CTRT_SHAPE(-1), CTRT_F32));
    BAD(DTYPE, ctrt_comm_empty(&bad, comm, CTRT_SHAPE(1), (ctrt_dtype)99));
    FINE(bad == NULL);
    FINE(work == NULL);
    FINE((ctrt_work_release(NULL), ctrt_work_release(&work), work == NULL));
}

void bad_comm(void)
{
    ctrt_comm *comm = NULL;
    bad_stores();
    bad_groups(&comm);
    if (comm != NULL)
        bad_collectives(comm);
    ctrt_comm_release(&comm);
}
