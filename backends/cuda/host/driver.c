/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/driver.c: loads the CUDA driver at run time. */
#include "discovery.h"
#include "plugins/common/fork.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WANTED 12000                        /* API version 12.0, supported by driver 525 and later */

struct cuda_driver cuda_driver;
int cuda_driver_version;

pid_t cuda_driver_process;

FORK_MUTEX(lock)

/* Results of loading and of initialising the driver. */
static struct step {
    bool done;
    ctrt_status status;
    char words[512];
} loaded, opened;

static const struct driver_entry {
    const char *symbol;
    bool needed;
    size_t place;
} entries[] = {
#define DRIVER(name, symbol, needed, arguments) { symbol, needed, offsetof(struct cuda_driver, name) },
#include "driver.def"
#undef DRIVER
};

typedef cu_result (*get_address)(const char *symbol, void **address, int version, uint64_t flags, int *found);

static ctrt_status find_entries(void *library)
{
    get_address get = NULL;
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    cu_result (*version)(int *) = NULL;
    *(void **)&version = dlsym(library, "cuDriverGetVersion");
    if (version == NULL || version(&cuda_driver_version) != CU_OK)
        cuda_driver_version = 0;
    if (get == NULL || cuda_driver_version < WANTED) {
        cuda_reason_old(loaded.words, sizeof loaded.words, cuda_driver_version);
        return CTRT_ERR_NOT_SUPPORTED;
    }
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        void *address = NULL;
        int found = 0;
        const cu_result result = get(entries[i].symbol, &address, WANTED, 0, &found);
        if ((result != CU_OK || address == NULL) && entries[i].needed) {
            snprintf(loaded.words, sizeof loaded.words, "[driver-too-old] the driver (CUDA %d.%d) lacks %s",
                     cuda_driver_version / 1000, cuda_driver_version % 1000 / 10, entries[i].symbol);
            return CTRT_ERR_NOT_SUPPORTED;
        }
        *(void **)((char *)&cuda_driver + entries[i].place) = result == CU_OK ? address : NULL;
    }
    return CTRT_OK;
}

static ctrt_status driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        return find_entries(library);
    const char *dl_error = dlerror();
    if (cuda_transient(dl_error)) {
        snprintf(loaded.words, sizeof loaded.words, "%s", dl_error);
        return CTRT_ERR_IO;
    }
    cuda_diagnose(loaded.words, sizeof loaded.words, -1, dl_error);
    return CTRT_ERR_NO_DEVICE;
}

static ctrt_status initialise(void)
{
    const cu_result result = cuda_driver.init(0);
    if (result == CU_OK) {
        cuda_driver_process = getpid();
        return CTRT_OK;
    }
    cuda_diagnose(opened.words, sizeof opened.words, result, NULL);
    return result == CU_OUT_OF_MEMORY ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_NO_DEVICE;
}

/* Runs a step once and returns its result at every call; after CTRT_ERR_IO the next call runs the step again. Called
 * with the lock held. */
static ctrt_status take(struct step *step, ctrt_status (*act)(void))
{
    if (!step->done) {
        step->status = act();
        step->done = step->status != CTRT_ERR_IO;
    }
    return step->status == CTRT_OK ? CTRT_OK : cuda_host->fail(step->status, "%s", step->words);
}

ctrt_status cuda_driver_load(void)
{
    pthread_mutex_lock(&lock);
    const ctrt_status status = take(&loaded, driver_load);
    pthread_mutex_unlock(&lock);
    return status;
}

bool cuda_driver_tried(void)
{
    pthread_mutex_lock(&lock);
    const bool tried = opened.done;
    pthread_mutex_unlock(&lock);
    return tried;
}

ctrt_status cuda_driver_open(void)
{
    pthread_mutex_lock(&lock);
    ctrt_status status = take(&loaded, driver_load);
    if (status == CTRT_OK)
        status = take(&opened, initialise);
    pthread_mutex_unlock(&lock);
    if (status == CTRT_OK && cuda_driver_process != getpid())
        return cuda_host->fail(
            CTRT_ERR_FORKED,
            "process %d initialised CUDA before it forked this one (%d), so CUDA cannot be used here: fork "
            "before a CUDA device is opened, or start the child by exec",
            (int)cuda_driver_process, (int)getpid());
    return status;
}
