/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/grad_scaler.h: the struct of gradient scalers (ctrt/amp.h). grad_scaler.c has the algorithm,
 * grad_scaler_state.c state, files and reports. */
#ifndef NN_GRAD_SCALER_H
#define NN_GRAD_SCALER_H

#include <pthread.h>

#include "ctrt/amp.h"
#include "ctrt/stream.h"

enum scaler_stage { SCALER_READY, SCALER_UNSCALED, SCALER_STEPPED };

/* An optimizer since the last update, with a reference. */
struct scaled_optimizer {
    ctrt_optimizer *optimizer;
    enum scaler_stage stage;
    bool checked;                       /* `found` of its places is set */
};

struct ctrt_grad_scaler {
    ctrt_grad_scaler_options options;   /* with defaults filled in; init_scale: the scale while `scale` is NULL */
    int64_t init_tracker;               /* likewise */
    pthread_mutex_t lock;               /* held while the scale is created: several threads may scale losses */
    ctrt_tensor *scale, *tracker;       /* f32 and i32, 0-dim; NULL before the first loss */
    ctrt_tensor *skips;                 /* i32 [2], on the same device: skipped steps in a row, and all */
    struct dryrun_cleanup *cleanup;     /* NULL: these three have never been created in a dry run */
    struct scaled_optimizer *optimizers;
    size_t count, capacity;
    /* With max_skips on an asynchronous device: an asynchronous copy of `skips` to the host. */
    ctrt_tensor *copy;                  /* in pinned memory; NULL: not created yet */
    ctrt_event *copied;
    bool copying;
};

/* Checks the ranges of a state. Fails with `refusal` and a message that begins with `who`. */
ctrt_status scaler_state_check(const ctrt_grad_scaler_state *state, const char *who, ctrt_status refusal);
/* Fails if `in_a_row` reaches max_skips. */
ctrt_status scaler_skips_check(const ctrt_grad_scaler *scaler, int64_t in_a_row, const char *who);

#endif
