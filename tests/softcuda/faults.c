/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/faults.c: injected failures. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fault {
    struct fault *next;
    char name[64];                      /* of a function */
    int64_t at;                         /* number of the call */
    int error;
    bool on;
    bool by_test;                       /* added through the control table; else from SOFTCUDA, which cuInit reads
                                         * again */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault *list;
static atomic_int n_faults;

bool fault_add(const char *name, int64_t at, int error, bool on, bool by_test)
{
    struct fault *fault = name != NULL ? malloc(sizeof *fault) : NULL;
    RETURN_IF(fault == NULL, false);
    *fault = (struct fault){ .at = at, .error = error, .on = on, .by_test = by_test };
    snprintf(fault->name, sizeof fault->name, "%s", name);
    LOCKED(&lock);
    fault->next = list;
    list = fault;
    n_faults++;
    return true;
}

void fault_clear(bool by_test)
{
    LOCKED(&lock);
    for (struct fault **link = &list, *fault; (fault = *link) != NULL;) {
        if (fault->by_test && !by_test) {
            link = &fault->next;
            continue;
        }
        *link = fault->next;
        free(fault);
        n_faults--;
    }
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
    RETURN_IF(n_faults == 0, CUDA_SUCCESS);
    LOCKED(&lock);
    for (const struct fault *f = list; f != NULL; f = f->next)
        RETURN_IF(matches(f->name, symbol) && (call == f->at || (f->on && call > f->at)), f->error);
    return CUDA_SUCCESS;
}
