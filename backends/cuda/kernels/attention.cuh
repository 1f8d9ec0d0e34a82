/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/attention.cuh: tiles and thread layouts of attention, for the backward kernels and for the
 * forward kernels of f32 and f64.
 *
 * A block keeps OWN rows of one side (queries or keys) and loops over the rows of the other side in steps of STEP. A
 * `team` defines how the threads of a block share the matrix products. Both teams have the same interface:
 *
 *     scores s                    the thread's part of an OWN x STEP tile, in registers:
 *     ROWS, row(r)                number of rows of this part, and their positions in the tile
 *     COLUMNS, column(c)          number of columns of this part, and their positions
 *     s.at(r, c)
 *     sums o                      the thread's part of an OWN x WIDTH tile of results; o.at(r, d)
 *     fold(x, f)                  reduces x over the lanes that share a row
 *     compare(s, a, b)            s = a b^T, for tiles of WIDTH columns in shared memory
 *     weigh(o, s, b, scratch)        o += s b; 2-byte types round s to their type first
 *
 * numbers_team (f32, f64): 256 threads. A thread computes OWN/16 x STEP/16 values from 16-byte vectors along the width.
 * The 16 lanes that share a row of s read neighbouring rows of b (the row pitch is an odd multiple of 16 bytes, so that
 * no two of the 8 lanes that are served together access the same bank). The two halves of a warp read rows of a that
 * are 4 rows apart (4 pitches are 16 banks). The weights go through `scratch`; only the 16 lanes that share a row write
 * and read that row. For 64 x 64 x 4 products, a warp reads 12 times 128 bytes and executes 64 multiplications, so the
 * kernel is compute-bound.
 *
 * matrix_team (f16, bf16): 4 warps of 16 rows each, on tensor cores (mma.cuh). The result of one product has the
 * register layout of the left operand of the next, so that the weights stay in registers. ldmatrix reads 8 rows of 16
 * bytes at a time, which the pitch spreads over all banks. */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "attention_args.h"
#include "functions.cuh"
#include "mma.cuh"
#include "row.cuh"

/* ---- exponentials: base e for f32 and f64; base 2 (a hardware instruction) for 2-byte types ---- */

template <typename T> struct power {
    using W = work<T>;
    static DEVICE W of(W x) { return exp_of(x); }
    static DEVICE W log(W x) { return log_of(x); }
    static DEVICE W per_e() { return W(1); }            /* factor from an exponent of base e */
};
struct power_of_two {
    static DEVICE float of(float x) { return quick_exp2(x); }
    static DEVICE float log(float x) { return log2f(x); }
    static DEVICE float per_e() { return 1.44269504f; }
};
template <> struct power<f16> : power_of_two {};
template <> struct power<bf16> : power_of_two {};

/* ---- loading tiles ---- */

template <typename T> DEVICE T *matrix_of(const attention_operand &x, int64_t batch, int64_t head)
{
    return static_cast<T *>(x.data) + batch * x.batch + head * x.head;
}

/* Loads rows [0, count) of `from`, `width` columns each, into a tile of ROWS x WIDTH and fills the rest with zeros.
 * `step`: distance between rows of `from` in elements. */
