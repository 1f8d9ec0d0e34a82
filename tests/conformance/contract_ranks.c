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

bool engine_enqueues(void)
{
    return contract_engine != NULL && (contract_engine->flags & CTRT_COMM_ENQUEUES);
}

/* ---- ranks ---- */

static void (*rank_body)(struct rank *rank);
static int rank_count;

static void rank_run(int number, ctrt_store *store)
{
    struct rank rank = { .number = number, .count = rank_count, .store = store };
    const char *type = contract_target.rank_device;
    char name[64];
    contract_step("opening the devices of the ranks");
    const int devices = ctrt_device_count(type);
    if (devices < 1 || (engine_enqueues() && devices < rank_count))
        contract_skip("it needs %d devices of the type %s; there are %d", rank_count, type, devices);
    snprintf(name, sizeof name, "%s:%d", type, number % devices);
    contract_ok(ctrt_device_get(&rank.device, name));
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

static void meet(int times)
{
    atomic_fetch_add(&board->met, 1);
    ranks_await(&board->met, times * contract_target.ranks);
}

/* The ranks are the processes of a launcher, which run the same checks. */
static void ranks_launched(int count)
{
    static int times;
    ctrt_store *store = NULL;
    if (count > contract_target.ranks)
        contract_skip("it needs %d ranks: mpirun -n %d ctrt check --contract %s", count, count, contract_target.file);
    meet(++times);
    if (contract_target.rank == 0) {
        memset(board, 0, offsetof(struct board, met));
        store = serve();
    }
    meet(++times);
    next_number = contract_target.rank;
    if (next_number < count) {
        atomic_store(&board->pids[next_number], (int)getpid());
        rank_process();
    }
    meet(++times);
    ctrt_store_release(&store);
}

void ranks_in_processes(int count, void (*body)(struct rank *rank))
{
    if (contract_target.ranks > 0) {
        rank_body = body, rank_count = count;
        ranks_launched(count);
        return;
    }
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
    if (contract_target.ranks > 0)
        contract_skip("the ranks are processes of a launcher");
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
    const double now = seconds_now();
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
    const double now = seconds_now();
    waiter->group = group;
    atomic_store(&waiter->deadline, now + group->config.timeout);
    atomic_store(&waiter->last, now);
    atomic_store(&waiter->polls, 0);
    atomic_store(&waiter->pause, 0);
    atomic_store(&waiter->runs, true);
}

bool groups_elastic;

static void group_begin(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
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
        .mismatch = group_mismatch, .elastic = groups_elastic,
    };
    waiter_begin(&group->join, group);
}

static ctrt_status group_end(struct group *group, ctrt_status status)
{
    atomic_store(&group->join.runs, false);
    EXPECT(status != CTRT_OK || group->comm != NULL, "returned CTRT_OK and no communicator");
    return status;
}

ctrt_status group_create(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                         double seconds)
{
    group_begin(group, rank, name, members, count, seconds);
    contract_step("rank %d of %d: create of the group %s", group->rank, group->world, group->name);
    return group_end(group, contract_engine->create(&group->comm, &group->config));
}

ctrt_status group_derive_none(struct group *parent)
{
    waiter_begin(&parent->join, parent);
    const ctrt_status status = contract_engine->derive(NULL, NULL, parent->comm, NULL, -1);
    atomic_store(&parent->join.runs, false);
    return status;
}

