/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/kernel.h: helpers shared by all CUDA kernels. CUDA C++17. nvcc compiles the kernels for GPUs;
 * for tests, g++ compiles them with CTRT_SOFTCUDA, where device.h emulates the threads of a block with fibers.
 *
 * A kernel has one parameter, a struct passed by value and called `a`, for example KERNEL(add_f32, struct
 * elementwise_args) { ... a.n ... }. KERNEL_BOUNDS sets the maximum number of threads per block. KERNEL_BLOCKS also
 * sets the minimum number of resident blocks per multiprocessor, which limits the registers per thread; check with nvcc
 * -Xptxas -v that the compiler does not spill. */
#ifndef CUDA_KERNEL_H
#define CUDA_KERNEL_H

#include <stdint.h>

#include "kernel_error.h"

#ifdef CTRT_SOFTCUDA
#include "device.h"
#define KERNEL_BOUNDS(name, type, threads) SOFTCUDA_KERNEL(name, type, threads)
#define KERNEL_BLOCKS(name, type, threads, blocks) SOFTCUDA_KERNEL(name, type, threads)
#define KERNEL(name, type) KERNEL_BOUNDS(name, type, 1024)
#define KERNEL_DYNAMIC_SHARED(type, name) SOFTCUDA_DYNAMIC_SHARED(type, name)
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KERNEL_BOUNDS(name, type, threads)                                                                          \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ type a)
#define KERNEL_BLOCKS(name, type, threads, blocks)                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type a)
#define KERNEL(name, type) extern "C" __global__ void name(const __grid_constant__ type a)
/* Declares `type *name`, the dynamic shared memory of the block. The launch sets its size. */
#define KERNEL_DYNAMIC_SHARED(type, name)                                                                           \
    extern __shared__ __align__(16) unsigned char kernel_dynamic_shared[];                                          \
    type *const name = reinterpret_cast<type *>(kernel_dynamic_shared)
#endif

#define DEVICE __device__ __forceinline__

/* ---- 2-byte floating-point types: stored in 16 bits, computed in f32 ---- */

#ifdef CTRT_SOFTCUDA
struct f16 {
    uint16_t bits;
    f16() = default;
    DEVICE f16(float x) : bits(soft_half_of(x)) {}
    DEVICE operator float() const { return soft_float_of_half(bits); }
};
struct bf16 {
    uint16_t bits;
    bf16() = default;
    DEVICE bf16(float x) : bits(soft_bfloat_of(x)) {}
    DEVICE operator float() const { return soft_float_of_bfloat(bits); }
};
#else
struct f16 {
    __half value;
    f16() = default;
    DEVICE f16(float x) : value(__float2half_rn(x)) {}
    DEVICE operator float() const { return __half2float(value); }
};
struct bf16 {
    __nv_bfloat16 value;
    bf16() = default;
    DEVICE bf16(float x) : value(__float2bfloat16_rn(x)) {}
    DEVICE operator float() const { return __bfloat162float(value); }
};
#endif

/* The type in which values of type T are computed. */
template <typename T> struct work_of { using type = T; };
template <> struct work_of<f16> { using type = float; };
template <> struct work_of<bf16> { using type = float; };
template <typename T> using work = typename work_of<T>::type;

template <typename T> DEVICE T infinity();
template <> DEVICE float infinity() { return __int_as_float(0x7f800000); }
template <> DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

/* K elements that are loaded and stored with one instruction; at most 16 bytes. */
template <typename T, int K = 16 / sizeof(T)> struct alignas(sizeof(T) * K) vec {
    static_assert(sizeof(T) * K <= 16, "a vector of more than 16 bytes needs an alignment that no caller checks");
    T at[K];
};

/* ---- the grid ---- */

DEVICE int64_t thread_index() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE int64_t thread_count() { return (int64_t)gridDim.x * blockDim.x; }

/* ---- warp and block reductions; all threads of the block must call them ---- */

#define WARP 32
#define ALL_LANES 0xffffffffu

template <typename T, typename F> DEVICE T warp_fold(T x, F f)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x = f(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

struct fold_sum { template <typename T> DEVICE T operator()(T a, T b) const { return a + b; } };
/* NaN propagates */
struct fold_max { template <typename T> DEVICE T operator()(T a, T b) const { return a > b || a != a ? a : b; } };

template <typename T> DEVICE T warp_sum(T x) { return warp_fold(x, fold_sum()); }
template <typename T> DEVICE T warp_max(T x) { return warp_fold(x, fold_max()); }

/* Reduces x over all threads of the block with f and returns the result to all of them. `start`: the neutral element of
 * f. `scratch`: 32 elements of T in shared memory. blockDim.x must be a multiple of 32. */
template <typename T, typename F> DEVICE T block_fold(T x, T start, F f, T *scratch)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_fold(x, f);
    if (warps == 1)
        return x;
    __syncthreads();
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    return warp_fold(lane < warps ? scratch[lane] : start, f);
}

template <typename T> DEVICE T block_sum(T x, T *scratch) { return block_fold(x, T(0), fold_sum(), scratch); }

/* ---- error reporting ---- */

/* Stores an error in `error` unless the queue already has one, because the host reports the first error. `place`: index
 * of the element, or -1. `error` is in host memory, so only the first active lane of a warp writes to it. */
DEVICE void report(struct kernel_error *error, uint32_t code, int64_t value, int64_t limit, int64_t place,
                   uint64_t sequence)
{
    if ((int)threadIdx.x % WARP != __ffs((int)__activemask()) - 1)
        return;
    if (atomicCAS(&error->state, 0u, 1u) != 0u)
        return;
    error->code = code;
    error->value = value;
    error->limit = limit;
    error->place = place;
    error->sequence = sequence;
    __threadfence_system();
    atomicExch(&error->state, 2u);
}

/* ---- division by an invariant divisor: exact for 31-bit n (Granlund and Montgomery 1994) ---- */

struct divider {
    uint32_t divisor, magic, shift;
};

DEVICE uint32_t divide(uint32_t n, const divider &d)
{
    return (__umulhi(n, d.magic) + n) >> d.shift;
}

#endif
