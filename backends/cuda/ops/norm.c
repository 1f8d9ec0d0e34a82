/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/norm.c: layer_norm, batch_norm and their gradients: selects the kernels for a shape and launches
 * them. */
#include <string.h>

#include "host/fatbin.h"
#include "kernels/norm_args.h"
#include "row.h"

#define ENOUGH_BLOCKS 1024                  /* for any device; a constant, so that all devices give the same results */
#define COLUMN_TEAM   32

/* Kernel variants of layer_norm_backward, after those of enum cuda_row_cache; and of batch_norm. */
enum { LAYER_COLUMNS = 4, LAYER_FINISH };
enum { BATCH_ROWS, BATCH_NUMBERS, BATCH_COLUMNS, BATCH_FINISH, BATCH_LAST_VECTORS, BATCH_LAST_NUMBERS };

static const ctrt_view *input(const ctrt_call *call, uint32_t i)
{
    return i < call->n_inputs ? call->inputs[i] : NULL;
}

static const ctrt_view *output(const ctrt_call *call, uint32_t i)
{
    return i < call->n_outputs ? call->outputs[i] : NULL;
}

/* Returns the data of an optional parameter, or NULL; sets `bit` in *wide if it is f32 and the other operands are
 * not. */
static void *parameter(const ctrt_view *view, ctrt_dtype dtype, int32_t bit, int32_t *wide)
{
    if (view == NULL)
        return NULL;
    if (view->dtype == CTRT_F32 && dtype != CTRT_F32)
        *wide |= bit;
    return view->data;
}

static int64_t up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the number of pieces of `count` that make ENOUGH_BLOCKS blocks of `blocks`, with at least `least` elements
 * each. */
static int64_t pieces_of(int64_t count, int64_t blocks, int64_t least)
{
    const int64_t busy = ENOUGH_BLOCKS / (blocks > 0 ? blocks : 1), most = count / least,
                  pieces = busy < most ? busy : most;
    return pieces > 1 ? pieces : 1;
}

/* Divides `count` into at most `pieces` pieces. */
static void norm_cut(struct norm_args *a, int64_t count, int64_t pieces)
{
    a->count = count;
    a->piece = up(count, pieces);
    a->pieces = fast_div_of(count > 0 ? up(count, a->piece) : 1);
}

/* Returns the bytes of workspace for the pieces' two sums of each of `columns` columns. */
static size_t partial_bytes(int64_t pieces, int64_t columns)
{
    return (size_t)(pieces * 2 * columns) * sizeof(double);
}

/* ---- layer_norm ---- */

static void layer_args(struct norm_args *a, const ctrt_view *x, const ctrt_call *call)
{
    const ctrt_norm_attributes *attributes = call->attributes;
    memset(a, 0, sizeof *a);
    a->x = x->data;
    a->rows = x->shape[0];
    a->n = x->shape[1];
    a->epsilon = attributes != NULL ? attributes->epsilon : 0;
    a->tiles = fast_div_of(up(a->n, COLUMN_TEAM));
}

static ctrt_status layer_norm(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    const ctrt_dtype dtype = (ctrt_dtype)x->dtype;
    const size_t bytes = cuda_dtype_bytes[dtype];
    struct norm_args a;
    if (x->shape[0] == 0)
        return CTRT_OK;
    layer_args(&a, x, call);
    a.weight = parameter(input(call, 1), dtype, NORM_WEIGHT, &a.wide);
    a.bias = parameter(input(call, 2), dtype, NORM_BIAS, &a.wide);
    a.out = call->outputs[0]->data;
    a.mean = call->outputs[1]->data;
    a.rstd = call->outputs[2]->data;
    const bool vectors = cuda_whole_vectors((uintptr_t)a.x | (uintptr_t)a.weight | (uintptr_t)a.bias | (uintptr_t)a.out
                                            | (uintptr_t)a.n * bytes);
    enum cuda_row_cache cache;
    const struct cuda_shape shape = cuda_row_shape(call->device, a.rows, a.n, bytes, vectors, 1, &cache, &a.row_pitch);
    return cuda_launch(call, dtype, cache, cuda_row_variants[cache], shape, &a);
}

static int64_t layer_pieces(const ctrt_view *x)
{
    return pieces_of(x->shape[0], up(x->shape[1], COLUMN_TEAM), 64);
}

static ctrt_status layer_workspace(const ctrt_call *call, size_t *bytes)
{
    const ctrt_view *x = call->inputs[1];
    *bytes = output(call, 1) != NULL || output(call, 2) != NULL ? partial_bytes(layer_pieces(x), x->shape[1]) : 0;
    return CTRT_OK;
}

