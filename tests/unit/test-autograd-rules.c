/* SPDX-License-Identifier: Apache-2.0 */
/* Tests first and second derivatives against central differences in f64 for forms of ops that the conformance suite
 * does not cover: numbers as operands, changes in place, views of views, and special operands.
 *
 * With fixed random weights w of the result, L = sum(w y). First derivatives: dL/dx from backward is compared with
 * differences of L. Second derivatives: with fixed v, M = sum(v dL/dx); the gradient of M by create_graph is
 * compared with differences of M. In those differences dL/dx comes from a backward pass without create_graph, so
 * fused kernels and derivatives composed of ops are compared with each other too. */
#include "autograd_check.h"

enum { INPUTS = 3, W = INPUTS };

typedef ctrt_status (*function)(ctrt_tensor **out, ctrt_tensor *const *in);

/* ---- forms of the elementwise ops ---- */

#define FORM_UNARY_no(op)   .unary_ = NULL
#define FORM_UNARY_yes(op)  .unary_ = ctrt_##op##_
#define FORM_BINARY_no(op)  .scalar = ctrt_##op##_scalar
#define FORM_BINARY_yes(op) .scalar = ctrt_##op##_scalar, .scalar_ = ctrt_##op##_scalar_, .binary_ = ctrt_##op##_
#define FORM_OWN_no(op)     .unary_ = NULL
#define FORM_GRAPH_no(op)   .unary_ = NULL

static const struct form {
    const char *name;
    enum { no, yes } gradient;
    ctrt_status (*unary_)(ctrt_tensor *self);
    ctrt_status (*binary_)(ctrt_tensor *self, ctrt_tensor *other);
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar number);
    ctrt_status (*scalar_)(ctrt_tensor *self, ctrt_scalar number);
} forms[] = {
#define CTRT_OP(op, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    { #op, gradient, FORM_##form##_##in_place(op) },
#include "ctrt/ops.def"
#undef CTRT_OP
}, *form;                               /* the form that the next four functions call */

#define F(name, ...) static ctrt_status name(ctrt_tensor **out, ctrt_tensor *const *in) { __VA_ARGS__ }
/* Ops in place run on a clone, so that the input stays a leaf. */
#define IN_PLACE(name, ...) F(name, CTRT_TRY(ctrt_clone(out, in[0])); ctrt_tensor *y = *out; __VA_ARGS__)

F(by_number, return form->scalar(out, in[0], ctrt_float(0.7));)
IN_PLACE(unary_in_place, return form->unary_(y);)
IN_PLACE(binary_in_place, return form->binary_(y, in[1]);)
IN_PLACE(by_number_in_place, return form->scalar_(y, ctrt_float(0.7));)

/* ---- other functions ---- */

F(cube, return ctrt_pow_scalar(out, in[0], ctrt_float(3));) F(power_2, return ctrt_pow_scalar(out, in[0], ctrt_int(2));)
F(power_0, return ctrt_pow_scalar(out, in[0], ctrt_float(0));)
F(amin, return ctrt_amin(out, in[0], CTRT_DIMS(0, 2), true);)
F(prod, return ctrt_prod_dims(out, in[0], CTRT_DIMS(1), true);)

F(strided_overlap, return ctrt_as_strided(out, in[0], CTRT_SHAPE(3, 4), CTRT_SHAPE(2, 1), 1);)
F(strided_view,
  CTRT_AUTO(tensor) t = NULL;
  TRY(ctrt_slice(&t, in[0], 0, 1, 3, 1));
  TRY(ctrt_transpose(&t, t, 0, 1));
  return ctrt_as_strided(out, t, CTRT_SHAPE(3, 2), CTRT_SHAPE(3, 1), 4);)
F(strided_expanded,
  CTRT_AUTO(tensor) t = NULL;
  CTRT_TRY(ctrt_expand(&t, in[0], CTRT_SHAPE(5, 3, 4)));
  return ctrt_as_strided(out, t, CTRT_SHAPE(4, 2), CTRT_SHAPE(3, 1), 1);)
