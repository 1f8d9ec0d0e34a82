/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/index.c: index_select, gather, index_add, scatter_add. */
#include <string.h>

#include "host/fatbin.h"
#include "kernels/index_args.h"
#include "index_sort.h"
#include "host/options.h"
#include "row.h"

#define ENOUGH_BLOCKS 512
#define LEAST_PIECE   256                   /* minimum number of indices per block */
#define MOST_PARTIAL  ((int64_t)64 << 20)   /* maximum bytes of the pieces' partial sums */
/* With tiles, every tile of the result reads all indices of its columns. Sorting instead costs about 130 bytes of
 * memory traffic per element and 15 launches. It is chosen if the tiles would read more than SORT_BYTES of indices (0.1
 * ms from the L2 cache of an H200) and, for scatter_add, whose elements each have an index, if there are at least
 * SORT_GROUPS tiles along the indexed dimension. */
#define SORT_BYTES    0x1p29
#define SORT_GROUPS   32

enum { JOIN = 1, NARROW };                  /* kernel variants of index_add and scatter_add */

/* Returns the dtype whose kernel is used for all dtypes of the same size: for copies, and for integer sums, which are
 * the same for signed and unsigned types. */
static ctrt_dtype by_bytes(ctrt_dtype dtype)
{
    static const ctrt_dtype types[] = { [1] = CTRT_U8, [2] = CTRT_I16, [4] = CTRT_I32, [8] = CTRT_I64 };
    return types[cuda_dtype_bytes[dtype]];
}

static void start(struct index_args *a, const ctrt_call *call)
{
    memset(a, 0, sizeof *a);
    a->from = call->inputs[0]->data;
    a->index = call->inputs[1]->data;
    a->to = call->outputs[0]->data;
    a->n = call->outputs[0]->numel;
    a->error = (struct kernel_error *)(uintptr_t)cuda_error_place(call, &a->sequence);
}

/* ---- index_select, gather ---- */

static ctrt_status index_select(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    const size_t bytes = cuda_dtype_bytes[x->dtype];
    struct index_args a;
    if (call->outputs[0]->numel == 0)
        return CTRT_OK;
    start(&a, call);
    a.size = x->shape[1];
    a.count = fast_div_of(call->inputs[1]->numel);
    const bool vectors = cuda_whole_vectors((uintptr_t)a.from | (uintptr_t)a.to | (uintptr_t)x->shape[2] * bytes);
    const int64_t per_vector = vectors ? (int64_t)(16 / bytes) : 1;
    a.n /= per_vector;
    a.inner = fast_div_of(x->shape[2] / per_vector);
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, (a.n + 1) / 2, INDEX_THREADS) },
                                      .block = INDEX_THREADS };
    return cuda_launch(call, vectors ? CTRT_I64 : by_bytes((ctrt_dtype)x->dtype), vectors, vectors ? "v" : NULL, shape,
                       &a);
}

static ctrt_status gather(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *index = call->inputs[1];
    struct index_args a;
    if (call->outputs[0]->numel == 0)
        return CTRT_OK;
    start(&a, call);
    a.size = x->shape[1];
    a.count = fast_div_of(index->shape[1]);
    a.inner = fast_div_of(index->shape[2]);
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, (a.n + 1) / 2, INDEX_THREADS) },
                                      .block = INDEX_THREADS };
    return cuda_launch(call, by_bytes((ctrt_dtype)x->dtype), 0, NULL, shape, &a);
}

/* ---- index_add, scatter_add ---- */

static int64_t up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Divides the work into tiles of columns, groups of rows of the result, and pieces of the indices. `count`: indices
 * along the indexed dimension. */
static void index_cut(struct index_args *a, const ctrt_view *dx, int64_t count)
{
    const int64_t sum_bytes = cuda_dtype_bytes[dx->dtype] == 8 ? 8 : 4;
    a->outer = dx->shape[0];
    a->size = dx->shape[1];
    a->inner = fast_div_of(dx->shape[2]);
    a->count = fast_div_of(count);
    a->team = 1;
    while (a->team < INDEX_THREADS && a->team < dx->shape[2])
        a->team *= 2;
    a->group = INDEX_TILE_BYTES / sum_bytes / a->team;
    a->tiles = fast_div_of(up(dx->shape[2], a->team));
    a->groups = fast_div_of(up(a->size, a->group));
    int64_t pieces = ENOUGH_BLOCKS / (a->outer * a->tiles.size * a->groups.size);
    pieces = pieces < count / LEAST_PIECE ? pieces : count / LEAST_PIECE;
    pieces = pieces < MOST_PARTIAL / (dx->numel * sum_bytes) ? pieces : MOST_PARTIAL / (dx->numel * sum_bytes);
    a->piece = pieces > 1 ? up(count, pieces) : count > 0 ? count : 1;
    a->pieces = fast_div_of(pieces > 1 ? up(count, a->piece) : 1);
}

