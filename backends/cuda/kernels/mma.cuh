/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/mma.cuh: warp-level matrix products on tensor cores, for f16 and bf16 with f32 sums; and
 * asynchronous copies to shared memory.
 *
 * Fragments are those of mma.m16n8k16 and ldmatrix (PTX ISA, "Warp Level Matrix Instructions"). With g = lane / 4 and t
 * = lane % 4, a lane holds of a 16 x 8 sum the columns 2t and 2t + 1 of the rows g and g + 8. bf16 requires compute
 * capability 8.0. Below 8.0, an f16 product consists of two m16n8k8 instructions. Tests run both types with
 * tests/softcuda/device.h. */
#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "kernel.h"

template <typename T> struct is_bf16 { static constexpr bool value = false; };
template <> struct is_bf16<bf16> { static constexpr bool value = true; };

#ifndef CTRT_SOFTCUDA
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* Loads four 8 x 8 matrices. Lanes 8 i ... 8 i + 7 pass the addresses of the rows of matrix i; a row has 16 bytes and
 * is aligned to 16 bytes. */
template <bool TRANSPOSED> DEVICE void load_matrices(uint32_t (&out)[4], const void *row)
{
#ifdef CTRT_SOFTCUDA
    softcuda_ldmatrix(out, row, TRANSPOSED);
#else
    const uint32_t at = shared_address(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
#endif
}

/* c += a b, where a is 16 x 16 and b is 16 x 8. */
template <typename T> DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#ifdef CTRT_SOFTCUDA
    softcuda_mma_m16n8k16(c, a, b, is_bf16<T>::value);
#elif __CUDA_ARCH__ >= 800
    if (is_bf16<T>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
              "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
              "r"(b[0]), "r"(b[1]));
#else
    if (is_bf16<T>::value) {
        __trap();                           /* the host does not launch bf16 kernels there */
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
    }
#endif
}

/* Packs two values into a word, the first into the lower half. */
template <typename T> DEVICE uint32_t pair_of(float first, float second)
{
    const vec<T, 2> pair = { { T(first), T(second) } };
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

/* Copies 16 bytes to shared memory, or stores zeros if not `inside`. The data is visible after copies_wait. */
DEVICE void copy_async(void *to, const void *from, bool inside)
{
#ifdef CTRT_SOFTCUDA
    softcuda_copy_async(to, from, inside);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 16 : 0) : "memory");
#else
    *static_cast<uint4 *>(to) = inside ? *static_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
#endif
}

/* Waits until the calling thread's copies have arrived. A barrier extends this to the copies of the block. */
DEVICE void copies_wait()
{
#if !defined(CTRT_SOFTCUDA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif
