/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c: the tolerances of results, comparison with the reference, and the reports of differences. */
#include <inttypes.h>
#include <stdio.h>

#include "suite.h"

/* A result may differ from the reference by
 *
 *     steps[tolerance] * epsilon(compute dtype) * size
 *     + epsilon(result dtype) * |expected|                  for half precision (COMPOSED: 4 * size)
 *
 * where size is the sum of the magnitudes of the added terms, or the result's magnitude if nothing is added. f16 and
 * bf16 are computed in f32 and rounded once, so a result near the middle between two values may round to either; the
 * second term allows this. Integers and bools must be equal.
 *
 * EXACT: one correctly rounded operation, or none. An f32 reference computed in f64 is also correctly rounded, because
 *     53 bits are more than 2 * 24 + 2, so rounding twice is harmless for + - * / and the square root
 *     (Figueroa 1995).
 * MATH: a function of a good vector library is within 1 to 4 units in the last place (SVML, SLEEF u35); epsilon
 *     is one to two such units. Results below the smallest normal number may be flushed to zero.
 * ADDED: sums. The error of recursive summation of n terms is at most n epsilon and usually sqrt(n) (Higham 2002,
 *     4.2); of blocked or pairwise summation log2(n). The suite sums at most 70,001 terms. 16 allows any blocked
 *     scheme and detects a plain loop in f32.
 * PRODUCTS: sums of products, here of at most a few hundred terms, in any order, with or without fused multiply-add.
 *     Some devices multiply f32 matrices in a smaller type (properties.matrix_dtype). They round each factor to that
 *     type, which is together one of its epsilons, and may round the result, which is half of one; 2 allows both.
 * COMPOSED: several of the above in sequence (norms, losses, attention), whose errors add. In half precision each
 *     rounds its result, and up to four such roundings add. */
static const double steps[TOLERANCES] = { [EXACT] = 0, [MATH] = 4, [ADDED] = 16, [PRODUCTS] = 16, [COMPOSED] = 64 };

static const char *format_list(char *text, size_t bytes, const int64_t *values, int n)
{
    int used = snprintf(text, bytes, "[");
    for (int d = 0; d < n; d++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%" PRId64, d ? "," : "", values[d]);
    snprintf(text + used, bytes - (size_t)used, "]");
    return text;
}

static bool same_type(struct run *run, const char *what, const struct array *got, const struct array *want)
{
    if (got->dtype == want->dtype && got->ndim == want->ndim
        && !memcmp(got->shape, want->shape, (size_t)got->ndim * sizeof *got->shape))
        return true;
    char is[160], should[160];
    check_fail(run, "%s: got a tensor %s%s, expected %s%s", what,
               ctrt_dtype_name(got->dtype), format_list(is, sizeof is, got->shape, got->ndim),
               ctrt_dtype_name(want->dtype), format_list(should, sizeof should, want->shape, want->ndim));
    return false;
}

/* Reports the element with the largest excess over its bound. */
static void report(struct run *run, const char *what, const struct array *got, const struct array *want,
                   int64_t worst, int64_t wrong, double bound)
{
    char text[160];
    int64_t index[CTRT_MAX_DIMS];
    index_of(index, worst, got->ndim, got->shape);
    format_list(text, sizeof text, index, got->ndim);
    if (got->i)
        check_fail(run, "%s%s: got %" PRId64 ", expected %" PRId64 ", tolerance 0 (%" PRId64 " of %" PRId64 " wrong)",
                   what, text, got->i[worst], want->i[worst], wrong, got->numel);
    else
        check_fail(run, "%s%s: got %.17g, expected %.17g, tolerance %.3g (%" PRId64 " of %" PRId64 " wrong)",
                   what, text, got->f[worst], want->f[worst], bound, wrong, got->numel);
}

static bool within_bounds(struct run *run, const char *what, const struct array *got, const struct array *want,
                          const double *bounds)
{
    int64_t wrong = 0, worst = -1;
    double worst_excess = 0;
    for (int64_t k = 0; k < got->numel; k++) {
        double excess = 0;
        if (got->i) {
            excess = got->i[k] != want->i[k] ? 1 : 0;
        } else {
            double expected = round_to(want->dtype, want->f[k]), is = got->f[k];
            if (isnan(expected) || isnan(is))
                excess = isnan(expected) && isnan(is) ? 0 : INFINITY;
            else if (isinf(expected) || isinf(is))
                excess = expected == is ? 0 : INFINITY;
            else if (fabs(is - expected) > bounds[k])
                excess = fabs(is - expected) / (bounds[k] > 0 ? bounds[k] : 0x1p-1074);
        }
        wrong += excess > 0;
        if (excess > worst_excess) {
            worst_excess = excess;
            worst = k;
        }
    }
    if (worst >= 0)
        report(run, what, got, want, worst, wrong, bounds[worst]);
    return worst < 0;
}

bool check_array(struct run *run, const char *what, const struct array *got, const struct array *want,
                 enum tolerance tolerance, ctrt_dtype compute)
{
    if (!same_type(run, what, got, want))
        return false;
    double *bounds = scratch((size_t)got->numel * sizeof *bounds);
    bool half = got->dtype == CTRT_F16 || got->dtype == CTRT_BF16;
    for (int64_t k = 0; got->f && k < got->numel; k++) {
        double expected = fabs(want->f[k]), size = want->size ? want->size[k] : expected;
        bounds[k] = steps[tolerance] * epsilon_of(compute) * size;
        if (compute == CTRT_F32)
            bounds[k] += (tolerance == COMPOSED ? 16 : 2) * run->lowered * size;
        if (tolerance != EXACT) {
            bounds[k] += compute == CTRT_F64 ? 0x1p-1022 : 0x1p-126;
            if (half)
                bounds[k] += epsilon_of(got->dtype) * (tolerance == COMPOSED ? 4 * size : expected)
                             + (got->dtype == CTRT_F16 ? 0x1p-24 : 0x1p-133);
        }
    }
    return within_bounds(run, what, got, want, bounds);
}

bool check_near(struct run *run, const char *what, const struct array *got, const struct array *want,
                double relative, double scale)
{
    if (!same_type(run, what, got, want))
        return false;
    double *bounds = scratch((size_t)got->numel * sizeof *bounds);
    for (int64_t k = 0; got->f && k < got->numel; k++)
        bounds[k] = relative * fmax(fabs(want->f[k]), scale);
    return within_bounds(run, what, got, want, bounds);
}

bool check_tensor(struct run *run, const char *what, ctrt_tensor *got, const struct array *want,
                  enum tolerance tolerance, ctrt_dtype compute)
{
    struct array a;
    return download(run, &a, got) && check_array(run, what, &a, want, tolerance, compute);
}

bool check_tensor_near(struct run *run, const char *what, ctrt_tensor *got, const struct array *want,
                       double relative, double scale)
{
    struct array a;
    return download(run, &a, got) && check_near(run, what, &a, want, relative, scale);
}
