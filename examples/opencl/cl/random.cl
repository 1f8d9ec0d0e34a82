/* SPDX-License-Identifier: Apache-2.0 */
/* random.cl: random numbers of Philox4x32-10 (Salmon et al. 2011), and arange. Each number is a function of its index,
 * so all backends give the same numbers. Operations are rounded one by one. */
#pragma OPENCL FP_CONTRACT OFF

/* The four words of a block. */
static uint4 philox(u64 seed, u64 counter)
{
    uint c0 = (uint)counter, c1 = (uint)(counter >> 32), c2 = 0, c3 = 0, k0 = (uint)seed, k1 = (uint)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
        const uint n0 = (uint)(p1 >> 32) ^ c1 ^ k0, n2 = (uint)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint)p1, c3 = (uint)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (uint4)(c0, c1, c2, c3);
}

static float unit(uint word) { return (float)(word >> 8) * 0x1p-24f; }
static u64 pair(uint high, uint low) { return (u64)high << 32 | low; }

/* The pair of words of 64-bit element i. */
static u64 pair_of(const struct random_args *a, i64 i)
{
    const uint4 w = philox(a->seed, a->offset + (u64)(i / 2));
    return i % 2 != 0 ? pair(w.z, w.w) : pair(w.x, w.y);
}

/* The words of eight blocks, computed as vectors. */
static void philox8(uint words[32], u64 seed, u64 counter)
{
    const ulong8 counters = counter + (ulong8)(0, 1, 2, 3, 4, 5, 6, 7);
    uint8 c0 = convert_uint8(counters), c1 = convert_uint8(counters >> 32), c2 = 0, c3 = 0;
    uint k0 = (uint)seed, k1 = (uint)(seed >> 32), columns[32];
    for (int round = 0; round < 10; round++) {
        const ulong8 p0 = convert_ulong8(c0) * 0xD2511F53ul, p1 = convert_ulong8(c2) * 0xCD9E8D57ul;
        const uint8 n0 = convert_uint8(p1 >> 32) ^ c1 ^ k0, n2 = convert_uint8(p0 >> 32) ^ c3 ^ k1;
        c1 = convert_uint8(p1), c3 = convert_uint8(p0), c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    vstore8(c0, 0, columns);
    vstore8(c1, 1, columns);
    vstore8(c2, 2, columns);
    vstore8(c3, 3, columns);
    for (int i = 0; i < 32; i++)
        words[i] = columns[i % 4 * 8 + i / 4];
}

/* Calls F(i, word) for each element of the chunk; chunks are multiples of 4. */
#define EACH_WORD(F)                                                                                                  \
    for (i64 first = begin; first < end; first += 32) {                                                               \
        const i64 stop = least(first + 32, end);                                                                      \
        uint words[32];                                                                                               \
        philox8(words, a.seed, a.offset + (u64)(first / 4));                                                          \
        for (i64 i = first; i < stop; i++)                                                                            \
            F(i, words[i - first])                                                                                    \
    }
#define CHUNK const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.n);

#if defined(FLOATING)
KERNEL uniform_(global T *out, const struct random_args a)
{
    CHUNK
#ifdef IN_f64
    for (i64 i = begin; i < end; i++) {
        const double u = (double)(pair_of(&a, i) >> 11) * 0x1p-53, range = a.b - a.a, x = u * range, y = x + a.a;
        out[i] = y < a.b ? y : a.a;
    }
#else
    const float lo = (float)a.a, hi = (float)a.b, range = hi - lo;
#define UNIFORM(i, word)                                                                                              \
    {                                                                                                                 \
        const float scaled = unit(word) * range, x = scaled + lo;                                                     \
        STORE(out, i, x);                                                                                             \
        if (LOAD(out, i) >= hi)                                                                                       \
            STORE(out, i, lo);                                                                                        \
    }
    EACH_WORD(UNIFORM)
#endif
}

KERNEL normal(global T *out, const struct random_args a)
{
    CHUNK
#ifdef IN_f64
    for (i64 i = begin; i < end; i++) {
        const i64 even = i / 2 * 2;
        const double u1 = (double)((pair_of(&a, even) >> 11) + 1) * 0x1p-53,
                     u2 = (double)(pair_of(&a, even + 1) >> 11) * 0x1p-53, r = sqrt(-2 * log(u1)),
                     x = r * (i % 2 != 0 ? sinpi(2 * u2) : cospi(2 * u2)), scaled = x * a.b;
        out[i] = scaled + a.a;
    }
#else
    for (i64 first = begin; first < end; first += 4) {
        const uint4 w = philox(a.seed, a.offset + (u64)(first / 4));
        const uint words[4] = { w.x, w.y, w.z, w.w };
        for (i64 i = first; i < first + 4 && i < end; i++) {
            const uint w0 = words[(i - first) / 2 * 2], w1 = words[(i - first) / 2 * 2 + 1];
            const float r = sqrt(-2.0f * log((float)((w0 >> 8) + 1) * 0x1p-24f)), u2 = (float)(w1 >> 8) * 0x1p-23f;
            const float x = r * (i % 2 != 0 ? sinpi(u2) : cospi(u2)), scaled = x * (float)a.b;
            STORE(out, i, scaled + (float)a.a);
        }
    }
#endif
}

KERNEL dropout(global const T *x, global T *y, global uchar *mask, const struct random_args a)
{
    const W scale = (W)(1 / (1 - a.a));
    const float p = (float)a.a;
    CHUNK
#define DROP(i, word)                                                                                                 \
    {                                                                                                                 \
        const bool keep = unit(word) >= p;                                                                            \
        mask[i] = keep;                                                                                               \
        STORE(y, i, LOAD(x, i) * (keep ? scale : (W)0));                                                              \
    }
    EACH_WORD(DROP)
}
#endif

KERNEL randint(global T *out, const struct random_args a)
{
    CHUNK
    for (i64 i = begin; i < end; i++) {
        const i64 x = a.lo + (i64)(pair_of(&a, i) % (u64)a.range);
#ifdef IN_bool
        out[i] = x != 0;
#else
        STORE(out, i, x);
#endif
    }
}

KERNEL bernoulli(global T *out, const struct random_args a)
{
    const float p = (float)a.a;
    CHUNK
#define FLIP(i, word) STORE(out, i, unit(word) < p ? 1 : 0);
    EACH_WORD(FLIP)
}

KERNEL arange(global T *out, const struct range_args a)
{
    CHUNK
    for (i64 i = begin; i < end; i++) {
#ifdef FLOATING
        const double product = (double)i * a.stride, x = a.start + product;
        STORE(out, i, (W)x);
#else
        out[i] = (T)((u64)a.first + (u64)i * (u64)a.step);
#endif
    }
}
