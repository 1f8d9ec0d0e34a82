/* SPDX-License-Identifier: Apache-2.0 */
/* data/random.c: the random numbers of a sample: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, 2011), the generator of the
 * random ops, with a counter of its own for each sample. */
#include <math.h>

#include "base/base.h"
#include "ctrt/data.h"

#define ROUNDS 10

void ctrt_sample_random_start(ctrt_sample_random *random, uint64_t seed, uint64_t epoch, int64_t index)
{
    if (random == NULL)
        return;
    *random = (ctrt_sample_random){ .seed = seed, .index = (uint64_t)index, .epoch = (uint32_t)epoch };
}

static void next_block(ctrt_sample_random *random)
{
    uint32_t c0 = random->block++, c1 = random->epoch, c2 = (uint32_t)random->index, c3 = random->index >> 32;
    uint32_t k0 = (uint32_t)random->seed, k1 = random->seed >> 32;
    for (int round = 0; round < ROUNDS; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t product0 = UINT64_C(0xD2511F53) * c0, product1 = UINT64_C(0xCD9E8D57) * c2;
        const uint32_t high0 = product0 >> 32, high1 = product1 >> 32;
        c0 = high1 ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = high0 ^ c3 ^ k1;
        c3 = (uint32_t)product0;
    }
    random->words[0] = c0, random->words[1] = c1, random->words[2] = c2, random->words[3] = c3;
    random->left = 4;
}

uint32_t ctrt_sample_random_u32(ctrt_sample_random *random)
{
    if (unlikely(random == NULL))
        return 0;
    if (random->left == 0)
        next_block(random);
    return random->words[4 - random->left--];
}

uint64_t ctrt_sample_random_u64(ctrt_sample_random *random)
{
    const uint64_t high = ctrt_sample_random_u32(random);
    return high << 32 | ctrt_sample_random_u32(random);
}

double ctrt_sample_random_uniform(ctrt_sample_random *random)
{
    return (ctrt_sample_random_u32(random) >> 8) * 0x1p-24;
}

double ctrt_sample_random_normal(ctrt_sample_random *random)
{
    const double u1 = ((ctrt_sample_random_u32(random) >> 8) + 1) * 0x1p-24;
    const double u2 = ctrt_sample_random_uniform(random);
    return sqrt(-2 * log(u1)) * cos(2 * 3.14159265358979323846 * u2);
}

/* Lemire's method (2019): the upper half of a 64-bit random number times n. The numbers whose lower half is below
 * 2^64 mod n are rejected, because they would make some results more likely. */
uint64_t ctrt_sample_random_below(ctrt_sample_random *random, uint64_t n)
{
    if (n < 2)
        return 0;
    unsigned __int128 product = (unsigned __int128)ctrt_sample_random_u64(random) * n;
    if (unlikely((uint64_t)product < n)) {
        const uint64_t least = random == NULL ? 0 : -n % n;
        while ((uint64_t)product < least)
            product = (unsigned __int128)ctrt_sample_random_u64(random) * n;
    }
    return (uint64_t)(product >> 64);
}
