/* SPDX-License-Identifier: Apache-2.0 */
/* Tests first and second derivatives against finite differences for forms of ops that the conformance suite does not
 * cover: scalar operands, products of vectors and batches, weights and reductions of losses, views, in-place changes.
 * Also tests that no graph nodes are leaked. */
#include "gradcheck.h"

/* ---- the functions under test ---- */

#define F(name, ...)                                                                                      \
    static ctrt_status name(ctrt_tensor **out, ctrt_tensor *const *in, const void *argument)              \
    {                                                                                                     \
        (void)argument;                                                                                   \
        __VA_ARGS__                                                                                       \
    }
#define UNARY(op) F(f_##op, return ctrt_##op(out, in[0]);)
#define BINARY(op) F(f_##op, return ctrt_##op(out, in[0], in[1]);)

UNARY(exp) BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(matmul)
F(f_gelu_tanh, return ctrt_gelu(out, in[0], true);)
F(f_clamp_lo, return ctrt_clamp_min(out, in[0], ctrt_float(-0.5));)
F(f_add_scalar, return ctrt_add_scalar(out, in[0], ctrt_float(2.5));)
F(f_sub_scalar, return ctrt_sub_scalar(out, in[0], ctrt_float(2.5));)
F(f_rsub_scalar, return ctrt_rsub_scalar(out, in[0], ctrt_float(2.5));)
F(f_mul_scalar, return ctrt_mul_scalar(out, in[0], ctrt_float(2.5));)
F(f_div_scalar, return ctrt_div_scalar(out, in[0], ctrt_float(2.5));)
F(f_rdiv_scalar, return ctrt_rdiv_scalar(out, in[0], ctrt_float(2.5));)
F(f_pow_scalar, return ctrt_pow_scalar(out, in[0], ctrt_float(3));)
F(f_pow_scalar_int, return ctrt_pow_scalar(out, in[0], ctrt_int(2));)
F(f_pow_zero, return ctrt_pow_scalar(out, in[0], ctrt_float(0));)
F(f_rpow_scalar, return ctrt_rpow_scalar(out, in[0], ctrt_float(1.7));)
F(f_maximum_scalar, return ctrt_maximum_scalar(out, in[0], ctrt_float(0.1));)
F(f_minimum_scalar, return ctrt_minimum_scalar(out, in[0], ctrt_float(0.1));)
F(f_remainder_scalar, return ctrt_remainder_scalar(out, in[0], ctrt_float(0.7));)

F(f_sum, return ctrt_sum(out, in[0], CTRT_ALL_DIMS);)
F(f_sum_dims, return ctrt_sum_dims(out, in[0], CTRT_DIMS(0, 2), false);)
F(f_sum_keep, return ctrt_sum_dims(out, in[0], CTRT_DIMS(-1), true);)
F(f_mean_dims, return ctrt_mean_dims(out, in[0], CTRT_DIMS(1), false);)
F(f_prod_dims, return ctrt_prod_dims(out, in[0], CTRT_DIMS(0, 2), false);)
F(f_prod_keep, return ctrt_prod_dims(out, in[0], CTRT_DIMS(1), true);)
F(f_amin, return ctrt_amin(out, in[0], CTRT_DIMS(0, 2), true);)

F(f_linear, return ctrt_linear(out, in[0], in[1], in[2]);)
F(f_linear_no_bias, return ctrt_linear(out, in[0], in[1], NULL);)
F(f_matmul_t, ctrt_tensor *t = NULL; CTRT_TRY(ctrt_transpose(&t, in[1], -2, -1)); ctrt_status s = ctrt_matmul(out, in[0], t);
  ctrt_tensor_release(&t); return s;)

F(f_conv2d_no_bias, return ctrt_conv2d(out, in[0], in[1], NULL, argument);)

F(f_softmax_0, return ctrt_softmax(out, in[0], 0);)
F(f_cross_entropy, return ctrt_cross_entropy(out, in[0], in[1], argument);)
F(f_cross_entropy_weighted, ctrt_cross_entropy_options o = *(const ctrt_cross_entropy_options *)argument; o.weight = in[2];
  return ctrt_cross_entropy(out, in[0], in[1], &o);)

