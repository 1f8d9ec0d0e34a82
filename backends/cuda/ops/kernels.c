/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/kernels.c: concatenates the families' rows into the backend's kernel table. */
#include "host/cuda.h"

#include <string.h>

#define FAMILY(name) extern const struct cuda_rows cuda_##name##_rows;
#include "families.def"
#undef FAMILY

static const struct cuda_rows *const families[] = {
#define FAMILY(name) &cuda_##name##_rows,
#include "families.def"
#undef FAMILY
};

ctrt_kernel_table cuda_kernel_table = { .size = sizeof(ctrt_kernel_table), .stride = sizeof(struct cuda_row) };

/* Copies all rows into one array, because a kernel table is contiguous. The array is writable: rows cache their device
 * kernels. */
ctrt_status cuda_kernels_init(void)
{
    size_t count = 0;
    for (size_t f = 0; f < COUNT_OF(families); f++)
        count += families[f]->count;
    struct cuda_row *rows = cuda_host->alloc(count * sizeof *rows);
    if (rows == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cuda: no memory for the table of %zu kernels", count);
    size_t at = 0;
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        memcpy(rows + at, families[f]->rows, families[f]->count * sizeof *rows);
        at += families[f]->count;
    }
    for (size_t i = 0; i < count; i++)
        rows[i].kernel.size = sizeof rows[i].kernel;
    cuda_kernel_table.rows = &rows[0].kernel;
    cuda_kernel_table.count = count;
    return CTRT_OK;
}
