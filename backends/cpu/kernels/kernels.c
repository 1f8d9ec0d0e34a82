/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/kernels.c: joins the families' kernel tables into the backend's single table. */
#include "host/internal.h"

#include <string.h>

/* A family has either one table or one table per instruction set (variant.h). The symbols are weak because a table that
 * this build does not contain is an undefined symbol. */
#define WEAK __attribute__((weak, visibility("hidden")))
#define FAMILY(name)                                                                                              \
    extern const struct cpu_rows cpu_##name##_rows WEAK, cpu_##name##_rows_baseline WEAK, cpu_##name##_rows_avx2 WEAK, \
        cpu_##name##_rows_avx512 WEAK;
#include "families.def"
#undef FAMILY

struct family {
    const struct cpu_rows *plain, *variants[3];     /* variants are indexed by enum cpu_isa */
};

static const struct family families[] = {
#define FAMILY(name)                                                                                              \
    { &cpu_##name##_rows, { &cpu_##name##_rows_baseline, &cpu_##name##_rows_avx2, &cpu_##name##_rows_avx512 } },
#include "families.def"
#undef FAMILY
};

ctrt_kernel_table cpu_kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .stride = sizeof(ctrt_kernel),
};

/* Appends `rows` to `to` and returns their number. If `to` is NULL, only returns the number. */
static size_t append(ctrt_kernel *to, const struct cpu_rows *rows)
{
    if (!rows)
        return 0;
    if (to && rows->count)
        memcpy(to, rows->rows, rows->count * sizeof(ctrt_kernel));
    return rows->count;
}

static size_t join(ctrt_kernel *to)
{
    size_t count = 0;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const struct cpu_rows *best = NULL;
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
    static ctrt_kernel *rows;
    size_t count = join(NULL);
    ctrt_kernel *joined = cpu_host->alloc(count * sizeof(ctrt_kernel));
    if (!joined)
        return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no memory for the table of %zu kernels", count);
    join(joined);
    if (rows)
        cpu_host->free(rows);
    rows = joined;
    cpu_kernel_table.rows = rows;
    cpu_kernel_table.count = count;
    return CTRT_OK;
}