F(f_layer_norm_2, return ctrt_layer_norm(out, in[0], CTRT_SHAPE(3, 4), in[1], in[2], 1e-5);)
F(f_layer_norm_plain, return ctrt_layer_norm(out, in[0], CTRT_SHAPE(4), NULL, NULL, 1e-5);)
F(f_batch_norm, return ctrt_batch_norm(out, in[0], in[1], in[2], NULL, NULL, true, 0.1, 1e-5);)
F(f_batch_norm_plain, return ctrt_batch_norm(out, in[0], NULL, NULL, NULL, NULL, true, 0.1, 1e-5);)
F(f_batch_norm_eval, ctrt_tensor *mean = NULL, *var = NULL; ctrt_status s = ctrt_full(&mean, CTRT_SHAPE(3), ctrt_float(0.3), CTRT_F64, NULL);
  if (!s) s = ctrt_full(&var, CTRT_SHAPE(3), ctrt_float(1.4), CTRT_F64, NULL);
  if (!s) s = ctrt_batch_norm(out, in[0], in[1], in[2], mean, var, false, 0.1, 1e-5);
  ctrt_tensor_release(&mean); ctrt_tensor_release(&var); return s;)

F(f_dropout, ctrt_manual_seed(7); return ctrt_dropout(out, in[0], 0.4, true);)

F(f_reshape, return ctrt_reshape(out, in[0], CTRT_SHAPE(4, -1));)
F(f_reshape_copy, ctrt_tensor *f = NULL; CTRT_TRY(ctrt_permute(&f, in[0], CTRT_DIMS(2, 0, 1))); ctrt_status s = ctrt_reshape(out, f, CTRT_SHAPE(-1));
  ctrt_tensor_release(&f); return s;)
F(f_as_strided, return ctrt_as_strided(out, in[0], CTRT_SHAPE(2, 3), CTRT_SHAPE(5, 2), 1);)
F(f_as_strided_overlap, return ctrt_as_strided(out, in[0], CTRT_SHAPE(3, 4), CTRT_SHAPE(2, 1), 1);)
F(f_as_strided_repeat, return ctrt_as_strided(out, in[0], CTRT_SHAPE(3, 4), CTRT_SHAPE(0, 1), 1);)
F(f_as_strided_of_view, ctrt_tensor *t = NULL; CTRT_TRY(ctrt_slice(&t, in[0], 0, 1, 3, 1)); ctrt_status s = ctrt_transpose(&t, t, 0, 1);
  if (!s) s = ctrt_as_strided(out, t, CTRT_SHAPE(3, 2), CTRT_SHAPE(3, 1), 4); ctrt_tensor_release(&t); return s;)
F(f_as_strided_of_expanded, ctrt_tensor *t = NULL; CTRT_TRY(ctrt_expand(&t, in[0], CTRT_SHAPE(5, 3, 4)));
  ctrt_status s = ctrt_as_strided(out, t, CTRT_SHAPE(4, 2), CTRT_SHAPE(3, 1), 1); ctrt_tensor_release(&t); return s;)
F(f_cat, return ctrt_cat(out, in, 3, 1);)
F(f_cat_many, ctrt_tensor *many[12]; for (int i = 0; i < 12; i++) many[i] = in[i % 2]; return ctrt_cat(out, many, 12, 0);)
F(f_chunk, ctrt_tensor *p[3] = {NULL}; int n; CTRT_TRY(ctrt_chunk(p, &n, in[0], 3, 2)); ctrt_status s = ctrt_mul(out, p[0], p[1]);
  for (int i = 0; i < n; i++) ctrt_tensor_release(&p[i]); return s;)

/* In-place ops run on a clone, so that the input stays a leaf. */
#define INPLACE(name, ...) F(name, CTRT_TRY(ctrt_clone(out, in[0])); ctrt_tensor *y = *out; (void)y; __VA_ARGS__)
INPLACE(f_add_, return ctrt_add_(y, in[1]);)
INPLACE(f_mul_, return ctrt_mul_(y, in[1]);)
INPLACE(f_div_, return ctrt_div_(y, in[1]);)
INPLACE(f_exp_, return ctrt_exp_(y);)
INPLACE(f_relu_, return ctrt_relu_(y);)
INPLACE(f_sigmoid_, return ctrt_sigmoid_(y);)
INPLACE(f_tanh_, return ctrt_tanh_(y);)
INPLACE(f_mul_self, return ctrt_mul_(y, y);)
INPLACE(f_chain_, CTRT_TRY(ctrt_mul_(y, in[1])); CTRT_TRY(ctrt_add_(y, in[1])); CTRT_TRY(ctrt_mul_scalar_(y, ctrt_float(0.7))); return ctrt_exp_(y);)
INPLACE(f_clamp_, CTRT_TRY(ctrt_mul_scalar_(y, ctrt_float(1.5))); return ctrt_clamp_min_(y, ctrt_float(-0.5));)
INPLACE(f_copy_, CTRT_TRY(ctrt_mul(&y, y, in[0])); ctrt_tensor *t = NULL; ctrt_status s = ctrt_slice(&t, y, 0, 0, 2, 1);
        if (!s) s = ctrt_copy_(t, in[1]); ctrt_tensor_release(&t); *out = y; return s;)
