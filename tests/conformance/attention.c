/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: scaled dot product attention, which is one kernel of the device or is composed of other ops by the
 * library. */
#include "suite.h"

/* ---- rows: q, k, v, mask; n[0] causal; n[1] transposed heads: operands [batch, rows, heads, columns], as in a module;
 *      x[0] scale ---- */

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
    { "transposed heads", NORMAL, .in = { S(2, 3, 2, 4), S(2, 5, 2, 4), S(2, 5, 2, 3), NONE }, .n = { 0, 1 } },
    { "", LARGE, .in = { S(3, 33, 16), S(3, 37, 16), S(3, 37, 20), NONE } },
    { "many keys", LARGE, .in = { S(70, 24), S(140, 24), S(140, 40), NONE } },
    { "causal", LARGE, .in = { S(100, 64), S(100, 64), S(100, 64), NONE }, .n = { 1 } },
    { "causal, transposed heads", LARGE, .in = { S(1, 67, 2, 64), S(1, 67, 2, 64), S(1, 67, 2, 64), NONE },
      .n = { 1, 1 } },
    { "causal, more rows", LARGE, .in = { S(130, 16), S(33, 16), S(33, 8), NONE }, .n = { 1 } },
    { "causal, more keys, transposed heads", LARGE, .in = { S(1, 33, 2, 8), S(1, 140, 2, 8), S(1, 140, 2, 8), NONE },
      .n = { 1, 1 } },
    { "wide", LARGE, .in = { S(33, 128), S(70, 128), S(70, 104), NONE } },
    { "wide result", LARGE, .in = { S(5, 100), S(70, 100), S(70, 128), NONE } },
    { "too wide for a kernel of its own", LARGE, .in = { S(9, 300), S(17, 300), S(17, 300), NONE } },
};
enum { MASKED = 4, MASKED_COUNT = 2 };          /* those with a mask, which begin at number 4 */
/* Masks of other shapes, and with `causal`. */
static const struct variant masks[] = {
    { "", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(3, 5) } },
    { "a mask per matrix", NORMAL, .in = { S(3, 2, 3, 4), S(3, 2, 5, 4), S(3, 2, 5, 3), S(3, 1, 1, 5) } },
    { "a mask of rows", NORMAL, .in = { S(2, 4, 4), S(2, 5, 4), S(2, 5, 3), S(4, 1) } },
    { "a mask of keys", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(5) } },
    { "a mask of one value", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(1, 1) } },
    { "no dimensions", ZERO_DIM, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S0 } },
    { "keys are shared", NORMAL, .in = { S(2, 2, 3, 4), S(5, 4), S(2, 1, 5, 3), S(2, 1, 3, 5) } },
    { "causal", NORMAL, .in = { S(2, 4, 3), S(2, 4, 3), S(2, 4, 2), S(2, 1, 4) }, .n = { 1 } },
    { "causal, more rows", NORMAL, .in = { S(2, 5, 4), S(2, 3, 4), S(2, 3, 2), S(5, 3) }, .n = { 1 } },
    { "causal, more keys", NORMAL, .in = { S(2, 3, 4), S(2, 5, 4), S(2, 5, 3), S(3, 5) }, .n = { 1 } },
    { "no keys", ZERO_SIZE, .in = { S(2, 3, 4), S(2, 0, 4), S(2, 0, 3), S(3, 0) } },
    { "", LARGE, .in = { S(3, 33, 16), S(3, 137, 16), S(3, 137, 20), S(3, 33, 137) } },
};
/* Detects scores that are rounded to half precision. */
static const struct variant large_operands[] = {
    { "operands around 9", LARGE, .in = { S(2, 33, 16), S(2, 70, 16), S(2, 70, 16), NONE } },
};

/* Turns a row's scores into weights, which are 0 if the mask hides the whole row. */
static void softmax(double *weights, int64_t n, bool hidden)
{
    double most = -INFINITY, sum = 0;
    for (int64_t s = 0; s < n && hidden; s++)
        weights[s] = 0;
    if (hidden)
        return;
    for (int64_t s = 0; s < n; s++)
        most = fmax(most, weights[s]);
    for (int64_t s = 0; s < n; s++)
        sum += weights[s] = exp(weights[s] - most);
    for (int64_t s = 0; s < n; s++)
        weights[s] /= sum;
}

REFERENCE(attention)
{
    const struct array *q = &in[0], *k = &in[1], *value = &in[2], *mask = &in[3];
    const int n = q->ndim, at_row = v->n[1] ? 1 : n - 2;
    const int64_t width = q->shape[n - 1], keys = k->shape[k->ndim - n + at_row],
                  columns = value->shape[value->ndim - 1];
    const double scale = v->x[0] != 0 ? v->x[0] : 1 / sqrt((double)width);
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    memcpy(shape, q->shape, sizeof shape);
    shape[n - 1] = columns;
    array_make_sum(out, q->dtype, n, shape);
    double *weights = scratch((size_t)keys * sizeof *weights);
    for (int64_t row = 0; row < out->numel / columns; row++) {
        index_of(index, row * columns, n, shape);
        const int64_t line = index[at_row];
        bool hidden = present(v, 3);
        for (int64_t s = 0; s < keys; s++) {
            index[at_row] = s;
            index[n - 1] = 0;
            const double *key = k->f + offset_in(k, index, n);
            weights[s] = 0;
            for (int64_t e = 0; e < width; e++)
                weights[s] += q->f[row * width + e] * key[e];
            weights[s] *= scale;
            index[at_row] = line;
            index[n - 1] = s;
            const int64_t at = present(v, 3) ? offset_in(mask, index, n) : 0;
            if (present(v, 3) && mask->f)
                weights[s] += mask->f[at];
            if ((present(v, 3) && mask->i && !mask->i[at]) || (v->n[0] && s > line))
                weights[s] = -INFINITY;
            else if (!present(v, 3) || mask->i || mask->f[at] > -INFINITY)
                hidden = false;
        }
        softmax(weights, keys, hidden);
        index[n - 1] = 0;
        for (int64_t s = 0; s < keys; s++) {
            index[at_row] = s;
            const double *from = value->f + offset_in(value, index, n);
            for (int64_t c = 0; c < columns; c++)
                add_term(out, row * columns + c, weights[s] * from[c]);
        }
    }
}

