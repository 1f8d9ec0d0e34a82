/* SPDX-License-Identifier: Apache-2.0 */
/* Compares reductions, softmax, losses, norms, pooling, indexing and optimizers of the cuda backend with the cpu's:
 * sizes at which kernels change their algorithm, odd sizes, unaligned addresses, strided inputs and every dtype.
 * Integers, indices and selected values must be bitwise equal. */
#include <math.h>
#include <stdint.h>

#include "soft_begin.h"
#include "tensors.h"

static ctrt_device *gpu;

static const ctrt_dtype all_dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32, CTRT_I64, CTRT_BOOL };
#define FLOATING 4                          /* number of floating dtypes, which come first */

/* ---- input values ---- */

/* Kinds of values: small fractions of both signs; small integers; few distinct values with NaN; values up to +-20;
 * fractions other than those of SMOOTH. */
enum kind { SMOOTH, WHOLE, TIES, LOGITS, OTHERS };

static uint64_t mixed(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i ^= i >> 29;
    i *= 0xBF58476D1CE4E5B9u;
    return i ^ i >> 32;
}

static double value_at(int64_t i, enum kind kind)
{
    const uint64_t bits = mixed((uint64_t)i);
    if (kind == WHOLE)
        return (double)(bits % 7) - 3;
    if (kind == TIES)
        return bits % 4001 == 7 ? NAN : (double)(bits % 5);
    return ((double)(bits >> 11) / (double)(1ull << 53) - 0.5) * (kind == LOGITS ? 40 : 2);
}

static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype, enum kind kind)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    double *values = malloc((size_t)(numel + 1) * sizeof *values);
    for (int64_t i = 0; i < numel; i++) {
        values[i] = value_at(i + numel + kind * 1000003, kind);
        if (!ctrt_dtype_is_floating(dtype) && values[i] != values[i])
            values[i] = 1;
        if (dtype == CTRT_U8 || dtype == CTRT_BOOL)
            values[i] = fabs(values[i]);
    }
    CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_F64));
    free(values);
    return x;
}

static ctrt_tensor *indices(ctrt_ints shape, int64_t limit, bool skewed)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    int64_t *values = malloc((size_t)(numel + 1) * sizeof *values);
    for (int64_t i = 0; i < numel; i++)
        values[i] = skewed && i % 3 != 0 ? 1 : (int64_t)(mixed((uint64_t)(i + 77)) % (uint64_t)limit);
    CHECK_OK(ctrt_from_data(&x, values, numel, shape, CTRT_I64, cpu));
    free(values);
    return x;
}

/* Returns the largest difference relative to the largest value. NaN equals NaN. */
static double difference(ctrt_tensor *a, ctrt_tensor *b)
{
    const int64_t n = ctrt_tensor_numel(a);
    double *x = malloc((size_t)(n + 1) * sizeof *x), *y = malloc((size_t)(n + 1) * sizeof *y), worst = 0, size = 1e-30;
    CHECK_OK(ctrt_to_host(x, (size_t)n * sizeof *x, a, CTRT_F64));
    CHECK_OK(ctrt_to_host(y, (size_t)n * sizeof *y, b, CTRT_F64));
    for (int64_t i = 0; i < n; i++)
        if (isfinite(y[i]) && fabs(y[i]) > size)
            size = fabs(y[i]);
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) ? 0 : fabs(x[i] - y[i]) / size;
        if (!(d <= worst))
            worst = isnan(d) ? INFINITY : d;
    }
    free(x);
    free(y);
    return worst;
}

static double epsilon(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? 0x1p-52 : dtype == CTRT_F32 ? 0x1p-23 : dtype == CTRT_F16 ? 0x1p-10 : dtype == CTRT_BF16 ? 0x1p-7 : 0;
}

/* ---- one call on both devices ---- */

enum { INPUTS = 5, OUTPUTS = 6 };

struct trial {
    const char *what;
    ctrt_tensor *in[INPUTS];                /* on the cpu; grad[i]: input i requires grad */
    bool grad[INPUTS];
    ctrt_status (*call)(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n);
    int64_t n[8];
    double tolerance;                       /* tolerance in epsilons of the result's dtype */
};

