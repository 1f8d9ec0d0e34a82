/* SPDX-License-Identifier: Apache-2.0 */
/* norm.cl: layer_norm over rows, batch_norm over channels, and their gradients. A work-group does whole rows or
 * channels, so a norm is one launch (the gradient of layer_norm two: rows, then columns).
 *
 * A channel is `rows` runs of `n` adjacent elements. Sums are made in LANES, and joined in f64. */

enum { WEIGHT = 1, BIAS = 2, MEAN = 4, VAR = 8, DWEIGHT = 16, DBIAS = 32 };       /* bits of row_args.wide */

/* Adds EXPRESSION of each element `at` of a run to the f64 `total`. */
#define SUM(total, begin, count, EXPRESSION)                                                                          \
    {                                                                                                                 \
        W lanes_[LANES];                                                                                              \
        i64 at = (begin);                                                                                             \
        const i64 end_ = at + (count);                                                                                \
        for (int l_ = 0; l_ < LANES; l_++)                                                                            \
            lanes_[l_] = 0;                                                                                           \
        for (i64 next_ = at + LANES; next_ <= end_; next_ += LANES)                                                   \
            for (int l_ = 0; l_ < LANES; l_++, at++)                                                                  \
                lanes_[l_] += EXPRESSION;                                                                             \
        for (; at < end_; at++)                                                                                       \
            lanes_[0] += EXPRESSION;                                                                                  \
        for (int l_ = 0; l_ < LANES; l_++)                                                                            \
            total += lanes_[l_];                                                                                      \
    }

static W given(global const void *p, i64 wide, i64 i, W otherwise)
{
    return p != 0 ? parameter(p, wide, i) : otherwise;
}

KERNEL layer_norm(global const T *x, global const void *weight, global const void *bias, global T *y, global W *means,
                  global W *rstds, const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows);
    for (i64 row = begin; row < end; row++) {
        const i64 first = row * a.n;
        double sum = 0, squares = 0;
        SUM(sum, first, a.n, LOAD(x, at))
        const W mean = (W)(sum / a.n);
        SUM(squares, first, a.n, (LOAD(x, at) - mean) * (LOAD(x, at) - mean))
        const W rstd = (W)(1 / sqrt(squares / a.n + a.epsilon));
        for (i64 i = 0; i < a.n; i++)
            STORE(y, first + i, (LOAD(x, first + i) - mean) * rstd * given(weight, a.wide & WEIGHT, i, 1)
                                    + given(bias, a.wide & BIAS, i, 0));
        means[row] = mean;
        rstds[row] = rstd;
    }
}

#if VARIANT == 0
/* dx = rstd (g - mean(g) - xhat mean(g xhat)), xhat = (x - mean) rstd, g = dy weight. */
KERNEL layer_norm_backward(global const T *dy, global const T *x, global const void *weight, global const W *means,
                           global const W *rstds, global T *dx, global void *dweight, global void *dbias,
                           const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows);
    for (i64 row = begin; row < end; row++) {
        const i64 first = row * a.n;
        const W mean = means[row], rstd = rstds[row];
        double sum = 0, with_x = 0;
#define G(at) (LOAD(dy, at) * given(weight, a.wide & WEIGHT, (at) - first, 1))
        SUM(sum, first, a.n, G(at))
        SUM(with_x, first, a.n, G(at) * (LOAD(x, at) - mean))
        const W shift = (W)(sum / a.n), slope = (W)(with_x / a.n) * rstd * rstd;
        for (i64 at = first; at < first + a.n; at++)
            STORE(dx, at, rstd * (G(at) - shift - (LOAD(x, at) - mean) * slope));
    }
}
#else
/* dweight and dbias: a work-item sums columns. */
KERNEL layer_norm_backward(global const T *dy, global const T *x, global const void *weight, global const W *means,
                           global const W *rstds, global T *dx, global void *dweight, global void *dbias,
                           const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.n);
    for (i64 column = begin; column < end; column++) {
        double sum = 0, with_x = 0;
        for (i64 row = 0; row < a.rows; row++) {
            const W g = LOAD(dy, row * a.n + column);
            sum += g;
            with_x += g * (LOAD(x, row * a.n + column) - means[row]) * rstds[row];
        }
        if (dweight != 0)
            put_parameter(dweight, a.wide & DWEIGHT, column, (W)with_x);
        if (dbias != 0)
            put_parameter(dbias, a.wide & DBIAS, column, (W)sum);
    }
}
#endif

