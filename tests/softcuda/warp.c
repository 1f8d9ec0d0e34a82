/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/warp.c: warp operations with 32 lanes.
 *
 * An operation is performed when all running lanes of its mask have reached it with the same mask. In CUDA, a value
 * read from a lane that does not participate is undefined; here all bits of the value are set. */
#include "device_half.h"
#include "runner.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[SOFTCUDA_WARP_KINDS] = {
    [SOFTCUDA_UP] = "__shfl_up_sync", [SOFTCUDA_XOR] = "__shfl_xor_sync", [SOFTCUDA_SYNC] = "__syncwarp",
    [SOFTCUDA_BALLOT] = "__ballot_sync", [SOFTCUDA_MATCH] = "__match_any_sync", [SOFTCUDA_LDMATRIX] = "ldmatrix",
    [SOFTCUDA_MMA] = "mma",
};

const char *warp_name(int kind)
{
    return names[kind];
}

/* Allocates dynamic shared memory and the records of accesses to all shared memory. */
void runner_shared(struct softcuda_runner *r, size_t dynamic_bytes)
{
    const size_t fixed = (size_t)(softcuda_here.shared_end - softcuda_here.shared);
    if (dynamic_bytes > r->dynamic_bytes) {
        free(r->dynamic);
        r->dynamic = allocated(aligned_alloc(128, (dynamic_bytes + 127) / 128 * 128));
        r->dynamic_bytes = dynamic_bytes;
    }
    const size_t words = (fixed + dynamic_bytes + 3) / 4;
    if (words > r->race_words) {
        free(r->races);
        r->races = allocated(calloc(4 * words, sizeof r->races[0]));
        r->race_words = words;
    }
    if (r->fixed != softcuda_here.shared) {                     /* of another library, or the first */
        free(r->written);
        r->fixed = softcuda_here.shared;
        r->parts = (fixed + SOFTCUDA_PART - 1) / SOFTCUDA_PART;
        r->written = allocated(malloc(r->parts + 1));
        memset(r->written, 1, r->parts);
    }
    softcuda_here.written = r->written;
    softcuda_here.dynamic = r->dynamic;
    softcuda_here.dynamic_end = r->dynamic == NULL ? NULL : r->dynamic + dynamic_bytes;
    softcuda_here.races = r->races;
    softcuda_here.words = r->race_words;
    softcuda_here.warp_epoch = r->warp_epochs;
    softcuda_here.epoch++;
}

void warp_begin(struct softcuda_runner *r)
{
    for (unsigned w = 0; w * 32 < r->threads; w++) {
        const unsigned lanes = r->threads - w * 32;
        r->warps[w].living = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        r->warps[w].n_gatherings = 0;
    }
}

/* ---- matrix operations, with the fragment layouts of the PTX ISA ("Warp Level Matrix Instructions"): ldmatrix .x4 of
 * 8 x 8 matrices of 16-bit elements, and mma m16n8k16 with accumulation in f32 ----
 *
 * For lane l, let g = l / 4 and t = l % 4. A 32-bit word holds two elements, the first in its lower half:
 *   ldmatrix   lanes 8 i ... 8 i + 7 point to the rows of matrix i; lane l gets of each matrix row g, columns 2t and
 *              2t + 1; transposed: rows 2t and 2t + 1 of column g
 *   a          16 x 16: rows g, g + 8, g, g + 8, columns from 2t, 2t, 2t + 8, 2t + 8
 *   b          16 x 8: rows from 2t and 2t + 8 of column g
 *   c          16 x 8: row g, columns 2t and 2t + 1; row g + 8, the same
 * The order in which a GPU adds is not documented; here it is the order of the rows of b, in f32. */

static void ldmatrix(struct lane *lanes)
{
    struct softcuda_ldmatrix *p[32];
    for (int l = 0; l < 32; l++)
        p[l] = (struct softcuda_ldmatrix *)(uintptr_t)lanes[l].value;
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const int g = l / 4, t = l % 4;
            const bool transposed = lanes[l].argument != 0;
            const uint32_t low = transposed ? p[8 * i + 2 * t]->row[g] : p[8 * i + g]->row[2 * t];
            const uint32_t high = transposed ? p[8 * i + 2 * t + 1]->row[g] : p[8 * i + g]->row[2 * t + 1];
            p[l]->out[i] = low | high << 16;
        }
}

/* Converts one half of a word from bfloat16 (`bf16`) or binary16. */
static float number(uint32_t word, int half, unsigned bf16)
{
    const uint16_t bits = (uint16_t)(half ? word >> 16 : word);
    return bf16 ? soft_float_of_bfloat(bits) : soft_float_of_half(bits);
}

static void mma(struct lane *lanes)
{
    float a[16][16], b[16][8];
    struct softcuda_mma *p[32];
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        const unsigned bf16 = lanes[l].argument;
        p[l] = (struct softcuda_mma *)(uintptr_t)lanes[l].value;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = number(p[l]->a[i], half, bf16);
            for (int i = 0; i < 2; i++)
                b[2 * t + i * 8 + half][g] = number(p[l]->b[i], half, bf16);
        }
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++)
                p[l]->c[i] += a[l / 4 + i / 2 * 8][k] * b[k][2 * (l % 4) + i % 2];
}

