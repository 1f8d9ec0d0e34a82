/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/mpi-program.c: one rank of the jobs that mpi.sh starts: mpi-program PART. Prints a line for
 * each failed check; its exit status is 1 then. */
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../unit/capture_check.h"
#include "../unit/comm_values.h"
#include "../unit/forbid.h"

static ctrt_comm *comm;
static ctrt_device *device;
static ctrt_stream *other;              /* computes the inputs; the collectives use the default stream */
static int rank, size;

/* ---- collectives ---- */

static ctrt_tensor *filled;             /* kept, because streams wait for each other where memory is reused */

/* Moves the tensor to memory that the ranks share. */
static void share(ctrt_tensor **tensor)
{
    CTRT_AUTO(tensor) shared = NULL;
    const int64_t count = ctrt_tensor_numel(*tensor);
    CHECK_OK(ctrt_comm_empty(&shared, comm, CTRT_SHAPE(count), ctrt_tensor_dtype(*tensor)));
    CHECK_OK(ctrt_copy_(shared, *tensor));
    ctrt_tensor_assign(tensor, shared);
}

/* Starts the collective while `other` still writes its input. `shares`: with tensors in memory that the ranks share. */
static void start(struct collective *c, bool shares, bool async)
{
    collective_tensors(c, comm);
    const bool in_place = c->out == c->in;
    if (shares && in_place)
        ctrt_tensor_release(&c->out);
    if (shares)
        share(&c->in);
    if (shares && in_place)
        c->out = ctrt_tensor_retain(c->in);
    else if (shares)
        share(&c->out);
    CHECK_OK(ctrt_clone(&filled, c->in));
    CHECK_OK(ctrt_zero_(c->in));
    CHECK_OK(ctrt_stream_push(other));
    CHECK_OK(ctrt_copy_(c->in, filled));
    CHECK_OK(ctrt_stream_pop());
    REQUIRE(collective_call(c, comm, async) == CTRT_OK, "%s: %s", kinds_of_collectives[c->kind], ctrt_error_message());
}

static void one(ctrt_collective kind, int root, int64_t count, ctrt_comm_op op, ctrt_dtype dtype, bool shares)
{
    struct collective c = { .kind = kind, .dtype = dtype, .count = count, .op = op, .root = root };
    start(&c, shares, false);
    collective_finish(&c, comm, "");
}

static void sum_of(int64_t count)
{
    one(CTRT_COLLECTIVE_ALL_REDUCE, 0, count, CTRT_COMM_SUM, CTRT_F32, false);
}

enum { FIRST = CTRT_COLLECTIVE_BROADCAST, MOVES = CTRT_COLLECTIVE_ALL_TO_ALL - FIRST + 1 };

static bool reduces(ctrt_collective kind)
{
    return kind == CTRT_COLLECTIVE_ALL_REDUCE || kind == CTRT_COLLECTIVE_REDUCE
           || kind == CTRT_COLLECTIVE_REDUCE_SCATTER;
}

static void collectives(void)
{
    static const int64_t counts[] = { 5, 0, 1000, 20011 };
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BOOL; dtype++)
        for (ctrt_collective kind = CTRT_COLLECTIVE_BROADCAST; kind <= CTRT_COLLECTIVE_ALL_TO_ALL; kind++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (ctrt_comm_op op = CTRT_COMM_SUM; op <= (reduces(kind) ? CTRT_COMM_AVERAGE : CTRT_COMM_SUM); op++) {
                    if ((op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(dtype))
                        || (op != CTRT_COMM_SUM && c % 2 == 1))
                        continue;
                    one(kind, (int)(dtype + op) % size, counts[c], op, dtype, false);
                }
    for (int i = 0; i < 2 * MOVES; i++)
        one(FIRST + i % MOVES, size - 1, 1000003, CTRT_COMM_SUM, CTRT_F32, i >= MOVES);
    CHECK_OK(ctrt_comm_barrier(comm));
}

/* The sum of 3e8, 1 and -3e8 depends on the order in f32. */
static float far_apart(int r)
{
    return r == 0 ? 3e8f : r == size - 1 ? -3e8f : 1;
}

/* The sum of all ranks if rank r is on machine r % machines: of each machine first. */
static float sum_by_machines(int machines)
{
    float sum = 0;
    for (int machine = 0; machine < machines && machine < size; machine++) {
        float part = far_apart(machine);
        for (int r = machine + machines; r < size; r += machines)
            part += far_apart(r);
        sum = machine == 0 ? part : sum + part;
    }
    return sum;
}

/* Sums are in the order of ranks; large ones of several machines are added up on each machine first. */
static void order(void)
{
    const char *given = getenv("CTRT_MPI_MACHINES");
    for (int64_t count = 3; count < 1000000; count = count * 500) {
        CTRT_AUTO(tensor) tensor = NULL;
        const float sum = sum_by_machines(given && count > 3 ? atoi(given) : 1);
        float *found = calloc((size_t)count, sizeof *found);
        CHECK_OK(ctrt_full(&tensor, CTRT_SHAPE(count), ctrt_float((double)far_apart(rank)), CTRT_F32, device));
        CHECK_OK(ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM));
        CHECK_OK(ctrt_to_host(found, (size_t)count * sizeof *found, tensor, CTRT_F32));
        for (int64_t i = 0; i < count; i++)
            if (!CHECK(found[i] == sum, "the sum is not in the order of ranks"))
                break;
        free(found);
    }
}

