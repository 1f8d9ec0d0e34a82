/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/sharded.h: the strategy `sharded`: data parallelism over the ranks of a communicator, in
 * which each rank has a part of the parameters, gradients and states of optimizers. This is ZeRO (Rajbhandari et al.
 * 2020) as PyTorch's fully_shard (FSDP2) implements it.
 *
 * Between steps, the module's tensors are this rank's shards, so optimizers update only these. A pass replaces the
 * shards by the gathered parameters (ctrt_tensor_set_data) while the forward and backward pass of their module runs.
 * Parameters are divided along dimension 0 into chunks of ceil(rows / ranks) rows.
 *
 * The parameters of a module below the root are a group. The parameters of one dtype in a group are a part. A part has
 * one flat shard, whose slices are the shards of the parameters. Each part is gathered by one collective, and its
 * gradients are reduced by one.
 *
 * All ranks issue the same collectives in the same order, even if their modules compute different things: gathers in
 * the order of `sequence`, reductions in the reverse order of the groups. Gathers and reductions use separate
 * communicators, because the order of a gather relative to a reduction differs between ranks. */
#ifndef SHARDED_H
#define SHARDED_H

#include "../ranks/ranks.h"

struct sharded;

/* A parameter. */
struct sharded_slot {
    struct ranks_leaf leaf;
    size_t group;
    int ndim;                               /* of the whole parameter */
    int64_t shape[CTRT_MAX_DIMS];
    int64_t rows, chunk, row;               /* rows of the whole parameter and of a chunk; elements of a row */
    int64_t first, own;                     /* rows of this rank */
    int64_t offset, grad_offset;            /* in the flat tensors of the part, in elements */
    ctrt_tensor *shard;                     /* a slice of the part's shard; owned */
    ctrt_tensor *full;                      /* the gathered parameter; owned; NULL: not gathered */
    ctrt_tensor *absent;                    /* without elements, in the shape of the whole parameter; owned */
    ctrt_tensor *shard_grad;                /* the shard's gradient in the state SLOT_WHOLE; owned */
    ctrt_tensor *local_grad;                /* whole gradient of a pass without reduction; owned */
    ctrt_tensor *local_grad_sum;            /* sum of the whole gradients of passes without reduction; owned */
    ctrt_tensor *host;                      /* whole parameter on the cpu while a file is written; owned */
    enum slot_state state;                  /* changed by slot_set */
};

static inline struct sharded *sharded_of(const struct sharded_slot *slot)
{
    return (struct sharded *)slot->leaf.r;
}

/* The parameters of one dtype in a group. */
struct sharded_part {
    size_t first, count;                    /* slots */
    size_t training;                        /* slots that require grad */
    ctrt_dtype dtype;
    int64_t numel, grad_numel;              /* elements of a shard: of all slots, of those that require grad */
    ctrt_tensor *shard;                     /* owned */
    ctrt_tensor *flat;                      /* the output of the gather: shards of all ranks; owned */
    ctrt_work *gather;
    ctrt_tensor *sent;                      /* whole gradients, as one shard per rank; owned */
    ctrt_tensor *received;                  /* this rank's shard of their sum; owned */
    ctrt_work *reduce;                      /* the reduction within the row or over the column; owned */
};

struct sharded_group {
    ctrt_module *module;                    /* borrowed */
    size_t first, count;                    /* slots */
    size_t part, parts;
    uint64_t hooks;                         /* of the module; 0: none */
    bool keep;                              /* stays gathered from the forward to the backward pass; constant */
    bool frozen;                            /* some parameter does not require grad; constant */
    enum gather_state gather;
    enum reduce_state reduce;
    size_t waiting;                         /* gradients that the backward pass has not computed yet */
    uint32_t pass;                          /* the pass for which it is open */
    struct sharded_group *outer;            /* while its forward pass runs: the group whose module called it */
    uint64_t first_call, last_call;         /* in a forward pass: numbers of its first begin and its last end */
    size_t forward_index, backward_index;   /* in the sequence; SIZE_MAX: not in it */
};

/* A module below that of a group, which must not run between passes. */
struct sharded_inner {
    ctrt_module *module;                    /* owned */
    uint64_t hooks;
};

/* A state that is whole while an optimizer is saved. */
struct sharded_swap {
    ctrt_tensor *tensor, *was;              /* the handle, and the elements that it gets back; owned */
};

struct sharded {
    struct ranks r;
    uint32_t serial;                        /* of this instance in this process */
    int stage;
    bool save_parts;                        /* each rank saves its shards to a file of its own; constant */
    int mesh_rows, mesh_columns;
    int column;                             /* of this rank in the mesh: the index of its chunk */
    ctrt_comm *gathers, *reduces;           /* of this rank's row; owned */
    ctrt_comm *columns;                     /* of this rank's column; NULL: one row; owned */

    struct sharded_slot *slots;             /* r.leaf_count, by group and part */
    struct sharded_part *parts;
    size_t part_count;
    struct sharded_group *groups;           /* group 0: of the module itself */
    size_t group_count;
    struct sharded_inner *inner;
    size_t inner_count;
    size_t *order;                          /* groups in the order of the forward pass */
    enum order order_state;
    size_t *recorded, recorded_count;       /* groups in the order in which their modules first ran */