/* Runs the call on one device. out[0]: the result; out[1 + i]: the gradient of input i. */
static void one_side(ctrt_tensor **out, const struct trial *t, ctrt_device *device, bool odd)
{
    ctrt_tensor *in[INPUTS] = { NULL };
    for (int i = 0; i < INPUTS; i++) {
        if (t->in[i] == NULL)
            continue;
        CHECK_OK(ctrt_to(&in[i], t->in[i], device, CTRT_DTYPE_DEFAULT, true, 0));
        if (odd && ctrt_tensor_numel(in[i]) > 0) {              /* equal values at an unaligned address */
            ctrt_tensor *room = NULL;
            const int64_t n = ctrt_tensor_numel(in[i]);
            CHECK_OK(ctrt_empty(&room, CTRT_SHAPE(n + 1), ctrt_tensor_dtype(in[i]), device));
            CHECK_OK(ctrt_narrow(&room, room, 0, 1, n));
            CHECK_OK(ctrt_reshape(&room, room, ctrt_ints_of(ctrt_tensor_shape(in[i]), ctrt_tensor_ndim(in[i]))));
            CHECK_OK(ctrt_copy_(room, in[i]));
            ctrt_tensor_assign(&in[i], room);
            ctrt_tensor_release(&room);
        }
        if (t->grad[i])
            CHECK_OK(ctrt_tensor_require_grad(in[i], true));
    }
    if (CHECK_OK(t->call(out, in, t->n))) {
        bool any = false;
        for (int i = 0; i < INPUTS; i++)
            any = any || (t->grad[i] && in[i] != NULL);
        if (any) {
            ctrt_tensor *up = numbers(ctrt_ints_of(ctrt_tensor_shape(out[0]), ctrt_tensor_ndim(out[0])), ctrt_tensor_dtype(out[0]), OTHERS);
            CHECK_OK(ctrt_to_device(&up, up, device));
            CHECK_OK(ctrt_backward_with(out[0], up, false, false));
            ctrt_tensor_release(&up);
            for (int i = 0; i < INPUTS; i++)
                if (t->grad[i] && in[i] != NULL)
                    ctrt_tensor_assign(&out[1 + i], ctrt_tensor_grad(in[i]));
        }
    }
    for (int i = 0; i < INPUTS; i++)
        ctrt_tensor_release(&in[i]);
}

static void compare(const struct trial *t)
{
    for (int odd = 0; odd < 2; odd++) {
        ctrt_tensor *theirs[OUTPUTS] = { NULL }, *ours[OUTPUTS] = { NULL }, *again[OUTPUTS] = { NULL };
        one_side(theirs, t, cpu, odd);
        one_side(ours, t, gpu, odd);
        if (!odd)
            one_side(again, t, gpu, odd);
        for (int i = 0; i < OUTPUTS; i++) {
            CHECK((theirs[i] == NULL) == (ours[i] == NULL), "%s: output %d is %s", t->what, i, ours[i] ? "there" : "missing");
            if (theirs[i] == NULL || ours[i] == NULL)
                continue;
            const double off = difference(ours[i], theirs[i]), allowed = t->tolerance * epsilon(ctrt_tensor_dtype(theirs[i]));
            CHECK(off <= allowed, "%s%s, %s: output %d is off by %g, allowed %g", t->what, odd ? ", odd address" : "",
                  ctrt_dtype_name(ctrt_tensor_dtype(t->in[0])), i, off, allowed);
            if (!odd && again[i] != NULL)
                CHECK(difference(ours[i], again[i]) == 0, "%s: output %d differs in the second run", t->what, i);
            ctrt_tensor_release(&theirs[i]);
            ctrt_tensor_release(&ours[i]);
            ctrt_tensor_release(&again[i]);
        }
    }
}

static void forget(struct trial *t)
{
    for (int i = 0; i < INPUTS; i++)
        ctrt_tensor_release(&t->in[i]);
}

/* ---- reductions ---- */

/* n[0]: bit mask of the dims; n[1]: 1 to transpose the first two dimensions, 2 to take every second column. */
static ctrt_ints dims_of(const int64_t *n, int64_t *room)
{
    int count = 0;
    for (int d = 0; d < 8; d++)
        if (n[0] >> d & 1)
            room[count++] = d;
    return ctrt_ints_of(room, count);
}

