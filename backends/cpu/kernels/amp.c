/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/amp.c: the ops of the gradient scaler; compiled once per instruction set.
 *
 * amp_unscale reads and writes each gradient once. An element is inf or NaN if all bits of its exponent are set; the
 * loops combine these tests without a branch, so that they are vectorised. */
#include <math.h>
#include <stdatomic.h>

#include "half.h"
#include "variant.h"

/* GRAIN: smallest number of elements per thread. PIECE: number of half-precision elements converted at a time. */
#define GRAIN 16384
#define PIECE 1024

struct unscale {
    void *data;
    const struct half_loops *half;
    float inverse;
    atomic_bool found;
};

static bool scale_f32(float *x, float inverse, int64_t n)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
        x[i] *= inverse;
    }
    return found != 0;
}

static void found_note(struct unscale *u, bool found)
{
    if (found)
        atomic_store_explicit(&u->found, true, memory_order_relaxed);
}

static void f32_range(void *argument, int64_t begin, int64_t end)
{
    struct unscale *u = argument;
    found_note(u, scale_f32((float *)u->data + begin, u->inverse, end - begin));
}

static void f64_range(void *argument, int64_t begin, int64_t end)
{
    struct unscale *u = argument;
    double *x = (double *)u->data + begin;
    uint64_t found = 0;
    for (int64_t i = 0; i < end - begin; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        x[i] *= u->inverse;
    }
    found_note(u, found != 0);
}

static void half_range(void *argument, int64_t begin, int64_t end)
{
    struct unscale *u = argument;
    uint16_t *x = u->data;
    float piece[PIECE];
    for (int64_t i = begin; i < end; i += PIECE) {
        const int64_t count = end - i < PIECE ? end - i : PIECE;
        u->half->widen(piece, x + i, count);
        found_note(u, scale_f32(piece, u->inverse, count));
        u->half->narrow(x + i, piece, count);
    }
}

static ctrt_status amp_unscale(const ctrt_call *call)
{
    const uint32_t last = call->n_inputs - 1;
    struct unscale u = { .inverse = 1 / *(const float *)call->inputs[last]->data };
    for (uint32_t i = 1; i < last; i++) {
        const ctrt_view *g = call->inputs[i];
        u.data = g->data;
        u.half = g->dtype == CTRT_F16 || g->dtype == CTRT_BF16 ? cpu_half(g->dtype) : NULL;
        cpu_parallel_for(g->numel, GRAIN, u.half ? half_range : g->dtype == CTRT_F64 ? f64_range : f32_range, &u);
    }
    if (atomic_load_explicit(&u.found, memory_order_relaxed))
        *(float *)call->outputs[0]->data = 1;
    return CTRT_OK;
}

static ctrt_status amp_update(const ctrt_call *call)
{
    const ctrt_amp_attributes *a = call->attributes;
    float *scale = call->outputs[0]->data;
    int32_t *tracker = call->outputs[1]->data, *skips = call->outputs[2]->data;
    if (*(const float *)call->inputs[3]->data != 0) {
        const float next = (float)(*scale * a->backoff_factor);
        if (next >= a->min_scale)
            *scale = next;
        else if (*scale > a->min_scale)
            *scale = (float)a->min_scale;
        *tracker = 0;
        skips[0]++;
        skips[1]++;
        return CTRT_OK;
    }
    skips[0] = 0;
    if (++*tracker == a->growth_interval) {
        const float next = (float)(*scale * a->growth_factor);
        if (isfinite(next))
            *scale = next;
        *tracker = 0;
    }
    return CTRT_OK;
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(amp_unscale, CPU_FLOATING, .flags = CTRT_KERNEL_INPLACE),
    CPU_ROW(amp_update, CPU_F32, .flags = CTRT_KERNEL_INPLACE),
};

CPU_KERNELS(amp, kernels);
