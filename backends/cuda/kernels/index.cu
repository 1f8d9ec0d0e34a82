/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/index.cu: index_select, gather, and their gradients index_add, scatter_add.
 *
 * index_select and gather copy bytes; rows that are whole 16-byte vectors are copied 16 bytes at a time. Each byte is
 * read and written once.
 *
 * In this file, index_add and scatter_add use neither atomic operations nor sorting. A block owns a tile of the result,
 * 32 KiB of sums in shared memory. It scans all indices and adds the elements that fall into its tile; one thread
 * updates each sum, in the order of the indices. The result is bitwise reproducible and, if there is only one piece,
 * equal to that of a sequential loop. The disadvantage is that every tile reads all indices from the L2 cache: 8 bytes
 * per index and tile, compared with 32 KiB of result. If there are fewer columns than lanes in a warp (NAME_n), the
 * lanes read different indices at a time, and lanes that update the same sum do so one after another. If there are too
 * few tiles to occupy the device, the indices are split into pieces, whose sums are joined in order. If there are so
 * many tiles that reading all indices per tile costs more than sorting them, index_sort.cu is used. */
#include "index_args.h"

/* ---- index_select, gather ---- */

DEVICE bool in_range(const index_args &a, int64_t index, int64_t place)
{
    if (index >= 0 && index < a.size)
        return true;
    report(a.error, KERNEL_ERROR_INDEX, index, a.size, place, a.sequence);
    return false;
}

/* For an element of the result: the position of its index, and the offset of its value for index 0. */
struct pick {
    int64_t place, first;
};

/* Copies the selected elements. A thread loads several indices, then their values, then stores the results. If it
 * processed the elements one by one, it would wait for memory for each index and each value, because the compiler does
 * not move loads across stores and error reports. */
template <typename V, typename F> DEVICE void pick_all(const index_args &a, F where)
{
    constexpr int unroll = 2;
    const V *const from = static_cast<const V *>(a.from);
    V *const to = static_cast<V *>(a.to);
    const int64_t threads = thread_count();
    for (int64_t i = thread_index(); i < a.n; i += unroll * threads) {
        pick at[unroll];
        int64_t index[unroll];
        V x[unroll];
#pragma unroll
        for (int t = 0; t < unroll; t++)
            if (i + t * threads < a.n) {
                at[t] = where(i + t * threads);
                index[t] = a.index[at[t].place];
            }
#pragma unroll
        for (int t = 0; t < unroll; t++)
            if (i + t * threads < a.n && index[t] >= 0 && index[t] < a.size)
                x[t] = from[at[t].first + index[t] * a.inner.size];
#pragma unroll
        for (int t = 0; t < unroll; t++)
            if (i + t * threads < a.n && in_range(a, index[t], at[t].place))
                to[i + t * threads] = x[t];
    }
}

template <typename V> DEVICE void select_rows(const index_args &a)
{
    pick_all<V>(a, [&](int64_t i) -> pick {
        int64_t rest = i;
        const int64_t at = split_off(rest, a.inner), row = split_off(rest, a.count);
        return { row, rest * a.size * a.inner.size + at };
    });
}

template <typename V> DEVICE void gather(const index_args &a)
{
    pick_all<V>(a, [&](int64_t i) -> pick {
        int64_t rest = i;
        const int64_t at = split_off(rest, a.inner), outer = fast_quotient(rest, a.count);
        return { i, outer * a.size * a.inner.size + at };
    });
}

/* ---- index_add, scatter_add ---- */

/* A block's work item: rows [row, row + rows) of image `outer`, this thread's column, and the indices [begin, end) to
 * add. */
struct tile {
    int64_t outer, row, rows, column, piece, begin, end;
    int x, y, height;                       /* the thread's column of the tile; it has rows y, y + height, ... */
    bool first;                             /* this tile reports invalid indices */
};

DEVICE tile tile_of(const index_args &a, int64_t item)
{
    tile t;
    t.x = threadIdx.x % a.team;
    t.y = threadIdx.x / a.team;
    t.height = INDEX_THREADS / a.team;
    int64_t rest = item;
    const int64_t across = split_off(rest, a.tiles), group = split_off(rest, a.groups);
    t.piece = split_off(rest, a.pieces);
    t.outer = rest;
    t.column = across * a.team + t.x;
    t.row = group * a.group;
    t.rows = a.size - t.row < a.group ? a.size - t.row : a.group;
    t.begin = t.piece * a.piece;
    t.end = t.begin + a.piece < a.count.size ? t.begin + a.piece : a.count.size;
    t.first = across == 0 && group == 0;
    return t;
}

template <typename A> DEVICE void tile_clear(const index_args &a, const tile &t, A *sums)
{
    for (int64_t r = t.y; r < t.rows; r += t.height)
        sums[r * a.team + t.x] = 0;
}

