/* SPDX-License-Identifier: Apache-2.0 */
/* Tests collectives on large tensors of processes, which access each other's memory if the system permits it. */
#include <sys/syscall.h>

#include "comm_job.h"
#include "comm_values.h"
#include "forbid.h"

/* ---- values ---- */

static const struct data_case {
    ctrt_dtype dtype;
    int64_t count;                          /* of one part */
    ctrt_collective last;
} cases[] = {
    { CTRT_F32, 20001, CTRT_COLLECTIVE_ALL_TO_ALL },
    { CTRT_F64, 16385, CTRT_COLLECTIVE_ALL_TO_ALL },
    { CTRT_BF16, 1300007, CTRT_COLLECTIVE_ALL_REDUCE },         /* several blocks per rank */
};

static void check(struct rank *rank, const char *what)
{
    for (size_t i = 0; i < COUNT(cases); i++)
        for (ctrt_collective kind = CTRT_COLLECTIVE_BROADCAST; kind <= cases[i].last; kind++) {
            struct collective c = { .kind = kind, .dtype = cases[i].dtype, .count = cases[i].count,
                                    .op = CTRT_COMM_SUM, .root = rank->size - 1 };
            if (!CHECK_OK(collective_start(&c, rank->comm, false)))
                return;
            collective_finish(&c, rank->comm, what);
        }
}

static char info[512];
static void keep_info(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component;
    if (strstr(text, "process_vm_readv") != NULL)
        snprintf(info, sizeof info, "%s", text);
}

static void values(struct rank *rank)
{
    check(rank, "");
}

/* The system forbids the access, so the data is copied through shared memory. Rank 0 logs the reason. */
static void refused(struct rank *rank)
{
    if (rank->number == 0)
        CHECK_HAS(info, "the system does not let the processes access each other's memory");
    check(rank, "refused: ");
}

/* The tensor of rank 1 is in memory of memfd_secret, which the kernel does not read for another process, like the
 * memory of some drivers. The other ranks must be informed of this before they read. */
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
static void *secret_memory(size_t bytes)
{
    const int fd = (int)syscall(SYS_memfd_secret, 0);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static void secret(struct rank *rank)
{
    enum { N = 60000 };
    CTRT_AUTO(tensor) x = NULL, start = tensor_of(rank->device, CTRT_F32, rank->number, N);
    void *memory = rank->number == 1 ? secret_memory(N * 4) : NULL;
    if (memory != NULL)
        CHECK_OK(ctrt_from_blob(&x, memory, CTRT_SHAPE(N), (ctrt_ints){ 0 }, CTRT_F32, NULL, NULL));
    else
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(N), CTRT_F32, rank->device));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_copy_(x, start));
        CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
        check_range(rank->comm, "sum", x, 0, N, reduced(CTRT_F32, CTRT_COMM_SUM, rank->size, 0, N));
        CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, x, 1));
    }
    ctrt_tensor_release(&x);
    if (memory != NULL)
        munmap(memory, N * 4);
}

/* ---- failures ---- */

struct loss {
    int rank, signal;                       /* 0: the rank aborts the group */
    double seconds;
};

static void *end_soon(void *argument)
{
    const struct rank *rank = argument;
    const struct loss *loss = rank->argument;
    sleep_seconds(loss->seconds);
    if (loss->signal == 0)
        ctrt_comm_abort(rank->comm, "now");
    else
        kill(getpid(), loss->signal);
    return NULL;
}

/* A rank ends, aborts or stops during an all_reduce. The others must report it, and their tensors must not be written
 * after the call has returned. With 3 ranks every sum differs from the value before it, so a late write is detected. A
 * rank that is stopped in the middle of a copy is allowed to write later (doc/communicators.md); then the tensors must
 * still exist. */
