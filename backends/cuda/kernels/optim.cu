/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/optim.cu: sgd_step, adam_step and amp_unscale on many tensors in one launch; amp_update.
 *
 * A block processes 4096 elements of one tensor, which it finds by its block index. Each operand is read once and each
 * result written once: adam moves 7 values per element, sgd 3, or 5 with momentum. The kernels are memory-bound. f16
 * and bf16 parameters are updated in f32 and rounded; their states are f32. */
#include "kernel.h"
#include "optim_args.h"

static_assert(sizeof(optim_args) <= 4000 && sizeof(unscale_args) <= 4000,
              "all arguments of a kernel fit into 4000 bytes");

DEVICE float root(float x) { return sqrtf(x); }
DEVICE double root(double x) { return sqrt(x); }

/* Stochastic gradient descent, with momentum if there is a state (Sutskever et al. 2013), as in PyTorch. */
template <typename W, int S> struct sgd {
    static constexpr int states = S;
    const W lr;
    DEVICE sgd(const optim_args &a) : lr((W)(a.replayed != NULL ? a.replayed[0] : a.sgd.lr)) {}
    DEVICE void step(const optim_args &a, W &p, W g, W (&state)[2]) const
    {
        const W d = (W)a.sign * g + (W)a.sgd.decay * p;
        if (S == 0) {
            p = p - lr * d;
            return;
        }
        const W velocity = a.first ? d : (W)a.sgd.momentum * state[0] + (W)a.sgd.gain * d;
        state[0] = velocity;
        p = p - lr * (a.nesterov ? d + (W)a.sgd.momentum * velocity : velocity);
    }
};

/* Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019). */
template <typename W> struct adam {
    static constexpr int states = 2;
    W decay, step_size, correction;
    DEVICE adam(const optim_args &a)
        : decay((W)(a.replayed != NULL ? a.replayed[0] : a.adam.decay)),
          step_size((W)(a.replayed != NULL ? a.replayed[1] : a.adam.step_size)),
          correction((W)(a.replayed != NULL ? a.replayed[2] : a.adam.correction))
    {
        if (a.found_inf == NULL || *a.skipped == 0)
            return;
        /* Steps were skipped, so the host's coefficients are those of a later step. */
        const double lr = a.replayed != NULL ? a.replayed[3] : a.adam.lr;
        const double t = (a.replayed != NULL ? a.replayed[4] : a.adam.step) + *a.skipped;
        step_size = (W)(lr / (1 - pow(a.adam.beta1, t)));
        correction = (W)(1 / sqrt(1 - pow(a.adam.beta2, t)));
    }
    DEVICE void step(const optim_args &a, W &p, W g, W (&state)[2]) const
    {
        const W gradient = fma((W)a.adam.coupled, p, (W)a.sign * g);
        const W mean = fma((W)a.adam.beta1, state[0], (W)a.adam.gain1 * gradient);
        const W square = fma((W)a.adam.beta2, state[1], (W)a.adam.gain2 * gradient * gradient);
        state[0] = mean;
        state[1] = square;
        p = p * decay - step_size * mean / (root(square) * correction + (W)a.adam.epsilon);
    }
};

/* Updates elements [begin, end) of a tensor in vectors of K. States may be wider than the parameters; a state then
 * takes several vectors. */
template <typename T, int K, typename Step>
DEVICE void step_range(const optim_args &a, const Step &how, int tensor, int64_t begin, int64_t end)
{
    typedef vec<T, K> V;
    typedef work<T> W;
    constexpr int most = 16 / (int)sizeof(W), wide = K < most ? K : most, parts = K / wide;
    typedef vec<W, wide> S;
    for (int64_t v = begin / K + threadIdx.x; (v + 1) * K <= end; v += OPTIM_THREADS) {
        V p = static_cast<const V *>(a.in[0][tensor])[v];
        const V g = static_cast<const V *>(a.in[1][tensor])[v];
        S states[2][parts];
#pragma unroll
        for (int s = 0; s < Step::states; s++)
#pragma unroll
            for (int i = 0; i < parts; i++)
                states[s][i] = static_cast<const S *>(a.in[2 + s][tensor])[v * parts + i];
#pragma unroll
        for (int k = 0; k < K; k++) {
            W stepped = (W)p.at[k], state[2] = { 0, 0 };
#pragma unroll
            for (int s = 0; s < Step::states; s++)
                state[s] = states[s][k / wide].at[k % wide];
            how.step(a, stepped, (W)g.at[k], state);
            p.at[k] = (T)stepped;
#pragma unroll
            for (int s = 0; s < Step::states; s++)
                states[s][k / wide].at[k % wide] = state[s];
        }
        static_cast<V *>(a.out[0][tensor])[v] = p;
#pragma unroll
        for (int s = 0; s < Step::states; s++)
#pragma unroll
            for (int i = 0; i < parts; i++)
                static_cast<S *>(a.out[1 + s][tensor])[v * parts + i] = states[s][i];
    }
}

