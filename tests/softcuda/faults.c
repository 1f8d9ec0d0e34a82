/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/faults.c: injected failures. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wish {
    struct wish *next;
    char name[64];                      /* of a function, or of a kernel; "": any kernel */
    int64_t at;                         /* number of the call; for kernels: number of launches to skip */
    int error;
    bool on, kernel;
    bool by_test;                       /* added through the control table; else from SOFTCUDA, which cuInit reads
                                         * again */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct wish *wishes;
static atomic_int n_wishes;

static bool add(const char *name, int64_t at, int error, bool on, bool kernel, bool by_test)
{
    struct wish *wish = calloc(1, sizeof *wish);
    if (wish == NULL)
        return false;
    snprintf(wish->name, sizeof wish->name, "%s", name == NULL ? "" : name);
    wish->at = at;
    wish->error = error;
    wish->on = on;
    wish->kernel = kernel;
    wish->by_test = by_test;
    pthread_mutex_lock(&lock);
    wish->next = wishes;
    wishes = wish;
    n_wishes++;
    pthread_mutex_unlock(&lock);
    return true;
}

bool fault_add(const char *name, int64_t at, int error, bool on)
{
    return name != NULL && add(name, at, error, on, false, false);
}

void fault_add_kernel(const char *kernel, int skip, int error)
{
    add(kernel, skip, error, false, true, false);
}

bool fault_inject(const char *name, int64_t at, int error, bool on)
{
    return name != NULL && add(name, at, error, on, false, true);
}

void fault_inject_kernel(const char *kernel, int skip, int error)
{
    add(kernel, skip, error, false, true, true);
}

static void clear(bool by_test)
{
    pthread_mutex_lock(&lock);
    for (struct wish **link = &wishes, *wish; (wish = *link) != NULL;) {
        if (wish->by_test && !by_test) {
            link = &wish->next;
            continue;
        }
        *link = wish->next;
        free(wish);
        n_wishes--;
    }
    pthread_mutex_unlock(&lock);
}

void fault_clear(void)
{
    clear(true);
}

void fault_clear_options(void)
{
    clear(false);
}

/* "cuMemAlloc" also matches cuMemAlloc_v2. */
static bool means(const char *name, const char *symbol)
{
    const size_t n = strlen(name);
    return strncmp(name, symbol, n) == 0
           && (symbol[n] == '\0' || (strncmp(&symbol[n], "_v", 2) == 0 && symbol[n + 3] == '\0'));
}

result fault_of(const char *symbol, long long call)
{
    if (n_wishes == 0)
        return CUDA_SUCCESS;
    result error = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct wish *wish = wishes; wish != NULL && error == CUDA_SUCCESS; wish = wish->next)
        if (!wish->kernel && means(wish->name, symbol) && (call == wish->at || (wish->on && call > wish->at)))
            error = wish->error;
    pthread_mutex_unlock(&lock);
    return error;
}

result fault_of_kernel(const char *kernel)
{
    if (n_wishes == 0)
        return CUDA_SUCCESS;
    result error = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct wish *wish = wishes; wish != NULL && error == CUDA_SUCCESS; wish = wish->next)
        if (wish->kernel && (wish->name[0] == '\0' || strcmp(wish->name, kernel) == 0) && wish->at-- == 0)
            error = wish->error;
    pthread_mutex_unlock(&lock);
    return error;
}
