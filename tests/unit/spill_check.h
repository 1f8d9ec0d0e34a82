/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on simulated devices with the policy `spill`, and checks that values are kept and memory is freed. */
#ifndef CTRT_TESTS_SPILL_CHECK_H
#define CTRT_TESTS_SPILL_CHECK_H

#include "memory_checks.h"
#include "sims.h"

#define TENSORS 24                          /* of 1 MiB each, on a device of 16 MiB */
#define N       (1 << 18)                   /* elements */

static ctrt_tensor *tensors[TENSORS];

/* Creates tensors until one fails; every element of tensor i is i + 1. *made is the number created, also on failure. */
static inline ctrt_status make_tensors(int *made, int count, ctrt_device *device)
{
    for (*made = 0; *made < count; ++*made)
        CTRT_TRY(ctrt_full(&tensors[*made], CTRT_SHAPE(N), ctrt_float(*made + 1), CTRT_F32, device));
    return CTRT_OK;
}

static inline void release_tensors(int from)
{
    for (int i = from; i < TENSORS; i++)
        ctrt_tensor_release(&tensors[i]);
}

static inline void check_value(ctrt_tensor *x, double want, const char *what)
{
    static float values[N];
    int wrong = 0;
    if (!CHECK_OK(ctrt_to_host(values, sizeof values, x, CTRT_F32)))
        return;
    for (int i = 0; i < N; i++)
        wrong += values[i] != (float)want;
    CHECK(wrong == 0, "%s: %d elements are not %g, the first is %g", what, wrong, want, values[0]);
}

/* Checks the values of the existing tensors below `to`. */
static inline void check_values_kept(int to, const char *what)
{
    for (int i = 0; i < to; i++)
        if (tensors[i] != NULL)
            check_value(tensors[i], i + 1, what);
}

/* Checks that neither memory of the device sim:`index` nor pinned memory is still allocated. */
static inline void check_empty(ctrt_device *device, int index, const char *what)
{
    ctrt_device_synchronize(device);
    const uint64_t allocated = ctrt_memory_allocated(device);
    CHECK_OK(ctrt_memory_release_all(device));
    const sim_counters now = sim_read(index);
    CHECK(allocated == 0 && now.live_bytes == 0 && now.host_allocs == now.host_frees && now.bad_frees == 0,
          "%s, sim:%d: %llu bytes of tensors, %llu bytes of the device, %llu pinned blocks are left; %llu bad frees",
          what, index, (unsigned long long)allocated, (unsigned long long)now.live_bytes,
          (unsigned long long)(now.host_allocs - now.host_frees), (unsigned long long)now.bad_frees);
}

#endif
