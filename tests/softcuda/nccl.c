/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nccl.c: a libnccl.so.2 in software, for devices of the software driver in one or several processes.
 *
 * The ranks of a communicator share a memory file; NCCL's unique id contains its path. An operation runs on the thread
 * of its stream: it copies the rank's data to the file, waits for the other ranks, and computes the rank's result. The
 * following calls, which are undefined with NCCL, are reported as errors of the test (softcuda_report):
 *
 *   - ranks whose collectives differ in kind, count, dtype, reduction or root; messages whose bytes or dtypes differ;
 *   - collectives of several communicators of one device that the ranks enqueue in different orders;
 *   - a communicator that ends before the graphs with its operations (ncclCommAbort waits for them, as NCCL does);
 *   - a call with a stream of another device or without a stream;
 *   - a communicator that is used after its end, by two threads at once, or while an earlier call is in progress;
 *   - ncclGroupEnd without ncclGroupStart; creation or destruction of a communicator between the two;
 *   - ncclCommSplit or ncclCommShrink while operations of the parent are incomplete; different ranks to exclude;
 *   - an operation on a communicator that was revoked (ncclCommRevoke);
 *   - memory that is freed before it is deregistered, or that is registered but not of ncclMemAlloc; collectives whose
 *     memory only some ranks have registered, or with different offsets.
 *
 * Every third call on a non-blocking communicator returns ncclInProgress, and completes 0.2 ms later. "threads=1" in
 * SOFTCUDA_NCCL: every call, and it completes when a thread that is created for it has run, as in NCCL.
 *
 * The variable SOFTCUDA_NCCL contains settings. "version=N" sets the version. "rank=R,hang=N": operation N of rank R
 * (from 1, in each communicator) does not end until the communicator is aborted. "rank=R,error=N": the same, and
 * ncclCommGetAsyncError returns ncclRemoteError. */
#include "nccl_soft.h"

extern void *softcuda_stream_context(void *stream);
extern result cuStreamIsCapturing(void *stream, int *status);

enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, TYPES };
enum { SUM, PRODUCT, MAX, MIN, AVERAGE, OPS };
enum kind { BROADCAST, ALL_REDUCE, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND, RECEIVE };
static const char *const names[] = { "Broadcast", "AllReduce", "Reduce", "AllGather", "ReduceScatter", "AlltoAll" };

struct op {
    struct signature signature;
    const void *from;
    void *to;
    struct history history;
};

struct job {
    struct ncclComm *comm;
    void *stream;
    bool captured;
    uint64_t ticket;
    int n;
    struct op ops[];
};
static const size_t type_bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };

static __thread int depth;
static __thread struct job *group[COMMS];
static __thread int n_group;

bool nccl_in_group(void)
{
    return depth > 0;
}

static char *data_of(const struct ncclComm *comm, int place)
{
    return (char *)comm->shared + DATA + (size_t)place * PART;
}
/* ---- results ---- */

#define REDUCE(T, W, LOAD, STORE)                                                              \
    for (size_t i = 0; i < count; i++) {                                                       \
        W all = 0;                                                                             \
        for (int r = 0; r < comm->world; r++) {                                                \
            const T raw = ((const T *)data_of(comm, r))[first + i];                            \
            const W x = LOAD(raw);                                                             \
            all = r == 0 ? x : op == PRODUCT ? (W)(all * x) : op == MAX ? (x > all ? x : all)  \
                  : op == MIN ? (x < all ? x : all) : (W)(all + x);                            \
        }                                                                                      \
        if (op == AVERAGE)                                                                     \
            all = (W)(all / (W)comm->world);                                                   \
        ((T *)to)[i] = STORE(all);                                                             \
    }
#define SAME(x) (x)
#define NARROW8(x) ((int8_t)(x))

