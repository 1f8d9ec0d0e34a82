/* SPDX-License-Identifier: Apache-2.0 */
/* base/sha256.c: SHA-256 and HMAC-SHA256, for messages of a few hundred bytes, so without instructions for them. */
#include "base/sha256.h"

#include "base/base.h"

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int bits)
{
    return x >> bits | x << (32 - bits);
}

static inline uint32_t load_word(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void store_word(uint8_t *p, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(word >> (24 - 8 * i));
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = load_word(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[i - 7]
               + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        const uint32_t t = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choose + constants[i]
                           + w[i];
        const uint32_t u = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t;
        s[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void sha256_begin(struct sha256 *hash)
{
    static const uint32_t start[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    memcpy(hash->state, start, sizeof start);
    hash->length = 0;
}

void sha256_add(struct sha256 *hash, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t used = hash->length % 64, n = MIN(bytes, 64 - used);
        memcpy(hash->block + used, from, n);
        hash->length += n;
        from += n;
        bytes -= n;
        if (used + n == 64)
            compress(hash->state, hash->block);
    }
}

void sha256_end(uint8_t digest[SHA256_BYTES], struct sha256 *hash)
{
    static const uint8_t padding[64] = { 0x80 };
    const uint64_t bits = hash->length * 8;
    uint8_t length[8];
    sha256_add(hash, padding, 1 + (119 - hash->length % 64) % 64);
    store_word(length, (uint32_t)(bits >> 32));
    store_word(length + 4, (uint32_t)bits);
    sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 8; i++)
        store_word(digest + 4 * i, hash->state[i]);
}

void hmac_begin(struct hmac *hmac, const void *key, size_t key_bytes)
{
    uint8_t block[64] = { 0 };
    sha256_begin(&hmac->inner);
    sha256_begin(&hmac->outer);
    if (key_bytes > sizeof block) {
        sha256_add(&hmac->inner, key, key_bytes);
        sha256_end(block, &hmac->inner);
        sha256_begin(&hmac->inner);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36;
    sha256_add(&hmac->inner, block, sizeof block);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36 ^ 0x5c;
    sha256_add(&hmac->outer, block, sizeof block);
}

void hmac_end(uint8_t digest[SHA256_BYTES], struct hmac *hmac)
{
    sha256_end(digest, &hmac->inner);
    sha256_add(&hmac->outer, digest, SHA256_BYTES);
    sha256_end(digest, &hmac->outer);
}

bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES])
{
    volatile uint8_t different = 0;
    for (int i = 0; i < SHA256_BYTES; i++)
        different |= a[i] ^ b[i];
    return different == 0;
}
