/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/runner.h: runs the blocks of a kernel launch in the calling thread, the threads of a block as fibers:
 * functions that can be suspended and resumed. */
#ifndef SOFTCUDA_RUNNER_H
#define SOFTCUDA_RUNNER_H

#include <stdbool.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "api.h"
#include "block.h"

/* ---- fiber.c ---- */

struct fiber {
    void *sp;                           /* saved stack pointer */
    char *stack;                        /* lowest byte; a guard page is below. NULL: the thread's own stack */
    size_t bytes;
    void *fake;                         /* AddressSanitizer's fake stack */
    struct fiber *next;                 /* for use by the owner */
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

/* Returns a fiber that calls `entry` when it is switched to for the first time. `entry` must not return. Fibers are
 * reused. */
struct fiber *fiber_new(void (*entry)(void));
/* Returns a fiber for reuse. It may be suspended anywhere but must not be running. */
void fiber_free(struct fiber *fiber);
/* Suspends `from`, in which the caller runs, and resumes `to`. Returns when `from` is resumed. */
void fiber_switch(struct fiber *from, struct fiber *to);
/* Must be called first in an entry. `came_from`: the fiber that ran before. */
void fiber_begin(struct fiber *came_from);

/* ---- launches ---- */

enum runner_order { ORDER_FORWARD, ORDER_RANDOM };

struct launch {
    _Alignas(16) const struct softcuda_kernel *kernel;
    const struct softcuda_library *library;
    const void *arguments;
    size_t argument_bytes;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned device;
    int order;                          /* enum runner_order: of threads and blocks */
};

/* The result of a launch. code: 0, or the result code that the driver reports. */
struct outcome {
    int code;
    char text[512];
    unsigned races;
};

void runner_launch(const struct launch *launch, struct outcome *outcome);
/* Frees the state of a thread that has run launches. Call before the thread exits. */
void runner_end_thread(void);

/* memory.c: whether a kernel on `device` may access memory outside its own device's blocks. If it may not, describes
 * the memory in `text`. */
bool runner_allowed(const void *address, size_t bytes, bool write, unsigned device, char *text, size_t text_bytes);

/* ---- the state of a running block, for block.c and warp.c ---- */

enum lane_state { LANE_NEW, LANE_RUNNING, LANE_READY, LANE_BARRIER, LANE_WARP, LANE_ENDED };

struct lane {                                   /* state of a thread */
    enum lane_state state;
    int kind, line;                             /* of the barrier or warp operation where it waits */
    const char *file;
    unsigned mask, argument;
    uint64_t value, result;
    struct fiber *fiber;
};

/* Lanes of a warp that wait with the same mask. */
struct gathering { unsigned mask, arrived; };

struct warp {
    unsigned living;                            /* bit mask of lanes that have not ended */
    unsigned n_gatherings;
    struct gathering gatherings[32];
};

struct softcuda_runner {
    const struct launch *launch;
    struct outcome *outcome;
    struct fiber host;                          /* the stream's host thread */
    struct fiber *running, *came_from, *idle;
    unsigned threads, begun, living, current;
    unsigned step, offset;                      /* of the random order */
    unsigned at_barrier;
    int barrier_line;
    const char *barrier_file;
    unsigned queue_at, queued;
    uint16_t queue[SOFTCUDA_BLOCK_THREADS];     /* ready threads, first in first out */
    struct lane lanes[SOFTCUDA_BLOCK_THREADS];
    struct warp warps[SOFTCUDA_BLOCK_THREADS / 32];
    uint32_t warp_epochs[SOFTCUDA_BLOCK_THREADS / 32];
    unsigned n_fibers;
    struct fiber *fibers[SOFTCUDA_BLOCK_THREADS + 1];
    char *dynamic;
    size_t dynamic_bytes;
    struct softcuda_race *races;
    size_t race_words;
    char *fixed;                                /* static shared memory for which `written` is */
    unsigned char *written;
    size_t parts;
};

/* block.c */
void runner_ready(struct softcuda_runner *runner, unsigned thread);
void runner_wait(struct softcuda_runner *runner);
void runner_fail(struct softcuda_runner *runner, int code, const char *format,
                 ...) __attribute__((format(printf, 3, 4)));

/* warp.c */
void runner_shared(struct softcuda_runner *runner, size_t dynamic_bytes);
const char *warp_name(int kind);
void warp_begin(struct softcuda_runner *runner);
void warp_left(struct softcuda_runner *runner, unsigned thread);

#endif
