/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nccl_comm.c: the communicators of the software NCCL (nccl.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "nccl_soft.h"

extern void softcuda_report(const char *text);
extern result cuCtxSetCurrent(void *context);
extern result cuMemAlloc_v2(unsigned long long *begin, size_t bytes);
extern result cuMemFree_v2(unsigned long long begin);

typedef struct { char bytes[128]; } id;

struct config { size_t size; unsigned magic, version; int blocking; };

pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
struct ncclComm *nccl_comms;

static __thread char last_error[512];

int nccl_fail(int result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return result;
}

int nccl_misuse(const char *text)
{
    char words[300];
    snprintf(words, sizeof words, "NCCL: %s", text);
    softcuda_report(words);
    return nccl_fail(INVALID_USAGE, text);
}

/* ---- calls ---- */

int nccl_begin_call(struct ncclComm *comm)
{
    if (comm == NULL || comm->magic != LIVE)
        return nccl_misuse("call with a communicator that does not exist or has ended");
    if (atomic_fetch_add(&comm->users, 1) != 0) {
        atomic_fetch_sub(&comm->users, 1);
        return nccl_misuse("two threads use a communicator at the same time");
    }
    if (atomic_load(&comm->state) == IN_PROGRESS) {
        atomic_fetch_sub(&comm->users, 1);
        return nccl_misuse("a communicator is used while an earlier call is in progress");
    }
    return OK;
}

static void *progress(void *argument)
{
    struct ncclComm *comm = argument;
    if (nccl_option("threads") <= 0)
        usleep(200);
    atomic_store(&comm->state, OK);
    return NULL;
}

static void join_thread(struct ncclComm *comm)
{
    if (comm->has_thread)
        pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

/* Runs `function` for the communicator, in the background if the communicator is non-blocking. */
static int in_background(struct ncclComm *comm, void *(*function)(void *))
{
    join_thread(comm);
    atomic_store(&comm->state, IN_PROGRESS);
    if (comm->blocking) {
        function(comm);
        return atomic_load(&comm->state);
    }
    if (pthread_create(&comm->thread, NULL, function, comm) != 0)
        return nccl_fail(SYSTEM_ERROR, "no thread");
    comm->has_thread = true;
    return IN_PROGRESS;
}

int nccl_end_call(struct ncclComm *comm, int result)
{
    atomic_fetch_sub(&comm->users, 1);
    const bool late = ++comm->calls % 3 == 0 || nccl_option("threads") > 0;
    return result == OK && !comm->blocking && late ? in_background(comm, progress) : result;
}

/* ---- creation ---- */

EXPORT int ncclGetVersion(int *version)
{
    *version = nccl_option("version") > 0 ? (int)nccl_option("version") : 22907;
    return OK;
}

EXPORT const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error",
                                         "invalid argument", "invalid usage", "remote process exited or there was a "
                                         "network error", "NCCL operation in progress" };
    return result >= 0 && result <= IN_PROGRESS ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(struct ncclComm *comm)
{
    (void)comm;
    return last_error;
}

/* Creates the memory of a communicator, and writes the path under which other processes open it. */
static int shared_new(char path[PATH])
{
    static atomic_int serial;
    const int file = memfd_create("softnccl", MFD_CLOEXEC);
    struct shared *shared = file >= 0 && ftruncate(file, (off_t)nccl_shared_bytes(RANKS)) == 0
                                ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (shared == MAP_FAILED)
        return nccl_fail(SYSTEM_ERROR, strerror(errno));
    shared->id = (uint64_t)getpid() << 32 | (uint64_t)++serial;
    munmap(shared, sizeof *shared);
    snprintf(path, PATH, "/proc/%d/fd/%d", (int)getpid(), file);
    return OK;
}

EXPORT int ncclGetUniqueId(id *out)
{
    ENTER(ncclGetUniqueId);
    memset(out, 0, sizeof *out);
    return shared_new(out->bytes);
}

/* Waits until all ranks have joined. `parent` (may be NULL): of the call that creates the communicator, whose abort
 * ends the wait. Then a rank in the process that has created the memory closes its file, but not after an abort,
 * because other ranks may still open it, and wait for this rank as with NCCL. */
static int await_ranks(struct ncclComm *comm, const struct ncclComm *parent)
{
    char own[32];
    int pid = 0, file = -1;
    const bool all = WAIT(comm, atomic_load(&comm->shared->joined) >= comm->world
                                    || (parent != NULL && atomic_load(&parent->aborted)))
                     && atomic_load(&comm->shared->joined) >= comm->world;
    snprintf(own, sizeof own, "/proc/%d/", (int)getpid());
    if (all && sscanf(comm->path, "/proc/%d/fd/%d", &pid, &file) == 2 && strncmp(comm->path, own, strlen(own)) == 0
        && atomic_exchange(&comm->shared->closed, 1) == 0)
        close(file);
    return all ? OK : INVALID_USAGE;
}

static void *join(void *argument)
{
    struct ncclComm *comm = argument;
    cuCtxSetCurrent(comm->context);
    atomic_store(&comm->state, await_ranks(comm, NULL));
    return NULL;
}

static int comm_new(struct ncclComm **out, const char *path, int rank, int world, bool blocking)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void *memory = file >= 0 ? mmap(NULL, nccl_shared_bytes(world), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_NORESERVE, file, 0) : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (comm == NULL || memory == MAP_FAILED) {
        free(comm);
        return nccl_fail(SYSTEM_ERROR, "the memory of the unique id does not exist");
    }
    comm->magic = LIVE;
    comm->shared = memory;
    comm->rank = rank;
    comm->world = world;
    comm->blocking = blocking;
    pthread_mutex_init(&comm->running, NULL);
    snprintf(comm->path, sizeof comm->path, "%s", path);
    if (cuCtxGetCurrent(&comm->context) != 0 || comm->context == NULL) {
        munmap(memory, nccl_shared_bytes(world));
        free(comm);
        return nccl_fail(CUDA_FAILED, "no current device");
    }
    pthread_mutex_lock(&nccl_lock);
    comm->next = nccl_comms;
    nccl_comms = comm;
    pthread_mutex_unlock(&nccl_lock);
    *out = comm;
    atomic_fetch_add(&comm->shared->joined, 1);
    return OK;
}

