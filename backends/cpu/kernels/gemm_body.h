/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm_body.h: a body (body.h) that gemm_loops.c includes once per type.
 *
 * The algorithm is that of Goto and van de Geijn (2008): a kernel keeps a tile of C in registers and iterates over k. A
 * and B are packed, in the order in which the kernel reads them, into blocks that fit the L2 and L1 cache. */

/* Computes one tile of `rows` rows and `vectors` vectors; `last` lanes of the last vector are used. */
static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const int vectors, const bool full,
                                                             int64_t k, const T *a, int64_t a_row, int64_t a_col,
                                                             const T *b, int64_t b_row, T *c, int64_t c_row,
                                                             const T *start, int64_t start_row, int last)
{
    V sum[ROWS][VECTORS];
    const OP(mask) mask = OP(first)(last);
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < vectors; j++) {
            const T *from = start + i * start_row + j * LANES;
            if (!start)
                sum[i][j] = OP(set)(0);
            else
                sum[i][j] = full || j < vectors - 1 ? OP(load)(from) : OP(load_m)(from, mask);
        }
    for (int64_t p = 0; p < k; p++) {
        V column[VECTORS];
        UNROLLED for (int j = 0; j < vectors; j++)
            column[j] = full || j < vectors - 1 ? OP(load)(b + j * LANES) : OP(load_m)(b + j * LANES, mask);
        UNROLLED for (int i = 0; i < rows; i++) {
            const V element = OP(set)(a[i * a_row]);
            UNROLLED for (int j = 0; j < vectors; j++)
                sum[i][j] = OP(fma)(element, column[j], sum[i][j]);
        }
        a += a_col;
        b += b_row;
    }
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < vectors; j++) {
            T *to = c + i * c_row + j * LANES;
            if (full || j < vectors - 1)
                OP(store)(to, sum[i][j]);
            else
                OP(store_m)(to, sum[i][j], mask);
        }
}

typedef void (*NAME(tile_function))(int64_t k, const T *a, int64_t a_row, int64_t a_col, const T *b,
                                    int64_t b_row, T *c, int64_t c_row, const T *start, int64_t start_row,
                                    int last);

#define TILE(rows, vectors)                                                                                       \
    static void NAME(tile_##rows##_##vectors)(int64_t k, const T *a, int64_t a_row, int64_t a_col,                \
                                              const T *b, int64_t b_row, T *c, int64_t c_row,                     \
                                              const T *start, int64_t start_row, int last)                        \
    {                                                                                                             \
        if (last == LANES)                                                                                        \
            NAME(tile)(rows, vectors, true, k, a, a_row, a_col, b, b_row, c, c_row, start, start_row,             \
                       last);                                                                                     \
        else                                                                                                      \
            NAME(tile)(rows, vectors, false, k, a, a_row, a_col, b, b_row, c, c_row, start, start_row,            \
                       last);                                                                                     \
    }
TILE(1, 1) TILE(1, 2) TILE(1, 3)
TILE(2, 1) TILE(2, 2) TILE(2, 3)
TILE(4, 1) TILE(4, 2) TILE(4, 3)
#if ROWS == 8
TILE(8, 1) TILE(8, 2) TILE(8, 3)
#endif
#undef TILE

/* Indexed by log2(rows) and vectors - 1. */
static const NAME(tile_function) NAME(tiles)[4][VECTORS] = {
    { NAME(tile_1_1), NAME(tile_1_2), NAME(tile_1_3) },
    { NAME(tile_2_1), NAME(tile_2_2), NAME(tile_2_3) },
    { NAME(tile_4_1), NAME(tile_4_2), NAME(tile_4_3) },
#if ROWS == 8
    { NAME(tile_8_1), NAME(tile_8_2), NAME(tile_8_3) },
#endif
};

/* Number of vectors of the next tile when `columns` columns remain: 3, except that 4 vectors are split into 2 + 2 and
 * not 3 + 1. */
static inline int NAME(tile_vectors)(int64_t columns)
{
    int64_t vectors = (columns + LANES - 1) / LANES;
    return vectors == 4 ? 2 : vectors > VECTORS ? VECTORS : (int)vectors;
}

static inline int NAME(log_rows)(int64_t rows)
{
    return rows >= ROWS ? (ROWS == 8 ? 3 : 2) : rows >= 4 ? 2 : rows >= 2 ? 1 : 0;
}

