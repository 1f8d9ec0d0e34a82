/* SPDX-License-Identifier: Apache-2.0 */
/* comm_values.h: runs one collective with known values in each rank, and compares its result with plain loops. Uses
 * tap.h. */
#ifndef CTRT_TESTS_COMM_VALUES_H
#define CTRT_TESTS_COMM_VALUES_H

#include <stdlib.h>

#include "ctrt/comm_plugin.h"
#include "ctrt/ctrt.h"
#include "tap.h"

/* ---- values ---- */

/* Whether values are small integers, whose sums and products over 4 ranks are exact in every dtype and order. */
static bool exact_values;

/* Element i of rank r's data: integers that make sums of small dtypes wrap around, or fractions that need rounding. */
static inline double value(ctrt_dtype dtype, int rank, int64_t i)
{
    if (exact_values)
        return dtype == CTRT_BOOL ? (double)((i + rank) % 3 == 0) : (double)((i * 7 + rank * 3) % 5 + 1);
    const int64_t n = (rank * 37 + i * 11) % 251;
    if (dtype == CTRT_BOOL)
        return (n >> (i % 5)) & 1;
    return ctrt_dtype_is_floating(dtype) ? (double)(n - 100) / 7 : dtype == CTRT_U8 ? (double)n : (double)(n - 120);
}

/* value(dtype, rank, i + VALUES_PERIOD) is value(dtype, rank, i). Tests have many millions of values and are not
 * optimised, so only one period is computed. */
#define VALUES_PERIOD (251 * 5 * 3)

/* The type in which `dtype` is combined. */
static inline ctrt_dtype wide_of(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : ctrt_dtype_is_floating(dtype) ? CTRT_F32 : CTRT_I64;
}

union number {
    float f;
    double d;
    int64_t i;
};

static inline void put(void *data, ctrt_dtype wide, int64_t i, union number x)
{
    if (wide == CTRT_F32)
        ((float *)data)[i] = x.f;
    else if (wide == CTRT_F64)
        ((double *)data)[i] = x.d;
    else
        ((int64_t *)data)[i] = x.i;
}

static inline union number get(const void *data, ctrt_dtype wide, int64_t i)
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

/* Repeats the first period of `count` values of type `wide`. */
static inline void *repeat_values(void *data, ctrt_dtype wide, int64_t count)
{
    const size_t size = ctrt_dtype_size(wide), total = (size_t)count * size;
    for (size_t done = VALUES_PERIOD * size, part; done < total; done += part) {
        part = done < total - done ? done : total - done;
        memcpy((char *)data + done, data, part);
    }
    return data;
}

/* Values of `count` elements of rank r's data, from element `first`, rounded to dtype, in its wide type. */
static inline void *values_of(ctrt_dtype dtype, int rank, int64_t first, int64_t count)
{
    const int64_t period = count < VALUES_PERIOD ? count : VALUES_PERIOD;
    double *data = calloc((size_t)count + 1, sizeof *data);
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *cpu = NULL;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    for (int64_t i = 0; i < period; i++)
        data[i] = value(dtype, rank, first + i);
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(period), dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, data, period, CTRT_F64));
    CHECK_OK(ctrt_to_host(data, (size_t)period * sizeof *data, x, wide_of(dtype)));
    return repeat_values(data, wide_of(dtype), count);
}

static inline ctrt_tensor *tensor_of(ctrt_device *device, ctrt_dtype dtype, int rank, int64_t count)
{
    ctrt_tensor *x = NULL;
    void *data = values_of(dtype, rank, 0, count);
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(count), dtype, device));
    CHECK_OK(ctrt_from_host_(x, data, count, wide_of(dtype)));
    free(data);
    return x;
}

