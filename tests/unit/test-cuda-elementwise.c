/* SPDX-License-Identifier: Apache-2.0 */
/* Compares elementwise ops, copies, ranges and random numbers of the cuda backend with the cpu's, for every layout of
 * every operand and for special values. Results are bitwise equal, except for functions whose last digit differs
 * between math libraries. */
#include <math.h>
#include <stdint.h>

#include "soft_begin.h"
#include "tensors.h"

static ctrt_device *gpu;

static const ctrt_dtype all_dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32, CTRT_I64, CTRT_BOOL };
static const struct { int64_t rows, columns; } sizes[] = { { 1, 1 }, { 1, 37 }, { 5, 16 }, { 37, 53 }, { 64, 96 }, { 70, 130 } };

/* ---- operands: equal views on both devices ---- */

enum layout { PLAIN, ODD, TRANSPOSED, STEPPED, SLICED, ROW, COLUMN, LAYOUTS };
static const char *const layout_names[LAYOUTS] = { "plain", "odd", "transposed", "stepped", "sliced", "row", "column" };

/* Returns a value of either sign. `kind`: 0 also special values; 1 values within +-10; 2 integers with magnitudes 1 to
 * 7. */
static double value_at(int64_t i, int kind)
{
    static const double edges[] = { 0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, NAN, INFINITY, -INFINITY, 127.5, -128.5, 255, 65504, 1e-8, 3e9, -3e9, 1e30, -1e19, 2147483647, 42 };
    const uint64_t mixed = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u >> 40;
    if (kind == 2)
        return (double)(mixed % 7 + 1) * (mixed & 8 ? 1 : -1);
    if (kind == 0 && mixed % 5 == 0)
        return edges[mixed / 5 % COUNT(edges)];
    return ((double)mixed / (1 << 24) - 0.5) * 20;
}

static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype, int kind)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    double *values = malloc((size_t)numel * sizeof *values);
    for (int64_t i = 0; i < numel; i++)
        values[i] = value_at(i + numel, kind);
    CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_F64));
    free(values);
    return x;
}

static void view_of(ctrt_tensor **out, ctrt_tensor *base, enum layout layout, int64_t rows, int64_t columns)
{
    ctrt_tensor_assign(out, base);
    switch (layout) {
    case ODD:
        CHECK_OK(ctrt_narrow(out, *out, 0, 1, rows * columns));
        CHECK_OK(ctrt_reshape(out, *out, CTRT_SHAPE(rows, columns)));
        break;
    case TRANSPOSED: CHECK_OK(ctrt_transpose(out, *out, 0, 1)); break;
    case STEPPED: CHECK_OK(ctrt_slice(out, *out, 1, 0, 2 * columns, 2)); break;
    case SLICED: CHECK_OK(ctrt_narrow(out, *out, 1, 16, columns)); break;
    case ROW: case COLUMN: CHECK_OK(ctrt_expand(out, *out, CTRT_SHAPE(rows, columns))); break;
    default: break;
    }
}

/* Creates equal operands: `here` on the cpu, `there` on the gpu. */
static void operand(ctrt_tensor **here, ctrt_tensor **there, enum layout layout, int64_t rows, int64_t columns, ctrt_dtype dtype, int kind)
{
    ctrt_tensor *base = NULL, *far = NULL;
    switch (layout) {
    case ODD: base = numbers(CTRT_SHAPE(rows * columns + 1), dtype, kind); break;
    case TRANSPOSED: base = numbers(CTRT_SHAPE(columns, rows), dtype, kind); break;
    case STEPPED: base = numbers(CTRT_SHAPE(rows, 2 * columns), dtype, kind); break;
    case SLICED: base = numbers(CTRT_SHAPE(rows, columns + 16), dtype, kind); break;
    case ROW: base = numbers(CTRT_SHAPE(1, columns), dtype, kind); break;
    case COLUMN: base = numbers(CTRT_SHAPE(rows, 1), dtype, kind); break;
    default: base = numbers(CTRT_SHAPE(rows, columns), dtype, kind); break;
    }
    CHECK_OK(ctrt_to_device(&far, base, gpu));
    view_of(here, base, layout, rows, columns);
    view_of(there, far, layout, rows, columns);
    ctrt_tensor_release(&base);
    ctrt_tensor_release(&far);
}

