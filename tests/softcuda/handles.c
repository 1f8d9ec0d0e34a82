/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/handles.c: the set of valid handles, so that using a stale handle returns an error instead of
 * crashing. */
#include "driver.h"

#include <stdlib.h>

#define BUCKETS 1024

struct entry {
    struct entry *next;
    const void *handle;
    enum handle kind;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *buckets[BUCKETS];
static uint64_t counts[HANDLE_KINDS];

/* Returns the link to the entry, or the bucket's last link, which is NULL. */
static struct entry **place_of(enum handle kind, const void *handle)
{
    struct entry **place = &buckets[((uintptr_t)handle >> 4) % BUCKETS];
    while (*place != NULL && ((*place)->handle != handle || (*place)->kind != kind))
        place = &(*place)->next;
    return place;
}

bool handle_add(enum handle kind, const void *handle)
{
    struct entry *entry = malloc(sizeof *entry);
    RETURN_IF(entry == NULL, false);
    *entry = (struct entry){ .handle = handle, .kind = kind };
    LOCKED(&lock);
    *place_of(kind, handle) = entry;
    counts[kind]++;
    return true;
}

bool handle_is(enum handle kind, const void *handle)
{
    LOCKED(&lock);
    return *place_of(kind, handle) != NULL;
}

bool handle_remove(enum handle kind, const void *handle)
{
    LOCKED(&lock);
    struct entry **place = place_of(kind, handle), *entry = *place;
    RETURN_IF(entry == NULL, false);
    *place = entry->next;
    counts[kind]--;
    free(entry);
    return true;
}

uint64_t handle_count(enum handle kind)
{
    LOCKED(&lock);
    return counts[kind];
}
