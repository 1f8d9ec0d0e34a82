/* SPDX-License-Identifier: Apache-2.0 */
/* product.cl: C[m, n] = sum over k of A[m, k] B[k, n]: matmul, linear and the three convolutions (product.c, conv.c say
 * how). A work-group computes a tile of MC x NC results. For KC values of k at a time, it packs the operands into local
 * memory in the order in which the innermost loop reads them (Goto and van de Geijn 2008), and multiplies panels of MR
 * rows and NR columns, whose MR x NR sums stay in registers: 12 of the 16 of AVX2 in f32.
 *
 * The addresses of A[m, k] are a sum of a part of m and a part of k, and likewise for B and C; the parts are computed
 * once for a tile. For a convolution, that is an im2col without its memory. Rows and columns beyond the matrix repeat
 * the first of the tile, and are not stored. */
#define MR 6
#define NR 16
#define MC 48
#define NC 64
#define KC 128

#ifdef FLOATING
#define P W
#else
#define P PASTE(U, _product)                    /* sums of integers wrap as unsigned numbers of at least 32 bits */
#define uchar_product  uint
#define ushort_product uint
#define uint_product   uint
#define ulong_product  ulong
#endif
#define P8 PASTE(P, 8)

/* Writes the offsets of the indices [first, first + count); those from `limit` on are that of `first`. */
static void offsets(local i64 *to, const struct axis axis, i64 first, i64 count, i64 limit)
{
    i64 c = first % axis.size2, b = first / axis.size2 % axis.size1, a = first / axis.size2 / axis.size1;
    const i64 origin = a * axis.stride0 + b * axis.stride1 + c * axis.stride2;
    for (i64 i = 0; i < count; i++) {
        to[i] = first + i < limit ? a * axis.stride0 + b * axis.stride1 + c * axis.stride2 : origin;
        if (++c == axis.size2) {
            c = 0;
            if (++b == axis.size1) {
                b = 0;
                a++;
            }
        }
    }
}

static bool is_run(const struct axis axis) { return axis.size1 * axis.size2 == 1 && axis.stride0 == 1; }

/* Packs panels of `width` rows of A (columns of B) for `depth` values of k: [panel][k][width]. Eight elements that are
 * adjacent in memory are copied as a vector. `run`: the elements of a row are adjacent. */
static void pack(local P *to, global const T *from, local const i64 *at, local const i64 *at_k, int panels, int width,
                 int depth, bool run)
{
    for (int p = 0; p < panels; p++, at += width, to += width * depth)
        for (int i = 0; i < width;) {
#ifdef PLAIN
            if (width - i >= 8 && at[i + 7] == at[i] + 7 && at[i + 3] == at[i] + 3 && at[i + 1] == at[i] + 1) {
                for (int k = 0; k < depth; k++)
                    vstore8(vload8(0, from + at[i] + at_k[k]), 0, to + k * width + i);
                i += 8;
                continue;
            }
#endif
            global const T *row = from + at[i];
            if (run)
                for (int k = 0; k < depth; k++)
                    to[k * width + i] = (P)LOAD(row, at_k[0] + k);
            else
                for (int k = 0; k < depth; k++)
                    to[k * width + i] = (P)LOAD(row, at_k[k]);
            i++;
        }
}

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Adds the product of a panel of A and one of B to sums[MR][NR]. */
static void multiply(local P *sums, local const P *a, local const P *b, int depth)
{
#define READ(r) P8 l##r = vload8(2 * r, sums), h##r = vload8(2 * r + 1, sums);
    EACH_ROW(READ)
    for (int k = 0; k < depth; k++) {
        const P8 low = vload8(2 * k, b), high = vload8(2 * k + 1, b);
#define ADD(r)                                                                                                        \
        l##r += a[k * MR + r] * low;                                                                                  \
        h##r += a[k * MR + r] * high;
        EACH_ROW(ADD)
    }
#define WRITE(r)                                                                                                      \
    vstore8(l##r, 2 * r, sums);                                                                                       \
    vstore8(h##r, 2 * r + 1, sums);
    EACH_ROW(WRITE)
}

KERNEL product(global const T *a, global const T *b, global const T *bias, global T *c, const struct product_args args)
{
    local P packed_a[MC * KC], packed_b[NC * KC], sums[MC * NC];
    local i64 at_m[MC], at_n[NC], at_ak[KC], at_bk[KC];
    const i64 tile = GROUP % (args.tiles_m * args.tiles_n), batch = GROUP / (args.tiles_m * args.tiles_n);
    const i64 m0 = tile / args.tiles_n * MC, n0 = tile % args.tiles_n * NC;
    const int rows = (int)least(MC, args.m - m0), columns = (int)least(NC, args.n - n0);
    const int panels_m = (rows + MR - 1) / MR, panels_n = (columns + NR - 1) / NR;
    local i64 at_batch[1];

    offsets(at_batch, args.a_batch, batch, 1, batch + 1);
    a += at_batch[0];
    offsets(at_batch, args.b_batch, batch, 1, batch + 1);
    b += at_batch[0];
    offsets(at_batch, args.c_batch, batch, 1, batch + 1);
    c += at_batch[0];
    offsets(at_m, args.a_m, m0, MC, args.m);
    offsets(at_n, args.b_n, n0, NC, args.n);
    for (int q = 0; q < panels_n; q++)
        for (int i = 0; i < panels_m * MR * NR; i++)
            sums[q * MC * NR + i] = 0;
    for (i64 k = 0; k < args.k; k += KC) {
        const int depth = (int)least(KC, args.k - k);
        offsets(at_ak, args.a_k, k, depth, args.k);
        offsets(at_bk, args.b_k, k, depth, args.k);
        pack(packed_a, a, at_m, at_ak, panels_m, MR, depth, is_run(args.a_k));
        pack(packed_b, b, at_n, at_bk, panels_n, NR, depth, is_run(args.b_k));
        for (int q = 0; q < panels_n; q++)
            for (int p = 0; p < panels_m; p++)
                multiply(sums + (q * MC + p * MR) * NR, packed_a + p * MR * depth, packed_b + q * NR * depth,
                         depth);
    }

    offsets(at_m, args.c_m, m0, MC, args.m);
    offsets(at_n, args.c_n, n0, NC, args.n);
    for (int q = 0; q < panels_n; q++) {
        const int width = (int)least(NR, columns - q * NR);
        local const i64 *at = at_n + q * NR;
        /* The strides of the results are nested, so no others between these fit. */
        const bool adjacent = at[width - 1] == at[0] + width - 1 && at[width / 2] == at[0] + width / 2;
        for (int m = 0; m < rows; m++) {
            local P *row = sums + (q * MC + m) * NR;
#ifdef FLOATING
            const i64 first = args.bias_m * (m0 + m) + args.bias_n * (n0 + q * NR) + args.bias_batch * batch;
            for (int n = 0; (args.bias_m | args.bias_n) != 0 && n < width; n++)
                row[n] += LOAD(bias, first + args.bias_n * n);
#endif
            if (adjacent)
                for (int n = 0; n < width; n++)
                    STORE(c, at_m[m] + at[0] + n, row[n]);
            else
                for (int n = 0; n < width; n++)
                    STORE(c, at_m[m] + at[n], row[n]);
        }
    }
}
