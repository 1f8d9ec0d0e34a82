/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what programs can add to autograd: gradient hooks, retained gradients and user-defined functions. */
#include "autograd_check.h"

/* ---- hooks ---- */

struct seen {
    int calls;
    double sum, factor;
    ctrt_status result;
    int *order, *clock;
};

static ctrt_status see(void *user, ctrt_tensor **grad)
{
    struct seen *seen = user;
    ctrt_tensor *sum = NULL;
    seen->calls++;
    if (seen->order)
        *seen->order = ++*seen->clock;
    CTRT_TRY(ctrt_sum(&sum, *grad, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_item(&seen->sum, sum));
    ctrt_tensor_release(&sum);
    if (seen->factor != 0)
        CTRT_TRY(ctrt_mul_scalar(grad, *grad, ctrt_float(seen->factor)));
    return seen->result ? ctrt_fail(seen->result, "the hook does not like it") : CTRT_OK;
}

static ctrt_status see_leaf(void *user, ctrt_tensor *leaf)
{
    struct seen *seen = user;
    seen->calls++;
    return ctrt_item(&seen->sum, ctrt_tensor_grad(leaf));
}

static ctrt_status backward_inside(void *user, ctrt_tensor **grad)
{
    (void)grad;
    ctrt_tensor *z = VECTOR(true, 5), *y = NULL;
    CHECK_OK(ctrt_set_grad_enabled(true) ? CTRT_OK : CTRT_OK);
    CHECK_OK(ctrt_square(&y, z));
    CHECK_OK(ctrt_backward(y));
    ctrt_set_grad_enabled(false);
    CHECK_OK(ctrt_item(user, ctrt_tensor_grad(z)));
    RELEASE(&z, &y);
    return CTRT_OK;
}

struct remover {
    ctrt_tensor *tensor;
    uint64_t ids[2];
    int calls;
};

static ctrt_status remove_two(void *user, ctrt_tensor **grad)
{
    struct remover *remover = user;
    (void)grad;
    remover->calls++;
    CTRT_TRY(ctrt_tensor_remove_hook(remover->tensor, remover->ids[0]));
    return ctrt_tensor_remove_hook(remover->tensor, remover->ids[1]);
}

static ctrt_status other_shape(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_zeros(grad, CTRT_SHAPE(2, 5), CTRT_F64, NULL);
}

static void hooks(void)
{
    group("hooks of a non-leaf run in order on the summed gradient, and can be removed");
    struct seen first = {.factor = 2}, second = {0}, leaf = {.factor = 10}, done = {0};
    uint64_t id1, id2, id3, id4;
    ctrt_tensor *x = VECTOR(true, 3), *u = NULL, *v = NULL, *y = NULL, *k = VECTOR(false, 1);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(4)));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &first, &id1));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &second, &id2));
    CHECK_OK(ctrt_tensor_add_hook(x, see, &leaf, &id3));
    CHECK_OK(ctrt_tensor_add_accumulate_hook(x, see_leaf, &done, &id4));
    CHECK_OK(ctrt_mul(&y, u, u));                       /* u gets two gradients; its hooks get their sum */
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK(first.calls == 1 && first.sum == 24, "the first hook: %d calls, saw %g, expected 24", first.calls, first.sum);
    CHECK(second.calls == 1 && second.sum == 48, "the second hook: %d calls, saw %g, expected 48", second.calls, second.sum);
    CHECK(leaf.calls == 1 && leaf.sum == 192, "the leaf's hook: %d calls, saw %g, expected 192", leaf.calls, leaf.sum);
    CHECK(done.calls == 1 && done.sum == 1920, "after accumulation: %d calls, saw %g, expected 1920", done.calls, done.sum);
    VALUES("grad", ctrt_tensor_grad(x), 1920);

    CHECK_OK(ctrt_tensor_remove_hook(u, id1));
    CHECK_FAILS(ctrt_tensor_remove_hook(u, id1), CTRT_ERR_NOT_FOUND, NULL);
    CHECK_OK(ctrt_tensor_remove_hook(x, id3));
    CHECK_OK(ctrt_tensor_remove_hook(x, id4));
    ctrt_tensor_release(&u);                            /* the graph keeps the remaining hook */
    CHECK_OK(ctrt_backward(y));
    CHECK(first.calls == 1 && second.calls == 2 && second.sum == 24, "after removal: %d and %d calls, saw %g", first.calls, second.calls, second.sum);
    VALUES("grad", ctrt_tensor_grad(x), 1920 + 96);
    CHECK_FAILS(ctrt_tensor_add_hook(k, see, &first, NULL), CTRT_ERR_AUTOGRAD, "does not require grad");
    CHECK_FAILS(ctrt_tensor_add_accumulate_hook(y, see_leaf, &first, NULL), CTRT_ERR_AUTOGRAD, "leaves");
    CHECK_FAILS(ctrt_tensor_add_hook(x, NULL, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "hook is NULL");
    RELEASE(&x, &y);
    nothing_left();

    group("backward returns the error of a failing hook and restores grad mode");
    struct seen bad = {.result = CTRT_ERR_STATE};
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_exp(&u, x));
    CHECK_OK(ctrt_mul(&y, u, x));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &bad, NULL));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_STATE, "does not like it");
    CHECK(ctrt_grad_enabled(), "the failed backward left grad mode off");
    RELEASE(&x, &u, &y);
    nothing_left();

    group("a hook can remove itself and the next one; a hook that returns another shape fails");
    struct remover remover = {0};
    struct seen next = {0};
    x = VECTOR(true, 3);
    remover.tensor = x;
    CHECK_OK(ctrt_tensor_add_hook(x, remove_two, &remover, &remover.ids[0]));
    CHECK_OK(ctrt_tensor_add_hook(x, see, &next, &remover.ids[1]));
    CHECK_OK(ctrt_square(&y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK(remover.calls == 1 && next.calls == 0, "called %d and %d times, expected 1 and 0", remover.calls, next.calls);
    CHECK_OK(ctrt_tensor_add_hook(x, other_shape, NULL, NULL));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_SHAPE, "hook");
    RELEASE(&x, &y);
    nothing_left();

    group("a hook can run backward of another graph");
    double inner = 0;
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_exp(&u, x));
    CHECK_OK(ctrt_tensor_add_hook(u, backward_inside, &inner, NULL));
    CHECK_OK(ctrt_square(&y, u));
    CHECK_OK(ctrt_backward(y));
    CHECK(inner == 10, "the inner gradient is %g, expected 10", inner);
    VALUES("grad", ctrt_tensor_grad(x), 2 * exp(6));
    RELEASE(&x, &u, &y);
    nothing_left();

    group("retained gradients of non-leaf tensors accumulate");
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(4)));
    CHECK_OK(ctrt_mul_scalar(&v, u, ctrt_float(5)));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(v));
    CHECK_OK(ctrt_tensor_retain_grad(x));
    CHECK_FAILS(ctrt_tensor_retain_grad(k), CTRT_ERR_AUTOGRAD, NULL);
    CHECK_OK(ctrt_square(&y, v));
    ctrt_tensor_release(&v);                            /* released before its gradient is computed */
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    VALUES("grad of u", ctrt_tensor_grad(u), 600);
    VALUES("grad of x", ctrt_tensor_grad(x), 2400);
    CHECK_OK(ctrt_backward(y));                         /* accumulates in both */
    VALUES("grad of u", ctrt_tensor_grad(u), 1200);
    VALUES("grad of x", ctrt_tensor_grad(x), 4800);
    CHECK(ctrt_tensor_grad(y) == NULL, "y has a gradient without ctrt_tensor_retain_grad");
    RELEASE(&x, &u, &y, &k);
    nothing_left();
}

static void order(void)
{
    group("backward runs the most recently created ready node first");
    int clock = 0, at[4] = {0};
    struct seen seen[4] = {{0}};
    ctrt_tensor *x = VECTOR(true, 3), *u[4] = {NULL}, *y = NULL;
    for (int i = 0; i < 4; i++) {
        seen[i].order = &at[i], seen[i].clock = &clock;
        CHECK_OK(ctrt_mul_scalar(&u[i], x, ctrt_float(i)));
        CHECK_OK(ctrt_tensor_add_hook(u[i], see, &seen[i], NULL));
    }
    CHECK_OK(ctrt_add(&y, u[1], u[3]));
    CHECK_OK(ctrt_add(&y, y, u[0]));
    CHECK_OK(ctrt_add(&y, u[2], y));
    CHECK_OK(ctrt_backward(y));
    CHECK(at[3] == 1 && at[2] == 2 && at[1] == 3 && at[0] == 4, "the order of 0, 1, 2, 3 is %d, %d, %d, %d", at[0], at[1], at[2], at[3]);
    RELEASE(&x, &u[0], &u[1], &u[2], &u[3], &y);
    nothing_left();
}

/* ---- user-defined functions ---- */

struct counts { int forward, backward, destroyed; bool save_result; };

/* pair: (a, b) -> (a b, a + b); b may be a constant. */
static ctrt_status pair_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    struct counts *counts = ctrt_function_user(context);
    counts->forward++;
    CHECK(n_out == 2 && n_in == 2 && !ctrt_grad_enabled(), "forward: %d results, %d operands", n_out, n_in);
    CTRT_TRY(ctrt_function_save(context, in[0]));
    CTRT_TRY(ctrt_function_save(context, in[1]));
    CTRT_TRY(ctrt_mul(&out[0], in[0], in[1]));
    if (counts->save_result)
        CTRT_TRY(ctrt_function_save(context, out[0]));
    return ctrt_add(&out[1], in[0], in[1]);
}

