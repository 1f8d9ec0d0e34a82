/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise kernels of the cuda backend: the launches that the conformance suite's small shapes do not reach (vectors
 * along rows of strided operands, repeated elements, tiles of transposing copies). Also tests conversions of values out
 * of range, short powers, quotients, and random numbers at unaligned addresses and beyond 32 bits. Results must have
 * the cpu's bits, except for functions whose last digits differ between math libraries.
 *
 *     run-public test-cuda-elementwise [DEVICE] */
#include "cuda_compare.h"

/* Rows of whole vectors in every dtype; rows that are not; the largest for transposing copies, whose tiles have 64
 * rows. */
static const struct size sizes[] = { { 5, 16 }, { 7, 37 }, { 35, 48 }, { 70, 130 } };
enum { SMALL_SIZES = 3 };

/* A dtype for each size of elements; and u8, for which the conformance suite does not check clamp. */
static const ctrt_dtype widths[] = { CTRT_I8, CTRT_F16, CTRT_F32, CTRT_F64, CTRT_U8 };
enum { WIDTHS = 4 };

/* ---- one op of each form of kernel, for all layouts of its operands ---- */

#define FORM(name, ...) \
    static ctrt_status name##_op(ctrt_tensor **out, ctrt_tensor *const *in) { __VA_ARGS__; }
FORM(copy, return ctrt_to(out, in[0], NULL, CTRT_DTYPE_DEFAULT, true, CTRT_CONTIGUOUS_FORMAT))
FORM(copy_into, ctrt_tensor_assign(out, in[0]); return ctrt_copy_(*out, in[1]))
FORM(fill, ctrt_tensor_assign(out, in[0]); return ctrt_fill_(*out, ctrt_float(2.75)))
FORM(neg, return ctrt_neg(out, in[0]))
FORM(isnan, return ctrt_isnan(out, in[0]))
FORM(sqrt, return ctrt_sqrt(out, in[0]))
FORM(clamp, return ctrt_clamp(out, in[0], ctrt_int(2), ctrt_int(5)))
FORM(tril, return ctrt_tril(out, in[0], 2))
FORM(scalar, return ctrt_add_scalar(out, in[0], ctrt_int(3)))
FORM(add, return ctrt_add(out, in[0], in[1]))
FORM(lt, return ctrt_lt(out, in[0], in[1]))
FORM(fmod, return ctrt_fmod(out, in[0], in[1]))
FORM(where, return ctrt_where(out, in[2], in[0], in[1]))

static const struct form {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *const *in);
    int inputs;                             /* 3: the third is a bool */
    enum values right;
    bool in_place, floating;
    double near;                            /* in epsilons of the dtype */
} forms[] = {
    { "copy", copy_op, .inputs = 1 }, { "copy_", copy_into_op, 2, .right = SPECIAL, .in_place = true },
    { "fill_", fill_op, 1, .in_place = true }, { "neg", neg_op, .inputs = 1 }, { "isnan", isnan_op, .inputs = 1 },
    { "sqrt", sqrt_op, 1, .floating = true, .near = 2 }, { "clamp", clamp_op, .inputs = 1 },
    { "tril", tril_op, .inputs = 1 }, { "add_scalar", scalar_op, .inputs = 1 }, { "add", add_op, 2, .right = SPECIAL },
    { "lt", lt_op, 2, .right = SPECIAL }, { "fmod", fmod_op, 2, .right = NONZERO },
    { "where", where_op, 3, .right = LOGITS },
};

/* n[0]: index of the form; n[1], n[2]: rows and columns; n[3...]: layouts of the operands */
static ctrt_status form_call(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    ctrt_tensor *views[3] = { NULL };
    for (int i = 0; i < 3 && in[i] != NULL; i++)
        CHECK_OK(view_of(&views[i], in[i], (enum layout)n[3 + i], 1, (struct size){ n[1], n[2] }));
    const ctrt_status status = forms[n[0]].run(out, views);
    tensors_release(views, 3);
    return status;
}

static void check_form(const struct form *form, ctrt_dtype dtype, enum layout left, enum layout right, struct size s)
{
    const enum layout mask = (enum layout)((left + right) % LAYOUTS);
    char what[100];
    snprintf(what, sizeof what, "%s, %s%s%s, %d by %d", form->name, layout_names[left], form->inputs > 1 ? " and " : "",
             form->inputs > 1 ? layout_names[right] : "", (int)s.rows, (int)s.columns);
    compare((struct trial){ what, { base_of(left, 1, s, dtype, SPECIAL),
                                    form->inputs > 1 ? base_of(right, 1, s, dtype, form->right) : NULL,
                                    form->inputs > 2 ? base_of(mask, 1, s, CTRT_BOOL, TIES) : NULL },
                            .call = form_call, .n = { form - forms, s.rows, s.columns, left, right, mask },
                            .tolerance = form->near }, false);
}

