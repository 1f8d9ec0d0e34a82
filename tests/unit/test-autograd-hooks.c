/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what programs can add to autograd: gradient hooks, retained gradients and user-defined functions. */
#include "autograd_check.h"

/* The state of a hook: what it has recorded, and what it does. */
struct hook {
    int calls;
    double sum;                     /* of the gradient of the last call */
    double factor;                  /* the hook multiplies the gradient by it, unless 0 */
    ctrt_status result;
    int *order, *clock;
};

static ctrt_status run_hook(void *user, ctrt_tensor **grad)
{
    struct hook *hook = user;
    hook->calls++;
    if (hook->order)
        *hook->order = ++*hook->clock;
    hook->sum = total(*grad);
    if (hook->factor != 0)
        CTRT_TRY(ctrt_mul_scalar(grad, *grad, ctrt_float(hook->factor)));
    return hook->result ? ctrt_fail(hook->result, "the hook does not like it") : CTRT_OK;
}

static ctrt_status run_leaf_hook(void *user, ctrt_tensor *leaf)
{
    struct hook *hook = user;
    hook->calls++;
    return ctrt_item(&hook->sum, ctrt_tensor_grad(leaf));
}

/* Checks the number of calls and the sum of the last gradient. */
static void hook_saw(int line, const struct hook *hook, int calls, double sum)
{
    tap_check(hook->calls == calls && hook->sum == sum, __FILE__, line,
              "%d calls, the last with %g; expected %d with %g", hook->calls, hook->sum, calls, sum);
}
#define HOOK_SAW(hook, calls, sum) hook_saw(__LINE__, &(hook), calls, sum)

TEST(hooks, "hooks of a non-leaf run in order on the summed gradient, and can be removed")
{
    struct hook first = { .factor = 2 }, second = { 0 }, leaf = { .factor = 10 }, after = { 0 };
    uint64_t ids[4];
    CTRT_AUTO(tensor) x = LEAF(3), y = NULL, u = OP(mul_scalar, x, ctrt_float(4));
    CHECK_OK(ctrt_tensor_add_hook(u, run_hook, &first, &ids[0]));
    CHECK_OK(ctrt_tensor_add_hook(u, run_hook, &second, &ids[1]));
    CHECK_OK(ctrt_tensor_add_hook(x, run_hook, &leaf, &ids[2]));
    CHECK_OK(ctrt_tensor_add_accumulate_hook(x, run_leaf_hook, &after, &ids[3]));
    CHECK_OK(ctrt_mul(&y, u, u));                       /* u gets two gradients; its hooks get their sum */
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    HOOK_SAW(first, 1, 24);
    HOOK_SAW(second, 1, 48);
    HOOK_SAW(leaf, 1, 192);
    HOOK_SAW(after, 1, 1920);
    VALUES_ARE(ctrt_tensor_grad(x), 1920);

    CHECK_OK(ctrt_tensor_remove_hook(u, ids[0]));
    CHECK_FAILS(ctrt_tensor_remove_hook(u, ids[0]), CTRT_ERR_NOT_FOUND, NULL);
    CHECK_OK(ctrt_tensor_remove_hook(x, ids[2]));
    CHECK_OK(ctrt_tensor_remove_hook(x, ids[3]));
    ctrt_tensor_release(&u);                            /* the graph keeps the remaining hook */
    CHECK_OK(ctrt_backward(y));
    HOOK_SAW(first, 1, 24);
    HOOK_SAW(second, 2, 24);
    VALUES_ARE(ctrt_tensor_grad(x), 1920 + 96);
    CHECK_FAILS(ctrt_tensor_add_accumulate_hook(y, run_leaf_hook, &first, NULL), CTRT_ERR_AUTOGRAD, "leaves");
}

TEST(failing_hook, "backward returns the error of a failing hook and restores grad mode")
{
    struct hook bad = { .result = CTRT_ERR_STATE };
    CTRT_AUTO(tensor) x = LEAF(3), u = OP(exp, x), y = OP(mul, u, x);
    CHECK_OK(ctrt_tensor_add_hook(u, run_hook, &bad, NULL));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_STATE, "does not like it");
    CHECK_TRUE(ctrt_grad_enabled());
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

