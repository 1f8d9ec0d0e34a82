/* SPDX-License-Identifier: Apache-2.0 */
/* comm_bodies.h: tests that every engine of communicators must pass, as functions for run_job (comm_job.h): all
 * collectives with all dtypes, messages and works, groups of a split, reuse of tensors, the flight record, wrong
 * arguments. */
#ifndef CTRT_TESTS_COMM_BODIES_H
#define CTRT_TESTS_COMM_BODIES_H

#include "comm_job.h"
#include "comm_values.h"

/* ---- collectives ---- */

struct data_case {
    ctrt_dtype dtype;
    int64_t count;                          /* of one part */
};

/* Threads meet in the same way whatever the dtype and the reduction are, so under ThreadSanitizer there are the first
 * cases only, and sums. */
#ifdef __SANITIZE_THREAD__
enum { DATA_CASES = 6, LAST_OP = CTRT_COMM_SUM };
#else
enum { DATA_CASES = 15, LAST_OP = CTRT_COMM_AVERAGE };
#endif

static const char *const op_names[] = { "sum: ", "product: ", "min: ", "max: ", "average: " };

/* Every collective, with every reduction if the data is small. */
static inline void check_collectives(struct rank *rank, ctrt_dtype dtype, int64_t n)
{
    for (ctrt_collective kind = CTRT_COLLECTIVE_BARRIER; kind <= CTRT_COLLECTIVE_ALL_TO_ALL; kind++) {
        const bool reduces = kind == CTRT_COLLECTIVE_ALL_REDUCE || kind == CTRT_COLLECTIVE_REDUCE
                             || kind == CTRT_COLLECTIVE_REDUCE_SCATTER;
        const ctrt_comm_op last = reduces && n < 10000 ? LAST_OP : CTRT_COMM_SUM;
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

static inline void collectives(struct rank *rank)
{
    static const struct data_case cases[15] = {
        { CTRT_F32, 0 }, { CTRT_F32, 1 }, { CTRT_F32, 777 }, { CTRT_F32, 20001 }, { CTRT_BF16, 30001 },
        { CTRT_U8, 9001 }, { CTRT_F64, 33 }, { CTRT_F16, 777 }, { CTRT_BF16, 777 }, { CTRT_I8, 777 }, { CTRT_U8, 777 },
        { CTRT_I16, 777 }, { CTRT_I32, 777 }, { CTRT_I64, 777 }, { CTRT_BOOL, 777 },
    };
    CHECK_EQ(ctrt_comm_rank(rank->comm), rank->number);
    CHECK_EQ(ctrt_comm_size(rank->comm), rank->size);
    for (size_t i = 0; i < DATA_CASES; i++)
        check_collectives(rank, cases[i].dtype, cases[i].count);
    if (rank->kind == PROCESSES)            /* several pieces */
        check_collectives(rank, CTRT_F32, 150001);
}

/* ---- several calls at the same time ---- */

/* Each rank sends to the next one, receives from the one before, and reduces, all in the background. */
static inline void ring(struct rank *rank)
{
    enum { TURNS = 5 };
    const int64_t counts[TURNS] = { 100, 0, rank->size > 4 ? 10003 : 100003, 1, 5000 };
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
static inline void split(struct rank *rank)
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

/* Changes the tensor, on a stream of the rank's own, while other ranks may still read it. */
static inline void reuse(struct rank *rank)
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

/* Returns the report's next value of `key`, a time in seconds since 1970, and advances *at past the key. */
static inline double time_of(const char **at, const char *key)
{
    const char *found = strstr(*at, key);
    if (!CHECK(found != NULL, "the report has no %s", key))
        return 0;
    *at = found + strlen(key);
    return strtod(*at, NULL) * 1e-9;
}

/* Checks the times in the flight record, of two blocking calls and one in the background, with pauses between them. */
static inline void record(struct rank *rank)
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

static inline void bad_input(struct rank *rank)
{
    CTRT_AUTO(tensor) x = tensor_of(rank->device, CTRT_F32, 0, 4), z = NULL;
    CTRT_AUTO(tensor) y = tensor_of(rank->device, CTRT_F32, 0, 6);
    CHECK_OK(ctrt_reshape(&z, y, CTRT_SHAPE(2, 3)));
    CHECK_OK(ctrt_t(&z, z));
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

#endif
