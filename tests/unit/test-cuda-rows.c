/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions, row ops, indexing and optimizers of the cuda backend, compared with the cpu. The sizes are those at which
 * a kernel or its launch changes (vectors or single elements, registers or shared memory, one part or several) and
 * which the conformance suite's shapes do not reach. Each call runs twice and must give the same bits, and once with
 * unaligned operands. Run by tests/integration/cuda-rows.sh:
 *
 *     run-public test-cuda-rows [DEVICE [sorted]]
 *
 * sorted: only sums by index; used with CTRT_CUDA_SCATTER=sort. */
#include "../options.h"
#include "cuda_compare.h"

static const ctrt_dtype some_dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_I8, CTRT_I64 };

static ctrt_tensor *indices(ctrt_ints shape, int64_t limit, bool skewed)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_empty(&x, shape, CTRT_I64, cpu));
    const int64_t numel = ctrt_tensor_numel(x);
    int64_t *values = malloc((size_t)(numel + 1) * sizeof *values);
    for (int64_t i = 0; i < numel; i++)
        values[i] = skewed && i % 3 != 0 ? 1 : (int64_t)(mixed((uint64_t)(i + 77)) % (uint64_t)limit);
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_I64));
    free(values);
    return x;
}

typedef ctrt_status reduction_function(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keep);

static const struct {
    const char *name;
    reduction_function *run;
    enum values kind;
    bool floating, one;                     /* floating dtypes only; one dimension only */
} reductions[] = {
    { "sum", ctrt_sum_dims, SMOOTH, false, false }, { "mean", ctrt_mean_dims, SMOOTH, true, false },
    { "prod", ctrt_prod_dims, WHOLE, false, false }, { "amax", ctrt_amax, TIES, false, false },
    { "amin", ctrt_amin, TIES, false, false }, { "any", ctrt_any, TIES, false, false },
    { "all", ctrt_all, TIES, false, false }, { "argmax", ctrt_argmax, TIES, false, true },
    { "argmin", ctrt_argmin, TIES, false, true },
};

/* n[0]: index of the reduction; n[1]: bit mask of the dims; n[2]: 1 to take every second column. */
static ctrt_status reduce(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_AUTO(tensor) x = NULL;
    int64_t dims[4];
    int count = 0;
    for (int d = 0; d < 4; d++)
        if (n[1] >> d & 1)
            dims[count++] = d;
    ctrt_tensor_assign(&x, in[0]);
    if (n[2])
        CTRT_TRY(ctrt_slice(&x, x, ctrt_tensor_ndim(x) - 1, 0, INT64_MAX, 2));
    return reductions[n[0]].run(out, x, ctrt_ints_of(dims, count), false);
}

static const struct { const char *what; int64_t shape[4], dims, view; bool every_dtype; } reduced[] = {
    { "two parts of a row", { 1, 8200 }, 2, 0, true }, { "more than 8 parts of a row", { 1, 37007 }, 2, 0, false },
    { "parts of even columns", { 600, 64 }, 1, 0, true }, { "parts of odd columns", { 600, 67 }, 1, 0, false },
    { "outer and long inner", { 3, 2, 200 }, 5, 0, false }, { "two middles", { 3, 5, 4, 7 }, 6, 0, false },
    { "every second", { 3, 2301 }, 2, 1, false }, { "every second, columns", { 130, 21 }, 1, 1, false },
};

static void check_reductions(void)
{
    for (size_t r = 0; r < COUNT(reductions); r++) {
        group("%s", reductions[r].name);
        EACH(s, reduced) {
            const ctrt_dtype *dtypes = s->every_dtype ? all_dtypes : some_dtypes;
            const size_t count = s->every_dtype ? COUNT(all_dtypes) : COUNT(some_dtypes);
            int ndim = 4;
            while (s->shape[ndim - 1] == 0)
                ndim--;
            for (size_t d = 0; d < count; d++) {
                const bool several = (s->dims & (s->dims - 1)) != 0;
                if ((reductions[r].floating && !ctrt_dtype_is_floating(dtypes[d]))
                    || (reductions[r].one && (several || dtypes[d] == CTRT_BOOL)))
                    continue;
                const ctrt_ints shape = ctrt_ints_of(s->shape, ndim);
                compare((struct trial){ .what = s->what, .call = reduce,
                                        .in = { numbers(shape, dtypes[d], reductions[r].kind) },
                                        .n = { (int64_t)r, s->dims, s->view },
                                        .tolerance = dtypes[d] == CTRT_F64 ? 32 : 2 }, true);
            }
        }
    }
}

