/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise kernels of the cuda backend: the launches that the conformance suite's small shapes do not reach (vectors
 * along rows of strided operands, repeated elements, tiles of transposing copies), conversions of values out of range,
 * short powers, quotients, and random numbers at unaligned addresses and beyond 32 bits. Results must have the cpu's
 * bits, except for functions whose last digits differ between math libraries. */
#include "cuda_compare.h"

/* ---- operands: equal views on both devices ---- */

enum layout { PLAIN, ODD, TRANSPOSED, STEPPED, SLICED, ROW, COLUMN, LAYOUTS };
static const char *const layout_names[LAYOUTS] = { "plain", "odd", "transposed", "stepped", "sliced", "row", "column" };

/* Rows of whole vectors in every dtype; rows that are not; the largest for transposing copies, whose tiles have 64
 * rows. */
static const struct size { int64_t rows, columns; } sizes[] = { { 5, 16 }, { 7, 37 }, { 35, 48 }, { 70, 130 } };
enum { SMALL_SIZES = 3 };

/* A dtype for each size of elements; and u8, for which the conformance suite does not check clamp. */
static const ctrt_dtype widths[] = { CTRT_I8, CTRT_F16, CTRT_F32, CTRT_F64, CTRT_U8 };
enum { WIDTHS = 4 };

struct pair { ctrt_tensor *here, *there; };

static void pair_release(struct pair *pair)
{
    ctrt_tensor_release(&pair->here);
    ctrt_tensor_release(&pair->there);
}
#define AUTO_PAIR __attribute__((cleanup(pair_release))) struct pair

static ctrt_tensor *base_of(enum layout layout, struct size s, ctrt_dtype dtype, enum values kind)
{
    switch (layout) {
    case ODD:        return numbers(CTRT_SHAPE(s.rows * s.columns + 1), dtype, kind);
    case TRANSPOSED: return numbers(CTRT_SHAPE(s.columns, s.rows), dtype, kind);
    case STEPPED:    return numbers(CTRT_SHAPE(s.rows, 2 * s.columns), dtype, kind);
    case SLICED:     return numbers(CTRT_SHAPE(s.rows, s.columns + 16), dtype, kind);
    case ROW:        return numbers(CTRT_SHAPE(1, s.columns), dtype, kind);
    case COLUMN:     return numbers(CTRT_SHAPE(s.rows, 1), dtype, kind);
    default:         return numbers(CTRT_SHAPE(s.rows, s.columns), dtype, kind);
    }
}

/* Replaces the base by its view of the layout. */
static void view(ctrt_tensor **x, enum layout layout, struct size s)
{
    switch (layout) {
    case ODD:
        CHECK_OK(ctrt_narrow(x, *x, 0, 1, s.rows * s.columns));
        CHECK_OK(ctrt_reshape(x, *x, CTRT_SHAPE(s.rows, s.columns)));
        break;
    case TRANSPOSED: CHECK_OK(ctrt_transpose(x, *x, 0, 1)); break;
    case STEPPED:    CHECK_OK(ctrt_slice(x, *x, 1, 0, 2 * s.columns, 2)); break;
    case SLICED:     CHECK_OK(ctrt_narrow(x, *x, 1, 16, s.columns)); break;
    case ROW:
    case COLUMN:     CHECK_OK(ctrt_expand(x, *x, CTRT_SHAPE(s.rows, s.columns))); break;
    default:         break;
    }
}

static struct pair operand(enum layout layout, struct size s, ctrt_dtype dtype, enum values kind)
{
    struct pair pair = { base_of(layout, s, dtype, kind), NULL };
    CHECK_OK(ctrt_to_device(&pair.there, pair.here, gpu));
    view(&pair.here, layout, s);
    view(&pair.there, layout, s);
    return pair;
}

/* ---- one op of each form of kernel, for all layouts of its operands ---- */

static ctrt_status copy_op(ctrt_tensor **out, ctrt_tensor *const *in)
{
    return ctrt_to(out, in[0], NULL, CTRT_DTYPE_DEFAULT, true, CTRT_CONTIGUOUS_FORMAT);
}
static ctrt_status copy_into_op(ctrt_tensor **out, ctrt_tensor *const *in)
{
    ctrt_tensor_assign(out, in[0]);
    return ctrt_copy_(*out, in[1]);
}
static ctrt_status fill_op(ctrt_tensor **out, ctrt_tensor *const *in)
{
    ctrt_tensor_assign(out, in[0]);
    return ctrt_fill_(*out, ctrt_float(2.75));
}
static ctrt_status neg_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_neg(out, in[0]); }
static ctrt_status isnan_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_isnan(out, in[0]); }
static ctrt_status sqrt_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_sqrt(out, in[0]); }
static ctrt_status clamp_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_clamp(out, in[0], ctrt_int(2),
                                                                                           ctrt_int(5)); }
