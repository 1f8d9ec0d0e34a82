/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd as a program sees it: leaves, backward, graphs kept and freed, hooks, functions of one's own, depth, counters. */
#include <math.h>
#include <pthread.h>

#include "ctrt/ctrt.h"
#include "tap.h"

static ctrt_tensor *vector(int n, const double *values, bool grad)
{
    ctrt_tensor *t = NULL;
    CHECK_OK(ctrt_from_data(&t, values, n, CTRT_SHAPE(n), CTRT_F64, NULL));
    if (grad)
        CHECK_OK(ctrt_tensor_require_grad(t, true));
    return t;
}
#define VECTOR(grad, ...) \
    vector((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__}, grad)

static void values_are(const char *what, ctrt_tensor *t, int n, const double *wanted)
{
    if (!CHECK(t != NULL, "%s: there is no tensor", what))
        return;
    double got[64];
    if (!CHECK(ctrt_tensor_numel(t) == n, "%s has %lld elements, expected %d", what, (long long)ctrt_tensor_numel(t), n))
        return;
    CHECK_OK(ctrt_to_host(got, sizeof got, t, CTRT_F64));
    for (int i = 0; i < n; i++)
        CHECK(fabs(got[i] - wanted[i]) <= 1e-12 * (1 + fabs(wanted[i])), "%s: element %d is %.17g, expected %.17g", what, i, got[i], wanted[i]);
}
#define VALUES(what, t, ...) values_are(what, t, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static void nothing_left(void)
{
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu graph nodes are left", (unsigned long long)ctrt_autograd_live_nodes());
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes are left", (unsigned long long)ctrt_autograd_saved_bytes());
}

static void release(int n, ctrt_tensor **const *tensors)
{
    for (int i = 0; i < n; i++)
        ctrt_tensor_release(tensors[i]);
}
#define RELEASE(...) release((int)(sizeof((ctrt_tensor **[]){__VA_ARGS__}) / sizeof(ctrt_tensor **)), (ctrt_tensor **[]){__VA_ARGS__})

/* ---- leaves ---- */

static void leaves(void)
{
    group("who requires grad, who is a leaf");
    ctrt_tensor *x = VECTOR(false, 1, 2), *i = NULL, *y = NULL, *d = NULL;
    CHECK(!ctrt_tensor_requires_grad(x) && ctrt_tensor_is_leaf(x), "a fresh tensor requires grad or is no leaf");
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK(!ctrt_tensor_requires_grad(y) && ctrt_tensor_is_leaf(y) && !ctrt_tensor_grad_fn(y), "a result of constants has a history");
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK(ctrt_tensor_requires_grad(y) && !ctrt_tensor_is_leaf(y), "a result lacks its history");
    CHECK(strcmp(ctrt_tensor_grad_fn(y), "mul") == 0, "made by %s, expected mul", ctrt_tensor_grad_fn(y));
    CHECK_FAILS(ctrt_tensor_require_grad(y, false), CTRT_ERR_AUTOGRAD, "ctrt_detach");
    CHECK_OK(ctrt_tensor_require_grad(y, true));
    CHECK_OK(ctrt_detach(&d, y));
    CHECK(!ctrt_tensor_requires_grad(d) && ctrt_tensor_is_leaf(d) && ctrt_tensor_shares_storage(d, y), "detach keeps history or copies");
    CHECK_OK(ctrt_to_dtype(&d, y, CTRT_I64));
    CHECK(!ctrt_tensor_requires_grad(d), "a cast to integers requires grad");
    CHECK_OK(ctrt_arange(&i, ctrt_int(0), ctrt_int(3), ctrt_int(1), CTRT_I64, NULL));
    CHECK_FAILS(ctrt_tensor_require_grad(i, true), CTRT_ERR_DTYPE, "i64");
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK(!ctrt_tensor_requires_grad(x), "a leaf cannot stop to require grad");
    CHECK_FAILS(ctrt_tensor_require_grad(NULL, true), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK(!ctrt_tensor_requires_grad(NULL) && !ctrt_tensor_is_leaf(NULL) && !ctrt_tensor_grad(NULL) && !ctrt_tensor_grad_fn(NULL), "NULL has facts");
    RELEASE(&x, &i, &y, &d);
    nothing_left();
}

static void set_grad(void)
{
    group("grad is set and cleared");
    ctrt_tensor *x = VECTOR(true, 1, 2), *g = VECTOR(false, 5, 6), *h = VECTOR(false, 1, 2, 3), *f = NULL, *y = NULL;
    CHECK_OK(ctrt_tensor_set_grad(x, g));
    CHECK(ctrt_tensor_grad(x) == g, "grad is not what was set");
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
    group("backward");
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
    CHECK(ctrt_tensor_dtype(ctrt_tensor_grad(p)) == CTRT_F32 && ctrt_tensor_ndim(ctrt_tensor_grad(p)) == 2, "dp is no f32 matrix");
    VALUES("dq", ctrt_tensor_grad(q), 3, 3, 3, 3, 3, 3, 3, 3);
    RELEASE(&p, &q, &s);
    nothing_left();

    group("a leaf that stops to require grad before the backward pass");
    x = VECTOR(true, 2);
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_tensor_require_grad(x, false));
    CHECK_OK(ctrt_backward(y));
    CHECK(ctrt_tensor_grad(x) == NULL, "it got a gradient");
    RELEASE(&x, &y);
    nothing_left();

    group("a leaf's own backward");
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
    group("a leaf's gradient lies like the leaf");
    for (int last = 0; last < 2; last++)
        for (int other_last = 0; other_last < 2; other_last++) {
            ctrt_tensor *x = image(last), *k = image(other_last), *y = NULL;
            for (int pass = 1; pass <= 2; pass++) {
                CHECK_OK(ctrt_mul(&y, x, k));
                CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
                CHECK_OK(ctrt_backward(y));
                ctrt_tensor *g = ctrt_tensor_grad(x);
                CHECK(g && memcmp(ctrt_tensor_strides(g), ctrt_tensor_strides(x), 4 * sizeof(int64_t)) == 0, "it does not");
                CHECK_OK(ctrt_sum(&y, g, CTRT_ALL_DIMS));
                double sum = 0;
                CHECK_OK(ctrt_item(&sum, y));
                CHECK(sum == 120 * pass, "its sum is %g, expected %d", sum, 120 * pass);
            }
            RELEASE(&x, &k, &y);
        }
    nothing_left();
}

