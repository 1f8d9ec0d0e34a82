/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/matmul.c: derivatives of matrix products. Y = A B: dA = dY B^T, dB = A^T dY. */
#include "autograd/rule.h"

static ctrt_status transposed(ctrt_tensor **out, ctrt_tensor *x)
{
    return ctrt_transpose(out, x, -2, -1);
}

/* Reshapes x [..., n] to a matrix [m, n]. */
static ctrt_status as_rows(ctrt_tensor **out, ctrt_tensor *x)
{
    if (x->view.ndim == 2)
        return pass_on(out, x);
    int64_t n = x->view.shape[x->view.ndim - 1], m = shape_numel(x->view.shape, x->view.ndim - 1);
    return ctrt_reshape(out, x, CTRT_SHAPE(m, n));
}

/* Computes dB [k, n] if one matrix B was multiplied with all matrices of A [..., m, k], as one product over all
 * rows. */
static ctrt_status shared_right(ctrt_tensor **db, ctrt_tensor *a, ctrt_tensor *dy)
{
    TENSOR_AUTO rows = NULL, dy_rows = NULL;
    CTRT_TRY(as_rows(&rows, a));
    CTRT_TRY(as_rows(&dy_rows, dy));
    CTRT_TRY(transposed(&rows, rows));
    return ctrt_matmul(db, rows, dy_rows);
}

static ctrt_status matmul_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *a = ctx->inputs[0], *b = ctx->inputs[1];
    TENSOR_AUTO am = NULL, bm = NULL, dym = NULL;
    /* An operand's shape is in its edge if its gradient is needed. Otherwise the operand itself was saved, for the
     * other operand's gradient. */
    bool a_vector = needs_grad(ctx, 0) ? input_shape(ctx, 0).count == 1 : a->view.ndim == 1;
    bool b_vector = needs_grad(ctx, 1) ? input_shape(ctx, 1).count == 1 : b->view.ndim == 1;
    CTRT_TRY(pass_on(&dym, dy[0]));
    if (b_vector)
        CTRT_TRY(ctrt_unsqueeze(&dym, dym, -1));
    if (a_vector)
        CTRT_TRY(ctrt_unsqueeze(&dym, dym, -2));
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(b_vector ? ctrt_unsqueeze(&bm, b, 0) : transposed(&bm, b));        /* [n, k] */
        CTRT_TRY(ctrt_matmul(&dx[0], dym, bm));
        if (a_vector)
            CTRT_TRY(ctrt_squeeze(&dx[0], dx[0], CTRT_DIMS(-2)));
    }
    if (needs_grad(ctx, 1)) {
        if (!a_vector && (b_vector || input_shape(ctx, 1).count == 2) && a->view.ndim > 2) {
            CTRT_TRY(shared_right(&dx[1], a, dym));
        } else {
            CTRT_TRY(a_vector ? ctrt_unsqueeze(&am, a, -1) : transposed(&am, a));   /* [k, m] */
            CTRT_TRY(ctrt_matmul(&dx[1], am, dym));
        }
        if (b_vector)
            CTRT_TRY(ctrt_squeeze(&dx[1], dx[1], CTRT_DIMS(-1)));
    }
    return CTRT_OK;
}
const struct grad_rule rule_matmul = { .saves = { { .inputs = 2 }, { .inputs = 1 } }, .vjp = matmul_vjp };

/* y = x w^T + b for matrices of rows: dx = dy w, dw = dy^T x, db = the sum of dy's rows. */
static ctrt_status linear_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO rows = NULL, dy_rows = NULL, turned = NULL;
    if (needs_grad(ctx, 0))
        CTRT_TRY(ctrt_matmul(&dx[0], dy[0], ctx->inputs[1]));
    if (needs_grad(ctx, 1) || (ctx->n_in > 2 && needs_grad(ctx, 2)))
        CTRT_TRY(as_rows(&dy_rows, dy[0]));
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(as_rows(&rows, ctx->inputs[0]));
        CTRT_TRY(transposed(&turned, dy_rows));
        CTRT_TRY(ctrt_matmul(&dx[1], turned, rows));
    }
    if (ctx->n_in > 2 && needs_grad(ctx, 2))
        CTRT_TRY(ctrt_sum(&dx[2], dy_rows, CTRT_DIMS(0)));
    return CTRT_OK;
}
const struct grad_rule rule_linear = { .saves = { { .inputs = 2 }, { .inputs = 1 } }, .vjp = linear_vjp };
