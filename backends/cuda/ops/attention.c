/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/attention.c: fused attention and its gradients: which calls the kernels support, and their
 * launches. The core composes all other calls of matrix products and softmax.
 *
 * With CTRT_CUDA_ATTENTION=auto, the choice depends on the bytes and flops per score. Composed attention moves at least
 * 16 bytes per score forward and 28 backward, between products of 4 E and 8 E flops. The fused kernels move almost no
 * bytes per score and skip the scores that a causal mask hides. With f16 and bf16 both use tensor cores, and composed
 * attention is limited by memory bandwidth. With f32 and f64 neither uses tensor cores, and the fused backward kernels
 * compute 7 products instead of 5, but their memory grows with L + S instead of L S. If f32 products may use tf32
 * (CTRT_CUDA_TF32), the library multiplies several times as fast as the fused kernels; then f32 attention is composed,
 * as long as the scores fit into an eighth of the device's memory. */
#include "host/fatbin.h"
#include "kernels/attention_args.h"
#include "host/options.h"
#include "row.h"

#include <limits.h>
#include <string.h>

enum { QUERIES_PASS, KEYS_PASS, PASSES, DELTA = PASSES * ATTENTION_WIDTHS };

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the index of the smallest kernel width that fits q and v; ATTENTION_WIDTHS: none. */
static int width_of(const ctrt_view *q, const ctrt_view *v)
{
    int i = 0;
    while (i < ATTENTION_WIDTHS && ATTENTION_WIDTH(i) < max_of(q->shape[3], v->shape[3]))
        i++;
    return i;
}

static unsigned shared_of(ctrt_dtype dtype, int width, bool backward)
{
    const unsigned bytes = cuda_dtype_bytes[dtype];
    return (unsigned)ATTENTION_SHARED((int)bytes, ATTENTION_WIDTH(width), backward) * bytes;
}

static bool composed(const struct cuda_device *device, const ctrt_view *q, const ctrt_view *k)
{
    if (cuda_options.attention != CUDA_ATTENTION_AUTO)
        return cuda_options.attention == CUDA_ATTENTION_COMPOSITE;
    const double scores = (double)q->shape[0] * (double)q->shape[1] * (double)q->shape[2] * (double)k->shape[2] * 4;
    return q->dtype == CTRT_F32 && cuda_options.tf32_products && scores <= (double)device->total_bytes / 8;
}

static bool takes(const ctrt_call *call, const ctrt_view *q, const ctrt_view *k, const ctrt_view *v, bool backward)
{
    const struct cuda_device *device = call->device;
    const int width = width_of(q, v);
    const int64_t tiles = max_of(q->shape[2], k->shape[2]) / 32 + 1;
    return width < ATTENTION_WIDTHS && q->shape[2] <= INT_MAX / 2 && k->shape[2] <= INT_MAX / 2
           && (double)q->shape[0] * (double)q->shape[1] * (double)tiles <= INT_MAX
           && (q->dtype != CTRT_BF16 || device->capability >= 80)
           && shared_of((ctrt_dtype)q->dtype, width, backward) <= (unsigned)(device->shared_optin - CUDA_SHARED_STATIC)
           && !composed(device, q, k);
}

static bool attention_accepts(const ctrt_call *call)
{
    return takes(call, call->inputs[0], call->inputs[1], call->inputs[2], false);
}

static bool attention_backward_accepts(const ctrt_call *call)
{
    return takes(call, call->inputs[1], call->inputs[2], call->inputs[3], true);
}

/* ---- arguments ---- */

/* Converts a view. ORs the address, and the strides and row size in bytes, into *alignment. */
static struct attention_operand attention_operand(const ctrt_view *view, uintptr_t *alignment)
{
    int64_t step[3];
    for (int d = 0; d < 3; d++)
        step[d] = view->shape[d] > 1 ? view->strides[d] : 0;        /* the stride of size 1 has no meaning */
    *alignment |= (uintptr_t)view->data
                  | (uintptr_t)(step[0] | step[1] | step[2] | view->shape[3]) * cuda_dtype_bytes[view->dtype];
    return (struct attention_operand){ .data = view->data, .batch = step[0], .head = step[1], .row = step[2] };
}

static void attention_begin(struct attention_args *args, const ctrt_call *call, const ctrt_view *const *qkv,
                            uintptr_t *alignment)
{
    const ctrt_attention_attributes *attributes = call->attributes;
    const ctrt_view *q = qkv[0], *k = qkv[1], *v = qkv[2];
    memset(args, 0, sizeof *args);
    *alignment = 0;
    args->q = attention_operand(q, alignment);
    args->k = attention_operand(k, alignment);
    args->v = attention_operand(v, alignment);
    args->heads = fast_div_of(q->shape[1]);
    args->matrices = q->shape[0] * q->shape[1];
    args->rows = (int32_t)q->shape[2];
    args->keys = (int32_t)k->shape[2];
    args->width = (int32_t)q->shape[3];
    args->values = (int32_t)v->shape[3];
    args->causal = attributes->causal != 0;
    args->scale = attributes->scale;
}

