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
enum { MASKED = 4, MASKED_COUNT = 2 };          /* those with a mask, which begin at number 4 */

/* Turns a row's scores into weights. */
static void softmax(double *weights, int64_t n)
{
    double most = -INFINITY, sum = 0;
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
    const int n = q->ndim;
    const int64_t width = q->shape[n - 1], keys = k->shape[k->ndim - 2], columns = value->shape[value->ndim - 1];
    const double scale = v->x[0] != 0 ? v->x[0] : 1 / sqrt((double)width);
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    memcpy(shape, q->shape, sizeof shape);
    shape[n - 1] = columns;
    array_make_sum(out, q->dtype, n, shape);
    double *weights = scratch((size_t)keys * sizeof *weights);
    for (int64_t row = 0; row < out->numel / columns; row++) {
        index_of(index, row * columns, n, shape);
        const int64_t line = index[n - 2];
        for (int64_t s = 0; s < keys; s++) {
            index[n - 2] = s;
            index[n - 1] = 0;
            const double *key = k->f + offset_in(k, index, n);
            weights[s] = 0;
            for (int64_t e = 0; e < width; e++)
                weights[s] += q->f[row * width + e] * key[e];
            weights[s] *= scale;
            index[n - 2] = line;
            index[n - 1] = s;
            const int64_t at = present(v, 3) ? offset_in(mask, index, n) : 0;
            if (present(v, 3) && mask->f)
                weights[s] += mask->f[at];
            if ((present(v, 3) && mask->i && !mask->i[at]) || (v->n[0] && s > line))
                weights[s] = -INFINITY;
        }
        softmax(weights, keys);
        for (int64_t s = 0; s < keys; s++)
            for (int64_t c = 0; c < columns; c++) {
                index[n - 2] = s;
                index[n - 1] = c;
                add_term(out, row * columns + c, weights[s] * value->f[offset_in(value, index, n)]);
            }
    }
}

CALLS(attention, ctrt_scaled_dot_product_attention(out, in[0], in[1], in[2], in[3], 0, v->n[0] != 0, v->x[0]))

#define ONE { REAL, -1, 1 }

static const struct check_op ops[] = {
    { "attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD | GRAD2, .tolerance = COMPOSED,
      .in = { ONE, ONE, ONE, { CONSTANT, -2, 2 } }, USES(attention, attention, attentions) },
    { "masked attention", .kernel = "softmax", .dtypes = FLOATS, .flags = MATRICES | GRAD, .tolerance = COMPOSED,
      .in = { ONE, ONE, ONE, { MASK, 1, 1 } }, .call = attention_call,
      .reference = attention_reference, .variants = &attentions[MASKED], .variant_count = MASKED_COUNT },
};

/* ---- results and gradients of operands larger than a kernel's tile, against the formula in float64 ---- */

/* transposed: the leaves are [batch, rows, heads, columns] and the operands are their transposes, as in a module.
 * reach: the largest magnitude of an operand; cases with a reach above 1 detect scores that are rounded to half
 * precision. */
struct large {
    int64_t batch, heads, rows, keys, width, values;
    bool causal, transposed;
    int reach;
};

enum { Q, K, V, DY, Y, DQ, DK, DV, ARRAYS };

/* The matrices of one head. */
struct head {
    const struct large *of;
    double *x[ARRAYS];
};
#define AT(array, row, column) (h->x[array][(row) * columns_of[array] + (column)])

/* Computes one row's result, and adds the row's contribution to the gradients. */
static void reference_row(struct head *h, int64_t row, double *weights)
{
    const struct large *l = h->of;
    const int64_t w = l->width, n = l->values, columns_of[ARRAYS] = { w, w, n, n, n, w, w, n };
    const double scale = 1 / sqrt((double)l->width);
    const int64_t seen = l->causal && row + 1 < l->keys ? row + 1 : l->keys;
    double delta = 0;
    for (int64_t s = 0; s < seen; s++) {
        weights[s] = 0;
        for (int64_t e = 0; e < l->width; e++)
            weights[s] += scale * AT(Q, row, e) * AT(K, s, e);
    }
    softmax(weights, seen);
    for (int64_t s = 0; s < seen; s++)
        for (int64_t d = 0; d < l->values; d++) {
            AT(Y, row, d) += weights[s] * AT(V, s, d);
            AT(DV, s, d) += weights[s] * AT(DY, row, d);
            delta += weights[s] * AT(V, s, d) * AT(DY, row, d);
        }
    for (int64_t s = 0; s < seen; s++) {
        double slope = -delta;
        for (int64_t d = 0; d < l->values; d++)
            slope += AT(V, s, d) * AT(DY, row, d);
        slope *= weights[s] * scale;
        for (int64_t e = 0; e < l->width; e++) {
            AT(DQ, row, e) += slope * AT(K, s, e);
            AT(DK, s, e) += slope * AT(Q, row, e);
        }
    }
}

