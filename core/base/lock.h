/* SPDX-License-Identifier: Apache-2.0 */
/* base/lock.h: recursive mutexes that are consistent after fork.
 *
 * The locks are recursive because plugins are called with locks held (except for init) and call back into the library
 * (host->backend, host->param). fork() acquires all locks, lower levels first (pthread_atfork), so that the child never
 * inherits a data structure in the middle of a change. A thread that holds a lock may acquire only locks of higher
 * levels, and its cancellation is disabled. If it forks, because a plugin's probe asks a child process, locks of other
 * levels that are held for a second longer are not waited for; they are free in the child. */
#ifndef CORE_BASE_LOCK_H
#define CORE_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "ctrt/types.h"

enum lock_level {
    LOCK_DRY_RUN, LOCK_VIEWS, LOCK_DISPATCH, LOCK_DEVICE, LOCK_REGISTRY, LOCK_PARAM, LOCK_LOG, LOCK_INTERN, LOCK_LAYERS,
    LOCK_COUNTERS, LOCK_SCOPE, LOCK_HOOKS, LOCK_AUTOGRAD, LOCK_SEED, LOCK_LEASES, LOCK_IMPORTS,
    LOCK_SEGMENTS, LOCK_TENSORS, LOCK_LEVELS
};

struct lock {
    pthread_mutex_t mutex;
    _Atomic pthread_t owner;        /* meaningful while depth > 0 */
    _Atomic int depth;              /* number of nested lock_enter calls; only the owner writes it */
};

/* Defines a static lock. Each level has at most one lock. */
#define LOCK_DEFINE(name, level)                                                \
    static struct lock name = { PTHREAD_MUTEX_INITIALIZER, 0, 0 };              \
    __attribute__((constructor)) static void name##_declare(void)               \
    {                                                                           \
        lock_declare(&name, level);                                             \
    }                                                                           \
    static struct lock name

/* Defines a static mutex that fork() does not acquire and that is initialised again in the child, for data that is used
 * while locks of plugins are held: plugins' fork handlers run after all other locks have been acquired. The child must
 * tolerate data in the middle of a change. */
#define LOCK_DEFINE_MUTEX(name)                                                 \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                    \
    LOCK_IN_CHILD(name##_init)                                                  \
    {                                                                           \
        pthread_mutex_init(&name, NULL);                                        \
    }                                                                           \
    static pthread_mutex_t name

/* Begins the definition of a static function that runs in the child of each fork: LOCK_IN_CHILD(name) { ... } */
#define LOCK_IN_CHILD(name)                                                     \
    static void name(void);                                                     \
    __attribute__((constructor)) static void name##_declare(void)               \
    {                                                                           \
        (void)lock_at_fork(NULL, NULL, name);                                   \
    }                                                                           \
    static void name(void)

void lock_declare(struct lock *lock, enum lock_level level);

/* Acquires the lock. If the calling thread holds it already, increments its depth. */
void lock_enter(struct lock *lock);
void lock_leave(struct lock *lock);

/* Sets two functions that delay a fork. The handler before fork() acquires all locks and calls `ready`. If `ready`
 * returns false, the handler releases the locks, calls `wait` and acquires the locks again. If `wait` returned true,
 * the handler calls `ready` again; otherwise the fork proceeds. Only one caller may use this function, from a
 * constructor of the library. */
void lock_fork_when(bool (*ready)(void), bool (*wait)(void));

/* Registers functions that run around each fork while all locks are held. `before` runs in order of registration, the
 * other two in reverse order; each may be NULL. The functions of plugins (host->at_fork) are registered later than
 * those of the library. CTRT_ERR_STATE when there are too many. Thread-safe. */
ctrt_status lock_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
