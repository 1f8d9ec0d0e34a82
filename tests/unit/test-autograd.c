/* SPDX-License-Identifier: Apache-2.0 */
/* Tests autograd: leaves, backward, retained and freed graphs, deep graphs and counters. Hooks and custom functions
 * are tested in test-autograd-hooks.c. */
#include <pthread.h>

#include "autograd_check.h"

/* ---- leaves ---- */

static void leaves(void)
{
    group("which tensors require grad and which are leaves");
    ctrt_tensor *x = VECTOR(false, 1, 2), *i = NULL, *y = NULL, *d = NULL;
    CHECK(!ctrt_tensor_requires_grad(x) && ctrt_tensor_is_leaf(x), "a new tensor requires grad or is not a leaf");
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK(!ctrt_tensor_requires_grad(y) && ctrt_tensor_is_leaf(y) && !ctrt_tensor_grad_fn(y), "a result of constants has a history");
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK(ctrt_tensor_requires_grad(y) && !ctrt_tensor_is_leaf(y), "a result has no history");
    CHECK(strcmp(ctrt_tensor_grad_fn(y), "mul") == 0, "grad_fn is %s, expected mul", ctrt_tensor_grad_fn(y));
    CHECK_FAILS(ctrt_tensor_require_grad(y, false), CTRT_ERR_AUTOGRAD, "ctrt_detach");
    CHECK_OK(ctrt_tensor_require_grad(y, true));
    CHECK_OK(ctrt_detach(&d, y));
    CHECK(!ctrt_tensor_requires_grad(d) && ctrt_tensor_is_leaf(d) && ctrt_tensor_shares_storage(d, y),
          "detach keeps the history or copies the memory");
    CHECK_OK(ctrt_to_dtype(&d, y, CTRT_I64));
    CHECK(!ctrt_tensor_requires_grad(d), "a cast to integers requires grad");
    CHECK_OK(ctrt_arange(&i, ctrt_int(0), ctrt_int(3), ctrt_int(1), CTRT_I64, NULL));
    CHECK_FAILS(ctrt_tensor_require_grad(i, true), CTRT_ERR_DTYPE, "i64");
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK(!ctrt_tensor_requires_grad(x), "the leaf still requires grad");
    CHECK_FAILS(ctrt_tensor_require_grad(NULL, true), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK(!ctrt_tensor_requires_grad(NULL) && !ctrt_tensor_is_leaf(NULL) && !ctrt_tensor_grad(NULL)
              && !ctrt_tensor_grad_fn(NULL),
          "an accessor of NULL returned a value");
    RELEASE(&x, &i, &y, &d);
    nothing_left();
}

static void set_grad(void)
{
    group("grad is set and cleared");
    ctrt_tensor *x = VECTOR(true, 1, 2), *g = VECTOR(false, 5, 6), *h = VECTOR(false, 1, 2, 3), *f = NULL, *y = NULL;
    CHECK_OK(ctrt_tensor_set_grad(x, g));
    CHECK(ctrt_tensor_grad(x) == g, "grad is not the tensor that was set");
    CHECK_FAILS(ctrt_tensor_set_grad(x, h), CTRT_ERR_SHAPE, "[3]");
    CHECK_OK(ctrt_to_dtype(&f, g, CTRT_F32));
    CHECK_FAILS(ctrt_tensor_set_grad(x, f), CTRT_ERR_DTYPE, "f32");
    CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES("grad", ctrt_tensor_grad(x), 6, 7);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK(ctrt_tensor_grad(x) == NULL, "grad is not cleared");
    RELEASE(&x, &g, &h, &f, &y);
    nothing_left();
}

/* ---- backward ---- */

static void backward(void)
{
    group("backward accumulates into the leaves and frees saved tensors");
    ctrt_tensor *a = VECTOR(true, 1, 2), *b = VECTOR(true, 3, 4), *c = VECTOR(true, 5, 6), *y = NULL;
    for (int pass = 1; pass <= 2; pass++) {
        CHECK_OK(ctrt_mul(&y, a, b));
        CHECK_OK(ctrt_add(&y, y, c));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK(ctrt_autograd_saved_bytes() == 32, "%llu bytes saved, expected 32", (unsigned long long)ctrt_autograd_saved_bytes());
        CHECK_OK(ctrt_backward(y));
        CHECK(ctrt_autograd_saved_bytes() == 0, "backward leaves %llu saved bytes", (unsigned long long)ctrt_autograd_saved_bytes());
        VALUES("da", ctrt_tensor_grad(a), 3.0 * pass, 4.0 * pass);
        VALUES("db", ctrt_tensor_grad(b), 1.0 * pass, 2.0 * pass);
        VALUES("dc", ctrt_tensor_grad(c), 1.0 * pass, 1.0 * pass);
    }
    CHECK(!ctrt_tensor_requires_grad(ctrt_tensor_grad(a)), "the gradient has a history");
    CHECK(ctrt_tensor_grad(b) != ctrt_tensor_grad(c) && !ctrt_tensor_shares_storage(ctrt_tensor_grad(a), ctrt_tensor_grad(c)), "gradients share memory");
    RELEASE(&a, &b, &c, &y);
    nothing_left();

    group("one tensor used several times");
    ctrt_tensor *x = VECTOR(true, 2, 3), *u = NULL, *v = NULL;
    CHECK_OK(ctrt_mul(&u, x, x));               /* x^2 */
    CHECK_OK(ctrt_add(&v, u, x));               /* x^2 + x */
    CHECK_OK(ctrt_mul(&v, v, u));               /* x^4 + x^3 */
    CHECK_OK(ctrt_add(&v, v, v));
    CHECK_OK(ctrt_sum(&v, v, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(v));
    VALUES("grad", ctrt_tensor_grad(x), 2.0 * (32 + 12), 2.0 * (108 + 27));
    RELEASE(&x, &u, &v);
    nothing_left();

    group("gradients take the operand's shape and dtype");
    ctrt_tensor *p = NULL, *q = NULL, *s = NULL;
    CHECK_OK(ctrt_ones(&p, CTRT_SHAPE(3, 1), CTRT_F32, NULL));
    CHECK_OK(ctrt_full(&q, CTRT_SHAPE(2, 1, 4), ctrt_float(3), CTRT_F64, NULL));
    CHECK_OK(ctrt_tensor_require_grad(p, true));
    CHECK_OK(ctrt_tensor_require_grad(q, true));
    CHECK_OK(ctrt_mul(&s, p, q));
    CHECK_OK(ctrt_sum(&s, s, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(s));
    VALUES("dp", ctrt_tensor_grad(p), 24, 24, 24);
    CHECK(ctrt_tensor_dtype(ctrt_tensor_grad(p)) == CTRT_F32 && ctrt_tensor_ndim(ctrt_tensor_grad(p)) == 2,
          "dp is not an f32 matrix");
    VALUES("dq", ctrt_tensor_grad(q), 3, 3, 3, 3, 3, 3, 3, 3);
    RELEASE(&p, &q, &s);
    nothing_left();

    group("a leaf that no longer requires grad at backward gets no gradient");
    x = VECTOR(true, 2);
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK_OK(ctrt_backward(y));
    CHECK(ctrt_tensor_grad(x) == NULL, "the leaf has a gradient");
    RELEASE(&x, &y);
    nothing_left();

    group("backward of a leaf");
    x = VECTOR(true, 2);
    CHECK_OK(ctrt_backward(x));
    CHECK_OK(ctrt_backward(x));
    VALUES("grad", ctrt_tensor_grad(x), 2);
    RELEASE(&x);
    nothing_left();
}

static ctrt_tensor *image(bool channels_last)
{
    ctrt_tensor *t = NULL;
    CHECK_OK(ctrt_ones(&t, CTRT_SHAPE(2, 3, 4, 5), CTRT_F32, NULL));
    if (channels_last)
        CHECK_OK(ctrt_contiguous(&t, t, CTRT_CHANNELS_LAST));
    CHECK_OK(ctrt_tensor_require_grad(t, true));
    return t;
}

static void layouts(void)
{
    group("a leaf's gradient has the leaf's strides");
    for (int last = 0; last < 2; last++)
        for (int other_last = 0; other_last < 2; other_last++) {
            ctrt_tensor *x = image(last), *k = image(other_last), *y = NULL;
            for (int pass = 1; pass <= 2; pass++) {
                CHECK_OK(ctrt_mul(&y, x, k));
                CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
                CHECK_OK(ctrt_backward(y));
                ctrt_tensor *g = ctrt_tensor_grad(x);
                CHECK(g && memcmp(ctrt_tensor_strides(g), ctrt_tensor_strides(x), 4 * sizeof(int64_t)) == 0,
                      "the strides differ");
                CHECK_OK(ctrt_sum(&y, g, CTRT_ALL_DIMS));
                double sum = 0;
                CHECK_OK(ctrt_item(&sum, y));
                CHECK(sum == 120 * pass, "the gradient's sum is %g, expected %d", sum, 120 * pass);
            }
            RELEASE(&x, &k, &y);
        }
    nothing_left();
}

static void errors(void)
{
    group("backward reports invalid arguments");
    ctrt_tensor *x = VECTOR(true, 1, 2), *k = VECTOR(false, 1, 2), *y = NULL, *g = VECTOR(false, 1, 1, 1), *h = NULL;
    CHECK_FAILS(ctrt_backward(NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(ctrt_sum(&y, k, CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "does not require grad");
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "[2]");
    CHECK_FAILS(ctrt_backward_with(y, g, false, false), CTRT_ERR_SHAPE, "[3]");
    CHECK_OK(ctrt_to_dtype(&h, k, CTRT_F32));
    CHECK_FAILS(ctrt_backward_with(y, h, false, false), CTRT_ERR_DTYPE, "f32");
    CHECK(ctrt_tensor_grad(x) == NULL, "a failed backward left a gradient");
    CHECK_OK(ctrt_backward_with(y, k, false, false));
    VALUES("grad", ctrt_tensor_grad(x), 2, 8);
    CHECK_FAILS(ctrt_backward_with(y, k, false, false), CTRT_ERR_AUTOGRAD, "retain_graph");
    VALUES("grad", ctrt_tensor_grad(x), 2, 8);
    RELEASE(&x, &k, &y, &g, &h);
    nothing_left();

    group("retain_graph keeps the saved tensors");
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    uint64_t saved = ctrt_autograd_saved_bytes();
    CHECK(saved == 24, "%llu bytes are saved, expected 24", (unsigned long long)saved);
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_OK(ctrt_backward(y));
    VALUES("grad", ctrt_tensor_grad(x), 3 * (exp(3) * 3 + exp(3)));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "freed");
    RELEASE(&x, &y);
    nothing_left();
}

static void higher(void)
{
    group("higher derivatives");
    ctrt_tensor *x = VECTOR(true, 2), *y = NULL, *d = NULL;
    CHECK_OK(ctrt_pow_scalar(&y, x, ctrt_int(4)));
    CHECK_OK(ctrt_grad(&d, y, &x, 1, NULL, false, true, false));
    VALUES("4 x^3", d, 32);
    CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, true, false));
    VALUES("12 x^2", d, 48);
    CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, true, false));
    VALUES("24 x", d, 48);
    CHECK_OK(ctrt_grad(&d, d, &x, 1, NULL, false, true, false));
    VALUES("24", d, 24);
    CHECK(ctrt_tensor_grad(x) == NULL, "ctrt_grad wrote a leaf's grad");
    RELEASE(&y, &d);

    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, false, true));
    ctrt_tensor_assign(&d, ctrt_tensor_grad(x));
    CHECK(ctrt_tensor_requires_grad(d), "create_graph gives a gradient without history");
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_backward(d));
    VALUES("second derivative of exp", ctrt_tensor_grad(x), exp(2));
    RELEASE(&x, &y, &d);
    nothing_left();
}