INPLACE(f_masked_fill_, ctrt_tensor *c = NULL; CTRT_TRY(ctrt_gt_scalar(&c, in[0], ctrt_float(0)));
        ctrt_status s = ctrt_masked_fill_(y, c, ctrt_float(3)); ctrt_tensor_release(&c); return s;)
INPLACE(f_fill_row, ctrt_tensor *t = NULL; CTRT_TRY(ctrt_select(&t, y, 0, 1)); ctrt_status s = ctrt_fill_(t, ctrt_float(2));
        ctrt_tensor_release(&t); if (!s) s = ctrt_mul(out, y, in[0]); return s;)
/* In-place ops on the views a and b of y. b is selected from c, a view created before y was changed. */
INPLACE(f_view_, ctrt_tensor *a = NULL, *b = NULL, *c = NULL; ctrt_status s = ctrt_select(&a, y, 0, 0); if (!s) s = ctrt_transpose(&c, y, 0, 1);
        if (!s) s = ctrt_mul_(a, in[1]); if (!s) s = ctrt_select(&b, c, 1, 1); if (!s) s = ctrt_add_(b, a); if (!s) s = ctrt_exp_(b);
        if (!s) s = ctrt_mul(&b, b, a); if (!s) s = ctrt_mul(out, y, b); if (!s) s = ctrt_add(out, *out, y);
        ctrt_tensor_release(&a); ctrt_tensor_release(&b); ctrt_tensor_release(&c); return s;)
INPLACE(f_row_times_row, ctrt_tensor *a = NULL, *b = NULL; ctrt_status s = ctrt_select(&a, y, 0, 0); if (!s) s = ctrt_select(&b, y, 0, 1);
        if (!s) s = ctrt_mul_(a, b); ctrt_tensor_release(&a); ctrt_tensor_release(&b); return s;)
/* An in-place op on the view v of a constant makes the constant require grad. The view w, created before the op, must
 * require grad too. */
F(f_into_constant, ctrt_tensor *base = NULL, *v = NULL, *w = NULL; ctrt_status s = ctrt_ones(&base, CTRT_SHAPE(3, 4), CTRT_F64, NULL);
  if (!s) s = ctrt_slice(&v, base, 0, 0, 2, 1); if (!s) s = ctrt_select(&w, base, 1, 2); if (!s) s = ctrt_mul_(v, in[0]);
  if (!s) s = ctrt_mul(&w, w, w); if (!s) s = ctrt_unsqueeze(&w, w, 1); if (!s) s = ctrt_mul(out, base, w);
  ctrt_tensor_release(&base); ctrt_tensor_release(&v); ctrt_tensor_release(&w); return s;)
/* The base is dense but not contiguous, because it is computed from a transposed tensor. */
F(f_strided_base, ctrt_tensor *t = NULL, *v = NULL; ctrt_status s = ctrt_transpose(&t, in[0], 0, 1); if (!s) s = ctrt_mul_scalar(&t, t, ctrt_float(2));
  if (!s) s = ctrt_slice(&v, t, 0, 1, 3, 1); if (!s) s = ctrt_mul_(v, v); if (!s) s = ctrt_mul(out, t, t);
  ctrt_tensor_release(&t); ctrt_tensor_release(&v); return s;)

/* ---- the cases ---- */

enum kind { ANY, POSITIVE, SEPARATE, INDEX, ZEROS };            /* SEPARATE: distinct elements; ZEROS: some are 0 */
#define NDIM(...) {__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static const ctrt_conv2d_options conv_full = {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
static const ctrt_cross_entropy_options ce_mean = {0}, ce_none = {.reduction = CTRT_REDUCE_NONE, .label_smoothing = 0.2},
    ce_ignore = {.has_ignore_index = true, .ignore_index = 1, .label_smoothing = 0.1, .reduction = CTRT_REDUCE_SUM};

