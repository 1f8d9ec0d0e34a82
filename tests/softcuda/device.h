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

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>

#include "block.h"
#include "device_half.h"

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

/* ---- vectors and bits; functions that have the same name in libm are those of libm ---- */

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class To, class From> static inline To softcuda_bits_as(From x)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x) { return softcuda_bits_as<float>(x); }
static inline double __longlong_as_double(long long x) { return softcuda_bits_as<double>(x); }

/* ---- arithmetic ---- */

/* Multiplication and addition are rounded separately, because kernels are compiled with -ffp-contract=off. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

/* Macros, because glibc declares functions with some of these names. */
#define __expf(x)           expf(x)
#define __fdividef(x, y)    ((float)(x) / (float)(y))

static inline float softcuda_rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
/* Pi is split so that whole and half turns are exact. */
static inline double softcuda_sinpi(double x)
{
    const double r = remainder(x, 2.0);
    return fabs(r) > 0.5 ? copysign(1.0, r) * sin(M_PI * (1.0 - fabs(r))) : sin(M_PI * r);
}
static inline double softcuda_cospi(double x)
{
    const double r = fabs(remainder(x, 2.0));
    return r > 0.75 ? -cos(M_PI * (1.0 - r)) : r > 0.25 ? sin(M_PI * (0.5 - r)) : cos(M_PI * r);
}
static inline void softcuda_sincospi(double x, double *s, double *c) { *s = softcuda_sinpi(x), *c = softcuda_cospi(x); }
static inline void softcuda_sincospif(float x, float *s, float *c)
{
    *s = (float)softcuda_sinpi(x);
    *c = (float)softcuda_cospi(x);
}
#define rsqrtf              softcuda_rsqrtf
#define sincospif           softcuda_sincospif
#define sincospi            softcuda_sincospi

/* ---- replacements for the inline PTX of matrix kernels; warp.c defines the fragment layouts.
 *
 * cp.async completes at once. A read that is not separated from it by a barrier is detected as a race; a missing wait
 * is not detected. ---- */

#define softcuda_ldmatrix(out, from, transposed) softcuda_ldmatrix_at(out, from, transposed, __FILE__, __LINE__)
static inline void softcuda_ldmatrix_at(uint32_t (&out)[4], const void *from, bool transposed, const char *file,
                                        int line)
{
    struct alignas(16) row { uint16_t at[8]; };
    struct softcuda_ldmatrix lane;
    const row in = *static_cast<const row *>(from);         /* one access of 16 bytes, checked as such */
    __builtin_memcpy(lane.row, in.at, sizeof lane.row);
    softcuda_warp(SOFTCUDA_LDMATRIX, 0xffffffffu, (uint64_t)(uintptr_t)&lane, transposed, file, line);
    __builtin_memcpy(out, lane.out, sizeof lane.out);
}

/* c += a b. bf16: the operands are bfloat16, else binary16. */
#define softcuda_mma_m16n8k16(c, a, b, bf16) softcuda_mma_at(c, a, b, bf16, __FILE__, __LINE__)
static inline void softcuda_mma_at(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool bf16,
                                   const char *file, int line)
{
    struct softcuda_mma lane;
    __builtin_memcpy(lane.a, a, sizeof lane.a);
    __builtin_memcpy(lane.b, b, sizeof lane.b);
    __builtin_memcpy(lane.c, c, sizeof lane.c);
    softcuda_warp(SOFTCUDA_MMA, 0xffffffffu, (uint64_t)(uintptr_t)&lane, bf16, file, line);
    __builtin_memcpy(c, lane.c, sizeof lane.c);
}

/* Copies 16 bytes, or writes zeros if not `inside`. */
static inline void softcuda_copy_async(void *to, const void *from, bool inside)
{
    struct alignas(16) piece { uint64_t at[2]; };
    const piece zeros = { { 0, 0 } };
    *static_cast<piece *>(to) = inside ? *static_cast<const piece *>(from) : zeros;
}

#endif
