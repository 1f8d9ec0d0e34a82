/* SPDX-License-Identifier: Apache-2.0 */
/* In-place writes: which ones are errors, how changes of saved tensors are detected, and the histories of views.
 * test-autograd-rules checks the values of the gradients. */
#include "autograd_check.h"

static ctrt_tensor *filled(double value, bool grad)
{
    ctrt_tensor *t = OP(full, CTRT_SHAPE(2, 3), ctrt_float(value), CTRT_F64, NULL);
    CHECK_OK(ctrt_tensor_require_grad(t, grad));
    return t;
}

/* Which tensor is written: a leaf, a view of it, the leaf without grad mode, the leaf's base. */
enum written { LEAF_ITSELF, VIEW, WITHOUT_GRAD_MODE, BASE };

TEST(former_leaves, "in-place writes that turn a leaf of a graph into a result")
{
    for (int written = LEAF_ITSELF; written <= BASE; written++) {
        CTRT_AUTO(tensor) w = filled(3, true), base = filled(2, false), leaf = NULL, v = NULL, k = NULL, e = NULL;
        if (written == BASE)
            CHECK_OK(ctrt_narrow(&leaf, base, 0, 0, 1));
        else
            ctrt_tensor_assign(&leaf, base);
        CHECK_OK(ctrt_tensor_require_grad(leaf, true));
        CHECK_OK(ctrt_mul_scalar(&e, leaf, ctrt_float(2)));
        CHECK_OK(ctrt_tensor_require_grad(leaf, written == BASE));
        CHECK_OK(written == VIEW ? ctrt_select(&v, leaf, 0, 1) : (ctrt_tensor_assign(&v, base), CTRT_OK));
        CHECK_OK(written == VIEW ? ctrt_select(&k, w, 0, 1) : (ctrt_tensor_assign(&k, w), CTRT_OK));
        const bool was = ctrt_set_grad_enabled(written != WITHOUT_GRAD_MODE);
        CHECK_OK(ctrt_mul_(v, k));
        ctrt_set_grad_enabled(was);
        if (written == WITHOUT_GRAD_MODE)
            CHECK_OK(backward_of_sum(e));
        else
            CHECK_FAILS(backward_of_sum(e), CTRT_ERR_AUTOGRAD, "changed in place after its use");
        CHECK(ctrt_tensor_grad(leaf) == NULL, "case %d: the leaf got a gradient", written);
    }
}

TEST(versions, "backward detects changes of saved operands and results, also through other tensors")
{
    CTRT_AUTO(tensor) x = filled(2, true), u = NULL, y = NULL, v = NULL, w = filled(3, false);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(2)));
    CHECK_EQ(ctrt_tensor_version(u), 0);
    CHECK_OK(ctrt_mul(&y, u, u));
    CHECK_OK(ctrt_add_scalar_(u, ctrt_float(1)));       /* u is a saved operand */
    CHECK_EQ(ctrt_tensor_version(u), 1);
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "version 0 and is at version 1");
    CHECK_HAS(ctrt_error_message(), "backward of mul");
    CHECK_TRUE(ctrt_tensor_grad(x) == NULL);
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "changed in place");

    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));       /* a saved result */
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");

    for (int detached = 0; detached < 2; detached++) {          /* through a view, through a detached tensor */
        CHECK_OK(ctrt_exp(&y, x));
        CHECK_OK(detached ? ctrt_detach(&v, y) : ctrt_select(&v, y, 0, 1));
        CHECK_OK(ctrt_zero_(v));
        CHECK_EQ(ctrt_tensor_version(y), 1);
        CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");
    }
    CHECK_OK(ctrt_mul(&y, x, w));
    ctrt_no_grad CHECK_OK(ctrt_add_scalar_(w, ctrt_float(1)));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "operand 2");

    CHECK_OK(ctrt_add(&y, x, w));                       /* saves nothing, so changes are allowed */
    CHECK_OK(ctrt_zero_(w));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_OK(backward_of_sum(y));
    CHECK_EQ(total(ctrt_tensor_grad(x)), 18);
}

TEST(cycle, "a graph with a reference cycle is freed")
{
    CTRT_AUTO(tensor) x = filled(2, true), u = OP(mul_scalar, x, ctrt_float(2)), y = OP(mul, u, u);
    CHECK_OK(ctrt_add_(u, y));                          /* u's history now contains the node that saved u */
    CHECK_FAILS(backward_of_sum(u), CTRT_ERR_AUTOGRAD, "changed in place");
}

