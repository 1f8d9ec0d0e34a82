/* SPDX-License-Identifier: Apache-2.0 */
/* base/hash.h: the FNV-1a hash of bytes (Fowler, Noll, Vo), for hash tables and comparisons that need no security. */
#ifndef CORE_BASE_HASH_H
#define CORE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* `start`: HASH_START, a random number, or the hash of the bytes before. */
static inline uint64_t hash_bytes(uint64_t start, const void *bytes, size_t count)
{
    for (const unsigned char *b = bytes; count > 0; b++, count--)
        start = (start ^ *b) * UINT64_C(0x100000001b3);
    return start;
}

#endif
