/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/message.h: requests to stores and replies, in memory and as bytes.
 *
 * As bytes (in a TCP connection, and in the file of a file store) a message is a struct store_header, the key, the
 * value and the second value, without padding. Integers are little-endian, as in memory (configure refuses other
 * machines). */
#ifndef PARALLEL_STORE_MESSAGE_H
#define PARALLEL_STORE_MESSAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "ctrt/types.h"

#define STORE_KEY_BYTES   256                       /* longest key */
#define STORE_VALUE_BYTES ((size_t)16 << 20)        /* largest value */
#define STORE_DISCONNECT_BYTES 4096                 /* largest value of STORE_AT_DISCONNECT */

enum store_op {
    STORE_SET = 1,                      /* value: the new one */
    STORE_GET,                          /* the reply comes when the key is set */
    STORE_ADD,                          /* value: int64_t, the amount; replies the sum as text */
    STORE_COMPARE_SET,                  /* value: desired; other: expected, with STORE_EXPECTED; replies the result */
    STORE_DELETE,
    STORE_AT_DISCONNECT,                /* value: the one that the key gets when the connection ends */
    STORE_NOT_AT_DISCONNECT,            /* ends STORE_AT_DISCONNECT for the key */
    STORE_CANCEL,                       /* ends the wait of the STORE_GET with this id; no reply */
    STORE_LEAVE,                        /* the connection ends orderly: forget the values of STORE_AT_DISCONNECT */
    STORE_REPLY,                        /* flags: enum store_result; value */
    STORE_OPS
};

enum { STORE_EXPECTED = 1 };            /* flag of STORE_COMPARE_SET: without it the key must not be set */

enum store_result {
    STORE_OK,
    STORE_UNSET,                        /* the key is not set (STORE_DELETE: was not set) */
    STORE_NOT_NUMBER, STORE_OVERFLOW,   /* of STORE_ADD */
    STORE_NO_MEMORY,
    STORE_FULL,                         /* a limit of the store: bytes, keys, or requests that wait */
    STORE_RESULTS
};

struct store_header {
    uint32_t id;                        /* chosen by the client; the reply has the same */
    uint8_t op, flags;
    uint16_t key_bytes;
    uint32_t value_bytes, other_bytes;
};

struct store_message {
    uint32_t id;
    uint8_t op, flags;
    const char *key;                    /* not NUL-terminated */
    size_t key_bytes;
    const void *value, *other;
    size_t value_bytes, other_bytes;
};

enum store_parsed { STORE_PARSED, STORE_INCOMPLETE, STORE_MALFORMED };

/* Reads the message at the start of bytes[available]; the pointers of *out point into `bytes`. *size: the bytes of the
 * message, or 0 if too few are available to say. STORE_MALFORMED as soon as the header is invalid: unknown op, limits
 * exceeded, members that the op does not have. The key contains no NUL byte. */
enum store_parsed store_message_parse(struct store_message *out, size_t *size, const void *bytes, size_t available);
/* Returns the bytes of a message, which must be valid, and writes them to bytes[]; `bytes` NULL: only returns. */
size_t store_message_write(void *bytes, const struct store_message *message);

/* A value, immutable and reference-counted. */
struct store_value {
    _Atomic uint32_t references;
    _Atomic size_t *account;            /* bytes of all values of a map, which this one's are part of; may be NULL */
    size_t bytes;
    unsigned char data[];
};

/* Returns a copy of data[bytes] with one reference, NULL without memory. `data` NULL: not initialised. */
struct store_value *store_value_new(const void *data, size_t bytes, _Atomic size_t *account);
static inline struct store_value *store_value_retain(struct store_value *value)
{
    atomic_fetch_add_explicit(&value->references, 1, memory_order_relaxed);
    return value;
}
void store_value_release(struct store_value *value);        /* NULL: no effect */

#endif
