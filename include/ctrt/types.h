/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/types.h: types that programs and plugins share: status codes, data types, scalars, parameters, statistics,
 * limits.
 *
 * Every other header of ctrt includes this one. It includes only the three standard headers below and the two .def
 * files. */
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

/* The largest number of dimensions of a tensor. */
#define CTRT_MAX_DIMS 8

/* Result of a function that can fail: 0 is success, errors are negative. status.def has the codes with their texts. */
typedef enum ctrt_status {
#define STATUS(name, value, text) CTRT_##name = value,
#include "ctrt/status.def"
#undef STATUS
    CTRT_STATUS_MIN_ = -0x7fffffff      /* makes the enum 32 bits wide; never returned */
} ctrt_status;

/* Evaluates `expr` and returns its status from the enclosing function if it is an error. */
#define CTRT_TRY(expr)                                          \
    do {                                                        \
        ctrt_status ctrt_try_status_ = (expr);                  \
        if (ctrt_try_status_ != CTRT_OK)                        \
            return ctrt_try_status_;                            \
    } while (0)

/* Element types. CTRT_DTYPE_DEFAULT stands for the default floating type (ctrt_default_dtype) or, where a function's
 * comment says so, for the dtype of an input. The values are less than 64. A library of a later version can have more
 * element types than this header: ctrt_dtype_get lists those of the library, and a plugin with a table of its own
 * returns CTRT_ERR_NOT_SUPPORTED for the others. */
typedef enum ctrt_dtype {
    CTRT_DTYPE_DEFAULT = 0,
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) CTRT_##name = value,
#include "ctrt/dtype.def"
#undef DTYPE
    CTRT_DTYPE_MAX_ = 0x7fffffff        /* makes the enum 32 bits wide; never used */
} ctrt_dtype;

/* A number with a category, used as the scalar operand of an op. The category takes part in type promotion: an
 * integer tensor plus ctrt_float(2) is floating, plus ctrt_int(2) it stays integral. */
typedef enum ctrt_scalar_kind { CTRT_SCALAR_BOOL, CTRT_SCALAR_INT, CTRT_SCALAR_FLOAT } ctrt_scalar_kind;
typedef struct ctrt_scalar {
    ctrt_scalar_kind kind;
    int64_t i;          /* value of BOOL (0 or 1) and INT */
    double f;           /* value of FLOAT */
    double imaginary;   /* 0; room for complex numbers */
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

/* Severity of a log line. */
typedef enum ctrt_log_level {
    CTRT_LOG_ERROR = 0, CTRT_LOG_WARNING = 1, CTRT_LOG_INFO = 2, CTRT_LOG_DEBUG = 3
} ctrt_log_level;

/* A declared parameter: a setting that the user can change with the environment variable of that name or with
 * ctrt_param_set. `size` is sizeof(ctrt_param). All strings have static lifetime. */
typedef enum ctrt_param_type {
    CTRT_PARAM_STRING, CTRT_PARAM_INT, CTRT_PARAM_BOOL, CTRT_PARAM_BYTES, CTRT_PARAM_ENUM
} ctrt_param_type;
typedef struct ctrt_param {
    size_t size;
    const char *name;           /* "CTRT_NUM_THREADS" */
    ctrt_param_type type;
    const char *fallback;       /* default value as text; NULL: unset */
    const char *words;          /* ENUM: the allowed words, separated by '|' */
    const char *help;           /* one line of help text */
} ctrt_param;

/* One statistic: current value, peak since the start or the last reset, and totals since the start. */
typedef struct ctrt_stat {
    int64_t current, peak, allocated, freed;
} ctrt_stat;

/* Index of memory statistics that exist for all blocks, those above 1 MiB, and the others. */
enum { CTRT_POOL_ALL, CTRT_POOL_LARGE, CTRT_POOL_SMALL, CTRT_POOLS };

/* How the elements of a tensor are distributed over the members of its device (ctrt/layout.h). */
typedef enum ctrt_layout_kind {
    CTRT_LAYOUT_REPLICATED,             /* every member has all elements */
    CTRT_LAYOUT_SHARDED,                /* each member has a part of one dimension */
    CTRT_LAYOUT_PARTIAL                 /* the elements are the sums of the members' elements */
} ctrt_layout_kind;

typedef struct ctrt_layout {
    ctrt_layout_kind kind;
    int32_t dim;                        /* SHARDED: the dimension */
    int64_t groups;                     /* SHARDED: the dimension consists of this many equal groups, one after the
                                         * other, and each member has a part of every group; 0: 1 */
    int64_t reserved[2];                /* 0 */
} ctrt_layout;

/* Redistributions since the device was opened. */
typedef struct ctrt_layout_counts {
    size_t size;
    uint64_t all_gather;                /* sharded to replicated */
    uint64_t all_reduce;                /* partial to replicated */
    uint64_t reduce_scatter;            /* partial to sharded */
    uint64_t all_to_all;                /* sharded to sharded in another way */
    uint64_t local;                     /* replicated to sharded, without communication */
    uint64_t fallbacks;                 /* ops that ran on replicated operands because no rule fitted their layouts */
} ctrt_layout_counts;

CTRT_END_DECLS

#endif
