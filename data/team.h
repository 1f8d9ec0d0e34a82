/* SPDX-License-Identifier: Apache-2.0 */
/* data/team.h: the workers of a loader: starts them, watches them, reads their stderr, ends them. */
#ifndef DATA_TEAM_H
#define DATA_TEAM_H

#include <pthread.h>

#include "data/ring.h"
#include "data/worker.h"

#define MEMBER_TAIL 2048

struct member {
    bool running, ended;                /* started; a process that is known to have ended, with `status` as by wait */
    int pid, status;
    int error;                          /* where its stderr is read; -1: not */
    char tail[MEMBER_TAIL];             /* the last bytes that it wrote there */
    size_t tail_length;
    pthread_t thread;
    struct worker worker;               /* of a thread */
};

struct team {
    struct ring *ring;
    ctrt_dataset *dataset;
    ctrt_worker_kind kind;              /* not AUTO */
    bool quiet;
    int count;
    struct member *members;
};

/* Allocates the members; none runs. The ring and the dataset must outlive the team. */
ctrt_status team_new(struct team *team, struct ring *ring, ctrt_dataset *dataset, ctrt_worker_kind kind, int count,
                     bool quiet);
/* Starts all workers, with empty queues. On failure none runs. */
ctrt_status team_start(struct team *team);
/* Starts a new process in place of one that has ended. It continues with its predecessor's queue. */
ctrt_status team_restart(struct team *team, int id);
/* Ends all workers. Kills processes that do not end within half a second; waits for threads. */
void team_stop(struct team *team);
/* Stops, and frees the members. `forked`: in the child of a fork, whose parent has the workers. */
void team_free(struct team *team, bool forked);

/* Returns whether a worker has been started and team_stop not been called since. */
static inline bool team_running(const struct team *team)
{
    bool running = false;
    for (int id = 0; id < team->count; id++)
        running = running || team->members[id].running;
    return running;
}

static inline bool team_of_processes(const struct team *team)
{
    return team->kind != CTRT_WORKERS_THREADS;
}

/* Reads what the workers have written to stderr, and writes it to the stderr of this process unless they are quiet.
 * Returns whether there was something. */
bool team_read_errors(struct team *team);
/* Returns whether the process of worker `id` has ended. */
bool team_has_ended(struct team *team, int id);
/* Sets the error message about a worker that has ended, or one that has exceeded the timeout (`seconds` > 0) and works
 * on `slot`. Returns CTRT_ERR_IO. */
ctrt_status team_fail(struct team *team, int id, const struct ring_slot *slot, double seconds);

#endif