/* ---- softmax and losses ---- */

/* n[0]: whether log_softmax; n[1]: the dim */
CALL(softmax, n[0] ? ctrt_log_softmax(out, in[0], (int)n[1]) : ctrt_softmax(out, in[0], (int)n[1]))

static void check_softmax(void)
{
    static const struct { const char *what; int64_t shape[3]; int dim; } shapes[] = {
        { "vectors in registers", { 9, 64 }, 1 }, { "full registers", { 3, 1024 }, 1 },
        { "uneven rows in memory", { 3, 1025 }, 1 }, { "shared memory", { 2, 1040 }, 1 },
        { "large blocks", { 2, 4112 }, 1 }, { "shared memory for one operand only", { 1, 14000 }, 1 },
        { "a thread per column", { 2, 10, 300 }, 1 }, { "tiles of columns", { 2, 80, 33 }, 1 },
    };
    static const double rows[5][4] = { { -INFINITY, -INFINITY, -INFINITY, -INFINITY }, { INFINITY, 0, 1, 2 },
                                       { NAN, 0, 1, 2 }, { -INFINITY, 0, -INFINITY, 1 }, { 3e38, -3e38, 0, 3e38 } };
    static const int64_t widths[] = { 4, 1001, 1025, 2000 };
    static float values[5 * 2000];
    for (int log = 0; log < 2; log++) {
        group(log ? "log_softmax" : "softmax");
        EACH(s, shapes)
            for (int d = 0; d < FLOATING; d++) {
                const ctrt_ints shape = ctrt_ints_of(s->shape, s->shape[2] ? 3 : 2);
                compare((struct trial){ s->what, { numbers(shape, all_dtypes[d], LOGITS) }, { true }, softmax,
                                        { log, s->dim }, 16, OTHERS }, true);
            }
        group("%ssoftmax of rows with infinities and NaN", log ? "log_" : "");
        for (size_t w = 0; w < COUNT(widths); w++)
            for (int dim = 0; dim < 2; dim++) {
                ctrt_tensor *x = NULL;
                for (int64_t i = 0; i < 5 * widths[w]; i++)
                    values[i] = (float)rows[i / widths[w]][i % widths[w] % 4];
                CHECK_OK(ctrt_from_data(&x, values, 5 * widths[w], CTRT_SHAPE(5, widths[w]), CTRT_F32, cpu));
                if (dim == 0)
                    CHECK_OK(ctrt_transpose(&x, x, 0, 1));
                compare((struct trial){ "special rows", { x }, { 0 }, softmax, { log, dim }, 256, OTHERS }, true);
            }
    }
}

static ctrt_status cross_entropy(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    const ctrt_cross_entropy_options options = { sizeof(ctrt_cross_entropy_options), .weight = in[2],
                                                 .ignore_index = n[0],
                                                 .label_smoothing = 0.1, .reduction = CTRT_REDUCE_NONE };
    return ctrt_cross_entropy(out, in[0], in[1], &options);
}

static void check_loss(void)
{
    group("cross_entropy by warps and by blocks, with weights, smoothing and an ignored class");
    static const int64_t classes[] = { 2048, 2051 };
    EACH(count, classes)
        for (int d = 0; d < FLOATING; d++) {
            ctrt_tensor *weight = numbers(CTRT_SHAPE(*count), all_dtypes[d], SMOOTH);
            CHECK_OK(ctrt_abs(&weight, weight));
            compare((struct trial){ "cross_entropy", { numbers(CTRT_SHAPE(7, *count), all_dtypes[d], LOGITS),
                                                       indices(CTRT_SHAPE(7), *count, true), weight },
                                    { true }, cross_entropy, { 1 }, 64, OTHERS }, true);
        }
}

/* n[0]: causal; n[1]: the scale in thousandths */
static ctrt_attention_options attention_options(const int64_t *n)
{
    return CTRT_WITH(ctrt_attention_options, .causal = n[0] != 0, .has_scale = n[1] != 0, .scale = (double)n[1] / 1000);
}
CALL(attention, ctrt_scaled_dot_product_attention(out, in[0], in[1], in[2], NULL,
                                                  (ctrt_attention_options[]){ attention_options(n) }))

