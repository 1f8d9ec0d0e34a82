/* SPDX-License-Identifier: Apache-2.0 */
/* pool.cl: max_pool2d with indices, and its gradient, which adds dy at the indices. A work-item does whole planes. */
#ifdef FLOATING
#define LOWEST ((W)-INFINITY)
#else
#define LOWEST ((W)LEAST)
#endif

KERNEL max_pool2d(global const T *x, global T *y, global i64 *indices, const struct pool_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.planes);
    for (i64 plane = begin; plane < end; plane++) {
        global const T *in = x + plane * a.h * a.w;
        for (i64 i = 0; i < a.out_h * a.out_w; i++) {
            const i64 top = i / a.out_w * a.stride[0] - a.padding[0], left = i % a.out_w * a.stride[1] - a.padding[1];
            W best = LOWEST;
            i64 found = -1;
            for (i64 p = 0; p < a.window[0]; p++)
                for (i64 q = 0; q < a.window[1]; q++) {
                    const i64 row = top + p * a.dilation[0], column = left + q * a.dilation[1];
                    if (row < 0 || row >= a.h || column < 0 || column >= a.w)
                        continue;
                    const W v = LOAD(in, row * a.w + column);
                    if (found < 0 || v > best || v != v) {
                        best = v;
                        found = row * a.w + column;
                    }
                }
            STORE(y, plane * a.out_h * a.out_w + i, best);
            indices[plane * a.out_h * a.out_w + i] = found;
        }
    }
}

KERNEL max_pool2d_backward(global const T *dy, global const i64 *indices, global T *dx, const struct pool_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.planes), size = a.h * a.w;
    for (i64 plane = begin; plane < end; plane++) {
        global T *out = dx + plane * size;
        for (i64 i = 0; i < size; i++)
            STORE(out, i, 0);
        for (i64 i = plane * a.out_h * a.out_w; i < (plane + 1) * a.out_h * a.out_w; i++) {
            const i64 at = indices[i];
            if (at >= 0 && at < size)
                STORE(out, at, LOAD(out, at) + LOAD(dy, i));
        }
    }
}
