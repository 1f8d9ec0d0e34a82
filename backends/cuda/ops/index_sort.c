/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/index_sort.c: index_add and scatter_add by sorting; see index_sort.cu. */
#include "index_sort.h"

#include <string.h>

#include "host/fatbin.h"
#include "kernels/index_sort_args.h"
#include "row.h"

#define MOST_ELEMENTS ((int64_t)1 << 22)    /* of one sort, if possible: 64 MiB of workspace */
#define LEAST_COLUMNS 4                     /* indices per memory transaction */
#define MOST_KEYS     ((int64_t)INT32_MAX)
#define ALIGNED(bytes) (((bytes) + 255) / 256 * 256)

/* Sizes of one sort (`images` images and `columns` columns of scatter_add, or all rows of index_add), and byte offsets
 * of the parts of the workspace. */
struct plan {
    int64_t images, columns, n, tiles, runs, limit;
    size_t keys[2], places[2], counts, totals, partial, bytes;
};

static int64_t up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t sort_take(size_t *bytes, int64_t wanted)
{
    const size_t at = *bytes;
    *bytes += ALIGNED((size_t)wanted);
    return at;
}

/* Plans the addition of [outer, count, inner] to [outer, size, inner]. Returns false if there are too many elements. */
static bool sort_plan(struct plan *plan, const ctrt_view *dx, int64_t count, bool rows)
{
    const int64_t outer = dx->shape[0], size = dx->shape[1], inner = dx->shape[2],
                  sum_bytes = cuda_dtype_bytes[dx->dtype] == 8 ? 8 : 4;
    if (count > MOST_KEYS / LEAST_COLUMNS || size > MOST_KEYS / LEAST_COLUMNS)
        return false;
    *plan = (struct plan){ .images = 1, .columns = 1 };
    if (!rows) {
        const int64_t fits = least(MOST_ELEMENTS / count, MOST_KEYS / size);
        plan->columns = least(fits > LEAST_COLUMNS ? fits : LEAST_COLUMNS, inner);
        if (plan->columns == inner && fits > inner)
            plan->images = least(fits / inner, outer);
    }
    plan->n = plan->images * count * plan->columns;
    plan->limit = plan->images * size * plan->columns;
    plan->tiles = up(plan->n, SORT_TILE);
    plan->runs = up(plan->n, SORT_RUN);
    const int64_t wide = rows ? outer * inner : 1;
    if (plan->runs > INT64_MAX / 16 / wide)
        return false;
    for (int i = 0; i < 2; i++) {
        plan->keys[i] = sort_take(&plan->bytes, plan->n * 4);
        plan->places[i] = sort_take(&plan->bytes, plan->n * 4);
    }
    plan->counts = sort_take(&plan->bytes, SORT_THREADS * plan->tiles * 4);
    plan->totals = sort_take(&plan->bytes, SORT_THREADS * 4);
    plan->partial = sort_take(&plan->bytes, 2 * plan->runs * wide * sum_bytes);
    return true;
}

size_t cuda_index_sort_workspace(const ctrt_view *dx, int64_t count, bool rows)
{
    struct plan plan;
    return count > 0 && sort_plan(&plan, dx, count, rows) ? plan.bytes : 0;
}

/* ---- launches ---- */

enum { KEYS, COUNT, SUM, MOVE, STEPS };

static ctrt_status sort_launch(const ctrt_call *call, int step, int64_t blocks, const struct index_sort_args *a)
{
    static struct cuda_entry entries[STEPS];
    static const char *const names[STEPS] = { "index_sort_keys", "index_sort_count", "index_sort_sum",
                                              "index_sort_move" };
    const struct cuda_shape shape = { .grid = { cuda_grid(blocks) }, .block = SORT_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_index_sort, &entries[step], names[step], shape, a);
}

#define NAMES(kernel)                                                                                               \
    { [CTRT_F32] = kernel "_f32", [CTRT_F64] = kernel "_f64", [CTRT_F16] = kernel "_f16",                           \
      [CTRT_BF16] = kernel "_bf16", [CTRT_U8] = kernel "_u8",                                                       \
      [CTRT_I16] = kernel "_i16", [CTRT_I32] = kernel "_i32", [CTRT_I64] = kernel "_i64" }

static ctrt_status sort_launch_sums(const ctrt_call *call, ctrt_dtype dtype, bool join, int64_t items,
                                    const struct index_sort_args *a)
{
    static struct cuda_entry entries[2][CUDA_DTYPES];
    static const char *const names[2][CUDA_DTYPES] = { NAMES("index_sort_add"), NAMES("index_sort_join") };
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, items, SORT_THREADS) },
                                      .block = SORT_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_index_sort, &entries[join][dtype], names[join][dtype], shape, a);
}

