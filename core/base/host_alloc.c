/* SPDX-License-Identifier: Apache-2.0 */
/* base/host_alloc.c: host memory for the library's own structures, injected allocation failures for tests, free
 * lists. */
#include "base/host_alloc.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"

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

LOCK_DEFINE(tensors_lock, LOCK_TENSORS);

/* In front of each tensor, in the same allocation. The addresses are complemented, so that leak checkers do not follow
 * them and report tensors to which nothing else points. */
struct link {
    _Alignas(16) uintptr_t next;
    uintptr_t previous;
};
static struct link tensors;                 /* guarded by tensors_lock; zeros: empty */

static struct link *link_at(uintptr_t complement)
{
    return complement != 0 ? (struct link *)~complement : &tensors;
}

static uintptr_t complement(const struct link *link)
{
    return link != &tensors ? ~(uintptr_t)link : 0;
}

void *free_list_new(enum free_list_id id, size_t bytes)
{
    if (id != FREE_TENSOR)
        return host_alloc(bytes);
    struct link *link = host_calloc(sizeof *link + bytes);
    if (link == NULL)
        return NULL;
    lock_enter(&tensors_lock);
    link->next = tensors.next;
    link_at(tensors.next)->previous = complement(link);
    tensors.next = complement(link);
    lock_leave(&tensors_lock);
    return link + 1;
}

static void object_free(enum free_list_id id, void *object)
{
    struct link *link = (struct link *)object - 1;
    if (id != FREE_TENSOR) {
        free(object);
        return;
    }
    lock_enter(&tensors_lock);
    link_at(link->next)->previous = link->previous;
    link_at(link->previous)->next = link->next;
    lock_leave(&tensors_lock);
    free(link);
}

void free_list_visit(void (*visit)(void *object, void *argument), void *argument)
{
    lock_enter(&tensors_lock);
    for (struct link *link = link_at(tensors.next); link != &tensors; link = link_at(link->next))
        visit(link + 1, argument);
    lock_leave(&tensors_lock);
}

static void free_lists_drop(struct thread_state *state)
{
    for (int id = 0; id < FREE_LISTS; id++) {
        struct free_list *list = &state->free[id];
        while (list->head != NULL) {
            void *object = list->head;
            list->head = *(void **)object;
            object_free((enum free_list_id)id, object);
        }
        list->count = 0;
    }
}

void free_lists_release(void)
{
    free_lists_drop(&thread_state);
}

void free_list_overflow(enum free_list_id id, void *object)
{
    /* The first object that a thread frees registers the thread, so that its lists are freed when the thread exits.
     * The object itself is freed here. */
    if (!FREE_LISTS_BYPASSED && !thread_state.registered)
        thread_register();
    object_free(id, object);
}

__attribute__((constructor)) static void free_lists_start(void)
{
    thread_on_exit(free_lists_drop);
}