EXPORT int ncclCommInitRankConfig(struct ncclComm **out, int world, id unique, int rank, const struct config *config)
{
    ENTER(ncclCommInitRankConfig);
    if (nccl_in_group())
        return nccl_misuse("a communicator is created in a group");
    if (world < 1 || world > RANKS || rank < 0 || rank >= world || config->magic != 0xcafebeefu || config->size < 24)
        return nccl_fail(INVALID_ARGUMENT, "an invalid rank, number of ranks or configuration");
    TRY(comm_new(out, unique.bytes, rank, world, config->blocking != 0));
    return in_background(*out, join);
}

EXPORT int ncclCommGetAsyncError(struct ncclComm *comm, int *error)
{
    ENTER(ncclCommGetAsyncError);
    if (comm == NULL || comm->magic != LIVE)
        return nccl_misuse("ncclCommGetAsyncError with a communicator that does not exist or has ended");
    *error = atomic_load(&comm->async) != OK ? atomic_load(&comm->async) : atomic_load(&comm->state);
    return OK;
}

/* ---- communicators from a parent ---- */

/* Writes the ranks of the parent that are in this rank's new communicator, in their order there. Returns their number,
 * or -1 if the ranks exclude different ranks. */
static int members_of(int *members, const struct ncclComm *comm)
{
    const struct division *own = &comm->division;
    int n = 0;
    for (int r = 0; r < comm->world; r++) {
        const struct choice *choice = &own->family->choices[r];
        if (own->excluded >> r & 1)
            continue;
        if (own->excluded != 0 && choice->key != own->key)
            return -1;
        if (choice->color != own->color)
            continue;
        int at = n++;
        for (; own->excluded == 0 && at > 0 && own->family->choices[members[at - 1]].key > choice->key; at--)
            members[at] = members[at - 1];
        members[at] = r;
    }
    return n;
}

static int divide_now(struct ncclComm *comm)
{
    const struct division *own = &comm->division;
    struct family *family = own->family;
    struct choice *choice = &family->choices[comm->rank];
    struct ncclComm *child = NULL;
    int members[RANKS], rank = 0;
    cuCtxSetCurrent(comm->context);
    choice->color = own->color;
    choice->key = own->key;
    atomic_store(&choice->set, 1);
    for (int r = 0; r < comm->world; r++)
        if (!(own->excluded >> r & 1) && !WAIT(comm, atomic_load(&family->choices[r].set)))
            return INTERNAL_ERROR;
    if (own->color < 0)
        return OK;
    const int n = members_of(members, comm);
    if (n < 0)
        return nccl_misuse("the ranks exclude different ranks in ncclCommShrink");
    while (members[rank] != comm->rank)
        rank++;
    if (rank == 0) {
        TRY(shared_new(family->created[comm->rank].path));
        atomic_store(&family->created[comm->rank].set, 1);
    }
    if (!WAIT(comm, atomic_load(&family->created[members[0]].set)))
        return INTERNAL_ERROR;
    TRY(comm_new(&child, family->created[members[0]].path, rank, n, comm->blocking));
    const int state = await_ranks(child, comm);
    atomic_store(&child->state, state);
    *own->out = child;                      /* also if that has failed, as NCCL does; the caller aborts it */
    return state;
}