/* ---- comparing ---- */

/* Compares two tensors. near: relative tolerance; if negative, relative to at least 1; 0: bitwise equal except for the
 * sign and the bits of NaN. */
static void same(ctrt_tensor *here, ctrt_tensor *there, double near, const char *what)
{
    const int64_t n = ctrt_tensor_numel(here);
    CTRT_AUTO(tensor) back = NULL;
    if (!CHECK(ctrt_tensor_dtype(here) == ctrt_tensor_dtype(there) && ctrt_tensor_numel(there) == n, "%s: dtype or size differ", what)
        || !CHECK_OK(ctrt_cpu(&back, there)))
        return;
    /* A double cannot represent all values of i64. */
    const ctrt_dtype as = ctrt_tensor_dtype(here) == CTRT_I64 ? CTRT_I64 : CTRT_F64;
    union { double f; int64_t i; } *a = malloc((size_t)n * 8), *b = malloc((size_t)n * 8);
    CHECK_OK(ctrt_to_host(a, (size_t)n * 8, here, as));
    CHECK_OK(ctrt_to_host(b, (size_t)n * 8, back, as));
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < n; i++) {
        const bool alike = a[i].i == b[i].i || (as == CTRT_F64 && a[i].f != a[i].f && b[i].f != b[i].f)
                           || (as == CTRT_F64 && near != 0 && fabs(a[i].f - b[i].f) <= fabs(near) * (near < 0 ? fmax(1, fabs(a[i].f)) : fabs(a[i].f)));
        wrong += !alike;
        first = alike || first >= 0 ? first : i;
    }
    if (as == CTRT_I64)
        CHECK(wrong == 0, "%s: %lld of %lld wrong, element %lld is %lld, expected %lld", what, (long long)wrong, (long long)n, (long long)first,
              (long long)b[first < 0 ? 0 : first].i, (long long)a[first < 0 ? 0 : first].i);
    else
        CHECK(wrong == 0, "%s: %lld of %lld wrong, element %lld is %.17g, expected %.17g", what, (long long)wrong, (long long)n, (long long)first,
              b[first < 0 ? 0 : first].f, a[first < 0 ? 0 : first].f);
    free(a);
    free(b);
}

static const char *told(const char *op, ctrt_dtype dtype, int a, int b, size_t size)
{
    static char text[160];
    snprintf(text, sizeof text, "%s of %s, %s%s%s, %lld by %lld", op, ctrt_dtype_name(dtype), layout_names[a], b < LAYOUTS ? " and " : "",
             b < LAYOUTS ? layout_names[b] : "", (long long)sizes[size].rows, (long long)sizes[size].columns);
    return text;
}

/* ---- copies ---- */

