/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_compare.h: for tests that compare results of the cuda device with the cpu's. */
#ifndef CTRT_TESTS_CUDA_COMPARE_H
#define CTRT_TESTS_CUDA_COMPARE_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>

#include "soft_begin.h"

#define UNUSED __attribute__((unused))

enum { FLOATING = 4 };                      /* number of floating dtypes, which come first */
UNUSED static const ctrt_dtype all_dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I8, CTRT_U8, CTRT_I16,
                                                CTRT_I32, CTRT_I64, CTRT_BOOL };

UNUSED static double epsilon(ctrt_dtype dtype)
{
    switch (dtype) {
    case CTRT_F64:  return 0x1p-52;
    case CTRT_F32:  return 0x1p-23;
    case CTRT_F16:  return 0x1p-10;
    case CTRT_BF16: return 0x1p-7;
    default:        return 0;
    }
}

/* ---- values ---- */

/* SMOOTH, OTHERS: different numbers in (-1, 1); LOGITS: in (-20, 20); WHOLE: integers -3 to 3; NONZERO: integers with
 * magnitudes 1 to 7; TIES: 0 to 4, and a few NaN; SPECIAL: as LOGITS, with infinities, NaN and limits of dtypes. */
enum values { SMOOTH, OTHERS, LOGITS, WHOLE, NONZERO, TIES, SPECIAL };

static uint64_t mixed(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i ^= i >> 29;
    i *= 0xBF58476D1CE4E5B9u;
    return i ^ i >> 32;
}

static double value_at(int64_t i, enum values kind)
{
    static const double specials[] = { 0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, NAN, INFINITY, -INFINITY, 127.5, -128.5,
                                       255, 65504, 1e-8, 3e9, -3e9,
                                       1e30, -1e19, 2147483647, 42 };
    const uint64_t bits = mixed((uint64_t)i);
    switch (kind) {
    case WHOLE:   return (double)(bits % 7) - 3;
    case NONZERO: return (double)(bits % 7 + 1) * (bits & 1024 ? 1 : -1);
    case TIES:    return bits % 4001 == 7 ? NAN : (double)(bits % 5);
    case SPECIAL:
        if (bits % 5 == 0)
            return specials[bits / 5 % COUNT(specials)];
        break;
    default: break;
    }
    return ((double)(bits >> 11) / (double)(1ull << 53) - 0.5) * (kind == LOGITS || kind == SPECIAL ? 40 : 2);
}

static int64_t numel_of(ctrt_ints shape)
{
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    return numel;
}

/* Returns a tensor on the cpu; the same shape and kind give the same values. */
UNUSED static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype, enum values kind)
{
    ctrt_tensor *x = NULL;
    const int64_t numel = numel_of(shape);
    double *values = malloc((size_t)(numel + 1) * sizeof *values);
    for (int64_t i = 0; i < numel; i++) {
        values[i] = value_at(i + numel + kind * 1000003, kind);
        if (!ctrt_dtype_is_floating(dtype) && isnan(values[i]))
            values[i] = 1;
        if (dtype == CTRT_U8 || dtype == CTRT_BOOL)
            values[i] = fabs(values[i]);
    }
    CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_F64));
    free(values);
    return x;
}

/* ---- comparing ---- */

/* A tolerance: equal as numbers, so that 0 equals -0. */
#define EQUAL 1e-200

union number { double f; int64_t i; };

static bool alike(union number a, union number b, bool integers, double allowed)
{
    if (a.i == b.i || integers)
        return a.i == b.i;
    if (isnan(a.f) && isnan(b.f))
        return true;
    return allowed > 0 && (a.f == b.f || fabs(a.f - b.f) <= allowed);
}

/* Checks that a result of the gpu has the dtype, size and values of the cpu's. Finite values may differ by `tolerance`
 * times the largest of them; 0: all bits must be equal. NaN equals NaN. */
__attribute__((format(printf, 4, 5)))
static bool same(ctrt_tensor *got, ctrt_tensor *want, double tolerance, const char *format, ...)
{
    char what[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const int64_t n = ctrt_tensor_numel(want);
    const ctrt_dtype dtype = ctrt_tensor_dtype(want);
    const char *name = ctrt_dtype_name(dtype);
    if (!CHECK(ctrt_tensor_dtype(got) == dtype && ctrt_tensor_numel(got) == n,
               "%s of %s: %lld elements of %s, expected %lld", what, name,
               (long long)ctrt_tensor_numel(got), ctrt_dtype_name(ctrt_tensor_dtype(got)), (long long)n))
        return false;
    const bool integers = dtype == CTRT_I64;            /* a double cannot represent all values of i64 */
    union number *a = malloc((size_t)(n + 1) * sizeof *a), *b = malloc((size_t)(n + 1) * sizeof *b);
    CHECK_OK(ctrt_to_host(a, (size_t)n * sizeof *a, got, integers ? CTRT_I64 : CTRT_F64));
    CHECK_OK(ctrt_to_host(b, (size_t)n * sizeof *b, want, integers ? CTRT_I64 : CTRT_F64));
    double largest = 1e-30;
    for (int64_t i = 0; i < n && !integers; i++)
        if (isfinite(b[i].f))
            largest = fmax(largest, fabs(b[i].f));
    int64_t wrong = 0, first = 0;
    for (int64_t i = n - 1; i >= 0; i--)
        if (!alike(a[i], b[i], integers, tolerance * largest)) {
            wrong++;
            first = i;
        }
    const bool fine = CHECK(wrong == 0, "%s of %s: %lld of %lld wrong, element %lld is %.17g, expected %.17g within %g",
                            what, name, (long long)wrong, (long long)n, (long long)first,
                            integers ? (double)a[first].i : a[first].f, integers ? (double)b[first].i : b[first].f,
                            tolerance * largest);
    free(a);
    free(b);
    return fine;
}

#endif
