/* SPDX-License-Identifier: Apache-2.0 */
/* ops/attention.c: scaled dot product attention. Uses the fused op if the device has a kernel that accepts the call.
 * Otherwise composes the result from other ops, which stores the weights of all pairs of rows and keys in memory. */
#include <math.h>

#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/op_common.h"

static const char who[] = "scaled_dot_product_attention";

static ctrt_status check_attention(ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES], c[SHAPE_TEXT_BYTES];
    const ctrt_view *x = &q->view, *y = &k->view, *z = &v->view;
    if (x->ndim >= 2 && y->ndim >= 2 && z->ndim >= 2 && x->shape[x->ndim - 1] == y->shape[y->ndim - 1]
        && y->shape[y->ndim - 2] == z->shape[z->ndim - 2])
        return op_require_floating(who, "q", q);
    return fail_from(CTRT_ERR_SHAPE, who, "shapes %s, %s and %s of q, k and v do not match; expected [.., L, E], [.., "
                     "S, E], [.., S, V]", shape_text(a, x->shape, x->ndim), shape_text(b, y->shape, y->ndim),
                     shape_text(c, z->shape, z->ndim));
}

/* Creates the bool matrix of the shape of the scores' rows and columns that is true where `causal` hides column j from
 * row i, j > i. */
static ctrt_status causal_hidden(ctrt_tensor **out, const ctrt_tensor *scores)
{
    const ctrt_view *view = &scores->view;
    CTRT_TRY(ctrt_ones(out, CTRT_SHAPE(view->shape[view->ndim - 2], view->shape[view->ndim - 1]), CTRT_BOOL,
                       scores->device));
    return ctrt_triu(out, *out, 1);
}

/* Sets *hidden to true where the mask and `causal` together hide a column, *empty [.., 1] to true for rows without any
 * other column, and *fill to -inf, but 0 for these rows. */
static ctrt_status find_hidden(ctrt_tensor **hidden, ctrt_tensor **empty, ctrt_tensor **fill, ctrt_tensor *mask,
                               bool causal, ctrt_tensor *scores)
{
    const bool additive = tensor_dtype(mask) != CTRT_BOOL;
    CTRT_TRY(additive ? ctrt_eq_scalar(hidden, mask, ctrt_float(-INFINITY)) : ctrt_logical_not(hidden, mask));
    if (causal) {
        TENSOR_AUTO later = NULL;
        CTRT_TRY(causal_hidden(&later, scores));
        CTRT_TRY(ctrt_logical_or(hidden, *hidden, later));
    }
    CTRT_TRY(ctrt_all(empty, *hidden, CTRT_DIMS(-1), true));
    CTRT_TRY(ctrt_full(fill, CTRT_SCALAR_SHAPE, ctrt_float(-INFINITY), tensor_dtype(additive ? mask : scores),
                       scores->device));
    return ctrt_masked_fill(fill, *fill, *empty, ctrt_int(0));
}

/* Applies `mask` and `causal` to the scores. Scores of a row that has no other column become finite, so that softmax
 * and its derivatives are finite; the caller sets the results of these rows (*empty) to 0. */
static ctrt_status apply_mask(ctrt_tensor **scores, ctrt_tensor **empty, ctrt_tensor *mask, bool causal)
{
    const bool additive = tensor_dtype(mask) != CTRT_BOOL;
    TENSOR_AUTO hidden = NULL, fill = NULL, filled = NULL;
    if (additive)
        CTRT_TRY(op_require_floating(who, "mask", mask));
    CTRT_TRY(find_hidden(&hidden, empty, &fill, mask, causal, *scores));
    if (!additive)
        return ctrt_where(scores, hidden, fill, *scores);
    CTRT_TRY(ctrt_where(&filled, hidden, fill, mask));
    return ctrt_add(scores, *scores, filled);
}

