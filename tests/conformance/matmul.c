/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c: matrix products and linear layers. */
#include "suite.h"

/* ---- matmul ---- */

static const struct variant matmuls[] = {
    { "dot", NORMAL, .in = { S(7), S(7) } },
    { "vector matrix", NORMAL, .in = { S(4), S(4, 3) } },
    { "matrix vector", NORMAL, .in = { S(3, 5), S(5) } },
    { "matrices", NORMAL, .in = { S(3, 5), S(5, 4) } },
    { "inner 1", NORMAL, .in = { S(3, 1), S(1, 4) } },
    { "row times column", NORMAL, .in = { S(1, 5), S(5, 1) } },
    { "batched", NORMAL, .in = { S(2, 3, 4), S(2, 4, 5) } },
    { "batch matrix", NORMAL, .in = { S(2, 3, 4), S(4, 5) } },
    { "matrix batch", NORMAL, .in = { S(3, 4), S(2, 4, 2) } },
    { "batch vector", NORMAL, .in = { S(2, 3, 4), S(4) } },
    { "vector batch", NORMAL, .in = { S(3), S(2, 3, 4) } },
    { "batches broadcast", NORMAL, .in = { S(2, 1, 3, 4), S(3, 4, 2) } },
    { "no inner", ZERO_SIZE, .in = { S(2, 0), S(0, 3) } },
    { "no rows", ZERO_SIZE, .in = { S(0, 4), S(4, 3) } },
    { "no columns", ZERO_SIZE, .in = { S(2, 4), S(4, 0) } },
    { "no batch", ZERO_SIZE, .in = { S(0, 2, 4), S(0, 4, 3) } },
    { "empty dot", ZERO_SIZE, .in = { S(0), S(0) } },
    { "", LARGE, .in = { S(67, 97), S(97, 65) } },
    { "batched", LARGE, .in = { S(5, 33, 70), S(5, 70, 17) } },
    { "wide", LARGE, .in = { S(130, 24), S(24, 140) } },
    { "deep", LARGE, .in = { S(5, 1300), S(1300, 13) } },
    { "deep and wide", LARGE, .in = { S(150, 530), S(530, 70) } },
    { "a row", LARGE, .in = { S(1, 70), S(70, 280) } },
    { "a column", LARGE, .in = { S(300, 65), S(65, 1) } },
    { "short", LARGE, .in = { S(9, 3), S(3, 1700) } },
    { "special values", SPECIAL, .in = { S(13, 13), S(13, 13) } },      /* each stays in its row and its column */
};

/* Computes with a as [batch..., M, K] and b as [batch..., K, N]. Vectors get a dim of size 1, which is removed from the
 * result. */
REFERENCE(matmul)
{
    struct array a = in[0], b = in[1];
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    bool left = a.ndim == 1, right = b.ndim == 1;
    if (left) {
        a.ndim = 2;
        a.shape[1] = a.shape[0];
        a.shape[0] = 1;
    }
    if (right) {
        b.ndim = 2;
        b.shape[1] = 1;
    }
    int ndim;
    broadcast_shape(shape, &ndim, (const struct array[]){ a, b }, 2);
    int64_t rows = a.shape[a.ndim - 2], inner = a.shape[a.ndim - 1], columns = b.shape[b.ndim - 1];
    shape[ndim - 2] = rows;
    shape[ndim - 1] = columns;
    (is_floating(in[0].dtype) ? array_make_sum : array_make)(out, in[0].dtype, ndim, shape);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, ndim, shape);
        int64_t column = index[ndim - 1], row = index[ndim - 2];
        for (int64_t e = 0; e < inner; e++) {
            index[ndim - 2] = row;
            index[ndim - 1] = e;
            int64_t x = offset_in(&a, index, ndim);
            index[ndim - 2] = e;
            index[ndim - 1] = column;
            int64_t y = offset_in(&b, index, ndim);
            if (out->f)
                add_term(out, k, a.f[x] * b.f[y]);
            else
                out->i[k] = wrap_to(out->dtype, (int64_t)((uint64_t)out->i[k] + (uint64_t)a.i[x] * (uint64_t)b.i[y]));
        }
    }
    if (left)                                           /* the same elements in the same order */
        out->shape[ndim - 2] = columns;
    out->ndim -= left + right;
}

CALLS(matmul, ctrt_matmul(out, in[0], in[1]))

/* ---- linear ---- */

static const struct variant linears[] = {
    { "", NORMAL, .in = { S(3, 5), S(4, 5), S(4) } },
    { "no bias", NORMAL, .in = { S(3, 5), S(4, 5), NONE } },
    { "vector", NORMAL, .in = { S(5), S(4, 5), S(4) } },
    { "three dims", NORMAL, .in = { S(2, 3, 5), S(4, 5), S(4) } },
    { "no rows", ZERO_SIZE, .in = { S(0, 5), S(4, 5), S(4) } },
    { "no inputs", ZERO_SIZE, .in = { S(3, 0), S(4, 0), S(4) } },
    { "", LARGE, .in = { S(37, 129), S(65, 129), S(65) } },
    { "few rows", LARGE, .in = { S(5, 129), S(65, 129), NONE } },
};

/* A matrix product with the transposed weight, and the bias added to its rows. */
REFERENCE(linear)
{
    struct array operands[2] = { in[0], in[1] };
    const int64_t columns = in[1].shape[0], inner = in[1].shape[1];
    array_make(&operands[1], in[1].dtype, 2, (int64_t[]){ inner, columns });
    for (int64_t k = 0; k < in[1].numel; k++)
        element_copy(&operands[1], k % inner * columns + k / inner, &in[1], k);
    matmul_reference(out, operands, v, op);
    for (int64_t k = 0; present(v, 2) && k < out->numel; k++)
        add_term(out, k, in[2].f[k % columns]);
}

CALLS(linear, ctrt_linear(out, in[0], in[1], in[2]))

#define ANY { REAL, -2, 2 }

static const struct check_op ops[] = {
    { "matmul", .flags = MATRICES | GRAD2, .tolerance = PRODUCTS, .in = { ANY, ANY }, USES(matmul, matmul, matmuls) },
    { "linear", .flags = MATRICES | GRAD2, .tolerance = PRODUCTS, .in = { ANY, ANY, ANY },
      USES(linear, linear, linears) },
};

const struct family matmul_family = { "matmul", FAMILY_OPS(ops) };
