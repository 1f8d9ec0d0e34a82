/* SPDX-License-Identifier: Apache-2.0 */
/* array.c: arrays of host values, and their upload to and download from the device. Uses only views and byte copies, no
 * other op. */
#include <inttypes.h>
#include <stdio.h>

#include "suite.h"

/* ---- scratch memory ---- */

struct chunk { struct chunk *next; int64_t bytes[]; };
static struct chunk *chunks;

void *scratch(size_t bytes)
{
    struct chunk *chunk = calloc(1, sizeof *chunk + bytes);
    if (chunk == NULL) {
        fprintf(stderr, "conformance: out of memory (%zu bytes)\n", bytes);
        exit(99);
    }
    chunk->next = chunks;
    chunks = chunk;
    return chunk->bytes;
}

void *scratch_mark(void)
{
    return chunks;
}

void scratch_release(void *mark)
{
    while (chunks != mark) {
        struct chunk *next = chunks->next;
        free(chunks);
        chunks = next;
    }
}

void scratch_reset(void)
{
    scratch_release(NULL);
}

/* ---- dtypes ---- */

/* Mantissa bits without the implicit one, smallest normal exponent, largest value. */
static const struct floating { int bits, low; double most; } floatings[CTRT_BOOL + 1] = {
    [CTRT_F32] = { 23, -126, 0x1.fffffep+127 },
    [CTRT_F16] = { 10, -14, 65504 },
    [CTRT_BF16] = { 7, -126, 0x1.fep+127 },
    [CTRT_F64] = { 52, -1022, 0x1.fffffffffffffp+1023 },
};

bool is_floating(ctrt_dtype dtype)
{
    return floatings[dtype].bits != 0;
}

double epsilon_of(ctrt_dtype dtype)
{
    return is_floating(dtype) ? ldexp(1, -floatings[dtype].bits) : 0x1p-23;
}

ctrt_dtype compute_dtype(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
}

/* 2^exponent. ldexp with any exponent takes ten times as long. */
static double power_of_two(int exponent)
{
    const union { uint64_t bits; double value; } power = { .bits = (uint64_t)(exponent + 1023) << 52 };
    return power.value;
}

/* The value as a multiple, not yet rounded, of the dtype's spacing there, which is 2^(*exponent - bits). */
static double in_units(const struct floating *type, double value, int *exponent)
{
    frexp(value, exponent);                             /* value is in [1/2, 1) times 2^*exponent */
    *exponent = *exponent - 1 < type->low ? type->low : *exponent - 1;
    return value * power_of_two(type->bits - *exponent);
}

double round_to(ctrt_dtype dtype, double value)
{
    const struct floating *type = &floatings[dtype];
    if (dtype == CTRT_F64 || !isfinite(value) || value == 0)
        return value;
    if (dtype == CTRT_F32)
        return (float)value;
    int exponent;
    const double units = rint(in_units(type, value, &exponent));
    const double rounded = units * power_of_two(exponent - type->bits);
    return fabs(rounded) > type->most ? copysign(INFINITY, value) : rounded;
}

int64_t wrap_to(ctrt_dtype dtype, int64_t value)
{
    switch (dtype) {
    case CTRT_I8:   return (int8_t)value;
    case CTRT_U8:   return (uint8_t)value;
    case CTRT_I16:  return (int16_t)value;
    case CTRT_I32:  return (int32_t)value;
    case CTRT_BOOL: return value != 0;
    default:        return value;
    }
}

static double half_value(ctrt_dtype dtype, uint16_t bits)
{
    const struct floating *type = &floatings[dtype];
    const int field = (bits & 0x7fff) >> type->bits, most = 0x7fff >> type->bits;
    const int mantissa = bits & ((1 << type->bits) - 1);
    const double unit = power_of_two((field > 0 ? field - 1 : 0) + type->low - type->bits);
    const double value = field == most ? (mantissa ? NAN : INFINITY)
                                       : (mantissa + (field > 0 ? 1 << type->bits : 0)) * unit;
    return bits & 0x8000 ? -value : value;
}

/* The bits of the nearest value. The implicit bit of a normal number adds 1 to the field of its exponent. */
static uint16_t half_bits(ctrt_dtype dtype, double value)
{
    const struct floating *type = &floatings[dtype];
    const int sign = signbit(value) ? 0x8000 : 0;
    value = fabs(round_to(dtype, value));
    if (isnan(value))
        return (uint16_t)(sign | 0x7fff);
    if (isinf(value))
        return (uint16_t)(sign | 0x7fff >> type->bits << type->bits);
    int exponent = type->low;
    const double units = value > 0 ? in_units(type, value, &exponent) : 0;
    return (uint16_t)(sign | ((int)units + ((exponent - type->low) << type->bits)));
}

/* ---- arrays ---- */

