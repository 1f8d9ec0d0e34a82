/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_matrix.h: replacements for the inline PTX of matrix kernels; matrix.c defines the fragment
 * layouts.
 *
 * cp.async completes at once. A read that is not separated from it by a barrier is detected as a race; a missing wait
 * is not detected. */
#ifndef SOFTCUDA_DEVICE_MATRIX_H
#define SOFTCUDA_DEVICE_MATRIX_H

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