TEST(changing_hooks, "a hook can remove itself and the next one; a hook that returns another shape fails")
{
    struct remover remover = { 0 };
    struct hook next = { 0 };
    CTRT_AUTO(tensor) x = LEAF(3), y = NULL;
    remover.tensor = x;
    CHECK_OK(ctrt_tensor_add_hook(x, remove_two, &remover, &remover.ids[0]));
    CHECK_OK(ctrt_tensor_add_hook(x, run_hook, &next, &remover.ids[1]));
    CHECK_OK(ctrt_square(&y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_EQ(remover.calls, 1);
    CHECK_EQ(next.calls, 0);
    CHECK_OK(ctrt_tensor_add_hook(x, other_shape, NULL, NULL));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_SHAPE, "hook");
}

static ctrt_status backward_inside(void *user, ctrt_tensor **grad)
{
    (void)grad;
    CTRT_AUTO(tensor) z = LEAF(5), y = NULL;
    ctrt_set_grad_enabled(true);
    CHECK_OK(ctrt_square(&y, z));
    CHECK_OK(ctrt_backward(y));
    ctrt_set_grad_enabled(false);
    return ctrt_item(user, ctrt_tensor_grad(z));
}

TEST(nested_backward, "a hook can run backward of another graph")
{
    double inner = 0;
    CTRT_AUTO(tensor) x = LEAF(3), y = NULL, u = OP(exp, x);
    CHECK_OK(ctrt_tensor_add_hook(u, backward_inside, &inner, NULL));
    CHECK_OK(ctrt_square(&y, u));
    CHECK_OK(ctrt_backward(y));
    CHECK_EQ(inner, 10);
    VALUES_NEAR(ctrt_tensor_grad(x), 2 * exp(6));
}

TEST(retained_gradients, "retained gradients of non-leaf tensors accumulate")
{
    CTRT_AUTO(tensor) x = LEAF(3), y = NULL, u = OP(mul_scalar, x, ctrt_float(4)), v = OP(mul_scalar, u, ctrt_float(5));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(v));
    CHECK_OK(ctrt_tensor_retain_grad(x));
    CHECK_OK(ctrt_square(&y, v));
    ctrt_tensor_release(&v);                            /* released before its gradient is computed */
    for (int pass = 1; pass <= 2; pass++) {
        CHECK_OK(ctrt_backward_with(y, NULL, pass == 1, false));
        VALUES_ARE(ctrt_tensor_grad(u), 600 * pass);
        VALUES_ARE(ctrt_tensor_grad(x), 2400 * pass);
    }
    CHECK_TRUE(ctrt_tensor_grad(y) == NULL);            /* not retained */
}

TEST(order, "backward runs the most recently created ready node first")
{
    int clock = 0, at[4] = { 0 };
    struct hook hooks_of[4] = { { 0 } };
    CTRT_AUTO(tensor) x = LEAF(3), y = NULL;
    ctrt_tensor *u[4] = { NULL };
    for (int i = 0; i < 4; i++) {
        hooks_of[i].order = &at[i];
        hooks_of[i].clock = &clock;
        CHECK_OK(ctrt_mul_scalar(&u[i], x, ctrt_float(i)));
        CHECK_OK(ctrt_tensor_add_hook(u[i], run_hook, &hooks_of[i], NULL));
    }
    CHECK_OK(ctrt_add(&y, u[1], u[3]));
    CHECK_OK(ctrt_add(&y, y, u[0]));
    CHECK_OK(ctrt_add(&y, u[2], y));
    CHECK_OK(ctrt_backward(y));
    for (int i = 0; i < 4; i++)
        CHECK(at[i] == 4 - i, "node %d ran as number %d, expected %d", i, at[i], 4 - i);
    tensors_release(u, 4);
}

struct counts { int forward, backward, destroyed; bool save_result; };

/* pair: (a, b) -> (a b, a + b); b may be a constant. */
FORWARD(pair_forward)
{
    struct counts *counts = ctrt_function_user(context);
    counts->forward++;
    CHECK_TRUE(n_out == 2 && n_in == 2 && !ctrt_grad_enabled());
    TRY(ctrt_function_save(context, in[0]));
    TRY(ctrt_function_save(context, in[1]));
    TRY(ctrt_mul(&out[0], in[0], in[1]));
    if (counts->save_result)
        CTRT_TRY(ctrt_function_save(context, out[0]));
    return ctrt_add(&out[1], in[0], in[1]);
}

BACKWARD(pair_backward)
{
    struct counts *counts = ctrt_function_user(context);
    counts->backward++;
    CHECK_TRUE(n_out == 2 && n_in == 2);
    ctrt_tensor *a, *b;
    TRY(ctrt_function_saved(&a, context, 0));
    TRY(ctrt_function_saved(&b, context, 1));
    CHECK_FAILS(ctrt_function_saved(&a, context, 7), CTRT_ERR_INVALID_ARGUMENT, "7");
    CHECK_FAILS(ctrt_function_save(context, a), CTRT_ERR_STATE, "forward");
    if (dy[0]) {
        TRY(ctrt_mul(&dx[0], dy[0], b));
        TRY(ctrt_mul(&dx[1], dy[0], a));
    }
    for (int i = 0; i < 2 && dy[1]; i++)
        CTRT_TRY(dx[i] ? ctrt_add(&dx[i], dx[i], dy[1]) : (ctrt_tensor_assign(&dx[i], dy[1]), CTRT_OK));
    return CTRT_OK;
}