static ctrt_status apply_causal(ctrt_tensor **scores)
{
    TENSOR_AUTO hidden = NULL;
    CTRT_TRY(causal_hidden(&hidden, *scores));
    return ctrt_masked_fill(scores, *scores, hidden, ctrt_float(-INFINITY));
}

/* ---- composed attention ---- */

ctrt_status op_widen(ctrt_tensor **out, ctrt_tensor *x)
{
    return ctrt_to_dtype(out, x, dtype_half(tensor_dtype(x)) ? CTRT_F32 : tensor_dtype(x));
}

ctrt_status op_attention_weights(ctrt_tensor **out, ctrt_tensor **empty, ctrt_tensor *q, ctrt_tensor *k,
                                 ctrt_tensor *mask, bool causal, double scale)
{
    TENSOR_AUTO scores = NULL, columns = NULL;
    CTRT_TRY(ctrt_mul_scalar(&scores, q, ctrt_float(scale)));
    CTRT_TRY(ctrt_transpose(&columns, k, -2, -1));
    CTRT_TRY(ctrt_matmul(&scores, scores, columns));
    if (mask != NULL)
        CTRT_TRY(apply_mask(&scores, empty, mask, causal));
    else if (causal)
        CTRT_TRY(apply_causal(&scores));
    return ctrt_softmax(out, scores, -1);
}

/* ---- the fused op ---- */

/* The sizes of q [leading.., rows, width], k [leading.., keys, width] and v [leading.., keys, values]. Kernels get the
 * leading dimensions as [batch, heads]. */
struct sizes {
    int n_leading;
    int64_t leading[CTRT_MAX_DIMS];
    int64_t batch, heads, rows, keys, width, values;
};

/* Returns false if a size is 0 or the leading dimensions do not broadcast; the fused op does not support such calls. */
static bool find_sizes(struct sizes *s, const ctrt_view *q, const ctrt_view *k, const ctrt_view *v)
{
    s->rows = q->shape[q->ndim - 2];
    s->width = q->shape[q->ndim - 1];
    s->keys = v->shape[v->ndim - 2];
    s->values = v->shape[v->ndim - 1];
    if (shape_broadcast(s->leading, &s->n_leading, who, q->shape, q->ndim - 2, k->shape, k->ndim - 2) != CTRT_OK
        || shape_broadcast(s->leading, &s->n_leading, who, s->leading, s->n_leading, v->shape, v->ndim - 2) != CTRT_OK)
        return false;
    s->heads = s->n_leading > 0 ? s->leading[s->n_leading - 1] : 1;
    s->batch = shape_numel(s->leading, MAX(s->n_leading - 1, 0));
    return s->batch > 0 && s->heads > 0 && s->rows > 0 && s->keys > 0 && s->width > 0 && s->values > 0;
}

/* Sets shape to [leading.., rows, columns] and returns the number of dimensions. */
static int full_shape(int64_t *shape, const struct sizes *s, int64_t rows, int64_t columns)
{
    memcpy(shape, s->leading, (size_t)s->n_leading * sizeof *shape);
    shape[s->n_leading] = rows;
    shape[s->n_leading + 1] = columns;
    return s->n_leading + 2;
}

/* Sets *out to a view of `x` as [batch, heads, rows, columns] whose last stride is 1. Returns false if the strides of
 * `x` do not allow that. */
static bool heads_view(ctrt_view *out, const ctrt_view *x, const struct sizes *s)
{
    int64_t shape[CTRT_MAX_DIMS];
    const int64_t columns = x->shape[x->ndim - 1];
    const int ndim = full_shape(shape, s, x->shape[x->ndim - 2], columns);
    view_expand(out, x, shape, ndim);
    if (columns == 1)
        out->strides[ndim - 1] = 1;         /* the stride of a dimension of size 1 has no meaning */
    if (out->strides[ndim - 1] != 1)
        return false;
    if (s->n_leading > 0)
        return view_fold(out, 3);
    return view_fold(out, 2) && (view_expand(out, out, (const int64_t[]){ 1, 1, shape[0], shape[1] }, 4), true);
}