static void check_attention(void)
{
    /* With LOGITS the largest score of a row grows from tile to tile. */
    static const struct {
        const char *what;
        int64_t rows, keys, width, values, causal, scale;
        enum values kind;
    } cases[] = {
        { "several tiles", 70, 140, 64, 64, 0, 125, SMOOTH }, { "causal", 135, 135, 64, 64, 1, 125, SMOOTH },
        { "causal, growing scores", 70, 135, 64, 64, 1, 125, LOGITS },
        { "growing scores, a negative scale", 40, 140, 64, 64, 0, -125, LOGITS },
        { "wide, growing scores", 70, 100, 128, 128, 1, 88, LOGITS },
        { "wide, a negative scale", 40, 70, 128, 120, 0, -88, SMOOTH },
        { "wider values", 70, 66, 24, 48, 0, 200, SMOOTH }, { "narrow", 70, 130, 32, 32, 1, 177, LOGITS },
        { "one row", 1, 300, 64, 64, 0, 125, SMOOTH }, { "one row, wide", 1, 300, 128, 128, 0, 88, LOGITS },
        { "causal, more keys", 40, 140, 32, 40, 1, 177, SMOOTH },
    };
    group("attention");
    EACH(c, cases)
        for (int d = 0; d < FLOATING; d++) {
            const bool smooth = c->kind == SMOOTH;
            /* f32 and f64: scores of up to 4000 have errors of hundreds of epsilons. */
            compare((struct trial){ c->what, { numbers(CTRT_SHAPE(c->rows, c->width), all_dtypes[d], c->kind),
                                               numbers(CTRT_SHAPE(c->keys, c->width), all_dtypes[d], c->kind),
                                               numbers(CTRT_SHAPE(c->keys, c->values), all_dtypes[d], SMOOTH) },
                                    { smooth, smooth, smooth }, attention, { c->causal, c->scale },
                                    d < 2 ? 512 : 16, OTHERS }, true);
        }
}

/* ---- norms ---- */

CALL(layer_norm, ctrt_layer_norm(out, in[0], CTRT_SHAPE(n[0]), in[1], in[2], 1e-5))

/* out[5]: the updated running mean. */
static ctrt_status batch_norm(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_AUTO(tensor) mean = NULL, var = NULL;
    (void)n;
    ctrt_tensor_assign(&mean, in[3]);
    ctrt_tensor_assign(&var, in[4]);
    CTRT_TRY(ctrt_batch_norm(out, in[0], in[1], in[2], mean, var, true, 0.1, 1e-5));
    ctrt_no_grad { ctrt_tensor_assign(&out[5], mean); }
    return CTRT_OK;
}

static void check_norms(void)
{
    static const struct { const char *what; int64_t rows, width; } layers[] = {
        { "parts of the parameters' gradients", 140, 68 }, { "full registers", 9, 1024 },
        { "uneven rows in memory", 3, 1030 }, { "shared memory", 3, 2048 }, { "large blocks", 2, 5000 },
        { "shared memory for one operand only", 1, 14000 },
    };
    group("layer_norm");
    EACH(w, layers)
        for (int d = 0; d < FLOATING; d++) {
            const ctrt_ints shape = CTRT_SHAPE(w->rows, w->width), width = CTRT_SHAPE(w->width);
            const bool parameters = w->width <= 1024;        /* their gradients take many blocks */
            compare((struct trial){ w->what, { numbers(shape, all_dtypes[d], SMOOTH),
                                               numbers(width, all_dtypes[d], SMOOTH),
                                               numbers(width, all_dtypes[d], OTHERS) },
                                    { true, parameters, parameters }, layer_norm, { w->width }, 32, OTHERS }, true);
        }
    static const struct { const char *what; int64_t n, c, s; } images[] = {
        { "parts of vectors", 3, 2, 2800 }, { "parts of numbers, across images", 9, 1, 1001 },
        { "parts of columns", 150, 35, 1 },
    };
    group("batch_norm of values far from 0, whose squares cancel; halves with f32 parameters");
    EACH(i, images)
        for (int d = 0; d < FLOATING; d++) {
            const bool half = d >= 2;
            const ctrt_dtype dtype = half ? CTRT_F32 : all_dtypes[d];
            const ctrt_ints c = CTRT_SHAPE(i->c);
            ctrt_tensor *x = numbers(CTRT_SHAPE(i->n, i->c, i->s), all_dtypes[d], SMOOTH),
                *var = numbers(c, dtype, SMOOTH);
            CHECK_OK(ctrt_abs(&var, var));
            if (!half)
                CHECK_OK(ctrt_add_scalar(&x, x, ctrt_float(100)));
            compare((struct trial){ i->what, { x, numbers(c, dtype, SMOOTH), numbers(c, dtype, OTHERS),
                                                      numbers(c, dtype, SMOOTH), var },
                                    { true, true, true }, batch_norm, { 0 }, half ? 1 << 15 : 3000, OTHERS }, true);
        }
}

