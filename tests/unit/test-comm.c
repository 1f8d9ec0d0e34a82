/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages between threads and processes, compared with results that each rank computes itself. */
#include <sys/resource.h>

#include "comm_job.h"
#include "comm_values.h"

/* ---- collectives ---- */

struct data_case {
    ctrt_dtype dtype;
    int64_t count;                          /* of one part */
};

static const char *const op_names[] = { "sum: ", "product: ", "min: ", "max: ", "average: " };

/* Every collective, with every reduction if the data is small. */
static void check_collectives(struct rank *rank, ctrt_dtype dtype, int64_t n)
{
    for (ctrt_collective kind = CTRT_COLLECTIVE_BARRIER; kind <= CTRT_COLLECTIVE_ALL_TO_ALL; kind++) {
        const bool reduces = kind == CTRT_COLLECTIVE_ALL_REDUCE || kind == CTRT_COLLECTIVE_REDUCE
                             || kind == CTRT_COLLECTIVE_REDUCE_SCATTER;
        const ctrt_comm_op last = reduces && n < 10000 ? CTRT_COMM_AVERAGE : CTRT_COMM_SUM;
        for (ctrt_comm_op op = 0; op <= last; op++) {
            struct collective c = { .kind = kind, .dtype = dtype, .count = n, .op = op,
                                    .root = reduces ? rank->size - 1 : rank->size / 2 };
            const bool refused = op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(dtype);
            const ctrt_status status = collective_start(&c, rank->comm, false);
            if (refused ? !CHECK_EQ(status, CTRT_ERR_DTYPE) : !CHECK_OK(status))
                return;
            if (!refused)
                collective_finish(&c, rank->comm, reduces ? op_names[op] : "");
            ctrt_tensor_release(&c.in);
            ctrt_tensor_release(&c.out);
        }
    }
    CTRT_AUTO(tensor) x = tensor_of(rank->device, dtype, rank->number, n);
    const uint32_t version = ctrt_tensor_version(x);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_TRUE(ctrt_tensor_version(x) > version);
}

static void collectives(struct rank *rank)
{
    static const struct data_case cases[] = {
        { CTRT_F32, 0 }, { CTRT_F32, 1 }, { CTRT_F32, 777 }, { CTRT_F32, 20001 }, { CTRT_F64, 33 }, { CTRT_F16, 777 },
        { CTRT_BF16, 777 }, { CTRT_BF16, 30001 }, { CTRT_I8, 777 }, { CTRT_U8, 777 }, { CTRT_I16, 777 },
        { CTRT_I32, 777 }, { CTRT_I64, 777 }, { CTRT_BOOL, 777 }, { CTRT_U8, 9001 },
    };
    CHECK_EQ(ctrt_comm_rank(rank->comm), rank->number);
    CHECK_EQ(ctrt_comm_size(rank->comm), rank->size);
    for (size_t i = 0; i < COUNT(cases); i++)
        check_collectives(rank, cases[i].dtype, cases[i].count);
    if (rank->kind == PROCESSES)            /* several pieces */
        check_collectives(rank, CTRT_F32, 150001);
}

/* ---- several calls at the same time ---- */

/* Each rank sends to the next one, receives from the one before, and reduces, all in the background. */
static void ring(struct rank *rank)
{
    enum { TURNS = 5 };
    static const int64_t counts[TURNS] = { 100, 0, 100003, 1, 5000 };
    const int size = rank->size, to = (rank->number + 1) % size, from = (rank->number + size - 1) % size;
    ctrt_tensor *out[TURNS] = { NULL }, *in[TURNS] = { NULL }, *sum[TURNS] = { NULL };
    ctrt_work *works[3 * TURNS] = { NULL };
    for (int i = 0; i < TURNS; i++) {
        out[i] = tensor_of(rank->device, CTRT_F32, rank->number + i, counts[i]);
        sum[i] = tensor_of(rank->device, CTRT_F32, rank->number, counts[i]);
        CHECK_OK(ctrt_zeros_like(&in[i], out[i], 0, NULL));
    }
    for (int i = 0; i < TURNS; i++) {
        CHECK_OK(ctrt_comm_recv(&works[3 * i], rank->comm, in[i], from));
        CHECK_OK(ctrt_comm_all_reduce(&works[3 * i + 1], rank->comm, sum[i], CTRT_COMM_SUM));
        CHECK_OK(ctrt_comm_send(&works[3 * i + 2], rank->comm, out[i], to));
    }
    for (int i = 3 * TURNS - 1; i >= 0; i--) {
        bool done = false;
        CHECK_OK(ctrt_work_wait(works[i]));
        CHECK_OK(ctrt_device_synchronize(rank->device));
        CHECK_OK(ctrt_work_query(works[i], &done));
        CHECK_TRUE(done);
        ctrt_work_release(&works[i]);
    }
    for (int i = 0; i < TURNS; i++) {
        check_range(rank->comm, "recv", in[i], 0, counts[i], values_of(CTRT_F32, from + i, 0, counts[i]));
        check_range(rank->comm, "sum", sum[i], 0, counts[i], reduced(CTRT_F32, CTRT_COMM_SUM, size, 0, counts[i]));
        ctrt_tensor_release(&out[i]);
        ctrt_tensor_release(&in[i]);
        ctrt_tensor_release(&sum[i]);
    }
}

