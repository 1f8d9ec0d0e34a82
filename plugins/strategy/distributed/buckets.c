/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/buckets.c: which gradients are reduced together. Does not use ctrt. */
#include "buckets.h"

#include <stdlib.h>

enum { DTYPES = 64 };

struct assignment {
    long *bucket_of;                        /* of each item */
    size_t *smallest, *count;               /* of each bucket: lowest item; number of items */
    size_t *place;                          /* buckets in the order of the result */
    long buckets;
};

/* Numbers the buckets in the order in which they are opened. */
static void assign(struct assignment *a, const struct bucket_item *items, size_t n, const size_t *order, uint64_t first,
                   uint64_t cap, size_t *closed)
{
    struct { long bucket; uint64_t bytes, limit; } open[DTYPES];
    size_t number_closed = 0;
    for (int d = 0; d < DTYPES; d++)
        open[d].bucket = -1, open[d].bytes = 0, open[d].limit = first;
    for (size_t k = 0; k < n; k++) {
        const size_t item = order != NULL ? order[k] : k;
        const int d = items[item].dtype & (DTYPES - 1);
        if (open[d].bucket < 0) {
            open[d].bucket = a->buckets++;
            a->smallest[open[d].bucket] = item;
        }
        const long bucket = open[d].bucket;
        a->bucket_of[item] = bucket;
        a->count[bucket]++;
        if (item < a->smallest[bucket])
            a->smallest[bucket] = item;
        open[d].bytes += items[item].bytes;
        if (open[d].bytes >= open[d].limit) {
            closed[number_closed++] = (size_t)bucket;
            open[d].bucket = -1, open[d].bytes = 0, open[d].limit = cap;
        }
    }
    for (int d = 0; d < DTYPES; d++)
        if (open[d].bucket >= 0)
            closed[number_closed++] = (size_t)open[d].bucket;
}

/* Sorts the buckets by their lowest item, the highest first. */
static void sort_reversed(const struct assignment *a)
{
    for (long i = 1; i < a->buckets; i++)
        for (long k = i; k > 0 && a->smallest[a->place[k]] > a->smallest[a->place[k - 1]]; k--) {
            const size_t swapped = a->place[k];
            a->place[k] = a->place[k - 1];
            a->place[k - 1] = swapped;
        }
}

static void write_out(const struct assignment *a, size_t *items_of, size_t *ends, size_t n, const size_t *order)
{
    size_t *next = a->smallest;             /* not needed any more: where the next item of each bucket goes */
    size_t at = 0;
    for (long b = 0; b < a->buckets; b++) {
        next[a->place[b]] = at;
        at += a->count[a->place[b]];
        ends[b] = at;
    }
    for (size_t k = 0; k < n; k++) {
        const size_t item = order != NULL ? order[k] : k;
        items_of[next[a->bucket_of[item]]++] = item;
    }
}

long buckets_assign(size_t *items_of, size_t *ends, const struct bucket_item *items, size_t n, const size_t *order,
                    uint64_t first, uint64_t cap)
{
    struct assignment a = {
        .bucket_of = calloc(n + 1, sizeof *a.bucket_of), .smallest = calloc(n + 1, sizeof *a.smallest),
        .count = calloc(n + 1, sizeof *a.count), .place = calloc(n + 1, sizeof *a.place),
    };
    const bool memory = a.bucket_of != NULL && a.smallest != NULL && a.count != NULL && a.place != NULL;
    if (memory) {
        assign(&a, items, n, order, first < cap ? first : cap, cap, a.place);
        if (order == NULL)
            sort_reversed(&a);
        write_out(&a, items_of, ends, n, order);
    }
    free(a.bucket_of);
    free(a.smallest);
    free(a.count);
    free(a.place);
    return memory ? a.buckets : -1;
}
