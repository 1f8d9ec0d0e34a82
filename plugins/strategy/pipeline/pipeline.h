/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/pipeline.h: the strategy `pipeline`: the children of a Sequential in stages, one stage per
 * device, and a batch in micro-batches that follow one another through the stages.
 *
 * The module itself is run, not a copy: its parameters and buffers are moved to the devices of their stages (place.c).
 * A step (step.c) runs each micro-batch forward, stage by stage, and backward in the reverse order. Between two stages
 * the graph is cut: a stage begins with a leaf, whose gradient is the upstream gradient of the stage before. */
#ifndef PIPELINE_H
#define PIPELINE_H

#include "ctrt/ctrt.h"
#include "ctrt/strategy_plugin.h"

struct stage {
    ctrt_device *device;
    size_t first, end;                      /* children first..end-1 of the module */
    size_t *parameters, *buffers;           /* indices in pipeline.tensors */
    size_t parameter_count, buffer_count;
    ctrt_stream *activations, *gradients;   /* for copies to the device; owned; NULL: not created yet */
};

struct pipeline {
    ctrt_module *module;                    /* borrowed */
    ctrt_device *const *devices;
    int n;
    int32_t canonical;                      /* number of shards; 0: off */
    int64_t micro;                          /* number of micro-batches; 0: 4 per stage */
    bool gpipe;                             /* the schedule; else 1f1b */

    ctrt_module **children;                 /* borrowed */
    size_t child_count;
    struct stage *stages;
    int stage_count;
    ctrt_tensor **tensors;                  /* the module's parameters, then buffers; owned */
    size_t parameters, count;               /* number of parameters; of all tensors */
    ctrt_tensor **before, **grads;          /* gradients from before a step, and those of the step; scratch */
};

/* ---- placement (place.c) ---- */

/* Divides the children over the stages and moves them. `split`: NULL or "", or the first children of the further
 * stages, "3,5". On failure the module is where it was. */
ctrt_status pipeline_place(struct pipeline *p, const char *split);
/* Checks that the module has the children and the tensors with which it was placed, on the devices of their stages. If
 * tensors were replaced or added, lists all tensors again. */
ctrt_status pipeline_refresh(struct pipeline *p);
/* Frees what pipeline_place allocated; the tensors stay on their devices. */
void pipeline_unplace(struct pipeline *p);

/* ---- steps (step.c) ---- */

ctrt_status pipeline_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);
ctrt_status pipeline_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* Releases the streams for copies, which the next step creates again (stage.c). */
void streams_free(struct pipeline *p);

ctrt_status no_memory(void);

#endif
