/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/softmax_body.h: a body (body.h) that softmax.c includes once per type.
 *
 * A block is n rows of `width` adjacent columns, with rows `step` elements apart; each column is one softmax. A block
 * of width 1 and step 1 is a contiguous vector and has functions of its own. */

/* ---- one contiguous vector ---- */

static T NAME(largest)(const T *x, int64_t n)
{
    V best = OP(set)(-(T)INFINITY), other = best;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        best = OP(max)(best, OP(load)(x + i));
        other = OP(max)(other, OP(load)(x + i + LANES));
    }
    T rest = -(T)INFINITY;
    for (; i < n; i++)
        rest = x[i] > rest ? x[i] : rest;
    T all = OP(largest)(OP(max)(best, other));
    return rest > all ? rest : all;
}

/* Returns the sum of e^(x - shift); also stores the terms at y unless y is NULL. */
static T NAME(exponentials)(T *y, const T *x, T shift, int64_t n)
{
    V sum = OP(set)(0), other = sum;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const V e0 = OP(exp)(OP(load)(x + i) - shift), e1 = OP(exp)(OP(load)(x + i + LANES) - shift);
        if (y) {
            OP(store)(y + i, e0);
            OP(store)(y + i + LANES, e1);
        }
        sum += e0;
        other += e1;
    }
    for (; i < n; i += LANES) {
        const int left = n - i < LANES ? (int)(n - i) : LANES;
        const V e = OP(exp)(OP(load_n)(x + i, left) - shift);
        T lanes[LANES];
        OP(store)(lanes, e);
        if (y)
            OP(store_n)(y + i, e, left);
        OP(store)(lanes, e);
        sum += OP(load_n)(lanes, left);
    }
    return OP(sum)(sum + other);
}

static void NAME(softmax_vector)(T *y, const T *x, int64_t n)
{
    const T sum = NAME(exponentials)(y, x, NAME(largest)(x, n), n), factor = 1 / sum;
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

static void NAME(log_softmax_vector)(T *y, const T *x, int64_t n)
{
    const T shift = NAME(largest)(x, n), log_sum = NAME(log)(NAME(exponentials)(NULL, x, shift, n));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - shift - log_sum;
}

static void NAME(softmax_backward_vector)(T *dx, const T *dy, const T *y, int64_t n)
{
    V sum = OP(set)(0), other = sum;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        sum = OP(fma)(OP(load)(dy + i), OP(load)(y + i), sum);
        other = OP(fma)(OP(load)(dy + i + LANES), OP(load)(y + i + LANES), other);
    }
    for (; i < n; i += LANES) {
        const int left = n - i < LANES ? (int)(n - i) : LANES;
        sum = OP(fma)(OP(load_n)(dy + i, left), OP(load_n)(y + i, left), sum);
    }
    const T dot = OP(sum)(sum + other);
    for (i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - dot);
}

static void NAME(log_softmax_backward_vector)(T *dx, const T *dy, const T *y, int64_t n)
{
    V total = OP(set)(0);
    for (int64_t i = 0; i < n; i += LANES)
        total += OP(load_n)(dy + i, n - i < LANES ? (int)(n - i) : LANES);
    const T sum = OP(sum)(total);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        OP(store)(dx + i, OP(load)(dy + i) - OP(exp)(OP(load)(y + i)) * sum);
    for (; i < n; i += LANES) {
        const int left = n - i < LANES ? (int)(n - i) : LANES;
        OP(store_n)(dx + i, OP(load_n)(dy + i, left) - OP(exp)(OP(load_n)(y + i, left)) * sum, left);
    }
}

/* ---- blocks of columns: a SIMD vector holds LANES columns ---- */

static void NAME(softmax_columns)(T *y, int64_t y_step, const T *x, int64_t step, int64_t n, int left,
                                  bool logarithm)
{
    const OP(mask) mask = OP(first)(left);
    V shift = OP(set)(-(T)INFINITY), sum = OP(set)(0);
    for (int64_t i = 0; i < n; i++)
        shift = OP(max)(shift, OP(load_m)(x + i * step, mask));
    for (int64_t i = 0; i < n; i++) {
        const V e = OP(exp)(OP(load_m)(x + i * step, mask) - shift);
        if (!logarithm)
            OP(store_m)(y + i * y_step, e, mask);
        sum += e;
    }
    if (logarithm) {
        for (int c = 0; c < LANES; c++)
            sum[c] = NAME(log)(sum[c]);
        for (int64_t i = 0; i < n; i++)
            OP(store_m)(y + i * y_step, OP(load_m)(x + i * step, mask) - shift - sum, mask);
    } else {
        const V factor = 1 / sum;
        for (int64_t i = 0; i < n; i++)
            OP(store_m)(y + i * y_step, OP(load_m)(y + i * y_step, mask) * factor, mask);
    }
}

