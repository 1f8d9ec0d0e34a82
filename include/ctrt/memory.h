/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/memory.h: how much memory tensors take, where, on whose behalf, and how much they may take.
 *
 * Everything is counted per device, the same for all memory policies (CTRT_MEMORY). Where a function takes a device, NULL
 * is the default device; where it gives text, the caller frees that with free(). All functions may be called from any
 * thread. Sums are exact whenever no other thread is in the middle of an allocation; peaks are exact when one thread
 * allocates, and may miss a few calls of others otherwise. Names of figures are PyTorch's. */
#ifndef CTRT_MEMORY_H
#define CTRT_MEMORY_H

#include "ctrt/device.h"

CTRT_BEGIN_DECLS

/* Bytes of blocks handed out to tensors of `device`: now, and at most since the start or the last reset.
 * A block may be larger than what was asked for (the caching policy rounds up to 512 bytes). */
CTRT_API uint64_t ctrt_memory_allocated(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_allocated(ctrt_device *device);
/* Bytes that the memory policy holds of the device, in use or cached: now, and at most. */
CTRT_API uint64_t ctrt_memory_reserved(ctrt_device *device);
CTRT_API uint64_t ctrt_memory_max_reserved(ctrt_device *device);
/* Sets all peaks to the current values, of totals, pools, pinned memory and spilled blocks alike, as PyTorch's
 * reset_peak_memory_stats. Scopes keep theirs. */
CTRT_API void ctrt_memory_reset_peak(ctrt_device *device);
/* Gives cached memory back to the device. Tensors keep theirs. */
CTRT_API ctrt_status ctrt_memory_empty_cache(ctrt_device *device);
/* The name of the device's memory policy, "caching". */
CTRT_API const char *ctrt_memory_policy_name(ctrt_device *device);

/* Counts that tests and curious users want: blocks handed out and taken back, calls of the backend's alloc and free. */
typedef struct ctrt_memory_counters {
    uint64_t allocations, frees;                    /* of blocks */
    uint64_t device_allocations, device_frees;      /* raw calls */
} ctrt_memory_counters;
CTRT_API ctrt_status ctrt_memory_get_counters(ctrt_memory_counters *out, ctrt_device *device);

/* ---- all figures ---- */

/* One figure: now, at most since the start or the last reset, and summed up since the start. */
typedef struct ctrt_memory_figure {
    int64_t current, peak, allocated, freed;
} ctrt_memory_figure;

enum { CTRT_MEMORY_ALL, CTRT_MEMORY_LARGE, CTRT_MEMORY_SMALL, CTRT_MEMORY_POOLS };  /* large: blocks above 1 MiB */

/* How long calls took, in microseconds; 0 when there were none. */
typedef struct ctrt_memory_times {
    int64_t total, max, min, count, avg;
} ctrt_memory_times;

/* allocation: blocks in tensors' hands. active: those, and blocks that wait for streams; ctrt hands such blocks out
 * again behind the work instead of waiting, so the two are the same. segment: pieces that the policy drew from the
 * device. inactive_split: free blocks that share their segment with blocks in use, so that it cannot be given back.
 * requested_bytes: what was asked for, before rounding. The peaks of segments and inactive_split by pool are the
 * policy's; a policy from another source that cannot reset them (ctrt_memory_policy.reset_peaks) keeps them. */
typedef struct ctrt_memory_figures {
    ctrt_memory_figure allocation[CTRT_MEMORY_POOLS], segment[CTRT_MEMORY_POOLS], active[CTRT_MEMORY_POOLS],
        inactive_split[CTRT_MEMORY_POOLS];
    ctrt_memory_figure allocated_bytes[CTRT_MEMORY_POOLS], reserved_bytes[CTRT_MEMORY_POOLS],
        active_bytes[CTRT_MEMORY_POOLS], inactive_split_bytes[CTRT_MEMORY_POOLS], requested_bytes[CTRT_MEMORY_POOLS];
    ctrt_memory_figure oversize_allocations, oversize_segments;     /* from the policy's max_split on */
    int64_t num_alloc_retries;          /* a draw from the device failed, the cache was given back, and it was tried again */
    int64_t num_ooms;                   /* allocations that failed for good */
    int64_t num_sync_all_streams;       /* times that the allocator waited for the whole device; ctrt's never does */
    int64_t num_device_alloc, num_device_free;      /* calls of the backend */
    int64_t max_split_size;             /* bytes; -1: no limit */
    int64_t num_oom_rejections;         /* those of num_ooms that a limit refused, before the device was asked */
    /* Host memory pinned for the device: blocks obtained from the backend, in use or kept; and those in tensors' hands. */
    ctrt_memory_figure host_allocations, host_allocated_bytes, host_active_requests, host_active_bytes;
    ctrt_memory_times host_alloc_time, host_free_time;      /* of the backend's calls; count: how many */
    /* Under a policy that moves memory: blocks whose bytes are on the host instead; allocated: went there, freed: came back, or were let go of. */
    ctrt_memory_figure spilled, spilled_bytes;
} ctrt_memory_figures;
CTRT_API ctrt_status ctrt_memory_get_figures(ctrt_memory_figures *out, ctrt_device *device);

/* One figure by PyTorch's name: "allocated_bytes.all.peak", "segment.small_pool.current", "num_ooms"; those of pinned host memory with
 * "host." before it: "host.allocated_bytes.current", "host.num_host_alloc", "host.host_alloc_time.avg". CTRT_ERR_NOT_FOUND with the
 * nearest name. */
CTRT_API ctrt_status ctrt_memory_stat_get(int64_t *value, ctrt_device *device, const char *key);
/* The `index`-th name, NULL past the last. Static lifetime. */
CTRT_API const char *ctrt_memory_stat_key(size_t index);

/* A table of the figures for people, 75 columns wide; abbreviated: without the lines for the two pools. */
CTRT_API ctrt_status ctrt_memory_summary(char **out, ctrt_device *device, bool abbreviated);
/* All figures as one JSON object: {"device": ..., "policy": ..., "stats": {"allocated_bytes.all.current": ...}}. */
CTRT_API ctrt_status ctrt_memory_summary_json(char **out, ctrt_device *device);

/* ---- peaks of a part of the program ---- */

/* Measures peaks from its beginning to its end. Scopes nest and overlap as they like, in one thread or several, each
 * with its own exact peaks; they cost allocations nothing. */
typedef struct ctrt_memory_scope ctrt_memory_scope;
typedef struct ctrt_memory_peaks {
    uint64_t allocated_bytes, requested_bytes, reserved_bytes, allocations;     /* at most at one time */
    uint64_t allocated_before;          /* bytes that were allocated when the scope began */
} ctrt_memory_peaks;
/* *out (NULL or a scope to end, by the assignment rule) becomes a new scope of `device`. CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_memory_scope_begin(ctrt_memory_scope **out, ctrt_device *device);
/* The peaks so far. */
CTRT_API ctrt_status ctrt_memory_scope_read(ctrt_memory_peaks *out, ctrt_memory_scope *scope);
/* The peaks of the whole scope into *out (may be NULL), frees the scope and nulls the variable. */
CTRT_API ctrt_status ctrt_memory_scope_end(ctrt_memory_peaks *out, ctrt_memory_scope **scope);
/* Ends a scope unread: for CTRT_AUTO(memory_scope). */
CTRT_API void ctrt_memory_scope_release(ctrt_memory_scope **scope);

/* ---- limits ---- */

/* From now on at most `bytes` are drawn from `device` by this process: blocks, cached memory, workspaces, and host memory
 * pinned for tensors (not where the spill policy puts what does not fit). What is drawn already stays. UINT64_MAX: no limit. An
 * allocation that would pass the limit fails as if the device were full: the cache is given back, it is tried again, and the
 * error says how much is allowed. Overrides CTRT_MEMORY_LIMIT. */
CTRT_API ctrt_status ctrt_memory_set_limit(ctrt_device *device, uint64_t bytes);
/* The same as a part of the device's memory. CTRT_ERR_INVALID_ARGUMENT unless 0 <= fraction <= 1, CTRT_ERR_NOT_SUPPORTED when the
 * device does not say how much it has. */
CTRT_API ctrt_status ctrt_memory_set_fraction(ctrt_device *device, double fraction);
/* The limit in bytes; UINT64_MAX: none. */
CTRT_API uint64_t ctrt_memory_limit(ctrt_device *device);

/* ---- who has it ---- */

/* Names what the calling thread does from here to the matching pop, for memory that it takes: "encoder", "epoch 3". Tags
 * nest: "encoder" and within it "attention" is "encoder/attention". Modules push their dotted paths by themselves while memory is
 * watched. Tags are kept until the process ends: use few different ones. */
CTRT_API ctrt_status ctrt_memory_tag_push(const char *tag);
/* CTRT_ERR_STATE without a matching push. */
CTRT_API ctrt_status ctrt_memory_tag_pop(void);
/* The calling thread's tags, joined; "" without any. Valid until the process ends. */
CTRT_API const char *ctrt_memory_tag(void);

/* What is noted of each block while it lives (state), and of what happened (all). Asynchronous devices have state from the
 * start, since it costs them nothing that can be seen; synchronous ones none. CTRT_MEMORY_HISTORY=state|all[:ENTRIES]|frames[:ENTRIES]
 * says otherwise. Frames cost each event a walk over the stack, about a microsecond. */
typedef enum ctrt_memory_watch {
    CTRT_MEMORY_WATCH_NONE,
    CTRT_MEMORY_WATCH_STATE,            /* address, size, tag, op, time of each live block */
    CTRT_MEMORY_WATCH_ALL,              /* and the last `entries` events */
    CTRT_MEMORY_WATCH_FRAMES            /* and the calls that led to each, where the C library can tell them */
} ctrt_memory_watch;
/* For all devices, those that are opened later too. entries 0: 65536. Blocks that live already count as "(not watched)". NONE
 * forgets all that was noted. Errors: CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_memory_set_watch(ctrt_memory_watch watch, size_t entries);
/* Puts a remark into the history, between the events. Nothing happens while that is off. */
CTRT_API ctrt_status ctrt_memory_annotate(ctrt_device *device, const char *text);

/* One owner of live blocks: tag, and op that took them. */
typedef struct ctrt_memory_owner {
    const char *tag, *op;               /* "" when not known; valid until the process ends */
    uint64_t bytes, requested, blocks;
} ctrt_memory_owner;
/* The owners, largest first, into a new array of *count that the caller frees with free(). Their bytes add up to
 * ctrt_memory_allocated: what is not known has the tag "(not watched)". */
CTRT_API ctrt_status ctrt_memory_owners(ctrt_memory_owner **out, size_t *count, ctrt_device *device);

/* Segments, blocks, owners and history as JSON; `ctrt memory` makes a page of it. The members are PyTorch's (segments,
 * device_traces), see doc/memory.md. */
CTRT_API ctrt_status ctrt_memory_snapshot(char **out, ctrt_device *device);
/* The same into the file `path`, by the rules of ctrt_save (ctrt/checkpoint.h): a regular file is replaced as a whole
 * and keeps its permissions; a pipe, a device and /dev/stdout are written to in place. CTRT_ERR_IO. */
CTRT_API ctrt_status ctrt_memory_snapshot_write(const char *path, ctrt_device *device);

/* ---- out of memory ---- */

/* What was found at the device's last CTRT_ERR_OUT_OF_MEMORY, as JSON: sizes, limits, fragmentation, owners, advice.
 * CTRT_ERR_NOT_FOUND when there was none. */
CTRT_API ctrt_status ctrt_memory_last_oom(char **out, ctrt_device *device);
/* Called in the thread whose allocation of `bytes` failed, after all locks are dropped and before the call returns; it may
 * use the library. `report`: as above, valid during the call. NULL: nobody. */
typedef void (*ctrt_memory_oom_callback)(void *user, ctrt_device *device, size_t bytes, const char *report);
CTRT_API void ctrt_memory_set_oom_callback(ctrt_memory_oom_callback callback, void *user);

/* ---- metrics ---- */

typedef enum ctrt_metrics_format { CTRT_METRICS_PROMETHEUS, CTRT_METRICS_JSON } ctrt_metrics_format;
/* Figures of all open devices for a monitor: text in Prometheus' format 0.0.4, or JSON. Peaks are those since the last call
 * of this function, so that nothing is missed between two readings. */
CTRT_API ctrt_status ctrt_memory_metrics(char **out, ctrt_metrics_format format);

/* ---- giving everything back ---- */

/* Waits for the device's work and gives back all that is cached for it, pinned host memory too. CTRT_ERR_STATE, with the number of
 * bytes and their largest owner, when tensors still live there; all that can be given back was. */
CTRT_API ctrt_status ctrt_memory_release_all(ctrt_device *device);
/* The same for all open devices, and closes them: queues and their threads, events, pinned memory, the backend's context. Devices in host
 * memory stay open. A device of which tensors, streams, events or plans are alive stays open as well: CTRT_ERR_STATE says how many. Work that
 * failed and was not asked for yet gives its error, and the device is closed. The first error is returned, all devices are treated.
 *
 * ctrt_device_get opens a closed device again, as at first, under the same handle; until then that gives CTRT_ERR_STATE. Figures and
 * limits stay. While this runs, no other thread may use the devices. */
CTRT_API ctrt_status ctrt_shutdown(void);

/* ---- plans: what would a step take? ---- */

/* Between begin and end, work on `device` is only planned: tensors are made and let go of, and the device's memory policy decides as it
 * would in earnest, beginning with what is allocated and cached now, but nothing is computed and no memory is drawn. So a program runs
 * its step once, shapes only, and knows the peak of the real one to the byte:
 *
 *     ctrt_memory_plan *plan = NULL;
 *     ctrt_memory_prediction found;
 *     CTRT_TRY(ctrt_memory_plan_begin(&plan, device));
 *     status = step(...);                              // forward, backward, optimizer: the same code
 *     CTRT_TRY(ctrt_memory_plan_end(&found, &plan));
 *
 * Where the real step would run out of memory, the plan notes it and goes on as if the device were larger. What the step computes
 * reads as 0. Tensors that were there before keep their values, and lose their memory for good when the step lets go of them.
 * The device's random numbers go on after the plan as before it; ctrt_optimizer_step counts no step. Tensors that are made in the plan
 * should be gone at its end, gradients too (ctrt_optimizer_zero_grad): on an asynchronous device work on what is left fails with
 * CTRT_ERR_STATE, in host memory it has zeros that nobody counts.
 *
 * Other threads must not use the device meanwhile, and a step over several devices needs a plan for each. Memory that depends on
 * values is planned for zeros. On synchronous devices the peaks are those of one thread. In the child of a fork a plan goes on if the
 * thread that forked had begun it; others are over there, and ctrt_memory_plan_end gives CTRT_ERR_FORKED. */
typedef struct ctrt_memory_plan ctrt_memory_plan;
typedef struct ctrt_memory_prediction {
    uint64_t peak_allocated, peak_requested, peak_reserved;     /* as ctrt_memory_max_allocated, _max_reserved after the step */
    uint64_t allocated_before, allocated_after, reserved_before, reserved_after;
    uint64_t left_bytes, left_blocks;   /* made by the plan, and still there at its end */
    uint64_t allocations, largest_request;
    const char *peak_op, *peak_tag;     /* what took the memory that made the peak; "" when not known; valid until the process ends */
    bool fits;                          /* in what the device has, and in ctrt_memory_set_limit */
    uint64_t failed_bytes;              /* the first request that does not, and whose it is */
    const char *failed_op, *failed_tag;
} ctrt_memory_prediction;
/* *out (NULL, or a plan to end, by the assignment rule) becomes a plan of `device`. CTRT_ERR_STATE when one is running there already,
 * CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_memory_plan_begin(ctrt_memory_plan **out, ctrt_device *device);
/* Plans for a device of `bytes` (all that the process may draw there) instead of what it has. Before the first op. */
CTRT_API ctrt_status ctrt_memory_plan_set_limit(ctrt_memory_plan *plan, uint64_t bytes);
/* Did everything so far fit? */
CTRT_API bool ctrt_memory_plan_fits(const ctrt_memory_plan *plan);
/* What was found, into *out (may be NULL); ends the plan and nulls the variable. */
CTRT_API ctrt_status ctrt_memory_plan_end(ctrt_memory_prediction *out, ctrt_memory_plan **plan);
/* Ends a plan unread: for CTRT_AUTO(memory_plan). */
CTRT_API void ctrt_memory_plan_release(ctrt_memory_plan **plan);

CTRT_END_DECLS

#endif