static inline union number combine(union number a, union number b, ctrt_dtype dtype, ctrt_comm_op op)
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
static inline void *reduced(ctrt_dtype dtype, ctrt_comm_op op, int size, int64_t first, int64_t count)
{
    const ctrt_dtype wide = wide_of(dtype);
    const int64_t period = count < VALUES_PERIOD ? count : VALUES_PERIOD;
    void *all = values_of(dtype, 0, first, count);
    for (int rank = 1; rank < size; rank++) {
        void *other = values_of(dtype, rank, first, period);
        for (int64_t i = 0; i < period; i++)
            put(all, wide, i, combine(get(all, wide, i), get(other, wide, i), dtype, op));
        free(other);
    }
    for (int64_t i = 0; i < period && op == CTRT_COMM_AVERAGE; i++) {
        union number x = get(all, wide, i);
        put(all, wide, i, wide == CTRT_F32 ? (union number){ .f = x.f / (float)size }
                                           : (union number){ .d = x.d / (double)size });
    }
    return repeat_values(all, wide, count);
}

/* Checks the bits of elements [at, at + count) of x, and frees `wanted`. */
static inline void check_range(ctrt_comm *comm, const char *what, ctrt_tensor *x, int64_t at, int64_t count,
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
    if (memcmp(got, want, bytes) == 0)
        i = bytes;
    while (i < bytes && got[i] == want[i])
        i++;
    CHECK(i == bytes, "%s of %lld %s in group %s: rank %d of %d on %s differs at element %zu (0x%02x, expected 0x%02x)",
          what, (long long)count, ctrt_dtype_name(dtype), ctrt_comm_name(comm), ctrt_comm_rank(comm),
          ctrt_comm_size(comm), ctrt_device_name(ctrt_comm_device(comm)), at + i / ctrt_dtype_size(dtype), got[i] & 255,
          want[i] & 255);
    free(got);
    free(want);
    free(wanted);
}

/* ---- collectives ---- */

static const char *const kinds_of_collectives[CTRT_COLLECTIVE_COUNT] = {
    "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "send and recv",
};

struct collective {
    ctrt_collective kind;                   /* not RECV: SEND is a message from `root` to `to` */
    ctrt_dtype dtype;
    int64_t count;                          /* of one part */
    ctrt_comm_op op;
    int root, to;
    /* of this rank */
    ctrt_tensor *in, *out;                  /* owned */
    ctrt_work *work;                        /* owned */
};

static inline bool has_parts(ctrt_collective kind, bool out)
{
    return kind == CTRT_COLLECTIVE_ALL_TO_ALL
           || (out ? kind == CTRT_COLLECTIVE_ALL_GATHER || kind == CTRT_COLLECTIVE_GATHER
                   : kind == CTRT_COLLECTIVE_SCATTER || kind == CTRT_COLLECTIVE_REDUCE_SCATTER);
}

/* Creates the tensors of a call on the communicator's device. Rank r has the values of rank r. */
static inline void collective_tensors(struct collective *c, ctrt_comm *comm)
{
    const int me = ctrt_comm_rank(comm), size = ctrt_comm_size(comm);
    ctrt_device *device = ctrt_comm_device(comm);
    const bool in_place = c->kind <= CTRT_COLLECTIVE_REDUCE;
    c->in = tensor_of(device, c->dtype, me, c->count * (has_parts(c->kind, false) ? size : 1));
    c->out = in_place ? ctrt_tensor_retain(c->in)
                      : tensor_of(device, c->dtype, size, c->count * (has_parts(c->kind, true) ? size : 1));
}

