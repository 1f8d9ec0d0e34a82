/* SPDX-License-Identifier: Apache-2.0 */
/* base/lock.h: a mutex that its holder may take again, and that survives fork.
 *
 * Plugins are called with locks held, except for their init, and call back (host->backend, host->param), hence recursive. Around a
 * fork all these locks are taken, lower levels first, so that the child never inherits one in the middle of
 * something. A thread that holds a lock may take locks of higher levels only, and is not cancelled. */
#ifndef CORE_BASE_LOCK_H
#define CORE_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "ctrt/types.h"

enum lock_level { LOCK_PLAN, LOCK_DEVICE, LOCK_REGISTRY, LOCK_PARAM, LOCK_LOG, LOCK_KEEP, LOCK_LAYERS, LOCK_ACCOUNT, LOCK_SCOPE, LOCK_LEVELS };

struct lock {
    pthread_mutex_t mutex;
    _Atomic pthread_t owner;        /* meaningful while depth > 0 */
    _Atomic int depth;              /* written by the owner alone */
};

/* Defines a static lock, the only one of its level. */
#define LOCK_DEFINE(name, level)                                                \
    static struct lock name = { PTHREAD_MUTEX_INITIALIZER, 0, 0 };              \
    __attribute__((constructor)) static void name##_declare(void)               \
    {                                                                           \
        lock_declare(&name, level);                                             \
    }                                                                           \
    static struct lock name

void lock_declare(struct lock *lock, enum lock_level level);

/* Takes the lock; counts when this thread has it already. */
void lock_enter(struct lock *lock);
void lock_leave(struct lock *lock);

/* A fork that has taken all locks calls `ready`. If that returns false, the fork releases the locks, calls `wait` and
 * tries again, unless `wait` returns false. For one caller, while the library is loaded. */
void lock_fork_when(bool (*ready)(void), bool (*wait)(void));

/* host->at_fork. */
ctrt_status lock_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