/* Computes keys and places and sorts them by key. Swaps the buffers so that a->keys and a->places are the sorted
 * ones. */
static ctrt_status sort(const ctrt_call *call, struct index_sort_args *a)
{
    ctrt_status status = sort_launch(call, KEYS, a->tiles, a);
    for (a->shift = 0; status == CTRT_OK && a->limit >> a->shift > 0; a->shift += 8) {
        status = sort_launch(call, COUNT, a->tiles, a);
        if (status == CTRT_OK)
            status = sort_launch(call, SUM, SORT_THREADS, a);
        if (status == CTRT_OK)
            status = sort_launch(call, MOVE, a->tiles, a);
        uint32_t *keys = a->keys, *places = a->places;
        a->keys = a->sorted_keys, a->sorted_keys = keys;
        a->places = a->sorted_places, a->sorted_places = places;
    }
    return status;
}

static ctrt_status sort_and_add(const ctrt_call *call, ctrt_dtype dtype, const struct plan *plan,
                                struct index_sort_args *a, int64_t images, int64_t columns)
{
    char *const scratch = call->workspace;
    const int64_t rows_of = a->rows ? a->count.size : images * a->count.size;
    a->n = rows_of * columns;
    a->limit = (a->rows ? 1 : images) * a->size * columns;
    a->tiles = up(a->n, SORT_TILE);
    a->columns = fast_div_of(columns);
    a->length = fast_div_of(a->n);
    a->runs = fast_div_of(up(a->n, SORT_RUN));
    a->images = a->rows ? images : 1;
    a->keys = (uint32_t *)(scratch + plan->keys[0]), a->places = (uint32_t *)(scratch + plan->places[0]);
    a->sorted_keys = (uint32_t *)(scratch + plan->keys[1]), a->sorted_places = (uint32_t *)(scratch + plan->places[1]);
    ctrt_status status = sort(call, a);
    if (status == CTRT_OK)
        status = sort_launch_sums(call, dtype, false, a->images * a->n * a->width.size, a);
    if (status == CTRT_OK && a->runs.size > 1)
        status = sort_launch_sums(call, dtype, true, a->images * a->runs.size * a->width.size, a);
    return status;
}

ctrt_status cuda_index_sort(const ctrt_call *call, ctrt_dtype dtype, int64_t count, bool rows, int64_t skip)
{
    const ctrt_view *dx = call->outputs[0];
    const int64_t outer = dx->shape[0], inner = dx->shape[2];
    struct cuda_device *device = call->device;
    struct index_sort_args a;
    struct plan plan;
    cu_stream stream;
    bool dropped;
    ctrt_status status = cuda_stream_of(call, &stream, &dropped);
    if (status != CTRT_OK || dropped)
        return status;
    const size_t bytes = (size_t)dx->numel * cuda_dtype_bytes[dx->dtype];
    status = cuda_check(device, cuda_driver.fill_bytes((cu_address)(uintptr_t)dx->data, 0, bytes, stream),
                        "filling %zu bytes", bytes);
    if (status != CTRT_OK || count == 0)
        return status;
    if (!sort_plan(&plan, dx, count, rows))
        return cuda_host->fail(CTRT_ERR_INTERNAL, "%s: %s: too many elements to sort", device->name, call->kernel->op);
    memset(&a, 0, sizeof a);
    a.from = call->inputs[0]->data;
    a.index = call->inputs[1]->data;
    a.to = dx->data;
    a.counts = (uint32_t *)((char *)call->workspace + plan.counts);
    a.totals = (uint32_t *)((char *)call->workspace + plan.totals);
    a.partial = (char *)call->workspace + plan.partial;
    a.skip = skip;
    a.size = dx->shape[1];
    a.inner = inner;
    a.count = fast_div_of(count);
    a.width = fast_div_of(rows ? inner : 1);
    a.rows = rows;
    a.error = (struct kernel_error *)(uintptr_t)cuda_error_place(call, &a.sequence);
    if (rows)
        return sort_and_add(call, dtype, &plan, &a, outer, 1);
    for (a.outer0 = 0; a.outer0 < outer && status == CTRT_OK; a.outer0 += plan.images)
        for (a.column0 = 0; a.column0 < inner && status == CTRT_OK; a.column0 += plan.columns)
            status = sort_and_add(call, dtype, &plan, &a, least(plan.images, outer - a.outer0),
                                  least(plan.columns, inner - a.column0));
    return status;
}
