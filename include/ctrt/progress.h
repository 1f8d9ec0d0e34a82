/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/progress.h: a progress bar for any loop.
 *
 *     CTRT_AUTO(progress) bar = NULL;
 *     ctrt_progress_options options = CTRT_PROGRESS_OPTIONS;
 *     options.unit = "images";
 *     CTRT_TRY(ctrt_progress_new(&bar, steps, &options));
 *     for (int64_t step = 0; step < steps; step++) {
 *         ...
 *         ctrt_progress_note(bar, "loss %.4f", loss);
 *         ctrt_progress_add(bar, 1);
 *     }
 *
 * On a terminal the bar is one line, which is written again at most ten times a second:
 *
 *     train  42%|############                | 210/500 [00:12<00:17, 17.1 images/s] loss 0.4182
 *
 * The brackets contain the elapsed time, the estimated time left and the rate. If the output is not a terminal, the bar
 * is a plain line every 10 seconds. The last state is written when the bar is released.
 *
 * CTRT_PROGRESS selects what is written: `auto` (the default), `bar` (as on a terminal), `lines` (plain lines) or `no`
 * (nothing). A malformed value is logged as a warning and counts as `auto`.
 *
 * A bar must not be used by two threads at the same time. Functions that get NULL in place of a bar have no effect. */
#ifndef CTRT_PROGRESS_H
#define CTRT_PROGRESS_H

#include "ctrt/types.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_progress ctrt_progress;

typedef struct ctrt_progress_options {
    size_t initialized;                 /* the size; CTRT_PROGRESS_OPTIONS sets it */
    const char *name;                   /* written before the bar; copied; NULL: nothing */
    const char *unit;                   /* what is counted, for the rate: "images"; copied; NULL: "it" */
    int64_t scale;                      /* units per step, for the rate: the batch size if steps are batches [1] */
    double interval;                    /* seconds between two writes; negative [-1]: 0.1 on a terminal, else 10 */
    int fd;                             /* file descriptor that is written to [2] */
    bool silent;                        /* writes nothing, for example on all ranks but the first */
} ctrt_progress_options;
#define CTRT_PROGRESS_OPTIONS { sizeof(ctrt_progress_options), 0, 0, 1, -1, 2, false }

/* Creates a bar over `total` steps; 0: unknown, then it shows neither the bar itself nor the time left. The time begins
 * now. `options` NULL: the defaults. On success *out owns the bar (assignment rule of ctrt/base.h).
 *
 * Errors: CTRT_ERR_INVALID_ARGUMENT (a negative total, scale, interval or descriptor), CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_progress_new(ctrt_progress **out, int64_t total, const ctrt_progress_options *options);

/* Counts `steps` more steps and writes the line if the interval has passed. Write errors are ignored. Costs about as
 * much as reading the clock when nothing is written. */
CTRT_API void ctrt_progress_add(ctrt_progress *progress, int64_t steps);

/* Replaces the text after the bar, from a printf format; at most 199 bytes. The text appears with the next write. */
CTRT_API void ctrt_progress_note(ctrt_progress *progress, const char *format, ...) CTRT_PRINTF(2, 3);

/* Returns whether the next ctrt_progress_add would write, so that a value for the note is computed only when it is
 * shown (a loss on a GPU must be waited for). */
CTRT_API bool ctrt_progress_due(const ctrt_progress *progress);

/* Returns the number of steps counted so far; 0 for NULL. */
CTRT_API int64_t ctrt_progress_count(const ctrt_progress *progress);

/* Writes the last state, ends the line, frees *progress and sets it to NULL. */
CTRT_API void ctrt_progress_release(ctrt_progress **progress);

CTRT_END_DECLS

#endif