static void make_problem(struct array *x, const struct large *l, ctrt_dtype dtype)
{
    struct dice dice = { 77 + (uint64_t)dtype + (uint64_t)l->keys };
    double *weights = scratch((size_t)l->keys * sizeof *weights);
    for (int i = 0; i < ARRAYS; i++) {
        const bool of_keys = i == K || i == V || i == DK || i == DV, wide = i == Q || i == K || i == DQ || i == DK;
        array_make(&x[i], dtype, 4, (int64_t[]){ l->batch, l->heads, of_keys ? l->keys : l->rows,
                                                 wide ? l->width : l->values });
        for (int64_t k = 0; i < Y && k < x[i].numel; k++)
            value_set(&x[i], k, (2 * dice_unit(&dice) - 1) * (i < DY ? l->reach : 1));
    }
    for (int64_t head = 0; head < l->batch * l->heads; head++) {
        struct head h = { .of = l };
        for (int i = 0; i < ARRAYS; i++)
            h.x[i] = x[i].f + head * (x[i].numel / (l->batch * l->heads));
        for (int64_t row = 0; row < l->rows; row++)
            reference_row(&h, row, weights);
    }
}

/* Makes the leaf of an operand, and the operand, which is the leaf or its transpose. */
static bool make_operand(struct run *run, ctrt_tensor **leaf, ctrt_tensor **operand, const struct array *x,
                         bool transposed)
{
    if (!upload(run, leaf, x, false)
        || (transposed && (!check_ok(run, ctrt_transpose(leaf, *leaf, 1, 2), "transposing")
                           || !check_ok(run, ctrt_contiguous(leaf, *leaf, CTRT_CONTIGUOUS_FORMAT), "transposing")))
        || !check_ok(run, ctrt_tensor_require_grad(*leaf, true), "requiring grad"))
        return false;
    ctrt_tensor_assign(operand, *leaf);
    return !transposed || check_ok(run, ctrt_transpose(operand, *leaf, 1, 2), "transposing");
}

static void check_large(struct run *run)
{
    static const char *const names[] = { "gradient of q", "gradient of k", "gradient of v" };
    const struct large *l = run->data;
    const ctrt_dtype dtype = run->dtype;
    struct array x[ARRAYS];
    ctrt_tensor *leaves[3] = { NULL }, *in[3] = { NULL }, *grads[3] = { NULL };
    CTRT_AUTO(tensor) dy = NULL, y = NULL;
    const double tolerance = (dtype == CTRT_F32 || dtype == CTRT_F64 ? 128 : 12) * epsilon_of(dtype)
                             + (dtype == CTRT_F32 ? 12 * run->lowered : 0);
    make_problem(x, l, dtype);
    bool fine = upload(run, &dy, &x[DY], false);
    for (int i = 0; i < 3; i++)
        fine = fine && make_operand(run, &leaves[i], &in[i], &x[i], l->transposed);
    fine = fine && check_call(run, ctrt_scaled_dot_product_attention(&y, in[0], in[1], in[2], NULL, 0, l->causal, 0),
                              dtype, "the call");
    if (fine)
        check_tensor_near(run, "result", y, &x[Y], tolerance, most_of(&x[Y]));
    fine = fine && check_ok(run, ctrt_grad(grads, y, leaves, 3, dy, false, false, false), "backward");
    for (int i = 0; i < 3; i++) {
        if (fine && (!l->transposed || check_ok(run, ctrt_transpose(&grads[i], grads[i], 1, 2), "transposing")))
            check_tensor_near(run, names[i], grads[i], &x[DQ + i], tolerance, most_of(&x[DQ + i]));
        ctrt_tensor_release(&leaves[i]);
        ctrt_tensor_release(&in[i]);
        ctrt_tensor_release(&grads[i]);
    }
}

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
        && check_call(run, ctrt_scaled_dot_product_attention(&y, q, keys, values, NULL, 0, false, 1), run->dtype,
                      "the call"))
        check_tensor(run, "result", y, &want, COMPOSED, compute_dtype(run->dtype));
}

#define SPECIAL_ATTENTION(tag, what, dtypes, function, values) \
    { "attention", tag, what, dtypes, .run = function, .data = values, .kernel = "softmax", .flags = MATRICES }
#define LARGE_ATTENTION(what, dtypes, ...) \
    SPECIAL_ATTENTION("gradient", "gradients, " what, dtypes, check_large, (&(const struct large){ __VA_ARGS__ }))

static const struct check_special specials[] = {
    LARGE_ATTENTION("many keys", FLOATS, 1, 2, 70, 135, 24, 40, false, false, 1),
    LARGE_ATTENTION("causal heads", FLOATS, 2, 2, 67, 67, 64, 64, true, true, 1),
    LARGE_ATTENTION("causal, more rows", FLOATS, 1, 1, 130, 33, 16, 8, true, false, 1),
    LARGE_ATTENTION("causal, more keys", FLOATS, 1, 2, 33, 140, 7, 5, true, true, 1),
    LARGE_ATTENTION("wide", FLOATS, 1, 1, 5, 70, 100, 128, false, false, 1),
    LARGE_ATTENTION("operands around 9", HALVES, 1, 2, 33, 70, 16, 16, false, false, 9),
    SPECIAL_ATTENTION("forward", "infinite scores", FLOATS, check_extremes, "infinite"),
    SPECIAL_ATTENTION("forward", "large scores", FLOATS, check_extremes, NULL),
};

const struct family attention_family = { "attention", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
