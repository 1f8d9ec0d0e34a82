/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages between threads and processes, compared with results that each rank computes itself. */
#include <sys/resource.h>

#include "comm_bodies.h"
#include "folder.h"

/* ---- tensors in memory that the ranks share ---- */

static ctrt_tensor *shared_tensor(struct rank *rank, ctrt_dtype dtype, int64_t n)
{
    ctrt_tensor *x = NULL;
    void *data = values_of(dtype, rank->number, 0, n);
    CHECK_OK(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(n), dtype));
    CHECK_OK(ctrt_from_host_(x, data, n, wide_of(dtype)));
    free(data);
    return x;
}

/* Mappings of this process that ranks share. */
static int shared_mappings(void)
{
    return folder_lines("/proc/self/maps", "memfd:ctrt-comm");
}

/* Every combination of shared and ordinary tensors on the ranks, of collectives that read and write the tensors of
 * others, in sizes of one piece and several. */
static void shared(struct rank *rank)
{
    static const struct data_case cases[] = {
        { CTRT_F32, 0 }, { CTRT_F32, 3 }, { CTRT_F32, 5000 }, { CTRT_BF16, 550001 },
    };
    const int size = rank->size;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int ordinary = -1; ordinary < size; ordinary++) {      /* the rank whose tensors are not shared */
            const ctrt_dtype dtype = cases[i].dtype;
            const int64_t n = cases[i].count;
            if (n > 5000 && (rank->kind != PROCESSES || ordinary > 0))
                continue;
            CTRT_AUTO(tensor) x = shared_tensor(rank, dtype, n), y = shared_tensor(rank, dtype, n), all = NULL;
            CHECK_OK(ctrt_comm_empty(&all, rank->comm, CTRT_SHAPE(size, n), dtype));
            if (rank->number == ordinary) {
                CHECK_OK(ctrt_clone(&x, x));
                CHECK_OK(ctrt_clone(&y, y));
            }
            CHECK_OK(ctrt_comm_all_gather(NULL, rank->comm, all, x));
            CHECK_OK(ctrt_flatten(&all, all, 0, -1));
            for (int r = 0; r < size; r++)
                check_range(rank->comm, "all_gather", all, n * r, n, values_of(dtype, r, 0, n));
            CHECK_OK(ctrt_comm_reduce(NULL, rank->comm, y, CTRT_COMM_MAX, size - 1));
            check_range(rank->comm, "reduce", y, 0, n,
                        rank->number == size - 1 ? reduced(dtype, CTRT_COMM_MAX, size, 0, n)
                                                 : values_of(dtype, rank->number, 0, n));
            CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
            check_range(rank->comm, "all_reduce", x, 0, n, reduced(dtype, CTRT_COMM_SUM, size, 0, n));
            CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, y, 0));
            check_range(rank->comm, "broadcast", y, 0, n,
                        size == 1 ? reduced(dtype, CTRT_COMM_MAX, size, 0, n) : values_of(dtype, 0, 0, n));
        }
}

/* The ranks free three tensors in different orders, some after the communicator; a freed part does not disturb the
 * other ranks, and all memory is unmapped at the end. */
static void shared_lifetime(struct rank *rank)
{
    enum { N = 100000 };
    ctrt_tensor *x[3] = { NULL };
    const int me = rank->number;
    const bool processes = rank->kind == PROCESSES;
    const int before = shared_mappings();
    for (int i = 0; i < 3; i++)
        x[i] = shared_tensor(rank, CTRT_F32, N);
    CHECK_EQ(shared_mappings(), before + (processes ? 3 : 0));
    ctrt_tensor_release(&x[me % 2]);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x[2], CTRT_COMM_SUM));
    check_range(rank->comm, "sum", x[2], 0, N, reduced(CTRT_F32, CTRT_COMM_SUM, rank->size, 0, N));
    ctrt_tensor_release(&x[1 - me % 2]);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    /* All ranks have freed x[0] and x[1], so the next free unmaps both. */
    ctrt_tensor *last = shared_tensor(rank, CTRT_F32, 10), *view = NULL;
    ctrt_tensor_release(&last);
    CHECK_EQ(shared_mappings() >= before + processes, true);
    CHECK_EQ(shared_mappings() <= before + 2 * processes, true);
    CHECK_OK(ctrt_narrow(&view, x[2], 0, 1, 2));
    ctrt_tensor_release(&x[2]);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, view, CTRT_COMM_MAX));
    ctrt_comm_release(&rank->comm);
    double values[2] = { 0 };
    CHECK_OK(ctrt_to_host(values, sizeof values, view, CTRT_F64));
    CHECK_TRUE(values[0] != 0 && values[1] != 0);
    if (processes)                                      /* without threads any more */
        IN_FORK {                                       /* the child's release changes nothing for the parent */
            ctrt_tensor *mine = view;
            ctrt_tensor_release(&mine);
        }
    CHECK_OK(ctrt_mul_scalar_(view, ctrt_float(2)));
    ctrt_tensor_release(&view);
    CHECK_EQ(processes ? shared_mappings() : 0, 0);
}

static char warning[512];
static void keep_warning(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)component;
    if (level <= CTRT_LOG_WARNING)
        snprintf(warning, sizeof warning, "%s", text);
}