static void errors(void)
{
    group("what backward refuses");
    ctrt_tensor *x = VECTOR(true, 1, 2), *k = VECTOR(false, 1, 2), *y = NULL, *g = VECTOR(false, 1, 1, 1), *h = NULL;
    CHECK_FAILS(ctrt_backward(NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(ctrt_sum(&y, k, CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "does not require grad");
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "[2]");
    CHECK_FAILS(ctrt_backward_with(y, g, false, false), CTRT_ERR_SHAPE, "[3]");
    CHECK_OK(ctrt_to_dtype(&h, k, CTRT_F32));
    CHECK_FAILS(ctrt_backward_with(y, h, false, false), CTRT_ERR_DTYPE, "f32");
    CHECK(ctrt_tensor_grad(x) == NULL, "a refused backward left a gradient");
    CHECK_OK(ctrt_backward_with(y, k, false, false));
    VALUES("grad", ctrt_tensor_grad(x), 2, 8);
    CHECK_FAILS(ctrt_backward_with(y, k, false, false), CTRT_ERR_AUTOGRAD, "retain_graph");
    VALUES("grad", ctrt_tensor_grad(x), 2, 8);
    RELEASE(&x, &k, &y, &g, &h);
    nothing_left();

    group("retain_graph");
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    uint64_t saved = ctrt_autograd_saved_bytes();
    CHECK(saved == 24, "%llu bytes are kept, expected 24", (unsigned long long)saved);
    CHECK_OK(ctrt_backward_with(y, NULL, true, false));
    CHECK_OK(ctrt_backward(y));
    VALUES("grad", ctrt_tensor_grad(x), 3 * (exp(3) * 3 + exp(3)));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "freed");
    RELEASE(&x, &y);
    nothing_left();
}

static void higher(void)
{
    group("derivatives of derivatives");
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
    group("ctrt_grad");
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
    CHECK(out[0] == kept, "a failed ctrt_grad changed its results");
    CHECK_OK(ctrt_grad(out, y, in, 2, NULL, true, false, true));
    CHECK(out[1] == NULL && out[0] != NULL, "an input that does not matter has a gradient");
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
    group("grad mode");
    ctrt_tensor *x = VECTOR(true, 1, 2), *y = NULL, *w = NULL;
    CHECK(ctrt_grad_enabled(), "grad mode is off at the start");
    ctrt_no_grad {
        CHECK(!ctrt_grad_enabled(), "ctrt_no_grad does not switch off");
        CHECK_OK(ctrt_exp(&y, x));
        CHECK(!ctrt_tensor_requires_grad(y) && ctrt_autograd_saved_bytes() == 0 && ctrt_autograd_live_nodes() == 0, "it was recorded");
        ctrt_no_grad {
            CHECK(!ctrt_grad_enabled(), "nested");
        }
        CHECK(!ctrt_grad_enabled(), "the inner block switched on");
        w = VECTOR(true, 1);
        CHECK(ctrt_tensor_requires_grad(w), "a leaf made without grad mode cannot require grad");
        bool was = ctrt_set_grad_enabled(true);
        CHECK(!was && ctrt_grad_enabled(), "set_grad_enabled");
        CHECK_OK(ctrt_exp(&y, x));
        CHECK(ctrt_tensor_requires_grad(y), "not recorded in an inner grad mode");
        ctrt_set_grad_enabled(was);
    }
    CHECK(ctrt_grad_enabled(), "ctrt_no_grad leaves grad mode off");
    RELEASE(&x, &y, &w);
    nothing_left();
}

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
    group("hooks on a tensor that an op made");
    struct seen first = {.factor = 2}, second = {0}, leaf = {.factor = 10}, done = {0};
    uint64_t id1, id2, id3, id4;
    ctrt_tensor *x = VECTOR(true, 3), *u = NULL, *v = NULL, *y = NULL, *k = VECTOR(false, 1);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(4)));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &first, &id1));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &second, &id2));
    CHECK_OK(ctrt_tensor_add_hook(x, see, &leaf, &id3));
    CHECK_OK(ctrt_tensor_add_accumulate_hook(x, see_leaf, &done, &id4));
    CHECK_OK(ctrt_mul(&y, u, u));                       /* two gradients of u: the hook sees their sum */
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
    ctrt_tensor_release(&u);                            /* the remaining hook lives in the graph */
    CHECK_OK(ctrt_backward(y));
    CHECK(first.calls == 1 && second.calls == 2 && second.sum == 24, "after removal: %d and %d calls, saw %g", first.calls, second.calls, second.sum);
    VALUES("grad", ctrt_tensor_grad(x), 1920 + 96);
    CHECK_FAILS(ctrt_tensor_add_hook(k, see, &first, NULL), CTRT_ERR_AUTOGRAD, "does not require grad");
    CHECK_FAILS(ctrt_tensor_add_accumulate_hook(y, see_leaf, &first, NULL), CTRT_ERR_AUTOGRAD, "leaves");
    CHECK_FAILS(ctrt_tensor_add_hook(x, NULL, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "hook is NULL");
    RELEASE(&x, &y);
    nothing_left();

    group("a hook that fails");
    struct seen bad = {.result = CTRT_ERR_STATE};
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_exp(&u, x));
    CHECK_OK(ctrt_mul(&y, u, x));
    CHECK_OK(ctrt_tensor_add_hook(u, see, &bad, NULL));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_STATE, "does not like it");
    CHECK(ctrt_grad_enabled(), "the failed backward left grad mode off");
    RELEASE(&x, &u, &y);
    nothing_left();

    group("a hook that removes itself and the next, and one that makes another shape");
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

    group("a hook that runs another graph");
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

    group("retained gradients");
    x = VECTOR(true, 3);
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(4)));
    CHECK_OK(ctrt_mul_scalar(&v, u, ctrt_float(5)));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(u));
    CHECK_OK(ctrt_tensor_retain_grad(v));
    CHECK_OK(ctrt_tensor_retain_grad(x));
    CHECK_FAILS(ctrt_tensor_retain_grad(k), CTRT_ERR_AUTOGRAD, NULL);
    CHECK_OK(ctrt_square(&y, v));
    ctrt_tensor_release(&v);                            /* died before its gradient came */
    CHECK_OK(ctrt_backward(y));
    VALUES("grad of u", ctrt_tensor_grad(u), 600);
    VALUES("grad of x", ctrt_tensor_grad(x), 2400);
    CHECK(ctrt_tensor_grad(y) == NULL, "a gradient was kept unasked");
    RELEASE(&x, &u, &y, &k);
    nothing_left();
}