/* Sets *out to a view of the operand in the form of heads_view. If the strides do not allow that, the operand is copied
 * to *keep, which the caller releases. */
static ctrt_status heads_operand(ctrt_view *out, ctrt_tensor **keep, ctrt_tensor *x, const struct sizes *s)
{
    int64_t shape[CTRT_MAX_DIMS];
    ctrt_view expanded;
    if (heads_view(out, &x->view, s))
        return CTRT_OK;
    const int ndim = full_shape(shape, s, x->view.shape[x->view.ndim - 2], x->view.shape[x->view.ndim - 1]);
    CTRT_TRY(tensor_new(keep, shape, ndim, tensor_dtype(x), x->device));
    view_expand(&expanded, &x->view, shape, ndim);
    CTRT_TRY(kernel_copy(&(*keep)->view, x->device, &expanded, x->device));
    heads_view(out, &(*keep)->view, s);
    return CTRT_OK;
}

/* Allocates a result [leading.., rows, columns], if possible with the dimension order in memory of `like`. So if the
 * heads of the operand are a transposed view, so are those of the result, and they can be joined without a copy. */
static ctrt_status heads_result(ctrt_view *out, ctrt_tensor **result, const struct sizes *s, int64_t rows,
                                int64_t columns, const ctrt_tensor *like)
{
    int64_t shape[CTRT_MAX_DIMS];
    const int ndim = full_shape(shape, s, rows, columns);
    CTRT_TRY(tensor_new(result, shape, ndim, tensor_dtype(like), like->device));
    ctrt_view *view = &(*result)->view;
    if (like->view.ndim == ndim) {
        ctrt_view order = like->view;
        memcpy(order.shape, shape, (size_t)ndim * sizeof *shape);
        shape_strides_in_order(view->strides, &order);
        view_refresh(view);
        if (heads_view(out, view, s))
            return CTRT_OK;
        shape_strides(view->strides, shape, ndim);
        view_refresh(view);
    }
    heads_view(out, view, s);
    return CTRT_OK;
}

/* Creates a contiguous view without data, for kernel_available. `columns` 0: the view has no last dimension. */
static void example(ctrt_view *view, ctrt_dtype dtype, const struct sizes *s, int64_t rows, int64_t columns)
{
    *view = (ctrt_view){ .dtype = (uint8_t)dtype };
    view_reshape(view, (const int64_t[]){ s->batch, s->heads, rows, columns }, columns > 0 ? 4 : 3);
}

static ctrt_dtype logsumexp_dtype(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
}

enum { QUERIES, KEYS, VALUES, RESULTS, LOGSUMEXP, EXAMPLES };

static void examples(ctrt_view *views, ctrt_dtype dtype, const struct sizes *s)
{
    example(&views[QUERIES], dtype, s, s->rows, s->width);
    example(&views[KEYS], dtype, s, s->keys, s->width);
    example(&views[VALUES], dtype, s, s->keys, s->values);
    example(&views[RESULTS], dtype, s, s->rows, s->values);
    example(&views[LOGSUMEXP], logsumexp_dtype(dtype), s, s->rows, 0);
}

static bool forward_available(ctrt_dtype dtype, ctrt_device *device, const struct sizes *s,
                              const ctrt_attention_attributes *attributes)
{
    ctrt_view v[EXAMPLES];
    examples(v, dtype, s);
    return kernel_available(&(struct op_call){ OP_attention, dtype, device,
                                               OP_VIEWS(&v[QUERIES], &v[KEYS], &v[VALUES]),
                                               OP_VIEWS(&v[RESULTS], &v[LOGSUMEXP]), attributes });
}

