/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/mpi-program.c: one rank of the jobs that mpi.sh starts: mpi-program PART [ARGUMENT]. Prints a
 * line for each failed check; its exit status is 1 then. */
#include <ctrt/ctrt.h>
#include <ctrt/comm.h>

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static ctrt_comm *comm;
static ctrt_device *device;
static ctrt_stream *other;              /* computes the inputs; the collectives use the default stream */
static int rank, size, failures;

static void fail(const char *what, const char *why)
{
    if (failures++ < 10)
        printf("# rank %d of %d: %s: %s\n", rank, size, what, why);
    fflush(stdout);
}

static void require(ctrt_status status, const char *what)
{
    if (status == CTRT_OK)
        return;
    fail(what, ctrt_error_message());
    _exit(1);
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- values and results ---- */

/* Element i of rank r: sums and products over 3 ranks are exact in every dtype. */
static double value(int r, int64_t i, ctrt_dtype dtype)
{
    return dtype == CTRT_BOOL ? (double)((i + r) % 3 == 0) : (double)((i * 7 + r * 3) % 5 + 1);
}

static ctrt_tensor *filled;             /* kept, because streams wait for each other where memory is reused */

static ctrt_tensor *tensor_of(int64_t count, ctrt_dtype dtype, double (*element)(int r, int64_t i, ctrt_dtype dtype))
{
    ctrt_tensor *out = NULL;
    double *values = calloc((size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = element(rank, i, dtype);
    require(ctrt_empty(&filled, CTRT_SHAPE(count), dtype, device), "empty");
    require(ctrt_empty(&out, CTRT_SHAPE(count), dtype, device), "empty");
    if (count > 0)
        require(ctrt_from_host_(filled, values, count, CTRT_F64), "from_host_");
    free(values);
    require(ctrt_stream_push(other), "stream_push");
    require(ctrt_copy_(out, filled), "copy_");
    require(ctrt_stream_pop(), "stream_pop");
    return out;
}

static double combine(double a, double b, ctrt_comm_op op, ctrt_dtype dtype)
{
    if (dtype == CTRT_BOOL)
        return op == CTRT_COMM_SUM || op == CTRT_COMM_MAX ? (a != 0 || b != 0) : (a != 0 && b != 0);
    return op == CTRT_COMM_PRODUCT ? a * b
           : op == CTRT_COMM_MIN   ? (a < b ? a : b)
           : op == CTRT_COMM_MAX   ? (a > b ? a : b)
                                   : a + b;
}

static double reduced(int64_t i, ctrt_comm_op op, ctrt_dtype dtype)
{
    double result = value(0, i, dtype);
    for (int r = 1; r < size; r++)
        result = combine(result, value(r, i, dtype), op, dtype);
    return op == CTRT_COMM_AVERAGE ? result / size : result;
}

/* Compares element `i` of the result with expected(i) for all elements. */
struct expectation {
    int collective;                     /* ctrt_collective's order: see the calls */
    int root;
    int64_t count;                      /* of a part */
    ctrt_comm_op op;
};
enum { BROADCAST, ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, KINDS };
static const char *const kinds[] = { "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter",
                                     "reduce_scatter", "all_to_all" };

static double expected(const struct expectation *e, int64_t i, ctrt_dtype dtype)
{
    const int64_t n = e->count ? e->count : 1, part = i / n, at = i % n;
    switch (e->collective) {
    case BROADCAST: return value(e->root, i, dtype);
    case ALL_REDUCE: return reduced(i, e->op, dtype);
    case REDUCE: return rank == e->root ? reduced(i, e->op, dtype) : value(rank, i, dtype);
    case ALL_GATHER: case GATHER: return value((int)part, at, dtype);
    case SCATTER: return value(e->root, rank * n + at, dtype);
    case REDUCE_SCATTER: return reduced(rank * n + at, e->op, dtype);
    default: return value((int)part, rank * n + at, dtype);
    }
}

static void compare(ctrt_tensor *tensor, const struct expectation *e, ctrt_dtype dtype)
{
    const int64_t count = ctrt_tensor_numel(tensor);
    double *found = calloc((size_t)count + 1, sizeof *found);
    require(ctrt_to_host(found, (size_t)count * sizeof *found, tensor, CTRT_F64), "to_host");
    for (int64_t i = 0; i < count; i++) {
        const double want = expected(e, i, dtype);
        const double tolerance = dtype == CTRT_BF16 ? 0.02 : dtype == CTRT_F16 ? 0.003 : 1e-6;
        if (found[i] - want > tolerance * want || want - found[i] > tolerance * want) {
            char text[160];
            snprintf(text, sizeof text, "op %d, %s, %lld elements: element %lld is %g, expected %g", (int)e->op,
                     ctrt_dtype_name(dtype), (long long)e->count, (long long)i, found[i], want);
            fail(kinds[e->collective], text);
            break;
        }
    }
    free(found);
}

static ctrt_status run(ctrt_work **work, const struct expectation *e, ctrt_tensor *in, ctrt_tensor *out)
{
    switch (e->collective) {
    case BROADCAST: return ctrt_comm_broadcast(work, comm, in, e->root);
    case ALL_REDUCE: return ctrt_comm_all_reduce(work, comm, in, e->op);
    case REDUCE: return ctrt_comm_reduce(work, comm, in, e->op, e->root);
    case ALL_GATHER: return ctrt_comm_all_gather(work, comm, out, in);
    case GATHER: return ctrt_comm_gather(work, comm, rank == e->root ? out : NULL, in, e->root);
    case SCATTER: return ctrt_comm_scatter(work, comm, out, rank == e->root ? in : NULL, e->root);
    case REDUCE_SCATTER: return ctrt_comm_reduce_scatter(work, comm, out, in, e->op);
    default: return ctrt_comm_all_to_all(work, comm, out, in);
    }
}

/* Moves the tensor to memory that the ranks share. */
static void share(ctrt_tensor **tensor)
{
    CTRT_AUTO(tensor) shared = NULL;
    const int64_t count = ctrt_tensor_numel(*tensor);
    require(ctrt_comm_empty(&shared, comm, CTRT_SHAPE(count), ctrt_tensor_dtype(*tensor)), "comm_empty");
    require(ctrt_copy_(shared, *tensor), "copy_");
    ctrt_tensor_release(tensor);
    *tensor = ctrt_tensor_retain(shared);
}

/* The tensors of a collective; *out is the one with the result. */
static void make(ctrt_tensor **in, ctrt_tensor **out, const struct expectation *e, ctrt_dtype dtype)
{
    const bool parts_in = e->collective >= SCATTER;
    const bool parts_out = e->collective == ALL_GATHER || e->collective == GATHER || e->collective == ALL_TO_ALL;
    if (e->collective > REDUCE)
        require(ctrt_zeros(out, CTRT_SHAPE(e->count * (parts_out ? size : 1)), dtype, device), "zeros");
    *in = tensor_of(e->count * (parts_in ? size : 1), dtype, value);
    if (e->collective <= REDUCE)
        *out = ctrt_tensor_retain(*in);
}

/* ---- parts ---- */

static bool reduces(int collective)
{
    return collective == ALL_REDUCE || collective == REDUCE || collective == REDUCE_SCATTER;
}

static bool shares;                     /* the tensors are in memory that the ranks share */

static void one(int collective, int root, int64_t count, ctrt_comm_op op, ctrt_dtype dtype)
{
    const struct expectation e = { collective, root, count, op };
    CTRT_AUTO(tensor) in = NULL, out = NULL;
    make(&in, &out, &e, dtype);
    if (shares && in == out)
        ctrt_tensor_release(&out);
    if (shares)
        share(&in);
    if (shares && out != NULL)
        share(&out);
    if (out == NULL)
        out = ctrt_tensor_retain(in);
    require(run(NULL, &e, in, out), kinds[collective]);
    if (collective != GATHER || rank == root)
        compare(out, &e, dtype);
}

static void collectives(void)
{
    static const int64_t counts[] = { 5, 0, 1000, 20011 };
    for (int dtype = CTRT_F32; dtype <= CTRT_BOOL; dtype++)
        for (int kind = 0; kind < KINDS; kind++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (int op = CTRT_COMM_SUM; op <= (reduces(kind) ? CTRT_COMM_AVERAGE : CTRT_COMM_SUM); op++) {
                    if ((op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(dtype))
                        || (op != CTRT_COMM_SUM && c % 2 == 1))
                        continue;
                    one(kind, (dtype + op) % size, counts[c], op, dtype);
                }
    for (int i = 0; i < 2 * KINDS; i++) {
        shares = i >= KINDS;
        one(i % KINDS, size - 1, 1000003, CTRT_COMM_SUM, CTRT_F32);
    }
    shares = false;
    require(ctrt_comm_barrier(comm), "barrier");
}

/* The sum of 3e8, 1 and -3e8 depends on the order in f32. */
static double far_apart(int r, int64_t i, ctrt_dtype dtype)
{
    (void)i, (void)dtype;
    return r == 0 ? 3e8 : r == size - 1 ? -3e8 : 1;
}

/* The sum of all ranks if rank r is on machine r % machines: of each machine first. */
static float sum_by_machines(int machines)
{
    float sum = 0;
    for (int machine = 0; machine < machines && machine < size; machine++) {
        float part = (float)far_apart(machine, 0, CTRT_F32);
        for (int r = machine + machines; r < size; r += machines)
            part += (float)far_apart(r, 0, CTRT_F32);
        sum = machine == 0 ? part : sum + part;
    }
    return sum;
}

/* Sums are in the order of ranks; large ones of several machines are added up on each machine first. */
static void order(void)
{
    const char *given = getenv("CTRT_MPI_MACHINES");
    for (int64_t count = 3; count < 1000000; count = count * 500) {
        CTRT_AUTO(tensor) tensor = tensor_of(count, CTRT_F32, far_apart);
        const float sum = sum_by_machines(given && count > 3 ? atoi(given) : 1);
        float *found = calloc((size_t)count, sizeof *found);
        require(ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM), "all_reduce");
        require(ctrt_to_host(found, (size_t)count * sizeof *found, tensor, CTRT_F32), "to_host");
        for (int64_t i = 0; i < count; i++)
            if (found[i] != sum) {
                fail("order", "the sum is not in the order of ranks");
                break;
            }
        free(found);
    }
}

/* Messages from rank 0 to the last rank that are sent before they are received, more than are kept in between. */
static void burst(void)
{
    enum { N = 20 };
    for (int i = 0; i < N && size > 1; i++) {
        const int64_t count = i % 5 == 4 ? 30000 : i * 40;
        CTRT_AUTO(tensor) tensor = tensor_of(count, CTRT_F32, value);
        const struct expectation message = { BROADCAST, 0, count, 0 };
        if (rank == 0)
            require(ctrt_comm_send(NULL, comm, tensor, size - 1), "send");
        if (rank != size - 1)
            continue;
        if (i == 0)
            usleep(20000);
        require(ctrt_comm_recv(NULL, comm, tensor, 0), "recv");
        compare(tensor, &message, CTRT_F32);
    }
}

/* Collectives in the background, and messages in both directions meanwhile. */
static void async(void)
{
    enum { N = 24 };
    ctrt_tensor *in[N] = { 0 }, *out[N] = { 0 }, *sent[4] = { 0 }, *got[4] = { 0 };
    ctrt_work *works[N] = { 0 }, *sends[4] = { 0 }, *receives[4] = { 0 };
    struct expectation e[N];
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int i = 0; i < N; i++) {
        e[i] = (struct expectation){ i % KINDS, i % size, (i % 3) * 9000 + 7, CTRT_COMM_SUM };
        make(&in[i], &out[i], &e[i], CTRT_F32);
        require(run(&works[i], &e[i], in[i], out[i]), kinds[e[i].collective]);
        if (size > 1 && i % 6 == 0) {
            const int64_t count = i == 0 ? 0 : i == 6 ? 10 : 100003;
            require(ctrt_zeros(&got[i / 6], CTRT_SHAPE(count), CTRT_I32, device), "zeros");
            sent[i / 6] = tensor_of(count, CTRT_I32, value);
            require(ctrt_comm_send(&sends[i / 6], comm, sent[i / 6], next), "send");
            require(ctrt_comm_recv(&receives[i / 6], comm, got[i / 6], previous), "recv");
        }
    }
    for (int i = 0; i < 4 && size > 1; i++) {
        const struct expectation message = { BROADCAST, previous, ctrt_tensor_numel(got[i]), 0 };
        require(ctrt_work_wait(sends[i]), "send");
        require(ctrt_work_wait(receives[i]), "recv");
        compare(got[i], &message, CTRT_I32);
        ctrt_work_release(&sends[i]);
        ctrt_work_release(&receives[i]);
        ctrt_tensor_release(&sent[i]);
        ctrt_tensor_release(&got[i]);
    }
    for (int i = N - 1; i >= 0; i--) {
        require(ctrt_work_wait(works[i]), kinds[e[i].collective]);
        if (e[i].collective != GATHER || rank == e[i].root)
            compare(out[i], &e[i], CTRT_F32);
        ctrt_work_release(&works[i]);
        ctrt_tensor_release(&in[i]);
        ctrt_tensor_release(&out[i]);
    }
}

static void large(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        one(kind, size - 1, 300007, CTRT_COMM_SUM, CTRT_F32);
    async();
}

static void split(void)
{
    ctrt_comm *half = NULL, *world = comm;
    const int world_rank = rank, world_size = size;
    for (int round = 0; round < 3; round++) {
        require(ctrt_comm_split(&half, world, world_rank % 2, -world_rank), "split");
        if (ctrt_comm_size(half) != (world_size + !(world_rank % 2)) / 2
            || ctrt_comm_rank(half) != ctrt_comm_size(half) - 1 - world_rank / 2)
            fail("split", "wrong rank or size");
        comm = half, rank = ctrt_comm_rank(half), size = ctrt_comm_size(half);
        one(ALL_GATHER, 0, 9, CTRT_COMM_SUM, CTRT_F64);
        one(ALL_REDUCE, 0, 30000, CTRT_COMM_SUM, CTRT_F32);
        comm = world, rank = world_rank, size = world_size;
    }
    require(ctrt_comm_split(&half, world, rank == 0 ? -1 : 5, 0), "split");
    if ((half == NULL) != (rank == 0))
        fail("split", "a negative color");
    ctrt_comm_release(&half);
}

static ctrt_status call_differently(const char *what)
{
    CTRT_AUTO(tensor) small = tensor_of(10, CTRT_F32, value), other = tensor_of(10, CTRT_I32, value);
    CTRT_AUTO(tensor) large = tensor_of(500000, CTRT_F32, value), larger = tensor_of(600000, CTRT_F32, value);
    CTRT_AUTO(tensor) parts = tensor_of(10 * size, CTRT_F32, value);
    const bool odd = rank == size - 1;
    if (strcmp(what, "op") == 0)
        return ctrt_comm_all_reduce(NULL, comm, small, odd ? CTRT_COMM_MAX : CTRT_COMM_SUM);
    if (strcmp(what, "dtype") == 0)
        return ctrt_comm_all_reduce(NULL, comm, odd ? other : small, CTRT_COMM_SUM);
    if (strcmp(what, "root") == 0)
        return ctrt_comm_broadcast(NULL, comm, large, odd);
    if (strcmp(what, "count") == 0)
        return ctrt_comm_all_reduce(NULL, comm, odd ? larger : large, CTRT_COMM_SUM);
    if (strcmp(what, "size") == 0)
        return ctrt_comm_all_reduce(NULL, comm, odd ? small : large, CTRT_COMM_SUM);
    if (strcmp(what, "kind") == 0)
        return odd ? ctrt_comm_all_gather(NULL, comm, parts, small) : ctrt_comm_broadcast(NULL, comm, large, 0);
    return odd         ? ctrt_comm_recv(NULL, comm, other, 0)
           : rank == 0 ? ctrt_comm_send(NULL, comm, small, size - 1)
                       : CTRT_OK;
}

/* All ranks of a group must get CTRT_ERR_STATE, of a message at the latest at the next collective. Other groups go
 * on. */
static void mismatches(void)
{
    static const char *const all[] = { "op", "dtype", "root", "count", "size", "kind", "message" };
    ctrt_comm *world = comm;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ctrt_comm *group = NULL;
        const double begin = seconds();
        require(ctrt_comm_split(&group, world, 0, rank), "split");
        comm = group;
        one(ALL_REDUCE, 0, 5, CTRT_COMM_SUM, CTRT_F32);
        ctrt_status status = call_differently(all[i]);
        if (status == CTRT_OK)
            status = ctrt_comm_barrier(comm);
        if (status != CTRT_ERR_STATE || strstr(ctrt_error_message(), "different collectives") == NULL)
            fail(all[i], status == CTRT_OK ? "no error" : ctrt_error_message());
        if (seconds() - begin > 5)
            fail(all[i], "the error took more than 5 s");
        comm = world;
        ctrt_comm_release(&group);
        one(ALL_REDUCE, 0, 5000, CTRT_COMM_SUM, CTRT_F32);
    }
}

/* The last rank stays away from the second collective. */
static void timeout(void)
{
    CTRT_AUTO(tensor) tensor = tensor_of(1000, CTRT_F32, value);
    char *report = NULL;
    one(ALL_REDUCE, 0, 5, CTRT_COMM_SUM, CTRT_F32);
    if (rank == size - 1) {
        usleep(1200000);
        if (ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM) == CTRT_OK)
            fail("timeout", "the late rank got no error");
        return;
    }
    const double begin = seconds();
    const ctrt_status status = ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM);
    const double passed = seconds() - begin;
    if (status != CTRT_ERR_COMM || passed < 0.4 || passed > 1.15)
        fail("timeout", status == CTRT_OK ? "no error" : ctrt_error_message());
    if (strstr(ctrt_error_message(), "did not arrive, it last completed all_reduce 1 ") == NULL)
        fail("timeout", ctrt_error_message());
    require(ctrt_comm_report(&report, comm), "report");
    free(report);
    sleep(1);
}

