/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device.h: the parts of CUDA C++ that kernels use, for g++ -std=gnu++17.
 *
 * A thread of a kernel is a fiber. block.c runs the threads one after another, and switches to another thread when a
 * thread waits for others. A kernel is defined by
 *
 *     SOFTCUDA_KERNEL(name, struct name_args, max_threads_of_a_block)    the parameter is called `a`
 *     { ... }
 *
 * Compiled with the flags SOFTCUDA_WATCH of local.mk, every access is checked as by compute-sanitizer: bounds of blocks
 * of device memory to the byte, alignment, shared memory, and races between threads on shared memory without a
 * barrier. */
#ifndef SOFTCUDA_DEVICE_H
#define SOFTCUDA_DEVICE_H

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "device_half.h"
#include "device_math.h"

#define SOFTCUDA_KERNEL(kernel, type, bounds)                                                               \
    static void softcuda_thread_##kernel(type const &a);                                                    \
    extern "C" {                                                                                            \
    SOFTCUDA_EXPORT void kernel(const void *arguments);                                                     \
    void kernel(const void *arguments) { softcuda_thread_##kernel(*static_cast<type const *>(arguments)); } \
    extern SOFTCUDA_EXPORT const struct softcuda_kernel softcuda_kernel_##kernel;                           \
    const struct softcuda_kernel softcuda_kernel_##kernel = { #kernel, kernel, sizeof(type), bounds };      \
    }                                                                                                       \
    static void softcuda_thread_##kernel(type const &a)

/* ---- keywords ---- */

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __constant__ static const
#define __shared__ static __thread          /* a host thread runs the blocks one after another */
#define __align__(n) alignas(n)

#define SOFTCUDA_DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(softcuda_here.dynamic)

#define threadIdx (softcuda_here.thread)
#define blockIdx  (softcuda_here.block)
#define blockDim  (softcuda_here.block_dim)
#define gridDim   (softcuda_here.grid_dim)
static const int warpSize = 32;

/* ---- barriers and warps ---- */

#define __syncthreads()         ((void)softcuda_barrier(SOFTCUDA_BARRIER, 0, __FILE__, __LINE__))
#define __syncthreads_or(p)     ((int)(softcuda_barrier(SOFTCUDA_BARRIER_OR, (p) != 0, __FILE__, __LINE__) > 0))
#define __syncthreads_and(p)    ((int)(softcuda_barrier(SOFTCUDA_BARRIER_AND, (p) == 0, __FILE__, __LINE__) == 0))
#define __syncthreads_count(p)  ((int)softcuda_barrier(SOFTCUDA_BARRIER_COUNT, (p) != 0, __FILE__, __LINE__))

template <class T> static inline T softcuda_exchange(int kind, unsigned mask, T value, unsigned argument, int width,
                                                     const char *file, int line)
{
    static_assert(sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0, "a shuffle moves 1, 2, 4 or 8 bytes");
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    word = softcuda_warp(kind, mask, word, argument, (unsigned)width, file, line);
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

static inline int softcuda_width(void) { return 32; }
static inline int softcuda_width(int width) { return width; }

#define __shfl_sync(mask, value, lane, ...) \
    softcuda_exchange(SOFTCUDA_INDEX, mask, value, (unsigned)(lane), softcuda_width(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, delta, ...) \
    softcuda_exchange(SOFTCUDA_UP, mask, value, (unsigned)(delta), softcuda_width(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, delta, ...) \
    softcuda_exchange(SOFTCUDA_DOWN, mask, value, (unsigned)(delta), softcuda_width(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes, ...) \
    softcuda_exchange(SOFTCUDA_XOR, mask, value, (unsigned)(lanes), softcuda_width(__VA_ARGS__), __FILE__, __LINE__)

static inline unsigned softcuda_full(void) { return 0xffffffffu; }
static inline unsigned softcuda_full(unsigned mask) { return mask; }

#define __syncwarp(...) \
    ((void)softcuda_warp(SOFTCUDA_SYNC, softcuda_full(__VA_ARGS__), 0, 0, 32, __FILE__, __LINE__))
#define __ballot_sync(mask, p)  ((unsigned)softcuda_warp(SOFTCUDA_BALLOT, mask, (p) != 0, 0, 32, __FILE__, __LINE__))
#define __any_sync(mask, p)     ((int)(__ballot_sync(mask, p) != 0))
#define __all_sync(mask, p)     ((int)(__ballot_sync(mask, (p) == 0) == 0))
/* On a GPU, the hardware determines the active lanes. A single active lane is a valid result, which kernels must
 * support. */
#define __activemask()          (1u << (softcuda_here.linear & 31))
#define __match_any_sync(mask, value) \
    ((unsigned)softcuda_warp(SOFTCUDA_MATCH, mask, softcuda_word(value), 0, 32, __FILE__, __LINE__))

template <class T> static inline uint64_t softcuda_word(T value)
{
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    return word;
}

#define SOFTCUDA_REDUCE(mask, value, unsigned_kind, signed_kind) \
    softcuda_reduced(mask, value, unsigned_kind, signed_kind, __FILE__, __LINE__)
static inline unsigned softcuda_reduced(unsigned mask, unsigned value, int kind, int, const char *file, int line)
{
    return (unsigned)softcuda_warp(kind, mask, value, 0, 32, file, line);
}
static inline int softcuda_reduced(unsigned mask, int value, int, int kind, const char *file, int line)
{
    return (int)(unsigned)softcuda_warp(kind, mask, (unsigned)value, 0, 32, file, line);
}
#define __reduce_add_sync(mask, value)  SOFTCUDA_REDUCE(mask, value, SOFTCUDA_ADD, SOFTCUDA_ADD)
#define __reduce_min_sync(mask, value)  SOFTCUDA_REDUCE(mask, value, SOFTCUDA_MIN, SOFTCUDA_MIN_SIGNED)
#define __reduce_max_sync(mask, value)  SOFTCUDA_REDUCE(mask, value, SOFTCUDA_MAX, SOFTCUDA_MAX_SIGNED)
#define __reduce_and_sync(mask, value)  SOFTCUDA_REDUCE(mask, value, SOFTCUDA_AND, SOFTCUDA_AND)
#define __reduce_or_sync(mask, value)   SOFTCUDA_REDUCE(mask, value, SOFTCUDA_OR, SOFTCUDA_OR)
#define __reduce_xor_sync(mask, value)  SOFTCUDA_REDUCE(mask, value, SOFTCUDA_EXCLUSIVE, SOFTCUDA_EXCLUSIVE)

static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) {}
static inline long long clock64(void)
{
#if defined(__x86_64__)
    return (long long)__builtin_ia32_rdtsc();
#else
    return 0;
#endif
}
#define __trap() softcuda_fault(SOFTCUDA_ASSERTED, "the kernel trapped at %s:%d", __FILE__, __LINE__)

/* ---- memory ---- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldlu(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T value) { *p = value; }
template <class T> static inline void __stcg(T *p, T value) { *p = value; }
template <class T> static inline void __stwt(T *p, T value) { *p = value; }

#include "device_atomic.h"
#include "device_matrix.h"

#endif
