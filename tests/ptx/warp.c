/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/warp.c: instructions in which the lanes of a warp exchange values: shfl, vote, match, redux, mma (PTX ISA,
 * 9.7.9, 9.7.13, 9.7.14). run.c calls a handler once for all lanes of the instruction's mask, which have all
 * arrived. */
#include "half.h"
#include "machine.h"

#define GARBAGE 0xbadc0de5u                 /* a value of a lane that does not take part */

enum shuffle { UP, DOWN, BUTTERFLY, INDEX };

static void shuffle(struct warp *w, const struct insn *i, uint32_t mask, enum shuffle mode)
{
    uint32_t *d = operand(w, i, 0), *p = operand(w, i, 1), ok = 0;
    const uint32_t *a = operand(w, i, 2), *b = operand(w, i, 3), *c = operand(w, i, 4);
    uint32_t from[LANES];
    memcpy(from, a, sizeof from);
    EACH_LANE(
        const uint32_t step = b[l] & 31; const uint32_t clamp = c[l] & 31; const uint32_t segment = c[l] >> 8 & 31;
        const uint32_t most = (l & segment) | (clamp & ~segment); const uint32_t least = l & segment;
        uint32_t source; bool inside;
        switch (mode) {
        case UP:        source = l - step; inside = (int32_t)source >= (int32_t)most; break;
        case DOWN:      source = l + step; inside = source <= most; break;
        case BUTTERFLY: source = l ^ step; inside = source <= most; break;
        default:        source = least | (step & ~segment); inside = source <= most; break;
        }
        if (!inside) source = l;
        ok |= (uint32_t)inside << l;
        d[l] = mask >> (source & 31) & 1 ? from[source & 31] : GARBAGE);
    *p = (*p & ~mask) | ok;
}

static void shfl_up(struct warp *w, const struct insn *i, uint32_t mask) { shuffle(w, i, mask, UP); }
static void shfl_down(struct warp *w, const struct insn *i, uint32_t mask) { shuffle(w, i, mask, DOWN); }
static void shfl_bfly(struct warp *w, const struct insn *i, uint32_t mask) { shuffle(w, i, mask, BUTTERFLY); }
static void shfl_idx(struct warp *w, const struct insn *i, uint32_t mask) { shuffle(w, i, mask, INDEX); }

static uint32_t votes(struct warp *w, const struct insn *i, uint32_t mask)
{
    const uint32_t p = *(uint32_t *)operand(w, i, 1);
    return (i->flags ? ~p : p) & mask;
}

#define VOTES(X) X(any, v != 0) X(all, v == mask) X(uni, v == 0 || v == mask)
#define DEFINE_VOTE(name, expression)                                                                                \
    static void vote_##name(struct warp *w, const struct insn *i, uint32_t mask)                                     \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0);                                                                              \
        const uint32_t v = votes(w, i, mask);                                                                        \
        *d = (*d & ~mask) | ((expression) ? mask : 0);                                                               \
    }
VOTES(DEFINE_VOTE)

static void vote_ballot(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t v = votes(w, i, mask);
    EACH_LANE(d[l] = v);
}

#define MATCHES(X) X(b32, uint32_t) X(b64, uint64_t)
#define DEFINE_MATCH(t, T)                                                                                           \
    static void match_any_##t(struct warp *w, const struct insn *i, uint32_t mask)                                   \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0), result[LANES];                                                               \
        const T *a = operand(w, i, 1);                                                                               \
        EACH_LANE(uint32_t same = 0; for (uint32_t m = mask; m != 0; m &= m - 1)                                     \
                      same |= (uint32_t)(a[__builtin_ctz(m)] == a[l]) << __builtin_ctz(m);                           \
                  result[l] = same);                                                                                 \
        EACH_LANE(d[l] = result[l]);                                                                                 \
    }                                                                                                                \
    static void match_all_##t(struct warp *w, const struct insn *i, uint32_t mask)                                   \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0), *p = operand(w, i, 1);                                                       \
        const T *a = operand(w, i, 2), first = a[__builtin_ctz(mask)];                                               \
        bool same = true;                                                                                            \
        for (uint32_t m = mask; m != 0; m &= m - 1)                                                                  \
            same &= a[__builtin_ctz(m)] == first;                                                                    \
        EACH_LANE(d[l] = same ? mask : 0);                                                                           \
        *p = (*p & ~mask) | (same ? mask : 0);                                                                       \
    }
