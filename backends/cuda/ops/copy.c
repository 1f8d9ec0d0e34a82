/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/copy.c: copy, from any layout and dtype to any other, and fill. */
#include "kernels/copy_args.h"
#include "elementwise.h"

/* ---- casting ---- */

/* Returns the result dtype in the kernel's name: integers of the same size share a kernel. */
static ctrt_dtype cast_to(ctrt_dtype dtype)
{
    return CTRT_DTYPE_BIT(dtype) & CUDA_INTEGRAL ? cuda_bits_of(dtype) : dtype;
}

/* Returns true if the cast does not change the bits, so that a plain copy is enough. A bool (0 or 1) is a valid u8, but
 * a u8 is not a valid bool. */
static bool same_bits(ctrt_dtype from, ctrt_dtype to)
{
    return from == to || (cuda_dtype_bytes[from] == 1 && cuda_dtype_bytes[to] == 1 && to != CTRT_BOOL);
}

static ctrt_status copy_cast(const ctrt_call *call, ctrt_dtype from, ctrt_dtype to)
{
    static struct cuda_entry entries[CUDA_DTYPES][CUDA_DTYPES][2];
    static const char *const stems[CUDA_DTYPES] = {
        [CTRT_F32] = "cast_f32", [CTRT_F64] = "cast_f64", [CTRT_F16] = "cast_f16", [CTRT_BF16] = "cast_bf16",
        [CTRT_I8] = "cast_i8",   [CTRT_U8] = "cast_u8",   [CTRT_I16] = "cast_i16", [CTRT_I32] = "cast_i32",
        [CTRT_I64] = "cast_i64", [CTRT_BOOL] = "cast_u8",
    };
    const ctrt_dtype key = cast_to(to);
    const struct elementwise_kernel kernel = { .fatbin = &cuda_fatbin_cast, .entries = entries[from][key],
                                               .stem = stems[from], .key = key };
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise_kernel(call, &args, &kernel);
}

/* ---- transposing ---- */

/* Minimum size of a transposed dimension. A smaller dimension leaves most of a tile empty, and then the strided kernel
 * is as fast because of the caches. */
#define TRANSPOSE_LEAST 16

/* If `out` has stride 1 in its last dimension and `in` in another, returns that other dimension; else -1. */
static int transposed_dim(const ctrt_view *out, const ctrt_view *in)
{
    const int last = out->ndim - 1;
    if (out->ndim < 2 || (in->flags & CTRT_VIEW_HOST_SCALAR) || out->strides[last] != 1 || in->strides[last] == 1
        || in->strides[last] == 0 || out->shape[last] < TRANSPOSE_LEAST)
        return -1;
    for (int d = last - 1; d >= 0; d--)
        if (in->strides[d] == 1 && out->shape[d] >= TRANSPOSE_LEAST)
            return d;
    return -1;
}

static ctrt_status copy_transpose(const ctrt_call *call, ctrt_dtype bits, int dim)
{
    static struct cuda_entry entries[CUDA_DTYPES];
    static const char *const names[CUDA_DTYPES] = {
        [CTRT_U8] = "transpose_u8", [CTRT_I16] = "transpose_i16", [CTRT_I32] = "transpose_i32",
        [CTRT_I64] = "transpose_i64",
    };
    const ctrt_view *out = call->outputs[0], *in = call->inputs[0];
    const int last = out->ndim - 1;
    const int64_t side = cuda_dtype_bytes[bits] <= 2 ? 64 : 32;
    struct transpose_args args = {
        .out = out->data, .in = in->data, .rows = out->shape[dim], .columns = out->shape[last],
        .out_row = out->strides[dim], .in_column = in->strides[last],
    };
    args.tiles_down = fast_div_of((args.rows + side - 1) / side);
    args.tiles_across = fast_div_of((args.columns + side - 1) / side);
    args.tiles = args.tiles_down.size * args.tiles_across.size;
    for (int d = 0; d < last; d++)
        if (d != dim) {
            args.shape[args.ndim] = fast_div_of(out->shape[d]);
            args.out_strides[args.ndim] = out->strides[d];
            args.in_strides[args.ndim++] = in->strides[d];
            args.tiles *= out->shape[d];
        }
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, args.tiles * TRANSPOSE_THREADS,
                                                            TRANSPOSE_THREADS) },
                                      .block = TRANSPOSE_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_copy, &entries[bits], names[bits], shape, &args);
}

