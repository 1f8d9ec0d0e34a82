/* SPDX-License-Identifier: Apache-2.0 */
/* multi_check.h: sim-multi:0, a device with several simulated members, for tests of layouts. Uses sims.h. */
#ifndef CTRT_TESTS_MULTI_CHECK_H
#define CTRT_TESTS_MULTI_CHECK_H

#include "ctrt/layout.h"
#include "sims.h"

#define FOUR_SIMS "CTRT_SIM=devices=4,memory=64m,poison=yes"

static ctrt_device *one, *multi;            /* sim:0 and sim-multi:0 */

static inline void multi_open(void)
{
    CHECK_OK(ctrt_device_get(&one, "sim:0"));
    if (!CHECK_OK(ctrt_device_get(&multi, "sim-multi:0")))
        exit(1);
    cpu_device();
}

/* Closes all devices, which fails if a tensor still exists, and releases the communicators. */
static inline void multi_close(void)
{
    CHECK_OK(ctrt_shutdown());
}

static inline ctrt_layout_counts multi_counts(void)
{
    ctrt_layout_counts counts = CTRT_LAYOUT_COUNTS;
    CHECK_OK(ctrt_layout_count(&counts, multi));
    return counts;
}

static inline ctrt_layout multi_layout(ctrt_tensor *x)
{
    ctrt_layout layout = { .dim = -1 };
    CHECK_OK(ctrt_tensor_layout(&layout, x));
    return layout;
}

static inline const char *layout_text(ctrt_layout layout)
{
    static char text[4][48];
    static int next;
    char *to = text[next++ % 4];
    switch (layout.kind) {
    case CTRT_LAYOUT_REPLICATED: return "replicated";
    case CTRT_LAYOUT_PARTIAL: return "partial";
    default:
        snprintf(to, 48, layout.groups > 1 ? "sharded %d of %d groups" : "sharded %d", (int)layout.dim,
                 (int)layout.groups);
        return to;
    }
}

#define SHARDED(d) (&(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = (d) })
#define REPLICATED (&(ctrt_layout){ .kind = CTRT_LAYOUT_REPLICATED })

/* Creates a tensor of small multiples of 1/4, whose sums and products are exact on every device. */
static inline ctrt_tensor *quarters(ctrt_ints shape, int seed, ctrt_device *device)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    float *values = malloc((size_t)numel * sizeof *values + 1);
    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)((i * 7 + seed * 5) % 17 - 8) / 4;
    CHECK_OK(ctrt_from_data(&x, values, numel, shape, CTRT_F32, device));
    free(values);
    return x;
}

#endif
