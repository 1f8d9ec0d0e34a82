/* SPDX-License-Identifier: Apache-2.0 */
/* ops/matmul.c: matrix products.
 *
 * Kernels get batches of matrices [B,M,K] x [B,K,N] with any strides, except that one of the last two must be 1. So
 * transposed operands are not copied, and a broadcast batch has stride 0. */
#include "ops/autocast.h"
#include "ops/op_common.h"

/* Returns whether one of the last two strides is 1 and the other is at least the length of a row (or column), which
 * BLAS libraries require. */
static bool is_matrix(const ctrt_view *view)
{
    const int d = view->ndim;
    const int64_t rows = view->shape[d - 2], columns = view->shape[d - 1], row = view->strides[d - 2],
        column = view->strides[d - 1];
    return (column == 1 && (row >= MAX(columns, 1) || rows == 1))
           || (row == 1 && (column >= MAX(rows, 1) || columns == 1));
}

/* Folds the leading dimensions of `view` into one. Returns false if the strides do not allow that. */
static bool fold_batch(ctrt_view *view)
{
    if (!view_fold(view, 2))
        return false;
    const int64_t rows = view->shape[1], columns = view->shape[2], row = view->strides[1], column = view->strides[2];
    /* The stride of a dimension of size 1 has no meaning. Set it to that of a dense matrix. */
    if (rows == 1 && column == 1)
        view->strides[1] = MAX(columns, 1);
    if (columns == 1 && row == 1)
        view->strides[2] = MAX(rows, 1);
    return true;
}

/* Sets *out to a view of the elements of `view` as `batches` matrices of rows x columns, stored densely one after the
 * other. The strides of one matrix are given; those of a dimension of size 1 are set to those of a dense matrix. */
static void batch_view(ctrt_view *out, const ctrt_view *view, int64_t batches, int64_t rows, int64_t columns,
                       int64_t row, int64_t column)
{
    out->data = view->data;
    out->numel = view->numel;
    out->dtype = view->dtype;
    out->ndim = 3;
    out->flags = view->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_PINNED);
    out->reserved = 0;
    out->owner = view->owner;
    out->shape[0] = batches;
    out->shape[1] = rows;
    out->shape[2] = columns;
    out->strides[0] = rows * columns;
    out->strides[1] = rows == 1 && column == 1 ? MAX(columns, 1) : row;
    out->strides[2] = columns == 1 && row == 1 ? MAX(rows, 1) : column;
}

/* Sets *out to the operand in the form that the kernel requires: cast, expanded to the batch shape and folded to three
 * dimensions. If that needs a copy, the copy is *keep, which the caller releases. */
static ctrt_status matrix_operand(ctrt_view *out, ctrt_tensor **keep, ctrt_tensor *x, ctrt_dtype dtype,
                                  ctrt_device *device, const ctrt_view *as_matrix, const int64_t *batch, int batch_ndim)
{
    int64_t shape[CTRT_MAX_DIMS];
    *keep = NULL;
    if (batch_ndim == 0 && as_matrix->ndim == 2 && tensor_dtype(x) == dtype && is_matrix(as_matrix)) {
        batch_view(out, as_matrix, 1, as_matrix->shape[0], as_matrix->shape[1], as_matrix->strides[0],
                   as_matrix->strides[1]);
        return CTRT_OK;
    }
    memcpy(shape, batch, (size_t)batch_ndim * sizeof *shape);
    shape[batch_ndim] = as_matrix->shape[as_matrix->ndim - 2];
    shape[batch_ndim + 1] = as_matrix->shape[as_matrix->ndim - 1];

    if (tensor_dtype(x) == dtype && is_matrix(as_matrix)) {
        view_expand(out, as_matrix, shape, batch_ndim + 2);
        if (fold_batch(out))
            return CTRT_OK;
    }
    /* Make a contiguous copy, and expand that by another copy only if the batch still cannot be folded. */
    CTRT_TRY(tensor_new(keep, as_matrix->shape, as_matrix->ndim, dtype, device));
    CTRT_TRY(kernel_copy(&(*keep)->view, device, as_matrix, x->device));
    view_expand(out, &(*keep)->view, shape, batch_ndim + 2);
    if (fold_batch(out))
        return CTRT_OK;
    ctrt_tensor *whole = NULL;
    CTRT_TRY(tensor_new(&whole, shape, batch_ndim + 2, dtype, device));
    ctrt_status status = kernel_copy(&whole->view, device, out, device);
    tensor_move(keep, whole);
    *out = whole->view;
    fold_batch(out);
    return status;
}

