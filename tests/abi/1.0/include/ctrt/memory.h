/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_MEMORY_H
#define CTRT_MEMORY_H
#include "ctrt/device.h"
CTRT_BEGIN_DECLS
CTRT_API uint64_t ctrt_memory_allocated(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_allocated(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_reserved(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_reserved(ctrt_device *device);
CTRT_API void ctrt_memory_reset_peak(ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_empty_cache(ctrt_device *device);
CTRT_API const char *ctrt_memory_policy_name(ctrt_device *device);
typedef struct ctrt_memory_times {
    int64_t total, max, min, count, avg;
} ctrt_memory_times;
typedef struct ctrt_host_memory_stats {
    ctrt_stat allocations, allocated_bytes, active_requests, active_bytes;
    ctrt_memory_times host_alloc_time, host_free_time;
} ctrt_host_memory_stats;
typedef struct ctrt_memory_stats {
    size_t size;
    ctrt_stat allocation[CTRT_POOLS], segment[CTRT_POOLS], active[CTRT_POOLS],
        inactive_split[CTRT_POOLS];
    ctrt_stat allocated_bytes[CTRT_POOLS], reserved_bytes[CTRT_POOLS],
        active_bytes[CTRT_POOLS], inactive_split_bytes[CTRT_POOLS], requested_bytes[CTRT_POOLS];
    ctrt_stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries;
    int64_t num_ooms;
    int64_t num_sync_all_streams;
    int64_t num_device_alloc, num_device_free;
    int64_t max_split_size;
    int64_t num_oom_rejections;
    ctrt_host_memory_stats host;
    ctrt_stat spilled, spilled_bytes;
} ctrt_memory_stats;
#define CTRT_MEMORY_STATS CTRT_SIZED_(ctrt_memory_stats)
CTRT_API ctrt_status ctrt_memory_get_stats(ctrt_memory_stats *out, ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_stat_get(int64_t *value, ctrt_device *device, const char *key);
CTRT_API const char *ctrt_memory_stat_key(size_t index);
CTRT_API ctrt_status ctrt_memory_summary(char **out, ctrt_device *device, bool abbreviated);
CTRT_API ctrt_status ctrt_memory_summary_json(char **out, ctrt_device *device);
typedef struct ctrt_memory_scope ctrt_memory_scope;
typedef struct ctrt_memory_peaks {
    size_t size;
    uint64_t allocated_bytes, requested_bytes, reserved_bytes, allocations;
    uint64_t allocated_before;
} ctrt_memory_peaks;
#define CTRT_MEMORY_PEAKS CTRT_SIZED_(ctrt_memory_peaks)
CTRT_API ctrt_status ctrt_memory_scope_begin(ctrt_memory_scope **out, ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_scope_read(ctrt_memory_peaks *out, ctrt_memory_scope *scope);
CTRT_API ctrt_status ctrt_memory_scope_end(ctrt_memory_peaks *out, ctrt_memory_scope **scope);
CTRT_API void ctrt_memory_scope_release(ctrt_memory_scope **scope);
CTRT_API ctrt_status ctrt_memory_set_limit(ctrt_device *device, uint64_t bytes);
CTRT_API ctrt_status ctrt_memory_set_fraction(ctrt_device *device, double fraction);
CTRT_API uint64_t ctrt_memory_limit(ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_label_push(const char *label);
CTRT_API ctrt_status ctrt_memory_label_pop(void);
CTRT_BLOCK_LEAVE_(ctrt_labeled_leave_, ctrt_memory_label_pop())
#define ctrt_labeled(label) CTRT_BLOCK_TRY_(ctrt_labeled_leave_, ctrt_memory_label_push(label))
CTRT_API const char *ctrt_memory_label(void);
typedef enum ctrt_memory_watch {
    CTRT_MEMORY_WATCH_NONE,
    CTRT_MEMORY_WATCH_STATE,
    CTRT_MEMORY_WATCH_ALL,
    CTRT_MEMORY_WATCH_FRAMES
} ctrt_memory_watch;
CTRT_API ctrt_status ctrt_memory_set_watch(ctrt_memory_watch watch, size_t entries);
CTRT_API ctrt_status ctrt_memory_annotate(ctrt_device *device, const char *text);
typedef struct ctrt_memory_owner {
    const char *label, *op;
    uint64_t bytes, requested, blocks;
    uint64_t reserved[3];
} ctrt_memory_owner;
CTRT_API ctrt_status ctrt_memory_owners(ctrt_memory_owner **out, size_t *count, ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_snapshot(char **out, ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_snapshot_write(const char *path, ctrt_device *device);
CTRT_API ctrt_status ctrt_memory_last_oom(char **out, ctrt_device *device);
typedef void (*ctrt_memory_oom_callback)(void *user, ctrt_device *device, size_t bytes, const char *report);
CTRT_API void ctrt_memory_set_oom_callback(ctrt_memory_oom_callback callback, void *user);
typedef enum ctrt_metrics_format { CTRT_METRICS_PROMETHEUS, CTRT_METRICS_JSON } ctrt_metrics_format;
CTRT_API ctrt_status ctrt_memory_metrics(char **out, ctrt_metrics_format format);
CTRT_API ctrt_status ctrt_memory_release_all(ctrt_device *device);
CTRT_API ctrt_status ctrt_shutdown(void);
typedef struct ctrt_dry_run ctrt_dry_run;
typedef struct ctrt_memory_prediction {
    size_t size;
    uint64_t peak_allocated, peak_requested, peak_reserved;
    uint64_t allocated_before, allocated_after, reserved_before, reserved_after;
    uint64_t left_bytes, left_blocks;
    uint64_t allocations, largest_request;
    const char *peak_op, *peak_label;
    bool fits;
    uint64_t failed_bytes;
    const char *failed_op, *failed_label;
} ctrt_memory_prediction;
#define CTRT_MEMORY_PREDICTION CTRT_SIZED_(ctrt_memory_prediction)
CTRT_API ctrt_status ctrt_dry_run_begin(ctrt_dry_run **out, ctrt_device *device);
CTRT_API ctrt_status ctrt_dry_run_set_limit(ctrt_dry_run *dryrun, uint64_t bytes);
CTRT_API bool ctrt_dry_run_fits(const ctrt_dry_run *dryrun);
CTRT_API bool ctrt_dry_run_active(ctrt_device *device);
CTRT_API ctrt_status ctrt_dry_run_end(ctrt_memory_prediction *out, ctrt_dry_run **dryrun);
CTRT_API void ctrt_dry_run_release(ctrt_dry_run **dryrun);
CTRT_END_DECLS
#endif
