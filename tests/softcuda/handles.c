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
    if (entry == NULL)
        return false;
    pthread_mutex_lock(&lock);
    struct entry **bucket = &buckets[((uintptr_t)handle >> 4) % BUCKETS];
    *entry = (struct entry){ .next = *bucket, .handle = handle, .kind = kind };
    *bucket = entry;
    counts[kind]++;
    pthread_mutex_unlock(&lock);
    return true;
}

bool handle_is(enum handle kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    const bool is = *place_of(kind, handle) != NULL;
    pthread_mutex_unlock(&lock);
    return is;
}

bool handle_remove(enum handle kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    struct entry **place = place_of(kind, handle), *entry = *place;
    if (entry != NULL) {
        *place = entry->next;
        counts[kind]--;
    }
    pthread_mutex_unlock(&lock);
    free(entry);
    return entry != NULL;
}

uint64_t handle_count(enum handle kind)
{
    pthread_mutex_lock(&lock);
    const uint64_t count = counts[kind];
    pthread_mutex_unlock(&lock);
    return count;
}