/* ---- indices ---- */

CALL(index_select, ctrt_index_select(out, in[0], (int)n[0], in[1]))
CALL(gather, ctrt_gather(out, in[0], (int)n[0], in[1]))
CALL(embedding, ctrt_embedding(out, in[0], in[1], n[0]))

static struct trial gather_trial(const char *what, int64_t o, int64_t v, int64_t i, int64_t count, bool skewed,
                                 ctrt_dtype dtype)
{
    return (struct trial){ what, { numbers(CTRT_SHAPE(o, v, i), dtype, WHOLE),
                                   indices(CTRT_SHAPE(o, count, i), v, skewed) },
                           { ctrt_dtype_is_floating(dtype) }, gather, { 1 }, EQUAL, WHOLE };
}

static void check_index(void)
{
    /* With more than 512 indices the sums are computed in parts. */
    static const struct { const char *what; int64_t o, v, i, count; bool skewed, every_float; } cases[] = {
        { "vectors", 1, 10, 8, 30, false, false }, { "tiles of columns", 2, 7, 300, 90, true, false },
        { "parts", 1, 10, 33, 1300, true, true }, { "parts of narrow columns", 4, 3, 1, 600, true, true },
        { "parts of groups of rows", 1, 9000, 1, 2500, false, false },
        { "groups of rows", 1, 1500, 16, 500, false, false },
    };
    group("index_select, gather and their gradients");
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t d = 0; d < COUNT(all_dtypes); d++) {
            const ctrt_ints shape = CTRT_SHAPE(cases[c].o, cases[c].v, cases[c].i);
            if (c == 0 || all_dtypes[d] == CTRT_F32 || (cases[c].every_float && d < FLOATING)) {
                ctrt_tensor *index = indices(CTRT_SHAPE(cases[c].count), cases[c].v, cases[c].skewed);
                compare((struct trial){ cases[c].what, { numbers(shape, all_dtypes[d], SMOOTH), index },
                                        { d < FLOATING }, index_select, { 1 }, 32, OTHERS }, true);
                compare(gather_trial(cases[c].what, cases[c].o, cases[c].v, cases[c].i, cases[c].count,
                                     cases[c].skewed, all_dtypes[d]), true);
            }
        }
    group("embedding with a padding row, which the kernel for wide rows skips");
    ctrt_tensor *weight = numbers(CTRT_SHAPE(20, 40), CTRT_F32, SMOOTH), *index = indices(CTRT_SHAPE(11, 9), 20, true);
    compare((struct trial){ "embedding", { weight, index }, { true }, embedding, { 1 }, 4, OTHERS }, true);
}

/* Compares one run on the gpu with the cpu, and returns how often index_sort_add_f32 ran, or -1. */
static int64_t run_sorted(struct trial t)
{
    const int64_t before = soft != NULL ? (int64_t)soft->launches("index_sort_add_f32") : 0;
    compare(t, false);
    return soft != NULL ? (int64_t)soft->launches("index_sort_add_f32") - before : -1;
}

/* The conformance suite checks other values of indices, and that the stream can be used after a reset. */
static void check_errors(void)
{
    static const char *const ops[] = { "index_select", "gather", "cross_entropy", "floor_divide" };
    const ctrt_cross_entropy_options options = { sizeof(ctrt_cross_entropy_options), .ignore_index = -100,
                                                 .reduction = CTRT_REDUCE_NONE };
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(3, 5), CTRT_F32, SMOOTH), out = NULL;
    CTRT_AUTO(stream) stream = NULL;
    group("errors of kernels name the op and the wrong element until the stream is reset");
    CHECK_OK(ctrt_to_device(&x, x, gpu));
    CHECK_OK(ctrt_stream_current(&stream, gpu));
    for (int op = 0; op < 4; op++) {
        CTRT_AUTO(tensor) i = NULL, column = NULL;
        int64_t values[3] = { 0, 1, 0 };
        char words[80] = "a divisor is 0";
        values[op % 3] = INT64_MIN;
        if (op < 3)
            snprintf(words, sizeof words, " %lld (element %d) is out of range [0, 5)", (long long)INT64_MIN, op);
        CHECK_OK(ctrt_from_data(&i, values, 3, CTRT_SHAPE(3), CTRT_I64, gpu));
        CHECK_OK(ctrt_unsqueeze(&column, i, 1));
        ctrt_status status = op == 0   ? ctrt_index_select(&out, x, 1, i)
                             : op == 1 ? ctrt_gather(&out, x, 1, column)
                             : op == 2 ? ctrt_cross_entropy(&out, x, i, &options)
                                       : ctrt_floor_divide(&out, i, i);
        for (int time = 0; time < 2; time++) {
            if (status == CTRT_OK || time == 1)
                status = ctrt_stream_synchronize(stream);
            CHECK_FAILS(status, CTRT_ERR_INVALID_ARGUMENT, ops[op]);
            CHECK_HAS(ctrt_error_message(), words);
        }
        CHECK_OK(ctrt_stream_reset(stream));
    }
}