template <typename T, typename A> DEVICE void tile_store(const index_args &a, const tile &t, const A *sums)
{
    if (t.column >= a.inner.size)
        return;
    for (int64_t r = t.y; r < t.rows; r += t.height) {
        const int64_t at = (t.outer * a.size + t.row + r) * a.inner.size + t.column;
        if (a.partial != nullptr)
            static_cast<A *>(a.partial)[t.piece * a.n + at] = sums[r * a.team + t.x];
        else
            static_cast<T *>(a.to)[at] = (T)sums[r * a.team + t.x];
    }
}

/* Lists, in order, which of the INDEX_LIST indices from `base` on fall into the tile: places[] relative to base, rows[]
 * relative to the tile. Returns their number. All threads of the block must call it. */
DEVICE int list_matches(const index_args &a, const tile &t, int64_t base, int *places, int *rows, unsigned *scratch)
{
    constexpr int each = INDEX_LIST / INDEX_THREADS;
    int mine = 0, row[each];
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int64_t i = base + threadIdx.x * each + k;
        row[k] = -1;
        if (i >= t.end)
            continue;
        const int64_t index = a.index[i];
        if (index == a.skip && a.skip >= 0)
            continue;
        if (t.first && (index < 0 || index >= a.size) && t.outer == 0)
            report(a.error, KERNEL_ERROR_INDEX, index, a.size, i, a.sequence);
        if (index >= t.row && index < t.row + t.rows) {
            row[k] = (int)(index - t.row);
            mine++;
        }
    }
    unsigned total, at = sum_before<INDEX_THREADS>((unsigned)mine, scratch, &total);
#pragma unroll
    for (int k = 0; k < each; k++)
        if (row[k] >= 0) {
            places[at] = (int)threadIdx.x * each + k;
            rows[at++] = row[k];
        }
    __syncthreads();
    return (int)total;
}

template <typename T> DEVICE void add_rows(const index_args &a)
{
    typedef typename sum_of<T>::type A;
    constexpr int unroll = 4;
    __shared__ A sums[INDEX_TILE_BYTES / sizeof(A)];
    __shared__ int places[INDEX_LIST], rows[INDEX_LIST];
    __shared__ unsigned scratch[INDEX_THREADS / WARP];
    const int64_t items = a.outer * a.pieces.size * a.groups.size * a.tiles.size;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const tile t = tile_of(a, item);
        const bool inside = t.column < a.inner.size;
        tile_clear(a, t, sums);
        for (int64_t base = t.begin; base < t.end; base += INDEX_LIST) {
            const int matches = list_matches(a, t, base, places, rows, scratch);
            const T *const from = static_cast<const T *>(a.from) + (t.outer * a.count.size + base) * a.inner.size
                + t.column;
            for (int m = 0; inside && m < matches; m += unroll) {
                T x[unroll];
                int row[unroll];
#pragma unroll
                for (int k = 0; k < unroll; k++) {
                    row[k] = m + k < matches ? rows[m + k] : -1;
                    if (row[k] >= 0 && (row[k] & (t.height - 1)) == t.y)
                        x[k] = from[places[m + k] * a.inner.size];
                    else
                        row[k] = -1;
                }
#pragma unroll
                for (int k = 0; k < unroll; k++)
                    if (row[k] >= 0)
                        sums[row[k] * a.team + t.x] += (A)(work<T>)x[k];
            }
            __syncthreads();
        }
        tile_store<T>(a, t, sums);
    }
}

template <typename T> DEVICE void add_elements(const index_args &a)
{
    typedef typename sum_of<T>::type A;
    constexpr int unroll = 4;
    __shared__ A sums[INDEX_TILE_BYTES / sizeof(A)];
    const int64_t items = a.outer * a.pieces.size * a.groups.size * a.tiles.size;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const tile t = tile_of(a, item);
        const int64_t base = t.outer * a.count.size * a.inner.size + t.column;
        const T *const from = static_cast<const T *>(a.from);
        tile_clear(a, t, sums);
        for (int64_t i = t.begin; t.column < a.inner.size && i < t.end; i += unroll) {
            int64_t index[unroll];
#pragma unroll
            for (int k = 0; k < unroll; k++)
                index[k] = i + k < t.end ? a.index[base + (i + k) * a.inner.size] : 0;
#pragma unroll
            for (int k = 0; k < unroll; k++) {
                if (i + k >= t.end)
                    continue;
                if ((index[k] < 0 || index[k] >= a.size) && t.row == 0 && t.y == 0)
                    report(a.error, KERNEL_ERROR_INDEX, index[k], a.size, base + (i + k) * a.inner.size, a.sequence);
                const int64_t row = index[k] - t.row;
                if (row >= 0 && row < t.rows && ((int)row & (t.height - 1)) == t.y)
                    sums[row * a.team + t.x] += (A)(work<T>)from[base + (i + k) * a.inner.size];
            }
        }
        tile_store<T>(a, t, sums);
    }
}

