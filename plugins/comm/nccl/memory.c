/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/memory.c: memory of the device that is registered with the communicator for the collectives, so
 * that NCCL can transfer it without copies (user buffer registration).
 *
 * NCCL needs memory of ncclMemAlloc for that, which is registered before it is used and deregistered before it is
 * freed. The end of a communicator deregisters all memory. So a block that cannot be deregistered is freed with the
 * group, as are those of an aborted group, whose communicator a thread ends. */
#include <stdlib.h>

#include "engine.h"

struct nccl_memory {
    struct nccl_memory *next;
    void *address, *registration;
};

/* Returns NULL if there is no memory or it cannot be registered, which ncclGetLastError describes. */
static struct nccl_memory *memory_new(struct nccl_group *group, size_t bytes)
{
    struct nccl_memory *memory = calloc(1, sizeof *memory);
    nccl_result result = NCCL_INTERNAL_ERROR;
    if (memory == NULL || nccl.mem_alloc(&memory->address, bytes) != NCCL_OK) {
        free(memory);
        return NULL;
    }
    pthread_mutex_lock(&group->lock);
    if (!group->aborted)
        result = nccl.register_buffer(group->all.handle, memory->address, bytes, &memory->registration);
    if (result == NCCL_OK) {
        memory->next = group->memory;
        group->memory = memory;
    }
    pthread_mutex_unlock(&group->lock);
    if (result == NCCL_OK)
        return memory;
    (void)nccl.mem_free(memory->address);
    free(memory);
    return NULL;
}

ctrt_status nccl_alloc(void *state, void **address, size_t bytes)
{
    struct nccl_group *group = state;
    CTRT_AUTO(stream) stream = NULL;
    void *native;
    bool all = false;
    *address = NULL;
    if (!group->registers || nccl.mem_alloc == NULL)    /* the other functions are of the same version */
        return CTRT_OK;
    CTRT_TRY(ctrt_stream_current(&stream, group->config->device));
    CTRT_TRY(ctrt_stream_native(&native, stream));      /* sets the CUDA device, which ncclMemAlloc uses */
    struct nccl_memory *memory = memory_new(group, bytes);
    const ctrt_status status = nccl_all_true(&all, group, memory != NULL);
    if (status == CTRT_OK && all) {
        *address = memory->address;
        return CTRT_OK;
    }
    if (memory != NULL)
        nccl_free(group, memory->address);
    return status != CTRT_OK ? status
                             : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "a rank cannot allocate and register %zu bytes with "
                                         "NCCL: %s", bytes, nccl.last_error(NULL));
}

void nccl_free(void *state, void *address)
{
    struct nccl_group *group = state;
    struct nccl_memory *memory = NULL, **at = &group->memory;
    pthread_mutex_lock(&group->lock);
    while (*at != NULL && (*at)->address != address)
        at = &(*at)->next;
    if (*at != NULL && !group->aborted
        && nccl.deregister_buffer(group->all.handle, (*at)->registration) == NCCL_OK) {
        memory = *at;
        *at = memory->next;
    }
    pthread_mutex_unlock(&group->lock);
    if (memory == NULL)
        return;
    (void)nccl.mem_free(memory->address);
    free(memory);
}

/* If the abort has not ended, NCCL may still use the memory, so it is not freed. */
void nccl_memory_end(struct nccl_group *group)
{
    const bool ended = !group->aborted || atomic_load(&group->ending->done);
    for (struct nccl_memory *memory = group->memory, *next; memory != NULL && ended; memory = next) {
        next = memory->next;
        (void)nccl.mem_free(memory->address);
        free(memory);
    }
}
