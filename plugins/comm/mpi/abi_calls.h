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

/* Calls a function and returns its result. */
#define LOCKED(call)                                                                                                \
    do {                                                                                                            \
        mpi_lock();                                                                                                 \
        const int error_ = mpi.call;                                                                                \
        mpi_unlock();                                                                                               \
        return error_;                                                                                              \
    } while (0)
/* Calls a function whose last argument is a request. */
#define REQUEST(call, ...)                                                                                          \
    do {                                                                                                            \
        MPI_Request request_;                                                                                       \
        mpi_lock();                                                                                                 \
        const int error_ = mpi.call(__VA_ARGS__, &request_);                                                        \
        mpi_unlock();                                                                                               \
        *request = error_ == 0 ? (mpi_handle)request_ : 0;                                                          \
        return error_;                                                                                              \
    } while (0)

static int call_init(int *level)
{
    return mpi.Init_thread(NULL, NULL, MPI_LEVEL_MULTIPLE, level);
}

static int call_query_thread(int *level)
{
    return mpi.Query_thread(level);
}

static int call_initialized(int *flag)
{
    return mpi.Initialized(flag);
}

static int call_finalized(int *flag)
{
    return mpi.Finalized(flag);
}

static int call_finalize(void)
{
    return mpi.Finalize();
}

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

static int call_return_errors(mpi_handle comm)
{
    LOCKED(Comm_set_errhandler((MPI_Comm)comm, constants.errors_return));
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

static int call_comm_free(mpi_handle comm)
{
    MPI_Comm gone = (MPI_Comm)comm;
    LOCKED(Comm_free(&gone));
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

static int call_isend(const void *data, int bytes, int to, int tag, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Isend, data, bytes, constants.byte, to, tag, (MPI_Comm)comm);
}

static int call_irecv(void *data, int bytes, int from, int tag, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Irecv, data, bytes, constants.byte, from, tag, (MPI_Comm)comm);
}

static int call_ibcast(void *data, int bytes, int root, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Ibcast, data, bytes, constants.byte, root, (MPI_Comm)comm);
}

static int call_iallgather(const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Iallgather, send, bytes, constants.byte, receive, bytes, constants.byte, (MPI_Comm)comm);
}

static int call_igather(const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Igather, send, bytes, constants.byte, receive, bytes, constants.byte, root, (MPI_Comm)comm);
}

static int call_iscatter(const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Iscatter, send, bytes, constants.byte, receive, bytes, constants.byte, root, (MPI_Comm)comm);
}

static int call_ialltoall(const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request)
{
    REQUEST(Ialltoall, send, bytes, constants.byte, receive, bytes, constants.byte, (MPI_Comm)comm);
}

static int call_iallreduce(const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                           mpi_handle *request)
{
    REQUEST(Iallreduce, send == receive ? MPI_IN_PLACE : send, receive, count, constants.types[dtype], op_of(op),
            (MPI_Comm)comm);
}

static int call_ireduce(const void *send, void *receive, int count, int dtype, int op, int root, mpi_handle comm,
                        mpi_handle *request)
{
    REQUEST(Ireduce, send == receive ? MPI_IN_PLACE : send, receive, count, constants.types[dtype], op_of(op), root,
            (MPI_Comm)comm);
}

static int call_ireduce_scatter(const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                                mpi_handle *request)
{
    REQUEST(Ireduce_scatter_block, send, receive, count, constants.types[dtype], op_of(op), (MPI_Comm)comm);
}

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
