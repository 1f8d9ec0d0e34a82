/* SPDX-License-Identifier: Apache-2.0 */
/* contract_ranks.c: ranks, groups and calls for the checks of communication engines. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_ranks.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD  5                                /* elements before and after a buffer */
#define FILLED 0x5a

const ctrt_comm_engine *contract_engine;
struct board *board;

/* ---- ranks ---- */

static void (*rank_body)(struct rank *rank);
static int rank_count;

static void rank_run(int number, ctrt_store *store)
{
    struct rank rank = { .number = number, .count = rank_count, .store = store };
    contract_step("opening the cpu, on which the ranks have their data");
    contract_ok(ctrt_device_get(&rank.device, "cpu"));
    contract_step("rank %d of %d", number, rank_count);
    rank_body(&rank);
}

static int next_number;                         /* of the rank that is started next */

static void rank_process(void)
{
    ctrt_store *store = NULL;
    contract_step("opening the store");
    contract_ok(ctrt_store_open(&store, board->address, false, 20));
    rank_run(next_number, store);
    ctrt_store_release(&store);
}

static void board_new(void)
{
    if (board == NULL)
        board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(board != MAP_FAILED, "no shared memory");
    memset(board, 0, sizeof *board);
}

static ctrt_store *serve(void)
{
    ctrt_store *store = NULL;
    contract_step("opening a store at tcp://127.0.0.1");
    contract_ok(ctrt_store_open(&store, "tcp://127.0.0.1:0", true, 20));
    snprintf(board->address, sizeof board->address, "%s", ctrt_store_address(store));
    return store;
}

void ranks_in_processes(int count, void (*body)(struct rank *rank))
{
    board_new();
    ctrt_store *store = serve();
    rank_body = body, rank_count = count;
    for (next_number = 0; next_number < count; next_number++)
        atomic_store(&board->pids[next_number], contract_fork(rank_process));
    for (int left = count; left > 0; contract_sleep(1))
        for (int i = 0; i < count; i++)
            if (!atomic_load(&board->ended[i]) && contract_ended(board->pids[i], board->killed[i])) {
                atomic_store(&board->ended[i], true);
                left--;
            }
    ctrt_store_release(&store);
}

static ctrt_store *common_store;                /* of ranks that are threads */

static void rank_thread(int number)
{
    rank_run(number, common_store);
}

void ranks_in_threads(int count, void (*body)(struct rank *rank))
{
    board_new();
    common_store = serve();
    rank_body = body, rank_count = count;
    contract_in_threads(rank_thread, count);
    ctrt_store_release(&common_store);
}

void ranks_await(atomic_int *number, int value)
{
    while (atomic_load(number) < value)
        contract_sleep(1);
}

/* ---- groups ---- */

static ctrt_status group_poll(void *state)
{
    struct waiter *waiter = state;
    struct group *group = waiter->group;
    const double now = contract_now();
    EXPECT(atomic_load(&waiter->runs), "poll was called with a state that is not that of a running call: in create it "
           "is config->state, in run call->state");
    const double pause = now - atomic_exchange(&waiter->last, now);
    if (pause > atomic_load(&waiter->pause))
        atomic_store(&waiter->pause, pause);
    atomic_fetch_add(&waiter->polls, 1);
    if (atomic_load(&board->alarm))
        return ctrt_fail(CTRT_ERR_COMM, "poll: the group %s has failed", group->name);
    for (int i = 0; i < group->world && !atomic_load(&board->quiet); i++)
        if (atomic_load(&board->ended[group->members[i]]))
            return ctrt_fail(CTRT_ERR_COMM, "poll: rank %d of %s has ended", i, group->name);
    if (now > atomic_load(&waiter->deadline)) {
        atomic_store(&board->alarm, true);
        return ctrt_fail(CTRT_ERR_COMM, "poll: the time limit of %s has passed", group->name);
    }
    return CTRT_OK;
}

static ctrt_status group_mismatch(void *state, const ctrt_comm_signature *signatures)
{
    struct waiter *waiter = state;
    struct group *group = waiter->group;
    EXPECT(atomic_load(&waiter->runs), "mismatch was called with a state that is not call->state");
    memcpy(group->seen, signatures, (size_t)group->world * sizeof *signatures);
    atomic_fetch_add(&group->mismatches, 1);
    return ctrt_fail(CTRT_ERR_STATE, "mismatch: the signatures differ");
}

static void waiter_begin(struct waiter *waiter, struct group *group)
{
    const double now = contract_now();
    waiter->group = group;
    atomic_store(&waiter->deadline, now + group->config.timeout);
    atomic_store(&waiter->last, now);
    atomic_store(&waiter->polls, 0);
    atomic_store(&waiter->pause, 0);
    atomic_store(&waiter->runs, true);
}

ctrt_status group_create(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                         double seconds)
{
    memset(group, 0, sizeof *group);
    snprintf(group->name, sizeof group->name, "%s", name);
    group->device = rank->device;
    group->world = members != NULL ? count : rank->count;
    for (int i = 0; i < group->world; i++) {
        group->members[i] = members != NULL ? members[i] : i;
        group->rank = group->members[i] == rank->number ? i : group->rank;
    }
    group->config = (ctrt_comm_config){
        .size = sizeof group->config, .rank = group->rank, .world = group->world, .name = group->name,
        .device = rank->device, .store = rank->store, .timeout = seconds, .state = &group->join, .poll = group_poll,
        .mismatch = group_mismatch,
    };
    waiter_begin(&group->join, group);
    contract_step("rank %d of %d: create of the group %s", group->rank, group->world, group->name);
    ctrt_status status = contract_engine->create(&group->comm, &group->config);
    atomic_store(&group->join.runs, false);
    EXPECT(status != CTRT_OK || group->comm != NULL, "create returned CTRT_OK and no communicator");
    return status;
}

