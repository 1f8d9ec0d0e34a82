/* SPDX-License-Identifier: Apache-2.0 */
/* In-place writes: which ones are errors, how changes of saved tensors are detected, and the histories of views.
 * test-autograd-rules checks the values of the gradients. */
#include <math.h>

#include "ctrt/ctrt.h"
#include "tap.h"

static ctrt_tensor *filled(double value, bool grad)
{
    ctrt_tensor *t = NULL;
    CHECK_OK(ctrt_full(&t, CTRT_SHAPE(2, 3), ctrt_float(value), CTRT_F64, NULL));
    if (grad)
        CHECK_OK(ctrt_tensor_require_grad(t, true));
    return t;
}

static double sum_of(ctrt_tensor *t)
{
    ctrt_tensor *s = NULL;
    double value = NAN;
    ctrt_no_grad {
        CHECK_OK(ctrt_sum(&s, t, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_item(&value, s));
    }
    ctrt_tensor_release(&s);
    return value;
}

static ctrt_status backward_of_sum(ctrt_tensor *t)
{
    ctrt_tensor *s = NULL;
    ctrt_status status = ctrt_sum(&s, t, CTRT_ALL_DIMS);
    if (status == CTRT_OK)
        status = ctrt_backward(s);
    ctrt_tensor_release(&s);
    return status;
}

static void nothing_left(void)
{
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu graph nodes were not freed",
          (unsigned long long)ctrt_autograd_live_nodes());
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes were not freed",
          (unsigned long long)ctrt_autograd_saved_bytes());
}

static void release(int n, ctrt_tensor **const *tensors)
{
    for (int i = 0; i < n; i++)
        ctrt_tensor_release(tensors[i]);
}
#define RELEASE(...) release((int)(sizeof((ctrt_tensor **[]){__VA_ARGS__}) / sizeof(ctrt_tensor **)), (ctrt_tensor **[]){__VA_ARGS__})