/* Reduces elements [first, first + count) of all ranks, in the order of the ranks. */
static void reduce(const struct ncclComm *comm, void *to, size_t first, size_t count, int type, int op)
{
    switch (type) {
    case I8: REDUCE(int8_t, int, SAME, NARROW8) break;
    case U8: REDUCE(uint8_t, unsigned, SAME, (uint8_t)) break;
    case I32: REDUCE(int32_t, int64_t, SAME, (int32_t)) break;
    case U32: REDUCE(uint32_t, uint64_t, SAME, (uint32_t)) break;
    case I64:
        if (op == MAX || op == MIN) {
            REDUCE(int64_t, int64_t, SAME, SAME)
            break;
        }                                   /* else it wraps around as U64 does */
        REDUCE(uint64_t, uint64_t, SAME, SAME)
        break;
    case U64: REDUCE(uint64_t, uint64_t, SAME, SAME) break;
    case F16: REDUCE(uint16_t, float, soft_float_of_half, soft_half_of) break;
    case BF16: REDUCE(uint16_t, float, soft_float_of_bfloat, soft_bfloat_of) break;
    case F32: REDUCE(float, float, SAME, SAME) break;
    default: REDUCE(double, double, SAME, SAME) break;
    }
}

static result put(address to, const void *from, size_t bytes)
{
    return bytes == 0 ? CUDA_SUCCESS : softcuda_write(to, from, bytes);
}

static result take(const struct ncclComm *comm, const struct op *op)
{
    const struct signature *s = &op->signature;
    const size_t part = s->count * type_bytes[s->type], me = (size_t)comm->rank;
    const address to = (uintptr_t)op->to;
    result made = CUDA_SUCCESS;
    switch (s->kind) {
    case BROADCAST: return put(to, data_of(comm, s->root), part);
    case ALL_GATHER: case ALL_TO_ALL:
        for (int r = 0; r < comm->world && made == CUDA_SUCCESS; r++)
            made = put(to + (size_t)r * part, data_of(comm, r) + (s->kind == ALL_TO_ALL ? me * part : 0), part);
        return made;
    case REDUCE:
        if (comm->rank != s->root)
            return CUDA_SUCCESS;
        break;
    default: break;
    }
    char *sum = malloc(part + 1);
    reduce(comm, sum, s->kind == REDUCE_SCATTER ? me * s->count : 0, s->count, s->type, s->op);
    made = put(to, sum, part);
    free(sum);
    return made;
}

/* ---- running, on the stream's thread ---- */

static void describe(char *text, size_t bytes, int rank, const struct signature *s)
{
    snprintf(text, bytes, "rank %d: %s of %llu elements, type %d, op %d, root %d", rank, names[s->kind],
             (unsigned long long)s->count, s->type, s->op, s->root);
}

/* Compares the ranks' signatures, and the order of their collectives on other communicators, with those of rank 0. */
static bool agree(const struct ncclComm *comm)
{
    const struct slot *first = &comm->shared->slots[0], *slot = &comm->shared->slots[comm->rank];
    char text[280], one[128], other[128];
    if (memcmp(&first->signature, &slot->signature, sizeof slot->signature) != 0) {
        describe(one, sizeof one, 0, &first->signature);
        describe(other, sizeof other, comm->rank, &slot->signature);
        snprintf(text, sizeof text, "different collectives: %s; %s", one, other);
        nccl_misuse(text);
        return false;
    }
    for (int i = 0; i < slot->history.n; i++)
        for (int k = 0; k < first->history.n; k++)
            if (first->history.of[k].id == slot->history.of[i].id
                && first->history.of[k].launched != slot->history.of[i].launched) {
                snprintf(text, sizeof text, "ranks 0 and %d enqueue the collectives of two communicators in different "
                         "orders: %s after %llu and %llu of the other one", comm->rank, names[slot->signature.kind],
                         (unsigned long long)first->history.of[k].launched,
                         (unsigned long long)slot->history.of[i].launched);
                nccl_misuse(text);
                return false;
            }
    return true;
}

