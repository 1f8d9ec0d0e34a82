/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/distributed.h: the strategy `distributed`: data parallelism over the ranks of a
 * communicator, PyTorch's DistributedDataParallel. Each rank has the whole module and its own part of the batch.
 *
 * Gradients are copied into flat buckets as the backward pass computes them (reduce.c). A complete bucket is
 * multiplied by this rank's weight and added up over the ranks by an asynchronous all_reduce while the backward pass
 * continues. The sums become the gradients; gradients from before the step receive copies of them. Buckets are
 * reduced in the order of their numbers, so that all ranks issue the same collectives. All ranks write the same
 * bits, whatever their gradients were before. */
#ifndef DISTRIBUTED_H
#define DISTRIBUTED_H

#include <stdio.h>

#include "buckets.h"
#include "../ranks/ranks.h"

struct distributed;

/* A parameter that requires grad. */
struct distributed_slot {
    struct ranks_leaf leaf;                 /* arrived: `view` exists */
    size_t bucket;
    int64_t offset;                         /* in the bucket's memory, in elements */
    ctrt_tensor *view;                      /* its part of that memory; owned; NULL: not ready */
    bool used_before;                       /* leaf.used before the pass that is being captured */
    bool used_globally;                     /* a rank used it in the last reduction */
    ctrt_tensor *before;                    /* its gradient before the pass that is being captured; owned; NULL: none */
    ctrt_tensor *replayed;                  /* its gradient in the group, if a replay has written the last one; owned */
};

struct distributed_bucket {
    size_t first, count;                    /* indices in d->order */
    enum bucket_state state;
    size_t waiting;                         /* gradients that are not there yet */
    int64_t numel;                          /* of its memory */
    ctrt_dtype dtype;
    ctrt_tensor *shared;                    /* memory that processes share, on synchronous devices; owned */
    ctrt_tensor *flat;                      /* its memory during a pass, allocated for the first gradient; owned */
    ctrt_tensor **gradients;                /* for hooks: views of the slots, borrowed; `count` of them */
    ctrt_work *work;                        /* the reduction, or a stage of the hook, that runs; owned */
    int stage;                              /* of the hook: the next one */
    ctrt_tensor *sent;                      /* of the hooks f16 and bf16: the bucket in that dtype; owned */
};

/* State for CTRT_ON_FAILURE=shrink (survive.c, share.c). */
enum { MOST_OPTIMIZERS = 8 };
struct survive {
    bool on;                                /* CTRT_ON_FAILURE=shrink; constant */
    bool own;                               /* the failure began on this rank, which therefore forms no new group */
    bool skipped;                           /* this rank has got the result of the step from another one */
    void (*set_comm)(void *net, ctrt_comm *comm);
    void *net;
    int64_t completed;                      /* steps before the one that runs */
    struct weights weights;                 /* values from before the step, see struct ranks; `sum` is a copy */
    bool *used;                             /* [leaf_count] */
    ctrt_tensor **buffers;                  /* copies of the buffers; owned */
    bool joining, joining_now;              /* a rank waits to join: after the last step, after this one */
    double loss, loss_now;                  /* mean loss of the last step and of this one */
    ctrt_dtype loss_dtype;
    /* Optimizers in the order of their first steps, borrowed until CTRT_MODULE_OPTIMIZER_END; the state that each gets
     * before its next step, owned, or NULL; the number of all their steps. */
    ctrt_optimizer *optimizers[MOST_OPTIMIZERS];
    struct optimizer_image *pending[MOST_OPTIMIZERS];
    int64_t optimizer_steps;
};

struct distributed {
    struct ranks r;
    struct survive survive;
    int64_t done;                           /* completed steps (ctrt_parallel_steps); with survive.on, `steps` are */
    int64_t audit, steps;                   /* audit: every so many steps; 0: never */
    uint64_t bucket_bytes;

    struct distributed_slot *slots;         /* r.leaf_count */
    size_t *order;                          /* slots in the order of the buckets */
    struct distributed_bucket *buckets;
    size_t bucket_count, next;              /* next: the bucket that is reduced next */
    size_t *recorded, recorded_count;       /* slots in the order of the first reduction's gradients */
    enum order order_state;                 /* RECORDED since the first reduction; AGREED: the buckets have the order */

    ctrt_comm_hook hook;                    /* NULL: all_reduce */
    void *hook_user;
    const char *hook_name;                  /* of a hook that CTRT_DISTRIBUTED_HOOK has chosen; else "" */
    struct powersgd *powersgd;              /* owned; NULL: not chosen */
    uint32_t layout;                        /* number of times that the buckets were made */

    bool captured;                          /* the pass that runs, or the last one, is being captured */
    bool group_open;                        /* captured steps whose losses are no means wait for the reducing one */
    int64_t group_steps;                    /* captured steps since the last captured reduction */
    /* Gradients from before a step, or from before the steps since the last reduction, to which the sums of losses that
     * are no means are added; [parameters], owned. */
    ctrt_tensor **base;
};

/* ---- reduce.c ---- */

