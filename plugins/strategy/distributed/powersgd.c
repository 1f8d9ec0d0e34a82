/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/powersgd.c: the hook PowerSGD (Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727),
 * with the choices of powerSGD_hook.py of PyTorch.
 *
 * The gradient of a parameter of two or more dimensions is a matrix M, [n, m], of which a rank sends two factors,
 * P [n, r] and Q [m, r], one power iteration from the Q of the last step:
 *
 *     stage 0   P = M Q, with Q orthogonalised; all_reduce of P, and of what is not compressed, in one message
 *     stage 1   Q = M^T P, with P orthogonalised; all_reduce of Q
 *     stage 2   the sum of the ranks' gradients is approximately P Q^T
 *
 * What the approximation leaves out is added to the gradient of the next step (error feedback). Each rank keeps its own
 * part, M - P (M^T P)^T. In PyTorch it keeps the difference to the mean of all ranks. The results depend only on
 * the sum over the ranks, which is the same, but the parts do not grow when ranks have different data.
 *
 * Per bucket, the state is the error and Q. It ends with the layout of the buckets. */
#include "distributed.h"

#define MIN_RATE 2                          /* compresses if that divides the number of elements by more than this */
#define SMALLEST 1e-30                      /* a shorter column is not scaled to length 1; so one of zeros stays so */

struct factor {                             /* of a gradient */
    int64_t n, m, rank;                     /* rank 0: it is not compressed */
};

struct powersgd_bucket {
    bool compressing;                       /* in this pass */
    struct factor *factors;                 /* one per gradient; NULL: the bucket was not compressed so far */
    int64_t plain, p_numel, q_numel;        /* elements of gradients that are not compressed, of all P, of all Q */
    ctrt_tensor *error;                     /* in the form of the bucket; NULL: none */
    ctrt_tensor *q;                         /* all Q, one after the other; NULL: not chosen yet */
    ctrt_tensor *message;                   /* during a pass: gradients that are not compressed, then all P */
};

struct powersgd {
    int64_t rank, start, passes;
    uint32_t layout;
    size_t count;
    struct powersgd_bucket *buckets;
};

ctrt_status powersgd_new(struct powersgd **out, int64_t rank, int64_t start)
{
    struct powersgd *state;
    CTRT_TRY(ALLOCATE(state, 1));
    state->rank = rank;
    state->start = start;
    *out = state;
    return CTRT_OK;
}

static void buckets_clear(struct powersgd *state)
{
    for (size_t b = 0; b < state->count; b++) {
        free(state->buckets[b].factors);
        ctrt_tensor_release(&state->buckets[b].error);
        ctrt_tensor_release(&state->buckets[b].q);
        ctrt_tensor_release(&state->buckets[b].message);
    }
    free(state->buckets);
    state->buckets = NULL;
    state->count = 0;
}

void powersgd_free(struct powersgd *state)
{
    if (state != NULL)
        buckets_clear(state);
    free(state);
}

/* *out: the state of the bucket, which is new after a change of the layout. */
static ctrt_status bucket_find(struct powersgd_bucket **out, struct powersgd *state, const ctrt_gradient_bucket *bucket)
{
    const size_t index = (size_t)bucket->index;
    if (state->layout != bucket->layout)
        buckets_clear(state);
    state->layout = bucket->layout;
    if (index >= state->count) {
        struct powersgd_bucket *grown = realloc(state->buckets, (index + 1) * sizeof *grown);
        CTRT_TRY(strategy_allocated(grown, (index + 1) * sizeof *grown));
        state->buckets = grown;
        for (; state->count <= index; state->count++)
            state->buckets[state->count] = (struct powersgd_bucket){ .q = NULL };
    }
    *out = &state->buckets[index];
    return CTRT_OK;
}

/* Chooses which gradients are compressed. */
static ctrt_status factors_find(struct powersgd_bucket *b, const ctrt_gradient_bucket *bucket, int64_t most)
{
    CTRT_TRY(ALLOCATE(b->factors, (size_t)bucket->count));
    b->plain = b->p_numel = b->q_numel = 0;
    for (int32_t i = 0; i < bucket->count; i++) {
        const ctrt_tensor *gradient = bucket->gradients[i];
        struct factor *f = &b->factors[i];
        const int64_t numel = ctrt_tensor_numel(gradient);
        f->n = ctrt_tensor_ndim(gradient) > 1 ? ctrt_tensor_size(gradient, 0) : 0;
        f->m = f->n > 0 ? numel / f->n : 0;
        const int64_t shorter = f->n < f->m ? f->n : f->m, rank = most < shorter ? most : shorter;
        f->rank = (f->n + f->m) * rank * MIN_RATE < numel ? rank : 0;
        b->plain += f->rank == 0 ? numel : 0;
        b->p_numel += f->n * f->rank;
        b->q_numel += f->m * f->rank;
    }
    return CTRT_OK;
}

