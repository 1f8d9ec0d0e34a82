/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/common/fork.h: what a plugin does in the child of a fork. A plugin registers one handler, when it is loaded,
 * which calls all functions of its FORK_CHILD in no particular order. */
#ifndef CTRT_PLUGINS_COMMON_FORK_H
#define CTRT_PLUGINS_COMMON_FORK_H

#include <pthread.h>
#include <stddef.h>

struct fork_child {
    void (*run)(void);
    struct fork_child *next;
};

/* One list in each shared object. */
__attribute__((weak, visibility("hidden"))) struct fork_child *fork_children = NULL;

static inline void fork_run(void)
{
    for (const struct fork_child *entry = fork_children; entry != NULL; entry = entry->next)
        entry->run();
}

/* Calls function() in the child. */
#define FORK_CHILD(function)                                                    \
    __attribute__((constructor)) static void function##_register(void)          \
    {                                                                           \
        static struct fork_child entry = { .run = function };                   \
        if (fork_children == NULL)                                              \
            pthread_atfork(NULL, NULL, fork_run);                               \
        entry.next = fork_children;                                             \
        fork_children = &entry;                                                 \
    }

/* Defines a mutex that is initialised again in the child, where a thread that held it does not exist. The child must
 * tolerate data in the middle of a change. */
#define FORK_MUTEX(name)                                                        \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                    \
    static void name##_init(void)                                               \
    {                                                                           \
        pthread_mutex_init(&name, NULL);                                        \
    }                                                                           \
    FORK_CHILD(name##_init)

#endif