/* Run r of channel c of x[rows, channels, n]: args.inner is the number of channels. */
#define RUN(r) (((r) * a.inner + channel) * a.n)

KERNEL batch_norm(global const T *x, global const void *weight, global const void *bias, global void *running_mean,
                  global void *running_var, global T *y, global W *means, global W *rstds, const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.inner);
    const double count = (double)(a.rows * a.n);
    for (i64 channel = begin; channel < end; channel++) {
        W mean, rstd;
        if (a.training) {
            double sum = 0, squares = 0;
            for (i64 r = 0; r < a.rows; r++)
                SUM(sum, RUN(r), a.n, LOAD(x, at))
            mean = (W)(sum / count);
            for (i64 r = 0; r < a.rows; r++)
                SUM(squares, RUN(r), a.n, (LOAD(x, at) - mean) * (LOAD(x, at) - mean))
            rstd = (W)(1 / sqrt(squares / count + a.epsilon));
            if (running_mean != 0)
                put_parameter(running_mean, a.wide & MEAN, channel, (1 - (W)a.momentum)
                              * parameter(running_mean, a.wide & MEAN, channel) + (W)a.momentum * mean);
            if (running_var != 0)
                put_parameter(running_var, a.wide & VAR, channel, (1 - (W)a.momentum)
                              * parameter(running_var, a.wide & VAR, channel)
                              + (W)a.momentum * (W)(squares / (count - 1)));
        } else {
            mean = parameter(running_mean, a.wide & MEAN, channel);
            rstd = (W)(1 / sqrt((double)parameter(running_var, a.wide & VAR, channel) + a.epsilon));
        }
        const W scale = rstd * given(weight, a.wide & WEIGHT, channel, 1),
                shift = given(bias, a.wide & BIAS, channel, 0);
        for (i64 r = 0; r < a.rows; r++)
            INDEPENDENT
            for (i64 at = RUN(r); at < RUN(r) + a.n; at++)
                STORE(y, at, (LOAD(x, at) - mean) * scale + shift);
        means[channel] = mean;
        rstds[channel] = rstd;
    }
}

KERNEL batch_norm_backward(global const T *dy, global const T *x, global const void *weight, global const W *means,
                           global const W *rstds, global T *dx, global void *dweight, global void *dbias,
                           const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.inner);
    const double count = (double)(a.rows * a.n);
    for (i64 channel = begin; channel < end; channel++) {
        const W mean = means[channel], rstd = rstds[channel],
                factor = rstd * given(weight, a.wide & WEIGHT, channel, 1);
        double sum = 0, with_x = 0;
        for (i64 r = 0; r < a.rows; r++) {
            SUM(sum, RUN(r), a.n, LOAD(dy, at))
            SUM(with_x, RUN(r), a.n, LOAD(dy, at) * (LOAD(x, at) - mean))
        }
        if (dweight != 0)
            put_parameter(dweight, a.wide & DWEIGHT, channel, (W)(with_x * rstd));
        if (dbias != 0)
            put_parameter(dbias, a.wide & DBIAS, channel, (W)sum);
        const W shift = a.training ? (W)(sum / count) : 0,
                slope = a.training ? (W)(with_x / count) * rstd * rstd : 0;
        for (i64 r = 0; r < a.rows; r++)
            INDEPENDENT
            for (i64 at = RUN(r); at < RUN(r) + a.n; at++)
                STORE(dx, at, factor * (LOAD(dy, at) - shift - (LOAD(x, at) - mean) * slope));
    }
}
