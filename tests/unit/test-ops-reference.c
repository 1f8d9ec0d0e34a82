/* SPDX-License-Identifier: Apache-2.0 */
/* test-ops-reference.c: compares ctrt with every case of tests/reference/ops_*.txt, which PyTorch computed. Optimizers
 * are compared by test-optim-kinds.
 *
 * Exact results must be bitwise equal. Floating-point results are compared in f32 and in f64, also gradients and
 * errors. Skipped cases are reported with a reason. tests/reference/README.md describes the file format. */
#include <fnmatch.h>
#include <math.h>

#include "calls.h"
#include "../options.h"
#include "../reference/ref.h"
#include "tensors.h"

enum { CASE_INPUTS = 8, CASE_RESULTS = 4 };

struct ref_case {
    const struct ref_file *file;
    char name[96];                      /* "add.special" */
    bool wide;                          /* floating inputs in f64 */
    int inputs;
    char input_names[CASE_INPUTS][16];
    ctrt_tensor *in[CASE_INPUTS];
    /* Outputs of the op, set by the assignment rule. The first is the result; the others are named. */
    ctrt_tensor *out[CASE_RESULTS];
    const char *out_names[CASE_RESULTS];
    /* Module parameters whose gradient is compared instead of the input's. */
    ctrt_tensor *leaf[CASE_INPUTS];
};

/* Cases that are not compared, by patterns. */
static const struct { const char *name, *reason; } skipped[] = {
    { "any.u8", "PyTorch returns u8 for u8 for historical reasons; ctrt returns bool for all dtypes" },
    { "max_pool2d.ceil*", "ctrt_max_pool2d has no ceil_mode" },
    { "cross_entropy.probabilities", "ctrt_cross_entropy takes class indices only" },
};

/* ---- records and tensors ---- */

/* Returns the input called `name`, or NULL when the case has no such input. */
static ctrt_tensor *input(const struct ref_case *c, const char *name)
{
    for (int i = 0; i < c->inputs; i++)
        if (!strcmp(c->input_names[i], name))
            return c->in[i];
    return NULL;
}

/* Returns the record of an attribute, or NULL. */
static const struct ref_record *attr(const struct ref_case *c, const char *name)
{
    return ref_find(c->file, "%s/attr/%s", c->name, name);
}

/* Returns the first number of an attribute, or `fallback` when the attribute is absent. */
static double number(const struct ref_case *c, const char *name, double fallback)
{
    const struct ref_record *record = attr(c, name);
    return record && record->f && record->numel > 0 ? record->f[0] : fallback;
}

/* Returns the integers of an attribute, or CTRT_ALL_DIMS when the attribute is absent. */
static ctrt_ints integers(const struct ref_case *c, const char *name)
{
    const struct ref_record *record = attr(c, name);
    return record && record->i ? ctrt_ints_of(record->i, (int)record->numel) : CTRT_ALL_DIMS;
}

static bool is_word(const struct ref_case *c, const char *name, const char *word)
{
    const struct ref_record *record = attr(c, name);
    return record && record->text && !strcmp(record->text, word);
}

#define OUT              (&c->out[0])
#define IN(name)         input(c, name)
#define DIM              (int)number(c, "dim", 0)
#define CASE(name, ...)  static ctrt_status name(struct ref_case *c) { return __VA_ARGS__; }

/* ---- elementwise ---- */

static ctrt_status clamp(struct ref_case *c)
{
    ctrt_scalar lo = ctrt_float(number(c, "min", 0)), hi = ctrt_float(number(c, "max", 0));
    if (!attr(c, "max"))
        return ctrt_clamp_min(OUT, IN("x"), lo);
    if (!attr(c, "min"))
        return ctrt_clamp_max(OUT, IN("x"), hi);
    return ctrt_clamp(OUT, IN("x"), lo, hi);
}

CASE(where, ctrt_where(OUT, IN("c"), IN("a"), IN("b")))

static ctrt_scalar scalar_of(const struct ref_record *record)
{
    return record->i ? ctrt_int(record->i[0]) : ctrt_float(record->f[0]);
}

