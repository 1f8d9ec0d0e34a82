/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/elementwise.h: the host side of elementwise kernels. */
#ifndef CUDA_ELEMENTWISE_H
#define CUDA_ELEMENTWISE_H

#include "host/cuda.h"
#include "kernels/elementwise_args.h"
#include "host/fatbin.h"

/* cuda_kernel.code of elementwise kernels. */
enum {
    ELEMENTWISE_EXACT = 0,                  /* one kernel per dtype */
    ELEMENTWISE_BITS = 1,                   /* one kernel per element size: u8, i16, i32, i64 */
    ELEMENTWISE_BYTE = 2,                   /* bool uses the kernel of u8 */
    ELEMENTWISE_SWAPPED = 4                 /* pass the two inputs to the kernel in reverse order */
};

/* A run() for entries of the kernel table: launches NAME_dtype, or NAME_dtype_s if an operand is strided or unaligned.
 * NAME is the entry's kernel_name or the op's name; dtype is that of input 0 (of the output if there are no inputs), as
 * modified by the entry's code. */
ctrt_status cuda_elementwise_run(const ctrt_call *call);
/* The same for gelu and its gradient; their attribute selects the exact formula or the tanh approximation. */
ctrt_status cuda_gelu_run(const ctrt_call *call);
/* Like cuda_elementwise_run, for kernel NAME_KEY[_WORD][_s], with the op-specific members of `args` set by the caller.
 * `index`: 0 or 2; identifies the WORD among the entries of the kernel and `key`. */
ctrt_status cuda_elementwise(const ctrt_call *call, struct elementwise_args *args, ctrt_dtype key, int index,
                             const char *word);
/* Argument of cuda_elementwise_kernel, which is like cuda_elementwise, for kernels that do not belong to the entry:
 * STEM_KEY[_WORD] and STEM_KEY[_WORD]_s. */
struct elementwise_kernel {
    struct cuda_fatbin *fatbin;
    struct cuda_entry *entries;             /* two: contiguous, strided */
    const char *stem, *word;                /* word: may be NULL */
    ctrt_dtype key;
};
ctrt_status cuda_elementwise_kernel(const ctrt_call *call, struct elementwise_args *args,
                                    const struct elementwise_kernel *kernel);
/* Zeroes the members of `args` that must be zero before cuda_elementwise(): all before `shape`. Kernels read the others
 * only after cuda_elementwise() has set them. */
void cuda_elementwise_clear(struct elementwise_args *args);
/* Returns the integer dtype with the same element size: u8, i16, i32 or i64. */
ctrt_dtype cuda_bits_of(ctrt_dtype dtype);
/* *out = `number` converted to `dtype`, with the rules of a cast. The other bytes of *out become 0. */
void cuda_number(union elementwise_number *out, ctrt_scalar number, ctrt_dtype dtype);

/* Computes the constants with which kernels divide 31-bit integers by `d` (divide() in kernel.h). They are 0 if `d` is
 * not in [1, 2^31). */
void cuda_divider(int64_t d, uint32_t *magic, uint32_t *shift);

#define ELEMENTWISE_FLAGS (CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE)
#define ELEMENTWISE_KERNEL_OF(name, types, file, function, code_, kernel_)                                             \
    { .base = { .op = #name, .dtypes = (types), .flags = ELEMENTWISE_FLAGS, .run = function },                         \
      .fatbin = &cuda_fatbin_##file, .code = (code_), .kernel_name = (kernel_) }
/* A row of a list of kernels (kernels/math.def) as an entry of the kernel table. */
#define ELEMENTWISE_ROW(file, name, types, code, ...)                                                                  \
    ELEMENTWISE_KERNEL_OF(name, types, file, cuda_elementwise_run, ELEMENTWISE_##code, NULL),
#define ELEMENTWISE_KERNEL(name, types, file)                                                                          \
    ELEMENTWISE_KERNEL_OF(name, types, file, cuda_elementwise_run, ELEMENTWISE_EXACT, NULL)
#define ELEMENTWISE_BITS_KERNEL(name, types, file)                                                                     \
    ELEMENTWISE_KERNEL_OF(name, types, file, cuda_elementwise_run, ELEMENTWISE_BITS, NULL)

#endif
