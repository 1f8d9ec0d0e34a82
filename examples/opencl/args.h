/* SPDX-License-Identifier: Apache-2.0 */
/* args.h: structs that the host passes to kernels by value. Included by C and, before each .cl file, by OpenCL C. All
 * members have 8 bytes, so both compilers give the structs the same layout. */
#ifndef ARGS_H
#define ARGS_H

#ifdef __OPENCL_VERSION__
typedef long i64;
typedef ulong u64;
#else
#include <stdint.h>
typedef int64_t i64;
typedef uint64_t u64;
#endif

#define DIMS 8

/* What a kernel reports when it finds invalid data. The first report stays. */
struct failure {
    i64 code;                   /* FAILURE_*; 0: none */
    i64 sequence, value, limit, place;
};
#define FAILURE_INDEX   1
#define FAILURE_TARGET  2
#define FAILURE_DIVISOR 3

/* Elementwise ops. Operand 0 is the result. Numbers are the bits of a double if the operand is floating. */
struct elementwise_args {
    i64 n, chunk;               /* elements, and elements of a work-group */
    i64 contiguous;             /* all operands but scalars are contiguous */
    i64 scalars;                /* bit i: input i is the number, not a tensor */
    i64 number[3];
    i64 lo, hi;                 /* of clamp and fill */
    i64 flags;                  /* clamp: 1 has lo, 2 has hi; gelu: 1 tanh */
    i64 sequence;
    i64 ndim, shape[DIMS], strides[4][DIMS];
};

/* Reductions: the kept and the reduced dimensions of x. */
struct reduce_args {
    i64 outputs, chunk;         /* results, and results of a work-group */
    i64 count;                  /* elements of a result */
    i64 parts, part;            /* each result is reduced in parts of `part` elements, which a second launch joins */
    i64 kept, kept_shape[DIMS], kept_strides[DIMS];
    i64 reduced, reduced_shape[DIMS], reduced_strides[DIMS];    /* the last one apart: */
    i64 inner, inner_stride, kept_inner;
};

/* Maps an index to an offset: three digits of the index, each times a stride. size[0] is not needed. */
struct axis {
    i64 size1, size2, stride0, stride1, stride2;
};

/* C[m, n] = sum over k of A[m, k] B[k, n], plus a bias of m or n; `batch` times. */
struct product_args {
    i64 m, n, k;
    struct axis a_m, a_k, b_k, b_n, c_m, c_n;
    struct axis a_batch, b_batch, c_batch;
    i64 tiles_m, tiles_n;
    i64 bias_m, bias_n, bias_batch;     /* element of the bias: these times m, n and batch */
};

/* Copies images into zeroed, larger ones: element (y, x) goes to (top + y * spread_y, left + x * spread_x). */
struct pad_args {
    i64 planes, chunk, h, w, to_h, to_w, top, left, spread_y, spread_x;
};

/* Ops on rows: x[rows, n, inner]. */
struct row_args {
    i64 rows, n, inner, chunk;
    double epsilon, momentum;
    i64 wide;                   /* bit i: parameter i is wider than x */
    i64 training, ignore, sequence;
    double smoothing;
};

struct pool_args {
    i64 planes, h, w, out_h, out_w, chunk;
    i64 window[2], stride[2], padding[2], dilation[2];
};

/* x[outer, rows, inner] and index[m], or index[outer, m, inner]. */
struct index_args {
    i64 outer, rows, inner, m, chunk;
    i64 value;                  /* index_add: the index that is skipped; tril, triu: the diagonal */
    i64 upper;
    i64 sequence;
};

struct random_args {
    i64 n, chunk;
    u64 seed, offset;
    double a, b;
    i64 lo, range;
    i64 one;
};

struct range_args {
    i64 n, chunk, first, step;
    double start, stride;
};

#define OPTIM_TENSORS 12        /* of one launch */
struct optim_args {
    i64 tensors, n[OPTIM_TENSORS], end[OPTIM_TENSORS], chunk;   /* end: the last group of each tensor, plus 1 */
    double lr, momentum, gain, weight_decay, sign;
    double beta1, beta2, decay, step_size, correction, epsilon;
    i64 nesterov, first;
};

#endif
