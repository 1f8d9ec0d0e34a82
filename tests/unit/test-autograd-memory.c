/* SPDX-License-Identifier: Apache-2.0 */
/* Makes every host allocation of autograd work fail, once and permanently. Each failure must give a status and leave
 * no nodes and no saved tensors. */
#include "base/host_alloc.h"
#include "ctrt/ctrt.h"
#include "tap.h"

static ctrt_status see(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_mul_scalar(grad, *grad, ctrt_float(2));
}

static ctrt_status twice_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in)
{
    (void)n_out, (void)n_in;
    CTRT_TRY(ctrt_mul(&out[0], in[0], in[0]));
    CTRT_TRY(ctrt_function_save(context, in[0]));
    return ctrt_function_save(context, out[0]);
}
static ctrt_status twice_backward(ctrt_function_context *context, ctrt_tensor **dx, int n_in, ctrt_tensor *const *dy, int n_out)
{
    ctrt_tensor *x, *y;
    (void)n_in, (void)n_out;
    CTRT_TRY(ctrt_function_saved(&x, context, 0));
    CTRT_TRY(ctrt_function_saved(&y, context, 1));
    CTRT_TRY(ctrt_mul_scalar(&dx[0], x, ctrt_float(2)));
    return ctrt_mul(&dx[0], dx[0], dy[0]);
}
static const ctrt_function twice = {sizeof twice, "twice", twice_forward, twice_backward, NULL};

#define TRY(expr) do { status = (expr); if (status) goto done; } while (0)

static ctrt_status layers(void)
{
    ctrt_tensor *x = NULL, *w = NULL, *b = NULL, *h = NULL, *u = NULL, *y = NULL, *pieces[3] = {NULL};
    int n;
    ctrt_status status;
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F64, NULL));
    TRY(ctrt_ones(&w, CTRT_SHAPE(3, 3), CTRT_F64, NULL));
    TRY(ctrt_ones(&b, CTRT_SHAPE(3), CTRT_F64, NULL));
    TRY(ctrt_tensor_require_grad(w, true));
    TRY(ctrt_tensor_require_grad(b, true));
    TRY(ctrt_linear(&h, x, w, b));
    TRY(ctrt_tanh(&h, h));
    TRY(ctrt_tensor_add_hook(h, see, NULL, NULL));
    TRY(ctrt_tensor_retain_grad(h));
    TRY(ctrt_layer_norm(&u, h, CTRT_SHAPE(3), w ? b : NULL, b, 1e-5));
    TRY(ctrt_softmax(&u, u, 1));
    TRY(ctrt_mul(&u, u, h));
    TRY(ctrt_chunk(pieces, &n, u, 3, 1));
    TRY(ctrt_cat(&y, pieces, 3, 0));
    TRY(ctrt_function_apply(&twice, NULL, &y, 1, &y, 1));
    TRY(ctrt_mean(&y, y, CTRT_ALL_DIMS));
    TRY(ctrt_backward_with(y, NULL, true, false));
    TRY(ctrt_backward(y));
done:
    ctrt_tensor_release(&x), ctrt_tensor_release(&w), ctrt_tensor_release(&b), ctrt_tensor_release(&h);
    ctrt_tensor_release(&u), ctrt_tensor_release(&y);
    for (int i = 0; i < 3; i++)
        ctrt_tensor_release(&pieces[i]);
    return status;
}

static ctrt_status in_place(void)
{
    ctrt_tensor *x = NULL, *base = NULL, *a = NULL, *b = NULL, *y = NULL, *d = NULL;
    ctrt_status status;
    TRY(ctrt_ones(&x, CTRT_SHAPE(3, 4), CTRT_F64, NULL));
    TRY(ctrt_tensor_require_grad(x, true));
    TRY(ctrt_mul_scalar(&base, x, ctrt_float(2)));
    TRY(ctrt_transpose(&b, base, 0, 1));
    TRY(ctrt_select(&a, base, 0, 1));
    TRY(ctrt_mul_(a, a));
    TRY(ctrt_sigmoid_(a));
    TRY(ctrt_sum(&y, b, CTRT_ALL_DIMS));
    TRY(ctrt_grad(&d, y, &x, 1, NULL, false, true, false));
    TRY(ctrt_sum(&d, d, CTRT_ALL_DIMS));
    TRY(ctrt_backward(d));
done:
    ctrt_tensor_release(&x), ctrt_tensor_release(&base), ctrt_tensor_release(&a), ctrt_tensor_release(&b);
    ctrt_tensor_release(&y), ctrt_tensor_release(&d);
    return status;
}

static void every_allocation(const char *name, ctrt_status (*body)(void), bool forever)
{
    group("%s: %s", name, forever ? "all allocations from the n-th on fail" : "the n-th allocation fails");
    CHECK_OK(body());                       /* loads plugins and fills caches */
    uint64_t n, made;
    for (n = 1; n < 5000; n++) {
        alloc_fail_at(n, forever);
        ctrt_status status = body();
        made = alloc_fail_at(0, false);
        if (made < n)
            break;
        if (!CHECK(status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_OK, "allocation %llu: %s: %s", (unsigned long long)n,
                   ctrt_status_string(status), ctrt_error_message()))
            break;
        if (!CHECK(ctrt_autograd_live_nodes() == 0 && ctrt_autograd_saved_bytes() == 0 && ctrt_grad_enabled(),
                   "allocation %llu leaves %llu nodes, %llu saved bytes, grad mode %d", (unsigned long long)n,
                   (unsigned long long)ctrt_autograd_live_nodes(), (unsigned long long)ctrt_autograd_saved_bytes(), ctrt_grad_enabled()))
            break;
    }
    CHECK(n > 20 && n < 5000, "%llu allocations were made to fail", (unsigned long long)n);
    CHECK_OK(body());
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu device opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    for (int forever = 0; forever < 2; forever++) {
        every_allocation("layers", layers, forever);
        every_allocation("changes in place", in_place, forever);
    }
    return done();
}
