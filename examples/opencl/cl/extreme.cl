/* SPDX-License-Identifier: Apache-2.0 */
/* extreme.cl: argmax and argmin: BETTER(v, best) is whether element v replaces the best. Simple on purpose: one
 * work-item scans all elements of a result, in their order, so that the first of equal elements wins. */
#define OFFSET(offset, index, ndim, shape, strides)                                                                   \
    for (i64 rest_ = (index), d_ = (ndim) - 1; d_ >= 0; rest_ /= shape[d_], d_--)                                     \
        offset += rest_ % shape[d_] * strides[d_];

KERNEL extreme(global const T *x, global OT *out, const struct reduce_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outputs);
    for (i64 i = begin; i < end; i++) {
        i64 base = 0, found = 0;
        OFFSET(base, i, a.kept, a.kept_shape, a.kept_strides)
        W best = LOAD(x, base);
        for (i64 j = 1; j < a.count; j++) {
            i64 offset = base + j % a.inner * a.inner_stride;
            OFFSET(offset, j / a.inner, a.reduced, a.reduced_shape, a.reduced_strides)
            const W v = LOAD(x, offset);
            if (BETTER(v, best)) {
                best = v;
                found = j;
            }
        }
        out[i] = found;
    }
}