MATCHES(DEFINE_MATCH)

#define REDUCTIONS(X) X(add_u32, uint32_t, x + y) X(add_s32, uint32_t, x + y) X(min_u32, uint32_t, x < y ? x : y)    \
    X(max_u32, uint32_t, x > y ? x : y) X(min_s32, int32_t, x < y ? x : y) X(max_s32, int32_t, x > y ? x : y)        \
    X(and_b32, uint32_t, x & y) X(or_b32, uint32_t, x | y) X(xor_b32, uint32_t, x ^ y)
#define DEFINE_REDUCTION(name, T, expression)                                                                        \
    static void redux_##name(struct warp *w, const struct insn *i, uint32_t mask)                                    \
    {                                                                                                                \
        T *d = operand(w, i, 0);                                                                                     \
        const T *a = operand(w, i, 1);                                                                               \
        T x = a[__builtin_ctz(mask)];                                                                                \
        for (uint32_t m = mask & (mask - 1); m != 0; m &= m - 1) {                                                   \
            const T y = a[__builtin_ctz(m)];                                                                         \
            x = (expression);                                                                                        \
        }                                                                                                            \
        EACH_LANE(d[l] = x);                                                                                         \
    }
REDUCTIONS(DEFINE_REDUCTION)

static void bar_warp(struct warp *w, const struct insn *i, uint32_t mask)
{
    (void)i, (void)mask;
    w->syncs++;
}

static void activemask(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    EACH_LANE(d[l] = mask);
}

/* ---- mma: D = A B + C with A of 16 rows and B of 8 columns ----
 *
 * Lane 4 * g + t has, of C and D, elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). Its registers of A have
 * pairs of elements of rows g and g + 8 in turn, at columns 2t, 2t + 1, and then at those plus 8. Its registers of B
 * have pairs of rows 2t, 2t + 1 of column g, and then of those rows plus 8. Products are exact, and sums are rounded to
 * f32. */
static void multiply(struct warp *w, const struct insn *i, float a[16][16], float b[16][8], unsigned depth,
                     unsigned first_c)
{
    float sum[16][8] = { { 0 } };
    for (unsigned k = 0; k < depth; k++)
        for (unsigned r = 0; r < 16; r++)
            for (unsigned c = 0; c < 8; c++)
                sum[r][c] += a[r][k] * b[k][c];
    const float *add[4];
    float *d[4];
    for (unsigned k = 0; k < 4; k++) {
        d[k] = operand(w, i, k);
        add[k] = operand(w, i, first_c + k);
    }
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned k = 0; k < 4; k++)
            d[k][l] = add[k][l] + sum[l / 4 + (k / 2) * 8][2 * (l % 4) + k % 2];
}

#define MMAS(X) X(f16, 16) X(bf16, 16) X(f16, 8) X(bf16, 8)
#define DEFINE_MMA(t, depth)                                                                                         \
    static void mma_##t##_##depth(struct warp *w, const struct insn *i, uint32_t mask)                               \
    {                                                                                                                \
        (void)mask;                                                                                                  \
        float a[16][16], b[16][8];                                                                                   \
        for (unsigned k = 0; k < depth / 4; k++) {                                                                   \
            const uint32_t *x = operand(w, i, 4 + k);                                                                \
            for (unsigned l = 0; l < LANES; l++)                                                                     \
                for (unsigned e = 0; e < 2; e++)                                                                     \
                    a[l / 4 + k % 2 * 8][2 * (l % 4) + e + k / 2 * 8] = float_of_##t(x[l] >> 16 * e & 0xffff);       \
        }                                                                                                            \
        for (unsigned k = 0; k < depth / 8; k++) {                                                                   \
            const uint32_t *x = operand(w, i, 4 + depth / 4 + k);                                                    \
            for (unsigned l = 0; l < LANES; l++)                                                                     \
                for (unsigned e = 0; e < 2; e++)                                                                     \
                    b[2 * (l % 4) + e + k * 8][l / 4] = float_of_##t(x[l] >> 16 * e & 0xffff);                       \
        }                                                                                                            \
        multiply(w, i, a, b, depth, 4 + depth / 4 + depth / 8);                                                      \
    }