static bool backward_available(ctrt_dtype dtype, ctrt_device *device, const struct sizes *s,
                               const ctrt_attention_attributes *attributes)
{
    ctrt_view v[EXAMPLES];
    examples(v, dtype, s);
    return kernel_available(&(struct op_call){ OP_attention_backward, dtype, device,
                                               OP_VIEWS(&v[RESULTS], &v[QUERIES], &v[KEYS], &v[VALUES], &v[RESULTS],
                                                        &v[LOGSUMEXP]),
                                               OP_VIEWS(&v[QUERIES], &v[KEYS], &v[VALUES]), attributes });
}

/* Sets *out to a view of the contiguous `logsumexp` as [batch, heads, rows]. */
static void attention_rows_view(ctrt_view *out, const ctrt_view *logsumexp, const struct sizes *s)
{
    *out = *logsumexp;
    view_reshape(out, (const int64_t[]){ s->batch, s->heads, s->rows }, 3);
}

static ctrt_status fused(ctrt_tensor **out, ctrt_tensor *const *qkv, const struct sizes *s,
                         const ctrt_attention_attributes *attributes)
{
    OP_SCOPE(OP_attention);
    const ctrt_dtype dtype = tensor_dtype(qkv[0]);
    ctrt_device *device = qkv[0]->device;
    CTRT_AUTO_ARRAY(tensor, kept, 3);
    CTRT_AUTO_ARRAY(tensor, results, 2);
    ctrt_view views[3], y, logsumexp;
    int64_t shape[CTRT_MAX_DIMS];
    OP_TRY(heads_result(&y, &results[0], s, s->rows, s->values, qkv[0]));
    OP_TRY(tensor_new(&results[1], shape, full_shape(shape, s, s->rows, 1) - 1, logsumexp_dtype(dtype), device));
    for (int i = 0; i < 3; i++)
        OP_TRY(heads_operand(&views[i], &kept[i], qkv[i], s));
    attention_rows_view(&logsumexp, &results[1]->view, s);
    OP_TRY(kernel_call(&(struct op_call){ OP_attention, dtype, device, OP_VIEWS(&views[0], &views[1], &views[2]),
                                          OP_VIEWS(&y, &logsumexp), attributes }));
    const union op_attributes graph = { .attention = { .scale = attributes->scale, .causal = attributes->causal } };
    return op_finish(CTRT_OK, out, OP_attention, results, 2, qkv, 3, &graph);
}

static ctrt_status attention_vjp_run(ctrt_tensor **const *outs, ctrt_tensor *const *operands, ctrt_tensor *logsumexp,
                                     const struct sizes *s, const ctrt_attention_attributes *attributes)
{
    OP_SCOPE(OP_attention_backward);
    const ctrt_dtype dtype = tensor_dtype(operands[1]);
    ctrt_device *device = operands[1]->device;
    CTRT_AUTO_ARRAY(tensor, kept, 5);
    CTRT_AUTO_ARRAY(tensor, results, 3);
    ctrt_view in[6], y[3];
    for (int i = 0; i < 5; i++)
        OP_TRY(heads_operand(&in[i], &kept[i], operands[i], s));
    attention_rows_view(&in[5], &logsumexp->view, s);
    for (int i = 0; i < 3; i++)
        OP_TRY(heads_result(&y[i], &results[i], s, i == 0 ? s->rows : s->keys, i == 2 ? s->values : s->width,
                            operands[1 + i]));
    OP_TRY(kernel_call(&(struct op_call){ OP_attention_backward, dtype, device,
                                          OP_VIEWS(&in[0], &in[1], &in[2], &in[3], &in[4], &in[5]),
                                          OP_VIEWS(&y[0], &y[1], &y[2]), attributes }));
    for (int i = 0; i < 3; i++)
        ctrt_tensor_assign(outs[i], results[i]);
    return CTRT_OK;
}

