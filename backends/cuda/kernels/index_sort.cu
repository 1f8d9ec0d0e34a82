/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/index_sort.cu: index_add and scatter_add for results so large that scanning all indices for
 * each tile of the result (index.cu) is slower than sorting.
 *
 * The elements are sorted by the element of the result to which they are added, with a stable radix sort by digits of 8
 * bits (pairs of key and place). Then the thread at the first element of each key adds up the elements that follow, in
 * the order of the indices. A thread stops at the next multiple of SORT_RUN elements; the sums of keys that continue
 * there are joined run by run. No floating-point atomics are used, so results are bitwise reproducible. */
#include "index_args.h"
#include "index_sort_args.h"

#define DIGIT 0xffu

/* Returns the offset of element e of this sort, for column 0 of a row and the first image. */
DEVICE int64_t from_place(const index_sort_args &a, int64_t e)
{
    int64_t rest = e;
    const int64_t column = split_off(rest, a.columns);
    return (a.outer0 * a.count.size + rest) * a.inner + a.column0 + column;
}

KERNEL_BOUNDS(index_sort_keys, index_sort_args, SORT_THREADS)
{
    for (int64_t e = thread_index(); e < a.n; e += thread_count()) {
        int64_t rest = e;
        const int64_t column = split_off(rest, a.columns), image = fast_quotient(rest, a.count),
            place = a.rows ? e : from_place(a, e);
        const int64_t index = a.index[place];
        const bool good = index >= 0 && index < a.size, skipped = a.skip >= 0 && index == a.skip;
        if (!good && !skipped)
            report(a.error, KERNEL_ERROR_INDEX, index, a.size, place, a.sequence);
        a.keys[e] = (uint32_t)(good && !skipped ? (image * a.size + index) * a.columns.size + column : a.limit);
        a.places[e] = (uint32_t)e;
    }
}

/* ---- a pass of the radix sort: count, prefix sum over tiles, move ---- */

KERNEL_BOUNDS(index_sort_count, index_sort_args, SORT_THREADS)
{
    __shared__ unsigned counts[SORT_THREADS];
    for (int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const int64_t base = tile * SORT_TILE;
        counts[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SORT_EACH; k++) {
            const int64_t e = base + k * SORT_THREADS + threadIdx.x;
            if (e < a.n)
                atomicAdd(&counts[a.keys[e] >> a.shift & DIGIT], 1u);
        }
        __syncthreads();
        a.counts[threadIdx.x * a.tiles + tile] = counts[threadIdx.x];
        __syncthreads();
    }
}

/* One block per digit value. */
KERNEL_BOUNDS(index_sort_sum, index_sort_args, SORT_THREADS)
{
    __shared__ unsigned scratch[SORT_THREADS / WARP];
    uint32_t *const counts = a.counts + blockIdx.x * a.tiles;
    unsigned carry = 0;
    for (int64_t base = 0; base < a.tiles; base += SORT_THREADS) {
        const int64_t tile = base + threadIdx.x;
        unsigned all;
        const unsigned before = sum_before<SORT_THREADS>(tile < a.tiles ? counts[tile] : 0, scratch, &all);
        __syncthreads();
        if (tile < a.tiles)
            counts[tile] = carry + before;
        carry += all;
    }
    if (threadIdx.x == 0)
        a.totals[blockIdx.x] = carry;
}

/* A warp processes consecutive elements, 32 at a time in order. Lanes with the same digit are found with
 * __match_any_sync, so that the sort is stable. */
KERNEL_BOUNDS(index_sort_move, index_sort_args, SORT_THREADS)
{
    constexpr int warps = SORT_THREADS / WARP;
    __shared__ unsigned counts[warps][SORT_THREADS], scratch[warps];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        /* 31 bits */
        const uint32_t n = (uint32_t)a.n, base = (uint32_t)(tile * SORT_TILE) + warp * (SORT_EACH * WARP) + lane;
        uint32_t key[SORT_EACH], rank[SORT_EACH];
        unsigned all;
        for (int w = 0; w < warps; w++)
            counts[w][threadIdx.x] = 0;
        const unsigned value_base = sum_before<SORT_THREADS>(a.totals[threadIdx.x], scratch, &all);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SORT_EACH; k++) {
            const uint32_t e = base + k * WARP;
            key[k] = e < n ? a.keys[e] : 0;
        }
