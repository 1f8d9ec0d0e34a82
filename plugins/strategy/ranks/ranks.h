/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/ranks.h: common code of `distributed` and `sharded`, the strategies in which each rank has a
 * part of the batch: this rank's module, comparisons of the ranks' modules, coalesced messages, passes over this
 * rank's rows, and canonical steps. The code is compiled into each of the two plugins. */
#ifndef STRATEGY_RANKS_H
#define STRATEGY_RANKS_H

#include "../common.h"
#include "states.h"

/* Which code reduces the gradients of a pass. */
enum pass_kind {
    EVALUATION,                             /* none: a forward pass without gradients */
    STEP,                                   /* ctrt_parallel_step: the hooks, and the end of the step the other ones */
    PROGRAM,                                /* only the hooks: a forward pass whose backward pass the program calls */
    UNHOOKED,                               /* not the hooks: a canonical step, or (distributed) a local one */
};

/* A parameter whose gradients the ranks add up: the first member of a strategy's slot. */
struct ranks_leaf {
    struct ranks *r;
    ctrt_tensor *tensor;                    /* the module's parameter; borrowed from r->tensors */
    size_t parameter;                       /* its index in the module */
    uint64_t hook;                          /* 0: none */
    bool trains;                            /* requires grad; constant */
    bool arrived;                           /* in this pass its gradient was computed, or counts as zero */
    bool used;                              /* it has got a gradient since the last reduction, in any pass */
};

/* The functions of the strategy. */
struct ranks_calls {
    const char *name;                       /* of the strategy, for messages */
    /* The backward pass has computed the gradient of a leaf, except in passes of the kind UNHOOKED. */
    ctrt_status (*gradient)(struct ranks_leaf *leaf, ctrt_tensor *grad);
    /* The loss of this rank's rows is known (weights_part), and its backward pass begins. */
    ctrt_status (*loss_known)(struct ranks *r);
    /* Ends the pass after an error, and aborts the communicators with the message (ranks_abort). */
    void (*give_up)(struct ranks *r, ctrt_status status, const char *message);
};

/* ---- weights.c: the weights of the ranks' losses ---- */

enum { WEIGHTS_JOINING = 5, WEIGHTS_TOTALS };       /* place in `totals`: ranks that wait to join; number of places */

struct weights {
    ctrt_device *device;
    /* Since the last reduction: */
    int64_t steps;                          /* without reduction */
    bool begun;                             /* this rank had rows; then: */
    int32_t kind;                           /* of the losses */
    int64_t rows, first_rows;               /* of this rank: all, and in the first such step */
    double unit;                            /* gradients of sums S are those of S / unit; of means 0 */
    ctrt_tensor *sum;                       /* of the weights of fractions; f64, owned, changed in place */
    /* Of the step that runs: */
    ctrt_loss_part part;                    /* of this rank; parts 0: it has no rows */
    int64_t part_rows;
    double number;                          /* the loss, times this number, is what the ranks add up */
    ctrt_tensor *totals;                    /* owned */
    ctrt_tensor *own;                       /* in a capture: weights_own; owned */
    ctrt_work *work;
    ctrt_tensor *weight;                    /* of this rank's gradients; owned; NULL: not known yet */
};
struct weights_step {                       /* what a step adds to the numbers since the last reduction */
    bool known;                             /* this rank has rows */
    int32_t kind;
    int64_t rows;
    double number;
};

/* The first member of a strategy. Flags are constant after the creation, except for sync_active, no_sync and local. */
struct ranks {
    const struct ranks_calls *calls;
    ctrt_module *module;                    /* borrowed */
    ctrt_comm *comm;                        /* borrowed */
    /* For the collectives of SyncBatchNorm layers; owned. A communicator of their own, because their order relative to
     * the collectives of gradients differs between ranks. NULL: no such layers, or one rank. */
    ctrt_comm *sync;
    int32_t sync_layers;
    bool sync_active;                       /* a SyncBatchNorm layer is in training mode: other ranks may wait in it */
    ctrt_device *device;
    int rank, size;
    int32_t canonical;
    bool distinct;                          /* no two ranks are threads with one device */
    bool broadcast_buffers;
    int refused;                            /* rank that made the last comparison fail on all ranks; -1: none */
    bool from_cpu;                          /* the module may be on the cpu when the strategy is created */

    ctrt_tensor **tensors;                  /* the module's parameters, then buffers; owned */
    size_t parameters, count;               /* number of parameters, and of all tensors */
    ctrt_tensor **grads, **before;          /* parameters + 2, parameters + 1; scratch of a step */

    struct ranks_leaf **leaves;             /* of the strategy's slots, in their order */
    size_t leaf_count;
    ctrt_stream *stream;                    /* for work beside the backward pass; owned; NULL: a synchronous device */
    struct weights weights;                 /* of the ranks' losses */
    double *stats;                          /* [leaf_count + 3], see leaves_stats */

