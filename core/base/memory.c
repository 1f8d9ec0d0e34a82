/* SPDX-License-Identifier: Apache-2.0 */
/* base/memory.c: host memory for the library's own structures, injected allocation failures for tests, free lists. */
#include "base/memory.h"

#include <stdatomic.h>
#include <string.h>

bool memory_injecting;

static _Atomic uint64_t injection_count;
static uint64_t injection_at;
static bool injection_forever;

uint64_t memory_fail_at(uint64_t n, bool forever)
{
    injection_at = n;
    injection_forever = forever;
    memory_injecting = n != 0;
    return atomic_exchange(&injection_count, 0);
}

bool memory_must_fail(void)
{
    if (!memory_injecting)
        return false;
    uint64_t count = atomic_fetch_add(&injection_count, 1) + 1;
    return count == injection_at || (injection_forever && count > injection_at);
}

void *memory_alloc(size_t bytes)
{
    if (__builtin_expect(memory_injecting, 0) && memory_must_fail())
        return NULL;
    return malloc(bytes > 0 ? bytes : 1);
}

void *memory_zeroed(size_t bytes)
{
    if (__builtin_expect(memory_injecting, 0) && memory_must_fail())
        return NULL;
    return calloc(1, bytes > 0 ? bytes : 1);
}

void *memory_resize(void *pointer, size_t bytes)
{
    if (__builtin_expect(memory_injecting, 0) && memory_must_fail())
        return NULL;
    return realloc(pointer, bytes > 0 ? bytes : 1);
}

char *memory_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = memory_alloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

void memory_free(void *pointer)
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