struct input {
    enum kind kind;
    int64_t shape[5];
    int ndim;
    int64_t limit;                  /* INDEX: elements are below it */
};
#define IN(kind, ...) {kind, NDIM(__VA_ARGS__), 0}
#define AT(limit, ...) {INDEX, NDIM(__VA_ARGS__), limit}
#define SCALAR(kind) {kind, {0}, 0, 0}

static const struct rule_case {
    const char *name;
    gradcheck_function function;
    int n_in, n_grad;
    struct input in[GRADCHECK_INPUTS];
    const void *argument;
    bool only_first;
} cases[] = {
    {"exp 0-dim", f_exp, 1, 1, {SCALAR(ANY)}, NULL, false},
    {"gelu by tanh", f_gelu_tanh, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"clamp from below", f_clamp_lo, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"add broadcast", f_add, 2, 2, {IN(ANY, 2, 1, 4), IN(ANY, 3, 1)}, NULL, false},
    {"add 0-dim", f_add, 2, 2, {IN(ANY, 3, 4), SCALAR(ANY)}, NULL, false},
    {"sub broadcast", f_sub, 2, 2, {IN(ANY, 4), IN(ANY, 3, 4)}, NULL, false},
    {"mul broadcast", f_mul, 2, 2, {IN(ANY, 3, 1), IN(ANY, 2, 3, 4)}, NULL, false},
    {"div broadcast", f_div, 2, 2, {IN(ANY, 3, 4), IN(POSITIVE, 1, 4)}, NULL, false},
    {"x + s", f_add_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"x - s", f_sub_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"s - x", f_rsub_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"x * s", f_mul_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"x / s", f_div_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"s / x", f_rdiv_scalar, 1, 1, {IN(POSITIVE, 3, 4)}, NULL, false},
    {"x ^ 3.0", f_pow_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"x ^ 2", f_pow_scalar_int, 1, 1, {IN(ZEROS, 3, 4)}, NULL, false},
    {"x ^ 0", f_pow_zero, 1, 1, {IN(POSITIVE, 3, 4)}, NULL, false},
    {"s ^ x", f_rpow_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"maximum with a number", f_maximum_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"minimum with a number", f_minimum_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"remainder of a number", f_remainder_scalar, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"sum 0-dim", f_sum, 1, 1, {SCALAR(ANY)}, NULL, false},
    {"sum of two dims", f_sum_dims, 1, 1, {IN(ANY, 2, 3, 4)}, NULL, false},
    {"sum keepdim", f_sum_keep, 1, 1, {IN(ANY, 2, 3)}, NULL, false},
    {"mean of a dim", f_mean_dims, 1, 1, {IN(ANY, 2, 3, 4)}, NULL, false},
    {"prod of two dims", f_prod_dims, 1, 1, {IN(POSITIVE, 2, 3, 2)}, NULL, false},
    {"prod keepdim", f_prod_keep, 1, 1, {IN(POSITIVE, 2, 3)}, NULL, false},
    {"prod with zeros", f_prod_keep, 1, 1, {IN(ZEROS, 4, 3)}, NULL, false},
    {"amin of two dims", f_amin, 1, 1, {IN(SEPARATE, 2, 3, 2)}, NULL, false},
    {"matmul", f_matmul, 2, 2, {IN(ANY, 2, 3), IN(ANY, 3, 4)}, NULL, false},
    {"matmul dot", f_matmul, 2, 2, {IN(ANY, 3), IN(ANY, 3)}, NULL, false},
    {"matmul matrix vector", f_matmul, 2, 2, {IN(ANY, 2, 3), IN(ANY, 3)}, NULL, false},
    {"matmul vector matrix", f_matmul, 2, 2, {IN(ANY, 3), IN(ANY, 3, 2)}, NULL, false},
    {"matmul batched", f_matmul, 2, 2, {IN(ANY, 2, 2, 3), IN(ANY, 2, 3, 2)}, NULL, false},
    {"matmul batch, matrix", f_matmul, 2, 2, {IN(ANY, 2, 2, 3), IN(ANY, 3, 2)}, NULL, false},
    {"matmul matrix, batch", f_matmul, 2, 2, {IN(ANY, 2, 3), IN(ANY, 2, 3, 2)}, NULL, false},
    {"matmul batch, vector", f_matmul, 2, 2, {IN(ANY, 2, 2, 3), IN(ANY, 3)}, NULL, false},
    {"matmul vector, batch", f_matmul, 2, 2, {IN(ANY, 3), IN(ANY, 2, 3, 2)}, NULL, false},
    {"matmul broadcast", f_matmul, 2, 2, {IN(ANY, 2, 1, 2, 3), IN(ANY, 1, 2, 3, 1)}, NULL, false},
    {"matmul transposed", f_matmul_t, 2, 2, {IN(ANY, 2, 3), IN(ANY, 4, 3)}, NULL, false},
    {"linear of a vector", f_linear, 3, 3, {IN(ANY, 3), IN(ANY, 4, 3), IN(ANY, 4)}, NULL, false},
    {"linear without bias", f_linear_no_bias, 2, 2, {IN(ANY, 2, 2, 3), IN(ANY, 2, 3)}, NULL, false},
    {"conv2d stride, padding, dilation, groups", f_conv2d_no_bias, 2, 2, {IN(ANY, 2, 2, 4, 4), IN(ANY, 2, 1, 2, 2)}, &conv_full, false},
    {"softmax of dim 0", f_softmax_0, 1, 1, {IN(ANY, 3, 2)}, NULL, false},
    {"cross_entropy", f_cross_entropy, 2, 1, {IN(ANY, 3, 4), AT(4, 3)}, &ce_mean, false},
    {"cross_entropy smoothed", f_cross_entropy, 2, 1, {IN(ANY, 3, 4), AT(4, 3)}, &ce_none, false},
    {"cross_entropy ignoring", f_cross_entropy, 2, 1, {IN(ANY, 5, 3), AT(3, 5)}, &ce_ignore, false},
    {"cross_entropy of images", f_cross_entropy, 2, 1, {IN(ANY, 2, 3, 2), AT(3, 2, 2)}, &ce_mean, false},
    {"cross_entropy weighted", f_cross_entropy_weighted, 3, 1, {IN(ANY, 4, 3), AT(3, 4), IN(POSITIVE, 3)}, &ce_ignore, false},
    {"layer_norm of two dims", f_layer_norm_2, 3, 3, {IN(ANY, 2, 3, 4), IN(ANY, 3, 4), IN(ANY, 3, 4)}, NULL, false},
    {"layer_norm without weight", f_layer_norm_plain, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"batch_norm", f_batch_norm, 3, 3, {IN(ANY, 2, 3, 2), IN(ANY, 3), IN(ANY, 3)}, NULL, false},
    {"batch_norm without weight", f_batch_norm_plain, 1, 1, {IN(ANY, 4, 2)}, NULL, false},
    {"batch_norm evaluation", f_batch_norm_eval, 3, 3, {IN(ANY, 2, 3, 2), IN(ANY, 3), IN(ANY, 3)}, NULL, false},
    {"dropout", f_dropout, 1, 1, {IN(ANY, 4, 5)}, NULL, false},
    {"reshape", f_reshape, 1, 1, {IN(ANY, 2, 3, 4)}, NULL, false},
    {"reshape with a copy", f_reshape_copy, 1, 1, {IN(ANY, 2, 3, 4)}, NULL, false},
    {"as_strided", f_as_strided, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"as_strided with overlap", f_as_strided_overlap, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"as_strided repeating", f_as_strided_repeat, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"as_strided of a view", f_as_strided_of_view, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"as_strided of an expanded tensor", f_as_strided_of_expanded, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"cat, one constant", f_cat, 3, 2, {IN(ANY, 2, 3), IN(ANY, 2, 1), IN(ANY, 2, 2)}, NULL, false},
    {"cat of many", f_cat_many, 2, 2, {IN(ANY, 2, 2), IN(ANY, 1, 2)}, NULL, false},
    {"chunk", f_chunk, 1, 1, {IN(ANY, 2, 2, 3)}, NULL, false},
    {"add_", f_add_, 2, 2, {IN(ANY, 3, 4), IN(ANY, 4)}, NULL, false},
    {"mul_", f_mul_, 2, 2, {IN(ANY, 3, 4), IN(ANY, 3, 4)}, NULL, false},
    {"div_", f_div_, 2, 2, {IN(ANY, 3, 4), IN(POSITIVE, 4)}, NULL, false},
    {"exp_", f_exp_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"relu_", f_relu_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"sigmoid_", f_sigmoid_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"tanh_", f_tanh_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"clamp_", f_clamp_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"mul_ by itself", f_mul_self, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"four changes in place", f_chain_, 2, 2, {IN(ANY, 3, 4), IN(ANY, 4)}, NULL, false},
    {"copy_ into a slice", f_copy_, 2, 2, {IN(ANY, 3, 4), IN(ANY, 4)}, NULL, false},
    {"masked_fill_", f_masked_fill_, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"fill_ of a row", f_fill_row, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"changes through views", f_view_, 2, 2, {IN(ANY, 3, 3), IN(ANY, 3)}, NULL, false},
    {"a row times another in place", f_row_times_row, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
    {"a constant written through a view", f_into_constant, 1, 1, {IN(ANY, 4)}, NULL, false},
    {"views of a transposed base", f_strided_base, 1, 1, {IN(ANY, 3, 4)}, NULL, false},
};

static ctrt_tensor *make(const struct input *input)
{
    ctrt_ints shape = ctrt_ints_of(input->shape, input->ndim);
    ctrt_tensor *tensor = NULL;
    if (input->kind == INDEX) {
        CHECK_OK(ctrt_empty(&tensor, shape, CTRT_I64, NULL));
        for (int64_t i = 0; i < ctrt_tensor_numel(tensor); i++)
            ((int64_t *)ctrt_tensor_data(tensor))[i] = (i * 7 + 1) % input->limit;
        return tensor;
    }
    tensor = input->kind == POSITIVE ? gradcheck_tensor(shape, 0.5, 1.5) : gradcheck_tensor(shape, -1.5, 1.5);
    int64_t n = ctrt_tensor_numel(tensor);
    for (int64_t i = 0; input->kind == SEPARATE && i < n; i++)      /* a permutation of steps of 0.13, jittered; never near 0 */
        gradcheck_values(tensor)[i] = 0.13 * (double)((i * 7 + 3) % (n % 7 ? n : n + 1)) - 0.7 + gradcheck_uniform(0, 0.02);
    for (int64_t i = 0; input->kind == ZEROS && i < n; i++)         /* rows with no, one and two zeros */
        if (i == 4 || i == 6 || i == 7)
            gradcheck_values(tensor)[i] = 0;
    return tensor;
}

/* The row of the padding index is looked up as any other row, but gets no gradient. */
static void padding(void)
{
    group("embedding: the padding row gets no gradient");
    ctrt_tensor *w = gradcheck_tensor(CTRT_SHAPE(3, 2), -1, 1), *at = NULL, *y = NULL, *d = NULL, *dd = NULL;
    const int64_t index[] = {2, 0, 2, 1, 0};
    CHECK_OK(ctrt_from_data(&at, index, 5, CTRT_SHAPE(5, 1), CTRT_I64, NULL));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_embedding(&y, w, at, 2));
    CHECK_OK(ctrt_mul(&y, y, y));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad(&d, y, &w, 1, NULL, true, true, false));
    const double times[] = {2, 1, 0};
    for (int i = 0; i < 6; i++)
        CHECK(fabs(gradcheck_values(d)[i] - 2 * times[i / 2] * gradcheck_values(w)[i]) < 1e-12, "gradient %d is %g", i, gradcheck_values(d)[i]);
    CHECK_OK(ctrt_sum(&d, d, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad(&dd, d, &w, 1, NULL, false, false, false));
    for (int i = 0; i < 6; i++)
        CHECK(gradcheck_values(dd)[i] == 2 * times[i / 2], "second derivative %d is %g", i, gradcheck_values(dd)[i]);
    ctrt_tensor_release(&w), ctrt_tensor_release(&at), ctrt_tensor_release(&y), ctrt_tensor_release(&d), ctrt_tensor_release(&dd);
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu device opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    padding();
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const struct rule_case *it = &cases[c];
        struct gradcheck g = {.function = it->function, .argument = it->argument, .n_in = it->n_in, .n_grad = it->n_grad};
        group("%s", it->name);
        for (int i = 0; i < it->n_in; i++)
            g.in[i] = make(&it->in[i]);
        gradcheck_run(it->name, &g, !it->only_first);
        for (int i = 0; i < it->n_in; i++)
            ctrt_tensor_release(&g.in[i]);
        CHECK(ctrt_autograd_live_nodes() == 0, "%s leaves %llu nodes", it->name, (unsigned long long)ctrt_autograd_live_nodes());
        CHECK(ctrt_autograd_saved_bytes() == 0, "%s leaves %llu saved bytes", it->name, (unsigned long long)ctrt_autograd_saved_bytes());
    }
    return done();
}