    bool no_sync;                           /* the program's choice for the next pass */
    bool local;                             /* this pass does not reduce (sharded) */
    enum pass pass;
    enum pass_kind kind;                    /* of the pass; from the last one in PASS_IDLE */
};

/* ---- weights.c ---- */

ctrt_status weights_new(struct weights *w, ctrt_device *device);
void weights_free(struct weights *w);
/* Begins a step: the loss of this rank's rows. `part` NULL or no rows: none. Multiplies *factor, that of the gradient.
 * `equal_rows`: gradients are proportional to the rows of the ranks, as SyncBatchNorm layers expect. */
ctrt_status weights_part(struct weights *w, const ctrt_loss_part *part, int64_t rows, bool equal_rows, double *factor);
/* The same for a forward pass whose loss, a mean, the program computes; then starts to add up the totals or, without
 * reduction, counts the step. `rows`: of this rank. */
ctrt_status weights_mean(struct weights *w, int64_t rows);
ctrt_status weights_forward(struct weights *w, ctrt_comm *comm, bool reduces);
/* Starts to add up the totals. `joining`: see WEIGHTS_JOINING. */
ctrt_status weights_reduce(struct weights *w, ctrt_comm *comm, int joining);
/* Sets w->weight, if weights_reduce was called. The host does not wait for the device. */
ctrt_status weights_find(struct weights *w);
/* Waits for the device. CTRT_ERR_STATE if the kind of the loss is another one on other ranks. */
ctrt_status weights_verify(struct weights *w);
/* Whether this rank knows the kind, because it has rows now or had some since the last reduction; the kind. */
bool weights_known(const struct weights *w);
int32_t weights_kind(const struct weights *w);
/* The weight of ctrt_batch_ranks. */
double weights_rows(const struct weights *w, int64_t rows);
/* For captures: the totals before the weights of fractions, the dividend of the weight. */
void weights_numbers(const struct weights *w, double numbers[WEIGHTS_TOTALS], int joining);
double weights_own(const struct weights *w);
/* Multiplies a rank's gradients by its weight; without one, by that of equal numbers of rows. */
ctrt_status weights_apply(struct weights *w, ctrt_tensor *gradients, int size);
/* Adds numbers[count] up over the ranks, of which the first is the loss (NULL: none) times w->number. *mean: the
 * loss of all rows. Writes the sums to `numbers` if `read`; then the host waits. `recorded`: NULL or, in a capture, a
 * tensor with the numbers. */
ctrt_status weights_stats(ctrt_tensor **mean, struct weights *w, ctrt_comm *comm, ctrt_tensor *loss, double *numbers,
                          size_t count, ctrt_tensor *recorded, bool read);
/* *loss: the loss of this rank's rows alone, from that of its backward pass; NULL on entry without rows. */
ctrt_status weights_local_loss(ctrt_tensor **loss, const struct weights *w);
/* For a rank that does not know the kind. *keeps: 1 if the sums over the ranks are without the gradients from before
 * the step, as for losses that are no means; 0 if they are with them. */
ctrt_status weights_keeps(ctrt_tensor **keeps, const struct weights *w);
/* The end of a step without reduction: weights_count changes the numbers, weights_add the sum on the device. */
struct weights_step weights_step(const struct weights *w);
void weights_count(struct weights *w, const struct weights_step *step);
ctrt_status weights_add(struct weights *w);
/* The end of a reduction: weights_reset changes the numbers, weights_clear, which is first, the sum on the device. */
void weights_reset(struct weights *w);
ctrt_status weights_clear(struct weights *w);
/* Ends a step, complete or not. */
void weights_end(struct weights *w);

/* ---- ranks.c ---- */

extern const ctrt_param ranks_failure_param;        /* CTRT_ON_FAILURE */
/* The slot no_sync of a strategy. */
ctrt_status ranks_no_sync(void *self, bool on);

/* Sets calls, module, communicator, device, rank, size and canonical. */
void ranks_init(struct ranks *r, const struct ranks_calls *calls, const ctrt_strategy_config *config);
void ranks_free(struct ranks *r);
/* Finds the tensors of the module and the number of its SyncBatchNorm layers. CTRT_ERR_DEVICE for a tensor on another
 * device. */
ctrt_status ranks_find(struct ranks *r);
/* Fails with CTRT_ERR_STATE if the module's tensors have changed since ranks_find, because all ranks have compared
 * those. Sets sync_active. */
ctrt_status ranks_check(struct ranks *r);
/* Compares the modules of all ranks (verify.c), and creates the communicator of the SyncBatchNorm layers. `status`:
 * whether this rank is ready. `options`: see verify_structure. Collective. */
