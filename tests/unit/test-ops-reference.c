/* SPDX-License-Identifier: Apache-2.0 */
/* test-ops-reference.c: compares ctrt with every case of tests/reference/ops_*.txt, which PyTorch computed.
 *
 * Exact results must be bitwise equal. Floating-point results are compared in f32 and in f64, also gradients and
 * errors. Skipped cases are reported with a reason. tests/reference/README.md describes the file format. */
#include <math.h>

#include "ops-reference.h"

/* Cases that are not compared. */
static const struct { const char *name, *reason; } skipped[] = {
    { "any.u8", "PyTorch returns u8 for u8 for historical reasons; ctrt returns bool for all dtypes" },
    { "max_pool2d.ceil", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_indices", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_padding", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_padding_indices", "ctrt_max_pool2d has no ceil_mode" },
    { "cross_entropy.probabilities", "ctrt_cross_entropy takes class indices only" },
};

/* Ops that ctrt does not have. */
static const char *const lacking[] = {
    "fmax", "fmin", "log2", "atan2", "cumsum", "std", "norm", "logsumexp", "linspace", "div_trunc", "avg_pool2d",
    "adaptive_avg_pool2d", "group_norm", "nll_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "bce_with_logits",
    "binary_cross_entropy", "kl_div", "leaky_relu", "elu", "softplus", "hardtanh", "relu6", "logsigmoid",
    "hardsigmoid", "hardswish", "mish", "selu", "schedule",
};

/* ---- records and tensors ---- */

static ctrt_dtype dtype_of(const struct ref_record *record)
{
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    ctrt_dtype_parse(&dtype, record->dtype);
    return dtype;
}

static ctrt_status upload(ctrt_tensor **out, const struct ref_record *record, ctrt_dtype dtype)
{
    ctrt_ints shape = ctrt_ints_of(record->dims, record->ndim);
    if (record->i)
        CTRT_TRY(ctrt_from_data(out, record->i, record->numel, shape, CTRT_I64, NULL));
    else
        CTRT_TRY(ctrt_from_data(out, record->f, record->numel, shape, CTRT_F64, NULL));
    return ctrt_to_dtype(out, *out, dtype);
}

ctrt_tensor *input(const struct ref_case *c, const char *name)
{
    for (int i = 0; i < c->inputs; i++)
        if (!strcmp(c->input_names[i], name))
            return c->in[i];
    return NULL;
}

const struct ref_record *attr(const struct ref_case *c, const char *name)
{
    return ref_find(c->file, "%s/attr/%s", c->name, name);
}

double number(const struct ref_case *c, const char *name, double fallback)
{
    const struct ref_record *record = attr(c, name);
    return record && record->f && record->numel > 0 ? record->f[0] : fallback;
}

/* ---- comparing ---- */

static bool same_shape(const char *what, ctrt_tensor *got, const struct ref_record *want)
{
    return CHECK(lists_equal(ctrt_tensor_shape(got), ctrt_tensor_ndim(got), ctrt_ints_of(want->dims, want->ndim)),
                 "%s: got shape %s, expected %s", what, list_text(ctrt_tensor_shape(got), ctrt_tensor_ndim(got)),
                 list_text(want->dims, want->ndim));
}

/* Returns the elements as `dtype`, in memory to be freed. */
static void *values(ctrt_tensor *tensor, ctrt_dtype dtype)
{
    const size_t bytes = (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(dtype);
    void *copy = malloc(bytes + 1);
    REQUIRE(copy != NULL && ctrt_to_host(copy, bytes, tensor, dtype) == CTRT_OK, "%s", ctrt_error_message());
    return copy;
}

static void compare_exact(const char *what, ctrt_tensor *got, const struct ref_record *want, bool zero_sign)
{
    CHECK_STR(ctrt_dtype_name(ctrt_tensor_dtype(got)), want->dtype);
    if (!same_shape(what, got, want))
        return;
    int64_t *whole = want->i ? values(got, CTRT_I64) : NULL;
    double *is = values(got, CTRT_F64);
    for (int64_t k = 0; k < want->numel; k++)
        if (want->i)
            CHECK(whole[k] == want->i[k], "%s[%" PRId64 "]: got %" PRId64 ", expected %" PRId64, what, k, whole[k], want->i[k]);
        else
            CHECK(isnan(want->f[k]) ? isnan(is[k])
                                    : is[k] == want->f[k] && (!zero_sign || signbit(is[k]) == signbit(want->f[k])),
                  "%s[%" PRId64 "]: got %.17g, expected %.17g", what, k, is[k], want->f[k]);
    free(whole);
    free(is);
}

static void compare_near(const char *what, ctrt_tensor *got, const struct ref_record *want, double tolerance)
{
    if (!same_shape(what, got, want))
        return;
    double *is = values(got, CTRT_F64), most = 0;
    for (int64_t k = 0; k < want->numel; k++)
        if (isfinite(want->f[k]))
            most = fmax(most, fabs(want->f[k]));
    /* A small value, such as exp(-88), may be subnormal in f32. */
    for (int64_t k = 0; k < want->numel; k++) {
        double expected = want->f[k], bound = tolerance * (fabs(expected) + fmin(most, 1e6) + 1e-30);
        bool fine = isnan(expected)   ? isnan(is[k])
                    : isinf(expected) ? is[k] == expected
                                      : fabs(is[k] - expected) <= bound;
        CHECK(fine, "%s[%" PRId64 "]: got %.17g, expected %.17g, tolerance %.3g", what, k, is[k], expected, bound);
    }
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
        ctrt_dtype dtype = dtype_of(record);
        if (c->wide && dtype == CTRT_F32)
            dtype = CTRT_F64;
        snprintf(c->input_names[c->inputs], sizeof c->input_names[0], "%s", record->name + length);
        if (!CHECK_OK(upload(&c->in[c->inputs], record, dtype)))
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
    if (!CHECK_OK(upload(&gradient, gout, ctrt_tensor_dtype(c->out[0])))
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
            compare_near(what, got, want, tolerance);
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
        if (!CHECK(got != NULL, "no result '%s'", rest))
            continue;
        if (near)
            compare_near(*rest ? rest : "result", got, record, tolerance);
        else
            compare_exact(*rest ? rest : "result", got, record, number(c, "zero_sign", 0) != 0);
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
    for (int k = 0; k < CASE_RESULTS; k++)
        ctrt_tensor_release(&c.out[k]);
    for (int k = 0; k < CASE_INPUTS; k++) {
        ctrt_tensor_release(&c.in[k]);
        ctrt_tensor_release(&c.leaf[k]);
    }
}

/* ---- all cases ---- */

static const char *reason_to_skip(const char *name)
{
    for (size_t k = 0; k < COUNT(skipped); k++)
        if (!strcmp(skipped[k].name, name))
            return skipped[k].reason;
    const size_t length = strcspn(name, ".");
    for (size_t k = 0; k < COUNT(lacking); k++)
        if (strlen(lacking[k]) == length && !strncmp(lacking[k], name, length))
            return "ctrt has no such op";
    return NULL;
}

static void one_case(const struct ref_file *file, const char *name)
{
    const struct ref_op *op = ref_op_find(name);
    const char *reason = reason_to_skip(name);
    group("%s", name);
    if (reason != NULL) {
        skip_group(reason);
    } else if (CHECK(op != NULL, "the test does not know this op")) {
        run_case(file, name, op, false);
        if (ref_find(file, "%s/out64", name))
            run_case(file, name, op, true);
    }
}

TEST_MAIN
{
    static const char *const files[] = {
        "ops_elementwise.txt", "ops_cast.txt", "ops_reduce.txt",     "ops_matmul.txt",    "ops_conv.txt",
        "ops_norm.txt",        "ops_loss.txt", "ops_activation.txt", "ops_attention.txt", "ops_optimizer.txt",
    };
    const char *only = argc > 1 ? argv[1] : NULL;
    for (size_t f = 0; f < COUNT(files); f++) {
        struct ref_file *file = ref_load(files[f]);
        char last[96] = "";
        REQUIRE(file != NULL, "%s cannot be read", files[f]);
        for (size_t r = 0; r < file->count; r++) {
            char name[96];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(file->records[r].name, "/"), file->records[r].name);
            if (strcmp(name, last) && (only == NULL || !strcmp(only, name)))
                one_case(file, name);
            strcpy(last, name);
        }
        ref_free(file);
    }
    CHECK(tap_state.groups >= (only ? 0 : 400), "only %d cases", tap_state.groups);
    return done();
}