/* The last rank ends itself, or stops; the others print their errors. */
static void lose(int signal)
{
    CTRT_AUTO(tensor) tensor = tensor_of(1000, CTRT_F32, value);
    for (int i = 0; i < 1000000; i++) {
        if (i == 100 && rank == size - 1)
            kill(getpid(), signal);
        if (ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_MAX) != CTRT_OK) {
            printf("# rank %d: %s\n", rank, ctrt_error_message());
            fflush(stdout);
            return;
        }
    }
}

/* The last rank ends without having left the group; the others must not wait for it until the time limit. */
static void leave(void)
{
    CTRT_AUTO(tensor) tensor = tensor_of(1000, CTRT_F32, value);
    if (rank == size - 1)
        exit(3);
    if (ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_MAX) == CTRT_OK)
        fail("leave", "no error");
}

/* Makes a system call fail, as some containers do. */
static void forbid(unsigned number)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { sizeof filter / sizeof filter[0], filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        fail("prctl", strerror(errno));
}

/* Groups of the program's own MPI; it initialises and finalises MPI itself. */
static void *own_mpi(void)
{
    static const char *const names[] = { "libmpi.so.40", "libmpi.so.12", "libmpich.so.12" };
    const char *given = getenv("CTRT_MPI_LIBRARY");
    void *library = given ? dlopen(given, RTLD_NOW | RTLD_GLOBAL) : NULL;
    for (int i = 0; i < 3 && library == NULL; i++)
        library = dlopen(names[(i + (getenv("PMI_RANK") != NULL)) % 3], RTLD_NOW | RTLD_GLOBAL);
    int (*init)(int *, char ***) = library ? (int (*)(int *, char ***))dlsym(library, "MPI_Init") : NULL;
    if (init == NULL || init(NULL, NULL) != 0)
        fail("own", "MPI_Init");
    return library;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    const char *argument = argc > 2 ? argv[2] : "";
    void *library = strcmp(part, "own") == 0 ? own_mpi() : NULL;
    if (strcmp(part, "unreadable") == 0)
        forbid(SYS_process_vm_readv);
    if (strcmp(part, "unshared") == 0)
        forbid(SYS_memfd_create);
    const double limit = strcmp(part, "timeout") == 0 ? 0.5 : strcmp(part, "lose") == 0 ? 5 : 0;
    const ctrt_comm_options options = { .timeout = limit };
    require(ctrt_comm_new(&comm, &options), "comm_new");
    device = ctrt_comm_device(comm);
    require(ctrt_stream_new(&other, device, 0), "stream_new");
    rank = ctrt_comm_rank(comm);
    size = ctrt_comm_size(comm);
    const int world_rank = rank;
    if (strcmp(ctrt_comm_engine_name(comm), "mpi") != 0)
        fail("engine", ctrt_comm_engine_name(comm));
    if (strcmp(part, "collectives") == 0)
        collectives(), order(), async(), burst(), split();
    else if (strcmp(part, "native") == 0)
        collectives(), async();
    else if (strcmp(part, "large") == 0)
        large();
    else if (strcmp(part, "unreadable") == 0)
        collectives();
    else if (strcmp(part, "unshared") == 0)
        collectives(), async();
    else if (strcmp(part, "mismatch") == 0)
        mismatches();
    else if (strcmp(part, "timeout") == 0)
        timeout();
    else if (strcmp(part, "lose") == 0)
        lose(strcmp(argument, "stop") == 0 ? SIGSTOP : SIGKILL);
    else if (strcmp(part, "leave") == 0)
        leave();
    else if (strcmp(part, "own") == 0 || strcmp(part, "few") == 0)
        one(ALL_REDUCE, 0, 40000, CTRT_COMM_SUM, CTRT_F32), async();
    ctrt_tensor_release(&filled);
    ctrt_stream_release(&other);
    ctrt_comm_release(&comm);
    if (library != NULL)
        ((int (*)(void))dlsym(library, "MPI_Finalize"))();
    if (failures == 0)
        printf("rank %d passed\n", world_rank);
    return failures > 0;
}
