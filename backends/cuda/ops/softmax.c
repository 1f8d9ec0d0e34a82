/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/softmax.c: softmax, log_softmax and their gradients: selects the kernel of softmax.cu for a
 * shape. */
#include <string.h>

#include "host/fatbin.h"
#include "row.h"
#include "kernels/softmax_args.h"

#define COLUMNS 4                           /* kernel variant, after those of enum cuda_row_cache */

static struct cuda_shape shape_columns(struct softmax_args *a)
{
    const int64_t most = a->n <= 64 ? ROW_THREADS : 32;        /* short columns: one thread each */
    a->team = 1;
    while (a->team < most && a->team < a->inner)
        a->team *= 2;
    a->tiles = fast_div_of((a->inner + a->team - 1) / a->team);
    return (struct cuda_shape){ .grid = { cuda_grid(a->outer * a->tiles.size) }, .block = ROW_THREADS };
}

static ctrt_status softmax_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *second = call->n_inputs > 1 ? call->inputs[1] : NULL,
                    *out = call->outputs[0];
    const size_t bytes = cuda_dtype_bytes[x->dtype];
    struct softmax_args a;
    if (x->numel == 0)
        return CTRT_OK;
    memset(&a, 0, sizeof a);
    a.a = x->data;
    a.b = second != NULL ? second->data : NULL;
    a.out = out->data;
    a.outer = x->shape[0];
    a.n = x->shape[1];
    a.inner = x->shape[2];
    if (a.inner > 1)
        return cuda_launch(call, (ctrt_dtype)x->dtype, COLUMNS, "c", shape_columns(&a), &a);
    enum cuda_row_cache cache;
    const bool vectors = cuda_whole_vectors((uintptr_t)a.a | (uintptr_t)a.b | (uintptr_t)a.out
                                            | (uintptr_t)a.n * bytes);
    const struct cuda_shape shape = cuda_row_shape(call->device, a.outer, a.n, bytes, vectors, second != NULL ? 2 : 1,
                                                   &cache, &a.row_pitch);
    return cuda_launch(call, (ctrt_dtype)x->dtype, cache, cuda_row_variants[cache], shape, &a);
}

#define KERNEL(name) \
    { .base = { .op = #name, .dtypes = CUDA_FLOATING, .run = softmax_run }, .fatbin = &cuda_fatbin_softmax }

static struct cuda_kernel kernels[] = {
    KERNEL(softmax),
    KERNEL(log_softmax),
    KERNEL(softmax_backward),
    KERNEL(log_softmax_backward),
};

CUDA_KERNELS(softmax, kernels);
