/* SPDX-License-Identifier: Apache-2.0 */
/* base/host_alloc.c: host memory for the library's own structures, injected allocation failures for tests, free
 * lists. */
#include "base/host_alloc.h"

#include <stdatomic.h>
#include <string.h>

bool alloc_fault_active;

static _Atomic uint64_t injection_count;
static uint64_t injection_at;
static bool injection_forever;

uint64_t alloc_fail_at(uint64_t n, bool forever)
{
    injection_at = n;
    injection_forever = forever;
    alloc_fault_active = n != 0;
    return atomic_exchange(&injection_count, 0);
}

bool alloc_fault_due(void)
{
    if (!alloc_fault_active)
        return false;
    uint64_t count = atomic_fetch_add(&injection_count, 1) + 1;
    return count == injection_at || (injection_forever && count > injection_at);
}

void *host_alloc(size_t bytes)
{
    if (__builtin_expect(alloc_fault_active, 0) && alloc_fault_due())
        return NULL;
    return malloc(bytes > 0 ? bytes : 1);
}

void *host_calloc(size_t bytes)
{
    if (__builtin_expect(alloc_fault_active, 0) && alloc_fault_due())
        return NULL;
    return calloc(1, bytes > 0 ? bytes : 1);
}

void *host_realloc(void *pointer, size_t bytes)
{
    if (__builtin_expect(alloc_fault_active, 0) && alloc_fault_due())
        return NULL;
    return realloc(pointer, bytes > 0 ? bytes : 1);
}

char *host_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = host_alloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

void host_free(void *pointer)
{
    free(pointer);
}

ctrt_status out_of_memory(size_t bytes, const char *what)
{
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

/* ---- free lists ---- */

static void free_lists_drop(struct thread_state *state)
{
    for (int id = 0; id < FREE_LISTS; id++) {
        struct free_list *list = &state->free[id];
        while (list->head != NULL) {
            void *object = list->head;
            list->head = *(void **)object;
            free(object);
        }
        list->count = 0;
    }
}

void free_list_overflow(void *object)
{
    /* The first object that a thread frees registers the thread, so that its lists are freed when the thread exits.
     * The object itself is freed here. */
    if (!FREE_LISTS_BYPASSED && !thread_state.registered)
        thread_register();
    free(object);
}

__attribute__((constructor)) static void free_lists_start(void)
{
    thread_on_exit(free_lists_drop);
}
