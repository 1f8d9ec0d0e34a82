/* SPDX-License-Identifier: Apache-2.0 */
/* memory/oom.h: what is said when there is no memory. */
#ifndef CORE_MEMORY_OOM_H
#define CORE_MEMORY_OOM_H

#include "memory/pool.h"

/* An allocation of `bytes` failed for good, because of `why` (which may be the thread's message): keeps the report, tells
 * the program's callback, sets the message. Returns CTRT_ERR_OUT_OF_MEMORY. The caller holds no locks. */
ctrt_status oom_fail(struct device_memory *memory, size_t bytes, const char *why);
/* The same of host memory that was to be pinned for the device. */
ctrt_status oom_fail_pinned(struct device_memory *memory, size_t bytes, const char *why);
void oom_report_free(struct oom_report *report);

#endif
