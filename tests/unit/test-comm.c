/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages between threads and processes, compared with results that each rank computes itself. */
#include <dlfcn.h>

#include "comm_job.h"
#include "ctrt/comm_plugin.h"

/* ---- values ---- */

/* Element i of rank r's data: integers that make sums of small dtypes wrap around, or fractions that need rounding. */
static double value(ctrt_dtype dtype, int rank, int64_t i)
{
    const int64_t n = (rank * 37 + i * 11) % 251;
    if (dtype == CTRT_BOOL)
        return (n >> (i % 5)) & 1;
    return ctrt_dtype_is_floating(dtype) ? (double)(n - 100) / 7 : dtype == CTRT_U8 ? (double)n : (double)(n - 120);
}

/* The type in which `dtype` is combined. */
static ctrt_dtype wide_of(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : ctrt_dtype_is_floating(dtype) ? CTRT_F32 : CTRT_I64;
}

union number {
    float f;
    double d;
    int64_t i;
};

static void put(void *data, ctrt_dtype wide, int64_t i, union number x)
{
    if (wide == CTRT_F32)
        ((float *)data)[i] = x.f;
    else if (wide == CTRT_F64)
        ((double *)data)[i] = x.d;
    else
        ((int64_t *)data)[i] = x.i;
}

static union number get(const void *data, ctrt_dtype wide, int64_t i)
{
    union number x = { .i = 0 };
    if (wide == CTRT_F32)
        x.f = ((const float *)data)[i];
    else if (wide == CTRT_F64)
        x.d = ((const double *)data)[i];
    else
        x.i = ((const int64_t *)data)[i];
    return x;
}

/* Values of `count` elements of rank r's data, from element `first`, rounded to dtype. */
static void *values_of(ctrt_dtype dtype, int rank, int64_t first, int64_t count)
{
    double *data = calloc((size_t)count + 1, sizeof *data);
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *cpu = NULL;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    for (int64_t i = 0; i < count; i++)
        data[i] = value(dtype, rank, first + i);
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(count), dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, data, count, CTRT_F64));
    CHECK_OK(ctrt_to_host(data, (size_t)count * sizeof *data, x, wide_of(dtype)));
    return data;
}

static ctrt_tensor *tensor_of(ctrt_device *device, ctrt_dtype dtype, int rank, int64_t count)
{
    ctrt_tensor *x = NULL;
    void *data = values_of(dtype, rank, 0, count);
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(count), dtype, device));
    CHECK_OK(ctrt_from_host_(x, data, count, wide_of(dtype)));
    free(data);
    return x;
}

static union number combine(union number a, union number b, ctrt_dtype dtype, ctrt_comm_op op)
{
    const ctrt_dtype wide = wide_of(dtype);
    union number x = { .i = 0 };
#define SET(f_, d_, i_) (wide == CTRT_F32 ? (x.f = (f_), 0) : wide == CTRT_F64 ? (x.d = (d_), 0) : (x.i = (i_), 0))
    if (dtype == CTRT_BOOL)
        x.i = op == CTRT_COMM_SUM || op == CTRT_COMM_MAX ? (a.i | b.i) : (a.i & b.i);
    else if (op == CTRT_COMM_PRODUCT)
        SET(a.f * b.f, a.d * b.d, (int64_t)((uint64_t)a.i * (uint64_t)b.i));
    else if (op == CTRT_COMM_MIN)
        SET(a.f < b.f ? a.f : b.f, a.d < b.d ? a.d : b.d, a.i < b.i ? a.i : b.i);
    else if (op == CTRT_COMM_MAX)
        SET(a.f > b.f ? a.f : b.f, a.d > b.d ? a.d : b.d, a.i > b.i ? a.i : b.i);
    else
        SET(a.f + b.f, a.d + b.d, (int64_t)((uint64_t)a.i + (uint64_t)b.i));
    return x;
}

/* The reduction of elements [first, first + count) of all ranks. */
static void *reduced(ctrt_dtype dtype, ctrt_comm_op op, int size, int64_t first, int64_t count)
{
    const ctrt_dtype wide = wide_of(dtype);
    void *all = values_of(dtype, 0, first, count);
    for (int rank = 1; rank < size; rank++) {
        void *other = values_of(dtype, rank, first, count);
        for (int64_t i = 0; i < count; i++)
            put(all, wide, i, combine(get(all, wide, i), get(other, wide, i), dtype, op));
        free(other);
    }
    for (int64_t i = 0; i < count && op == CTRT_COMM_AVERAGE; i++) {
        union number x = get(all, wide, i);
        put(all, wide, i, wide == CTRT_F32 ? (union number){ .f = x.f / (float)size }
                                           : (union number){ .d = x.d / (double)size });
    }
    return all;
}

/* ---- collectives ---- */

struct data_case {
    ctrt_dtype dtype;
    int64_t count;                          /* of one part */
};

