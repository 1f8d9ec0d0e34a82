/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/memory.h: memory statistics, limits, ownership of memory, out-of-memory reports, dry runs.
 *
 * All statistics are per device and have the same meaning for all memory policies (CTRT_MEMORY). Where a function
 * takes a device, NULL is the default device; where it writes text, the caller frees it with free(). All functions
 * are thread-safe. Sums are exact whenever no other thread is inside an allocation. Peaks are exact while one thread
 * allocates; otherwise they may miss a few concurrent calls. The statistics have PyTorch's names. */
#ifndef CTRT_MEMORY_H
#define CTRT_MEMORY_H

#include "ctrt/device.h"

CTRT_BEGIN_DECLS

/* Returns the bytes of blocks allocated to tensors of `device`: now, and the peak since the start or the last reset.
 * A block may be larger than the request (the caching policy rounds up to 512 bytes). */
CTRT_API uint64_t ctrt_memory_allocated(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_allocated(ctrt_device *device);
/* Returns the bytes that the memory policy has reserved on the device, in use or cached: now, and the peak. */
CTRT_API uint64_t ctrt_memory_reserved(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_reserved(ctrt_device *device);
/* Sets all peaks to the current values: totals, pools, pinned memory and spilled blocks, as PyTorch's
 * reset_peak_memory_stats. Scopes keep their peaks. */
CTRT_API void ctrt_memory_reset_peak(ctrt_device *device);
/* Releases cached memory to the device. Memory in use by tensors is not affected. */
CTRT_API ctrt_status ctrt_memory_empty_cache(ctrt_device *device);
/* Returns the name of the device's memory policy, "caching". */
CTRT_API const char *ctrt_memory_policy_name(ctrt_device *device);

/* ---- all statistics ---- */

/* Durations of calls in microseconds; 0 if there were none. */
typedef struct ctrt_memory_times {
    int64_t total, max, min, count, avg;
} ctrt_memory_times;

/* Host memory pinned for a device: blocks obtained from the backend, in use or cached; and blocks in use by tensors. */
typedef struct ctrt_host_memory_stats {
    ctrt_stat allocations, allocated_bytes, active_requests, active_bytes;
    ctrt_memory_times host_alloc_time, host_free_time;      /* durations of the backend's calls */
} ctrt_host_memory_stats;

/* All statistics of one device.
 *   - allocation: blocks in use by tensors.
 *   - active: these, and blocks that wait for streams. ctrt reuses such blocks immediately, ordered after the pending
 *     work, so `active` equals `allocation`.
 *   - segment: segments that the policy allocated from the device.
 *   - inactive_split: free blocks that share their segment with blocks in use, so that the segment cannot be
 *     released.
 *   - requested_bytes: requested sizes, before rounding.
 *
 * The policy maintains the per-pool peaks of segments and inactive_split. A third-party policy that cannot reset
 * them (ctrt_memory_policy.reset_peaks) keeps them. */
typedef struct ctrt_memory_stats {
    size_t size;
    ctrt_stat allocation[CTRT_POOLS], segment[CTRT_POOLS], active[CTRT_POOLS],
        inactive_split[CTRT_POOLS];
    ctrt_stat allocated_bytes[CTRT_POOLS], reserved_bytes[CTRT_POOLS],
        active_bytes[CTRT_POOLS], inactive_split_bytes[CTRT_POOLS], requested_bytes[CTRT_POOLS];
    ctrt_stat oversize_allocations, oversize_segments;     /* at least the policy's max_split bytes */
    int64_t num_alloc_retries;          /* device allocations that failed and were repeated after the cache was
                                         * released */
    int64_t num_ooms;                   /* allocations that failed permanently */
    int64_t num_sync_all_streams;       /* times that the allocator waited for the whole device; always 0 in ctrt */
    int64_t num_device_alloc, num_device_free;      /* calls of the backend's alloc and free */
    int64_t max_split_size;             /* bytes; -1: no limit */
    int64_t num_oom_rejections;         /* the part of num_ooms that a limit refused without a call of the backend */
    ctrt_host_memory_stats host;
    /* Under a policy that moves memory: blocks whose bytes are on the host. allocated: moved to the host; freed:
     * moved back, or freed there. */
    ctrt_stat spilled, spilled_bytes;
} ctrt_memory_stats;
#define CTRT_MEMORY_STATS CTRT_SIZED_(ctrt_memory_stats)
/* Writes all statistics of `device` to *out. */
CTRT_API ctrt_status ctrt_memory_get_stats(ctrt_memory_stats *out, ctrt_device *device);

/* Writes one statistic by PyTorch's name: "allocated_bytes.all.peak", "segment.small_pool.current", "num_ooms".
 * Names of pinned host memory begin with "host.": "host.allocated_bytes.current", "host.num_host_alloc",
 * "host.host_alloc_time.avg". CTRT_ERR_NOT_FOUND, with the nearest name in the message, for an unknown name. */
CTRT_API ctrt_status ctrt_memory_stat_get(int64_t *value, ctrt_device *device, const char *key);
/* Returns the `index`-th name of a statistic; NULL past the last one. The string is static. */
CTRT_API const char *ctrt_memory_stat_key(size_t index);

/* Writes a table of the statistics for people, 75 columns wide. `abbreviated` omits the lines of the two pools. */
CTRT_API ctrt_status ctrt_memory_summary(char **out, ctrt_device *device, bool abbreviated);
/* Writes all statistics as one JSON object: {"device": ..., "policy": ..., "stats": {"allocated_bytes.all.current":
 * ...}}. */
CTRT_API ctrt_status ctrt_memory_summary_json(char **out, ctrt_device *device);

/* ---- peaks of a part of the program ---- */

/* Measures peaks from its begin to its end. Scopes may nest and overlap in any way, in one or several threads. Each
 * has its own exact peaks. Scopes add no cost to allocations. */
typedef struct ctrt_memory_scope ctrt_memory_scope;
typedef struct ctrt_memory_peaks {
    size_t size;
    uint64_t allocated_bytes, requested_bytes, reserved_bytes, allocations;     /* peaks */
    uint64_t allocated_before;          /* bytes that were allocated when the scope began */
} ctrt_memory_peaks;
#define CTRT_MEMORY_PEAKS CTRT_SIZED_(ctrt_memory_peaks)
/* Begins a scope on `device`. *out (NULL or a scope, which is then ended, by the assignment rule) becomes the new
 * scope. CTRT_ERR_OUT_OF_MEMORY if the host is out of memory. */
CTRT_API ctrt_status ctrt_memory_scope_begin(ctrt_memory_scope **out, ctrt_device *device);
/* Writes the peaks since the scope began. */
CTRT_API ctrt_status ctrt_memory_scope_read(ctrt_memory_peaks *out, ctrt_memory_scope *scope);
/* Writes the peaks of the whole scope to *out (may be NULL), frees the scope and sets *scope to NULL. */
CTRT_API ctrt_status ctrt_memory_scope_end(ctrt_memory_peaks *out, ctrt_memory_scope **scope);
/* Ends a scope without reading it; for CTRT_AUTO(memory_scope). */
CTRT_API void ctrt_memory_scope_release(ctrt_memory_scope **scope);

/* ---- limits ---- */

/* Limits the memory that this process allocates from `device` to `bytes`. Blocks, cached memory, workspaces and host
 * memory pinned for tensors count (not the host memory to which the spill policy moves blocks). Memory that is
 * allocated already is kept. UINT64_MAX: no limit. An allocation that would exceed the limit behaves as if the
 * device were full: the cache is released, the allocation is tried again, and the error message contains the limit.
 * Overrides CTRT_MEMORY_LIMIT. */
CTRT_API ctrt_status ctrt_memory_set_limit(ctrt_device *device, uint64_t bytes);
/* Like ctrt_memory_set_limit, with the limit as a fraction of the device's total memory. CTRT_ERR_INVALID_ARGUMENT
 * unless 0 <= fraction <= 1, CTRT_ERR_NOT_SUPPORTED if the device does not report its total memory. */
CTRT_API ctrt_status ctrt_memory_set_fraction(ctrt_device *device, double fraction);
/* Returns the limit in bytes; UINT64_MAX: none. */
CTRT_API uint64_t ctrt_memory_limit(ctrt_device *device);

/* ---- owners of memory ---- */

/* Pushes a label for the memory that the calling thread allocates until the matching pop: "encoder", "epoch 3".
 * Labels nest: "attention" within "encoder" is "encoder/attention". While memory is watched, modules push their
 * dotted paths automatically. Labels are kept until the process ends, so use few different ones.
 * CTRT_ERR_INVALID_ARGUMENT for an empty label. */
CTRT_API ctrt_status ctrt_memory_label_push(const char *label);
/* Pops the label of the matching push. CTRT_ERR_STATE without one. */
CTRT_API ctrt_status ctrt_memory_label_pop(void);
/* ctrt_labeled(label) { ... } pushes the label for the following statement or block (ctrt/base.h). */
CTRT_BLOCK_LEAVE_(ctrt_labeled_leave_, ctrt_memory_label_pop())
#define ctrt_labeled(label) CTRT_BLOCK_TRY_(ctrt_labeled_leave_, ctrt_memory_label_push(label))
/* Returns the calling thread's labels, joined by '/'; "" if there are none. The string is valid until the process
 * ends. */
CTRT_API const char *ctrt_memory_label(void);

/* How much is recorded about each live block (STATE) and about past events (ALL). By default, asynchronous devices
 * record STATE, because its cost on these devices is not measurable, and synchronous devices record nothing.
 * CTRT_MEMORY_HISTORY=state|all[:ENTRIES]|frames[:ENTRIES] changes this. FRAMES walks the stack at each event, which
 * takes about a microsecond. */
typedef enum ctrt_memory_watch {
    CTRT_MEMORY_WATCH_NONE,
    CTRT_MEMORY_WATCH_STATE,            /* address, size, label, op and time of each live block */
    CTRT_MEMORY_WATCH_ALL,              /* and the last `entries` events */
    CTRT_MEMORY_WATCH_FRAMES            /* and the backtrace of each, if the C library provides backtraces */
} ctrt_memory_watch;
/* Sets the level for all devices, including those that are opened later. `entries` 0: 65536. Blocks that are alive
 * already are listed as "(not watched)". NONE discards all records. CTRT_ERR_OUT_OF_MEMORY if the host is out of
 * memory. */
CTRT_API ctrt_status ctrt_memory_set_watch(ctrt_memory_watch watch, size_t entries);
/* Adds a text to the history, between the events. No effect while the history is off. */
CTRT_API ctrt_status ctrt_memory_annotate(ctrt_device *device, const char *text);

/* One owner of live blocks: the label and the op that allocated them. */
typedef struct ctrt_memory_owner {
    const char *label, *op;             /* "" if unknown; valid until the process ends */
    uint64_t bytes, requested, blocks;
    uint64_t reserved[3];               /* 0 */
} ctrt_memory_owner;
/* Writes the owners, largest first, to a new array of *count elements, which the caller frees with free(). Their
 * bytes add up to ctrt_memory_allocated; blocks that were not recorded have the label "(not watched)". */
CTRT_API ctrt_status ctrt_memory_owners(ctrt_memory_owner **out, size_t *count, ctrt_device *device);

/* Writes segments, blocks, owners and history as JSON; `ctrt memory` converts it to a page. The members are
 * PyTorch's (segments, device_traces), see doc/memory.md. */
CTRT_API ctrt_status ctrt_memory_snapshot(char **out, ctrt_device *device);
/* Writes the JSON of ctrt_memory_snapshot to the file `path`, by the rules of ctrt_save (ctrt/checkpoint.h): a regular
 * file is replaced atomically and keeps its permissions; a pipe, a device and /dev/stdout are written to in place.
 * CTRT_ERR_IO. */
CTRT_API ctrt_status ctrt_memory_snapshot_write(const char *path, ctrt_device *device);

/* ---- out of memory ---- */

/* Writes the report of the device's last CTRT_ERR_OUT_OF_MEMORY as JSON: sizes, limits, fragmentation, owners,
 * advice. CTRT_ERR_NOT_FOUND if there was none. */
CTRT_API ctrt_status ctrt_memory_last_oom(char **out, ctrt_device *device);
/* Called in the thread whose allocation of `bytes` failed, before the call returns and with no lock held, so it may
 * use the library. `report`: the text of ctrt_memory_last_oom, valid during the call. */
typedef void (*ctrt_memory_oom_callback)(void *user, ctrt_device *device, size_t bytes, const char *report);
/* Sets the process-wide callback; NULL removes it. */
CTRT_API void ctrt_memory_set_oom_callback(ctrt_memory_oom_callback callback, void *user);

/* ---- metrics ---- */

typedef enum ctrt_metrics_format { CTRT_METRICS_PROMETHEUS, CTRT_METRICS_JSON } ctrt_metrics_format;
/* Writes statistics of all open devices for a monitoring system: text in Prometheus' format 0.0.4, or JSON. Peaks
 * are those since the last call of this function, so that no peak between two readings is lost. */
CTRT_API ctrt_status ctrt_memory_metrics(char **out, ctrt_metrics_format format);

/* ---- releasing everything ---- */

/* Waits for the device's work and releases all memory that is cached for it, including pinned host memory.
 * CTRT_ERR_STATE, with the number of bytes and their largest owner, if tensors are still alive on the device; the
 * cached memory is also released in that case. */
CTRT_API ctrt_status ctrt_memory_release_all(ctrt_device *device);
/* Does the same for all open devices and closes them: queues and their threads, events, pinned memory, the backend's
 * context. Devices in host memory stay open. A device whose tensors, streams, events, graphs or dry runs are alive
 * also stays open, and the message of CTRT_ERR_STATE contains their number. A failure of work that has not been
 * reported yet is returned as the error, and the device is closed. All devices are processed; the first error is
 * returned. Structures that the calling thread keeps for reuse are freed, and the threads that compute on the CPU for
 * it are ended (those of another thread end with that thread).
 *
 * ctrt_device_get opens a closed device again under the same handle; before that, using the handle is
 * CTRT_ERR_STATE. Statistics and limits are kept. While this function runs, no other thread may use the devices. */
CTRT_API ctrt_status ctrt_shutdown(void);

/* ---- dry runs predict the memory of a step ---- */

/* Between begin and end, work on `device` is only simulated. Tensors are created and released, and the device's
 * memory policy makes the same decisions as in a real run, starting from what is allocated and cached now, but
 * nothing is computed and no device memory is allocated. A program runs its step once as a dry run and obtains the
 * peak of the real step, exact to the byte:
 *
 *     ctrt_dry_run *run = NULL;
 *     ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
 *     CTRT_TRY(ctrt_dry_run_begin(&run, device));
 *     status = step(...);                              // forward, backward, optimizer: the same code
 *     CTRT_TRY(ctrt_dry_run_end(&found, &run));
 *
 * Where the real step would run out of memory, the dry run records that and continues as if the device were larger.
 * Results of the step read as 0. Tensors that existed before keep their values, and their memory is freed
 * permanently if the step releases them. At the end of the dry run:
 *
 *   - Gradients that were made in it are released, so their tensors have no gradient. A gradient from before to which
 *     the step added keeps its values.
 *   - Optimizers and gradient scalers continue as if there had been no dry run: steps, states, the scale and the
 *     count of skipped steps. States that it created are released; the next step creates them again. States that it
 *     converted, because the parameter is on another device or of another dtype than at the last step, are the old ones
 *     again.
 *   - Buffers of modules (batch_norm's statistics) keep their values. An inf watch has no result of the pass.
 *   - The device's random generator continues where it was before.
 *   - Autocast keeps no copies of parameters from it, and a backend no packed weights. `data-parallel` drops replicas
 *     that were created in it (doc/parallel.md, Captures and dry runs).
 *   - What the program changed on the host stays: learning rates that it set, its own counters, the place of a loader.
 *
 * The program releases all other tensors that it created in the dry run, best before its end; `left_bytes` counts those
 * that are alive then. Afterwards, work on such a tensor fails with CTRT_ERR_STATE on an asynchronous device, where it
 * has no memory. In host memory the tensor contains zeros, and its memory is counted as that of other tensors
 * (statistics, limit, owners) until it is freed.
 *
 * Other threads must not use the device during a dry run. A step over several devices needs a dry run for each. Memory
 * that depends on values is predicted for zeros. On synchronous devices the peaks are those of a single thread. In
 * the child of a fork, a dry run continues if the forking thread began it; other dry runs stay in the parent, and
 * ctrt_dry_run_end returns CTRT_ERR_FORKED for them. */
typedef struct ctrt_dry_run ctrt_dry_run;
typedef struct ctrt_memory_prediction {
    size_t size;
    uint64_t peak_allocated, peak_requested, peak_reserved;     /* as ctrt_memory_max_allocated and _max_reserved
                                                                 * after the step */
    uint64_t allocated_before, allocated_after, reserved_before, reserved_after;
    uint64_t left_bytes, left_blocks;   /* created in the dry run and still alive after its end */
    uint64_t allocations, largest_request;
    const char *peak_op, *peak_label;   /* op and label of the allocation that set the peak; "" if unknown; valid
                                         * until the process ends */
    bool fits;                          /* in the device's memory and in the limit of ctrt_memory_set_limit */
    uint64_t failed_bytes;              /* the first request that does not fit, and its op and label */
    const char *failed_op, *failed_label;
} ctrt_memory_prediction;
#define CTRT_MEMORY_PREDICTION CTRT_SIZED_(ctrt_memory_prediction)
/* Begins a dry run on `device`. *out (NULL, or a dry run, which is then ended, by the assignment rule) becomes the new
 * dry run. CTRT_ERR_STATE if a dry run or a capture runs on the device, CTRT_ERR_OUT_OF_MEMORY if the host is out of
 * memory. */
CTRT_API ctrt_status ctrt_dry_run_begin(ctrt_dry_run **out, ctrt_device *device);
/* Predicts for a device on which the process may allocate `bytes` in total, instead of its real size. Call it before
 * the first op. */
CTRT_API ctrt_status ctrt_dry_run_set_limit(ctrt_dry_run *dryrun, uint64_t bytes);
/* Returns whether all requests so far fit. */
CTRT_API bool ctrt_dry_run_fits(const ctrt_dry_run *dryrun);
/* Returns whether a dry run is active on `device` (NULL: the default device). */
CTRT_API bool ctrt_dry_run_active(ctrt_device *device);
/* Writes the prediction to *out (may be NULL), ends the dry run and sets *dryrun to NULL. */
CTRT_API ctrt_status ctrt_dry_run_end(ctrt_memory_prediction *out, ctrt_dry_run **dryrun);
/* Ends a dry run without reading it; for CTRT_AUTO(dry_run). */
CTRT_API void ctrt_dry_run_release(ctrt_dry_run **dryrun);

CTRT_END_DECLS

#endif
