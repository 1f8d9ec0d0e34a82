/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: reductions. Attributes: n[0] number of dims (-1: all), n[1..3] the dims, n[4] keepdim, n[5] correction. */
#include "suite.h"

static bool reduces(const struct variant *v, int dim, int ndim)
{
    if (v->n[0] < 0)
        return true;
    for (int k = 0; k < v->n[0]; k++)
        if (dim_of(v->n[1 + k], ndim) == dim)
            return true;
    return false;
}

static ctrt_ints dims_of(const struct variant *v)
{
    return v->n[0] < 0 ? CTRT_ALL_DIMS : ctrt_ints_of(&v->n[1], (int)v->n[0]);
}

/* The input's values in groups of `each`, one for each of `count` results, in the input's order. */
struct groups {
    int64_t count, each;
    struct array sorted;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
};

static void group(struct groups *g, const struct array *in, const struct variant *v)
{
    int64_t index[CTRT_MAX_DIMS];
    memset(g, 0, sizeof *g);
    g->count = g->each = 1;
    for (int d = 0; d < in->ndim; d++) {
        bool reduced = reduces(v, d, in->ndim);
        *(reduced ? &g->each : &g->count) *= in->shape[d];
        if (!reduced || v->n[4])
            g->shape[g->ndim++] = reduced ? 1 : in->shape[d];
    }
    int64_t *filled = scratch((size_t)g->count * sizeof *filled);
    array_make(&g->sorted, in->dtype, in->ndim, in->shape);
    for (int64_t k = 0; k < in->numel; k++) {
        int64_t to = 0;
        index_of(index, k, in->ndim, in->shape);
        for (int d = 0; d < in->ndim; d++)
            if (!reduces(v, d, in->ndim))
                to = to * in->shape[d] + index[d];
        element_copy(&g->sorted, to * g->each + filled[to]++, in, k);
    }
}

enum reduction { R_SUM, R_MEAN, R_PROD, R_AMAX, R_AMIN, R_ANY, R_ALL, R_VAR };
static const char *const reduction_names[] = { "sum", "mean", "prod", "amax", "amin", "any", "all", "var" };

/* The index in group k of the largest or smallest element: the first of equal ones; NaN takes precedence over any
 * number. */
static int64_t place_of(const struct groups *g, int64_t k, bool largest)
{
    int64_t best = 0;
    for (int64_t e = 1; e < g->each; e++) {
        const int64_t at = k * g->each + e, was = k * g->each + best;
        if (g->sorted.i) {
            const int64_t x = g->sorted.i[at], y = g->sorted.i[was];
            best = (largest ? x > y : x < y) ? e : best;
        } else {
            const double x = g->sorted.f[at], y = g->sorted.f[was];
            best = !isnan(y) && (isnan(x) || (largest ? x > y : x < y)) ? e : best;
        }
    }
    return best;
}

static double reduce_f(enum reduction what, const double *x, int64_t n, int correction, double *size)
{
    double sum = 0, squares = 0, product = 1;
    int64_t nonzero = 0;                                /* NaN is not zero */
    *size = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += x[k];
        *size += fabs(x[k]);
        product *= x[k];
        nonzero += x[k] != 0;
    }
    switch (what) {
    case R_MEAN:
        *size /= (double)n;
        return sum / (double)n;
    case R_PROD:
        *size = fabs(product);
        return product;
    case R_VAR:
        *size = 0;
        for (int64_t k = 0; k < n; k++) {
            squares += (x[k] - sum / (double)n) * (x[k] - sum / (double)n);
            *size += x[k] * x[k] / (double)(n - correction);
        }
        return squares / (double)(n - correction);
    default:
        return what == R_ANY ? nonzero > 0 : what == R_ALL ? nonzero == n : sum;
    }
}

static int64_t reduce_i(enum reduction what, const int64_t *x, int64_t n)
{
    uint64_t sum = 0, product = 1;
    int64_t nonzero = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += (uint64_t)x[k];
        product *= (uint64_t)x[k];
        nonzero += x[k] != 0;
    }
    return what == R_ANY ? nonzero > 0 : what == R_ALL ? nonzero == n : (int64_t)(what == R_PROD ? product : sum);
}

/* Of the op of that name: "sum of nothing" is a sum. */
REFERENCE(reduce)
{
    enum reduction what = 0;
    while (strncmp(op->name, reduction_names[what], strlen(reduction_names[what])) != 0)
        what++;
    struct groups g;
    group(&g, in, v);
    array_make(out, result_dtype(op, in->dtype), g.ndim, g.shape);
    double *sizes = scratch((size_t)out->numel * sizeof *sizes);
    out->size = out->f ? sizes : NULL;
    for (int64_t k = 0; k < out->numel; k++) {
        const int64_t at = k * g.each;
        if (what == R_AMAX || what == R_AMIN)
            element_copy(out, k, &g.sorted, at + place_of(&g, k, what == R_AMAX));
        else if (in->i)
            out->i[k] = wrap_to(out->dtype, reduce_i(what, g.sorted.i + at, g.each));
        else if (out->f)
            out->f[k] = reduce_f(what, g.sorted.f + at, g.each, (int)v->n[5], &sizes[k]);
        else
            out->i[k] = reduce_f(what, g.sorted.f + at, g.each, 0, &sizes[k]) != 0;
    }
}

