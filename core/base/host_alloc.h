/* SPDX-License-Identifier: Apache-2.0 */
/* base/host_alloc.h: host memory for the library's own structures.
 *
 * The allocations of libctrt and those of plugins with host->alloc use these functions, so that tests can make the n-th
 * allocation fail. Plugins that link libctrt also use malloc, and so do error messages (status.c). The functions return
 * NULL on failure; callers then return out_of_memory(). Thread-safe. */
#ifndef CORE_BASE_HOST_ALLOC_H
#define CORE_BASE_HOST_ALLOC_H

#include <stdlib.h>

#include "base/thread.h"
#include "ctrt/base.h"

void *host_alloc(size_t bytes);
void *host_calloc(size_t bytes);
void *host_realloc(void *pointer, size_t bytes);
char *host_strdup(const char *text);
void host_free(void *pointer);

/* Sets the message "out of memory: N bytes for WHAT" and returns CTRT_ERR_OUT_OF_MEMORY. */
ctrt_status out_of_memory(size_t bytes, const char *what);
/* Returns out_of_memory(bytes, what) from the calling function if `pointer` is NULL. */
#define ALLOC_CHECK(pointer, bytes, what)                   \
    do {                                                    \
        if (__builtin_expect((pointer) == NULL, 0))         \
            return out_of_memory(bytes, what);              \
    } while (0)

/* HOST_AUTO char *text = NULL; declares a pointer whose memory is freed at the end of the block. */
#define HOST_AUTO __attribute__((cleanup(host_leave)))
static inline void host_leave(void *variable)
{
    void *pointer;
    __builtin_memcpy(&pointer, variable, sizeof pointer);
    host_free(pointer);
}

/* For tests: makes the n-th allocation from now fail (1: the next one; 0: none), and all allocations after it if
 * `forever`. Counts the allocations of host_alloc, host_calloc, host_realloc and host_strdup, of free lists and of
 * device memory. Returns how many allocations were counted since the last call. */
uint64_t alloc_fail_at(uint64_t n, bool forever);
/* Counts one allocation and returns true if it must fail. For allocators below the tensor layer that do not use
 * host_alloc. */
bool alloc_fault_due(void);
extern bool alloc_fault_active;                   /* whether alloc_fail_at is active; hot paths check this first */

/* Per-thread free lists. All objects of a list have one size; a list holds at most FREE_LIST_LIMIT objects. The
 * contents of an object that free_list_take returns are unspecified.
 *
 * All tensors (FREE_TENSOR) are also in one list of the process, with those in the free lists: free_list_visit. A
 * tensor enters that list when its memory is allocated and leaves it when the memory is freed, so taking an object from
 * a free list and putting it back do not change it. */
#define FREE_LIST_LIMIT 256

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FREE_LISTS_BYPASSED 1                   /* the sanitizer must see each allocation and each free */
#else
#define FREE_LISTS_BYPASSED 0
#endif

/* Slow path of free_list_take: allocates an object. NULL: out of memory. */
void *free_list_new(enum free_list_id id, size_t bytes);

static inline void *free_list_take(enum free_list_id id, size_t bytes)
{
    struct free_list *list = &thread_state.free[id];
    void *object = list->head;
    if (FREE_LISTS_BYPASSED || __builtin_expect(object == NULL || alloc_fault_active, 0))
        return free_list_new(id, bytes);
    list->head = *(void **)object;
    list->count--;
    return object;
}

/* Slow path of free_list_put: frees `object`. */
void free_list_overflow(enum free_list_id id, void *object);
/* Frees the objects in the calling thread's free lists. */
void free_lists_release(void);
/* Calls `visit` for the memory of every tensor. Objects in free lists, and objects that other threads take or put
 * meanwhile, have unspecified contents; objects that were never taken are zero. `visit` must not allocate or free
 * tensors. Thread-safe. */
void free_list_visit(void (*visit)(void *object, void *argument), void *argument);

static inline void free_list_put(enum free_list_id id, void *object)
{
    struct free_list *list = &thread_state.free[id];
    if (FREE_LISTS_BYPASSED
        || __builtin_expect(!thread_state.registered || list->count >= FREE_LIST_LIMIT, 0)) {
        free_list_overflow(id, object);
        return;
    }
    *(void **)object = list->head;
    list->head = object;
    list->count++;
}

#endif
