/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/run.h: what a step or a forward pass keeps until its end (run.c), and the passes of one
 * stage (stage.c). */
#ifndef PIPELINE_RUN_H
#define PIPELINE_RUN_H

#include "pipeline.h"

struct pipeline_slot {                               /* one micro-batch in one stage; owned; NULL: not there (yet) */
    ctrt_tensor *input;                     /* a leaf, on the stage's device */
    ctrt_tensor *output;                    /* with history; of the last stage the loss */
    ctrt_tensor *gradient;                  /* of `output`, on the stage's device */
};

struct generator {
    uint64_t seed, offset;
};

struct buffer {
    ctrt_tensor *before, *after;            /* copies; after: as micro-batch 0 left it; NULL: not changed */
    uint32_t version;
};

struct run {
    struct pipeline *p;
    const ctrt_strategy_batch *batch;       /* NULL: forward only */
    ctrt_tensor *const *originals;          /* of the module of the program: parameters, then buffers */
    int64_t rows, micro;                    /* number of micro-batches */
    int64_t *sizes, *firsts;                /* rows of each */
    ctrt_tensor *x;                         /* the whole batch on the first device */
    ctrt_tensor **inputs;                   /* the other inputs of the whole batch on the last device */
    struct pipeline_slot *slots;                     /* slots[stage * micro + m] */
    int64_t *forwards, *backwards;          /* number of passes that each stage has enqueued */
    struct generator *generators;           /* of the stages' devices, from before */
    struct generator *numbers;              /* of each micro-batch, at the point that it has reached */
    bool random;                            /* a micro-batch has used random numbers */
    struct buffer *buffers;                 /* canonical mode: of all buffers */
    ctrt_sum_tree **sums;                   /* canonical mode: of the gradients of each stage */
    ctrt_sum_tree *loss;                    /* of the losses and their weights */
    ctrt_loss_part total;                   /* of the losses, without the weights */
    ctrt_tensor *seed;                      /* the gradient of the loss of `seed_rows` rows; NULL: not created yet */
    int64_t seed_rows;
    ctrt_tensor **leaves;                   /* scratch: the gradients of one micro-batch */
    /* Canonical mode: gradients of parameters of other stages that the loss function uses, until the stage's backward
     * pass; early[m * parameters + i]; owned; NULL: none so far. */
    ctrt_tensor **early;
};

static inline struct pipeline_slot *slot_of(const struct run *run, int s, int64_t m)
{
    return &run->slots[(int64_t)s * run->micro + m];
}

/* ---- run.c ---- */

/* Divides the rows into micro-batches and allocates the lists. */
ctrt_status run_begin(struct run *run);
void run_free(struct run *run);
/* The rows of micro-batch m. In canonical mode as a copy, so that kernels find the same alignment on every device. */
ctrt_status pipeline_rows_cut(ctrt_tensor **out, const struct run *run, ctrt_tensor *whole, int64_t m);

/* Random numbers: they do not depend on the devices. Micro-batch m begins with the state of the first device's
 * generator, advanced by (m + 1) * 2^32, and takes the state along from stage to stage. In canonical mode this gives
 * the numbers that `single` uses. */
ctrt_status numbers_save(struct run *run);
/* Returns the offset with which micro-batch m begins. */
uint64_t numbers_first(const struct run *run, int64_t m);
/* The generators get their states from before, except that the first device's continues after the numbers of all
 * micro-batches if the run has used any. */
ctrt_status numbers_end(const struct run *run, ctrt_status status);

/* Buffers: in canonical mode every micro-batch begins with the same values. */
ctrt_status buffers_copy(struct run *run);
/* Called after the forward pass of micro-batch m. */
ctrt_status buffers_next(struct run *run, const struct stage *stage, int64_t m);
/* The buffers get the values that micro-batch 0 left, or after a failure those from before. */
ctrt_status buffers_end(struct run *run, ctrt_status status);

/* ---- stage.c ---- */

/* Runs `x` through a stage, with the random numbers of the micro-batch. */
ctrt_status stage_run(ctrt_tensor **y, struct run *run, int s, int64_t m, ctrt_tensor *x);
/* Enqueue one pass of a step and the copy of its result to the next device. The stage's device is the current one. */
ctrt_status stage_forward(struct run *run, int s, int64_t m);
ctrt_status stage_backward(struct run *run, int s, int64_t m);
/* Computes the loss of a micro-batch with its weight (NULL: no fraction), and its backward pass. The last stage's
 * device is the current one. */
ctrt_status loss_run(ctrt_tensor **loss, ctrt_tensor **weight, struct run *run, int64_t m, ctrt_tensor *output);
ctrt_status loss_backward(struct run *run, ctrt_tensor *loss, int64_t m);

/* ---- step.c ---- */

/* Copies the batch before the devices have other work: a copy from the host would wait for it. */
ctrt_status batch_copy(struct run *run);

#endif
