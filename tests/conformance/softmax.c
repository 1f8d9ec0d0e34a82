/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c: softmax and losses. */
#include "suite.h"

/* ---- softmax, log_softmax: n[0] dim ---- */

static const struct variant softmaxes[] = {
    { "last", NORMAL, .in = { S(3, 4, 5) }, .n = { -1 } },
    { "first", NORMAL, .in = { S(3, 4, 5) }, .n = { 0 } },
    { "middle", NORMAL, .in = { S(3, 4, 5) }, .n = { 1 } },
    { "one", NORMAL, .in = { S(4, 1) }, .n = { 1 } },
    { "no rows", ZERO_SIZE, .in = { S(0, 4) }, .n = { 1 } },
    { "empty rows", ZERO_SIZE, .in = { S(4, 0) }, .n = { 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 0 } },
    { "rows", LARGE, .in = { S(37, 131) }, .n = { 1 } },
    { "columns", LARGE, .in = { S(131, 37) }, .n = { 0 } },
    { "short rows", SPECIAL, .in = { S(13, 5) }, .n = { 1 } },          /* some without NaN or inf */
    { "columns", SPECIAL, .in = { S(7, 13) }, .n = { 0 } },
};

/* Of softmax, or of log_softmax if that is the op. */
REFERENCE(softmax)
{
    const bool logarithm = op->name[0] == 'l';
    int dim = dim_of(v->n[0], in->ndim);
    int64_t n = in->ndim ? in->shape[dim] : 1, inner = 1;
    for (int d = dim + 1; d < in->ndim; d++)
        inner *= in->shape[d];
    array_make_sum(out, in->dtype, in->ndim, in->shape);
    for (int64_t row = 0; n > 0 && row < out->numel / n; row++) {
        const int64_t first = row / inner * n * inner + row % inner;
        double most = -INFINITY, sum = 0;
        for (int64_t k = first; k < first + n * inner; k += inner)
            most = fmax(most, in->f[k]);
        for (int64_t k = first; k < first + n * inner; k += inner)
            sum += out->f[k] = exp(in->f[k] - most);
        for (int64_t k = first; k < first + n * inner; k += inner) {
            out->f[k] = logarithm ? in->f[k] - most - log(sum) : out->f[k] / sum;
            out->size[k] = logarithm ? fabs(in->f[k]) + fabs(most) + log(sum) : out->f[k];
        }
    }
}

CALLS(softmax, ctrt_softmax(out, in[0], (int)v->n[0]))
CALLS(log_softmax, ctrt_log_softmax(out, in[0], (int)v->n[0]))

/* Rows of large logits that must not overflow, among them -inf, whose probability is 0. A row with a NaN or with only
 * -inf is NaN, and changes no other row. */
static void check_rows(struct run *run)
{
    static const int64_t lengths[] = { 3, 19, 35, 67, 300 };
    const struct variant v = { .n = { 1 } };
    const struct check_op op = { .name = run->kernel };
    for (int l = 0; l < COUNT_OF(lengths) && !run->skipped; l++) {
        CTRT_AUTO(tensor) tensor = NULL;
        struct dice dice = { run->options->seed };
        struct array x, want;
        const int64_t n = lengths[l];
        array_make(&x, run->dtype, 2, (int64_t[]){ 4, n });
        for (int64_t k = 0; k < x.numel; k++)
            value_set(&x, k, k / n == 3 ? -INFINITY : 1000 + 8 * dice_unit(&dice));
        x.f[1] = -INFINITY;
        x.f[n + 2] = NAN;
        softmax_reference(&want, &x, &v, &op);
        if (upload(run, &tensor, &x, false)
            && check_call(run, (*op.name == 'l' ? ctrt_log_softmax : ctrt_softmax)(&tensor, tensor, 1), x.dtype,
                          "rows"))
            check_tensor(run, "result", tensor, &want, COMPOSED, compute_dtype(x.dtype));
    }
}

/* ---- cross_entropy: logits [N, C, ...], target, class weights. n[0] reduction, n[1] 1 + ignored index or 0,
 *      n[7] C; x[0] smoothing ---- */

