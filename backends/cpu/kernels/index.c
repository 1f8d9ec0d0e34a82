/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/index.c: index_select, index_add, gather, scatter_add, tril and triu. */
#include <string.h>

#include "body.h"
#include "half.h"
#include "host/scratch.h"

/* Minimum number of bytes per thread. */
#define GRAIN 65536

static const uint8_t bytes_of[CPU_DTYPES] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [CTRT_##name] = bytes,
#include "ctrt/dtype.def"
#undef DTYPE
};

struct index_job {
    const ctrt_call *call;
    size_t bytes;                       /* size of an element */
    int64_t outer, size, inner, count;  /* x[outer,size,inner]; index[count] or index[outer,count,inner] */
    const int64_t *index;
    const char *from;
    char *to;
    int64_t skip;
};

/* Returns CTRT_ERR_INVALID_ARGUMENT, with a message about the first index outside [0, size), if there is one. */
static ctrt_status check_indices(const char *op, const int64_t *index, int64_t count, int64_t size)
{
    uint64_t bad = 0;
    for (int64_t i = 0; i < count; i++)
        bad |= (uint64_t)index[i] >= (uint64_t)size;
    if (!bad)
        return CTRT_OK;
    int64_t i = 0;
    while ((uint64_t)index[i] < (uint64_t)size)
        i++;
    return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: index %lld at position %lld is outside [0, %lld)", op,
                          (long long)index[i], (long long)i, (long long)size);
}

/* Integers are unsigned, because sums wrap. Sums of f16 and bf16 are in f32. */
#define BODY "index_body.h"
#include "each_float.h"
#define BODY "index_body.h"
#include "each_width.h"

typedef void (*add_function)(const struct index_job *job, int64_t outer, int64_t c0, int64_t c1);
static const struct functions {
    void (*gather)(void *job, int64_t begin, int64_t end);
    add_function index_add, scatter_add;
} functions_of[CPU_DTYPES] = {
#define ENTRY(dtype, copied, added) [CTRT_##dtype] = { gather_##copied, index_add_##added, scatter_add_##added }
    ENTRY(F32, f32, f32), ENTRY(F64, f64, f64), ENTRY(F16, 2, f32), ENTRY(BF16, 2, f32), ENTRY(I8, 1, 1),
    ENTRY(U8, 1, 1), ENTRY(I16, 2, 2), ENTRY(I32, 4, 4), ENTRY(I64, 8, 8), ENTRY(BOOL, 1, 1),
#undef ENTRY
};

/* ---- index_select ---- */

static void select_rows(void *argument, int64_t begin, int64_t end)
{
    const struct index_job *job = argument;
    const size_t row = (size_t)job->inner * job->bytes;
    for (int64_t r = begin; r < end; r++) {
        const char *from = job->from + (size_t)(r / job->count * job->size + job->index[r % job->count]) * row;
        char *to = job->to + (size_t)r * row;
        /* Constant sizes avoid the call of memcpy for common short rows. */
        if (row == 4)
            memcpy(to, from, 4);
        else if (row == 8)
            memcpy(to, from, 8);
        else
            memcpy(to, from, row);
    }
}

static ctrt_status index_select(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *index = call->inputs[1], *out = call->outputs[0];
    ctrt_status status = check_indices("index_select", index->data, index->numel, x->shape[1]);
    if (status || out->numel == 0)
        return status;
    struct index_job job = {
        .bytes = bytes_of[x->dtype], .size = x->shape[1], .inner = x->shape[2], .count = index->numel,
        .index = index->data, .from = x->data, .to = out->data,
    };
    cpu_parallel_for(x->shape[0] * job.count, GRAIN / (job.inner * (int64_t)job.bytes) + 1, select_rows, &job);
    return CTRT_OK;
}

/* ---- gather ---- */

static ctrt_status gather(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *index = call->inputs[1], *out = call->outputs[0];
    ctrt_status status = check_indices("gather", index->data, index->numel, x->shape[1]);
    if (status || out->numel == 0)
        return status;
    struct index_job job = {
        .bytes = bytes_of[x->dtype], .size = x->shape[1], .inner = x->shape[2], .count = index->shape[1],
        .index = index->data, .from = x->data, .to = out->data,
    };
    cpu_parallel_for(index->shape[0] * job.count, GRAIN / (job.inner * (int64_t)job.bytes) + 1,
                     functions_of[x->dtype].gather, &job);
    return CTRT_OK;
}

/* ---- index_add and scatter_add ----
 *
 * Tasks are divided by columns and by outer index, so that two threads never add to the same element. */

/* Columns per task: at least one cache line. */
#define COLUMNS 64

struct add_job {
    struct index_job job;
    add_function add;
    int64_t across;
};

static void add_tasks(void *argument, int64_t begin, int64_t end)
{
    const struct add_job *a = argument;
    for (int64_t t = begin; t < end; t++) {
        const int64_t c0 = t % a->across * COLUMNS, c1 = c0 + COLUMNS < a->job.inner ? c0 + COLUMNS : a->job.inner;
        a->add(&a->job, t / a->across, c0, c1);
    }
}