static ctrt_status tril_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_tril(out, in[0], 2); }
static ctrt_status scalar_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_add_scalar(out, in[0],
                                                                                                 ctrt_int(3)); }
static ctrt_status add_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_add(out, in[0], in[1]); }
static ctrt_status lt_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_lt(out, in[0], in[1]); }
static ctrt_status fmod_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_fmod(out, in[0], in[1]); }
static ctrt_status where_op(ctrt_tensor **out, ctrt_tensor *const *in) { return ctrt_where(out, in[2], in[0], in[1]); }

static const struct form {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *const *in);
    int inputs;                             /* 3: the third is a bool */
    bool in_place, floating;
    enum values right;
    double near;                            /* in epsilons of the dtype */
} forms[] = {
    { .name = "copy", .run = copy_op, .inputs = 1 },
    { .name = "copy_", .run = copy_into_op, .inputs = 2, .in_place = true, .right = SPECIAL },
    { .name = "fill_", .run = fill_op, .inputs = 1, .in_place = true },
    { .name = "neg", .run = neg_op, .inputs = 1 },
    { .name = "isnan", .run = isnan_op, .inputs = 1 },
    { .name = "sqrt", .run = sqrt_op, .inputs = 1, .floating = true, .near = 2 },
    { .name = "clamp", .run = clamp_op, .inputs = 1 },
    { .name = "tril", .run = tril_op, .inputs = 1 },
    { .name = "add_scalar", .run = scalar_op, .inputs = 1 },
    { .name = "add", .run = add_op, .inputs = 2, .right = SPECIAL },
    { .name = "lt", .run = lt_op, .inputs = 2, .right = SPECIAL },
    { .name = "fmod", .run = fmod_op, .inputs = 2, .right = NONZERO },
    { .name = "where", .run = where_op, .inputs = 3, .right = LOGITS },
};

static void check_form(const struct form *form, ctrt_dtype dtype, enum layout left, enum layout right, struct size s)
{
    AUTO_PAIR a = operand(left, s, dtype, SPECIAL), b = { NULL, NULL }, c = { NULL, NULL }, y = { NULL, NULL };
    if (form->inputs > 1)
        b = operand(right, s, dtype, form->right);
    if (form->inputs > 2)
        c = operand((enum layout)((left + right) % LAYOUTS), s, CTRT_BOOL, TIES);
    ctrt_tensor *const here[] = { a.here, b.here, c.here }, *const there[] = { a.there, b.there, c.there };
    if (CHECK_OK(form->run(&y.here, here)) && CHECK_OK(form->run(&y.there, there)))
        same(y.there, y.here, form->near * epsilon(dtype), "%s, %s%s%s, %lld by %lld", form->name, layout_names[left],
             form->inputs > 1 ? " and " : "", form->inputs > 1 ? layout_names[right] : "", (long long)s.rows,
             (long long)s.columns);
}

static void test_forms(void)
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

static void test_copies(void)
{
    group("conversions between all dtypes, also of values out of range");
    for (size_t from = 0; from < COUNT(all_dtypes); from++)
        for (size_t to = 0; to < COUNT(all_dtypes); to++) {
            const enum layout layout = (enum layout)((from + to) % LAYOUTS);
            AUTO_PAIR x = operand(layout, sizes[2], all_dtypes[from], SPECIAL), y = { NULL, NULL };
            CHECK_OK(ctrt_to_dtype(&y.here, x.here, all_dtypes[to]));
            CHECK_OK(ctrt_to_dtype(&y.there, x.there, all_dtypes[to]));
            same(y.there, y.here, 0, "%s, from %s", layout_names[layout], ctrt_dtype_name(all_dtypes[from]));
        }

    group("transposing copies of four dimensions");
    static const int64_t orders[][4] = { { 0, 2, 3, 1 }, { 0, 3, 1, 2 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 },
                                         { 1, 0, 3, 2 } };
    for (size_t d = 0; d < WIDTHS; d++)
        for (size_t o = 0; o < COUNT(orders); o++) {
            AUTO_PAIR x = { numbers(CTRT_SHAPE(2, 18, 17, 66), widths[d], SPECIAL), NULL };
            CHECK_OK(ctrt_to_device(&x.there, x.here, gpu));
            for (int i = 0; i < 2; i++) {
                ctrt_tensor **side = i == 0 ? &x.here : &x.there;
                CHECK_OK(ctrt_permute(side, *side, ctrt_ints_of(orders[o], 4)));
                CHECK_OK(ctrt_contiguous(side, *side, CTRT_CONTIGUOUS_FORMAT));
            }
            same(x.there, x.here, 0, "order %zu", o);
        }
}

