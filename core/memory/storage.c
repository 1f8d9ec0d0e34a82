/* SPDX-License-Identifier: Apache-2.0 */
/* memory/storage.c: bytes on a device. */
#include "memory/storage.h"

#include "base/base.h"
#include "base/memory.h"

ctrt_status storage_init(struct storage *self, ctrt_device *device, size_t bytes)
{
    self->device = device;
    self->bytes = bytes;
    self->release = NULL;
    self->home_release = NULL;
    atomic_init(&self->refs, 1);
    atomic_init(&self->version, 0);
    return pool_alloc(device->memory, &self->block, bytes, device->queue);
}

void storage_destroy(struct storage *self)
{
    if (unlikely(self->release != NULL))
        self->release(self);
    else
        pool_free(self->device->memory, &self->block, self->bytes, self->device->queue);
}
