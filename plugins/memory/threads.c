/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/threads.c: synchronizes the threads' access to lists and heaps.
 *
 * The hot path takes no lock. A thread sets its busy flag, checks the gate, and clears the flag when it is done, with
 * plain stores and loads. A thread that needs exclusive access (the first call of a second thread, a trim, a query of
 * statistics) closes the gate and makes the kernel execute a memory barrier on all processors that run this process
 * (membarrier(2)). After that, for every other thread, either the closing thread sees the other thread's busy flag and
 * waits, or the other thread sees the closed gate. If the kernel does not support this, each entry executes a full
 * barrier itself. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "caching.h"

#define BARRIER          8                      /* MEMBARRIER_CMD_PRIVATE_EXPEDITED of linux/membarrier.h */
#define BARRIER_REGISTER 16                     /* MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED */

bool threads_fenced;

static struct thread_cache no_cache;
__thread struct thread_cache *current_cache __attribute__((tls_model("initial-exec"))) = &no_cache;
static __thread struct thread_cache *caches_of_thread __attribute__((tls_model("initial-exec")));

/* Guards the links between caches and policies when either is destroyed. Taken before any other lock here. */
static pthread_mutex_t caches_lock = PTHREAD_MUTEX_INITIALIZER;
/* Policies are never freed but reused, so that the fork handlers can walk the list without a lock. */
static _Atomic(struct policy *) policies;

static pthread_key_t thread_key;
static bool thread_key_made;

/* ---- the gate ---- */

static bool membarrier(int command)
{
#ifdef SYS_membarrier
    return syscall(SYS_membarrier, command, 0) == 0;
#else
    (void)command;
    return false;
#endif
}

static void barrier_on_all(void)
{
    if (threads_fenced || membarrier(BARRIER) || (membarrier(BARRIER_REGISTER) && membarrier(BARRIER)))
        return;
    /* membarrier worked when the program started and was forbidden later (for example by seccomp). Sleep instead,
     * because stores of a processor become visible to other processors in far less than a millisecond. */
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    pthread_setcancelstate(cancel, NULL);
}

static void close_gate(struct policy *policy)
{
    bool others = false;
    for (const struct thread_cache *cache = policy->caches; cache != NULL; cache = cache->next_of_policy)
        others |= cache->thread != &current_cache;
    if (!others)
        return;
    atomic_store_explicit(&policy->gate, true, memory_order_seq_cst);
    barrier_on_all();
    for (struct thread_cache *cache = policy->caches; cache != NULL; cache = cache->next_of_policy)
        while (atomic_load_explicit(&cache->busy, memory_order_seq_cst))
            sched_yield();
}

void policy_resume(struct policy *policy)
{
    atomic_store_explicit(&policy->gate, false, memory_order_release);
}

/* ---- lists ---- */

void bin_flush(struct pool_cache *lists, struct bin *bin, uint32_t count)
{
    for (; count > 0 && bin->head != NULL; count--) {
        struct block *block = bin->head;
        bin->head = block->left;
        bin->count--;
        lists->bytes -= block->bytes;
        heap_free(block->heap, block);
    }
}

void pool_cache_flush(struct pool_cache *lists)
{
    if (lists->bytes == 0)
        return;
    for (unsigned i = 0; i < BINS; i++)
        bin_flush(lists, &lists->bins[i], UINT32_MAX);
}

static void cache_flush(struct thread_cache *cache)
{
    for (struct pool_cache *lists = cache->pool_caches; lists != NULL; lists = lists->next)
        pool_cache_flush(lists);
}

struct pool_cache *pool_cache_find(struct thread_cache *cache, const struct pool *pool)
{
    struct pool_cache *lists = cache->pool_caches;
    while (lists != NULL && lists->pool != pool)
        lists = lists->next;
    if (lists != NULL)
        cache->last_used = lists;
    return lists;
}

struct pool_cache *pool_cache_get(struct thread_cache *cache, struct pool *pool)
{
    struct pool_cache *lists = pool_cache_find(cache, pool);
    if (lists != NULL || (lists = host->alloc(sizeof *lists)) == NULL)
        return lists;
    memset(lists, 0, sizeof *lists);
    lists->pool = pool;
    lists->next = cache->pool_caches;
    cache->last_used = cache->pool_caches = lists;
    return lists;
}

/* ---- entering ---- */

struct thread_cache *cache_find(const struct policy *policy)
{
    for (struct thread_cache *cache = caches_of_thread; cache != NULL; cache = cache->next_of_thread)
        if (atomic_load_explicit(&cache->policy, memory_order_relaxed) == policy) {
            current_cache = cache;
            return cache;
        }
    return NULL;
}

/* Returns a cache whose policy was destroyed, or a new one; NULL when out of memory. */
static struct thread_cache *cache_new(void)
{
    struct thread_cache *cache = caches_of_thread;
    while (cache != NULL && atomic_load_explicit(&cache->policy, memory_order_acquire) != NULL)
        cache = cache->next_of_thread;
    if (cache != NULL)
        return cache;
    if (!thread_key_made || pthread_setspecific(thread_key, &current_cache) != 0)
        return NULL;
    cache = host->alloc(sizeof *cache);
    if (cache == NULL)
        return NULL;
    memset(cache, 0, sizeof *cache);
    cache->thread = &current_cache;
    cache->next_of_thread = caches_of_thread;
    caches_of_thread = cache;
    return cache;
}