static void test_copies(void)
{
    group("copies from every layout and dtype to every dtype");
    for (size_t from = 0; from < COUNT(all_dtypes); from++)
        for (size_t to = 0; to < COUNT(all_dtypes); to++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (size_t s = 0; s < COUNT(sizes); s++) {
                    CTRT_AUTO(tensor) here = NULL, there = NULL, x = NULL, y = NULL;
                    char what[200];
                    if (from != to && s % 3 != (from + to + (size_t)layout) % 3)        /* two sizes for each pair */
                        continue;
                    snprintf(what, sizeof what, "to %s: %s", ctrt_dtype_name(all_dtypes[to]), told("copy", all_dtypes[from], layout, LAYOUTS, s));
                    operand(&here, &there, (enum layout)layout, sizes[s].rows, sizes[s].columns, all_dtypes[from], 0);
                    CHECK_OK(ctrt_to(&x, here, NULL, all_dtypes[to], true, CTRT_CONTIGUOUS_FORMAT));
                    CHECK_OK(ctrt_to(&y, there, NULL, all_dtypes[to], true, CTRT_CONTIGUOUS_FORMAT));
                    same(x, y, 0, what);
                }

    group("copies into every layout");
    for (size_t d = 0; d < COUNT(all_dtypes); d++)
        for (int layout = 0; layout < ROW; layout++)
            for (size_t s = 0; s < COUNT(sizes); s++) {
                CTRT_AUTO(tensor) here = NULL, there = NULL, x = NULL, y = NULL;
                operand(&here, &there, (enum layout)layout, sizes[s].rows, sizes[s].columns, all_dtypes[d], 1);
                operand(&x, &y, PLAIN, sizes[s].rows, sizes[s].columns, all_dtypes[d], 0);
                CHECK_OK(ctrt_copy_(here, x));
                CHECK_OK(ctrt_copy_(there, y));
                same(here, there, 0, told("copy_", all_dtypes[d], layout, LAYOUTS, s));
                CHECK_OK(ctrt_fill_(here, ctrt_float(2.75)));
                CHECK_OK(ctrt_fill_(there, ctrt_float(2.75)));
                same(here, there, 0, told("fill_", all_dtypes[d], layout, LAYOUTS, s));
            }

    group("transposing copies of more dimensions");
    static const int64_t orders[][4] = { { 0, 2, 3, 1 }, { 0, 3, 1, 2 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 }, { 1, 0, 3, 2 } };
    for (size_t d = 0; d < COUNT(all_dtypes); d++)
        for (size_t o = 0; o < COUNT(orders); o++) {
            CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(3, 40, 17, 66), all_dtypes[d], 0), y = NULL;
            char what[64];
            snprintf(what, sizeof what, "order %zu of %s", o, ctrt_dtype_name(all_dtypes[d]));
            CHECK_OK(ctrt_to_device(&y, x, gpu));
            CHECK_OK(ctrt_permute(&x, x, ctrt_ints_of(orders[o], 4)));
            CHECK_OK(ctrt_permute(&y, y, ctrt_ints_of(orders[o], 4)));
            CHECK_OK(ctrt_contiguous(&x, x, CTRT_CONTIGUOUS_FORMAT));
            CHECK_OK(ctrt_contiguous(&y, y, CTRT_CONTIGUOUS_FORMAT));
            same(x, y, 0, what);
        }
}

/* ---- one operand ---- */

enum { FLOATS = 1, INTS = 2, BOOLS = 4, NUMBERS = 3, ALL = 7 };

static int class_of(ctrt_dtype dtype)
{
    return ctrt_dtype_is_floating(dtype) ? FLOATS : dtype == CTRT_BOOL ? BOOLS : INTS;
}

static ctrt_status clamp_op(ctrt_tensor **out, ctrt_tensor *x)
{
    return class_of(ctrt_tensor_dtype(x)) == FLOATS ? ctrt_clamp(out, x, ctrt_int(-2), ctrt_float(5.5))
                                                    : ctrt_clamp_min(out, x, ctrt_int(-2));
}
static ctrt_status clamp_nan_op(ctrt_tensor **out, ctrt_tensor *x)
{
    return ctrt_clamp_max(out, x, ctrt_float(NAN));
}
static ctrt_status gelu_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, false); }
static ctrt_status gelu_tanh_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, true); }
static ctrt_status square_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_pow_scalar(out, x, ctrt_int(2)); }
static ctrt_status cube_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_pow_scalar(out, x, ctrt_int(3)); }
static ctrt_status root_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_pow_scalar(out, x, ctrt_float(0.5)); }
static ctrt_status inverse_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_pow_scalar(out, x, ctrt_float(-1)); }
static ctrt_status tril_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_tril(out, x, 2); }
static ctrt_status triu_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_triu(out, x, -3); }
static ctrt_status tril_far_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_tril(out, x, INT64_MAX); }
static ctrt_status triu_far_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_triu(out, x, INT64_MIN); }

