/* SPDX-License-Identifier: Apache-2.0 */
/* Tests autograd: leaves, backward, retained and freed graphs, deep graphs and counters. Hooks and custom functions
 * are tested in test-autograd-hooks.c. */
#include "autograd_check.h"

TEST(leaves, "which tensors require grad and which are leaves")
{
    CTRT_AUTO(tensor) x = VECTOR(1, 2), y = NULL, d = NULL;
    CHECK_TRUE(!ctrt_tensor_requires_grad(x) && ctrt_tensor_is_leaf(x));
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK_TRUE(!ctrt_tensor_requires_grad(y) && ctrt_tensor_is_leaf(y) && !ctrt_tensor_grad_fn(y));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK_TRUE(ctrt_tensor_requires_grad(y) && !ctrt_tensor_is_leaf(y));
    CHECK_STR(ctrt_tensor_grad_fn(y), "mul");
    CHECK_OK(ctrt_tensor_require_grad(y, true));
    CHECK_OK(ctrt_detach(&d, y));
    CHECK_TRUE(!ctrt_tensor_requires_grad(d) && ctrt_tensor_is_leaf(d) && ctrt_tensor_shares_storage(d, y));
    CHECK_OK(ctrt_to_dtype(&d, y, CTRT_I64));
    CHECK_TRUE(!ctrt_tensor_requires_grad(d));
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK_TRUE(!ctrt_tensor_requires_grad(x) && !ctrt_tensor_is_leaf(NULL));
}

TEST(set_grad, "grad is set and cleared")
{
    CTRT_AUTO(tensor) x = LEAF(1, 2), g = VECTOR(5, 6);
    CHECK_OK(ctrt_tensor_set_grad(x, g));
    CHECK_TRUE(ctrt_tensor_grad(x) == g);
    CHECK_OK(backward_of_sum(x));
    VALUES_ARE(ctrt_tensor_grad(x), 6, 7);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_TRUE(ctrt_tensor_grad(x) == NULL);
}

TEST(accumulation, "backward accumulates into the leaves and frees saved tensors")
{
    CTRT_AUTO(tensor) a = LEAF(1, 2), b = LEAF(3, 4), c = LEAF(5, 6), y = NULL;
    for (int pass = 1; pass <= 2; pass++) {
        CHECK_OK(ctrt_mul(&y, a, b));
        CHECK_OK(ctrt_add(&y, y, c));
        CHECK_EQ(ctrt_autograd_saved_bytes(), 32);
        CHECK_OK(backward_of_sum(y));
        CHECK_EQ(ctrt_autograd_saved_bytes(), 0);
        VALUES_ARE(ctrt_tensor_grad(a), 3.0 * pass, 4.0 * pass);
        VALUES_ARE(ctrt_tensor_grad(b), 1.0 * pass, 2.0 * pass);
        VALUES_ARE(ctrt_tensor_grad(c), 1.0 * pass, 1.0 * pass);
    }
    CHECK_TRUE(!ctrt_tensor_requires_grad(ctrt_tensor_grad(a)));
    CHECK_TRUE(ctrt_tensor_grad(b) != ctrt_tensor_grad(c));
    CHECK_TRUE(!ctrt_tensor_shares_storage(ctrt_tensor_grad(a), ctrt_tensor_grad(c)));
}

TEST(shapes_and_dtypes, "gradients take the operand's shape and dtype")
{
    CTRT_AUTO(tensor) s = NULL, d = NULL, p = OP(ones, CTRT_SHAPE(3, 1), CTRT_F32, NULL),
        q = OP(full, CTRT_SHAPE(2, 1, 4), ctrt_float(3), CTRT_F64, NULL);
    CHECK_TRUE(!ctrt_tensor_require_grad(p, true) && !ctrt_tensor_require_grad(q, true));
    CHECK_OK(ctrt_mul(&s, p, q));
    CHECK_OK(backward_of_sum(s));
    VALUES_ARE(ctrt_tensor_grad(p), 24, 24, 24);
    SHAPE_IS(ctrt_tensor_grad(p), 3, 1);
    CHECK_EQ(ctrt_tensor_dtype(ctrt_tensor_grad(p)), CTRT_F32);
    VALUES_ARE(ctrt_tensor_grad(q), 3, 3, 3, 3, 3, 3, 3, 3);
    CHECK_OK(ctrt_t(&s, p));
    CHECK_OK(ctrt_ones_like(&d, s, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_grad(&d, s, &p, 1, d, false, false, false));
    CHECK_OK(ctrt_t(&d, d));
    SHAPE_IS(d, 1, 3);                          /* a view of a gradient that is a view */
}

TEST(leaf_at_backward, "backward of a leaf, and of one that no longer requires grad")
{
    CTRT_AUTO(tensor) x = LEAF(2), y = NULL;
    CHECK_OK(ctrt_backward(x));                 /* of a leaf */
    CHECK_OK(ctrt_backward(x));
    VALUES_ARE(ctrt_tensor_grad(x), 2);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK_OK(ctrt_backward(y));
    CHECK_TRUE(ctrt_tensor_grad(x) == NULL);
}

static ctrt_tensor *image(bool channels_last)
{
    ctrt_tensor *t = OP(ones, CTRT_SHAPE(2, 3, 4, 5), CTRT_F32, NULL);
    if (channels_last)
        CHECK_OK(ctrt_contiguous(&t, t, CTRT_CHANNELS_LAST));
    CHECK_OK(ctrt_tensor_require_grad(t, true));
    return t;
}

TEST(layouts, "a leaf's gradient has the leaf's strides")
{
    for (int layout = 0; layout < 4; layout++) {
        CTRT_AUTO(tensor) x = image(layout & 1), k = image(layout & 2), y = NULL;
        for (int pass = 1; pass <= 2; pass++) {
            CHECK_OK(ctrt_mul(&y, x, k));
            CHECK_OK(backward_of_sum(y));
            check_strides("the gradient", __LINE__, ctrt_tensor_grad(x), ctrt_ints_of(ctrt_tensor_strides(x), 4));
            CHECK_EQ(total(ctrt_tensor_grad(x)), 120 * pass);
        }
    }
}

TEST(retained, "retain_graph keeps the saved tensors")
{
    CTRT_AUTO(tensor) x = LEAF(3), y = OP(exp, x);
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_EQ(ctrt_autograd_saved_bytes(), 24);
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_OK(ctrt_backward(y));
    VALUES_NEAR(ctrt_tensor_grad(x), 3 * (exp(3) * 3 + exp(3)));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "freed");
}

