/* SPDX-License-Identifier: Apache-2.0 */
/* base/progress.h: the text of a progress bar, apart from clock and terminal. */
#ifndef CORE_BASE_PROGRESS_H
#define CORE_BASE_PROGRESS_H

#include "ctrt/progress.h"

struct progress_state {
    const char *name, *unit, *note;     /* "" if there is none */
    int64_t total, count;               /* steps; total 0: unknown */
    double seconds;                     /* elapsed */
    double rate;                        /* steps per second; 0: not known yet */
    double scale;                       /* units per step */
};

#define PROGRESS_LINE 512

/* Writes the line, without end of line, into `line`. It has at most `columns` columns, which must be less than
 * PROGRESS_LINE: the bar takes what the texts leave, and long texts are cut. `bar` false: without the bar. Returns
 * `line`. */
char *progress_format(char line[PROGRESS_LINE], const struct progress_state *state, int columns, bool bar);

#endif
