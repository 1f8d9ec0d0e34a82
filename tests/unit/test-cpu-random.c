/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the random numbers of the cpu backend: Philox4x32-10 against its published test vectors, and each distribution
 * against the description in plugin.h, computed here word by word. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_host.h"

/* ---- an independent Philox, from the paper (Salmon et al. 2011) ---- */

static void philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c[4] = { counter[0], counter[1], counter[2], counter[3] }, k[2] = { key[0], key[1] };
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = { (uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a };
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

/* Checks the Philox above against Random123's known answers (kat_vectors, philox4x32 10). */
static void test_known_answers(void)
{
    static const struct { uint32_t counter[4], key[2], want[4]; } cases[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t got[4];
        philox(got, cases[i].counter, cases[i].key);
        REQUIRE_TRUE(memcmp(got, cases[i].want, sizeof got) == 0);
    }
}

static uint32_t word(uint64_t seed, uint64_t block, int which)
{
    uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 }, key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    uint32_t words[4];
    philox(words, counter, key);
    return words[which];
}

/* word32 returns word i of the stream of 32-bit words, word64 returns pair i of the stream of pairs. */
static uint32_t word32(const ctrt_random_attributes *a, int64_t i) { return word(a->seed, a->offset + (uint64_t)i / 4, (int)(i % 4)); }
static uint64_t word64(const ctrt_random_attributes *a, int64_t i)
{
    uint64_t block = a->offset + (uint64_t)i / 2;
    return (uint64_t)word(a->seed, block, (int)(2 * (i % 2))) << 32 | word(a->seed, block, (int)(2 * (i % 2) + 1));
}

static fake_tensor generate(const char *op, ctrt_dtype dtype, int64_t n, const ctrt_random_attributes *attributes)
{
    fake_tensor out = fake_new(dtype, FAKE_CONTIGUOUS, 1, &n);
    ctrt_status status = fake_run(op, dtype, FAKE_VIEWS(&out.view), 1, NULL, 0, attributes);
    REQUIRE(!(status), "%s of %s: %s", op, fake_names[dtype], host_error);
    return out;
}

static const ctrt_random_attributes streams[] = {
    { .size = sizeof streams[0], .seed = 0, .offset = 0, .a = 0, .b = 1 },
    { .size = sizeof streams[0], .seed = 0x123456789abcdef0u, .offset = 0xfffffff0u, .a = -3, .b = 5 },    /* carries into word 1 */
    /* the offset wraps around */
    { .size = sizeof streams[0], .seed = UINT64_MAX, .offset = UINT64_MAX - 3, .a = 2, .b = 0.25 },
};
static const int64_t lengths[] = { 0, 1, 2, 5, 64, 1023, 5000 };

/* The f32 uniforms of seed 0 must be the upper 24 bits of the first known answer. */
static void test_first_words(void)
{
    static const uint32_t want[] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    fake_tensor out = generate("uniform", CTRT_F32, 4, &streams[0]);
    for (int i = 0; i < 4; i++)
        REQUIRE_TRUE(((float *)out.view.data)[i] == (float)(want[i] >> 8) * 0x1p-24f);
    fake_free(&out);
}

static void test_uniform(void)
{
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < 7; k++) {
            float lo = (float)streams[s].a, hi = (float)streams[s].b, scale = hi - lo;
            fake_tensor f32 = generate("uniform", CTRT_F32, lengths[k], &streams[s]);
            fake_tensor f16 = generate("uniform", CTRT_F16, lengths[k], &streams[s]);
            fake_tensor bf16 = generate("uniform", CTRT_BF16, lengths[k], &streams[s]);
            fake_tensor f64 = generate("uniform", CTRT_F64, lengths[k], &streams[s]);
            for (int64_t i = 0; i < lengths[k]; i++) {
                /* rounded before the addition */
                volatile float product = (float)(word32(&streams[s], i) >> 8) * 0x1p-24f * scale;
                float want = product + lo;
                volatile double wide = (double)(word64(&streams[s], i) >> 11) * 0x1p-53 * (streams[s].b - streams[s].a);
                REQUIRE(((float *)f32.view.data)[i] == want, "uniform, element %lld is %.9g, expected %.9g",
                        (long long)i, ((float *)f32.view.data)[i], want);
                float in_f16 = fake_f16_value(fake_f16_bits(want)) < hi ? want : lo;
                float in_bf16 = fake_bf16_value(fake_bf16_bits(want)) < hi ? want : lo;
                REQUIRE_EQ(((uint16_t *)f16.view.data)[i], fake_f16_bits(in_f16));
                REQUIRE_EQ(((uint16_t *)bf16.view.data)[i], fake_bf16_bits(in_bf16));
                REQUIRE_TRUE(((double *)f64.view.data)[i] == wide + streams[s].a);
                REQUIRE_TRUE(want >= lo && want < hi);
            }
            fake_free(&f32), fake_free(&f16), fake_free(&bf16), fake_free(&f64);
        }
}