/* For fewer columns than lanes. A warp owns the rows that are equal to its number modulo the number of warps, and its
 * lanes read neighbouring indices. Lanes with the same sum are found with __match_any_sync and add in the order of
 * their indices. ROWS: an index selects a row of `from`, not an element. */
template <typename T, bool ROWS> DEVICE void add_narrow(const index_args &a)
{
    typedef typename sum_of<T>::type A;
    constexpr int unroll = 4, warps = INDEX_THREADS / WARP;
    __shared__ A sums[INDEX_TILE_BYTES / sizeof(A)];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, side = WARP / a.team;
    const int64_t items = a.outer * a.pieces.size * a.groups.size * a.tiles.size;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const tile t = tile_of(a, item);
        const bool inside = t.column < a.inner.size;
        const bool reports = warp == 0 && t.row == 0 && (!ROWS || (t.outer == 0 && t.column == 0));
        tile_clear(a, t, sums);
        __syncthreads();
        for (int64_t i = t.begin + lane / a.team; i - lane / a.team < t.end; i += unroll * side) {
            int slot[unroll];
            T x[unroll];
#pragma unroll
            for (int k = 0; k < unroll; k++) {
                const int64_t at = i + k * side, place = (t.outer * a.count.size + at) * a.inner.size + t.column;
                slot[k] = -1;
                if (!inside || at >= t.end)
                    continue;
                const int64_t index = a.index[ROWS ? at : place], row = index - t.row;
                if (ROWS && index == a.skip && a.skip >= 0)
                    continue;
                if (reports && (index < 0 || index >= a.size))
                    report(a.error, KERNEL_ERROR_INDEX, index, a.size, ROWS ? at : place, a.sequence);
                if (row >= 0 && row < t.rows && ((int)row & (warps - 1)) == warp) {
                    slot[k] = (int)row * a.team + t.x;
                    x[k] = static_cast<const T *>(a.from)[place];
                }
            }
#pragma unroll
            for (int k = 0; k < unroll; k++) {
                if (!__any_sync(ALL_LANES, slot[k] >= 0))
                    continue;
                const unsigned peers = __match_any_sync(ALL_LANES, slot[k] >= 0 ? slot[k] : -1 - lane);
                const int turn = slot[k] >= 0 ? __popc(peers & ((1u << lane) - 1)) : -1;
                for (int now = 0; __any_sync(ALL_LANES, turn >= now); now++) {
                    if (turn == now)
                        sums[slot[k]] += (A)(work<T>)x[k];
                    __syncwarp();
                }
            }
        }
        __syncthreads();
        tile_store<T>(a, t, sums);
    }
}

template <typename T> DEVICE void join_pieces(const index_args &a)
{
    typedef typename sum_of<T>::type A;
    for (int64_t i = thread_index(); i < a.n; i += thread_count()) {
        A sum = 0;
#pragma unroll 4
        for (int64_t piece = 0; piece < a.pieces.size; piece++)
            sum += static_cast<const A *>(a.partial)[piece * a.n + i];
        static_cast<T *>(a.to)[i] = (T)sum;
    }
}

#define PICK(type, T)                                                                                               \
    KERNEL_BOUNDS(index_select_##type, index_args, INDEX_THREADS) { select_rows<T>(a); }                            \
    KERNEL_BOUNDS(gather_##type, index_args, INDEX_THREADS) { gather<T>(a); }
PICK(u8, uint8_t)
PICK(i16, uint16_t)
PICK(i32, uint32_t)
PICK(i64, uint64_t)
typedef vec<uint32_t, 4> sixteen_bytes;
KERNEL_BOUNDS(index_select_i64_v, index_args, INDEX_THREADS) { select_rows<sixteen_bytes>(a); }

#define ADD(type, T)                                                                                                \
    KERNEL_BOUNDS(index_add_##type, index_args, INDEX_THREADS) { add_rows<T>(a); }                                  \
    KERNEL_BOUNDS(scatter_add_##type, index_args, INDEX_THREADS) { add_elements<T>(a); }                            \
    KERNEL_BOUNDS(index_add_##type##_n, index_args, INDEX_THREADS) { add_narrow<T, true>(a); }                      \
    KERNEL_BOUNDS(scatter_add_##type##_n, index_args, INDEX_THREADS) { add_narrow<T, false>(a); }                   \
    KERNEL_BOUNDS(index_add_##type##_j, index_args, INDEX_THREADS) { join_pieces<T>(a); }                           \
    KERNEL_BOUNDS(scatter_add_##type##_j, index_args, INDEX_THREADS) { join_pieces<T>(a); }
ADD(f32, float)
ADD(f64, double)
ADD(f16, f16)
ADD(bf16, bf16)
ADD(u8, uint8_t)
ADD(i16, int16_t)
ADD(i32, int32_t)
ADD(i64, int64_t)
