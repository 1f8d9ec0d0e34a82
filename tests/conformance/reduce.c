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

/* The input's values grouped by result: `each` values for each of `count` results, in the input's order. */
struct groups {
    int64_t count, each;
    double *f;
    int64_t *i;
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
    if (in->f)
        g->f = scratch((size_t)in->numel * sizeof *g->f);
    else
        g->i = scratch((size_t)in->numel * sizeof *g->i);
    for (int64_t k = 0; k < in->numel; k++) {
        int64_t to = 0;
        index_of(index, k, in->ndim, in->shape);
        for (int d = 0; d < in->ndim; d++)
            if (!reduces(v, d, in->ndim))
                to = to * in->shape[d] + index[d];
        int64_t at = to * g->each + filled[to]++;
        if (in->f)
            g->f[at] = in->f[k];
        else
            g->i[at] = in->i[k];
    }
}

enum reduction { R_SUM, R_MEAN, R_PROD, R_AMAX, R_AMIN, R_ANY, R_ALL, R_VAR };

static double reduce_f(enum reduction what, const double *x, int64_t n, int correction, double *size)
{
    double sum = 0, total = 0, product = 1;
    for (int64_t k = 0; k < n; k++) {
        sum += x[k];
        total += fabs(x[k]);
        product *= x[k];
    }
    *size = total;
    switch (what) {
    case R_SUM:
        return sum;
    case R_MEAN:
        *size = total / (double)n;
        return sum / (double)n;
    case R_PROD:
        *size = fabs(product);
        return product;
    case R_VAR: {
        double mean = sum / (double)n, squares = 0, all = 0;
        for (int64_t k = 0; k < n; k++) {
            squares += (x[k] - mean) * (x[k] - mean);
            all += x[k] * x[k];
        }
        *size = all / (double)(n - correction);
        return squares / (double)(n - correction);
    }
    default:
        break;
    }
    double best = n ? x[0] : 0;
    bool any = false, every = true;
    for (int64_t k = 0; k < n; k++) {
        any |= x[k] != 0;                               /* also true for NaN */
        every &= x[k] != 0;
        if (isnan(best))
            continue;
        if (isnan(x[k]) || (what == R_AMAX ? x[k] > best : x[k] < best))
            best = x[k];
    }
    return what == R_ANY ? any : what == R_ALL ? every : best;
}

static int64_t reduce_i(enum reduction what, const int64_t *x, int64_t n)
{
    uint64_t sum = 0, product = 1;
    int64_t best = n ? x[0] : 0;
    bool any = false, every = true;
    for (int64_t k = 0; k < n; k++) {
        sum += (uint64_t)x[k];
        product *= (uint64_t)x[k];
        any |= x[k] != 0;
        every &= x[k] != 0;
        if (what == R_AMAX ? x[k] > best : x[k] < best)
            best = x[k];
    }
    switch (what) {
    case R_SUM:  return (int64_t)sum;
    case R_PROD: return (int64_t)product;
    case R_ANY:  return any;
    case R_ALL:  return every;
    default:     return best;
    }
}

static void reduce_reference(struct array *out, const struct array *in, const struct variant *v,
                             const struct check_op *op, enum reduction what)
{
    struct groups g;
    group(&g, in, v);
    array_make(out, result_dtype(op, in->dtype), g.ndim, g.shape);
    if (out->f)
        out->size = scratch((size_t)out->numel * sizeof *out->size);
    for (int64_t k = 0; k < out->numel; k++)
        if (in->f) {
            double size, value = reduce_f(what, g.f + k * g.each, g.each, (int)v->n[5], &size);
            if (out->f) {
                out->f[k] = value;
                out->size[k] = size;
            } else {
                out->i[k] = value != 0;
            }
        } else {
            out->i[k] = wrap_to(out->dtype, reduce_i(what, g.i + k * g.each, g.each));
        }
}

/* The index in group k of the largest or smallest element: the first of equal ones; NaN takes precedence over any
 * number. */
static int64_t place_of(const struct groups *g, int64_t k, bool largest)
{
    int64_t best = 0;
    for (int64_t e = 1; e < g->each; e++) {
        if (g->i) {
            int64_t x = g->i[k * g->each + e], y = g->i[k * g->each + best];
            if (largest ? x > y : x < y)
                best = e;
            continue;
        }
        double x = g->f[k * g->each + e], y = g->f[k * g->each + best];
        if (!isnan(y) && (isnan(x) || (largest ? x > y : x < y)))
            best = e;
    }
    return best;
}

