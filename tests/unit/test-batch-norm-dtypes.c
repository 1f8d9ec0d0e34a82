/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm in every combination of the dtypes of input and parameters, training and evaluation, with and without
 * weight and bias, forward and backward, as a layer alone and as a SyncBatchNorm of two ranks, against formulas in
 * float64. */
#include "../options.h"
#include "comm_job.h"

enum { N = 4, C = 3, S = 6, RANKS = 2 };

static const struct dtypes {
    ctrt_dtype input, layer;            /* of the input, and of parameters and statistics */
    double epsilon;                     /* of the input's dtype */
} dtypes[] = {
    { CTRT_F64, CTRT_F64, 0x1p-52 }, { CTRT_F32, CTRT_F32, 0x1p-23 },
    { CTRT_F16, CTRT_F32, 0x1p-10 }, { CTRT_F16, CTRT_F16, 0x1p-10 },
    { CTRT_BF16, CTRT_F32, 0x1p-7 }, { CTRT_BF16, CTRT_BF16, 0x1p-7 },
};

/* Numbers that all dtypes represent, and their layer. */
static const double weights[C] = { 1.5, -0.5, 0.25 }, biases[C] = { 0.5, 2, -1 }, means[C] = { 0.25, -0.5, 0 },
                    variances[C] = { 1, 0.5, 4 };

static double x_of(int n, int c, int s) { return ((n * 7 + c * 5 + s * 3) % 16 - 6) * 0.25; }
static double dy_of(int n, int c, int s) { return ((n * 5 + c * 3 + s * 7) % 16 - 8) * 0.125; }

struct want {
    double y[N * C * S], dx[N * C * S], dweight[C], dbias[C], mean[C], variance[C];
};

/* All rows; dweight and dbias are sums over the rows from..from+rows-1. */
static void reference(struct want *want, bool affine, bool training, int from, int rows)
{
    const double count = N * S;
    for (int c = 0; c < C; c++) {
        double mean = 0, square = 0, sum = 0, product = 0;
        for (int i = 0; i < N * S; i++)
            mean += x_of(i / S, c, i % S) / count;
        for (int i = 0; i < N * S; i++)
            square += pow(x_of(i / S, c, i % S) - mean, 2) / count;
        want->mean[c] = training ? 0.9 * means[c] + 0.1 * mean : means[c];
        want->variance[c] = training ? 0.9 * variances[c] + 0.1 * square * count / (count - 1) : variances[c];
        if (!training) {
            mean = means[c];
            square = variances[c];
        }
        const double rstd = 1 / sqrt(square + 1e-5), weight = affine ? weights[c] : 1, bias = affine ? biases[c] : 0;
        want->dweight[c] = want->dbias[c] = 0;
        for (int i = 0; i < N * S; i++) {
            const double hat = (x_of(i / S, c, i % S) - mean) * rstd, dy = dy_of(i / S, c, i % S);
            const bool own = i / S >= from && i / S < from + rows;
            sum += dy;
            product += dy * hat;
            want->dbias[c] += own ? dy : 0;
            want->dweight[c] += own ? dy * hat : 0;
        }
        for (int i = 0; i < N * S; i++) {
            const int at = (i / S * C + c) * S + i % S;
            const double hat = (x_of(i / S, c, i % S) - mean) * rstd, dy = dy_of(i / S, c, i % S);
            want->y[at] = hat * weight + bias;
            want->dx[at] = weight * rstd * (training ? dy - sum / count - hat * product / count : dy);
        }
    }
}

static ctrt_tensor *rows_of(double (*value)(int, int, int), ctrt_dtype dtype, ctrt_device *device, int from, int rows)
{
    double values[N * C * S];
    ctrt_tensor *x = NULL;
    for (int i = 0; i < rows * C * S; i++)
        values[i] = value(from + i / (C * S), i / S % C, i % S);
    CHECK_OK(ctrt_from_data(&x, values, rows * C * S, CTRT_SHAPE(rows, C, 2, S / 2), CTRT_F64, device));
    CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    return x;
}

