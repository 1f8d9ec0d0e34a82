/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_compare.h: compares results of the cuda device with the cpu's. A trial is a call with its operands; compare()
 * runs it on both devices. */
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
 * magnitudes 1 to 7; TIES: 0 to 4, and a few NaN; SPECIAL: as LOGITS, with infinities, NaN and limits of dtypes; SIGNS:
 * -1, 0, 1; WIDE: integers -500 to 500. */
enum values { SMOOTH, OTHERS, LOGITS, WHOLE, NONZERO, TIES, SPECIAL, SIGNS, WIDE };

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
                                       255, 65504, 1e-8, 3e9, -3e9, 1e30, -1e19, 2147483647, 42 };
    const uint64_t bits = mixed((uint64_t)i);
    switch (kind) {
    case WHOLE:   return (double)(bits % 7) - 3;
    case SIGNS:   return (double)(bits % 3) - 1;
    case WIDE:    return (double)(bits % 1001) - 500;
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

/* Returns a tensor on the cpu; the same shape and kind give the same values. */
UNUSED static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype, enum values kind)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
    const int64_t numel = ctrt_tensor_numel(x);
    double *values = malloc((size_t)(numel + 1) * sizeof *values);
    for (int64_t i = 0; i < numel; i++) {
        values[i] = value_at(i + numel + kind * 1000003, kind);
        if (!ctrt_dtype_is_floating(dtype) && isnan(values[i]))
            values[i] = 1;
        if (dtype == CTRT_U8 || dtype == CTRT_BOOL)
            values[i] = fabs(values[i]);
    }
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_F64));
    free(values);
    return x;
}

/* ---- comparing ---- */

/* A tolerance: equal as numbers, so that 0 equals -0. */
#define EQUAL 1e-200

/* An element of a result, as i64 or f64. */
union number { double f; int64_t i; };

/* Checks that a result of the gpu has the dtype, size and values of the cpu's. Finite values may differ by `tolerance`
 * times the largest of them; 0: all bits must be equal. NaN equals NaN. */
__attribute__((format(printf, 4, 5)))
static void same(ctrt_tensor *got, ctrt_tensor *want, double tolerance, const char *format, ...)
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
        return;
    const bool integers = dtype == CTRT_I64;            /* a double cannot represent all values of i64 */
    const size_t bytes = (size_t)n * sizeof(union number);
    union number *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    CHECK_OK(ctrt_to_host(a, bytes, got, integers ? CTRT_I64 : CTRT_F64));
    CHECK_OK(ctrt_to_host(b, bytes, want, integers ? CTRT_I64 : CTRT_F64));
    double largest = 1e-30;
    for (int64_t i = 0; i < n && !integers; i++)
        if (isfinite(b[i].f))
            largest = fmax(largest, fabs(b[i].f));
    const double allowed = tolerance * largest;
    int64_t i = 0;
    while (i < n && (a[i].i == b[i].i || (!integers && isnan(a[i].f) && isnan(b[i].f))
                     || (allowed > 0 && !integers && (a[i].f == b[i].f || fabs(a[i].f - b[i].f) <= allowed))))
        i++;
    const union number none = { 0 }, x = i < n ? a[i] : none, y = i < n ? b[i] : none;
    CHECK(i == n, "%s of %s: element %lld of %lld is %.17g, expected %.17g within %g", what, name, (long long)i,
          (long long)n, integers ? (double)x.i : x.f, integers ? (double)y.i : y.f, allowed);
    free(a);
    free(b);
}

/* ---- matrices of different layouts ---- */

/* ODD: at an odd address; STEPPED: every second column; SLICED: a part of longer rows; ROW, COLUMN: repeated; UNEVEN: a
 * part of rows at odd addresses. */
enum layout { PLAIN, ODD, TRANSPOSED, STEPPED, SLICED, ROW, COLUMN, LAYOUTS, UNEVEN = LAYOUTS };
UNUSED static const char *const layout_names[] = { "plain", "odd", "transposed", "stepped", "sliced", "row", "column",
                                                   "uneven" };

struct size { int64_t rows, columns; };

/* The memory from which view_of makes `batch` matrices of size s. */
UNUSED static ctrt_tensor *base_of(enum layout layout, int64_t batch, struct size s, ctrt_dtype dtype, enum values kind)
{
    const int64_t r = s.rows, c = s.columns, wide[] = { c, c, r, 2 * c, c + 16, c, 1, c + 3 };
    if (layout == ODD)
        return numbers(CTRT_SHAPE(batch * r * c + 1), dtype, kind);
    return numbers(CTRT_SHAPE(batch, layout == TRANSPOSED ? c : layout == ROW ? 1 : r, wide[layout]), dtype, kind);
}

