/* SPDX-License-Identifier: Apache-2.0 */
/* test-ops-reference.c: compares ctrt with every case of tests/reference/ops_*.txt, which PyTorch computed.
 *
 * Exact results must be bitwise equal. Floating-point results are compared in f32 and in f64, also gradients and
 * errors. Skipped cases are reported with a reason. tests/reference/README.md describes the file format. */
#include <math.h>

#include "ops-reference.h"
#include "run.h"

/* Intended differences from PyTorch. */
static const struct { const char *name, *reason; } different[] = {
    { "any.u8", "PyTorch returns u8 for u8 for historical reasons; ctrt returns bool for all dtypes" },
    { NULL, NULL },
};

/* Cases with options that ctrt does not have, of ops that it has. */
static const struct { const char *name, *reason; } lacking[] = {
    { "max_pool2d.ceil", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_indices", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_padding", "ctrt_max_pool2d has no ceil_mode" },
    { "max_pool2d.ceil_padding_indices", "ctrt_max_pool2d has no ceil_mode" },
    { "adamw.amsgrad", "ctrt_adamw_options has no amsgrad" },
    { "cross_entropy.probabilities", "ctrt_cross_entropy takes class indices only" },
    { NULL, NULL },
};

static struct { int number, failed, skipped; bool bad; char details[4096]; } tap;

__attribute__((format(printf, 1, 2)))
static void fail(const char *format, ...)
{
    va_list list;
    size_t used = strlen(tap.details);
    tap.bad = true;
    if (used + 400 > sizeof tap.details)
        return;
    used += (size_t)snprintf(tap.details + used, sizeof tap.details - used, "#   ");
    va_start(list, format);
    vsnprintf(tap.details + used, sizeof tap.details - used - 1, format, list);
    va_end(list);
    strcat(tap.details, "\n");
}

static void end_case(const char *name, const char *skipped)
{
    tap.number++;
    printf("%s %d - %s%s%s\n%s", tap.bad ? "not ok" : "ok", tap.number, name, skipped ? " # SKIP " : "",
           skipped ? skipped : "", tap.details);
    tap.failed += tap.bad;
    tap.skipped += skipped != NULL;
    tap.bad = false;
    tap.details[0] = '\0';
}

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

bool is_word(const struct ref_case *c, const char *name, const char *word)
{
    const struct ref_record *record = attr(c, name);
    return record && record->text && !strcmp(record->text, word);
}

ctrt_ints integers(const struct ref_case *c, const char *name)
{
    const struct ref_record *record = attr(c, name);
    return record && record->i ? ctrt_ints_of(record->i, (int)record->numel) : CTRT_ALL_DIMS;
}

/* ---- comparing ---- */

static bool same_shape(const char *what, ctrt_tensor *got, const struct ref_record *want)
{
    bool same = ctrt_tensor_ndim(got) == want->ndim;
    for (int d = 0; same && d < want->ndim; d++)
        same = ctrt_tensor_size(got, d) == want->dims[d];
    if (!same)
        fail("%s: got %d dims [%d, %d, ...], expected %d dims [%d, %d, ...]", what, ctrt_tensor_ndim(got),
             (int)ctrt_tensor_size(got, 0), (int)ctrt_tensor_size(got, 1), want->ndim,
             want->ndim ? (int)want->dims[0] : 0, want->ndim > 1 ? (int)want->dims[1] : 0);
    return same;
}

static double *values(ctrt_tensor *tensor)
{
    size_t bytes = (size_t)ctrt_tensor_numel(tensor) * sizeof(double);
    double *copy = malloc(bytes + 1);
    if (copy && ctrt_to_host(copy, bytes, tensor, CTRT_F64) != CTRT_OK) {
        fail("reading a result: %s", ctrt_error_message());
        free(copy);
        return NULL;
    }
    return copy;
}

