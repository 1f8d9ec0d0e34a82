/* SPDX-License-Identifier: Apache-2.0 */
/* pad.cl: copies planes into larger planes of zeros, with `top` and `left` zeros before and, for the gradient of a
 * convolution with a stride, spread apart. Elements that fall outside are dropped. */
KERNEL pad(global const T *from, global T *to, const struct pad_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.planes);
    for (i64 plane = begin; plane < end; plane++) {
        global T *out = to + plane * a.to_h * a.to_w;
        for (i64 i = 0; i < a.to_h * a.to_w; i++)
            out[i] = 0;
        for (i64 y = 0; y < a.h; y++) {
            const i64 to_y = a.top + y * a.spread_y;
            if (to_y < 0 || to_y >= a.to_h)
                continue;
            for (i64 x = 0; x < a.w; x++) {
                const i64 to_x = a.left + x * a.spread_x;
                if (to_x >= 0 && to_x < a.to_w)
                    out[to_y * a.to_w + to_x] = from[(plane * a.h + y) * a.w + x];
            }
        }
    }
}