static ctrt_status layer_norm_backward(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[1], *dx = call->outputs[0];
    const ctrt_dtype dtype = (ctrt_dtype)x->dtype;
    const size_t bytes = cuda_dtype_bytes[dtype];
    struct norm_args a;
    ctrt_status status = CTRT_OK;
    layer_args(&a, x, call);
    norm_cut(&a, a.rows, layer_pieces(x));
    a.dy = call->inputs[0]->data;
    a.weight = parameter(input(call, 2), dtype, NORM_WEIGHT, &a.wide);
    a.mean = call->inputs[3]->data;
    a.rstd = call->inputs[4]->data;
    a.dweight = parameter(output(call, 1), dtype, NORM_DWEIGHT, &a.wide);
    a.dbias = parameter(output(call, 2), dtype, NORM_DBIAS, &a.wide);
    a.partial = call->workspace;
    if (dx != NULL && a.rows > 0) {
        a.out = dx->data;
        const bool vectors = cuda_whole_vectors((uintptr_t)a.x | (uintptr_t)a.dy | (uintptr_t)a.weight
                                                | (uintptr_t)a.out | (uintptr_t)a.n * bytes);
        enum cuda_row_cache cache;
        const struct cuda_shape shape = cuda_row_shape(call->device, a.rows, a.n, bytes, vectors, 2, &cache,
                                                       &a.row_pitch);
        status = cuda_launch(call, dtype, cache, cuda_row_variants[cache], shape, &a);
    }
    if (status != CTRT_OK || (a.dweight == NULL && a.dbias == NULL))
        return status;
    const struct cuda_shape sums = { .grid = { cuda_grid(a.tiles.size * a.pieces.size) }, .block = ROW_THREADS };
    const struct cuda_shape finish = { .grid = { cuda_blocks(call->device, a.n * 32, ROW_THREADS) },
                                       .block = ROW_THREADS };
    status = cuda_launch(call, dtype, LAYER_COLUMNS, "c", sums, &a);
    return status == CTRT_OK ? cuda_launch(call, dtype, LAYER_FINISH, "f", finish, &a) : status;
}

/* ---- batch_norm ---- */

/* Fills the arguments. Returns the elements per vector: 16 bytes if all rows of all operands are aligned to 16 bytes,
 * else 1. */
static int batch_args(struct norm_args *a, const ctrt_view *x, const ctrt_view *dy, const ctrt_view *out,
                      const ctrt_call *call)
{
    const ctrt_norm_attributes *attributes = call->attributes;
    const size_t bytes = cuda_dtype_bytes[x->dtype];
    memset(a, 0, sizeof *a);
    a->x = x->data;
    a->dy = dy != NULL ? dy->data : NULL;
    a->out = out != NULL ? out->data : NULL;
    const bool vectors = cuda_whole_vectors((uintptr_t)a->x | (uintptr_t)a->dy | (uintptr_t)a->out
                                            | (uintptr_t)x->shape[2] * bytes);
    const int per_vector = vectors ? (int)(16 / bytes) : 1;
    a->n = per_vector;
    a->rows = x->shape[0];
    a->elements = (double)x->shape[0] * (double)x->shape[2];
    a->channels = fast_div_of(x->shape[1]);
    a->size = fast_div_of(x->shape[2] / per_vector);
    a->vectors = x->numel / per_vector;
    a->epsilon = attributes->epsilon;
    a->momentum = attributes->momentum;
    a->training = attributes->training;
    a->tiles = fast_div_of(up(x->shape[1], COLUMN_TEAM));
    return per_vector;
}

static int64_t batch_pieces(const ctrt_view *x)
{
    if (x->shape[2] == 1)
        return pieces_of(x->shape[0], up(x->shape[1], COLUMN_TEAM), 64);
    return pieces_of(x->shape[0] * x->shape[2], x->shape[1], 4096);
}

static ctrt_status batch_workspace(const ctrt_call *call, size_t *bytes)
{
    const ctrt_norm_attributes *attributes = call->attributes;
    const ctrt_view *x = call->inputs[0];
    *bytes = attributes->training ? partial_bytes(batch_pieces(x), x->shape[1]) : 0;
    return CTRT_OK;
}

static ctrt_status batch_backward_workspace(const ctrt_call *call, size_t *bytes)
{
    const ctrt_view *x = call->inputs[1];
    *bytes = partial_bytes(batch_pieces(x), x->shape[1]);
    return CTRT_OK;
}