static void grad_of(void)
{
    group("ctrt_grad returns gradients and does not write to leaves");
    ctrt_tensor *a = VECTOR(true, 2), *b = VECTOR(true, 3), *k = VECTOR(false, 3), *u = NULL, *y = NULL, *out[3] = {NULL}, *in[3];
    CHECK_OK(ctrt_mul(&u, a, a));
    CHECK_OK(ctrt_exp(&y, u));
    in[0] = a, in[1] = u, in[2] = a;
    CHECK_OK(ctrt_grad(out, y, in, 3, NULL, true, false, false));
    VALUES("dy/da", out[0], exp(4) * 4);
    VALUES("dy/du", out[1], exp(4));
    VALUES("dy/da again", out[2], exp(4) * 4);
    ctrt_tensor *kept = out[0];
    in[1] = b;
    CHECK_FAILS(ctrt_grad(out, y, in, 2, NULL, true, false, false), CTRT_ERR_AUTOGRAD, "inputs[1]");
    CHECK(out[0] == kept, "a failed ctrt_grad changed its outputs");
    CHECK_OK(ctrt_grad(out, y, in, 2, NULL, true, false, true));
    CHECK(out[1] == NULL && out[0] != NULL, "an unused input has a gradient");
    in[1] = k;
    CHECK_FAILS(ctrt_grad(out, y, in, 2, NULL, true, false, true), CTRT_ERR_AUTOGRAD, "inputs[1] does not require grad");
    in[0] = y;
    CHECK_OK(ctrt_grad(out, y, in, 1, NULL, true, false, false));
    VALUES("dy/dy", out[0], 1);
    in[1] = NULL;
    CHECK_FAILS(ctrt_grad(out, y, in, 2, NULL, true, false, true), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_grad(out, y, in, 0, NULL, true, false, true), CTRT_ERR_INVALID_ARGUMENT, "0 inputs");
    CHECK(ctrt_tensor_grad(a) == NULL && ctrt_tensor_grad(b) == NULL, "ctrt_grad wrote a leaf's grad");
    RELEASE(&a, &b, &k, &u, &y, &out[0], &out[1], &out[2]);
    nothing_left();
}

