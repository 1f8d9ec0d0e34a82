/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c: layer and batch normalisation. */
#include "suite.h"

/* ---- layer_norm: n[0] number of normalised dims; x[0] epsilon ---- */

static const struct variant layers[] = {
    { "last dim", NORMAL, .in = { S(3, 4, 5), S(5), S(5) }, .n = { 1 }, .x = { 1e-5 } },
    { "two dims", NORMAL, .in = { S(3, 4, 5), S(4, 5), S(4, 5) }, .n = { 2 }, .x = { 1e-3 } },
    { "no weight", NORMAL, .in = { S(3, 5), NONE, NONE }, .n = { 1 }, .x = { 1e-5 } },
    { "no bias", NORMAL, .in = { S(3, 5), S(5), NONE }, .n = { 1 }, .x = { 1e-5 } },
    { "no rows", ZERO_SIZE, .in = { S(0, 5), S(5), S(5) }, .n = { 1 }, .x = { 1e-5 } },
    { "", LARGE, .in = { S(37, 133), S(133), S(133) }, .n = { 1 }, .x = { 1e-5 } },
};

/* Mean and biased variance of n values. */
static void statistics(const double *x, int64_t n, double *mean, double *variance)
{
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < n; k++)
        sum += x[k];
    *mean = sum / (double)n;
    for (int64_t k = 0; k < n; k++)
        squares += (x[k] - *mean) * (x[k] - *mean);
    *variance = squares / (double)n;
}

static void set(struct array *out, int64_t k, double x, double mean, double scale, double weight, double bias)
{
    out->f[k] = (x - mean) * scale * weight + bias;
    out->size[k] = (fabs(x) + fabs(mean)) * scale * fabs(weight) + fabs(bias);
}

REFERENCE(layer)
{
    int64_t n = 1;
    for (int d = in->ndim - (int)v->n[0]; d < in->ndim; d++)
        n *= in->shape[d];
    array_make_sum(out, in->dtype, in->ndim, in->shape);
    for (int64_t row = 0; row < in->numel / n; row++) {
        double mean, variance;
        statistics(in->f + row * n, n, &mean, &variance);
        for (int64_t k = 0; k < n; k++)
            set(out, row * n + k, in->f[row * n + k], mean, 1 / sqrt(variance + v->x[0]),
                present(v, 1) ? in[1].f[k] : 1, present(v, 2) ? in[2].f[k] : 0);
    }
}

CALL(layer)
{
    int n = ctrt_tensor_ndim(in[0]);
    return ctrt_layer_norm(out, in[0], ctrt_ints_of(ctrt_tensor_shape(in[0]) + n - v->n[0], (int)v->n[0]),
                           in[1], in[2], v->x[0]);
}

/* ---- batch_norm: x, weight, bias, running_mean, running_var; n[0] training; x[0] momentum, x[1] epsilon.
 *      Results: y, and the updated running statistics if they are inputs. ---- */

static const struct variant batches[] = {
    { "training [N,C]", NORMAL, .in = { S(6, 3), S(3), S(3), S(3), S(3) }, .n = { 1 }, .x = { 0.125, 1e-5 } },
    { "training [N,C,L]", NORMAL, .in = { S(2, 3, 5), S(3), S(3), S(3), S(3) }, .n = { 1 },
      .x = { 0.25, 1e-5 } },
    { "training [N,C,H,W]", NORMAL, .in = { S(2, 3, 2, 4), S(3), S(3), S(3), S(3) }, .n = { 1 },
      .x = { 0.125, 1e-3 } },
    { "evaluation [N,C]", NORMAL, .in = { S(6, 3), S(3), S(3), S(3), S(3) }, .n = { 0 }, .x = { 0.125, 1e-5 } },
    { "evaluation [N,C,H,W]", NORMAL, .in = { S(2, 3, 2, 4), S(3), S(3), S(3), S(3) }, .n = { 0 },
      .x = { 0.125, 1e-5 } },
    { "evaluation, not affine", NORMAL, .in = { S(2, 3, 2, 4), NONE, NONE, S(3), S(3) }, .n = { 0 },
      .x = { 0.125, 1e-5 } },
    { "evaluation of nothing", ZERO_SIZE, .in = { S(0, 3), S(3), S(3), S(3), S(3) }, .n = { 0 },
      .x = { 0.125, 1e-5 } },
    { "training", LARGE, .in = { S(9, 17, 5, 6), S(17), S(17), S(17), S(17) }, .n = { 1 },
      .x = { 0.125, 1e-5 } },
};
static const struct variant batches_without[] = {
    { "affine", NORMAL, .in = { S(4, 3, 3), S(3), S(3), NONE, NONE }, .n = { 1 }, .x = { 0.125, 1e-5 } },
    { "not affine", NORMAL, .in = { S(4, 3, 2, 2), NONE, NONE, NONE, NONE }, .n = { 1 }, .x = { 0.125, 1e-5 } },
};

REFERENCE(batch)
{
    int64_t channels = in->shape[1], inner = 1, n;
    for (int d = 2; d < in->ndim; d++)
        inner *= in->shape[d];
    n = in->shape[0] * inner;
    array_make_sum(&out[0], in->dtype, in->ndim, in->shape);
    for (int o = 1; o <= 2 && present(v, 3); o++)
        array_make(&out[o], in[2 + o].dtype, 1, &channels);
    double *x = scratch((size_t)n * sizeof *x);
    for (int64_t c = 0; c < channels; c++) {
        double mean = 0, variance = 0;
        for (int64_t k = 0; k < n; k++)
            x[k] = in->f[(k / inner * channels + c) * inner + k % inner];
        if (v->n[0]) {
            statistics(x, n, &mean, &variance);
        } else {
            mean = in[3].f[c];
            variance = in[4].f[c];
        }
        for (int64_t k = 0; k < n; k++)
            set(&out[0], (k / inner * channels + c) * inner + k % inner, x[k], mean, 1 / sqrt(variance + v->x[1]),
                present(v, 1) ? in[1].f[c] : 1, present(v, 2) ? in[2].f[c] : 0);
        if (!present(v, 3))
            continue;
        double move = v->n[0] ? v->x[0] : 0, unbiased = n > 1 ? variance * (double)n / (double)(n - 1) : 0;
        out[1].f[c] = (1 - move) * in[3].f[c] + move * mean;
        out[2].f[c] = (1 - move) * in[4].f[c] + (move != 0 ? move * unbiased : 0);
    }
}

CALL(batch)
{
    for (int o = 1; o <= 2 && in[3] != NULL; o++)
        CTRT_TRY(ctrt_clone(&out[o], in[2 + o]));
    return ctrt_batch_norm(&out[0], in[0], in[1], in[2], out[1], out[2], v->n[0] != 0, v->x[0], v->x[1]);
}

#define ANY { REAL, -2, 2 }

static const struct check_op ops[] = {
    { "layer_norm", .flags = GRAD2, .tolerance = COMPOSED, .in = { ANY, ANY, ANY }, USES(layer, layer, layers) },
    { "batch_norm", .flags = GRAD2 | TIES, .outputs = 3, .tolerance = COMPOSED,
      .in = { ANY, ANY, ANY, { CONSTANT, -1, 1 }, { CONSTANT, 0.5, 2 } }, USES(batch, batch, batches) },
    { "batch_norm of batches alone", .kernel = "batch_norm", .dtypes = FLOATS, .flags = GRAD | GRAD2 | TIES,
      .tolerance = COMPOSED, .in = { ANY, ANY, ANY }, USES(batch, batch, batches_without) },
};

const struct family norm_family = { "norm", FAMILY_OPS(ops) };
