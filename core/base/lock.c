/* SPDX-License-Identifier: Apache-2.0 */
/* base/lock.c: recursive locks that are consistent after fork. */
#include "base/lock.h"

#include <stddef.h>
#include <time.h>

#include "base/base.h"
#include "base/thread.h"

/* Written by constructors while the library is loaded, constant afterwards. */
static struct lock *locks[LOCK_LEVELS];

void lock_enter(struct lock *lock)
{
    pthread_t self = pthread_self();
    const int depth = atomic_load_explicit(&lock->depth, memory_order_acquire);
    /* These reads need no lock: a thread stores its id in `owner` before it increments `depth`, and only the owner
     * changes `depth`, so the calling thread reads its own id only if it holds the lock. */
    if (depth > 0 && pthread_equal(atomic_load_explicit(&lock->owner, memory_order_relaxed), self)) {
        atomic_store_explicit(&lock->depth, depth + 1, memory_order_relaxed);
        return;
    }
    cancel_disable();
    pthread_mutex_lock(&lock->mutex);
    atomic_store_explicit(&lock->owner, self, memory_order_relaxed);
    atomic_store_explicit(&lock->depth, 1, memory_order_release);
}

void lock_leave(struct lock *lock)
{
    const int depth = atomic_load_explicit(&lock->depth, memory_order_relaxed) - 1;
    atomic_store_explicit(&lock->depth, depth, memory_order_relaxed);
    if (depth == 0) {
        pthread_mutex_unlock(&lock->mutex);
        cancel_restore();
    }
}

/* Functions registered with lock_at_fork. An entry is constant once hook_count includes it. */
#define MOST_HOOKS 64
static struct { void (*before)(void), (*in_parent)(void), (*in_child)(void); } hooks[MOST_HOOKS];
static _Atomic int hook_count;

static int hooks_run;           /* number of hooks that the fork in progress runs; protected by all locks together */

static bool (*fork_ready)(void), (*fork_wait)(void);

static bool lock_held(const struct lock *lock)
{
    return atomic_load_explicit(&lock->depth, memory_order_acquire) > 0
           && pthread_equal(atomic_load_explicit(&lock->owner, memory_order_relaxed), pthread_self());
}

/* Like lock_enter. Returns false if another thread holds the lock for a second. */
static bool lock_enter_soon(struct lock *lock)
{
    struct timespec limit;
    if (lock_held(lock)) {
        lock_enter(lock);
        return true;
    }
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    cancel_disable();
    if (pthread_mutex_timedlock(&lock->mutex, &limit) != 0) {
        cancel_restore();
        return false;
    }
    atomic_store_explicit(&lock->owner, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&lock->depth, 1, memory_order_release);
    return true;
}

/* Levels of locks that the fork of the calling thread did not acquire. A plugin's probe may fork, and is called with
 * the lock of the registry. A thread that waits for that lock may hold a lock of a lower level, so neither would go on.
 * Such a thread is about to call a function of another layer, so that its data is consistent in the child. */
static __thread uint32_t missed __attribute__((tls_model("initial-exec")));

static void enter_all(void)
{
    bool holds = false;
    missed = 0;
    for (int level = 0; level < LOCK_LEVELS; level++)
        holds = holds || (locks[level] != NULL && lock_held(locks[level]));
    for (int level = 0; level < LOCK_LEVELS; level++)
        if (locks[level] != NULL && !holds)
            lock_enter(locks[level]);
        else if (locks[level] != NULL && !lock_enter_soon(locks[level]))
            missed |= 1u << level;
}

static void leave_all(void)
{
    for (int level = LOCK_LEVELS - 1; level >= 0; level--)
        if (locks[level] != NULL && !(missed >> level & 1))
            lock_leave(locks[level]);
}

/* In the child, where the threads that held them do not exist. */
static void take_missed(void)
{
    for (int level = 0; level < LOCK_LEVELS; level++)
        if (missed >> level & 1) {
            pthread_mutex_init(&locks[level]->mutex, NULL);
            atomic_store(&locks[level]->depth, 0);
            lock_enter(locks[level]);
        }
    missed = 0;
}

static void before_fork(void)
{
    bool again = true;
    enter_all();
    while (again && fork_ready != NULL && !fork_ready()) {
        leave_all();
        again = fork_wait();
        enter_all();
    }
    hooks_run = atomic_load(&hook_count);
    for (int i = 0; i < hooks_run; i++)
        if (hooks[i].before != NULL)
            hooks[i].before();
}

/* Runs in the parent and in the child. The child can release the locks because its only thread has the same
 * pthread_self() as the thread that forked. */
static void after_fork(bool child)
{
    if (child)
        take_missed();
    for (int i = hooks_run - 1; i >= 0; i--) {
        void (*after)(void) = child ? hooks[i].in_child : hooks[i].in_parent;
        if (after != NULL)
            after();
    }
    leave_all();
}

static void in_parent(void)
{
    after_fork(false);
}

static void in_child(void)
{
    after_fork(true);
}

ctrt_status lock_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&adding);
    const int count = atomic_load(&hook_count);
    if (count < MOST_HOOKS) {
        hooks[count].before = before;
        hooks[count].in_parent = parent;
        hooks[count].in_child = child;
        atomic_store(&hook_count, count + 1);
    } else {
        status = ctrt_fail(CTRT_ERR_STATE, "at_fork: more than %d functions", MOST_HOOKS);
    }
    pthread_mutex_unlock(&adding);
    return status;
}

void lock_fork_when(bool (*ready)(void), bool (*wait)(void))
{
    fork_ready = ready;
    fork_wait = wait;
}

void lock_declare(struct lock *lock, enum lock_level level)
{
    static bool watching;
    locks[level] = lock;
    if (!watching)
        watching = pthread_atfork(before_fork, in_parent, in_child) == 0;
}
