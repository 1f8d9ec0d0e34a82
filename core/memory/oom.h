/* SPDX-License-Identifier: Apache-2.0 */
/* memory/oom.h: reports of failed allocations. */
#ifndef CORE_MEMORY_OOM_H
#define CORE_MEMORY_OOM_H

#include "memory/pool.h"

/* Reports that an allocation of `bytes` failed permanently because of `why` (which may be the thread's message): stores
 * the report, calls the program's callback and sets the message. Returns CTRT_ERR_OUT_OF_MEMORY. The caller holds no
 * locks. */
ctrt_status oom_fail(struct device_memory *memory, size_t bytes, const char *why);
/* The same for host memory that was to be pinned for the device. */
ctrt_status oom_fail_pinned(struct device_memory *memory, size_t bytes, const char *why);
void oom_report_free(struct oom_report *report);

#endif
