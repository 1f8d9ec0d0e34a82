/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise_loop.c: runs an elementwise loop over views of any layout (see
 * elementwise_loop.h). */
#include "elementwise_loop.h"
#include "convert.h"
#include "transpose.h"

/* Elements per block: four blocks of 8-byte elements are 32 KiB, the usual size of an L1 data cache. A tile is a block
 * of SIDE x SIDE elements. */
#define BLOCK 1024
#define SIDE  32

enum access {
    DIRECT,         /* contiguous and in the loop's format, so the loop works on the tensor itself */
    CONVERTED,      /* contiguous half precision */
    CONSTANT,       /* all elements are the same element in memory, so a block is filled once */
    GATHERED        /* any other layout */
};

struct loop_operand {
    const ctrt_view *view;
    enum access access;
    int kind;
    size_t bytes;           /* size of an element in memory */
};

struct work {
    const struct cpu_plan *plan;
    struct loop_operand in[3], out;
    const void *extra;
    bool plain;             /* all operands are DIRECT: no blocks are needed */
    bool stream;            /* write the output with non-temporal stores */
    int64_t row;            /* blocks end at multiples of this (length of the innermost dimension); 0: anywhere */
    int tile_dim;           /* second dimension of the tiles, besides the innermost one; -1: no tiles */
};

static size_t element_bytes(int kind)
{
    return kind >= CPU_KIND_F16 ? 2 : (size_t)kind;
}

static bool is_constant(const ctrt_view *v)
{
    if (v->numel == 1 || v->flags & CTRT_VIEW_HOST_SCALAR)
        return true;
    for (int d = 0; d < v->ndim; d++)
        if (v->strides[d] != 0 && v->shape[d] != 1)
            return false;
    return true;
}

static struct loop_operand operand_of(const ctrt_view *v, int kind, bool output)
{
    struct loop_operand o = { .view = v, .kind = kind, .bytes = element_bytes(kind) };
    if (v->flags & CTRT_VIEW_CONTIGUOUS && !(v->flags & CTRT_VIEW_HOST_SCALAR) && (output || v->numel != 1))
        o.access = kind >= CPU_KIND_F16 ? CONVERTED : DIRECT;
    else
        o.access = !output && is_constant(v) ? CONSTANT : GATHERED;
    return o;
}

/* ---- strided access ---- */

/* Returns the offset, in elements, of element `index` of a view in row-major order; stores its coordinates in `at`. */
static int64_t loop_locate(const ctrt_view *v, int64_t index, int64_t *at)
{
    int64_t offset = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        at[d] = index % v->shape[d];
        index /= v->shape[d];
        offset += at[d] * v->strides[d];
    }
    return offset;
}

/* Advances the coordinates `at` to the next row and returns the offset of that row. `offset` is the offset of the
 * current row. */
static int64_t next_row(const ctrt_view *v, int64_t offset, int64_t *at)
{
    for (int d = v->ndim - 2; d >= 0; d--) {
        offset += v->strides[d];
        if (++at[d] < v->shape[d])
            return offset;
        offset -= v->shape[d] * v->strides[d];
        at[d] = 0;
    }
    return offset;
}

