/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/memory.h: how much memory tensors take, on which device. */
#ifndef CTRT_MEMORY_H
#define CTRT_MEMORY_H

#include "ctrt/device.h"

CTRT_BEGIN_DECLS

/* Bytes of blocks handed out to tensors of `device`: now, and at most since the start or the last reset.
 * A block may be larger than what was asked for (the caching policy rounds up to 512 bytes). NULL: the default device. */
CTRT_API uint64_t ctrt_memory_allocated(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_allocated(ctrt_device *device);
/* Bytes that the memory policy holds of the device, in use or cached. */
CTRT_API uint64_t ctrt_memory_reserved(ctrt_device *device);
/* Sets the peak to what is allocated now. */
CTRT_API void ctrt_memory_reset_peak(ctrt_device *device);
/* Gives cached memory back to the device. Tensors keep theirs. */
CTRT_API ctrt_status ctrt_memory_empty_cache(ctrt_device *device);
/* The name of the device's memory policy, "caching". */
CTRT_API const char *ctrt_memory_policy_name(ctrt_device *device);

/* Counts that tests and curious users want: blocks handed out and taken back, calls of the backend's alloc and free. */
typedef struct ctrt_memory_counters {
    uint64_t allocations, frees;                    /* of tensors' storages */
    uint64_t device_allocations, device_frees;      /* raw calls */
} ctrt_memory_counters;
CTRT_API ctrt_status ctrt_memory_get_counters(ctrt_memory_counters *out, ctrt_device *device);

CTRT_END_DECLS

#endif
