/* SPDX-License-Identifier: Apache-2.0 */
/* base/dtype.c: data types: properties, names, and host conversion of single elements. */
#include "base/dtype.h"

#include <math.h>
#include <strings.h>

const struct dtype_info dtype_table[DTYPE_COUNT] = {
#define DTYPE(id, value, size, kind, text, dlpack, safetensors, torch)                                          \
    [value] = { .name = text, .torch_name = torch, .safetensors_name = safetensors, .bytes = size,              \
                .dlpack_code = dlpack, .category = DTYPE_##kind },
#include "ctrt/dtype.def"
#undef DTYPE
};
_Static_assert(DTYPE_COUNT <= 64, "CTRT_DTYPE_BIT has 64 bits");
#define DTYPE(id, value, size, kind, text, dlpack, safetensors, torch)                                          \
    _Static_assert((value) < DTYPE_COUNT && (size) <= DTYPE_MAX_BYTES, "dtype.def has a gap or a larger " text);
#include "ctrt/dtype.def"
#undef DTYPE

static bool is_dtype(ctrt_dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT && dtype_table[dtype].name != NULL;
}

const char *ctrt_dtype_name(ctrt_dtype dtype)
{
    return is_dtype(dtype) ? dtype_table[dtype].name : "?";
}

size_t ctrt_dtype_size(ctrt_dtype dtype)
{
    return is_dtype(dtype) ? dtype_table[dtype].bytes : 0;
}

bool ctrt_dtype_is_floating(ctrt_dtype dtype)
{
    return is_dtype(dtype) && dtype_floating(dtype);
}

ctrt_status ctrt_dtype_get(const char **name, ctrt_dtype *value, size_t index)
{
    static const ctrt_dtype all[] = {
#define DTYPE(id, value, size, kind, text, dlpack, safetensors, torch) CTRT_##id,
#include "ctrt/dtype.def"
#undef DTYPE
    };
    if (index >= COUNT_OF(all))
        return fail_from(CTRT_ERR_NOT_FOUND, "dtype_get", "there are %zu data types", COUNT_OF(all));
    if (name != NULL)
        *name = dtype_table[all[index]].name;
    if (value != NULL)
        *value = all[index];
    return CTRT_OK;
}

ctrt_status ctrt_dtype_parse(ctrt_dtype *out, const char *name)
{
    /* PyTorch's short names for some types. */
    static const struct { const char *name; ctrt_dtype dtype; } others[] = {
        { "float", CTRT_F32 }, { "double", CTRT_F64 }, { "half", CTRT_F16 }, { "short", CTRT_I16 }, { "int", CTRT_I32 },
        { "long", CTRT_I64 },
    };
    NULL_CHECK("dtype_parse", out);
    NULL_CHECK("dtype_parse", name);
    const char *word = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    const char *known[2 * DTYPE_COUNT];
    size_t count = 0;
    for (int d = 1; d < DTYPE_COUNT; d++) {
        known[count++] = dtype_table[d].name;
        known[count++] = dtype_table[d].torch_name;
        if (strcmp(word, dtype_table[d].name) == 0 || strcmp(word, dtype_table[d].torch_name) == 0) {
            *out = (ctrt_dtype)d;
            return CTRT_OK;
        }
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        if (strcmp(word, others[i].name) == 0) {
            *out = others[i].dtype;
            return CTRT_OK;
        }
    }
    const char *nearest = nearest_word(word, known, count);
    return fail_from(CTRT_ERR_INVALID_ARGUMENT, "dtype_parse",
                     "unknown dtype \"%.40s\"%s%s%s; known:"
#define DTYPE(id, value, size, kind, text, dlpack, safetensors, torch) " " text
#include "ctrt/dtype.def"
#undef DTYPE
                     , name, nearest ? " (did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?)" : "");
}

/* ---- the default floating type ---- */

static _Atomic int default_dtype = CTRT_F32;

ctrt_dtype ctrt_default_dtype(void)
{
    return (ctrt_dtype)atomic_load_explicit(&default_dtype, memory_order_relaxed);
}

ctrt_status ctrt_set_default_dtype(ctrt_dtype dtype)
{
    if (!ctrt_dtype_is_floating(dtype))
        return fail_from(CTRT_ERR_DTYPE, "set_default_dtype", "%s is not a floating type; use f32, f64, f16 or bf16",
                         ctrt_dtype_name(dtype));
    atomic_store_explicit(&default_dtype, (int)dtype, memory_order_relaxed);
    return CTRT_OK;
}

ctrt_status dtype_resolve(ctrt_dtype *out, const char *who, ctrt_dtype dtype)
{
    if (dtype == CTRT_DTYPE_DEFAULT) {
        *out = ctrt_default_dtype();
        return CTRT_OK;
    }
    if (unlikely(!is_dtype(dtype)))
        return fail_from(CTRT_ERR_DTYPE, who, "%d is not a dtype", (int)dtype);
    *out = dtype;
    return CTRT_OK;
}

/* ---- 16-bit floating types as bit patterns (IEEE 754-2019 binary16; bfloat16 is the upper half of binary32) ---- */

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t f16_of_float(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)                         /* NaN: stays a NaN and becomes quiet */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000)                        /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {                       /* below 2^-14: subnormal, units of 2^-24 */
        if (magnitude < 0x33000000)                     /* below 2^-25 */
            return (uint16_t)sign;
        int shift = 126 - (int)(magnitude >> 23);       /* 14 to 24 bits */
        uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
        uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
        kept += rest > half || (rest == half && (kept & 1));
        return (uint16_t)(sign | kept);
    }
    uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);      /* ties to even */
    return (uint16_t)(sign | rounded >> 13);
}