UNUSED static ctrt_status view_of(ctrt_tensor **x, ctrt_tensor *base, enum layout layout, int64_t batch, struct size s)
{
    const ctrt_ints shape = batch == 1 ? CTRT_SHAPE(s.rows, s.columns) : CTRT_SHAPE(batch, s.rows, s.columns);
    ctrt_tensor_assign(x, base);
    switch (layout) {
    case ODD:        CTRT_TRY(ctrt_narrow(x, *x, 0, 1, batch * s.rows * s.columns)); break;
    case TRANSPOSED: CTRT_TRY(ctrt_transpose(x, *x, 1, 2)); break;
    case STEPPED:    CTRT_TRY(ctrt_slice(x, *x, 2, 0, 2 * s.columns, 2)); break;
    case SLICED:     CTRT_TRY(ctrt_narrow(x, *x, 2, 16, s.columns)); break;
    case UNEVEN:     CTRT_TRY(ctrt_narrow(x, *x, 2, 1, s.columns)); break;
    case ROW:
    case COLUMN:     CTRT_TRY(ctrt_expand(x, *x, CTRT_SHAPE(batch, s.rows, s.columns))); break;
    default:         break;
    }
    return layout == ODD ? ctrt_reshape(x, *x, shape) : batch == 1 ? ctrt_squeeze(x, *x, CTRT_DIMS(0)) : CTRT_OK;
}

/* ---- one call on both devices ---- */

enum { INPUTS = 5, OUTPUTS = 6 };

typedef ctrt_status call_function(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n);
/* Defines a call of one expression. */
#define CALL(name, ...) \
    static ctrt_status name(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return __VA_ARGS__; }

struct trial {
    const char *what;
    ctrt_tensor *in[INPUTS];                /* on the cpu; compare() releases them */
    bool grad[INPUTS];                      /* whether input i requires grad */
    call_function *call;                    /* sets out[0]; may set outputs whose input has no gradient */
    int64_t n[8];
    double tolerance;                       /* in epsilons of the result's dtype; 0: all bits must be equal */
    enum values dy;
};

/* Moves a tensor to an address that is not aligned to a vector. */
static void move_to_odd_address(ctrt_tensor **x)
{
    CTRT_AUTO(tensor) moved = NULL;
    const int64_t n = ctrt_tensor_numel(*x);
    CHECK_OK(ctrt_empty(&moved, CTRT_SHAPE(n + 1), ctrt_tensor_dtype(*x), gpu));
    CHECK_OK(ctrt_narrow(&moved, moved, 0, 1, n));
    CHECK_OK(ctrt_reshape(&moved, moved, ctrt_ints_of(ctrt_tensor_shape(*x), ctrt_tensor_ndim(*x))));
    CHECK_OK(ctrt_copy_(moved, *x));
    ctrt_tensor_assign(x, moved);
}

/* out[0]: the result; out[1 + i]: the gradient of input i. */
UNUSED static void run_trial(ctrt_tensor **out, const struct trial *t, ctrt_device *device, bool odd)
{
    ctrt_tensor *in[INPUTS] = { NULL };
    bool any = false;
    for (int i = 0; i < INPUTS; i++) {
        if (t->in[i] == NULL)
            continue;
        CHECK_OK(ctrt_to(&in[i], t->in[i], device, CTRT_DTYPE_DEFAULT, true, 0));
        if (odd)
            move_to_odd_address(&in[i]);
        if (t->grad[i])
            CHECK_OK(ctrt_tensor_require_grad(in[i], true));
        any = any || t->grad[i];
    }
    if (CHECK_OK(t->call(out, in, t->n)) && any) {
        CTRT_AUTO(tensor) dy = numbers(ctrt_ints_of(ctrt_tensor_shape(out[0]), ctrt_tensor_ndim(out[0])),
                                       ctrt_tensor_dtype(out[0]), t->dy);
        if (ctrt_tensor_ndim(dy) == 4 && ctrt_tensor_is_contiguous(out[0], CTRT_CHANNELS_LAST))
            CHECK_OK(ctrt_contiguous(&dy, dy, CTRT_CHANNELS_LAST));
        CHECK_OK(ctrt_to_device(&dy, dy, device));
        CHECK_OK(ctrt_backward_with(out[0], dy, false, false));
        for (int i = 0; i < INPUTS; i++)
            if (t->grad[i] && in[i] != NULL)
                ctrt_tensor_assign(&out[1 + i], ctrt_tensor_grad(in[i]));
    }
    tensors_release(in, INPUTS);
}

/* `all`: the gpu also repeats the call, which must give the same bits, and runs it with operands at odd addresses. */
UNUSED static void compare(struct trial t, bool all)
{
    ctrt_tensor *want[OUTPUTS] = { NULL }, *got[3][OUTPUTS] = { { NULL } };
    static const char *const runs[] = { "", " again", " at odd addresses" };
    run_trial(want, &t, cpu, false);
    for (int run = 0; run < (all ? 3 : 1); run++) {
        run_trial(got[run], &t, gpu, run == 2);
        for (int i = 0; i < OUTPUTS; i++) {
            if (!CHECK((want[i] == NULL) == (got[run][i] == NULL), "%s: output %d is missing", t.what, i)
                || want[i] == NULL)
                continue;
            const double near = t.tolerance > 0 ? fmax(EQUAL, t.tolerance * epsilon(ctrt_tensor_dtype(want[i]))) : 0;
            same(got[run][i], run == 1 ? got[0][i] : want[i], run == 1 ? 0 : near, "%s%s, output %d", t.what, runs[run],
                 i);
        }
    }
    for (int run = 0; run < 3; run++)
        tensors_release(got[run], OUTPUTS);
    tensors_release(want, OUTPUTS);
    tensors_release(t.in, INPUTS);
}

#endif
