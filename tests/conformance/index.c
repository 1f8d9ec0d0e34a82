/* SPDX-License-Identifier: Apache-2.0 */
/* index.c: indexing, triangles, concatenation. */
#include <inttypes.h>

#include "suite.h"

/* ---- embedding: weight [V, D], indices; n[7] = V ---- */

static const struct variant embeddings[] = {
    { "vector", NORMAL, .in = { S(5, 3), S(4) }, .n = { [7] = 5 } },
    { "matrix", NORMAL, .in = { S(5, 3), S(2, 4) }, .n = { [7] = 5 } },
    { "nothing", ZERO_SIZE, .in = { S(5, 3), S(0) }, .n = { [7] = 5 } },
    { "one", ZERO_DIM, .in = { S(5, 3), S0 }, .n = { [7] = 5 } },
    { "", LARGE, .in = { S(131, 65), S(70) }, .n = { [7] = 131 } },
};

REFERENCE(embedding)
{
    int64_t shape[CTRT_MAX_DIMS], width = in[0].shape[1];
    memcpy(shape, in[1].shape, sizeof shape);
    shape[in[1].ndim] = width;
    array_make(out, in[0].dtype, in[1].ndim + 1, shape);
    for (int64_t k = 0; k < out->numel; k++)
        element_copy(out, k, &in[0], in[1].i[k / width] * width + k % width);
}

CALLS(embedding, ctrt_embedding(out, in[0], in[1], -1))

/* ---- index_select, gather: x, index; n[0] dim, n[7] size of that dim ---- */

static const struct variant selections[] = {
    { "dim 0", NORMAL, .in = { S(5, 3), S(4) }, .n = { 0, [7] = 5 } },
    { "dim 1", NORMAL, .in = { S(2, 4, 3), S(6) }, .n = { 1, [7] = 4 } },
    { "dim -1", NORMAL, .in = { S(2, 3, 4), S(3) }, .n = { -1, [7] = 4 } },
    { "nothing", ZERO_SIZE, .in = { S(5, 3), S(0) }, .n = { 0, [7] = 5 } },
    { "", LARGE, .in = { S(67, 70), S(45) }, .n = { 1, [7] = 70 } },
};
static const struct variant gathers[] = {
    { "dim 0", NORMAL, .in = { S(5, 3), S(2, 3) }, .n = { 0, [7] = 5 } },
    { "dim 1", NORMAL, .in = { S(2, 4, 3), S(2, 6, 3) }, .n = { 1, [7] = 4 } },
    { "dim -1, fewer rows", NORMAL, .in = { S(3, 4), S(2, 5) }, .n = { -1, [7] = 4 } },
    { "nothing", ZERO_SIZE, .in = { S(5, 3), S(0, 3) }, .n = { 0, [7] = 5 } },
    { "", LARGE, .in = { S(67, 70), S(67, 75) }, .n = { 1, [7] = 70 } },
};

REFERENCE(selection)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    int ndim = in[0].ndim, dim = dim_of(v->n[0], ndim);
    bool gather = op->name[0] == 'g';
    memcpy(shape, gather ? in[1].shape : in[0].shape, sizeof shape);
    shape[dim] = gather ? in[1].shape[dim] : in[1].shape[0];
    array_make(out, in[0].dtype, ndim, shape);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, ndim, shape);
        index[dim] = in[1].i[gather ? k : index[dim]];
        element_copy(out, k, &in[0], offset_in(&in[0], index, ndim));
    }
}

CALLS(selection, ctrt_index_select(out, in[0], (int)v->n[0], in[1]))
CALLS(gather, ctrt_gather(out, in[0], (int)v->n[0], in[1]))

/* ---- tril, triu: n[0] diagonal ---- */

static const struct variant triangles[] = {
    { "diagonal 0", NORMAL, .in = { S(4, 5) } },
    { "diagonal 1", NORMAL, .in = { S(2, 5, 4) }, .n = { 1 } },
    { "diagonal -2", NORMAL, .in = { S(5, 4) }, .n = { -2 } },
    { "diagonal 9", NORMAL, .in = { S(4, 4) }, .n = { 9 } },
    { "nothing", ZERO_SIZE, .in = { S(0, 4) } },
    { "", LARGE, .in = { S(67, 75) } },
};

