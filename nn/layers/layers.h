/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/layers.h: functions shared by the standard modules (layers_*.c). */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H

#include "nn/module/module.h"

/* Initialises the weight and bias of a linear layer or a convolution with uniform values in +-1/sqrt(fan_in), which is
 * PyTorch's default. `bias` may be NULL. */
ctrt_status layer_init_uniform(ctrt_tensor *weight, ctrt_tensor *bias);

/* ---- batch norm ---- */

/* State of BatchNorm1d, BatchNorm2d and SyncBatchNorm (parallel/strategy/sync_batch_norm.c). */
struct batch_norm {
    ctrt_tensor *weight, *bias, *running_mean, *running_var, *batches;  /* borrowed; weight and bias may be NULL */
    double epsilon, momentum;           /* negative momentum: cumulative average */
    struct ctrt_comm *comm;             /* of SyncBatchNorm only: that of the program; owned, or NULL */
};

/* Creates a module of `class_of`, whose state is a struct batch_norm; see ctrt_batch_norm1d_new. `who`: the function
 * that error messages name. */
ctrt_status batch_norm_new(ctrt_module **out, const ctrt_module_class *class_of, const char *who, int64_t features,
                           const ctrt_batch_norm_options *options, ctrt_device *device);
/* Returns whether the class of the module is BatchNorm1d or BatchNorm2d. */
bool batch_norm_is(const ctrt_module *module);
/* In training mode, counts the batch and writes its weight in the update of the running statistics; else writes -1. */
ctrt_status batch_norm_begin(double *momentum, ctrt_module *self);
/* The forward pass with the statistics of x or, in evaluation mode, the running statistics. */
ctrt_status batch_norm_run(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *x);

#endif