template <typename T, int ROWS, int WIDTH>
DEVICE void load_tile(T *tile, const T *from, int64_t step, int count, int width, bool vectors)
{
    constexpr int K = 16 / (int)sizeof(T), PITCH = ATTENTION_PITCH((int)sizeof(T), WIDTH),
        THREADS = ATTENTION_THREADS((int)sizeof(T)), ACROSS = WIDTH / K, DOWN = THREADS / ACROSS;
    static_assert(THREADS % ACROSS == 0 && ROWS % DOWN == 0, "the threads load whole rows");
    if (vectors) {
        const int row = (int)threadIdx.x / ACROSS, column = (int)threadIdx.x % ACROSS * K;
        const T *const at = from + row * step + column;
        T *const to = tile + row * PITCH + column;
        if (count >= ROWS) {
#pragma unroll
            for (int r = 0; r < ROWS; r += DOWN)
                copy_async(to + r * PITCH, at + r * step, column < width);
        } else {
#pragma unroll 1
            for (int r = 0; r < ROWS; r += DOWN) {
                const bool inside = row + r < count && column < width;
                copy_async(to + r * PITCH, inside ? at + r * step : from, inside);
            }
        }
    } else {
#pragma unroll 1
        for (int v = (int)threadIdx.x; v < ROWS * WIDTH; v += THREADS) {
            const int row = v / WIDTH, column = v % WIDTH;
            tile[row * PITCH + column] = row < count && column < width ? from[row * step + column] : T(0);
        }
    }
}

/* ---- f32, f64 ---- */

template <typename T, int WIDTH, int OWN, int STEP> struct numbers_team {
    static constexpr int PITCH = ATTENTION_PITCH((int)sizeof(T), WIDTH),
        SCRATCH_PITCH = ATTENTION_PITCH((int)sizeof(T), STEP);
    static constexpr int K = 16 / (int)sizeof(T), ROWS = OWN / 16, COLUMNS = STEP / 16, DEPTH = WIDTH / 16;
    static constexpr int WIDE = DEPTH < K ? DEPTH : K;          /* adjacent results */

    struct scores {
        T x[ROWS][COLUMNS];
        DEVICE T &at(int r, int c) { return x[r][c]; }
    };
    struct sums {
        T x[ROWS][DEPTH];
        DEVICE T &at(int r, int d) { return x[r][d]; }
    };
    static DEVICE int x() { return (int)threadIdx.x % 16; }
    static DEVICE int row(int r)
    {
        const int warp = (int)threadIdx.x / WARP, half = (int)threadIdx.x / 16 % 2;
        return 16 * r + warp / 4 * 8 + half * 4 + warp % 4;
    }
    static DEVICE int column(int c) { return x() + 16 * c; }
    static DEVICE int depth(int d) { return d / WIDE * 16 * WIDE + x() * WIDE + d % WIDE; }
    static DEVICE bool first_of_row() { return x() == 0; }

    template <typename F> static DEVICE T fold(T value, F f)
    {
#pragma unroll
        for (int step = 8; step > 0; step /= 2)
            value = f(value, __shfl_xor_sync(ALL_LANES, value, step));
        return value;
    }

    static DEVICE void compare(scores &s, const T *a, const T *b)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                s.x[r][c] = 0;
#pragma unroll 2
        for (int e = 0; e < WIDTH; e += K) {
            vec<T, K> left[ROWS], right[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                left[r] = *reinterpret_cast<const vec<T, K> *>(a + row(r) * PITCH + e);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                right[c] = *reinterpret_cast<const vec<T, K> *>(b + column(c) * PITCH + e);
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        s.x[r][c] += left[r].at[k] * right[c].at[k];
        }
    }

    static DEVICE void weigh(sums &o, scores &s, const T *b, T *scratch)
    {
        __syncwarp();                       /* the previous contents of scratch have been read */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                scratch[row(r) * SCRATCH_PITCH + column(c)] = s.x[r][c];
        __syncwarp();
#pragma unroll 2
        for (int j = 0; j < STEP; j += K) {
            vec<T, K> left[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                left[r] = *reinterpret_cast<const vec<T, K> *>(scratch + row(r) * SCRATCH_PITCH + j);
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int d = 0; d < DEPTH; d += WIDE) {
                    const vec<T, WIDE> right = *reinterpret_cast<const vec<T, WIDE> *>(b + (j + k) * PITCH + depth(d));
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
#pragma unroll
                        for (int w = 0; w < WIDE; w++)
                            o.x[r][d + w] += left[r].at[k] * right.at[w];
                }
        }
    }
};