static void NAME(small)(const struct NAME(gemm) *g)
{
    for (int64_t j = 0; j < g->n;) {
        const int vectors = NAME(tile_vectors)(g->n - j);
        const int64_t columns = g->n - j < vectors * LANES ? g->n - j : vectors * LANES;
        const int last = (int)(columns - (vectors - 1) * LANES);
        for (int64_t i = 0; i < g->m;) {
            const int log = NAME(log_rows)(g->m - i);
            NAME(tiles)[log][vectors - 1](g->k, g->a + i * g->a_row, g->a_row, g->a_col, g->b + j, g->b_row,
                                          g->c + i * g->c_row + j, g->c_row,
                                          g->start ? g->start + i * g->start_row + j : NULL, g->start_row, last);
            i += 1 << log;
        }
        j += columns;
    }
}

/* Transposes: to[j * to_step + i] = from[i * from_step + j] for i < rows, j < columns. */
static __attribute__((noinline)) void NAME(transpose_block)(T *to, int64_t to_step, const T *from, int64_t from_step,
                                                            int64_t rows, int64_t columns)
{
    const int64_t whole_rows = rows / OP(block) * OP(block), whole_columns = columns / OP(block) * OP(block);
    for (int64_t i = 0; i < whole_rows; i += OP(block)) {
        for (int64_t j = 0; j < whole_columns; j += OP(block))
            OP(transpose)(to + j * to_step + i, to_step, from + i * from_step + j, from_step);
        for (int64_t j = whole_columns; j < columns; j++)
            for (int r = 0; r < OP(block); r++)
                to[j * to_step + i + r] = from[(i + r) * from_step + j];
    }
    for (int64_t i = whole_rows; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * to_step + i] = from[i * from_step + j];
}

/* Packs A's rows [i, i+m) and columns [p, p+k) into strips of ROWS rows, strip[k][ROWS]; pads the last strip with 0. */
static void NAME(pack_a)(T *to, const struct NAME(gemm) *g, int64_t i, int64_t m, int64_t p, int64_t k)
{
    for (int64_t s = 0; s < m; s += ROWS, to += ROWS * k) {
        const T *from = g->a + (i + s) * g->a_row + p * g->a_col;
        const int rows = m - s < ROWS ? (int)(m - s) : ROWS;
        if (rows == ROWS && g->a_row == 1) {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < ROWS; r++)
                    to[q * ROWS + r] = from[q * g->a_col + r];
        } else if (rows == ROWS && g->a_col == 1) {
            NAME(transpose_block)(to, ROWS, from, g->a_row, ROWS, k);
        } else {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < ROWS; r++)
                    to[q * ROWS + r] = r < rows ? from[q * g->a_col + r * g->a_row] : 0;
        }
    }
}

/* Packs B's columns [j, j+n) and rows [p, p+k) into strips of at most VECTORS vectors; the last strip is only as wide
 * as necessary and is padded with 0. */
static void NAME(pack_b)(T *to, const struct NAME(gemm) *g, int64_t j, int64_t n, int64_t p, int64_t k)
{
    while (n > 0) {
        const int width = NAME(tile_vectors)(n) * LANES;
        const int columns = n < width ? (int)n : width;
        const T *from = g->b + j * g->b_col + p * g->b_row;
        if (g->b_col == 1) {
            for (int64_t q = 0; q < k; q++) {
                const T *row = from + q * g->b_row;
                T *out = to + q * width;
                for (int r = 0; r < columns; r++)
                    out[r] = row[r];
                for (int r = columns; r < width; r++)
                    out[r] = 0;
            }
        } else if (g->b_row == 1) {
            NAME(transpose_block)(to, width, from, g->b_col, columns, k);
            for (int64_t q = 0; q < k && columns < width; q++)
                for (int r = columns; r < width; r++)
                    to[q * width + r] = 0;
        } else {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < width; r++)
                    to[q * width + r] = r < columns ? from[q * g->b_row + r * g->b_col] : 0;
        }
        to += width * k;
        j += columns;
        n -= columns;
    }
}