/* Returns the tensor of this block. */
template <typename Args> DEVICE int tensor_here(const Args &a)
{
    int low = 0, high = a.tensors - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (blockIdx.x < a.end[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <typename T, typename Step> DEVICE void step_tensors(const optim_args &a)
{
    constexpr int K = 16 / (int)sizeof(T);
    if (a.found_inf != NULL && *a.found_inf != 0)
        return;
    const int low = tensor_here(a);
    uintptr_t together = 0;
#pragma unroll
    for (int i = 0; i < 2 + Step::states; i++)
        together |= (uintptr_t)a.in[i][low];
#pragma unroll
    for (int i = 0; i < 1 + Step::states; i++)
        together |= (uintptr_t)a.out[i][low];
    const int64_t begin = (int64_t)(blockIdx.x - (low > 0 ? a.end[low - 1] : 0)) * OPTIM_CHUNK;
    const int64_t end = begin + OPTIM_CHUNK < a.n[low] ? begin + OPTIM_CHUNK : a.n[low];
    const int64_t whole = together % 16 == 0 ? end - end % K : begin;
    const Step how(a);
    step_range<T, K>(a, how, low, begin, whole);
    step_range<T, 1>(a, how, low, whole, end);
}

#define STEPS(type, T)                                                                                              \
    KERNEL_BOUNDS(sgd_step_##type, optim_args, OPTIM_THREADS) { step_tensors<T, sgd<work<T>, 0>>(a); }              \
    KERNEL_BOUNDS(sgd_step_##type##_m, optim_args, OPTIM_THREADS) { step_tensors<T, sgd<work<T>, 1>>(a); }          \
    KERNEL_BOUNDS(adam_step_##type, optim_args, OPTIM_THREADS) { step_tensors<T, adam<work<T>>>(a); }
STEPS(f32, float)
STEPS(f64, double)
STEPS(f16, f16)
STEPS(bf16, bf16)

/* ---- gradient scaling ---- */

/* inf - inf is NaN. */
template <typename W> DEVICE bool is_finite(W x) { return x - x == 0; }

/* Multiplies elements [begin, end) in vectors of K and returns whether all were finite. */
template <typename T, int K> DEVICE bool unscale_range(T *grad, work<T> inverse, int64_t begin, int64_t end)
{
    typedef vec<T, K> V;
    bool finite = true;
    for (int64_t v = begin / K + threadIdx.x; (v + 1) * K <= end; v += OPTIM_THREADS) {
        V g = reinterpret_cast<V *>(grad)[v];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const work<T> x = (work<T>)g.at[k];
            finite = finite && is_finite(x);
            g.at[k] = (T)(x * inverse);
        }
        reinterpret_cast<V *>(grad)[v] = g;
    }
    return finite;
}

template <typename T> DEVICE void unscale_tensors(const unscale_args &a)
{
    constexpr int K = 16 / (int)sizeof(T);
    const int low = tensor_here(a);
    T *grad = static_cast<T *>(a.grad[low]);
    const work<T> inverse = (work<T>)(1.0f / *a.scale);
    const int64_t begin = (int64_t)(blockIdx.x - (low > 0 ? a.end[low - 1] : 0)) * OPTIM_CHUNK;
    const int64_t end = begin + OPTIM_CHUNK < a.n[low] ? begin + OPTIM_CHUNK : a.n[low];
    const int64_t whole = (uintptr_t)grad % 16 == 0 ? end - end % K : begin;
    const bool finite = unscale_range<T, K>(grad, inverse, begin, whole);
    if (!unscale_range<T, 1>(grad, inverse, whole, end) || !finite)
        *a.found_inf = 1;
}

#define UNSCALE(type, T)                                                                                            \
    KERNEL_BOUNDS(amp_unscale_##type, unscale_args, OPTIM_THREADS) { unscale_tensors<T>(a); }
UNSCALE(f32, float)
UNSCALE(f64, double)
UNSCALE(f16, f16)
UNSCALE(bf16, bf16)

/* One thread. */
KERNEL_BOUNDS(amp_update_f32, amp_update_args, 1)
{
    if (*a.found_inf != 0) {
        const float next = (float)(*a.scale * a.backoff_factor);
        if (next >= a.min_scale)
            *a.scale = next;
        else if (*a.scale > a.min_scale)
            *a.scale = (float)a.min_scale;
        *a.tracker = 0;
        a.skips[0]++;
        a.skips[1]++;
        return;
    }
    a.skips[0] = 0;
    if (++*a.tracker == a.growth_interval) {
        const float next = (float)(*a.scale * a.growth_factor);
        if (is_finite(next))
            *a.scale = next;
        *a.tracker = 0;
    }
}