static ctrt_status viewed(ctrt_tensor **out, ctrt_tensor *x, const int64_t *n)
{
    ctrt_tensor_assign(out, x);
    if (n[1] == 1)
        return ctrt_transpose(out, x, 0, 1);
    return n[1] == 2 ? ctrt_slice(out, x, ctrt_tensor_ndim(x) - 1, 0, INT64_MAX, 2) : CTRT_OK;
}

#define REDUCTION(name, function)                                                                                   \
    static ctrt_status name##_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)                     \
    {                                                                                                               \
        int64_t room[8];                                                                                            \
        ctrt_tensor *x = NULL;                                                                                      \
        ctrt_status status = viewed(&x, in[0], n);                                                                  \
        if (status == CTRT_OK)                                                                                      \
            status = function(out, x, dims_of(n, room), false);                                                     \
        ctrt_tensor_release(&x);                                                                                    \
        return status;                                                                                              \
    }
REDUCTION(sum, ctrt_sum_dims)
REDUCTION(mean, ctrt_mean_dims)
REDUCTION(prod, ctrt_prod_dims)
REDUCTION(amax, ctrt_amax)
REDUCTION(amin, ctrt_amin)
REDUCTION(any, ctrt_any)
REDUCTION(all, ctrt_all)
REDUCTION(argmax, ctrt_argmax)
REDUCTION(argmin, ctrt_argmin)

static const struct {
    const char *name;
    ctrt_status (*call)(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n);
    enum kind kind;
    bool floating, one;                     /* floating dtypes only; one dimension only */
} reductions[] = {
    { "sum", sum_call, SMOOTH, false, false }, { "mean", mean_call, SMOOTH, true, false }, { "prod", prod_call, WHOLE, false, false },
    { "amax", amax_call, TIES, false, false }, { "amin", amin_call, TIES, false, false },
    { "any", any_call, TIES, false, false },   { "all", all_call, TIES, false, false },
    { "argmax", argmax_call, TIES, false, true }, { "argmin", argmin_call, TIES, false, true },
};

static const struct { const char *what; int64_t shape[4], dims, view; } shapes[] = {
    { "many short rows", { 700, 3 }, 2, 0 },      { "rows of a warp", { 37, 70 }, 2, 0 },     { "rows of a block", { 3, 5000 }, 2, 0 },
    { "one row in pieces", { 1, 40007 }, 2, 0 },  { "rows in pieces", { 3, 20001 }, 2, 0 },   { "few columns", { 3000, 3 }, 1, 0 },
    { "even columns", { 301, 64 }, 1, 0 },        { "odd columns", { 301, 67 }, 1, 0 },       { "columns in pieces", { 9000, 36 }, 1, 0 },
    { "outer and inner", { 5, 3, 90 }, 5, 0 },    { "outer and long inner", { 6, 2, 3000 }, 5, 0 }, { "middle", { 4, 50, 6 }, 2, 0 },
    { "two middles", { 3, 5, 4, 7 }, 6, 0 },      { "transposed rows", { 60, 41 }, 2, 1 },    { "transposed columns", { 60, 41 }, 1, 1 },
    { "every second", { 9, 1001 }, 2, 2 },        { "every second, columns", { 130, 21 }, 1, 2 }, { "inner of four", { 2, 3, 4, 5 }, 10, 0 },
};

static void check_reductions(void)
{
    for (size_t r = 0; r < COUNT(reductions); r++) {
        group("%s", reductions[r].name);
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t d = 0; d < (reductions[r].floating ? FLOATING : COUNT(all_dtypes)); d++) {
                int ndim = 4;
                while (shapes[s].shape[ndim - 1] == 0)
                    ndim--;
                if (reductions[r].one && all_dtypes[d] == CTRT_BOOL)
                    continue;
                if (reductions[r].one && (shapes[s].dims & (shapes[s].dims - 1)) != 0)
                    continue;
                char what[160];
                snprintf(what, sizeof what, "%s of %s", reductions[r].name, shapes[s].what);
                struct trial t = { what, { numbers(ctrt_ints_of(shapes[s].shape, ndim), all_dtypes[d], reductions[r].kind) }, { 0 },
                                   reductions[r].call, { shapes[s].dims, shapes[s].view }, all_dtypes[d] == CTRT_F64 ? 32 : 2 };
                compare(&t);
                forget(&t);
            }
    }
}