TEST(higher, "gradients of backward with create_graph can be differentiated")
{
    CTRT_AUTO(tensor) x = LEAF(2), y = NULL, d = NULL;
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, false, true));
    ctrt_tensor_assign(&d, ctrt_tensor_grad(x));
    CHECK_TRUE(ctrt_tensor_requires_grad(d));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_backward(d));
    VALUES_NEAR(ctrt_tensor_grad(x), exp(2));
}

TEST(grad_of, "ctrt_grad returns gradients and does not write to leaves")
{
    CTRT_AUTO(tensor) a = LEAF(2), b = LEAF(3), u = OP(mul, a, a), y = OP(exp, u);
    ctrt_tensor *out[3] = { NULL }, *in[3];
    in[0] = a, in[1] = u, in[2] = a;
    CHECK_OK(ctrt_grad(out, y, in, 3, NULL, true, false, false));
    VALUES_NEAR(out[0], exp(4) * 4);
    VALUES_NEAR(out[1], exp(4));
    VALUES_NEAR(out[2], exp(4) * 4);
    ctrt_tensor *kept = out[0];
    in[1] = b;
    CHECK_FAILS(ctrt_grad(out, y, in, 2, NULL, true, false, false), CTRT_ERR_AUTOGRAD, "inputs[1]");
    CHECK_TRUE(out[0] == kept);
    CHECK_OK(ctrt_grad(out, y, in, 2, NULL, true, false, true));
    CHECK_TRUE(out[1] == NULL && out[0] != NULL);           /* y does not depend on b */
    in[0] = y;
    CHECK_OK(ctrt_grad(out, y, in, 1, NULL, true, false, false));
    VALUES_ARE(out[0], 1);
    CHECK_TRUE(ctrt_tensor_grad(a) == NULL && ctrt_tensor_grad(b) == NULL);
    tensors_release(out, 3);
}

TEST(modes, "grad mode is nested and restored")
{
    CTRT_AUTO(tensor) x = LEAF(1, 2), y = NULL, w = NULL;
    CHECK_TRUE(ctrt_grad_enabled());
    ctrt_no_grad {
        CHECK_OK(ctrt_exp(&y, x));
        CHECK_TRUE(!ctrt_grad_enabled() && !ctrt_tensor_requires_grad(y));
        nothing_left();
        ctrt_no_grad CHECK_TRUE(!ctrt_grad_enabled());
        CHECK_TRUE(!ctrt_grad_enabled());
        w = LEAF(1);
        CHECK_TRUE(ctrt_tensor_requires_grad(w));
        bool was = ctrt_set_grad_enabled(true);
        CHECK_TRUE(!was && ctrt_grad_enabled());
        CHECK_OK(ctrt_exp(&y, x));
        CHECK_TRUE(ctrt_tensor_requires_grad(y));
        ctrt_set_grad_enabled(was);
    }
    CHECK_TRUE(ctrt_grad_enabled());
}

#define DEEP 200000

static void *deep_chain(void *unused)
{
    (void)unused;
    CTRT_AUTO(tensor) x = LEAF(1), y = ctrt_tensor_retain(x), z = NULL;
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < DEEP && status == CTRT_OK; i++)
        status = ctrt_mul_scalar(&y, y, ctrt_float(i % 2 ? 2 : 0.5));
    CHECK_OK(status);
    CHECK_EQ(ctrt_autograd_live_nodes(), DEEP);
    CHECK_OK(ctrt_backward(y));
    VALUES_ARE(ctrt_tensor_grad(x), 1);
    ctrt_tensor_release(&y);
    nothing_left();

    /* The nodes are reachable only through saved results, and backward never runs. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < 2 * DEEP && status == CTRT_OK; i++)
        status = i % 2 ? ctrt_mul(&y, y, x) : ctrt_tanh(&y, y);
    CHECK_OK(status);
    ctrt_tensor_release(&y);
    nothing_left();

    /* A graph whose backward pass is recorded. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < DEEP / 10 && status == CTRT_OK; i++)
        status = ctrt_sin(&y, y);
    CHECK_OK(status);
    CHECK_OK(ctrt_grad(&z, y, &x, 1, NULL, false, true, false));
    CHECK_TRUE(ctrt_tensor_requires_grad(z));
    return NULL;
}

TEST(depth, "graphs of 200000 nodes on a stack of 128 KiB")
{
    on_stack(128 << 10, deep_chain);
}

TEST(saved, "only what a gradient needs is saved")
{
    CTRT_AUTO(tensor) w = LEAF(1, 2), k = VECTOR(3, 4), y = OP(mul, w, k);
    CHECK_EQ(ctrt_autograd_saved_bytes(), 16);          /* k */
    CHECK_OK(ctrt_div_scalar(&y, w, ctrt_float(3)));
    CHECK_OK(ctrt_add(&y, y, w));
    CHECK_EQ(ctrt_autograd_saved_bytes(), 0);
}

AUTOGRAD_TESTS_MAIN
