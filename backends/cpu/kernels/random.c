/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/random.c: random numbers by the counter-based generator Philox4x32-10 (Salmon, Moraes, Dror,
 * Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), as specified in ctrt/plugin.h. Therefore any thread can
 * generate any part of a tensor. */
#include <math.h>

#include "convert.h"
#include "elementwise_loop.h"
#include "math_f32.h"

#define BLOCKS 256              /* counter blocks generated at a time: 1024 words */
#define WORDS  (4 * BLOCKS)
#define LANES  16

/* Stores counter block first + b in words[4b .. 4b+3], for b < count (rounded up to a multiple of LANES). */
static void philox(uint32_t *words, uint64_t first, int64_t count, uint64_t seed)
{
    for (int64_t b = 0; b < count; b += LANES) {
        uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int l = 0; l < LANES; l++) {
            uint64_t counter = first + (uint64_t)b + (uint64_t)l;
            c0[l] = (uint32_t)counter, c1[l] = (uint32_t)(counter >> 32), c2[l] = 0, c3[l] = 0;
        }
        for (int round = 0; round < 10; round++) {
            for (int l = 0; l < LANES; l++) {
                uint64_t p0 = (uint64_t)c0[l] * 0xD2511F53u, p1 = (uint64_t)c2[l] * 0xCD9E8D57u;
                uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
                c1[l] = (uint32_t)p1, c3[l] = (uint32_t)p0, c0[l] = n0, c2[l] = n2;
            }
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        for (int l = 0; l < LANES; l++) {
            uint32_t *to = words + 4 * (b + l);
            to[0] = c0[l], to[1] = c1[l], to[2] = c2[l], to[3] = c3[l];
        }
    }
}

/* ---- common loop: passes pieces of 1024 words to `make` ---- */

struct random;

/* The data of a kernel. */
struct random_kernel {
    /* Writes the output elements [begin, begin + n), computed from `words`. */
    void (*make)(const struct random *r, int64_t begin, int64_t n, const uint32_t *words);
    int64_t per_block;          /* elements per counter block: 4, or 2 that use 64 bits each */
    /* For make_floats: computes the elements as f32. `kind`: the storage kind to which they are converted. */
    void (*floats)(const struct random *r, float *x, int64_t n, const uint32_t *words);
    int kind;
    uint64_t one;               /* bernoulli: the bits of 1 */
};

struct random {
    const struct random_kernel *kernel;
    const ctrt_random_attributes *attributes;
    int64_t numel;
    void *out, *mask;
    const void *in;
    double scale;               /* dropout: factor of the elements that are kept */
    uint32_t threshold;         /* bernoulli, dropout: a word's upper 24 bits are less than this with probability p */
};

static void random_part(void *argument, int64_t begin, int64_t end)
{
    const struct random *r = argument;
    uint32_t words[WORDS] __attribute__((aligned(64)));
    int64_t per_block = r->kernel->per_block, elements = BLOCKS * per_block;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t first = piece * elements, n = r->numel - first < elements ? r->numel - first : elements;
        philox(words, r->attributes->offset + (uint64_t)(piece * BLOCKS), (n + per_block - 1) / per_block,
               r->attributes->seed);
        r->kernel->make(r, first, n, words);
    }
}

static ctrt_status random_fill(const ctrt_call *call, struct random *r)
{
    r->kernel = cpu_kernel_data(call);
    r->attributes = call->attributes;
    r->numel = call->outputs[0]->numel;
    r->out = call->outputs[0]->data;
    int64_t elements = BLOCKS * r->kernel->per_block;
    cpu_parallel_for((r->numel + elements - 1) / elements, 8, random_part, r);
    return CTRT_OK;
}

/* Returns the smallest bound such that (word >> 8) 2^-24 < p if and only if (word >> 8) < bound. */
static uint32_t threshold_of(double p)
{
    return p <= 0 ? 0 : p >= 1 ? 1u << 24 : (uint32_t)ceil(p * 0x1p24);
}

/* 53 random bits of two words, as an integer. */
static inline uint64_t bits53(const uint32_t *words)
{
    return ((uint64_t)words[0] << 32 | words[1]) >> 11;
}

/* x[i] = x[i] * scale + shift with two roundings on all instruction sets. Two loops, so that FMA cannot be used. */
static void scale_shift(float *x, int64_t n, float scale, float shift)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * scale;
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] + shift;
}
static void scale_shift_f64(double *x, int64_t n, double scale, double shift)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * scale;
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] + shift;
}

/* ---- uniform ---- */