/* ---- attributes ---- */

static ctrt_status clamp_nan(ctrt_tensor **out, ctrt_tensor *x,
                             double unused) { (void)unused; return ctrt_clamp_max(out, x, ctrt_float(NAN)); }
static ctrt_status power(ctrt_tensor **out, ctrt_tensor *x,
                         double exponent) { return ctrt_pow_scalar(out, x, ctrt_float(exponent)); }
static ctrt_status tril_at(ctrt_tensor **out, ctrt_tensor *x,
                           double at) { return ctrt_tril(out, x, at < 0 ? INT64_MIN : INT64_MAX); }
static ctrt_status triu_at(ctrt_tensor **out, ctrt_tensor *x,
                           double at) { return ctrt_triu(out, x, at < 0 ? INT64_MIN : INT64_MAX); }

static void test_attributes(void)
{
    static const struct { const char *name; ctrt_status (*run)(ctrt_tensor **, ctrt_tensor *, double); double value,
                          near; } cases[] = {
        { "pow 2", power, 2, 0 }, { "pow 3", power, 3, 2 }, { "pow 0.5", power, 0.5, 1 }, { "pow 1", power, 1, 0 },
        { "pow -1", power, -1, 1 },
        { "pow -2", power, -2, 2 }, { "pow -0.5", power, -0.5, 2 }, { "clamp to NaN", clamp_nan, 0, 0 },
        { "tril far above", tril_at, 1, 0 },
        { "tril far below", tril_at, -1, 0 }, { "triu far above", triu_at, 1, 0 }, { "triu far below", triu_at, -1, 0 },
    };
    group("exponents without pow, a limit NaN, diagonals far outside");
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int d = 0; d < FLOATING; d++) {
            const enum layout layout = i % 2 == 0 ? PLAIN : STEPPED;
            AUTO_PAIR x = operand(layout, sizes[2], all_dtypes[d], SPECIAL), y = { NULL, NULL };
            CHECK_OK(cases[i].run(&y.here, x.here, cases[i].value));
            CHECK_OK(cases[i].run(&y.there, x.there, cases[i].value));
            same(y.there, y.here, cases[i].near * epsilon(all_dtypes[d]), "%s", cases[i].name);
        }
}

/* ---- quotients ---- */

static void test_quotients(void)
{
    static const struct { const char *name; ctrt_status (*run)(ctrt_tensor **, ctrt_tensor *,
                                                               ctrt_tensor *); } ops[] = {
        { "fmod", ctrt_fmod }, { "remainder", ctrt_remainder }, { "floor_divide", ctrt_floor_divide },
    };
    static const int64_t edges[] = { INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, INT16_MIN, INT16_MAX, -1, 1, -32767,
                                     32766 };
    group("quotients of all 8-bit integers and of the extreme values of each type");
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
        AUTO_PAIR far = { NULL, NULL };
        CHECK_OK(ctrt_to_device(&far.here, a, gpu));
        CHECK_OK(ctrt_to_device(&far.there, b, gpu));
        for (size_t o = 0; o < COUNT(ops); o++) {
            AUTO_PAIR y = { NULL, NULL };
            CHECK_OK(ops[o].run(&y.here, a, b));
            CHECK_OK(ops[o].run(&y.there, far.here, far.there));
            same(y.there, y.here, 0, "%s", ops[o].name);
        }
    }

    group("an integer divisor of 0 is an error");
    CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
    int32_t values[100];
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(100), CTRT_I32, gpu));
    CHECK_OK(ctrt_zeros(&b, CTRT_SHAPE(100), CTRT_I32, gpu));
    const ctrt_status status = ctrt_floor_divide(&y, a, b);
    CHECK_FAILS(status != CTRT_OK ? status : ctrt_to_host(values, sizeof values, y, CTRT_I32),
                CTRT_ERR_INVALID_ARGUMENT, "a divisor is 0");
    CHECK_OK(ctrt_stream_current(&stream, gpu));
    CHECK_OK(ctrt_stream_reset(stream));
    ctrt_stream_release(&stream);
}

