/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/kernels.c: concatenates the kernels of the families into the backend's kernel table. */
#include "host/cuda.h"

#include <string.h>

#define FAMILY(name) extern const struct cuda_kernels cuda_##name##_kernels;
#include "families.def"
#undef FAMILY

static const struct cuda_kernels *const families[] = {
#define FAMILY(name) &cuda_##name##_kernels,
#include "families.def"
#undef FAMILY
};

ctrt_kernel_table cuda_kernel_table = { .size = sizeof(ctrt_kernel_table), .stride = sizeof(struct cuda_kernel) };

/* Copies all kernels into one array, because a kernel table is contiguous. The array is writable: kernels cache their
 * device kernels. */
ctrt_status cuda_kernels_init(void)
{
    size_t count = 0;
    for (size_t f = 0; f < COUNT_OF(families); f++)
        count += families[f]->count;
    struct cuda_kernel *kernels = cuda_host->alloc(count * sizeof *kernels);
    if (kernels == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cuda: no memory for the table of %zu kernels", count);
    size_t at = 0;
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        memcpy(kernels + at, families[f]->kernels, families[f]->count * sizeof *kernels);
        at += families[f]->count;
    }
    for (size_t i = 0; i < count; i++)
        kernels[i].base.size = sizeof kernels[i].base;
    cuda_kernel_table.kernels = &kernels[0].base;
    cuda_kernel_table.count = count;
    return CTRT_OK;
}