/* near: tolerance in epsilons of the dtype; 0: exact. */
static const struct unary {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *x);
    int classes, near;
} unary[] = {
#define EXACT(name, classes) { #name, ctrt_##name, classes, 0 }
#define CLOSE(name)          { #name, ctrt_##name, FLOATS, 8 }
    EXACT(neg, NUMBERS), EXACT(abs, NUMBERS), EXACT(sign, NUMBERS), EXACT(square, NUMBERS), EXACT(relu, NUMBERS), EXACT(floor, NUMBERS),
    EXACT(ceil, NUMBERS), EXACT(round, NUMBERS), EXACT(trunc, NUMBERS), EXACT(isnan, ALL), EXACT(isinf, ALL), EXACT(isfinite, ALL),
    EXACT(logical_not, ALL), { "clamp", clamp_op, NUMBERS, 0 }, { "clamp to nan", clamp_nan_op, FLOATS, 0 },
    { "tril", tril_op, ALL, 0 }, { "triu", triu_op, ALL, 0 }, { "tril far", tril_far_op, ALL, 0 }, { "triu far", triu_far_op, ALL, 0 },
    { "square by pow", square_op, NUMBERS, 0 }, { "cube by pow", cube_op, NUMBERS, 2 }, { "root by pow", root_op, FLOATS, 1 },
    { "inverse by pow", inverse_op, FLOATS, 1 },
    CLOSE(sqrt), CLOSE(rsqrt), CLOSE(reciprocal), CLOSE(exp), CLOSE(expm1), CLOSE(log), CLOSE(log1p), CLOSE(sin), CLOSE(cos), CLOSE(tan),
    CLOSE(tanh), CLOSE(sigmoid), CLOSE(silu), CLOSE(erf), { "gelu", gelu_op, FLOATS, 16 }, { "gelu_tanh", gelu_tanh_op, FLOATS, 256 },
};

static double precision(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? 0x1p-52 : dtype == CTRT_F32 ? 0x1p-23 : dtype == CTRT_F16 ? 0x1p-10 : dtype == CTRT_BF16 ? 0x1p-7 : 0;
}

static void test_unary(void)
{
    for (size_t o = 0; o < COUNT(unary); o++) {
        group("%s", unary[o].name);
        for (size_t d = 0; d < COUNT(all_dtypes); d++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (size_t s = 0; s < COUNT(sizes); s++) {
                    CTRT_AUTO(tensor) here = NULL, there = NULL, x = NULL, y = NULL;
                    if (!(class_of(all_dtypes[d]) & unary[o].classes) || (layout > ODD && s % 3 != (d + (size_t)layout) % 3))
                        continue;
                    operand(&here, &there, (enum layout)layout, sizes[s].rows, sizes[s].columns, all_dtypes[d], unary[o].near > 2);
                    CHECK_OK(unary[o].run(&x, here));
                    CHECK_OK(unary[o].run(&y, there));
                    same(x, y, unary[o].near * precision(all_dtypes[d]), told(unary[o].name, all_dtypes[d], layout, LAYOUTS, s));
                }
    }
}

/* ---- two operands ---- */

static const struct binary {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);
    int classes, near;
    int right;                              /* kind of values of the right operand */
} binary[] = {
#define TWO(name, classes, near, right) { #name, ctrt_##name, ctrt_##name##_scalar, classes, near, right }
    TWO(add, ALL, 0, 0), TWO(sub, NUMBERS, 0, 0), TWO(mul, ALL, 0, 0), TWO(div, FLOATS, 0, 0), TWO(maximum, ALL, 0, 0), TWO(minimum, ALL, 0, 0),
    TWO(eq, ALL, 0, 2), TWO(ne, ALL, 0, 2), TWO(lt, ALL, 0, 0), TWO(le, ALL, 0, 2), TWO(gt, ALL, 0, 0), TWO(ge, ALL, 0, 2),
    TWO(logical_and, ALL, 0, 0), TWO(logical_or, ALL, 0, 0), TWO(logical_xor, ALL, 0, 0), TWO(fmod, NUMBERS, 0, 2), TWO(remainder, NUMBERS, 0, 2),
    TWO(floor_divide, NUMBERS, 0, 2), TWO(pow, NUMBERS, 8, 2),
};

