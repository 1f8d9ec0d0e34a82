/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pinned_cache.h: cache of pinned (page-locked) host memory, which devices copy from and to directly.
 *
 * Allocating such memory costs a system call and often a synchronization of the device, so freed blocks are cached. A
 * block that a device still copies from or to is reused only after the copy is done; nothing waits for it while another
 * block is free. Size classes: multiples of 64 bytes up to 512, then eight per power of two, so that at most 12.5 % of
 * a block above 512 bytes is unused. */
#ifndef CORE_MEMORY_PINNED_CACHE_H
#define CORE_MEMORY_PINNED_CACHE_H

#include "memory/storage.h"

/* Returns whether the backend of `device` has pinned memory. */
bool pinned_available(const ctrt_device *device);
/* Allocates at least `bytes` > 0. *granted: the size of its class; pass it to pinned_free. Reports the failure if
 * memory runs out (oom_fail_pinned). */
ctrt_status pinned_alloc(void **address, size_t *granted, ctrt_device *device, size_t bytes);
/* Caches the memory of a storage that is being freed. Uses recorded in `storage` must be done before the block is
 * reused. */
void pinned_free(ctrt_device *device, void *address, size_t granted, struct storage *storage);
/* Frees all cached blocks, after waiting for devices that still copy. */
void pinned_trim(ctrt_device *device);
/* Like pinned_trim, but does not wait: blocks that a device still copies stay cached. */
void pinned_trim_idle(ctrt_device *device);

/* Returns the bytes pinned for the device, in use or cached. They count against its limit (quota.h). */
uint64_t pinned_held(const ctrt_device *device);
void pinned_stats(ctrt_host_memory_stats *out, const ctrt_device *device);
/* Sets all peaks to the current values. */
void pinned_reset_peaks(ctrt_device *device);

/* Returns the size that a request is rounded up to. */
size_t pinned_round(size_t bytes);

#endif