TEST(all_forms, NULL)
{
    for (const struct form *form = forms; form < forms + COUNT(forms); form++) {
        group("%s for all layouts", form->name);
        for (size_t d = form->floating ? 1 : 0; d < (form->run == clamp_op ? COUNT(widths) : WIDTHS); d++)
            for (int left = 0; left < (form->in_place ? (int)ROW : (int)LAYOUTS); left++) {
                const size_t last = form->run == copy_op || form->in_place ? COUNT(sizes) : SMALL_SIZES;
                for (size_t s = 0; s < last && form->inputs == 1; s++)
                    check_form(form, widths[d], (enum layout)left, PLAIN, sizes[s]);
                for (int right = 0; right < LAYOUTS && form->inputs > 1; right++)
                    check_form(form, widths[d], (enum layout)left, (enum layout)right,
                               sizes[(size_t)(left + 3 * right + (int)d) % SMALL_SIZES]);
            }
    }
}

/* ---- copies ---- */

static ctrt_status cast(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_TRY(view_of(out, in[0], (enum layout)n[1], 1, sizes[2]));
    return ctrt_to_dtype(out, *out, (ctrt_dtype)n[0]);
}

static ctrt_status permute(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_TRY(ctrt_permute(out, in[0], ctrt_ints_of(n, 4)));
    return ctrt_contiguous(out, *out, CTRT_CONTIGUOUS_FORMAT);
}

TEST(copies, "conversions between all dtypes, also of values out of range")
{
    for (size_t from = 0; from < COUNT(all_dtypes); from++)
        for (size_t to = 0; to < COUNT(all_dtypes); to++) {
            const enum layout layout = (enum layout)((from + to) % LAYOUTS);
            char what[64];
            snprintf(what, sizeof what, "%s, from %s", layout_names[layout], ctrt_dtype_name(all_dtypes[from]));
            compare((struct trial){ what, { base_of(layout, 1, sizes[2], all_dtypes[from], SPECIAL) },
                                    .call = cast, .n = { all_dtypes[to], layout } }, false);
        }

    group("transposing copies of four dimensions");
    static const int64_t orders[][4] = { { 0, 2, 3, 1 }, { 0, 3, 1, 2 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 },
                                         { 1, 0, 3, 2 } };
    for (size_t d = 0; d < WIDTHS; d++)
        EACH(order, orders)
            compare((struct trial){ "a transposing copy", { numbers(CTRT_SHAPE(2, 18, 17, 66), widths[d], SPECIAL) },
                                    .call = permute,
                                    .n = { (*order)[0], (*order)[1], (*order)[2], (*order)[3] } }, false);
}

static const struct {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *x);
} activations[] = { { "relu", ctrt_relu }, { "sigmoid", ctrt_sigmoid }, { "tanh", ctrt_tanh }, { "silu", ctrt_silu },
                    { "gelu", NULL }, { "gelu tanh", NULL } };

static ctrt_status activate(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_TRY(view_of(out, in[0], (enum layout)n[1], 1, sizes[2]));
    CTRT_TRY(activations[n[0]].run != NULL ? activations[n[0]].run(out, *out) : ctrt_gelu(out, *out, n[0] == 5));
    return ctrt_transpose(out, *out, 0, 1);                 /* so that the gradient of the activation is strided, too */
}

TEST(gradients, "gradients of activations whose operands are strided")
{
    for (size_t i = 0; i < COUNT(activations); i++)
        for (int d = 0; d < FLOATING; d++)
            compare((struct trial){ activations[i].name, { base_of(STEPPED, 1, sizes[2], all_dtypes[d], LOGITS) },
                                    { true }, activate, { (int64_t)i, STEPPED }, 8, SMOOTH }, false);
}

enum { POWER, CLAMP, TRIL, TRIU };

static const struct { const char *name; int op; double value, near; } attributes[] = {
    { "pow 2", POWER, 2, 0 }, { "pow 3", POWER, 3, 2 }, { "pow 0.5", POWER, 0.5, 1 }, { "pow 1", POWER, 1, 0 },
    { "pow -1", POWER, -1, 1 }, { "pow -2", POWER, -2, 2 }, { "pow -0.5", POWER, -0.5, 2 },
    { "clamp to NaN", CLAMP, NAN, 0 }, { "tril far above", TRIL, 1, 0 }, { "tril far below", TRIL, -1, 0 },
    { "triu far above", TRIU, 1, 0 }, { "triu far below", TRIU, -1, 0 },
};

static ctrt_status attribute(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    const double value = attributes[n[0]].value;
    CTRT_TRY(view_of(out, in[0], (enum layout)n[1], 1, sizes[2]));
    switch (attributes[n[0]].op) {
    case POWER: return ctrt_pow_scalar(out, *out, ctrt_float(value));
    case CLAMP: return ctrt_clamp_max(out, *out, ctrt_float(value));
    case TRIL:  return ctrt_tril(out, *out, value < 0 ? INT64_MIN : INT64_MAX);
    default:    return ctrt_triu(out, *out, value < 0 ? INT64_MIN : INT64_MAX);
    }
}

