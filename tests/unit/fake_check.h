/* SPDX-License-Identifier: Apache-2.0 */
/* fake_check.h: fills tensors and compares them with f64 references, for tests of the cpu's kernels. */
#ifndef CTRT_TESTS_FAKE_CHECK_H
#define CTRT_TESTS_FAKE_CHECK_H

#include "fake_host.h"

/* Returns the allowed error of a result, relative to the sum of the terms' magnitudes: a few units in the last
 * place. */
FAKE double fake_tolerance(ctrt_dtype dtype)
{
    switch (dtype) {
    case CTRT_F32: return 4e-6;
    case CTRT_F64: return 1e-13;
    case CTRT_F16: return 1.5 * 0x1p-11;
    case CTRT_BF16: return 1.5 * 0x1p-8;
    default: return 0;
    }
}

FAKE fake_tensor fake_filled(ctrt_dtype dtype, enum fake_layout layout, int ndim, const int64_t *shape, double lo,
                             double hi)
{
    fake_tensor t = fake_new(dtype, layout, ndim, shape);
    for (int64_t i = 0; i < t.view.numel; i++)
        fake_put(&t.view, i, fake_uniform(lo, hi));
    return t;
}

/* Returns a row-major copy of the elements as f64. */
FAKE double *fake_values(const ctrt_view *v)
{
    double *values = malloc((size_t)(v->numel + 1) * sizeof *values);
    for (int64_t i = 0; i < v->numel; i++)
        values[i] = fake_get(v, i);
    return values;
}

/* Returns a tensor in NHWC layout. */
FAKE fake_tensor fake_new_channels_last(ctrt_dtype dtype, const int64_t *shape)
{
    fake_tensor t = fake_new(dtype, FAKE_CONTIGUOUS, 4, shape);
    const int64_t c = shape[1], h = shape[2], w = shape[3];
    t.view.strides[0] = h * w * c, t.view.strides[1] = 1, t.view.strides[2] = w * c, t.view.strides[3] = c;
    if (!(c == 1 || h * w == 1))
        t.view.flags &= (uint16_t)~CTRT_VIEW_CONTIGUOUS;
    t.view.flags |= CTRT_VIEW_CHANNELS_LAST;
    return t;
}

/* Returns the allowed error of a sum, relative to the sum of the terms' magnitudes. f16 and bf16 sums are computed
 * in f32. */
FAKE double fake_sum_tolerance(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? 1e-14 : 1e-6;
}

/* Fails the test at the first element whose error exceeds tolerance * |want| + the sum tolerance * scale (plus a
 * subnormal step for f16). A NULL scale means 1. */
FAKE void fake_compare(const char *what, const ctrt_view *got, const double *want, const double *scale,
                       double tolerance)
{
    for (int64_t i = 0; i < got->numel; i++) {
        const double g = fake_get(got, i), w = want[i];
        if (isnan(w) ? isnan(g) : g == w)
            continue;
        const double allowed = tolerance * fabs(w) + fake_sum_tolerance(got->dtype) * (scale ? scale[i] : 1)
                               + (got->dtype == CTRT_F16 ? 0x1p-24 : 0);
        REQUIRE(fabs(g - w) <= allowed, "%s: element %lld is %.9g, expected %.9g within %.2g", what, (long long)i, g,
                w, allowed);
    }
}

/* The instruction sets to test, if the build and the processor have them. CTRT_CPU_ISA can only lower the selected
 * set. */
static const char *const fake_isas[] = { "baseline", "avx2", "avx512" };
#define FAKE_ISAS 3

#endif