ctrt_status group_derive(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                         struct group *parent, int color)
{
    group_begin(group, rank, name, members, count, parent->config.timeout);
    group->config.epoch = color < 0;
    waiter_begin(&parent->join, parent);
    contract_step("rank %d of %d: derive of the group %s", group->rank, group->world, group->name);
    const ctrt_status status = contract_engine->derive(&group->comm, &group->config, parent->comm, group->members,
                                                       color);
    atomic_store(&parent->join.runs, false);
    return group_end(group, status);
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

void group_abort(struct group *group)
{
    if (CTRT_SLOT(contract_engine, abort) && !atomic_exchange(&group->aborted, true))
        contract_engine->abort(group->comm);
}

/* ---- data ---- */

/* Copies the tensor's bytes to the host, or from there. */
static void bytes_copy(ctrt_tensor *tensor, void *host, bool to_host)
{
    CTRT_AUTO(tensor) cpu = NULL;
    if (ctrt_tensor_numel(tensor) == 0)
        return;
    contract_ok(ctrt_from_blob(&cpu, host, CTRT_SHAPE(ctrt_tensor_numel(tensor)), (ctrt_ints){ NULL, 0 },
                               ctrt_tensor_dtype(tensor), NULL, NULL));
    contract_ok(to_host ? ctrt_copy_(cpu, tensor) : ctrt_copy_(tensor, cpu));
}

static size_t bytes_of(const ctrt_tensor *tensor)
{
    return (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

static void bytes_fill(ctrt_tensor *tensor, int byte)
{
    unsigned char *host = contract_alloc(bytes_of(tensor));
    memset(host, byte, bytes_of(tensor));
    bytes_copy(tensor, host, false);
    free(host);
}

void buffer_new(struct buffer *buffer, ctrt_device *device, ctrt_dtype dtype, int64_t count)
{
    *buffer = (struct buffer){ .dtype = dtype, .count = count };
    contract_ok(ctrt_empty(&buffer->base, CTRT_SHAPE(count + 2 * GUARD), dtype, device));
    contract_ok(ctrt_narrow(&buffer->tensor, buffer->base, 0, GUARD, count));
    bytes_fill(buffer->base, FILLED);
}

void buffer_fill(struct buffer *buffer, int byte)
{
    bytes_fill(buffer->tensor, byte);
}

void buffer_expect_bytes(const struct buffer *buffer, int byte, const char *what)
{
    unsigned char *host = contract_alloc(bytes_of(buffer->tensor));
    bytes_copy(buffer->tensor, host, true);
    contract_expect_bytes(host, bytes_of(buffer->tensor), byte, what);
    free(host);
}

void buffer_set(struct buffer *buffer, const double *values)
{
    contract_ok(ctrt_from_host_(buffer->tensor, values, buffer->count, CTRT_F64));
}

void buffer_expect(const struct buffer *buffer, const double *values, double tolerance, const char *what)
{
    const size_t element = ctrt_dtype_size(buffer->dtype);
    double *got = contract_alloc((size_t)buffer->count * sizeof *got);
    contract_ok(ctrt_to_host(got, (size_t)buffer->count * sizeof *got, buffer->tensor, CTRT_F64));
    for (int64_t i = 0; i < buffer->count; i++)
        EXPECT(fabs(got[i] - values[i]) <= tolerance * fabs(values[i]),
               "%s, %s: element %lld of %lld is %g, expected %g", what, ctrt_dtype_name(buffer->dtype), (long long)i,
               (long long)buffer->count, got[i], values[i]);
    free(got);
    if (buffer->base == NULL)
        return;
    unsigned char *bytes = contract_alloc(bytes_of(buffer->base));
    bytes_copy(buffer->base, bytes, true);
    contract_expect_bytes(bytes, GUARD * element, FILLED, "before the data");
    contract_expect_bytes(bytes + (size_t)(buffer->count + GUARD) * element, GUARD * element, FILLED,
                          "after the data");
    free(bytes);
}

/* DLPack's struct of a tensor, dlpack.h. */
struct DLManagedTensorVersioned {
    struct { uint32_t major, minor; } version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

static void blob_free(struct DLManagedTensorVersioned *blob)
{
    free(blob->shape);
    free(blob);
}

/* Memory of a device in a tensor, which only DLPack can make. A tensor of the device tells its code there. */
static void blob_new(ctrt_tensor **out, ctrt_device *device, void *address, ctrt_dtype dtype, int64_t count)
{
    CTRT_AUTO(tensor) like = NULL;
    struct DLManagedTensorVersioned *blob = NULL;
    contract_ok(ctrt_empty(&like, CTRT_SHAPE(1), dtype, device));
    contract_ok(ctrt_to_dlpack(&blob, like));
    struct DLManagedTensorVersioned *own = malloc(sizeof *own);
    *own = *blob;
    own->data = address, own->byte_offset = 0, own->deleter = blob_free;
    own->shape = malloc(2 * sizeof *own->shape);
    own->strides = own->shape + 1;
    own->shape[0] = count, own->strides[0] = 1;
    blob->deleter(blob);
    contract_ok(ctrt_from_dlpack(out, own));
}

void buffer_at(struct buffer *buffer, ctrt_device *device, void *address, ctrt_dtype dtype, int64_t count)
{
    *buffer = (struct buffer){ .dtype = dtype, .count = count };
    if (strcmp(ctrt_device_type(device), "cpu") == 0)
        contract_ok(ctrt_from_blob(&buffer->tensor, address, CTRT_SHAPE(count), (ctrt_ints){ NULL, 0 }, dtype, NULL,
                                   NULL));
    else
        blob_new(&buffer->tensor, device, address, dtype, count);
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

/* The handle that the stream has in the API of its device. The one that it has in the backend is not public. */
static void *native_stream(ctrt_device *device)
{
    CTRT_AUTO(stream) stream = NULL;
    void *handle = NULL;
    contract_ok(ctrt_stream_current(&stream, device));
    contract_ok(ctrt_stream_native(&handle, stream));
    return handle;
}

ctrt_status group_start(struct group *group, const struct request *request)
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
    if (engine_enqueues())
        call.queue = native_stream(group->device);
    waiter_begin(waiter, group);
    ctrt_status status = contract_engine->run(group->comm, &call);
    const double pause = seconds_now() - atomic_load(&waiter->last);
    if (pause > atomic_load(&waiter->pause))
        atomic_store(&waiter->pause, pause);
    atomic_store(&waiter->runs, false);
    return status;
}

#define ENDS 2.0                                /* seconds, within which abort ends the work on the stream */

/* As the library's threads: asks for errors and the time limit while the collective is incomplete, and aborts. */
ctrt_status group_await(struct group *group)
{
    struct waiter waiter = { .group = group };
    char message[512];
    ctrt_event *event = NULL;
    bool done = false;
    contract_ok(ctrt_event_new(&event, group->device, false));
    contract_ok(ctrt_event_record(event, NULL));
    waiter_begin(&waiter, group);
    ctrt_status status = ctrt_event_query(event, &done);
    while (status == CTRT_OK && !done) {
        if (CTRT_SLOT(contract_engine, poll_error))
            status = contract_engine->poll_error(group->comm);
        if (status == CTRT_OK)
            status = group_poll(&waiter);
        contract_sleep(1);
        if (status == CTRT_OK)
            status = ctrt_event_query(event, &done);
    }
    if (status == CTRT_OK && atomic_load(&group->aborted))      /* by another thread; the data is wrong */
        status = group_poll(&waiter);
    if (status != CTRT_OK) {
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        group_abort(group);
        const double limit = seconds_now() + ENDS;
        while (!done && ctrt_event_query(event, &done) == CTRT_OK && seconds_now() < limit)
            contract_sleep(1);
        EXPECT(done || seconds_now() < limit, "the collective did not end on its stream within %g s of abort", ENDS);
        (void)ctrt_fail(status, "%s", message);
    }
    ctrt_event_release(&event);
    return status;
}

ctrt_status group_run(struct group *group, const struct request *request)
{
    const ctrt_status status = group_start(group, request);
    return status == CTRT_OK && engine_enqueues() ? group_await(group) : status;
}

void group_barrier(struct group *group)
{
    contract_step("rank %d of %d: barrier of the group %s", group->rank, group->world, group->name);
    contract_ok(group_run(group, &(struct request){ .collective = CTRT_COLLECTIVE_BARRIER, .root = -1 }));
}