/* Calls the collective with these tensors, in the background if `async`. */
static inline ctrt_status collective_call(struct collective *c, ctrt_comm *comm, bool async)
{
    const int me = ctrt_comm_rank(comm), root = c->root;
    ctrt_work **work = async ? &c->work : NULL;
    switch (c->kind) {
    case CTRT_COLLECTIVE_BROADCAST:      return ctrt_comm_broadcast(work, comm, c->in, c->root);
    case CTRT_COLLECTIVE_ALL_REDUCE:     return ctrt_comm_all_reduce(work, comm, c->in, c->op);
    case CTRT_COLLECTIVE_REDUCE:         return ctrt_comm_reduce(work, comm, c->in, c->op, c->root);
    case CTRT_COLLECTIVE_ALL_GATHER:     return ctrt_comm_all_gather(work, comm, c->out, c->in);
    case CTRT_COLLECTIVE_GATHER:         return ctrt_comm_gather(work, comm, me == root ? c->out : NULL, c->in, root);
    case CTRT_COLLECTIVE_SCATTER:        return ctrt_comm_scatter(work, comm, c->out, me == root ? c->in : NULL, root);
    case CTRT_COLLECTIVE_REDUCE_SCATTER: return ctrt_comm_reduce_scatter(work, comm, c->out, c->in, c->op);
    case CTRT_COLLECTIVE_ALL_TO_ALL:     return ctrt_comm_all_to_all(work, comm, c->out, c->in);
    case CTRT_COLLECTIVE_SEND:
        return me == c->root ? ctrt_comm_send(work, comm, c->in, c->to)
               : me == c->to ? ctrt_comm_recv(work, comm, c->out, c->root) : CTRT_OK;
    default:                             return ctrt_comm_barrier(comm);
    }
}

static inline ctrt_status collective_start(struct collective *c, ctrt_comm *comm, bool async)
{
    collective_tensors(c, comm);
    return collective_call(c, comm, async);
}

/* Waits, checks the result, and releases the tensors and the work. `what` begins the messages. */
static inline void collective_finish(struct collective *c, ctrt_comm *comm, const char *what)
{
    const int me = ctrt_comm_rank(comm), size = ctrt_comm_size(comm), root = c->root;
    const int64_t n = c->count;
    const ctrt_dtype dtype = c->dtype;
    char words[128];
    snprintf(words, sizeof words, "%s%s", what, kinds_of_collectives[c->kind]);
    if (c->work != NULL)
        CHECK_OK(ctrt_work_wait(c->work));
#define CHECK_PARTS(value)                                                      \
    for (int r = 0; r < size; r++)                                              \
        check_range(comm, words, c->out, n * r, n, value)
#define CHECK_WHOLE(value) check_range(comm, words, c->out, 0, n, value)
    switch (c->kind) {
    case CTRT_COLLECTIVE_BROADCAST:      CHECK_WHOLE(values_of(dtype, root, 0, n)); break;
    case CTRT_COLLECTIVE_ALL_REDUCE:     CHECK_WHOLE(reduced(dtype, c->op, size, 0, n)); break;
    case CTRT_COLLECTIVE_REDUCE_SCATTER: CHECK_WHOLE(reduced(dtype, c->op, size, n * me, n)); break;
    case CTRT_COLLECTIVE_SCATTER:        CHECK_WHOLE(values_of(dtype, root, n * me, n)); break;
    case CTRT_COLLECTIVE_REDUCE:
        CHECK_WHOLE(me == root ? reduced(dtype, c->op, size, 0, n) : values_of(dtype, me, 0, n));
        break;
    case CTRT_COLLECTIVE_SEND:           CHECK_WHOLE(values_of(dtype, me == c->to ? root : size, 0, n)); break;
    case CTRT_COLLECTIVE_ALL_TO_ALL:     CHECK_PARTS(values_of(dtype, r, n * me, n)); break;
    case CTRT_COLLECTIVE_ALL_GATHER:     CHECK_PARTS(values_of(dtype, r, 0, n)); break;
    case CTRT_COLLECTIVE_GATHER:
        CHECK_PARTS(me == root ? values_of(dtype, r, 0, n) : values_of(dtype, size, n * r, n));
        break;
    default: break;
    }
    ctrt_work_release(&c->work);
    ctrt_tensor_release(&c->in);
    ctrt_tensor_release(&c->out);
}

#endif