static int64_t count_of(const ctrt_call *call)
{
    const ctrt_view *index = call->inputs[1];
    return index->ndim == 3 ? index->shape[1] : index->numel;
}

static bool by_rows(const ctrt_call *call)
{
    return call->inputs[1]->ndim != 3;
}

/* Returns the workspace for sorting; 0: use tiles. */
static size_t sort_workspace(const ctrt_call *call, const struct index_args *a)
{
    const double indices = (double)(a->outer * a->count.size)
                           * (by_rows(call) ? (double)a->tiles.size : (double)a->inner.size);
    const bool pays = indices * (double)(8 * a->groups.size) > SORT_BYTES
                      && (by_rows(call) || a->groups.size >= SORT_GROUPS);
    if (cuda_options.scatter == CUDA_SCATTER_TILES || (cuda_options.scatter == CUDA_SCATTER_AUTO && !pays))
        return 0;
    return cuda_index_sort_workspace(call->outputs[0], a->count.size, by_rows(call));
}

static ctrt_status add_workspace(const ctrt_call *call, size_t *bytes)
{
    const ctrt_view *dx = call->outputs[0];
    struct index_args a;
    *bytes = 0;
    if (dx->numel == 0)
        return CTRT_OK;
    index_cut(&a, dx, count_of(call));
    const size_t sorting = sort_workspace(call, &a), denied = call->workspace_bytes;
    if (sorting > 0 && (denied == 0 || sorting < denied))
        *bytes = sorting;
    else if (a.pieces.size > 1)
        *bytes = (size_t)(a.pieces.size * dx->numel) * (cuda_dtype_bytes[dx->dtype] == 8 ? 8 : 4);
    return CTRT_OK;
}

static ctrt_status add(const ctrt_call *call)
{
    const ctrt_view *dx = call->outputs[0];
    const ctrt_index_attributes *attributes = call->attributes;
    const bool floating = CUDA_FLOATING & CTRT_DTYPE_BIT(dx->dtype);
    const ctrt_dtype dtype = floating ? (ctrt_dtype)dx->dtype : by_bytes((ctrt_dtype)dx->dtype);
    struct index_args a;
    if (dx->numel == 0)
        return CTRT_OK;
    start(&a, call);
    index_cut(&a, dx, count_of(call));
    a.skip = attributes != NULL ? attributes->value : -1;
    const size_t sorting = sort_workspace(call, &a);
    if (sorting > 0 && call->workspace_bytes >= sorting)
        return cuda_index_sort(call, dtype, a.count.size, by_rows(call), a.skip);
    a.partial = a.pieces.size > 1 ? call->workspace : NULL;
    struct cuda_shape shape = { .grid = { cuda_grid(a.outer * a.pieces.size * a.groups.size * a.tiles.size) },
                                .block = INDEX_THREADS };
    const bool narrow = a.team < 32;        /* fewer columns than a warp has lanes */
    ctrt_status status = cuda_launch(call, dtype, narrow ? NARROW : 0, narrow ? "n" : NULL, shape, &a);
    if (status != CTRT_OK || a.partial == NULL)
        return status;
    shape.grid[0] = cuda_blocks(call->device, a.n, INDEX_THREADS);
    return cuda_launch(call, dtype, JOIN, "j", shape, &a);
}

#define KERNEL(name, types, function, workspace_) \
    { .base = { .op = #name, .dtypes = (types), .run = function, .workspace = workspace_ }, \
      .fatbin = &cuda_fatbin_index }

static struct cuda_kernel kernels[] = {
    KERNEL(index_select, CUDA_ALL, index_select, NULL),
    KERNEL(gather, CUDA_ALL, gather, NULL),
    KERNEL(index_add, CUDA_NUMBERS, add, add_workspace),
    KERNEL(scatter_add, CUDA_NUMBERS, add, add_workspace),
};

CUDA_KERNELS(index, kernels);
