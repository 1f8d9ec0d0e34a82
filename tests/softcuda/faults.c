/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/faults.c: injected failures. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fault {
    struct fault *next;
    char name[64];                      /* of a function, or of a kernel; "": any kernel */
    int64_t at;                         /* number of the call; for kernels: number of launches to skip */
    int error;
    bool on, kernel;
    bool by_test;                       /* added through the control table; else from SOFTCUDA, which cuInit reads
                                         * again */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault *list;
static atomic_int n_faults;

static bool add(const char *name, int64_t at, int error, bool on, bool kernel, bool by_test)
{
    struct fault *fault = calloc(1, sizeof *fault);
    if (fault == NULL)
        return false;
    *fault = (struct fault){ .at = at, .error = error, .on = on, .kernel = kernel, .by_test = by_test };
    snprintf(fault->name, sizeof fault->name, "%s", name == NULL ? "" : name);
    pthread_mutex_lock(&lock);
    fault->next = list;
    list = fault;
    n_faults++;
    pthread_mutex_unlock(&lock);
    return true;
}

bool fault_add(const char *name, int64_t at, int error, bool on, bool by_test)
{
    return name != NULL && add(name, at, error, on, false, by_test);
}

void fault_inject_kernel(const char *kernel, int skip, int error)
{
    add(kernel, skip, error, false, true, true);
}

void fault_clear(bool by_test)
{
    pthread_mutex_lock(&lock);
    for (struct fault **link = &list, *fault; (fault = *link) != NULL;) {
        if (fault->by_test && !by_test) {
            link = &fault->next;
            continue;
        }
        *link = fault->next;
        free(fault);
        n_faults--;
    }
    pthread_mutex_unlock(&lock);
}

/* "cuMemAlloc" also matches cuMemAlloc_v2. */
static bool matches(const char *name, const char *symbol)
{
    const size_t n = strlen(name);
    return strncmp(name, symbol, n) == 0
           && (symbol[n] == '\0' || (strncmp(&symbol[n], "_v", 2) == 0 && symbol[n + 3] == '\0'));
}

result fault_of(const char *symbol, long long call)
{
    if (n_faults == 0)
        return CUDA_SUCCESS;
    result error = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct fault *fault = list; fault != NULL && error == CUDA_SUCCESS; fault = fault->next)
        if (!fault->kernel && matches(fault->name, symbol) && (call == fault->at || (fault->on && call > fault->at)))
            error = fault->error;
    pthread_mutex_unlock(&lock);
    return error;
}

result fault_of_kernel(const char *kernel)
{
    if (n_faults == 0)
        return CUDA_SUCCESS;
    result error = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct fault *fault = list; fault != NULL && error == CUDA_SUCCESS; fault = fault->next)
        if (fault->kernel && (fault->name[0] == '\0' || strcmp(fault->name, kernel) == 0) && fault->at-- == 0)
            error = fault->error;
    pthread_mutex_unlock(&lock);
    return error;
}