static void test_binary(void)
{
    for (size_t o = 0; o < COUNT(binary); o++) {
        group("%s", binary[o].name);
        for (size_t d = 0; d < COUNT(all_dtypes); d++)
            for (int left = 0; left < LAYOUTS; left++)
                for (int right = 0; right < LAYOUTS; right++) {
                    const size_t s = (size_t)(left + 3 * right + (int)d) % COUNT(sizes);
                    CTRT_AUTO(tensor) a = NULL, far_a = NULL, b = NULL, far_b = NULL, x = NULL, y = NULL;
                    if (!(class_of(all_dtypes[d]) & binary[o].classes))
                        continue;
                    operand(&a, &far_a, (enum layout)left, sizes[s].rows, sizes[s].columns, all_dtypes[d], 0);
                    operand(&b, &far_b, (enum layout)right, sizes[s].rows, sizes[s].columns, all_dtypes[d], binary[o].right);
                    CHECK_OK(binary[o].run(&x, a, b));
                    CHECK_OK(binary[o].run(&y, far_a, far_b));
                    same(x, y, binary[o].near * precision(all_dtypes[d]), told(binary[o].name, all_dtypes[d], left, right, s));
                    ctrt_tensor_release(&x);
                    ctrt_tensor_release(&y);
                    if (class_of(all_dtypes[d]) == BOOLS)
                        continue;
                    const ctrt_scalar number = class_of(all_dtypes[d]) == FLOATS ? ctrt_float(right % 2 ? 0.1 : 3) : ctrt_int(3 + right);
                    CHECK_OK(binary[o].scalar(&x, a, number));
                    CHECK_OK(binary[o].scalar(&y, far_a, number));
                    same(x, y, binary[o].near * precision(all_dtypes[d]), told(binary[o].name, all_dtypes[d], left, left, s));
                }
    }
}

static void test_where(void)
{
    group("where selects elements for every layout and dtype");
    for (size_t d = 0; d < COUNT(all_dtypes); d++)
        for (int left = 0; left < LAYOUTS; left++)
            for (int right = 0; right < LAYOUTS; right++) {
                const size_t s = (size_t)(left + 2 * right + (int)d) % COUNT(sizes);
                const enum layout which = (enum layout)((left + right) % LAYOUTS);
                CTRT_AUTO(tensor) a = NULL, far_a = NULL, b = NULL, far_b = NULL, c = NULL, far_c = NULL, x = NULL, y = NULL;
                operand(&a, &far_a, (enum layout)left, sizes[s].rows, sizes[s].columns, all_dtypes[d], 0);
                operand(&b, &far_b, (enum layout)right, sizes[s].rows, sizes[s].columns, all_dtypes[d], 1);
                operand(&c, &far_c, which, sizes[s].rows, sizes[s].columns, CTRT_I8, 1);
                CHECK_OK(ctrt_gt_scalar(&c, c, ctrt_int(0)));
                CHECK_OK(ctrt_gt_scalar(&far_c, far_c, ctrt_int(0)));
                CHECK_OK(ctrt_where(&x, c, a, b));
                CHECK_OK(ctrt_where(&y, far_c, far_a, far_b));
                same(x, y, 0, told("where", all_dtypes[d], left, right, s));
            }
}