static void NAME(backward_columns)(T *dx, int64_t dx_step, const T *dy, const T *y, int64_t step, int64_t n,
                                   int left, bool logarithm)
{
    const OP(mask) mask = OP(first)(left);
    V sum = OP(set)(0);
    for (int64_t i = 0; i < n; i++) {
        const V g = OP(load_m)(dy + i * step, mask);
        sum = logarithm ? sum + g : OP(fma)(g, OP(load_m)(y + i * step, mask), sum);
    }
    for (int64_t i = 0; i < n; i++) {
        const V g = OP(load_m)(dy + i * step, mask), v = OP(load_m)(y + i * step, mask);
        OP(store_m)(dx + i * dx_step, logarithm ? g - OP(exp)(v) * sum : v * (g - sum), mask);
    }
}

/* ---- the four ops on a block; b is NULL for the forward ops ---- */

static void NAME(softmax_block)(T *y, int64_t y_step, const T *x, const T *b, int64_t step, int64_t n,
                                int64_t width)
{
    (void)b;
    if (width == 1 && step == 1 && y_step == 1)
        NAME(softmax_vector)(y, x, n);
    else
        for (int64_t c = 0; c < width; c += LANES)
            NAME(softmax_columns)
            (y + c, y_step, x + c, step, n, width - c < LANES ? (int)(width - c) : LANES, false);
}

static void NAME(log_softmax_block)(T *y, int64_t y_step, const T *x, const T *b, int64_t step, int64_t n,
                                    int64_t width)
{
    (void)b;
    if (width == 1 && step == 1 && y_step == 1)
        NAME(log_softmax_vector)(y, x, n);
    else
        for (int64_t c = 0; c < width; c += LANES)
            NAME(softmax_columns)
            (y + c, y_step, x + c, step, n, width - c < LANES ? (int)(width - c) : LANES, true);
}

static void NAME(softmax_backward_block)(T *dx, int64_t dx_step, const T *dy, const T *y, int64_t step, int64_t n,
                                         int64_t width)
{
    if (width == 1 && step == 1 && dx_step == 1)
        NAME(softmax_backward_vector)(dx, dy, y, n);
    else
        for (int64_t c = 0; c < width; c += LANES)
            NAME(backward_columns)
            (dx + c, dx_step, dy + c, y + c, step, n, width - c < LANES ? (int)(width - c) : LANES, false);
}

static void NAME(log_softmax_backward_block)(T *dx, int64_t dx_step, const T *dy, const T *y, int64_t step,
                                             int64_t n, int64_t width)
{
    if (width == 1 && step == 1 && dx_step == 1)
        NAME(log_softmax_backward_vector)(dx, dy, y, n);
    else
        for (int64_t c = 0; c < width; c += LANES)
            NAME(backward_columns)
            (dx + c, dx_step, dy + c, y + c, step, n, width - c < LANES ? (int)(width - c) : LANES, true);
}

static void NAME(tasks)(void *argument, int64_t begin, int64_t end)
{
    const struct softmax_job *job = argument;
    const T *a = job->call->inputs[0]->data, *b = job->call->n_inputs > 1 ? job->call->inputs[1]->data : NULL;
    T *out = job->call->outputs[0]->data;
    T *row = job->stream ? cpu_scratch(SCRATCH_ROW, (size_t)job->n * sizeof(T)) : NULL;
    if (row) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t at = t * job->n;
            job->op->NAME(block)(row, 1, a + at, b ? b + at : NULL, 1, job->n, 1);
            vec_stream(out + at, row, (size_t)job->n * sizeof(T));
        }
        vec_streamed();
        return;
    }
    for (int64_t t = begin; t < end; t++) {
        int64_t width, at = place(job, t, &width);
        job->op->NAME(block)(out + at, job->inner, a + at, b ? b + at : NULL, job->inner, job->n, width);
    }
}

/* ---- cross entropy of one row of logits ---- */

