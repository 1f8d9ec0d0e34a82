/* SPDX-License-Identifier: Apache-2.0 */
/* Makes every host allocation of autograd work fail, once and permanently. Each failure must give a status and leave
 * no nodes and no saved tensors. */
#include "base/host_alloc.h"
#include "autograd_check.h"

static ctrt_status double_gradient(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_mul_scalar(grad, *grad, ctrt_float(2));
}

FORWARD(twice_forward)
{
    CTRT_TRY(ctrt_mul(&out[0], in[0], in[0]));
    CTRT_TRY(ctrt_function_save(context, in[0]));
    return ctrt_function_save(context, out[0]);
}

BACKWARD(twice_backward)
{
    ctrt_tensor *x, *y;
    CTRT_TRY(ctrt_function_saved(&x, context, 0));
    CTRT_TRY(ctrt_function_saved(&y, context, 1));
    CTRT_TRY(ctrt_mul_scalar(&dx[0], x, ctrt_float(2)));
    return ctrt_mul(&dx[0], dx[0], dy[0]);
}
static const ctrt_function twice = {sizeof twice, "twice", twice_forward, twice_backward, NULL};

static ctrt_status layers(void)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, b = NULL, h = NULL, u = NULL, y = NULL;
    ctrt_tensor *pieces[3] = { NULL };
    int n;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F64, NULL));
    CTRT_TRY(ctrt_ones(&w, CTRT_SHAPE(3, 3), CTRT_F64, NULL));
    CTRT_TRY(ctrt_ones(&b, CTRT_SHAPE(3), CTRT_F64, NULL));
    CTRT_TRY(ctrt_tensor_require_grad(w, true));
    CTRT_TRY(ctrt_tensor_require_grad(b, true));
    CTRT_TRY(ctrt_linear(&h, x, w, b));
    CTRT_TRY(ctrt_tanh(&h, h));
    CTRT_TRY(ctrt_tensor_add_hook(h, double_gradient, NULL, NULL));
    CTRT_TRY(ctrt_tensor_retain_grad(h));
    CTRT_TRY(ctrt_layer_norm(&u, h, CTRT_SHAPE(3), b, b, 1e-5));
    CTRT_TRY(ctrt_softmax(&u, u, 1));
    CTRT_TRY(ctrt_mul(&u, u, h));
    CTRT_TRY(ctrt_chunk(pieces, &n, u, 3, 1));
    ctrt_status status = ctrt_cat(&y, pieces, 3, 0);
    for (int i = 0; i < 3; i++)
        ctrt_tensor_release(&pieces[i]);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_function_apply(&twice, NULL, &y, 1, &y, 1));
    CTRT_TRY(ctrt_mean(&y, y, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_backward_with(y, NULL, true, false));
    return ctrt_backward(y);
}

static ctrt_status in_place(void)
{
    CTRT_AUTO(tensor) x = NULL, base = NULL, a = NULL, b = NULL, y = NULL, d = NULL;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(3, 4), CTRT_F64, NULL));
    CTRT_TRY(ctrt_tensor_require_grad(x, true));
    CTRT_TRY(ctrt_mul_scalar(&base, x, ctrt_float(2)));
    CTRT_TRY(ctrt_transpose(&b, base, 0, 1));
    CTRT_TRY(ctrt_select(&a, base, 0, 1));
    CTRT_TRY(ctrt_mul_(a, a));
    CTRT_TRY(ctrt_sigmoid_(a));
    CTRT_TRY(ctrt_sum(&y, b, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_grad(&d, y, &x, 1, NULL, false, true, false));
    CTRT_TRY(ctrt_sum(&d, d, CTRT_ALL_DIMS));
    return ctrt_backward(d);
}

static void every_allocation(const char *name, ctrt_status (*body)(void), bool forever)
{
    group("%s: %s", name, forever ? "all allocations from the n-th on fail" : "the n-th allocation fails");
    CHECK_OK(body());                       /* loads plugins and fills caches */
    bool fine = true;
    uint64_t n;
    for (n = 1; n < 5000 && fine; n++) {
        alloc_fail_at(n, forever);
        const ctrt_status status = body();
        if (alloc_fail_at(0, false) < n)
            break;
        fine = CHECK(status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_OK, "allocation %d: %s", (int)n,
                     ctrt_error_message())
               && CHECK(ctrt_autograd_live_nodes() == 0 && ctrt_autograd_saved_bytes() == 0 && ctrt_grad_enabled(),
                        "allocation %d leaves %d nodes, %d saved bytes, grad mode %d", (int)n,
                        (int)ctrt_autograd_live_nodes(), (int)ctrt_autograd_saved_bytes(), ctrt_grad_enabled());
    }
    CHECK(n > 20 && n < 5000, "%d allocations were made to fail", (int)n);
    CHECK_OK(body());
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    for (int forever = 0; forever < 2; forever++) {
        every_allocation("layers", layers, forever);
        every_allocation("changes in place", in_place, forever);
    }
    return done();
}
