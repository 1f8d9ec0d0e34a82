/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/gemm_body.h: a template, included by gemm_loops.c once per type.
 *
 * The scheme is Goto and van de Geijn's (2008): a kernel keeps a tile of C in registers and walks down k; A and B are
 * packed in blocks that fit the second and first cache, in the order in which the kernel reads them. */

/* One tile: `rows` x `vectors` vectors, of which the last has `last` lanes in use. */
static inline __attribute__((always_inline)) void NAME(tile)(
    const int rows, const int vectors, const bool full, int64_t k, const T *a, int64_t a_row, int64_t a_col, const T *b,
    int64_t b_row, T *c, int64_t c_row, const T *start, int64_t start_row, int last)
{
    V sum[ROWS][VECTORS];
    const MASK mask = OP(first)(last);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            const T *from = start + i * start_row + j * LANES;
            if (!start)
                sum[i][j] = OP(set)(0);
            else
                sum[i][j] = full || j < vectors - 1 ? OP(load)(from) : OP(load_m)(from, mask);
        }
    for (int64_t p = 0; p < k; p++) {
        V column[VECTORS];
        for (int j = 0; j < vectors; j++)
            column[j] = full || j < vectors - 1 ? OP(load)(b + j * LANES) : OP(load_m)(b + j * LANES, mask);
        for (int i = 0; i < rows; i++) {
            const V element = OP(set)(a[i * a_row]);
            for (int j = 0; j < vectors; j++)
                sum[i][j] = OP(fma)(element, column[j], sum[i][j]);
        }
        a += a_col;
        b += b_row;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            T *to = c + i * c_row + j * LANES;
            if (full || j < vectors - 1)
                OP(store)(to, sum[i][j]);
            else
                OP(store_m)(to, sum[i][j], mask);
        }
}

typedef void (*NAME(tile_function))(int64_t k, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t b_row, T *c,
                                    int64_t c_row, const T *start, int64_t start_row, int last);

#define TILE(rows, vectors)                                                                                             \
    static void NAME(tile_##rows##_##vectors)(int64_t k, const T *a, int64_t a_row, int64_t a_col, const T *b,          \
                                              int64_t b_row, T *c, int64_t c_row, const T *start, int64_t start_row,    \
                                              int last)                                                                 \
    {                                                                                                                   \
        if (last == LANES)                                                                                              \
            NAME(tile)(rows, vectors, true, k, a, a_row, a_col, b, b_row, c, c_row, start, start_row, last);            \
        else                                                                                                            \
            NAME(tile)(rows, vectors, false, k, a, a_row, a_col, b, b_row, c, c_row, start, start_row, last);           \
    }
TILE(1, 1) TILE(1, 2) TILE(1, 3)
TILE(2, 1) TILE(2, 2) TILE(2, 3)
TILE(4, 1) TILE(4, 2) TILE(4, 3)
#if ROWS == 8
TILE(8, 1) TILE(8, 2) TILE(8, 3)
#endif
#undef TILE

/* By log2 of the rows and by vectors - 1. */
static const NAME(tile_function) NAME(tiles)[4][VECTORS] = {
    { NAME(tile_1_1), NAME(tile_1_2), NAME(tile_1_3) },
    { NAME(tile_2_1), NAME(tile_2_2), NAME(tile_2_3) },
    { NAME(tile_4_1), NAME(tile_4_2), NAME(tile_4_3) },
#if ROWS == 8
    { NAME(tile_8_1), NAME(tile_8_2), NAME(tile_8_3) },
#endif
};

/* As many vectors as the next tile takes of `columns` columns: 3, but 2 + 2 and not 3 + 1. */
static inline int NAME(tile_vectors)(int64_t columns)
{
    int64_t vectors = (columns + LANES - 1) / LANES;
    return vectors == 4 ? 2 : vectors > VECTORS ? VECTORS : (int)vectors;
}

static inline int NAME(log_rows)(int64_t rows)
{
    return rows >= ROWS ? (ROWS == 8 ? 3 : 2) : rows >= 4 ? 2 : rows >= 2 ? 1 : 0;
}

static void NAME(small)(const G *g)
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

/* A's rows [i, i+m), columns [p, p+k) in strips of ROWS rows: strip[k][ROWS]. */
static void NAME(pack_a)(T *to, const G *g, int64_t i, int64_t m, int64_t p, int64_t k)
{
    for (int64_t s = 0; s < m; s += ROWS, to += ROWS * k) {
        const T *from = g->a + (i + s) * g->a_row + p * g->a_col;
        const int rows = m - s < ROWS ? (int)(m - s) : ROWS;
        if (rows == ROWS && g->a_row == 1) {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < ROWS; r++)
                    to[q * ROWS + r] = from[q * g->a_col + r];
        } else if (rows == ROWS && g->a_col == 1) {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < ROWS; r++)
                    to[q * ROWS + r] = from[q + r * g->a_row];
        } else {
            for (int64_t q = 0; q < k; q++)
                for (int r = 0; r < ROWS; r++)
                    to[q * ROWS + r] = r < rows ? from[q * g->a_col + r * g->a_row] : 0;
        }
    }
}