TEST(all_attributes, "exponents without pow, a limit NaN, diagonals far outside")
{
    for (size_t i = 0; i < COUNT(attributes); i++)
        for (int d = 0; d < FLOATING; d++) {
            const enum layout layout = i % 2 == 0 ? PLAIN : STEPPED;
            compare((struct trial){ attributes[i].name, { base_of(layout, 1, sizes[2], all_dtypes[d], SPECIAL) },
                                    .call = attribute, .n = { (int64_t)i, layout }, .tolerance = attributes[i].near },
                    false);
        }
}

static const struct {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **, ctrt_tensor *, ctrt_tensor *);
} quotients[] = { { "fmod", ctrt_fmod }, { "remainder", ctrt_remainder }, { "floor_divide", ctrt_floor_divide } };

CALL(quotient, quotients[n[0]].run(out, in[0], in[1]))

TEST(all_quotients, "quotients of all 8-bit integers and of the extreme values of each type")
{
    static const int64_t edges[] = { INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, INT16_MIN, INT16_MAX, -1, 1, -32767,
                                     32766 };
    for (size_t d = FLOATING; d + 1 < COUNT(all_dtypes); d++) {
        CTRT_AUTO(tensor) a = NULL, b = NULL, mask = NULL;
        if (ctrt_dtype_size(all_dtypes[d]) == 1)
            CHECK_OK(ctrt_arange(&a, ctrt_int(0), ctrt_int(256), ctrt_int(1), CTRT_I64, cpu));
        else
            CHECK_OK(ctrt_from_data(&a, edges, COUNT(edges), CTRT_SHAPE(COUNT(edges)), CTRT_I64, cpu));
        CHECK_OK(ctrt_to_dtype(&a, a, all_dtypes[d]));
        CHECK_OK(ctrt_eq_scalar(&mask, a, ctrt_int(0)));
        CHECK_OK(ctrt_masked_fill(&b, a, mask, ctrt_int(1)));
        CHECK_OK(ctrt_unsqueeze(&a, a, 1));
        for (size_t o = 0; o < COUNT(quotients); o++)
            compare((struct trial){ quotients[o].name, { ctrt_tensor_retain(a), ctrt_tensor_retain(b) },
                                    .call = quotient, .n = { (int64_t)o } }, false);
    }
}

enum source { RANDINT, HALF_OF_ALL, UNALIGNED, DROPOUT, SOURCES };
static const char *const source_names[SOURCES] = { "randint", "randint of half of all", "uniform_ at an odd address",
                                                   "dropout" };

/* n[0]: the source */
static ctrt_status fill_random(ctrt_tensor **x, ctrt_tensor *const *in, const int64_t *n)
{
    const ctrt_ints shape = CTRT_SHAPE(ctrt_tensor_numel(in[0]));
    const ctrt_dtype dtype = ctrt_tensor_dtype(in[0]);
    ctrt_device *device = ctrt_tensor_device(in[0]);
    CTRT_AUTO(tensor) tail = NULL;
    CTRT_TRY(ctrt_generator_set(device, 0x123456789abcdefu, 0xfffffffeu));
    ctrt_tensor_assign(x, in[0]);
    switch (n[0]) {
    case RANDINT:     return ctrt_randint(x, dtype == CTRT_BOOL ? 0 : 3, dtype == CTRT_BOOL ? 2 : 100, shape, dtype,
                                          device);
    case HALF_OF_ALL: return ctrt_randint(x, INT64_MIN, -1, shape, dtype, device);
    case DROPOUT:     return ctrt_dropout(x, *x, 0.4, true);
    default:
        CTRT_TRY(ctrt_narrow(&tail, *x, 0, 1, shape.values[0] - 1));
        return ctrt_uniform_(tail, 0, 1);
    }
}

/* The conformance suite compares other numbers with the specification. */
TEST(random_numbers, "random numbers at an offset of more than 32 bits, in counts that are no multiple of a block")
{
    static const int64_t counts[] = { 1, 5, 1027 };
    for (int source = 0; source < SOURCES; source++)
        for (size_t d = 0; d < COUNT(all_dtypes); d++)
            EACH(count, counts) {
                if ((source > HALF_OF_ALL && d >= FLOATING) || (source == HALF_OF_ALL && all_dtypes[d] != CTRT_I64))
                    continue;
                compare((struct trial){ source_names[source], { numbers(CTRT_SHAPE(*count), all_dtypes[d], SMOOTH) },
                                        .call = fill_random, .n = { source } }, false);
            }
}

TEST(used, NULL)
{
    static const char *const kernels[] = { "transpose_u8", "transpose_i16", "transpose_i32", "transpose_i64",
                                           "add_f32", "add_f32_s", "move_i64",
                                           "cast_f32_bf16_s", "pow_f32_short", "lt_i8", "fill_u8_s", "triangle_i16" };
    if (soft == NULL)
        return;
    group("the expected kernels ran, without faults and without the cpu");
    EACH(kernel, kernels)
        CHECK(soft->launches(*kernel) > 0, "%s never ran", *kernel);
    no_faults();
    CHECK_EQ(ctrt_fallback_count(NULL), 0);
}

TEST_MAIN
{
    soft_begin(argv);
    group("the devices open");
    if (!soft_open(argc > 1 ? argv[1] : "cuda:0"))
        return done();
    return run_tests();
}