#pragma unroll
        for (int k = 0; k < SORT_EACH; k++) {
            const bool inside = base + k * WARP < n;
            const unsigned digit = key[k] >> a.shift & DIGIT;
            const unsigned peers = __match_any_sync(ALL_LANES, inside ? digit : DIGIT + 1),
                lower = peers & ((1u << lane) - 1);
            rank[k] = counts[warp][digit] + __popc(lower);
            __syncwarp();
            if (inside && lower == 0)
                counts[warp][digit] += __popc(peers);
            __syncwarp();
        }
        __syncthreads();
        unsigned at = value_base + a.counts[threadIdx.x * a.tiles + tile];
        for (int w = 0; w < warps; w++) {
            const unsigned count = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = at;
            at += count;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SORT_EACH; k++)
            if (base + k * WARP < n) {
                const unsigned to = counts[warp][key[k] >> a.shift & DIGIT] + rank[k];
                a.sorted_keys[to] = key[k];
                a.sorted_places[to] = a.places[base + k * WARP];
            }
        __syncthreads();
    }
}

/* ---- sums over the sorted elements ---- */

DEVICE int64_t to_place(const index_sort_args &a, int64_t image, uint32_t key, int64_t w)
{
    int64_t row = key;
    const int64_t column = split_off(row, a.columns);
    return ((a.outer0 + image) * a.size + row) * a.inner + a.column0 + column + w;
}

template <typename A> DEVICE A *partial_of(const index_sort_args &a, int last, int64_t image, int64_t run, int64_t w)
{
    return static_cast<A *>(a.partial) + ((last * a.images + image) * a.runs.size + run) * a.width.size + w;
}

template <typename T> DEVICE void add_sorted(const index_sort_args &a)
{
    typedef typename sum_of<T>::type A;
    constexpr int unroll = 4;
    const int64_t items = a.images * a.n * a.width.size;
    for (int64_t item = thread_index(); item < items; item += thread_count()) {
        int64_t image = item;
        const int64_t w = split_off(image, a.width), i = split_off(image, a.length), run = i / SORT_RUN;
        const uint32_t key = a.keys[i];
        if (key >= a.limit || (i % SORT_RUN != 0 && a.keys[i - 1] == key))
            continue;
        const int64_t stop = (run + 1) * SORT_RUN < a.n ? (run + 1) * SORT_RUN : a.n;
        const T *const from = static_cast<const T *>(a.from) + image * a.count.size * a.inner + w;
        A sum = 0;
        bool same = true;
        for (int64_t j = i; same; j += unroll) {
            uint32_t found[unroll];
            T x[unroll];
            bool mine[unroll];
#pragma unroll
            for (int k = 0; k < unroll; k++)
                found[k] = j + k < stop ? a.keys[j + k] : (uint32_t)a.limit;
#pragma unroll
            for (int k = 0; k < unroll; k++) {
                same = same && found[k] == key;
                mine[k] = same;
                if (same)
                    x[k] = from[from_place(a, a.places[j + k])];
            }
#pragma unroll
            for (int k = 0; k < unroll; k++)
                if (mine[k])
                    sum += (A)(work<T>)x[k];
        }
        const bool begins = i == 0 || a.keys[i - 1] != key;
        const bool ends = stop == a.n || a.keys[stop] != key;
        if (begins && ends)
            static_cast<T *>(a.to)[to_place(a, image, key, w)] = (T)sum;
        else
            *partial_of<A>(a, begins, image, run, w) = sum;
    }
}

/* Joins the sums of keys whose first element is in one run and whose last element is in a later one. */
template <typename T> DEVICE void join_runs(const index_sort_args &a)
{
    typedef typename sum_of<T>::type A;
    const int64_t items = a.images * a.runs.size * a.width.size;
    for (int64_t item = thread_index(); item < items; item += thread_count()) {
        int64_t image = item;
        const int64_t w = split_off(image, a.width), run = split_off(image, a.runs);
        const int64_t first = run * SORT_RUN, next = first + SORT_RUN;
        if (next >= a.n)
            continue;
        const uint32_t key = a.keys[next];
        if (key >= a.limit || a.keys[next - 1] != key || (a.keys[first] == key && run > 0 && a.keys[first - 1] == key))
            continue;
        A sum = *partial_of<A>(a, 1, image, run, w);
#pragma unroll 4
        for (int64_t r = run + 1; r < a.runs.size && a.keys[r * SORT_RUN] == key; r++)
            sum += *partial_of<A>(a, 0, image, r, w);
        static_cast<T *>(a.to)[to_place(a, image, key, w)] = (T)sum;
    }
}

#define ADD(type, T)                                                                                                \
    KERNEL_BOUNDS(index_sort_add_##type, index_sort_args, SORT_THREADS) { add_sorted<T>(a); }                       \
    KERNEL_BOUNDS(index_sort_join_##type, index_sort_args, SORT_THREADS) { join_runs<T>(a); }
ADD(f32, float)
ADD(f64, double)
ADD(f16, f16)
ADD(bf16, bf16)
ADD(u8, uint8_t)
ADD(i16, int16_t)
ADD(i32, int32_t)
ADD(i64, int64_t)
