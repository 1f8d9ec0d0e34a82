/* SPDX-License-Identifier: Apache-2.0 */
/* base/array.c: growing arrays. */
#include "base/array.h"

bool array_enlarge(void *items, size_t *capacity, size_t item_bytes)
{
    const size_t more = *capacity > 0 ? 2 * *capacity : MAX(4, 128 / item_bytes);
    void *old, *larger = NULL;
    memcpy(&old, items, sizeof old);        /* the pointer has the type of the items, which this file does not know */
    if (more <= UINT32_MAX && more <= PTRDIFF_MAX / item_bytes)
        larger = host_realloc(old, more * item_bytes);
    if (larger == NULL)
        return false;
    memcpy(items, &larger, sizeof larger);
    *capacity = more;
    return true;
}