/* Returns a grid with one block per `own` rows of each matrix; `count`: rows of a matrix. */
static struct cuda_shape divide(struct attention_args *args, ctrt_dtype dtype, int64_t count, int own)
{
    args->tiles = fast_div_of((count + own - 1) / own);
    return (struct cuda_shape){ .grid = { (unsigned)(args->tiles.size * args->matrices) },
                                .block = ATTENTION_THREADS(cuda_dtype_bytes[dtype]) };
}

/* ---- forward ---- */

static ctrt_status attention(const ctrt_call *call)
{
    static const char *const words[ATTENTION_WIDTHS] = { "32", "64", "128" };
    const ctrt_dtype dtype = (ctrt_dtype)call->inputs[0]->dtype;
    const int width = width_of(call->inputs[0], call->inputs[2]);
    struct attention_args args;
    uintptr_t alignment;
    attention_begin(&args, call, call->inputs, &alignment);
    args.y = attention_operand(call->outputs[0], &alignment);
    args.logsumexp = call->outputs[1]->data;
    args.vectors = cuda_whole_vectors(alignment);
    struct cuda_shape shape = divide(&args, dtype, args.rows,
                                     ATTENTION_OWN(cuda_dtype_bytes[dtype], ATTENTION_WIDTH(width), false));
    shape.shared = shared_of(dtype, width, false);
    return cuda_launch(call, dtype, width, words[width], shape, &args);
}

/* ---- backward ---- */

static size_t delta_bytes(const ctrt_call *call)
{
    const ctrt_view *q = call->inputs[1];
    return (size_t)(q->shape[0] * q->shape[1] * q->shape[2]) * (q->dtype == CTRT_F64 ? 8 : 4);
}

static ctrt_status attention_backward_workspace(const ctrt_call *call, size_t *bytes)
{
    *bytes = delta_bytes(call);
    return CTRT_OK;
}

static ctrt_status launch_delta(const ctrt_call *call, ctrt_dtype dtype, const struct attention_args *args)
{
    struct attention_args own = *args;
    own.tiles = fast_div_of(args->rows);
    const int64_t rows = args->matrices * args->rows, a_block = ROW_THREADS / 32;
    const struct cuda_shape shape = { .grid = { cuda_grid((rows + a_block - 1) / a_block) }, .block = ROW_THREADS };
    return cuda_launch(call, dtype, DELTA, "d", shape, &own);
}

static ctrt_status launch_pass(const ctrt_call *call, ctrt_dtype dtype, int pass, int width,
                               struct attention_args *args)
{
    static const char *const words[PASSES * ATTENTION_WIDTHS] = { "q32", "k32", "q64", "k64", "q128", "k128" };
    const int index = width * PASSES + pass;
    struct cuda_shape shape = divide(args, dtype, pass == KEYS_PASS ? args->keys : args->rows,
                                     ATTENTION_OWN(cuda_dtype_bytes[dtype], ATTENTION_WIDTH(width), true));
    shape.shared = shared_of(dtype, width, true);
    return cuda_launch(call, dtype, index, words[index], shape, args);
}

static ctrt_status attention_backward(const ctrt_call *call)
{
    const ctrt_dtype dtype = (ctrt_dtype)call->inputs[1]->dtype;
    const int width = width_of(call->inputs[1], call->inputs[3]);
    struct attention_args args;
    uintptr_t alignment;
    attention_begin(&args, call, call->inputs + 1, &alignment);
    args.dy = attention_operand(call->inputs[0], &alignment);
    args.y = attention_operand(call->inputs[4], &alignment);
    args.dq = attention_operand(call->outputs[0], &alignment);
    args.dk = attention_operand(call->outputs[1], &alignment);
    args.dv = attention_operand(call->outputs[2], &alignment);
    args.logsumexp = call->inputs[5]->data;
    args.delta = call->workspace;
    args.vectors = cuda_whole_vectors(alignment);
    ctrt_status status = launch_delta(call, dtype, &args);
    for (int pass = 0; pass < PASSES && status == CTRT_OK; pass++)
        status = launch_pass(call, dtype, pass, width, &args);
    return status;
}

static struct cuda_kernel kernels[] = {
    { .base = { .op = "attention", .dtypes = CUDA_FLOATING, .flags = CTRT_KERNEL_STRIDED, .run = attention,
                  .accepts = attention_accepts },
      .fatbin = &cuda_fatbin_attention },
    { .base = { .op = "attention_backward", .dtypes = CUDA_FLOATING, .flags = CTRT_KERNEL_STRIDED,
                  .run = attention_backward, .accepts = attention_backward_accepts,
                  .workspace = attention_backward_workspace },
      .fatbin = &cuda_fatbin_attention_backward },
};

CUDA_KERNELS(attention, kernels);