/* ---- optimizers ---- */

static void steps(ctrt_tensor **p, int count, ctrt_device *device, ctrt_dtype dtype, bool adam)
{
    ctrt_optimizer *optimizer = NULL;
    const ctrt_sgd_options sgd = *SGD(.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
    const ctrt_adamw_options adamw = *ADAMW(.lr = 0.01, .weight_decay = 0.1);
    for (int k = 0; k < count; k++) {
        p[k] = numbers(CTRT_SHAPE(k == 57 ? 9001 : 1 + k * 37 % 301), dtype, SMOOTH);
        CHECK_OK(ctrt_to_device(&p[k], p[k], device));
        CHECK_OK(ctrt_tensor_require_grad(p[k], true));
    }
    CHECK_OK(adam ? ctrt_adamw_new(&optimizer, NULL, &adamw) : ctrt_sgd_new(&optimizer, NULL, &sgd));
    CHECK_OK(ctrt_optimizer_add(optimizer, p, count));
    for (int step = 0; step < 2; step++) {
        for (int k = 0; k < count; k++) {
            CTRT_AUTO(tensor) grad = numbers(CTRT_SHAPE(ctrt_tensor_numel(p[k])), dtype, WHOLE);
            CHECK_OK(ctrt_to_device(&grad, grad, device));
            CHECK_OK(ctrt_tensor_set_grad(p[k], grad));
        }
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    ctrt_optimizer_release(&optimizer);
}

static void check_optimizers(void)
{
    enum { TENSORS = 115 };                 /* three launches of at most 56 tensors */
    group("optimizers of %d tensors, one of several blocks", TENSORS);
    for (int adam = 0; adam < 2; adam++)
        for (int d = 0; d < FLOATING; d++) {
            ctrt_tensor *want[TENSORS] = { NULL }, *got[TENSORS] = { NULL };
            steps(want, TENSORS, cpu, all_dtypes[d], adam);
            steps(got, TENSORS, gpu, all_dtypes[d], adam);
            for (int k = 0; k < TENSORS; k++)
                same(got[k], want[k], 16 * epsilon(all_dtypes[d]), "%s, tensor %d", adam ? "adamw" : "sgd", k);
            tensors_release(want, TENSORS);
            tensors_release(got, TENSORS);
        }
}

TEST_MAIN
{
    group("the devices open");
    if (!soft_open(argc > 1 ? argv[1] : "cuda:0"))
        return done();
    if (argc > 2 && strcmp(argv[2], "softmax") == 0) {
        check_softmax();
        return done();
    }
    if (argc > 2) {                         /* sorted */
        check_index();
        group("more elements than one sort takes are sorted in several");
        const int64_t sorts = run_sorted(gather_trial("several sorts", 2, 60, 2, 1050000, true, CTRT_F32));
        CHECK(sorts < 0 || sorts == 2, "%lld sorts, expected 2", (long long)sorts);
        return done();
    }
    const uint64_t before = ctrt_fallback_count(NULL);
    RUN_ALL(check_reductions, check_softmax, check_loss, check_attention, check_norms, check_index);
    group("the gradient of gather is sorted where tiles would read too many indices");
    const int64_t sorts = run_sorted(gather_trial("one sort", 1, 1 << 22, 1, 140000, true, CTRT_F32));
    CHECK(sorts < 0 || sorts == 1, "%lld sorts, expected 1", (long long)sorts);
    check_errors();
    check_optimizers();
    group("no op fell back to the cpu");
    CHECK_EQ(ctrt_fallback_count(NULL), before);
    return done();
}
