/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/memory.h: dry runs of a step, which predict a device's memory use without running kernels.
 *
 * During a dry run, the device has another struct device_memory. Its policies are clones of the device's policies in
 * their present state, over a memory source that returns unique addresses instead of memory; its counters start with
 * the device's statistics. So the same code allocates memory in a real step and in a dry run, and callers need no
 * special case. Blocks of a dry run have reserved addresses: on a device with host memory they can be read (as zeros)
 * and written, on other devices they cannot be accessed. */
#ifndef CORE_DRYRUN_MEMORY_H
#define CORE_DRYRUN_MEMORY_H

#include "ctrt/tensor.h"
#include "memory/pool.h"

struct dryrun;

/* The dry run that is running on `device` (dry_run_on). */
static inline struct dryrun *dryrun_running_on(const ctrt_device *device)
{
    return device->memory->bottom.state;
}

/* The lock under which dry runs begin and end. Recursive. */
void dryrun_enter(void);
void dryrun_leave(void);
/* dryrun_memory_begin replaces the device's memory by that of a dry run, and dryrun_memory_end restores it; in between,
 * no other thread uses the device. Begin: CTRT_ERR_STATE if a dry run or a capture is running on the device. End: `out`
 * may be NULL. The caller holds the lock. */
ctrt_status dryrun_memory_begin(struct dryrun **out, ctrt_device *device);
void dryrun_memory_end(ctrt_memory_prediction *out, struct dryrun *dryrun);
/* In the child of a fork, for a dry run of a thread that does not exist there: restores the device's own memory. The
 * cloned policies are not destroyed, because that thread may have been in the middle of using them. */
void dryrun_memory_abandon(struct dryrun *dryrun);
/* Limits the bytes that may be allocated from the device in total. */
void dryrun_memory_limit(struct dryrun *dryrun, uint64_t bytes);
bool dryrun_memory_fits(struct dryrun *dryrun);
/* Reports that `op` (a static string) produced the memory at `address`. Sets the op of the peak, or of the first
 * failure, if it was recorded for this address without one. */
void dryrun_memory_name(struct dryrun *dryrun, const void *address, const char *op);

/* For cleanup functions (cleanup.h): returns whether the tensor was made in the dry run that is ending. */
bool dryrun_ending_made(const ctrt_tensor *tensor);

#endif
