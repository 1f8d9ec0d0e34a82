/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme_types_body.h: a body (body.h) that extreme.c includes once per type: what amax, amin,
 * argmax and argmin share, and extreme_body.h for the largest and for the smallest element. */

static void NAME(extreme_finish)(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)
{
    (void)count;
    for (int64_t j = 0; j < n; j++)
        ((T *)out)[j * stride] = ((const T *)acc)[j];
}

/* The accumulator of argmax and argmin: a value and its position, -1 before the first element. */
struct NAME(place) {
    T value;
    int64_t at;
};

static void NAME(place_start)(void *acc, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        ((struct NAME(place) *)acc)[j] = (struct NAME(place)){ 0, -1 };
}

static void NAME(place_finish)(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)
{
    (void)count;
    for (int64_t j = 0; j < n; j++)
        ((int64_t *)out)[j * stride] = ((const struct NAME(place) *)acc)[j].at;
}

#define VALUE(name) NAME(amax_##name)
#define PLACE(name) NAME(argmax_##name)
#define FIRST LEAST
#define BEATS(x, a) ((x) > (a))
#define BETTER(a, b) OP(max)(a, b)
#include "extreme_body.h"

#define VALUE(name) NAME(amin_##name)
#define PLACE(name) NAME(argmin_##name)
#define FIRST MOST
#define BEATS(x, a) ((x) < (a))
#define BETTER(a, b) OP(least)(a, b)
#include "extreme_body.h"

#include "body_end.h"