/* ---- strided copies; pairs of elements are copied as one element where possible, for wider accesses ---- */

static bool pairs_up(const ctrt_view *view, size_t bytes)
{
    const int last = view->ndim - 1;
    bool can = view->strides[last] == 1 && view->shape[last] % 2 == 0 && (uintptr_t)view->data % (2 * bytes) == 0;
    for (int d = 0; d < last; d++)
        can = can && view->strides[d] % 2 == 0;
    return can;
}

static void pair_up(ctrt_view *view)
{
    for (int d = 0; d < view->ndim - 1; d++)
        view->strides[d] /= 2;
    view->shape[view->ndim - 1] /= 2;
    view->numel /= 2;
}

static ctrt_status copy_strided(const ctrt_call *call, ctrt_dtype bits)
{
    static const uint8_t of_bytes[9] = { [1] = CTRT_U8, [2] = CTRT_I16, [4] = CTRT_I32, [8] = CTRT_I64 };
    ctrt_view out = *call->outputs[0], in = *call->inputs[0];
    const ctrt_view *const outputs[1] = { &out }, *const inputs[1] = { &in };
    ctrt_call pairs = *call;
    struct elementwise_args args;
    size_t bytes = cuda_dtype_bytes[bits];
    if (out.flags & in.flags & CTRT_VIEW_CONTIGUOUS) {
        out.ndim = in.ndim = 1;
        out.shape[0] = in.shape[0] = out.numel;
        out.strides[0] = in.strides[0] = 1;
    }
    if (out.ndim > 0 && !(in.flags & CTRT_VIEW_HOST_SCALAR))
        for (; bytes < 8 && pairs_up(&out, bytes) && pairs_up(&in, bytes); bytes *= 2) {
            pair_up(&out);
            pair_up(&in);
        }
    out.dtype = in.dtype = of_bytes[bytes];
    pairs.outputs = outputs;
    pairs.inputs = inputs;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(&pairs, &args, (ctrt_dtype)of_bytes[bytes], 0, NULL);
}

/* ---- copy ---- */

static ctrt_status copy_run(const ctrt_call *call)
{
    const ctrt_view *out = call->outputs[0], *in = call->inputs[0];
    const ctrt_dtype from = (ctrt_dtype)in->dtype, to = (ctrt_dtype)out->dtype, bits = cuda_bits_of(from);
    if (to >= CUDA_DTYPES)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "the backend cuda cannot convert to dtype %d", to);
    if (out->numel == 0 || out == in)
        return CTRT_OK;
    if (!same_bits(from, to))
        return copy_cast(call, from, to);
    const bool contiguous = out->flags & in->flags & CTRT_VIEW_CONTIGUOUS;
    const int dim = contiguous ? -1 : transposed_dim(out, in);
    if (dim >= 0)
        return copy_transpose(call, bits, dim);
    if (!contiguous || ((uintptr_t)out->data | (uintptr_t)in->data) % 16 != 0)
        return copy_strided(call, bits);
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(call, &args, bits, 0, NULL);
}

/* ---- fill ---- */

static ctrt_status fill_run(const ctrt_call *call)
{
    const ctrt_range_attributes *range = call->attributes;
    const ctrt_dtype dtype = (ctrt_dtype)call->outputs[0]->dtype;
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    cuda_number(&args.lo, range->lo, dtype);
    return cuda_elementwise(call, &args, cuda_bits_of(dtype), 0, NULL);
}

static struct cuda_kernel kernels[] = {
    ELEMENTWISE_KERNEL_OF(copy, CUDA_ALL, copy, copy_run, ELEMENTWISE_EXACT, "move"),
    ELEMENTWISE_KERNEL_OF(fill, CUDA_ALL, copy, fill_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(copy, kernels);
