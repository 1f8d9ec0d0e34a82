/* SPDX-License-Identifier: Apache-2.0 */
/* data/ring.h: the memory of a loader's batches, which it shares with its workers.
 *
 *     header | workers | queues of the workers | slots: header, indices | the slots' data, page by page
 *
 * A slot is the memory of one batch. The loader posts it to the queue of a worker, the worker fills it and marks it as
 * done, the loader returns its memory as tensors, and it is free again when the last of these is released. With worker
 * processes the memory is a file without a name (memfd) whose pages are allocated in advance (posix_fallocate): a lack
 * of memory is an error then, and not the signal SIGBUS at the first write. */
#ifndef DATA_RING_H
#define DATA_RING_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/dataset.h"
#include "stream/fence.h"

#define RING_MESSAGE 1024

struct ring_task {
    uint64_t ticket;                    /* of the batch; a slot with another ticket has been used again since */
    uint32_t slot, reserved;
};

struct ring_worker {
    _Alignas(64) _Atomic uint32_t posted;       /* tasks that were posted to this worker; it waits for this word */
    _Alignas(64) _Atomic uint32_t taken;        /* tasks that it has finished; written by the worker, as the others */
    _Atomic uint32_t sleeping;
    _Atomic int64_t sample;                     /* the sample that it reads; -1: none */
    _Atomic int64_t exit;                       /* of a worker of the fork server: its status, as by wait, plus 1 */
};

enum ring_slot_state { SLOT_POSTED, SLOT_DONE };

struct ring_slot {
    _Alignas(64) _Atomic uint32_t state;
    int worker;
    uint64_t ticket, epoch;
    int64_t batch, first, count;        /* first: position of the first sample in the epoch */
    /* Results. */
    bool ended;                         /* the stream has no more samples */
    bool cancelled;                     /* the loader has left the epoch */
    ctrt_status status;
    int64_t failed;                     /* the sample that failed, -1: the batch */
    int ndim[CTRT_MAX_FIELDS];
    int64_t shape[CTRT_MAX_FIELDS][CTRT_MAX_DIMS];
    char message[RING_MESSAGE];
    int64_t indices[];
};

/* Constant after ring_new, except for the atomic members and `seed`, which ctrt_loader_restore sets. */
struct ring_header {
    uint64_t bytes;
    int slots, workers, depth;          /* depth: most batches of a worker that are not done; workers: 0 for none */
    int64_t largest_batch;
    size_t queue_base, slot_base, slot_stride, data_base, data_stride;
    size_t field_base[CTRT_MAX_FIELDS], capacity[CTRT_MAX_FIELDS];      /* of a field in a slot's data */
    bool pin;                           /* the memory will be pinned */
    bool batched;                       /* false: batches of one sample without the dimension of the batch */
    uint64_t seed;
    double pad_value;
    ctrt_collate_function collate;
    void *collate_user;
    ctrt_status (*worker_init)(int worker, void *user);
    void *worker_init_user;
    _Alignas(64) _Atomic uint32_t completed;    /* batches done; the loader waits for this word */
    _Atomic uint32_t waiting;                   /* whether it does */
    _Atomic uint32_t stop;
    _Atomic uint64_t cancelled;                 /* batches with tickets below this one are not needed any more */
};

/* One process's view of the memory, kept until the loader and all tensors over its slots are released. */
struct ring {
    atomic_int refs;
    struct ring_header *header;
    int fd;                             /* -1: closed */
    atomic_int *slot_refs;              /* by slot: 0: free, else the loader's or its tensors' references */
    ctrt_device *pinned_for;            /* the device for which the memory is pinned; NULL: it is not */
    pthread_mutex_t lock;               /* guards `fences` while a slot has references */
    struct fence **fences;              /* by slot: copies that still read it */
};

/* Allocates the memory. `config`: a header without `bytes`, `*_base`, `*_stride` and `capacity`, which are computed,
 * and with atomic members of 0. `shared`: for worker processes. CTRT_ERR_OUT_OF_MEMORY if it exceeds `budget` or cannot
 * be allocated. */
ctrt_status ring_new(struct ring **out, const struct ring_header *config, const ctrt_dataset *dataset, bool shared,
                     uint64_t budget, bool budget_set);
/* Pins the memory for copies to `device`. Later uses of slots are in `fences`. */
ctrt_status ring_pin(struct ring *ring, ctrt_device *device);
/* Returns whether the slot is free, and no device copies it. Only for the loader's thread. */
bool ring_slot_free(struct ring *ring, int slot);
/* Closes the descriptor of the memory, when no more processes will map it. */
void ring_close(struct ring *ring);
/* Maps the memory of another process. */
ctrt_status ring_map(struct ring **out, int fd);
void ring_release(struct ring *ring);

static inline struct ring_worker *ring_worker(const struct ring_header *header, int worker)
{
    return (struct ring_worker *)(header + 1) + worker;
}

static inline struct ring_task *ring_task(const struct ring_header *header, int worker, uint32_t number)
{
    struct ring_task *tasks = (struct ring_task *)((char *)header + header->queue_base);
    const uint32_t length = (uint32_t)header->depth + 1;
    return &tasks[(uint32_t)worker * length + number % length];
}

static inline struct ring_slot *ring_slot(const struct ring_header *header, int slot)
{
    return (struct ring_slot *)((char *)header + header->slot_base + (size_t)slot * header->slot_stride);
}

static inline char *ring_data(const struct ring_header *header, int slot, int field)
{
    return (char *)header + header->data_base + (size_t)slot * header->data_stride + header->field_base[field];
}

/* Wait while *word is `value`, at most `nanoseconds`; and wake all who wait. Between processes. */
void ring_wait(_Atomic uint32_t *word, uint32_t value, long nanoseconds);
void ring_wake(_Atomic uint32_t *word);

#endif
