/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_TRAINING_H
#define CTRT_TRAINING_H
#include "ctrt/amp.h"
#include "ctrt/data.h"
#include "ctrt/optim.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_training_state {
    size_t size;
    ctrt_module *module;
    ctrt_optimizer *optimizer;
    ctrt_grad_scaler *scaler;
    ctrt_loader *loader;
    int64_t step;
} ctrt_training_state;
#define CTRT_TRAINING_STATE CTRT_SIZED_(ctrt_training_state)
CTRT_API ctrt_status ctrt_training_save(const char *path, const ctrt_training_state *state);
CTRT_API ctrt_status ctrt_training_load(ctrt_training_state *state, const char *path);
CTRT_END_DECLS
#endif
