/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: scaled dot product attention, which is one kernel of the device or is composed of other ops by the
 * library. */
#include "suite.h"

/* ---- rows: q, k, v, mask; n[0] causal; x[0] scale ---- */

static const struct variant attentions[] = {
    { "plain", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), NONE } },
    { "causal", NORMAL, .in = { S(2, 4, 3), S(2, 4, 3), S(2, 4, 2), NONE }, .n = { 1 } },
    { "scale", NORMAL, .in = { S(3, 4), S(5, 4), S(5, 3), NONE }, .x = { 0.25 } },
    { "heads", NORMAL, .in = { S(2, 2, 3, 4), S(2, 2, 5, 4), S(2, 2, 5, 3), NONE } },
    { "mask", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(3, 5) } },
    { "mask broadcasts", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(2, 1, 5) } },
    { "no rows", ZERO_SIZE, .in = { S(2, 0, 4), S(2, 5, 4), S(2, 5, 3), NONE } },
    { "one key", NORMAL, .in = { S(2, 3, 4), S(2, 1, 4), S(2, 1, 3), NONE } },
    { "causal, more keys", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), NONE }, .n = { 1 } },
    { "causal, more rows", NORMAL, .in = { S(2, 5, 4), S(2, 3, 4), S(2, 3, 2), NONE }, .n = { 1 } },
    { "keys are shared", NORMAL, .in = { S(2, 2, 3, 4), S(5, 4), S(2, 1, 5, 3), NONE } },
    { "no keys", ZERO_SIZE, .in = { S(2, 3, 4), S(2, 0, 4), S(2, 0, 3), NONE } },
    { "", LARGE, .in = { S(3, 33, 16), S(3, 37, 16), S(3, 37, 20), NONE } },
    { "many keys", LARGE, .in = { S(2, 70, 24), S(2, 201, 24), S(2, 201, 40), NONE } },
    { "causal", LARGE, .in = { S(2, 135, 64), S(2, 135, 64), S(2, 135, 64), NONE }, .n = { 1 } },
    { "wide", LARGE, .in = { S(33, 128), S(70, 128), S(70, 100), NONE } },
    { "too wide for a kernel of its own", LARGE, .in = { S(9, 300), S(17, 300), S(17, 300), NONE } },
};
static const struct variant masked_attentions[] = {
    { "mask", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(3, 5) } },
    { "mask broadcasts", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(2, 1, 5) } },
};

REFERENCE(attention)
{
    const struct array *q = &in[0], *k = &in[1], *value = &in[2], *mask = present(v, 3) ? &in[3] : NULL;
    int n = q->ndim;
    int64_t width = q->shape[n - 1], rows = q->shape[n - 2], keys = k->shape[k->ndim - 2],
            columns = value->shape[value->ndim - 1];
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    memcpy(shape, q->shape, sizeof shape);
    shape[n - 1] = columns;
    array_make(out, q->dtype, n, shape);
    out->size = scratch((size_t)out->numel * sizeof *out->size);
    double *weights = scratch((size_t)keys * sizeof *weights),
           scale = v->x[0] != 0 ? v->x[0] : 1 / sqrt((double)width);
    for (int64_t o = 0; o < out->numel; o++) {
        index_of(index, o, n, shape);
        int64_t batch = o / (rows * columns), row = index[n - 2], column = index[n - 1];
        double most = -INFINITY, sum = 0, result = 0, size = 0;
        for (int64_t s = 0; s < keys; s++) {
            double score = 0;
            index[n - 2] = s;
            index[n - 1] = 0;
            const double *key = k->f + offset_in(k, index, n);
            for (int64_t e = 0; e < width; e++)
                score += q->f[(batch * rows + row) * width + e] * key[e];
            score *= scale;
            index[n - 2] = row;
            index[n - 1] = s;
            if (mask && mask->f)
                score += mask->f[offset_in(mask, index, n)];
            if ((mask && mask->i && !mask->i[offset_in(mask, index, n)]) || (v->n[0] && s > row))
                score = -INFINITY;
            weights[s] = score;
            most = fmax(most, score);
        }
        for (int64_t s = 0; s < keys; s++)
            sum += weights[s] = exp(weights[s] - most);
        for (int64_t s = 0; s < keys; s++) {
            index[n - 2] = s;
            index[n - 1] = column;
            double term = weights[s] / sum * value->f[offset_in(value, index, n)];
            result += term;
            size += fabs(term);
        }
        out->f[o] = result;
        out->size[o] = size;
    }
}