/* Elements 2 to 9 of a tensor of 12, made from a view that has the elements 4 to 11. */
F(strided_outside,
  CTRT_AUTO(tensor) t = NULL;
  TRY(ctrt_slice(&t, in[0], 0, 1, 3, 1));
  TRY(ctrt_as_strided(out, t, CTRT_SHAPE(2, 4), CTRT_SHAPE(4, 1), 2));
  return ctrt_mul(out, *out, t);)
F(cat, return ctrt_cat(out, in, 3, 1);)
F(strided_between,                      /* the elements between those of a column */
  CTRT_AUTO(tensor) t = NULL;
  TRY(ctrt_slice(&t, in[0], 1, 0, 4, 2));
  TRY(ctrt_as_strided(out, t, CTRT_SHAPE(3, 2), CTRT_SHAPE(4, 1), 0));
  return ctrt_mul(out, *out, t);)
F(cat_many,
  ctrt_tensor *many[12];
  for (int i = 0; i < 12; i++)
      many[i] = in[i % 2];
  return ctrt_cat(out, many, 12, 0);)
F(chunk,
  ctrt_tensor *p[3] = { NULL };
  int n;
  CTRT_TRY(ctrt_chunk(p, &n, in[0], 3, 2));
  ctrt_status status = ctrt_mul(out, p[0], p[1]);
  tensors_release(p, n);
  return status;)

IN_PLACE(clamp_, CTRT_TRY(ctrt_mul_scalar_(y, ctrt_float(1.5))); return ctrt_clamp_min_(y, ctrt_float(-0.5));)
IN_PLACE(mul_itself_, return ctrt_mul_(y, y);)
IN_PLACE(copy_,
         CTRT_AUTO(tensor) t = NULL;
         TRY(ctrt_mul(out, y, in[0]));
         TRY(ctrt_slice(&t, *out, 0, 0, 2, 1));
         return ctrt_copy_(t, in[1]);)
IN_PLACE(masked_fill_,
         CTRT_AUTO(tensor) mask = NULL;
         CTRT_TRY(ctrt_gt_scalar(&mask, in[0], ctrt_float(0)));
         return ctrt_masked_fill_(y, mask, ctrt_float(3));)
IN_PLACE(fill_row_,
         CTRT_AUTO(tensor) row = NULL;
         TRY(ctrt_select(&row, y, 0, 1));
         TRY(ctrt_fill_(row, ctrt_float(2)));
         return ctrt_mul(out, y, in[0]);)
