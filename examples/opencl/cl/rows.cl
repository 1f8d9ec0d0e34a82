/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cl: softmax, log_softmax and their gradients over the middle dimension of x[rows, n, inner]. A work-item does a
 * row: `inner` neighbouring columns make as many rows. */

/* The first element of row i; its elements are `inner` apart. */
#define ROW(i) ((i) / a.inner * a.n * a.inner + (i) % a.inner)
#define EACH(k, at) for (i64 k = 0, at = first; k < a.n; k++, at += a.inner)

KERNEL softmax(global const T *x, global T *y, const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows * a.inner);
    for (i64 i = begin; i < end; i++) {
        const i64 first = ROW(i);
        W largest = -INFINITY, sum = 0;
        EACH(k, at)
        {
            const W v = LOAD(x, at);
            largest = v > largest || v != v ? v : largest;
        }
        EACH(k, at)
            sum += exp(LOAD(x, at) - largest);
        const W log_sum = log(sum), inverse = 1 / sum;
        EACH(k, at)
        {
            const W d = LOAD(x, at) - largest;
            STORE(y, at, LOGARITHM ? d - log_sum : exp(d) * inverse);
        }
    }
}

KERNEL softmax_backward(global const T *dy, global const T *y, global T *dx, const struct row_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.rows * a.inner);
    for (i64 i = begin; i < end; i++) {
        const i64 first = ROW(i);
        W sum = 0;
        EACH(k, at)
            sum += LOGARITHM ? LOAD(dy, at) : LOAD(dy, at) * LOAD(y, at);
        EACH(k, at)
        {
            const W d = LOAD(dy, at), v = LOAD(y, at);
            STORE(dx, at, LOGARITHM ? d - exp(v) * sum : v * (d - sum));
        }
    }
}