/* Returns the operand's view as one or more matrices. A vector becomes a matrix in *promoted: a row if it is the left
 * operand, else a column. */
static const ctrt_view *operand_matrices(ctrt_view *promoted, const ctrt_view *view, bool left)
{
    if (likely(view->ndim > 1))
        return view;
    *promoted = *view;
    promoted->ndim = 2;
    promoted->shape[left ? 1 : 0] = view->shape[0];
    promoted->strides[left ? 1 : 0] = view->strides[0];
    promoted->shape[left ? 0 : 1] = 1;
    promoted->strides[left ? 0 : 1] = left ? MAX(view->shape[0], 1) * view->strides[0] : 1;
    view_refresh(promoted);
    return promoted;
}

static ctrt_status check_matmul(ctrt_tensor *a, ctrt_tensor *b)
{
    char x[SHAPE_TEXT_BYTES], y[SHAPE_TEXT_BYTES];
    if (a->view.ndim == 0 || b->view.ndim == 0)
        return fail_from(CTRT_ERR_SHAPE, "matmul", "operands need at least one dimension: shapes %s and %s",
                         shape_text(x, a->view.shape, a->view.ndim), shape_text(y, b->view.shape, b->view.ndim));
    if (tensor_dtype(a) != tensor_dtype(b))
        return fail_from(CTRT_ERR_DTYPE, "matmul", "operands have dtypes %s and %s; cast one with ctrt_to_dtype",
                         ctrt_dtype_name(tensor_dtype(a)), ctrt_dtype_name(tensor_dtype(b)));
    if (tensor_dtype(a) == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, "matmul", "not defined for bool; cast with ctrt_to_dtype");
    if (a->device != b->device)
        return fail_from(CTRT_ERR_DEVICE, "matmul", "operand 1 is on %s, operand 2 on %s; move one with ctrt_to_device",
                         a->device->name, b->device->name);
    const int64_t inner_a = a->view.shape[a->view.ndim - 1];
    const int64_t inner_b = b->view.shape[MAX(b->view.ndim - 2, 0)];
    if (inner_a != inner_b)
        return fail_from(CTRT_ERR_SHAPE, "matmul", "inner sizes differ: %s times %s (%lld and %lld)",
                         shape_text(x, a->view.shape, a->view.ndim), shape_text(y, b->view.shape, b->view.ndim),
                         (long long)inner_a, (long long)inner_b);
    return CTRT_OK;
}

/* Returns whether the rows of the left operand a [.., M, K] have a constant distance *step in memory, so that its
 * product with [K, N] is one product over all rows. */
static bool rows_fold(int64_t *step, const ctrt_view *a)
{
    const int last = a->ndim - 1;
    int64_t rows = 1;
    *step = MAX(a->shape[last], 1);
    for (int d = last - 1; d >= 0; d--) {
        if (a->shape[d] == 1)
            continue;                   /* the stride of a dimension of size 1 has no meaning */
        if (rows == 1)
            *step = a->strides[d];
        else if (a->strides[d] != *step * rows)
            return false;
        rows *= a->shape[d];
    }
    return a->strides[last] == 1;
}

