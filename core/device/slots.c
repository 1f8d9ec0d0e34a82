/* SPDX-License-Identifier: Apache-2.0 */
/* device/slots.c: reads properties of devices from backends, and checks them. */
#include "base/base.h"
#include "base/slot.h"
#include "device/internal.h"

ctrt_status slot_describe(ctrt_device_info *info, const ctrt_backend *backend, const char *type, int index)
{
    CTRT_TRY(SLOT_CALL(type, "describe", backend->device->describe(index, info)));
    CTRT_TRY(slot_check_number(type, "describe", "total_memory", (int64_t)info->total_memory, INT64_MAX));
    return slot_check_number(type, "describe", "processors", info->processors, INT32_MAX);
}

ctrt_status slot_memory_info(const ctrt_device *device, uint64_t *free_bytes, uint64_t *total)
{
    const ctrt_device_table *table = device->backend->device;
    if (!CTRT_SLOT(table, memory_info))
        return CTRT_ERR_NOT_SUPPORTED;
    uint64_t unused = 0, all = 0;
    CTRT_TRY(SLOT_CALL(device->type, "memory_info", table->memory_info(device->handle, &unused, &all)));
    CTRT_TRY(slot_check_number(device->type, "memory_info", "the total bytes", (int64_t)all, INT64_MAX));
    CTRT_TRY(slot_check_number(device->type, "memory_info", "the free bytes", (int64_t)unused, (int64_t)all));
    *free_bytes = unused;
    *total = all;
    return CTRT_OK;
}