static struct thread_cache *cache_get(struct policy *policy)
{
    struct thread_cache *cache = cache_find(policy);
    if (cache != NULL || policy->is_clone || (cache = cache_new()) == NULL)
        return cache;
    cache->single_thread = false;
    cache->next_of_policy = policy->caches;
    policy->caches = cache;
    atomic_store_explicit(&cache->policy, policy, memory_order_release);
    current_cache = cache;
    return cache;
}

struct thread_cache *policy_enter(struct policy *policy)
{
    pthread_mutex_lock(&policy->lock);
    struct thread_cache *cache = cache_get(policy);
    if (policy->single_thread != NULL && policy->single_thread != cache) {
        close_gate(policy);
        policy_merge_last_freed(policy);
        policy->single_thread->single_thread = false;
        policy->single_thread = NULL;
        policy_resume(policy);
    }
    policy_merge_last_freed(policy);
    if (cache == NULL) {
        policy->never_single_thread = true;
    } else if (policy->single_thread == NULL && policy->caches == cache && cache->next_of_policy == NULL
               && !policy->never_single_thread) {
        cache_flush(cache);
        cache->single_thread = true;
        policy->single_thread = cache;
    }
    return cache;
}

void policy_pause(struct policy *policy)
{
    close_gate(policy);
    policy_merge_last_freed(policy);
    for (struct thread_cache *cache = policy->caches; cache != NULL; cache = cache->next_of_policy)
        cache_flush(cache);
}

/* ---- destruction of caches ---- */

/* Requires the policy's lock. */
static void cache_unlink(struct policy *policy, struct thread_cache *cache)
{
    cache_flush(cache);
    struct thread_cache **at = &policy->caches;
    while (*at != cache)
        at = &(*at)->next_of_policy;
    *at = cache->next_of_policy;
    if (policy->single_thread == cache) {
        policy_merge_last_freed(policy);
        policy->single_thread = NULL;
    }
    cache->single_thread = false;
    policy_list_free(cache->pool_caches);
    cache->last_used = cache->pool_caches = NULL;
    atomic_store_explicit(&cache->policy, NULL, memory_order_release);
}

static void thread_end(void *ignored)
{
    (void)ignored;
    pthread_mutex_lock(&caches_lock);
    for (struct thread_cache *cache = caches_of_thread, *next; cache != NULL; cache = next) {
        next = cache->next_of_thread;
        struct policy *policy = atomic_load(&cache->policy);
        if (policy != NULL) {
            pthread_mutex_lock(&policy->lock);
            cache_unlink(policy, cache);
            pthread_mutex_unlock(&policy->lock);
        }
        host->free(cache);
    }
    pthread_mutex_unlock(&caches_lock);
    caches_of_thread = NULL;
    current_cache = &no_cache;
}

void policies_detach(struct policy *policy)
{
    pthread_mutex_lock(&caches_lock);
    pthread_mutex_lock(&policy->lock);
    close_gate(policy);
    while (policy->caches != NULL)
        cache_unlink(policy, policy->caches);
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    pthread_mutex_unlock(&caches_lock);
}

void policies_add(struct policy *policy)
{
    policy->next = atomic_load(&policies);
    while (!atomic_compare_exchange_weak(&policies, &policy->next, policy))
        continue;
}

struct policy *policies_reuse(void)
{
    pthread_mutex_lock(&caches_lock);
    struct policy *policy = atomic_load(&policies);
    while (policy != NULL && !atomic_load(&policy->dead))
        policy = policy->next;
    if (policy != NULL)
        atomic_store(&policy->dead, false);
    pthread_mutex_unlock(&caches_lock);
    return policy;
}

/* ---- fork: in the child the policies' locks are free and the data that they guard is consistent ----
 *
 * caches_lock is not taken around a fork, because it is taken before the policies' locks by threads that exit, and
 * because the other data that it guards is used only by the child's single thread. The growth locks are also not taken,
 * because the source may take its own locks while a thread holds one. */

static __thread struct policy *fork_first
    __attribute__((tls_model("initial-exec"))); /* policies created during the fork precede this one in the list */

static void before_fork(void)
{
    fork_first = atomic_load(&policies);
    for (struct policy *policy = fork_first; policy != NULL; policy = policy->next) {
        pthread_mutex_lock(&policy->lock);
        close_gate(policy);
    }
}

static void after_fork_in_parent(void)
{
    for (struct policy *policy = fork_first; policy != NULL; policy = policy->next) {
        policy_resume(policy);
        pthread_mutex_unlock(&policy->lock);
    }
}

/* Only one thread is left: return the blocks in the other threads' lists to the heaps. */
static void after_fork_in_child(void)
{
    for (struct policy *policy = fork_first; policy != NULL; policy = policy->next) {
        for (struct thread_cache *cache = policy->caches, *next; cache != NULL; cache = next) {
            next = cache->next_of_policy;
            if (cache->thread == &current_cache)
                continue;
            cache_unlink(policy, cache);
            host->free(cache);
        }
        pthread_mutex_init(&policy->growth, NULL);
        expand_forked(policy);
        policy_resume(policy);
        pthread_mutex_unlock(&policy->lock);
    }
    pthread_mutex_init(&caches_lock, NULL);
}

ctrt_status threads_init(void)
{
    if (thread_key_made)
        return CTRT_OK;
    threads_fenced = !membarrier(BARRIER_REGISTER);
    thread_key_made = pthread_key_create(&thread_key, thread_end) == 0;
    return register_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