/* Makes the results of max or min, or only the indices for argmax and argmin. */
static void extreme_reference(struct array *out, const struct array *in, const struct variant *v,
                              const struct check_op *op)
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
        const int64_t at = k * g.each + index->i[k];
        if (values && g.f)
            out[0].f[k] = g.f[at];
        else if (values)
            out[0].i[k] = g.i[at];
    }
}

#define REDUCTION(name, function, what)                                     \
    REFERENCE(name)                                                         \
    {                                                                       \
        reduce_reference(out, in, v, op, what);                             \
    }                                                                       \
    CALLS(name, function(out, in[0], dims_of(v), v->n[4] != 0))
REDUCTION(sum, ctrt_sum_dims, R_SUM)
REDUCTION(mean, ctrt_mean_dims, R_MEAN)
REDUCTION(prod, ctrt_prod_dims, R_PROD)
REDUCTION(amax, ctrt_amax, R_AMAX)
REDUCTION(amin, ctrt_amin, R_AMIN)
REDUCTION(any, ctrt_any, R_ANY)
REDUCTION(all, ctrt_all, R_ALL)

REFERENCE(var)
{
    reduce_reference(out, in, v, op, R_VAR);
}
CALLS(var, ctrt_var(out, in[0], dims_of(v), (int)v->n[5], v->n[4] != 0))

CALLS(argmax, ctrt_argmax(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(argmin, ctrt_argmin(out, in[0], dims_of(v), v->n[4] != 0))
CALLS(max, ctrt_max(&out[0], &out[1], in[0], (int)v->n[1], v->n[4] != 0))
CALLS(min, ctrt_min(&out[0], &out[1], in[0], (int)v->n[1], v->n[4] != 0))

/* ---- shapes and dims ---- */

static const struct variant reductions[] = {
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1 } },
    { "all, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 1 } },
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0 } },
    { "dim 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 1, 0, 0, 1 } },
    { "dim -1", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, -1 } },
    { "dims 0 and 2", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, 0, 2 } },
    { "dims -1 and 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, -1, 1, 0, 1 } },
    { "vector", NORMAL, .in = { S(17) }, .n = { 1, 0 } },
    { "size 1", NORMAL, .in = { S(3, 1, 2) }, .n = { 1, 1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1 } },
    { "nothing kept", ZERO_SIZE, .in = { S(2, 0, 3) }, .n = { 2, 0, 2, 0, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { -1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 1, -1 } },
    { "all", LARGE, .in = { S(5003) }, .n = { -1 } },
    { "all", LARGE, .in = { S(70001) }, .n = { -1 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1 } },
    { "columns", LARGE, .in = { S(129, 67) }, .n = { 1, 0 } },
    { "middle", LARGE, .in = { S(3, 1001, 5) }, .n = { 1, 1 } },
    { "outer and inner", LARGE, .in = { S(41, 7, 43) }, .n = { 2, 0, 2 } },
    { "all", SPECIAL, .in = { S(13) }, .n = { -1 } },
};
/* Empty sums, which are 0. */
static const struct variant sums[] = {
    { "all of nothing", ZERO_SIZE, .in = { S(2, 0) }, .n = { -1 } },
    { "a dim of nothing", ZERO_SIZE, .in = { S(2, 0, 3) }, .n = { 1, 1 } },
};
/* argmax, argmin: one dim, or all. */
static const struct variant arguments[] = {
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1 } },
    { "all, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 1 } },
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0 } },
    { "dim 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 1, 0, 0, 1 } },
    { "dim -1", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, -1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { -1 } },
    { "all", LARGE, .in = { S(5003) }, .n = { -1 } },
    { "all", LARGE, .in = { S(70001) }, .n = { -1 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1 } },
    { "columns", LARGE, .in = { S(129, 67) }, .n = { 1, 0 } },
    { "all", SPECIAL, .in = { S(13) }, .n = { -1 } },
};
static const struct variant extremes[] = {
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0 } },
    { "dim 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 1, 0, 0, 1 } },
    { "dim -1", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, -1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 1, 0 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1 } },
    { "", SPECIAL, .in = { S(13) }, .n = { 1, 0 } },
};
static const struct variant variances[] = {
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 0, 1 } },
    { "all, biased", NORMAL, .in = { S(3, 4, 5) }, .n = { -1, 0, 0, 0, 0, 0 } },
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0, 0, 0, 0, 1 } },
    { "dims 0 and 2, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, 0, 2, 0, 1, 1 } },
    { "nothing over a dim", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1, 0, 0, 0, 1 } },
    { "rows", LARGE, .in = { S(67, 129) }, .n = { 1, 1, 0, 0, 0, 1 } },
};
static const struct variant products[] = {
    { "all", NORMAL, .in = { S(3, 4, 5) }, .n = { -1 } },
    { "dim 0", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 0 } },
    { "dim 1, kept", NORMAL, .in = { S(3, 4, 5) }, .n = { 1, 1, 0, 0, 1 } },
    { "dims 0 and 2", NORMAL, .in = { S(3, 4, 5) }, .n = { 2, 0, 2 } },
    { "all of nothing", ZERO_SIZE, .in = { S(2, 0) }, .n = { -1 } },
    { "a dim of nothing", ZERO_SIZE, .in = { S(2, 0, 3) }, .n = { 1, 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { -1 } },
    { "rows", LARGE, .in = { S(129, 37) }, .n = { 1, 1 } },
    { "all", SPECIAL, .in = { S(13) }, .n = { -1 } },
};