/* Makes the results of max or min, or only the indices for argmax and argmin. */
REFERENCE(extreme)
{
    const bool values = op->outputs == 2, largest = strstr(op->name, "max") != NULL;
    struct array *index = &out[values];
    struct groups g;
    group(&g, in, v);
    if (values)
        array_make(&out[0], in->dtype, g.ndim, g.shape);
    array_make(index, CTRT_I64, g.ndim, g.shape);
    for (int64_t k = 0; k < index->numel; k++) {
        index->i[k] = place_of(&g, k, largest);
        if (values)
            element_copy(&out[0], k, &g.sorted, k * g.each + index->i[k]);
    }
}

CALLS(sum, ctrt_sum_dims(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(mean, ctrt_mean_dims(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(prod, ctrt_prod_dims(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(amax, ctrt_amax(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(amin, ctrt_amin(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(any, ctrt_any(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(all, ctrt_all(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(var, ctrt_var(out, in[0], dims_of(v), (int)v->n[5], v->n[4] != 0))
CALLS(argmax, ctrt_argmax(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(argmin, ctrt_argmin(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(max, ctrt_max(&out[0], &out[1], in[0], (int)v->n[1], v->n[4] != 0))
CALLS(min, ctrt_min(&out[0], &out[1], in[0], (int)v->n[1], v->n[4] != 0))

/* ---- shapes and dims ---- */

static const struct variant reductions[] = {
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0 } },
    { "dim 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 1, 0, 0, 1 } },
    { "dim -1", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, -1 } },
    { "vector", NORMAL, .in = { S(17) }, .n = { 1, 0 } },
    { "size 1", NORMAL, .in = { S(3, 1, 2) }, .n = { 1, 1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 1, -1 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1 } },
    { "columns", LARGE, .in = { S(129, 67) }, .n = { 1, 0 } },
    { "middle", LARGE, .in = { S(3, 1001, 5) }, .n = { 1, 1 } },
    { "", SPECIAL, .in = { S(13) }, .n = { 1, 0 } },
    /* all dims */
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1 } },
    { "all, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { -1 } },
    { "all", LARGE, .in = { S(5003) }, .n = { -1 } },
    { "all", LARGE, .in = { S(70001) }, .n = { -1 } },
    { "all", SPECIAL, .in = { S(13) }, .n = { -1 } },
    /* several dims */
    { "dims 0 and 2", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, 0, 2 } },
    { "dims -1 and 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, -1, 1, 0, 1 } },
    { "nothing kept", ZERO_SIZE, .in = { S(2, 0, 3) }, .n = { 2, 0, 2, 0, 1 } },
    { "outer and inner", LARGE, .in = { S(41, 7, 43) }, .n = { 2, 0, 2 } },
    { "outer and middle", LARGE, .in = { S(5, 3, 7, 11) }, .n = { 2, 0, 2 } },
};
enum { ONE_DIM = 11, ONE_OR_ALL = 17 };         /* numbers of variants that argmax and max accept */
/* Empty sums and products, which are 0 and 1. */
static const struct variant sums[] = {
    { "all of nothing", ZERO_SIZE, .in = { S(2, 0) }, .n = { -1 } },
    { "a dim of nothing", ZERO_SIZE, .in = { S(2, 0, 3) }, .n = { 1, 1 } },
};
static const struct variant variances[] = {
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 0, 1 } },
    { "all, biased", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 0, 0 } },
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0, 0, 0, 0, 1 } },
    { "dims 0 and 2, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, 0, 2, 0, 1, 1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1, 0, 0, 0, 1 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1, 0, 0, 0, 1 } },
};
#define ANY { REAL, -4, 4 }
#define EXTREME(own, count) \
    .in = { ANY }, .call = own##_call, .reference = extreme_reference, .variants = reductions, .variant_count = count

static const struct check_op ops[] = {
    { "sum", .tolerance = ADDED, .in = { ANY }, USES(sum, reduce, reductions) },
    { "sum of nothing", .kernel = "sum", .dtypes = ALL, .result = SUM_RULE, .in = { ANY }, USES(sum, reduce, sums) },
    { "mean", .tolerance = ADDED, .in = { ANY }, USES(mean, reduce, reductions) },
    { "mean of nothing", .kernel = "mean", .dtypes = FLOATS, .in = { ANY }, USES(mean, reduce, sums) },
    { "prod", .flags = GRAD2, .tolerance = COMPOSED, .in = { { REAL, -1.6, 1.6 } }, USES(prod, reduce, reductions) },
    { "prod of nothing", .kernel = "prod", .dtypes = NUMBERS, .result = SUM_RULE, .in = { ANY },
      USES(prod, reduce, sums) },
    { "amax", .flags = TIES, .in = { ANY }, USES(amax, reduce, reductions) },
    { "amin", .flags = TIES, .in = { ANY }, USES(amin, reduce, reductions) },
    { "any", .in = { ANY }, USES(any, reduce, reductions) },
    { "all", .in = { ANY }, USES(all, reduce, reductions) },
    { "argmax", EXTREME(argmax, ONE_OR_ALL) },
    { "argmin", EXTREME(argmin, ONE_OR_ALL) },
    { "max", .kernel = "argmax", .dtypes = NUMBERS, .flags = GRAD | TIES, .outputs = 2, EXTREME(max, ONE_DIM) },
    { "min", .kernel = "argmin", .dtypes = NUMBERS, .flags = GRAD | TIES, .outputs = 2, EXTREME(min, ONE_DIM) },
    { "var", .kernel = "mean", .dtypes = FLOATS, .flags = GRAD | GRAD2, .tolerance = COMPOSED, .in = { ANY },
      USES(var, reduce, variances) },
};

const struct family reduce_family = { "reduce", FAMILY_OPS(ops) };