static const char *const op_names[] = { "sum", "product", "min", "max", "average" };

/* Checks the bits of elements [at, at + count) of x, and frees `wanted`. */
static void check_range(const struct rank *rank, const char *what, ctrt_tensor *x, int64_t at, int64_t count,
                        void *wanted)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(x);
    const size_t bytes = (size_t)count * ctrt_dtype_size(dtype);
    CTRT_AUTO(tensor) part = NULL, expected = NULL;
    ctrt_device *cpu = NULL;
    char *got = malloc(bytes + 1), *want = malloc(bytes + 1);
    size_t i = 0;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    CHECK_OK(ctrt_narrow(&part, x, 0, at, count));
    CHECK_OK(ctrt_to_host(got, bytes, part, dtype));
    CHECK_OK(ctrt_empty(&expected, CTRT_SHAPE(count), dtype, cpu));
    CHECK_OK(ctrt_from_host_(expected, wanted, count, wide_of(dtype)));
    CHECK_OK(ctrt_to_host(want, bytes, expected, dtype));
    while (i < bytes && got[i] == want[i])
        i++;
    CHECK(i == bytes, "%s of %lld %s between %d %s: rank %d differs at element %zu (0x%02x, expected 0x%02x)", what,
          (long long)count, ctrt_dtype_name(dtype), rank->size, kind_names[rank->kind], rank->number,
          at + i / ctrt_dtype_size(dtype), got[i] & 255, want[i] & 255);
    free(got);
    free(want);
    free(wanted);
}

static void check_reductions(struct rank *rank, ctrt_dtype dtype, int64_t n)
{
    const int size = rank->size, root = size - 1;
    for (ctrt_comm_op op = 0; op <= (n < 10000 ? CTRT_COMM_AVERAGE : CTRT_COMM_SUM); op++) {
        CTRT_AUTO(tensor) x = tensor_of(rank->device, dtype, rank->number, n);
        CTRT_AUTO(tensor) y = tensor_of(rank->device, dtype, rank->number, n);
        CTRT_AUTO(tensor) parts = tensor_of(rank->device, dtype, rank->number, n * size);
        CTRT_AUTO(tensor) part = tensor_of(rank->device, dtype, 9, n);
        if (op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(dtype)) {
            CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, op), CTRT_ERR_DTYPE, "average");
            continue;
        }
        const uint32_t version = ctrt_tensor_version(x);
        CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, op));
        CHECK_TRUE(ctrt_tensor_version(x) > version);
        check_range(rank, op_names[op], x, 0, n, reduced(dtype, op, size, 0, n));
        CHECK_OK(ctrt_comm_reduce(NULL, rank->comm, y, op, root));
        check_range(rank, "reduce", y, 0, n, rank->number == root ? reduced(dtype, op, size, 0, n)
                                                                  : values_of(dtype, rank->number, 0, n));
        CHECK_OK(ctrt_comm_reduce_scatter(NULL, rank->comm, part, parts, op));
        check_range(rank, "reduce_scatter", part, 0, n, reduced(dtype, op, size, n * rank->number, n));
    }
}

static void check_copies(struct rank *rank, ctrt_dtype dtype, int64_t n)
{
    const int size = rank->size, me = rank->number, root = size / 2;
    CTRT_AUTO(tensor) x = tensor_of(rank->device, dtype, me, n), y = tensor_of(rank->device, dtype, me, n);
    CTRT_AUTO(tensor) in = tensor_of(rank->device, dtype, me, n * size), all = NULL, one = NULL;
    CHECK_OK(ctrt_zeros_like(&all, in, 0, NULL));
    CHECK_OK(ctrt_zeros_like(&one, x, 0, NULL));
    CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, y, root));
    check_range(rank, "broadcast", y, 0, n, values_of(dtype, root, 0, n));
    CHECK_OK(ctrt_comm_scatter(NULL, rank->comm, one, me == root ? in : NULL, root));
    check_range(rank, "scatter", one, 0, n, values_of(dtype, root, n * me, n));
    CHECK_OK(ctrt_comm_all_to_all(NULL, rank->comm, all, in));
    for (int r = 0; r < size; r++)
        check_range(rank, "all_to_all", all, n * r, n, values_of(dtype, r, n * me, n));
    CHECK_OK(ctrt_zero_(all));
    CHECK_OK(ctrt_comm_all_gather(NULL, rank->comm, all, x));
    for (int r = 0; r < size; r++)
        check_range(rank, "all_gather", all, n * r, n, values_of(dtype, r, 0, n));
    CHECK_OK(ctrt_zero_(all));
    CHECK_OK(ctrt_comm_gather(NULL, rank->comm, me == root ? all : NULL, x, root));
    for (int r = 0; me == root && r < size; r++)
        check_range(rank, "gather", all, n * r, n, values_of(dtype, r, 0, n));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
}