MMAS(DEFINE_MMA)

/* tf32: f32 whose 13 lowest bits are ignored. Registers of A have rows g and g + 8 in turn, at columns t and t + 4. */
#define DEFINE_TF32(depth)                                                                                           \
    static void mma_tf32_##depth(struct warp *w, const struct insn *i, uint32_t mask)                                \
    {                                                                                                                \
        (void)mask;                                                                                                  \
        float a[16][16], b[16][8];                                                                                   \
        for (unsigned k = 0; k < depth / 2; k++) {                                                                   \
            const uint32_t *x = operand(w, i, 4 + k);                                                                \
            for (unsigned l = 0; l < LANES; l++)                                                                     \
                a[l / 4 + k % 2 * 8][l % 4 + k / 2 * 4] = float_of(x[l] & ~0x1fffu);                                 \
        }                                                                                                            \
        for (unsigned k = 0; k < depth / 4; k++) {                                                                   \
            const uint32_t *x = operand(w, i, 4 + depth / 2 + k);                                                    \
            for (unsigned l = 0; l < LANES; l++)                                                                     \
                b[l % 4 + k * 4][l / 4] = float_of(x[l] & ~0x1fffu);                                                 \
        }                                                                                                            \
        multiply(w, i, a, b, depth, 4 + depth / 2 + depth / 4);                                                      \
    }
DEFINE_TF32(4)
DEFINE_TF32(8)

#define ROW_VOTE(name, expression) { "vote_sync_" #name "_pred", vote_##name, "ppw", CLASS_shuffle, WARP_SYNC },
#define ROW_MATCH(t, T)                                                                                              \
    { "match_any_sync_" #t, match_any_##t, sizeof(T) == 8 ? "wlw" : "www", CLASS_shuffle, WARP_SYNC },               \
    { "match_all_sync_" #t, match_all_##t, sizeof(T) == 8 ? "wplw" : "wpww", CLASS_shuffle, WARP_SYNC },
#define ROW_REDUCTION(name, T, expression) { "redux_sync_" #name, redux_##name, "www", CLASS_shuffle, WARP_SYNC },
#define MMA "mma_sync_aligned_m16n8k"

static const struct opcode table[] = {
    { "shfl_sync_up_b32", shfl_up, "wpwwww", CLASS_shuffle, WARP_SYNC },
    { "shfl_sync_down_b32", shfl_down, "wpwwww", CLASS_shuffle, WARP_SYNC },
    { "shfl_sync_bfly_b32", shfl_bfly, "wpwwww", CLASS_shuffle, WARP_SYNC },
    { "shfl_sync_idx_b32", shfl_idx, "wpwwww", CLASS_shuffle, WARP_SYNC },
    VOTES(ROW_VOTE) MATCHES(ROW_MATCH) REDUCTIONS(ROW_REDUCTION)
    { "vote_sync_ballot_b32", vote_ballot, "wpw", CLASS_shuffle, WARP_SYNC },
    { "bar_warp_sync", bar_warp, "w", CLASS_barrier, WARP_SYNC },
    { "activemask_b32", activemask, "w", CLASS_move, PLAIN },
    { MMA "16_row_col_f32_f16_f16_f32", mma_f16_16, "wwwwwwwwwwwwww", CLASS_mma, WARP_SYNC },
    { MMA "16_row_col_f32_bf16_bf16_f32", mma_bf16_16, "wwwwwwwwwwwwww", CLASS_mma, WARP_SYNC },
    { MMA "8_row_col_f32_f16_f16_f32", mma_f16_8, "wwwwwwwwwww", CLASS_mma, WARP_SYNC },
    { MMA "8_row_col_f32_bf16_bf16_f32", mma_bf16_8, "wwwwwwwwwww", CLASS_mma, WARP_SYNC },
    { MMA "8_row_col_f32_tf32_tf32_f32", mma_tf32_8, "wwwwwwwwwwwwww", CLASS_mma, WARP_SYNC },
    { MMA "4_row_col_f32_tf32_tf32_f32", mma_tf32_4, "wwwwwwwwwww", CLASS_mma, WARP_SYNC },
};

const struct opcode *ptx_warp_find(const char *name)
{
    return ptx_table_find(table, sizeof table / sizeof table[0], name);
}