static void NAME(large)(const struct NAME(gemm) *g, T *packed_a, T *packed_b)
{
    for (int64_t jc = 0; jc < g->n; jc += GEMM_NC) {
        const int64_t nc = g->n - jc < GEMM_NC ? g->n - jc : GEMM_NC;
        for (int64_t pc = 0; pc < g->k; pc += GEMM_KC) {
            const int64_t kc = g->k - pc < GEMM_KC ? g->k - pc : GEMM_KC;
            NAME(pack_b)(packed_b, g, jc, nc, pc, kc);
            for (int64_t ic = 0; ic < g->m; ic += GEMM_MC) {
                const int64_t mc = g->m - ic < GEMM_MC ? g->m - ic : GEMM_MC;
                NAME(pack_a)(packed_a, g, ic, mc, pc, kc);
                const T *b = packed_b;
                for (int64_t j = 0; j < nc;) {
                    const int vectors = NAME(tile_vectors)(nc - j);
                    const int width = vectors * LANES;
                    const int columns = nc - j < width ? (int)(nc - j) : width;
                    const int last = columns - (vectors - 1) * LANES;
                    for (int64_t i = 0; i < mc;) {
                        const int log = NAME(log_rows)(mc - i);
                        const int64_t strip = i / ROWS * ROWS;
                        T *c = g->c + (ic + i) * g->c_row + jc + j;
                        const T *start = pc ? c : g->start ? g->start + (ic + i) * g->start_row + jc + j : NULL;
                        NAME(tiles)
                        [log][vectors - 1](kc, packed_a + strip * kc + (i - strip), 1, ROWS, b, width, c,
                                           g->c_row, start, pc ? g->c_row : g->start_row, last);
                        i += 1 << log;
                    }
                    b += width * kc;
                    j += columns;
                }
            }
        }
    }
}

static void NAME(transpose)(T *to, const struct NAME(gemm) *g)
{
    if (g->b_row == 1) {
        NAME(transpose_block)(to, g->n, g->b, g->b_col, g->n, g->k);
        return;
    }
    for (int64_t q = 0; q < g->k; q++)
        for (int64_t j = 0; j < g->n; j++)
            to[q * g->n + j] = g->b[q * g->b_row + j * g->b_col];
}

/* ---- few rows ----
 *
 * Reading B dominates the run time, so each loaded part of B is used for all rows. */

/* Elements of A's rows processed at a time: 8 such rows stay in the L1 cache together with the part of B that is
 * read. */
#define DEPTH ((int64_t)(4096 / sizeof(T)))

/* Interleaves rows of A: packed[k / LANES][rows][LANES], padded with 0. Rows whose distance is a power of two would map
 * to the same cache sets and evict each other. */
static void NAME(pack_rows)(T *packed, const struct NAME(gemm) *g, int64_t i, int rows, int64_t p, int64_t depth)
{
    for (int64_t q = 0; q < depth; q += LANES)
        for (int r = 0; r < rows; r++, packed += LANES) {
            const int64_t left = depth - q;
            OP(store)(packed, OP(load_n)(g->a + (i + r) * g->a_row + p + q, left < LANES ? (int)left : LANES));
        }
}

/* B's columns are contiguous, so elements of C are dot products. Adds the products of `depth` elements from p on, for
 * the packed rows [i, i+rows) and the columns [j, j+columns). */
static inline __attribute__((always_inline)) void NAME(dots)(const int rows, const int columns,
                                                             const struct NAME(gemm) *g, const T *packed, int64_t i,
                                                             int64_t j, int64_t p, int64_t depth)
{
    const T *b = g->b + j * g->b_col + p;
    V sum[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int c = 0; c < columns; c++)
            sum[r][c] = OP(set)(0);
    int64_t q = 0;
    for (; q + LANES <= depth; q += LANES, packed += rows * LANES) {
        V column[VECTORS];
        UNROLLED for (int c = 0; c < columns; c++)
            column[c] = OP(load)(b + c * g->b_col + q);
        UNROLLED for (int c = 0; c < columns; c++)
            __builtin_prefetch(b + (c + columns) * g->b_col + q);
        UNROLLED for (int r = 0; r < rows; r++) {
            const V row = OP(load)(packed + r * LANES);
            UNROLLED for (int c = 0; c < columns; c++)
                sum[r][c] = OP(fma)(row, column[c], sum[r][c]);
        }
    }
    if (q < depth) {
        const OP(mask) mask = OP(first)((int)(depth - q));
        UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int c = 0; c < columns; c++) sum[r][c] =
            OP(fma)(OP(load)(packed + r * LANES), OP(load_m)(b + c * g->b_col + q, mask), sum[r][c]);
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int c = 0; c < columns; c++) {
            T *to = g->c + (i + r) * g->c_row + j + c;
            *to = OP(sum)(sum[r][c]) + (p ? *to : g->start ? g->start[(i + r) * g->start_row + j + c] : 0);
        }
}