static void modes(void)
{
    group("grad mode is nested and restored");
    ctrt_tensor *x = VECTOR(true, 1, 2), *y = NULL, *w = NULL;
    CHECK(ctrt_grad_enabled(), "grad mode is off at the start");
    ctrt_no_grad {
        CHECK(!ctrt_grad_enabled(), "grad mode is on in ctrt_no_grad");
        CHECK_OK(ctrt_exp(&y, x));
        CHECK(!ctrt_tensor_requires_grad(y) && ctrt_autograd_saved_bytes() == 0 && ctrt_autograd_live_nodes() == 0,
              "the op was recorded");
        ctrt_no_grad {
            CHECK(!ctrt_grad_enabled(), "grad mode is on in a nested ctrt_no_grad");
        }
        CHECK(!ctrt_grad_enabled(), "the end of the inner block enabled grad mode");
        w = VECTOR(true, 1);
        CHECK(ctrt_tensor_requires_grad(w), "a leaf created in ctrt_no_grad does not require grad");
        bool was = ctrt_set_grad_enabled(true);
        CHECK(!was && ctrt_grad_enabled(), "set_grad_enabled(true) had no effect");
        CHECK_OK(ctrt_exp(&y, x));
        CHECK(ctrt_tensor_requires_grad(y), "the op was not recorded although grad mode is on");
        ctrt_set_grad_enabled(was);
    }
    CHECK(ctrt_grad_enabled(), "ctrt_no_grad leaves grad mode off");
    RELEASE(&x, &y, &w);
    nothing_left();
}

