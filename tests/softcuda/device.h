/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device.h: the parts of CUDA C++ that kernels use, for g++ -std=gnu++17. Add others where a kernel
 * needs them.
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
    static void kernel(const void *arguments)                                                               \
    {                                                                                                       \
        softcuda_thread_##kernel(*static_cast<type const *>(arguments));                                    \
    }                                                                                                       \
    extern SOFTCUDA_EXPORT const struct softcuda_kernel softcuda_kernel_##kernel;                           \
    const struct softcuda_kernel softcuda_kernel_##kernel = { #kernel, kernel, sizeof(type), bounds };      \
    }                                                                                                       \
    static void softcuda_thread_##kernel(type const &a)

/* ---- keywords ---- */

#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static __thread          /* a host thread runs the blocks one after another */

#define SOFTCUDA_DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(softcuda_here.dynamic)

#define threadIdx (softcuda_here.thread)
#define blockIdx  (softcuda_here.block)
#define blockDim  (softcuda_here.block_dim)
#define gridDim   (softcuda_here.grid_dim)

/* ---- barriers and warps ---- */

#define __syncthreads() softcuda_barrier(__FILE__, __LINE__)

/* Values of up to 8 bytes are passed to softcuda_warp as words. */
template <class T> static inline uint64_t softcuda_word(T value)
{
    static_assert(sizeof(T) <= 8, "a warp operation moves at most 8 bytes");
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    return word;
}

template <class T> static inline T softcuda_shuffle(int kind, unsigned mask, T value, unsigned delta, const char *file,
                                                    int line)
{
    const uint64_t word = softcuda_warp(kind, mask, softcuda_word(value), delta, file, line);
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

#define __shfl_up_sync(mask, value, delta) \
    softcuda_shuffle(SOFTCUDA_UP, mask, value, (unsigned)(delta), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes) \
    softcuda_shuffle(SOFTCUDA_XOR, mask, value, (unsigned)(lanes), __FILE__, __LINE__)

static inline unsigned softcuda_full(void) { return 0xffffffffu; }
static inline unsigned softcuda_full(unsigned mask) { return mask; }

#define __syncwarp(...) ((void)softcuda_warp(SOFTCUDA_SYNC, softcuda_full(__VA_ARGS__), 0, 0, __FILE__, __LINE__))
#define __ballot_sync(mask, p)  ((unsigned)softcuda_warp(SOFTCUDA_BALLOT, mask, (p) != 0, 0, __FILE__, __LINE__))
#define __any_sync(mask, p)     ((int)(__ballot_sync(mask, p) != 0))
#define __match_any_sync(mask, value) \
    ((unsigned)softcuda_warp(SOFTCUDA_MATCH, mask, softcuda_word(value), 0, __FILE__, __LINE__))

/* On a GPU, the hardware determines the active lanes. A single active lane is a valid result, which kernels must
 * support. */
#define __activemask()          (1u << (softcuda_here.linear & 31))

static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* ---- atomic functions; memory order is relaxed, as in CUDA ---- */

/* watch.c: checks that the address is valid for an atomic access. */
extern "C" __attribute__((visibility("hidden"))) void softcuda_atomic(const void *address, size_t bytes);

/* The access itself is not instrumented, and is not a race. */
#define SOFTCUDA_ATOMIC static __attribute__((noinline, no_sanitize_address, unused)) unsigned

SOFTCUDA_ATOMIC atomicAdd(unsigned *p, unsigned v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

SOFTCUDA_ATOMIC atomicExch(unsigned *p, unsigned v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}

SOFTCUDA_ATOMIC atomicCAS(unsigned *p, unsigned compare, unsigned v)
{
    softcuda_atomic(p, sizeof *p);
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}

#include "device_matrix.h"

#endif
