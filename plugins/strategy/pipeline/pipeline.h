/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/pipeline.h: the strategy `pipeline`. It divides the children of a Sequential into stages,
 * one stage per device, and a batch into micro-batches that follow one another through the stages.
 *
 * The strategy runs the module itself, not a copy, and moves its parameters and buffers to the devices of their stages
 * (place.c). At first it divides the children by the size of their tensors, and in the first step by the memory that
 * the step needs (measure.c, divide.c). A step (step.c) runs each micro-batch forward, stage by stage, and backward in
 * the reverse order. The autograd graph is cut between two stages: a stage begins with a leaf, whose gradient is the
 * upstream gradient of the stage before. */
#ifndef PIPELINE_H
#define PIPELINE_H

#include "../common.h"

struct stage {
    ctrt_device *device;
    size_t first, end;                      /* children first..end-1 of the module */
    size_t *parameters, *buffers;           /* indices in pipeline.tensors */
    size_t parameter_count, buffer_count;
    ctrt_stream *activations, *gradients;   /* for copies to the device; owned; NULL: not created yet */
    uint64_t bytes;                         /* predicted peak of this stage in a step; 0: not predicted */
};

/* The memory of one micro-batch in one child, in bytes (measure.c). The loss counts as a child after the last one. */
struct child_memory {
    int64_t input;                          /* its input */
    int64_t kept;                           /* growth by its forward pass, after its input is released */
    int64_t freed;                          /* freed by the release of its input after the forward pass */
    int64_t forward;                        /* peak of the forward pass, above the bytes before it */
    /* Peaks of the backward pass, above the bytes before the forward pass, without gradients of the parameters of later
     * children. [0]: of the first micro-batch, which creates gradients; [1]: of later micro-batches, which add to these
     * gradients; their bytes are not included. _last: if the child's output is held until the end of the backward
     * pass. */
    int64_t backward[2], backward_last[2];
};

struct pipeline {
    ctrt_module *module;                    /* borrowed */
    ctrt_device *const *devices;
    int n;
    int32_t canonical;                      /* number of shards; 0: off */
    int64_t micro;                          /* number of micro-batches; 0: 4 per stage */
    int64_t states;                         /* tensors per parameter of the optimizer; -1: unknown */
    bool gpipe;                             /* the schedule; else 1f1b */
    bool moved;                             /* children could not be moved to their stages; the next step tries again */
    bool settled;                           /* the division is final: given by the program, or made in a step */

    ctrt_module **children;                 /* borrowed */
    size_t child_count;
    struct stage *stages;
    int stage_count;
    ctrt_tensor **tensors;                  /* the module's parameters, then buffers; owned */
    size_t parameters, count;               /* number of parameters; of all tensors */
    ctrt_tensor **before, **grads;          /* gradients from before a step, and those of the step; scratch */
};

/* ---- placement (place.c) ---- */

struct owner {                              /* the range of children that contain a tensor */
    size_t first, last;                     /* first > last: none */
};

/* Divides the children into stages by their parameters and buffers, and moves them. `split`: the first children of the
 * stages after the first one, such as "3,5"; NULL or "": chosen here. On failure nothing has moved. */
ctrt_status pipeline_place(struct pipeline *p, const char *split);
/* Unless the division is settled, divides the children by the memory that `batch` needs (measure.c, divide.c) and moves
 * them. On failure nothing has moved, unless moving children back fails too, which the message says; the next
 * pipeline_refresh moves them back then. Does nothing and returns CTRT_OK if the memory cannot be measured. */
ctrt_status pipeline_place_batch(struct pipeline *p, const ctrt_strategy_batch *batch);
/* Checks that the module has the children and the tensors with which it was placed, on the devices of their stages. If
 * tensors were replaced or added, lists all tensors again. */
ctrt_status pipeline_refresh(struct pipeline *p);
/* Frees what pipeline_place allocated; the tensors stay on their devices. */
void pipeline_unplace(struct pipeline *p);
/* Returns the stage that contains the child. */
int stage_of(const struct pipeline *p, size_t child);

/* ---- measuring (measure.c) ---- */

/* Measures one micro-batch of the batch by a dry run on all devices. Writes memory[p->child_count + 1]; *micro, the
 * number of micro-batches; and copies[], the bytes of the copies of the batch on the first and on the last device.
 * CTRT_ERR_NOT_SUPPORTED for a module that cannot be copied. */
ctrt_status pipeline_measure(struct child_memory *memory, int64_t *micro, uint64_t copies[2], const struct pipeline *p,
                             const ctrt_strategy_batch *batch);

/* ---- division (divide.c) ---- */

/* The measurements from which a division is made. */
struct demand {
    const struct child_memory *memory;      /* child_count + 1; NULL: only parameters, gradients and buffers count */
    int64_t micro;
    uint64_t copies[2];
};

/* Sets first, end and bytes of the stages. CTRT_ERR_OUT_OF_MEMORY, with a list of the stages, if no division fits; then
 * the stages are undefined. */
ctrt_status pipeline_divide(struct pipeline *p, const struct owner *owners, const struct demand *demand);
/* Checks that the given stages fit on their devices. */
ctrt_status pipeline_check(struct pipeline *p, const struct owner *owners, const struct demand *demand);

/* ---- steps (step.c) ---- */

ctrt_status pipeline_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);
ctrt_status pipeline_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* Releases the streams for copies, which the next step creates again (stage.c). */
void streams_free(struct pipeline *p);

/* ---- pipeline.c ---- */

void pipeline_describe(void *self, char *text, size_t bytes);

#endif