/* B's columns [j, j+n), rows [p, p+k) in strips of VECTORS vectors, the last strip as wide as it must be, filled with 0. */
static void NAME(pack_b)(T *to, const G *g, int64_t j, int64_t n, int64_t p, int64_t k)
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
        } else {
            /* Blocks of 16 rows: a cache line of each column at a time. */
            for (int64_t q0 = 0; q0 < k; q0 += 16) {
                const int64_t q1 = q0 + 16 < k ? q0 + 16 : k;
                for (int r = 0; r < width; r++) {
                    if (r < columns)
                        for (int64_t q = q0; q < q1; q++)
                            to[q * width + r] = from[q * g->b_row + r * g->b_col];
                    else
                        for (int64_t q = q0; q < q1; q++)
                            to[q * width + r] = 0;
                }
            }
        }
        to += width * k;
        j += columns;
        n -= columns;
    }
}

static void NAME(large)(const G *g, T *packed_a, T *packed_b)
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
                        NAME(tiles)[log][vectors - 1](kc, packed_a + strip * kc + (i - strip), 1, ROWS, b, width, c, g->c_row,
                                                      start, pc ? g->c_row : g->start_row, last);
                        i += 1 << log;
                    }
                    b += width * kc;
                    j += columns;
                }
            }
        }
    }
}

static void NAME(transpose)(T *to, const G *g)
{
    for (int64_t q0 = 0; q0 < g->k; q0 += 16) {
        const int64_t q1 = q0 + 16 < g->k ? q0 + 16 : g->k;
        for (int64_t j = 0; j < g->n; j++)
            for (int64_t q = q0; q < q1; q++)
                to[q * g->n + j] = g->b[q * g->b_row + j * g->b_col];
    }
}

/* B's columns are contiguous: each element of C is a dot product, `rows` of them share what is read of B. */
static inline __attribute__((always_inline)) void NAME(dots)(const int rows, const G *g, int64_t i)
{
    for (int64_t j = 0; j < g->n; j++) {
        const T *a = g->a + i * g->a_row, *b = g->b + j * g->b_col;
        V sum[ROWS][2];
        for (int r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = OP(set)(0);
        int64_t p = 0;
        for (; p + 2 * LANES <= g->k; p += 2 * LANES)
            for (int h = 0; h < 2; h++) {
                const V column = OP(load)(b + p + h * LANES);
                for (int r = 0; r < rows; r++)
                    sum[r][h] = OP(fma)(OP(load)(a + r * g->a_row + p + h * LANES), column, sum[r][h]);
            }
        for (; p < g->k; p += LANES) {
            const MASK mask = OP(first)(g->k - p < LANES ? (int)(g->k - p) : LANES);
            const V column = OP(load_m)(b + p, mask);
            for (int r = 0; r < rows; r++)
                sum[r][0] = OP(fma)(OP(load_m)(a + r * g->a_row + p, mask), column, sum[r][0]);
        }
        for (int r = 0; r < rows; r++)
            g->c[(i + r) * g->c_row + j] = OP(sum)(sum[r][0] + sum[r][1])
                + (g->start ? g->start[(i + r) * g->start_row + j] : 0);
    }
}

/* B's rows are contiguous: C += a column of A times a row of B, four rows of B at a time, so that B streams past once. */
static void NAME(sweep)(const G *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++)
            g->c[i * g->c_row + j] = g->start ? g->start[i * g->start_row + j] : 0;
    for (int64_t p = 0; p < g->k; p += 4) {
        const int depth = g->k - p < 4 ? (int)(g->k - p) : 4;
        for (int64_t i = 0; i < g->m; i++) {
            const T *a = g->a + i * g->a_row + p * g->a_col, *b = g->b + p * g->b_row;
            T *c = g->c + i * g->c_row;
            if (depth == 4) {
                const T a0 = a[0], a1 = a[g->a_col], a2 = a[2 * g->a_col], a3 = a[3 * g->a_col];
                const T *b1 = b + g->b_row, *b2 = b1 + g->b_row, *b3 = b2 + g->b_row;
                int64_t j = 0;
                for (; j + LANES <= g->n; j += LANES) {
                    V sum = OP(load)(c + j);
                    sum = OP(fma)(OP(set)(a0), OP(load)(b + j), sum);
                    sum = OP(fma)(OP(set)(a1), OP(load)(b1 + j), sum);
                    sum = OP(fma)(OP(set)(a2), OP(load)(b2 + j), sum);
                    sum = OP(fma)(OP(set)(a3), OP(load)(b3 + j), sum);
                    OP(store)(c + j, sum);
                }
                for (; j < g->n; j++)
                    c[j] = c[j] + a0 * b[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
            } else {
                for (int d = 0; d < depth; d++)
                    for (int64_t j = 0; j < g->n; j++)
                        c[j] += a[d * g->a_col] * b[d * g->b_row + j];
            }
        }
    }
}

static void NAME(few)(const G *g)
{
    if (g->b_col == 1) {
        NAME(sweep)(g);
        return;
    }
    int64_t i = 0;
#if ROWS == 8
    for (; i + 8 <= g->m; i += 8)
        NAME(dots)(8, g, i);
#endif
    for (; i + 4 <= g->m; i += 4)
        NAME(dots)(4, g, i);
    for (; i + 2 <= g->m; i += 2)
        NAME(dots)(2, g, i);
    for (; i < g->m; i++)
        NAME(dots)(1, g, i);
}

#undef T
#undef G
#undef V
#undef LANES
#undef NAME
#undef OP
#undef MASK