/* ---- all operations ---- */

/* Computes the results of all lanes in `arrived`. */
static void perform(struct lane *lanes, int kind, unsigned arrived)
{
    if (kind == SOFTCUDA_LDMATRIX || kind == SOFTCUDA_MMA) {
        if (arrived != 0xffffffffu)
            softcuda_fault(SOFTCUDA_FAILED, "%s by the lanes %08x of a warp alone (%s:%d)", names[kind], arrived,
                           lanes[__builtin_ctz(arrived)].file, lanes[__builtin_ctz(arrived)].line);
        (kind == SOFTCUDA_LDMATRIX ? ldmatrix : mma)(lanes);
        return;
    }
    for (unsigned rest = arrived; rest != 0; rest &= rest - 1) {
        const unsigned i = (unsigned)__builtin_ctz(rest);
        lanes[i].result = 0;
        if (kind == SOFTCUDA_UP || kind == SOFTCUDA_XOR) {
            const unsigned delta = lanes[i].argument & 31;
            const unsigned from = kind == SOFTCUDA_XOR ? i ^ delta : i >= delta ? i - delta : i;
            lanes[i].result = arrived >> from & 1 ? lanes[from].value : ~(uint64_t)0;
        }
        for (unsigned j = 0; j < 32 && (kind == SOFTCUDA_BALLOT || kind == SOFTCUDA_MATCH); j++) {
            const bool set = kind == SOFTCUDA_BALLOT ? lanes[j].value != 0 : lanes[j].value == lanes[i].value;
            lanes[i].result |= (arrived >> j & 1) != 0 && set ? 1u << j : 0;
        }
    }
}

/* If all lanes have arrived, performs the operation, makes its lanes ready, except the running lane `except`, and
 * returns true. */
static bool completed(struct softcuda_runner *r, unsigned w, unsigned place, unsigned except)
{
    struct warp *warp = &r->warps[w];
    const struct gathering g = warp->gatherings[place];
    if (g.arrived != (g.mask & warp->living))
        return false;
    struct lane *lanes = &r->lanes[w * 32];
    warp->gatherings[place] = warp->gatherings[--warp->n_gatherings];
    if (g.arrived == 0)
        return true;
    const int kind = lanes[__builtin_ctz(g.arrived)].kind;
    perform(lanes, kind, g.arrived);
    if (kind == SOFTCUDA_SYNC)                  /* the other operations do not order memory accesses */
        r->warp_epochs[w]++;
    for (unsigned rest = g.arrived; rest != 0; rest &= rest - 1) {
        const unsigned i = w * 32 + (unsigned)__builtin_ctz(rest);
        if (i != except)
            runner_ready(r, i);
    }
    return true;
}

/* Called when a thread has ended, because other lanes may have waited only for it. */
void warp_left(struct softcuda_runner *r, unsigned thread)
{
    struct warp *warp = &r->warps[thread / 32];
    warp->living &= ~(1u << (thread & 31));
    for (unsigned i = warp->n_gatherings; i-- > 0;)
        completed(r, thread / 32, i, SOFTCUDA_BLOCK_THREADS);
}

uint64_t softcuda_warp(int kind, unsigned mask, uint64_t value, unsigned argument, const char *file, int line)
{
    struct softcuda_runner *r = softcuda_here.runner;
    const unsigned thread = r->current, w = thread / 32, bit = 1u << (thread & 31);
    struct warp *warp = &r->warps[w];
    struct lane *lane = &r->lanes[thread];
    if ((mask & bit) == 0)
        softcuda_fault(SOFTCUDA_FAILED, "%s with mask %08x, in which lane %u itself is not (%s:%d)", names[kind], mask,
                       thread & 31, file, line);
    lane->kind = kind;
    lane->mask = mask;
    lane->value = value;
    lane->argument = argument;
    lane->file = file;
    lane->line = line;
    unsigned place = 0;
    while (place < warp->n_gatherings && warp->gatherings[place].mask != mask)
        place++;
    if (place == warp->n_gatherings)
        warp->gatherings[warp->n_gatherings++] = (struct gathering){ .mask = mask, .arrived = 0 };
    struct gathering *g = &warp->gatherings[place];
    if (g->arrived != 0) {
        const unsigned other = w * 32 + (unsigned)__builtin_ctz(g->arrived);
        if (r->lanes[other].kind != kind)
            softcuda_fault(SOFTCUDA_FAILED,
                           "the warp diverges: lane %u is at %s (%s:%d), lane %u at %s (%s:%d), with one mask %08x",
                           thread & 31, names[kind],
                           file, line, other & 31, names[r->lanes[other].kind], r->lanes[other].file,
                           r->lanes[other].line, mask);
    }
    g->arrived |= bit;
    if (!completed(r, w, place, thread)) {
        lane->state = LANE_WARP;
        runner_wait(r);
    }
    return lane->result;
}