static void *divide(void *argument)
{
    struct ncclComm *comm = argument;
    atomic_store(&comm->state, divide_now(comm));
    return NULL;
}

/* The caller has begun the call. */
static int begin_division(struct ncclComm *comm, struct division division)
{
    atomic_fetch_sub(&comm->users, 1);
    if (nccl_in_group())
        return nccl_misuse("a communicator is created in a group");
    if (atomic_load(&comm->pending) > 0)
        return nccl_misuse("ncclCommSplit or ncclCommShrink while operations of the communicator are incomplete");
    if (comm->children >= CHILDREN)
        return nccl_fail(INTERNAL_ERROR, "more communicators than the software NCCL can create");
    *division.out = NULL;
    comm->division = division;
    comm->division.family = &comm->shared->families[comm->children++];
    return in_background(comm, divide);
}

EXPORT int ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **out, const struct config *config)
{
    ENTER(ncclCommSplit);
    TRY(nccl_begin_call(comm));
    if (color < -1 || config != NULL) {
        atomic_fetch_sub(&comm->users, 1);
        return nccl_fail(INVALID_ARGUMENT, "an invalid color, or a configuration, which is not supported");
    }
    return begin_division(comm, (struct division){ .out = out, .color = color, .key = key });
}

EXPORT int ncclCommShrink(struct ncclComm *comm, const int *excluded, int n, struct ncclComm **out,
                          const struct config *config, int flags)
{
    unsigned set = 0;
    ENTER(ncclCommShrink);
    TRY(nccl_begin_call(comm));
    for (int i = 0; i < n && excluded[i] >= 0 && excluded[i] < comm->world; i++)
        set |= 1u << excluded[i];
    if (__builtin_popcount(set) != n || n < 1 || set >> comm->rank & 1 || config != NULL || flags != 0) {
        atomic_fetch_sub(&comm->users, 1);
        return nccl_fail(INVALID_ARGUMENT, "wrong ranks to exclude, or a configuration or flags, which are not "
                                           "supported");
    }
    return begin_division(comm, (struct division){ .out = out, .key = (int)set, .excluded = set });
}

/* ---- memory ---- */

/* Guarded by nccl_lock. `comm` is NULL if the memory is not registered. */
static struct memory { struct memory *next; char *address; size_t bytes; struct ncclComm *comm; } *memories;

