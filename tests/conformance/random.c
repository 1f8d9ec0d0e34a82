/* SPDX-License-Identifier: Apache-2.0 */
/* random.c: checks random numbers bit for bit against Philox4x32-10 as ctrt/plugin.h specifies it, so that they are
 * equal on every backend. */
#include <inttypes.h>

#include "suite.h"

/* Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011). */
static void philox(uint32_t out[4], uint64_t seed, uint64_t counter)
{
    uint32_t c[4] = { (uint32_t)counter, (uint32_t)(counter >> 32), 0, 0 },
             key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = { (uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b,
                             (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a };
        memcpy(c, next, sizeof c);
        key[0] += 0x9e3779b9u;
        key[1] += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

/* Number 17 of the first stream, scaled or not, rounds to the upper bound in f16 and bf16. The counters of the second
 * and third carry into the upper half and wrap around. */
static const struct stream { uint64_t seed, start; int64_t count; } streams[] = {
    { 0x123456789abcdefu, 1617, 1003 },
    { 0xfedcba9876543210u, 0xfffffff0u, 5000 },
    { UINT64_MAX, UINT64_MAX - 3, 29 },
    { 0, 0, 1 }, { 0, 7, 2 }, { 3, 0, 5 }, { 3, 0, 0 },
};
enum { COUNT = 1003 };
static struct stream now = { 0x123456789abcdefu, 1617, COUNT };     /* what word() and pair() read */

static uint32_t word(int64_t i)
{
    uint32_t block[4];
    philox(block, now.seed, now.start + (uint64_t)i / 4);
    return block[i % 4];
}

/* 64 bits for element i, two to a block. */
static uint64_t pair(int64_t i)
{
    uint32_t block[4];
    philox(block, now.seed, now.start + (uint64_t)i / 2);
    return (uint64_t)block[2 * (i % 2)] << 32 | block[2 * (i % 2) + 1];
}

static float unit(int64_t i) { return (float)(word(i) >> 8) * 0x1p-24f; }
static double wide_unit(int64_t i) { return (double)(pair(i) >> 11) * 0x1p-53; }

/* Box-Muller over the words of element i's pair. */
static double normal(ctrt_dtype dtype, int64_t i)
{
    double u1, u2;
    if (dtype == CTRT_F64) {
        u1 = (double)((pair(i & ~1ll) >> 11) + 1) * 0x1p-53;
        u2 = (double)(pair(i | 1) >> 11) * 0x1p-53;
    } else {
        u1 = (double)((word(i & ~1ll) >> 8) + 1) * 0x1p-24;
        u2 = (double)(word(i | 1) >> 8) * 0x1p-24;
    }
    double r = sqrt(-2 * log(u1)), angle = 2 * M_PI * u2;
    return i % 2 ? r * sin(angle) : r * cos(angle);
}

/* How a device makes random numbers of a distribution with parameters a and b, and what they must be. Normal numbers
 * have a bound because they use a logarithm, a square root and a cosine; scaled uniform numbers, because multiplication
 * and addition may be fused. Others are exact. */
struct source {
    ctrt_status (*make)(ctrt_tensor **out, ctrt_dtype dtype, ctrt_device *device, const struct source *s);
    double (*expect)(ctrt_dtype dtype, int64_t i, const struct source *s);
    double bound;                       /* in units of epsilon; 0: exact */
    uint64_t per_block, per_block_f64;  /* elements for each block of the counter */
    double a, b;
    bool in_place;
};

/* Uniform from a to b. A number that rounds to b is replaced by a. */
static double expect_uniform(ctrt_dtype dtype, int64_t i, const struct source *s)
{
    if (dtype == CTRT_F64)
        return s->a + (s->b - s->a) * wide_unit(i);
    const float x = (float)s->a + (float)(s->b - s->a) * unit(i);
    return round_to(dtype, x) < s->b ? x : s->a;
}

static double expect_normal(ctrt_dtype dtype, int64_t i, const struct source *s)
{
    return s->a + s->b * normal(dtype, i);
}

static double expect_randint(UNUSED ctrt_dtype dtype, int64_t i, const struct source *s)
{
    return s->a + (double)(pair(i) % (uint64_t)(s->b - s->a));
}

static double expect_bernoulli(UNUSED ctrt_dtype dtype, int64_t i, const struct source *s)
{
    return unit(i) < (float)s->a;
}

#define MAKE(name, ...)                                                                                             \
    static ctrt_status make_##name(ctrt_tensor **out, ctrt_dtype dtype, ctrt_device *d, const struct source *s)     \
    {                                                                                                               \
        if (s->in_place)                                                                                            \
            CTRT_TRY(ctrt_zeros(out, CTRT_SHAPE(now.count), dtype, d));                                             \
        return __VA_ARGS__;                                                                                         \
    }
MAKE(uniform, s->in_place ? ctrt_uniform_(*out, s->a, s->b) : ctrt_rand(out, CTRT_SHAPE(now.count), dtype, d))
MAKE(normal, s->in_place ? ctrt_normal_(*out, s->a, s->b) : ctrt_randn(out, CTRT_SHAPE(now.count), dtype, d))
MAKE(randint, ctrt_randint(out, (int64_t)s->a, (int64_t)s->b, CTRT_SHAPE(now.count), dtype, d))
MAKE(bernoulli, ctrt_bernoulli(out, CTRT_SHAPE(now.count), s->a, dtype, d))

static void check_stream(struct run *run)
{
    const struct source *source = run->data;
    const ctrt_dtype dtype = run->dtype;
    CTRT_AUTO(tensor) out = NULL;
    struct array want;
    struct stream then;
    const uint64_t each = dtype == CTRT_F64 ? source->per_block_f64 : source->per_block,
                   used = ((uint64_t)now.count + each - 1) / each;
    if (!check_ok(run, ctrt_generator_set(run->device, now.seed, now.start), "setting the generator")
        || !check_call(run, source->make(&out, dtype, run->device, source), dtype, "the call")
        || !check_ok(run, ctrt_generator_get(run->device, &then.seed, &then.start), "reading the generator"))
        return;
    if (then.seed != now.seed || then.start != now.start + used)
        check_fail(run, "the generator has seed %" PRIx64 ", offset %" PRIu64 "; expected %" PRIx64 ", %" PRIu64,
                   then.seed, then.start, now.seed, now.start + used);
    array_make(&want, dtype, 1, &now.count);
    for (int64_t k = 0; k < now.count; k++)
        if (source->bound > 0)
            want.f[k] = source->expect(dtype, k, source);
        else
            value_set(&want, k, source->expect(dtype, k, source));
    if (source->bound > 0)
        check_tensor_near(run, "numbers", out, &want, source->bound * epsilon_of(compute_dtype(dtype))
                          + (dtype == CTRT_F16 || dtype == CTRT_BF16 ? epsilon_of(dtype) : 0), 1);
    else
        check_tensor(run, "numbers", out, &want, EXACT, dtype);
}

static void check_streams(struct run *run)
{
    for (int s = 0; s < COUNT_OF(streams) && !run->skipped; s++) {
        now = streams[s];
        check_stream(run);
    }
    now = streams[0];
}

/* The first of Random123's known answers (kat_vectors, philox4x32 10). */
static void check_known_answer(struct run *run)
{
    static const uint32_t want[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    uint32_t got[4];
    philox(got, 0, 0);
    if (memcmp(got, want, sizeof got) != 0)
        check_fail(run, "the suite's own Philox begins with %08" PRIx32 ", expected %08" PRIx32, got[0], want[0]);
}

/* Dropout keeps element i if its uniform number is at least p, in the result and in the gradient. */
static void check_dropout_by(struct run *run, double p)
{
    const ctrt_dtype dtype = run->dtype;
    CTRT_AUTO(tensor) x = NULL, y = NULL, grad = NULL, same = NULL;
    struct array in, want;
    array_make(&in, dtype, 1, (int64_t[]){ COUNT });
    array_make(&want, dtype, 1, (int64_t[]){ COUNT });
    for (int64_t e = 0; e < COUNT; e++) {
        in.f[e] = 1;
        want.f[e] = unit(e) >= (float)p ? 1 / (1 - p) : 0;
    }
    if (!upload(run, &x, &in, true)
        || !check_ok(run, ctrt_generator_set(run->device, now.seed, now.start), "setting the generator")
        || !check_call(run, ctrt_dropout(&y, x, p, true), dtype, "the call"))
        return;
    check_tensor(run, "result", y, &want, MATH, compute_dtype(dtype));
    if (check_ok(run, ctrt_ones_like(&same, x, CTRT_DTYPE_DEFAULT, NULL), "ones")
        && check_ok(run, ctrt_grad(&grad, y, &x, 1, same, false, false, false), "backward"))
        check_tensor(run, "gradient", grad, &want, MATH, compute_dtype(dtype));
    if (check_ok(run, ctrt_dropout(&y, x, p, false), "evaluation"))
        check_tensor(run, "evaluation", y, &in, EXACT, dtype);
}

static void check_dropout(struct run *run)
{
    static const double ps[] = { 0.25, 0, 1 };
    for (int k = 0; k < 3 && !run->skipped; k++)
        check_dropout_by(run, ps[k]);
}

static void check_permutation(struct run *run)
{
    CTRT_AUTO(tensor) x = NULL;
    struct array got;
    bool seen[COUNT] = { false };
    int64_t in_place = 0;
    if (!check_ok(run, ctrt_generator_set(run->device, now.seed, now.start), "setting the generator")
        || !check_ok(run, ctrt_randperm(&x, COUNT, run->device), "the call") || !download(run, &got, x))
        return;
    for (int64_t k = 0; k < got.numel; k++) {
        if (got.i[k] < 0 || got.i[k] >= COUNT || seen[got.i[k]])
            check_fail(run, "[%" PRId64 "] is %" PRId64 ", which is out of range or appears twice", k, got.i[k]);
        else
            seen[got.i[k]] = true;
        in_place += got.i[k] == k;
    }
    if (got.dtype != CTRT_I64 || got.numel != COUNT || in_place > COUNT / 10)
        check_fail(run, "got %" PRId64 " %s numbers, %" PRId64 " of them at their own index", got.numel,
                   ctrt_dtype_name(got.dtype), in_place);
}

/* ctrt_manual_seed restarts the generator of every device. */
static void check_seed(struct run *run)
{
    struct stream then;
    if (!check_ok(run, ctrt_generator_set(run->device, now.seed, now.start), "setting the generator"))
        return;
    ctrt_manual_seed(5);
    if (check_ok(run, ctrt_generator_get(run->device, &then.seed, &then.start), "reading the generator")
        && (then.seed != 5 || then.start != 0))
        check_fail(run, "the generator has seed %" PRIx64 ", offset %" PRIu64 "; expected 5, 0", then.seed, then.start);
}

#define STREAM(name, what, dtypes, function, ...)                                                                   \
    { name, "forward", what, dtypes, .run = check_streams,                                                          \
      .data = &(const struct source){ make_##function, expect_##function, __VA_ARGS__ } }
#define PHILOX "stream of Philox"

static const struct check_special specials[] = {
    STREAM("uniform", PHILOX, FLOATS, uniform, 0, 4, 2, 0, 1, false),
    STREAM("uniform_", PHILOX, FLOATS, uniform, 2, 4, 2, -1, 2, true),
    STREAM("normal", PHILOX, FLOATS, normal, 16, 4, 2, 0, 1, false),
    STREAM("normal", "around 2", FLOATS, normal, 16, 4, 2, 2, 0.25, true),
    STREAM("randint", PHILOX, NUMBERS & ~(HALVES | BIT(F64) | BIT(U8)), randint, 0, 2, 2, -50, 100, false),
    STREAM("randint", "wide range", BIT(I64), randint, 0, 2, 2, -0x1p51, 0x1p51 + 12345, false),
    STREAM("bernoulli", PHILOX, ALL & ~BIT(BOOL), bernoulli, 0, 4, 4, 0.25, 0, false),
    STREAM("bernoulli", "never", ALL, bernoulli, 0, 4, 4, 0, 0, false),
    STREAM("bernoulli", "always", ALL, bernoulli, 0, 4, 4, 1, 0, false),
    { "dropout", "forward gradient", PHILOX, FLOATS, .run = check_dropout },
    { "randperm", "forward", "contains every number once, in random order", 0, .run = check_permutation },
    { "manual_seed", "forward", "restarts the generator", 0, .run = check_seed },
    { "philox", "forward", "known answer", 0, .run = check_known_answer },
};

const struct family random_family = { "random", FAMILY_SPECIALS(specials) };