static ctrt_status power(struct ref_case *c)
{
    if (attr(c, "exponent"))
        return ctrt_pow_scalar(OUT, IN("x"), scalar_of(attr(c, "exponent")));
    if (attr(c, "base"))
        return ctrt_rpow_scalar(OUT, IN("x"), scalar_of(attr(c, "base")));
    return ctrt_pow(OUT, IN("a"), IN("b"));
}

/* Casts to the dtype that follows the '_' in the case's name, as in "cast.f32_i64_large". */
static ctrt_status cast(struct ref_case *c)
{
    char word[16];
    ctrt_dtype dtype;
    const char *at = strchr(c->name, '_') + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "_"), at);
    CTRT_TRY(ctrt_dtype_parse(&dtype, word));
    return ctrt_to_dtype(OUT, IN("x"), dtype);
}

CASE(variance, ctrt_var(OUT, IN("x"), integers(c, "dim"), (int)number(c, "correction", 1),
              number(c, "keepdim", 0) != 0))

static ctrt_status min(struct ref_case *c)
{
    c->out_names[1] = "indices";
    return ctrt_min(OUT, &c->out[1], IN("x"), DIM, false);
}

/* Over all dimensions PyTorch's max is ctrt_amax, whose ties share the gradient equally. */
static ctrt_status max(struct ref_case *c)
{
    c->out_names[1] = "indices";
    return attr(c, "dim") ? ctrt_max(OUT, &c->out[1], IN("x"), DIM, false)
                          : ctrt_amax(OUT, IN("x"), CTRT_ALL_DIMS, false);
}

CASE(softmax, ctrt_softmax(OUT, IN("x"), DIM))
CASE(log_softmax, ctrt_log_softmax(OUT, IN("x"), DIM))

/* ---- matrices, joins, creation, indexing ---- */

CASE(linear, ctrt_linear(OUT, IN("x"), IN("weight"), IN("bias")))
CASE(cat, ctrt_cat(OUT, c->in, c->inputs, DIM))

static ctrt_status arange(struct ref_case *c)
{
    const struct ref_record *args = attr(c, "args");
    ctrt_scalar value[3] = { ctrt_int(0), ctrt_int(0), ctrt_int(1) };
    for (int k = 0; k < args->numel; k++) {
        int to = args->numel == 1 ? 1 : k;
        value[to] = args->i ? ctrt_int(args->i[k]) : ctrt_float(args->f[k]);
    }
    return ctrt_arange(OUT, value[0], value[1], value[2], CTRT_DTYPE_DEFAULT, NULL);
}

