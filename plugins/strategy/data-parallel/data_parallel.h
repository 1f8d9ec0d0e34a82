/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/data_parallel.h: the strategy `data-parallel`: one process, one thread and one copy
 * of the module per device, a part of the batch on each.
 *
 * Replica 0 is the module itself, on devices[0]; the others are copies that live as long as the strategy. A step
 *
 *   1. copies parameters and buffers that have changed since the last step to the replicas, while forward passes begin
 *      (replicas.c),
 *   2. runs forward, loss and backward of each part of the batch in the thread of its device (workers.c),
 *   3. adds the gradients up by a binary tree over the devices, bucket by bucket, while the backward passes still run
 *      (reduce.c), and adds the sums to the gradients of the module. */
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "../common.h"

struct data_parallel;

/* ---- threads ---- */

struct workers;

/* Creates a thread for each of dp->devices[1..n-1], as far as possible. */
ctrt_status workers_new(struct workers **out, const struct data_parallel *dp);
void workers_free(struct workers *workers);
/* Runs function(user, i) for i below `count`, 0 in the calling thread and the others in the threads of their devices,
 * which get the calling thread's grad mode, labels and current streams, as found by streams_find before. Returns when
 * all have returned. The error is that of the lowest i, and begins with "replica i (DEVICE): "; one of CTRT_ERR_COMM,
 * the consequence of another error, only if there is no other. */
ctrt_status workers_run(struct workers *workers, ctrt_status (*function)(void *user, int index), void *user, int count);
/* Creates the threads that workers_run needs for `count` if they do not exist. CTRT_ERR_OUT_OF_MEMORY if one cannot be
 * created; workers_run would run its function in the calling thread. */
ctrt_status workers_require(struct workers *workers, int count);

/* ---- replicas ---- */

struct hook_user {                          /* of the accumulate hook of one parameter of one replica */
    struct data_parallel *dp;
    int replica;
    size_t parameter;
    ctrt_tensor *leaf;                      /* owned */
    uint64_t id;
};

struct replica {
    ctrt_module *module;                    /* replica 0: the module, borrowed; NULL: not created yet */
    ctrt_tensor **tensors;                  /* borrowed: parameters, then buffers */
    uint32_t *original_versions, *versions; /* of the module's tensors and of this replica's at the last copy */
    bool fresh;                             /* nothing was copied yet */
    bool predicted;                         /* created in a dry run: it has no memory afterwards */
    struct hook_user *hooks;                /* one per parameter; NULL: none */
    ctrt_tensor **before;                   /* gradients from before the step, and room for one more; scratch */
    bool taken;                             /* `before` has the gradients that the parameters had */
};

/* Makes the first `count` replicas equal to the module: structure, modes, values. */
ctrt_status replicas_update(struct data_parallel *dp, int count);
void replicas_free(struct data_parallel *dp);
/* Frees the replicas that were created in a dry run. */
void replicas_drop_predicted(struct data_parallel *dp);

/* ---- gradients ---- */

struct dp_bucket {                             /* parameters whose gradients are added up together */
    size_t first, end;                      /* parameters; the bucket with the highest ones comes first */
    bool whole;                             /* of one parameter, which is sharded over the members of its device: its
                                             * gradients are not copied to memory of the bucket, where they would lose
                                             * their layout; `sums` has the gradients themselves */
    ctrt_dtype dtype;
    int64_t numel;                          /* of its memory in this step */
    ctrt_tensor **sums;                     /* per replica: its gradients, then sums; owned; NULL: none (yet) */
    ctrt_event **events;                    /* per place: the replica's gradients are in `sums`; owned */
    atomic_int waiting;                     /* gradients that have not been computed in this step, of all replicas */
    bool done;                              /* the sums are in dp->grads */
};

/* Sorts the parameters into buckets and adds the hooks. Called when a replica is new. dp->buckets is NULL after a
 * failure. */
ctrt_status buckets_make(struct data_parallel *dp);
/* Returns whether the buckets fit the current layouts of the parameters. */
bool buckets_fit(const struct data_parallel *dp);
void buckets_free(struct data_parallel *dp);
/* Removes the hooks of a replica. */
void hooks_free(struct data_parallel *dp, int index);
/* Streams of a device: for copies to buckets, for additions of buckets, and for copies of the module's tensors. Work
 * that uses a tensor waits for all that the other stream has at that time, so those tensors are divided among
 * several streams. A forward pass begins when the first ones have arrived, and has to wait for half of them only in
 * its middle. */