/* The machine has no memory for all ranks, or not every rank can map it; the group can be used afterwards. */
static void shared_no_memory(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_log_set_callback(keep_warning, NULL);
    CHECK_FAILS(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(1LL << 45), CTRT_F32), CTRT_ERR_OUT_OF_MEMORY, "comm_empty");
    CHECK_HAS(warning, rank->number == 0 ? "140737488355328 bytes for each of 3 ranks, but" : "another rank");
    ctrt_log_set_callback(no_log, NULL);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)     /* they need terabytes of addresses */
    struct rlimit before, limit;
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)1 << 30;
    if (rank->number == 1)
        CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const ctrt_status status = ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(1 << 28), CTRT_F32);
    CHECK_EQ(status, rank->number == 1 ? CTRT_ERR_OUT_OF_MEMORY : CTRT_OK);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
#endif
    CHECK_EQ(shared_mappings(), 1);
    x = shared_tensor(rank, CTRT_F32, 5);
    CHECK_EQ(shared_mappings(), 2);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    check_range(rank->comm, "sum", x, 0, 5, reduced(CTRT_F32, CTRT_COMM_SUM, rank->size, 0, 5));
}

static void shared_bad_input(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    CHECK_FAILS(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(-1), CTRT_F32), CTRT_ERR_SHAPE, "comm_empty");
    CHECK_FAILS(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(10 + rank->number), CTRT_F32), CTRT_ERR_STATE,
                "rank 0: empty 1 (10 f32); rank 1: empty 1 (11 f32)");
    CHECK_FAILS(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(10), CTRT_F32), CTRT_ERR_STATE, "comm_empty");
    CHECK_TRUE(x == NULL);
}

static void left_behind(enum kind kind)
{
    size_t files = 0, threads = 0;
    for (int i = 0; i < 4; i++) {
        run_job(kind, 3, 30, ring, NULL, -1);
        if (i == 1)
            files = folder_files("/proc/self/fd"), threads = folder_files("/proc/self/task");
    }
    /* A thread's entry may exist for a moment after pthread_join. */
    for (int i = 0; i < 1000 && folder_files("/proc/self/task") > threads; i++)
        sleep_seconds(0.001);
    CHECK(folder_files("/proc/self/fd") <= files, "more than %zu descriptors", files);
    CHECK(folder_files("/proc/self/task") <= threads, "more than %zu threads", threads);
}

/* ThreadSanitizer sees nothing of what passes between processes, and makes everything slow. Under sanitizers there are
 * 1 and 3 ranks: none, and parts of unequal size. */
#ifdef __SANITIZE_THREAD__
enum { SIZES_KINDS = PROCESSES, OTHER_KINDS = SIM_PROCESSES };
#else
enum { SIZES_KINDS = KINDS, OTHER_KINDS = ALL_KINDS };
#endif
enum { SIZE_STEP = SANITIZED ? 2 : 1 };

TEST_MAIN
{
    for (enum kind kind = 0; kind < (enum kind)SIZES_KINDS; kind++)
        for (int size = 1; size <= 4; size += SIZE_STEP) {
            group("%s: %d ranks", kind_names[kind], size);
            IN_CHILD("CTRT_SIM=devices=4")
                run_job(kind, size, 60, collectives, NULL, -1);
        }
    for (enum kind kind = 0; kind < KINDS; kind++) {
        group("%s: messages, works, groups", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4") {
            run_job(kind, 2, 30, ring, NULL, -1);
            run_job(kind, 4, 30, split, NULL, -1);
            run_job(kind, 3, 30, reuse, NULL, -1);
            run_job(kind, 2, 30, record, NULL, -1);
            run_job(kind, 3, 30, bad_input, NULL, -1);
        }
    }
    for (enum kind kind = KINDS; kind < (enum kind)OTHER_KINDS; kind++) {
        group("%s", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4") {
            run_job(kind, 3, 60, collectives, NULL, -1);
            run_job(kind, 3, 30, ring, NULL, -1);
            run_job(kind, 3, 30, reuse, NULL, -1);
        }
    }
    for (int i = 0; i < 2; i++) {
        static const char *const orders[] = { "CTRT_STREAM_ORDER=manual", "CTRT_STREAM_ORDER=check" };
        group("%s", orders[i]);
        IN_CHILD("CTRT_SIM=devices=4", orders[i]) {
            run_job(ON_SIM, 3, 30, reuse, NULL, -1);
            run_job(ON_SIM, 3, 30, ring, NULL, -1);
            if (i == 1)
                run_job(ON_SIM, 3, 60, collectives, NULL, -1);
            CHECK_EQ(ctrt_race_count(), 0);
        }
    }
    for (enum kind kind = 0; kind < (enum kind)OTHER_KINDS; kind++) {
        group("%s: tensors in shared memory", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4") {
            run_job(kind, 3, 60, shared, NULL, -1);
            if (kind < KINDS)
                run_job(kind, 2, 30, shared_lifetime, NULL, -1);
            ctrt_log_set_callback(no_log, NULL);
            if (kind == PROCESSES)
                run_job(kind, 3, 30, shared_no_memory, NULL, -1);
            run_job(kind, 2, 30, shared_bad_input, NULL, -1);
        }
    }
    group("16 ranks");
    IN_CHILD("CTRT_SIM=devices=4") {
        run_job(ON_CPU, 16, 60, ring, NULL, -1);
        run_job(PROCESSES, 16, 60, ring, NULL, -1);
    }
    for (enum kind kind = 0; kind < KINDS; kind++) {
        group("%s: no descriptor or thread is left", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4")
            left_behind(kind);
    }
    return done();
}
