/* SPDX-License-Identifier: Apache-2.0 */
/* plain-attention.h: kernels of attention and its gradients as plain loops in f32 and f64, as plugin.h specifies them.
 * They test how the core uses such kernels on a device that has none. */
#ifndef TESTS_PLAIN_ATTENTION_H
#define TESTS_PLAIN_ATTENTION_H

#include <math.h>
#include <stdlib.h>

#include "ctrt/plugin.h"

static int64_t plain_at(const ctrt_view *x, const int64_t *matrix, int64_t row, int64_t column)
{
    return matrix[0] * x->strides[0] + matrix[1] * x->strides[1] + row * x->strides[2] +
        (x->ndim > 3 ? column * x->strides[3] : 0);
}

static double plain_get(const ctrt_view *x, const int64_t *matrix, int64_t row, int64_t column)
{
    const int64_t at = plain_at(x, matrix, row, column);
    return x->dtype == CTRT_F32 ? (double)((const float *)x->data)[at] : ((const double *)x->data)[at];
}

static void plain_set(const ctrt_view *x, const int64_t *matrix, int64_t row, int64_t column, double value)
{
    const int64_t at = plain_at(x, matrix, row, column);
    if (x->dtype == CTRT_F32)
        ((float *)x->data)[at] = (float)value;
    else
        ((double *)x->data)[at] = value;
}

static double plain_dot(const ctrt_view *a, int64_t row_a, const ctrt_view *b, int64_t row_b, const int64_t *matrix)
{
    double sum = 0;
    for (int64_t e = 0; e < a->shape[3]; e++)
        sum += plain_get(a, matrix, row_a, e) * plain_get(b, matrix, row_b, e);
    return sum;
}

/* The number of keys that row `row` attends to. */
static int64_t plain_seen(const ctrt_call *call, const ctrt_view *k, int64_t row)
{
    const ctrt_attention_attributes *attributes = call->attributes;
    return attributes->causal && row + 1 < k->shape[2] ? row + 1 : k->shape[2];
}

static void plain_forward(const ctrt_call *call, const int64_t *matrix, double *weights)
{
    const ctrt_view *q = call->inputs[0], *k = call->inputs[1], *v = call->inputs[2];
    const double scale = ((const ctrt_attention_attributes *)call->attributes)->scale;
    for (int64_t row = 0; row < q->shape[2]; row++) {
        const int64_t seen = plain_seen(call, k, row);
        double most = -INFINITY, sum = 0;
        for (int64_t s = 0; s < seen; s++)
            most = fmax(most, weights[s] = scale * plain_dot(q, row, k, s, matrix));
        for (int64_t s = 0; s < seen; s++)
            sum += weights[s] = exp(weights[s] - most);
        for (int64_t d = 0; d < v->shape[3]; d++) {
            double y = 0;
            for (int64_t s = 0; s < seen; s++)
                y += weights[s] / sum * plain_get(v, matrix, s, d);
            plain_set(call->outputs[0], matrix, row, d, y);
        }
        plain_set(call->outputs[1], matrix, row, 0, most + log(sum));
    }
}

static void plain_add(const ctrt_view *to, int64_t row, double factor, const ctrt_view *from, int64_t from_row,
                      const int64_t *matrix)
{
    for (int64_t e = 0; e < to->shape[3]; e++)
        plain_set(to, matrix, row, e, plain_get(to, matrix, row, e) + factor * plain_get(from, matrix, from_row, e));
}

static void plain_backward(const ctrt_call *call, const int64_t *matrix, double *unused)
{
    const ctrt_view *dy = call->inputs[0], *q = call->inputs[1], *k = call->inputs[2], *v = call->inputs[3],
        *y = call->inputs[4];
    const double scale = ((const ctrt_attention_attributes *)call->attributes)->scale;
    (void)unused;
    for (int o = 0; o < 3; o++)
        for (int64_t row = 0; row < call->outputs[o]->shape[2]; row++)
            for (int64_t e = 0; e < call->outputs[o]->shape[3]; e++)
                plain_set(call->outputs[o], matrix, row, e, 0);
    for (int64_t row = 0; row < q->shape[2]; row++) {
        const double delta = plain_dot(dy, row, y, row, matrix), logsumexp = plain_get(call->inputs[5], matrix, row, 0);
        for (int64_t s = 0; s < plain_seen(call, k, row); s++) {
            const double p = exp(scale * plain_dot(q, row, k, s, matrix) - logsumexp),
                ds = p * (plain_dot(dy, row, v, s, matrix) - delta);
            plain_add(call->outputs[0], row, scale * ds, k, s, matrix);
            plain_add(call->outputs[1], s, scale * ds, q, row, matrix);
            plain_add(call->outputs[2], s, p, dy, row, matrix);
        }
    }
}

static ctrt_status plain_each(const ctrt_call *call, const ctrt_view *q, const ctrt_view *k,
                              void (*run)(const ctrt_call *, const int64_t *, double *))
{
    double *weights = malloc((size_t)k->shape[2] * sizeof *weights);
    if (weights == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    int64_t matrix[2];
    for (matrix[0] = 0; matrix[0] < q->shape[0]; matrix[0]++)
        for (matrix[1] = 0; matrix[1] < q->shape[1]; matrix[1]++)
            run(call, matrix, weights);
    free(weights);
    return CTRT_OK;
}

static ctrt_status plain_attention(const ctrt_call *call)
{
    return plain_each(call, call->inputs[0], call->inputs[1], plain_forward);
}

static ctrt_status plain_attention_backward(const ctrt_call *call)
{
    return plain_each(call, call->inputs[1], call->inputs[2], plain_backward);
}

#define PLAIN_KERNEL(name)                                                                                             \
    { .size = sizeof(ctrt_kernel), .op = #name, .dtypes = CTRT_DTYPE_BIT(CTRT_F32) | CTRT_DTYPE_BIT(CTRT_F64),      \
      .flags = CTRT_KERNEL_STRIDED, .run = plain_##name }
static const ctrt_kernel plain_kernels[] = { PLAIN_KERNEL(attention), PLAIN_KERNEL(attention_backward) };
static const ctrt_kernel_table plain_table = {
    .size = sizeof plain_table, .kernels = plain_kernels, .count = sizeof plain_kernels / sizeof plain_kernels[0],
    .stride = sizeof plain_kernels[0]
};

#endif