static void order(void)
{
    group("the youngest node runs first");
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

/* ---- functions ---- */

struct counts { int forward, backward, destroyed; bool save_result; };

/* (a, b) -> (a b, a + b); b may be a constant. */
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

/* y = exp(x), whose derivative is the saved result. */
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
    group("functions of one's own");
    for (int save_result = 0; save_result < 2; save_result++) {
        struct counts counts = {.save_result = save_result};
        ctrt_tensor *a = VECTOR(true, 2, 3), *b = VECTOR(true, 5, 7), *out[2] = {NULL}, *y = NULL;
        ctrt_tensor *in[2] = {a, b};
        CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        VALUES("a b", out[0], 10, 21);
        VALUES("a + b", out[1], 7, 10);
        CHECK(strcmp(ctrt_tensor_grad_fn(out[1]), "pair") == 0, "made by %s", ctrt_tensor_grad_fn(out[1]));
        CHECK_OK(ctrt_mul_scalar(&y, out[0], ctrt_float(3)));
        CHECK_OK(ctrt_add(&y, y, out[1]));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        VALUES("da", ctrt_tensor_grad(a), 16, 22);
        VALUES("db", ctrt_tensor_grad(b), 7, 10);
        CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, "retain_graph");
        CHECK(counts.forward == 1 && counts.backward == 1 && counts.destroyed == 0, "called %d, %d, %d times", counts.forward, counts.backward,
              counts.destroyed);
        RELEASE(&y, &out[0], &out[1]);
        CHECK(counts.destroyed == 1, "destroyed %d times", counts.destroyed);

        /* Only the second result is used: the first one's gradient is NULL. */
        CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        CHECK_OK(ctrt_sum(&y, out[1], CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        VALUES("da", ctrt_tensor_grad(a), 17, 23);
        RELEASE(&y, &out[0], &out[1]);

        /* Nothing to record. */
        ctrt_no_grad {
            CHECK_OK(ctrt_function_apply(&pair, &counts, out, 2, in, 2));
        }
        CHECK(!ctrt_tensor_requires_grad(out[0]) && counts.destroyed == 3, "recorded without grad mode, or %d destroyed", counts.destroyed);
        RELEASE(&a, &b, &out[0], &out[1]);
        nothing_left();
    }

    group("a function's derivative is derived");
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

    group("functions that return an operand, or misbehave");
    x = VECTOR(true, 2, 3);
    CHECK_OK(ctrt_function_apply(&reverse, NULL, &y, 1, &x, 1));
    CHECK(y != x && ctrt_tensor_is_leaf(x), "the operand itself got the history");
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

    group("a function's saved tensor is changed");
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

/* ---- size ---- */

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

    /* Held together by saved results alone, and never run. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < DEEP && fine; i++)
        fine = ctrt_tanh(&y, y) == CTRT_OK && ctrt_mul(&y, y, x) == CTRT_OK;
    CHECK(fine, "recording a deep graph: %s", ctrt_error_message());
    ctrt_tensor_release(&y);
    nothing_left();

    /* The same, run so that the backward pass is recorded. */
    ctrt_tensor_assign(&y, x);
    for (int i = 0; i < DEEP / 10 && fine; i++)
        fine = ctrt_sin(&y, y) == CTRT_OK;
    CHECK_OK(ctrt_grad(&z, y, &x, 1, NULL, false, true, false));
    CHECK(ctrt_tensor_requires_grad(z), "not recorded");
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
    CHECK(error == 0, "no thread: %s", strerror(error));
    pthread_attr_destroy(&attributes);
}

static void growth(void)
{
    group("what a graph holds");
    ctrt_tensor *x = VECTOR(true, 1, 2, 3), *loss = NULL, *total = NULL, *y = NULL;
    double kept = 0, value;
    CHECK_OK(ctrt_zeros(&total, CTRT_SCALAR_SHAPE, CTRT_F64, NULL));
    for (int i = 1; i <= 50; i++) {
        CHECK_OK(ctrt_sum(&loss, x, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_add(&total, total, loss));        /* keeps every step's graph */
        CHECK(ctrt_autograd_live_nodes() == 2 * (uint64_t)i, "after %d steps %llu nodes, expected %d", i,
              (unsigned long long)ctrt_autograd_live_nodes(), 2 * i);
    }
    RELEASE(&total, &loss);
    nothing_left();
    for (int i = 1; i <= 50; i++) {
        CHECK_OK(ctrt_sum(&loss, x, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_item(&value, loss));              /* a number keeps nothing */
        kept += value;
        CHECK(ctrt_autograd_live_nodes() == 1, "after %d steps %llu nodes, expected 1", i, (unsigned long long)ctrt_autograd_live_nodes());
    }
    CHECK(kept == 300, "the sum is %g", kept);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK(ctrt_autograd_saved_bytes() == 3 * 24, "%llu saved bytes, expected 72", (unsigned long long)ctrt_autograd_saved_bytes());
    RELEASE(&y, &loss);
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes are left by a graph that never ran", (unsigned long long)ctrt_autograd_saved_bytes());
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

int main(void)
{
    ctrt_device *device = NULL;
    group("there is a device to run on");
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
    hooks();
    order();
    functions();
    depth();
    growth();
    return done();
}