/* gather: copies elements [begin, begin + count) of v, in row-major order, to `out`. scatter: the reverse. */
#define WALKS(T, suffix)                                                                                          \
    static void gather_##suffix(void *out, const ctrt_view *v, int64_t begin, int64_t count)                      \
    {                                                                                                             \
        T *to = out;                                                                                              \
        int64_t at[CTRT_MAX_DIMS], last = v->ndim - 1, stride = v->strides[last];                                 \
        int64_t offset = loop_locate(v, begin, at), run = v->shape[last] - at[last];                              \
        offset -= at[last] * stride;                                                                              \
        const T *from = (const T *)v->data + offset + at[last] * stride;                                          \
        for (;;) {                                                                                                \
            if (run > count)                                                                                      \
                run = count;                                                                                      \
            if (stride == 1) {                                                                                    \
                memcpy(to, from, (size_t)run * sizeof(T));                                                        \
            } else if (stride == 0) {                                                                             \
                T value = *from;                                                                                  \
                for (int64_t i = 0; i < run; i++)                                                                 \
                    to[i] = value;                                                                                \
            } else {                                                                                              \
                for (int64_t i = 0; i < run; i++)                                                                 \
                    to[i] = from[i * stride];                                                                     \
            }                                                                                                     \
            if ((count -= run) == 0)                                                                              \
                return;                                                                                           \
            to += run;                                                                                            \
            offset = next_row(v, offset, at);                                                                     \
            from = (const T *)v->data + offset;                                                                   \
            run = v->shape[last];                                                                                 \
        }                                                                                                         \
    }                                                                                                             \
    static void scatter_##suffix(const ctrt_view *v, const void *in, int64_t begin, int64_t count)                \
    {                                                                                                             \
        const T *from = in;                                                                                       \
        int64_t at[CTRT_MAX_DIMS], last = v->ndim - 1, stride = v->strides[last];                                 \
        int64_t offset = loop_locate(v, begin, at), run = v->shape[last] - at[last];                              \
        offset -= at[last] * stride;                                                                              \
        T *to = (T *)v->data + offset + at[last] * stride;                                                        \
        for (;;) {                                                                                                \
            if (run > count)                                                                                      \
                run = count;                                                                                      \
            if (stride == 1)                                                                                      \
                memcpy(to, from, (size_t)run * sizeof(T));                                                        \
            else                                                                                                  \
                for (int64_t i = 0; i < run; i++)                                                                 \
                    to[i * stride] = from[i];                                                                     \
            if ((count -= run) == 0)                                                                              \
                return;                                                                                           \
            from += run;                                                                                          \
            offset = next_row(v, offset, at);                                                                     \
            to = (T *)v->data + offset;                                                                           \
            run = v->shape[last];                                                                                 \
        }                                                                                                         \
    }
WALKS(uint8_t, 1)
WALKS(uint16_t, 2)
WALKS(uint32_t, 4)
WALKS(uint64_t, 8)

void cpu_gather(void *to, const ctrt_view *v, size_t bytes, int64_t begin, int64_t count)
{
    if (bytes == 4)
        gather_4(to, v, begin, count);
    else if (bytes == 8)
        gather_8(to, v, begin, count);
    else if (bytes == 2)
        gather_2(to, v, begin, count);
    else
        gather_1(to, v, begin, count);
}

static void scatter(const ctrt_view *v, const void *from, size_t bytes, int64_t begin, int64_t count)
{
    if (bytes == 4)
        scatter_4(v, from, begin, count);
    else if (bytes == 8)
        scatter_8(v, from, begin, count);
    else if (bytes == 2)
        scatter_2(v, from, begin, count);
    else
        scatter_1(v, from, begin, count);
}

/* ---- blocks ---- */

void cpu_widen(float *to, const void *from, int kind, int64_t count)
{
    if (kind == CPU_KIND_F16)
        cpu_f32_from_f16_row(to, from, count);
    else
        cpu_f32_from_bf16_row(to, from, count);
}

void cpu_narrow(void *to, const float *from, int kind, int64_t count)
{
    if (kind == CPU_KIND_F16)
        cpu_f16_from_f32_row(to, from, count);
    else
        cpu_bf16_from_f32_row(to, from, count);
}

static void fill_constant(void *block, const struct loop_operand *o, int64_t count)
{
    uint8_t *to = block;
    size_t bytes = o->bytes;
    memcpy(to, o->view->data, bytes);
    if (o->kind >= CPU_KIND_F16) {
        uint16_t half;
        memcpy(&half, to, sizeof half);
        float value = o->kind == CPU_KIND_F16 ? cpu_f32_from_f16(half) : cpu_f32_from_bf16(half);
        memcpy(to, &value, sizeof value);
        bytes = sizeof value;
    }
    size_t all = (size_t)count * bytes;
    for (size_t done = bytes; done < all; done *= 2)        /* doubles the filled part */
        memcpy(to + done, to, done < all - done ? done : all - done);
}

/* Copies with non-temporal stores, which need not read the cache line first. `to` is aligned to its element size. */
static void stream(char *to, const char *from, size_t bytes)
{
#if VEC_AVX512 || VEC_AVX2
    size_t head = -(uintptr_t)to & 63;
    if (head >= bytes) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if VEC_AVX512
        _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512((const void *)(from + i)));
#else
        _mm256_stream_si256((void *)(to + i), _mm256_loadu_si256((const void *)(from + i)));
        _mm256_stream_si256((void *)(to + i + 32), _mm256_loadu_si256((const void *)(from + i + 32)));
