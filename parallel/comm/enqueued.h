/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/enqueued.h: collectives that an engine has enqueued and that are not complete yet. */
#ifndef PARALLEL_COMM_ENQUEUED_H
#define PARALLEL_COMM_ENQUEUED_H

#include "parallel/comm/comm.h"

/* Called after the engine has run call `number` of the lane, a collective (`peer` -1) or a message, on the calling
 * thread's current stream. If the engine enqueues and the stream is not being captured, records the call as incomplete
 * until the stream has reached this point, and sets *tracked. If the call fails later, `work` fails with it; `work` may
 * be NULL. */
ctrt_status comm_enqueued_add(bool *tracked, struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work);
/* Counts the calls that are complete, also those that the tracking thread has not checked yet. */
void comm_enqueued_count(ctrt_comm *comm);
/* Makes the incomplete collectives fail with `status` and the message `error`: sets the error of their works and their
 * streams. The caller holds the communicator's lock. */
void comm_enqueued_fail(ctrt_comm *comm, ctrt_status status, const char *error);
/* Waits until all collectives are complete or the communicator has failed, and ends the thread that tracks them. */
void comm_enqueued_end(ctrt_comm *comm);

#endif