static void pair_destroy(ctrt_function_context *context)
{
    ((struct counts *)ctrt_function_user(context))->destroyed++;
}

static const ctrt_function pair = { sizeof pair, "pair", pair_forward, pair_backward, pair_destroy, 0 };

/* power: y = exp(x), whose derivative is the saved result. */
FORWARD(power_forward)
{
    CTRT_TRY(ctrt_exp(&out[0], in[0]));
    return ctrt_function_save(context, out[0]);
}

BACKWARD(power_backward)
{
    ctrt_tensor *y;
    CTRT_TRY(ctrt_function_saved(&y, context, 0));
    return ctrt_mul(&dx[0], dy[0], y);
}

static const ctrt_function power = { offsetof(ctrt_function, destroy), "power", power_forward, power_backward, NULL,
                                     0 };

FORWARD(same_forward)
{
    ctrt_tensor_assign(&out[0], in[0]);
    return CTRT_OK;
}

BACKWARD(neg_backward)
{
    return ctrt_neg(&dx[0], dy[0]);
}

BACKWARD(wrong_backward)
{
    return ctrt_ones(&dx[0], CTRT_SHAPE(2, 5), CTRT_F64, NULL);
}

static const ctrt_function reverse = { sizeof reverse, "reverse", same_forward, neg_backward, NULL, 0 };
static const ctrt_function wrong = { sizeof wrong, "wrong", same_forward, wrong_backward, NULL, 0 };

static void use_pair(bool save_result)
{
    struct counts counts = { .save_result = save_result };
    CTRT_AUTO(tensor) a = LEAF(2, 3), b = LEAF(5, 7), y = NULL;
    ctrt_tensor *out[2] = { NULL }, *in[2] = { a, b };
    CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
    VALUES_ARE(out[0], 10, 21);
    VALUES_ARE(out[1], 7, 10);
    CHECK_STR(ctrt_tensor_grad_fn(out[1]), "pair");
    CHECK_OK(ctrt_mul_scalar(&y, out[0], ctrt_float(3)));
    CHECK_OK(ctrt_add(&y, y, out[1]));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES_ARE(ctrt_tensor_grad(a), 16, 22);
    VALUES_ARE(ctrt_tensor_grad(b), 7, 10);
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "retain_graph");
    CHECK_TRUE(counts.forward == 1 && counts.backward == 1 && counts.destroyed == 0);
    ctrt_tensor_release(&y);
    tensors_release(out, 2);
    CHECK_EQ(counts.destroyed, 1);

    /* Only the second result is used, so backward gets NULL as gradient of the first one. */
    CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
    CHECK_OK(backward_of_sum(out[1]));
    VALUES_ARE(ctrt_tensor_grad(a), 17, 23);
    tensors_release(out, 2);

    /* Without grad mode the function is not recorded and is destroyed at once. */
    ctrt_no_grad CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
    CHECK_TRUE(!ctrt_tensor_requires_grad(out[0]));
    CHECK_EQ(counts.destroyed, 3);
    tensors_release(out, 2);
}

TEST(functions, "a user-defined function gives results and gradients and is destroyed once")
{
    use_pair(false);
    use_pair(true);
}

TEST(functions_of_functions, "a user-defined function whose backward uses ops can be differentiated three times")
{
    CTRT_AUTO(tensor) x = LEAF(1.5), d = NULL;
    CHECK_OK(ctrt_function_apply(&power, NULL, &d, 1, &x, 1));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, i < 2, false));
        VALUES_NEAR(d, exp(1.5));
    }
}

TEST(odd_functions, "a function may return its operand; a gradient of another shape is an error")
{
    CTRT_AUTO(tensor) x = LEAF(2, 3), y = NULL;
    CHECK_OK(ctrt_function_apply(&reverse, NULL, &y, 1, &x, 1));
    CHECK_TRUE(y != x && ctrt_tensor_is_leaf(x));
    CHECK_OK(backward_of_sum(y));
    VALUES_ARE(ctrt_tensor_grad(x), -1, -1);
    CHECK_OK(ctrt_function_apply(&wrong, NULL, &y, 1, &x, 1));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_SHAPE, "wrong");
}

TEST(changed_saved_tensor, "backward fails if a saved tensor of a function was changed in place")
{
    struct counts counts = { 0 };
    CTRT_AUTO(tensor) x = LEAF(2, 3), b = VECTOR(1, 1);
    ctrt_tensor *out[2] = { NULL }, *in[2] = { x, b };
    CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
    CHECK_OK(ctrt_add_scalar_(b, ctrt_float(1)));
    CHECK_FAILS(backward_of_sum(out[0]), CTRT_ERR_AUTOGRAD, "changed in place");
    tensors_release(out, 2);
}

AUTOGRAD_TESTS_MAIN