static ctrt_status matmul_run(ctrt_tensor *y, ctrt_tensor *a, ctrt_tensor *b, const ctrt_view *left,
                              const ctrt_view *right, const int64_t *batch, int batch_ndim)
{
    TENSOR_AUTO keep_a = NULL, keep_b = NULL;
    ctrt_view va, vb, vy, folded;
    ctrt_device *device = y->device;
    const ctrt_dtype dtype = tensor_dtype(y);
    const int64_t m = left->shape[left->ndim - 2], k = left->shape[left->ndim - 1], n = right->shape[right->ndim - 1];
    if (k == 0)
        return kernel_fill(&y->view, device, ctrt_int(0));

    int64_t batches = shape_numel(batch, batch_ndim), rows = m, step;
    if (right->ndim == 2 && left->ndim > 2 && rows_fold(&step, left)) {
        folded = *left;
        folded.ndim = 2;
        folded.shape[0] = rows = batches * m;
        folded.strides[0] = step;
        folded.shape[1] = k;
        folded.strides[1] = 1;
        left = &folded;
        batches = 1;
        batch_ndim = 0;
    }
    CTRT_TRY(matrix_operand(&va, &keep_a, a, dtype, device, left, batch, batch_ndim));
    CTRT_TRY(matrix_operand(&vb, &keep_b, b, dtype, device, right, batch, batch_ndim));
    batch_view(&vy, &y->view, batches, rows, n, n, 1);
    return kernel_call(&(struct op_call){ OP_matmul, dtype, device, OP_VIEWS(&va, &vb), OP_VIEWS(&vy), NULL });
}

ctrt_status ctrt_matmul(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    OP_SCOPE(OP_matmul);
    NULL_CHECK("matmul", out);
    NULL_CHECK("matmul", a);
    NULL_CHECK("matmul", b);
    OP_AUTOCAST_2(OP_matmul, a, b);
    CTRT_TRY(check_matmul(a, b));
    ctrt_view row, column;
    const ctrt_view *left = operand_matrices(&row, &a->view, true);
    const ctrt_view *right = operand_matrices(&column, &b->view, false);

    int64_t batch[CTRT_MAX_DIMS], shape[CTRT_MAX_DIMS + 2];
    int batch_ndim, ndim = 0;
    CTRT_TRY(shape_broadcast(batch, &batch_ndim, "matmul (leading dimensions)", left->shape, left->ndim - 2,
                             right->shape, right->ndim - 2));
    for (; ndim < batch_ndim; ndim++)
        shape[ndim] = batch[ndim];
    if (a->view.ndim > 1)
        shape[ndim++] = left->shape[left->ndim - 2];
    if (b->view.ndim > 1)
        shape[ndim++] = right->shape[right->ndim - 1];

    ctrt_tensor *y = NULL;
    ctrt_status status = tensor_new(&y, shape, ndim, tensor_dtype(a), a->device);
    if (status == CTRT_OK && y->view.numel > 0)
        status = matmul_run(y, a, b, left, right, batch, batch_ndim);
    ctrt_tensor *const inputs[2] = { a, b };
    return op_finish(status, out, OP_matmul, &y, 1, inputs, 2, NULL);
}

/* ---- linear ---- */

static ctrt_status check_linear(ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    ctrt_tensor *const tensors[3] = { x, weight, bias };
    ctrt_device *device;
    CTRT_TRY(op_require_floating("linear", "x", x));
    for (int i = 1; i < 3; i++)
        if (tensors[i] != NULL && tensor_dtype(tensors[i]) != tensor_dtype(x))
            return fail_from(CTRT_ERR_DTYPE, "linear", "x has dtype %s, %s has %s; cast one with ctrt_to_dtype",
                             ctrt_dtype_name(tensor_dtype(x)), i == 1 ? "weight" : "bias",
                             ctrt_dtype_name(tensor_dtype(tensors[i])));
    CTRT_TRY(op_common_device(&device, "linear", tensors, 3));
    const ctrt_view *w = &weight->view;
    if (x->view.ndim < 1 || w->ndim < 1 || w->ndim > 2 || x->view.shape[x->view.ndim - 1] != w->shape[w->ndim - 1])
        return fail_from(CTRT_ERR_SHAPE, "linear",
                         "x of shape %s does not match weight of shape %s, which must be [out, in] or [in]",
                         shape_text(a, x->view.shape, x->view.ndim), shape_text(b, w->shape, w->ndim));
    if (bias != NULL && !shape_equal(bias->view.shape, bias->view.ndim, w->shape, w->ndim - 1))
        return fail_from(CTRT_ERR_SHAPE, "linear", "bias of shape %s does not match weight of shape %s; expected [out] "
                         "for [out, in], [] for [in]", shape_text(a, bias->view.shape, bias->view.ndim),
                         shape_text(b, w->shape, w->ndim));
    return CTRT_OK;
}