static void refused(void)
{
    group("in-place writes to leaves that require grad are errors");
    ctrt_tensor *x = filled(1, true), *v = NULL, *y = NULL, *e = NULL, *k = NULL;
    CHECK_FAILS(ctrt_add_scalar_(x, ctrt_float(1)), CTRT_ERR_AUTOGRAD, "leaf");
    CHECK_FAILS(ctrt_zero_(x), CTRT_ERR_AUTOGRAD, "ctrt_no_grad");
    CHECK_FAILS(ctrt_normal_(x, 0, 1), CTRT_ERR_AUTOGRAD, "leaf");
    CHECK_OK(ctrt_select(&v, x, 0, 0));
    CHECK_FAILS(ctrt_mul_(v, v), CTRT_ERR_AUTOGRAD, "view of a leaf");
    CHECK(sum_of(x) == 6, "a rejected write changed x: the sum is %g", sum_of(x));
    ctrt_no_grad {
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        CHECK_OK(ctrt_mul_(v, v));
    }
    CHECK(sum_of(x) == 18 && ctrt_tensor_is_leaf(x) && ctrt_tensor_requires_grad(x),
          "writes without grad mode: the sum is %g, expected 18", sum_of(x));
    CHECK_OK(backward_of_sum(v));
    CHECK(ctrt_tensor_grad(x) && sum_of(ctrt_tensor_grad(x)) == 3,
          "wrong gradient through a view after a write to its base");
    RELEASE(&v);

    group("in-place writes that turn a leaf of a graph into a result");
    ctrt_tensor *w = filled(3, true);
    for (int how = 0; how < 4; how++) {                     /* written: leaf, view, leaf without grad mode, base */
        ctrt_tensor *base = filled(2, false), *leaf = NULL;
        if (how == 3)
            CHECK_OK(ctrt_narrow(&leaf, base, 0, 0, 1));
        else
            ctrt_tensor_assign(&leaf, base);
        CHECK_OK(ctrt_tensor_require_grad(leaf, true));
        CHECK_OK(ctrt_mul_scalar(&e, leaf, ctrt_float(2)));
        CHECK_OK(ctrt_tensor_require_grad(leaf, how == 3));
        CHECK_OK(how == 1 ? ctrt_select(&v, leaf, 0, 1) : (ctrt_tensor_assign(&v, base), CTRT_OK));
        CHECK_OK(how == 1 ? ctrt_select(&k, w, 0, 1) : (ctrt_tensor_assign(&k, w), CTRT_OK));
        const bool was = ctrt_set_grad_enabled(how != 2);
        CHECK_OK(ctrt_mul_(v, k));
        ctrt_set_grad_enabled(was);
        if (how == 2)
            CHECK_OK(backward_of_sum(e));
        else
            CHECK_FAILS(backward_of_sum(e), CTRT_ERR_AUTOGRAD, "changed in place after its use");
        CHECK(ctrt_tensor_grad(leaf) == NULL, "case %d: the leaf got a gradient", how);
        RELEASE(&base, &leaf, &v, &k, &e);
    }
    RELEASE(&w);

    group("writes to views made without grad mode are errors");
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    ctrt_no_grad {
        CHECK_OK(ctrt_select(&v, y, 0, 0));
    }
    CHECK_FAILS(ctrt_mul_(v, y), CTRT_ERR_SHAPE, NULL);
    CHECK_OK(ctrt_select(&k, x, 0, 1));
    CHECK_FAILS(ctrt_mul_(v, k), CTRT_ERR_AUTOGRAD, "made under ctrt_no_grad");
    CHECK_OK(ctrt_select(&e, v, 0, 1));
    CHECK_OK(ctrt_select(&k, k, 0, 1));
    CHECK_FAILS(ctrt_mul_(e, k), CTRT_ERR_AUTOGRAD, "made under ctrt_no_grad");
    RELEASE(&v, &e, &k);

    group("writes to expanded tensors are errors");
    CHECK_OK(ctrt_select(&v, y, 0, 0));
    CHECK_OK(ctrt_expand(&e, v, CTRT_SHAPE(4, 3)));
    CHECK_FAILS(ctrt_add_scalar_(e, ctrt_float(1)), CTRT_ERR_INVALID_ARGUMENT, "share memory");
    RELEASE(&x, &v, &y, &e);
    nothing_left();
}

static void versions(void)
{
    group("backward detects a changed saved operand");
    ctrt_tensor *x = filled(2, true), *u = NULL, *y = NULL, *d = NULL, *v = NULL, *w = filled(3, false);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(2)));
    CHECK(ctrt_tensor_version(u) == 0, "a fresh tensor has version %u", ctrt_tensor_version(u));
    CHECK_OK(ctrt_mul(&y, u, u));
    CHECK_OK(ctrt_add_scalar_(u, ctrt_float(1)));
    CHECK(ctrt_tensor_version(u) == 1, "after one change the version is %u", ctrt_tensor_version(u));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "version 0 and is at version 1");
    CHECK(strstr(ctrt_error_message(), "backward of mul") != NULL, "the message does not name the op: %s", ctrt_error_message());
    CHECK(ctrt_tensor_grad(x) == NULL, "a failed backward left a gradient");
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "changed in place");
    RELEASE(&u, &y);

    group("backward detects a changed saved result");
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");
    RELEASE(&y);

    group("backward detects changes through a view, a detached tensor or under ctrt_no_grad");
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_select(&v, y, 0, 1));
    CHECK_OK(ctrt_zero_(v));
    CHECK(ctrt_tensor_version(y) == 1, "the view's change does not show");
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");
    RELEASE(&v);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_detach(&d, y));
    CHECK_OK(ctrt_zero_(d));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");
    CHECK_OK(ctrt_mul(&y, x, w));
    ctrt_no_grad {
        CHECK_OK(ctrt_add_scalar_(w, ctrt_float(1)));
    }
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "operand 2");
    RELEASE(&d, &y);

    group("changes of tensors that no node saved are allowed");
    CHECK_OK(ctrt_add(&y, x, w));                       /* saves nothing */
    CHECK_OK(ctrt_zero_(w));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_OK(backward_of_sum(y));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 18, "the gradient's sum is %g, expected 18", sum_of(ctrt_tensor_grad(x)));
    RELEASE(&y);

    group("a graph with a reference cycle is freed");
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(2)));
    CHECK_OK(ctrt_mul(&y, u, u));
    CHECK_OK(ctrt_add_(u, y));                          /* u's history now contains the node that saved u */
    CHECK_FAILS(backward_of_sum(u), CTRT_ERR_AUTOGRAD, "changed in place");
    RELEASE(&x, &u, &y, &w);
    nothing_left();
}