/* As in PyTorch, the value determines the dtype. */
static ctrt_status full(struct ref_case *c)
{
    const struct ref_record *value = attr(c, "value");
    ctrt_scalar scalar = !strcmp(value->dtype, "bool") ? ctrt_bool(value->i[0] != 0) : scalar_of(value);
    CTRT_TRY(ctrt_scalar_tensor(OUT, scalar, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_full(OUT, CTRT_SHAPE(2), scalar, ctrt_tensor_dtype(c->out[0]), NULL);
}

CASE(index_select, ctrt_index_select(OUT, IN("x"), DIM, IN("index")))
CASE(gather, ctrt_gather(OUT, IN("x"), DIM, IN("index")))

static void two(int64_t out[2], const struct ref_case *c, const char *name)
{
    const struct ref_record *record = attr(c, name);
    if (record == NULL)
        return;
    out[0] = record->i[0];
    out[1] = record->i[record->numel > 1];
}

/* ---- convolution, pooling, normalisation ---- */

static ctrt_status conv2d(struct ref_case *c)
{
    ctrt_conv2d_options options = { .size = sizeof(ctrt_conv2d_options), .groups = (int64_t)number(c, "groups", 1) };
    two(options.stride, c, "stride");
    two(options.padding, c, "padding");
    two(options.dilation, c, "dilation");
    return ctrt_conv2d(OUT, IN("x"), IN("weight"), IN("bias"), &options);
}

static ctrt_status max_pool2d(struct ref_case *c)
{
    ctrt_pool2d_options options = CTRT_POOL2D_OPTIONS;
    two(options.kernel, c, "kernel");
    two(options.stride, c, "stride");
    two(options.padding, c, "padding");
    two(options.dilation, c, "dilation");
    c->out_names[1] = "indices";
    return ctrt_max_pool2d(OUT, &c->out[1], IN("x"), &options);
}

CASE(layer_norm, ctrt_layer_norm(OUT, IN("x"), integers(c, "shape"), IN("weight"), IN("bias"),
                                 number(c, "eps", 1e-5)))

static ctrt_status batch_norm(struct ref_case *c)
{
    bool training = number(c, "training", 0) != 0;
    for (int k = 0; k < 2 && IN("mean"); k++)
        CTRT_TRY(ctrt_clone(&c->out[1 + k], input(c, k ? "var" : "mean")));
    c->out_names[1] = "mean";
    c->out_names[2] = "var";
    return ctrt_batch_norm(OUT, IN("x"), IN("weight"), IN("bias"), c->out[1],
                           c->out[2], training, number(c, "momentum", 0.1), number(c, "eps", 1e-5));
}

static ctrt_reduction reduction(const struct ref_case *c)
{
    if (is_word(c, "reduction", "none"))
        return CTRT_REDUCE_NONE;
    return is_word(c, "reduction", "sum") ? CTRT_REDUCE_SUM : CTRT_REDUCE_MEAN;
}

static ctrt_status cross_entropy(struct ref_case *c)
{
    ctrt_cross_entropy_options options = {
        sizeof(ctrt_cross_entropy_options), .weight = IN("weight"),
        .ignore_index = (int64_t)number(c, "ignore_index", -100),
        .label_smoothing = number(c, "label_smoothing", 0),
        .reduction = reduction(c),
    };
    return ctrt_cross_entropy(OUT, IN("x"), IN("target"), &options);
}

CASE(mse_loss, ctrt_mse_loss(OUT, IN("x"), IN("target"), reduction(c)))
CASE(gelu, ctrt_gelu(OUT, IN("x"), is_word(c, "approximate", "tanh")))

static ctrt_status attention(struct ref_case *c)
{
    const double scale = number(c, "scale", 0);
    const ctrt_attention_options options =
        CTRT_WITH(ctrt_attention_options, .causal = number(c, "causal", 0) != 0, .has_scale = scale != 0,
                  .scale = scale);
    return ctrt_scaled_dot_product_attention(OUT, IN("q"), IN("k"), IN("v"), IN("mask"), &options);
}

/* Runs a MultiheadAttention module with parameters from the file. The module's parameters become the case's leaves, so
 * that their gradients are compared. */
static ctrt_status multi_head(struct ref_case *c)
{
    static const char *const names[4][2] = {
        { "in_weight", "in_proj_weight" }, { "in_bias", "in_proj_bias" },
        { "out_weight", "out_proj.weight" }, { "out_bias", "out_proj.bias" },
    };
    CTRT_AUTO(module) net = NULL;
    ctrt_tensor *x = IN("x"), *memory = IN("memory");
    CTRT_TRY(ctrt_multihead_attention_new(&net, ctrt_tensor_size(x, 2), (int64_t)number(c, "heads", 1),
                                          ATTENTION(.causal = number(c, "causal", 0) != 0), NULL));
    CTRT_TRY(ctrt_module_to(net, NULL, ctrt_tensor_dtype(x)));
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < c->inputs; i++)
            if (!strcmp(c->input_names[i], names[k][0])) {
                ctrt_tensor *parameter;
                CTRT_TRY(ctrt_module_tensor(&parameter, net, names[k][1]));
                ctrt_no_grad CHECK_OK(ctrt_copy_(parameter, c->in[i]));
                ctrt_tensor_assign(&c->leaf[i], parameter);
            }
    ctrt_tensor *inputs[3] = { x, memory ? memory : x, memory ? memory : x };
    return ctrt_forward_n(OUT, net, inputs, 3);
}

/* In PyTorch a negative padding index counts from the end. In ctrt -1 means no padding, so a negative index of the file
 * is converted. */
static ctrt_status embedding(struct ref_case *c)
{
    int64_t padding = (int64_t)number(c, "padding_idx", -1);
    if (attr(c, "padding_idx") && padding < 0)
        padding += ctrt_tensor_size(IN("weight"), 0);
    return ctrt_embedding(OUT, IN("weight"), IN("index"), padding);
}

/* ---- the table ---- */

/* How the test calls an op of the reference files: one of the functions. */
struct ref_op {
    const char *op;
    ctrt_status (*call)(struct ref_case *c);
    ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
    ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar number);    /* if the case has attr/scalar */
    ctrt_status (*reduce)(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
    double tolerance;                   /* for f32; 0: the default 2e-6 */
};

#define CALL(name)              { .op = #name, .call = name }
#define REDUCE(name, function)  { .op = name, .reduce = function }
#define FORM_UNARY(name)        .unary = ctrt_##name
#define FORM_BINARY(name)       .binary = ctrt_##name, .scalar = ctrt_##name##_scalar
#define FORM_OWN(name)          .call = NULL
#define FORM_GRAPH(name)        .call = NULL

/* The first row of a name counts. */
static const struct ref_op ops[] = {
    CALL(clamp), CALL(where), CALL(cast), CALL(max), CALL(min), CALL(softmax), CALL(log_softmax),
    CALL(linear), CALL(cat), CALL(arange), CALL(full), CALL(index_select), CALL(gather),
    CALL(conv2d), CALL(max_pool2d), CALL(batch_norm), CALL(cross_entropy), CALL(mse_loss), CALL(gelu),
    CALL(attention), CALL(embedding),
    { .op = "pow", .call = power },
    { .op = "var", .call = variance },
    { .op = "gelu_tanh", .call = gelu },
    { .op = "layer_norm", .call = layer_norm, .tolerance = 2e-4 },  /* one case has values around 1000, spread 1 */
    { .op = "multi_head", .call = multi_head, .tolerance = 1e-5 },  /* the exact gradient of the keys' bias is 0 */
    { .op = "matmul", .binary = ctrt_matmul },
    { .op = "div_floor", .binary = ctrt_floor_divide },
    REDUCE("sum", ctrt_sum_dims),
    REDUCE("mean", ctrt_mean_dims),
    REDUCE("prod", ctrt_prod_dims),
    REDUCE("amax", ctrt_amax),
    REDUCE("amin", ctrt_amin),
    REDUCE("any", ctrt_any),
    REDUCE("all", ctrt_all),
    REDUCE("argmax", ctrt_argmax),
    REDUCE("argmin", ctrt_argmin),
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    { .op = #name, FORM_##form(name) },
#include "ctrt/ops.def"
#undef CTRT_OP
};

/* Returns whether the case, such as "add.special", is one of the op. */
static bool is_of(const char *op, const char *case_name)
{
    return strlen(op) == strcspn(case_name, ".") && !strncmp(op, case_name, strlen(op));
}

/* Returns NULL if ctrt does not have the op. */
static const struct ref_op *ref_op_find(const char *case_name)
{
    for (size_t k = 0; k < COUNT(ops); k++)
        if (is_of(ops[k].op, case_name))
            return ops[k].call || ops[k].unary || ops[k].binary || ops[k].reduce ? &ops[k] : NULL;
    return NULL;
}

static ctrt_status ref_op_call(const struct ref_op *op, struct ref_case *c)
{
    if (op->call)
        return op->call(c);
    if (op->reduce)
        return op->reduce(&c->out[0], input(c, "x"), integers(c, "dim"), number(c, "keepdim", 0) != 0);
    if (op->unary)
        return op->unary(&c->out[0], input(c, "x"));
    if (op->scalar && attr(c, "scalar"))
        return op->scalar(&c->out[0], input(c, "x"), ctrt_float(number(c, "scalar", 0)));
    return op->binary(&c->out[0], input(c, "a"), input(c, "b"));
}

/* ---- comparing ---- */

/* Returns the elements as `dtype`, in memory to be freed. */
static void *values(ctrt_tensor *tensor, ctrt_dtype dtype)
{
    const size_t bytes = (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(dtype);
    void *copy = malloc(bytes + 1);
    REQUIRE(copy != NULL && ctrt_to_host(copy, bytes, tensor, dtype) == CTRT_OK, "%s", ctrt_error_message());
    return copy;
}

/* Compares a result. Tolerance 0: it must be exact, and have the dtype of the file. */
static void compare(const char *what, ctrt_tensor *got, const struct ref_record *want, double tolerance, bool zero_sign)
{
    if (tolerance == 0)
        CHECK_STR(ctrt_dtype_name(ctrt_tensor_dtype(got)), want->dtype);
    if (!check_shape(what, __LINE__, got, ctrt_ints_of(want->dims, want->ndim)))
        return;
    int64_t *whole = want->i ? values(got, CTRT_I64) : NULL;
    double *is = values(got, CTRT_F64), most = 0;
    for (int64_t k = 0; k < want->numel && !want->i; k++)
        if (isfinite(want->f[k]))
            most = fmax(most, fabs(want->f[k]));
    for (int64_t k = 0; k < want->numel; k++) {
        if (want->i) {
            CHECK(whole[k] == want->i[k], "%s[%" PRId64 "]: got %" PRId64 ", expected %" PRId64, what, k, whole[k],
                  want->i[k]);
            continue;
        }
        /* A small value, such as exp(-88), may be subnormal in f32. */
        const double expected = want->f[k], bound = tolerance * (fabs(expected) + fmin(most, 1e6) + 1e-30);
        const bool fine = isnan(expected)                        ? isnan(is[k])
                          : isinf(expected) || tolerance == 0    ? is[k] == expected
                                                                 : fabs(is[k] - expected) <= bound;
        CHECK(fine && (!zero_sign || isnan(expected) || signbit(is[k]) == signbit(expected)),
              "%s[%" PRId64 "]: got %.17g, expected %.17g, tolerance %.3g", what, k, is[k], expected, bound);
    }
    free(whole);
    free(is);
}

/* Compares the bits of a half-precision result. The file has 0 for NaN. */
static void compare_bits(ctrt_tensor *got, const struct ref_record *want)
{
    int16_t *bits = values(got, ctrt_tensor_dtype(got));
    double *is = values(got, CTRT_F64);
    for (int64_t k = 0; k < want->numel; k++)
        CHECK((isnan(is[k]) ? 0 : bits[k]) == want->i[k], "bits[%" PRId64 "]: got %04x, expected %04x", k,
              (unsigned)(uint16_t)bits[k], (unsigned)(uint16_t)want->i[k]);
    free(is);
    free(bits);
}

/* ---- one case ---- */

static ctrt_tensor *result(const struct ref_case *c, const char *name)
{
    for (int k = 0; k < CASE_RESULTS; k++)
        if (c->out[k] && !strcmp(c->out_names[k] ? c->out_names[k] : "", name))
            return c->out[k];
    return NULL;
}

static bool load_inputs(struct ref_case *c)
{
    char prefix[128];
    size_t length = (size_t)snprintf(prefix, sizeof prefix, "%s/in/", c->name);
    for (size_t r = 0; r < c->file->count; r++) {
        const struct ref_record *record = &c->file->records[r];
        if (strncmp(record->name, prefix, length))
            continue;
        ctrt_dtype dtype = dtype_from_name(record->dtype);
        if (c->wide && dtype == CTRT_F32)
            dtype = CTRT_F64;
        snprintf(c->input_names[c->inputs], sizeof c->input_names[0], "%s", record->name + length);
        if (!CHECK_OK(ref_tensor(&c->in[c->inputs], record, dtype, NULL)))
            return false;
        if (ref_find(c->file, "%s/grad64/%s", c->name, record->name + length))
            ctrt_tensor_require_grad(c->in[c->inputs], true);
        c->inputs++;
    }
    return true;
}

static void compare_gradients(struct ref_case *c, double tolerance)
{
    const struct ref_record *gout = ref_find(c->file, "%s/gout", c->name);
    CTRT_AUTO(tensor) gradient = NULL;
    if (gout == NULL || c->out[0] == NULL)
        return;
    if (!CHECK_OK(ref_tensor(&gradient, gout, ctrt_tensor_dtype(c->out[0]), NULL))
        || !CHECK_OK(ctrt_backward_with(c->out[0], gradient, false, false)))
        return;
    for (int i = 0; i < c->inputs; i++) {
        const struct ref_record *want = ref_find(c->file, "%s/grad64/%s", c->name, c->input_names[i]);
        char what[64];
        if (want == NULL)
            continue;
        snprintf(what, sizeof what, "gradient of %s", c->input_names[i]);
        ctrt_tensor *got = ctrt_tensor_grad(c->leaf[i] ? c->leaf[i] : c->in[i]);
        if (CHECK(got != NULL, "%s: no gradient", what))
            compare(what, got, want, tolerance, false);
    }
}

static void compare_results(struct ref_case *c, double tolerance)
{
    char prefix[128];
    int compared = 0;
    size_t length = (size_t)snprintf(prefix, sizeof prefix, "%s/out", c->name);
    for (size_t r = 0; r < c->file->count; r++) {
        const struct ref_record *record = &c->file->records[r];
        if (strncmp(record->name, prefix, length))
            continue;
        const char *rest = record->name + length;
        bool near = !strncmp(rest, "64", 2);
        rest += near ? 2 : 0;
        rest += *rest == '/';
        compared++;
        if (!strcmp(rest, "bits")) {
            compare_bits(c->out[0], record);
            continue;
        }
        ctrt_tensor *got = result(c, rest);
        if (CHECK(got != NULL, "no result '%s'", rest))
            compare(*rest ? rest : "result", got, record, near ? tolerance : 0,
                    !near && number(c, "zero_sign", 0) != 0);
    }
    CHECK(compared > 0, "the file has no result");
}

static void run_case(const struct ref_file *file, const char *name, const struct ref_op *op, bool wide)
{
    struct ref_case c = { .file = file, .wide = wide };
    const struct ref_record *error = ref_find(file, "%s/error", name);
    const double tolerance = wide ? 1e-12 : op->tolerance > 0 ? op->tolerance : 2e-6;
    snprintf(c.name, sizeof c.name, "%s", name);
    if (load_inputs(&c)) {
        const ctrt_status status = ref_op_call(op, &c);
        if (error) {
            CHECK(status != CTRT_OK, "no error; PyTorch's error is: %s", error->text);
            CHECK(ctrt_error_message()[0] != '\0', "an error without a message");
        } else if (CHECK_OK(status)) {
            compare_results(&c, tolerance);
            compare_gradients(&c, tolerance);
        }
    }
    tensors_release(c.out, CASE_RESULTS);
    tensors_release(c.in, CASE_INPUTS);
    tensors_release(c.leaf, CASE_INPUTS);
}

/* ---- all cases ---- */

static const char *reason_to_skip(const char *name)
{
    for (size_t k = 0; k < COUNT(skipped); k++)
        if (fnmatch(skipped[k].name, name, 0) == 0)
            return skipped[k].reason;
    return ref_op_find(name) == NULL ? "ctrt has no such op" : NULL;
}

/* Returns whether the case was compared. */
static bool one_case(const struct ref_file *file, const char *name)
{
    const char *reason = reason_to_skip(name);
    group("%s", name);
    if (reason != NULL) {
        skip_group(reason);
        return false;
    }
    run_case(file, name, ref_op_find(name), false);
    if (ref_find(file, "%s/out64", name))
        run_case(file, name, ref_op_find(name), true);
    return true;
}

TEST_MAIN
{
    static const char *const files[] = {
        "ops_elementwise.txt", "ops_cast.txt", "ops_reduce.txt",     "ops_matmul.txt",    "ops_conv.txt",
        "ops_norm.txt",        "ops_loss.txt", "ops_activation.txt", "ops_attention.txt",
    };
    const char *only = argc > 1 ? argv[1] : NULL;
    int compared = 0;
    for (size_t f = 0; f < COUNT(files); f++) {
        struct ref_file *file = ref_load(files[f]);
        char last[96] = "";
        for (size_t r = 0; r < file->count; r++) {
            char name[96];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(file->records[r].name, "/"), file->records[r].name);
            if (strcmp(name, last) && (only == NULL || !strcmp(only, name)))
                compared += one_case(file, name);
            strcpy(last, name);
        }
        ref_free(file);
    }
    CHECK(compared >= (only ? 0 : 385), "only %d cases", compared);
    return done();
}