    uint32_t pass;                          /* number of the pass */
    uint32_t joined;                        /* earlier passes whose backward pass runs together with that of this one */
    struct sharded_group *running;          /* the innermost one whose forward pass runs */
    uint64_t calls;
    size_t *sequence, sequence_count, forward_count, issued;    /* groups to gather */
    const struct sharded_group *regathered; /* gathered again outside of the sequence, because its module ran again */
    uint32_t regathered_hash;               /* of these groups in their order, 20 bits; 0: none */
    size_t next;                            /* index of the next group in the order of reductions */
    bool verified;                          /* since the first reduction: the kinds of the losses were compared */

    struct sharded_swap *swaps;
    size_t swap_count;
};

/* ---- group.c ---- */

/* Divides the module into groups and parts. */
ctrt_status groups_make(struct sharded *s);
void groups_free(struct sharded *s);
/* Creates the shards, and moves buffers to the device. The module keeps its parameters. */
ctrt_status shards_make(struct sharded *s);
/* Replaces the parameters and their gradients by the shards. Cannot fail after shards_make. */
void shards_show(struct sharded *s);
/* Writes to *out a new tensor on `device` with this rank's rows of `whole`, which has the shape of the whole
 * parameter. */
ctrt_status sharded_rows_cut(ctrt_tensor **out, const struct sharded_slot *slot, ctrt_tensor *whole,
                             ctrt_device *device);
/* Opens a group whose parameters are gathered: its slots are WHOLE; closes it, if it is open: they are ABSENT. */
ctrt_status group_open(struct sharded *s, struct sharded_group *group);
void group_close(struct sharded *s, struct sharded_group *group);
/* Changes the state of a slot. `data`: for SLOT_WHOLE and SLOT_UNDIVIDED, the elements of the whole parameter. Can fail
 * only for these two. */
ctrt_status slot_set(struct sharded_slot *slot, enum slot_state state, ctrt_tensor *data);
/* Sets all slots to SLOT_ABSENT at the beginning of a pass, and to SLOT_SHARD at its end. */
void slots_absent(struct sharded *s);
void slots_shard(struct sharded *s);
/* Whether the module's tensors are shards. */
bool slots_divided(const struct sharded *s);
/* Frees the gathered parameters, and waits for a gather that runs. */
void group_forget(struct sharded *s, struct sharded_group *group);
/* The same for all groups; the slots are shards again. */
void groups_forget(struct sharded *s);

/* ---- gather.c ---- */

/* Gathers the parameters of a group at once, outside of the sequence. All ranks call it. */
ctrt_status group_gather(struct sharded *s, struct sharded_group *group);
/* Computes the sequence of the gathers of a pass. All ranks call it. `backward`: a backward pass follows. */
ctrt_status sequence_begin(struct sharded *s, bool backward);
/* Gathers and opens a group for the forward or backward pass of its module; begins to gather the next one. */
ctrt_status sequence_open(struct sharded *s, struct sharded_group *group, bool backward);
/* Issues the remaining gathers of the forward pass, or of both passes, so that all ranks issue the same ones. Frees the
 * parameters that are not needed any more. */
ctrt_status sequence_end(struct sharded *s, bool backward);
/* After the forward pass, begins to gather the first group of the backward pass. */
ctrt_status sequence_turn(struct sharded *s);

/* ---- reduce.c ---- */

void sharded_reduce_begin(struct sharded *s);
/* The slot calls->gradient. */
ctrt_status sharded_gradient(struct ranks_leaf *leaf, ctrt_tensor *grad);
/* Marks the group as complete in the backward pass; gradients that were not computed count as zero. */
ctrt_status sharded_reduce_complete(struct sharded *s, struct sharded_group *group);
/* Ends a step. `loss`: this rank's loss, or NULL without rows. *mean receives the loss of all rows; owned. */
ctrt_status sharded_reduce_finish(struct sharded *s, ctrt_tensor **mean, ctrt_tensor *loss);
/* Ends a step without reduction. */
ctrt_status sharded_reduce_local(struct sharded *s, ctrt_tensor **loss);
/* Adds whole gradients r.grads[], of which all ranks have the same bits, to the gradients of the shards. */
ctrt_status sharded_reduce_cut(struct sharded *s);
/* Waits for reductions that run, and drops their results. */
void sharded_reduce_cancel(struct sharded *s);
/* ---- hooks.c ---- */

/* Adds and removes the hooks of the groups' modules. */
ctrt_status sharded_hooks_add(struct sharded *s);
void sharded_hooks_remove(struct sharded *s);
/* Fails with CTRT_ERR_STATE if another instance in this process divides one of the parameters. */
ctrt_status instance_check(const struct sharded *s);
/* Creates the tensor of a slot in the state SLOT_ABSENT. */
ctrt_status slot_absent_new(struct sharded_slot *slot);
/* Registers this instance, so that hooks of graphs and tensors can find it, and sets its serial number. */
ctrt_status instance_add(struct sharded *s);
void instance_remove(const struct sharded *s);

/* ---- sharded.c ---- */

/* Ends the present pass, complete or not. All tensors are shards again, with their gradients. */
void pass_close(struct sharded *s);
/* Ends the present pass (pass_close). Fails with CTRT_ERR_STATE if its backward pass is not complete. */
ctrt_status pass_check(struct sharded *s);

/* ---- checkpoint.c ---- */

ctrt_status checkpoint_event(void *self, ctrt_module_event event, void *argument);
void checkpoint_end(struct sharded *s);

#endif
