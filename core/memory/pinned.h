/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pinned.h: host memory that a device copies by itself, kept for reuse.
 *
 * Getting such memory costs a system call and often a stop of the device, so what is let go of is kept. A block that a device still
 * copies to or from is handed out again only when that is done; nobody waits for it while another will do. Size classes: multiples of
 * 64 bytes up to 512, then eight to a doubling, so that at most 12.5 % of a block above 512 bytes is not used. */
#ifndef CORE_MEMORY_PINNED_H
#define CORE_MEMORY_PINNED_H

#include "memory/storage.h"

/* Does the backend of `device` have pinned memory? */
bool pinned_available(const ctrt_device *device);
/* At least `bytes` > 0. *granted: the size of its class. */
ctrt_status pinned_alloc(void **address, size_t *granted, ctrt_device *device, size_t bytes);
/* Takes the memory of a dying storage back; its uses are noted there. */
void pinned_free(ctrt_device *device, void *address, size_t granted, struct storage *storage);
/* Gives back what nobody has, after waiting for devices that still copy. */
void pinned_trim(ctrt_device *device);
/* The same without waiting: what is copied still stays. */
void pinned_trim_idle(ctrt_device *device);

enum pinned_figure {
    PINNED_ALLOCATIONS, PINNED_ALLOCATED_BYTES,     /* blocks obtained and held */
    PINNED_ACTIVE_REQUESTS, PINNED_ACTIVE_BYTES,    /* blocks handed out */
    PINNED_FIGURES
};
struct pinned_figures {
    ctrt_memory_figure of[PINNED_FIGURES];
    ctrt_memory_times alloc, free;          /* calls of the backend */
};
/* Bytes that are held for the device, in use or kept; they count against its limit (quota.h). */
uint64_t pinned_held(const ctrt_device *device);
void pinned_figures(struct pinned_figures *out, const ctrt_device *device);
/* All peaks become what is current. */
void pinned_reset_peaks(ctrt_device *device);

/* The size that a request is rounded to. */
size_t pinned_round(size_t bytes);

#endif