#endif
    }
    memcpy(to + i, from + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}

/* Returns the next `count` elements of an input in the loop's format: in the tensor itself, or copied to `block`. */
static const void *fetch(const struct loop_operand *o, void *block, int64_t begin, int64_t count)
{
    const char *data = o->view->data;
    switch (o->access) {
    case DIRECT:
        return data + (size_t)begin * o->bytes;
    case CONSTANT:
        return block;
    case CONVERTED:
        cpu_widen(block, data + (size_t)begin * o->bytes, o->kind, count);
        return block;
    case GATHERED:
        break;
    }
    const ctrt_view *v = o->view;
    int64_t row = v->shape[v->ndim - 1];
    if (v->strides[v->ndim - 1] == 1 && begin % row + count <= row) {       /* inside one contiguous row */
        int64_t at[CTRT_MAX_DIMS];
        const char *piece = data + loop_locate(v, begin, at) * (int64_t)o->bytes;
        if (o->kind < CPU_KIND_F16)
            return piece;
        cpu_widen(block, piece, o->kind, count);
        return block;
    }
    if (o->kind < CPU_KIND_F16) {
        cpu_gather(block, v, o->bytes, begin, count);
    } else {
        uint16_t halves[BLOCK];
        cpu_gather(halves, v, 2, begin, count);
        cpu_widen(block, halves, o->kind, count);
    }
    return block;
}

static void loop_deliver(const struct work *w, void *block, int64_t begin, int64_t count)
{
    const struct loop_operand *o = &w->out;
    uint16_t halves[BLOCK];
    if (o->kind >= CPU_KIND_F16) {
        void *to = o->access == CONVERTED && !w->stream ? (char *)o->view->data + begin * 2 : (void *)halves;
        cpu_narrow(to, block, o->kind, count);
        if (to != (void *)halves)
            return;
        block = halves;
    }
    if (o->access == GATHERED)
        scatter(o->view, block, o->bytes, begin, count);
    else
        stream((char *)o->view->data + (size_t)begin * o->bytes, block, (size_t)count * o->bytes);
}

static void loop_part(void *argument, int64_t begin, int64_t end)
{
    const struct work *w = argument;
    const struct cpu_plan *plan = w->plan;
    char blocks[4][BLOCK * 8] __attribute__((aligned(64)));
    const void *p[4] = { NULL, NULL, NULL, NULL };

    p[plan->inputs] = w->extra;
    for (int i = 0; i < plan->inputs; i++)
        if (w->in[i].access == CONSTANT)
            fill_constant(blocks[i], &w->in[i], end - begin < BLOCK ? end - begin : BLOCK);

    int64_t step = w->plain ? end - begin : BLOCK, count;
    for (int64_t i = begin; i < end; i += count) {
        count = end - i < step ? end - i : step;
        if (w->row && w->row - i % w->row < count)
            count = w->row - i % w->row;
        for (int k = 0; k < plan->inputs; k++)
            p[k] = fetch(&w->in[k], blocks[k], i, count);
        if (w->out.access == DIRECT && !w->stream) {
            plan->loop((char *)w->out.view->data + (size_t)i * w->out.bytes, p[0], p[1], p[2], count);
        } else {
            plan->loop(blocks[3], p[0], p[1], p[2], count);
            loop_deliver(w, blocks[3], i, count);
        }
    }
#if VEC_AVX512 || VEC_AVX2
    if (w->stream)
        _mm_sfence();
#endif
}

/* ---- tiles ----
 *
 * If an operand is contiguous along a dimension other than the innermost, the loop processes tiles of both dimensions,
 * so that all bytes of a cache line are used. */