void array_make(struct array *a, ctrt_dtype dtype, int ndim, const int64_t *shape)
{
    memset(a, 0, sizeof *a);
    a->dtype = dtype;
    a->ndim = ndim;
    a->numel = 1;
    for (int d = 0; d < ndim; d++) {
        a->shape[d] = shape[d];
        a->numel *= shape[d];
    }
    if (is_floating(dtype))
        a->f = scratch((size_t)a->numel * sizeof *a->f);
    else
        a->i = scratch((size_t)a->numel * sizeof *a->i);
}

void array_make_sum(struct array *a, ctrt_dtype dtype, int ndim, const int64_t *shape)
{
    array_make(a, dtype, ndim, shape);
    a->size = scratch((size_t)a->numel * sizeof *a->size);
}

void value_set(struct array *a, int64_t k, double value)
{
    if (a->f)
        a->f[k] = round_to(a->dtype, value);
    else
        a->i[k] = a->dtype == CTRT_BOOL ? value != 0 : wrap_to(a->dtype, (int64_t)value);
}

void array_to(struct array *out, const struct array *in, ctrt_dtype dtype)
{
    const struct array from = *in;
    array_make(out, dtype, from.ndim, from.shape);
    for (int64_t k = 0; k < from.numel; k++)
        if (out->i && from.i)
            out->i[k] = wrap_to(dtype, from.i[k]);
        else
            value_set(out, k, value_of(&from, k));
}

void element_copy(struct array *a, int64_t to, const struct array *b, int64_t from)
{
    if (a->f)
        a->f[to] = b->f[from];
    else
        a->i[to] = b->i[from];
}

double most_of(const struct array *a)
{
    double most = 0;
    for (int64_t k = 0; k < a->numel; k++)
        most = fmax(most, fabs(a->f[k]));
    return most;
}

void index_of(int64_t *index, int64_t k, int ndim, const int64_t *shape)
{
    for (int d = ndim - 1; d > 0; d--) {
        index[d] = k % shape[d];
        k /= shape[d];
    }
    if (ndim > 0)
        index[0] = k;
}

int64_t offset_in(const struct array *a, const int64_t *index, int n)
{
    int64_t offset = 0;
    for (int d = 0; d < a->ndim; d++)
        offset = offset * a->shape[d] + (a->shape[d] == 1 ? 0 : index[n - a->ndim + d]);
    return offset;
}

/* An element as it is in memory; integers are little-endian. */
union element { float f; double d; uint16_t half; int64_t i; };

/* memcpy, which the compiler does not inline for other than constant sizes. */
static inline void element_move(void *to, const void *from, size_t size)
{
    switch (size) {
    case 1:  memcpy(to, from, 1); break;
    case 2:  memcpy(to, from, 2); break;
    case 4:  memcpy(to, from, 4); break;
    case 8:  memcpy(to, from, 8); break;
    default: memcpy(to, from, size);
    }
}

ctrt_status array_upload(ctrt_tensor **out, const struct array *a, ctrt_device *device)
{
    size_t size = ctrt_dtype_size(a->dtype);
    unsigned char *bytes = scratch((size_t)a->numel * size + 1);
    for (int64_t k = 0; k < a->numel; k++) {
        union element x = { .i = a->i ? a->i[k] : 0 };
        if (a->dtype == CTRT_F32)
            x.f = (float)a->f[k];
        else if (a->dtype == CTRT_F64)
            x.d = a->f[k];
        else if (a->f)
            x.half = half_bits(a->dtype, a->f[k]);
        element_move(bytes + (size_t)k * size, &x, size);
    }
    return ctrt_from_data(out, bytes, a->numel, ctrt_ints_of(a->shape, a->ndim), a->dtype, device);
}

ctrt_status array_download(struct array *out, ctrt_tensor *tensor)
{
    ctrt_dtype dtype = ctrt_tensor_dtype(tensor);
    array_make(out, dtype, ctrt_tensor_ndim(tensor), ctrt_tensor_shape(tensor));
    size_t size = ctrt_dtype_size(dtype), total = (size_t)out->numel * size;
    unsigned char *bytes = scratch(total + 1);
    CTRT_TRY(ctrt_to_host(bytes, total, tensor, dtype));
    for (int64_t k = 0; k < out->numel; k++) {
        union element x = { .i = 0 };
        element_move(&x, bytes + (size_t)k * size, size);
        if (out->f)
            out->f[k] = dtype == CTRT_F32 ? x.f : dtype == CTRT_F64 ? x.d : half_value(dtype, x.half);
        else            /* wrap_to extends the sign; a bool stays as it is, to detect values other than 0 and 1 */
            out->i[k] = dtype == CTRT_BOOL ? x.i : wrap_to(dtype, x.i);
    }
    return CTRT_OK;
}

/* ---- random numbers: splitmix64 (Steele, Lea, Flood 2014) ---- */

uint64_t dice_next(struct dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double dice_unit(struct dice *dice)
{
    return (double)(dice_next(dice) >> 11) * 0x1p-53;
}