ctrt_status op_attention_backward(ctrt_tensor **dq, ctrt_tensor **dk, ctrt_tensor **dv, bool *done, ctrt_tensor *dy,
                                  ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v, ctrt_tensor *y,
                                  ctrt_tensor *logsumexp, bool causal, double scale)
{
    const ctrt_attention_attributes attributes = { .size = sizeof attributes, .scale = scale, .causal = causal };
    ctrt_tensor **const outs[3] = { dq, dk, dv }, *const operands[5] = { dy, q, k, v, y };
    struct sizes s;
    *done = find_sizes(&s, &q->view, &k->view, &v->view)
        && backward_available(tensor_dtype(q), q->device, &s, &attributes);
    return *done ? attention_vjp_run(outs, operands, logsumexp, &s, &attributes) : CTRT_OK;
}

/* Composes the result from other ops. If all operands have the same half-precision dtype, the computation is in f32 and
 * only the result is rounded, because a rounding error e of a score multiplies its weight by exp(e). */
static ctrt_status attention_from_ops(ctrt_tensor **out, ctrt_tensor *const *qkv, ctrt_tensor *mask, double dropout_p,
                                      bool causal, double scale)
{
    const ctrt_dtype dtype = tensor_dtype(qkv[0]);
    const bool half = dtype_half(dtype) && tensor_dtype(qkv[1]) == dtype && tensor_dtype(qkv[2]) == dtype;
    CTRT_AUTO_ARRAY(tensor, wide, 3);
    TENSOR_AUTO weights = NULL, empty = NULL, y = NULL;
    for (int i = 0; i < 3; i++)
        CTRT_TRY(ctrt_to_dtype(&wide[i], qkv[i], half ? CTRT_F32 : tensor_dtype(qkv[i])));
    CTRT_TRY(op_attention_weights(&weights, &empty, wide[0], wide[1], mask, causal, scale));
    CTRT_TRY(ctrt_dropout(&weights, weights, dropout_p, dropout_p > 0));
    CTRT_TRY(ctrt_matmul(&y, weights, wide[2]));
    if (empty != NULL)
        CTRT_TRY(ctrt_masked_fill(&y, y, empty, ctrt_int(0)));
    return ctrt_to_dtype(out, y, half ? dtype : tensor_dtype(y));
}

/* Returns whether q, k and v have the same dtype and device. Other calls are composed, and the ops convert the operands
 * or return an error. */
static bool alike(ctrt_tensor *const *qkv)
{
    for (int i = 1; i < 3; i++)
        if (tensor_dtype(qkv[i]) != tensor_dtype(qkv[0]) || qkv[i]->device != qkv[0]->device)
            return false;
    return true;
}

ctrt_status ctrt_scaled_dot_product_attention(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v,
                                              ctrt_tensor *mask, const ctrt_attention_options *options)
{
    ctrt_attention_options o = CTRT_ATTENTION_OPTIONS;
    NULL_CHECK(who, out);
    NULL_CHECK(who, q);
    NULL_CHECK(who, k);
    NULL_CHECK(who, v);
    OP_AUTOCAST_4(OP_attention, q, k, v, mask);
    CTRT_TRY(check_attention(q, k, v));
    CTRT_TRY(struct_read(&o, sizeof o, options, who, "options"));
    const double scale = o.has_scale ? o.scale : 1 / sqrt((double)MAX(q->view.shape[q->view.ndim - 1], 1));
    ctrt_tensor *const qkv[3] = { q, k, v };
    const ctrt_attention_attributes attributes = { .size = sizeof attributes, .scale = scale, .causal = o.causal };
    struct sizes s;
    if (mask == NULL && o.dropout_p == 0 && alike(qkv) && find_sizes(&s, &q->view, &k->view, &v->view)
        && forward_available(tensor_dtype(q), q->device, &s, &attributes))
        return error_rename(fused(out, qkv, &s, &attributes), who);

    return error_rename(attention_from_ops(out, qkv, mask, o.dropout_p, o.causal, scale), who);
}
