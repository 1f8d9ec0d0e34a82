/* SPDX-License-Identifier: Apache-2.0 */
/* common.cl: precedes every other source, after the macros that launch.c writes:
 *
 *   T, W, U          the stored type, the type in which it is computed, and W without sign, if it is an integer
 *   LOAD(p, i)       element i of p, as W
 *   STORE(p, i, v)   rounds v and stores it
 *   OT, OSTORE       the same for the result, if its dtype differs
 *   FLOATING         defined for floating dtypes; VARIANT: a number
 *
 * A kernel function runs as one work-item per work-group, which processes a chunk of the elements in a loop. On CPUs
 * that is fastest: pocl runs a group as one call in a thread, and LLVM vectorises the loop. */
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

#define KERNEL kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
#define GROUP ((i64)get_group_id(0))
/* Elements do not depend on each other, also if an op works in place. */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define LANES 16

#define LOAD_plain(p, i)     ((p)[i])
#define STORE_plain(p, i, v) ((p)[i] = (v))

/* f16 and bf16 are computed in f32, so the extension cl_khr_fp16 is not needed. */
static float f16_decode(ushort h)
{
    const uint sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    const float small = (float)mantissa * 0x1p-24f;
    return as_float(sign | (exponent == 0 ? as_uint(small) : exponent == 31 ? 0x7f800000u | mantissa << 13
                            : (exponent + 112) << 23 | mantissa << 13));
}

static ushort f16_encode(float f)
{
    const uint sign = as_uint(f) >> 16 & 0x8000u;
    uint x = as_uint(f) & 0x7fffffffu;
    if (x >= 0x477ff000u)                               /* NaN, infinity, or rounded to infinity */
        return (ushort)(sign | 0x7c00u | (x > 0x7f800000u ? 0x200u : 0));
    if (x < 0x38800000u)                                /* subnormal: the sum rounds to multiples of 2^-24 */
        return (ushort)(sign | (as_uint(as_float(x) + 0.5f) - 0x3f000000u));
    x += 0xfffu + (x >> 13 & 1);
    return (ushort)(sign | (x - 0x38000000u) >> 13);
}

static float bf16_decode(ushort h) { return as_float((uint)h << 16); }

static ushort bf16_encode(float f)
{
    const uint x = as_uint(f);
    return (ushort)(f != f ? (x >> 16 | 0x40u) : (x + 0x7fffu + (x >> 16 & 1)) >> 16);
}

#define LOAD_f16(p, i)       f16_decode((p)[i])
#define STORE_f16(p, i, v)   ((p)[i] = f16_encode((float)(v)))
#define LOAD_bf16(p, i)      bf16_decode((p)[i])
#define STORE_bf16(p, i, v)  ((p)[i] = bf16_encode((float)(v)))

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

/* A parameter of a norm or a loss has the dtype of x, or is wide. */
#ifdef FLOATING
static W parameter(global const void *data, i64 wide, i64 i)
{
    return wide ? (W)((global const float *)data)[i] : (W)LOAD((global const T *)data, i);
}
static void put_parameter(global void *data, i64 wide, i64 i, W value)
{
    if (wide)
        ((global float *)data)[i] = (float)value;
    else
        STORE((global T *)data, i, value);
}
#endif

static i64 least(i64 a, i64 b) { return a < b ? a : b; }

/* Reports the first failure of a queue. The code is the lower half of a member of 8 bytes. */
static void report(global struct failure *failure, int code, i64 value, i64 limit, i64 place, i64 sequence)
{
    if (atomic_cmpxchg((volatile global int *)&failure->code, 0, code) != 0)
        return;
    failure->sequence = sequence;
    failure->value = value;
    failure->limit = limit;
    failure->place = place;
}
