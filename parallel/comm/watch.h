/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/watch.h: what a communicator knows of its other ranks, and the thread that watches them. */
#ifndef PARALLEL_COMM_WATCH_H
#define PARALLEL_COMM_WATCH_H

#include <pthread.h>

#include "base/states.h"
#include "ctrt/comm_plugin.h"

/*  from                          event                                                      to
 *  OFF                           the engine is about to connect the ranks                   LISTED
 *  LISTED                        the ranks are in several processes: the thread starts      WATCHING
 *  WATCHING                      the thread cannot start                                    LISTED
 *  WATCHING                      a call has run for 0.05 s                                  LOOKING
 *  LOOKING                       the thread looks for ranks that have left                  WATCHING
 *  WATCHING, LOOKING             rank 0 has left: the thread counts its rank in `unwatched`, and ends  UNWATCHED
 *  WATCHING, LOOKING             this rank leaves: the thread ends                          CLOSING
 *  LISTED, UNWATCHED, CLOSING    this rank begins to announce that it leaves; once          LEFT
 * If the group fails, the thread ends and the state remains; then CLOSING is the last one. Changes without a lock. */
enum watch_state {
    WATCH_OFF, WATCH_LISTED, WATCH_WATCHING, WATCH_LOOKING, WATCH_UNWATCHED, WATCH_CLOSING, WATCH_LEFT,
    WATCH_STATES
};
#define WATCH_ACTIVE (STATE(WATCH_WATCHING) | STATE(WATCH_LOOKING))
#define WATCH_ENDS   (STATE(WATCH_LISTED) | STATE(WATCH_UNWATCHED) | STATE(WATCH_CLOSING))
extern const unsigned watch_next[];

struct comm_watch {
    atomic_uint state;                      /* enum watch_state */
    ctrt_comm *next;                        /* comm/peers.c: list of this process's communicators */
    _Atomic uint64_t possible;              /* the last collective that all ranks have called or can still call */
    struct comm_departure {
        bool left;
        ctrt_comm_signature done;           /* its last completed collective */
        uint64_t sent, received;            /* messages that it has sent to this rank, and received from this rank */
    } *departures;                          /* [size], guarded by the lock; NULL: no rank is known to have left */
    atomic_int unanswered;                  /* requests of the thread since the store last answered one */
    pthread_t thread;
};

/* Changes the state if it is one of `from`. Returns the state before. */
static inline enum watch_state watch_change(struct comm_watch *watch, unsigned from, enum watch_state to)
{
    return (enum watch_state)state_change(watch_next, &watch->state, from, to);
}

#endif
