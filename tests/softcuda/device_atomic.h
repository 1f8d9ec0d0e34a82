/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_atomic.h: CUDA's atomic functions that kernels use. Memory order is relaxed, as in CUDA. */
#ifndef SOFTCUDA_DEVICE_ATOMIC_H
#define SOFTCUDA_DEVICE_ATOMIC_H

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

#endif