/* The same for all columns and the whole depth. */
static inline __attribute__((always_inline)) void NAME(dot_rows)(const int rows, const struct NAME(gemm) *g, int64_t i,
                                                                 T *packed)
{
    for (int64_t p = 0; p < g->k; p += DEPTH) {
        const int64_t depth = g->k - p < DEPTH ? g->k - p : DEPTH;
        int64_t j = 0;
        NAME(pack_rows)(packed, g, i, rows, p, depth);
        for (; j + VECTORS <= g->n; j += VECTORS)
            NAME(dots)(rows, VECTORS, g, packed, i, j, p, depth);
        for (; j < g->n; j++)
            NAME(dots)(rows, 1, g, packed, i, j, p, depth);
    }
}
#undef DEPTH

/* B's rows are contiguous: adds four of them at a time to a range of C's columns that stays in the L1 cache. */
static void NAME(sweep)(const struct NAME(gemm) *g)
{
    const int64_t stretch = 8192 / g->m / LANES * LANES;
    for (int64_t j0 = 0; j0 < g->n; j0 += stretch) {
        const int64_t columns = g->n - j0 < stretch ? g->n - j0 : stretch;
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = j0; j < j0 + columns; j++)
                g->c[i * g->c_row + j] = g->start ? g->start[i * g->start_row + j] : 0;
        int64_t p = 0;
        for (; p + 4 <= g->k; p += 4) {
            const T *b[4];
            T a[GEMM_FEW][4];
            for (int d = 0; d < 4; d++) {
                b[d] = g->b + (p + d) * g->b_row + j0;
                for (int64_t i = 0; i < g->m; i++)
                    a[i][d] = g->a[i * g->a_row + (p + d) * g->a_col];
            }
            /* Prefetch the next four rows, because the hardware prefetcher stops at the page boundary before them. */
            const int64_t ahead = p + 8 <= g->k ? 4 * g->b_row : 0;
            int64_t j = 0;
            for (; j + LANES <= columns; j += LANES) {
                V row[4];
                for (int d = 0; d < 4; d++) {
                    row[d] = OP(load)(b[d] + j);
                    __builtin_prefetch(b[d] + ahead + j);
                }
                T *c = g->c + j0 + j;
                for (int64_t i = 0; i < g->m; i++, c += g->c_row) {
                    V sum = OP(load)(c);
                    for (int d = 0; d < 4; d++)
                        sum = OP(fma)(OP(set)(a[i][d]), row[d], sum);
                    OP(store)(c, sum);
                }
            }
            for (; j < columns; j++)
                for (int64_t i = 0; i < g->m; i++)
                    for (int d = 0; d < 4; d++)
                        g->c[i * g->c_row + j0 + j] += a[i][d] * b[d][j];
        }
        for (; p < g->k; p++)
            for (int64_t i = 0; i < g->m; i++)
                for (int64_t j = j0; j < j0 + columns; j++)
                    g->c[i * g->c_row + j] += g->a[i * g->a_row + p * g->a_col] * g->b[p * g->b_row + j];
    }
}

static void NAME(few)(const struct NAME(gemm) *g, T *packed)
{
    if (g->b_col == 1) {
        NAME(sweep)(g);
        return;
    }
    int64_t i = 0;
#if ROWS == 8
    for (; i + 8 <= g->m; i += 8)
        NAME(dot_rows)(8, g, i, packed);
#endif
    for (; i + 4 <= g->m; i += 4)
        NAME(dot_rows)(4, g, i, packed);
    for (; i + 2 <= g->m; i += 2)
        NAME(dot_rows)(2, g, i, packed);
    for (; i < g->m; i++)
        NAME(dot_rows)(1, g, i, packed);
}

#include "body_end.h"