/* Sets *out to a view of x as rows [M, K]. If the strides of x do not allow that, x is copied to *keep, which the
 * caller releases. */
static ctrt_status rows_of(ctrt_view *out, ctrt_tensor **keep, ctrt_tensor *x)
{
    *keep = NULL;
    const ctrt_view *view = &x->view;
    if (!(view->flags & CTRT_VIEW_CONTIGUOUS) && !(view->ndim == 2 && is_matrix(view))) {
        CTRT_TRY(op_operand(keep, x, tensor_dtype(x), x->device, true));
        view = &(*keep)->view;
    }
    *out = *view;
    if (view->ndim == 2)
        return CTRT_OK;
    const int64_t k = view->shape[view->ndim - 1];
    view_reshape(out, (const int64_t[]){ k ? view->numel / k : shape_numel(view->shape, view->ndim - 1), k }, 2);
    return CTRT_OK;
}

static ctrt_status run_linear(ctrt_tensor *y, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias)
{
    TENSOR_AUTO keep_x = NULL, keep_w = NULL, keep_b = NULL;
    ctrt_view rows, result = y->view;
    ctrt_device *device = y->device;
    const ctrt_dtype dtype = tensor_dtype(x);
    CTRT_TRY(rows_of(&rows, &keep_x, x));
    CTRT_TRY(op_operand(&keep_w, weight, dtype, device, !is_matrix(&weight->view)));
    if (bias != NULL)
        CTRT_TRY(op_operand(&keep_b, bias, dtype, device, true));
    view_reshape(&result, (const int64_t[]){ rows.shape[0], weight->view.shape[0] }, 2);
    return kernel_call(&(struct op_call){ OP_linear, dtype, device,
                                          OP_VIEWS(&rows, &keep_w->view, bias ? &keep_b->view : NULL),
                                          OP_VIEWS(&result), NULL });
}

/* linear with a 1-dim weight [in]: like a weight [1, in], but the result lacks the last dimension. */
static ctrt_status linear_vector(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias)
{
    TENSOR_AUTO row = NULL, single = NULL, y = NULL;
    CTRT_TRY(error_rename(ctrt_unsqueeze(&row, weight, 0), "linear"));
    if (bias != NULL)
        CTRT_TRY(error_rename(ctrt_unsqueeze(&single, bias, 0), "linear"));
    CTRT_TRY(ctrt_linear(&y, x, row, single));
    return error_rename(ctrt_squeeze(out, y, CTRT_DIMS(-1)), "linear");
}

ctrt_status ctrt_linear(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias)
{
    OP_SCOPE(OP_linear);
    NULL_CHECK("linear", out);
    NULL_CHECK("linear", x);
    NULL_CHECK("linear", weight);
    OP_AUTOCAST_3(OP_linear, x, weight, bias);
    CTRT_TRY(check_linear(x, weight, bias));
    if (weight->view.ndim == 1)
        return linear_vector(out, x, weight, bias);
    int64_t shape[CTRT_MAX_DIMS];
    memcpy(shape, x->view.shape, (size_t)x->view.ndim * sizeof *shape);
    shape[x->view.ndim - 1] = weight->view.shape[0];

    ctrt_tensor *y = NULL;
    ctrt_status status = tensor_new(&y, shape, x->view.ndim, tensor_dtype(x), x->device);
    if (status == CTRT_OK && y->view.numel > 0)
        status = run_linear(y, x, weight, bias);
    ctrt_tensor *const inputs[3] = { x, weight, bias };
    return op_finish(status, out, OP_linear, &y, 1, inputs, 3, NULL);
}
