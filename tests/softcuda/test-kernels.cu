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

/* out[block] = sum over the block's elements, by shared memory. */
SOFTCUDA_KERNEL(sum_shared, struct vector_args, 256)
{
    __shared__ float part[256];
    float sum = 0.0f;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * blockDim.x)
        sum += a.a[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = part[0];
}

/* out[16][8] = a[16][16] b with 16-bit elements. b[16][8] is row-major; with b_turned, b is the transpose of the stored
 * [8][16] matrix. */
SOFTCUDA_KERNEL(matrix_product, struct matrix_args, 32)
{
    alignas(16) __shared__ uint16_t left[16][24], right[16][24];
    const int lane = (int)threadIdx.x;
    const int rows = a.b_turned ? 8 : 16, columns = a.b_turned ? 16 : 8;
    for (int i = lane; i < 256; i += 32)
        left[i / 16][i % 16] = a.a[i];
    for (int i = lane; i < 16 * 24; i += 32)                /* also reads elements next to b */
        right[i / 24][i % 24] = i / 24 < rows && i % 24 < columns ? a.b[i / 24 * columns + i % 24] : 0;
    __syncwarp();
    uint32_t x[4], y[4];
    softcuda_ldmatrix(x, &left[lane % 16][lane / 16 * 8], false);
    if (a.b_turned)
        softcuda_ldmatrix(y, &right[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8], false);
    else
        softcuda_ldmatrix(y, &right[lane % 16][lane / 16 * 8], true);
    float c[4] = { 1, 1, 1, 1 };                            /* the addend */
    const uint32_t first[2] = { y[0], y[1] };
    softcuda_mma_m16n8k16(c, x, first, a.bf16 != 0);
    for (int i = 0; i < 4; i++)
        a.out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i] - 1;
}

/* The same sum with shuffles, stored in one element. */
SOFTCUDA_KERNEL(sum_warp, struct vector_args, 1024)
{
    __shared__ float part[32];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) / 32;
    float sum = 0.0f;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * blockDim.x)
        sum += a.a[i];
    for (int delta = 16; delta > 0; delta /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, delta);
    if (lane == 0)
        part[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = lane < warps ? part[lane] : 0.0f;
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        if (lane == 0)
            atomicAdd(a.out, sum);
    }
}

/* The result of each warp operation in each lane: out[which * 32 + lane]. For one warp. */
SOFTCUDA_KERNEL(warp_operations, struct number_args, 32)
{
    const unsigned lane = threadIdx.x, all = 0xffffffffu;
    uint64_t *out = a.out + lane;
    out[32 * 0] = (uint64_t)__shfl_sync(all, (int)lane * 10, 5);
    out[32 * 1] = (uint64_t)__shfl_up_sync(all, (int)lane, 3);
    out[32 * 2] = (uint64_t)__shfl_down_sync(all, (int)lane, 3);
    out[32 * 3] = (uint64_t)__shfl_xor_sync(all, (int)lane, 9);
    out[32 * 4] = (uint64_t)__shfl_sync(all, (int)lane, 2, 8);
    out[32 * 5] = (uint64_t)__shfl_down_sync(all, (int)lane, 3, 8);
    out[32 * 6] = __ballot_sync(all, lane % 3 == 0);
    out[32 * 7] = (uint64_t)(__any_sync(all, lane == 7) + 2 * __all_sync(all, lane < 32) + 4 * __all_sync(all,
        lane < 31));
    out[32 * 8] = __reduce_add_sync(all, lane);
    out[32 * 9] = (uint64_t)(unsigned)__reduce_min_sync(all, (int)lane - 16);
    out[32 * 10] = __match_any_sync(all, lane / 4);
    out[32 * 11] = (uint64_t)__shfl_xor_sync(all, (double)lane, 1);
    /* Each half of the warp takes its own branch. */
    if (lane < 16)
        out[32 * 12] = __reduce_add_sync(0x0000ffffu, lane);
    else
        out[32 * 12] = __ballot_sync(0xffff0000u, lane & 1);
    /* Some lanes have exited. */
    if (lane >= 20)
        return;
    out[32 * 13] = __ballot_sync(all, 1);
    out[32 * 14] = (uint64_t)(unsigned)__shfl_sync(all, (int)lane, 25);
}

SOFTCUDA_KERNEL(count_block, struct number_args, 256)
{
    const int count = __syncthreads_count(threadIdx.x % 3 == 0), any = __syncthreads_or(threadIdx.x == 9),
              all = __syncthreads_and(threadIdx.x < 7);
    a.out[threadIdx.x] = (uint64_t)(count * 100 + any * 10 + all);
}

SOFTCUDA_KERNEL(atomics, struct number_args, 256)
{
    unsigned long long *out = reinterpret_cast<unsigned long long *>(a.out);
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], 1ull);
    atomicMax(&out[1], (unsigned long long)i);
    atomicMin(&out[2], (unsigned long long)i);
    atomicAdd(reinterpret_cast<double *>(&out[3]), 0.5);
    atomicAdd(reinterpret_cast<float *>(&out[4]), 0.25f);
    atomicOr(&out[5], 1ull << (i & 63));
    atomicCAS(&out[6], 0ull, (unsigned long long)i + 1);
}

SOFTCUDA_KERNEL(dynamic_shared, struct vector_args, 256)
{
    SOFTCUDA_DYNAMIC_SHARED(float, all);
    all[threadIdx.x] = a.a[threadIdx.x];
    __syncthreads();
    a.out[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
}

/* The index of each thread, in three dimensions. */
SOFTCUDA_KERNEL(places, struct number_args, 1024)
{
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    a.out[block * blockDim.x * blockDim.y * blockDim.z + thread] = (uint64_t)block << 32 | thread;
}

/* Accesses an element of a neighbouring thread; only __syncwarp orders the accesses. */
SOFTCUDA_KERNEL(warp_neighbours, struct number_args, 64)
{
    __shared__ uint64_t shared[64];
    shared[threadIdx.x] = threadIdx.x;
    __syncwarp();
    a.out[threadIdx.x] = shared[threadIdx.x ^ 1];
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
        a.out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
    else if (threadIdx.x == 16)
        a.out[0] = __ballot_sync(0x1u, 1);
}

SOFTCUDA_KERNEL(bad_matrix, struct matrix_args, 32)
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

SOFTCUDA_KERNEL(bad_race, struct vector_args, 64)
{
    __shared__ float part[64];
    part[threadIdx.x] = (float)threadIdx.x;
    a.out[threadIdx.x] = part[threadIdx.x ^ 1];
}

SOFTCUDA_KERNEL(bad_zeros, struct number_args, 1)
{
    __shared__ int never[4];
    if (a.n == 77)
        never[a.which + 1] = 1;
    a.out[0] = (uint64_t)(unsigned)never[a.which];
}

SOFTCUDA_KERNEL(bad_alignment, struct vector_args, 1)
{
    *reinterpret_cast<float4 *>(a.out) = *reinterpret_cast<const float4 *>(a.a + 1);
}

SOFTCUDA_KERNEL(bad_host, struct vector_args, 1)
{
    a.out[0] = a.a[0];
}