REFERENCE(triangle)
{
    int64_t index[CTRT_MAX_DIMS];
    bool upper = op->name[3] == 'u';
    array_make(out, in->dtype, in->ndim, in->shape);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, in->ndim, in->shape);
        int64_t above = index[in->ndim - 1] - index[in->ndim - 2];
        if (upper ? above >= v->n[0] : above <= v->n[0])
            element_copy(out, k, in, k);
    }
}

CALLS(tril, ctrt_tril(out, in[0], v->n[0]))
CALLS(triu, ctrt_triu(out, in[0], v->n[0]))

/* ---- cat, stack: n[0] dim ---- */

static const struct variant joins[] = {
    { "dim 0", NORMAL, .in = { S(2, 3), S(1, 3), S(4, 3) } },
    { "dim 1", NORMAL, .in = { S(2, 3, 2), S(2, 1, 2), S(2, 2, 2) }, .n = { 1 } },
    { "dim -1", NORMAL, .in = { S(2, 3), S(2, 2), NONE }, .n = { -1 } },
    { "one", NORMAL, .in = { S(2, 3), NONE, NONE }, .n = { 1 } },
    { "one of them empty", ZERO_SIZE, .in = { S(2, 3), S(0, 3), S(1, 3) } },
    { "all empty", ZERO_SIZE, .in = { S(0, 3), S(0, 3), S(0, 3) } },
    { "", LARGE, .in = { S(67, 30), S(67, 1), S(67, 45) }, .n = { 1 } },
};
static const struct variant stacks[] = {
    { "dim 0", NORMAL, .in = { S(2, 3), S(2, 3), S(2, 3) } },
    { "dim 1", NORMAL, .in = { S(2, 3), S(2, 3), NONE }, .n = { 1 } },
    { "dim -1", NORMAL, .in = { S(2, 3), S(2, 3), S(2, 3) }, .n = { -1 } },
    { "empty", ZERO_SIZE, .in = { S(0, 3), S(0, 3), NONE } },
    { "", ZERO_DIM, .in = { S0, S0, S0 } },
};

static int count_of(const struct variant *v, int inputs)
{
    int count = 0;
    while (count < inputs && present(v, count))
        count++;
    return count;
}

static void join(struct array *out, const struct array *in, int count, int dim)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS], start = 0;
    memcpy(shape, in[0].shape, sizeof shape);
    for (int i = 1; i < count; i++)
        shape[dim] += in[i].shape[dim];
    array_make(out, in[0].dtype, in[0].ndim, shape);
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < in[i].numel; k++) {
            index_of(index, k, in[i].ndim, in[i].shape);
            index[dim] += start;
            element_copy(out, offset_in(out, index, out->ndim), &in[i], k);
        }
        start += in[i].shape[dim];
    }
}

REFERENCE(cat)
{
    join(out, in, count_of(v, op->inputs), dim_of(v->n[0], in[0].ndim));
}

REFERENCE(stack)
{
    struct array wide[MAX_INPUTS];
    int count = count_of(v, op->inputs), dim = dim_of(v->n[0], in[0].ndim + 1);
    for (int i = 0; i < count; i++) {
        wide[i] = in[i];
        wide[i].ndim++;
        for (int d = in[i].ndim; d > dim; d--)
            wide[i].shape[d] = in[i].shape[d - 1];
        wide[i].shape[dim] = 1;
    }
    join(out, wide, count, dim);
}

CALLS(cat, ctrt_cat(out, in, count_of(v, 3), (int)v->n[0]))
CALLS(stack, ctrt_stack(out, in, count_of(v, 3), (int)v->n[0]))

/* ---- the rows ---- */

#define ANY { REAL, -4, 4 }

static const struct check_op ops[] = {
    { "embedding", .kernel = "index_select", .dtypes = FLOATS, .flags = GRAD, .in = { ANY, { INDEX } },
      USES(embedding, embedding, embeddings) },
    { "index_select", .in = { ANY, { INDEX } }, USES(selection, selection, selections) },
    { "gather", .in = { ANY, { INDEX } }, USES(gather, selection, gathers) },
    { "tril", .in = { ANY }, USES(tril, triangle, triangles) },
    { "triu", .in = { ANY }, USES(triu, triangle, triangles) },
    { "cat", .in = { ANY, ANY, ANY }, USES(cat, cat, joins) },
    { "stack", .kernel = "cat", .dtypes = ALL, .flags = GRAD, .in = { ANY, ANY, ANY }, USES(stack, stack, stacks) },
};

/* ---- an index out of range is an error whose message contains it; a padding row gets no gradient ---- */