/* ---- matrices ---- */

/* A part of a flat tensor as a matrix. */
static ctrt_status matrix_at(ctrt_tensor **out, ctrt_tensor *flat, int64_t at, int64_t rows, int64_t columns)
{
    CTRT_TRY(ctrt_narrow(out, flat, 0, at, rows * columns));
    return ctrt_view_as(out, *out, CTRT_SHAPE(rows, columns));
}

/* *to = a b, where *to exists. */
static ctrt_status product(ctrt_tensor *to, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) result = NULL;
    CTRT_TRY(ctrt_matmul(&result, a, b));
    return ctrt_copy_(to, result);
}

/* Makes the columns orthogonal and of length 1, in place, by the modified Gram-Schmidt process. */
static ctrt_status orthogonalize(ctrt_tensor *matrix)
{
    const int64_t columns = ctrt_tensor_size(matrix, 1);
    for (int64_t i = 0; i < columns; i++) {
        CTRT_AUTO(tensor) column = NULL, rest = NULL, length = NULL, dots = NULL;
        CTRT_TRY(ctrt_narrow(&column, matrix, 1, i, 1));
        CTRT_TRY(ctrt_square(&length, column));
        CTRT_TRY(ctrt_sum(&length, length, CTRT_ALL_DIMS));
        CTRT_TRY(ctrt_sqrt_(length));
        CTRT_TRY(ctrt_clamp_min_(length, ctrt_float(SMALLEST)));
        CTRT_TRY(ctrt_div_(column, length));
        if (i + 1 == columns)
            return CTRT_OK;
        CTRT_TRY(ctrt_narrow(&rest, matrix, 1, i + 1, columns - i - 1));
        CTRT_TRY(ctrt_mul(&dots, column, rest));
        CTRT_TRY(ctrt_sum_dims(&dots, dots, CTRT_DIMS(0), true));
        CTRT_TRY(ctrt_mul(&dots, dots, column));
        CTRT_TRY(ctrt_sub_(rest, dots));
    }
    return CTRT_OK;
}

/* The first Q: uniform numbers in [-1, 1) by SplitMix64 (Steele, Lea and Flood 2014) of bucket and position. Computed
 * without functions that differ between machines, because all ranks must have the same numbers. */