CALLS(attention, ctrt_scaled_dot_product_attention(out, in[0], in[1], in[2], in[3], 0, v->n[0] != 0, v->x[0]))

#define ONE { REAL, -1, 1 }

static const struct check_op ops[] = {
    { "attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD | GRAD2, .inputs = 4,
      .tolerance = COMPOSED, .call = attention_call, .in = { ONE, ONE, ONE, { CONSTANT, -2, 2 } },
      .reference = attention_reference, VARIANTS(attentions) },
    { "masked attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD, .inputs = 4,
      .tolerance = COMPOSED, .call = attention_call, .in = { ONE, ONE, ONE, { MASK, 1, 1 } },
      .reference = attention_reference, VARIANTS(masked_attentions) },
};

/* ---- results and gradients of operands larger than a kernel's tile, against the formula in float64 ---- */

/* transposed: the leaves are [batch, rows, heads, columns] and the operands are their transposes, as in a module.
 * reach: the largest magnitude of an operand; 0 means 1. Cases with a reach run only in f16 and bf16; they detect
 * scores that are rounded to that dtype. */
static const struct large {
    const char *what;
    int64_t batch, heads, rows, keys, width, values;
    bool causal, transposed;
    int reach;
} larges[] = {
    { "many keys", 1, 2, 70, 135, 24, 40, false, false, 0 },
    { "causal heads", 2, 2, 67, 67, 64, 64, true, true, 0 },
    { "causal, more rows", 1, 1, 130, 33, 16, 8, true, false, 0 },
    { "causal, more keys", 1, 2, 33, 140, 7, 5, true, true, 0 },
    { "wide", 1, 1, 5, 70, 100, 128, false, false, 0 },
    { "operands around 9", 1, 2, 33, 70, 16, 16, false, false, 9 },
};

enum { Q, K, V, DY, Y, OPERANDS };
struct problem {
    const struct large *of;
    struct array x[OPERANDS], grad[3];
};

static int64_t rows_of(const struct large *l, int operand)
{
    return operand == K || operand == V ? l->keys : l->rows;
}

static int64_t columns_of(const struct large *l, int operand)
{
    return operand == Q || operand == K ? l->width : l->values;
}

/* The address of element (row, column) of one head's matrix. */
static double *at(struct array *a, const struct problem *p, int operand, int64_t batch, int64_t head, int64_t row,
                  int64_t column)
{
    const int64_t rows = rows_of(p->of, operand), columns = columns_of(p->of, operand), heads = p->of->heads;
    const bool turned = p->of->transposed && operand < DY;
    const int64_t line = turned ? (batch * rows + row) * heads + head : (batch * heads + head) * rows + row;
    return &a->f[line * columns + column];
}
#define AT(operand, row, column) (*at(&p->x[operand], p, operand, batch, head, row, column))
#define GRAD_AT(operand, row, column) (*at(&p->grad[operand], p, operand, batch, head, row, column))

