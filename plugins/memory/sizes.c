/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/sizes.c: the size classes of small blocks. */
#include "caching.h"

/* Above 8 KiB four classes a doubling: at most a quarter of a block is wasted, and powers of two are met
 * exactly. */
unsigned bin_slow(size_t bytes)
{
    size_t last = bytes - 1;
    unsigned power = 63 - (unsigned)__builtin_clzll(last);              /* 13 to 19 */
    return 17 + 4 * (power - 13) + (unsigned)(last >> (power - 2) & 3);
}

size_t bin_bytes(unsigned bin)
{
    if (bin == 0)
        return GRANULE;
    if (bin <= 16)
        return bin * GRANULE;
    unsigned power = 13 + (bin - 17) / 4;
    return (size_t)(5 + (bin - 17) % 4) << (power - 2);
}
