/* SPDX-License-Identifier: Apache-2.0 */
/* data/fork_server.h: the process from which workers are forked (ctrt_fork_server_start). */
#ifndef DATA_FORK_SERVER_H
#define DATA_FORK_SERVER_H

#include "data/dataset.h"

/* Returns whether the server runs. Also false in a process that forked from the one that started the server. */
bool fork_server_alive(void);
/* Starts worker `id` of the loader whose memory is `ring`, with the stderr `error`. Opens the dataset there. When the
 * worker ends, the server stores its status in ring_worker.exit. */
ctrt_status fork_server_start_worker(int *pid, int ring, int error, const ctrt_dataset *dataset, int id);

#endif