static struct memory **find_memory(const void *address)
{
    struct memory **at = &memories;
    while (*at != NULL && ((char *)address < (*at)->address || (char *)address >= (*at)->address + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

uint64_t nccl_registered(const struct ncclComm *comm, const void *address)
{
    pthread_mutex_lock(&nccl_lock);
    const struct memory *memory = *find_memory(address);
    const bool found = memory != NULL && memory->comm == comm;
    const uint64_t place = found ? 1 + (uint64_t)((char *)address - memory->address) : 0;
    pthread_mutex_unlock(&nccl_lock);
    return place;
}

EXPORT int ncclMemAlloc(void **address, size_t bytes)
{
    unsigned long long begin = 0;
    ENTER(ncclMemAlloc);
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL || cuMemAlloc_v2(&begin, bytes) != CUDA_SUCCESS) {
        free(memory);
        return nccl_fail(CUDA_FAILED, "out of memory");
    }
    *address = memory->address = (char *)(uintptr_t)begin;
    memory->bytes = bytes;
    pthread_mutex_lock(&nccl_lock);
    memory->next = memories;
    memories = memory;
    pthread_mutex_unlock(&nccl_lock);
    return OK;
}

EXPORT int ncclMemFree(void *address)
{
    ENTER(ncclMemFree);
    pthread_mutex_lock(&nccl_lock);
    struct memory **at = find_memory(address), *memory = *at;
    const bool wrong = memory == NULL || memory->address != address;
    const bool early = !wrong && memory->comm != NULL && memory->comm->magic == LIVE;
    if (!wrong)
        *at = memory->next;
    pthread_mutex_unlock(&nccl_lock);
    if (wrong || early)
        nccl_misuse(wrong ? "ncclMemFree of an unknown address" : "memory is freed before it is deregistered");
    if (wrong)
        return INVALID_ARGUMENT;
    free(memory);
    return cuMemFree_v2((uintptr_t)address) == CUDA_SUCCESS ? OK : nccl_fail(CUDA_FAILED, "cuMemFree failed");
}

EXPORT int ncclCommRegister(struct ncclComm *comm, void *address, size_t bytes, void **handle)
{
    ENTER(ncclCommRegister);
    TRY(nccl_begin_call(comm));
    pthread_mutex_lock(&nccl_lock);
    struct memory *memory = *find_memory(address);
    const bool right = memory != NULL && memory->address == address && memory->bytes >= bytes && memory->comm == NULL;
    if (right)
        memory->comm = comm;
    pthread_mutex_unlock(&nccl_lock);
    atomic_fetch_sub(&comm->users, 1);
    *handle = memory;
    return right ? OK : nccl_misuse("memory that is not of ncclMemAlloc, or is registered already, is registered");
}

EXPORT int ncclCommDeregister(struct ncclComm *comm, void *handle)
{
    struct memory *memory = handle;
    ENTER(ncclCommDeregister);
    TRY(nccl_begin_call(comm));
    pthread_mutex_lock(&nccl_lock);
    const bool right = memory != NULL && memory->comm == comm;
    if (right)
        memory->comm = NULL;
    pthread_mutex_unlock(&nccl_lock);
    atomic_fetch_sub(&comm->users, 1);
    return right ? OK : nccl_misuse("memory that is not registered is deregistered");
}

/* ---- ending ---- */

static void *quiesce(void *argument)
{
    struct ncclComm *comm = argument;
    while (atomic_load(&comm->pending) > 0)
        usleep(50);
    pthread_mutex_lock(&comm->running);     /* waits for operations of graphs, which `pending` does not count */
    atomic_store(&comm->aborted, 0);
    pthread_mutex_unlock(&comm->running);
    atomic_store(&comm->async, OK);
    atomic_store(&comm->state, OK);
    return NULL;
}

EXPORT int ncclCommRevoke(struct ncclComm *comm, int flags)
{
    ENTER(ncclCommRevoke);
    if (comm == NULL || comm->magic != LIVE)
        return nccl_misuse("ncclCommRevoke with a communicator that does not exist or has ended");
    if (flags != 0 || atomic_exchange(&comm->revoked, 1) != 0)
        return nccl_fail(INVALID_ARGUMENT, "unknown flags, or the communicator was revoked before");
    atomic_store(&comm->aborted, 1);
    return in_background(comm, quiesce);
}

static void comm_end(struct ncclComm *comm)
{
    join_thread(comm);
    while (atomic_load(&comm->pending) > 0)
        usleep(50);
    pthread_mutex_lock(&nccl_lock);         /* calls on other communicators read this one */
    comm->magic = DEAD;                     /* the struct is not freed, so that later calls are detected */
    pthread_mutex_unlock(&nccl_lock);
    pthread_mutex_lock(&comm->running);     /* waits for operations of graphs, which `pending` does not count */
    munmap(comm->shared, nccl_shared_bytes(comm->world));
    pthread_mutex_unlock(&comm->running);
}

static void *leave(void *argument)
{
    struct ncclComm *comm = argument;
    while (atomic_load(&comm->pending) > 0)
        usleep(50);
    atomic_fetch_add(&comm->shared->left, 1);
    const bool all = WAIT(comm, atomic_load(&comm->shared->left) >= comm->world);
    atomic_store(&comm->state, all ? OK : INTERNAL_ERROR);
    return NULL;
}

EXPORT int ncclCommFinalize(struct ncclComm *comm)
{
    ENTER(ncclCommFinalize);
    TRY(nccl_begin_call(comm));
    if (atomic_load(&comm->graphs) > 0)
        nccl_misuse("a communicator ends while graphs with its operations exist, for which NCCL would wait");
    atomic_fetch_sub(&comm->users, 1);
    return in_background(comm, leave);
}

EXPORT int ncclCommDestroy(struct ncclComm *comm)
{
    ENTER(ncclCommDestroy);
    TRY(nccl_begin_call(comm));
    if (nccl_in_group())
        return nccl_misuse("a communicator is destroyed in a group");
    comm_end(comm);
    return OK;
}

EXPORT int ncclCommAbort(struct ncclComm *comm)
{
    if (comm == NULL || comm->magic != LIVE)
        return nccl_misuse("ncclCommAbort with a communicator that does not exist or has ended");
    const int injected = softcuda_enter("ncclCommAbort");
    atomic_store(&comm->aborted, 1);
    while (atomic_load(&comm->graphs) > 0)  /* as NCCL does */
        usleep(50);
    comm_end(comm);
    return injected;
}