/* Divides the minimum of each type by -1, and all pairs of 8-bit integers. */
static void test_quotients(void)
{
    static const ctrt_dtype dtypes[] = { CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32, CTRT_I64 };
    group("quotients of all 8-bit integers and of the extreme values of each type");
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        static const int64_t edges[] = { INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, INT16_MIN, INT16_MAX, -1, 1, -32767, 32766 };
        const bool all = ctrt_dtype_size(dtypes[d]) == 1;
        CTRT_AUTO(tensor) a = NULL, b = NULL, far_a = NULL, far_b = NULL, x = NULL, y = NULL, mask = NULL;
        if (all) {
            CHECK_OK(ctrt_arange(&a, ctrt_int(0), ctrt_int(256), ctrt_int(1), CTRT_I64, cpu));
            CHECK_OK(ctrt_arange(&b, ctrt_int(1), ctrt_int(256), ctrt_int(1), CTRT_I64, cpu));
        } else {
            CHECK_OK(ctrt_from_data(&a, edges, COUNT(edges), CTRT_SHAPE(COUNT(edges)), CTRT_I64, cpu));
            ctrt_tensor_assign(&b, a);
        }
        CHECK_OK(ctrt_to_dtype(&a, a, dtypes[d]));
        CHECK_OK(ctrt_to_dtype(&b, b, dtypes[d]));
        CHECK_OK(ctrt_eq_scalar(&mask, b, ctrt_int(0)));
        CHECK_OK(ctrt_masked_fill(&b, b, mask, ctrt_int(1)));
        CHECK_OK(ctrt_unsqueeze(&a, a, 1));
        CHECK_OK(ctrt_to_device(&far_a, a, gpu));
        CHECK_OK(ctrt_to_device(&far_b, b, gpu));
        static ctrt_status (*const ops[])(ctrt_tensor **, ctrt_tensor *, ctrt_tensor *) = { ctrt_fmod, ctrt_remainder, ctrt_floor_divide };
        for (size_t o = 0; o < COUNT(ops); o++) {
            CHECK_OK(ops[o](&x, a, b));
            CHECK_OK(ops[o](&y, far_a, far_b));
            same(x, y, 0, ctrt_dtype_name(dtypes[d]));
        }
    }

    group("an integer divisor of 0 is an error");
    CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
    CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(100), CTRT_I32, gpu));
    CHECK_OK(ctrt_zeros(&b, CTRT_SHAPE(100), CTRT_I32, gpu));
    const ctrt_status status = ctrt_floor_divide(&y, a, b);
    int32_t values[100];
    CHECK_FAILS(status != CTRT_OK ? status : ctrt_to_host(values, sizeof values, y, CTRT_I32), CTRT_ERR_INVALID_ARGUMENT, "a divisor is 0");
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_current(&stream, gpu));
    CHECK_OK(ctrt_stream_reset(stream));
}

/* ---- ranges and random numbers ---- */

static void test_ranges(void)
{
    group("arange equals the cpu's");
    for (size_t d = 0; d + 1 < COUNT(all_dtypes); d++) {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        const ctrt_scalar start = class_of(all_dtypes[d]) == FLOATS ? ctrt_float(-3.3) : ctrt_int(3);
        const ctrt_scalar end = class_of(all_dtypes[d]) == FLOATS ? ctrt_float(97.1) : ctrt_int(3000);
        const ctrt_scalar step = class_of(all_dtypes[d]) == FLOATS ? ctrt_float(0.1) : ctrt_int(7);
        CHECK_OK(ctrt_arange(&x, start, end, step, all_dtypes[d], cpu));
        CHECK_OK(ctrt_arange(&y, start, end, step, all_dtypes[d], gpu));
        same(x, y, 0, ctrt_dtype_name(all_dtypes[d]));
    }
}

static void seed_both(uint64_t seed, uint64_t offset)
{
    CHECK_OK(ctrt_generator_set(cpu, seed, offset));
    CHECK_OK(ctrt_generator_set(gpu, seed, offset));
}

