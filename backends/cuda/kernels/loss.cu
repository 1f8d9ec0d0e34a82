/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/loss.cu: cross entropy of rows of logits, and its gradient.
 *
 * The logits are read once (twice with label smoothing, the second time from caches). In one pass, a thread keeps the
 * largest logit and the sum of exponentials relative to it, with one exponential per logit and one more per vector. The
 * gradient reads and writes rows * classes elements. Rows are read in vectors, except for the unaligned elements at
 * both ends. A warp processes a row of up to 2048 classes, a block a longer one. */
#include "loss_args.h"
#include "row.cuh"

/* Returns the target class of a row, -1 if the row is ignored. `first`: this thread reports an invalid target. */
DEVICE int64_t target_of(const loss_args &a, int64_t row, bool first)
{
    const int64_t target = a.target[row];
    if (target == a.ignore)
        return -1;
    if (target >= 0 && target < a.classes)
        return target;
    if (first)
        report(a.error, KERNEL_ERROR_TARGET, target, a.classes, row, a.sequence);
    return -1;
}

template <typename T> DEVICE work<T> weight_of(const loss_args &a, int64_t c)
{
    if (a.weight == nullptr)
        return 1;
    return a.weight_wide ? (work<T>)static_cast<const float *>(a.weight)[c]
        : (work<T>)static_cast<const T *>(a.weight)[c];
}

template <typename T> DEVICE T team_sum(T x, bool block, T *scratch)
{
    return block ? block_fold(x, T(0), fold_sum(), scratch) : warp_sum(x);
}
template <typename T> DEVICE T team_max(T x, bool block, T *scratch)
{
    return block ? block_fold(x, -infinity<T>(), fold_max(), scratch) : warp_max(x);
}

/* Calls f(row, thread index in the team, threads of the team) for each row of the team. */
template <typename F> DEVICE void rows_of(const loss_args &a, F f)
{
    const int team = a.block ? blockDim.x : WARP, lane = threadIdx.x % team;
    const int64_t step = thread_count() / team;
    for (int64_t row = thread_index() / team; row < a.rows; row += step)
        f(row, lane, team);
}

template <typename T> DEVICE void loss_rows(const loss_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ W scratch[WARP];
    rows_of(a, [&](int64_t row, int lane, int team) {
        const T *const x = static_cast<const T *>(a.x) + row * a.classes;
        exponentials<T> e;
        e.begin();
        along<K, 1>(head_of(x, a.classes, 0), a.classes, lane, team, &x, [&](auto step, int64_t, const auto *in) {
            constexpr int N = decltype(step)::count;
            W wide[N];
#pragma unroll
            for (int k = 0; k < N; k++)
                wide[k] = (W)in[0].at[k];
            e.add(wide);
        });
        const W largest = team_max(e.largest, a.block, scratch);
        W sum = team_sum(e.scaled(largest), a.block, scratch);
        if (largest == -infinity<W>())
            sum = largest - largest;        /* NaN: a row of only -infinity has no finite sum */
        const W log_sum = log_of(sum);
        const int64_t target = target_of(a, row, lane == 0);
        W loss = 0;
        if (target >= 0) {
            loss = weight_of<T>(a, target) * (log_sum - ((W)x[target] - largest));
            if (a.smoothing != 0) {
                W smooth = 0;
                for (int64_t c = lane; c < a.classes; c += team)
                    smooth += weight_of<T>(a, c) * (log_sum - ((W)x[c] - largest));
                smooth = team_sum(smooth, a.block, scratch);
                loss = (W)(1 - (W)a.smoothing) * loss + (W)a.smoothing / (W)a.classes * smooth;
            }
        }
        if (lane == 0) {
            static_cast<W *>(a.out)[row] = loss;
            static_cast<W *>(a.out_statistics)[2 * row] = largest;
            static_cast<W *>(a.out_statistics)[2 * row + 1] = sum;
        }
    });
}

template <typename T> DEVICE void loss_gradient_rows(const loss_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ W scratch[WARP];
    const W smoothing = (W)a.smoothing;
    /* Label smoothing needs the sum of all weights, which is the same for all rows. */
    W all = (W)a.classes;
    if (smoothing != 0 && a.weight != nullptr) {
        all = 0;
        for (int64_t c = threadIdx.x; c < a.classes; c += blockDim.x)
            all += weight_of<T>(a, c);
        all = block_fold(all, W(0), fold_sum(), scratch);
    }
    rows_of(a, [&](int64_t row, int lane, int team) {
        const T *const x = static_cast<const T *>(a.x) + row * a.classes;
        T *const dx = static_cast<T *>(a.out) + row * a.classes;
        const int64_t target = target_of(a, row, lane == 0);
        const W *const statistics = static_cast<const W *>(a.statistics) + 2 * row;
        const W largest = statistics[0], dloss = static_cast<const W *>(a.dloss)[row];
        const W hard = target >= 0 ? dloss * (1 - smoothing) * weight_of<T>(a, target) : 0,
            soft = dloss * smoothing / (W)a.classes;
        const W factor = (soft != 0 ? hard + soft * all : hard) / statistics[1];
        const bool ignored = target < 0;    /* then the gradient is 0, also for logits of infinity and NaN */
        along<K, 1>(head_of(x, a.classes, apart(x, dx)), a.classes, lane, team, &x,
                    [&](auto step, int64_t c, const auto *in) {
            constexpr int N = decltype(step)::count;
            vec<T, N> out;
            W d[N];
#pragma unroll
            for (int k = 0; k < N; k++)
                d[k] = exp_for<T>((W)in[0].at[k] - largest) * factor;
            /* These branches are taken by all threads, or rarely. */
            if (soft != 0)
#pragma unroll
                for (int k = 0; k < N; k++)
                    d[k] -= soft * weight_of<T>(a, c + k);
            const uint64_t place = (uint64_t)(target - c);
            if (place < (uint64_t)N)
#pragma unroll
                for (int k = 0; k < N; k++)
                    d[k] -= k == (int)place ? hard : W(0);
            if (ignored)
#pragma unroll
                for (int k = 0; k < N; k++)
                    d[k] = 0;
#pragma unroll
            for (int k = 0; k < N; k++)
                out.at[k] = (T)d[k];
            put_numbers<N>(dx, c, out);
        });
    });
}

#define KERNELS(type, T)                                                                                            \
    KERNEL_BLOCKS(cross_entropy_##type, loss_args, ROW_THREADS, 3) { loss_rows<T>(a); }                             \
    KERNEL_BLOCKS(cross_entropy_backward_##type, loss_args, ROW_THREADS, 3) { loss_gradient_rows<T>(a); }
KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, f16)
KERNELS(bf16, bf16)
