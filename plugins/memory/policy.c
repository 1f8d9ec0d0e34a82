/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/policy.c: see source.h. Compiled into each policy. */
#include <string.h>

#include "source.h"

const ctrt_host *host;
pthread_mutex_t policy_lock = PTHREAD_MUTEX_INITIALIZER;

void *policy_alloc(const char *policy, size_t bytes)
{
    void *memory = host->alloc(bytes);
    if (memory != NULL)
        return memset(memory, 0, bytes);
    (void)host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: out of host memory for %zu bytes of its own structures", policy,
                     bytes);
    return NULL;
}

void policy_list_free(void *first)
{
    for (void *next; first != NULL; first = next) {
        memcpy(&next, first, sizeof next);
        host->free(first);
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&policy_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&policy_lock);
}

ctrt_status policy_init(const ctrt_host *given)
{
    static bool forks_known;
    host = given;
    if (!forks_known)
        forks_known = register_fork_handlers(before_fork, after_fork, after_fork) == CTRT_OK;
    return CTRT_OK;
}