enum { STREAM_PACK, STREAM_ADD, STREAM_VALUES, STREAMS = STREAM_VALUES + 8 };

struct place {                              /* where work of a replica runs: its device, or a member of its device */
    ctrt_device *device;
    bool asynchronous;
    ctrt_stream *compute;                   /* the calling thread's current stream; owned */
    ctrt_stream *at[STREAMS];               /* owned; NULL: of a synchronous device, or not needed yet */
};
/* For each place `p` of replica `r`. */
#define EACH_PLACE(p, dp, r) \
    for (struct place *p = (dp)->places + (dp)->first[r]; p < (dp)->places + (dp)->first[(r) + 1]; p++)
ctrt_status places_make(struct data_parallel *dp);

/* Finds the calling thread's current streams of the first `count` devices, and creates the others. */
ctrt_status streams_find(struct data_parallel *dp, int count);
/* Makes stream k of each place of replica r, if there is one, current until the end of the block. Work there waits for
 * the work that has computed what it reads, because streams are ordered automatically during a step. Returns on
 * failure. */
#define ON_STREAM(dp, r, k)                                                          \
    __attribute__((cleanup(streams_leave), unused)) int entered_##r = 0;             \
    CTRT_TRY(streams_enter(&entered_##r, dp, r, k))
ctrt_status streams_enter(int *entered, const struct data_parallel *dp, int r, int k);
void streams_leave(const int *entered);
/* Makes the first device's stream wait for the work of a step on all streams. With automatic ordering of streams its
 * next work on tensors of the step does anyway; otherwise (CTRT_STREAM_ORDER=manual) the program could not. */
ctrt_status streams_join(struct data_parallel *dp, int count);
/* Prepares the buckets for a step with `count` replicas. `overlap`: the hooks reduce each complete bucket. */
ctrt_status dp_reduce_begin(struct data_parallel *dp, int count, bool overlap);
/* Reduces the other buckets over `count` replicas. The sums are in dp->grads. */
ctrt_status dp_reduce_rest(struct data_parallel *dp, int count);
/* Ends the step; after a failure the streams, which may have an error, are replaced at the next step. */
void dp_reduce_end(struct data_parallel *dp, bool failed);
/* Combines trees[count], tree i on devices[i], in trees[0]. */
ctrt_status trees_merge(ctrt_sum_tree **trees, int count);

/* ---- batch norm over all replicas (sync.c) ---- */

/* workers_run, for functions that run `count` replicas of the module: SyncBatchNorm layers in training mode use the
 * rows of all of them. If one function fails, no other waits for it. */
ctrt_status replicas_run(struct data_parallel *dp, ctrt_status (*function)(void *user, int index), void *user,
                         int count);
/* CTRT_ERR_NOT_SUPPORTED for such layers if the backward pass would run in the program's thread. */
ctrt_status sync_refuse_recorded(const struct data_parallel *dp);
void sync_free(struct data_parallel *dp);

/* ---- the strategy ---- */

struct data_parallel {
    ctrt_module *module;                    /* borrowed */
    ctrt_device *const *devices;
    int n;
    int32_t canonical;                      /* number of shards; 0: off */
    bool distinct;                          /* no device occurs twice */
    double *weights;                        /* NULL: parts of equal size */
    struct workers *workers;
    ctrt_comm **comms;                      /* of SyncBatchNorm layers, comm_count; owned; NULL: not needed so far */
    int comm_count;
    bool no_sync, pending;                  /* pending: replicas have gradients that no_sync has kept there */

    struct replica *replicas;               /* n */
    ctrt_tensor **tensors;                  /* the module's parameters, then buffers; owned */
    size_t parameters, count;               /* number of parameters; of all tensors */

    ctrt_tensor **grads;                    /* sums of a step; parameters + 2 */
    int64_t *offsets;                       /* of each parameter's gradient in its bucket's memory, in elements */
    struct dp_bucket *buckets;
    size_t bucket_count;
    uint64_t bucket_bytes;
    atomic_bool overlapping;
    int active;                             /* replicas of the current step */
    atomic_uchar *packed;                   /* per replica and parameter: its gradient of this step is in its bucket */
    pthread_mutex_t adding;                 /* held while additions are enqueued */
    ctrt_tensor **received;                 /* per replica: memory for what it receives in a step; owned */
    struct place *places;                   /* those of replica r: first[r] to first[r + 1] - 1 */
    int *first;                             /* n + 1 */
};

#endif
