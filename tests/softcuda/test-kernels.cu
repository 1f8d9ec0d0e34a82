/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-kernels.cu: kernels for the tests of softcuda: correct ones, and faulty ones that it must
 * detect. */
#include "device.h"
#include "test-kernels.h"

/* ---- correct kernels ---- */

SOFTCUDA_KERNEL(vector_add, struct vector_args, 1024)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * blockDim.x)
        a.out[i] = a.a[i] + a.b[i];
}

SOFTCUDA_KERNEL(spin, struct number_args, 1)
{
    for (volatile int64_t i = 0; i < a.n; i = i + 1)
        ;
    a.out[0] += 1;
}

SOFTCUDA_KERNEL(add_number, struct number_args, 1)
{
    a.out[0] = a.out[0] * 3 + (uint64_t)a.n;
}

/* ---- faulty kernels ---- */

SOFTCUDA_KERNEL(bad_barrier, struct number_args, 64)
{
    if (threadIdx.x < 10)
        __syncthreads();
    else
        __syncwarp(0xfffffc00u);
    __syncthreads();
    a.out[threadIdx.x] = 1;
}

SOFTCUDA_KERNEL(bad_two_barriers, struct number_args, 64)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    a.out[threadIdx.x] = 1;
}

SOFTCUDA_KERNEL(bad_mask, struct number_args, 32)
{
    if (threadIdx.x < 16)
        a.out[threadIdx.x] = (uint64_t)__any_sync(0xffffffffu, 1);
    else if (threadIdx.x == 16)
        a.out[0] = (uint64_t)__any_sync(0x1u, 1);
}

SOFTCUDA_KERNEL(bad_matrix, struct vector_args, 32)
{
    float c[4] = { 0, 0, 0, 0 };
    const uint32_t left[4] = { 0, 0, 0, 0 }, right[2] = { 0, 0 };
    if (threadIdx.x != 5)
        softcuda_mma_m16n8k16(c, left, right, false);
    a.out[threadIdx.x] = c[0];
}

SOFTCUDA_KERNEL(bad_overrun, struct vector_args, 64)
{
    if ((int64_t)threadIdx.x <= a.n)
        a.out[threadIdx.x] = 1.0f;
}

SOFTCUDA_KERNEL(bad_index, struct vector_args, 64)
{
    __shared__ float part[32];
    part[threadIdx.x] = 1.0f;
    __syncthreads();
    a.out[threadIdx.x] = part[31 - (threadIdx.x & 31)];
}

/* Reads what the previous (n = -1) or the next thread (n = 1) writes. */
SOFTCUDA_KERNEL(bad_race, struct vector_args, 64)
{
    __shared__ float part[66];
    part[1 + threadIdx.x] = (float)threadIdx.x;
    a.out[threadIdx.x] = part[1 + (int)threadIdx.x + a.n];
}

SOFTCUDA_KERNEL(bad_zeros, struct number_args, 1)
{
    __shared__ int never[4];
    if (a.n == 77)
        never[1] = 1;
    a.out[0] = (uint64_t)(unsigned)never[a.n];
}

SOFTCUDA_KERNEL(bad_alignment, struct vector_args, 1)
{
    *reinterpret_cast<uint4 *>(a.out) = *reinterpret_cast<const uint4 *>(a.a + 1);
}

SOFTCUDA_KERNEL(bad_host, struct vector_args, 1)
{
    a.out[0] = a.a[0];
}