static ctrt_status pair_backward(ctrt_function_context *context, ctrt_tensor **dx, int n_in, ctrt_tensor *const *dy, int n_out)
{
    struct counts *counts = ctrt_function_user(context);
    counts->backward++;
    CHECK(n_out == 2 && n_in == 2, "backward: %d results, %d operands", n_out, n_in);
    ctrt_tensor *a, *b;
    CTRT_TRY(ctrt_function_saved(&a, context, 0));
    CTRT_TRY(ctrt_function_saved(&b, context, 1));
    CHECK_FAILS(ctrt_function_saved(&a, context, 7), CTRT_ERR_INVALID_ARGUMENT, "7");
    CHECK_FAILS(ctrt_function_save(context, a), CTRT_ERR_STATE, "forward");
    if (dy[0]) {
        CTRT_TRY(ctrt_mul(&dx[0], dy[0], b));
        CTRT_TRY(ctrt_mul(&dx[1], dy[0], a));
    }
    for (int i = 0; i < 2 && dy[1]; i++)
        CTRT_TRY(dx[i] ? ctrt_add(&dx[i], dx[i], dy[1]) : (ctrt_tensor_assign(&dx[i], dy[1]), CTRT_OK));
    return CTRT_OK;
}

static void pair_destroy(ctrt_function_context *context)
{
    ((struct counts *)ctrt_function_user(context))->destroyed++;
}

static const ctrt_function pair = {sizeof pair, "pair", pair_forward, pair_backward, pair_destroy};

/* power: y = exp(x), whose derivative is the saved result. */
static ctrt_status power_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)n_out, (void)n_in;
    CTRT_TRY(ctrt_exp(&out[0], in[0]));
    return ctrt_function_save(context, out[0]);
}
static ctrt_status power_backward(ctrt_function_context *context, ctrt_tensor **dx, int n_in, ctrt_tensor *const *dy, int n_out)
{
    (void)n_in, (void)n_out;
    ctrt_tensor *y;
    CTRT_TRY(ctrt_function_saved(&y, context, 0));
    return ctrt_mul(&dx[0], dy[0], y);
}
static const ctrt_function power = {offsetof(ctrt_function, destroy), "power", power_forward, power_backward, NULL};

static ctrt_status pass_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)context, (void)n_out, (void)n_in;
    ctrt_tensor_assign(&out[0], in[0]);
    return CTRT_OK;
}
static ctrt_status reverse_backward(ctrt_function_context *context, ctrt_tensor **dx, int n_in, ctrt_tensor *const *dy, int n_out)
{
    (void)context, (void)n_in, (void)n_out;
    return ctrt_neg(&dx[0], dy[0]);
}
static const ctrt_function reverse = {sizeof reverse, "reverse", pass_forward, reverse_backward, NULL};

static ctrt_status nothing_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)out, (void)n_out, (void)n_in;
    CTRT_TRY(ctrt_function_save(context, in[0]));
    return CTRT_OK;
}
static ctrt_status wrong_backward(ctrt_function_context *context, ctrt_tensor **dx, int n_in, ctrt_tensor *const *dy, int n_out)
{
    (void)context, (void)n_in, (void)dy, (void)n_out;
    return ctrt_ones(&dx[0], CTRT_SHAPE(2, 5), CTRT_F64, NULL);
}
static const ctrt_function nothing = {sizeof nothing, "nothing", nothing_forward, wrong_backward, NULL};
static const ctrt_function wrong = {sizeof wrong, "wrong", pass_forward, wrong_backward, NULL};