void group_open(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                double seconds)
{
    contract_ok(group_create(group, rank, name, members, count, seconds));
}

void group_close(struct group *group)
{
    contract_step("rank %d of %d: destroy of the group %s", group->rank, group->world, group->name);
    contract_engine->destroy(group->comm);
    group->comm = NULL;
}

ctrt_status group_alloc(struct group *group, void **address, size_t bytes)
{
    waiter_begin(&group->join, group);
    ctrt_status status = contract_engine->alloc(group->comm, address, bytes);
    atomic_store(&group->join.runs, false);
    return status;
}

/* ---- data ---- */

void buffer_new(struct buffer *buffer, ctrt_device *device, ctrt_dtype dtype, int64_t count)
{
    *buffer = (struct buffer){ .dtype = dtype, .count = count };
    contract_ok(ctrt_empty(&buffer->base, CTRT_SHAPE(count + 2 * GUARD), dtype, device));
    contract_ok(ctrt_narrow(&buffer->tensor, buffer->base, 0, GUARD, count));
    memset(ctrt_tensor_data(buffer->base), FILLED, (size_t)(count + 2 * GUARD) * ctrt_dtype_size(dtype));
}

void buffer_set(struct buffer *buffer, const double *values)
{
    contract_ok(ctrt_from_host_(buffer->tensor, values, buffer->count, CTRT_F64));
}

void buffer_expect(const struct buffer *buffer, const double *values, double tolerance, const char *what)
{
    const size_t element = ctrt_dtype_size(buffer->dtype);
    const unsigned char *bytes = buffer->base != NULL ? ctrt_tensor_data(buffer->base) : NULL;
    double *got = contract_alloc((size_t)buffer->count * sizeof *got);
    contract_ok(ctrt_to_host(got, (size_t)buffer->count * sizeof *got, buffer->tensor, CTRT_F64));
    for (int64_t i = 0; i < buffer->count; i++)
        EXPECT(fabs(got[i] - values[i]) <= tolerance * fabs(values[i]),
               "%s, %s: element %lld of %lld is %g, expected %g", what, ctrt_dtype_name(buffer->dtype), (long long)i,
               (long long)buffer->count, got[i], values[i]);
    free(got);
    if (bytes == NULL)
        return;
    contract_expect_bytes(bytes, GUARD * element, FILLED, "before the data");
    contract_expect_bytes(bytes + (size_t)(buffer->count + GUARD) * element, GUARD * element, FILLED,
                          "after the data");
}

void buffer_at(struct buffer *buffer, void *address, ctrt_dtype dtype, int64_t count)
{
    *buffer = (struct buffer){ .dtype = dtype, .count = count };
    contract_ok(ctrt_from_blob(&buffer->tensor, address, CTRT_SHAPE(count), (ctrt_ints){ NULL, 0 }, dtype, NULL, NULL));
}

void buffer_free(struct buffer *buffer)
{
    ctrt_tensor_release(&buffer->tensor);
    ctrt_tensor_release(&buffer->base);
}

/* ---- calls ---- */

bool collective_reduces(ctrt_collective collective)
{
    return collective == CTRT_COLLECTIVE_ALL_REDUCE || collective == CTRT_COLLECTIVE_REDUCE
           || collective == CTRT_COLLECTIVE_REDUCE_SCATTER;
}

ctrt_status group_run(struct group *group, const struct request *request)
{
    const bool sends = request->collective == CTRT_COLLECTIVE_SEND;
    const bool receives = request->collective == CTRT_COLLECTIVE_RECV;
    const bool has_data = request->send != NULL || request->receive != NULL;
    struct waiter *waiter = &group->waiters[sends ? 1 : receives ? 2 : 0];
    ctrt_comm_call call = {
        .size = sizeof call,
        .signature = { .count = (uint64_t)request->count, .root = sends ? group->rank : request->root,
                       .collective = receives ? CTRT_COLLECTIVE_SEND : request->collective,
                       .op = collective_reduces(request->collective) ? request->op : 0,
                       .dtype = has_data ? request->dtype : 0 },
        .peer = sends || receives ? request->root : -1,
        .bytes = has_data ? (size_t)request->count * ctrt_dtype_size(request->dtype) : 0,
        .state = waiter,
    };
    call.signature.sequence = sends      ? ++group->sent[request->root]
                              : receives ? ++group->received[request->root]
                                         : ++group->sequence;
    if (request->send != NULL) {
        call.send_tensor = request->send->tensor;
        call.send = ctrt_tensor_data(call.send_tensor);
    }
    if (request->receive != NULL) {
        call.receive_tensor = request->receive->tensor;
        call.receive = ctrt_tensor_data(call.receive_tensor);
    }
    waiter_begin(waiter, group);
    ctrt_status status = contract_engine->run(group->comm, &call);
    const double pause = contract_now() - atomic_load(&waiter->last);
    if (pause > atomic_load(&waiter->pause))
        atomic_store(&waiter->pause, pause);
    atomic_store(&waiter->runs, false);
    return status;
}

void group_barrier(struct group *group)
{
    contract_step("rank %d of %d: barrier of the group %s", group->rank, group->world, group->name);
    contract_ok(group_run(group, &(struct request){ .collective = CTRT_COLLECTIVE_BARRIER, .root = -1 }));
}
