/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_TYPES_H
#define CTRT_TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#define CTRT_BEGIN_DECLS extern "C" {
#define CTRT_END_DECLS   }
#else
#define CTRT_BEGIN_DECLS
#define CTRT_END_DECLS
#endif
#if defined(__GNUC__)
#define CTRT_API               __attribute__((visibility("default")))
#define CTRT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define CTRT_API
#define CTRT_PRINTF(fmt, args)
#endif
CTRT_BEGIN_DECLS
#define CTRT_MAX_DIMS 8
typedef enum ctrt_status {
#define STATUS(name, value, text) CTRT_##name = value,
#include "ctrt/status.def"
#undef STATUS
    CTRT_STATUS_MIN_ = -0x7fffffff
} ctrt_status;
#define CTRT_TRY(expr)                                          \
    do {                                                        \
        ctrt_status ctrt_try_status_ = (expr);                  \
        if (ctrt_try_status_ != CTRT_OK)                        \
            return ctrt_try_status_;                            \
    } while (0)
typedef enum ctrt_dtype {
    CTRT_DTYPE_DEFAULT = 0,
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) CTRT_##name = value,
#include "ctrt/dtype.def"
#undef DTYPE
    CTRT_DTYPE_MAX_ = 0x7fffffff
} ctrt_dtype;
typedef enum ctrt_scalar_kind { CTRT_SCALAR_BOOL, CTRT_SCALAR_INT, CTRT_SCALAR_FLOAT } ctrt_scalar_kind;
typedef struct ctrt_scalar {
    ctrt_scalar_kind kind;
    int64_t i;
    double f;
    double imaginary;
} ctrt_scalar;
static inline ctrt_scalar ctrt_float(double value)
{
    ctrt_scalar s;
    s.kind = CTRT_SCALAR_FLOAT, s.i = 0, s.f = value, s.imaginary = 0;
    return s;
}
static inline ctrt_scalar ctrt_int(int64_t value)
{
    ctrt_scalar s;
    s.kind = CTRT_SCALAR_INT, s.i = value, s.f = 0, s.imaginary = 0;
    return s;
}
static inline ctrt_scalar ctrt_bool(bool value)
{
    ctrt_scalar s;
    s.kind = CTRT_SCALAR_BOOL, s.i = value, s.f = 0, s.imaginary = 0;
    return s;
}
typedef enum ctrt_log_level {
    CTRT_LOG_ERROR = 0, CTRT_LOG_WARNING = 1, CTRT_LOG_INFO = 2, CTRT_LOG_DEBUG = 3
} ctrt_log_level;
typedef enum ctrt_param_type {
    CTRT_PARAM_STRING, CTRT_PARAM_INT, CTRT_PARAM_BOOL, CTRT_PARAM_BYTES, CTRT_PARAM_ENUM
} ctrt_param_type;
typedef struct ctrt_param {
    size_t size;
    const char *name;
    ctrt_param_type type;
    const char *fallback;
    const char *words;
    const char *help;
} ctrt_param;
typedef struct ctrt_stat {
    int64_t current, peak, allocated, freed;
} ctrt_stat;
enum { CTRT_POOL_ALL, CTRT_POOL_LARGE, CTRT_POOL_SMALL, CTRT_POOLS };
typedef enum ctrt_layout_kind {
    CTRT_LAYOUT_REPLICATED,
    CTRT_LAYOUT_SHARDED,
    CTRT_LAYOUT_PARTIAL
} ctrt_layout_kind;
typedef struct ctrt_layout {
    ctrt_layout_kind kind;
    int32_t dim;
    int64_t groups;
    int64_t reserved[2];
} ctrt_layout;
typedef struct ctrt_layout_counts {
    size_t size;
    uint64_t all_gather;
    uint64_t all_reduce;
    uint64_t reduce_scatter;
    uint64_t all_to_all;
    uint64_t local;
    uint64_t fallbacks;
} ctrt_layout_counts;
CTRT_END_DECLS
#endif
