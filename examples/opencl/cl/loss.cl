/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cl: cross entropy of rows of logits, with label smoothing, and its gradient. */

static W weight_of(global const void *weight, const struct row_args *a, i64 c)
{
    return weight != 0 ? parameter(weight, a->wide, c) : (W)1;
}

/* The target of a row; -1 if the row is ignored or its target is reported as a failure. */
static i64 target_of(global const i64 *target, const struct row_args *a, i64 row, global struct failure *failure)
{
    const i64 t = target[row];
    if (t != a->ignore && (t < 0 || t >= a->n))
        report(failure, FAILURE_TARGET, t, a->n, row, a->sequence);
    return t != a->ignore && t >= 0 && t < a->n ? t : -1;
}

KERNEL cross_entropy(global const T *x, global const i64 *target, global const void *weight, global W *loss,
                     global W *statistics, const struct row_args a, global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows);
    for (i64 row = begin; row < end; row++) {
        global const T *logits = x + row * a.n;
        const i64 t = target_of(target, &a, row, failure);
        W largest = -INFINITY, sum = 0, result = 0;
        for (i64 c = 0; c < a.n; c++) {
            const W v = LOAD(logits, c);
            largest = v > largest || v != v ? v : largest;
        }
        for (i64 c = 0; c < a.n; c++)
            sum += exp(LOAD(logits, c) - largest);
        if (t >= 0) {
            const W log_sum = log(sum);
            result = weight_of(weight, &a, t) * (log_sum - (LOAD(logits, t) - largest));
            if (a.smoothing != 0) {
                W smooth = 0;
                for (i64 c = 0; c < a.n; c++)
                    smooth += weight_of(weight, &a, c) * (log_sum - (LOAD(logits, c) - largest));
                result = (1 - (W)a.smoothing) * result + (W)a.smoothing / a.n * smooth;
            }
        }
        loss[row] = result;
        statistics[2 * row] = largest;
        statistics[2 * row + 1] = sum;
    }
}

KERNEL cross_entropy_backward(global const T *x, global const i64 *target, global const void *weight,
                              global const W *statistics, global const W *dloss, global T *dx, const struct row_args a,
                              global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows);
    const W smoothing = (W)a.smoothing;
    W all = 0;
    for (i64 c = 0; smoothing != 0 && c < a.n; c++)
        all += weight_of(weight, &a, c);
    for (i64 row = begin; row < end; row++) {
        const i64 t = target_of(target, &a, row, failure);
        const W largest = statistics[2 * row], d = dloss[row], soft = d * smoothing / a.n,
                hard = t >= 0 ? d * (1 - smoothing) * weight_of(weight, &a, t) : (W)0,
                factor = (soft != 0 ? hard + soft * all : hard) / statistics[2 * row + 1];
        for (i64 c = 0; c < a.n; c++) {
            W v = exp(LOAD(x, row * a.n + c) - largest) * factor;
            if (soft != 0)
                v -= soft * weight_of(weight, &a, c);
            if (c == t)
                v -= hard;
            STORE(dx, row * a.n + c, t >= 0 ? v : (W)0);
        }
    }
}