CALL(attention)
{
    CTRT_AUTO(tensor) q = ctrt_tensor_retain(in[0]), k = ctrt_tensor_retain(in[1]), value = ctrt_tensor_retain(in[2]);
    if (v->n[1]) {
        CTRT_TRY(ctrt_transpose(&q, q, 1, 2));
        CTRT_TRY(ctrt_transpose(&k, k, 1, 2));
        CTRT_TRY(ctrt_transpose(&value, value, 1, 2));
    }
    const ctrt_attention_options options =
        CTRT_WITH(ctrt_attention_options, .causal = v->n[0] != 0, .has_scale = v->x[0] != 0, .scale = v->x[0]);
    CTRT_TRY(ctrt_scaled_dot_product_attention(out, q, k, value, in[3], &options));
    return v->n[1] ? ctrt_transpose(out, *out, 1, 2) : CTRT_OK;
}

#define ONE  { REAL, -1, 1 }
#define NINE { REAL, -9, 9 }

static const struct check_op ops[] = {
    { "attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD | GRAD2 | LARGE_GRAD,
      .tolerance = COMPOSED, .in = { ONE, ONE, ONE, { CONSTANT, -2, 2 } }, USES(attention, attention, attentions) },
    { "attention of large operands", .kernel = "softmax", .dtypes = HALVES,
      .flags = MATRICES | GRAD | LARGE_GRAD, .tolerance = COMPOSED, .in = { NINE, NINE, NINE },
      USES(attention, attention, large_operands) },
    { "masked attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD, .tolerance = COMPOSED,
      .in = { ONE, ONE, ONE, { MASK, 1, 1 } }, .call = attention_call,
      .reference = attention_reference, .variants = &attentions[MASKED], .variant_count = MASKED_COUNT },
    { "attention with hidden rows, bool mask", .kernel = "softmax", .dtypes = FLOATS,
      .flags = MATRICES | GRAD | GRAD2 | LARGE_GRAD, .tolerance = COMPOSED, .in = { ONE, ONE, ONE, { MASK, -1, 1 } },
      USES(attention, attention, masks) },
    { "attention with hidden rows, floating mask", .kernel = "softmax", .dtypes = FLOATS,
      .flags = MATRICES | GRAD | GRAD2 | LARGE_GRAD, .tolerance = COMPOSED, .in = { ONE, ONE, ONE, { BIAS, -2, 2 } },
      USES(attention, attention, masks) },
};

/* ---- large and infinite scores ---- */

/* Infinite: k [70, 2] has -inf in 64 keys. For the three rows of q, most weights are 0; all scores are -inf, which
 * gives NaN; some scores are +inf, which also gives NaN. Large (without data): neighbouring scores differ by 40,
 * ascending and descending. */
static void check_extremes(struct run *run)
{
    static const double rows[5][2] = { { 1, 0.5 }, { INFINITY, -1 }, { -1, 1 }, { 0, 40 }, { 0, -40 } };
    static const struct variant v = { .in = { S(5, 2), S(70, 2), S(70, 3), NONE }, .x = { 1 } };
    const bool infinite = run->data != NULL;
    struct array in[3], want;
    CTRT_AUTO(tensor) q = NULL, keys = NULL, values = NULL, y = NULL;
    array_make(&in[0], run->dtype, 2, (int64_t[]){ infinite ? 3 : 2, 2 });
    array_make(&in[1], run->dtype, 2, (int64_t[]){ 70, 2 });
    array_make(&in[2], run->dtype, 2, (int64_t[]){ 70, 3 });
    memcpy(in[0].f, rows[infinite ? 0 : 3], (size_t)in[0].numel * sizeof(double));
    for (int64_t k = 0; k < 70; k++) {
        in[1].f[2 * k] = infinite ? (k < 64 ? -INFINITY : -0.25 * (double)(k - 63)) : 0;
        in[1].f[2 * k + 1] = infinite ? 0.5 : (double)k;
        for (int64_t d = 0; d < 3; d++)
            in[2].f[3 * k + d] = 0.25 * (double)((k * 3 + d) % 11 - 5);
    }
    attention_reference(&want, in, &v, NULL);
    if (upload(run, &q, &in[0], false) && upload(run, &keys, &in[1], false) && upload(run, &values, &in[2], false)
        && check_call(run, ctrt_scaled_dot_product_attention(&y, q, keys, values, NULL,
                                                             &CTRT_WITH(ctrt_attention_options, .has_scale = true,
                                                                        .scale = 1)), run->dtype,
                      "the call"))
        check_tensor(run, "result", y, &want, COMPOSED, compute_dtype(run->dtype));
}

#define EXTREME(what, values)                                                                               \
    { "attention", "forward", what, FLOATS, .run = check_extremes, .data = values, .kernel = "softmax",     \
      .flags = MATRICES }

static const struct check_special specials[] = {
    EXTREME("infinite scores", "infinite"),
    EXTREME("large scores", NULL),
};

const struct family attention_family = { "attention", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
