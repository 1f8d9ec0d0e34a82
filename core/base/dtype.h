/* SPDX-License-Identifier: Apache-2.0 */
/* base/dtype.h: data types: the table of their properties, and host conversion of single elements. */
#ifndef CORE_BASE_DTYPE_H
#define CORE_BASE_DTYPE_H

#include "base/base.h"
#include "ctrt/tensor.h"

enum dtype_category { DTYPE_BOOLEAN, DTYPE_INTEGRAL, DTYPE_FLOATING };
struct dtype_info {
    const char *name, *torch_name, *safetensors_name;
    uint8_t bytes, dlpack_code;
    enum dtype_category category;
};
enum {
    DTYPE_COUNT = 1                     /* one more than the largest value; the values have no gaps */
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) + 1
#include "ctrt/dtype.def"
#undef DTYPE
};
#define DTYPE_MAX_BYTES 16              /* room for one element of any dtype */
extern const struct dtype_info dtype_table[DTYPE_COUNT];            /* entry 0 is empty */
static inline size_t dtype_bytes(ctrt_dtype dtype) { return dtype_table[dtype].bytes; }
static inline bool dtype_floating(ctrt_dtype dtype) { return dtype_table[dtype].category == DTYPE_FLOATING; }
static inline bool dtype_half(ctrt_dtype dtype) { return dtype == CTRT_F16 || dtype == CTRT_BF16; }
/* Resolves CTRT_DTYPE_DEFAULT to the default floating type; CTRT_ERR_DTYPE if `dtype` is invalid. */
ctrt_status dtype_resolve(ctrt_dtype *out, const char *who, ctrt_dtype dtype);
/* Converts one host element. Floats are truncated to integers without saturation, as a C cast does for values in range
 * (the rule of PyTorch on CPU). */
void dtype_store(void *element, ctrt_dtype dtype, ctrt_scalar value);
ctrt_scalar dtype_load(const void *element, ctrt_dtype dtype);
/* Checks a program's scalar (fill, full): CTRT_ERR_OVERFLOW "who: 300 cannot be converted to i8 without overflow". */
ctrt_status dtype_check_scalar(const char *who, ctrt_dtype dtype, ctrt_scalar value);
/* Returns bool, i64 or the default floating type, depending on the scalar's kind. */
ctrt_dtype dtype_of_scalar(ctrt_scalar value);
/* Round to nearest, ties to even; NaN stays NaN. */
uint16_t f16_of_float(float value);
float float_of_f16(uint16_t half);
uint16_t bf16_of_float(float value);
float float_of_bf16(uint16_t value);

#endif
