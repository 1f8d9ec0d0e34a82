/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/elementwise.h: the host side of elementwise kernels. */
#ifndef CUDA_ELEMENTWISE_H
#define CUDA_ELEMENTWISE_H

#include "cuda.h"
#include "elementwise_args.h"
#include "images.h"

/* cuda_row.code of elementwise rows. */
enum {
    ELEMENTWISE_EXACT = 0,                  /* a kernel for each dtype */
    ELEMENTWISE_BITS = 1,                   /* one for each size: u8, i16, i32, i64 */
    ELEMENTWISE_BYTE = 2,                   /* bool has u8's */
    ELEMENTWISE_SWAPPED = 4                 /* the kernel takes the two inputs the other way round */
};

/* For the row's run(): launches NAME_dtype, or NAME_dtype_s where an operand is strided, over the call's operands. NAME: the row's kernel_name, or
 * the op's. */
ctrt_status cuda_elementwise_run(const ctrt_call *call);
/* The same with the op's own fields of `args` filled, and the kernel NAME_dtype(KEY)[_WORD][_s]; index: 0 or 2, tells WORDs apart. */
ctrt_status cuda_elementwise(const ctrt_call *call, struct elementwise_args *args, ctrt_dtype key, int index, const char *word);
/* The same for any two kernels: STEM_dtype(KEY)[_WORD] and that with _s. entries: two. */
struct elementwise_kernel {
    struct cuda_image *image;
    struct cuda_entry *entries;
    const char *stem, *word;                /* word: NULL or a name */
    ctrt_dtype key;
};
ctrt_status cuda_elementwise_kernel(const ctrt_call *call, struct elementwise_args *args, const struct elementwise_kernel *kernel);
/* Fields that are to be cleared before cuda_elementwise: all but the strides, which nobody reads where nobody wrote them. */
void cuda_elementwise_clear(struct elementwise_args *args);
/* The dtype that stands for all of its size: u8, i16, i32, i64. */
ctrt_dtype cuda_bits_of(ctrt_dtype dtype);
/* *out = the number in type `dtype`, as casting does it. */
void cuda_number(union elementwise_number *out, ctrt_scalar number, ctrt_dtype dtype);

/* Numbers for dividing by `d` (kernel.h, divide). */
void cuda_divider(int64_t d, uint32_t *magic, uint32_t *shift);

#define ELEMENTWISE_FLAGS (CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE)
#define ELEMENTWISE_ROW_OF(name, types, file, function, code_, kernel_)                                             \
    { .kernel = { .op = #name, .dtypes = (types), .flags = ELEMENTWISE_FLAGS, .run = function }, .image = &cuda_image_##file, .code = (code_), \
      .kernel_name = (kernel_) }
#define ELEMENTWISE_ROW(name, types, file)  ELEMENTWISE_ROW_OF(name, types, file, cuda_elementwise_run, ELEMENTWISE_EXACT, NULL)
#define ELEMENTWISE_BITS_ROW(name, types, file) ELEMENTWISE_ROW_OF(name, types, file, cuda_elementwise_run, ELEMENTWISE_BITS, NULL)

#endif