static void test_random(void)
{
    static const int64_t counts[] = { 1, 2, 3, 4, 5, 63, 1024, 4099 };
    group("random numbers equal the cpu's");
    for (size_t d = 0; d < COUNT(all_dtypes); d++)
        for (size_t c = 0; c < COUNT(counts); c++) {
            const ctrt_dtype dtype = all_dtypes[d];
            const int64_t n = counts[c];
            CTRT_AUTO(tensor) x = NULL, y = NULL;
            /* The second block counter needs more than 32 bits. */
            seed_both(0x123456789abcdefu + (uint64_t)c, 0xfffffffeu);
            const bool is_bool = dtype == CTRT_BOOL;
            CHECK_OK(ctrt_randint(&x, is_bool ? 0 : 3, is_bool ? 2 : 100, CTRT_SHAPE(n), dtype, cpu));
            CHECK_OK(ctrt_randint(&y, is_bool ? 0 : 3, is_bool ? 2 : 100, CTRT_SHAPE(n), dtype, gpu));
            same(x, y, 0, "randint");
            CHECK_OK(ctrt_bernoulli(&x, CTRT_SHAPE(n), 0.3, dtype, cpu));
            CHECK_OK(ctrt_bernoulli(&y, CTRT_SHAPE(n), 0.3, dtype, gpu));
            same(x, y, 0, "bernoulli");
            if (dtype == CTRT_I64) {
                CHECK_OK(ctrt_randint(&x, INT64_MIN, -1, CTRT_SHAPE(n), dtype, cpu));
                CHECK_OK(ctrt_randint(&y, INT64_MIN, -1, CTRT_SHAPE(n), dtype, gpu));
                same(x, y, 0, "randint of half of all");
                CHECK_OK(ctrt_randint(&x, -5000000000, 4611686018427387903, CTRT_SHAPE(n), dtype, cpu));
                CHECK_OK(ctrt_randint(&y, -5000000000, 4611686018427387903, CTRT_SHAPE(n), dtype, gpu));
                same(x, y, 0, "randint of many");
            }
            if (class_of(dtype) != FLOATS)
                continue;
            CHECK_OK(ctrt_rand(&x, CTRT_SHAPE(n), dtype, cpu));
            CHECK_OK(ctrt_rand(&y, CTRT_SHAPE(n), dtype, gpu));
            same(x, y, 0, "rand");
            CTRT_AUTO(tensor) kept = NULL, far_kept = NULL;
            CHECK_OK(ctrt_dropout(&kept, x, 0.4, true));
            CHECK_OK(ctrt_dropout(&far_kept, y, 0.4, true));
            same(kept, far_kept, 0, "dropout");
            CHECK_OK(ctrt_uniform_(x, -0.7, 3.1));
            CHECK_OK(ctrt_uniform_(y, -0.7, 3.1));
            same(x, y, 0, "uniform");
            CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(n), dtype, cpu));
            CHECK_OK(ctrt_randn(&y, CTRT_SHAPE(n), dtype, gpu));
            same(x, y, -8 * precision(dtype), "randn");
            /* A slice starts at an address that is not aligned to a vector. */
            if (n < 2)
                continue;
            CTRT_AUTO(tensor) tail = NULL, far_tail = NULL;
            CHECK_OK(ctrt_narrow(&tail, x, 0, 1, n - 1));
            CHECK_OK(ctrt_narrow(&far_tail, y, 0, 1, n - 1));
            CHECK_OK(ctrt_uniform_(tail, 0, 1));
            CHECK_OK(ctrt_uniform_(far_tail, 0, 1));
            same(tail, far_tail, 0, "uniform at an odd address");
        }
}

/* Checks the counters of the software driver: expected kernels ran, without faults and without fallback to the cpu. */
static void test_used(void)
{
    static const char *const kernels[] = { "transpose_u8", "transpose_i16", "transpose_i32", "transpose_i64", "add_f32", "add_f32_s", "move_i64",
                                           "cast_f32_bf16_s", "pow_f32_short", "gelu_f16_tanh", "lt_i8", "fill_u8_s", "triangle_i16" };
    const struct softcuda_control *soft = soft_control();
    if (soft == NULL)
        return;
    group("the expected kernels ran without faults");
    for (size_t i = 0; i < COUNT(kernels); i++)
        CHECK(soft->launches(kernels[i]) > 0, "%s never ran", kernels[i]);
    CHECK(soft->faults() == 0, "%llu faults in the software driver: %s", (unsigned long long)soft->faults(),
          soft->fault_text());
    CHECK(ctrt_fallback_count(NULL) == 0, "%llu ops fell back to the cpu",
          (unsigned long long)ctrt_fallback_count(NULL));
}

TEST_MAIN
{
    soft_begin(argv);
    if (!cpu_opened())
        return done();
    group("the gpu opens");
    if (!CHECK_OK(ctrt_device_get(&gpu, "cuda:0")))
        return done();
    test_copies();
    test_unary();
    test_binary();
    test_where();
    test_quotients();
    test_ranges();
    test_random();
    test_used();
    return done();
}
