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
    struct loop_operand o = { .view = v, .kind = kind, .bytes = cpu_kind_bytes(kind) };
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

#define BODY "strided_body.h"
#include "each_width.h"

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
        vec_stream((char *)o->view->data + (size_t)begin * o->bytes, block, (size_t)count * o->bytes);
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
    if (w->stream)
        vec_streamed();
}

/* ---- tiles ----
 *
 * If an operand is contiguous along a dimension other than the innermost, the loop processes tiles of both dimensions,
 * so that all bytes of a cache line are used. */

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
                vec_stream(to, from, (size_t)columns * bytes);
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
    if (w->stream)
        vec_streamed();
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
        int64_t grain = plan->grain / BLOCK;
        cpu_parallel_for(tiles, grain > 1 ? grain : 1, tiles_part, &w);
        return CTRT_OK;
    }
    w.stream &= w.out.access != GATHERED;
    w.plain &= !w.stream;
    /* If rows are long, end blocks at the ends of rows, so that contiguous rows need no gathering. */
    if (gathered && out->ndim > 0 && out->shape[out->ndim - 1] >= 256)
        w.row = out->shape[out->ndim - 1];
    cpu_parallel_for(out->numel, plan->grain, loop_part, &w);
    return CTRT_OK;
}