/* Odd and even ranks in reversed order; rank 2 joins no group. */
static void split(struct rank *rank)
{
    const int color = rank->number == 2 ? -1 : rank->number % 2;
    ctrt_comm *part = NULL;
    if (!CHECK_OK(ctrt_comm_split(&part, rank->comm, color, -rank->number)))
        return;
    CHECK_EQ(part == NULL, color < 0);
    if (part != NULL) {
        CTRT_AUTO(tensor) x = NULL;
        double sum = 0;
        const int size = color == 0 ? 1 : 2;
        CHECK_EQ(ctrt_comm_size(part), size);
        CHECK_EQ(ctrt_comm_rank(part), rank->number == 1 ? 1 : 0);
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1), ctrt_float(rank->number + 1), CTRT_F32, rank->device));
        CHECK_OK(ctrt_comm_all_reduce(NULL, part, x, CTRT_COMM_SUM));
        CHECK_OK(ctrt_item(&sum, x));
        CHECK_EQ(sum, color == 0 ? 1 : 6);
    }
    ctrt_comm_release(&part);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
}

/* Changes its tensor while others may still need it, on a stream of its own. */
static void reuse(struct rank *rank)
{
    CTRT_AUTO(stream) stream = NULL;
    CTRT_AUTO(tensor) x = NULL;
    CHECK_OK(ctrt_stream_new(&stream, rank->device, 0));
    CHECK_OK(ctrt_stream_push(stream));
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(20000), ctrt_float(1), CTRT_F32, rank->device));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(rank->number + i)));
        CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    }
    double sum = 0;
    CTRT_AUTO(tensor) mean = NULL;
    CHECK_OK(ctrt_mean(&mean, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&sum, mean));
    CHECK_EQ(sum, rank->size * 9 + rank->size * (rank->size - 1) / 2);
    CHECK_OK(ctrt_stream_pop());
}

/* Seconds since 1970 that the report has next for `key`; moves *at behind them. */
static double time_of(const char **at, const char *key)
{
    const char *found = strstr(*at, key);
    if (!CHECK(found != NULL, "the report has no %s", key))
        return 0;
    *at = found + strlen(key);
    return strtod(*at, NULL) * 1e-9;
}