/* ---- random numbers ---- */

enum source { RANDINT, HALF_OF_ALL, MANY, BERNOULLI, NORMAL, UNIFORM, UNALIGNED, DROPOUT, SOURCES };
static const char *const source_names[SOURCES] = { "randint", "randint of half of all", "randint of many", "bernoulli",
                                                   "randn", "uniform_",
                                                   "uniform_ at an odd address", "dropout" };

static ctrt_status fill_random(ctrt_tensor **x, enum source source, ctrt_dtype dtype, ctrt_device *device)
{
    const ctrt_ints shape = CTRT_SHAPE(ctrt_tensor_numel(*x));
    CTRT_AUTO(tensor) tail = NULL;
    switch (source) {
    case RANDINT:     return ctrt_randint(x, dtype == CTRT_BOOL ? 0 : 3, dtype == CTRT_BOOL ? 2 : 100, shape, dtype,
                                          device);
    case HALF_OF_ALL: return ctrt_randint(x, INT64_MIN, -1, shape, dtype, device);
    case MANY:        return ctrt_randint(x, -5000000000, 4611686018427387903, shape, dtype, device);
    case BERNOULLI:   return ctrt_bernoulli(x, shape, 0.3, dtype, device);
    case NORMAL:      return ctrt_randn(x, shape, dtype, device);
    case UNIFORM:     return ctrt_uniform_(*x, -0.7, 3.1);
    case DROPOUT:     return ctrt_dropout(x, *x, 0.4, true);
    default:
        CTRT_TRY(ctrt_narrow(&tail, *x, 0, 1, shape.values[0] - 1));
        return ctrt_uniform_(tail, 0, 1);
    }
}

static void test_random(void)
{
    static const int64_t counts[] = { 1, 5, 1027 };
    group("random numbers at an offset of more than 32 bits, in counts that are no multiple of a block");
    for (int source = 0; source < SOURCES; source++)
        for (size_t d = 0; d < COUNT(all_dtypes); d++)
            for (size_t c = 0; c < COUNT(counts); c++) {
                const ctrt_dtype dtype = all_dtypes[d];
                if ((source >= NORMAL && d >= FLOATING) || ((source == HALF_OF_ALL || source == MANY)
                                                            && dtype != CTRT_I64))
                    continue;
                AUTO_PAIR x = { numbers(CTRT_SHAPE(counts[c]), dtype, SMOOTH), NULL };
                CHECK_OK(ctrt_to_device(&x.there, x.here, gpu));
                CHECK_OK(ctrt_generator_set(cpu, 0x123456789abcdefu, 0xfffffffeu));
                CHECK_OK(ctrt_generator_set(gpu, 0x123456789abcdefu, 0xfffffffeu));
                CHECK_OK(fill_random(&x.here, (enum source)source, dtype, cpu));
                CHECK_OK(fill_random(&x.there, (enum source)source, dtype, gpu));
                same(x.there, x.here, source == NORMAL ? 8 * epsilon(dtype) : 0, "%lld by %s", (long long)counts[c],
                     source_names[source]);
            }
}

/* ---- the software driver's counters ---- */

static void test_used(void)
{
    static const char *const kernels[] = { "transpose_u8", "transpose_i16", "transpose_i32", "transpose_i64",
                                           "add_f32", "add_f32_s", "move_i64",
                                           "cast_f32_bf16_s", "pow_f32_short", "lt_i8", "fill_u8_s", "triangle_i16" };
    if (soft == NULL)
        return;
    group("the expected kernels ran, without faults and without the cpu");
    for (size_t i = 0; i < COUNT(kernels); i++)
        CHECK(soft->launches(kernels[i]) > 0, "%s never ran", kernels[i]);
    CHECK(soft->faults() == 0, "%s", soft->fault_text());
    CHECK_EQ(ctrt_fallback_count(NULL), 0);
}

TEST_MAIN
{
    soft_begin(argv);
    group("the devices open");
    if (!soft_open("cuda:0"))
        return done();
    test_forms();
    test_copies();
    test_attributes();
    test_quotients();
    test_random();
    test_used();
    return done();
}