/* Messages from rank 0 to the last rank that are sent before they are received, more than are kept in between. */
static void burst(void)
{
    for (int i = 0; i < 20 && size > 1; i++) {
        struct collective c = { .kind = CTRT_COLLECTIVE_SEND, .dtype = CTRT_F32, .count = i % 5 == 4 ? 30000 : i * 40,
                                .to = size - 1 };
        if (i == 0 && rank == size - 1)
            usleep(20000);
        start(&c, false, false);
        collective_finish(&c, comm, "");
    }
}

/* Collectives in the background, and messages in both directions meanwhile. */
static void async(void)
{
    enum { N = 24, MESSAGES = 4 };
    static const int64_t message_counts[MESSAGES] = { 0, 10, 100003, 100003 };
    struct collective calls[N], sends[MESSAGES], receives[MESSAGES];
    for (int i = 0; i < N; i++) {
        calls[i] = (struct collective){ .kind = FIRST + i % MOVES, .root = i % size, .count = (i % 3) * 9000 + 7 };
        calls[i].dtype = CTRT_F32;
        start(&calls[i], false, true);
        if (size > 1 && i % 6 == 0) {
            const int64_t count = message_counts[i / 6];
            sends[i / 6] = (struct collective){ .kind = CTRT_COLLECTIVE_SEND, .dtype = CTRT_I32, .count = count,
                                                .root = rank, .to = (rank + 1) % size };
            receives[i / 6] = (struct collective){ .kind = CTRT_COLLECTIVE_SEND, .dtype = CTRT_I32, .count = count,
                                                   .root = (rank + size - 1) % size, .to = rank };
            start(&sends[i / 6], false, true);
            start(&receives[i / 6], false, true);
        }
    }
    for (int i = 0; i < MESSAGES && size > 1; i++) {
        collective_finish(&sends[i], comm, "");
        collective_finish(&receives[i], comm, "");
    }
    for (int i = N - 1; i >= 0; i--)
        collective_finish(&calls[i], comm, "");
}

static void large(void)
{
    for (ctrt_collective kind = CTRT_COLLECTIVE_BROADCAST; kind <= CTRT_COLLECTIVE_ALL_TO_ALL; kind++)
        one(kind, size - 1, 300007, CTRT_COMM_SUM, CTRT_F32, false);
    async();
}

/* ---- captured steps ---- */

static void captured(void)
{
    const struct plan plan = { .make = wide_new };
    captured_steps(&(struct rank){ .comm = comm, .device = device, .number = rank, .size = size, .argument = &plan });
}

static void split(void)
{
    ctrt_comm *half = NULL, *world = comm;
    for (int round = 0; round < 3; round++) {
        CHECK_OK(ctrt_comm_split(&half, world, rank % 2, -rank));
        CHECK_EQ(ctrt_comm_size(half), (size + !(rank % 2)) / 2);
        CHECK_EQ(ctrt_comm_rank(half), ctrt_comm_size(half) - 1 - rank / 2);
        comm = half;
        one(CTRT_COLLECTIVE_ALL_GATHER, 0, 9, CTRT_COMM_SUM, CTRT_F64, false);
        sum_of(30000);
        comm = world;
    }
    CHECK_OK(ctrt_comm_split(&half, world, rank == 0 ? -1 : 5, 0));
    CHECK((half == NULL) == (rank == 0), "a negative color");
    ctrt_comm_release(&half);
}

static ctrt_tensor *floats(int64_t count)
{
    return tensor_of(device, CTRT_F32, rank, count);
}

static ctrt_status call_differently(const char *what)
{
    CTRT_AUTO(tensor) small = floats(10), other = tensor_of(device, CTRT_I32, rank, 10);
    CTRT_AUTO(tensor) large = floats(500000), larger = floats(600000);
    CTRT_AUTO(tensor) parts = floats(10 * size);
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
        const double begin = clock_seconds();
        CHECK_OK(ctrt_comm_split(&group, world, 0, rank));
        comm = group;
        sum_of(5);
        ctrt_status status = call_differently(all[i]);
        if (status == CTRT_OK)
            status = ctrt_comm_barrier(comm);
        CHECK_FAILS(status, CTRT_ERR_STATE, "different collectives");
        CHECK(clock_seconds() - begin <= 5, "%s: the error took %.1f s", all[i], clock_seconds() - begin);
        comm = world;
        ctrt_comm_release(&group);
        sum_of(5000);
    }
}