/* ---- rows ---- */

static ctrt_status softmax_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return ctrt_softmax(out, in[0], (int)n[0]); }
static ctrt_status log_softmax_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return ctrt_log_softmax(out, in[0], (int)n[0]); }

static const struct { int64_t shape[3]; int dim; } row_shapes[] = {
    { { 19, 7, 0 }, 1 },    { { 9, 64, 0 }, 1 },    { { 5, 333, 0 }, 1 },  { { 3, 1024, 0 }, 1 }, { { 3, 1025, 0 }, 1 }, { { 2, 1040, 0 }, 1 },
    { { 2, 4112, 0 }, 1 },  { { 1, 9008, 0 }, 1 },  { { 1, 30000, 0 }, 1 }, { { 3, 5, 7 }, 1 },   { { 2, 80, 33 }, 1 },  { { 2, 10, 300 }, 1 },
    { { 300, 2, 0 }, 0 },
};

static void check_softmax(void)
{
    for (int log = 0; log < 2; log++) {
        group(log ? "log_softmax equals the cpu's" : "softmax equals the cpu's");
        for (size_t s = 0; s < COUNT(row_shapes); s++)
            for (int d = 0; d < FLOATING; d++) {
                char what[100];
                snprintf(what, sizeof what, "%ssoftmax of %d, %d, %d", log ? "log_" : "", (int)row_shapes[s].shape[0],
                         (int)row_shapes[s].shape[1], (int)row_shapes[s].shape[2]);
                struct trial t = { what, { numbers(ctrt_ints_of(row_shapes[s].shape, row_shapes[s].shape[2] ? 3 : 2), all_dtypes[d], LOGITS) }, { true },
                                   log ? log_softmax_call : softmax_call, { row_shapes[s].dim }, 16 };
                compare(&t);
                forget(&t);
            }
    }
    group("softmax of rows with infinities and NaN");
    static const double rows[5][4] = { { -INFINITY, -INFINITY, -INFINITY, -INFINITY }, { INFINITY, 0, 1, 2 }, { NAN, 0, 1, 2 }, { -INFINITY, 0, -INFINITY, 1 },
                                       { 3e38, -3e38, 0, 3e38 } };
    static const int64_t widths[] = { 4, 2000, 1001, 30001 };
    for (size_t w = 0; w < COUNT(widths); w++)
        for (int log = 0; log < 2; log++)
            for (int dim = 0; dim < 2; dim++) {
                ctrt_tensor *x = NULL;
                float *values = malloc((size_t)(5 * widths[w]) * sizeof *values);
                for (int64_t i = 0; i < 5 * widths[w]; i++)
                    values[i] = (float)rows[i / widths[w]][i % widths[w] % 4];
                CHECK_OK(ctrt_from_data(&x, values, 5 * widths[w], CTRT_SHAPE(5, widths[w]), CTRT_F32, cpu));
                free(values);
                if (dim == 0)
                    CHECK_OK(ctrt_transpose(&x, x, 0, 1));
                struct trial t = { "special rows", { x }, { false }, log ? log_softmax_call : softmax_call, { dim }, 256 };
                compare(&t);
                forget(&t);
            }
}

static ctrt_status cross_entropy_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    const ctrt_cross_entropy_options options = { .weight = in[2], .has_ignore_index = true, .ignore_index = n[0], .label_smoothing = n[1] ? 0.1 : 0,
                                                 .reduction = CTRT_REDUCE_NONE };
    return ctrt_cross_entropy(out, in[0], in[1], &options);
}

