/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/local.c: stores in this process, for ranks that are threads. Stores of one name share a map, which is
 * freed with the last of them. */
#include <pthread.h>

#include "base/host_alloc.h"
#include "base/lock.h"
#include "parallel/store/store.h"
#include "parallel/store/map.h"

struct shared_map {
    struct shared_map *next;
    int references;                     /* guarded by maps_lock */
    pthread_mutex_t lock;               /* guards `map` */
    pthread_cond_t changed;
    struct store_map map;
    char name[];
};

struct local_store {
    ctrt_store base;
    struct shared_map *shared;
};

LOCK_DEFINE_MUTEX(maps_lock);
static struct shared_map *maps;

/* The child of a fork starts without stores, because its copies may be in the middle of a change. */
LOCK_IN_CHILD(maps_forget)
{
    maps = NULL;
}

static struct shared_map *local_store_find_or_add(const char *name)
{
    struct shared_map *shared = maps;
    while (shared != NULL && strcmp(shared->name, name) != 0)
        shared = shared->next;
    if (shared == NULL) {
        const size_t bytes = strlen(name) + 1;
        shared = host_calloc(sizeof *shared + bytes);
        if (shared == NULL)
            return NULL;
        memcpy(shared->name, name, bytes);
        pthread_mutex_init(&shared->lock, NULL);
        store_cond_init(&shared->changed);
        store_map_init(&shared->map);
        shared->next = maps;
        maps = shared;
    }
    shared->references++;
    return shared;
}

static void local_store_drop(struct shared_map *shared)
{
    pthread_mutex_lock(&maps_lock);
    const bool last = --shared->references == 0;
    if (last) {
        struct shared_map **place = &maps;
        while (*place != shared)
            place = &(*place)->next;
        *place = shared->next;
    }
    pthread_mutex_unlock(&maps_lock);
    if (!last)
        return;
    store_map_clear(&shared->map);
    pthread_mutex_destroy(&shared->lock);
    pthread_cond_destroy(&shared->changed);
    host_free(shared);
}

static ctrt_status local_open(ctrt_store *base, const char *rest, int64_t deadline)
{
    struct local_store *store = (struct local_store *)base;
    (void)deadline;
    pthread_mutex_lock(&maps_lock);
    store->shared = local_store_find_or_add(rest);
    pthread_mutex_unlock(&maps_lock);
    return store->shared != NULL ? CTRT_OK : out_of_memory(sizeof *store->shared, "a store");
}

static ctrt_status local_request(enum store_result *result, struct store_value **value, ctrt_store *store,
                                 const struct store_message *message, int64_t deadline, int64_t patience)
{
    (void)patience;
    struct shared_map *shared = ((struct local_store *)store)->shared;
    const struct timespec limit = store_timespec(deadline);
    bool changed;
    pthread_mutex_lock(&shared->lock);
    for (;;) {
        *result = store_map_execute(value, &changed, &shared->map, message);
        if (message->op != STORE_GET || *result != STORE_UNSET
            || pthread_cond_timedwait(&shared->changed, &shared->lock, &limit) != 0)
            break;
    }
    if (changed)
        pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
    return CTRT_OK;
}

static void local_close(ctrt_store *store)
{
    local_store_drop(((struct local_store *)store)->shared);
}

const struct store_kind store_local_kind = {
    .scheme = "local", .bytes = sizeof(struct local_store), .open = local_open, .request = local_request,
    .close = local_close,
};