/* ---- f16, bf16 ---- */

template <typename T, int WIDTH, int OWN, int STEP> struct matrix_team {
    static constexpr int PITCH = ATTENTION_PITCH((int)sizeof(T), WIDTH), ROWS = 2, COLUMNS = STEP / 4,
        DEPTH = WIDTH / 4, WIDE = 2;
    static_assert(OWN == 16 * ATTENTION_THREADS(2) / WARP && STEP % 16 == 0 && WIDTH % 16 == 0, "a warp has 16 rows");

    struct scores {
        float x[STEP / 8][4];
        DEVICE float &at(int r, int c) { return x[c / 2][r * 2 + c % 2]; }
    };
    struct sums {
        float x[WIDTH / 8][4];
        DEVICE float &at(int r, int d) { return x[d / 2][r * 2 + d % 2]; }
    };
    static DEVICE int lane() { return (int)threadIdx.x % WARP; }
    static DEVICE int first_row() { return (int)threadIdx.x / WARP * 16; }
    static DEVICE int row(int r) { return first_row() + lane() / 4 + 8 * r; }
    static DEVICE int column(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
    static DEVICE int depth(int d) { return column(d); }
    static DEVICE bool first_of_row() { return lane() % 4 == 0; }

    template <typename F> static DEVICE float fold(float value, F f)
    {
        value = f(value, __shfl_xor_sync(ALL_LANES, value, 2));
        return f(value, __shfl_xor_sync(ALL_LANES, value, 1));
    }

    static DEVICE void compare(scores &s, const T *a, const T *b)
    {
        const T *const from_a = a + (first_row() + lane() % 16) * PITCH + lane() / 16 * 8;
        const T *const from_b = b + (lane() / 16 * 8 + lane() % 8) * PITCH + lane() / 8 % 2 * 8;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s.x[n][i] = 0;
#pragma unroll
        for (int e = 0; e < WIDTH; e += 16) {
            uint32_t left[4];
            load_matrices<false>(left, from_a + e);
#pragma unroll
            for (int n = 0; n < STEP / 8; n += 2) {
                uint32_t both[4];           /* columns 8 n ... 8 n + 15 */
                load_matrices<false>(both, from_b + n * 8 * PITCH + e);
                multiply_add<T>(s.x[n], left, { both[0], both[1] });
                multiply_add<T>(s.x[n + 1], left, { both[2], both[3] });
            }
        }
    }

    static DEVICE void weigh(sums &o, scores &s, const T *b, T *)
    {
        const T *const from = b + lane() % 16 * PITCH + lane() / 16 * 8;
#pragma unroll
        for (int j = 0; j < STEP / 8; j += 2) {
            const uint32_t left[4] = { pair_of<T>(s.x[j][0], s.x[j][1]), pair_of<T>(s.x[j][2], s.x[j][3]),
                                       pair_of<T>(s.x[j + 1][0], s.x[j + 1][1]),
                                       pair_of<T>(s.x[j + 1][2], s.x[j + 1][3]) };
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n += 2) {
                uint32_t both[4];
                load_matrices<true>(both, from + j * 8 * PITCH + n * 8);
                multiply_add<T>(o.x[n], left, { both[0], both[1] });
                multiply_add<T>(o.x[n + 1], left, { both[2], both[3] });
            }
        }
    }
};

