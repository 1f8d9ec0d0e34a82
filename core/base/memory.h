/* SPDX-License-Identifier: Apache-2.0 */
/* base/memory.h: host memory for the library's own structures.
 *
 * Everything that the core and plugins (host->alloc) allocate passes through here, so that tests can make the
 * n-th allocation fail. Functions return NULL when there is none; callers report with out_of_memory(). */
#ifndef CORE_BASE_MEMORY_H
#define CORE_BASE_MEMORY_H

#include <stdlib.h>

#include "base/thread.h"
#include "ctrt/base.h"

void *memory_alloc(size_t bytes);
void *memory_zeroed(size_t bytes);              /* zeroed */
void *memory_resize(void *pointer, size_t bytes);
char *memory_strdup(const char *text);
void memory_free(void *pointer);

/* Sets the message "out of memory: N bytes for WHAT" and returns CTRT_ERR_OUT_OF_MEMORY. */
ctrt_status out_of_memory(size_t bytes, const char *what);

/* Testing: the n-th allocation from now (1 is the next) fails, and all after it when `forever`; 0: none.
 * Counts allocations of memory_*, free lists and device memory. Returns how many were counted since the last
 * call. */
uint64_t memory_fail_at(uint64_t n, bool forever);
/* True when the allocation that is about to be made has to fail. For allocators below the tensor floor that
 * do not use memory_alloc. */
bool memory_must_fail(void);
extern bool memory_injecting;                   /* hot paths ask this first */

/* Objects of one size per list, kept per thread, at most FREE_LIST_LIMIT. Contents are unspecified. */
#define FREE_LIST_LIMIT 256

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FREE_LISTS_BYPASSED 1                   /* so that the sanitizer sees each object's life */
#else
#define FREE_LISTS_BYPASSED 0
#endif

static inline void *free_list_take(enum free_list_id id, size_t bytes)
{
    struct free_list *list = &thread_state.free[id];
    void *object = list->head;
    if (FREE_LISTS_BYPASSED || __builtin_expect(object == NULL || memory_injecting, 0))
        return memory_alloc(bytes);
    list->head = *(void **)object;
    list->count--;
    return object;
}

void free_list_overflow(void *object);          /* registers the thread or frees; memory.c */

static inline void free_list_put(enum free_list_id id, void *object)
{
    struct free_list *list = &thread_state.free[id];
    if (FREE_LISTS_BYPASSED
        || __builtin_expect(!thread_state.registered || list->count >= FREE_LIST_LIMIT, 0)) {
        free_list_overflow(object);
        return;
    }
    *(void **)object = list->head;
    list->head = object;
    list->count++;
}

#endif