static ctrt_status count(void *user, ctrt_tensor **grad)
{
    *(double *)user += sum_of(*grad);
    return CTRT_OK;
}

static void histories(void)
{
    group("an in-place write gives a constant a history");
    ctrt_tensor *x = filled(2, true), *c = filled(3, false), *y = NULL, *v = NULL, *w = NULL;
    CHECK_OK(ctrt_mul_(c, x));
    CHECK(ctrt_tensor_requires_grad(c) && !ctrt_tensor_is_leaf(c) && strcmp(ctrt_tensor_grad_fn(c), "mul") == 0, "c has no history");
    CHECK_OK(backward_of_sum(c));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 18, "the gradient's sum is %g, expected 18", sum_of(ctrt_tensor_grad(x)));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    RELEASE(&c);

    group("a write to a view updates the history of the base and of its other views");
    c = filled(3, false);
    CHECK_OK(ctrt_select(&v, c, 0, 0));
    CHECK_OK(ctrt_select(&w, c, 0, 0));
    CHECK_OK(ctrt_select(&y, x, 0, 0));
    CHECK_OK(ctrt_mul_(v, y));
    CHECK(strcmp(ctrt_tensor_grad_fn(c), "copy_slices") == 0, "the base's grad_fn is %s", ctrt_tensor_grad_fn(c));
    CHECK(strcmp(ctrt_tensor_grad_fn(v), "as_strided") == 0, "the view's grad_fn is %s", ctrt_tensor_grad_fn(v));
    CHECK(ctrt_tensor_requires_grad(w) && !ctrt_tensor_is_leaf(w), "the other view does not require grad or is a leaf");
    CHECK_OK(ctrt_mul(&w, w, w));                       /* (3 x)^2 */
    CHECK_OK(backward_of_sum(w));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 3 * 36, "the gradient's sum is %g, expected 108", sum_of(ctrt_tensor_grad(x)));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    RELEASE(&v, &w, &c, &y);

    group("hooks and retained gradients of a tensor that is written in place");
    double before = 0, after = 0;
    uint64_t id;
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK_OK(ctrt_tensor_add_hook(y, count, &before, &id));
    CHECK_OK(ctrt_tensor_retain_grad(y));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(5)));
    CHECK_OK(ctrt_tensor_add_hook(y, count, &after, NULL));
    CHECK_OK(ctrt_mul_scalar(&v, y, ctrt_float(7)));
    CHECK_OK(ctrt_sum(&v, v, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward_with(v, NULL, true, false));
    CHECK(before == 6 * 35 && after == 6 * 7, "the hooks saw %g and %g, expected 210 and 42", before, after);
    CHECK(ctrt_tensor_grad(y) && sum_of(ctrt_tensor_grad(y)) == 42, "the retained gradient is not the changed tensor's");
    CHECK_OK(ctrt_tensor_remove_hook(y, id));
    CHECK_OK(ctrt_backward(v));
    CHECK(before == 6 * 35 && after == 2 * 6 * 7, "after removal the hooks saw %g and %g, expected 210 and 84", before,
          after);
    RELEASE(&x, &y, &v);
    nothing_left();

    group("an overwritten tensor loses its history");
    x = filled(2, true);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul_scalar(&v, y, ctrt_float(1)));
    CHECK_OK(ctrt_uniform_(v, 0, 1));
    CHECK_OK(backward_of_sum(v));
    CHECK(ctrt_tensor_grad(x) && sum_of(ctrt_tensor_grad(x)) == 0, "the gradient is not 0");
    RELEASE(&x, &y, &v);
    nothing_left();
}

