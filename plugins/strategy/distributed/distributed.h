/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/distributed.h: the strategy `distributed`: data parallelism over the ranks of a
 * communicator, PyTorch's DistributedDataParallel. Each rank has the whole module and its own part of the batch.
 *
 * Gradients are copied into flat buckets as the backward pass computes them (reduce.c). A complete bucket is multiplied
 * by this rank's weight and added up over the ranks by an asynchronous all_reduce while the backward pass continues; at
 * the end the sums are copied back. Buckets are reduced in the order of their numbers, so that all ranks issue the same
 * collectives. All ranks write the same bits, whatever their gradients were before. */
#ifndef DISTRIBUTED_H
#define DISTRIBUTED_H

#include "buckets.h"
#include "ctrt/ctrt.h"
#include "ctrt/strategy_plugin.h"

struct distributed;

/* A parameter that requires grad. */
struct slot {
    struct distributed *d;
    ctrt_tensor *tensor;                    /* owned */
    size_t parameter;                       /* its index in the module */
    size_t bucket;
    ctrt_tensor *view;                      /* its part of the bucket's memory; owned */
    uint64_t hook;
    bool hooked;
    bool ready;                             /* its gradient is in the bucket */
    bool used;                              /* it got a gradient since the last reduction */
};

struct bucket {
    size_t first, count;                    /* indices in d->order */
    size_t waiting;                         /* gradients that are not there yet */
    ctrt_tensor *flat;                      /* owned */
    ctrt_work *work;                        /* the reduction that runs; owned */
};

/* Why gradients are computed at the moment, which decides who reduces them. */
enum mode {
    IDLE,
    STEP,                                   /* a step; it reduces the rest itself */
    FORWARD,                                /* a backward pass of the program, after a forward pass */
    LOCAL,                                  /* not reduced by hooks: canonical mode, no_sync */
};

struct distributed {
    ctrt_module *module;                    /* borrowed */
    ctrt_comm *comm;                        /* borrowed */
    ctrt_device *device;
    int rank, size;
    int32_t canonical;
    bool distinct;                          /* no two ranks are threads with one device */
    bool no_sync, broadcast_buffers;
    int64_t audit, steps;                   /* audit: every so many steps; 0: never */
    uint64_t bucket_bytes;

    ctrt_tensor **tensors;                  /* the module's parameters, then buffers; owned */
    size_t parameters, count;               /* number of parameters; of all tensors */
    ctrt_tensor **grads, **before;          /* parameters + 1; scratch of a step */

    struct slot *slots;
    size_t slot_count;
    size_t *order;                          /* slots in the order of the buckets */
    struct bucket *buckets;
    size_t bucket_count, next;              /* next: the bucket that is reduced next */
    size_t *seen, seen_count;               /* slots in the order of the first reduction's gradients */
    bool reduced, rebuilt;                  /* there was a reduction; buckets have the order of `seen` */

    enum mode mode;
    bool started;                           /* a gradient has arrived since the forward pass */
    int64_t rows;                           /* of this rank, since the last reduction */
    ctrt_tensor *totals;                    /* rows of all ranks: of this step, and since the last reduction */
    ctrt_work *totals_work;
    ctrt_tensor *weight;                    /* of this rank's gradients; NULL: 1 / size */
};

ctrt_status no_memory(void);

/* ---- exchange.c: coalesced collectives ---- */

enum exchange { EXCHANGE_BROADCAST, EXCHANGE_SEND, EXCHANGE_RECV };

/* Broadcasts `count` tensors from rank `peer`, or sends them to it, or receives them from it, in groups of one dtype.
 * Tensors that are NULL are left out. */
ctrt_status exchange(struct distributed *d, enum exchange how, ctrt_tensor *const *tensors, size_t count, int peer);
/* The same for numbers. */
ctrt_status exchange_numbers(struct distributed *d, enum exchange how, int64_t *numbers, size_t count, int peer);
/* Writes the `count` numbers of each rank to out[size * count]. */
ctrt_status gather_numbers(struct distributed *d, int64_t *out, const int64_t *numbers, size_t count);

/* ---- verify.c ---- */

/* Collective. `status`: the result of work that this rank did alone. Fails on all ranks if it is a failure on any: a
 * rank that failed gets its own error, the others that of the lowest rank that failed. */
ctrt_status verify_ready(struct distributed *d, ctrt_status status);
/* Compares names, dtypes, shapes and requires_grad of parameters and buffers, and options, with those of rank 0. On a
 * difference all ranks fail with the same message. */
ctrt_status verify_structure(struct distributed *d);
/* Compares the values of the parameters with those of rank 0. */
ctrt_status verify_values(struct distributed *d);
/* Finds d->distinct. */
ctrt_status verify_devices(struct distributed *d);

/* ---- reduce.c ---- */

/* Creates slots and buckets, and adds the hooks. */
ctrt_status reduce_new(struct distributed *d);
/* Allocates the memory of the buckets. Collective, also if it fails on this rank. */
ctrt_status reduce_memory(struct distributed *d);
void reduce_free(struct distributed *d);
/* Called before the first gradient of a pass; rebuilds the buckets if that is due (collective). */
ctrt_status reduce_rebuild(struct distributed *d);
void reduce_begin(struct distributed *d, enum mode mode);
/* Starts to add up the rows of all ranks, which give the weights of a step. */
ctrt_status reduce_weights(struct distributed *d, int64_t rows);
/* Ends a step: reduces the other buckets, decides which parameters are unused on all ranks, writes the gradients back.
 * `loss`: this rank's, NULL without rows; *mean receives the mean over all rows. */
ctrt_status reduce_finish(struct distributed *d, ctrt_tensor **mean, ctrt_tensor *loss, int64_t rows);
/* Gives up a reduction. */
void reduce_cancel(struct distributed *d);
/* CTRT_ERR_STATE, naming the parameters without gradient, if a backward pass has begun and not computed all. */
ctrt_status reduce_check(const struct distributed *d);

/* ---- canonical.c ---- */

ctrt_status canonical_step(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
ctrt_status canonical_forward(struct distributed *d, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);

#endif