/* The last rank stays away from the second collective. */
static void timeout(void)
{
    CTRT_AUTO(tensor) tensor = floats(1000);
    char *report = NULL;
    sum_of(5);
    if (rank == size - 1) {
        usleep(1200000);
        CHECK(ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM) != CTRT_OK, "the late rank got no error");
        return;
    }
    const double begin = clock_seconds();
    const ctrt_status status = ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM);
    const double passed = clock_seconds() - begin;
    CHECK_FAILS(status, CTRT_ERR_COMM, "did not arrive, it last completed all_reduce 1 ");
    CHECK(passed >= 0.4 && passed <= 1.15, "the error came after %.2f s", passed);
    CHECK_OK(ctrt_comm_report(&report, comm));
    free(report);
    sleep(1);
}

/* The last rank ends itself; the others print their errors. */
static void lose(void)
{
    CTRT_AUTO(tensor) tensor = floats(1000);
    for (int i = 0; i < 1000000; i++) {
        if (i == 100 && rank == size - 1)
            kill(getpid(), SIGKILL);
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
    CTRT_AUTO(tensor) tensor = floats(1000);
    if (rank == size - 1)
        exit(3);
    CHECK(ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_MAX) != CTRT_OK, "no error");
}

/* Rank 1 of two sends a message and leaves the group. The message arrives. If rank 0 then receives a second message
 * from rank 1 or sends one to it, the call fails long before the time limit. */
static void depart(bool receives)
{
    CTRT_AUTO(tensor) small = floats(10), large = floats(1000000);
    if (rank == 1) {
        CHECK_OK(ctrt_comm_send(NULL, comm, small, 0));
        ctrt_comm_release(&comm);
        sleep(2);
        return;
    }
    usleep(500000);
    CHECK_OK(ctrt_comm_recv(NULL, comm, small, 1));
    const double begin = clock_seconds();
    const ctrt_status status = receives ? ctrt_comm_recv(NULL, comm, small, 1) : ctrt_comm_send(NULL, comm, large, 1);
    CHECK(status == CTRT_ERR_COMM && clock_seconds() - begin < 3, "%s",
          status == CTRT_OK ? "no error" : ctrt_error_message());
    CHECK_HAS(ctrt_error_message(), "has left the group");
}

static void depart_recv(void) { depart(true); }
static void depart_send(void) { depart(false); }

/* Groups of the program's own MPI; it initialises and finalises MPI itself. */
static void *own_mpi(void)
{
    static const char *const names[] = { "libmpi.so.40", "libmpi.so.12", "libmpich.so.12" };
    const char *given = getenv("CTRT_MPI_LIBRARY");
    void *library = given ? dlopen(given, RTLD_NOW | RTLD_GLOBAL) : NULL;
    for (int i = 0; i < 3 && library == NULL; i++)
        library = dlopen(names[(i + (getenv("PMI_RANK") != NULL)) % 3], RTLD_NOW | RTLD_GLOBAL);
    int (*init)(int *, char ***) = library ? (int (*)(int *, char ***))dlsym(library, "MPI_Init") : NULL;
    CHECK(init != NULL && init(NULL, NULL) == 0, "MPI_Init");
    return library;
}

static void collectives_and_messages(void)
{
    collectives();
    order();
    async();
    burst();
    split();
}

static void collectives_and_async(void)
{
    collectives();
    async();
}

static void few(void)
{
    sum_of(40000);
    async();
}

static const struct part {
    const char *name;
    void (*run)(void);
    double timeout;
    unsigned forbidden;                 /* a system call that fails; 0: none */
} parts[] = {
    { "collectives", collectives_and_messages, 0, 0 },
    { "native", collectives_and_async, 0, 0 },
    { "large", large, 0, 0 },
    { "captured", captured, 0, 0 },
    { "unreadable", collectives, 0, SYS_process_vm_readv },
    { "unshared", collectives_and_async, 0, SYS_memfd_create },
    { "mismatch", mismatches, 0, 0 },
    { "timeout", timeout, 0.5, 0 },
    { "lose", lose, 5, 0 },
    { "leave", leave, 0, 0 },
    { "depart-recv", depart_recv, 0, 0 },
    { "depart-send", depart_send, 0, 0 },
    { "own", few, 0, 0 },
};

int main(int argc, char **argv)
{
    const struct part *part = parts;
    while (argc > 1 && strcmp(part->name, argv[1]) != 0)
        part++;
    void *library = strcmp(part->name, "own") == 0 ? own_mpi() : NULL;
    CHECK(part->forbidden == 0 || forbid(part->forbidden), "seccomp: %s", strerror(errno));
    exact_values = true;                /* reductions may be in any order */
    REQUIRE(ctrt_comm_new(&comm, &CTRT_WITH(ctrt_comm_options, .timeout = part->timeout)) == CTRT_OK, "%s",
            ctrt_error_message());
    device = ctrt_comm_device(comm);
    CHECK_OK(ctrt_stream_new(&other, device, 0));
    rank = ctrt_comm_rank(comm);
    size = ctrt_comm_size(comm);
    CHECK_STR(ctrt_comm_engine_name(comm), "mpi");
    part->run();
    ctrt_tensor_release(&filled);
    ctrt_stream_release(&other);
    ctrt_comm_release(&comm);
    if (library != NULL)
        ((int (*)(void))dlsym(library, "MPI_Finalize"))();
    if (tap_state.failed == 0)
        printf("rank %d passed\n", rank);
    return tap_state.failed > 0;
}