/* An asynchronous device reports the error at a synchronization. Returns that error, after a reset of the stream that
 * makes it usable again. */
static ctrt_status late_error(ctrt_device *device)
{
    ctrt_stream *stream = NULL;
    char message[1024];
    ctrt_status status = ctrt_stream_current(&stream, device);
    if (status == CTRT_OK)
        status = ctrt_stream_synchronize(stream);
    if (status != CTRT_OK && stream != NULL) {
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        const ctrt_status usable = ctrt_stream_reset(stream);
        if (usable == CTRT_OK)
            ctrt_fail(status, "%s", message);
    }
    ctrt_stream_release(&stream);
    return status;
}

static void expect_index_error(struct run *run, const char *what, int64_t index, ctrt_status status)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, index);
    if (status == CTRT_OK)
        status = late_error(run->device);
    if (status == CTRT_OK)
        check_fail(run, "%s: index %s of 5 was accepted", what, number);
    else if (status == CTRT_ERR_NOT_SUPPORTED)
        check_call(run, status, CTRT_F32, what);
    else if (strstr(ctrt_error_message(), number) == NULL)
        check_fail(run, "%s: the message does not contain the index %s: %s", what, number, ctrt_error_message());
}

static void check_range(struct run *run)
{
    static const int64_t wrong[] = { 7, 5, -1, 1000000000000000, -1000000000000000 };
    struct array x, index;
    array_make(&x, CTRT_F32, 2, (int64_t[]){ 5, 3 });
    array_make(&index, CTRT_I64, 2, (int64_t[]){ 1, 3 });
    for (int k = 0; k < COUNT_OF(wrong) && !run->skipped; k++) {
        CTRT_AUTO(tensor) a = NULL, i = NULL, out = NULL;
        index.i[1] = wrong[k];
        if (!upload(run, &a, &x, false) || !upload(run, &i, &index, false))
            break;
        expect_index_error(run, "embedding", wrong[k], ctrt_embedding(&out, a, i, -1));
        expect_index_error(run, "gather", wrong[k], ctrt_gather(&out, a, 0, i));
        if (check_ok(run, ctrt_reshape(&i, i, CTRT_SHAPE(3)), "reshape")) {
            expect_index_error(run, "index_select", wrong[k], ctrt_index_select(&out, a, 0, i));
            if (check_ok(run, ctrt_ones(&out, CTRT_SHAPE(3, 5), CTRT_F32, run->device), "logits"))
                expect_index_error(run, "cross_entropy", wrong[k], ctrt_cross_entropy(&out, out, i, NULL));
        }
        if (check_ok(run, ctrt_narrow(&a, a, 1, 0, 0), "narrow")) {
            expect_index_error(run, "index_select of slices without elements", wrong[k],
                               ctrt_index_select(&out, a, 0, i));
            expect_index_error(run, "embedding without elements", wrong[k], ctrt_embedding(&out, a, i, -1));
        }
    }
}

static void check_padding(struct run *run)
{
    static const int64_t rows[6] = { 2, 0, 3, 2, 3, 0 };
    struct array weight, index, want;
    CTRT_AUTO(tensor) w = NULL, i = NULL, out = NULL;
    array_make(&weight, CTRT_F32, 2, (int64_t[]){ 4, 2 });
    array_make(&index, CTRT_I64, 1, (int64_t[]){ 6 });
    array_make(&want, CTRT_F32, 2, (int64_t[]){ 4, 2 });
    for (int k = 0; k < 6; k++) {
        index.i[k] = rows[k];
        for (int64_t d = 0; rows[k] != 3 && d < 2; d++)
            want.f[rows[k] * 2 + d] += 1;
    }
    if (upload(run, &w, &weight, true) && upload(run, &i, &index, false)
        && check_call(run, ctrt_embedding(&out, w, i, 3), CTRT_F32, "embedding")
        && check_ok(run, ctrt_sum(&out, out, CTRT_ALL_DIMS), "sum") && check_ok(run, ctrt_backward(out), "backward"))
        check_tensor(run, "gradient", ctrt_tensor_grad(w), &want, EXACT, CTRT_F32);
}

static const struct check_special specials[] = {
    { "index range", "forward", "out of range", 0, .run = check_range, .kernel = "index_select" },
    { "embedding padding", "gradient", "padding row", 0, .run = check_padding, .kernel = "index_select" },
};

const struct family index_family = { "index", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
