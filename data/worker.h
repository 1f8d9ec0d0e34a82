/* SPDX-License-Identifier: Apache-2.0 */
/* data/worker.h: reads the samples of batches into their slots, in a worker or in the loader's thread. */
#ifndef DATA_WORKER_H
#define DATA_WORKER_H

#include "data/ring.h"

struct worker {
    struct ring_header *header;
    ctrt_dataset *dataset;
    int id;
    bool process;
    int parent;                         /* the process whose end ends this worker */
    int64_t (*shapes)[CTRT_MAX_DIMS];   /* by sample of a batch and field */
    bool stream_started, stream_ended;
    uint64_t stream_epoch;
    int64_t stream_position;            /* of the stream's next sample in its epoch */
    ctrt_status init_status;            /* the result of worker_init: the status of all batches if it failed */
    char init_message[RING_MESSAGE];
};

/* Initializes `worker`; the header and the dataset must outlive it. */
ctrt_status worker_begin(struct worker *worker, struct ring_header *header, ctrt_dataset *dataset, int id);
void worker_end(struct worker *worker);

/* Reads the batch of a slot and marks it as done. An error is a result of the slot. */
void worker_fill(struct worker *worker, struct ring_slot *slot);
/* Runs worker_init, then works on the worker's queue until the loader stops it or `parent` ends. */
void worker_run(struct worker *worker);

/* In a new process: works as worker `id` and ends the process. `error`: becomes its stderr; -1: keeps it. `parent`: the
 * process that forked; `main_thread`: by its main thread. */
_Noreturn void worker_process(struct ring_header *header, ctrt_dataset *dataset, int id, int error, int parent,
                              bool main_thread);

#endif