/* ---- views: each case creates x (a leaf of 4 ones that requires grad) and a view and writes it in grad mode,
 * as PyTorch 2.15 does ---- */

static ctrt_status same_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)context, (void)n_out, (void)n_in;
    ctrt_tensor_assign(&out[0], in[0]);
    return CTRT_OK;
}
static ctrt_status part_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)context, (void)n_out, (void)n_in;
    return ctrt_slice(&out[0], in[0], 0, 0, 2, 1);
}
static ctrt_status no_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in, ctrt_tensor *const *grad_out, int n_out)
{
    (void)context, (void)grad_in, (void)n_in, (void)grad_out, (void)n_out;
    return CTRT_OK;
}
static const ctrt_function same_function = { sizeof same_function, "same", same_forward, no_backward, NULL };
static const ctrt_function part_function = { sizeof part_function, "part", part_forward, no_backward, NULL };

struct view_tensors { ctrt_tensor *x, *y, *v; };
#define V(name, ...) static ctrt_status name(struct view_tensors *t) { __VA_ARGS__ }
V(v_leaf_view,                          /* a parameter that is a slice of a flat buffer, and a view of the parameter */
  ctrt_tensor *flat = NULL;
  CTRT_TRY(ctrt_zeros(&flat, CTRT_SHAPE(6), CTRT_F64, NULL));
  ctrt_status s = ctrt_slice(&t->y, flat, 0, 0, 4, 1);
  ctrt_tensor_release(&flat);
  CTRT_TRY(s);
  CTRT_TRY(ctrt_tensor_require_grad(t->y, true));
  return ctrt_slice(&t->v, t->y, 0, 0, 2, 1);)
V(v_late_leaf,                          /* the base starts to require grad after the creation of the view */
  CTRT_TRY(ctrt_zeros(&t->y, CTRT_SHAPE(4), CTRT_F64, NULL));
  CTRT_TRY(ctrt_slice(&t->v, t->y, 0, 0, 2, 1));
  return ctrt_tensor_require_grad(t->y, true);)
V(v_no_grad, ctrt_status s = CTRT_OK;
  ctrt_no_grad s = ctrt_slice(&t->v, t->y, 0, 0, 2, 1);
  return s;)
V(v_no_grad_leaf, ctrt_status s = CTRT_OK;
  ctrt_no_grad s = ctrt_slice(&t->v, t->x, 0, 0, 2, 1);
  return s;)
V(v_no_grad_of_view, ctrt_status s = CTRT_OK;
  CTRT_TRY(ctrt_slice(&t->v, t->y, 0, 0, 3, 1));
  ctrt_no_grad s = ctrt_slice(&t->v, t->v, 0, 0, 2, 1);
  return s;)
V(v_view_of_no_grad, CTRT_TRY(v_no_grad(t));
  return ctrt_slice(&t->v, t->v, 0, 0, 1, 1);)
V(v_no_grad_late, ctrt_status s = CTRT_OK;      /* the base gets its history after the creation of the view */
  CTRT_TRY(ctrt_ones(&t->y, CTRT_SHAPE(4), CTRT_F64, NULL));
  ctrt_no_grad s = ctrt_slice(&t->v, t->y, 0, 0, 2, 1);
  return s == CTRT_OK ? ctrt_mul_(t->y, t->x) : s;)
V(v_no_grad_leaf_view, CTRT_TRY(v_no_grad(t));
  return ctrt_tensor_require_grad(t->v, true);)
