/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/server.h: the server of a tcp store, a thread of the process that serves. */
#ifndef PARALLEL_STORE_SERVER_H
#define PARALLEL_STORE_SERVER_H

#include "ctrt/types.h"

struct store_server;

/* Starts the server on `host`, *port (0: chosen by the system, which replaces it). `secret` NULL: none; it must stay
 * valid. */
ctrt_status store_server_start(struct store_server **out, const char *host, int *port, const char *secret);
/* Closes all connections, ends the thread and frees the server. */
void store_server_stop(struct store_server *server);

/* The thread does not change the list of connections between a call before a fork and the one after it. That in the
 * child closes the child's copies of all descriptors. */
enum store_fork { STORE_BEFORE_FORK, STORE_IN_PARENT, STORE_IN_CHILD };
void store_server_fork(struct store_server *server, enum store_fork when);

/* Sets what TCP does if the other machine does not answer any more: the connection breaks after about 30 s. Sends small
 * messages at once. */
void store_socket_options(int fd);

#endif
