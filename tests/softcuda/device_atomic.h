/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_atomic.h: CUDA's atomic functions. Memory order is relaxed, as in CUDA. */
#ifndef SOFTCUDA_DEVICE_ATOMIC_H
#define SOFTCUDA_DEVICE_ATOMIC_H

/* watch.c: checks that the address is valid for an atomic access. */
extern "C" __attribute__((visibility("hidden"))) void softcuda_atomic(const void *address, size_t bytes);

/* The access itself is not instrumented, and is not a race. */
#define SOFTCUDA_ATOMIC template <class T> static __attribute__((noinline, no_sanitize_address)) T

SOFTCUDA_ATOMIC softcuda_atomic_add(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
SOFTCUDA_ATOMIC softcuda_atomic_and(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
SOFTCUDA_ATOMIC softcuda_atomic_or(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
SOFTCUDA_ATOMIC softcuda_atomic_xor(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);
}
SOFTCUDA_ATOMIC softcuda_atomic_exchange(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    T old;
    __atomic_exchange(p, &v, &old, __ATOMIC_RELAXED);
    return old;
}
SOFTCUDA_ATOMIC softcuda_atomic_compare(T *p, T compare, T v)
{
    softcuda_atomic(p, sizeof *p);
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
/* Types and operations without an atomic instruction, by compare and exchange. */
SOFTCUDA_ATOMIC softcuda_atomic_float_add(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    T old, sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do
        sum = old + v;
    while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
SOFTCUDA_ATOMIC softcuda_atomic_max(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}
SOFTCUDA_ATOMIC softcuda_atomic_min(T *p, T v)
{
    softcuda_atomic(p, sizeof *p);
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}

typedef unsigned long long softcuda_ull;

static inline int atomicAdd(int *p, int v) { return softcuda_atomic_add(p, v); }
static inline unsigned atomicAdd(unsigned *p, unsigned v) { return softcuda_atomic_add(p, v); }
static inline softcuda_ull atomicAdd(softcuda_ull *p, softcuda_ull v) { return softcuda_atomic_add(p, v); }
static inline float atomicAdd(float *p, float v) { return softcuda_atomic_float_add(p, v); }
static inline double atomicAdd(double *p, double v) { return softcuda_atomic_float_add(p, v); }
static inline int atomicSub(int *p, int v) { return softcuda_atomic_add(p, (int)-(unsigned)v); }
static inline unsigned atomicSub(unsigned *p, unsigned v) { return softcuda_atomic_add(p, 0u - v); }

#define SOFTCUDA_ATOMIC_TYPES(type)                                                           \
    static inline type atomicMax(type *p, type v) { return softcuda_atomic_max(p, v); }       \
    static inline type atomicMin(type *p, type v) { return softcuda_atomic_min(p, v); }       \
    static inline type atomicAnd(type *p, type v) { return softcuda_atomic_and(p, v); }       \
    static inline type atomicOr(type *p, type v) { return softcuda_atomic_or(p, v); }         \
    static inline type atomicXor(type *p, type v) { return softcuda_atomic_xor(p, v); }       \
    static inline type atomicExch(type *p, type v) { return softcuda_atomic_exchange(p, v); } \
    static inline type atomicCAS(type *p, type compare, type v) { return softcuda_atomic_compare(p, compare, v); }
SOFTCUDA_ATOMIC_TYPES(int)
SOFTCUDA_ATOMIC_TYPES(unsigned)
SOFTCUDA_ATOMIC_TYPES(softcuda_ull)
static inline long long atomicMax(long long *p, long long v) { return softcuda_atomic_max(p, v); }
static inline long long atomicMin(long long *p, long long v) { return softcuda_atomic_min(p, v); }
static inline float atomicExch(float *p, float v) { return softcuda_atomic_exchange(p, v); }
static inline unsigned short atomicCAS(unsigned short *p, unsigned short compare, unsigned short v)
{
    return softcuda_atomic_compare(p, compare, v);
}

/* The scopes block and system do not differ here. */
#define atomicAdd_block     atomicAdd
#define atomicAdd_system    atomicAdd
#define atomicCAS_block     atomicCAS
#define atomicCAS_system    atomicCAS
#define atomicExch_system   atomicExch
#define atomicOr_system     atomicOr

#endif