V(v_chunk, ctrt_tensor *p[2] = {NULL}; int n;
  CTRT_TRY(ctrt_chunk(p, &n, t->y, 2, 0));
  t->v = p[0];
  ctrt_tensor_release(&p[1]);
  return CTRT_OK;)
V(v_view_of_chunk, CTRT_TRY(v_chunk(t));
  return ctrt_slice(&t->v, t->v, 0, 0, 1, 1);)
V(v_same_function, return ctrt_function_apply(&same_function, NULL, &t->v, 1, &t->y, 1);)
V(v_part_function, return ctrt_function_apply(&part_function, NULL, &t->v, 1, &t->y, 1);)
V(v_view_of_function, CTRT_TRY(v_part_function(t));
  return ctrt_slice(&t->v, t->v, 0, 0, 1, 1);)
V(v_plain, return ctrt_slice(&t->v, t->y, 0, 0, 2, 1);)
V(v_detached, return ctrt_detach(&t->v, t->y);)
V(v_of_detached, CTRT_TRY(v_detached(t));
  return ctrt_slice(&t->v, t->v, 0, 0, 2, 1);)
V(v_no_grad_constant, ctrt_status s = CTRT_OK;
  CTRT_TRY(ctrt_ones(&t->y, CTRT_SHAPE(4), CTRT_F64, NULL));
  ctrt_no_grad s = ctrt_slice(&t->v, t->y, 0, 0, 2, 1);
  return s;)
#undef V

static ctrt_status w_add(ctrt_tensor *v) { return ctrt_add_scalar_(v, ctrt_float(1)); }
static ctrt_status w_relu(ctrt_tensor *v) { return ctrt_relu_(v); }
static ctrt_status w_zero(ctrt_tensor *v) { return ctrt_zero_(v); }
static ctrt_status w_normal(ctrt_tensor *v) { return ctrt_normal_(v, 0, 1); }
static ctrt_status w_clamp(ctrt_tensor *v) { return ctrt_clamp_min_(v, ctrt_float(0)); }
static ctrt_status w_from_host(ctrt_tensor *v)
{
    const double zeros[4] = {0};
    return ctrt_from_host_(v, zeros, ctrt_tensor_numel(v), CTRT_F64);
}
static ctrt_status with_constant(ctrt_tensor *v, ctrt_status (*op)(ctrt_tensor *, ctrt_tensor *), ctrt_dtype dtype)
{
    ctrt_tensor *c = NULL;
    ctrt_status status = ctrt_new_ones(&c, v, CTRT_SHAPE(ctrt_tensor_size(v, 0)), dtype, NULL);
    if (status == CTRT_OK)
        status = op(v, c);
    ctrt_tensor_release(&c);
    return status;
}
static ctrt_status fill_where(ctrt_tensor *v, ctrt_tensor *mask) { return ctrt_masked_fill_(v, mask, ctrt_float(3)); }
static ctrt_status w_mul(ctrt_tensor *v) { return with_constant(v, ctrt_mul_, CTRT_F64); }
static ctrt_status w_copy(ctrt_tensor *v) { return with_constant(v, ctrt_copy_, CTRT_F64); }
static ctrt_status w_masked_fill(ctrt_tensor *v) { return with_constant(v, fill_where, CTRT_BOOL); }
static ctrt_status (*const writes[])(ctrt_tensor *v) = {
    w_add, w_relu, w_zero, w_normal, w_clamp, w_from_host, w_mul, w_copy, w_masked_fill,
};