static void collectives(struct rank *rank)
{
    static const struct data_case cases[] = {
        { CTRT_F32, 0 }, { CTRT_F32, 1 }, { CTRT_F32, 777 }, { CTRT_F32, 70001 }, { CTRT_F64, 33 }, { CTRT_F16, 777 },
        { CTRT_BF16, 777 }, { CTRT_BF16, 140001 }, { CTRT_I8, 777 }, { CTRT_U8, 777 }, { CTRT_I16, 777 },
        { CTRT_I32, 777 }, { CTRT_I64, 777 }, { CTRT_BOOL, 777 }, { CTRT_U8, 9001 },
    };
    CHECK_EQ(ctrt_comm_rank(rank->comm), rank->number);
    CHECK_EQ(ctrt_comm_size(rank->comm), rank->size);
    for (size_t i = 0; i < COUNT(cases); i++) {
        check_reductions(rank, cases[i].dtype, cases[i].count);
        check_copies(rank, cases[i].dtype, cases[i].count);
    }
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
        check_range(rank, "recv", in[i], 0, counts[i], values_of(CTRT_F32, from + i, 0, counts[i]));
        check_range(rank, "sum", sum[i], 0, counts[i], reduced(CTRT_F32, CTRT_COMM_SUM, size, 0, counts[i]));
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
    CHECK_FAILS(ctrt_comm_reduce_scatter(NULL, rank->comm, y, x, CTRT_COMM_SUM), CTRT_ERR_SHAPE, "3 equal parts");
    CHECK_FAILS(ctrt_comm_send(NULL, rank->comm, x, rank->number), CTRT_ERR_INVALID_ARGUMENT, "itself");
    CHECK_OK(ctrt_comm_error(rank->comm));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
}

/* ---- memory that the ranks share ---- */

static ctrt_status poll_nothing(void *state)
{
    return clock_seconds() < *(double *)state ? CTRT_OK : ctrt_fail(CTRT_ERR_COMM, "timeout");
}

static ctrt_status fail_mismatch(void *state, const ctrt_comm_signature *signatures)
{
    (void)state;
    return ctrt_fail(CTRT_ERR_STATE, "mismatch of collective %d", (int)signatures[0].collective);
}

static const ctrt_comm_engine *host_engine(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/comm-host.so", getenv("CTRT_PLUGIN_PATH"));
    void *object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    const ctrt_plugin *(*entry)(uint32_t, uint32_t) = NULL;
    REQUIRE(object != NULL, "%s", dlerror());
    *(void **)&entry = dlsym(object, "ctrt_plugin_v1");
    return entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR)->components[0].table;
}

/* The engine's alloc and free have no public function yet. All reductions use segments, but the last one only on rank
 * 0. */
static void segments(struct rank *rank)
{
    enum { N = 5000 };
    double end = clock_seconds() + 20;
    const ctrt_comm_engine *engine = host_engine();
    const ctrt_comm_config config = {
        .size = sizeof config, .rank = rank->number, .world = rank->size, .name = "segments", .device = rank->device,
        .store = rank->store, .timeout = 20, .state = &end, .poll = poll_nothing, .mismatch = fail_mismatch,
    };
    void *comm = NULL, *memory[2] = { NULL };
    float own[N];
    if (!CHECK_OK(engine->create(&comm, &config)))
        return;
    for (int i = 0; i < 2; i++)
        CHECK_OK(engine->alloc(comm, &memory[i], N * sizeof(float)));
    engine->free(comm, memory[0], N * sizeof(float));
    CHECK_OK(engine->alloc(comm, &memory[0], 3 * N * sizeof(float)));
    for (uint64_t turn = 1; turn <= 3; turn++) {
        float *x = turn == 3 && rank->number > 0 ? own : turn == 2 ? (float *)memory[0] + 2 * N : memory[1];
        for (int i = 0; i < N; i++)
            x[i] = (float)(rank->number + i);
        const ctrt_comm_call call = {
            .size = sizeof call, .peer = -1, .bytes = sizeof own, .send = x, .receive = x, .state = &end,
            .signature = { .sequence = turn, .count = N, .collective = CTRT_COLLECTIVE_ALL_REDUCE, .dtype = CTRT_F32,
                           .root = -1 },
        };
        CHECK_OK(engine->run(comm, &call));
        CHECK_EQ(x[0], rank->size * (rank->size - 1) / 2);
        CHECK_EQ(x[N - 1], rank->size * (rank->size - 1) / 2 + rank->size * (N - 1));
    }
    for (int i = 0; i < 2; i++)
        engine->free(comm, memory[i], 0);
    engine->destroy(comm);
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
    group("processes: shared segments");
    IN_CHILD("CTRT_SIM=devices=4")
        run_job(PROCESSES, 3, 30, segments, NULL, -1);
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