static void uniform(const struct random *r, float *x, int64_t n, const uint32_t *words)
{
    float lo = (float)r->attributes->a, hi = (float)r->attributes->b;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(words[i] >> 8) * 0x1p-24f;
    const bool standard = lo == 0 && hi == 1;
    const bool half = r->kernel->kind >= CPU_KIND_F16;
    if (standard && !half)
        return;
    if (!standard)
        scale_shift(x, n, hi - lo, lo);
    if (half) {                                     /* rounds to the output type */
        uint16_t rounded[WORDS];
        cpu_narrow(rounded, x, r->kernel->kind, n);
        cpu_widen(x, rounded, r->kernel->kind, n);
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < hi ? x[i] : lo;               /* rounding may have produced hi, which is not in [lo, hi) */
}

static void uniform_f64(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)
{
    double lo = r->attributes->a, hi = r->attributes->b, *x = (double *)r->out + begin;
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)(int64_t)bits53(words + 2 * i) * 0x1p-53;
    if (lo == 0 && hi == 1)
        return;
    scale_shift_f64(x, n, hi - lo, lo);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < hi ? x[i] : lo;
}

/* ---- normal: Box-Muller transform (1958) ---- */

/* Returns the cosine of 2 pi u and stores the sine, for u4 = 4u, the angle in quarter turns. Subtracting the nearest
 * integer is exact and leaves at most half a quarter turn. */
static inline float cos_sin_turns(float u4, float *sine)
{
    float shifted = u4 + MATH_MAGIC, whole = shifted - MATH_MAGIC;
    uint32_t quadrant = cpu_bits(shifted);
    double angle = (double)(u4 - whole) * 1.57079632679489661923;
    float s = (float)math_sin_reduced(angle), c = (float)math_cos_reduced(angle);
    float x = quadrant & 1 ? s : c, y = quadrant & 1 ? c : s;
    *sine = quadrant & 2 ? -y : y;
    return (quadrant + 1) & 2 ? -x : x;
}

static void normal(const struct random *r, float *x, int64_t n, const uint32_t *words)
{
    float radius[WORDS / 2], angle[WORDS / 2];
    int64_t pairs = (n + 1) / 2;
    for (int64_t k = 0; k < pairs; k++) {
        radius[k] = (float)(int32_t)((words[2 * k] >> 8) + 1) * 0x1p-24f;
        angle[k] = (float)(int32_t)(words[2 * k + 1] >> 8) * 0x1p-22f;
    }
    for (int64_t k = 0; k < pairs; k++)
        radius[k] = __builtin_sqrtf(-2.0f * math_log(radius[k]));
    for (int64_t k = 0; k < pairs; k++) { /* x has space for the second element of the last pair */
        float sine, cosine = cos_sin_turns(angle[k], &sine);
        x[2 * k] = radius[k] * cosine;
        x[2 * k + 1] = radius[k] * sine;
    }
    if (r->attributes->a != 0 || r->attributes->b != 1)
        scale_shift(x, n, (float)r->attributes->b, (float)r->attributes->a);
}

static void normal_f64(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)
{
    double *x = (double *)r->out + begin;
    for (int64_t i = 0; i < n; i += 2) {
        double u1 = (double)(bits53(words + 2 * i) + 1) * 0x1p-53, u2 = (double)bits53(words + 2 * i + 2) * 0x1p-53;
        double radius = sqrt(-2 * log(u1)), angle = 2 * M_PI * u2;
        x[i] = radius * cos(angle);
        if (i + 1 < n)
            x[i + 1] = radius * sin(angle);
    }
    scale_shift_f64(x, n, r->attributes->b, r->attributes->a);
}

static void make_floats(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)
{
    float x[WORDS] __attribute__((aligned(64)));
    r->kernel->floats(r, x, n, words);
    if (r->kernel->kind == CPU_KIND_4)
        memcpy((float *)r->out + begin, x, (size_t)n * sizeof(float));
    else
        cpu_narrow((uint16_t *)r->out + begin, x, r->kernel->kind, n);
}

/* uniform and normal. */
static ctrt_status random_run(const ctrt_call *call)
{
    return random_fill(call, &(struct random){ 0 });
}

/* ---- randint: lo plus 64 random bits modulo the range ---- */

#define RANDINT(type, T, AS)                                                                                      \
    static void randint_##type(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)           \
    {                                                                                                             \
        T *to = (T *)r->out + begin;                                                                              \
        uint64_t lo = (uint64_t)r->attributes->lo, range = (uint64_t)r->attributes->hi - lo;                      \
        for (int64_t i = 0; i < n; i++)                                                                           \
            to[i] = AS((int64_t)(lo + ((uint64_t)words[2 * i] << 32 | words[2 * i + 1]) % range));                \
    }
RANDINT(f32, float, (float))
RANDINT(f64, double, (double))
RANDINT(f16, uint16_t, cpu_f16_from_f32)
RANDINT(bf16, uint16_t, cpu_bf16_from_f32)
RANDINT(1, uint8_t, (uint8_t))
RANDINT(2, uint16_t, (uint16_t))
RANDINT(4, uint32_t, (uint32_t))
RANDINT(8, uint64_t, (uint64_t))
RANDINT(bool, uint8_t, 0 !=)