static void check_loss(void)
{
    group("cross_entropy equals the cpu's");
    static const int64_t classes[] = { 2, 10, 64, 1000, 2048, 2051, 5000 };
    for (size_t c = 0; c < COUNT(classes); c++)
        for (int d = 0; d < FLOATING; d++)
            for (int way = 0; way < 4; way++) {
                char what[100];
                snprintf(what, sizeof what, "cross_entropy over %d%s%s", (int)classes[c], way & 1 ? ", weighted" : "", way & 2 ? ", smoothed" : "");
                ctrt_tensor *weight = way & 1 ? numbers(CTRT_SHAPE(classes[c]), all_dtypes[d], SMOOTH) : NULL;
                if (weight != NULL)
                    CHECK_OK(ctrt_abs(&weight, weight));
                struct trial t = { what, { numbers(CTRT_SHAPE(13, classes[c]), all_dtypes[d], LOGITS), indices(CTRT_SHAPE(13), classes[c], false), weight },
                                   { true }, cross_entropy_call, { 1, way & 2 }, 64 };
                compare(&t);
                forget(&t);
            }
}

/* ---- norms ---- */

static ctrt_status layer_norm_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    return ctrt_layer_norm(out, in[0], CTRT_SHAPE(n[0]), in[1], in[2], 1e-5);
}

static ctrt_status batch_norm_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    ctrt_tensor *mean = NULL, *var = NULL;
    ctrt_tensor_assign(&mean, in[3]);
    ctrt_tensor_assign(&var, in[4]);
    ctrt_status status = ctrt_batch_norm(out, in[0], in[1], in[2], mean, var, n[0], 0.1, 1e-5);
    /* Adds the running statistics to the result, so that they are compared. */
    if (status == CTRT_OK && n[0] && mean != NULL)
        ctrt_no_grad { ctrt_tensor_assign(&out[5], mean); }
    ctrt_tensor_release(&mean);
    ctrt_tensor_release(&var);
    return status;
}

static void check_norms(void)
{
    /* 140 rows: the parameters' gradients are computed in two parts; 10 rows: more than the warps of a block. */
    static const struct { int64_t rows, width; } layers[] = {
        { 140, 7 }, { 140, 64 }, { 30, 768 }, { 10, 1024 }, { 10, 1030 }, { 10, 2048 }, { 3, 9001 }, { 3, 14000 },
    };
    group("layer_norm equals the cpu's");
    for (size_t w = 0; w < COUNT(layers); w++)
        for (int d = 0; d < FLOATING; d++)
            for (int affine = 0; affine < 2; affine++) {
                char what[100];
                const int64_t width = layers[w].width;
                snprintf(what, sizeof what, "layer_norm over %d%s", (int)width, affine ? ", affine" : "");
                struct trial t = { what, { numbers(CTRT_SHAPE(layers[w].rows, width), all_dtypes[d], SMOOTH),
                                           affine ? numbers(CTRT_SHAPE(width), all_dtypes[d], SMOOTH) : NULL,
                                           affine ? numbers(CTRT_SHAPE(width), all_dtypes[d], SMOOTH) : NULL },
                                   { true, true, true }, layer_norm_call, { width }, 32 };
                compare(&t);
                forget(&t);
            }
    static const struct { int64_t n, c, s; } images[] = {
        { 4, 3, 16 }, { 2, 5, 49 }, { 3, 2, 5000 }, { 40, 70, 1 }, { 300, 3, 1 }, { 2, 3, 8 }, { 9, 1, 3000 },
    };
    group("batch_norm equals the cpu's");
    for (size_t i = 0; i < COUNT(images); i++)
        for (int d = 0; d < FLOATING; d++)
            for (int way = 0; way < 4; way++) {
                const ctrt_dtype parameters = way == 3 ? CTRT_F32 : all_dtypes[d];
                ctrt_ints c = CTRT_SHAPE(images[i].c);
                if (way == 3 && d < 2)
                    continue;
                ctrt_tensor *var = way ? numbers(c, parameters, SMOOTH) : NULL;
                if (var != NULL)
                    CHECK_OK(ctrt_abs(&var, var));
                char what[100];
                snprintf(what, sizeof what, "batch_norm of %d, %d, %d, way %d", (int)images[i].n, (int)images[i].c, (int)images[i].s, way);
                ctrt_tensor *x = numbers(CTRT_SHAPE(images[i].n, images[i].c, images[i].s), all_dtypes[d], SMOOTH);
                if (d < 2)                  /* values far from 0, where sums of squares cancel */
                    CHECK_OK(ctrt_add_scalar(&x, x, ctrt_float(100)));
                struct trial t = { what, { x, way ? numbers(c, parameters, SMOOTH) : NULL, way ? numbers(c, parameters, SMOOTH) : NULL,
                                           way ? numbers(c, parameters, SMOOTH) : NULL, var },
                                   { true, true, true }, batch_norm_call, { way != 2 }, d < 2 ? 3000 : 32 };
                compare(&t);
                forget(&t);
            }
}

