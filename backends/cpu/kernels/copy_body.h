/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/copy_body.h: a body (body.h) that copy.c includes once per element size. */

static void NAME(move)(void *out, const void *in, const void *b, const void *c, int64_t n)
{
    (void)b, (void)c;
    if (n && out != in)
        memcpy(out, in, (size_t)n * sizeof(T));
}

static void NAME(fill)(void *out, const void *from, const void *b, const void *c, int64_t n)
{
    T value, *to = out;
    memcpy(&value, from, sizeof value);
    (void)b, (void)c;
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

#include "body_end.h"