static void test_normal(void)
{
    for (int s = 0; s < 3; s++)
        for (int k = 0; k < 7; k++) {
            const ctrt_random_attributes *a = &streams[s];
            fake_tensor f32 = generate("normal", CTRT_F32, lengths[k], a), f64 = generate("normal", CTRT_F64, lengths[k], a);
            for (int64_t i = 0; i < lengths[k]; i++) {
                double u1 = ((word32(a, i & ~1) >> 8) + 1) * 0x1p-24, u2 = (word32(a, i | 1) >> 8) * 0x1p-24;
                double r = sqrt(-2 * log(u1)), z = r * (i & 1 ? sin(2 * M_PI * u2) : cos(2 * M_PI * u2)), want = a->a + a->b * z;
                double got = ((float *)f32.view.data)[i];
                REQUIRE(fabs(got - want) <= 4e-7 * (fabs(a->a) + fabs(a->b) * (1 + r)),
                        "normal, element %lld is %.9g, expected %.9g", (long long)i, got, want);
                u1 = (double)((word64(a, i & ~1) >> 11) + 1) * 0x1p-53, u2 = (double)(word64(a, i | 1) >> 11) * 0x1p-53;
                r = sqrt(-2 * log(u1)), z = r * (i & 1 ? sin(2 * M_PI * u2) : cos(2 * M_PI * u2)), want = a->a + a->b * z;
                REQUIRE_TRUE(fabs(((double *)f64.view.data)[i] - want) <= 1e-14 * (fabs(a->a) + fabs(a->b) * (1 + r)));
            }
            fake_free(&f32), fake_free(&f64);
        }
}

/* The mean, variance and fourth moment of a million normals must be near 0, 1 and 3. */
static void test_moments(void)
{
    static const int64_t n = 1000000;
    fake_tensor out = generate("normal", CTRT_F32, n, &streams[0]);
    double sum = 0, square = 0, fourth = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = ((float *)out.view.data)[i];
        sum += x, square += x * x, fourth += x * x * x * x;
    }
    REQUIRE_TRUE(fabs(sum / n) < 0.005 && fabs(square / n - 1) < 0.01 && fabs(fourth / n - 3) < 0.05);
    fake_free(&out);
}

static void test_randint(void)
{
    for (int dtype = 1; dtype < CTRT_BOOL; dtype++)
        for (int s = 0; s < 3; s++) {
            ctrt_random_attributes a = streams[s];
            a.lo = dtype == CTRT_U8 ? 3 : -20, a.hi = 97;
            fake_tensor out = generate("randint", (ctrt_dtype)dtype, 999, &a);
            for (int64_t i = 0; i < 999; i++)
                REQUIRE(!(fake_get(&out.view, i) != (double)(a.lo + (int64_t)(word64(&a,
                        i) % (uint64_t)(a.hi - a.lo)))), "randint of %s, element %lld is %g", fake_names[dtype],
                        (long long)i, fake_get(&out.view, i));
            fake_free(&out);
        }
    ctrt_random_attributes wide = streams[0], empty = streams[0];
    wide.lo = INT64_MIN, wide.hi = INT64_MAX;
    fake_tensor out = generate("randint", CTRT_I64, 9, &wide);
    for (int64_t i = 0; i < 9; i++)
        REQUIRE_TRUE(((int64_t *)out.view.data)[i] == (int64_t)((uint64_t)INT64_MIN + word64(&wide, i) % UINT64_MAX));
    empty.lo = empty.hi = 4;
    REQUIRE_EQ(fake_run("randint", CTRT_I64, FAKE_VIEWS(&out.view), 1, NULL, 0, &empty), CTRT_ERR_INVALID_ARGUMENT);
    fake_free(&out);
}