TEST(constants, "an in-place write gives constants and their views a history")
{
    CTRT_AUTO(tensor) x = filled(2, true), c = filled(3, false), v = NULL, w = NULL, y = NULL;
    CHECK_OK(ctrt_mul_(c, x));
    CHECK_TRUE(ctrt_tensor_requires_grad(c) && !ctrt_tensor_is_leaf(c));
    CHECK_STR(ctrt_tensor_grad_fn(c), "mul");
    CHECK_OK(backward_of_sum(c));
    CHECK_EQ(total(ctrt_tensor_grad(x)), 18);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    ctrt_tensor_release(&c);

    c = filled(3, false);
    CHECK_OK(ctrt_select(&v, c, 0, 0));
    CHECK_OK(ctrt_select(&w, c, 0, 0));
    CHECK_OK(ctrt_select(&y, x, 0, 0));
    CHECK_OK(ctrt_mul_(v, y));                          /* a write to a view changes c and its other views */
    CHECK_STR(ctrt_tensor_grad_fn(c), "copy_slices");
    CHECK_STR(ctrt_tensor_grad_fn(v), "as_strided");
    CHECK_TRUE(ctrt_tensor_requires_grad(w) && !ctrt_tensor_is_leaf(w));
    CHECK_OK(ctrt_mul(&w, w, w));                       /* (3 x)^2 */
    CHECK_OK(backward_of_sum(w));
    CHECK_EQ(total(ctrt_tensor_grad(x)), 3 * 36);
}

static ctrt_status add_sum(void *user, ctrt_tensor **grad) { return *(double *)user += total(*grad), CTRT_OK; }

TEST(hooks, "hooks and retained gradients of a tensor that is written in place")
{
    double before = 0, after = 0;
    uint64_t id;
    CTRT_AUTO(tensor) x = filled(2, true), v = NULL, y = OP(mul_scalar, x, ctrt_float(2));
    CHECK_OK(ctrt_tensor_add_hook(y, add_sum, &before, &id));
    CHECK_OK(ctrt_tensor_retain_grad(y));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(5)));
    CHECK_OK(ctrt_tensor_add_hook(y, add_sum, &after, NULL));
    CHECK_OK(ctrt_mul_scalar(&v, y, ctrt_float(7)));
    CHECK_OK(ctrt_sum(&v, v, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward_with(v, NULL, true, false));
    CHECK_EQ(before, 6 * 35);
    CHECK_EQ(after, 6 * 7);
    CHECK_EQ(total(ctrt_tensor_grad(y)), 42);
    CHECK_OK(ctrt_tensor_remove_hook(y, id));
    CHECK_OK(ctrt_backward(v));
    CHECK_EQ(before, 6 * 35);
    CHECK_EQ(after, 2 * 6 * 7);
}

TEST(overwritten, "an overwritten tensor loses its history")
{
    CTRT_AUTO(tensor) x = filled(2, true), y = OP(exp, x);
    CHECK_OK(ctrt_mul_scalar(&y, y, ctrt_float(1)));
    CHECK_OK(ctrt_uniform_(y, 0, 1));
    CHECK_OK(backward_of_sum(y));
    VALUES_ARE(ctrt_tensor_grad(x), 0, 0, 0, 0, 0, 0);
}

/* ---- views: each case gets x (a leaf of 4 ones that requires grad) and y = 2 x, makes the view v, and writes it in
 * grad mode, as PyTorch 2.15 does ---- */

FORWARD(same_forward)
{
    ctrt_tensor_assign(&out[0], in[0]);
    return CTRT_OK;
}

FORWARD(part_forward)
{
    return ctrt_slice(&out[0], in[0], 0, 0, 2, 1);
}

BACKWARD(no_backward)
{
    return CTRT_OK;
}

static const ctrt_function same_function = { sizeof same_function, "same", same_forward, no_backward, NULL, 0 };
static const ctrt_function part_function = { sizeof part_function, "part", part_forward, no_backward, NULL, 0 };

/* How v is made from y: in steps. */
enum step {
    END, SLICE, NO_GRAD_SLICE, CHUNK, DETACH, SAME_FUNCTION, PART_FUNCTION, REQUIRE_GRAD,
    X,                              /* the next step is applied to x instead of y */
    NEW_Y,                          /* y becomes a constant */
    Y_REQUIRES_GRAD,
    Y_TIMES_X,                      /* in place */
    FLAT_Y                          /* y becomes a leaf that is a slice of a flat buffer */
};