static bool all_reached(const struct ncclComm *comm, uint64_t number, bool finished)
{
    for (int r = 0; r < comm->world; r++) {
        struct slot *slot = &comm->shared->slots[r];
        if (atomic_load(finished ? &slot->finished : &slot->arrived) < number)
            return false;
    }
    return true;
}

static void wait_for_abort(struct ncclComm *comm)
{
    while (!atomic_load(&comm->aborted))
        usleep(100);
}

static result run_collective(struct ncclComm *comm, const struct op *op)
{
    struct slot *slot = &comm->shared->slots[comm->rank];
    const struct signature *s = &op->signature;
    const uint64_t number = comm->collectives++;
    const bool parts = s->kind == REDUCE_SCATTER || s->kind == ALL_TO_ALL;
    const size_t bytes = s->count * type_bytes[s->type] * (parts ? (size_t)comm->world : 1);
    result made = CUDA_SUCCESS;
    if (!WAIT(comm, all_reached(comm, number, true)))
        return CUDA_SUCCESS;
    if (bytes > 0 && (s->kind != BROADCAST || comm->rank == s->root))
        made = softcuda_read(data_of(comm, comm->rank), (uintptr_t)op->from, bytes);
    slot->signature = *s;
    slot->history = op->history;
    atomic_store(&slot->arrived, number + 1);
    if (made != CUDA_SUCCESS || !WAIT(comm, all_reached(comm, number + 1, false)))
        return made;
    if (!agree(comm)) {
        atomic_store(&comm->async, INTERNAL_ERROR);
        wait_for_abort(comm);
        return CUDA_SUCCESS;
    }
    made = take(comm, op);
    atomic_store(&slot->finished, number + 1);
    return made;
}

static struct channel *channel(const struct ncclComm *comm, int from, int to, char **data)
{
    *data = data_of(comm, comm->world + from * comm->world + to);
    return &comm->shared->channels[from][to];
}

/* Posts all sends of the group before it waits for a receive. A send ends when its data has been received. */
static result run_messages(struct ncclComm *comm, const struct job *job)
{
    char *data;
    for (int i = 0; i < job->n; i++) {
        const struct signature *s = &job->ops[i].signature;
        if (s->kind != SEND)
            continue;
        struct channel *c = channel(comm, comm->rank, s->root, &data);
        if (!WAIT(comm, atomic_load(&c->taken) == atomic_load(&c->posted)))
            return CUDA_SUCCESS;
        c->bytes = s->count * type_bytes[s->type];
        c->type = s->type;
        if (c->bytes > 0)
            TRY(softcuda_read(data, (uintptr_t)job->ops[i].from, c->bytes));
        atomic_fetch_add(&c->posted, 1);
    }
    for (int i = 0; i < job->n; i++) {
        const struct signature *s = &job->ops[i].signature;
        if (s->kind != RECEIVE)
            continue;
        struct channel *c = channel(comm, s->root, comm->rank, &data);
        if (!WAIT(comm, atomic_load(&c->taken) < atomic_load(&c->posted)))
            return CUDA_SUCCESS;
        if (c->bytes != s->count * type_bytes[s->type] || c->type != s->type) {
            nccl_misuse("the receiver of a message expects another length or type than the sender has sent");
            atomic_store(&comm->async, INTERNAL_ERROR);
            wait_for_abort(comm);
            return CUDA_SUCCESS;
        }
        TRY(put((uintptr_t)job->ops[i].to, data, c->bytes));
        atomic_fetch_add(&c->taken, 1);
    }
    for (int i = 0; i < job->n; i++)
        if (job->ops[i].signature.kind == SEND) {
            struct channel *c = channel(comm, comm->rank, job->ops[i].signature.root, &data);
            (void)WAIT(comm, atomic_load(&c->taken) == atomic_load(&c->posted));
        }
    return CUDA_SUCCESS;
}