/* ---- pooling ---- */

static ctrt_status pool_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    const ctrt_pool2d_options options = { { n[0], n[0] + (n[0] > 2) }, { n[1], n[1] }, { n[2], n[2] }, { n[3], n[3] } };
    ctrt_tensor *x = NULL;
    ctrt_status status = ctrt_contiguous(&x, in[0], n[4] ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT);
    if (status == CTRT_OK)
        status = ctrt_max_pool2d(&out[0], &out[5], x, &options);
    ctrt_tensor_release(&x);
    return status;
}

static void check_pool(void)
{
    static const int64_t options[][4] = { { 2, 2, 0, 1 }, { 3, 2, 1, 1 }, { 3, 1, 1, 1 }, { 2, 3, 0, 1 }, { 2, 2, 1, 4 }, { 3, 1, 1, 2 } };
    group("max_pool2d equals the cpu's");
    for (size_t o = 0; o < COUNT(options); o++)
        for (size_t d = 0; d < COUNT(all_dtypes) - 1; d++)
            for (int last = 0; last < 2; last++) {
                char what[100];
                snprintf(what, sizeof what, "pool %d/%d, padding %d, dilation %d%s", (int)options[o][0], (int)options[o][1],
                         (int)options[o][2], (int)options[o][3], last ? ", channels last" : "");
                struct trial t = { what, { numbers(CTRT_SHAPE(2, 5, 17, 22), all_dtypes[d], TIES) }, { d < FLOATING }, pool_call,
                                   { options[o][0], options[o][1], options[o][2], options[o][3], last }, 0 };
                compare(&t);
                forget(&t);
            }
}

/* ---- indices ---- */

static ctrt_status select_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return ctrt_index_select(out, in[0], (int)n[0], in[1]); }
static ctrt_status embedding_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return ctrt_embedding(out, in[0], in[1], n[0]); }
static ctrt_status gather_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n) { return ctrt_gather(out, in[0], (int)n[0], in[1]); }

static void check_index(void)
{
    /* With more than 512 indices the sums are computed in parts. */
    static const struct { int64_t o, v, i, count; bool skewed; } cases[] = {
        { 1, 10, 8, 30, false }, { 1, 10, 33, 1300, true }, { 1, 3000, 16, 500, false }, { 3, 40, 5, 700, false }, { 1, 9000, 1, 2500, false },
        { 2, 7, 300, 90, true }, { 1, 100, 256, 530, false }, { 4, 3, 1, 600, true }, { 1, 50, 2, 3000, true }, { 2, 300, 31, 400, false },
    };
    group("index_select and its gradient equal the cpu's");
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t d = 0; d < COUNT(all_dtypes); d++) {
            struct trial t = { "index_select", { numbers(CTRT_SHAPE(cases[c].o, cases[c].v, cases[c].i), all_dtypes[d], SMOOTH),
                                                 indices(CTRT_SHAPE(cases[c].count), cases[c].v, cases[c].skewed) },
                               { d < FLOATING }, select_call, { 1 }, 32 };
            compare(&t);
            forget(&t);
        }
    group("gather and its gradient equal the cpu's");
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t d = 0; d < COUNT(all_dtypes); d++) {
            struct trial t = { "gather", { numbers(CTRT_SHAPE(cases[c].o, cases[c].v, cases[c].i), all_dtypes[d], SMOOTH),
                                           indices(CTRT_SHAPE(cases[c].o, cases[c].count, cases[c].i), cases[c].v, cases[c].skewed) },
                               { d < FLOATING }, gather_call, { 1 }, 32 };
            compare(&t);
            forget(&t);
        }
    group("embedding with padding equals the cpu's");
    for (size_t d = 0; d < FLOATING; d++) {
        struct trial t = { "embedding", { numbers(CTRT_SHAPE(20, 24), all_dtypes[d], SMOOTH), indices(CTRT_SHAPE(11, 9), 20, true) }, { true },
                           embedding_call, { 1 }, 4 };
        compare(&t);
        forget(&t);
    }
}