#define ANY { REAL, -4, 4 }

static const struct check_op ops[] = {
    { "sum", .inputs = 1, .tolerance = ADDED,
      .call = sum_call, .in = { ANY }, .reference = sum_reference, VARIANTS(reductions) },
    { "sum of nothing", .kernel = "sum", .dtypes = ALL, .inputs = 1, .result = SUM_RULE, .call = sum_call,
      .in = { ANY }, .reference = sum_reference, VARIANTS(sums) },
    { "mean", .inputs = 1, .tolerance = ADDED, .call = mean_call,
      .in = { ANY }, .reference = mean_reference, VARIANTS(reductions) },
    { "mean of nothing", .kernel = "mean", .dtypes = FLOATS, .inputs = 1, .call = mean_call, .in = { ANY },
      .reference = mean_reference, VARIANTS(sums) },
    { "prod", .flags = GRAD2, .inputs = 1, .tolerance = COMPOSED,
      .call = prod_call, .in = { { REAL, -1.6, 1.6 } }, .reference = prod_reference, VARIANTS(products) },
    { "amax", .flags = TIES, .inputs = 1, .call = amax_call, .in = { ANY },
      .reference = amax_reference, VARIANTS(reductions) },
    { "amin", .flags = TIES, .inputs = 1, .call = amin_call, .in = { ANY },
      .reference = amin_reference, VARIANTS(reductions) },
    { "any", .inputs = 1, .call = any_call, .in = { ANY },
      .reference = any_reference, VARIANTS(reductions) },
    { "all", .inputs = 1, .call = all_call, .in = { ANY },
      .reference = all_reference, VARIANTS(reductions) },
    { "argmax", .inputs = 1, .call = argmax_call, .in = { ANY },
      .reference = extreme_reference, VARIANTS(arguments) },
    { "argmin", .inputs = 1, .call = argmin_call, .in = { ANY },
      .reference = extreme_reference, VARIANTS(arguments) },
    { "max", .kernel = "argmax", .dtypes = NUMBERS, .flags = GRAD | TIES, .inputs = 1, .outputs = 2,
      .call = max_call, .in = { ANY }, .reference = extreme_reference, VARIANTS(extremes) },
    { "min", .kernel = "argmin", .dtypes = NUMBERS, .flags = GRAD | TIES, .inputs = 1, .outputs = 2,
      .call = min_call, .in = { ANY }, .reference = extreme_reference, VARIANTS(extremes) },
    { "var", .kernel = "mean", .dtypes = FLOATS, .flags = GRAD | GRAD2, .inputs = 1, .tolerance = COMPOSED,
      .call = var_call, .in = { ANY }, .reference = var_reference, VARIANTS(variances) },
};

const struct family reduce_family = { "reduce", FAMILY_OPS(ops) };
