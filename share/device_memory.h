/* SPDX-License-Identifier: Apache-2.0 */
/* share/device_memory.h: passes memory of devices to other processes, with export_memory and import_memory of the
 * backend. A whole segment of the memory policy is exported; a storage is a part of it. */
#ifndef SHARE_DEVICE_MEMORY_H
#define SHARE_DEVICE_MEMORY_H

#include "tensor/tensor.h"

#define DEVICE_TYPE_BYTES 32
#define DEVICE_UUID_BYTES 64

/* Identifies a segment and its device in other processes. */
struct segment_name {
    uint64_t process, address;              /* `process`: a random number of the process that exports it */
    uint64_t bytes;
    char type[DEVICE_TYPE_BYTES], uuid[DEVICE_UUID_BYTES];
    int32_t index;                          /* among the devices of its type, if it has no UUID */
    int32_t unused;                         /* 0 */
};

/* Whether the backend of a device can pass its memory to other processes. */
bool device_exports(const ctrt_device *device);

/* Exports the segment of a tensor's storage, and waits for the work that uses the storage. *place: the storage's place
 * in it. *memory: a descriptor that the caller closes. *lease: a descriptor that belongs to the storage's lease. */
ctrt_status device_export(struct segment_name *name, uint64_t *place, int *memory, int *lease, ctrt_tensor *tensor);
/* Creates a tensor of `bytes` bytes at `place` in a segment, with the data pointer at the storage's beginning. Keeps
 * neither descriptor, but a duplicate of `lease`. A segment that this process has opened is not opened again. */
ctrt_status device_import(ctrt_tensor **out, const struct segment_name *name, uint64_t place, uint64_t bytes,
                          int memory, int lease, const int64_t *shape, const int64_t *strides, int ndim,
                          ctrt_dtype dtype);

#endif