static ctrt_status add_over(const ctrt_call *call, const char *op, int64_t count, int64_t skip, bool scatter)
{
    const ctrt_view *dy = call->inputs[0], *index = call->inputs[1], *dx = call->outputs[0];
    ctrt_status status = check_indices(op, index->data, index->numel, dx->shape[1]);
    if (status || dx->numel == 0)
        return status;
    const bool half = dx->dtype == CTRT_F16 || dx->dtype == CTRT_BF16;
    struct add_job a = {
        .job = { .size = dx->shape[1], .inner = dx->shape[2], .count = count, .index = index->data,
                 .from = dy->data, .to = dx->data, .skip = skip },
        .add = scatter ? functions_of[dx->dtype].scatter_add : functions_of[dx->dtype].index_add,
        .across = (dx->shape[2] + COLUMNS - 1) / COLUMNS,
    };
    size_t bytes = (size_t)dx->numel * bytes_of[dx->dtype];
    if (half) {
        /* Sums of many rows in 16 bits would lose small terms, so add in f32 and round once. */
        const size_t wide_bytes = (size_t)(dx->numel + dy->numel) * sizeof(float);
        float *wide = cpu_scratch(SCRATCH_WIDE_A, wide_bytes);
        if (!wide)
            return cpu_no_scratch(op, wide_bytes);
        cpu_half(dx->dtype)->widen(wide + dx->numel, dy->data, dy->numel);
        a.job.to = (char *)wide;
        a.job.from = (const char *)(wide + dx->numel);
        bytes = (size_t)dx->numel * sizeof(float);
    }
    memset(a.job.to, 0, bytes);
    const int64_t work = count * (a.job.inner < COLUMNS ? a.job.inner : COLUMNS);
    cpu_parallel_for(dx->shape[0] * a.across, GRAIN / 4 / (work + 1) + 1, add_tasks, &a);
    if (half)
        cpu_half(dx->dtype)->narrow(dx->data, (const float *)a.job.to, dx->numel);
    return CTRT_OK;
}

static ctrt_status index_add(const ctrt_call *call)
{
    const ctrt_index_attributes *attributes = call->attributes;
    return add_over(call, "index_add", call->inputs[1]->numel, attributes ? attributes->value : -1, false);
}

static ctrt_status scatter_add(const ctrt_call *call)
{
    return add_over(call, "scatter_add", call->inputs[1]->shape[1], -1, true);
}

/* ---- tril, triu ---- */

struct triangle {
    const char *from;
    char *to;
    size_t bytes;
    int64_t rows, columns, diagonal;
    bool upper;
};

/* Keeps element (i, j) where j - i <= diagonal (lower) or j - i >= diagonal (upper); the others become 0. */
static void triangle_rows(void *argument, int64_t begin, int64_t end)
{
    const struct triangle *t = argument;
    for (int64_t r = begin; r < end; r++) {
        const int64_t i = r % t->rows;
        /* Checks for overflow, because the diagonal can be any integer. */
        int64_t edge = t->upper ? t->diagonal : t->diagonal < INT64_MAX ? t->diagonal + 1 : INT64_MAX;
        edge = edge > INT64_MAX - i ? INT64_MAX : edge + i;
        edge = edge < 0 ? 0 : edge > t->columns ? t->columns : edge;
        const size_t row = (size_t)t->columns * t->bytes, left = (size_t)edge * t->bytes;
        const char *from = t->from + (size_t)r * row;
        char *to = t->to + (size_t)r * row;
        if (t->upper) {
            memset(to, 0, left);
            memcpy(to + left, from + left, row - left);
        } else {
            memcpy(to, from, left);
            memset(to + left, 0, row - left);
        }
    }
}

static ctrt_status triangle(const ctrt_call *call, bool upper)
{
    const ctrt_view *x = call->inputs[0];
    const ctrt_index_attributes *attributes = call->attributes;
    struct triangle t = {
        .from = x->data, .to = call->outputs[0]->data, .bytes = bytes_of[x->dtype], .rows = x->shape[1],
        .columns = x->shape[2], .diagonal = attributes ? attributes->value : 0, .upper = upper,
    };
    if (x->numel)
        cpu_parallel_for(x->shape[0] * t.rows, GRAIN / (t.columns * (int64_t)t.bytes) + 1, triangle_rows, &t);
    return CTRT_OK;
}

static ctrt_status tril(const ctrt_call *call)
{
    return triangle(call, false);
}

static ctrt_status triu(const ctrt_call *call)
{
    return triangle(call, true);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(index_select, CPU_ALL), CPU_ROW(index_add, CPU_NUMBERS), CPU_ROW(gather, CPU_ALL),
    CPU_ROW(scatter_add, CPU_NUMBERS), CPU_ROW(tril, CPU_ALL), CPU_ROW(triu, CPU_ALL),
};

const struct cpu_kernels cpu_index_kernels = { kernels, sizeof kernels / sizeof kernels[0] };