static void compare_exact(const char *what, ctrt_tensor *got, const struct ref_record *want, bool zero_sign)
{
    if (ctrt_tensor_dtype(got) != dtype_of(want))
        fail("%s: got dtype %s, expected %s", what, ctrt_dtype_name(ctrt_tensor_dtype(got)), want->dtype);
    if (!same_shape(what, got, want))
        return;
    if (want->i) {
        int64_t *whole = malloc((size_t)want->numel * sizeof *whole + 1);
        if (ctrt_to_host(whole, (size_t)want->numel * sizeof *whole, got, CTRT_I64) != CTRT_OK)
            fail("reading a result: %s", ctrt_error_message());
        for (int64_t k = 0; k < want->numel; k++)
            if (whole[k] != want->i[k])
                fail("%s[%" PRId64 "]: got %" PRId64 ", expected %" PRId64, what, k, whole[k], want->i[k]);
        free(whole);
        return;
    }
    double *is = values(got);
    for (int64_t k = 0; is && k < want->numel; k++)
        if (isnan(want->f[k]) ? !isnan(is[k])
                              : is[k] != want->f[k] || (zero_sign && signbit(is[k]) != signbit(want->f[k])))
            fail("%s[%" PRId64 "]: got %.17g, expected %.17g", what, k, is[k], want->f[k]);
    free(is);
}

static void compare_near(const char *what, ctrt_tensor *got, const struct ref_record *want, double tolerance)
{
    if (!same_shape(what, got, want))
        return;
    double *is = values(got), most = 0;
    for (int64_t k = 0; k < want->numel; k++)
        if (isfinite(want->f[k]))
            most = fmax(most, fabs(want->f[k]));
    /* A small value, such as exp(-88), may be subnormal in f32. */
    for (int64_t k = 0; is && k < want->numel; k++) {
        double expected = want->f[k], bound = tolerance * (fabs(expected) + fmin(most, 1e6) + 1e-30);
        bool fine = isnan(expected)   ? isnan(is[k])
                    : isinf(expected) ? is[k] == expected
                                      : fabs(is[k] - expected) <= bound;
        if (!fine)
            fail("%s[%" PRId64 "]: got %.17g, expected %.17g, tolerance %.3g", what, k, is[k], expected, bound);
    }
    free(is);
}

/* Compares the bits of a half-precision result. The file has 0 for NaN. */
static void compare_bits(ctrt_tensor *got, const struct ref_record *want)
{
    int16_t *bits = malloc((size_t)want->numel * sizeof *bits + 1);
    double *is = values(got);
    if (ctrt_to_host(bits, (size_t)want->numel * sizeof *bits, got, ctrt_tensor_dtype(got)) != CTRT_OK)
        fail("reading bits: %s", ctrt_error_message());
    for (int64_t k = 0; is && k < want->numel; k++)
        if ((isnan(is[k]) ? 0 : bits[k]) != want->i[k])
            fail("bits[%" PRId64 "]: got %04x, expected %04x", k, (unsigned)(uint16_t)bits[k],
                 (unsigned)(uint16_t)want->i[k]);
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
        if (upload(&c->in[c->inputs], record, dtype) != CTRT_OK) {
            fail("loading %s: %s", record->name, ctrt_error_message());
            return false;
        }
        if (ref_find(c->file, "%s/grad64/%s", c->name, record->name + length))
            ctrt_tensor_require_grad(c->in[c->inputs], true);
        c->inputs++;
    }
    return true;
}

static void compare_gradients(struct ref_case *c, double tolerance)
{
    const struct ref_record *gout = ref_find(c->file, "%s/gout", c->name);
    if (gout == NULL || c->out[0] == NULL)
        return;
    ctrt_tensor *gradient = NULL;
    if (upload(&gradient, gout, ctrt_tensor_dtype(c->out[0])) != CTRT_OK
        || ctrt_backward_with(c->out[0], gradient, false, false) != CTRT_OK) {
        fail("backward: %s", ctrt_error_message());
        ctrt_tensor_release(&gradient);
        return;
    }
    ctrt_tensor_release(&gradient);
    for (int i = 0; i < c->inputs; i++) {
        const struct ref_record *want = ref_find(c->file, "%s/grad64/%s", c->name, c->input_names[i]);
        char what[64];
        if (want == NULL)
            continue;
        snprintf(what, sizeof what, "gradient of %s", c->input_names[i]);
        ctrt_tensor *got = ctrt_tensor_grad(c->leaf[i] ? c->leaf[i] : c->in[i]);
        if (got == NULL)
            fail("%s: no gradient", what);
        else
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
        if (got == NULL)
            fail("no result '%s'", rest);
        else if (near)
            compare_near(*rest ? rest : "result", got, record, tolerance);
        else
            compare_exact(*rest ? rest : "result", got, record, number(c, "zero_sign", 0) != 0);
    }
    if (compared == 0)
        fail("the file has no result");
}