static void functions(void)
{
    group("a user-defined function gives results and gradients and is destroyed once");
    for (int save_result = 0; save_result < 2; save_result++) {
        struct counts counts = {.save_result = save_result};
        ctrt_tensor *a = VECTOR(true, 2, 3), *b = VECTOR(true, 5, 7), *out[2] = {NULL}, *y = NULL;
        ctrt_tensor *in[2] = {a, b};
        CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        VALUES("a b", out[0], 10, 21);
        VALUES("a + b", out[1], 7, 10);
        CHECK(strcmp(ctrt_tensor_grad_fn(out[1]), "pair") == 0,
              "grad_fn is %s, expected pair", ctrt_tensor_grad_fn(out[1]));
        CHECK_OK(ctrt_mul_scalar(&y, out[0], ctrt_float(3)));
        CHECK_OK(ctrt_add(&y, y, out[1]));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        VALUES("da", ctrt_tensor_grad(a), 16, 22);
        VALUES("db", ctrt_tensor_grad(b), 7, 10);
        CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "retain_graph");
        CHECK(counts.forward == 1 && counts.backward == 1 && counts.destroyed == 0,
              "forward, backward, destroy ran %d, %d, %d times, expected 1, 1, 0", counts.forward, counts.backward,
              counts.destroyed);
        RELEASE(&y, &out[0], &out[1]);
        CHECK(counts.destroyed == 1, "destroy ran %d times, expected 1", counts.destroyed);

        /* Only the second result is used, so backward gets NULL as gradient of the first one. */
        CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        CHECK_OK(ctrt_sum(&y, out[1], CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        VALUES("da", ctrt_tensor_grad(a), 17, 23);
        RELEASE(&y, &out[0], &out[1]);

        /* Without grad mode the function is not recorded and is destroyed at once. */
        ctrt_no_grad {
            CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        }
        CHECK(!ctrt_tensor_requires_grad(out[0]) && counts.destroyed == 3,
              "the result requires grad without grad mode, or destroy ran %d times, expected 3", counts.destroyed);
        RELEASE(&a, &b, &out[0], &out[1]);
        nothing_left();
    }

    group("a user-defined function whose backward uses ops can be differentiated three times");
    ctrt_tensor *x = VECTOR(true, 1.5), *y = NULL, *d = NULL;
    CHECK_OK(ctrt_function_apply(&power, NULL, &y, 1, &x, 1));
    CHECK_OK(ctrt_grad(&d, y, &x, 1, NULL, false, true, false));
    VALUES("first", d, exp(1.5));
    CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, true, false));
    VALUES("second", d, exp(1.5));
    CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, false, false));
    VALUES("third", d, exp(1.5));
    RELEASE(&x, &y, &d);
    nothing_left();

    group("a function may return its operand; missing results and gradients of another shape are errors");
    x = VECTOR(true, 2, 3);
    CHECK_OK(ctrt_function_apply(&reverse, NULL, &y, 1, &x, 1));
    CHECK(y != x && ctrt_tensor_is_leaf(x),
          "the function's result is the operand itself, or the operand is no leaf any more");
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES("grad", ctrt_tensor_grad(x), -1, -1);
    ctrt_tensor_assign(&y, x);
    CHECK_FAILS(ctrt_function_apply(&nothing, NULL, &y, 1, &x, 1), CTRT_ERR_INVALID_ARGUMENT, "result 0");
    CHECK(y == x, "a failed function changed its result");
    CHECK_OK(ctrt_function_apply(&wrong, NULL, &y, 1, &x, 1));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_SHAPE, "wrong");
    CHECK_FAILS(ctrt_function_apply(NULL, NULL, &y, 1, &x, 1), CTRT_ERR_INVALID_ARGUMENT, "function is NULL");
    CHECK_FAILS(ctrt_function_apply(&wrong, NULL, &y, 0, &x, 1), CTRT_ERR_INVALID_ARGUMENT, "0 results");
    RELEASE(&x, &y);
    nothing_left();

    group("backward fails if a saved tensor of a function was changed in place");
    struct counts counts = {0};
    x = VECTOR(true, 2, 3);
    ctrt_tensor *b = VECTOR(false, 1, 1), *out[2] = {NULL}, *in[2] = {x, b};
    CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
    CHECK_OK(ctrt_add_scalar_(b, ctrt_float(1)));
    CHECK_OK(ctrt_sum(&y, out[0], CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "changed in place");
    RELEASE(&x, &b, &y, &out[0], &out[1]);
    nothing_left();
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu device opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    hooks();
    order();
    functions();
    return done();
}