static void lost_during_call(struct rank *rank)
{
    enum { N = 3000000 };
    const struct loss *loss = rank->argument;
    pthread_t thread;
    CTRT_AUTO(tensor) x = NULL, copy = NULL;
    ctrt_status status = CTRT_OK;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(N), CTRT_I32, rank->device));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number == loss->rank)
        REQUIRE(pthread_create(&thread, NULL, end_soon, rank) == 0, "no thread");
    while (status == CTRT_OK)
        status = ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM);
    CHECK_EQ(status, CTRT_ERR_COMM);
    char text[64];
    snprintf(text, sizeof text, loss->signal == 0 ? "rank %d aborted group" : "rank %d (", loss->rank);
    if (loss->signal != SIGSTOP || rank->number != loss->rank)
        CHECK_HAS(ctrt_error_message(), text);
    if (loss->signal != 0 && rank->number != loss->rank)
        CHECK_HAS(ctrt_error_message(), loss->signal == SIGKILL ? "has ended" : "does not answer");
    CHECK_OK(ctrt_clone(&copy, x));
    if (loss->signal == SIGSTOP && rank->number != loss->rank
        && atomic_fetch_add(&rank->board->step, 1) == rank->size - 2)
        kill(atomic_load(&rank->board->pids[loss->rank]), SIGCONT);     /* it continues the write, if it was in one */
    sleep_seconds(0.1);
    const bool same = memcmp(ctrt_tensor_data(copy), ctrt_tensor_data(x), N * sizeof(int32_t)) == 0;
    CHECK(same || loss->signal == SIGSTOP, "rank %d: the tensor was written after the call", rank->number);
    if (rank->number == loss->rank)
        pthread_join(thread, NULL);
}

TEST_MAIN
{
    for (int size = SANITIZED ? 3 : 2; size <= (SANITIZED ? 3 : 4); size++) {
        group("%d processes", size);
        IN_CHILD("CTRT_SIM=devices=4")
            run_job(PROCESSES, size, 60, values, NULL, -1);
    }
    group("processes on sim");
    IN_CHILD("CTRT_SIM=devices=4")
        run_job(SIM_PROCESSES, 3, 60, values, NULL, -1);
    static const unsigned calls[] = { SYS_process_vm_readv, SYS_process_vm_writev };
    for (size_t i = 0; i < COUNT(calls); i++) {
        group("a system that refuses process_vm_%s", i == 0 ? "readv" : "writev");
        if (!can_forbid()) {
            skip_group("the system has no seccomp");
            continue;
        }
        IN_CHILD("CTRT_LOG=info") {
            REQUIRE(forbid(calls[i]), "seccomp is refused");
            ctrt_log_set_callback(keep_info, NULL);
            run_job(PROCESSES, 3, 60, refused, NULL, -1);
        }
    }
    group("memory that the kernel does not read for another process");
    void *memory = secret_memory(4096);
    if (memory == NULL) {
        skip_group("the kernel has no memfd_secret");
    } else {
        munmap(memory, 4096);
        IN_CHILD("CTRT_LOG=error")
            run_job(PROCESSES, 3, 60, secret, NULL, -1);
    }
    group("a rank that ends or aborts during an all_reduce");
    IN_CHILD("CTRT_LOG=error")
        for (int i = 0; i < (SANITIZED ? 3 : 6); i++) {
            const double seconds = 0.02 + 0.003 * i;
            run_quiet(PROCESSES, 3, 10, lost_during_call, &(struct loss){ i % 3, 0, seconds }, -1);
            run_quiet(PROCESSES, 3, 10, lost_during_call, &(struct loss){ i % 3, SIGKILL, seconds }, i % 3);
        }
    group("a rank that is stopped during an all_reduce, and continues when the others have failed");
    IN_CHILD("CTRT_LOG=error")
        for (int i = 0; i < 3; i++)
            run_quiet(PROCESSES, 3, 2, lost_during_call, &(struct loss){ 1, SIGSTOP, 0.02 + 0.003 * i }, -1);
    return done();
}