static result run_job(void *argument)
{
    struct job *job = *(struct job **)argument;
    struct ncclComm *comm = job->comm;
    result made = CUDA_SUCCESS;
    if (job->captured && atomic_load(&comm->revoked))
        nccl_misuse("a graph with an operation of a communicator that was revoked runs");
    else if (job->captured ? !atomic_load(&comm->aborted) : WAIT(comm, atomic_load(&comm->turn) == job->ticket)) {
        pthread_mutex_lock(&comm->running);
        const uint64_t number = ++comm->operations;
        const bool here = nccl_option("rank") == comm->rank;
        if (here && nccl_option("error") == (long)number)
            atomic_store(&comm->async, REMOTE_ERROR);
        if (here && (nccl_option("error") == (long)number || nccl_option("hang") == (long)number))
            wait_for_abort(comm);
        for (int i = 0; i < job->n && made == CUDA_SUCCESS && !atomic_load(&comm->aborted); i++)
            if (job->ops[i].signature.kind < SEND)
                made = run_collective(comm, &job->ops[i]);
        if (made == CUDA_SUCCESS)
            made = run_messages(comm, job);
        pthread_mutex_unlock(&comm->running);
    }
    if (!job->captured) {
        atomic_fetch_add(&comm->turn, 1);
        atomic_fetch_sub(&comm->pending, 1);
    }
    return made;
}

/* After the operation has run, or with the graph. */
static void release_job(void *argument)
{
    struct job *job = *(struct job **)argument;
    if (job->captured)
        atomic_fetch_sub(&job->comm->graphs, 1);
    free(job);
}
/* ---- calls ---- */

static int launch(struct job *job)
{
    struct ncclComm *comm = job->comm;
    int capturing = 0;
    if (cuStreamIsCapturing(job->stream, &capturing) != 0)
        return nccl_fail(CUDA_FAILED, "cuStreamIsCapturing failed");
    job->captured = capturing != 0;
    pthread_mutex_lock(&nccl_lock);
    for (int i = 0; i < job->n; i++) {
        struct history *history = &job->ops[i].history;
        if (job->ops[i].signature.kind >= SEND)
            continue;
        for (const struct ncclComm *c = nccl_comms; c != NULL; c = c->next)
            if (c != comm && c->magic == LIVE && !atomic_load(&c->revoked) && c->context == comm->context
                && history->n < COMMS) {
                history->of[history->n].id = c->shared->id;
                history->of[history->n++].launched = c->launched;
            }
        comm->launched++;
    }
    pthread_mutex_unlock(&nccl_lock);
    const bool captured = job->captured;
    if (captured)
        atomic_fetch_add(&comm->graphs, 1);
    else {
        job->ticket = atomic_fetch_add(&comm->tickets, 1);
        atomic_fetch_add(&comm->pending, 1);
    }
    if (softcuda_enqueue(job->stream, run_job, release_job, &job, sizeof job) == CUDA_SUCCESS)
        return OK;
    if (!captured) {
        atomic_fetch_add(&comm->turn, 1);
        atomic_fetch_sub(&comm->pending, 1);
    }
    return nccl_fail(CUDA_FAILED, "the stream has failed");
}

static int add(struct ncclComm *comm, void *stream, struct signature s, const void *from, void *to)
{
    const bool parts = s.kind == REDUCE_SCATTER || s.kind == ALL_TO_ALL;
    if (s.type < 0 || s.type >= TYPES || s.op < 0 || s.op >= OPS || s.root < 0 || s.root >= comm->world)
        return nccl_fail(INVALID_ARGUMENT, "an invalid type, reduction or root");
    if (s.count * type_bytes[s.type] * (parts ? (size_t)comm->world : 1) > PART)
        return nccl_fail(INTERNAL_ERROR, "more data than the software NCCL can hold");
    if (atomic_load(&comm->revoked))
        return nccl_misuse("an operation on a communicator that was revoked");
    if (stream == NULL || softcuda_stream_context(stream) != comm->context)
        return nccl_misuse("the stream does not belong to the communicator's device");
    int at = 0;
    while (at < n_group && (group[at]->comm != comm || group[at]->stream != stream))
        at++;
    if (at == COMMS)
        return nccl_fail(INTERNAL_ERROR, "too many communicators in a group");
    struct job *old = at < n_group ? group[at] : NULL;
    struct job *job = realloc(old, sizeof *job + (old ? (size_t)old->n + 1 : 1) * sizeof job->ops[0]);
    if (job == NULL)
        return nccl_fail(SYSTEM_ERROR, "out of memory");
    if (old == NULL)
        *job = (struct job){ .comm = comm, .stream = stream };
    memset(&job->ops[job->n], 0, sizeof job->ops[0]);
    s.registered = s.kind < SEND && nccl_registered(comm, to) != 0 ? nccl_registered(comm, from) : 0;
    job->ops[job->n].signature = s;
    job->ops[job->n].from = from;
    job->ops[job->n++].to = to;
    group[at] = job;
    n_group += old == NULL;
    return OK;
}