static ctrt_status q_new(struct powersgd_bucket *b, const ctrt_gradient_bucket *bucket)
{
    SCRATCH double *values = NULL;
    CTRT_TRY(ALLOCATE(values, (size_t)b->q_numel));
    for (int64_t i = 0; i < b->q_numel; i++) {
        uint64_t z = (((uint64_t)bucket->index << 40) + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        values[i] = (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
    }
    CTRT_TRY(ctrt_from_data(&b->q, values, b->q_numel, CTRT_SHAPE(b->q_numel), CTRT_F64,
                            ctrt_tensor_device(bucket->flat)));
    return ctrt_to_dtype(&b->q, b->q, ctrt_tensor_dtype(bucket->flat));
}

/* ---- stages ---- */

/* Where the parts of a gradient are. */
struct place {
    int64_t flat, plain, p, q;              /* in the bucket; in the message; in the message; in q */
};

static void place_next(struct place *at, const struct factor *f, const ctrt_tensor *gradient)
{
    const int64_t numel = ctrt_tensor_numel(gradient);
    at->flat += numel;
    at->plain += f->rank == 0 ? numel : 0;
    at->p += f->n * f->rank;
    at->q += f->m * f->rank;
}

/* Copies a gradient that is not compressed to the message, or the sum back. */
static ctrt_status plain_copy(const struct powersgd_bucket *b, ctrt_tensor *gradient, const struct place *at, bool in)
{
    CTRT_AUTO(tensor) part = NULL;
    CTRT_TRY(strategy_part(&part, b->message, at->plain, gradient));
    return in ? ctrt_copy_(part, gradient) : ctrt_copy_(gradient, part);
}

/* m is the gradient. The error is zero where nothing is compressed. */
static ctrt_status stage_matrix(struct powersgd_bucket *b, const ctrt_gradient_bucket *bucket, const struct factor *f,
                                const struct place *at, int stage)
{
    CTRT_AUTO(tensor) m = NULL, p = NULL, q = NULL, transposed = NULL, error = NULL, approximation = NULL;
    CTRT_TRY(matrix_at(&m, bucket->flat, at->flat, f->n, f->m));
    CTRT_TRY(matrix_at(&p, b->message, at->p, f->n, f->rank));
    CTRT_TRY(matrix_at(&q, b->q, at->q, f->m, f->rank));
    if (stage == 0) {
        CTRT_TRY(orthogonalize(q));
        return product(p, m, q);
    }
    if (stage == 1) {
        CTRT_TRY(orthogonalize(p));
        CTRT_TRY(ctrt_transpose(&transposed, p, 0, 1));             /* Q^T = P^T M: M^T would be copied first */
        CTRT_TRY(ctrt_matmul(&transposed, transposed, m));
        CTRT_TRY(ctrt_transpose(&transposed, transposed, 0, 1));
        CTRT_TRY(ctrt_copy_(q, transposed));
    }
    CTRT_TRY(ctrt_transpose(&transposed, q, 0, 1));
    if (stage == 2)
        return product(m, p, transposed);
    CTRT_TRY(ctrt_matmul(&approximation, p, transposed));
    CTRT_TRY(matrix_at(&error, b->error, at->flat, f->n, f->m));
    CTRT_TRY(ctrt_copy_(error, m));
    return ctrt_sub_(error, approximation);
}

static ctrt_status stage_all(struct powersgd_bucket *b, const ctrt_gradient_bucket *bucket, int stage)
{
    struct place at = { .p = b->plain };
    for (int32_t i = 0; i < bucket->count; i++) {
        const struct factor *f = &b->factors[i];
        if (f->rank > 0)
            CTRT_TRY(stage_matrix(b, bucket, f, &at, stage));
        else if (stage < 2)
            CTRT_TRY(plain_copy(b, bucket->gradients[i], &at, stage == 0));
        place_next(&at, f, bucket->gradients[i]);
    }
    return CTRT_OK;
}

/* Adds the error of the last step. */
static ctrt_status stage_begin(struct powersgd_bucket *b, const ctrt_gradient_bucket *bucket, int64_t rank)
{
    if (b->factors == NULL)
        CTRT_TRY(factors_find(b, bucket, rank));
    if (b->q == NULL && b->q_numel > 0)
        CTRT_TRY(q_new(b, bucket));
    if (b->error != NULL)
        CTRT_TRY(ctrt_add_(bucket->flat, b->error));
    else if (b->q_numel > 0)
        CTRT_TRY(ctrt_zeros_like(&b->error, bucket->flat, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_empty(&b->message, CTRT_SHAPE(b->plain + b->p_numel), ctrt_tensor_dtype(bucket->flat),
                      ctrt_tensor_device(bucket->flat));
}

ctrt_status powersgd_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    struct powersgd *state = user;
    struct powersgd_bucket *b = NULL;
    CTRT_TRY(bucket_find(&b, state, bucket));
    if (stage == 0) {
        b->compressing = state->passes >= state->start && hook_compresses(bucket);
        state->passes += bucket->last;
    }
    if (stage == 0 && hook_compresses(bucket) && b->factors == NULL
        && ctrt_capture_running(ctrt_tensor_device(bucket->flat)))
        return ctrt_fail(CTRT_ERR_STATE, "a capture is running, but PowerSGD compresses only after reduction %lld, "
                         "CTRT_POWERSGD_START; make one more step before the capture", (long long)state->start);
    if (!b->compressing)
        return stage == 0 ? ctrt_comm_all_reduce(work, bucket->comm, bucket->flat, CTRT_COMM_SUM) : CTRT_OK;
    if (stage == 0)
        CTRT_TRY(stage_begin(b, bucket, state->rank));
    CTRT_TRY(stage_all(b, bucket, stage));
    if (stage == 0)
        return ctrt_comm_all_reduce(work, bucket->comm, b->message, CTRT_COMM_SUM);
    if (stage == 1 && b->q_numel > 0)
        return ctrt_comm_all_reduce(work, bucket->comm, b->q, CTRT_COMM_SUM);
    ctrt_tensor_release(&b->message);
    return CTRT_OK;
}