static const struct variant entropies[] = {
    { "mean", NORMAL, .in = { S(5, 4), S(5), NONE }, .n = { CTRT_REDUCE_MEAN, [7] = 4 } },
    { "sum", NORMAL, .in = { S(5, 4), S(5), NONE }, .n = { CTRT_REDUCE_SUM, [7] = 4 } },
    { "none", NORMAL, .in = { S(5, 4), S(5), NONE }, .n = { CTRT_REDUCE_NONE, [7] = 4 } },
    { "ignored", NORMAL, .in = { S(7, 3), S(7), NONE }, .n = { CTRT_REDUCE_MEAN, 2, [7] = 3 } },
    { "weighted", NORMAL, .in = { S(5, 4), S(5), S(4) }, .n = { CTRT_REDUCE_MEAN, [7] = 4 } },
    { "weighted, none", NORMAL, .in = { S(5, 4), S(5), S(4) }, .n = { CTRT_REDUCE_NONE, 1, [7] = 4 } },
    { "smoothed", NORMAL, .in = { S(5, 4), S(5), NONE }, .n = { CTRT_REDUCE_MEAN, [7] = 4 }, .x = { 0.125 } },
    { "smoothed, weighted, ignored", NORMAL, .in = { S(7, 4), S(7), S(4) },
      .n = { CTRT_REDUCE_MEAN, 3, [7] = 4 }, .x = { 0.25 } },
    { "images", NORMAL, .in = { S(2, 3, 2, 2), S(2, 2, 2), NONE }, .n = { CTRT_REDUCE_MEAN, [7] = 3 } },
    { "no rows, sum", ZERO_SIZE, .in = { S(0, 4), S(0), NONE }, .n = { CTRT_REDUCE_SUM, [7] = 4 } },
    { "no rows, none", ZERO_SIZE, .in = { S(0, 4), S(0), NONE }, .n = { CTRT_REDUCE_NONE, [7] = 4 } },
    { "", LARGE, .in = { S(67, 129), S(67), NONE }, .n = { CTRT_REDUCE_MEAN, [7] = 129 } },
};

REFERENCE(entropy)
{
    const struct array *x = &in[0], *target = &in[1];
    int64_t classes = x->shape[1], inner = 1, rows = target->numel, ignored = v->n[1] ? v->n[1] - 1 : -100;
    for (int d = 2; d < x->ndim; d++)
        inner *= x->shape[d];
    bool none = v->n[0] == CTRT_REDUCE_NONE;
    array_make_sum(out, x->dtype, none ? target->ndim : 0, target->shape);
    double total = 0, weights = 0, total_size = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *row = x->f + r / inner * classes * inner + r % inner;
        int64_t y = target->i[r];
        if (y == ignored)
            continue;
        double most = -INFINITY, sum = 0, loss = 0, size = 0;
        for (int64_t c = 0; c < classes; c++)
            most = fmax(most, row[c * inner]);
        for (int64_t c = 0; c < classes; c++)
            sum += exp(row[c * inner] - most);
        for (int64_t c = 0; c < classes; c++) {
            double weight = present(v, 2) ? in[2].f[c] : 1,
                   share = v->x[0] / (double)classes + (c == y ? 1 - v->x[0] : 0);
            loss += share * weight * (most + log(sum) - row[c * inner]);
            size += share * weight * (log(sum) + fabs(row[c * inner] - most));
        }
        total += loss;
        total_size += size;
        weights += present(v, 2) ? in[2].f[y] : 1;
        if (none) {
            out->f[r] = loss;
            out->size[r] = size;
        }
    }
    if (!none) {
        double by = v->n[0] == CTRT_REDUCE_MEAN ? weights : 1;
        out->f[0] = total / by;
        out->size[0] = total_size / by;
    }
}

CALL(entropy)
{
    ctrt_cross_entropy_options options = {
        sizeof(ctrt_cross_entropy_options), .weight = in[2],
        .ignore_index = v->n[1] != 0 ? v->n[1] - 1 : -100,
        .label_smoothing = v->x[0],
        .reduction = (ctrt_reduction)v->n[0],
    };
    return ctrt_cross_entropy(out, in[0], in[1], &options);
}

/* Rows of equal large logits and one that is smaller by `gap`. The logarithm of the sum is negligible compared with the
 * logit, so an implementation that adds them loses the loss and the gradient. */
struct height { double logit, gap, smoothing; int64_t classes; };

static void check_height(struct run *run)
{
    enum { ROWS = 3 };
    const struct height *h = run->data;
    const ctrt_dtype dtype = run->dtype;
    const double below = round_to(dtype, h->logit) - h->gap, rest = exp(-h->gap),
                 log_sum = log((double)(h->classes - 1) + rest), soft = h->smoothing / (double)h->classes,
                 rounding = 64 * epsilon_of(compute_dtype(dtype))
                            + (dtype == compute_dtype(dtype) ? 0 : epsilon_of(dtype));
    struct array x, target, loss, grad;
    CTRT_AUTO(tensor) logits = NULL, index = NULL, y = NULL, dx = NULL;
    array_make(&x, dtype, 2, (int64_t[]){ ROWS, h->classes });
    array_make(&grad, dtype, 2, x.shape);
    array_make(&target, CTRT_I64, 1, x.shape);
    array_make(&loss, dtype, 0, NULL);
    for (int64_t row = 0; row < ROWS; row++) {
        target.i[row] = row * (h->classes - 1) / (ROWS - 1);
        loss.f[0] += log_sum + (soft + (target.i[row] ? 0 : 1 - h->smoothing)) * h->gap;
        for (int64_t c = 0; c < h->classes; c++) {
            const double share = soft + (c == target.i[row] ? 1 - h->smoothing : 0);
            x.f[row * h->classes + c] = c ? round_to(dtype, h->logit) : below;
            grad.f[row * h->classes + c] = (c ? 1 : rest) / exp(log_sum) - share;
        }
    }
    const ctrt_cross_entropy_options options = { sizeof(ctrt_cross_entropy_options), .ignore_index = -100,
                                                 .label_smoothing = h->smoothing, .reduction = CTRT_REDUCE_SUM };
    if (upload(run, &logits, &x, true) && upload(run, &index, &target, false)
        && check_call(run, ctrt_cross_entropy(&y, logits, index, &options), dtype, "the call")
        && check_ok(run, ctrt_grad(&dx, y, &logits, 1, NULL, false, false, false), "backward")) {
        check_tensor_near(run, "loss", y, &loss, rounding, 0);
        check_tensor_near(run, "gradient", dx, &grad, rounding, 1 / (double)h->classes);
    }
}

