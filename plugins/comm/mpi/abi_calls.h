/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi_calls.h: defines a struct mpi_abi with the types and constants of the file that includes it. */
#include <dlfcn.h>

static struct {
    MPI_Comm world;
    MPI_Errhandler errors_return;
    MPI_Datatype byte, types[HOST_DTYPES];
    MPI_Op sum, product, min, max;
} constants;

static struct {
#define CALL(name, parameters) int (*name) parameters;
#include "abi.def"
#undef CALL
} mpi;

/* Of ULFM; NULL in libraries without it. */
static int (*comm_shrink)(MPI_Comm comm, MPI_Comm *out);
static MPI_Comm base;                   /* the processes of which groups are created */

static const char *load(void *library)
{
    void *symbol;
    *(void **)&comm_shrink = dlsym(library, "MPIX_Comm_shrink");
#define CALL(name, parameters)                                                                                      \
    symbol = dlsym(library, "MPI_" #name);                                                                          \
    if (symbol == NULL)                                                                                             \
        return "MPI_" #name;                                                                                        \
    *(void **)&mpi.name = symbol;
#include "abi.def"
#undef CALL
#define OBJECT(member, type, constant, name)                                                                        \
    constants.member = (type)dlsym(library, name);                                                                  \
    if (constants.member == NULL)                                                                                   \
        return name;
#define CONSTANT(member, constant, value) constants.member = value;
#include ABI_HANDLES
#undef OBJECT
#undef CONSTANT
    base = constants.world;
    return NULL;
}

static MPI_Op op_of(int op)
{
    return op == CTRT_COMM_PRODUCT ? constants.product
           : op == CTRT_COMM_MIN   ? constants.min
           : op == CTRT_COMM_MAX   ? constants.max
                                   : constants.sum;
}

/* Defines a function that calls one of MPI. Before MPI_Init, and after MPI_Finalize, it needs no lock. */
#define CALL(name, parameters, call)                                                                                \
    static int call_##name parameters                                                                               \
    {                                                                                                               \
        return mpi.call;                                                                                            \
    }
#define LOCKED_CALL(name, parameters, call)                                                                         \
    static int call_##name parameters                                                                               \
    {                                                                                                               \
        mpi_lock();                                                                                                 \
        const int error = mpi.call;                                                                                 \
        mpi_unlock();                                                                                               \
        return error;                                                                                               \
    }
/* Defines a function that calls one of MPI whose last argument is a request. */
#define REQUEST(name, parameters, function, ...)                                                                    \
    static int call_##name parameters                                                                               \
    {                                                                                                               \
        MPI_Request started;                                                                                        \
        mpi_lock();                                                                                                 \
        const int error = mpi.function(__VA_ARGS__, &started);                                                      \
        mpi_unlock();                                                                                               \
        *request = error == 0 ? (mpi_handle)started : 0;                                                            \
        return error;                                                                                               \
    }

CALL(init, (int *level), Init_thread(NULL, NULL, MPI_LEVEL_MULTIPLE, level))
CALL(query_thread, (int *level), Query_thread(level))
CALL(initialized, (int *flag), Initialized(flag))
CALL(finalized, (int *flag), Finalized(flag))
CALL(finalize, (void), Finalize())
LOCKED_CALL(return_errors, (mpi_handle comm), Comm_set_errhandler((MPI_Comm)comm, constants.errors_return))
LOCKED_CALL(comm_free, (mpi_handle comm), Comm_free(&(MPI_Comm){ (MPI_Comm)comm }))

static void call_version(char *text, int *length)
{
    (void)mpi.Get_library_version(text, length);
}

static void call_error_string(int error, char *text)
{
    int length = 0;
    if (mpi.Error_string(error, text, &length) != 0)
        length = 0;
    text[length] = '\0';
}

static mpi_handle call_world(void)
{
    return (mpi_handle)constants.world;
}

static int call_rank_size(mpi_handle comm, int *rank, int *size)
{
    mpi_lock();
    int error = mpi.Comm_rank((MPI_Comm)comm, rank);
    if (error == 0)
        error = mpi.Comm_size((MPI_Comm)comm, size);
    mpi_unlock();
    return error;
}

/* Waits for the other ranks, and holds the lock meanwhile, because no other thread may call MPI then. */
static int call_create_group(mpi_handle *out, int n, const int *world_ranks, int tag)
{
    MPI_Group all, group;
    MPI_Comm comm;
    mpi_lock();
    int error = mpi.Comm_group(constants.world, &all);
    if (error == 0) {
        error = mpi.Group_incl(all, n, world_ranks, &group);
        (void)mpi.Group_free(&all);
    }
    if (error == 0) {
        error = mpi.Comm_create_group(base, group, tag, &comm);
        (void)mpi.Group_free(&group);
    }
    mpi_unlock();
    if (error == 0)
        *out = (mpi_handle)comm;
    return error;
}

static bool call_can_shrink(void)
{
    return comm_shrink != NULL;
}

/* The communicator before is not freed, because that may wait for the processes that were lost. */
static int call_shrink(void)
{
    MPI_Comm fresh;
    mpi_lock();
    int error = comm_shrink(constants.world, &fresh);
    if (error == 0)
        error = mpi.Comm_set_errhandler(fresh, constants.errors_return);
    if (error == 0)
        base = fresh;
    mpi_unlock();
    return error;
}

static int call_test(mpi_handle *request, int *done)
{
    MPI_Request tested = (MPI_Request)*request;
    mpi_lock();
    const int error = mpi.Test(&tested, done, MPI_STATUS_IGNORE);
    mpi_unlock();
    *request = (mpi_handle)tested;
    return error;
}

REQUEST(isend, (const void *data, int bytes, int to, int tag, mpi_handle comm, mpi_handle *request),
        Isend, data, bytes, constants.byte, to, tag, (MPI_Comm)comm)
REQUEST(irecv, (void *data, int bytes, int from, int tag, mpi_handle comm, mpi_handle *request),
        Irecv, data, bytes, constants.byte, from, tag, (MPI_Comm)comm)
REQUEST(ibcast, (void *data, int bytes, int root, mpi_handle comm, mpi_handle *request),
        Ibcast, data, bytes, constants.byte, root, (MPI_Comm)comm)
REQUEST(iallgather, (const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request),
        Iallgather, send, bytes, constants.byte, receive, bytes, constants.byte, (MPI_Comm)comm)
REQUEST(igather, (const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request),
        Igather, send, bytes, constants.byte, receive, bytes, constants.byte, root, (MPI_Comm)comm)
REQUEST(iscatter, (const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request),
        Iscatter, send, bytes, constants.byte, receive, bytes, constants.byte, root, (MPI_Comm)comm)
REQUEST(ialltoall, (const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request),
        Ialltoall, send, bytes, constants.byte, receive, bytes, constants.byte, (MPI_Comm)comm)
REQUEST(iallreduce, (const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                     mpi_handle *request),
        Iallreduce, send == receive ? MPI_IN_PLACE : send, receive, count, constants.types[dtype], op_of(op),
        (MPI_Comm)comm)
REQUEST(ireduce, (const void *send, void *receive, int count, int dtype, int op, int root, mpi_handle comm,
                  mpi_handle *request),
        Ireduce, send == receive ? MPI_IN_PLACE : send, receive, count, constants.types[dtype], op_of(op), root,
        (MPI_Comm)comm)
REQUEST(ireduce_scatter, (const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                          mpi_handle *request),
        Ireduce_scatter_block, send, receive, count, constants.types[dtype], op_of(op), (MPI_Comm)comm)

const struct mpi_abi ABI = {
    .name = ABI_NAME, .symbol = ABI_SYMBOL, .sonames = ABI_SONAMES, .load = load,
    .init = call_init, .query_thread = call_query_thread, .initialized = call_initialized,
    .finalized = call_finalized, .finalize = call_finalize, .version = call_version,
    .error_string = call_error_string, .world = call_world, .return_errors = call_return_errors,
    .rank_size = call_rank_size, .create_group = call_create_group,
    .can_shrink = call_can_shrink, .shrink = call_shrink, .comm_free = call_comm_free,
    .test = call_test, .isend = call_isend, .irecv = call_irecv, .ibcast = call_ibcast,
    .iallgather = call_iallgather, .igather = call_igather, .iscatter = call_iscatter, .ialltoall = call_ialltoall,
    .iallreduce = call_iallreduce, .ireduce = call_ireduce, .ireduce_scatter = call_ireduce_scatter,
};