/* ---- deep and growing graphs ---- */

#define DEEP 200000

static void *deep_chain(void *unused)
{
    (void)unused;
    ctrt_tensor *x = VECTOR(true, 1), *y = NULL, *z = NULL;
    ctrt_tensor_assign(&y, x);
    bool fine = true;
    for (int i = 0; i < DEEP && fine; i++)
        fine = ctrt_mul_scalar(&y, y, ctrt_float(i % 2 ? 2 : 0.5)) == CTRT_OK;
    CHECK(fine, "recording a deep graph: %s", ctrt_error_message());
    CHECK(ctrt_autograd_live_nodes() == DEEP, "%llu nodes, expected %d", (unsigned long long)ctrt_autograd_live_nodes(), DEEP);
    CHECK_OK(ctrt_backward(y));
    VALUES("grad", ctrt_tensor_grad(x), 1);
    ctrt_tensor_release(&y);
    nothing_left();

    /* The nodes are reachable only through saved results, and backward never runs. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < DEEP && fine; i++)
        fine = ctrt_tanh(&y, y) == CTRT_OK && ctrt_mul(&y, y, x) == CTRT_OK;
    CHECK(fine, "recording a deep graph: %s", ctrt_error_message());
    ctrt_tensor_release(&y);
    nothing_left();

    /* A graph whose backward pass is recorded. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < DEEP / 10 && fine; i++)
        fine = ctrt_sin(&y, y) == CTRT_OK;
    CHECK_OK(ctrt_grad(&z, y, &x, 1, NULL, false, true, false));
    CHECK(ctrt_tensor_requires_grad(z), "the backward pass was not recorded");
    RELEASE(&x, &y, &z);
    nothing_left();
    return NULL;
}

static void depth(void)
{
    group("graphs of %d nodes on a stack of 128 KiB", DEEP);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    int error = pthread_create(&thread, &attributes, deep_chain, NULL);
    if (error == 0)
        pthread_join(thread, NULL);
    CHECK(error == 0, "cannot create a thread: %s", strerror(error));
    pthread_attr_destroy(&attributes);
}

static void growth(void)
{
    group("a graph keeps nodes and saved tensors until it is released");
    ctrt_tensor *x = VECTOR(true, 1, 2, 3), *loss = NULL, *total = NULL, *y = NULL;
    double kept = 0, value;
    CHECK_OK(ctrt_zeros(&total, CTRT_SCALAR_SHAPE, CTRT_F64, NULL));
    for (int i = 1; i <= 50; i++) {
        CHECK_OK(ctrt_sum(&loss, x, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_add(&total, total, loss));        /* keeps the graph of every step */
        CHECK(ctrt_autograd_live_nodes() == 2 * (uint64_t)i, "after %d steps %llu nodes, expected %d", i,
              (unsigned long long)ctrt_autograd_live_nodes(), 2 * i);
    }
    RELEASE(&total, &loss);
    nothing_left();
    for (int i = 1; i <= 50; i++) {
        CHECK_OK(ctrt_sum(&loss, x, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_item(&value, loss));              /* a number keeps no graph */
        kept += value;
        CHECK(ctrt_autograd_live_nodes() == 1, "after %d steps %llu nodes, expected 1", i, (unsigned long long)ctrt_autograd_live_nodes());
    }
    CHECK(kept == 300, "the sum is %g", kept);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK(ctrt_autograd_saved_bytes() == 3 * 24, "%llu saved bytes, expected 72", (unsigned long long)ctrt_autograd_saved_bytes());
    RELEASE(&y, &loss);
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes remain after an unused graph was released",
          (unsigned long long)ctrt_autograd_saved_bytes());
    RELEASE(&x);
    nothing_left();

    group("only what a gradient needs is saved");
    ctrt_tensor *w = VECTOR(true, 1, 2), *k = VECTOR(false, 3, 4);
    CHECK_OK(ctrt_mul(&y, w, k));
    CHECK(ctrt_autograd_saved_bytes() == 16, "%llu bytes saved for w k, expected 16: k", (unsigned long long)ctrt_autograd_saved_bytes());
    CHECK_OK(ctrt_div_scalar(&y, w, ctrt_float(3)));
    CHECK_OK(ctrt_add(&y, y, w));
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu bytes saved for w/3 + w, expected none", (unsigned long long)ctrt_autograd_saved_bytes());
    RELEASE(&w, &k, &y);
    nothing_left();
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu device opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    leaves();
    set_grad();
    backward();
    layouts();
    errors();
    higher();
    grad_of();
    modes();
    depth();
    growth();
    return done();
}