static const struct view_case {
    const char *name;
    ctrt_status (*make)(struct view_tensors *t);
    const char *refusal;                /* expected error text; NULL: the write is allowed */
} view_cases[] = {
    {"a view of a leaf that is itself a view", v_leaf_view, "view of a leaf"},
    {"a view made before its base required grad", v_late_leaf, "view of a leaf"},
    {"a view made without grad mode", v_no_grad, "under ctrt_no_grad"},
    {"a view of a leaf made without grad mode", v_no_grad_leaf, "under ctrt_no_grad"},
    {"a view of a view made without grad mode", v_no_grad_of_view, "under ctrt_no_grad"},
    {"a view of a view that was made without grad mode", v_view_of_no_grad, "under ctrt_no_grad"},
    {"a view made without grad mode before its base had a history", v_no_grad_late, "under ctrt_no_grad"},
    {"a leaf that is a view made without grad mode", v_no_grad_leaf_view, "under ctrt_no_grad"},
    {"a chunk", v_chunk, "ctrt_chunk"},
    {"a view of a chunk", v_view_of_chunk, "ctrt_chunk"},
    {"the operand of a function as its result", v_same_function, "ctrt_function_apply"},
    {"a view made by a function", v_part_function, "ctrt_function_apply"},
    {"a view of a view made by a function", v_view_of_function, "ctrt_function_apply"},
    {"a view", v_plain, NULL},
    {"a detached tensor", v_detached, NULL},
    {"a view of a detached tensor", v_of_detached, NULL},
    {"a view made without grad mode of a constant", v_no_grad_constant, NULL},
};

static bool begin_views(struct view_tensors *t, const struct view_case *c)
{
    *t = (struct view_tensors){NULL};
    return CHECK_OK(ctrt_ones(&t->x, CTRT_SHAPE(4), CTRT_F64, NULL)) && CHECK_OK(ctrt_tensor_require_grad(t->x, true))
           && CHECK_OK(ctrt_mul_scalar(&t->y, t->x, ctrt_float(2))) && CHECK_OK(c->make(t));
}

static void views(void)
{
    for (size_t i = 0; i < sizeof view_cases / sizeof *view_cases; i++) {
        const struct view_case *c = &view_cases[i];
        group(c->name);
        for (size_t w = 0; w < sizeof writes / sizeof *writes; w++) {
            struct view_tensors t;
            if (!begin_views(&t, c))
                return;
            if (c->refusal)
                CHECK_FAILS(writes[w](t.v), CTRT_ERR_AUTOGRAD, c->refusal);
            else
                CHECK_OK(writes[w](t.v));
            ctrt_no_grad CHECK_OK(writes[w](t.v));
            RELEASE(&t.x, &t.y, &t.v);
        }
    }
    group("a view with an unknown history cannot be used in a graph after a change of its base");
    struct view_tensors t;
    ctrt_tensor *z = NULL;
    static const struct view_case *const stale[] = { &view_cases[2], &view_cases[5], &view_cases[8], &view_cases[10], &view_cases[11] };
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        if (!begin_views(&t, stale[i]))
            return;
        CHECK_OK(ctrt_mul_scalar(&z, t.v, ctrt_float(2)));
        CHECK_OK(ctrt_mul_scalar_(t.y, ctrt_float(3)));
        CHECK_FAILS(ctrt_mul_scalar(&z, t.v, ctrt_float(2)), CTRT_ERR_AUTOGRAD, "changed in place since");
        ctrt_no_grad CHECK_OK(ctrt_mul_scalar(&z, t.v, ctrt_float(2)));
        RELEASE(&t.x, &t.y, &t.v, &z);
    }

    group("a view made without grad mode requires grad if its base does, and passes no gradient");
    if (!begin_views(&t, &view_cases[2]))
        return;
    CHECK(ctrt_tensor_requires_grad(t.v) && ctrt_tensor_is_leaf(t.v), "it does not require grad, or is no leaf");
    CHECK_FAILS(backward_of_sum(t.v), CTRT_ERR_AUTOGRAD, NULL);
    CHECK(ctrt_tensor_grad(t.v) == NULL && ctrt_tensor_grad(t.x) == NULL, "there is a gradient");
    RELEASE(&t.x, &t.y, &t.v);
    nothing_left();
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    refused();
    views();
    versions();
    histories();
    return done();
}
