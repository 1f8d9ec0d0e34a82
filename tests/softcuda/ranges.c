/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/ranges.c: sorted sets of disjoint address ranges: blocks, reservations, mappings, pinned memory. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

size_t range_behind(const struct ranges *r, address where)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (r->list[middle].begin > where)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct range *range_at(const struct ranges *r, address where)
{
    const size_t i = range_behind(r, where);
    return i > 0 && where - r->list[i - 1].begin < r->list[i - 1].bytes ? &r->list[i - 1] : NULL;
}

bool range_overlaps(const struct ranges *r, address begin, size_t bytes)
{
    const size_t i = range_behind(r, begin + bytes - 1);
    return i > 0 && begin < r->list[i - 1].begin + r->list[i - 1].bytes;
}

static address search(const struct ranges *r, address from, address end, size_t extent, size_t gap)
{
    size_t i = range_behind(r, from);
    if (i > 0 && r->list[i - 1].begin + r->list[i - 1].extent > from)
        from = r->list[i - 1].begin + r->list[i - 1].extent + gap;
    for (; from + extent <= end; i++) {
        if (i == r->n || from + extent <= r->list[i].begin)
            return from;
        from = r->list[i].begin + r->list[i].extent + gap;
    }
    return 0;
}

address range_place(struct ranges *r, address hint, address first, address end, size_t extent, size_t gap)
{
    const address starts[3] = { hint, r->next, first };
    address found = 0;
    for (int i = 0; i < 3 && found == 0; i++)
        if (starts[i] >= first && starts[i] < end)
            found = search(r, starts[i], end, extent, gap);
    if (found != 0)
        r->next = found + extent + gap;
    return found;
}

bool range_add(struct ranges *r, struct range range)
{
    const size_t at = range_behind(r, range.begin);
    if (r->n == r->capacity) {
        struct range *more = realloc(r->list, (r->capacity + 256) * sizeof *more);
        RETURN_IF(more == NULL, false);
        r->list = more;
        r->capacity += 256;
    }
    memmove(&r->list[at + 1], &r->list[at], (r->n - at) * sizeof r->list[0]);
    r->list[at] = range;
    r->n++;
    return true;
}

void range_remove(struct ranges *r, const struct range *range)
{
    const size_t at = (size_t)(range - r->list);
    memmove(&r->list[at], &r->list[at + 1], (--r->n - at) * sizeof r->list[0]);
}
