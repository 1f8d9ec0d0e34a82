/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/auth.h: how the server and a client of a tcp store begin a connection.
 *
 * The server sends store_hello, the client store_answer, the server store_verdict; then the client sends requests. With
 * a secret (CTRT_STORE_SECRET), answer and verdict contain an HMAC-SHA256 of a word for the sender and both nonces, so
 * that each side proves that it knows the secret. Later data is neither encrypted nor signed. */
#ifndef PARALLEL_STORE_AUTH_H
#define PARALLEL_STORE_AUTH_H

#include "base/sha256.h"

#define STORE_NONCE_BYTES 32

enum store_accepted { STORE_REFUSED, STORE_ACCEPTED };

struct store_hello {
    char magic[8];
    uint8_t secret, reserved[7];        /* secret: 1 if the server has a secret */
    uint8_t nonce[STORE_NONCE_BYTES];
};
struct store_answer {
    char magic[8];
    uint8_t secret, reserved[7];
    uint8_t nonce[STORE_NONCE_BYTES], mac[SHA256_BYTES];
};
struct store_verdict {
    char magic[8];
    uint8_t accepted, reserved[7];      /* enum store_accepted */
    uint8_t mac[SHA256_BYTES];
};

/* Returns the value of CTRT_STORE_SECRET, NULL if it is not set or empty. */
ctrt_status store_secret(const char **secret);

/* The functions of the server. store_hello_write returns false if the system provides no random numbers.
 * store_answer_check checks an answer and writes the verdict. It returns false if the client is refused: after the
 * verdict was sent, or, with *garbage, without one, because it is not a client of a store. */
bool store_hello_write(struct store_hello *hello, const char *secret);
bool store_answer_check(struct store_verdict *verdict, bool *garbage, const struct store_answer *answer,
                        const struct store_hello *hello, const char *secret);

/* The functions of the client: the first checks the hello and writes the answer, the second checks the verdict. They
 * fail with CTRT_ERR_COMM. */
ctrt_status store_hello_check(struct store_answer *answer, const struct store_hello *hello, const char *secret);
ctrt_status store_verdict_check(const struct store_verdict *verdict, const struct store_answer *answer,
                                const struct store_hello *hello, const char *secret);

#endif
