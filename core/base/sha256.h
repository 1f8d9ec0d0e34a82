/* SPDX-License-Identifier: Apache-2.0 */
/* base/sha256.h: SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104). */
#ifndef CORE_BASE_SHA256_H
#define CORE_BASE_SHA256_H

#include "ctrt/types.h"

#define SHA256_BYTES 32

struct sha256 {
    uint32_t state[8];
    uint64_t length;                        /* bytes so far */
    uint8_t block[64];                      /* the first length % 64 bytes are input that is not in `state` yet */
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *data, size_t bytes);
void sha256_end(uint8_t digest[SHA256_BYTES], struct sha256 *hash);

/* HMAC: call hmac_begin, then sha256_add on hmac.inner for the message, then hmac_end. */
struct hmac {
    struct sha256 inner, outer;
};
void hmac_begin(struct hmac *hmac, const void *key, size_t key_bytes);
void hmac_end(uint8_t digest[SHA256_BYTES], struct hmac *hmac);

/* Returns whether the digests are equal, in a time that does not depend on their contents. */
bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES]);

#endif