ctrt_status ranks_join(struct ranks *r, ctrt_status status, const char *options);
/* Returns the name of the `index`-th of all tensors, for messages. */
const char *ranks_name(const struct ranks *r, size_t index);
/* Begins a pass; ends it, or gives it up, if one runs. */
void ranks_pass_begin(struct ranks *r, enum pass_kind kind);
void ranks_pass_end(struct ranks *r);
/* Broadcasts rank 0's buffers if broadcast_buffers is set and the module is in training mode. Passes that reduce
 * gradients begin and end with it, so that after them all ranks have the same buffers to save. */
ctrt_status ranks_buffers(struct ranks *r);
/* Number of rows of the inputs of a forward pass. */
int64_t ranks_rows(ctrt_tensor *const *inputs);
/* Runs a forward pass of the inputs. */
ctrt_status ranks_forward(struct ranks *r, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);
/* Runs forward pass, loss and backward pass of this rank's rows, with weights_part and calls->loss_known between loss
 * and backward pass, also without rows. A rank without rows runs the passes only if SyncBatchNorm layers need its
 * collectives; *loss stays NULL. */
ctrt_status ranks_backward(struct ranks *r, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* Aborts the communicators of `r` and comms[count] (NULL entries are allowed) with the message, because the other ranks
 * would wait for this one. */
void ranks_abort(struct ranks *r, ctrt_comm *const *comms, int count, const char *message);
/* If `status` is an error, calls calls->give_up, because the other ranks would wait for this one. Returns `status` with
 * the same message. */
ctrt_status ranks_fail_all(struct ranks *r, ctrt_status status);

/* ---- gradients.c ---- */

/* Fills a leaf and adds it to r->leaves. */
void leaf_add(struct ranks *r, struct ranks_leaf *leaf, size_t parameter);
/* After the last leaf: creates stream, weights and stats, and adds hooks to the leaves that train. */
ctrt_status gradients_new(struct ranks *r);
void gradients_free(struct ranks *r);
/* Called when a gradient of the pass arrives. CTRT_ERR_STATE if the pass expects none, or if it has arrived before;
 * `advice`, for the message. */
ctrt_status gradient_arrives(const struct ranks_leaf *leaf, const char *advice);
/* Fails with CTRT_ERR_STATE if a backward pass of the program has begun and has not computed all gradients. The message
 * names the parameters without gradient. */
ctrt_status gradients_check(const struct ranks *r);
/* Sets stats[0] to 0 and stats[i + 1] to whether this rank uses leaf i. Returns whether it uses all that train. */
bool leaves_stats(struct ranks *r);
/* Begins the count of uses again. */
void leaves_unused(struct ranks *r);

/* ---- exchange.c: coalesced collectives ---- */

enum exchange { EXCHANGE_BROADCAST, EXCHANGE_SEND, EXCHANGE_RECV };

/* Broadcasts `count` tensors from rank `peer`, sends them to `peer` or receives them from `peer`, with one message for
 * several tensors of one dtype. NULL tensors are skipped; all ranks must have the same ones. */
ctrt_status exchange(struct ranks *r, enum exchange how, ctrt_tensor *const *tensors, size_t count, int peer);
/* The same for numbers. */
ctrt_status exchange_numbers(struct ranks *r, enum exchange how, int64_t *numbers, size_t count, int peer);
/* Writes the `count` numbers of each rank to out[size * count]. */
ctrt_status gather_numbers(struct ranks *r, int64_t *out, const int64_t *numbers, size_t count);
/* Sets order[count] to rank 0's: recorded[recorded_count], then the others of 0..count-1, the highest first. `recorded`
 * may be `order`. CTRT_ERR_STATE if rank 0 sends no permutation. */
ctrt_status exchange_order(struct ranks *r, size_t *order, size_t count, const size_t *recorded, size_t recorded_count);

/* ---- verify.c ---- */

/* Compares the ranks' `status`. If it is an error on some rank, all ranks fail: a rank with an error returns its own,
 * and the other ranks return that of the lowest such rank. Collective. */
ctrt_status verify_ready(struct ranks *r, ctrt_status status);
/* Compares `options`, a text of lines, and names, dtypes, shapes and requires_grad of parameters and buffers with those
 * of rank 0. On a difference all ranks fail with the same message. */
ctrt_status verify_structure(struct ranks *r, const char *options);
/* Compares the values of the parameters with those of rank 0. `step`: its number, for the message. */
ctrt_status verify_values(struct ranks *r, int64_t step);
/* Sets r->distinct. Collective. */
ctrt_status verify_devices(struct ranks *r);

/* ---- canonical.c ---- */

/* Runs a step of the whole batch in canonical mode. The module must have no gradients at the beginning. The result plus
 * r->before[] becomes the gradients of the module on all ranks. */
ctrt_status canonical_step(struct ranks *r, ctrt_tensor **loss, const ctrt_strategy_batch *batch);

#endif