/* The times in the flight record: of two blocking calls and one in the background, with pauses between them. */
static void record(struct rank *rank)
{
    CTRT_AUTO(tensor) x = tensor_of(rank->device, CTRT_F32, rank->number, 100);
    CTRT_AUTO(work) work = NULL;
    struct timespec time;
    char *json = NULL;
    double bounds[4];
    for (int i = 0; i < 4; i++) {
        clock_gettime(CLOCK_REALTIME, &time);
        bounds[i] = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
        sleep_seconds(0.1);
        if (i < 3)
            CHECK_OK(ctrt_comm_all_reduce(i == 2 ? &work : NULL, rank->comm, x, CTRT_COMM_SUM));
        if (i == 2)
            CHECK_OK(ctrt_work_wait(work));
    }
    if (!CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        return;
    const char *at = json;
    for (int i = 0; i < 3; i++) {
        const double queued = time_of(&at, "\"queued_ns\": "), started = time_of(&at, "\"started_ns\": ");
        const double ended = time_of(&at, "\"ended_ns\": ");
        CHECK(bounds[i] < queued && queued <= started && started < ended && ended < bounds[i + 1] + 0.1,
              "call %d: %.6f s to %.6f s, queued at %.6f, started at %.6f, ended at %.6f", i, bounds[i], bounds[i + 1],
              queued, started, ended);
    }
    free(json);
}

static void bad_input(struct rank *rank)
{
    CTRT_AUTO(tensor) x = tensor_of(rank->device, CTRT_F32, 0, 4), z = NULL;
    CTRT_AUTO(tensor) y = tensor_of(rank->device, CTRT_F32, 0, 6);
    CHECK_OK(ctrt_reshape(&z, y, CTRT_SHAPE(2, 3)));
    CHECK_OK(ctrt_t(&z, z));
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, NULL, x, CTRT_COMM_SUM), CTRT_ERR_INVALID_ARGUMENT, "comm is NULL");
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, NULL, CTRT_COMM_SUM), CTRT_ERR_INVALID_ARGUMENT,
                "tensor is NULL");
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, 99), CTRT_ERR_INVALID_ARGUMENT, "unknown reduction");
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, z, CTRT_COMM_SUM), CTRT_ERR_SHAPE, "not contiguous");
    CHECK_FAILS(ctrt_comm_broadcast(NULL, rank->comm, x, 3), CTRT_ERR_INVALID_ARGUMENT, "rank 3 is not in group");
    CHECK_FAILS(ctrt_comm_all_gather(NULL, rank->comm, y, x), CTRT_ERR_SHAPE, "out has 6 elements, expected 12");
    CHECK_FAILS(ctrt_comm_all_gather(NULL, rank->comm, x, x), CTRT_ERR_SHAPE, "out has 4 elements, expected 12");
    CHECK_FAILS(ctrt_comm_all_to_all(NULL, rank->comm, y, y), CTRT_ERR_INVALID_ARGUMENT, "in and out overlap");
    CHECK_FAILS(ctrt_comm_reduce_scatter(NULL, rank->comm, y, x, CTRT_COMM_SUM), CTRT_ERR_SHAPE, "3 equal parts");
    CHECK_FAILS(ctrt_comm_reduce_scatter(NULL, rank->comm, y, y, CTRT_COMM_SUM), CTRT_ERR_SHAPE, "expected 2");
    CHECK_FAILS(ctrt_comm_send(NULL, rank->comm, x, rank->number), CTRT_ERR_INVALID_ARGUMENT, "itself");
    CHECK_OK(ctrt_comm_error(rank->comm));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
}

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

/* Mappings of this process that `word` occurs in. */
static int count_mappings(const char *word)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strstr(line, word) != NULL;
    if (file != NULL)
        fclose(file);
    return count;
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
    const int before = count_mappings("memfd:ctrt-comm");
    for (int i = 0; i < 3; i++)
        x[i] = shared_tensor(rank, CTRT_F32, N);
    CHECK_EQ(count_mappings("memfd:ctrt-comm"), before + (processes ? 3 : 0));
    ctrt_tensor_release(&x[me % 2]);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x[2], CTRT_COMM_SUM));
    check_range(rank->comm, "sum", x[2], 0, N, reduced(CTRT_F32, CTRT_COMM_SUM, rank->size, 0, N));
    ctrt_tensor_release(&x[1 - me % 2]);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    /* All ranks have freed x[0] and x[1], so the next free unmaps both. */
    ctrt_tensor *last = shared_tensor(rank, CTRT_F32, 10), *view = NULL;
    ctrt_tensor_release(&last);
    CHECK_EQ(count_mappings("memfd:ctrt-comm") >= before + processes, true);
    CHECK_EQ(count_mappings("memfd:ctrt-comm") <= before + 2 * processes, true);
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
    CHECK_EQ(processes ? count_mappings("memfd:ctrt-comm") : 0, 0);
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
    CHECK_EQ(count_mappings("memfd:ctrt-comm"), 1);
    x = shared_tensor(rank, CTRT_F32, 5);
    CHECK_EQ(count_mappings("memfd:ctrt-comm"), 2);
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
    int files = 0, threads = 0;
    for (int i = 0; i < 4; i++) {
        run_job(kind, 3, 30, ring, NULL, -1);
        if (i == 1)
            files = count_entries("fd"), threads = count_entries("task");
    }
    /* A thread's entry may exist for a moment after pthread_join. */
    for (int i = 0; i < 1000 && count_entries("task") > threads; i++)
        sleep_seconds(0.001);
    CHECK(count_entries("fd") <= files, "%d descriptors, expected %d", count_entries("fd"), files);
    CHECK(count_entries("task") <= threads, "%d threads, expected %d", count_entries("task"), threads);
}

/* ThreadSanitizer sees nothing of what passes between processes, and makes everything slow. */
#ifdef __SANITIZE_THREAD__
enum { SIZES_KINDS = PROCESSES, OTHER_KINDS = SIM_PROCESSES, SIZE_STEP = 2 };
#else
enum { SIZES_KINDS = KINDS, OTHER_KINDS = ALL_KINDS, SIZE_STEP = 1 };
#endif

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