/* Computes one row's weights and result, and adds the row's contribution to the gradients. */
static void reference_row(struct problem *p, int64_t batch, int64_t head, int64_t row, double *weights)
{
    const struct large *l = p->of;
    const double scale = 1 / sqrt((double)l->width);
    const int64_t seen = l->causal && row + 1 < l->keys ? row + 1 : l->keys;
    double most = -INFINITY, sum = 0, delta = 0;
    for (int64_t s = 0; s < seen; s++) {
        weights[s] = 0;
        for (int64_t e = 0; e < l->width; e++)
            weights[s] += scale * AT(Q, row, e) * AT(K, s, e);
        most = fmax(most, weights[s]);
    }
    for (int64_t s = 0; s < seen; s++)
        sum += weights[s] = exp(weights[s] - most);
    for (int64_t s = 0; s < seen; s++)
        for (int64_t d = 0; d < l->values; d++) {
            const double weight = weights[s] / sum;
            AT(Y, row, d) += weight * AT(V, s, d);
            GRAD_AT(V, s, d) += weight * AT(DY, row, d);
            delta += weight * AT(V, s, d) * AT(DY, row, d);
        }
    for (int64_t s = 0; s < seen; s++) {
        double slope = -delta;
        for (int64_t d = 0; d < l->values; d++)
            slope += AT(V, s, d) * AT(DY, row, d);
        slope *= weights[s] / sum * scale;
        for (int64_t e = 0; e < l->width; e++) {
            GRAD_AT(Q, row, e) += slope * AT(K, s, e);
            GRAD_AT(K, s, e) += slope * AT(Q, row, e);
        }
    }
}

static void make_problem(struct problem *p, const struct large *l, ctrt_dtype dtype)
{
    struct dice dice = { 77 + (uint64_t)dtype + (uint64_t)l->keys };
    p->of = l;
    for (int i = 0; i < OPERANDS; i++) {
        const int64_t rows = rows_of(l, i), columns = columns_of(l, i);
        const bool turned = l->transposed && i < DY;
        const int64_t shape[4] = { l->batch, turned ? rows : l->heads, turned ? l->heads : rows, columns };
        array_make(&p->x[i], dtype, 4, shape);
        if (i < DY)
            array_make(&p->grad[i], dtype, 4, shape);
        for (int64_t k = 0; i < Y && k < p->x[i].numel; k++)
            p->x[i].f[k] = round_to(dtype, (2 * dice_unit(&dice) - 1) * (l->reach > 0 && i < DY ? l->reach : 1));
    }
    double *weights = scratch((size_t)l->keys * sizeof *weights);
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t h = 0; h < l->heads; h++)
            for (int64_t row = 0; row < l->rows; row++)
                reference_row(p, b, h, row, weights);
}

static void check_large(struct run *run, const struct large *l, ctrt_dtype dtype)
{
    static const char *const names[] = { "gradient of q", "gradient of k", "gradient of v" };
    struct problem p;
    struct array got;
    ctrt_tensor *leaves[3] = { NULL }, *views[3] = { NULL }, *grads[3] = { NULL };
    CTRT_AUTO(tensor) dy = NULL, y = NULL;
    const double tolerance = (dtype == CTRT_F32 || dtype == CTRT_F64 ? 128 : 12) * epsilon_of(dtype) +
        (dtype == CTRT_F32 ? 12 * run->lowered : 0);
    make_problem(&p, l, dtype);
    for (int i = 0; i < 3; i++) {
        if (!check_ok(run, array_upload(&leaves[i], &p.x[i], run->device), NULL, 0, "placing")
            || !check_ok(run, ctrt_tensor_require_grad(leaves[i], true), NULL, 0, "requiring grad"))
            goto done;
        ctrt_tensor_assign(&views[i], leaves[i]);
        if (l->transposed && !check_ok(run, ctrt_transpose(&views[i], leaves[i], 1, 2), NULL, 0, "transposing"))
            goto done;
    }
    if (!check_ok(run, array_upload(&dy, &p.x[DY], run->device), NULL, 0, "placing")
        || !check_ok(run, ctrt_scaled_dot_product_attention(&y, views[0], views[1], views[2], NULL, 0, l->causal, 0),
                     "softmax", dtype, l->what)
        || !check_ok(run, array_download(&got, y), NULL, 0, "reading the result"))
        goto done;
    check_near(run, "result", &got, &p.x[Y], tolerance, most_of(&p.x[Y]));
    if (!check_ok(run, ctrt_grad(grads, y, leaves, 3, dy, false, false, false), NULL, 0, "backward"))
        goto done;
    for (int i = 0; i < 3; i++)
        if (check_ok(run, array_download(&got, grads[i]), NULL, 0, "reading a gradient"))
            check_near(run, names[i], &got, &p.grad[i], tolerance, most_of(&p.grad[i]));
done:
    for (int i = 0; i < 3; i++) {
        ctrt_tensor_release(&leaves[i]);
        ctrt_tensor_release(&views[i]);
        ctrt_tensor_release(&grads[i]);
    }
}