static const struct view_case {
    const char *name;
    enum step steps[4];
    const char *refusal;                /* expected error text; NULL: the write is allowed */
    bool stale;                         /* v has no known history after a change of y */
} view_cases[] = {
    { "a view of a leaf that is itself a view", { FLAT_Y, Y_REQUIRES_GRAD, SLICE }, "view of a leaf", false },
    { "a view made before its base required grad", { NEW_Y, SLICE, Y_REQUIRES_GRAD }, "view of a leaf", false },
    { "a view made without grad mode", { NO_GRAD_SLICE }, "under ctrt_no_grad", true },
    { "a view of a leaf made without grad mode", { X, NO_GRAD_SLICE }, "under ctrt_no_grad", false },
    { "a view of a view made without grad mode", { SLICE, NO_GRAD_SLICE }, "under ctrt_no_grad", false },
    { "a view of a view that was made without grad mode", { NO_GRAD_SLICE, SLICE }, "under ctrt_no_grad", true },
    { "a view made without grad mode before its base had a history", { NEW_Y, NO_GRAD_SLICE, Y_TIMES_X },
      "under ctrt_no_grad", false },
    { "a leaf that is a view made without grad mode", { NO_GRAD_SLICE, REQUIRE_GRAD }, "under ctrt_no_grad", false },
    { "a chunk", { CHUNK }, "ctrt_chunk", true }, { "a view of a chunk", { CHUNK, SLICE }, "ctrt_chunk", false },
    { "the operand of a function as its result", { SAME_FUNCTION }, "ctrt_function_apply", true },
    { "a view made by a function", { PART_FUNCTION }, "ctrt_function_apply", true },
    { "a view of a view made by a function", { PART_FUNCTION, SLICE }, "ctrt_function_apply", false },
    { "a view", { SLICE }, NULL, false }, { "a detached tensor", { DETACH }, NULL, false },
    { "a view of a detached tensor", { DETACH, SLICE }, NULL, false },
    { "a view made without grad mode of a constant", { NEW_Y, NO_GRAD_SLICE }, NULL, false },
};

struct view_tensors { ctrt_tensor *x, *y, *v; };

static ctrt_status take_step(struct view_tensors *t, enum step step, bool of_x)
{
    ctrt_tensor *from = of_x ? t->x : t->v ? t->v : t->y, *parts[2] = { NULL };
    ctrt_status status = CTRT_OK;
    int count;
    switch (step) {
    case SLICE:           return ctrt_slice(&t->v, from, 0, 0, ctrt_tensor_size(from, 0) - 1, 1);
    case NO_GRAD_SLICE:   ctrt_no_grad status = ctrt_slice(&t->v, from, 0, 0, ctrt_tensor_size(from, 0) - 1, 1);
                          return status;
    case CHUNK:
        status = ctrt_chunk(parts, &count, from, 2, 0);
        t->v = parts[0];
        ctrt_tensor_release(&parts[1]);
        return status;
    case DETACH:          return ctrt_detach(&t->v, from);
    case SAME_FUNCTION:   return ctrt_function_apply(&same_function, NULL, &t->v, 1, &from, 1);
    case PART_FUNCTION:   return ctrt_function_apply(&part_function, NULL, &t->v, 1, &from, 1);
    case REQUIRE_GRAD:    return ctrt_tensor_require_grad(t->v, true);
    case NEW_Y:           return ctrt_ones(&t->y, CTRT_SHAPE(4), CTRT_F64, NULL);
    case Y_REQUIRES_GRAD: return ctrt_tensor_require_grad(t->y, true);
    case Y_TIMES_X:       return ctrt_mul_(t->y, t->x);
    case FLAT_Y:
        CTRT_TRY(ctrt_zeros(&t->y, CTRT_SHAPE(6), CTRT_F64, NULL));
        return ctrt_slice(&t->y, t->y, 0, 0, 4, 1);
    default:              return CTRT_OK;
    }
}

static void begin_view(struct view_tensors *t, const struct view_case *c)
{
    *t = (struct view_tensors){ .x = LEAF(1, 1, 1, 1) };
    CHECK_OK(ctrt_mul_scalar(&t->y, t->x, ctrt_float(2)));
    for (int i = 0; i < 4; i++)
        CHECK_OK(take_step(t, c->steps[i], i > 0 && c->steps[i - 1] == X));
}