static int group_launch(void)
{
    int made = OK;
    for (int i = 0; i < n_group; i++) {
        struct ncclComm *comm = group[i]->comm;
        int result = made == OK ? nccl_begin_call(comm) : made;
        if (result == OK)
            result = nccl_end_call(comm, launch(group[i]));
        else
            free(group[i]);
        made = made == OK || made == IN_PROGRESS ? result != OK ? result : made : made;
    }
    n_group = 0;
    return made;
}

static int call(struct ncclComm *comm, void *stream, struct signature s, const void *from, void *to)
{
    TRY(nccl_begin_call(comm));
    const int made = add(comm, stream, s, from, to);
    atomic_fetch_sub(&comm->users, 1);
    return made != OK || depth > 0 ? made : group_launch();
}

EXPORT int ncclGroupStart(void)
{
    ENTER(ncclGroupStart);
    depth++;
    return OK;
}

EXPORT int ncclGroupEnd(void)
{
    if (depth == 0)
        return nccl_misuse("ncclGroupEnd without ncclGroupStart");
    const int injected = softcuda_enter("ncclGroupEnd");
    if (--depth > 0)
        return OK;
    for (int i = 0; i < n_group && injected != 0; i++)
        free(group[i]);
    n_group = injected != 0 ? 0 : n_group;
    return injected != 0 ? injected : group_launch();
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct ncclComm *comm,
                         void *stream)
{
    ENTER(ncclBroadcast);
    return call(comm, stream, (struct signature){ BROADCAST, type, 0, root, count, 0 }, from, to);
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm,
                         void *stream)
{
    ENTER(ncclAllReduce);
    return call(comm, stream, (struct signature){ ALL_REDUCE, type, op, 0, count, 0 }, from, to);
}

EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, struct ncclComm *comm,
                      void *stream)
{
    ENTER(ncclReduce);
    return call(comm, stream, (struct signature){ REDUCE, type, op, root, count, 0 }, from, to);
}

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, struct ncclComm *comm, void *stream)
{
    ENTER(ncclAllGather);
    return call(comm, stream, (struct signature){ ALL_GATHER, type, 0, 0, count, 0 }, from, to);
}

EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm,
                             void *stream)
{
    ENTER(ncclReduceScatter);
    return call(comm, stream, (struct signature){ REDUCE_SCATTER, type, op, 0, count, 0 }, from, to);
}

EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct ncclComm *comm, void *stream)
{
    ENTER(ncclAlltoAll);
    return call(comm, stream, (struct signature){ ALL_TO_ALL, type, 0, 0, count, 0 }, from, to);
}

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, struct ncclComm *comm, void *stream)
{
    ENTER(ncclSend);
    return call(comm, stream, (struct signature){ SEND, type, 0, peer, count, 0 }, from, NULL);
}

EXPORT int ncclRecv(void *to, size_t count, int type, int peer, struct ncclComm *comm, void *stream)
{
    ENTER(ncclRecv);
    return call(comm, stream, (struct signature){ RECEIVE, type, 0, peer, count, 0 }, NULL, to);
}
