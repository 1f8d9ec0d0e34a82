/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/strided_body.h: a body (body.h) that elementwise_loop.c includes once per element size. */

/* Copies elements [begin, begin + count) of v, in row-major order, to `packed`, or from there if `scatter`. */
static inline __attribute__((always_inline)) void NAME(strided_copy)(T *packed, const ctrt_view *v, int64_t begin,
                                                                     int64_t count, const bool scatter)
{
    int64_t at[CTRT_MAX_DIMS], last = v->ndim - 1, stride = v->strides[last];
    int64_t offset = loop_locate(v, begin, at), run = v->shape[last] - at[last];
    T *strided = (T *)v->data + offset;
    offset -= at[last] * stride;
    for (;;) {
        if (run > count)
            run = count;
        if (stride == 1) {
            memcpy(scatter ? strided : packed, scatter ? packed : strided, (size_t)run * sizeof(T));
        } else if (scatter) {
            for (int64_t i = 0; i < run; i++)
                strided[i * stride] = packed[i];
        } else if (stride == 0) {
            T value = *strided;
            for (int64_t i = 0; i < run; i++)
                packed[i] = value;
        } else {
            for (int64_t i = 0; i < run; i++)
                packed[i] = strided[i * stride];
        }
        if ((count -= run) == 0)
            return;
        packed += run;
        offset = next_row(v, offset, at);
        strided = (T *)v->data + offset;
        run = v->shape[last];
    }
}

static void NAME(gather)(void *to, const ctrt_view *v, int64_t begin, int64_t count)
{
    NAME(strided_copy)(to, v, begin, count, false);
}

static void NAME(scatter)(const ctrt_view *v, const void *from, int64_t begin, int64_t count)
{
    NAME(strided_copy)((void *)(uintptr_t)from, v, begin, count, true);
}

/* Copies the tile of `rows` x `columns` elements at `in`, with strides `down` and `right`, to out[rows][columns]. */
static void NAME(tile)(void *out, const void *in, int64_t rows, int64_t columns, int64_t down, int64_t right)
{
    T *to = out;
    const T *from = in;
    if (right == 1) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + i * columns, from + i * down, (size_t)columns * sizeof(T));
        return;
    }
    int64_t j = 0;
    if (sizeof(T) >= 4 && down == 1) {          /* uses all of a cache line before the next one */
        const int square = sizeof(T) == 4 ? vf_block : vd_block;
        const int64_t whole = rows - rows % square;
        for (; j + square <= columns; j += square) {
            for (int64_t i = 0; i < whole; i += square)
                if (sizeof(T) == 4)
                    vf_transpose((void *)(to + i * columns + j), columns, (const void *)(from + i + j * right), right);
                else
                    vd_transpose((void *)(to + i * columns + j), columns, (const void *)(from + i + j * right), right);
            for (int64_t i = whole; i < rows; i++)
                for (int64_t k = j; k < j + square; k++)
                    to[i * columns + k] = from[i + k * right];
        }
    }
    for (; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            to[i * columns + j] = from[i * down + j * right];
}

#include "body_end.h"