template <typename T, int WIDTH, bool BACKWARD> struct attention_tile {
    static constexpr int BYTES = (int)sizeof(T), OWN = ATTENTION_OWN(BYTES, WIDTH, BACKWARD),
        STEP = ATTENTION_STEP(BYTES, WIDTH, BACKWARD);
    static constexpr int OWN_NUMBERS = OWN * ATTENTION_PITCH(BYTES, WIDTH),
        STEP_NUMBERS = STEP * ATTENTION_PITCH(BYTES, WIDTH);
};
template <typename T, int WIDTH, bool BACKWARD> struct team_of_type {
    using tile = attention_tile<T, WIDTH, BACKWARD>;
    using type = numbers_team<T, WIDTH, tile::OWN, tile::STEP>;
};
template <int WIDTH, bool BACKWARD> struct team_of_type<f16, WIDTH, BACKWARD> {
    using tile = attention_tile<f16, WIDTH, BACKWARD>;
    using type = matrix_team<f16, WIDTH, tile::OWN, tile::STEP>;
};
template <int WIDTH, bool BACKWARD> struct team_of_type<bf16, WIDTH, BACKWARD> {
    using tile = attention_tile<bf16, WIDTH, BACKWARD>;
    using type = matrix_team<bf16, WIDTH, tile::OWN, tile::STEP>;
};

template <typename TEAM> DEVICE void clear(typename TEAM::sums &o)
{
#pragma unroll
    for (int r = 0; r < TEAM::ROWS; r++)
#pragma unroll
        for (int d = 0; d < TEAM::DEPTH; d++)
            o.at(r, d) = 0;
}

/* Stores rows [0, count) of the tile, `width` columns each; each row is multiplied by factor(r). */
template <typename TEAM, typename T, typename F>
DEVICE void store_tile(T *to, int64_t step, int count, int width, bool vectors, typename TEAM::sums &o, F factor)
{
#pragma unroll
    for (int r = 0; r < TEAM::ROWS; r++) {
        if (TEAM::row(r) >= count)
            continue;
        T *const line = to + (int64_t)TEAM::row(r) * step;
#pragma unroll
        for (int d = 0; d < TEAM::DEPTH; d += TEAM::WIDE) {
            const int column = TEAM::depth(d);
            vec<T, TEAM::WIDE> out;
#pragma unroll
            for (int w = 0; w < TEAM::WIDE; w++)
                out.at[w] = T(o.at(r, d + w) * factor(r));
            if (vectors) {
                if (column < width)
                    *reinterpret_cast<vec<T, TEAM::WIDE> *>(line + column) = out;
            } else {
#pragma unroll
                for (int w = 0; w < TEAM::WIDE; w++)
                    if (column + w < width)
                        line[column + w] = out.at[w];
            }
        }
    }
}

/* Stores rows [0, count) of a tile, `width` columns each, by one warp. `step`: distance between rows of `to`. */
template <typename T, int WIDTH>
DEVICE void store_rows(T *to, int64_t step, const T *tile, int count, int width, bool vectors, int lane)
{
    constexpr int K = 16 / (int)sizeof(T), PITCH = ATTENTION_PITCH((int)sizeof(T), WIDTH), ACROSS = WIDTH / K,
        DOWN = WARP / ACROSS;
    static_assert(WARP % ACROSS == 0, "the lanes store whole rows");
    if (vectors) {
        const int column = lane % ACROSS * K;
#pragma unroll 4
        for (int row = lane / ACROSS; row < count; row += DOWN)
            if (column < width)
                *reinterpret_cast<vec<T> *>(to + row * step + column) =
                    *reinterpret_cast<const vec<T> *>(tile + row * PITCH + column);
    } else {
#pragma unroll 1
        for (int i = lane; i < count * WIDTH; i += WARP)
            if (i % WIDTH < width)
                to[i / WIDTH * step + i % WIDTH] = tile[i / WIDTH * PITCH + i % WIDTH];
    }
}

/* The matrix and tile of a block. Consecutive blocks share a matrix, so that they read the other side from the L2
 * cache. */
struct attention_place {
    int64_t matrix;
    int batch, head, tile;
};
DEVICE attention_place place_of(const attention_args &a)
{
    attention_place p;
    p.matrix = blockIdx.x;
    p.tile = (int)split_off(p.matrix, a.tiles);
    int64_t batch = p.matrix;
    p.head = (int)split_off(batch, a.heads);
    p.batch = (int)batch;
    return p;
}

#endif
