/* SPDX-License-Identifier: Apache-2.0 */
/* base/lock.c: recursive locks that survive fork. */
#include "base/lock.h"

#include <stddef.h>

/* Filled while the library is loaded, constant afterwards. */
static struct lock *locks[LOCK_LEVELS];

void lock_enter(struct lock *lock)
{
    pthread_t self = pthread_self();
    /* Only this thread can have written its own name there, and it does so before it raises the depth. */
    if (atomic_load(&lock->depth) > 0 && pthread_equal(atomic_load(&lock->owner), self)) {
        atomic_fetch_add(&lock->depth, 1);
        return;
    }
    pthread_mutex_lock(&lock->mutex);
    atomic_store(&lock->owner, self);
    atomic_store(&lock->depth, 1);
}

void lock_leave(struct lock *lock)
{
    if (atomic_fetch_sub(&lock->depth, 1) == 1)
        pthread_mutex_unlock(&lock->mutex);
}

static void before_fork(void)
{
    for (int level = 0; level < LOCK_LEVELS; level++)
        if (locks[level] != NULL)
            lock_enter(locks[level]);
}

/* In the parent and in the child, whose only thread has the same pthread_self() as the one that forked. */
static void after_fork(void)
{
    for (int level = LOCK_LEVELS - 1; level >= 0; level--)
        if (locks[level] != NULL)
            lock_leave(locks[level]);
}

void lock_declare(struct lock *lock, enum lock_level level)
{
    static bool watching;
    locks[level] = lock;
    if (!watching)
        watching = pthread_atfork(before_fork, after_fork, after_fork) == 0;
}