/* Returns the loss of a row, 0 if target is -1 (ignored). Stores the largest logit and sum(e^(x - largest)) at
 * `statistics`. They are stored separately, because adding the logarithm of the sum to a large logit would lose the
 * logarithm by rounding. `weight` may be NULL, meaning all 1. */
static T NAME(cross_entropy_row)(T *statistics, const T *x, const T *weight, int64_t target, int64_t classes,
                                 T smoothing)
{
    const T largest = NAME(largest)(x, classes), sum = NAME(exponentials)(NULL, x, largest, classes),
            log_sum = NAME(log)(sum);
    statistics[0] = largest;
    statistics[1] = sum;
    if (target < 0)
        return 0;
    T loss = (weight ? weight[target] : 1) * (log_sum - (x[target] - largest));
    if (smoothing != 0) {
        V lanes = OP(set)(0);
        T rest = 0;
        int64_t i = 0;
        for (; i + LANES <= classes; i += LANES) {
            const V one = log_sum - (OP(load)(x + i) - largest);
            lanes += weight ? OP(load)(weight + i) * one : one;
        }
        for (; i < classes; i++)
            rest += (weight ? weight[i] : 1) * (log_sum - (x[i] - largest));
        loss = (1 - smoothing) * loss + smoothing / (T)classes * (OP(sum)(lanes) + rest);
    }
    return loss;
}

static void NAME(cross_entropy_backward_row)(T *dx, const T *x, const T *weight, int64_t target, int64_t classes,
                                             const T *statistics, T dloss, T smoothing)
{
    const T hard = dloss * (1 - smoothing) * (weight ? weight[target] : 1), soft = dloss * smoothing / (T)classes;
    T factor = hard;
    if (soft != 0) {
        T all = (T)classes;
        if (weight) {
            all = 0;
            for (int64_t c = 0; c < classes; c++)
                all += weight[c];
        }
        factor += soft * all;
    }
    const T largest = statistics[0];
    factor /= statistics[1];
    int64_t i = 0;
    for (; i + LANES <= classes; i += LANES)
        OP(store)(dx + i, OP(exp)(OP(load)(x + i) - largest) * factor);
    if (i < classes) {
        const int left = (int)(classes - i);
        OP(store_n)(dx + i, OP(exp)(OP(load_n)(x + i, left) - largest) * factor, left);
    }
    if (soft != 0)
        for (int64_t c = 0; c < classes; c++)
            dx[c] -= soft * (weight ? weight[c] : 1);
    dx[target] -= hard;
}

/* ---- cross entropy ---- */

/* Returns a row of logits as T: the tensor's own, or converted into `wide`. */
static const T *NAME(logits)(const struct entropy *e, int64_t row, T *wide)
{
    const ctrt_view *x = e->call->inputs[0];
    if (!e->half)
        return (const T *)x->data + row * e->classes;
    e->half->widen((float *)wide, (const uint16_t *)x->data + row * e->classes, e->classes);
    return wide;
}

static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    struct entropy *e = argument;
    T *loss = e->call->outputs[0]->data, *statistics = e->call->outputs[1]->data, *wide = (T *)wide_row(e);
    if (e->half && !wide)
        return;
    for (int64_t i = begin; i < end; i++)
        loss[i] = NAME(cross_entropy_row)(statistics + 2 * i, NAME(logits)(e, i, wide), e->weight, target_of(e, i),
                                          e->classes, (T)e->attributes->label_smoothing);
}

static void NAME(backward)(void *argument, int64_t begin, int64_t end)
{
    struct entropy *e = argument;
    const T *statistics = e->call->inputs[3]->data, *dloss = e->call->inputs[4]->data;
    T *wide = (T *)wide_row(e);
    if (e->half && !wide)
        return;
    for (int64_t i = begin; i < end; i++) {
        const T *x = NAME(logits)(e, i, wide);
        T *dx = e->half ? wide : (T *)e->call->outputs[0]->data + i * e->classes;
        const int64_t target = target_of(e, i);
        if (target < 0)
            memset(dx, 0, (size_t)e->classes * sizeof *dx);
        else
            NAME(cross_entropy_backward_row)(dx, x, e->weight, target, e->classes, statistics + 2 * i, dloss[i],
                                             (T)e->attributes->label_smoothing);
        if (e->half)
            e->half->narrow((uint16_t *)e->call->outputs[0]->data + i * e->classes, (const float *)wide, e->classes);
    }
}

#include "body_end.h"