static void run_case(const struct ref_file *file, const char *name, const struct ref_op *op, bool wide)
{
    struct ref_case c = { .file = file, .wide = wide };
    const struct ref_record *error = ref_find(file, "%s/error", name);
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(c.op, sizeof c.op, "%s", op->op);
    double tolerance = wide ? 1e-12 : op->tolerance > 0 ? op->tolerance : 2e-6;
    if (!load_inputs(&c))
        goto done;
    ctrt_status status = op->call(&c);
    if (error) {
        if (status == CTRT_OK)
            fail("no error; PyTorch's error is: %s", error->text);
        else if (ctrt_error_message()[0] == '\0')
            fail("an error without a message");
    } else if (status != CTRT_OK) {
        fail("%s: %s", ctrt_status_string(status), ctrt_error_message());
    } else {
        compare_results(&c, tolerance);
        compare_gradients(&c, tolerance);
    }
done:
    for (int k = 0; k < CASE_RESULTS; k++)
        ctrt_tensor_release(&c.out[k]);
    for (int k = 0; k < CASE_INPUTS; k++) {
        ctrt_tensor_release(&c.in[k]);
        ctrt_tensor_release(&c.leaf[k]);
    }
}

/* ---- all cases ---- */

static const struct ref_op *find_op(const char *name)
{
    size_t length = strcspn(name, ".");
    for (int t = 0; t < 2; t++)
        for (const struct ref_op *op = t ? ref_nn_ops : ref_basic_ops; op->op; op++)
            if (strlen(op->op) == length && !strncmp(op->op, name, length))
                return op;
    return NULL;
}

static const char *reason_to_skip(const char *name, const struct ref_op *op)
{
    for (int k = 0; different[k].name; k++)
        if (!strcmp(different[k].name, name))
            return different[k].reason;
    for (int k = 0; lacking[k].name; k++)
        if (!strcmp(lacking[k].name, name))
            return lacking[k].reason;
    return op->missing;
}

static void one_case(const struct ref_file *file, const char *name)
{
    const struct ref_op *op = find_op(name);
    if (op == NULL) {
        fail("the test does not know this op");
        end_case(name, NULL);
        return;
    }
    const char *reason = reason_to_skip(name, op);
    if (reason == NULL) {
        run_case(file, name, op, false);
        if (ref_find(file, "%s/out64", name))
            run_case(file, name, op, true);
    }
    end_case(name, reason);
}

TEST_MAIN
{
    static const char *const files[] = {
        "ops_elementwise.txt", "ops_cast.txt", "ops_reduce.txt",     "ops_matmul.txt",    "ops_conv.txt",
        "ops_norm.txt",        "ops_loss.txt", "ops_activation.txt", "ops_attention.txt", "ops_optimizer.txt",
    };
    const char *only = argc > 1 ? argv[1] : NULL;
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        struct ref_file *file = ref_load(files[f]);
        char last[96] = "";
        if (file == NULL) {
            fail("cannot be read");
            end_case(files[f], NULL);
            continue;
        }
        for (size_t r = 0; r < file->count; r++) {
            char name[96];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(file->records[r].name, "/"), file->records[r].name);
            if (strcmp(name, last) && (only == NULL || !strcmp(only, name)))
                one_case(file, name);
            strcpy(last, name);
        }
        ref_free(file);
    }
    printf("1..%d\n# %d failed, %d skipped\n", tap.number, tap.failed, tap.skipped);
    return tap.failed || tap.number < (only ? 1 : 400) ? 1 : 0;
}