/* Copies the tile of `rows` x `columns` elements at `in`, with strides `down` and `right`, to to[rows][columns]. */
#define TILES(T, suffix, SQUARE, TRANSPOSE)                                                                          \
    static void tile_##suffix(void *out, const void *in, int64_t rows, int64_t columns, int64_t down, int64_t right) \
    {                                                                                                                \
        T *to = out;                                                                                                 \
        const T *from = in;                                                                                          \
        if (right == 1) {                                                                                            \
            for (int64_t i = 0; i < rows; i++)                                                                       \
                memcpy(to + i * columns, from + i * down, (size_t)columns * sizeof(T));                              \
            return;                                                                                                  \
        }                                                                                                            \
        int64_t j = 0, whole = (SQUARE) ? rows - rows % ((SQUARE) ? (SQUARE) : 1) : 0;                               \
        if (down == 1 && (SQUARE)) {            /* uses all of a cache line before the next one */                   \
            for (; j + (SQUARE) <= columns; j += (SQUARE)) {                                                         \
                for (int64_t i = 0; i < whole; i += (SQUARE))                                                        \
                    TRANSPOSE(to + i * columns + j, columns, from + i + j * right, right);                           \
                for (int64_t i = whole; i < rows; i++)                                                               \
                    for (int64_t k = j; k < j + (SQUARE); k++)                                                       \
                        to[i * columns + k] = from[i + k * right];                                                   \
            }                                                                                                        \
        }                                                                                                            \
        for (; j < columns; j++)                                                                                     \
            for (int64_t i = 0; i < rows; i++)                                                                       \
                to[i * columns + j] = from[i * down + j * right];                                                    \
    }
#define TRANSPOSE_4(to, to_step, from, from_step)                                                                 \
    vf_transpose((float *)(to), to_step, (const float *)(from), from_step)
#define TRANSPOSE_8(to, to_step, from, from_step)                                                                 \
    vd_transpose((double *)(to), to_step, (const double *)(from), from_step)
#define NO_TRANSPOSE(to, to_step, from, from_step) (void)0
TILES(uint8_t, 1, 0, NO_TRANSPOSE)
TILES(uint16_t, 2, 0, NO_TRANSPOSE)
TILES(uint32_t, 4, VF_BLOCK, TRANSPOSE_4)
TILES(uint64_t, 8, VD_BLOCK, TRANSPOSE_8)

static void gather_tile(void *to, const char *from, size_t bytes, int64_t rows, int64_t columns, int64_t down,
                        int64_t right)
{
    if (bytes == 4)
        tile_4(to, from, rows, columns, down, right);
    else if (bytes == 8)
        tile_8(to, from, rows, columns, down, right);
    else if (bytes == 2)
        tile_2(to, from, rows, columns, down, right);
    else
        tile_1(to, from, rows, columns, down, right);
}

/* Writes an output tile to the tensor, whole rows if the columns are contiguous, otherwise element by element. */
static void scatter_tile(char *to, const char *from, size_t bytes, int64_t rows, int64_t columns, int64_t down,
                         int64_t right, bool past_caches)
{
    for (int64_t i = 0; i < rows; i++, from += columns * (int64_t)bytes, to += down * (int64_t)bytes) {
        if (right == 1) {
            if (past_caches)
                stream(to, from, (size_t)columns * bytes);
            else
                memcpy(to, from, (size_t)columns * bytes);
            continue;
        }
        const ctrt_view row = { .data = to, .numel = columns, .ndim = 1, .shape = { columns }, .strides = { right } };
        scatter(&row, from, bytes, 0, columns);
    }
}

/* Processes tiles [begin, end). Consecutive tiles are neighbours along `tile_dim`. */
static void tiles_part(void *argument, int64_t begin, int64_t end)
{
    const struct work *w = argument;
    const struct cpu_plan *plan = w->plan;
    const ctrt_view *out = w->out.view;
    int last = out->ndim - 1, tile_dim = w->tile_dim;
    int64_t height = out->shape[tile_dim], width = out->shape[last], tiles_down = (height + SIDE - 1) / SIDE,
            tiles_right = (width + SIDE - 1) / SIDE;
    char blocks[4][BLOCK * 8] __attribute__((aligned(64)));
    uint16_t halves[BLOCK];
    const void *p[4] = { NULL, NULL, NULL, NULL };

    p[plan->inputs] = w->extra;
    for (int k = 0; k < plan->inputs; k++)
        if (w->in[k].access == CONSTANT)
            fill_constant(blocks[k], &w->in[k], BLOCK), p[k] = blocks[k];
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item % tiles_down * SIDE, column = item / tiles_down % tiles_right * SIDE;
        int64_t rest = item / tiles_down / tiles_right;
        int64_t rows = height - row < SIDE ? height - row : SIDE;
        int64_t columns = width - column < SIDE ? width - column : SIDE;
        int64_t at[CTRT_MAX_DIMS] = { 0 };
        for (int d = last - 1; d >= 0; d--)
            if (d != tile_dim) {
                at[d] = rest % out->shape[d];
                rest /= out->shape[d];
            }
        at[tile_dim] = row, at[last] = column;
        for (int k = 0; k <= plan->inputs; k++) {
            bool is_out = k == plan->inputs;
            const struct loop_operand *o = is_out ? &w->out : &w->in[k];
            if (o->access == CONSTANT)
                continue;
            int64_t offset = 0, down = o->view->strides[tile_dim], right = o->view->strides[last];
            for (int d = 0; d <= last; d++)
                offset += at[d] * o->view->strides[d];
            char *place = (char *)o->view->data + offset * (int64_t)o->bytes;
            if (is_out) {
                const char *result = blocks[3];
                plan->loop(blocks[3], p[0], p[1], p[2], rows * columns);
                if (o->kind >= CPU_KIND_F16) {
                    cpu_narrow(halves, (const float *)blocks[3], o->kind, rows * columns);
                    result = (const char *)halves;
                }
                scatter_tile(place, result, o->bytes, rows, columns, down, right, w->stream);
            } else if (o->kind >= CPU_KIND_F16) {
                gather_tile(halves, place, 2, rows, columns, down, right);
                cpu_widen((float *)blocks[k], halves, o->kind, rows * columns);
                p[k] = blocks[k];
            } else {
                gather_tile(blocks[k], place, o->bytes, rows, columns, down, right);
                p[k] = blocks[k];
            }
        }
    }