float float_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t bf16_of_float(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of_bf16(uint16_t value)
{
    return float_of_bits((uint32_t)value << 16);
}

/* ---- conversion of one element ---- */

/* Returns the value converted by a C cast if it fits, otherwise INT64_MIN, which x86-64's conversion instructions
 * return. */
static int64_t truncated(double value)
{
    return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

#define STORE(type, value)                              \
    do {                                                \
        type stored_ = (type)(value);                   \
        memcpy(element, &stored_, sizeof stored_);      \
    } while (0)

void dtype_store(void *element, ctrt_dtype dtype, ctrt_scalar value)
{
    bool floating = value.kind == CTRT_SCALAR_FLOAT;
    double f = floating ? value.f : (double)value.i;
    int64_t i = floating ? truncated(value.f) : value.i;
    switch (dtype) {
    case CTRT_F32: STORE(float, f); break;
    case CTRT_F64: STORE(double, f); break;
    case CTRT_F16: STORE(uint16_t, f16_of_float((float)f)); break;      /* via f32, as in PyTorch */
    case CTRT_BF16: STORE(uint16_t, bf16_of_float((float)f)); break;
    case CTRT_I8: STORE(int8_t, i); break;
    case CTRT_U8: STORE(uint8_t, i); break;
    case CTRT_I16: STORE(int16_t, i); break;
    case CTRT_I32: STORE(int32_t, i); break;
    case CTRT_I64: STORE(int64_t, i); break;
    case CTRT_BOOL: STORE(uint8_t, floating ? value.f != 0 : value.i != 0); break;
    default: break;
    }
}

#define LOAD(type, make)                                \
    do {                                                \
        type loaded_;                                   \
        memcpy(&loaded_, element, sizeof loaded_);      \
        return make(loaded_);                           \
    } while (0)

static ctrt_scalar scalar_of_f16(uint16_t bits) { return ctrt_float((double)float_of_f16(bits)); }
static ctrt_scalar scalar_of_bf16(uint16_t bits) { return ctrt_float((double)float_of_bf16(bits)); }
static ctrt_scalar scalar_of_bool(uint8_t byte) { return ctrt_bool(byte != 0); }

ctrt_scalar dtype_load(const void *element, ctrt_dtype dtype)
{
    switch (dtype) {
    case CTRT_F32: LOAD(float, ctrt_float);
    case CTRT_F64: LOAD(double, ctrt_float);
    case CTRT_F16: LOAD(uint16_t, scalar_of_f16);
    case CTRT_BF16: LOAD(uint16_t, scalar_of_bf16);
    case CTRT_I8: LOAD(int8_t, ctrt_int);
    case CTRT_U8: LOAD(uint8_t, ctrt_int);
    case CTRT_I16: LOAD(int16_t, ctrt_int);
    case CTRT_I32: LOAD(int32_t, ctrt_int);
    case CTRT_I64: LOAD(int64_t, ctrt_int);
    case CTRT_BOOL: LOAD(uint8_t, scalar_of_bool);
    default: return ctrt_int(0);
    }
}

/* ---- range check of scalars ---- */

static const struct dtype_range { double lowest, largest; } ranges[DTYPE_COUNT] = {
    [CTRT_F32] = { -0x1.fffffep127, 0x1.fffffep127 },
    [CTRT_F64] = { -INFINITY, INFINITY },
    [CTRT_F16] = { -65504, 65504 },
    [CTRT_BF16] = { -0x1.fep127, 0x1.fep127 },
    [CTRT_I8] = { -128, 127 },
    [CTRT_U8] = { -255, 255 },                          /* -1 wraps to 255, as in PyTorch */
    [CTRT_I16] = { -32768, 32767 },
    [CTRT_I32] = { -2147483648.0, 2147483647.0 },
};

ctrt_status dtype_check_scalar(const char *who, ctrt_dtype dtype, ctrt_scalar value)
{
    bool floating = value.kind == CTRT_SCALAR_FLOAT, fits = true;
    double f = floating ? value.f : (double)value.i;
    if (unlikely((unsigned)value.kind > CTRT_SCALAR_FLOAT))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who,
                         "a scalar of unknown kind %d; use ctrt_float, ctrt_int or ctrt_bool",
                         (int)value.kind);
    if (dtype == CTRT_BOOL)
        return CTRT_OK;
    if (dtype_floating(dtype))
        fits = isnan(f) || isinf(f) || (f >= ranges[dtype].lowest && f <= ranges[dtype].largest);
    else if (dtype == CTRT_I64)
        fits = !floating || (f >= -0x1p63 && f < 0x1p63);
    else if (dtype == CTRT_U8 && floating)
        fits = f >= 0 && f <= 255;
    else
        fits = f >= ranges[dtype].lowest && f <= ranges[dtype].largest;
    if (likely(fits))
        return CTRT_OK;
    return fail_from(CTRT_ERR_OVERFLOW, who, "%.17g cannot be converted to %s without overflow", f,
                     ctrt_dtype_name(dtype));
}