#define OUTSIDE_IN_PLACE(op)                                                                                        \
    IN_PLACE(outside_##op,                                                                                          \
             CTRT_AUTO(tensor) a = NULL, b = NULL;                                                                  \
             TRY(ctrt_slice(&a, y, 0, 1, 3, 1));                                                                    \
             TRY(ctrt_as_strided(&b, a, CTRT_SHAPE(2, 4), CTRT_SHAPE(4, 1), 2));                                    \
             TRY(ctrt_##op(b, b));                                                                                  \
             TRY(ctrt_##op(b, a));                                                                                  \
             return ctrt_mul(out, y, y);)
OUTSIDE_IN_PLACE(add_) OUTSIDE_IN_PLACE(sub_) OUTSIDE_IN_PLACE(mul_) OUTSIDE_IN_PLACE(div_)
/* Changes the views a and b of y. b is selected from c, a view created before y was changed. */
IN_PLACE(views_,
         CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL, product = NULL;
         TRY(ctrt_select(&a, y, 0, 0));
         TRY(ctrt_transpose(&c, y, 0, 1));
         TRY(ctrt_mul_(a, in[1]));
         TRY(ctrt_select(&b, c, 1, 1));
         TRY(ctrt_add_(b, a));
         TRY(ctrt_exp_(b));
         TRY(ctrt_mul(&b, b, a));
         TRY(ctrt_mul(&product, y, b));
         return ctrt_add(out, product, y);)
IN_PLACE(row_by_row_,
         CTRT_AUTO(tensor) a = NULL, b = NULL;
         TRY(ctrt_select(&a, y, 0, 0));
         TRY(ctrt_select(&b, y, 0, 1));
         return ctrt_mul_(a, b);)
/* A change of the view v of a constant makes the constant require grad. The view w, created before the change, must
 * require grad too. */
F(into_constant,
  CTRT_AUTO(tensor) base = NULL, v = NULL, w = NULL;
  TRY(ctrt_ones(&base, CTRT_SHAPE(3, 4), CTRT_F64, NULL));
  TRY(ctrt_slice(&v, base, 0, 0, 2, 1));
  TRY(ctrt_select(&w, base, 1, 2));
  TRY(ctrt_mul_(v, in[0]));
  TRY(ctrt_mul(&w, w, w));
  TRY(ctrt_unsqueeze(&w, w, 1));
  return ctrt_mul(out, base, w);)
/* The base is dense but not contiguous, because it is computed from a transposed tensor. */
F(strided_base,
  CTRT_AUTO(tensor) t = NULL, v = NULL;
  TRY(ctrt_transpose(&t, in[0], 0, 1));
  TRY(ctrt_mul_scalar(&t, t, ctrt_float(2)));
  TRY(ctrt_slice(&v, t, 0, 1, 3, 1));
  TRY(ctrt_mul_(v, v));
  return ctrt_mul(out, t, t);)

/* SEPARATE: distinct elements, none near 0; ZEROS: rows with no, one and two zeros. */
enum kind { NONE, ANY, POSITIVE, SEPARATE, ZEROS };

struct input {
    enum kind kind;
    int64_t shape[4];
    int ndim;
};
#define IN(kind, ...) { kind, { __VA_ARGS__ }, (int)COUNT(((int64_t[]){ __VA_ARGS__ })) }

static const struct rule_case {
    const char *name;
    function call;
    int leaves;                     /* the first ones of the inputs require grad */
    struct input in[INPUTS];
} cases[] = {
    { "x ^ 3.0", cube, 1, { IN(ANY, 3, 4) } }, { "x ^ 2", power_2, 1, { IN(ZEROS, 3, 4) } },
    { "x ^ 0", power_0, 1, { IN(POSITIVE, 3, 4) } }, { "amin of two dims", amin, 1, { IN(SEPARATE, 2, 3, 2) } },
    { "prod with zeros", prod, 1, { IN(ZEROS, 4, 3) } }, { "chunk", chunk, 1, { IN(ANY, 2, 2, 3) } },
    { "as_strided with overlap", strided_overlap, 1, { IN(ANY, 3, 4) } },
    { "as_strided of a view", strided_view, 1, { IN(ANY, 3, 4) } },
    { "as_strided of an expanded tensor", strided_expanded, 1, { IN(ANY, 3, 4) } },
    { "as_strided beyond a view", strided_outside, 1, { IN(ANY, 3, 4) } },
    { "as_strided between the elements of a view", strided_between, 1, { IN(ANY, 3, 4) } },
    { "add_ to a view of a view", outside_add_, 1, { IN(POSITIVE, 3, 4) } },
    { "sub_ from a view of a view", outside_sub_, 1, { IN(POSITIVE, 3, 4) } },
    { "mul_ of a view of a view", outside_mul_, 1, { IN(POSITIVE, 3, 4) } },
    { "div_ of a view of a view", outside_div_, 1, { IN(POSITIVE, 3, 4) } },
    { "cat, one constant", cat, 2, { IN(ANY, 2, 3), IN(ANY, 2, 1), IN(ANY, 2, 2) } },
    { "cat of many", cat_many, 2, { IN(ANY, 2, 2), IN(ANY, 1, 2) } },
    { "clamp_", clamp_, 1, { IN(ANY, 3, 4) } },
    { "mul_ by itself", mul_itself_, 1, { IN(ANY, 3, 4) } },
    { "copy_ into a slice", copy_, 2, { IN(ANY, 3, 4), IN(ANY, 4) } },
    { "masked_fill_", masked_fill_, 1, { IN(ANY, 3, 4) } }, { "fill_ of a row", fill_row_, 1, { IN(ANY, 3, 4) } },
    { "changes through views", views_, 2, { IN(ANY, 3, 3), IN(ANY, 3) } },
    { "a row times another in place", row_by_row_, 1, { IN(ANY, 3, 4) } },
    { "a constant written through a view", into_constant, 1, { IN(ANY, 4) } },
    { "views of a transposed base", strided_base, 1, { IN(ANY, 3, 4) } },
};

/* ---- comparison with differences ---- */

static double uniform(double low, double high)
{
    static uint64_t state = 88172645463325252u;         /* xorshift64, Marsaglia 2003 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + (high - low) * (double)(state >> 11) * 0x1p-53;
}

static ctrt_tensor *make(enum kind kind, ctrt_ints shape)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_empty(&tensor, shape, CTRT_F64, NULL));
    const int64_t n = ctrt_tensor_numel(tensor);
    double *values = ctrt_tensor_data(tensor);
    for (int64_t i = 0; i < n; i++)
        if (kind == SEPARATE)                      /* a permutation of steps of 0.13 */
            values[i] = 0.13 * (double)((i * 7 + 3) % (n % 7 ? n : n + 1)) - 0.7 + uniform(0, 0.02);
        else if (kind == ZEROS && (i == 4 || i == 6 || i == 7))
            values[i] = 0;
        else
            values[i] = kind == POSITIVE ? uniform(0.5, 1.5) : uniform(-1.5, 1.5);
    return tensor;
}

static ctrt_tensor *weights_of(ctrt_tensor *x)
{
    return make(POSITIVE, ctrt_ints_of(ctrt_tensor_shape(x), ctrt_tensor_ndim(x)));
}

struct check {
    function call;
    ctrt_tensor *in[INPUTS + 1];        /* and w */
    int leaves;
    ctrt_tensor *v[INPUTS];
};

/* Computes L or, with `second`, M; `recorded`: so that the gradients in M can be differentiated. */
static ctrt_status loss(ctrt_tensor **out, struct check *c, bool second, bool recorded)
{
    CTRT_AUTO(tensor) y = NULL, term = NULL;
    ctrt_tensor *grads[INPUTS] = { NULL };
    CTRT_TRY(c->call(&y, c->in));
    if (!second) {
        CTRT_TRY(ctrt_mul(out, y, c->in[W]));
        return ctrt_sum(out, *out, CTRT_ALL_DIMS);
    }
    CTRT_TRY(ctrt_grad(grads, y, c->in, c->leaves, c->in[W], recorded, recorded, true));
    CTRT_TRY(ctrt_zeros(out, CTRT_SCALAR_SHAPE, CTRT_F64, NULL));
    for (int i = 0; i < c->leaves; i++) {
        if (grads[i] == NULL)
            continue;
        TRY(ctrt_mul(&term, grads[i], c->v[i]));
        TRY(ctrt_sum(&term, term, CTRT_ALL_DIMS));
        TRY(ctrt_add(out, *out, term));
        ctrt_tensor_release(&grads[i]);
    }
    return CTRT_OK;
}

static double loss_value(struct check *c, bool second)
{
    CTRT_AUTO(tensor) value = NULL;
    double number = NAN;
    if (CHECK_OK(loss(&value, c, second, false)))
        CHECK_OK(ctrt_item(&number, value));
    return number;
}

/* Compares the gradient for one input with differences. A missing gradient is 0. */
static void compare(struct check *c, bool second, int input, ctrt_tensor *grad)
{
    const double step = 1e-5, tolerance = second ? 1e-6 : 1e-7;
    double *values = ctrt_tensor_data(c->in[input]), given[64] = { 0 };
    const int64_t n = ctrt_tensor_numel(c->in[input]);
    if (grad && CHECK_EQ(ctrt_tensor_numel(grad), n) && CHECK_EQ(ctrt_tensor_dtype(grad), CTRT_F64))
        CHECK_OK(ctrt_to_host(given, sizeof given, grad, CTRT_F64));
    for (int64_t i = 0; i < n; i++) {
        const double value = values[i];
        values[i] = value + step;
        const double up = loss_value(c, second);
        values[i] = value - step;
        const double wanted = (up - loss_value(c, second)) / (2 * step);
        values[i] = value;
        if (!CHECK(fabs(given[i] - wanted) <= tolerance * (1 + fabs(wanted)),
                   "%s derivative, input %d, element %lld: gradient %.9g, differences give %.9g",
                   second ? "second" : "first", input, (long long)i, given[i], wanted))
            break;
    }
}

static void derivative(struct check *c, bool second)
{
    CTRT_AUTO(tensor) value = NULL;
    ctrt_tensor *grads[INPUTS + 1] = { NULL }, *of[INPUTS + 1];
    const int n = c->leaves + second;                   /* M depends on w too */
    memcpy(of, c->in, sizeof of);
    if (second)
        of[c->leaves] = c->in[W];
    if (!CHECK_OK(loss(&value, c, second, true)) || (second && !ctrt_tensor_requires_grad(value))
        || !CHECK_OK(ctrt_grad(grads, value, of, n, NULL, false, false, true)))
        return;
    for (int i = 0; i < n; i++)
        compare(c, second, i < c->leaves ? i : W, grads[i]);
    tensors_release(grads, n);
}

static void run(const struct rule_case *it)
{
    struct check c = { .call = it->call, .leaves = it->leaves };
    CTRT_AUTO(tensor) y = NULL;
    for (int i = 0; i < INPUTS && it->in[i].kind != NONE; i++) {
        c.in[i] = make(it->in[i].kind, ctrt_ints_of(it->in[i].shape, it->in[i].ndim));
        c.v[i] = weights_of(c.in[i]);
    }
    ctrt_no_grad CHECK_OK(c.call(&y, c.in));
    c.in[W] = weights_of(y);
    for (int i = 0; i < c.leaves; i++)
        CHECK_OK(ctrt_tensor_require_grad(c.in[i], true));
    derivative(&c, false);
    CHECK_OK(ctrt_tensor_require_grad(c.in[W], true));
    derivative(&c, true);
    tensors_release(c.in, INPUTS + 1);
    tensors_release(c.v, INPUTS);
    nothing_left();
}

static void run_form(const char *what, function call, int leaves)
{
    group("%s %s", form->name, what);
    run(&(struct rule_case){ NULL, call, leaves, { IN(POSITIVE, 3, 4), IN(POSITIVE, 4) } });
}

/* The padding row is looked up as any other row, but gets no gradient. */
static void padding(void)
{
    static const int64_t index[] = { 2, 0, 2, 1, 0 };
    CTRT_AUTO(tensor) w = NULL, at = NULL, y = NULL, d = NULL;
    group("embedding: the padding row gets no gradient");
    CHECK_OK(ctrt_full(&w, CTRT_SHAPE(3, 2), ctrt_float(1.5), CTRT_F64, NULL));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_from_data(&at, index, 5, CTRT_SHAPE(5, 1), CTRT_I64, NULL));
    CHECK_OK(ctrt_embedding(&y, w, at, 2));
    CHECK_OK(ctrt_mul(&y, y, y));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad(&d, y, &w, 1, NULL, true, true, false));
    VALUES_ARE(d, 6, 6, 3, 3, 0, 0);
    CHECK_OK(ctrt_sum(&d, d, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad(&d, d, &w, 1, NULL, false, false, false));
    VALUES_ARE(d, 4, 4, 2, 2, 0, 0);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    padding();
    EACH(c, cases) {
        group("%s", c->name);
        run(c);
    }
    EACH(c, forms) {
        form = c;
        if (form->gradient && form->scalar)
            run_form("by a number", by_number, 1);
        if (form->gradient && form->unary_)
            run_form("in place", unary_in_place, 1);
        if (form->gradient && form->binary_) {
            run_form("in place", binary_in_place, 2);
            run_form("by a number in place", by_number_in_place, 1);
        }
    }
    return done();
}
