/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.cl: reductions. The op's macros:
 *
 *   B             the type of the result before it is rounded
 *   START         the value of no elements
 *   S, STEP(s, v) adds element v to s, in the type S: up to BLOCK elements, then s is joined in B
 *   JOIN(s, t)    joins two values of B
 *   RESULT(s)     what is stored
 *
 * A result is reduced in LANES independent values, which LLVM turns into vectors, and in blocks, so that the error of a
 * long sum in f32 does not grow with its length. If there are fewer results than processors, the host splits each into
 * parts, which VARIANT 2 joins. VARIANT 1 reduces neighbouring columns at the same time. */
#define BLOCK   1024
#define COLUMNS 64

/* The offset of a number whose digits are the indices in dimensions [0, ndim). */
#define OFFSET(offset, index, ndim, shape, strides)                                                                   \
    for (i64 rest_ = (index), d_ = (ndim) - 1; d_ >= 0; rest_ /= shape[d_], d_--)                                     \
        offset += rest_ % shape[d_] * strides[d_];

static B run_of(global const T *x, i64 n, i64 stride)
{
    B total = START;
    for (i64 begin = 0; begin < n; begin += BLOCK) {
        const i64 end = least(begin + BLOCK, n);
        i64 i = begin;
        S lanes[LANES];
        for (int l = 0; l < LANES; l++)
            lanes[l] = START;
        if (stride == 1)
            for (; i + LANES <= end; i += LANES)
                for (int l = 0; l < LANES; l++)
                    lanes[l] = STEP(lanes[l], LOAD(x, i + l));
        for (; i < end; i++)
            lanes[0] = STEP(lanes[0], LOAD(x, i * stride));
        for (int l = 0; l < LANES; l++)
            total = JOIN(total, (B)lanes[l]);
    }
    return total;
}

#if VARIANT == 0

/* Result `i / parts`, part `i % parts`; goes to `partial` if there are several parts. */
KERNEL reduce(global const T *x, global OT *out, global B *partial, const struct reduce_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outputs * a.parts);
    for (i64 i = begin; i < end; i++) {
        const i64 output = i / a.parts, first = i % a.parts * a.part, last = least(first + a.part, a.count);
        i64 base = 0;
        B total = START;
        OFFSET(base, output, a.kept, a.kept_shape, a.kept_strides)
        for (i64 j = first; j < last;) {
            const i64 at = j % a.inner, length = least(a.inner - at, last - j);
            i64 offset = base + at * a.inner_stride;
            OFFSET(offset, j / a.inner, a.reduced, a.reduced_shape, a.reduced_strides)
            total = JOIN(total, run_of(x + offset, length, a.inner_stride));
            j += length;
        }
        if (a.parts > 1)
            partial[i] = total;
        else
            OSTORE(out, output, RESULT(total));
    }
}

#elif VARIANT == 1

/* The last kept dimension is contiguous, and results of it are adjacent. */
KERNEL reduce(global const T *x, global OT *out, global B *partial, const struct reduce_args a)
{
    const i64 tiles = (a.kept_inner + COLUMNS - 1) / COLUMNS, all = a.outputs / a.kept_inner * tiles;
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, all);
    for (i64 i = begin; i < end; i++) {
        const i64 row = i / tiles, column = i % tiles * COLUMNS;
        const int width = (int)least(COLUMNS, a.kept_inner - column);
        i64 base = column;
        B total[COLUMNS];
        S part[COLUMNS];
        for (int c = 0; c < COLUMNS; c++)
            total[c] = START;
        OFFSET(base, row, a.kept - 1, a.kept_shape, a.kept_strides)
        for (i64 j = 0; j < a.count;) {
            const i64 stop = least(j + BLOCK, a.count);
            for (int c = 0; c < COLUMNS; c++)
                part[c] = START;
            for (; j < stop; j++) {
                i64 offset = base + j % a.inner * a.inner_stride;
                OFFSET(offset, j / a.inner, a.reduced, a.reduced_shape, a.reduced_strides)
                for (int c = 0; c < width; c++)
                    part[c] = STEP(part[c], LOAD(x, offset + c));
            }
            for (int c = 0; c < width; c++)
                total[c] = JOIN(total[c], (B)part[c]);
        }
        for (int c = 0; c < width; c++)
            OSTORE(out, row * a.kept_inner + column + c, RESULT(total[c]));
    }
}

#else

KERNEL reduce(global const T *x, global OT *out, global const B *partial, const struct reduce_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outputs);
    for (i64 i = begin; i < end; i++) {
        B total = START;
        for (i64 p = 0; p < a.parts; p++)
            total = JOIN(total, partial[i * a.parts + p]);
        OSTORE(out, i, RESULT(total));
    }
}

#endif
