/* SPDX-License-Identifier: Apache-2.0 */
/* bench/comm_mpi.c: collectives of the engine mpi, and the blocking functions of MPI called directly.
 *
 *     mpirun -n 2 bench-comm-mpi [ROUNDS]
 *
 * For each collective and size the program measures both in turns, ROUNDS times (default 9), and prints the medians
 * of rank 0 in microseconds and their ratio: 1.05 means that ctrt takes 5 % more time. The last column is ctrt with
 * tensors in shared memory (ctrt_comm_empty). MPI's functions are found with
 * dlsym; handles are passed as 64-bit integers, which works for both ABIs on x86-64 and AArch64. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>

#include "ctrt/ctrt.h"
#include "timing.h"

typedef intptr_t handle;

static int (*all_reduce)(const void *, void *, int, handle, handle, handle);
static int (*broadcast)(void *, int, handle, int, handle);
static int (*all_gather)(const void *, int, handle, void *, int, handle, handle);
static int (*barrier)(handle);
static int (*send_)(const void *, int, handle, int, int, handle);
static int (*recv_)(void *, int, handle, int, int, handle, void *);
static handle world, f32, sum, ignore;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-comm-mpi: %s\n", ctrt_error_message());
    exit(1);
}

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "bench-comm-mpi: no %s\n", name);
        exit(1);
    }
    return found;
}

/* The library that the engine has loaded. */
static void find_mpi(void)
{
    static const char *const names[] = { "libmpi.so.40", "libmpi.so.12", "libmpich.so.12" };
    void *library = NULL;
    for (int i = 0; i < 3 && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        library = RTLD_DEFAULT;
    *(void **)&all_reduce = find(library, "MPI_Allreduce");
    *(void **)&broadcast = find(library, "MPI_Bcast");
    *(void **)&all_gather = find(library, "MPI_Allgather");
    *(void **)&barrier = find(library, "MPI_Barrier");
    *(void **)&send_ = find(library, "MPI_Send");
    *(void **)&recv_ = find(library, "MPI_Recv");
    const bool open = dlsym(library, "ompi_mpi_comm_world") != NULL;
    world = open ? (handle)dlsym(library, "ompi_mpi_comm_world") : 0x44000000;
    f32 = open ? (handle)dlsym(library, "ompi_mpi_float") : 0x4c00040a;
    sum = open ? (handle)dlsym(library, "ompi_mpi_op_sum") : 0x58000003;
    ignore = open ? 0 : 1;
}

enum kind { ALL_REDUCE, ALL_GATHER, BROADCAST, BARRIER, PING, KINDS };
static const char *const kinds[] = { "all_reduce", "all_gather", "broadcast", "barrier", "send, recv" };

static ctrt_comm *comm;
static int rank, size;

static void with_ctrt(enum kind kind, ctrt_tensor *in, ctrt_tensor *out, int calls)
{
    for (int i = 0; i < calls; i++) {
        switch (kind) {
        case ALL_REDUCE: must(ctrt_comm_all_reduce(NULL, comm, in, CTRT_COMM_SUM)); break;
        case ALL_GATHER: must(ctrt_comm_all_gather(NULL, comm, out, in)); break;
        case BROADCAST: must(ctrt_comm_broadcast(NULL, comm, in, i % size)); break;
        case BARRIER: must(ctrt_comm_barrier(comm)); break;
        default:
            if (rank == 0)
                must(ctrt_comm_send(NULL, comm, in, 1));
            if (rank < 2)
                must(rank == 0 ? ctrt_comm_recv(NULL, comm, in, 1) : ctrt_comm_recv(NULL, comm, in, 0));
            if (rank == 1)
                must(ctrt_comm_send(NULL, comm, in, 0));
        }
    }
}

static void with_mpi(enum kind kind, ctrt_tensor *in, ctrt_tensor *out, int calls, int in_place)
{
    const int n = (int)ctrt_tensor_numel(in);
    void *a = ctrt_tensor_data(in), *b = ctrt_tensor_data(out);
    for (int i = 0; i < calls; i++) {
        switch (kind) {
        case ALL_REDUCE: all_reduce((void *)(intptr_t)in_place, a, n, f32, sum, world); break;
        case ALL_GATHER: all_gather(a, n, f32, b, n, f32, world); break;
        case BROADCAST: broadcast(a, n, f32, i % size, world); break;
        case BARRIER: barrier(world); break;
        default:
            if (rank == 0)
                send_(a, n, f32, 1, 9, world);
            if (rank < 2)
                recv_(a, n, f32, 1 - rank, 9, world, (void *)ignore);
            if (rank == 1)
                send_(a, n, f32, 0, 9, world);
        }
    }
}

static void measure(enum kind kind, size_t bytes, int rounds)
{
    CTRT_AUTO(tensor) in = NULL, out = NULL, shared_in = NULL, shared_out = NULL;
    const int64_t n = (int64_t)(bytes / 4);
    const int calls = bytes < 65536 ? 500 : bytes < 4000000 ? 40 : 3;
    double times[3][99];
    must(ctrt_zeros(&in, CTRT_SHAPE(n), CTRT_F32, ctrt_comm_device(comm)));
    must(ctrt_zeros(&out, CTRT_SHAPE(n * size), CTRT_F32, ctrt_comm_device(comm)));
    must(ctrt_comm_empty(&shared_in, comm, CTRT_SHAPE(n), CTRT_F32));
    must(ctrt_comm_empty(&shared_out, comm, CTRT_SHAPE(n * size), CTRT_F32));
    must(ctrt_zero_(shared_in));
    for (int round = -1; round < rounds; round++)
        for (int way = 0; way < 3; way++) {
            barrier(world);
            const double begin = timing_now();
            if (way != 1)
                with_ctrt(kind, way == 0 ? in : shared_in, way == 0 ? out : shared_out, calls);
            else
                with_mpi(kind, in, out, calls, ignore == 0 ? 1 : -1);
            if (round >= 0)
                times[way][round] = (timing_now() - begin) / calls * 1e6;
        }
    for (int way = 0; way < 3; way++)
        qsort(times[way], (size_t)rounds, sizeof(double), timing_compare);
    if (rank == 0)
        printf("%-12s %10zu %12.2f %12.2f %8.2f %12.2f\n", kinds[kind], bytes, times[0][rounds / 2],
               times[1][rounds / 2], times[0][rounds / 2] / times[1][rounds / 2], times[2][rounds / 2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = { 8, 1024, 4096, 16384, 65536, 1 << 20, 25 << 20 };
    const int asked = argc > 1 ? atoi(argv[1]) : 9, rounds = asked < 1 ? 9 : asked > 99 ? 99 : asked;
    must(ctrt_comm_new(&comm, &CTRT_WITH(ctrt_comm_options, .engine = "mpi")));
    rank = ctrt_comm_rank(comm);
    size = ctrt_comm_size(comm);
    find_mpi();
    if (rank == 0)
        printf("%d ranks         bytes      ctrt, us       MPI, us    ratio   shared, us\n", size);
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            if (kind != BARRIER || i == 0)
                measure(kind, sizes[i], rounds);
    ctrt_comm_release(&comm);
    return 0;
}
