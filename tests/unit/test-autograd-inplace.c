/* SPDX-License-Identifier: Apache-2.0 */
/* Changes in place: what is refused, what saved tensors notice, and histories of views. That the gradients are right: test-autograd-rules. */
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
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu graph nodes are left", (unsigned long long)ctrt_autograd_live_nodes());
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes are left", (unsigned long long)ctrt_autograd_saved_bytes());
}

static void release(int n, ctrt_tensor **const *tensors)
{
    for (int i = 0; i < n; i++)
        ctrt_tensor_release(tensors[i]);
}
#define RELEASE(...) release((int)(sizeof((ctrt_tensor **[]){__VA_ARGS__}) / sizeof(ctrt_tensor **)), (ctrt_tensor **[]){__VA_ARGS__})

static void refused(void)
{
    group("leaves that require grad");
    ctrt_tensor *x = filled(1, true), *v = NULL, *y = NULL, *e = NULL, *k = NULL;
    CHECK_FAILS(ctrt_add_scalar_(x, ctrt_float(1)), CTRT_ERR_AUTOGRAD, "leaf");
    CHECK_FAILS(ctrt_zero_(x), CTRT_ERR_AUTOGRAD, "ctrt_no_grad");
    CHECK_FAILS(ctrt_normal_(x, 0, 1), CTRT_ERR_AUTOGRAD, "leaf");
    CHECK_OK(ctrt_select(&v, x, 0, 0));
    CHECK_FAILS(ctrt_mul_(v, v), CTRT_ERR_AUTOGRAD, "view of a leaf");
    CHECK(sum_of(x) == 6, "a refused change was made: the sum is %g", sum_of(x));
    ctrt_no_grad {
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        CHECK_OK(ctrt_mul_(v, v));
    }
    CHECK(sum_of(x) == 18 && ctrt_tensor_is_leaf(x) && ctrt_tensor_requires_grad(x), "changed without grad mode: the sum is %g", sum_of(x));
    CHECK_OK(backward_of_sum(v));
    CHECK(ctrt_tensor_grad(x) && sum_of(ctrt_tensor_grad(x)) == 3, "the view's gradient after a change of its base is wrong");
    RELEASE(&v);

    group("views that autograd does not know");
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
    CHECK_OK(ctrt_add_scalar_(v, ctrt_float(1)));       /* nothing to record: nobody requires grad */
    RELEASE(&v, &e, &k);

    group("expanded tensors");
    CHECK_OK(ctrt_select(&v, y, 0, 0));
    CHECK_OK(ctrt_expand(&e, v, CTRT_SHAPE(4, 3)));
    CHECK_FAILS(ctrt_add_scalar_(e, ctrt_float(1)), CTRT_ERR_INVALID_ARGUMENT, "share memory");
    RELEASE(&x, &v, &y, &e);
    nothing_left();
}

static void versions(void)
{
    group("a saved operand is changed");
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

    group("a saved result is changed");
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_FAILS(backward_of_sum(y), CTRT_ERR_AUTOGRAD, "backward of exp");
    RELEASE(&y);

    group("changed through a view, a detached tensor, or under ctrt_no_grad");
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

    group("changes that do no harm");
    CHECK_OK(ctrt_add(&y, x, w));                       /* saves nothing */
    CHECK_OK(ctrt_zero_(w));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_OK(backward_of_sum(y));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 18, "the gradient's sum is %g, expected 18", sum_of(ctrt_tensor_grad(x)));
    RELEASE(&y);

    group("a graph that bites its tail is freed");
    CHECK_OK(ctrt_mul_scalar(&u, x, ctrt_float(2)));
    CHECK_OK(ctrt_mul(&y, u, u));
    CHECK_OK(ctrt_add_(u, y));                          /* u's history now holds the node that saved u */
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
    group("a constant that becomes a result");
    ctrt_tensor *x = filled(2, true), *c = filled(3, false), *y = NULL, *v = NULL, *w = NULL;
    CHECK_OK(ctrt_mul_(c, x));
    CHECK(ctrt_tensor_requires_grad(c) && !ctrt_tensor_is_leaf(c) && strcmp(ctrt_tensor_grad_fn(c), "mul") == 0, "c has no history");
    CHECK_OK(backward_of_sum(c));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 18, "the gradient's sum is %g, expected 18", sum_of(ctrt_tensor_grad(x)));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    RELEASE(&c);

    group("views follow their base");
    c = filled(3, false);
    CHECK_OK(ctrt_select(&v, c, 0, 0));
    CHECK_OK(ctrt_select(&w, c, 0, 0));
    CHECK_OK(ctrt_select(&y, x, 0, 0));
    CHECK_OK(ctrt_mul_(v, y));
    CHECK(strcmp(ctrt_tensor_grad_fn(c), "copy_slices") == 0, "the base was made by %s", ctrt_tensor_grad_fn(c));
    CHECK(strcmp(ctrt_tensor_grad_fn(v), "as_strided") == 0, "the view was made by %s", ctrt_tensor_grad_fn(v));
    CHECK(ctrt_tensor_requires_grad(w) && !ctrt_tensor_is_leaf(w), "the other view does not know");
    CHECK_OK(ctrt_mul(&w, w, w));                       /* (3 x)^2 */
    CHECK_OK(backward_of_sum(w));
    CHECK(sum_of(ctrt_tensor_grad(x)) == 3 * 36, "the gradient's sum is %g, expected 108", sum_of(ctrt_tensor_grad(x)));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    RELEASE(&v, &w, &c, &y);

    group("hooks and retained gradients of a tensor that is changed");
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
    CHECK(before == 6 * 35 && after == 2 * 6 * 7, "after removal the hooks saw %g and %g", before, after);
    RELEASE(&x, &y, &v);
    nothing_left();

    group("overwritten tensors forget their history");
    x = filled(2, true);
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_OK(ctrt_mul_scalar(&v, y, ctrt_float(1)));
    CHECK_OK(ctrt_uniform_(v, 0, 1));
    CHECK_OK(backward_of_sum(v));
    CHECK(ctrt_tensor_grad(x) && sum_of(ctrt_tensor_grad(x)) == 0, "the gradient is not 0");
    RELEASE(&x, &y, &v);
    nothing_left();
}

int main(void)
{
    ctrt_device *device = NULL;
    group("there is a device to run on");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    refused();
    versions();
    histories();
    return done();
}