/* So many indices that the backend sorts them, in several sorts. In the first case nearly all indices select one
 * row. */
static void check_large_index(void)
{
    static const struct { int64_t o, v, i, count; bool skewed; } cases[] = { { 1, 1 << 20, 1, 600000, true }, { 5, 65536, 4, 250000, false } };
    group("gather with many indices computes its gradient by sorting");
    for (size_t c = 0; c < COUNT(cases); c++) {
        struct trial t = { "gather", { numbers(CTRT_SHAPE(cases[c].o, cases[c].v, cases[c].i), CTRT_F32, WHOLE),
                                       indices(CTRT_SHAPE(cases[c].o, cases[c].count, cases[c].i), cases[c].v, cases[c].skewed) },
                           { true }, gather_call, { 1 }, 0 };
        ctrt_tensor *ours[OUTPUTS] = { NULL }, *theirs[OUTPUTS] = { NULL };
        one_side(theirs, &t, cpu, false);
        one_side(ours, &t, gpu, false);
        CHECK(difference(ours[1], theirs[1]) < 1e-4, "case %zu: gradients differ by %g", c, difference(ours[1], theirs[1]));
        for (int k = 0; k < OUTPUTS; k++) {
            ctrt_tensor_release(&theirs[k]);
            ctrt_tensor_release(&ours[k]);
        }
        forget(&t);
    }
    const struct softcuda_control *soft = soft_control();
    CHECK(soft == NULL || soft->launches("index_sort_add_f32") >= 3, "index_sort_add_f32 ran fewer than 3 times");
}

/* ---- indices out of range ---- */

static void check_message(ctrt_status status, ctrt_tensor **out, const char *value, const char *limit)
{
    double x;
    if (status == CTRT_OK && *out != NULL) {
        CHECK_OK(ctrt_sum(out, *out, CTRT_ALL_DIMS));
        status = ctrt_item(&x, *out);
    }
    CHECK(status == CTRT_ERR_INVALID_ARGUMENT, "the status is %d, expected CTRT_ERR_INVALID_ARGUMENT", status);
    CHECK(strstr(ctrt_error_message(), value) != NULL && strstr(ctrt_error_message(), limit) != NULL, "the message is \"%s\", expected %s and %s in it",
          ctrt_error_message(), value, limit);
    ctrt_tensor_release(out);
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_current(&stream, gpu));
    CHECK_OK(ctrt_stream_reset(stream));
    ctrt_stream_release(&stream);
}

static void check_range(void)
{
    group("indices and targets out of range are errors that name the value and the limit");
    static const int64_t bad[][3] = { { 0, 7, 1 }, { 0, 1, -1 }, { 5, 0, 0 }, { INT64_MIN, 0, 0 }, { 0, 0, INT64_MAX } };
    for (size_t b = 0; b < COUNT(bad); b++) {
        ctrt_tensor *x = numbers(CTRT_SHAPE(5, 3), CTRT_F32, SMOOTH), *i = NULL, *column = NULL, *out = NULL;
        char value[40];
        int64_t wrong = 0;
        for (int k = 0; k < 3; k++)
            wrong = bad[b][k] < 0 || bad[b][k] > 4 ? bad[b][k] : wrong;
        snprintf(value, sizeof value, "%lld", (long long)wrong);
        CHECK_OK(ctrt_to_device(&x, x, gpu));
        CHECK_OK(ctrt_from_data(&i, bad[b], 3, CTRT_SHAPE(3), CTRT_I64, gpu));
        CHECK_OK(ctrt_reshape(&column, i, CTRT_SHAPE(1, 3)));
        check_message(ctrt_index_select(&out, x, 0, i), &out, value, "[0, 5)");
        check_message(ctrt_gather(&out, x, 0, column), &out, value, "[0, 5)");
        check_message(ctrt_embedding(&out, x, i, 0), &out, value, "[0, 5)");
        const ctrt_cross_entropy_options options = { .reduction = CTRT_REDUCE_NONE };
        ctrt_tensor *logits = numbers(CTRT_SHAPE(3, 5), CTRT_F32, SMOOTH);
        CHECK_OK(ctrt_to_device(&logits, logits, gpu));
        check_message(ctrt_cross_entropy(&out, logits, i, &options), &out, value, "[0, 5)");
        ctrt_tensor_release(&logits);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&i);
        ctrt_tensor_release(&column);
    }
}

