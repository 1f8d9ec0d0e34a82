/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_PROGRESS_H
#define CTRT_PROGRESS_H
#include "ctrt/types.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_progress ctrt_progress;
typedef struct ctrt_progress_options {
    size_t initialized;
    const char *name;
    const char *unit;
    int64_t scale;
    double interval;
    int fd;
    bool silent;
} ctrt_progress_options;
#define CTRT_PROGRESS_OPTIONS { sizeof(ctrt_progress_options), 0, 0, 1, -1, 2, false }
CTRT_API ctrt_status ctrt_progress_new(ctrt_progress **out, int64_t total, const ctrt_progress_options *options);
CTRT_API void ctrt_progress_add(ctrt_progress *progress, int64_t steps);
CTRT_API void ctrt_progress_note(ctrt_progress *progress, const char *format, ...) CTRT_PRINTF(2, 3);
CTRT_API bool ctrt_progress_due(const ctrt_progress *progress);
CTRT_API int64_t ctrt_progress_count(const ctrt_progress *progress);
CTRT_API void ctrt_progress_release(ctrt_progress **progress);
CTRT_END_DECLS
#endif
