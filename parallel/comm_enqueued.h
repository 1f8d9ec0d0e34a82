/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm_enqueued.h: collectives that an engine has enqueued and that are not complete yet. */
#ifndef PARALLEL_COMM_ENQUEUED_H
#define PARALLEL_COMM_ENQUEUED_H

#include "parallel/comm.h"

/* Called after the engine has run call `number` of the lane, a collective (`peer` -1) or a message, on the calling
 * thread's current stream. With an engine that enqueues, and outside of captures, records that the call is incomplete
 * until the stream has reached this point, and sets *tracked; its failure becomes that of `work`, which may be NULL. */
ctrt_status comm_enqueued_add(bool *tracked, struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work);
/* Counts the calls that are complete although the thread has not looked at them yet. */
void comm_enqueued_count(ctrt_comm *comm);
/* Makes `status` with the message `error` the error of the incomplete collectives, their works and their streams. The
 * caller holds the communicator's lock. */
void comm_enqueued_fail(ctrt_comm *comm, ctrt_status status, const char *error);
/* Waits until all collectives are complete or the communicator has failed, and ends the thread. */
void comm_enqueued_end(ctrt_comm *comm);

#endif