#define HEIGHT(dtype, logit, gap, classes, smoothing, words)                                                \
    { "cross_entropy", "gradient", #classes " logits of " #logit ", " #gap " apart" words, BIT(dtype),      \
      .run = check_height, .data = &(const struct height){ logit, gap, smoothing, classes } },
#define HEIGHTS(dtype, logit, gap)                                                                          \
    HEIGHT(dtype, logit, gap, 4, 0, "")     HEIGHT(dtype, logit, gap, 4, 0.125, ", smoothed")               \
    HEIGHT(dtype, logit, gap, 37, 0, "")    HEIGHT(dtype, logit, gap, 37, 0.125, ", smoothed")              \
    HEIGHT(dtype, logit, gap, 5000, 0, "")  HEIGHT(dtype, logit, gap, 5000, 0.125, ", smoothed")

/* ---- mse_loss: n[0] reduction ---- */

static const struct variant squares[] = {
    { "mean", NORMAL, .in = { S(3, 5), S(3, 5) }, .n = { CTRT_REDUCE_MEAN } },
    { "sum", NORMAL, .in = { S(3, 5), S(3, 5) }, .n = { CTRT_REDUCE_SUM } },
    { "none", NORMAL, .in = { S(3, 5), S(3, 5) }, .n = { CTRT_REDUCE_NONE } },
    { "nothing", ZERO_SIZE, .in = { S(0, 5), S(0, 5) }, .n = { CTRT_REDUCE_SUM } },
    { "", ZERO_DIM, .in = { S0, S0 }, .n = { CTRT_REDUCE_MEAN } },
    { "", LARGE, .in = { S(5003), S(5003) }, .n = { CTRT_REDUCE_MEAN } },
};

REFERENCE(mse)
{
    bool none = v->n[0] == CTRT_REDUCE_NONE;
    array_make_sum(out, in->dtype, none ? in->ndim : 0, in->shape);
    for (int64_t k = 0; k < in->numel; k++) {
        double difference = in[0].f[k] - in[1].f[k], by = v->n[0] == CTRT_REDUCE_MEAN ? (double)in->numel : 1;
        out->f[none ? k : 0] += difference * difference / by;
        out->size[none ? k : 0] += (fabs(in[0].f[k]) + fabs(in[1].f[k])) * fabs(difference) / by;
    }
}

CALLS(mse, ctrt_mse_loss(out, in[0], in[1], (ctrt_reduction)v->n[0]))

/* ---- the rows ---- */

#define ANY { REAL, -3, 3 }

static const struct check_op ops[] = {
    { "softmax", .flags = GRAD2, .tolerance = COMPOSED, .in = { ANY }, USES(softmax, softmax, softmaxes) },
    { "log_softmax", .flags = GRAD2, .tolerance = COMPOSED, .in = { ANY }, USES(log_softmax, softmax, softmaxes) },
    { "cross_entropy", .flags = GRAD2 | TIES, .tolerance = COMPOSED,
      .in = { ANY, { INDEX }, { CONSTANT, 0.25, 2 } }, USES(entropy, entropy, entropies) },
    { "mse_loss", .kernel = "mean", .dtypes = FLOATS, .flags = GRAD | GRAD2, .tolerance = COMPOSED,
      .in = { ANY, ANY }, USES(mse, mse, squares) },
};

static const struct check_special specials[] = {
    { "softmax", "forward", "large and infinite logits", FLOATS, .run = check_rows },
    { "log_softmax", "forward", "large and infinite logits", FLOATS, .run = check_rows },
    HEIGHTS(F32, 1e4, 0.5)  HEIGHTS(F32, 3e38, 0)    HEIGHTS(F32, -1e6, 1)  HEIGHTS(F64, 1e12, 1)
    HEIGHTS(F64, -1e300, 0) HEIGHTS(F16, 2048, 2)    HEIGHTS(F16, -65504, 0)
    HEIGHTS(BF16, 512, 4)   HEIGHTS(BF16, 3e38, 0)
};

const struct family softmax_family = { "softmax", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