static ctrt_status norm_launch_sums(const ctrt_call *call, const struct norm_args *a, ctrt_dtype dtype, int per_vector,
                                    bool columns)
{
    const int64_t blocks = (columns ? a->tiles.size : a->channels.size) * a->pieces.size;
    const struct cuda_shape shape = { .grid = { cuda_grid(blocks) }, .block = ROW_THREADS };
    if (columns)
        return cuda_launch(call, dtype, BATCH_COLUMNS, "c", shape, a);
    return cuda_launch(call, dtype, per_vector > 1 ? BATCH_ROWS : BATCH_NUMBERS, per_vector > 1 ? "r" : "q", shape, a);
}

static ctrt_status launch_finish(const ctrt_call *call, const struct norm_args *a, ctrt_dtype dtype)
{
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, a->channels.size * 32, ROW_THREADS) },
                                      .block = ROW_THREADS };
    return cuda_launch(call, dtype, BATCH_FINISH, "f", shape, a);
}

static ctrt_status launch_last(const ctrt_call *call, const struct norm_args *a, ctrt_dtype dtype, int per_vector)
{
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, up(a->vectors, 2), ROW_THREADS) },
                                      .block = ROW_THREADS };
    return cuda_launch(call, dtype, per_vector > 1 ? BATCH_LAST_VECTORS : BATCH_LAST_NUMBERS,
                       per_vector > 1 ? "v" : "n", shape, a);
}

static ctrt_status batch_norm(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    const ctrt_dtype dtype = (ctrt_dtype)x->dtype;
    struct norm_args a;
    ctrt_status status = CTRT_OK;
    if (x->numel == 0)
        return CTRT_OK;
    const int per_vector = batch_args(&a, x, NULL, call->outputs[0], call);
    a.weight = parameter(input(call, 1), dtype, NORM_WEIGHT, &a.wide);
    a.bias = parameter(input(call, 2), dtype, NORM_BIAS, &a.wide);
    a.running_mean = parameter(input(call, 3), dtype, NORM_RUNNING_MEAN, &a.wide);
    a.running_var = parameter(input(call, 4), dtype, NORM_RUNNING_VAR, &a.wide);
    a.mean = call->outputs[1]->data;
    a.rstd = call->outputs[2]->data;
    a.partial = call->workspace;
    if (a.training) {
        norm_cut(&a, x->shape[0] * a.size.size, batch_pieces(x));
        status = norm_launch_sums(call, &a, dtype, per_vector, x->shape[2] == 1);
    }
    if (status == CTRT_OK)
        status = launch_finish(call, &a, dtype);
    return status == CTRT_OK ? launch_last(call, &a, dtype, per_vector) : status;
}

static ctrt_status batch_norm_backward(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[1], *dx = call->outputs[0];
    const ctrt_dtype dtype = (ctrt_dtype)x->dtype;
    struct norm_args a;
    if (x->numel == 0)
        return CTRT_OK;
    const int per_vector = batch_args(&a, x, call->inputs[0], dx, call);
    a.weight = parameter(input(call, 2), dtype, NORM_WEIGHT, &a.wide);
    a.mean = call->inputs[3]->data;
    a.rstd = call->inputs[4]->data;
    a.dweight = parameter(output(call, 1), dtype, NORM_DWEIGHT, &a.wide);
    a.dbias = parameter(output(call, 2), dtype, NORM_DBIAS, &a.wide);
    a.partial = call->workspace;
    norm_cut(&a, x->shape[0] * a.size.size, batch_pieces(x));
    ctrt_status status = norm_launch_sums(call, &a, dtype, per_vector, x->shape[2] == 1);
    if (status == CTRT_OK)
        status = launch_finish(call, &a, dtype);
    return status == CTRT_OK && dx != NULL ? launch_last(call, &a, dtype, per_vector) : status;
}

#define KERNEL(name, file, workspace_) \
    { .base = { .op = #name, .dtypes = CUDA_FLOATING, .run = name, .workspace = workspace_ }, \
      .fatbin = &cuda_fatbin_##file }

static struct cuda_kernel kernels[] = {
    KERNEL(layer_norm, norm, NULL),
    KERNEL(layer_norm_backward, norm, layer_workspace),
    KERNEL(batch_norm, batch_norm, batch_workspace),
    KERNEL(batch_norm_backward, batch_norm, batch_backward_workspace),
};

CUDA_KERNELS(norm, kernels);