static const ctrt_dtype floating[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16 };
enum { FLOATING = sizeof floating / sizeof floating[0] };

static void check_larges(struct run *run, const char *name)
{
    run->kernel = "softmax";
    for (int t = 0; t < FLOATING; t++) {
        run->lowered = run->matrices != CTRT_F32 ? epsilon_of(run->matrices) : 0;
        for (size_t k = 0; k < sizeof larges / sizeof larges[0]; k++) {
            if (larges[k].reach > 0 && floating[t] != CTRT_F16 && floating[t] != CTRT_BF16)
                continue;
            if (!check_begin(run, name, floating[t], "gradient", "gradients, %s", larges[k].what))
                continue;
            check_large(run, &larges[k], floating[t]);
            check_end(run);
        }
    }
}

/* ---- large and infinite scores ---- */

/* Infinite: k [70, 2] has -inf in 64 keys. For the three rows of q, most weights are 0; all scores are -inf, which
 * gives NaN; some scores are +inf, which gives NaN too. Large: neighbouring scores differ by 40, ascending and
 * descending. */
static void check_extremes(struct run *run, const char *name)
{
    static const double rows[5][2] = { { 1, 0.5 }, { INFINITY, -1 }, { -1, 1 }, { 0, 40 }, { 0, -40 } };
    static const struct variant v = { .in = { S(5, 2), S(70, 2), S(70, 3), NONE }, .x = { 1 } };
    run->kernel = "softmax";
    for (int t = 0; t < FLOATING; t++)
        for (int infinite = 0; infinite < 2; infinite++) {
            struct array in[3], got, want;
            ctrt_tensor *x[3] = { NULL };
            CTRT_AUTO(tensor) y = NULL;
            run->lowered = run->matrices != CTRT_F32 ? epsilon_of(run->matrices) : 0;
            if (!check_begin(run, name, floating[t], "forward", infinite ? "infinite scores" : "large scores"))
                continue;
            array_make(&in[0], floating[t], 2, (int64_t[]){ infinite ? 3 : 2, 2 });
            array_make(&in[1], floating[t], 2, (int64_t[]){ 70, 2 });
            array_make(&in[2], floating[t], 2, (int64_t[]){ 70, 3 });
            memcpy(in[0].f, rows[infinite ? 0 : 3], (size_t)in[0].numel * sizeof(double));
            for (int64_t k = 0; k < 70; k++) {
                in[1].f[2 * k] = infinite ? (k < 64 ? -INFINITY : -0.25 * (double)(k - 63)) : 0;
                in[1].f[2 * k + 1] = infinite ? 0.5 : (double)k;
                for (int64_t d = 0; d < 3; d++)
                    in[2].f[3 * k + d] = 0.25 * (double)((k * 3 + d) % 11 - 5);
            }
            attention_reference(&want, in, &v, NULL);
            bool fine = true;
            for (int i = 0; i < 3; i++)
                fine = fine && check_ok(run, array_upload(&x[i], &in[i], run->device), NULL, 0, "placing");
            if (fine && check_ok(run, ctrt_scaled_dot_product_attention(&y, x[0], x[1], x[2], NULL, 0, false, 1),
                                 "softmax", floating[t], "the call")
                && check_ok(run, array_download(&got, y), NULL, 0, "reading the result"))
                check_array(run, "result", &got, &want, COMPOSED, compute_dtype(floating[t]));
            for (int i = 0; i < 3; i++)
                ctrt_tensor_release(&x[i]);
            check_end(run);
        }
}

static const struct check_special specials[] = { { "attention", "gradient", check_larges },
                                                 { "attention", "forward", check_extremes } };

const struct family attention_family = { "attention", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