static void test_bernoulli(void)
{
    static const double ps[] = { 0, 1, 0.5, 0.1, 1e-9 };
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
        for (int k = 0; k < 5; k++) {
            ctrt_random_attributes a = streams[1];
            a.a = ps[k];
            fake_tensor out = generate("bernoulli", (ctrt_dtype)dtype, 3001, &a);
            for (int64_t i = 0; i < 3001; i++)
                REQUIRE_TRUE(fake_get(&out.view, i) == ((word32(&a, i) >> 8) * 0x1p-24 < ps[k]));
            fake_free(&out);
        }
}

static void test_dropout(void)
{
    static const double ps[] = { 0, 1, 0.5, 0.1 };
    static const int64_t n = 4099;
    for (int dtype = CTRT_F32; dtype <= CTRT_BF16; dtype++)
        for (int k = 0; k < 4; k++) {
            ctrt_random_attributes a = streams[1];
            a.a = ps[k];
            fake_tensor x = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 1, &n), y = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 1, &n);
            fake_tensor mask = fake_new(CTRT_BOOL, FAKE_CONTIGUOUS, 1, &n);
            for (int64_t i = 0; i < n; i++)
                fake_put(&x.view, i, fake_uniform(-4, 4));
            REQUIRE_EQ(fake_run("dropout", (ctrt_dtype)dtype, FAKE_VIEWS(&y.view, &mask.view), 2,
                          FAKE_VIEWS(&x.view), 1, &a), 0);
            for (int64_t i = 0; i < n; i++) {
                bool keep = (word32(&a, i) >> 8) * 0x1p-24 >= ps[k];
                double want = keep ? fake_get(&x.view, i) / (1 - ps[k]) : 0, got = fake_get(&y.view, i);
                REQUIRE_TRUE(fake_get(&mask.view, i) == keep);
                REQUIRE_TRUE(fabs(got - want) <= fabs(want) * (dtype == CTRT_BF16 ? 0x1p-7 : dtype == CTRT_F16 ? 0x1p-10 : 0x1p-22));
            }
            fake_free(&x), fake_free(&y), fake_free(&mask);
        }
}

/* Every instruction set and number of threads must give the same f32 uniforms, and normals that differ by at most
 * 5e-6 (3 + |x|). */
static void test_same_everywhere(void)
{
    static const char *const isas[] = { "baseline", "avx2", "avx512" }, *const threads[] = { "1", "2", "3" };
    static const char *const names[] = { "uniform", "normal" };
    static const int64_t n = 100003;
    for (int op = 0; op < 2; op++) {
        fake_tensor first = { .memory = NULL };
        for (int k = 0; k < 3; k++) {
            setenv("CTRT_NUM_THREADS", threads[k], 1);
            fake_load(isas[k]);
            fake_tensor out = generate(names[op], CTRT_F32, n, &streams[1]);
            if (k == 0) {
                first = out;
                continue;
            }
            for (int64_t i = 0; i < n; i++) {
                float a = ((float *)first.view.data)[i], b = ((float *)out.view.data)[i];
                REQUIRE_TRUE(op == 0 ? a == b : fabsf(a - b) <= 1e-6f * (3 + fabsf(a)) * 5);
            }
            fake_free(&out);
        }
        fake_free(&first);
    }
    unsetenv("CTRT_NUM_THREADS");
    fake_load("auto");
}

TEST_MAIN
{
    fake_load(NULL);
    group("the reference Philox gives Random123's known answers");
    test_known_answers();
    group("the first f32 uniforms of seed 0 are the first known answer");
    test_first_words();
    group("uniform equals its description in plugin.h");
    test_uniform();
    group("normal equals its description in plugin.h");
    test_normal();
    group("normals have mean 0, variance 1 and fourth moment 3");
    test_moments();
    group("randint equals its description in plugin.h and rejects an empty range");
    test_randint();
    group("bernoulli equals its description in plugin.h");
    test_bernoulli();
    group("dropout equals its description in plugin.h");
    test_dropout();
    group("every instruction set and number of threads gives the same uniforms and, within rounding, normals");
    test_same_everywhere();
    return done();
}
