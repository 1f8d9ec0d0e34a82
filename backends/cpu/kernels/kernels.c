/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/kernels.c: joins the families' kernel tables into the backend's single table. */
#include "host/internal.h"
#include "host/team.h"

#include <string.h>

/* A family has either one table or one table per instruction set (variant.h). The symbols are weak, because the symbol
 * of a table that this build does not contain is undefined and must become NULL. */
#define WEAK __attribute__((weak, visibility("hidden")))
#define FAMILY(name)                                                                                              \
    extern const struct cpu_kernels cpu_##name##_kernels WEAK, cpu_##name##_kernels_baseline WEAK,                \
        cpu_##name##_kernels_avx2 WEAK, cpu_##name##_kernels_avx512 WEAK;
#include "families.def"
#undef FAMILY

struct family {
    const struct cpu_kernels *plain, *variants[3];     /* variants are indexed by enum cpu_isa */
};

static const struct family families[] = {
#define FAMILY(name)                                                                                              \
    { &cpu_##name##_kernels,                                                                                      \
      { &cpu_##name##_kernels_baseline, &cpu_##name##_kernels_avx2, &cpu_##name##_kernels_avx512 } },
#include "families.def"
#undef FAMILY
};

ctrt_kernel_table cpu_kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .stride = sizeof(struct cpu_kernel),
    .single_thread = cpu_threads_single,
    .end_threads = cpu_team_end,
};

/* Appends `kernels` to `to` and returns their number. If `to` is NULL, only returns the number. */
static size_t append(struct cpu_kernel *to, const struct cpu_kernels *kernels)
{
    if (!kernels)
        return 0;
    if (to && kernels->count)
        memcpy(to, kernels->kernels, kernels->count * sizeof *to);
    return kernels->count;
}

static size_t join(struct cpu_kernel *to)
{
    size_t count = 0;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const struct cpu_kernels *best = NULL;
        for (int isa = 0; isa <= (int)cpu_isa(); isa++)
            if (families[f].variants[isa])
                best = families[f].variants[isa];
        count += append(to ? to + count : NULL, families[f].plain);
        count += append(to ? to + count : NULL, best);
    }
    return count;
}

ctrt_status cpu_kernels_init(void)
{
    static struct cpu_kernel *kernels;
    size_t count = join(NULL);
    struct cpu_kernel *joined = cpu_host->alloc(count * sizeof *joined);
    if (!joined)
        return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no memory for the table of %zu kernels", count);
    join(joined);
    if (kernels)
        cpu_host->free(kernels);
    kernels = joined;
    cpu_kernel_table.kernels = &kernels->base;
    cpu_kernel_table.count = count;
    return CTRT_OK;
}