static ctrt_status randint(const ctrt_call *call)
{
    const ctrt_random_attributes *attributes = call->attributes;
    if (attributes->lo >= attributes->hi)
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT, "randint: the range [%lld, %lld) is empty",
                              (long long)attributes->lo, (long long)attributes->hi);
    return random_fill(call, &(struct random){ 0 });
}

/* ---- bernoulli: 1 with probability p, for every dtype ---- */

#define BERNOULLI(bytes, T)                                                                                       \
    static void bernoulli_##bytes(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)        \
    {                                                                                                             \
        T *to = (T *)r->out + begin, one = (T)r->kernel->one;                                                     \
        const uint32_t threshold = r->threshold;                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                           \
            to[i] = (words[i] >> 8) < threshold ? one : 0;                                                        \
    }
BERNOULLI(1, uint8_t)
BERNOULLI(2, uint16_t)
BERNOULLI(4, uint32_t)
BERNOULLI(8, uint64_t)

static ctrt_status bernoulli(const ctrt_call *call)
{
    const ctrt_random_attributes *attributes = call->attributes;
    return random_fill(call, &(struct random){ .threshold = threshold_of(attributes->a) });
}

/* ---- dropout(x) -> y = x * mask / (1 - p), mask ---- */

#define DROPOUT(type, T, COMPUTE, LOAD, STORE)                                                                    \
    static void dropout_##type(const struct random *r, int64_t begin, int64_t n, const uint32_t *words)           \
    {                                                                                                             \
        const T *from = (const T *)r->in + begin;                                                                 \
        T *to = (T *)r->out + begin;                                                                              \
        uint8_t *mask = (uint8_t *)r->mask + begin;                                                               \
        const COMPUTE scale = (COMPUTE)r->scale;                                                                  \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                      \
        {                                                                                                         \
            bool keep = (words[i] >> 8) >= r->threshold;                                                          \
            to[i] = STORE(LOAD(from[i]) * (keep ? scale : 0));                                                    \
            mask[i] = keep;                                                                                       \
        }                                                                                                         \
    }
DROPOUT(f32, float, float, , )
DROPOUT(f64, double, double, , )
DROPOUT(f16, uint16_t, float, cpu_f32_from_f16, cpu_f16_from_f32)
DROPOUT(bf16, uint16_t, float, cpu_f32_from_bf16, cpu_bf16_from_f32)

static ctrt_status dropout(const ctrt_call *call)
{
    const ctrt_random_attributes *attributes = call->attributes;
    const double p = attributes->a;
    return random_fill(call, &(struct random){ .threshold = threshold_of(p), .scale = p < 1 ? 1 / (1 - p) : 0,
                                               .in = call->inputs[0]->data, .mask = call->outputs[1]->data });
}

#define ROW(op, set, function, ...) CPU_ROW_OF(op, set, function, (&(const struct random_kernel){ __VA_ARGS__ }))
#define FLOATS_ROW(op, set, as) ROW(op, set, random_run, .make = make_floats, .per_block = 4, .floats = op, .kind = as)
#define FLOAT_ROWS(op)                                                                                            \
    FLOATS_ROW(op, CPU_F32, CPU_KIND_4), ROW(op, CPU_F64, random_run, .make = op##_f64, .per_block = 2),          \
    FLOATS_ROW(op, CPU_F16, CPU_KIND_F16), FLOATS_ROW(op, CPU_BF16, CPU_KIND_BF16)
#define TYPE_ROW(op, set, type, bytes, block) ROW(op, set, op, .make = op##_##type, .per_block = block)
#define HALF_ROWS(op, block) TYPE_ROW(op, CPU_F16, f16, 2, block), TYPE_ROW(op, CPU_BF16, bf16, 2, block)
#define BERNOULLI_ROW(op, set, type, bytes, bits) ROW(op, set, op, .make = op##_##bytes, .per_block = 4, .one = bits)

static const struct cpu_kernel kernels[] = {
    FLOAT_ROWS(uniform), FLOAT_ROWS(normal),
    CPU_EACH_FLOAT(TYPE_ROW, dropout, 4), HALF_ROWS(dropout, 4),
    CPU_EACH_FLOAT(TYPE_ROW, randint, 2), HALF_ROWS(randint, 2), CPU_EACH_WIDTH(TYPE_ROW, randint, 2),
    TYPE_ROW(randint, CPU_BOOL, bool, 1, 2),
    CPU_EACH_WIDTH(BERNOULLI_ROW, bernoulli, 1), BERNOULLI_ROW(bernoulli, CPU_BOOL, , 1, 1),
    BERNOULLI_ROW(bernoulli, CPU_F32, , 4, 0x3f800000), BERNOULLI_ROW(bernoulli, CPU_F64, , 8, 0x3ff0000000000000),
    BERNOULLI_ROW(bernoulli, CPU_F16, , 2, 0x3c00), BERNOULLI_ROW(bernoulli, CPU_BF16, , 2, 0x3f80),
};

CPU_KERNELS(random, kernels);
