/* SPDX-License-Identifier: Apache-2.0 */
/* memory/release.c: giving everything back. */
#include "base/base.h"
#include "base/memory.h"
#include "base/text.h"
#include "memory/owners.h"
#include "memory/pinned.h"

static ctrt_status still_there(struct device_memory *memory, uint64_t bytes)
{
    ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    char size[32], label[128], of[160] = "";
    if (owners_of(&owners, &count, memory) && count > 0)
        snprintf(of, sizeof of, ", most of them of %s", owner_label(label, &owners[0]));
    memory_free(owners);
    return ctrt_fail(CTRT_ERR_STATE,
                     "memory_release_all: tensors still hold %s on %s%s; release them first. What was cached is given back",
                     text_bytes(size, bytes), memory->device->name, of);
}

static ctrt_status release(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    if (!device_usable(device))
        return device_fail_forked(device);
    ctrt_status status = ctrt_device_synchronize(device);
    pool_trim(memory);
    pinned_trim(device);
    uint64_t bytes = account_current(&memory->account, ACCOUNT_BYTES);
    if (status == CTRT_OK && bytes > 0)
        status = still_there(memory, bytes);
    return status;
}

ctrt_status ctrt_memory_release_all(ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    return release(device);
}

struct releasing {
    ctrt_device *devices[256];
    size_t count;
};

static void collect(ctrt_device *device, void *argument)
{
    struct releasing *releasing = argument;
    if (releasing->count < COUNT_OF(releasing->devices) && device_usable(device))
        releasing->devices[releasing->count++] = device;
}

ctrt_status ctrt_shutdown(void)
{
    struct releasing releasing = { .count = 0 };
    ctrt_status first = CTRT_OK;
    char message[1024] = "";
    device_for_each(collect, &releasing);
    /* The cpu last: others may hold host memory. */
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < releasing.count; i++) {
            if (device_host_memory(releasing.devices[i]) != (round == 1))
                continue;
            ctrt_status status = release(releasing.devices[i]);
            if (status != CTRT_OK && first == CTRT_OK) {
                first = status;
                snprintf(message, sizeof message, "%s", ctrt_error_message());
            }
        }
    return first != CTRT_OK ? ctrt_fail(first, "%s", message) : CTRT_OK;
}