static void end_view(struct view_tensors *t)
{
    ctrt_tensor_release(&t->x);
    ctrt_tensor_release(&t->y);
    ctrt_tensor_release(&t->v);
}

/* Writes of v. */
static ctrt_status w_add(ctrt_tensor *v) { return ctrt_add_scalar_(v, ctrt_float(1)); }
static ctrt_status w_normal(ctrt_tensor *v) { return ctrt_normal_(v, 0, 1); }
static ctrt_status w_clamp(ctrt_tensor *v) { return ctrt_clamp_min_(v, ctrt_float(0)); }
static ctrt_status w_from_host(ctrt_tensor *v)
{
    return ctrt_from_host_(v, DOUBLES(0, 0, 0, 0), ctrt_tensor_numel(v), CTRT_F64);
}
static ctrt_status with_constant(ctrt_tensor *v, ctrt_status (*op)(ctrt_tensor *, ctrt_tensor *), ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) c = NULL;
    CTRT_TRY(ctrt_new_ones(&c, v, CTRT_SHAPE(ctrt_tensor_size(v, 0)), dtype, NULL));
    return op(v, c);
}
static ctrt_status fill_where(ctrt_tensor *v, ctrt_tensor *mask) { return ctrt_masked_fill_(v, mask, ctrt_float(3)); }
static ctrt_status w_mul(ctrt_tensor *v) { return with_constant(v, ctrt_mul_, CTRT_F64); }
static ctrt_status w_copy(ctrt_tensor *v) { return with_constant(v, ctrt_copy_, CTRT_F64); }
static ctrt_status w_masked_fill(ctrt_tensor *v) { return with_constant(v, fill_where, CTRT_BOOL); }
static const struct { const char *name; ctrt_status (*run)(ctrt_tensor *v); } writes[] = {
    { "add_scalar_: ", w_add }, { "relu_: ", ctrt_relu_ }, { "zero_: ", ctrt_zero_ }, { "normal_: ", w_normal },
    { "clamp_min_: ", w_clamp }, { "from_host_: ", w_from_host }, { "mul_: ", w_mul }, { "copy_: ", w_copy },
    { "masked_fill_: ", w_masked_fill },
};

TEST(views, NULL)
{
    struct view_tensors t;
    EACH(c, view_cases) {
        group("%s", c->name);
        EACH(w, writes) {
            begin_view(&t, c);
            double before = 0;
            ctrt_no_grad before = total(t.v);
            if (c->refusal) {
                CHECK_FAILS(w->run(t.v), CTRT_ERR_AUTOGRAD, c->refusal);
                CHECK(strncmp(ctrt_error_message(), w->name, strlen(w->name)) == 0,
                      "the message begins with another name than %s%s", w->name, ctrt_error_message());
                ctrt_no_grad CHECK_EQ(total(t.v), before);
            } else {
                CHECK_OK(w->run(t.v));
            }
            ctrt_no_grad CHECK_OK(w->run(t.v));
            end_view(&t);
        }
        if (!c->stale)
            continue;
        CTRT_AUTO(tensor) z = NULL;
        begin_view(&t, c);
        CHECK_OK(ctrt_mul_scalar(&z, t.v, ctrt_float(2)));
        CHECK_OK(ctrt_mul_scalar_(t.y, ctrt_float(3)));
        CHECK_FAILS(ctrt_mul_scalar(&z, t.v, ctrt_float(2)), CTRT_ERR_AUTOGRAD, "changed in place since");
        ctrt_no_grad CHECK_OK(ctrt_mul_scalar(&z, t.v, ctrt_float(2)));
        end_view(&t);
    }
    group("a view made without grad mode requires grad if its base does, and passes no gradient");
    begin_view(&t, &view_cases[2]);
    CHECK_TRUE(ctrt_tensor_requires_grad(t.v) && ctrt_tensor_is_leaf(t.v));
    CHECK_FAILS(backward_of_sum(t.v), CTRT_ERR_AUTOGRAD, NULL);
    CHECK_TRUE(ctrt_tensor_grad(t.v) == NULL && ctrt_tensor_grad(t.x) == NULL);
    end_view(&t);
}

AUTOGRAD_TESTS_MAIN