/* ---- optimizers ---- */

static void steps(ctrt_tensor **p, int count, ctrt_device *device, ctrt_dtype dtype, int way)
{
    ctrt_optimizer *optimizer = NULL;
    const ctrt_sgd_options sgd = { .lr = 0.1, .momentum = way == 1 ? 0.9 : 0, .weight_decay = 0.01, .nesterov = way == 1 };
    const ctrt_adamw_options adamw = { .lr = 0.01, .weight_decay = 0.1 };
    for (int k = 0; k < count; k++) {
        p[k] = numbers(CTRT_SHAPE(1 + k * k * 37 % 9001), dtype, SMOOTH);
        CHECK_OK(ctrt_to_device(&p[k], p[k], device));
        CHECK_OK(ctrt_tensor_require_grad(p[k], true));
    }
    CHECK_OK(way == 2 ? ctrt_adamw_new(&optimizer, NULL, &adamw) : ctrt_sgd_new(&optimizer, NULL, &sgd));
    CHECK_OK(ctrt_optimizer_add(optimizer, p, count));
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < count; k++) {
            ctrt_tensor *g = numbers(CTRT_SHAPE(ctrt_tensor_numel(p[k])), dtype, WHOLE);
            CHECK_OK(ctrt_to_device(&g, g, device));
            CHECK_OK(ctrt_tensor_set_grad(p[k], g));
            ctrt_tensor_release(&g);
        }
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    ctrt_optimizer_release(&optimizer);
}

static void check_optimizers(void)
{
    enum { TENSORS = 130 };
    static const char *const names[] = { "sgd", "sgd with momentum", "adamw" };
    for (int way = 0; way < 3; way++) {
        group("%s on %d tensors", names[way], TENSORS);
        for (int d = 0; d < FLOATING; d++) {
            ctrt_tensor *theirs[TENSORS] = { NULL }, *ours[TENSORS] = { NULL };
            steps(theirs, TENSORS, cpu, all_dtypes[d], way);
            steps(ours, TENSORS, gpu, all_dtypes[d], way);
            for (int k = 0; k < TENSORS; k++) {
                const double off = difference(ours[k], theirs[k]);
                CHECK(off <= 16 * epsilon(all_dtypes[d]), "%s, %s, tensor %d is off by %g", names[way], ctrt_dtype_name(all_dtypes[d]), k, off);
                ctrt_tensor_release(&theirs[k]);
                ctrt_tensor_release(&ours[k]);
            }
        }
    }
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    if (argc > 1 && !CHECK_OK(ctrt_device_get(&gpu, argv[1])))      /* a device named by the caller must exist */
        return done();
    if (argc < 2 && ctrt_device_get(&gpu, "cuda:0") != CTRT_OK)
        return skip_rest(ctrt_error_message());
    if (argc > 2) {                         /* one part, with the caller's settings */
        if (strcmp(argv[2], "index") == 0) {
            check_index();
            check_range();
        } else {
            check_large_index();
        }
        return done();
    }
    const uint64_t before = ctrt_fallback_count(NULL);
    check_reductions();
    check_softmax();
    check_loss();
    check_norms();
    check_pool();
    check_index();
    check_range();
    check_optimizers();
    group("no op fell back to the cpu");
    CHECK(ctrt_fallback_count(NULL) == before, "%llu ops fell back to the cpu", (unsigned long long)(ctrt_fallback_count(NULL) - before));
    return done();
}