#if VEC_AVX512 || VEC_AVX2
    if (w->stream)
        _mm_sfence();
#endif
}

/* Returns a dimension along which some operand is contiguous while it is not along the innermost one; -1 if none. */
static int find_tile_dim(const struct work *w)
{
    const ctrt_view *out = w->out.view;
    int last = out->ndim - 1;
    if (last < 1 || out->shape[last] < 4 || out->numel < BLOCK / 4)
        return -1;
    for (int k = 0; k <= w->plan->inputs; k++) {
        const struct loop_operand *o = k == w->plan->inputs ? &w->out : &w->in[k];
        int64_t right = o->view->strides[last];
        if (o->access != GATHERED || (right >= -1 && right <= 1))
            continue;
        for (int d = 0; d < last; d++)
            if (o->view->strides[d] == 1 && out->shape[d] >= 4)
                return d;
    }
    return -1;
}

ctrt_status cpu_elementwise_loop(const ctrt_call *call, const struct cpu_plan *plan, const void *extra)
{
    const ctrt_view *out = call->outputs[0];
    struct work w = { .plan = plan, .extra = extra, .plain = true, .tile_dim = -1 };
    bool gathered = false;
    if (out->numel == 0)
        return CTRT_OK;
    w.out = operand_of(out, plan->out, true);
    if (out->numel == 1 && w.out.access == GATHERED)    /* the strides of a single element are arbitrary */
        w.out.access = plan->out >= CPU_KIND_F16 ? CONVERTED : DIRECT;
    w.plain = w.out.access == DIRECT;
    gathered = w.out.access == GATHERED;
    w.stream = (size_t)out->numel * w.out.bytes >= cpu_stream_bytes();
    for (int i = 0; i < plan->inputs; i++) {
        w.in[i] = operand_of(call->inputs[i], plan->in[i], false);
        w.plain &= w.in[i].access == DIRECT;
        gathered |= w.in[i].access == GATHERED;
        w.stream &= call->inputs[i]->data != out->data;
    }
    w.tile_dim = gathered ? find_tile_dim(&w) : -1;
    if (w.tile_dim >= 0) {
        int64_t height = out->shape[w.tile_dim], width = out->shape[out->ndim - 1];
        int64_t tiles = out->numel / height / width * ((height + SIDE - 1) / SIDE) * ((width + SIDE - 1) / SIDE);
        int64_t grain = CPU_GRAIN / plan->cost / BLOCK;
        cpu_parallel_for(tiles, grain > 1 ? grain : 1, tiles_part, &w);
        return CTRT_OK;
    }
    w.stream &= w.out.access != GATHERED;
    w.plain &= !w.stream;
    /* If rows are long, end blocks at the ends of rows, so that contiguous rows need no gathering. */
    if (gathered && out->ndim > 0 && out->shape[out->ndim - 1] >= 256)
        w.row = out->shape[out->ndim - 1];
    cpu_parallel_for(out->numel, CPU_GRAIN / plan->cost, loop_part, &w);
    return CTRT_OK;
}