/* Creates slots and buckets, and adds the hooks. Later calls: creates buckets as the first one. */
ctrt_status distributed_reduce_new(struct distributed *d);
/* Allocates the memory of the buckets. Collective, also if it fails on this rank. */
ctrt_status distributed_reduce_memory(struct distributed *d);
void distributed_reduce_free(struct distributed *d);
/* Called before the first gradient of a pass; rebuilds the buckets if that is due (collective). */
ctrt_status distributed_reduce_rebuild(struct distributed *d);
ctrt_status distributed_reduce_begin(struct distributed *d, enum pass_kind kind);
/* Called when this rank's loss of a step is known (d->r.weights.part): starts to add up what gives the weights of the
 * ranks, and puts gradients from before aside if the buckets must not contain them. */
ctrt_status distributed_reduce_weights(struct distributed *d);
/* Moves the gradients in d->r.before to d->base, or back. */
void base_move(struct distributed *d, bool back);
/* Ends a step: reduces the other buckets, decides which parameters are unused on all ranks, writes the gradients
 * back. `loss`: this rank's, NULL without rows; *mean receives the loss of all rows. */
ctrt_status distributed_reduce_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss);
/* Ends a reduction that has failed. */
void distributed_reduce_cancel(struct distributed *d);
/* The slot calls->gradient. */
ctrt_status distributed_gradient(struct ranks_leaf *leaf, ctrt_tensor *grad);

/* ---- capture.c: passes in a capture of the device's stream ---- */

/* CTRT_ERR_STATE in a capture if the buckets are not final. */
ctrt_status capture_check(struct distributed *d);
/* Sets d->captured for the pass that begins. capture_end restores what a pass that does not run must not change. */
void capture_begin(struct distributed *d);
void capture_end(struct distributed *d);
/* Lets r.stream join the capture. */
ctrt_status capture_join(struct distributed *d);
/* Called at the beginning of a pass with gradients that is not captured: CTRT_ERR_STATE if the gradients of replayed
 * steps of the group are not those of the parameters. The group is dropped then. */
ctrt_status capture_mixed(struct distributed *d);
/* Lets each replay of a complete step of one rank count it. */
ctrt_status capture_alone(struct distributed *d);
/* Let each replay count a step, and begin the weights of a step: creates d->totals and d->own. */
ctrt_status capture_step(struct distributed *d);
ctrt_status capture_weights(struct distributed *d);
/* Let each replay count the end of a reduction, or of a step without. */
ctrt_status capture_reduced(struct distributed *d);
ctrt_status capture_local(struct distributed *d);
/* *stats: 0, then 1 for each slot that this rank uses. used[s + 1]: whether slot s is reduced. The counts of all ranks
 * cannot be read in a capture, so a slot that this rank does not use is reduced if the last step did that. */
ctrt_status capture_stats(struct distributed *d, ctrt_tensor **stats, double *used);

/* ---- hooks.c, powersgd.c ---- */

/* Reads the parameters and chooses the hook. */
ctrt_status hook_choose(struct distributed *d);
enum { HOOK_NAME, HOOK_RANK, HOOK_START };
extern const ctrt_param hook_params[];
/* Writes a line that ranks compare. */
void hook_text(const struct distributed *d, FILE *file);
void hook_free(struct distributed *d);
/* Whether buckets of the dtype are compressed: f32 and f64. f16 and bf16 have no bits to spare, and their sums of
 * squares overflow in the orthogonalisation of PowerSGD. */
bool hook_compresses(const ctrt_gradient_bucket *bucket);

/* The hook PowerSGD; its user is the struct. `rank`: of the approximations; `start`: reductions without compression. */
ctrt_status powersgd_new(struct powersgd **out, int64_t rank, int64_t start);
void powersgd_free(struct powersgd *state);
ctrt_status powersgd_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user);

/* ---- distributed.c ---- */

/* One step without recovery. */
ctrt_status step_once(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* Makes the ranks of d->comm, which are new, ready for steps: compares their modules, creates the buckets and gives all
 * of them the state of one. `status`: of what this rank has done alone. Collective. */
ctrt_status distributed_meet(struct distributed *d, ctrt_status status);

/* ---- survive.c: steps of which ranks may be lost ---- */

/* Reads CTRT_ON_FAILURE. With `shrink`, refuses modules and modes that cannot continue after a rank is lost. */
ctrt_status survive_begin(struct distributed *d, const ctrt_strategy_config *config);
void survive_end(struct distributed *d);
/* Makes a step. If a rank is lost, forms a group of the remaining ranks and repeats the step. */
ctrt_status survive_step(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* If `status` is the failure of another rank, forms a group of the remaining ranks, again if further ranks are lost.
 * Returns `status` for other failures. */
ctrt_status survive_rebuild(struct distributed *d, ctrt_status status);
ctrt_status survive_barrier(struct distributed *d);
/* Waits until the step's work is done, so that its failure is found before the gradients change. */
ctrt_status survive_settle(struct distributed *d, ctrt_tensor *mean);
/* Registers an optimizer at its first step and applies a state that was received for it; removes it when it is
 * freed. */
ctrt_status survive_event(struct distributed *d, ctrt_module_event event, ctrt_optimizer *optimizer);

/* ---- share.c: the state that ranks get from the one that is ahead ---- */

/* Copies state from the source, which is the lowest rank that has completed the most steps: parameters and buffers
 * to all ranks; the optimizers' state and the number of steps to ranks that have completed fewer steps. Collective. */
ctrt_status share_state(struct distributed *d);
ctrt_status image_apply(struct optimizer_image *image, ctrt_optimizer *optimizer);
void image_free(struct optimizer_image **image);

#endif
