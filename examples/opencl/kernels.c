/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: joins the kernel tables of the files into the one that the library reads. */
#include "opencl.h"

#define EACH_TABLE(X) \
    X(elementwise) X(reduce) X(product) X(conv) X(rows) X(norm) X(pool) X(index) X(random) X(optim)
#define DECLARE(name) extern const struct kernels name##_kernels;
#define ADDRESS(name) &name##_kernels,
EACH_TABLE(DECLARE)
static const struct kernels *const tables[] = { EACH_TABLE(ADDRESS) };

static struct kernel rows[KERNELS_MAX];

/* `stride` is the size of struct kernel, so the library skips what lies behind each ctrt_kernel. */
ctrt_kernel_table kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .kernels = &rows[0].base,
    .stride = sizeof(struct kernel),
};

ctrt_status kernels_init(void)
{
    size_t count = 0;
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (size_t r = 0; r < tables[t]->count; r++, count++) {
            if (count == KERNELS_MAX)
                return host->fail(CTRT_ERR_INTERNAL, "opencl: more than %d kernels: increase KERNELS_MAX", KERNELS_MAX);
            rows[count] = tables[t]->rows[r];
            rows[count].base.size = sizeof(ctrt_kernel);
            rows[count].number = (int)count;
        }
    kernel_table.count = count;
    return CTRT_OK;
}