/* Sets a parameter or buffer of the layer. */
static void fill(ctrt_module *layer, const char *name, const double *values)
{
    ctrt_tensor *to = NULL;
    CTRT_AUTO(tensor) from = NULL;
    CHECK_OK(ctrt_module_tensor(&to, layer, name));
    CHECK_OK(ctrt_from_data(&from, values, C, CTRT_SHAPE(C), CTRT_F64, ctrt_tensor_device(to)));
    ctrt_no_grad CHECK_OK(ctrt_copy_(to, from));
}

/* Checks dtype and values; differences of `tolerance` times the greatest value are allowed. */
static void near(const char *what, ctrt_tensor *got, ctrt_dtype dtype, const double *want, int count, double tolerance)
{
    double values[N * C * S], most = 1e-3;
    if (!CHECK(got != NULL && ctrt_tensor_dtype(got) == dtype, "%s: missing, or of dtype %s", what,
               got != NULL ? ctrt_dtype_name(ctrt_tensor_dtype(got)) : "-")
        || !CHECK_OK(ctrt_to_host(values, sizeof values, got, CTRT_F64)))
        return;
    for (int i = 0; i < count; i++)
        most = fmax(most, fabs(want[i]));
    for (int i = 0; i < count; i++)
        CHECK(fabs(values[i] - want[i]) <= tolerance * most, "%s[%d]: %g, expected %g", what, i, values[i], want[i]);
}

static void layer_check(struct rank *rank, const struct dtypes *d, bool sync, bool affine, bool training)
{
    const int rows = sync ? N / RANKS : N, from = sync ? rows * rank->number : 0;
    /* Statistics and gradients of f32 parameters do not depend on the input's precision. */
    const double tolerance = 8 * d->epsilon, fine = 8 * (d->layer == CTRT_F32 ? 0x1p-23 : d->epsilon);
    CTRT_AUTO(module) layer = NULL;
    CTRT_AUTO(tensor) x = rows_of(x_of, d->input, rank->device, from, rows), y = NULL,
                      dy = rows_of(dy_of, d->input, rank->device, from, rows);
    ctrt_tensor *parameter = NULL;
    struct want want;
    char what[120];
    snprintf(what, sizeof what, "%s %s, layer %s, %s, %s:", sync ? "SyncBatchNorm" : "BatchNorm",
             ctrt_dtype_name(d->input), ctrt_dtype_name(d->layer), affine ? "affine" : "not affine",
             training ? "training" : "evaluation");
    reference(&want, affine, training, from, rows);
    CHECK_OK(sync ? ctrt_sync_batch_norm_new(&layer, C, NORM(.affine = affine), rank->comm, rank->device)
                  : ctrt_batch_norm2d_new(&layer, C, NORM(.affine = affine), rank->device));
    CHECK_OK(ctrt_module_to(layer, NULL, d->layer));
    fill(layer, "running_mean", means);
    fill(layer, "running_var", variances);
    if (affine) {
        fill(layer, "weight", weights);
        fill(layer, "bias", biases);
    }
    ctrt_module_train(layer, training);
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    if (!CHECK(ctrt_forward(&y, layer, x) == CTRT_OK, "%s %s", what, ctrt_error_message())
        || !CHECK(ctrt_backward_with(y, dy, false, false) == CTRT_OK, "%s %s", what, ctrt_error_message()))
        return;
    const long failed = tap_state.failed;
    near("y", y, d->input, want.y + from * C * S, rows * C * S, tolerance);
    near("dx", ctrt_tensor_grad(x), d->input, want.dx + from * C * S, rows * C * S, tolerance);
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = { "running_mean", "running_var", "weight", "bias" };
        const double *const values[] = { want.mean, want.variance, want.dweight, want.dbias };
        if (i >= 2 && !affine)
            break;
        CHECK_OK(ctrt_module_tensor(&parameter, layer, names[i]));
        near(names[i], i < 2 ? parameter : ctrt_tensor_grad(parameter), d->layer, values[i], C, 8 * fine);
    }
    CHECK(tap_state.failed == failed, "%s differs", what);
}

static void layers_check(struct rank *rank)
{
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int i = 0; i < 8; i++)
            layer_check(rank, &dtypes[d], i & 1, i & 2, i & 4);
}

TEST_MAIN
{
    for (enum kind kind = ON_CPU; kind <= ON_SIM; kind++) {
        group("batch norm of all dtypes, %s", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1")
            run_job(kind, RANKS, 20, layers_check, NULL, -1);
    }
    return done();
}
